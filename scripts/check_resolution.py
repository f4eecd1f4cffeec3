"""Prove with a resolver that every combination of grpo_nb/machine/combinations.py can be installed, and write down what
it gave.

    pip install uv
    python scripts/check_resolution.py                # resolve all, write docs/evidence/resolution.json
    python scripts/check_resolution.py --only cpu     # one row, written nowhere

Nothing is installed and no package downloaded: uv reads the packages' metadata from its index. The requirements are those that
the install cell hands to pip, so this covers what Colab and Kaggle get. Checked are Linux on x86-64 with glibc 2.35, which is
Ubuntu 22.04 and with it Colab, and wheels alone: nothing may have to be compiled.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from datetime import date
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from grpo_nb.machine.combinations import COMBINATIONS, Choice, Combination  # noqa: E402
from grpo_nb.machine.installer import constraints, requirements  # noqa: E402

RESULT = ROOT / "docs" / "evidence" / "resolution.json"
PYTHONS = ("3.11", "3.12", "3.13")
# manylinux_2_28, which uv takes by default, is too old for a need of vLLM (llguidance 1.7 has wheels from 2.31 on).
PLATFORM = "x86_64-manylinux_2_35"
# What Colab has before the cell runs (its package list of 19 August 2026), as far as the kit asks for it or holds it. Its
# torch is left out: the build for CUDA 12.8 is not on the registry, so the release stands for it.
COLAB = {
    "numpy": "2.1.3", "ipython": "7.34.0", "ipykernel": "6.17.1", "ipywidgets": "7.7.1", "pillow": "11.3.0",
    "protobuf": "5.29.6", "psutil": "5.9.5", "regex": "2025.11.3", "rich": "13.9.4", "sentencepiece": "0.2.2",
    "typer": "0.27.1", "matplotlib": "3.10.0", "pandas": "2.2.3", "pyarrow": "18.1.0", "scipy": "1.16.3",
    "jsonschema": "4.26.0", "einops": "0.8.2", "transformers": "5.15.0", "peft": "0.20.0", "accelerate": "1.14.0",
    "datasets": "4.0.0",
}  # fmt: skip
HOSTS = {"new environment": {}, "Colab": COLAB}
SHOWN = ("torch", "vllm", "torchvision", "transformers", "trl", "datasets", "numpy", "pyarrow", "protobuf")


def fingerprint() -> str:
    """Return a hash of what a resolution depends on, but for the index: the table, the pins, what is asked for."""
    digest = hashlib.sha256()
    for file in ("requirements.txt", "requirements-no-deps.txt"):
        lines = (line.partition("#")[0].strip() for line in (ROOT / file).read_text().splitlines())
        digest.update("\n".join(line for line in lines if line).encode() + b"\0")
    rows = [(row.name, row.torch, row.cuda, row.vllm, row.unbounded, row.with_vllm) for row in COMBINATIONS]
    digest.update(json.dumps([rows, COLAB, PYTHONS, PLATFORM]).encode())
    return digest.hexdigest()[:16]


def asked(row: Combination, installed: dict[str, str]) -> tuple[list[str], list[str]]:
    """Return the requirements and the pins that the install cell hands to pip."""
    choice = Choice(torch=row.torch, vllm=row.vllm, combination=row.name, why="")
    return requirements(ROOT, choice, installed), constraints(choice, installed)


def resolve(lines: list[str], pins: list[str], python: str) -> dict[str, str]:
    """Return name to version of everything that would be there.

    Raises:
        SystemExit: uv finds no solution, or is missing.
    """
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise SystemExit("uv is missing: pip install uv")
    with tempfile.TemporaryDirectory() as place:
        wanted, held, out = (Path(place) / name for name in ("wanted.txt", "held.txt", "out.txt"))
        wanted.write_text("\n".join(lines))
        held.write_text("\n".join(pins))
        command = [
            uv, "pip", "compile", "--quiet", "--no-header", "--no-annotate", "--only-binary", ":all:", str(wanted),
            "--constraint", str(held), "--python-version", python, "--python-platform", PLATFORM, "--output-file", str(out),
        ]  # fmt: skip
        # Its own network settings; what pip is told by its variables, uv does not read.
        environment = {"UV_HTTP_TIMEOUT": "180"} | os.environ
        if "PIP_CERT" in os.environ:
            environment.setdefault("SSL_CERT_FILE", os.environ["PIP_CERT"])
        done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=place)
        if done.returncode != 0:
            raise SystemExit(f"Python {python}: no solution.\n{done.stderr[-3000:]}")
        pairs = (line.partition(" ;")[0].split("==") for line in out.read_text().splitlines() if "==" in line)
        return {name.strip(): version.strip() for name, version in pairs}


def table(result: dict[str, Any]) -> str:
    """Return the Markdown that docs/evidence/install.md shows of a result: a line for each row and host, all Pythons in it."""
    lines = [
        "| combination | host | torch | vLLM | numpy | packages, by Python |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in COMBINATIONS:
        for host in HOSTS:
            found = [r for r in result["results"] if (r["combination"], r["host"]) == (row.name, host)]
            counts = ", ".join(f"{r['python']}: {r['packages']}" for r in found)
            numpy = " or ".join(sorted({r["versions"]["numpy"] for r in found}))
            lines.append(f"| {row.name} | {host} | {row.torch} | {row.vllm or 'none'} | {numpy} | {counts} |")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=[row.name for row in COMBINATIONS], help="one row; nothing is written")
    arguments = parser.parse_args()
    results = []
    for row in COMBINATIONS:
        if arguments.only not in (None, row.name):
            continue
        for host, installed in HOSTS.items():
            for python in PYTHONS:
                lines, pins = asked(row, installed)
                found = resolve(lines, pins, python)
                broken = [
                    pin for pin in pins if found.get(pin.split("==")[0], pin.split("==")[1]) != pin.split("==")[1]
                ]
                if broken:
                    raise SystemExit(f"{row.name}, Python {python}: not held: {broken}")
                print(f"{row.name:18} {host:16} Python {python}: {len(found)} packages", flush=True)
                shown = {name: found[name] for name in SHOWN if name in found}
                results.append(
                    {"combination": row.name, "host": host, "python": python, "packages": len(found), "versions": shown}
                )
    if arguments.only is None:
        result = {
            "date": date.today().isoformat(),
            "fingerprint": fingerprint(),
            "platform": PLATFORM,
            "results": results,
        }
        RESULT.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"wrote {RESULT.relative_to(ROOT)}; docs/evidence/install.md shows it as\n\n{table(result)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
