"""Write the model card of a run or an export: model, data, rewards, results, settings.

The card holds only what was measured or recorded. Because it is made to be published, some things
are removed: home folders in their usual places, logins and keys in addresses (`PRIVATE_PART`), and
values with a secret name (`SECRET_NAME`). Other paths stay. A key inside the source of a reward,
such as `api_key = "..."`, is not recognised, so read a card before you publish it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from grpo_nb.config.settings import EMBEDDED_MODEL
from grpo_nb.core.files import write_text
from grpo_nb.core.pages import render
from grpo_nb.core.words import displayable
from grpo_nb.runs.measures import HOLDOUT_MEASURES, percent_text
from grpo_nb.runs.run_folder import FIGURE_FILE, Run
from grpo_nb.tasks.formats import AnswerFormat

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

#: The model that the embedded model was made from, by quantising to 4 bit and back. Its weights
#: differ, so an adapter trained on the embedded model must not name the original as its base.
ORIGIN_OF_EMBEDDED_MODEL = "HuggingFaceTB/SmolLM2-135M-Instruct"

#: Names of values that are secret, such as `hf_token` or `api_key`. The whole name must match.
SECRET_NAME = re.compile(
    r"""
    # Tokens of a tokenizer are public.
    (?!(?:bos|eos|pad|unk)_token$)
    # Another word can come first, with a separator ("hf_token") or in camel case ("clientSecret").
    (?:.*[_-] | (?-i:.*[a-z](?=[A-Z])))?
    (?:api|access|auth|hub)?
    # Tokens are secret in `api_tokens` and `hf_tokens`. In `max_tokens` they are counted.
    (?:token | (?<=api_)tokens | (?<=hf_)tokens
      | (?:pass(?:word|wd|phrase)|pwd|secret|key|credential|authorization)s?)
    """,
    re.IGNORECASE | re.VERBOSE,
)
#: Parts of a text that are removed.
PRIVATE_PART = re.compile(
    r"""
    # A login: "me:pass" in "http://me:pass@host".
    (?<=://)[^\s/'"]+(?=@)
    # A key: "api_key=5" in "?api_key=5", also after an escaped "&amp;".
    | (?<=[?&;])[\w-]*(?i:token|key|passw(?:or)?d|secret)[\w-]*=[^&\s'"]+
    # A user's home folder on Windows: "C:\Users\me", or "/mnt/c/Users/me" in Linux on Windows.
    # Source code doubles the backslashes. A name can have spaces if a slash follows: "Jane Doe\x".
    | (?<![\w.])(?:[A-Za-z]:|/mnt/[a-z])[/\\]+(?i:Users)[/\\]+
      [\w.@-]+(?:(?:[ ][\w.@-]+){1,2}(?=[/\\]))?
    # A user's home folder or drive elsewhere. A path in the address of a website stays:
    # "https://example.org/home/index.html".
    | (?<![\w.])(?:/home|/nfs/home|/Users|/media|/run/media)[/\\]+
      [\w.@-]+(?:(?:[ ][\w.@-]+){1,2}(?=[/\\]))?
    """,
    re.VERBOSE,
)


def write_model_card(run: Run) -> None:
    """Write the run's own README.md, which is the card of its adapter."""
    write_text(run.path / "README.md", model_card(run))


def model_card(
    run: Run,
    kind: Literal["run", "adapter", "merged", "gguf"] = "run",
    verification: Mapping[str, Any] | None = None,
) -> str:
    """Return the model card in Markdown, with metadata that the Hub accepts.

    Args:
        run: The run.
        kind: What the card describes: the folder of the run, or an export of its adapter, of the
            merged model in 16 bit or as GGUF.
        verification: Content of the export's `verification.json`; None for the run itself.
    """
    info = run.info
    settings = run.settings
    shown_settings = {**settings.to_dict(), **settings.extra}
    # Left out: `extra` was merged above, `model` is in the first line, and `run_root` is a path of
    # one machine.
    for name in ("extra", "model", "run_root"):
        shown_settings.pop(name, None)
    card = render(
        "runs/templates/card.md.jinja",
        run=run,
        info=info,
        kind=kind,
        # A training that fails at its first step leaves no adapter.
        has_adapter=(run.adapter_path / "adapter_model.safetensors").is_file(),
        metadata=card_metadata(run),
        model_name=Path(settings.model).name,
        is_embedded=settings.model == EMBEDDED_MODEL,
        origin=ORIGIN_OF_EMBEDDED_MODEL,
        comparison=run.comparison,
        measures=HOLDOUT_MEASURES,
        percent_text=percent_text,
        verification=verification or {},
        figure=FIGURE_FILE if (run.path / FIGURE_FILE).is_file() else None,
        answer_format=AnswerFormat(**info["task"]["format"]),
        settings=without_private_parts(shown_settings),
    )
    # The finished text is filtered too, because sentences and sources of rewards can also hold
    # private parts.
    return displayable(without_private_parts(f"{card}\n"))


def card_metadata(run: Run) -> ModelCardData:
    """Return the metadata of the card, as huggingface_hub's own object."""
    from huggingface_hub import ModelCardData

    is_embedded = run.settings.model == EMBEDDED_MODEL
    return ModelCardData(
        model_name=run.name,
        base_model=published_base(run),
        # The licence of another model is not known here, so the card claims none.
        license="apache-2.0" if is_embedded else None,
        pipeline_tag="text-generation",
        tags=["grpo", "trl", "unsloth", "reinforcement-learning"],
    )


def published_base(run: Run) -> str | None:
    """Return the name on the Hub of a run's model; None for a folder and the embedded model.

    The run recorded whether its model was a local folder. The disk is not asked, because in another
    working directory `Qwen/x` can be a folder too.
    """
    model = run.settings.model
    # A run that did not record this (None) names no base. The name of the embedded model has no
    # owner, so it is not a name on the Hub.
    is_published = run.info.get("is_base_local") is False
    return model if is_published and is_hub_name(model) else None


def is_hub_name(model: str) -> bool:
    """Return True if a text has the form of a name on the Hub, with its owner.

    >>> [is_hub_name(model) for model in ("Qwen/Qwen3-0.6B", "./my-model")]
    [True, False]
    """
    from huggingface_hub.utils import HFValidationError, validate_repo_id

    try:
        validate_repo_id(model)
    except HFValidationError:
        return False
    return "/" in model


def without_private_parts(value: Any) -> Any:
    """Return texts, lists and mappings without home folders, logins and keys.

    >>> without_private_parts(["/home/me/model", "http://me:pass@host:8000/v1?api_key=5"])
    ['[removed]/model', 'http://[removed]@host:8000/v1?[removed]']
    """
    if isinstance(value, Mapping):
        # A value under a secret name is left out whole, whatever it looks like.
        public_names = [name for name in value if not SECRET_NAME.fullmatch(str(name))]
        return {name: without_private_parts(value[name]) for name in public_names}
    if isinstance(value, (list, tuple)):
        return [without_private_parts(item) for item in value]
    return PRIVATE_PART.sub("[removed]", value) if isinstance(value, str) else value
