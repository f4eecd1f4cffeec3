"""Export a run as a merged model: the 16-bit base plus the adapter, verified weight by weight.

Only the tensors of one output file are in memory at a time, so the model can be larger than memory.
Adapters that are more than a plain LoRA on linear layers (DoRA, trained biases, whole modules,
experts) are refused.
"""

from __future__ import annotations

import json
import math
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_nb.core.files import write_json
from grpo_nb.core.progress import progress_bar
from grpo_nb.export.saved_export import ADAPTER_FILE, Export, ExportError, Verification
from grpo_nb.export.staged_export import (
    RoundingLimits,
    fetch_base_folder,
    make_export,
    verification_request,
    verify_in_new_process,
)
from grpo_nb.machine.host import require_disk
from grpo_nb.models.adapter import options_beyond_plain_lora
from grpo_nb.models.base_weights import weight_files
from grpo_nb.models.templates import load_run_tokenizer, saved_chat_template
from grpo_nb.runs.run_folder import Run, open_run

if TYPE_CHECKING:
    import torch

#: Share of the adapter's change that must survive the rounding of the merged weights.
MIN_RETAINED = 0.95
#: Dtypes that are tried in this order, until one keeps the change.
DTYPES = ("bfloat16", "float16", "float32")
#: Most bytes of an output file, unless one tensor is larger. safetensors needs it all in memory.
MAX_FILE_BYTES = 2**27
LORA_TENSOR = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
#: Rows of a weight that are measured at once.
ROWS_AT_ONCE = 64
#: Limits of the check of tokens, which is made in float32.
MERGED_LIMITS = RoundingLimits(min_effect=0.85, max_effect=1.15, max_nats=0.05)


def export_merged(
    run: Run | str | Path,
    path: str | Path,
    *,
    overwrite: bool = False,
) -> Export:
    """Merge the run's adapter into the 16-bit base, save it as safetensors, and verify the files.

    A short training changes many weights by less than bfloat16 can represent next to them, so that
    rounding loses a part of the training. This is measured: the files are in bfloat16 if at least
    95 % of the change survives, otherwise in float16, whose steps are eight times finer, otherwise
    in float32 at twice the size.

    The adapter is added to one tensor of the base at a time, so the model need not fit into memory.
    A separate process, which imports neither grpo_nb nor Unsloth, then compares every weight with
    base plus adapter. It also compares answers, if the model fits into memory in float32. The
    folder appears at `path` only if every check passes. A training in 4 bit rounds the base in
    another way, so the merged model can answer differently: measure it with
    `gn.compare(path, against=run)`.

    Args:
        run: A run with an adapter, from `train` or `open_run`, or its folder.
        path: The folder to make.
        overwrite: If True, replace an existing folder once the new one is verified.

    Raises:
        FileExistsError: The folder exists and `overwrite` is False.
        FileNotFoundError: The run has no adapter.
        EnvironmentProblem: Too little disk.
        ExportError: The merged model is not the trained one, the adapter is not a plain LoRA, or
            the run has no held-out questions to verify the merged model with. `path` is as it was.

    >>> gn.export_merged(gn.open_run("runs/first"), "exports/first")  # doctest: +SKIP
    """
    run = open_run(run)

    def fill(staged: Path) -> Verification:
        # Checked before the merge, which takes minutes for a large model.
        if not run.holdout:
            raise ExportError(
                f"the run {run.name!r} has no held-out questions to verify the merged model with. "
                "Use gn.export.export_adapter."
            )
        base_folder = fetch_base_folder(run)
        verification = merge(base_folder, run.adapter_path, staged)
        load_run_tokenizer(run.path, base_folder).save_pretrained(staged)
        request = {
            "check": "merged",
            "base_folder": str(base_folder),
            "chat_template": saved_chat_template(run.path),
            "adapter_folder": str(run.adapter_path),
            "merged_folder": str(staged),
            "limits": MERGED_LIMITS,
            **verification_request(run),
        }
        verification |= verify_in_new_process(request, "the merged model")
        verification["sentence"] = (
            "Every weight was compared with base plus adapter; the files in "
            f"{verification['dtype']} hold {verification['retained_change']:.1%} of the training's "
            "change. On held-out prompts, the merged model compared with base plus adapter: "
            f"{verification['tokens']}."
        )
        return verification

    return make_export(run, "merged", path, fill, overwrite=overwrite)


@dataclass(frozen=True)
class Lora:
    """The change that a plain LoRA adds to the weights of the base."""

    matrices: Mapping[str, Mapping[str, torch.Tensor]]
    """A and B in float32, by the name of the weight."""
    scaling: float

    def change(self, name: str) -> torch.Tensor:
        """Return the change of a weight, in float32."""
        pair = self.matrices[name]
        return (pair["B"] @ pair["A"]).mul_(self.scaling)


def read_lora(adapter_folder: Path, files_by_tensor: Mapping[str, Path]) -> Lora:
    """Read an adapter.

    Args:
        adapter_folder: Folder of the adapter.
        files_by_tensor: File of each tensor of the base.

    Raises:
        ExportError: The adapter is not a plain LoRA, or belongs to another base.
    """
    from peft import PeftConfig
    from safetensors.torch import load_file

    config = PeftConfig.from_pretrained(str(adapter_folder))
    obstacles = options_beyond_plain_lora(config)
    matrices = {}  # A and B of each weight
    for name, tensor in load_file(adapter_folder / ADAPTER_FILE).items():
        match = LORA_TENSOR.fullmatch(name)
        weight_name = f"{match[1]}.weight" if match else ""
        # Any tensor other than A or B of a weight would be lost without a trace.
        if weight_name in files_by_tensor:
            matrices.setdefault(weight_name, {})[match[2]] = tensor.float()
        else:
            obstacles.append(f"{name}, which belongs to no weight of the base's files")
    if obstacles:
        raise ExportError(
            f"the adapter has {obstacles[0]}, and only a plain LoRA is merged. Use "
            "gn.export.export_adapter, or PEFT's merge_and_unload without a verification."
        )
    for name, pair in matrices.items():
        if pair.keys() != {"A", "B"}:
            raise ExportError(
                f"the adapter has only one of the two matrices A and B of {name}. Its file is "
                "incomplete: train again, or put a copy of the file back."
            )
        base_shape = read_tensor(files_by_tensor[name], name).shape
        change_shape = (*pair["B"].shape[:1], *pair["A"].shape[1:])
        if change_shape != tuple(base_shape):
            raise ExportError(
                f"the adapter's change of {name} has the shape {change_shape}, but the weight of "
                f"the base has {tuple(base_shape)}. The adapter was trained on another base model, "
                "or is not a plain LoRA on linear layers."
            )
    return Lora(matrices, config.lora_alpha / config.r)


def merge(
    base_folder: Path,
    adapter_folder: Path,
    target: Path,
    *,
    dtypes: Sequence[str] = DTYPES,
) -> Verification:
    """Save base plus adapter to a folder, rounded once.

    Args:
        base_folder: Folder of the 16-bit base model.
        adapter_folder: Folder of the adapter.
        target: An empty folder.
        dtypes: Names of dtypes. The first one that keeps the change is taken.

    Returns:
        `dtype`, and `retained_change`: the share of the adapter's change that the rounded weights
        hold.

    Raises:
        EnvironmentProblem: There is too little disk.
        ExportError: Rounding would lose too much, the base is stored quantized, or the adapter is
            not a plain LoRA.
    """
    config = json.loads((base_folder / "config.json").read_text())
    if "quantization_config" in config:
        raise ExportError(
            f"the base {base_folder.name!r} is stored quantized, so the 16-bit weights that the "
            "adapter belongs to are not in it. Train with the name of the 16-bit model and "
            "load_in_4bit=True (it is quantized while it loads), or use export_adapter."
        )
    files_by_tensor = tensor_files(base_folder)
    lora = read_lora(adapter_folder, files_by_tensor)
    for dtype in dtypes:
        retained = retained_share(files_by_tensor, lora, dtype)
        if retained >= MIN_RETAINED:
            break
    else:
        raise ExportError(
            "rounding the merged weights would lose a part of the training (share kept: "
            f"{dtype} {retained:.1%}; at least {MIN_RETAINED:.0%} is needed). Use "
            "gn.export.export_adapter, or train longer."
        )
    # Each weight is rounded once, after the adapter was added to it in float32.
    write_merged(target, files_by_tensor, lora, dtype)
    # Copied as it is, because transformers 5.17 refuses to write some values that it reads.
    if (base_folder / "generation_config.json").is_file():
        shutil.copy(base_folder / "generation_config.json", target)
    config.pop("_name_or_path", None)  # a folder of this machine
    write_json(target / "config.json", config | {"dtype": dtype, "torch_dtype": dtype})
    return {"dtype": dtype, "retained_change": retained}


def retained_share(files_by_tensor: Mapping[str, Path], lora: Lora, dtype: str) -> float:
    """Return the share of the adapter's change that is left after rounding to a dtype.

    The share is 1 - |1 - p|, because rounding can also exaggerate the change. Here
    p = (r·c) / (c·c) is the projection of the rounded change r onto the exact change c, over all
    weights.

    Args:
        files_by_tensor: File of each tensor of the base.
        lora: The adapter.
        dtype: Name of the dtype to round to.

    Returns:
        The share, at most 1 and at least 0; 0 also if a weight is too large for the dtype.

    Raises:
        ExportError: There is no change at all.
    """
    import torch

    projection = 0.0
    squared_change = 0.0
    for name in lora.matrices:
        weights = read_tensor(files_by_tensor[name], name).split(ROWS_AT_ONCE)
        changes = lora.change(name).split(ROWS_AT_ONCE)
        for weight, change in zip(weights, changes, strict=True):
            # Sums of a few rows are exact enough in float32; Python adds them up in float64.
            squared_change += (change * change).sum().item()
            weight = weight.float()
            rounded = (weight + change).to(getattr(torch, dtype)).float()
            projection += ((rounded - weight) * change).sum().item()
    if squared_change == 0:
        raise ExportError(
            "the adapter changes nothing: all its B matrices are zero. Train it first."
        )
    # An overflow makes the projection infinite, or NaN if the change of the value is zero.
    if not math.isfinite(projection):
        return 0.0
    error = abs(1 - projection / squared_change)
    return max(0.0, 1 - error)


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor of a model.

    The names are read from the files themselves. The verification reads them from the index, so
    that an error in one of the two is found.
    """
    from safetensors import safe_open

    files = {}
    for file in weight_files(folder):
        with safe_open(file, framework="pt") as opened:
            files |= dict.fromkeys(opened.keys(), file)
    return files


def read_tensor(file: Path, name: str) -> torch.Tensor:
    """Return a tensor that is mapped from its file.

    The file is opened for each tensor, because the pages of an open file count as memory of this
    process.
    """
    from safetensors import safe_open

    with safe_open(file, framework="pt") as opened:
        return opened.get_tensor(name)


def write_merged(target: Path, files_by_tensor: Mapping[str, Path], lora: Lora, dtype: str) -> None:
    """Write the files of the merged model.

    Raises:
        EnvironmentProblem: There is too little disk.
    """
    import torch
    from huggingface_hub import split_torch_state_dict_into_shards
    from safetensors.torch import save_file

    # Meta tensors have a size and take no memory. The index must be known before the first file is
    # written, because the names of the files include the number of files.
    meta_tensors = {}
    for name, file in files_by_tensor.items():
        weight = read_tensor(file, name)
        stored_as = getattr(torch, dtype) if weight.is_floating_point() else weight.dtype
        meta_tensors[name] = weight.to("meta", stored_as)

    def merged_tensor(name: str) -> torch.Tensor:
        weight = read_tensor(files_by_tensor[name], name)
        if name in lora.matrices:
            weight = lora.change(name).add_(weight)
        return weight.to(meta_tensors[name].dtype)

    shards = split_torch_state_dict_into_shards(meta_tensors, max_shard_size=MAX_FILE_BYTES)
    require_disk(target, shards.metadata["total_size"], f"The merged model in {dtype}")
    files = shards.filename_to_tensors.items()
    for file_name, names in progress_bar(iterable=files, desc="merging", unit=" files"):
        # The dict has no name, so its tensors are freed before those of the next file are made.
        save_file(
            {name: merged_tensor(name) for name in names},
            target / file_name,
            metadata={"format": "pt"},
        )
    if shards.is_sharded:
        index = {"metadata": shards.metadata, "weight_map": shards.tensor_to_filename}
        write_json(target / "model.safetensors.index.json", index)
