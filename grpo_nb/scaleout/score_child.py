"""Score recorded completions with the rewards.py of a folder.

`grpo_nb.core.processes.run_script` runs this script in a process of its own, which imports nothing
of the kit except the copies in the folder.
"""

import asyncio
import inspect
import math
import os
import sys
import types


def answer(request):
    """Return the scores as `[batch][reward][completion]`, with NaN where a reward gave None."""
    sys.dont_write_bytecode = True  # The folder must hold only what was written to it.
    folder = os.path.abspath(request["folder"])
    os.chdir(folder)  # train.py starts here too, without the files of the notebook.
    sys.path.insert(0, folder)
    from rewards import REWARDS

    return [_scores(batch, REWARDS) for batch in request["batches"]]


def _scores(batch, rewards):
    """Return the scores of each reward for one batch."""
    # TRL passes the state of its trainer, and two functions for logging.
    state = types.SimpleNamespace(
        global_step=batch["global_step"], max_steps=batch["max_steps"], epoch=0.0, log_history=[]
    )
    scores = []
    for reward in rewards:
        output = reward(
            **batch["arguments"],
            trainer_state=state,
            log_extra=lambda column, values: None,
            log_metric=lambda name, value: None,
        )
        # TRL awaits rewards that are coroutines.
        if inspect.isawaitable(output):
            output = asyncio.run(output)
        scores.append([math.nan if score is None else float(score) for score in output])
    return scores
