"""What exports of a run will need, before they start: size on disk, memory at the peak, and what stands in the way.

Sizes are arithmetic on the base's files. Memory is that of the step that needs most of it and cannot be given back. A plain
LoRA on a base of 16 bits is merged and verified from the files, whose pages can; other models are in memory as a whole.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from grpo_nb.core.arguments import require_kind
from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.core.files import target_of, target_problem
from grpo_nb.core.tables import Part, Shown, Table, code, verdict
from grpo_nb.machine.host import free_disk_bytes, free_memory_bytes
from grpo_nb.runs.run import Run, open_run

# Of each quantization of a GGUF file: bits a weight with the scales of its blocks (ggml/src/ggml-common.h), for the mixtures
# what a model of some billion weights comes to (llama.cpp, tools/quantize/README.md); then what rounding to it may cost: mean
# difference of log-probabilities to the merged model, in nats, and share of equal greedy texts, near ties aside. A template,
# end token or tensor that is wrong costs far more. The embedded model shows 0.002 for q8_0, 0.006 for q6_k, 0.03 for q4_k_m,
# 0.14 for q2_k, and 1.2 for q4_k_m without the adapter (docs/evidence/export.md). The other mixtures are set between those, by
# their bits.
QUANTIZATIONS = {
    "f32": (32.0, 0.05, 0.9), "f16": (16.0, 0.05, 0.9), "bf16": (16.0, 0.1, 0.8), "q8_0": (8.5, 0.1, 0.8),
    "q6_k": (6.56, 0.15, 0.6), "q5_k_m": (5.7, 0.2, 0.5), "q5_k_s": (5.57, 0.2, 0.5), "q4_k_m": (4.89, 0.3, 0.3),
    "q4_k_s": (4.67, 0.3, 0.3), "q3_k_m": (4.0, 0.5, 0.0), "q2_k": (3.16, 0.8, 0.0),
}  # fmt: skip
# What llama.cpp's converter writes itself; the others are mixtures that people load, made by its quantizer.
CONVERTED = ("f32", "f16", "bf16", "q8_0")
FORMATS = ("merged", "adapter", *QUANTIZATIONS)
# Python, torch, transformers and peft with nothing loaded.
_IMPORTS = 0.9e9
# Tokenizer, configuration, model card, verification.
_SMALL_FILES = 20e6
# Where weights are read as they are needed: what a pass computes with, and the adapter as often as this. Eight billion weights
# and an adapter of 0.17 GB took 1.39 GB with imports (benchmarks/export_memory.py), for which this says 2.5.
_PASS, _ADAPTERS = 0.8e9, 4
# What llama.cpp's converter needs for each weight of the largest tensor, in bytes (the same).
_CONVERTING = 5.5
# What an answer of a verification needs beside the weights, as a share of them; and at least.
_WORKING, _LEAST_WORKING = 1.1, 0.3e9


@dataclass(frozen=True)
class PlannedExport:
    """What one format of an export will need, in bytes."""

    format: str
    target: Path
    bytes: int
    """Size when it is finished."""
    disk: int
    """Room that is needed while it is made; an old export in its place stays until the new one is verified."""
    memory: int
    """At the peak."""
    problems: tuple[str, ...]


@dataclass(frozen=True, repr=False)
class ExportPlan(Shown):
    """What a run's exports will need. Shows itself as a table; `require` raises where something stands in the way."""

    rows: tuple[PlannedExport, ...]
    free_disk: int
    free_memory: int

    @property
    def problems(self) -> tuple[str, ...]:
        """What stands in the way, of all formats."""
        return tuple(f"{row.format}: {problem}" for row in self.rows for problem in row.problems)

    def require(self) -> None:
        """Raise `EnvironmentProblem` that names each problem, if there is any."""
        if self.problems:
            raise EnvironmentProblem("\n".join(self.problems))

    def table(self, verdicts: Mapping[str, str] = MappingProxyType({})) -> Table:
        """What each format needs of what is free, and the verdict; with other words in place of those of some formats."""
        rows = [
            (
                row.format, code(row.target), _gb(row.bytes), f"{_gb(row.disk)} of {_gb(self.free_disk)}",
                f"{_gb(row.memory)} of {_gb(self.free_memory)}",
                verdicts.get(row.format) or verdict(not row.problems, "; ".join(row.problems) or "ready"),
            )
            for row in self.rows
        ]  # fmt: skip
        return Table(rows, head=("format", "folder", "size", "disk needed", "memory needed", "verdict"), wide=(5,))

    def _parts(self) -> Iterable[Part]:
        return (self.table(),)


def plan_export(
    run: Run | str | Path, formats: Sequence[str], path: str | Path, *, dtype: str = "auto", overwrite: bool = False
) -> ExportPlan:
    """Say what exports of a run will need and whether this machine has it. Writes nothing and loads no model.

    Args:
        run: A run with an adapter, or its folder.
        formats: Of `merged`, `adapter`, and the quantizations of `export_gguf`.
        path: The folder to make; with several formats the folder under which each gets one of its own name.
        dtype: Of the merged model. For `auto` the widest that may be chosen counts on disk, and one of 16 bits in memory:
            float32 is rarely chosen, and `require_memory` is asked again when it was.
        overwrite: As it will be said to the export.

    Raises:
        ValueError: A format that there is not.

    >>> gn.export.plan_export(gn.open_run("runs/first"), ["merged", "q8_0"], "exports/first")  # doctest: +SKIP
    """
    require_kind("formats", formats, (list, tuple), "a list of formats: ['merged', 'q8_0']")
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise ValueError(f"format {unknown[0]!r} is not one of {', '.join(map(repr, FORMATS))}.")
    run, folder = open_run(run), target_of(path)
    targets = {name: folder if len(formats) == 1 else folder / name for name in formats}
    return plan_targets(run, targets, dtype=dtype, overwrite=overwrite)


def plan_targets(run: Run, targets: Mapping[str, Path], *, dtype: str = "auto", overwrite: bool = False) -> ExportPlan:
    """Do what `plan_export` does, for formats that each have a folder of their own; they are made in their order."""
    kept, weights = needed_by(run), _base_weights(run) if set(targets) - {"adapter"} else (0, 0, False, 0)
    free_disk, free_memory = free_disk_bytes(next(iter(targets.values()), Path())), free_memory_bytes()
    rows: list[PlannedExport] = []
    for name, target in targets.items():
        made, disk, memory = _sizes(run, name, dtype, weights)
        problem = target_problem(target, overwrite, kept)
        problems = [] if problem is None else [str(problem)]
        if not (run.adapter_path / "adapter_model.safetensors").is_file():
            problems.append(f"the run {run.name!r} ({run.status}) has no adapter: train it to its end first")
        left = max(0, free_disk - sum(row.bytes for row in rows))
        if disk > left:
            which = f"{_gb(left)} of {_gb(free_disk)} are left by those before it" if rows else f"{_gb(left)} are free"
            problems.append(
                f"it needs {_gb(disk)} on the disk of {target}, but {which}. Free some space or choose a folder on another disk"
            )
        if memory > free_memory:
            problems.append(_memory_problem(memory, free_memory))
        rows.append(PlannedExport(name, target, made, disk, memory, tuple(problems)))
    return ExportPlan(tuple(rows), free_disk, free_memory)


def require_memory(run: Run, dtype: str, *, by_tensor: bool = True) -> None:
    """Raise `EnvironmentProblem` if a merged model of this number type could not be made and verified here."""
    count, width, is_read_as_needed, largest = _base_weights(run)
    memory = _sizes(run, "merged", dtype, (count, width, is_read_as_needed and by_tensor, largest))[2]
    free = free_memory_bytes()
    if memory > free:
        raise EnvironmentProblem(f"merged as {dtype}: {_memory_problem(memory, free)}")


def _memory_problem(memory: int, free: int) -> str:
    return (
        f"it needs {_gb(memory)} of memory at its peak, but {_gb(free)} are free. Close what else is loaded (restart the "
        "kernel, then gn.open_run), or use a machine with more"
    )


def needed_by(run: Run) -> list[Path]:
    """Folders that an export of the run must not replace: its own, and that of its base if it is one of the user's."""
    base = Path(run.settings.model).expanduser()
    return [run.path, run.adapter_path, *([base] if base.is_dir() else [])]


def _sizes(run: Run, name: str, dtype: str, weights: tuple[int, int, bool, int]) -> tuple[int, int, int]:
    """Bytes of an export when it is finished, on disk while it is made, and of memory at the peak."""
    file = run.adapter_path / "adapter_model.safetensors"
    adapter = (file.stat().st_size if file.is_file() else 0) + int(_SMALL_FILES)
    if name == "adapter":
        return adapter, adapter, int(_IMPORTS) + 2 * adapter
    count, width, is_read_as_needed, largest = weights
    held = count * max(width, {"float32": 4}.get(dtype, 2))
    checking = int(_IMPORTS + max(held * _WORKING, held + _LEAST_WORKING))
    if is_read_as_needed:
        checking = min(checking, int(_IMPORTS + _PASS + _ADAPTERS * adapter))
    merged = int(count * {"bfloat16": 2, "float16": 2, "float32": 4}.get(dtype, 4) * 1.02 + _SMALL_FILES)
    if name == "merged":
        return merged, merged, checking
    made = int(count * QUANTIZATIONS[name][0] / 8 * 1.02 + _SMALL_FILES)
    # A mixture is quantized from a file as wide as the merged model, and every GGUF is made from a merged model.
    between = 0 if name in CONVERTED else merged
    # llama.cpp reads all of its file for each token: without room for it, an answer would take hours.
    return made, merged + between + made, max(checking, int(_IMPORTS + max(made * _WORKING, largest * _CONVERTING)))


def _base_weights(run: Run) -> tuple[int, int, bool, int]:
    """How many the base has; bytes of one where all are in memory; whether they need not be; how many the largest has."""
    from grpo_nb.export.merge import is_plain, low_memory_merge
    from grpo_nb.export.tensors import TensorFolder

    has_adapter = (run.adapter_path / "adapter_model.safetensors").is_file()
    has_plain = not has_adapter or is_plain(run.adapter_path)
    try:
        base = weights_folder(run, download=False)
        tensors = TensorFolder(base).tensors.values()
        by_tensor = has_plain and (not has_adapter or low_memory_merge(base, run.adapter_path)[0] is not None)
        counts, kinds = [tensor.numel() for tensor in tensors], {str(tensor.dtype) for tensor in tensors}
        count, largest = sum(counts), max(counts)
    except FileNotFoundError:
        _resolved(run)  # a folder that is gone says so
        # Trained from a quantized copy: the Hub's headers tell the sizes, and the plan fetches no gigabytes.
        from huggingface_hub import get_safetensors_metadata

        counts = get_safetensors_metadata(run.settings.model).parameter_count
        # Asked again when the files are here.
        count, kinds, by_tensor, largest = sum(counts.values()), set(counts), has_plain, 0
    # Of several number types, it is held in float32; and so it is for what else an adapter can be.
    is_narrow = kinds in ({"torch.bfloat16"}, {"torch.float16"}, {"BF16"}, {"F16"})
    return count, 2 if is_narrow and has_plain else 4, by_tensor and is_narrow, largest


def weights_folder(run: Run, *, download: bool = True) -> Path:
    """Folder of the 16-bit base that the run's adapter belongs on.

    Args:
        run: The run.
        download: Fetch it from the Hub if it is not here: Unsloth trains in 4 bit from a quantized copy of its own.

    Raises:
        FileNotFoundError: It is not here and `download` is false, or its folder is gone.
    """
    base = _resolved(run)
    if Path(base).is_dir():
        return Path(base)
    from huggingface_hub import snapshot_download

    wanted = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
    found = Path(snapshot_download(base, allow_patterns=wanted, local_files_only=not download))
    if not download and not any(found.glob("*.safetensors")):
        raise FileNotFoundError(f"the weights of {base!r} are not in the Hub's cache.")
    return found


def _resolved(run: Run) -> str:
    """The base's folder or its name on the Hub."""
    from grpo_nb.models.load import resolve_model

    try:
        return resolve_model(run.settings.model)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"the base model of the run {run.name!r} is not at {run.settings.model!r} any more (looked in {Path.cwd()}), and "
            "an adapter is nothing without it. Put it back there, or make a link of that name to where it is."
        ) from error


def _gb(size: float) -> str:
    return f"{size / 1e9:.2f} GB"
