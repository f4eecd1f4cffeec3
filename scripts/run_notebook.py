"""Execute a notebook in a terminal, and print what it does.

Each code cell is a step, named after the heading above it, with its output. While a cell trains,
each training step is a line too, read from the run's metrics.jsonl. The given notebook stays as it
is; the executed one is kept in runs/notebooks/, also if a cell fails. Ctrl-C interrupts the cell.
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
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from grpo_nb.core.processes import SPIN_VARIABLES

# Label, column of metrics.jsonl and format of each number on the line of a training step.
SHOWN = (("reward", "reward", ".2f"), ("KL", "kl", "z.3f"), ("seconds", "step_time", ".1f"))
TERMINAL_CODES = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")
# The part of a line that a terminal overwrites, such as the earlier states of a progress bar.
OVERWRITTEN = re.compile(r".*\r(?=[^\n])")
WIDGET = "application/vnd.jupyter.widget-view+json"


def say(text: str, indent: str = "") -> None:
    """Print a text, without its terminal codes and with each line indented."""
    for line in TERMINAL_CODES.sub("", text).rstrip().split("\n"):
        print(f"{indent}{line}".rstrip(), flush=True)


def line_of_step(row: dict[str, Any]) -> str:
    """Return the line that is printed for one training step."""
    line = f"step {row['step']}/{row.get('max_steps', '?')}"
    for label, column, form in SHOWN:
        value = row.get(column)
        shown = "not measured" if value is None else format(value, form)
        line += f"  {label} {shown}"
    return line


def with_merged_streams(outputs: list[nbformat.NotebookNode]) -> list[nbformat.NotebookNode]:
    """Return a cell's outputs, with what is printed between two displays as one output.

    nbclient's own `coalesce_streams` would merge it across displays, and so change the order.
    """
    merged = []
    streams: dict[str, nbformat.NotebookNode] = {}
    for output in outputs:
        if output.output_type != "stream":
            streams = {}
            merged.append(output)
        elif output.name in streams:
            streams[output.name].text += output.text
        else:
            streams[output.name] = output
            merged.append(output)
    for output in merged:
        if output.output_type == "stream":
            output.text = OVERWRITTEN.sub("", output.text)
    return merged


class TrainingProgress:
    """Prints the training steps that the runs in a folder have logged since the last call."""

    def __init__(self, runs: Path) -> None:
        self.runs = runs
        # Lines that are there already belong to earlier runs.
        self.printed = {
            file: file.read_bytes().count(b"\n") for file in runs.glob("*/metrics.jsonl")
        }

    def print_new_steps(self) -> None:
        """Print a line for each new training step."""
        for file in sorted(self.runs.glob("*/metrics.jsonl")):
            # The last line may be half written, so only lines with an end count.
            whole_lines = file.read_bytes().rpartition(b"\n")[0].splitlines()
            for line in whole_lines[self.printed.get(file, 0) :]:
                row = json.loads(line)
                if "reward" in row:
                    say(line_of_step(row), indent="  ")
            self.printed[file] = len(whole_lines)


class Client(NotebookClient):
    """Executes a notebook in a folder, with this environment's kernel, and prints what it does."""

    def __init__(self, notebook: nbformat.NotebookNode, folder: Path) -> None:
        super().__init__(
            notebook,
            timeout=None,
            kernel_name="python3",
            store_widget_state=False,
            # nbclient waits 4 s for outputs, which is too short on a busy machine.
            iopub_timeout=120,
            resources={"metadata": {"path": str(folder)}},
            # ipykernel 7 warns at every start that its local connection is not encrypted.
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
        self.title = "starting the kernel"
        self.is_interrupted = False
        self.training = TrainingProgress(folder / "runs")
        self.steps = sum(cell.cell_type == "code" for cell in notebook.cells)

    async def async_execute_cell(
        self, cell: nbformat.NotebookNode, cell_index: int, **options: Any
    ) -> Any:
        if cell.cell_type != "code":
            headings = re.findall(r"^#{1,6} +(.+)$", cell.source, flags=re.MULTILINE)
            self.title = re.sub(r"[`*]", "", headings[-1]) if headings else self.title
            return cell
        # nbclient's own handler ends the kernel; this one interrupts the cell.
        asyncio.get_running_loop().add_signal_handler(signal.SIGINT, self.interrupt)
        say(f"step {self.code_cells_executed + 1}/{self.steps}  {self.title}")
        following = asyncio.create_task(self.follow())
        try:
            return await super().async_execute_cell(cell, cell_index, **options)
        finally:
            following.cancel()
            self.training.print_new_steps()
            cell.outputs = with_merged_streams(cell.outputs)
            for output in cell.outputs:
                data = output.get("data", {})
                traceback = "\n".join(output.get("traceback", []))
                text = output.get("text") or data.get("text/plain", "") or traceback
                # A terminal cannot show figures ("<Figure size ...>"), HTML objects or widgets.
                is_object = text.startswith("<") or WIDGET in data
                if text and not is_object:
                    say(text, indent="    ")

    async def follow(self) -> None:
        """Print new training steps twice a second."""
        while True:
            self.training.print_new_steps()
            await asyncio.sleep(0.5)

    def interrupt(self) -> None:
        """Interrupt the kernel, as the stop button of a notebook does."""
        self.is_interrupted = True
        # Held as an attribute, because asyncio keeps only a weak reference to a task.
        self.interruption = asyncio.ensure_future(self.km.interrupt_kernel())


def run(file: Path, folder: Path, values: list[str]) -> int:
    """Execute a notebook in a folder; return the exit status.

    Args:
        file: The notebook.
        folder: Where it is executed.
        values: Changes of the settings cell, each as `NAME=VALUE` in Python's syntax.

    Raises:
        SystemExit: The settings cell has no line `NAME = ...`.
    """
    notebook = nbformat.read(file, as_version=4)
    for given in values:
        name, _, value = given.partition("=")
        line = re.compile(rf"^{re.escape(name)} = .*$", re.MULTILINE)
        cells = [
            cell
            for cell in notebook.cells
            if "parameters" in cell.metadata.get("tags", []) and line.search(cell.source)
        ]
        if not cells or not value:
            raise SystemExit(
                f"--set {given}: no line {name} = ... in the settings cell. Set one as NAME=VALUE."
            )
        cells[0].source = line.sub(lambda _, to=f"{name} = {value}": to, cells[0].source)
    # The kernel inherits these variables. A cell may import torch before the kit sets them.
    os.environ.update(SPIN_VARIABLES | os.environ)
    client = Client(notebook, folder)
    start = time.monotonic()
    status = 0
    ended = "All steps done"
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        status = 130 if client.is_interrupted else 1
        ended = f"Stopped during “{client.title}”"
        if isinstance(error, DeadKernelError):
            ended += ": the kernel died, most often because memory ran out; use a smaller group"
        elif not client.is_interrupted:
            ended += f": {error.ename}: {error.evalue}"
    target = folder / "runs" / "notebooks" / file.name
    target.parent.mkdir(parents=True, exist_ok=True)
    nbformat.write(notebook, target)
    seconds = time.monotonic() - start
    say(f"{ended}\nAfter {seconds:.0f} s; executed as {os.path.relpath(target)}.")
    return status


def main() -> int:
    """Read the command line, execute the notebook and return the exit status."""
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
