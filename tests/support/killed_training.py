"""Train the tiny model again and again in a separate process, killed each time.

training/test_resumable.py starts this program.

`python -m tests.support.killed_training MODEL ROOT N` loads once and forks N children, one after
the other. Each goes on with the run `killed` and is ended by SIGKILL: at a random moment, or by
itself just before a random one of its operations on files. The last child trains the same without
being killed, as the run `whole`. Prints where each was killed.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import grpo_nb as gn
from grpo_nb.runs.reading import read_json_lines
from tests.run_fixtures import brevity
from tests.support.forks import has_ended, in_child, loaded_alone
from tests.support.run_folders import checkpoint_step

_OPERATIONS = ("fsync", "rename", "replace", "unlink", "rmdir", "mkdir", "open")


def loaded(model: str, root: str):
    settings = gn.preset(
        "cpu",
        model=model,
        max_steps=12,
        max_completion_length=12,
        learning_rate=2e-2,
        max_grad_norm=10.0,
        run_root=root,
        num_generations=4,
        per_device_train_batch_size=8,
        save_steps=1,
    )

    return loaded_alone(settings, 6), settings


def train(parts, settings: gn.Settings, name: str) -> gn.runs.Run:
    return gn.train(*parts, [brevity], settings, name=name, resume="auto")


def die_at(count: int, kinds: tuple[str, ...], note: Path) -> None:
    """Kill this process before its `count`-th operation of these kinds, and note which it was."""
    left = [count]

    def counted(name, operation):
        def call(*args, **kwargs):
            left[0] -= 1
            if left[0] == 0:
                note.write_text(name)
                os.kill(os.getpid(), signal.SIGKILL)
            return operation(*args, **kwargs)

        return call

    for name in kinds:
        setattr(os, name, counted(name, getattr(os, name)))


def fork(
    parts,
    settings: gn.Settings,
    operation: tuple[int, tuple[str, ...]] | None,
    seconds: float | None,
) -> bool:
    """Train in a child that is killed at an operation or after a time; return whether it was."""
    folder = Path(settings.run_root) / "killed"
    before = checkpoint_step(gn.open_run(folder)) if (folder / "run.json").is_file() else 0

    def work() -> None:
        sys.stderr = open(Path(settings.run_root) / "stderr.txt", "a")  # noqa: SIM115
        if operation is not None:
            die_at(*operation, Path(settings.run_root) / "operation.txt")
        train(parts, settings, "killed")

    def kill(child: int) -> None:
        while not has_ended(child) and not has_done_a_step(folder, child, before):
            time.sleep(0.01)
        if not has_ended(child):
            time.sleep(seconds)
            os.kill(child, signal.SIGKILL)

    return in_child(work, None if seconds is None else kill)


def has_done_a_step(folder: Path, pid: int, before: int) -> bool:
    """Return True if the process has resumed the run and done a step."""
    try:
        if gn.open_run(folder).info["pid"] != pid:
            return False
    except FileNotFoundError:  # not begun yet, or begun anew at this moment
        return False
    return any(
        row["step"] > before
        for row in read_json_lines(folder / "metrics.jsonl", drop_partial_line=True)
    )


def main(model: str, root: str, count: str) -> None:
    Path(root).mkdir(exist_ok=True)
    parts, settings = loaded(model, root)
    choose = random.Random(7)
    kills = []
    for number in range(int(count)):
        operation = seconds = None
        if number % 2:
            seconds = choose.uniform(0.0, 0.3)
        else:
            # Files are forced to the disk while a checkpoint is written, and at no other time.
            kinds, most = (("fsync",), 25) if number % 4 == 0 else (_OPERATIONS, 90)
            operation = (choose.randint(1, most), kinds)
        if not fork(parts, settings, operation, seconds):
            break
        at = (
            f"{seconds:.2f} s"
            if seconds is not None
            else (Path(root) / "operation.txt").read_text()
        )
        rows = read_json_lines(Path(root) / "killed" / "metrics.jsonl", drop_partial_line=True)
        kills.append({"at": at, "rows": len(rows)})
    assert not in_child(lambda: train(parts, settings, "whole")), "it was not to be killed"
    print(json.dumps(kills))


if __name__ == "__main__":
    main(*sys.argv[1:])
