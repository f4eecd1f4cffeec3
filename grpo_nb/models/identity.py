"""Identity of a base model: a hash of its weights.

An adapter only works on the weights that it was trained on, and no other check sees that the
weights in the folder of the base model were replaced.
"""

import hashlib
import json
from pathlib import Path
from typing import Any


def weights_identity(folder: Path) -> str | None:
    """Return a hash of the safetensors in a folder; None if a file is missing.

    The hash is of names, shapes, dtypes and three rows of each tensor. Sharding does not change it,
    and only three rows per tensor are read, so it is fast. Retraining is noticed, because it
    changes nearly every value. A change only in other rows is not noticed.

    >>> weights_identity(Path("nowhere")) is None
    True
    """
    from safetensors import safe_open

    files = weight_files(folder)
    is_complete = all(file.is_file() for file in files)
    if not files or not is_complete:
        return None
    hashes: dict[str, str] = {}
    for file in files:
        with safe_open(file, "pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (no mapping)
                hashes[name] = _hash_of_tensor(opened, name)
    # Sorted, because shards list the tensors in another order.
    listed = json.dumps(hashes, sort_keys=True)
    return hashlib.sha256(listed.encode()).hexdigest()[:32]


def _hash_of_tensor(file: Any, name: str) -> str:
    """Return a hash of a tensor's dtype, shape, and first, middle and last row."""
    import torch

    tensor = file.get_slice(name)
    shape = tensor.get_shape()
    heading = f"{tensor.get_dtype()} {shape}"
    digest = hashlib.sha256(heading.encode())
    if shape and shape[0]:
        count = shape[0]
        starts = (0, count // 2, count - 1)
        rows = [tensor[start : start + 1] for start in starts]
    else:
        # A single number or an empty tensor has no rows.
        rows = [file.get_tensor(name)]
    for row in rows:
        # As bytes, because numpy has no bfloat16.
        flat = row.contiguous().reshape(-1)
        digest.update(flat.view(torch.uint8).numpy())
    return digest.hexdigest()


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that transformers loads: those of the index, or the only one.

    Other files are left out, because some repositories hold the weights a second time.

    Raises:
        ValueError: The index names a file outside of the folder.
    """
    single = folder / "model.safetensors"
    index = folder / "model.safetensors.index.json"
    if not index.is_file():
        return [single] if single.is_file() else []
    file_of_tensor = json.loads(index.read_text())["weight_map"]
    names = sorted(set(file_of_tensor.values()))
    # Names are compared, not paths: in the Hub's cache the files themselves are links.
    if any(Path(name).name != name for name in names):
        raise ValueError(
            f"{str(index)!r} names a file that is not in its folder: download the model again."
        )
    return [folder / name for name in names]


def base_identity(model: Any, name: str) -> str | None:
    """Return the identity of the weights that a model was loaded from; None if they are not here.

    Nothing is downloaded. The result is also None for a 4-bit copy that Unsloth downloaded in place
    of the 16-bit weights.

    Args:
        model: The model as it will be trained. If it came from a folder, that folder is read,
            whatever the settings say.
        name: Model of the settings.
    """
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    loaded_from = getattr(model.config, "_name_or_path", "")
    for folder in (loaded_from, name):
        # Empty for a model made in memory, which as a path would be the current folder.
        if folder and Path(folder, "config.json").is_file():
            return weights_identity(Path(folder))
    try:
        return weights_identity(Path(snapshot_download(name, local_files_only=True)))
    except (HFValidationError, LocalEntryNotFoundError):
        return None


def require_trained_on(adapter: Path, model: Any, base: str) -> None:
    """Refuse a model on whose weights an exported adapter was not trained, as far as is known.

    Args:
        adapter: Folder of the adapter. The `verification.json` of an export has the identity of
            the weights that it was trained on.
        model: Model that was loaded for the adapter.
        base: Name of that model.

    Raises:
        ValueError: The weights are not those that the adapter was trained on.
    """
    file = adapter / "verification.json"
    if not file.is_file():
        return
    expected = json.loads(file.read_text("utf-8")).get("base_weights")
    identity = base_identity(model, base)
    if None not in (expected, identity) and expected != identity:
        raise ValueError(
            f"the adapter {str(adapter)!r} was trained on other weights than those of {base!r} "
            "here, and is worth nothing on them. Take the base model that it was trained on, or "
            "the merged model of its run (gn.export_merged)."
        )
