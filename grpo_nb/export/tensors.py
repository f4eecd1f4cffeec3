"""A model's tensors on disk, read and written one at a time: never more of the model in memory than one tensor.

safetensors writes a file from tensors that are all in memory. Its format (huggingface.co/docs/safetensors, "Format") is a
header with the place of each tensor, then their bytes, so that a file whose shapes are known can be written as it comes.
`write_tensors` keeps to the order and the spacing of safetensors' own serializer: its files are equal byte for byte.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.models import weight_files

if TYPE_CHECKING:
    import torch

# safetensors' number types in the order of its source (`Dtype` in tensor.rs), by which it sorts, widest first.
_ORDER = ("BOOL", "U8", "I8", "I16", "U16", "F16", "BF16", "I32", "U32", "F32", "F64", "I64", "U64")
_TORCH = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "I16": "int16", "U16": "uint16", "F16": "float16", "BF16": "bfloat16",
    "I32": "int32", "U32": "uint32", "F32": "float32", "F64": "float64", "I64": "int64", "U64": "uint64",
}  # fmt: skip
_STORED = {name: code for code, name in _TORCH.items()}


class TensorFolder:
    """The tensors of a folder of safetensors, by name, each read from disk when it is asked for."""

    def __init__(self, folder: Path, stem: str = "model") -> None:
        from safetensors import safe_open

        self._file_of: dict[str, Path] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.dtypes: dict[str, torch.dtype] = {}
        for file in weight_files(folder, stem):
            with safe_open(str(file), framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118, safe_open is no mapping
                    described = tensors.get_slice(name)
                    self._file_of[name] = file
                    self.shapes[name] = tuple(described.get_shape())
                    self.dtypes[name] = _torch_dtype(described.get_dtype())

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor, in memory of its own."""
        from safetensors import safe_open

        # Opened anew each time: the pages of an open file that were read stay mapped, and count as this process's memory.
        with safe_open(str(self._file_of[name]), framework="pt") as tensors:
            return tensors.get_tensor(name).clone()

    @property
    def bytes(self) -> int:
        """Of all tensors together."""
        return sum(tensor_bytes(shape, self.dtypes[name]) for name, shape in self.shapes.items())


def tensor_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes of a tensor."""
    count = dtype.itemsize
    for size in shape:
        count *= size
    return count


def write_tensors(
    file: Path,
    layout: Mapping[str, tuple[torch.dtype, tuple[int, ...]]],
    tensor_of: Callable[[str], torch.Tensor],
    metadata: Mapping[str, str],
) -> None:
    """Write a safetensors file, asking for each tensor when it is its turn.

    Args:
        file: To write.
        layout: Number type and shape of each tensor.
        tensor_of: Returns a tensor of the layout by its name.
        metadata: Kept in the header; `{"format": "pt"}` is what transformers writes.

    Raises:
        ValueError: A tensor does not have the number type or shape that the layout says.
    """
    codes = {name: _STORED[str(dtype).removeprefix("torch.")] for name, (dtype, _) in layout.items()}
    names = sorted(layout, key=lambda name: (-_ORDER.index(codes[name]), name.encode()))
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    end = 0
    for name in names:
        start, end = end, end + tensor_bytes(layout[name][1], layout[name][0])
        header[name] = {"dtype": codes[name], "shape": list(layout[name][1]), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            tensor = tensor_of(name)
            if (tensor.dtype, tuple(tensor.shape)) != (layout[name][0], tuple(layout[name][1])):
                raise ValueError(f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not {layout[name]}.")
            out.write(_bytes_of(tensor))
        out.flush()
        os.fsync(out.fileno())


def _bytes_of(tensor: torch.Tensor) -> memoryview:
    import torch

    return memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy())


def _torch_dtype(code: str) -> torch.dtype:
    import torch

    if code not in _TORCH:
        raise ValueError(f"a tensor is stored as {code}, which is not one of {', '.join(_TORCH)}.")
    return getattr(torch, _TORCH[code])
