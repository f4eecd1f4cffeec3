"""How bad input is answered at the door: every line of bad_input.txt is run, and counted by what came of it.

    python studies/bad_input.py seen|unseen|all [--list]

A line that begins with R must be refused by an error of the kit (raised in its own files, ValueError, TypeError, a file
that is not there, or EnvironmentProblem) within ten seconds; one with A must be taken. The lines were written before the
mends of November 2026, and halved by their hash: `unseen` was run once, when the work was done.
"""

from __future__ import annotations

import collections
import decimal
import fractions
import hashlib
import os
import signal
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = os.environ["HF_DATASETS_OFFLINE"] = "1"

import numpy as np
import pandas as pd
from datasets import Dataset, DatasetDict

import grpo_nb as gn

KIT = str(Path(gn.__file__).parent)
TOLD = (ValueError, TypeError, FileNotFoundError, gn.machine.EnvironmentProblem)
SECONDS = 10


class TooLong(BaseException):
    """Not an Exception, so that nothing catches it."""


def outcome(line: str, names: dict) -> tuple[str, str]:
    """What came of a case in one word, and what was said."""

    def stop(*_: object) -> None:
        raise TooLong

    signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    begun = time.perf_counter()
    try:
        eval(line, names)
    except TooLong:
        return "hang", f"longer than {SECONDS} s"
    except Exception as error:
        signal.alarm(0)
        frames = traceback.extract_tb(error.__traceback__)
        is_ours = frames[-1].filename.startswith(KIT) and isinstance(error, TOLD)
        is_call = isinstance(error, TypeError) and len(frames) == 2 and "argument" in str(error)
        said = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''} [{frames[-1].name}]"
        if time.perf_counter() - begun > 2:
            said += f" ({time.perf_counter() - begun:.1f} s)"
        return "told" if is_ours or is_call else "raw", said
    finally:
        signal.alarm(0)
    return "taken", ""


def main() -> None:
    warnings.simplefilter("ignore")
    part = sys.argv[1]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)

        def file(name: str, data: bytes) -> Path:
            (folder / name).write_bytes(data)
            return folder / name

        names = {
            "gn": gn, "np": np, "pd": pd, "Path": Path, "Dataset": Dataset, "DatasetDict": DatasetDict, "decimal": decimal,
            "fractions": fractions, "nan": float("nan"), "inf": float("inf"), "folder": folder, "file": file,
            "text": lambda text: file("text.json", text.encode()),
            "binary": file("binary.json", bytes(range(256))), "empty": file("empty.json", b""),
            "ROWS": [{"question": f"What is {i} + 1?", "answer": str(i + 1), "level": i % 3} for i in range(20)],
        }  # fmt: skip
        counts: collections.Counter[tuple[str, str]] = collections.Counter()
        for line in Path(__file__).with_suffix(".txt").read_text("utf-8").splitlines():
            if line[:2] not in ("R ", "A "):
                continue
            half = "unseen" if hashlib.sha256(line.encode()).digest()[0] % 2 else "seen"
            if part not in ("all", half):
                continue
            what, said = outcome(line[2:].strip(), names)
            counts[line[0], what] += 1
            if "--list" in sys.argv or what != {"R": "told", "A": "taken"}[line[0]]:
                print(f"{what:6} {line[:110]}   {said[:260]}")
        for (kind, what), count in sorted(counts.items()):
            print({"R": "to be refused", "A": "to be taken"}[kind], what, count)


if __name__ == "__main__":
    main()
