"""Base plus adapter as one folder: the base's safetensors files one after the other, each sum rounded once.

Of a file one tensor is in memory at a time. safetensors' own writer wants all that go into a file at once; its format is a
header with the place of each, then their bytes (huggingface.co/docs/safetensors, "Format"), which can be written as they come.

It knows plain LoRA on linear layers. What else an adapter can be (DoRA, trained biases, whole modules, experts), it names, and
peft's own merge does it, of the whole model in float32.
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

BY_FILE = "file by file"
LEAST_RETAINED = 0.95
"""Share of the adapter's change that must survive the rounding of the merged weights."""
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
# As safetensors names them.
_CODES = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
# Of a LoraConfig: with these, base + scaling * B @ A is not the whole truth, and the adapter's tensors do not show it.
_MORE = ("alpha_pattern", "fan_in_fan_out", "layer_replication")
# These ways to start a LoRA leave the base as it is; PiSSA, OLoRA, CorDA and the like train on a changed one.
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal")
# Rows of a weight that are worked on at once while the rounding is measured, and values while they are written.
_ROWS, _VALUES = 512, 2**20


class Lora:
    """What a plain LoRA adds to each weight of the base, by the name of the weight, float32.

    Attributes:
        why_not: What else the adapter is; empty where it is no more than that.
    """

    def __init__(self, adapter: Path, names: Iterable[str]) -> None:
        from safetensors.torch import load_file

        self._config = config = json.loads((adapter / "adapter_config.json").read_text())
        self._parts: dict[str, dict[str, torch.Tensor]] = {}
        more = [name for name in _MORE if config.get(name)]
        start = config.get("init_lora_weights", True)
        more += (
            [f"started with {start!r}, which changes the base"]
            if start not in _PLAIN_STARTS
            else []
        )
        for name, tensor in load_file(adapter / "adapter_model.safetensors").items():
            found = _TENSOR.fullmatch(name)
            weight = f"{found[1]}.weight" if found else ""
            if weight in names:
                self._parts.setdefault(weight, {})[found[2]] = tensor.float()
            else:
                more.append(f"{name}, which belongs to no weight of the base's files")
        self.why_not = f"the adapter has {more[0]}" if more else ""

    def __contains__(self, name: str) -> bool:
        return name in self._parts

    def change(self, name: str, start: int = 0, end: int | None = None) -> torch.Tensor:
        """Return what is added to some rows of a weight, all of them if not given."""
        a, b = self._parts[name]["A"], self._parts[name]["B"]
        # The rank from the tensor, because `rank_pattern` gives some layers another one.
        root = math.sqrt(len(a)) if self._config.get("use_rslora") else len(a)
        return (b[start:end] @ a).mul_(self._config["lora_alpha"] / root)


def merge(base: Path, adapter: Path, target: Path, *, dtype: str, report: Report) -> dict[str, Any]:
    """Save base plus adapter to `target`; return the number type, the share of the change that it holds, and the way taken.

    Raises:
        EnvironmentProblem: Too little disk, or memory for all of the base where that is needed.
        ExportError: The number type would lose too much, or the base is stored quantized.
    """
    config = json.loads((base / "config.json").read_text())
    if "quantization_config" in config:
        raise ExportError(
            f"the base {base.name!r} is stored quantized: its 16-bit weights, on which the adapter belongs, are not in it. "
            "Train on the 16-bit model's name with load_in_4bit=True (it is quantized while it loads), or use export_adapter."
        )
    files = {file: _header(file) for file in weight_files(base, "model")}
    lora = Lora(adapter, {name for header in files.values() for name in header})
    if lora.why_not:
        return _merge_in_memory(base, adapter, target, dtype, lora.why_not, report)
    report("merging file by file")
    retained = retained_shares(_changes(files, lora), list(WIDTHS) if dtype == "auto" else [dtype])
    chosen = next((name for name, share in retained.items() if share >= LEAST_RETAINED), None)
    if chosen is None:
        measured = ", ".join(f"{name} {share:.1%}" for name, share in retained.items())
        raise ExportError(
            f"rounding the merged weights would lose a part of the training (share kept: {measured}; "
            f"{LEAST_RETAINED:.0%} is asked for). Write dtype='float32', or use gn.export.export_adapter."
        )
    size = sum(file.stat().st_size for file in files)
    require_disk(target, size * WIDTHS[chosen] // 2, f"The merged model in {chosen}")
    report(f"writing {chosen}, which holds {retained[chosen]:.1%} of the training's change")
    for file, header in progress_bar(iterable=files.items(), desc="merging", unit=" files"):
        _write(target / file.name, file, header, lora, chosen)
    # As they are: transformers refuses to write some of what it reads (5.17).
    for name in ("generation_config.json", "model.safetensors.index.json"):
        if (base / name).is_file():
            shutil.copy(base / name, target)
    config.pop("_name_or_path", None)  # a folder of somebody's machine
    write_json(target / "config.json", config | {"dtype": chosen, "torch_dtype": chosen})
    return {"dtype": chosen, "retained_change": retained[chosen], "merged": BY_FILE}


def require_memory(needed: int, purpose: str) -> None:
    """Raise `EnvironmentProblem` if less memory is free: the system ends a kernel that takes more without a word."""
    if 1.1 * needed > (free := free_memory_bytes()):
        raise EnvironmentProblem(
            f"{purpose} needs {1.1 * needed / 1e9:.2f} GB of memory, but {free / 1e9:.2f} GB are free. Restart the kernel, "
            "then gn.open_run, or use a machine with more."
        )


def retained_shares(
    changes: Iterable[tuple[torch.Tensor, torch.Tensor]], dtypes: Sequence[str]
) -> dict[str, float]:
    """How much of a change is left after rounding: the projection of the rounded change on the exact one, over all weights.

    Args:
        changes: Weights and their changes, float32, of equal shapes.
        dtypes: To round to.

    Returns:
        From 0 to 1 for each number type; 0 where a weight is too large for it.

    Raises:
        ExportError: There is no change at all, or base or adapter hold what is no finite number.
    """
    import torch

    left, whole = dict.fromkeys(dtypes, 0.0), 0.0
    for weight, change in changes:
        total = weight + change
        if not total.isfinite().all():
            raise ExportError(
                "base or adapter has values that are not finite, so there is no model to merge."
            )
        whole += (change * change).sum().item()
        for name in left:
            # An overflow makes this infinite, or not a number where nothing changed.
            kept = ((total.to(getattr(torch, name)).float() - weight) * change).sum().item()
            left[name] += kept if math.isfinite(kept) else -math.inf
    if whole == 0:
        raise ExportError(
            "the adapter changes nothing: all its B matrices are zero. Train it first."
        )
    return {
        name: 0.0 if math.isinf(kept) else 1 - abs(1 - kept / whole) for name, kept in left.items()
    }


def _changes(
    files: Mapping[Path, Mapping[str, Any]], lora: Lora
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Some rows at a time: the weight and what is added to it, float32."""
    for file, header in files.items():
        for name in filter(lora.__contains__, header):
            weight = _tensor(file, name)
            for start in range(0, len(weight), _ROWS):
                yield weight[start : start + _ROWS].float(), lora.change(name, start, start + _ROWS)


def _tensor(file: Path, name: str) -> torch.Tensor:
    """A tensor, mapped from its file, which is opened anew: pages of an open file count as this process's memory."""
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return opened.get_tensor(name)


def _header(file: Path) -> dict[str, Any]:
    """Of each tensor its `dtype`, `shape` and `data_offsets` behind the header; and `__metadata__`."""
    with file.open("rb") as opened:
        return json.loads(opened.read(int.from_bytes(opened.read(8), "little")))


def _write(target: Path, source: Path, header: dict[str, Any], lora: Lora, dtype: str) -> None:
    """Write a file of the merged model: the header, which becomes that of the number type, and each tensor as it is read."""
    import torch

    end, names = 0, [name for name in header if name != "__metadata__"]
    for entry in map(header.get, names):
        start, end = end, end + entry["data_offsets"][1] - entry["data_offsets"][0]
        if (
            entry["dtype"] in _CODES.values()
        ):  # else it is no number that is rounded, and stays as it is
            entry["dtype"], end = _CODES[dtype], start + math.prod(entry["shape"]) * WIDTHS[dtype]
        entry["data_offsets"] = [start, end]
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    with target.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            weight = _tensor(source, name)
            kind = getattr(torch, dtype) if header[name]["dtype"] == _CODES[dtype] else weight.dtype
            weight = lora.change(name).add_(weight) if name in lora else weight
            for values in weight.reshape(-1).split(_VALUES):
                file.write(values.to(kind).view(torch.uint8).numpy())


def _merge_in_memory(
    base: Path, adapter: Path, target: Path, dtype: str, why: str, report: Report
) -> dict[str, Any]:
    """Peft's own merge, of the whole model in float32: whatever was trained would be rounded before the sum otherwise."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    weights = sum(file.stat().st_size for file in weight_files(base, "model"))
    require_memory(2 * weights, f"merging in memory ({why})")
    report(f"merging in memory: {why}")
    chosen = "float32" if dtype == "auto" else dtype
    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    merged = (
        PeftModel.from_pretrained(model, str(adapter)).merge_and_unload().to(getattr(torch, chosen))
    )
    merged.save_pretrained(target)
    if (base / "generation_config.json").is_file():
        shutil.copy(base / "generation_config.json", target)
    return {"dtype": chosen, "retained_change": None, "merged": f"in memory: {why}"}
