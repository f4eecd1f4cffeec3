"""The model card of a run and of its exports: what was trained on what with which rewards, and what came of it.

Only what was measured or recorded stands in it; what is not known, such as the licence of a base model that says none, is left
out. Nothing of the machine's paths: a card is there to be published.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config import EMBEDDED_MODEL, Settings
from grpo_nb.formats import AnswerFormat
from grpo_nb.markdown import fence, plain, span, table
from grpo_nb.metrics import Run, describe

if TYPE_CHECKING:
    from huggingface_hub import ModelCardData

# Where the embedded model comes from, and its licence, for cards that others read.
_PUBLISHED = {EMBEDDED_MODEL: "HuggingFaceTB/SmolLM2-135M-Instruct"}
_LICENSES = {EMBEDDED_MODEL: "apache-2.0"}
# Kind of export -> (relation to the base model, library, further tags), in the Hub's own words. A merged LoRA is a fine-tuned
# model there; "merge" means several models in one. A GGUF file is one too, as long as the merged model it was made from is not
# on the Hub: of that it would be the quantized form.
_KINDS = {
    "adapter": ("adapter", "peft", ("lora",)),
    "merged": ("finetune", "transformers", ()),
    "gguf": ("finetune", None, ("gguf", "llama.cpp")),
}
# Of no meaning elsewhere, or never to be published.
_PRIVATE_SETTINGS = ("run_root", "model", "hub_token", "push_to_hub_token")
_FIGURE = Path("figures") / "training.png"


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
    sort = _sort(kind)
    parts = [
        f"---\n{card_data(run, kind).to_yaml()}\n---\n",
        f"# {plain(run.name)}\n",
        f"{_said_of_base(run.settings)} trained with GRPO (TRL, Unsloth) by the kit grpo_nb; {_FORMS[sort]}. "
        f"The run is {plain(run.status)}. {describe(run.rows)}\n",
        "## Held-out result\n",
        _result(run.comparison()),
        "## Use\n",
        fence(_USES[sort], "python" if sort != "gguf" else "sh") + "\n",
        *_verified(verification, said),
        *_curves(run),
        "## Data\n",
        _data(run.info["task"]),
        "## Rewards\n",
        _rewards(run.info["rewards"]),
        "## Settings\n",
        _settings(run.settings),
        "## How to reproduce\n",
        _reproduction(run),
    ]
    return "\n".join(parts)


_FORMS = {
    "adapter": "this is the LoRA adapter, to be used on top of it",
    "merged": "the trained weights are merged into it, so that it is used like any other model",
    "gguf": "the trained weights are merged into it and stored as GGUF for llama.cpp",
}
_USES = {
    "adapter": """from peft import AutoPeftModelForCausalLM
from transformers import AutoTokenizer

name = "."  # this folder, or its name on the Hub
model = AutoPeftModelForCausalLM.from_pretrained(name)
tokenizer = AutoTokenizer.from_pretrained(name)""",
    "merged": """from transformers import pipeline

chat = pipeline("text-generation", model=".")  # this folder, or its name on the Hub
chat([{"role": "user", "content": "..."}])""",
    "gguf": """llama-server -m ./*.gguf    # the chat template is inside the file""",
}


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
        eval_results=_eval_results(data, run.comparison()),
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
    local = Path(model) / "README.md"
    card: Any = local if local.is_file() else None
    if card is None and _is_hub_id(model):
        card = try_to_load_from_cache(model, "README.md")
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


def _said_of_base(settings: Settings) -> str:
    base = published_name(settings.model)
    return f"[{plain(base)}](https://huggingface.co/{base})" if base else f"{plain(Path(settings.model).name)} (local)"


def _eval_results(data: Mapping[str, Any], comparison: Mapping[str, Any] | None) -> list[Any] | None:
    from huggingface_hub import EvalResult

    if comparison is None:
        return None
    trained_on = comparison.get("contamination") or {"exact": 0, "similar": 0}
    if trained_on["exact"] or trained_on["similar"]:
        return None  # memory is not accuracy, and the Hub's table has no room for the sentence that says so
    low, high = comparison["after"]["interval"]
    other = comparison.get("other_set")
    name = Path(other).name if other else data["name"]
    return [
        EvalResult(
            task_type="text-generation",
            dataset_type=name,
            dataset_name=name,
            dataset_split="held-out",
            dataset_args=None if other else {"fingerprint": data["fingerprint"]},
            metric_type="accuracy",
            metric_name="accuracy on held-out questions",
            metric_value=round(comparison["after"]["accuracy"], 4),
            metric_args={"interval_95": [round(low, 4), round(high, 4)]},
        )
    ]


def _result(comparison: Mapping[str, Any] | None) -> str:
    if comparison is None:
        return "Not measured (`gn.compare(run, task)` does).\n"
    before, after = comparison["before"], comparison["after"]

    def accuracy(side: Mapping[str, Any]) -> str:
        return f"{side['accuracy']:.1%} ({side['interval'][0]:.1%} to {side['interval'][1]:.1%})"

    rows = [
        ["accuracy (95 % interval)", accuracy(before), accuracy(after)],
        ["in the format", f"{before['format_share']:.1%}", f"{after['format_share']:.1%}"],
        ["mean length, tokens", f"{before['mean_length']:.1f}", f"{after['mean_length']:.1f}"],
        ["cut at the limit", f"{before['cut_share']:.1%}", f"{after['cut_share']:.1%}"],
    ]
    return f"{plain(comparison['sentence'])}\n\n{table(['', 'before', 'after'], rows)}\n"


def _verified(verification: Mapping[str, Any] | None, said: str) -> list[str]:
    if not verification:
        return []
    checks = verification.get("checks", {})
    measured = verification.get("measured", {})
    lines = [
        f"- {'passed' if ok else 'FAILED'}: {plain(name)}{f' ({plain(measured[name])})' if measured.get(name) else ''}"
        for name, ok in checks.items()
    ]
    return [
        "## Verification\n",
        "Checked against base model and adapter by a separate process; the numbers are in `verification.json`.\n",
        "\n".join(lines) + "\n",
        *([f"{plain(said)}\n"] if said else []),
    ]


def _curves(run: Run) -> list[str]:
    if not (run.path / _FIGURE).is_file():
        return []
    words = describe(run.rows).replace("[", "(").replace("]", ")")
    return ["## Training curves\n", f"![Training curves. {words}]({_FIGURE.as_posix()})\n"]


def _data(data: Mapping[str, Any]) -> str:
    form = AnswerFormat(**data["format"])
    text = (
        f"{span(data['name'])}: {data['train']} training and {data['holdout']} held-out prompts, no question in both; "
        f"fingerprint `{data['fingerprint']}`.\n"
    )
    return f"{text}\nThe system prompt, for answers in the format {span(form.name)}:\n\n{fence(form.system_prompt())}\n"


def _rewards(rewards: Sequence[Mapping[str, Any]]) -> str:
    rows = [[span(r["name"]), f"{r['weight']:g}", span(r["call"])] for r in rewards]
    sources = "\n\n".join(f"Source of {span(r['name'])}:\n\n{fence(r['source'], 'python')}" for r in rewards)
    # The blank lines make Markdown read what stands inside.
    return (
        f"{table(['reward', 'weight', 'made by'], rows)}\n\n<details>\n<summary>Source of the rewards</summary>\n\n"
        f"{sources}\n\n</details>\n"
    )


def _settings(settings: Settings) -> str:
    values = {**settings.to_dict(), **settings.extra}
    shown = {k: v for k, v in values.items() if k not in (*_PRIVATE_SETTINGS, "extra")}
    rows = [[span(name), span(value)] for name, value in shown.items()]
    return f"<details>\n<summary>All settings</summary>\n\n{table(['setting', 'value'], rows)}\n\n</details>\n"


def changed_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings that are not the defaults, by name, without those that mean nothing elsewhere."""
    changed = {}
    for f in dataclasses.fields(settings):
        value = getattr(settings, f.name)
        if f.name in _PRIVATE_SETTINGS or f.name == "extra" or value == f.default:
            continue
        changed[f.name] = value
    extra = {k: v for k, v in settings.extra.items() if k not in _PRIVATE_SETTINGS}
    return {**changed, "extra": extra} if extra else changed


def _reproduction(run: Run) -> str:
    info, settings = run.info, run.settings
    machine = info["machine"]
    device = machine["gpu"]["name"] if machine["gpu"] else f"a CPU, {machine['cores']} cores"
    versions = table(["package", "version"], [[span(n), span(v)] for n, v in info["versions"].items()])
    model = published_name(settings.model) if settings.model not in _PUBLISHED else settings.model
    named = {"model": model or Path(settings.model).name, **changed_settings(settings)}
    arguments = "".join(f"    {name}={value!r},\n" for name, value in named.items())
    code = f"import grpo_nb as gn\n\nsettings = gn.Settings(\n{arguments})"
    return (
        f"Trained on {plain(device)}, seed {settings.seed}, with these versions; another machine or version gives other "
        f"numbers. `gn.write_bundle(run, path)` packs settings, data and rewards, and `gn.open_bundle(path)` says what "
        f"differs elsewhere.\n\n{versions}\n\n{fence(code, 'python')}\n"
    )
