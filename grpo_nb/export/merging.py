"""Base plus adapter tensor by tensor, from the base's files.

This way and the one in memory (`merging_in_memory`) form each sum in float32, round it once to the number type of the
result, and write the same bytes. This one holds one tensor at a time, so that a model can be merged that does not fit into
memory. It knows plain LoRA on linear layers; what else an adapter can be, it names, and peft's own merge in memory does it.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.export.result import ExportError
from grpo_nb.export.tensors import TensorFolder, write_tensors

if TYPE_CHECKING:
    import torch

# Values of a weight that are worked on at once: 1 MB of float32.
_BLOCK = 2**18
# Fields of a LoraConfig with which base + scaling * B @ A is still the whole truth; every other must be at its default.
_KNOWN_FIELDS = {
    "peft_type", "task_type", "base_model_name_or_path", "revision", "inference_mode", "peft_version", "auto_mapping",
    "r", "lora_alpha", "lora_dropout", "target_modules", "exclude_modules", "use_rslora", "fan_in_fan_out",
    "init_lora_weights", "rank_pattern", "layers_to_transform", "layers_pattern", "runtime_config",
}  # fmt: skip
# These ways to start a LoRA leave the base as it is; PiSSA, OLoRA, CorDA and the like train on a changed one.
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal")
_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


@dataclass(frozen=True)
class _Update:
    """What the adapter adds to one weight."""

    a: str
    b: str
    scaling: float
    is_transposed: bool


class LowMemoryMerge:
    """A merge that reads the base's files tensor by tensor. Made only where `obstacle` finds none."""

    def __init__(self, base: Path, adapter: Path) -> None:
        self.base, self.weights = base, TensorFolder(base)
        self.adapter = TensorFolder(adapter, "adapter_model")
        self.config = json.loads((adapter / "adapter_config.json").read_text())
        self.updates = self._updates()

    def _updates(self) -> dict[str, _Update]:
        parts: dict[str, dict[str, str]] = {}
        for name in self.adapter.shapes:
            found = _TENSOR.fullmatch(name)
            if found is None:
                raise _NotPlainError(f"its tensor {name} is no A or B matrix of a linear layer")
            parts.setdefault(f"{found[1]}.weight", {})[found[2]] = name
        updates = {}
        for weight, part in parts.items():
            if set(part) != {"A", "B"} or weight not in self.weights.shapes:
                raise _NotPlainError(f"its part for {weight} does not fit the base's files")
            # The rank from the tensor, because `rank_pattern` gives some layers another one.
            rank = self.adapter.shapes[part["A"]][0]
            root = math.sqrt(rank) if self.config.get("use_rslora") else rank
            updates[weight] = _Update(
                part["A"], part["B"], self.config["lora_alpha"] / root, bool(self.config.get("fan_in_fan_out"))
            )
        return updates

    def change(self, name: str) -> torch.Tensor | None:
        """What is added to a weight, float32; None for those that stay."""
        update = self.updates.get(name)
        if update is None:
            return None
        product = self.adapter.read(update.b).float() @ self.adapter.read(update.a).float()
        return (product.T if update.is_transposed else product).mul_(update.scaling)

    def retained(self, candidates: list[str], advance: Callable[[int], None]) -> dict[str, float]:
        """How much of the change each number type would keep (`Retained`)."""
        found = Retained(candidates)
        for name in self.updates:
            weight, change = self.weights.read(name), self.change(name)
            assert change is not None
            found.add(weight, change)
            advance(weight.numel())
        return found.shares()

    def write(self, target: Path, dtype: str, shard_size: str, advance: Callable[[int], None]) -> None:
        """Write configuration and weights as `save_pretrained` does, a tensor at a time."""
        import torch
        from huggingface_hub import split_torch_state_dict_into_shards
        from transformers.core_model_loading import dot_natural_key

        kind = getattr(torch, dtype)
        model, state = _skeleton(self.base, kind)
        _write_configs(model, self.base, target, dtype)
        layout = {
            name: (kind if tensor.is_floating_point() else tensor.dtype, tuple(tensor.shape))
            for name, tensor in state.items()
        }

        def merged(name: str) -> torch.Tensor:
            weight, change = self.weights.read(name), self.change(name)
            advance(weight.numel())
            if change is None:
                return weight.to(layout[name][0])
            result = torch.empty_like(weight, dtype=layout[name][0])
            for rows, start, more in blocks(result, weight, change):
                rows.copy_(start.float().add_(more))
            return result

        # save_pretrained fills its shards in this order (transformers 5.17, `revert_weight_conversion`).
        ordered = {name: state[name] for name in sorted(state, key=dot_natural_key)}
        plan = split_torch_state_dict_into_shards(
            ordered, filename_pattern="model{suffix}.safetensors", max_shard_size=shard_size
        )
        for file, names in plan.filename_to_tensors.items():
            write_tensors(target / file, {name: layout[name] for name in names}, merged, {"format": "pt"})
        if plan.is_sharded:
            index = {
                "metadata": {"total_parameters": model.num_parameters(), **plan.metadata},
                "weight_map": plan.tensor_to_filename,
            }
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            (target / "model.safetensors.index.json").write_text(text, encoding="utf-8")


class Retained:
    """How much of a change is left after rounding: the projection of the rounded change on the exact one, over all weights."""

    def __init__(self, candidates: list[str]) -> None:
        self._left = dict.fromkeys(candidates, 0.0)
        self._whole = 0.0

    def add(self, weight: torch.Tensor, change: torch.Tensor) -> None:
        """Count a weight, in the base's number type, and its change, float32."""
        import torch

        for start, more in blocks(weight, change):
            start = start.float()
            total = start + more
            self._whole += (more * more).sum().item()
            for name in self._left:
                # An overflow makes this infinite, or not a number where nothing changed.
                kept = ((total.to(getattr(torch, name)).float() - start) * more).sum().item()
                self._left[name] += kept if math.isfinite(kept) else -math.inf

    def shares(self) -> dict[str, float]:
        """From 0 to 1 for each number type; 0 where a weight is too large for it.

        Raises:
            ExportError: There is no change at all.
        """
        if self._whole == 0:
            raise ExportError("the adapter changes nothing: all its B matrices are zero. Train it first.")
        return {name: 0.0 if math.isinf(left) else 1 - abs(1 - left / self._whole) for name, left in self._left.items()}


def blocks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Views of some rows at a time, of each tensor the same: what is computed between stays in the processor's cache."""
    rows = max(1, _BLOCK // max(1, tensors[0][0].numel()))
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


class _NotPlainError(Exception):
    """Why an adapter is not what the low-memory merge knows."""


def low_memory_merge(base: Path, adapter: Path) -> tuple[LowMemoryMerge | None, str]:
    """Return the merge that works tensor by tensor, or None and the reason why this base or adapter needs the other way."""
    try:
        _require_plain(adapter)
        if not (base / "model.safetensors").is_file() and not (base / "model.safetensors.index.json").is_file():
            raise _NotPlainError(f"the base {base.name} is not stored as safetensors")
        merge = LowMemoryMerge(base, adapter)
        _require_same_names(merge)
    except _NotPlainError as reason:
        return None, str(reason)
    return merge, ""


def is_plain(adapter: Path) -> bool:
    """Whether base + scaling * B @ A is all that the adapter is."""
    try:
        _require_plain(adapter)
    except _NotPlainError:
        return False
    return True


def _require_plain(adapter: Path) -> None:
    from grpo_nb.models import import_unsloth

    # A plan asks this in a fresh kernel, and peft imported before unsloth would make the export after it impossible.
    import_unsloth()
    from peft import LoraConfig

    config = json.loads((adapter / "adapter_config.json").read_text())
    if config.get("peft_type") != "LORA":
        raise _NotPlainError(f"the adapter is a {config.get('peft_type')}, not a LoRA")
    defaults = LoraConfig()
    for name, value in config.items():
        if name in _KNOWN_FIELDS:
            continue
        # A field that this peft does not know could mean anything, unless it says nothing.
        default = getattr(defaults, name, None)
        if (value or None) != (default or None):
            raise _NotPlainError(f"the adapter has {name} = {value!r}")
    if config.get("init_lora_weights", True) not in _PLAIN_STARTS:
        raise _NotPlainError(f"the adapter was started with {config['init_lora_weights']!r}, which changes the base")


def _require_same_names(merge: LowMemoryMerge) -> None:
    """The model's names and shapes must be those of the files: some architectures are renamed or joined while they load."""
    import torch

    _, state = _skeleton(merge.base, torch.bfloat16)
    for name, tensor in state.items():
        if merge.weights.shapes.get(name) != tuple(tensor.shape):
            raise _NotPlainError(f"the base's files have no {name} of shape {tuple(tensor.shape)}")
    for name, update in merge.updates.items():
        if name not in state:
            raise _NotPlainError(f"the adapter changes {name}, which shares its tensor with another")
        rows, columns = merge.adapter.shapes[update.b][0], merge.adapter.shapes[update.a][1]
        if merge.weights.shapes[name] != ((columns, rows) if update.is_transposed else (rows, columns)):
            raise _NotPlainError(f"the adapter's part for {name} has another shape")
        if not merge.weights.dtypes[name].is_floating_point:
            raise _NotPlainError(f"{name} is stored as {merge.weights.dtypes[name]}")


def _skeleton(base: Path, dtype: torch.dtype) -> tuple[Any, dict[str, torch.Tensor]]:
    """The model without memory for its weights, and the tensors that it saves, in its order."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.from_pretrained(base)
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    ignored = set(model._keys_to_ignore_on_save or ())
    return model, {name: t for name, t in model.state_dict().items() if name not in tied | ignored}


def _write_configs(model: Any, base: Path, target: Path, dtype: str) -> None:
    model.config.dtype = dtype
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(target)
    if not keep_generation_config(base, target):
        model.generation_config.save_pretrained(target)


def keep_generation_config(base: Path, target: Path) -> bool:
    """Copy the base's generation_config.json as it is, if there is one.

    transformers refuses to write what it reads: a temperature beside `do_sample: false` stops `save_pretrained` (5.17), and
    many published models have that.
    """
    file = base / "generation_config.json"
    if file.is_file():
        shutil.copyfile(file, target / file.name)
    return file.is_file()
