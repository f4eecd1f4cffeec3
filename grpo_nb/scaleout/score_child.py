"""Score recorded completions with the rewards.py of a folder.

`grpo_nb.core.processes.run_script` runs this script in a process of its own, which imports nothing
of grpo_nb except the copies in the folder.
"""

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

    scores = []
    for batch in request["batches"]:
        scores.append([_scores(reward, batch) for reward in REWARDS])
    return scores


def _scores(reward, batch):
    """Return the scores of one reward for one batch."""
    output = reward(
        **batch["arguments"],
        # TRL passes the state of its trainer, and two functions for logging.
        trainer_state=types.SimpleNamespace(**batch["trainer_state"]),
        log_extra=lambda column, values: None,
        log_metric=lambda name, value: None,
    )
    return [math.nan if score is None else float(score) for score in output]
