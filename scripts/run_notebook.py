"""Execute a notebook without a browser, and tell the whole time what it is doing.

Each code cell is a numbered step named after the heading above it; what it prints appears as it is printed, and each training
step as one line read from the run's metrics.jsonl. The notebook is the published one, unchanged. It is kept executed, with an
HTML copy, also when a cell fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Any

import nbformat
from ipykernel.kernelspec import make_ipkernel_cmd
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbconvert import HTMLExporter

ROOT = Path(__file__).resolve().parent.parent
# A cell that says nothing for this long gets a line that says it is alive.
SILENCE_SECONDS = 20
# A result longer than this is a table to be read in the notebook.
RESULT_LINES = 40
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes}:{rest:02}"


def describe_training_step(row: dict[str, Any]) -> str:
    """One line about a row of metrics.jsonl; what was not measured is said to be so, and never shown as zero."""
    step, last, seconds = row["step"], row.get("max_steps"), row.get("step_time")
    parts = [f"step {step:>{len(str(last))}}/{last}" if last else f"step {step}"]
    parts.append("reward not measured" if row["reward"] is None else f"reward {row['reward']:.2f}")
    parts.append("KL not measured" if row.get("kl") is None else f"KL {row['kl']:z.3f}")
    if seconds:
        parts.append(f"{seconds:.1f} s/step")
        parts += [f"{clock((last - step) * seconds)} left"] if last and last > step else []
    return "  ".join(parts)


class Terminal(threading.Thread):
    """Prints what cells and runs say, and breaks long silences."""

    def __init__(self, runs: Path) -> None:
        super().__init__(daemon=True)
        self.runs, self.newest = runs, None
        # Lines that are there already belong to earlier runs.
        self.read = {file: len(self._lines(file)) for file in self._files()}
        self.cell_started: float | None = None
        self.last_said = time.monotonic()
        self._lock, self._ended = threading.RLock(), threading.Event()

    def say(self, text: str = "", indent: str = "") -> None:
        with self._lock:
            for line in ANSI.sub("", text).split("\n"):
                print(f"{indent}{line}".rstrip(), flush=True)
            self.last_said = time.monotonic()

    def run(self) -> None:
        while not self._ended.wait(0.5):
            self.say_steps()
            started = self.cell_started
            if started is not None and time.monotonic() - self.last_said > SILENCE_SECONDS:
                self.say(f"still working, {clock(time.monotonic() - started)}", indent="  ")

    def end(self) -> None:
        self._ended.set()
        self.join()

    def say_steps(self) -> None:
        """Say what runs wrote since the last call. Called at the end of a cell too: a step is not shown under the next one."""
        with self._lock:
            for file in self._files():
                lines = self._lines(file)
                # Fewer than before: written anew, by a run that reuses the name.
                seen = self.read.get(file, 0) if len(lines) >= self.read.get(file, 0) else 0
                self.read[file] = len(lines)
                for row in map(json.loads, lines[seen:]):
                    self.newest = file.parent
                    if row.get("step") is not None and "reward" in row:
                        self.say(describe_training_step(row), indent="  ")

    def _files(self) -> list[Path]:
        return sorted(self.runs.glob("*/metrics.jsonl"))

    @staticmethod
    def _lines(file: Path) -> list[bytes]:
        """The whole lines: the run may be in the middle of writing the last one."""
        return file.read_bytes().rpartition(b"\n")[0].splitlines()


class Client(NotebookClient):
    """Says what each cell does, in a kernel of the Python that runs this script."""

    def __init__(self, notebook: nbformat.NotebookNode, terminal: Terminal, folder: Path) -> None:
        super().__init__(
            notebook,
            # How long training takes is the settings' business, and Ctrl-C ends it.
            timeout=None,
            # With it the HTML copy would show the widgets, by scripts from the internet, instead of what they hold.
            store_widget_state=False,
            # After its 4 s nbclient goes on without the outputs that are still to come, and a busy machine shows none.
            iopub_timeout=120,
            kernel_name="python3",
            resources={"metadata": {"path": str(folder)}},
            # ipykernel 7 warns at every start that its local connection is not encrypted, which only alarms.
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
        self.terminal, self.titles = terminal, find_titles(notebook)
        self.steps = [i for i, cell in enumerate(notebook.cells) if cell.cell_type == "code" and cell.source.strip()]
        self.title = "starting the kernel"
        self.is_interrupted = False
        self._unfinished: dict[str, str] = {}
        self._updated: dict[str, str] = {}
        self.on_notebook_start = self._take_over_signals
        self.on_cell_execute, self.on_cell_executed, self.on_cell_error = self._begin, self._end, self._fail

    def create_kernel_manager(self) -> Any:
        # A "python3" that the user installed for another environment would be found first, so the command is replaced.
        manager = super().create_kernel_manager()
        manager.kernel_spec.argv = make_ipkernel_cmd(executable=sys.executable)
        return manager

    def _take_over_signals(self, **_: Any) -> None:
        """Make Ctrl-C end the cell, as the stop button does: the run writes its last checkpoint. nbclient ends the kernel."""
        for number in (signal.SIGINT, signal.SIGTERM):
            # Windows' event loop has no signal handlers; there Ctrl-C stays what it is.
            with contextlib.suppress(NotImplementedError):
                asyncio.get_running_loop().add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        # Whoever presses twice wants it to end now: native code may not react to the first.
        end = self.km.shutdown_kernel(now=True) if self.is_interrupted else self.km.interrupt_kernel()
        self.is_interrupted, self._interruption = True, asyncio.ensure_future(end)

    def _begin(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        self.title, self._unfinished, self._updated = self.titles[cell_index], {}, {}
        self.terminal.cell_started = time.monotonic()
        self.terminal.say(f"step {self.steps.index(cell_index) + 1}/{len(self.steps)}  {self.title}")

    def _end(self, cell: nbformat.NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:
        self.terminal.say_steps()
        # What was drawn in place, bars and displays, counts with its last state.
        for text in (*self._unfinished.values(), *self._updated.values()):
            if text.strip():
                self._say_result(text.rsplit("\r", 1)[-1])
        failed = execute_reply["content"]["status"] == "error"
        verb = "stopped after" if self.is_interrupted else "failed after" if failed else "done in"
        self.terminal.say(f"{verb} {time.monotonic() - self.terminal.cell_started:.1f} s", indent="  ")
        self.terminal.cell_started = None

    def _fail(self, cell: nbformat.NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:
        if not self.is_interrupted:
            self.terminal.say(f"\nThe cell under “{self.title}” failed:\n")
            self.terminal.say("\n".join(execute_reply["content"].get("traceback") or []), indent="    ")

    def process_message(self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int) -> Any:
        content = msg["content"]
        if msg["msg_type"] == "stream":
            self._say_stream(content["name"], content["text"])
        elif msg["msg_type"] in ("display_data", "update_display_data", "execute_result"):
            text = content["data"].get("text/plain", "")
            # "<Figure size ...>" or "<IPython...HTML object>" describe what a terminal cannot show; so does a widget's.
            if text and not text.startswith("<") and "application/vnd.jupyter.widget-view+json" not in content["data"]:
                display = (content.get("transient") or {}).get("display_id")
                if display:
                    self._updated[display] = text
                else:
                    self._say_result(text)
        return super().process_message(msg, cell, cell_index)

    def _say_stream(self, name: str, text: str) -> None:
        """Say the whole lines; of one that is drawn again and again, after a carriage return, its last state."""
        *lines, rest = (self._unfinished.get(name, "") + text).replace("\r\n", "\n").split("\n")
        self._unfinished[name] = rest
        for line in lines:
            self.terminal.say(line.rstrip("\r").rsplit("\r", 1)[-1], indent="    ")

    def _say_result(self, text: str) -> None:
        lines = text.split("\n")
        self.terminal.say("\n".join(f"    {line}" for line in lines[:RESULT_LINES]))
        if len(lines) > RESULT_LINES:
            self.terminal.say(f"    ... {len(lines) - RESULT_LINES} more lines in the executed notebook")


def find_titles(notebook: nbformat.NotebookNode) -> list[str]:
    """Return for each cell the nearest heading above it."""
    titles, title = [], "before the first heading"
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            for heading in re.findall(r"^#{1,6} +(.+)$", cell.source, flags=re.MULTILINE):
                title = re.sub(r"[`*]", "", heading)
        titles.append(title)
    return titles


def set_parameters(notebook: nbformat.NotebookNode, values: list[str]) -> None:
    """Give lines of the settings cell other values, each as `NAME=VALUE` with a value as Python writes it.

    Raises:
        SystemExit: The settings cell has no such line.
    """
    for given in values:
        name, _, value = given.partition("=")
        line = re.compile(rf"^{re.escape(name)} = .*$", re.MULTILINE)
        cells = [c for c in notebook.cells if "parameters" in c.metadata.get("tags", []) and line.search(c.source)]
        if not cells or not value:
            raise SystemExit(
                f"--set {given}: no line {name} = ... in the settings cell, whose lines can be set: NAME=VALUE"
            )
        cells[0].source = line.sub(lambda _, to=f"{name} = {value}": to, cells[0].source)


def save(notebook: nbformat.NotebookNode, folder: Path, name: str) -> tuple[Path, Path]:
    """Write the executed notebook and its HTML copy; return where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    executed, page = folder / f"{name}.ipynb", folder / f"{name}.html"
    nbformat.write(notebook, executed)
    # Images that the prose refers to are looked for beside the original notebook.
    where = {"metadata": {"name": name, "path": str(ROOT / "notebooks")}}
    page.write_text(HTMLExporter(embed_images=True).from_notebook_node(notebook, resources=where)[0], encoding="utf-8")
    return executed, page


def run(file: Path, folder: Path, values: list[str]) -> int:
    notebook = nbformat.read(file, as_version=4)
    set_parameters(notebook, values)
    terminal = Terminal(folder / "runs")
    client = Client(notebook, terminal, folder)
    terminal.say(f"running {os.path.relpath(file)}: {len(client.steps)} steps")
    terminal.start()
    started, ended = time.monotonic(), f"all {len(client.steps)} steps done"
    status = 0
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        status = 130 if client.is_interrupted else 1
        ended = f"Stopped during “{client.title}”"
        if isinstance(error, DeadKernelError) and not client.is_interrupted:
            ended = (
                f"The kernel died during “{client.title}”, most often because memory ran out: choose a smaller group"
            )
    finally:
        terminal.end()
        executed, page = save(notebook, folder / "runs" / "notebooks", file.stem)
    terminal.say(f"\n{ended} after {clock(time.monotonic() - started)}.")
    terminal.say(f"executed notebook  {os.path.relpath(executed)}\nas a page          {os.path.relpath(page)}")
    if not status:
        terminal.say(f"To go on by hand:  make lab  and open {file.name}")
    if terminal.newest and (terminal.newest / "run.json").is_file():
        import grpo_nb

        # Also after a failure: what was trained by then is kept.
        terminal.say(f"\n{grpo_nb.open_run(terminal.newest)!r}")
    return status


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("notebook", type=Path, help="the notebook to execute; it is not changed")
    parser.add_argument(
        "--cwd", type=Path, default=ROOT, metavar="DIR", help="working directory: runs/ and exports/ are written there"
    )
    parser.add_argument(
        "--set", action="append", default=[], metavar="NAME=VALUE", help="another value for a line of its settings cell"
    )
    arguments = parser.parse_args()
    if not arguments.notebook.is_file():
        parser.error(f"{arguments.notebook} does not exist; `make notebooks` generates the notebooks")
    return run(arguments.notebook.absolute(), arguments.cwd.absolute(), arguments.set)


if __name__ == "__main__":
    raise SystemExit(main())
