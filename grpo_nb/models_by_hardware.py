"""Models that fit each kind of card, with their memory by part and the context that is left, all computed by `plan`."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from grpo_nb.config import PRESETS, Settings, did_you_mean, preset
from grpo_nb.known_models import KNOWN_MODELS
from grpo_nb.planning import Plan, plan

# Two or three for each preset: the one it names first, then others of which `plan` says that they fit with its settings.
SUGGESTED: Mapping[str, tuple[str, ...]] = {
    "cpu": ("SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-360M-Instruct"),
    "t4": ("unsloth/Qwen2.5-1.5B-Instruct", "unsloth/Qwen3-1.7B", "unsloth/Llama-3.2-3B-Instruct"),
    "l4": ("unsloth/Qwen2.5-3B-Instruct", "unsloth/Qwen3-4B", "unsloth/Llama-3.1-8B-Instruct"),
    "a100": ("unsloth/Qwen2.5-7B-Instruct", "unsloth/Llama-3.1-8B-Instruct", "unsloth/Qwen2.5-14B-Instruct"),
    "h100": ("unsloth/Qwen2.5-7B-Instruct", "unsloth/Llama-3.1-8B-Instruct", "unsloth/Qwen3-8B"),
}
_STEP = 64
_ORIGIN = (
    "Sizes: the published config.json of each model. Memory: computed from them (formulas in grpo_nb.planning_memory), for the "
    "settings of the preset and every completion at its longest. Not measured on a GPU yet: `make gpu-check` does that."
)


@dataclass(frozen=True)
class ModelFit:
    """One model on one kind of machine."""

    model: str
    settings: Settings
    plan: Plan
    longest_completion: int
    """Tokens of the longest completion that fits beside the prompt, with these settings otherwise; 0 if none does."""
    limited_by: str
    """`memory`, or `positions`: the model was trained for no more."""

    @property
    def context(self) -> int:
        """Tokens of prompt and completion together that can be reached."""
        return self.settings.max_prompt_length + self.longest_completion if self.longest_completion else 0

    def part(self, *names: str) -> float:
        """GB of these parts of the plan."""
        return sum(part.gb for part in self.plan.parts if part.name in names)


_COLUMNS = (
    ("weights", ("weights",)), ("LoRA and optimizer", ("LoRA", "gradients", "optimizer")),
    ("activations", ("activations",)), ("logits", ("logits",)), ("vLLM or KV cache", ("vLLM", "KV cache")),
)  # fmt: skip


class ModelTable:
    """Models for a machine, one a row. Shows itself; `rows` has the plans."""

    def __init__(self, machine: str, rows: Sequence[ModelFit]) -> None:
        self.machine, self.rows = machine, tuple(rows)

    def _cells(self) -> list[list[str]]:
        head = ["model", "bits", *(f"{title}, GB" for title, _ in _COLUMNS), "peak of", "batch", "context"]
        cells = [head]
        for row in self.rows:
            settings, found = row.settings, row.plan
            peak = "unknown" if found.memory_gb is None else f"{found.memory_gb:.1f} of {found.available_gb:.1f}"
            cells.append(
                [
                    row.model, "4" if settings.load_in_4bit else "16",
                    *(f"{row.part(*names):.2f}" for _, names in _COLUMNS), peak,
                    f"{settings.per_device_train_batch_size} x {settings.gradient_accumulation_steps}",
                    f"{row.context:,} ({row.limited_by})" if row.context else "does not fit",
                ]
            )  # fmt: skip
        return cells

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(len(row[i]) for row in cells) for i in range(len(cells[0]))]
        lines = [
            "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in cells
        ]
        return "\n".join([f"Models for {self.machine}", *lines, _ORIGIN])

    def _repr_html_(self) -> str:
        head, *rows = self._cells()
        style = "style='text-align:left'"
        titles = "".join(f"<th {style}>{html.escape(text)}</th>" for text in head)
        body = "".join(
            "<tr>" + "".join(f"<td {style}>{html.escape(text)}</td>" for text in row) + "</tr>" for row in rows
        )
        return (
            f"<p>Models for <b>{html.escape(self.machine)}</b></p><table><thead><tr>{titles}</tr></thead>{body}</table>"
            f"<p>{html.escape(_ORIGIN)}</p>"
        )


def models_for(machine: str, models: Sequence[str] | None = None, **changes: object) -> ModelTable:
    """Show which models fit a kind of machine with its preset, their memory by part, and the context that can be reached.

    Everything is computed by `plan`, from the models' published sizes; of a model that is not among them the config.json is
    read or fetched, never the weights.

    Args:
        machine: `cpu`, `t4`, `l4`, `a100` or `h100`.
        models: Hub ids or folders; by default two or three that fit.
        **changes: Settings that differ from the preset's.

    Raises:
        ValueError: An unknown machine.

    >>> models_for("t4").rows[0].plan.fits
    True
    """
    if machine not in PRESETS:
        raise ValueError(f"unknown machine {machine!r}{did_you_mean(machine, PRESETS)}")
    names = SUGGESTED[machine] if models is None else models
    return ModelTable(machine, [_fit(preset(machine, **{**changes, "model": name}), machine) for name in names])


def _fit(settings: Settings, machine: str) -> ModelFit:
    found = plan(settings, machine=machine)
    positions = KNOWN_MODELS.get(settings.model, {}).get("max_position_embeddings")
    most = (positions or 131_072) - settings.max_prompt_length

    def fits(length: int) -> bool:
        return plan(dataclasses.replace(settings, max_completion_length=length), machine=machine).fits is True

    if found.fits is None or not fits(_STEP):
        return ModelFit(settings.model, settings, found, 0, "memory")
    low, high = 1, most // _STEP  # in steps; memory only grows with the length
    if fits(high * _STEP):
        return ModelFit(settings.model, settings, found, high * _STEP, "positions" if positions else "memory")
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle * _STEP) else (low, middle)
    return ModelFit(settings.model, settings, found, low * _STEP, "memory")
