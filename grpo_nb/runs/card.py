"""The model card of a run and of its exports: what was trained on what with which rewards, and what came of it.

Only what was measured or recorded stands in it. Nothing of the machine's paths: a card is there to be published.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config.settings import EMBEDDED_MODEL
from grpo_nb.core.files import write_text
from grpo_nb.core.pages import render
from grpo_nb.core.words import displayable
from grpo_nb.runs.run_folder import Run
from grpo_nb.tasks.formats import AnswerFormat

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

# What the embedded model comes from. Its weights are those of a file of 4 bits, dequantised, and in no repository: an adapter
# that was trained on them names them by the kit's own name, which nobody takes for others.
_ORIGIN = "HuggingFaceTB/SmolLM2-135M-Instruct"
# Of no meaning elsewhere, or never to be published.
_SECRET_NAME = re.compile(r"(?i)(.*_)?(token|password|secret|key|credentials?)")
_PRIVATE_NAME = re.compile(rf"run_root|model|logging_dir|output_dir|{_SECRET_NAME.pattern[4:]}")
_LOGIN = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/?#'\"<>`]*@")
_KEY = re.compile(
    r"(?i)([?&;][\w-]*(?:token|key|password|passwd|secret|auth|signature)[\w-]*=)[^&;\s'\"<>`]+"
)
# Where people have their files, on machines that this one need not be like.
_PLACE = r"(?:~(?:[a-z_]\w*)?/|[A-Za-z]:[\\/]+Users[\\/]+|/(?:home|root|Users|mnt|media|content|kaggle|tmp|var|data|work\w*)/)"
# In quotes as a whole, else as far as it has no spaces.
_PATH = re.compile(rf"(?<=['\"]){_PLACE}[^'\"\n]*|(?<![\w/.:<~\\-]){_PLACE}[^\s'\"<>|`*?,;)\]}}]*")
_WHOLE_PATH = re.compile(
    r"(?:~\w*/|\.{0,2}/|[A-Za-z]:[\\/])[^\n]*|\S*/\S+\.(?:csv|jsonl?|parquet|tsv|txt)"
)
_FIGURE = "figures/training.png"
# Kind of export -> (relation to the base model, library, further tags), in the Hub's own words. A merged LoRA is a fine-tuned
# model there; "merge" means several models in one. A GGUF file is one too, as long as the merged model it was made from is not
# on the Hub: of that it would be the quantized form.
_KINDS: Mapping[str, tuple[str, str | None, tuple[str, ...]]] = {
    "adapter": ("adapter", "peft", ("lora",)),
    "merged": ("finetune", "transformers", ()),
    "gguf": ("finetune", None, ("gguf", "llama.cpp")),
}


def write_model_card(run: Run) -> None:
    """Write the run's own README.md, which is the card of its adapter."""
    write_text(run.path / "README.md", model_card(run))


def write_export_card(
    run: Run,
    folder: str | Path,
    kind: str,
    *,
    verification: Mapping[str, Any] | None = None,
    said: str = "",
) -> Path:
    """Write the card of an export into its folder, with the figure that it shows, and return the path of the card.

    Args:
        run: What was trained.
        folder: Of the export.
        kind: `adapter`, `merged` or `gguf`; more words may follow, as in `merged bfloat16`.
        verification: What was checked of it.
        said: The verification in words.
    """
    if (run.path / _FIGURE).is_file():
        (Path(folder) / _FIGURE).parent.mkdir(exist_ok=True)
        shutil.copyfile(run.path / _FIGURE, Path(folder) / _FIGURE)
    card = Path(folder) / "README.md"
    card.write_text(model_card(run, kind, verification=verification, said=said), "utf-8")
    return card


def model_card(
    run: Run,
    kind: str = "adapter",
    *,
    verification: Mapping[str, Any] | None = None,
    said: str = "",
) -> str:
    """Return the model card in Markdown, with metadata that the Hub accepts; arguments as of `write_export_card`."""
    info, settings = run.info, run.settings
    is_embedded, gpu = settings.model == EMBEDDED_MODEL, info["machine"]["gpu"]
    origin = (
        f"the model embedded in grpo_nb: {_ORIGIN} in 4 bit, dequantised"
        if is_embedded
        else "local"
    )
    comparison = run.comparison
    table, note = (
        ("", "") if comparison is None else (heldout_table(comparison), anywhere_note(comparison))
    )
    card = render(
        "runs/templates/card.md.jinja", run=run, heldout_table=table, heldout_note=note,
        kind=kind.partition(" ")[0], data=card_data(run, kind),
        base=published_name(settings.model), local=f"{Path(settings.model).name} ({origin})",
        folder=settings.model if is_embedded else None, verification=verification, said=said,
        figure=_FIGURE if (run.path / _FIGURE).is_file() else None, info=shareable(info),
        form=AnswerFormat(**info["task"]["format"]), settings=public({**settings.to_dict(), **settings.extra}),
        device=gpu["name"] if gpu else f"a CPU, {info['machine']['cores']} cores",
    )  # fmt: skip
    return displayable(shareable(f"{card}\n"))


def heldout_table(comparison: Any) -> str:
    """Return the held-out result as a Markdown table: three measures of each model, with 95 % intervals.

    Args:
        comparison: `Run.comparison`; what an earlier version of the kit did not measure is shown as not measured.
    """
    columns = {"before": comparison.before, "after": comparison.after}
    if comparison.base is not None:
        columns = {
            "base": comparison.base,
            "start of the run": comparison.before,
            "after": comparison.after,
        }
    meaning = "right, and in the format" if comparison.after.compares_gold else "by a function"
    rows = {
        f"correct ({meaning})": ("accuracy", "interval"),
        "in the format": ("format_share", "format_interval"),
        "correct answer anywhere in the completion": ("anywhere_share", "anywhere_interval"),
    }
    lines = [
        f"| held-out, 95 % interval | {' | '.join(columns)} |",
        "| --- |" + " --- |" * len(columns),
    ]
    for name, (share, interval) in rows.items():
        cells = [
            _share_in_words(getattr(side, share, None), getattr(side, interval, None))
            for side in columns.values()
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def anywhere_note(comparison: Any) -> str:
    """Return the sentence that says how the last row of `heldout_table` was found."""
    note = comparison.after.anywhere_note or "not measured when this was compared"
    return f"Correct answer anywhere in the completion: {note}."


def _share_in_words(share: float | None, interval: Sequence[float] | None) -> str:
    if share is None:
        return "not measured"
    if interval is None:
        return f"{float(share):.1%}"
    low, high = map(float, interval)
    return f"{float(share):.1%} ({low:.1%} to {high:.1%})"


def card_data(run: Run, kind: str = "adapter") -> ModelCardData:
    """Return the metadata of the card, as huggingface_hub's own object."""
    from huggingface_hub import ModelCardData

    relation, library, tags = _KINDS[kind.partition(" ")[0]]
    model, data = run.settings.model, shareable(run.info["task"]["name"])
    base = _ORIGIN if model == EMBEDDED_MODEL and relation != "adapter" else published_name(model)
    return ModelCardData(
        base_model=base, base_model_relation=relation if base else None, library_name=library, model_name=run.name,
        license="apache-2.0" if model == EMBEDDED_MODEL else None, datasets=[data] if published_name(data) else None,
        pipeline_tag="text-generation", tags=["grpo", "trl", "unsloth", "reinforcement-learning", *tags],
    )  # fmt: skip


def published_name(model: str) -> str | None:
    """Return a name on the Hub; None for a local folder, whose path is nobody's business, and for the embedded model.

    >>> published_name("Qwen/Qwen3-0.6B"), published_name("./my-model"), published_name("SmolLM2-135M-Instruct")
    ('Qwen/Qwen3-0.6B', None, None)
    """
    is_id = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", model) and not re.search(
        r"--|\.\.", model
    )
    return model if is_id and not Path(model).exists() else None


def shareable(value: Any) -> Any:
    """Return texts, lists and mappings without what is nobody's business: of a path its last part, of a URL no login or key.

    >>> shareable(["/home/me/acme/model", "http://me:pass@host:8000/v1?api_key=5", "open('~/a b/c.txt') or </answer>"])
    ['model', 'http://host:8000/v1?api_key=***', "open('c.txt') or </answer>"]
    """
    if isinstance(value, Mapping):
        return {
            name: shareable(held)
            for name, held in value.items()
            if not _SECRET_NAME.fullmatch(str(name))
        }
    if isinstance(value, (list, tuple)):
        return type(value)(map(shareable, value))
    if not isinstance(value, str):
        return value
    if _WHOLE_PATH.fullmatch(value):
        return _last_part(value)
    return _PATH.sub(
        lambda found: _last_part(found[0]), _KEY.sub(r"\1***", _LOGIN.sub(r"\1", value))
    )


def public(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that mean nothing elsewhere or are never published; the others as `shareable` has them."""
    return {
        name: shareable(value)
        for name, value in values.items()
        if not _PRIVATE_NAME.fullmatch(name)
    }


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]
