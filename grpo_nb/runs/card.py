"""The model card of a run and of its exports: what was trained on what with which rewards, and what came of it.

Only what was measured or recorded stands in it; what is not known, such as the licence of a base model that says none, is left
out. Nothing of the machine's paths: a card is there to be published.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core import render
from grpo_nb.runs.records import RecordedComparison
from grpo_nb.runs.rows import describe
from grpo_nb.runs.run import Run
from grpo_nb.settings import EMBEDDED_MODEL, Settings
from grpo_nb.tasks import AnswerFormat

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

# Where the embedded model comes from, and its licence, for cards that others read.
_PUBLISHED = {EMBEDDED_MODEL: "HuggingFaceTB/SmolLM2-135M-Instruct"}
_LICENSES = {EMBEDDED_MODEL: "apache-2.0"}
# Of no meaning elsewhere, or never to be published.
_PRIVATE_SETTINGS = ("run_root", "model", "hub_token", "push_to_hub_token")
_FIGURE = Path("figures") / "training.png"


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
    (run.path / "README.md").write_text(model_card(run), "utf-8")


def write_export_card(
    run: Run, folder: str | Path, kind: str, *, verification: Mapping[str, Any] | None = None, said: str = ""
) -> Path:
    """Write the card of an export into its folder, with the figure that it shows, and return the path of the card.

    Args:
        run: What was trained.
        folder: Of the export.
        kind: `adapter`, `merged` or `gguf`; more words may follow, as in `merged bfloat16`.
        verification: What was checked of it.
        said: The verification in words.
    """
    folder = Path(folder)
    if (run.path / _FIGURE).is_file():
        (folder / _FIGURE).parent.mkdir(exist_ok=True)
        shutil.copyfile(run.path / _FIGURE, folder / _FIGURE)
    card = folder / "README.md"
    card.write_text(model_card(run, kind, verification=verification, said=said), "utf-8")
    return card


def model_card(
    run: Run, kind: str = "adapter", *, verification: Mapping[str, Any] | None = None, said: str = ""
) -> str:
    """Return the model card in Markdown, with metadata that the Hub accepts.

    Args:
        run: What was trained; only what it measured is said.
        kind: `adapter`, `merged` or `gguf`, which decides the relation to the base model and how it is used.
        verification: What was checked of the export, by its `checks`.
        said: The verification in words.

    Raises:
        ValueError: Another kind.
    """
    info, settings = run.info, run.settings
    gpu = info["machine"]["gpu"]
    shown = {**settings.to_dict(), **settings.extra}
    card = render(
        "runs/templates/card.md.jinja",
        run=run,
        kind=_sort(kind),
        data=card_data(run, kind),
        base=published_name(settings.model),
        local=Path(settings.model).name,
        described=describe(run.rows),
        verification=verification,
        said=said,
        figure=_FIGURE.as_posix() if (run.path / _FIGURE).is_file() else None,
        info=info,
        form=AnswerFormat(**info["task"]["format"]),
        settings={name: value for name, value in shown.items() if name not in (*_PRIVATE_SETTINGS, "extra")},
        device=gpu["name"] if gpu else f"a CPU, {info['machine']['cores']} cores",
        code=_settings_code(settings),
    )
    return f"{card}\n"


def _sort(kind: str) -> str:
    found = kind.split()[0].lower() if kind.split() else ""
    if found not in _KINDS:
        raise ValueError(f"kind = {kind!r} is none of {', '.join(map(repr, _KINDS))}.")
    return found


def card_data(run: Run, kind: str = "adapter") -> ModelCardData:
    """Return the metadata of the card, as huggingface_hub's own object."""
    from huggingface_hub import ModelCardData

    relation, library, tags = _KINDS[_sort(kind)]
    settings, data = run.settings, run.info["task"]
    base = published_name(settings.model)
    return ModelCardData(
        base_model=base,
        base_model_relation=relation if base else None,
        library_name=library,
        license=license_of(settings.model),
        datasets=[data["name"]] if _is_hub_id(data["name"]) else None,
        pipeline_tag="text-generation",
        tags=["grpo", "trl", "unsloth", "reinforcement-learning", *tags],
        model_name=run.name,
        eval_results=_eval_results(data, run.comparison),
    )


def published_name(model: str) -> str | None:
    """Return the name of a base model on the Hub, or None for a local folder, whose path is nobody's business.

    >>> published_name("SmolLM2-135M-Instruct"), published_name("./my-model")
    ('HuggingFaceTB/SmolLM2-135M-Instruct', None)
    """
    if model in _PUBLISHED:
        return _PUBLISHED[model]
    return model if _is_hub_id(model) and not Path(model).exists() else None


def name_of_base(model: str) -> str:
    """Return what an adapter's configuration calls its base: the name on the Hub, or else the path, which alone finds it."""
    return published_name(model) or model


def license_of(model: str) -> str | None:
    """Return the licence that a base model's own card says, if that is on this machine; the Hub is not asked."""
    from huggingface_hub import ModelCard, try_to_load_from_cache
    from yaml import YAMLError

    if model in _LICENSES:
        return _LICENSES[model]
    card: Any = Path(model) / "README.md"
    if not card.is_file():
        card = try_to_load_from_cache(model, "README.md") if _is_hub_id(model) else None
    if not isinstance(card, (str, Path)):
        return None
    try:
        found = ModelCard(Path(card).read_text("utf-8")).data.get("license")
    except (ValueError, OSError, YAMLError):  # metadata that cannot be read says nothing
        return None
    # "other" would have to come with a name and a link, which are the base model's to give.
    return found if isinstance(found, str) and found != "other" else None


def _is_hub_id(name: str) -> bool:
    return re.fullmatch(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", name) is not None and not re.search(r"--|\.\.", name)


def _eval_results(data: Mapping[str, Any], comparison: RecordedComparison | None) -> list[Any] | None:
    from huggingface_hub import EvalResult

    if comparison is None or (comparison.contamination and comparison.contamination.count):
        return None  # memory is not accuracy, and the Hub's table has no room for the sentence that says so
    name = Path(comparison.other_set).name if comparison.other_set else data["name"]
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=name,
            dataset_name=name,
            dataset_split="held-out",
            dataset_args=None if comparison.other_set else {"fingerprint": data["fingerprint"]},
            metric_type="accuracy",
            metric_name="accuracy on held-out questions",
            metric_value=round(comparison.after.accuracy, 4),
            metric_args={"interval_95": [round(end, 4) for end in comparison.after.interval]},
        )
    ]


def _settings_code(settings: Settings) -> str:
    """The line that makes the settings again: those that are not the defaults, without those that mean nothing elsewhere."""
    model = settings.model if settings.model in _PUBLISHED else published_name(settings.model)
    named: dict[str, Any] = {"model": model or Path(settings.model).name}
    for f in dataclasses.fields(settings):
        if f.name not in (*_PRIVATE_SETTINGS, "extra") and (value := getattr(settings, f.name)) != f.default:
            named[f.name] = value
    if extra := {name: value for name, value in settings.extra.items() if name not in _PRIVATE_SETTINGS}:
        named["extra"] = extra
    arguments = "".join(f"    {name}={value!r},\n" for name, value in named.items())
    return f"import grpo_nb as gn\n\nsettings = gn.Settings(\n{arguments})"
