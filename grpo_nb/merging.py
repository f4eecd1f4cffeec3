"""Base plus adapter, saved as one model: tensor by tensor from the base's files, or in memory where that is needed.

Both ways form each sum in float32, round it once to the number type of the result, and write the same bytes. The first
holds one tensor at a time, so that a model can be merged that does not fit into memory. It knows plain LoRA on linear
layers; what else an adapter can be, it names, and peft's own merge in memory does it (`merging_in_memory`).
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

from grpo_nb.export_result import ExportError
from grpo_nb.merging_files import TensorFolder, write_tensors

if TYPE_CHECKING:
    import torch

# Share of the adapter's change that must survive the rounding of the merged weights.
LEAST_RETAINED = 0.95
WIDTHS = {"bfloat16": 2, "float16": 2, "float32": 4}
SHARD_SIZE = "5GB"
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
Report = Callable[[str], None]


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


def _is_quantized(base: Path) -> bool:
    return "quantization_config" in json.loads((base / "config.json").read_text())


def choose_dtype(retained: dict[str, float], adapter: Path) -> str:
    """The first number type that holds enough of the change.

    Raises:
        ExportError: None does.
    """
    chosen = next((name for name, share in retained.items() if share >= LEAST_RETAINED), None)
    if chosen is None:
        measured = ", ".join(f"{name} {share:.1%}" for name, share in retained.items())
        raise ExportError(
            f"rounding the merged weights would lose a part of the training (share kept: {measured}; "
            f"{LEAST_RETAINED:.0%} is asked for). Write dtype='float32', or use the adapter itself: {adapter}."
        )
    return chosen


def merge(
    base: Path, adapter: Path, target: Path, *, dtype: str, low_memory: bool | str, shard_size: str, report: Report
) -> dict[str, Any]:
    """Save base plus adapter to `target`; return the number type, the share of the change it holds, and the way taken.

    Raises:
        ExportError: The number type would lose too much, the base is quantized, or `low_memory=True` is not possible.
    """
    from tqdm.auto import tqdm

    from grpo_nb.merging_in_memory import InMemoryMerge

    if _is_quantized(base):
        raise ExportError(
            f"the base {base.name!r} is stored quantized: its 16-bit weights, on which the adapter belongs, are not in it. "
            "Train on the 16-bit model's name with load_in_4bit=True (it is quantized while it loads), or use export_adapter."
        )
    plain, reason = low_memory_merge(base, adapter) if low_memory else (None, "low_memory=False")
    if plain is None and low_memory is True:
        raise ExportError(
            f"the merge cannot be done tensor by tensor: {reason}. Leave low_memory out; it is then done in memory."
        )
    way = plain or InMemoryMerge(base, adapter)
    candidates = list(WIDTHS) if dtype == "auto" else [dtype]
    report(f"merging {'tensor by tensor' if plain else 'in memory'}{'' if plain else f' ({reason})'}")
    with tqdm(desc="measuring the change", unit=" weights", unit_scale=True, leave=False) as bar:
        retained = way.retained(candidates, bar.update)
    chosen = choose_dtype(retained, adapter)
    report(f"writing {chosen}, which holds {retained[chosen]:.1%} of the training's change")
    with tqdm(desc="writing the merged model", unit=" weights", unit_scale=True, leave=False) as bar:
        way.write(target, chosen, shard_size, bar.update)
    return {
        "dtype": chosen,
        "retained_change": retained[chosen],
        "merged": "tensor by tensor" if plain else f"in memory: {reason}",
    }
