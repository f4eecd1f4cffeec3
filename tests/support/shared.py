"""Folders that the processes of one `make test` share, so that slow things are made once."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """Return the folder that `make` filled, in this process or in another one of this `make test`.

    Whoever asks while it is being made waits for it. It is there for all: a test that changes
    something in it copies it first. A folder whose making failed is left as it is, to be looked at,
    and made again under another name by the next who asks.
    """
    own = factory.getbasetemp()
    # Each process of pytest-xdist has a folder of its own in the one of the whole run.
    common = own.parent if own.name.startswith("popen-") else own
    with FileLock(common / f"{name}.lock"):
        done = common / f"{name}.made"
        if not done.is_file():
            tries = len(list(common.glob(f"{name}-try-*")))
            folder = common / f"{name}-try-{tries + 1}"
            folder.mkdir()
            make(folder)
            done.write_text(folder.name)
        return common / done.read_text()
