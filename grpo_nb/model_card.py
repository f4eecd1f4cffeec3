"""The model card of a run: what was trained on what with which rewards, and what came of it; only what was measured."""

from __future__ import annotations

from grpo_nb.config import EMBEDDED_MODEL
from grpo_nb.metrics import Run, describe

# Where the embedded model comes from, for cards that others read.
_PUBLISHED = {EMBEDDED_MODEL: "HuggingFaceTB/SmolLM2-135M-Instruct"}


def write_model_card(run: Run) -> None:
    """Write the run's README.md: what was trained on what with which rewards, the curves, and the held-out score."""
    (run.path / "README.md").write_text(model_card(run))


def model_card(run: Run) -> str:
    """The model card in Markdown, with the Hub's metadata; only what this run measured."""
    info, settings, comparison = run.info, run.settings, run.comparison()
    base = _PUBLISHED.get(settings.model, settings.model)
    rewards = "\n".join(f"| `{r['name']}` | {r['weight']:g} | `{r['call']}` |" for r in info["rewards"])
    versions = ", ".join(f"{name} {version}" for name, version in info["versions"].items())
    changed = "\n".join(f"| `{k}` | `{v}` |" for k, v in settings.to_dict().items() if not isinstance(v, (list, dict)))
    curves = (run.path / "figures" / "training.png").is_file()
    data, machine = info["task"], info["machine"]
    device = machine["gpu"]["name"] if machine["gpu"] else f"CPU, {machine['cores']} cores"
    parts = [
        f"---\nbase_model: {base}\ntags:\n- grpo\n- lora\n- unsloth\n- trl\n---\n",
        f"# {run.name}\n",
        f"`{base}` trained with GRPO. Status: {run.status}. {describe(run.rows)}\n",
        f"Held-out: {comparison['sentence']}\n"
        if comparison
        else "Held-out: not measured yet (`gn.compare(run, task)`).\n",
        f"![Training curves. {describe(run.rows)}](figures/training.png)\n" if curves else "",
        f"## Data\n\n`{data['name']}`: {data['train']} training and {data['holdout']} held-out prompts, "
        f"fingerprint `{data['fingerprint']}`.\n",
        f"## Rewards\n\n| reward | weight | made by |\n| --- | --- | --- |\n{rewards}\n",
        f"## Settings\n\n| setting | value |\n| --- | --- |\n{changed}\n",
        f"Made on {device}, with {versions}.\n",
    ]
    return "\n".join(part for part in parts if part)
