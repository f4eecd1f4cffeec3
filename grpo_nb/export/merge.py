"""Base plus adapter, saved as one model: which way, in which number type, and how much of the training that holds.

Both ways form each sum in float32, round it once to the number type of the result, and write the same bytes. `_ByTensor` holds
one tensor at a time, so that a model can be merged that does not fit into memory. It knows plain LoRA on linear layers; what
else an adapter can be, it names, and peft's own merge does it (`_InMemory`).
"""

from __future__ import annotations

import json
import math
import re
import shutil
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.progress import progress_bar
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.export.result import ExportError, Report
from grpo_nb.export.tensors import TensorFolder, write_tensors
from grpo_nb.machine.host import free_memory_bytes, require_disk
from grpo_nb.models.unsloth import without_loading_bars

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


def choose_dtype(retained: dict[str, float], adapter: Path) -> str:
    """The first number type that holds enough of the change.

    Raises:
        ExportError: None does.
    """
    chosen = next((name for name, share in retained.items() if share >= LEAST_RETAINED), None)
    if chosen is None:
        measured = ", ".join(f"{name} {share:.1%}" for name, share in retained.items())
        wider = "" if "float32" in retained else "Write dtype='float32', or "
        raise ExportError(
            f"rounding the merged weights would lose a part of the training (share kept: {measured}; "
            f"{LEAST_RETAINED:.0%} is asked for). {wider}{'use' if wider else 'Use'} the adapter itself: {adapter}."
        )
    return chosen


def merge(
    base: Path, adapter: Path, target: Path, *, dtype: str, low_memory: bool | str, shard_size: str, report: Report
) -> dict[str, Any]:
    """Save base plus adapter to `target`; return the number type, the share of the change it holds, and the way taken.

    Raises:
        EnvironmentProblem: Too little disk, or memory where the base has to be in it as a whole.
        ExportError: The number type would lose too much, the base is quantized, or `low_memory=True` is not possible.
    """
    if "quantization_config" in json.loads((base / "config.json").read_text()):
        raise ExportError(
            f"the base {base.name!r} is stored quantized: its 16-bit weights, on which the adapter belongs, are not in it. "
            "Train on the 16-bit model's name with load_in_4bit=True (it is quantized while it loads), or use export_adapter."
        )
    plain, reason = low_memory_merge(base, adapter) if low_memory else (None, "low_memory=False")
    if plain is None and low_memory is True:
        raise ExportError(
            f"the merge cannot be done tensor by tensor: {reason}. Leave low_memory out; it is then done in memory."
        )
    if plain is None:
        _require_memory(base, adapter)
    way = plain or _InMemory(base, adapter)
    report(f"merging {'tensor by tensor' if plain else f'in memory ({reason})'}")
    with progress_bar(desc="measuring the change", unit=" weights", unit_scale=True) as bar:
        retained = retained_shares(way.changes(), list(WIDTHS) if dtype == "auto" else [dtype], bar.update)
    chosen = choose_dtype(retained, adapter)
    report(f"writing {chosen}, which holds {retained[chosen]:.1%} of the training's change")
    values = sum(tensor.numel() for tensor in TensorFolder(base).tensors.values())
    require_disk(target, values * WIDTHS[chosen], f"The merged model in {chosen}")
    with progress_bar(desc="writing the merged model", unit=" weights", unit_scale=True) as bar:
        way.write(target, chosen, shard_size, bar.update)
    return {
        "dtype": chosen,
        "retained_change": retained[chosen],
        "merged": "tensor by tensor" if plain else f"in memory: {reason}",
    }


def _require_memory(base: Path, adapter: Path) -> None:
    """Raise `EnvironmentProblem` if the base cannot be in memory as a whole."""
    tensors = TensorFolder(base).tensors.values()
    needed = 1.1 * sum(tensor.nbytes if is_plain(adapter) else 4 * tensor.numel() for tensor in tensors)
    if needed > (free := free_memory_bytes()):
        raise EnvironmentProblem(
            f"merging in memory needs {needed / 1e9:.2f} GB of it, but {free / 1e9:.2f} GB are free. Close what else is loaded "
            "(restart the kernel, then gn.open_run), or use a machine with more."
        )


def retained_shares(
    changes: Iterable[tuple[torch.Tensor, torch.Tensor]], dtypes: Iterable[str], advance: Callable[[int], object]
) -> dict[str, float]:
    """How much of a change is left after rounding: the projection of the rounded change on the exact one, over all weights.

    Args:
        changes: Each weight, in the base's number type, and its change, float32.
        dtypes: To round to.
        advance: Called with the number of values of each weight that is counted.

    Returns:
        From 0 to 1 for each number type; 0 where a weight is too large for it.

    Raises:
        ExportError: There is no change at all, or base or adapter hold what is no finite number.
    """
    import torch

    left, whole = dict.fromkeys(dtypes, 0.0), 0.0
    for weight, change in changes:
        for start, more in _blocks(weight, change):
            start = start.float()
            total = start + more
            if not total.isfinite().all():
                is_base = not start.isfinite().all()
                raise ExportError(
                    f"{'the base' if is_base else 'the adapter'} has values that are not finite, in its part for a weight of "
                    f"{' x '.join(map(str, weight.shape))}, so there is no model to merge. "
                    + ("Put the base's files there anew." if is_base else "Take an earlier checkpoint, or train again.")
                )
            whole += (more * more).sum().item()
            for name in left:
                # An overflow makes this infinite, or not a number where nothing changed.
                kept = ((total.to(getattr(torch, name)).float() - start) * more).sum().item()
                left[name] += kept if math.isfinite(kept) else -math.inf
        advance(weight.numel())
    if whole == 0:
        raise ExportError("the adapter changes nothing: all its B matrices are zero. Train it first.")
    return {name: 0.0 if math.isinf(kept) else 1 - abs(1 - kept / whole) for name, kept in left.items()}


def _blocks(*tensors: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
    """Views of some rows at a time, of each tensor the same: what is computed between stays in the processor's cache."""
    rows = max(1, _BLOCK // max(1, tensors[0][0].numel()))
    return zip(*(tensor.split(rows) for tensor in tensors), strict=True)


class _NotPlainError(Exception):
    """Why an adapter is not what the merge by tensor knows."""


class _ByTensor:
    """A merge that reads the base's files tensor by tensor.

    Raises:
        _NotPlainError: This base or adapter needs the other way.
    """

    def __init__(self, base: Path, adapter: Path) -> None:
        import torch
        from transformers import AutoConfig, AutoModelForCausalLM

        if reason := _why_not_plain(adapter):
            raise _NotPlainError(reason)
        if not (base / "model.safetensors").is_file() and not (base / "model.safetensors.index.json").is_file():
            raise _NotPlainError(f"the base {base.name} is not stored as safetensors")
        self._base, self._weights = base, TensorFolder(base)
        self._adapter = TensorFolder(adapter, "adapter_model")
        self._config = json.loads((adapter / "adapter_config.json").read_text())
        # By weight the names of its A and B matrix.
        self._matrices: dict[str, dict[str, str]] = {}
        for name in self._adapter.tensors:
            found = _TENSOR.fullmatch(name)
            if found is None:
                raise _NotPlainError(f"its tensor {name} is no A or B matrix of a linear layer")
            self._matrices.setdefault(f"{found[1]}.weight", {})[found[2]] = name
        # The model without memory for its weights, and the tensors that it saves.
        with torch.device("meta"):
            self._model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(base), dtype=torch.bfloat16)
        left_out = {
            *(getattr(self._model, "all_tied_weights_keys", None) or ()),
            *(self._model._keys_to_ignore_on_save or ()),
        }
        self._state = {name: t for name, t in self._model.state_dict().items() if name not in left_out}
        self._require_same_names()

    def _require_same_names(self) -> None:
        """The model's names and shapes must be those of the files: some architectures are renamed or joined while they load."""
        stored, matrices = self._weights.tensors, self._adapter.tensors
        for name, part in self._matrices.items():
            if set(part) != {"A", "B"} or name not in stored:
                raise _NotPlainError(f"its part for {name} does not fit the base's files")
            if name not in self._state:
                raise _NotPlainError(f"the adapter changes {name}, which shares its tensor with another")
            shape = (matrices[part["B"]].shape[0], matrices[part["A"]].shape[1])
            if stored[name].shape != (shape[::-1] if self._config.get("fan_in_fan_out") else shape):
                raise _NotPlainError(f"the adapter's part for {name} has another shape")
            if not stored[name].is_floating_point():
                raise _NotPlainError(f"{name} is stored as {stored[name].dtype}")
        for name, tensor in self._state.items():
            if name not in stored or stored[name].shape != tensor.shape:
                raise _NotPlainError(f"the base's files have no {name} of shape {tuple(tensor.shape)}")

    def _change(self, name: str) -> torch.Tensor:
        """What is added to a weight, float32."""
        a, b = (self._adapter.read(self._matrices[name][which]).float() for which in "AB")
        product = b @ a
        # The rank from the tensor, because `rank_pattern` gives some layers another one.
        root = math.sqrt(len(a)) if self._config.get("use_rslora") else len(a)
        return (product.T if self._config.get("fan_in_fan_out") else product).mul_(self._config["lora_alpha"] / root)

    def changes(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each weight that the adapter changes, and what is added to it, float32."""
        for name in self._matrices:
            yield self._weights.read(name), self._change(name)

    def write(self, target: Path, dtype: str, shard_size: str, advance: Callable[[int], None]) -> None:
        """Write configuration and weights as `save_pretrained` does, a tensor at a time."""
        import torch
        from huggingface_hub import split_torch_state_dict_into_shards
        from transformers.core_model_loading import dot_natural_key

        model, kind = self._model, getattr(torch, dtype)
        model.config.dtype = dtype
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(target)
        if not _keep_generation_config(self._base, target):
            model.generation_config.save_pretrained(target)

        def merged(name: str) -> torch.Tensor:
            weight = self._weights.read(name)
            advance(weight.numel())
            result = weight.to(layout[name].dtype)
            if name in self._matrices:
                result = torch.empty_like(weight, dtype=layout[name].dtype)
                for rows, start, more in _blocks(result, weight, self._change(name)):
                    rows.copy_(start.float().add_(more))
            return result

        # save_pretrained fills its shards in this order (transformers 5.17, `revert_weight_conversion`).
        layout = {
            name: self._state[name].to(kind) if self._state[name].is_floating_point() else self._state[name]
            for name in sorted(self._state, key=dot_natural_key)
        }
        plan = split_torch_state_dict_into_shards(
            layout, filename_pattern="model{suffix}.safetensors", max_shard_size=shard_size
        )
        for file, names in plan.filename_to_tensors.items():
            write_tensors(target / file, {name: layout[name] for name in names}, merged)
        if plan.is_sharded:
            metadata = {"total_parameters": model.num_parameters(), **plan.metadata}
            index = {"metadata": metadata, "weight_map": plan.tensor_to_filename}
            text = json.dumps(index, indent=2, sort_keys=True) + "\n"
            (target / "model.safetensors.index.json").write_text(text, encoding="utf-8")


def low_memory_merge(base: Path, adapter: Path) -> tuple[_ByTensor | None, str]:
    """Return the merge that works tensor by tensor, or None and the reason why this base or adapter needs the other way."""
    try:
        return _ByTensor(base, adapter), ""
    except _NotPlainError as reason:
        return None, str(reason)


def is_plain(adapter: Path) -> bool:
    """Whether base + scaling * B @ A is all that the adapter is."""
    return not _why_not_plain(adapter)


def _why_not_plain(adapter: Path) -> str:
    from peft import LoraConfig

    config = json.loads((adapter / "adapter_config.json").read_text())
    if config.get("peft_type") != "LORA":
        return f"the adapter is a {config.get('peft_type')}, not a LoRA"
    defaults = LoraConfig()
    for name, value in config.items():
        # A field that this peft does not know could mean anything, unless it says nothing.
        if name not in _KNOWN_FIELDS and (value or None) != (getattr(defaults, name, None) or None):
            return f"the adapter has {name} = {value!r}"
    if config.get("init_lora_weights", True) not in _PLAIN_STARTS:
        return f"the adapter was started with {config['init_lora_weights']!r}, which changes the base"
    return ""


class _InMemory:
    """A merge through peft's own, for all kinds of adapters, of a model that is in memory as a whole.

    It is there in the number type of its files, of which one layer at a time is widened to float32 for its sum.
    Where more was trained than A and B matrices, or the adapter starts by changing the base, all of it is in float32: what was
    trained would be rounded to the base's number type while it is loaded.
    """

    def __init__(self, base: Path, adapter: Path) -> None:
        from peft import PeftModel
        from peft.tuners.tuners_utils import BaseTunerLayer
        from transformers import AutoModelForCausalLM

        self._base = base
        with without_loading_bars():
            model = AutoModelForCausalLM.from_pretrained(base, dtype="auto" if is_plain(adapter) else "float32")
        self._model = PeftModel.from_pretrained(model, str(adapter))
        self._layers = [layer for layer in self._model.modules() if isinstance(layer, BaseTunerLayer)]

    def changes(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Each weight that the adapter changes, and what is added to it, float32."""
        for layer in self._layers:
            # An adapter on the experts of a mixture names the parameter that it changes.
            weight = getattr(layer.get_base_layer(), getattr(layer, "parameter_name", "weight"))
            before = _merge_in_float32(layer)
            yield before[weight], weight.data - before[weight]
            # Not peft's unmerge, which subtracts again and rounds: the tensors themselves are put back.
            for parameter, data in before.items():
                parameter.data = data
            layer.merged_adapters.clear()

    def write(self, target: Path, dtype: str, shard_size: str, advance: Callable[[int], None]) -> None:
        """Merge layer by layer and save."""
        import torch
        from transformers import GenerationConfig

        kind = getattr(torch, dtype)
        with torch.no_grad():
            for layer in self._layers:
                for parameter, before in _merge_in_float32(layer).items():
                    if before.dtype.itemsize == kind.itemsize:
                        # Into the memory it had: what was loaded is mapped from a file, and stays in memory to the last
                        # tensor of that file. The mapping is private, the base's file is not written to.
                        parameter.data = before.view(kind).copy_(parameter.data)
                    else:
                        parameter.data = parameter.data.to(kind)
                    advance(parameter.numel())
            # Nothing is left to merge: this takes peft's layers out, and puts fully trained modules in their places.
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "All adapters are already merged")
                merged = self._model.merge_and_unload().to(kind)
        # Not what it was loaded with, which save_pretrained may refuse; the base's file is kept as it is.
        if (self._base / "generation_config.json").is_file():
            merged.generation_config = GenerationConfig()
        merged.save_pretrained(target, max_shard_size=shard_size)
        _keep_generation_config(self._base, target)


def _merge_in_float32(layer: Any) -> dict[torch.nn.Parameter, torch.Tensor]:
    """Merge one layer; return its own parameters with their data from before."""
    import torch

    before = {parameter: parameter.data for parameter in layer.get_base_layer().parameters(recurse=False)}
    for parameter, data in before.items():
        # A copy also of what is float32 already: peft adds in place.
        parameter.data = data.to(torch.float32, copy=True)
    with torch.no_grad():
        layer.merge()
    return before


def _keep_generation_config(base: Path, target: Path) -> bool:
    """Copy the base's generation_config.json as it is, if there is one.

    transformers refuses to write what it reads: a temperature beside `do_sample: false` stops `save_pretrained` (5.17), and
    many published models have that.
    """
    file = base / "generation_config.json"
    if file.is_file():
        shutil.copyfile(file, target / file.name)
    return file.is_file()
