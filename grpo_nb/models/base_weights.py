"""Weights of a base model: their files, and a hash that shows if they were replaced.

An adapter only works on the weights that it was trained on, and no other check detects that the
weights in the folder of the base model were replaced.
"""

import hashlib
import json
from pathlib import Path
from typing import Any


def weights_hash(folder: Path) -> str | None:
    """Return a hash of the safetensors in a folder; None if a file is missing.

    The hash covers the name, shape, dtype and middle row of each tensor. It is therefore fast, and
    does not depend on how the tensors are divided into files. A retrained model gets another hash,
    because training changes nearly every value. A change outside the middle rows is not detected.

    >>> weights_hash(Path("nowhere")) is None
    True
    """
    from safetensors import safe_open

    files = weight_files(folder)
    is_complete = all(file.is_file() for file in files)
    if not files or not is_complete:
        return None
    descriptions = []
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                descriptions.append(_describe_tensor(opened, name))
    # Sorted, because shards list the tensors in another order.
    text = "\n".join(sorted(descriptions))
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _describe_tensor(file: Any, name: str) -> str:
    """Return name, dtype and shape of a tensor, and the numbers of its middle row."""
    tensor = file.get_slice(name)
    shape = tensor.get_shape()
    # A single number and an empty tensor have no rows.
    has_rows = bool(shape) and shape[0] > 0
    row = tensor[shape[0] // 2] if has_rows else file.get_tensor(name)
    return f"{name} {tensor.get_dtype()} {shape} {row.tolist()}"


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that transformers loads: the single one, or those of the index.

    Other files are left out, because some repositories hold the weights a second time. The single
    file takes precedence, because an old index stays when shards are saved again as one file.

    Raises:
        ValueError: The index names a file outside of the folder.
    """
    single = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if single.is_file():
        return [single]
    if not index.is_file():
        return []
    file_of_tensor = json.loads(index.read_text())["weight_map"]
    names = sorted(set(file_of_tensor.values()))
    # Names are compared, not paths: in the Hub's cache the files themselves are links.
    if any(Path(name).name != name for name in names):
        raise ValueError(
            f"{str(index)!r} names a file that is not in its folder: download the model again."
        )
    return [folder / name for name in names]


def base_weights_hash(model: Any, name: str) -> str | None:
    """Return the hash of the weights that a model was loaded from; None without their files.

    Nothing is downloaded. The result is also None if Unsloth downloaded a 4-bit copy in place of
    the 16-bit weights.

    Args:
        model: The model to train. If it was loaded from a folder, that folder is read.
        name: `Settings.model`, which is looked up in the Hub's cache if the model was not loaded
            from a folder.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    # Empty for a model made in memory. As a path, an empty name would be the current folder.
    source = getattr(model.config, "_name_or_path", "")
    if source and Path(source, "config.json").is_file():
        return weights_hash(Path(source))
    try:
        return weights_hash(Path(snapshot_download(name, local_files_only=True)))
    except (HFValidationError, LocalEntryNotFoundError):
        return None
