"""A model's tensors on disk, read and written one at a time: never more of the model in memory than one tensor.

safetensors writes a file from tensors that are all in memory. Its format (huggingface.co/docs/safetensors, "Format") is a
header with the place of each tensor, then their bytes, so that a file whose shapes are known can be written as it comes.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.models.identity import weight_files

if TYPE_CHECKING:
    import torch


class TensorFolder:
    """The tensors of a folder of safetensors, by name, each read from disk when it is asked for.

    Attributes:
        tensors: Shape and number type of each, as a tensor without memory (torch's device `meta`).
    """

    def __init__(self, folder: Path, stem: str = "model") -> None:
        from safetensors import safe_open

        self._file_of: dict[str, Path] = {}
        self.tensors: dict[str, torch.Tensor] = {}
        for file in weight_files(folder, stem):
            with safe_open(str(file), framework="pt") as opened:
                for name in opened.keys():  # noqa: SIM118, safe_open is no mapping
                    self._file_of[name] = file
                    # Mapped from the file: nothing of it is read.
                    self.tensors[name] = opened.get_tensor(name).to("meta")

    def read(self, name: str) -> torch.Tensor:
        """Return a tensor, mapped from its file: memory that the system takes back where it is short."""
        from safetensors import safe_open

        # Opened anew each time: the pages of an open file that were read stay mapped, and count as this process's memory.
        with safe_open(str(self._file_of[name]), framework="pt") as tensors:
            return tensors.get_tensor(name)


def write_tensors(file: Path, layout: Mapping[str, torch.Tensor], tensor_of: Callable[[str], torch.Tensor]) -> None:
    """Write a safetensors file as `save_pretrained` does, asking for each tensor when it is its turn.

    Args:
        file: To write.
        layout: Number type and shape of each tensor, as tensors on the device `meta`.
        tensor_of: Returns a tensor of the layout by its name.

    Raises:
        ValueError: A tensor does not have the number type or shape that the layout says.
    """
    import torch
    from transformers.modeling_utils import str_to_torch_dtype

    codes = {kind: code for code, kind in str_to_torch_dtype.items()}
    # Widest first, so that each lies where its values can be read.
    names = sorted(layout, key=lambda name: (-layout[name].itemsize, name.encode()))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name in names:
        start, end = end, end + layout[name].nbytes
        shape = list(layout[name].shape)
        header[name] = {"dtype": codes[layout[name].dtype], "shape": shape, "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    with file.open("wb") as out:
        out.write(len(text).to_bytes(8, "little") + text)
        for name in names:
            tensor, wanted = tensor_of(name), layout[name]
            if (tensor.dtype, tensor.shape) != (wanted.dtype, wanted.shape):
                raise ValueError(
                    f"{name} is {tensor.dtype} {tuple(tensor.shape)}, not {wanted.dtype} {tuple(wanted.shape)}."
                )
            out.write(memoryview(tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()))
        out.flush()
        os.fsync(out.fileno())
