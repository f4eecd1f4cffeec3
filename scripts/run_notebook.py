"""Execute a notebook without a browser, and tell the whole time what it is doing.

Each code cell is a numbered step named after the heading above it; what the cell prints appears as it is printed. While
a run is training, one line per training step is read from its metrics.jsonl, which the run appends to: the notebook is
the one that is published, unchanged, and needs to know nothing about being watched.

The executed notebook and an HTML copy are kept, also when a cell fails.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import math
import os
import re
import signal
import sys
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Callable
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
POLL_SECONDS = 0.5
# A result longer than this is a table to be read in the notebook.
RESULT_LINES = 40

ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


class Console:
    """Standard output, shared by the thread that executes cells and the one that watches runs."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.last_written = time.monotonic()

    def write(self, text: str = "", indent: str = "") -> None:
        with self._lock:
            for line in text.split("\n"):
                print(f"{indent}{line}".rstrip(), flush=True)
            self.last_written = time.monotonic()


class StreamLines:
    """Turns the pieces that a kernel sends into whole lines, a progress bar into its last state.

    A bar is drawn by returning to the start of the line, so of each line only what follows the last carriage return is
    ever seen.
    """

    def __init__(self) -> None:
        self._rest = ""

    def feed(self, text: str) -> list[str]:
        *lines, self._rest = (self._rest + text).replace("\r\n", "\n").split("\n")
        # Of the line still being drawn, keep what is visible, and a return at its very end, because the newline that
        # would make it an ordinary line end may come with the next piece.
        at = self._rest.rfind("\r", 0, -1)
        self._rest = self._rest[at + 1 :]
        return [self._visible(line) for line in lines]

    def flush(self) -> list[str]:
        line, self._rest = self._visible(self._rest), ""
        return [line] if line.strip() else []

    @staticmethod
    def _visible(line: str) -> str:
        return ANSI.sub("", line.rstrip("\r").rsplit("\r", 1)[-1])


def format_duration(seconds: float) -> str:
    """Return seconds the way people say them: 3.2 s, 3:45, 1:02:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def describe_training_step(row: dict[str, Any], recent_seconds: deque[float]) -> str | None:
    """Return one line about a line of metrics.jsonl, or None if it is not about a training step.

    What was not measured is said to be so, and never shown as zero: with beta = 0 there is no KL. `recent_seconds`
    holds the latest step times, and their mean gives the time left.
    """
    if row.get("step") is None or "reward" not in row:
        return None
    step, last = row["step"], row.get("max_steps")
    width = len(str(last))
    parts = [f"step {step:>{width}}/{last}" if last else f"step {step}"]
    parts.append("reward not measured" if row["reward"] is None else f"reward {row['reward']:.2f}")
    parts.append("KL not measured" if row.get("kl") is None else f"KL {row['kl']:z.3f}")
    seconds = row.get("step_time")
    if seconds is not None and math.isfinite(seconds):
        recent_seconds.append(seconds)
        parts.append(f"{seconds:.1f} s/step")
        if last and last > step:
            left = round((last - step) * sum(recent_seconds) / len(recent_seconds))
            parts.append(f"{left // 60}:{left % 60:02} left")
    return "  ".join(parts)


class RunWatcher(threading.Thread):
    """Follows every runs/*/metrics.jsonl that appears or grows, and breaks long silences.

    Lines that were there before the start belong to earlier runs and are skipped.
    """

    def __init__(self, console: Console, client: WatchedClient, runs: Path) -> None:
        super().__init__(daemon=True)
        self.console = console
        self.client = client
        self.runs = runs
        self.seen = Counter({file: len(self._lines(file)) for file in self._files()})
        # Five steps smooth the noise and still follow completions that grow longer.
        self.recent: defaultdict[Path, deque[float]] = defaultdict(lambda: deque(maxlen=5))
        self.changed: dict[Path, float] = {}
        self._reading = threading.Lock()
        self._stopped = threading.Event()

    def _files(self) -> list[Path]:
        return sorted(self.runs.glob("*/metrics.jsonl"))

    def run(self) -> None:
        while not self._stopped.wait(POLL_SECONDS):
            self.read_new_lines()
            self._break_silence()

    def finish(self) -> None:
        self._stopped.set()
        self.join()

    def read_new_lines(self) -> None:
        """Report what the runs wrote since the last call.

        The client calls this too, at the end of each cell, so that a cell's last training step is not shown under the
        next cell; hence the lock.
        """
        with self._reading:
            self._read_new_lines()

    def _read_new_lines(self) -> None:
        for file in self._files():
            lines = self._lines(file)
            # Fewer than before: written anew, by a run that reuses the name.
            new = lines[self.seen[file] :] if len(lines) >= self.seen[file] else lines
            self.seen[file] = len(lines)
            if new:
                self.changed[file.parent] = time.time()
            for line in new:
                self._show(file, line)

    @staticmethod
    def _lines(file: Path) -> list[str]:
        """The whole lines: the run may be in the middle of writing the last one."""
        return file.read_bytes().rpartition(b"\n")[0].decode(errors="replace").splitlines()

    def _show(self, file: Path, line: str) -> None:
        try:
            row = json.loads(line)
        except json.JSONDecodeError:
            self.console.write(f"unreadable line in {shown(file)}: {line[:80]}", indent="  ")
            return
        text = describe_training_step(row, self.recent[file])
        if text is not None:
            self.console.write(text, indent="  ")

    def _break_silence(self) -> None:
        started = self.client.cell_started
        if started is not None and time.monotonic() - self.console.last_written > SILENCE_SECONDS:
            self.console.write(f"still working, {format_duration(time.monotonic() - started)}", indent="  ")


class WatchedClient(NotebookClient):
    """A notebook client that reports each cell, and always runs the kernel of the Python that runs this script."""

    def __init__(self, notebook: nbformat.NotebookNode, console: Console, cwd: Path) -> None:
        # No time limit: how long training takes is the settings' business, and Ctrl-C ends it.
        super().__init__(
            notebook,
            timeout=None,
            # With it the HTML copy would show the widgets, by scripts from the internet, instead of what they hold.
            store_widget_state=False,
            # After its 4 s nbclient goes on without the outputs that are still to come, and a busy machine shows none.
            iopub_timeout=120,
            kernel_name="python3",
            resources={"metadata": {"path": str(cwd)}},
            # ipykernel 7 warns at every start that its local connection is not encrypted, which only alarms.
            extra_arguments=["--IPKernelApp.log_level=ERROR"],
        )
        self.console = console
        self.titles = find_titles(notebook)
        self.steps = [index for index, cell in enumerate(notebook.cells) if self._is_executed(cell)]
        self.before_cell_end: Callable[[], None] = lambda: None
        self.cell_started: float | None = None
        self.current_title = "starting the kernel"
        self._streams: dict[str, StreamLines] = {}
        self._live: dict[str, str] = {}
        self.was_interrupted = False
        self._interruption: asyncio.Future[None] | None = None
        self.on_notebook_start = self._take_over_signals
        self.on_cell_execute = self._report_start
        self.on_cell_executed = self._report_end
        self.on_cell_error = self._report_error

    def _is_executed(self, cell: nbformat.NotebookNode) -> bool:
        return (
            cell.cell_type == "code"
            and bool(cell.source.strip())
            and self.skip_cells_with_tag not in cell.metadata.get("tags", [])
        )

    def create_kernel_manager(self) -> Any:
        # A "python3" that the user installed for another environment would be found first, so the command is replaced.
        manager = super().create_kernel_manager()
        manager.kernel_spec.argv = make_ipkernel_cmd(executable=sys.executable)
        return manager

    def _take_over_signals(self, notebook: nbformat.NotebookNode) -> None:
        """Make Ctrl-C end the cell, as the stop button does.

        nbclient (0.11) shuts the kernel down instead and then fails on its own assertion; and a run that gets the
        KeyboardInterrupt can still write its last checkpoint.
        """
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            # Windows' event loop has no signal handlers; there Ctrl-C stays what it is.
            with contextlib.suppress(NotImplementedError):
                loop.add_signal_handler(number, self._interrupt)

    def _interrupt(self) -> None:
        assert self.km is not None
        # Whoever presses twice wants it to end now: native code may not react to the first.
        end = self.km.shutdown_kernel(now=True) if self.was_interrupted else self.km.interrupt_kernel()
        self.was_interrupted = True
        self._interruption = asyncio.ensure_future(end)

    def _report_start(self, cell: nbformat.NotebookNode, cell_index: int) -> None:
        self.current_title = self.titles[cell_index]
        self.cell_started = time.monotonic()
        self._streams, self._live = {}, {}
        self.console.write(f"step {self.steps.index(cell_index) + 1}/{len(self.steps)}  {self.current_title}")

    def _report_end(self, cell: nbformat.NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:
        self.before_cell_end()
        for lines in self._streams.values():
            self._show_lines(lines.flush())
        # A display that was updated in place counts with its last state, like a progress bar.
        for text in self._live.values():
            self._show_result(text)
        assert self.cell_started is not None
        is_failure = execute_reply["content"]["status"] == "error"
        verb = "stopped after" if self.was_interrupted else "failed after" if is_failure else "done in"
        self.console.write(f"{verb} {format_duration(time.monotonic() - self.cell_started)}", indent="  ")
        self.cell_started = None

    def _report_error(self, cell: nbformat.NotebookNode, cell_index: int, execute_reply: dict[str, Any]) -> None:
        if self.was_interrupted:
            return
        traceback = "\n".join(execute_reply["content"].get("traceback") or [])
        self.console.write(f"\nThe cell under “{self.titles[cell_index]}” failed:\n")
        self.console.write(ANSI.sub("", traceback), indent="    ")

    def process_message(
        self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int
    ) -> nbformat.NotebookNode | None:
        content = msg["content"]
        match msg["msg_type"]:
            case "stream":
                lines = self._streams.setdefault(content["name"], StreamLines())
                self._show_lines(lines.feed(content["text"]))
            case "display_data" | "update_display_data" | "execute_result":
                self._note_display(content)
        return super().process_message(msg, cell, cell_index)

    def _note_display(self, content: dict[str, Any]) -> None:
        text = content["data"].get("text/plain", "")
        # "<Figure size ...>" or "<IPython...HTML object>" describe what a terminal cannot show; so does a widget's.
        if not text or text.startswith("<") or "application/vnd.jupyter.widget-view+json" in content["data"]:
            return
        display_id = (content.get("transient") or {}).get("display_id")
        if display_id:
            self._live[display_id] = text
        else:
            self._show_result(text)

    def _show_result(self, text: str) -> None:
        lines = ANSI.sub("", text).split("\n")
        self._show_lines(lines[:RESULT_LINES])
        if len(lines) > RESULT_LINES:
            self._show_lines([f"... {len(lines) - RESULT_LINES} more lines in the executed notebook"])

    def _show_lines(self, lines: list[str]) -> None:
        for line in lines:
            self.console.write(line, indent="    ")


def find_titles(notebook: nbformat.NotebookNode) -> list[str]:
    """Return for each cell the nearest heading above it."""
    titles, title = [], "before the first heading"
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            # Fenced code may hold comment lines that look like headings.
            prose = re.sub(r"^(```|~~~).*?^\1", "", cell.source, flags=re.MULTILINE | re.DOTALL)
            for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", prose, flags=re.MULTILINE):
                title = re.sub(r"[`*]", "", heading)
        titles.append(title)
    return titles


def shown(path: Path) -> str:
    """Return a path as the reader would type it."""
    return os.path.relpath(path) if path.is_relative_to(Path.cwd()) else str(path)


def save(notebook: nbformat.NotebookNode, folder: Path, name: str) -> tuple[Path, Path]:
    """Write the executed notebook and its HTML copy; return where they are."""
    folder.mkdir(parents=True, exist_ok=True)
    executed, page = folder / f"{name}.ipynb", folder / f"{name}.html"
    nbformat.write(notebook, executed)
    # Images that the prose refers to are looked for beside the original notebook.
    exporter = HTMLExporter(embed_images=True)
    html, _ = exporter.from_notebook_node(
        notebook, resources={"metadata": {"name": name, "path": str(ROOT / "notebooks")}}
    )
    page.write_text(html, encoding="utf-8")
    return executed, page


def summarize_newest(changed: dict[Path, float]) -> str:
    """Return the summary of the run that was written to last."""
    # The package is in the environment when scripts/bootstrap.py made it; with another Python, it is here.
    sys.path.insert(0, str(ROOT))
    import grpo_nb

    return repr(grpo_nb.open_run(max(changed, key=changed.__getitem__)))


def set_parameters(notebook: nbformat.NotebookNode, values: list[str]) -> None:
    """Give lines of the settings cell other values, each as `NAME=VALUE` with a value as Python writes it.

    Raises:
        ValueError: The settings cell has no such line.
    """
    cells = [cell for cell in notebook.cells if "parameters" in cell.metadata.get("tags", [])]
    for given in values:
        name, _, value = given.partition("=")
        line = re.compile(rf"^{re.escape(name)} = .*$", re.MULTILINE)
        found = [cell for cell in cells if line.search(cell.source)]
        if not found or not value:
            raise ValueError(
                f"--set {given}: no line {name} = ... in the settings cell, whose lines can be set: NAME=VALUE"
            )
        found[0].source = line.sub(lambda _, to=f"{name} = {value}": to, found[0].source)


def run(notebook_file: Path, cwd: Path, values: list[str]) -> int:
    console = Console()
    notebook = nbformat.read(notebook_file, as_version=4)
    try:
        set_parameters(notebook, values)
    except ValueError as error:
        console.write(str(error))
        return 2
    client = WatchedClient(notebook, console, cwd)
    watcher = RunWatcher(console, client, cwd / "runs")
    client.before_cell_end = watcher.read_new_lines
    started = time.monotonic()
    console.write(f"running {shown(notebook_file)}: {len(client.steps)} steps")
    watcher.start()
    failure = ""
    try:
        client.execute()
    except CellExecutionError:
        # The cell's own error is on the screen already.
        failure = "The notebook stopped there."
    except DeadKernelError:
        failure = (
            f"The kernel died during “{client.current_title}”, most often because memory ran out. Choose a smaller "
            "group or shorter completions in the notebook's settings."
        )
    finally:
        watcher.finish()
        executed, page = save(notebook, cwd / "runs" / "notebooks", notebook_file.stem)
    if failure:
        if client.was_interrupted:
            failure = f"Interrupted during “{client.current_title}”."
        console.write(
            f"\n{failure}\nWhat was executed so far: {shown(executed)}\n          and as a page: {shown(page)}"
        )
        _show_summary(console, watcher.changed)
        return 130 if client.was_interrupted else 1

    console.write(f"\nall {len(client.steps)} steps done in {format_duration(time.monotonic() - started)}")
    _show_summary(console, watcher.changed)
    console.write(f"\nexecuted notebook  {shown(executed)}\nas a page          {shown(page)}")
    console.write(f"To go on by hand:  make lab  and open {notebook_file.name}")
    return 0


def _show_summary(console: Console, changed: dict[Path, float]) -> None:
    """Say what the newest run has and where, also after a failure: what was trained and exported by then is kept."""
    if not changed:
        return
    console.write()
    try:
        console.write(summarize_newest(changed))
    except Exception as error:  # The run is saved; a summary must not turn that into a failure.
        console.write(f"no summary of the run: {type(error).__name__}: {error}")


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
    try:
        return run(arguments.notebook.absolute(), arguments.cwd.absolute(), arguments.set)
    except KeyboardInterrupt:
        print("\ninterrupted", flush=True)
        return 130


if __name__ == "__main__":
    raise SystemExit(main())
