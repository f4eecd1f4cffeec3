"""Run by export/test_merged.py in a process of its own: whole exports of a run, each ended by SIGKILL at another moment.

`python -m tests.support.killed_exports RUN FOLDER` loads once and forks a child for each moment, one after the other,
all with the same target over an old export. It prints, one JSON object a line, the moment and what is in the folder
after the kill.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import grpo_nb as gn
from grpo_nb.export import merged
from grpo_nb.models.import_unsloth import import_unsloth
from tests.support.forks import in_child


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def dying_at(word: str) -> Callable[[str], None]:
    return lambda line: die() if word in line else None


def after(function: Callable) -> Callable:
    """Do it, then die."""

    def done(*arguments: object, **named: object) -> None:
        function(*arguments, **named)
        die()

    return done


# Moments of an export: what is put in whose place, or the stage that is told.
STAGES = ("merging", "writing", "verifying")
MOMENTS = {
    "the weights are copied": ("tokenizer_for", die),
    "all is verified": ("write_export_card", die),
    "the card is written": ("write_export_card", after(merged.write_export_card)),
    "it is in its place": ("put_in_place", after(merged.put_in_place)),
}


def killed(make: Callable[[str | None], None], moment: str | None) -> None:
    def work() -> None:
        if moment in MOMENTS:
            setattr(merged, *MOMENTS[moment])
        make(moment)

    assert in_child(work) == (moment is not None), moment


def found(folder: Path) -> dict[str, list[str]]:
    """Of each folder there its kind, without the process that made it, and its files."""
    return {path.name.split("-")[0]: sorted(file.name for file in path.iterdir()) for path in folder.iterdir()}


def main(run_folder: str, where: str) -> None:
    # In a fork transformers' threads race for torch's pool, which is made anew there: "Invalid thread pool".
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    import_unsloth()  # once, and not in each child
    import torch

    from tests.support.checks import run_script_here

    torch.set_num_threads(1)  # a fork has no other threads
    merged.run_script = run_script_here  # no moment lies in it, and each child would wait for one of its own
    run = gn.open_run(run_folder)
    makers = {
        "merged": lambda moment: gn.export_merged(
            run, Path(where, "merged", "out"), overwrite=True, report=dying_at(str(moment))
        ),
        "adapter": lambda moment: gn.export.export_adapter(run, Path(where, "adapter", "out"), overwrite=True),
    }
    moments = {
        "merged": [*STAGES, "it is in its place"],
        "adapter": ["the weights are copied", "all is verified", "the card is written", "it is in its place"],
    }
    for kind, make in makers.items():
        old = Path(where, kind, "out")
        old.mkdir(parents=True)
        (old / "old").touch()
        for moment in (*moments[kind], None):
            killed(make, moment)
            print(json.dumps({"kind": kind, "moment": moment, "found": found(old.parent)}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
