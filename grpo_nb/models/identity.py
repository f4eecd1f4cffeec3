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

    files = weight_files(folder, "model")
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


def weight_files(folder: Path, stem: str) -> list[Path]:
    """Return the safetensors files that transformers loads: those of the index, or the only one.

    Other files are left out, because some repositories hold the weights a second time.

    Raises:
        ValueError: The index names a file outside of the folder.
    """
    single = folder / f"{stem}.safetensors"
    index = folder / f"{stem}.safetensors.index.json"
    if not index.is_file():
        return [single] if single.is_file() else []
    file_of_tensor = json.loads(index.read_text())["weight_map"]
    names = sorted(set(file_of_tensor.values()))
    # Names are compared, not paths: in the Hub's cache the files themselves are links.
    elsewhere = [name for name in names if Path(name).name != name]
    if elsewhere:
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
    loaded_from = str(getattr(model.config, "_name_or_path", ""))
    # Empty for a model made in memory, which as a path would be the current folder.
    if loaded_from and Path(loaded_from, "config.json").is_file():
        name = loaded_from
    return local_weights_identity(name)


def local_weights_identity(name: str) -> str | None:
    """Return the identity of the weights of a folder or Hub id; None if they are not here."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError

    if Path(name).is_dir():
        return weights_identity(Path(name))
    try:
        return weights_identity(Path(snapshot_download(name, local_files_only=True)))
    except (HFValidationError, LocalEntryNotFoundError):
        # The model was made in memory, or Unsloth downloaded a 4-bit copy in place of the 16-bit
        # files.
        return None


def require_trained_on(adapter: Path, base: str, identity: str | None) -> None:
    """Refuse weights on which an exported adapter was not trained, if both identities are known.

    Args:
        adapter: Folder of the adapter, with the `verification.json` of its export.
        base: Name of these weights.
        identity: Identity of these weights.

    Raises:
        ValueError: The identities differ.
    """
    file = adapter / "verification.json"
    if identity is None or not file.is_file():
        return
    expected = json.loads(file.read_text("utf-8")).get("base_weights")
    if expected not in (None, identity):
        raise ValueError(
            f"the adapter {str(adapter)!r} was trained on other weights than those of {base!r} "
            "here, and is worth nothing on them. Take the base model that it was trained on, or "
            "the merged model of its run (gn.export_merged)."
        )
