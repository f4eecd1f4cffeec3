"""Score recorded completions with the rewards.py of a folder, in a process that knows nothing else of the run.

Run by `grpo_nb.core.run_script`. Says also how much of a batch a reward looks at: a reward that gives a completion another
score when it is scored alone looks at its group, or at the whole batch. Imports no kit; rewards.py may bring its own.
"""

import asyncio
import inspect
import math
import os
import sys
import types

# Scores of one text that differ by less are the same: padding changes the last digits of a reward model.
_SAME = 1e-4


def called(reward, batch, where, is_trial):
    """The scores of some completions of a batch, NaN where there is none."""
    state = types.SimpleNamespace(global_step=batch["after"], max_steps=batch["max_steps"], epoch=0.0, log_history=[])
    state.is_trial = is_trial
    given = {name: [values[i] for i in where] for name, values in batch["given"].items()}
    nothing = {"log_extra": lambda column, values: None, "log_metric": lambda name, value: None}
    scores = reward(**given, trainer_state=state, **nothing)
    scores = asyncio.run(scores) if inspect.isawaitable(scores) else scores
    return [math.nan if score is None else float(score) for score in scores]


def is_same(ours, theirs):
    return all(abs(a - b) <= _SAME * max(1.0, abs(a)) or (a != a and b != b) for a, b in zip(ours, theirs, strict=True))


def looks_at(reward, batch):
    """`completion`, `group` or `batch`: the least that has to be together for the same scores."""
    count, size = len(batch["given"]["completions"]), batch["size"]
    whole = called(reward, batch, range(count), True)
    for what, step in (("completion", 1), ("group", size)):
        parts = [called(reward, batch, range(i, i + step), True) for i in range(0, count, step)]
        if is_same(whole, [score for part in parts for score in part]):
            return what
    return "batch"


def answer(asked):
    """The scores of each batch by each reward, and what of a batch each of them looks at."""
    sys.dont_write_bytecode = True  # the folder is to hold what was written into it, and nothing else
    os.chdir(asked["folder"])  # as train.py is started: what lies beside the notebook is not there elsewhere
    sys.path.insert(0, os.getcwd())
    from rewards import REWARDS

    scores = []
    for batch in asked["batches"]:
        count = len(batch["given"]["completions"])
        scores.append([called(reward, batch, range(count), False) for reward in REWARDS])
    parts = [looks_at(reward, asked["batches"][0]) for reward in REWARDS] if scores else []
    return {"scores": scores, "looks_at": parts}
