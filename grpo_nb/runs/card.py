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

from grpo_nb.core.files import write_text
from grpo_nb.core.pages import render
from grpo_nb.core.words import displayable
from grpo_nb.runs.records import RecordedComparison
from grpo_nb.runs.rise import describe
from grpo_nb.runs.run import Run
from grpo_nb.settings.settings import EMBEDDED_MODEL, Settings
from grpo_nb.tasks.formats import AnswerFormat

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

# What the embedded model comes from, and its licence. Its weights are those of a file of 4 bits, dequantised, and in no
# repository: an adapter that was trained on them names them by the kit's own name, which nobody takes for others.
_ORIGIN = "HuggingFaceTB/SmolLM2-135M-Instruct"
_LICENSES = {EMBEDDED_MODEL: "apache-2.0"}
# Of no meaning elsewhere, or never to be published.
_PRIVATE_NAME = re.compile(r"run_root|model|logging_dir|output_dir|(.*_)?(token|password|secret|key|credentials?)")
_LOGIN = re.compile(r"(?i)\b([a-z][a-z0-9+.-]*://)[^\s/?#'\"<>`]*@")
_KEY = re.compile(r"(?i)([?&;][\w-]*(?:token|key|password|passwd|secret|auth|signature)[\w-]*=)[^&;\s'\"<>`]+")
# A path from the root: in quotes as a whole, else as far as it has no spaces.
_ROOTED = r"(?:file://)?(?:~(?:[A-Za-z_][\w.-]*)?/|/([\w.+@-]+)/|[A-Za-z]:[\\/]+Users[\\/]+)"
_PATH = re.compile(
    rf"(?<=')(?:{_ROOTED})[^'\n]*(?=')|(?<=\")(?:{_ROOTED})[^\"\n]*(?=\")|(?<![\w/.:<~\\-])(?:{_ROOTED})[^\s'\"<>|`*?,;)\]}}]*"
)
_WHOLE_PATH = re.compile(r"(file://|~(?:[A-Za-z_][\w.-]*)?/|\.{0,2}/|[A-Za-z]:[\\/]|\\\\[\w.-]+\\)[^\n]*")
# Where people have their files, on machines that this one need not be like.
_PLACES = {
    "home", "root", "Users", "Volumes", "mnt", "media", "content", "kaggle", "tmp", "var", "opt", "srv", "data", "workspace",
    "scratch", "work", "project", "projects", "lustre", "gpfs", "nfs", "dbfs",
}  # fmt: skip
_DATA_FILES = (".csv", ".json", ".jsonl", ".parquet", ".tsv", ".txt")
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
    write_text(run.path / "README.md", model_card(run))


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
    shown = {**settings.to_dict(), **settings.extra}
    gpu = info["machine"]["gpu"]
    base = published_name(settings.model)
    is_embedded = settings.model == EMBEDDED_MODEL
    origin = f"the model embedded in grpo_nb: {_ORIGIN} in 4 bit, dequantised" if is_embedded else "local"
    card = render(
        "runs/templates/card.md.jinja",
        run=run,
        kind=_sort(kind),
        data=card_data(run, kind, verification),
        base=base,
        local=f"{Path(settings.model).name} ({origin})",
        folder=settings.model if is_embedded else None,
        described=describe(run.rows),
        verification=verification,
        said=said,
        figure=_FIGURE.as_posix() if (run.path / _FIGURE).is_file() else None,
        info=shareable(info),
        form=AnswerFormat(**info["task"]["format"]),
        settings={name: value for name, value in public(shown).items() if name != "extra"},
        device=gpu["name"] if gpu else f"a CPU, {info['machine']['cores']} cores",
        code=_settings_code(settings),
    )
    return displayable(shareable(f"{card}\n"))


def _sort(kind: str) -> str:
    found = kind.split()[0].lower() if kind.split() else ""
    if found not in _KINDS:
        raise ValueError(f"kind = {kind!r} is none of {', '.join(map(repr, _KINDS))}.")
    return found


def card_data(run: Run, kind: str = "adapter", verification: Mapping[str, Any] | None = None) -> ModelCardData:
    """Return the metadata of the card, as huggingface_hub's own object; of a merged 4-bit run with its own score or none."""
    from huggingface_hub import ModelCardData

    relation, library, tags = _KINDS[_sort(kind)]
    settings, data = run.settings, {**run.info["task"], "name": shareable(run.info["task"]["name"])}
    base = _ORIGIN if settings.model == EMBEDDED_MODEL and relation != "adapter" else published_name(settings.model)
    return ModelCardData(
        base_model=base,
        base_model_relation=relation if base else None,
        library_name=library,
        license=license_of(settings.model),
        datasets=[data["name"]] if published_name(data["name"]) else None,
        pipeline_tag="text-generation",
        tags=["grpo", "trl", "unsloth", "reinforcement-learning", *tags],
        model_name=run.name,
        eval_results=_eval_results(data, run.comparison, (verification or {}).get("trained_in_4bit")),
    )


def published_name(model: str) -> str | None:
    """Return a name on the Hub; None for a local folder, whose path is nobody's business, and for the embedded model.

    >>> published_name("Qwen/Qwen3-0.6B"), published_name("./my-model"), published_name("SmolLM2-135M-Instruct")
    ('Qwen/Qwen3-0.6B', None, None)
    """
    return model if _is_hub_id(model) and not Path(model).exists() else None


def shareable(value: Any) -> Any:
    """Return texts, lists and mappings without what is nobody's business: of a path its last part, of a URL no login or key.

    >>> shareable(["/home/me/acme/model", "http://me:pass@host:8000/v1?api_key=5", "open('~/a b/c.txt') or </answer>"])
    ['model', 'http://host:8000/v1?api_key=***', "open('c.txt') or </answer>"]
    """
    if isinstance(value, Mapping):
        return {name: shareable(held) for name, held in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(map(shareable, value))
    if not isinstance(value, str):
        return value
    if _WHOLE_PATH.fullmatch(value) or (
        re.fullmatch(r"\S*/\S*", value) and (_exists(value) or value.endswith(_DATA_FILES))
    ):
        return _last_part(value)
    return _PATH.sub(_without_place, _KEY.sub(r"\1***", _LOGIN.sub(r"\1", value)))


def public(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings without those that mean nothing elsewhere or are never published; the others as `shareable` has them."""
    return {name: shareable(value) for name, value in values.items() if not _PRIVATE_NAME.fullmatch(name)}


def _without_place(found: re.Match[str]) -> str:
    first = next(filter(None, found.groups()), None)
    is_place = first is None or first in _PLACES or Path("/", first).is_dir()
    return _last_part(found[0]) if is_place else found[0]


def _exists(path: str) -> bool:
    try:
        return Path(path).exists()
    except (OSError, ValueError):  # longer than a path can be, or with a NUL
        return False


def _last_part(path: str) -> str:
    return re.split(r"[/\\]", path.rstrip("/\\"))[-1]


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


def _eval_results(
    data: Mapping[str, Any], comparison: RecordedComparison | None, of_merged: Mapping[str, Any] | None
) -> list[Any] | None:
    from huggingface_hub import EvalResult

    if comparison is None or (comparison.contamination and comparison.contamination.count):
        return None  # memory is not accuracy, and the Hub's table has no room for the sentence that says so
    found = (
        {"accuracy": comparison.after.accuracy, "interval": comparison.after.interval}
        if of_merged is None
        else of_merged
    )
    if "accuracy" not in found:
        return None  # the run's score is that of other weights
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
            metric_value=round(found["accuracy"], 4),
            metric_args={"interval_95": [round(end, 4) for end in found["interval"]]},
        )
    ]


def _settings_code(settings: Settings) -> str:
    """The line that makes the settings again: those that are not the defaults, without those that mean nothing elsewhere."""
    fields = dataclasses.fields(settings)
    changed = {f.name: value for f in fields if (value := getattr(settings, f.name)) != f.default}
    named = {"model": published_name(settings.model) or Path(settings.model).name, **public(changed)}
    if extra := public(named.pop("extra", {})):
        named["extra"] = extra
    arguments = "".join(f"    {name}={value!r},\n" for name, value in named.items())
    return f"import grpo_nb as gn\n\nsettings = gn.Settings(\n{arguments})"
