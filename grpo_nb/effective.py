"""What will really run: the table "you asked / will run / why", before anything is loaded (rules in `effective_rules`)."""

from __future__ import annotations

import dataclasses
import html
import os
import platform
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_nb.config import PRESETS, Settings, did_you_mean
from grpo_nb.effective_rules import Effect, by_trl, kit_rows, on_cpu, on_gpu, requested_arguments
from grpo_nb.environment import Gpu, find_gpu
from grpo_nb.vllm_obstacles import vllm_obstacle

# The cards of the presets, for plans made elsewhere, with the memory that CUDA can use: less than is printed on the box, and a
# little more or less by driver (an A100 of 40 GB: 39.39 to 39.59 GiB in reports of out-of-memory errors).
GPUS: Mapping[str, Gpu] = {
    "t4": Gpu("Tesla T4", 14.56, (7, 5)),
    "l4": Gpu("NVIDIA L4", 22.03, (8, 9)),
    "a100": Gpu("NVIDIA A100-SXM4-40GB", 39.39, (8, 0)),
    "h100": Gpu("NVIDIA H100 80GB HBM3", 79.1, (9, 0)),
}


class EffectiveSettings:
    """The table "you asked / will run / why". `arguments` holds what the trainer's `args` will hold, by name."""

    def __init__(self, machine: str, rows: list[Effect], arguments: Mapping[str, Any], same: int) -> None:
        self.machine, self.rows, self.arguments = machine, tuple(rows), dict(arguments)
        self._same = same

    def __getitem__(self, name: str) -> Effect:
        for row in self.rows:
            if row.name == name:
                return row
        raise KeyError(f"{name!r} has no row: it runs as asked")

    def __contains__(self, name: str) -> bool:
        return any(row.name == name for row in self.rows)

    def _summary(self) -> str:
        changed = sum(row.is_changed for row in self.rows)
        others = f"{self._same} settings run as asked"
        if not self.rows:
            return f"On {self.machine}, all {others}."
        return f"On {self.machine}, {changed} will run differently from what was asked; the other {others}."

    def __repr__(self) -> str:
        cells = [("setting", "you asked", "will run")] + [(r.name, _shown(r.asked), _shown(r.runs)) for r in self.rows]
        widths = [max(len(row[i]) for row in cells) for i in range(3)]
        lines = ["  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in cells]
        whys = ["why", *(f"{r.why} [{r.source}]" for r in self.rows)]
        table = [f"{line}  {why}" for line, why in zip(lines, whys, strict=True)]
        return "\n".join([self._summary(), *table] if self.rows else [self._summary()])

    def _repr_html_(self) -> str:
        if not self.rows:
            return f"<p>{html.escape(self._summary())}</p>"
        left = "style='text-align:left;vertical-align:top'"
        rows = ""
        for row in self.rows:
            runs = html.escape(_shown(row.runs))
            rows += (
                f"<tr><td {left}><code>{html.escape(row.name)}</code></td>"
                f"<td {left}>{html.escape(_shown(row.asked))}</td>"
                f"<td {left}>{f'<b>{runs}</b>' if row.is_changed else runs}</td>"
                f"<td style='text-align:left;max-width:42em'>{html.escape(row.why)}"
                f"<br><span style='opacity:.65;font-size:85%'>{html.escape(row.source)}</span></td></tr>"
            )
        head = "".join(f"<th {left}>{title}</th>" for title in ("setting", "you asked", "will run", "why"))
        return (
            f"<p>{html.escape(self._summary())}</p><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table>"
        )


def effective_settings(settings: Settings, machine: str | Gpu | None = None) -> EffectiveSettings:
    """Say which settings will not run as written, on this machine or another, and why, before anything is loaded.

    Args:
        settings: Of the run.
        machine: `cpu`, `t4`, `l4`, `a100`, `h100` or a `Gpu`; by default what is here. On another machine vLLM is taken to be
            installed and to work; here its versions are compared, but it is not imported, which `load_model` does.

    Raises:
        ValueError: An unknown machine.

    >>> table = effective_settings(Settings(optim="adamw_8bit"), "cpu")
    >>> table["optim"].runs
    'adamw_torch_fused'
    """
    gpu, is_here = find_machine(machine)
    obstacle = vllm_obstacle(settings, gpu, settings.model, try_import=False) if is_here else None
    has_vllm = obstacle is None
    has_bf16 = has_fast_bfloat16(gpu)
    asked = requested_arguments(settings, gpu=gpu, has_bf16=has_bf16, has_vllm=has_vllm)
    rows = kit_rows(settings, gpu, obstacle)
    arguments = dict(asked)
    rows += on_gpu(settings, arguments, gpu) if gpu is not None else on_cpu(settings, arguments, has_bf16)
    rows += by_trl(settings, arguments, is_gpu=gpu is not None)
    given = {f.name for f in dataclasses.fields(Settings)} - {"extra"} | set(settings.extra)
    same = len(given - {row.name for row in rows})
    name = f"{gpu.name} ({gpu.memory_gib:.0f} GiB)" if gpu else "a CPU"
    return EffectiveSettings(name, rows, arguments, same)


def find_machine(machine: str | Gpu | None) -> tuple[Gpu | None, bool]:
    """The GPU meant, or None for a CPU, and whether it is the one here.

    Raises:
        ValueError: An unknown name, with the nearest known one.
    """
    if machine is None:
        return find_gpu(), True
    if isinstance(machine, Gpu):
        return machine, False
    if machine == "cpu":
        return None, find_gpu() is None
    if machine not in GPUS:
        raise ValueError(f"unknown machine {machine!r}{did_you_mean(machine, PRESETS)}")
    return GPUS[machine], False


def has_fast_bfloat16(gpu: Gpu | None) -> bool:
    """Whether Unsloth computes in bfloat16: compute capability 8.0, or a CPU with instructions for it.

    On a CPU without /proc/cpuinfo Unsloth times it, so there it has to be imported and asked
    (unsloth_zoo/cpu/runtime.py, `cpu_bf16_supported`).
    """
    if gpu is not None:
        return gpu.compute_capability >= (8, 0)
    if "unsloth" not in sys.modules and "UNSLOTH_CPU_BF16" not in os.environ:
        listing = Path("/proc/cpuinfo")
        if platform.machine() in ("x86_64", "AMD64") and listing.is_file():
            return bool({"amx_bf16", "avx512_bf16"} & set(listing.read_text().split()))
    from grpo_nb.models import is_bfloat16_supported

    return is_bfloat16_supported()


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return value if isinstance(value, str) else repr(value)
