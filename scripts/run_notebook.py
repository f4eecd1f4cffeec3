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
import time
from pathlib import Path
from typing import Any

import nbformat
from ipykernel.kernelspec import make_ipkernel_cmd
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from nbconvert import HTMLExporter

ROOT = Path(__file__).resolve().parent.parent
# A result longer than this is a table to be read in the notebook.
RESULT_LINES = 40
ANSI = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]")


def say(text: str, indent: str = "") -> None:
    for line in ANSI.sub("", text).split("\n"):
        print(f"{indent}{line}".rstrip(), flush=True)


def describe_training_step(row: dict[str, Any]) -> str:
    """One line about a row of metrics.jsonl; what was not measured is said to be so, and never shown as zero."""
    step, last, reward, kl = row["step"], row.get("max_steps"), row["reward"], row.get("kl")
    parts = [f"step {step}/{last}" if last else f"step {step}"]
    parts.append("reward not measured" if reward is None else f"reward {reward:.2f}")
    parts.append("KL not measured" if kl is None else f"KL {kl:z.3f}")
    if seconds := row.get("step_time"):
        parts.append(f"{seconds:.1f} s/step")
        parts += [f"{(last - step) * seconds:.0f} s left"] if last and last > step else []
    return "  ".join(parts)


class Steps:
    """The training steps of the runs in a folder, said once each."""

    def __init__(self, runs: Path) -> None:
        self.runs, self.newest = runs, None
        # Those that are there already belong to earlier runs.
        self.said = {file: len(lines) for file, lines in self._files()}

    def say(self) -> None:
        for file, lines in self._files():
            # Fewer than before: written anew, by a run that reuses the name.
            seen = self.said.get(file, 0) if len(lines) >= self.said.get(file, 0) else 0
            for row in map(json.loads, lines[seen:]):
                self.newest = file.parent
                if row.get("step") is not None and "reward" in row:
                    say(describe_training_step(row), indent="  ")
            self.said[file] = len(lines)

    def _files(self) -> list[tuple[Path, list[bytes]]]:
        # Whole lines alone: the run may be in the middle of writing the last one.
        files = sorted(self.runs.glob("*/metrics.jsonl"))
        return [(file, file.read_bytes().rpartition(b"\n")[0].splitlines()) for file in files]


class Client(NotebookClient):
    """Says what each cell does, in a kernel of the Python that runs this script."""

    def __init__(self, notebook: nbformat.NotebookNode, folder: Path) -> None:
        super().__init__(
            notebook,
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
        self.steps, self.titles = Steps(folder / "runs"), find_titles(notebook)
        self.title, self.is_interrupted = "starting the kernel", False
        # What is drawn in place, by stream or display: said once, in its last state.
        self._drawn: dict[str, str] = {}

    def create_kernel_manager(self) -> Any:
        # A "python3" that the user installed for another environment would be found first, so the command is replaced.
        manager = super().create_kernel_manager()
        manager.kernel_spec.argv = make_ipkernel_cmd(executable=sys.executable)
        return manager

    async def async_execute_cell(self, cell: nbformat.NotebookNode, cell_index: int, **options: Any) -> Any:
        if cell_index not in self.titles:
            return await super().async_execute_cell(cell, cell_index, **options)
        # In place of nbclient's own handlers, which end the kernel.
        for number in (signal.SIGINT, signal.SIGTERM):
            asyncio.get_running_loop().add_signal_handler(number, self._interrupt)
        self.title, started = self.titles[cell_index], time.monotonic()
        say(f"step {[*self.titles].index(cell_index) + 1}/{len(self.titles)}  {self.title}")
        following = asyncio.create_task(self._follow())
        try:
            return await super().async_execute_cell(cell, cell_index, **options)
        finally:
            following.cancel()
            self.steps.say()
            for text in self._drawn.values():
                self._say_result(text)
            self._drawn.clear()
            say(f"{time.monotonic() - started:.1f} s", indent="  ")

    async def _follow(self) -> None:
        while True:
            await asyncio.sleep(0.5)
            self.steps.say()

    def _interrupt(self) -> None:
        """Interrupt the cell, as the stop button does: the run writes its last checkpoint. Twice ends the kernel at once."""
        end = self.km.shutdown_kernel(now=True) if self.is_interrupted else self.km.interrupt_kernel()
        self.is_interrupted, self._interruption = True, asyncio.ensure_future(end)

    def process_message(self, msg: dict[str, Any], cell: nbformat.NotebookNode, cell_index: int) -> Any:
        content, kind = msg["content"], msg["msg_type"]
        if kind == "stream":
            # Of a line that is drawn again and again, after a carriage return, the last state is said.
            text = (self._drawn.pop(content["name"], "") + content["text"]).replace("\r\n", "\n")
            *lines, rest = text.split("\n")
            for line in lines:
                say(line.rstrip("\r").rsplit("\r", 1)[-1], indent="    ")
            if rest:
                self._drawn[content["name"]] = rest.rsplit("\r", 1)[-1]
        elif kind in ("display_data", "update_display_data", "execute_result"):
            text, display = content["data"].get("text/plain", ""), (content.get("transient") or {}).get("display_id")
            # "<Figure size ...>" or "<IPython...HTML object>" describe what a terminal cannot show; so does a widget's.
            if text.startswith("<") or "application/vnd.jupyter.widget-view+json" in content["data"]:
                text = ""
            if display:
                self._drawn[display] = text
            else:
                self._say_result(text)
        elif kind == "error" and not self.is_interrupted:
            say(f"\nThe cell under “{self.title}” failed:\n")
            say("\n".join(content["traceback"]), indent="    ")
        return super().process_message(msg, cell, cell_index)

    def _say_result(self, text: str) -> None:
        lines = text.strip().split("\n")
        if text.strip():
            say("\n".join(lines[:RESULT_LINES]), indent="    ")
        if len(lines) > RESULT_LINES:
            say(f"... {len(lines) - RESULT_LINES} more lines in the executed notebook", indent="    ")


def find_titles(notebook: nbformat.NotebookNode) -> dict[int, str]:
    """Return for each cell with code, by its place, the nearest heading above it."""
    titles, title = {}, "before the first heading"
    for place, cell in enumerate(notebook.cells):
        if cell.cell_type == "markdown":
            for heading in re.findall(r"^#{1,6} +(.+)$", cell.source, flags=re.MULTILINE):
                title = re.sub(r"[`*]", "", heading)
        elif cell.source.strip():
            titles[place] = title
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
            raise SystemExit(f"--set {given}: no line {name} = ... in the settings cell. Set one as NAME=VALUE.")
        cells[0].source = line.sub(lambda _, to=f"{name} = {value}": to, cells[0].source)


def run(file: Path, folder: Path, values: list[str]) -> int:
    """Execute a notebook in a folder; return the exit status."""
    notebook = nbformat.read(file, as_version=4)
    set_parameters(notebook, values)
    client, started = Client(notebook, folder), time.monotonic()
    say(f"running {os.path.relpath(file)}: {len(client.titles)} steps")
    status, ended = 0, "All steps done"
    try:
        client.execute()
    except (CellExecutionError, DeadKernelError) as error:
        status, ended = 130 if client.is_interrupted else 1, f"Stopped during “{client.title}”"
        if isinstance(error, DeadKernelError) and not client.is_interrupted:
            ended = (
                f"The kernel died during “{client.title}”, most often because memory ran out: make the group smaller"
            )
    finally:
        target = folder / "runs" / "notebooks"
        target.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target / file.name)
        # Images that the prose refers to are looked for beside the original notebook.
        where = {"metadata": {"name": file.stem, "path": str(ROOT / "notebooks")}}
        page = HTMLExporter(embed_images=True).from_notebook_node(notebook, resources=where)[0]
        (target / f"{file.stem}.html").write_text(page, encoding="utf-8")
    say(f"\n{ended} after {time.monotonic() - started:.0f} s.")
    say(f"executed, as a page: {os.path.relpath(target / file.stem)}.html (a notebook of that name is beside it)")
    newest = client.steps.newest
    with contextlib.suppress(FileNotFoundError):
        if newest:
            import grpo_nb

            # Also after a failure: what was trained by then is kept.
            say(f"\n{grpo_nb.open_run(newest)!r}")
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
    return run(arguments.notebook.absolute(), arguments.cwd.absolute(), arguments.set)


if __name__ == "__main__":
    raise SystemExit(main())
