"""The slices of a GPU that is divided (NVIDIA's MIG): CUDA computes on a slice, and has its memory and no more."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence
from dataclasses import dataclass

_CARD = re.compile(r"GPU \d+: .*\(UUID: (\S+)\)")
_SLICE = re.compile(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)")


@dataclass(frozen=True)
class Slice:
    """One slice, as the driver reports it."""

    uuid: str
    profile: str
    """Such as `3g.20gb`."""
    memory_gib: float
    free_gib: float | None


def read_slices(ask: Callable[[Sequence[str]], str]) -> dict[str, list[Slice]]:
    """Return the slices of each divided GPU by the GPU's UUID, in CUDA's order; empty where nothing is divided.

    The list has the names that `CUDA_VISIBLE_DEVICES` takes, and only the long report has the memory: inside a container the
    whole card's is withheld ("Insufficient Permissions"), and outside it is that of all slices together.

    Args:
        ask: Answers for `nvidia-smi`.

    Raises:
        OSError, subprocess.SubprocessError: It does not answer.
        ValueError: Its two answers do not name the same slices.
    """
    named: dict[str, list[tuple[str, str]]] = {}
    card = ""
    for line in ask(["-L"]).splitlines():
        if found := _CARD.match(line):
            card = found[1]
        elif found := _SLICE.match(line):
            named.setdefault(card, []).append((found[2], found[1]))
    if not named:
        return {}
    try:
        report = ElementTree.fromstring(ask(["-q", "-x"]))
    except ElementTree.ParseError as error:
        raise ValueError(f"nvidia-smi -q -x: {error}") from error
    memory = {
        element.findtext("uuid", ""): [_memory(one) for one in element.findall("mig_devices/mig_device")]
        for element in report.findall("gpu")
    }
    return {
        uuid: [
            Slice(name, profile, total, free)
            for (name, profile), (total, free) in zip(slices, memory.get(uuid, []), strict=True)
        ]
        for uuid, slices in named.items()
    }


def _memory(element: ElementTree.Element) -> tuple[float, float | None]:
    """GiB that CUDA can use, and GiB of it that are free."""
    amount = {name: _gib(element.findtext(f"fb_memory_usage/{name}", "")) for name in ("total", "reserved", "free")}
    if amount["total"] is None:
        raise ValueError("nvidia-smi does not say how much memory a MIG device has")
    return amount["total"] - (amount["reserved"] or 0.0), amount["free"]


def _gib(text: str) -> float | None:
    found = re.fullmatch(r"(\d+(?:\.\d+)?) MiB", text.strip())
    return float(found[1]) / 1024 if found else None
