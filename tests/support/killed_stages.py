"""Run by training/test_stages.py in a process of its own: trains two stages, killed again and again, and the same
without a kill.

`python -m tests.support.killed_stages MODEL ROOT` loads once and forks children, one after the other. Three go on with
the staged run
`killed` and end themselves by SIGKILL: in the first stage, between the stages, and in the second. The last one trains `whole`.
What rewards have learnt dies with each child. The end of `killed` is left to the test.
"""

import os
import signal
import sys
from collections.abc import Callable

import grpo_nb as gn
from tests.conftest import brevity
from tests.support.forks import in_child
from tests.support.own_rewards import Fading
from tests.support.tiny import load_tiny


def loaded(model: str, root: str):
    import torch

    torch.set_num_threads(1)  # a fork has no other threads
    *parts, settings = load_tiny(
        model, 12, 4, max_completion_length=8, warmup_steps=0, learning_rate=2e-2, max_grad_norm=10.0,
        num_generations=4, per_device_train_batch_size=8, run_root=root, save_steps=2,
    )  # fmt: skip
    return parts, settings


def asked_before(task: gn.tasks.Task, run: gn.training.StagedRun) -> gn.tasks.Task:
    """The questions of the stages before: what the stage itself has sampled must not change them."""
    return task.with_pass_rates(run, reward="brevity_too", threshold=0.0).curriculum(0, 1, unmeasured="drop")


def train(parts, settings: gn.Settings, name: str, kill_at: tuple[str, int] | None = None) -> gn.training.StagedRun:
    stage = "short"

    def dying(completions: list, trainer_state=None, **columns: object) -> list[float]:
        if kill_at == (stage, getattr(trainer_state, "global_step", None)):
            os.kill(os.getpid(), signal.SIGKILL)
        return [0.0] * len(completions)

    def begin_second(task: gn.tasks.Task, run: gn.training.StagedRun) -> gn.tasks.Task:
        nonlocal stage
        stage = "form"
        if kill_at == ("between", 0):
            os.kill(os.getpid(), signal.SIGKILL)
        return asked_before(task, run)

    fading = Fading(brevity)
    return gn.training.train_stages(
        *parts,
        [gn.training.Stage(name="short", rewards=[fading, brevity_too, named("watch", dying)], steps=3),
         gn.training.Stage(name="form", rewards=[fading, brevity_too, named("watch", dying)], steps=5, task=begin_second)],
        settings, name=name, resume="auto",
    )  # fmt: skip


def brevity_too(completions: list, **columns: object) -> list[float]:
    return brevity(completions)


def named(name: str, function: Callable) -> Callable:
    function.__name__ = name
    return function


def fork(parts, settings: gn.Settings, name: str, kill_at: tuple[str, int] | None) -> None:
    assert in_child(lambda: train(parts, settings, name, kill_at)) == (kill_at is not None), kill_at


def main(model: str, root: str) -> None:
    parts, settings = loaded(model, root)
    for kill_at in (("short", 1), ("between", 0), ("form", 3)):
        fork(parts, settings, "killed", kill_at)
    fork(parts, settings, "whole", None)


if __name__ == "__main__":
    main(*sys.argv[1:])
