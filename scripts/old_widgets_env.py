"""Make an environment with the ipywidgets and IPython that Colab has, in which the widgets' callbacks are tested.

    python scripts/old_widgets_env.py FOLDER

Without torch and without Jupyter's pages: the classic notebook, which ipywidgets 7 asks for, would be most of it. Does nothing
when the environment is there and complete.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Colab's published package list of August 2026; its Python is 3.13, which IPython 7.34 runs on as well as on 3.11.
IPYTHON, IPYWIDGETS = "ipython==7.34.0", "ipywidgets==7.7.1"
# What ipywidgets 7.7.1 imports; jinja2 for the views, lazy_loader for the names of `gn.`; setuptools for IPython 7, which asks
# pkg_resources for its version; pytest runs the tests.
NEEDED = (
    IPYTHON,
    "ipykernel>=6,<8",
    "ipython_genutils",
    "jinja2>=3.1,<4",
    "lazy_loader>=0.4,<1",
    "setuptools",
    "pytest>=9.2,<10",
)


def make_environment(folder: Path, base: str | Path = sys.executable, needed: Sequence[str] = NEEDED) -> Path:
    """Return the Python of the environment, made first if it is not there.

    Args:
        folder: Where it is.
        base: The Python that it is made of.
        needed: What it has besides ipywidgets.
    """
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    version = subprocess.run([base, "--version"], capture_output=True, text=True, check=True).stdout
    stamp, wanted = folder / "complete", " ".join((*needed, IPYWIDGETS, version))
    if stamp.is_file() and stamp.read_text() == wanted and python.exists():
        return python
    subprocess.run([base, "-m", "venv", "--clear", "--without-pip", folder], check=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--python", str(python), "install"]
    # PIP_USER, which some hosted machines set, would send packages out of the environment.
    environment = os.environ | {"PIP_USER": "0"}
    subprocess.run([*pip, *needed], check=True, env=environment)
    subprocess.run([*pip, "--no-deps", IPYWIDGETS], check=True, env=environment)
    stamp.write_text(wanted)
    return python


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    print(make_environment(parser.parse_args().folder.absolute()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
