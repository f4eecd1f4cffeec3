"""Merge an adapter into its base model, one safetensors file after the other.

Only one tensor of a file is in memory at a time. safetensors' own writer needs all tensors of a
file at once. Its format is a header with the place of each tensor, then their bytes
(huggingface.co/docs/safetensors, "Format"), so a file can be written tensor by tensor.

This works for plain LoRA on linear layers. Any other adapter (DoRA, trained biases, whole modules,
experts) is recognised, and PEFT merges it, with the whole model in memory in float32.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import write_json
from grpo_nb.core.progress import progress_bar
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.export.result import ExportError, Report
from grpo_nb.machine.host import free_memory_bytes, require_disk
from grpo_nb.models.identity import weight_files

if TYPE_CHECKING:
    import torch

#: The way of merging, as `merge` reports it.
BY_FILE = "file by file"
#: Share of the adapter's change that must survive the rounding of the merged weights.
MIN_RETAINED = 0.95
#: Bytes of a value in each dtype, and the names that safetensors gives them.
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
SAFETENSORS_NAMES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
#: File that names the file of each tensor, in a model of several files.
INDEX = "model.safetensors.index.json"
LORA_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
#: Options of a LoraConfig with which the merged weight is not only base + scaling * B @ A, although
#: the tensors of the adapter do not show it.
UNSUPPORTED_OPTIONS = ("alpha_pattern", "fan_in_fan_out", "layer_replication")
#: Initialisations of a LoRA that leave the base as it is. PiSSA, OLoRA, CorDA and others change it.
PLAIN_STARTS = (True, False, "gaussian", "orthogonal")
#: Rows of a weight that are measured at once, and values that are written at once.
ROWS_AT_ONCE = 512
VALUES_AT_ONCE = 2**20
#: Memory that a load needs beyond the size of the weights.
MEMORY_MARGIN = 1.1


class Lora:
    """The change that a plain LoRA adds to each weight of the base, by the name of the weight.

    Attributes:
        obstacle: Why the adapter is not a plain LoRA; empty if it is one.
    """

    def __init__(self, adapter: Path, names: Iterable[str]) -> None:
        from safetensors.torch import load_file

        config = json.loads((adapter / "adapter_config.json").read_text())
        self._config = config
        self._parts: dict[str, dict[str, torch.Tensor]] = {}
        obstacles = [name for name in UNSUPPORTED_OPTIONS if config.get(name)]
        start = config.get("init_lora_weights", True)
        if start not in PLAIN_STARTS:
            obstacles.append(f"started with {start!r}, which changes the base")
        for name, tensor in load_file(adapter / "adapter_model.safetensors").items():
            match = LORA_TENSOR.fullmatch(name)
            weight = f"{match[1]}.weight" if match else ""
            if weight in names:
                self._parts.setdefault(weight, {})[match[2]] = tensor.float()
            else:
                obstacles.append(f"{name}, which belongs to no weight of the base's files")
        self.obstacle = f"the adapter has {obstacles[0]}" if obstacles else ""

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def change(self, name: str, start: int = 0, end: int | None = None) -> torch.Tensor:
        """Return the change of the rows from `start` to `end` of a weight, in float32."""
        a = self._parts[name]["A"]
        b = self._parts[name]["B"]
        rank = len(a)  # from the tensor, because `rank_pattern` gives some layers another rank
        divisor = math.sqrt(rank) if self._config.get("use_rslora") else rank
        return (b[start:end] @ a).mul_(self._config["lora_alpha"] / divisor)


def merge(base: Path, adapter: Path, target: Path, *, dtype: str, report: Report) -> dict[str, Any]:
    """Save base plus adapter to a folder, rounded once.

    Args:
        base: Folder of the 16-bit base model.
        adapter: Folder of the adapter.
        target: An empty folder.
        dtype: "auto", "bfloat16", "float16" or "float32".
        report: Called with one line for each stage.

    Returns:
        `dtype`, `retained_change` (share of the adapter's change that the rounded weights hold;
        None if it was not measured) and `merged` (the way that was taken).

    Raises:
        EnvironmentProblem: There is too little disk, or too little memory for the whole base where
            that is needed.
        ExportError: Rounding would lose too much, or the base is stored quantized.
    """
    config = json.loads((base / "config.json").read_text())
    if "quantization_config" in config:
        raise ExportError(
            f"the base {base.name!r} is stored quantized, so the 16-bit weights that the adapter "
            "belongs to are not in it. Train with the name of the 16-bit model and "
            "load_in_4bit=True (it is quantized while it loads), or use export_adapter."
        )
    files = {file: _header(file) for file in weight_files(base, "model")}
    names = {name for header in files.values() for name in header}
    lora = Lora(adapter, names)
    if lora.obstacle:
        return _merge_in_memory(base, adapter, target, dtype, lora.obstacle, report)
    report("merging file by file")
    candidates = list(WIDTHS) if dtype == "auto" else [dtype]
    retained = retained_shares(_changes(files, lora), candidates)
    sufficient = [name for name, share in retained.items() if share >= MIN_RETAINED]
    if not sufficient:
        measured = ", ".join(f"{name} {share:.1%}" for name, share in retained.items())
        raise ExportError(
            "rounding the merged weights would lose a part of the training (share kept: "
            f"{measured}; at least {MIN_RETAINED:.0%} is needed). Write dtype='float32', or use "
            "gn.export.export_adapter."
        )
    chosen = sufficient[0]
    needed = _values_in(files) * WIDTHS[chosen]
    require_disk(target, needed, f"The merged model in {chosen}")
    report(f"writing {chosen}, which holds {retained[chosen]:.1%} of the training's change")
    written = 0
    for file, header in progress_bar(iterable=files.items(), desc="merging", unit=" files"):
        written += _write(target / file.name, file, header, lora, chosen)
    if (base / INDEX).is_file():
        index = json.loads((base / INDEX).read_text())
        index["metadata"] = {**index.get("metadata", {}), "total_size": written}
        write_json(target / INDEX, index)
    # Copied as it is, because transformers 5.17 refuses to write some values that it reads.
    if (base / "generation_config.json").is_file():
        shutil.copy(base / "generation_config.json", target)
    config.pop("_name_or_path", None)  # a folder of this machine
    write_json(target / "config.json", config | {"dtype": chosen, "torch_dtype": chosen})
    return {"dtype": chosen, "retained_change": retained[chosen], "merged": BY_FILE}


def require_memory(needed: int, purpose: str) -> None:
    """Raise an `EnvironmentProblem` if less memory is free than so many bytes with a margin.

    Without this check the system would end the kernel without a message.
    """
    needed_with_margin = MEMORY_MARGIN * needed
    free = free_memory_bytes()
    if needed_with_margin > free:
        raise EnvironmentProblem(
            f"{purpose} needs {needed_with_margin / 1e9:.2f} GB of memory, but {free / 1e9:.2f} GB "
            "are free. Restart the kernel and open the run with gn.open_run, or use a machine "
            "with more memory."
        )


def retained_shares(
    changes: Iterable[tuple[torch.Tensor, torch.Tensor]], dtypes: Sequence[str]
) -> dict[str, float]:
    """Return the share of a change that is left after rounding, for each dtype.

    The share is the projection of the rounded change onto the exact change, over all weights.

    Args:
        changes: Pairs of a weight and its change, in float32 and of equal shape.
        dtypes: Names of the dtypes to round to.

    Returns:
        The share for each dtype, at most 1 and at least 0; 0 also if a weight is too large for it.

    Raises:
        ExportError: There is no change at all, or base or adapter have values that are not finite.
    """
    import torch

    projections = dict.fromkeys(dtypes, 0.0)
    squared_change = 0.0
    for weight, change in changes:
        total = weight + change
        if not total.isfinite().all():
            raise ExportError(
                "base or adapter has values that are not finite, so there is no model to merge."
            )
        squared_change += (change * change).sum().item()
        for name in projections:
            rounded = total.to(getattr(torch, name)).float()
            projection = ((rounded - weight) * change).sum().item()
            # An overflow makes the projection infinite, or NaN where nothing changed.
            projections[name] += projection if math.isfinite(projection) else -math.inf
    if squared_change == 0:
        raise ExportError(
            "the adapter changes nothing: all its B matrices are zero. Train it first."
        )
    shares = {}
    for name, projection in projections.items():
        # Rounding can also exaggerate the change, which counts as much as losing a part of it.
        error = abs(1 - projection / squared_change)
        shares[name] = max(0.0, 1 - error)
    return shares


def _changes(
    files: Mapping[Path, Mapping[str, Any]], lora: Lora
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield each changed weight and its change, some rows at a time, in float32."""
    for file, header in files.items():
        for name in header:
            if name not in lora:
                continue
            weight = _tensor(file, name)
            for start in range(0, len(weight), ROWS_AT_ONCE):
                end = start + ROWS_AT_ONCE
                yield weight[start:end].float(), lora.change(name, start, end)


def _tensor(file: Path, name: str) -> torch.Tensor:
    """Return a tensor that is mapped from its file.

    The file is opened for each tensor, because the pages of an open file count as memory of this
    process.
    """
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return opened.get_tensor(name)


def _header(file: Path) -> dict[str, Any]:
    """Return the header of a file: `dtype`, `shape` and `data_offsets` of each tensor."""
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        return json.loads(opened.read(length))


def _values_in(files: Mapping[Path, Mapping[str, Any]]) -> int:
    """Return the number of values in safetensors files, given their headers."""
    count = 0
    for header in files.values():
        count += sum(math.prod(header[name]["shape"]) for name in header if name != "__metadata__")
    return count


def _write(target: Path, source: Path, header: dict[str, Any], lora: Lora, dtype: str) -> int:
    """Write a file of the merged model; return the bytes of its tensors."""
    import torch

    names = [name for name in header if name != "__metadata__"]
    end = 0
    rounded = set()
    for name in names:
        entry = header[name]
        start = end
        old_start, old_end = entry["data_offsets"]
        size = old_end - old_start
        # Other dtypes are copied unchanged.
        if entry["dtype"] in SAFETENSORS_NAMES.values():
            rounded.add(name)
            entry["dtype"] = SAFETENSORS_NAMES[dtype]
            size = math.prod(entry["shape"]) * WIDTHS[dtype]
        end = start + size
        entry["data_offsets"] = [start, end]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)  # safetensors aligns the data to 8 bytes
    with target.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            weight = _tensor(source, name)
            target_dtype = getattr(torch, dtype) if name in rounded else weight.dtype
            if name in lora:
                weight = lora.change(name).add_(weight)
            for values in weight.reshape(-1).split(VALUES_AT_ONCE):
                file.write(values.to(target_dtype).view(torch.uint8).numpy())
    return end


def _merge_in_memory(
    base: Path, adapter: Path, target: Path, dtype: str, reason: str, report: Report
) -> dict[str, Any]:
    """Merge with PEFT, the whole model in float32, so that nothing is rounded before the sum."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    chosen = "float32" if dtype == "auto" else dtype
    values = _values_in({file: _header(file) for file in weight_files(base, "model")})
    require_memory(values * WIDTHS["float32"], f"merging in memory ({reason})")
    require_disk(target, values * WIDTHS[chosen], f"The merged model in {chosen}")
    report(f"merging in memory: {reason}")
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    adapted = PeftModel.from_pretrained(model, str(adapter))
    merged = adapted.merge_and_unload().to(getattr(torch, chosen))
    merged.save_pretrained(target)
    if (base / "generation_config.json").is_file():
        shutil.copy(base / "generation_config.json", target)
    return {"dtype": chosen, "retained_change": None, "merged": f"in memory: {reason}"}
