"""Export a run again and again in a separate process, killed at another moment each time.

export/test_merged.py starts this program.

`python -m tests.support.killed_exports RUN FOLDER` loads once and forks a child for each moment,
one after the other, all with the same target over an old export. It prints, one JSON object a line,
the moment and what is in the folder after the kill.
"""

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import grpo_nb as gn
from grpo_nb.export import merged, staged_export
from grpo_nb.models.unsloth_import import import_unsloth
from tests.support.forks import in_child


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def after(function: Callable) -> Callable:
    """Do it, then die."""

    def done(*arguments: object, **named: object) -> None:
        function(*arguments, **named)
        die()

    return done


# Moments of an export: the function of a module, and what takes its place.
MOMENTS = {
    "merging": (merged, "read_lora", die),
    "writing": (merged, "write_merged", die),
    "verifying": (merged, "verify_in_new_process", die),
    "all is verified": (staged_export, "write_export_card", die),
    "the card is written": (
        staged_export,
        "write_export_card",
        after(staged_export.write_export_card),
    ),
    "it is in its place": (staged_export, "put_in_place", after(staged_export.put_in_place)),
}


def main(run_folder: str, where: str) -> None:
    # In a fork transformers' threads race for torch's pool, which is made anew there: "Invalid
    # thread pool".
    os.environ["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    import_unsloth()  # once, and not in each child
    import torch

    from tests.support.checks import run_script_here

    torch.set_num_threads(1)  # a fork has no other threads
    staged_export.run_script = (
        run_script_here  # no moment lies in it, and each child would wait for one of its own
    )
    run = gn.open_run(run_folder)
    target = Path(where, "out")
    target.mkdir(parents=True)
    (target / "old").touch()

    def export_until(moment: str | None) -> None:
        if moment in MOMENTS:
            setattr(*MOMENTS[moment])
        gn.export_merged(run, target, overwrite=True)

    for moment in (*MOMENTS, None):
        assert in_child(lambda moment=moment: export_until(moment)) == (moment is not None), moment
        found = {
            path.name: sorted(file.name for file in path.iterdir())
            for path in target.parent.iterdir()
        }
        print(json.dumps({"moment": moment, "found": found}), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
