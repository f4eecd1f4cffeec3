"""Score recorded completions with the rewards.py of a folder, in a process that knows nothing else of the run.

Run by `grpo_nb.core.processes.run_script`. Imports no kit; rewards.py brings what it needs of it.
"""

import asyncio
import inspect
import math
import os
import sys
import types


def answer(asked):
    """The scores of each batch by each reward, NaN where there is none."""
    sys.dont_write_bytecode = (
        True  # the folder is to hold what was written into it, and nothing else
    )
    os.chdir(
        asked["folder"]
    )  # as train.py is started: what lies beside the notebook is not there elsewhere
    sys.path.insert(0, os.getcwd())
    from rewards import REWARDS

    nothing, found = (
        {"log_extra": lambda column, values: None, "log_metric": lambda name, value: None},
        [],
    )
    for batch in asked["batches"]:
        about = {
            "global_step": batch["after"],
            "max_steps": batch["max_steps"],
            "epoch": 0.0,
            "log_history": [],
        }
        state = types.SimpleNamespace(**about)
        scores = [reward(**batch["given"], trainer_state=state, **nothing) for reward in REWARDS]
        scores = [asyncio.run(each) if inspect.isawaitable(each) else each for each in scores]
        found.append(
            [[math.nan if score is None else float(score) for score in each] for each in scores]
        )
    return found
