"""Execute a notebook without a browser: a line for each step that it begins, and under it what the step showed.

A cell with code is a step, named after the heading above it; of a training each step is a line too, while it trains, read from
the run's metrics.jsonl. The notebook is the published one, unchanged; it is kept executed, also when a cell fails. Ctrl-C is
the stop button.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grpo_nb.core.processes import spin_default

SHOWN = (("reward", "reward", ".2f"), ("KL", "kl", "z.3f"), ("seconds", "step_time", ".1f"))


def say(text: str, indent: str = "") -> None:
    for line in re.sub(r"\x1b\[[0-9;?]*[ -/]*[@-~]", "", text).rstrip().split("\n"):
        print(f"{indent}{line}".rstrip(), flush=True)


def training_steps(runs: Path) -> Iterator[None]:
    """Say, each time it is asked, the training steps that runs in this folder have logged since."""
    # Those that are there already belong to earlier runs. Whole lines alone: the last one may be half written.
    said = {file: file.read_bytes().count(b"\n") for file in runs.glob("*/metrics.jsonl")}
    while True:
        for file in sorted(runs.glob("*/metrics.jsonl")):
            lines = file.read_bytes().rpartition(b"\n")[0].splitlines()
            for row in map(json.loads, lines[said.get(file, 0) :]):
                if "reward" in row:
                    shown = {
                        name: format(row[key], form)
                        for name, key, form in SHOWN
                        if row.get(key) is not None
                    }
                    numbers = "".join(
                        f"  {name} {shown.get(name, 'not measured')}" for name, *_ in SHOWN
                    )
                    say(f"step {row['step']}/{row.get('max_steps', '?')}{numbers}", indent="  ")
            said[file] = len(lines)
        yield


class Client(NotebookClient):
    """Executes a notebook in a folder, in the environment's own kernel, and says what it does."""

    def __init__(self, notebook: nbformat.NotebookNode, folder: Path) -> None:
        super().__init__(
            notebook,
            timeout=None,
            kernel_name="python3",
            coalesce_streams=True,
            store_widget_state=False,
            # After its 4 s nbclient goes on without the outputs that are still to come, and a busy machine shows none.
            iopub_timeout=120,
            resources={"metadata": {"path": str(folder)}},
            # ipykernel 7 warns at every start that its local connection is not encrypted, which only alarms.
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
        self.title, self.is_interrupted, self.training = (
            "starting the kernel",
            False,
            training_steps(folder / "runs"),
        )
        self.steps = sum(cell.cell_type == "code" for cell in notebook.cells)

    async def async_execute_cell(
        self, cell: nbformat.NotebookNode, cell_index: int, **options: Any
    ) -> Any:
        if cell.cell_type != "code":
            headings = re.findall(r"^#{1,6} +(.+)$", cell.source, flags=re.MULTILINE)
            self.title = re.sub(r"[`*]", "", headings[-1]) if headings else self.title
            return cell
        # In place of nbclient's own handler, which ends the kernel.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self.interrupt)
        say(f"step {self.code_cells_executed + 1}/{self.steps}  {self.title}")
        following = asyncio.create_task(self.follow())
        try:
            return await super().async_execute_cell(cell, cell_index, **options)
        finally:
            following.cancel()
            next(self.training)
            for output in cell.outputs:
                data = output.get("data", {})
                text = (
                    output.get("text")
                    or data.get("text/plain", "")
                    or "\n".join(output.get("traceback", []))
                )
                # "<Figure size ...>" or "<IPython...HTML object>" describe what a terminal cannot show; so does a widget's.
                if (
                    text
                    and not text.startswith("<")
                    and "application/vnd.jupyter.widget-view+json" not in data
                ):
                    say(text, indent="    ")

    async def follow(self) -> None:
        while True:
            next(self.training)
            await asyncio.sleep(0.5)

    def interrupt(self) -> None:
        self.is_interrupted, self.interruption = (
            True,
            asyncio.ensure_future(self.km.interrupt_kernel()),
        )


def run(file: Path, folder: Path, values: list[str]) -> int:
    """Execute a notebook in a folder; return the exit status.

    Args:
        file: The notebook.
        folder: Where it is executed.
        values: Others for lines of the settings cell, each as `NAME=VALUE` with a value as Python writes it.

    Raises:
        SystemExit: The settings cell has no such line.
    """
    notebook = nbformat.read(file, as_version=4)
    for given in values:
        name, _, value = given.partition("=")
        line = re.compile(rf"^{re.escape(name)} = .*$", re.MULTILINE)
        cells = [
            c
            for c in notebook.cells
            if "parameters" in c.metadata.get("tags", []) and line.search(c.source)
        ]
        if not cells or not value:
            raise SystemExit(
                f"--set {given}: no line {name} = ... in the settings cell. Set one as NAME=VALUE."
            )
        cells[0].source = line.sub(lambda _, to=f"{name} = {value}": to, cells[0].source)
    # The kernel inherits them; a cell may import torch before the kit.
    os.environ.update(spin_default() | os.environ)
    client, begun, status, ended = Client(notebook, folder), time.monotonic(), 0, "All steps done"
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        status, ended = 130 if client.is_interrupted else 1, f"Stopped during “{client.title}”"
        if isinstance(error, DeadKernelError):
            ended += ": the kernel died, most often because memory ran out, and then a smaller group helps"
        elif not client.is_interrupted:
            ended += f": {error.ename}: {error.evalue}"
    target = folder / "runs" / "notebooks" / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    say(f"{ended}\nAfter {time.monotonic() - begun:.0f} s; executed as {os.path.relpath(target)}.")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("notebook", type=Path, help="the notebook to execute; it is not changed")
    parser.add_argument(
        "--cwd", type=Path, default=Path(), help="where runs/ and exports/ are written"
    )
    parser.add_argument(
        "--set",
        nargs="+",
        action="extend",
        default=[],
        help="NAME=VALUE for a line of its settings cell",
    )
    arguments = parser.parse_args()
    return run(arguments.notebook.absolute(), arguments.cwd.absolute(), arguments.set)


if __name__ == "__main__":
    raise SystemExit(main())
