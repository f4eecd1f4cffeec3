"""Score recorded completions with the rewards.py of a folder.

`grpo_nb.core.processes.run_script` runs this script in a process of its own, which imports nothing
of grpo_nb except the copy in the folder.
"""

import os
import sys


def answer(request):
    """Return the scores as `[batch][reward][completion]`, with NaN where a reward gave None."""
    sys.dont_write_bytecode = True  # The folder must hold only what was written to it.
    folder = os.path.abspath(request["folder"])
    os.chdir(folder)  # train.py starts here too, without the files of the notebook.
    sys.path.insert(0, folder)
    from rewards import REWARDS

    # Imported after rewards.py, which puts the copy of grpo_nb on the path.
    from grpo_nb.scoring.scores import call_reward, to_floats

    scores = []
    for batch in request["batches"]:
        count = len(batch["completions"])
        scores.append([to_floats(call_reward(reward, batch), count) for reward in REWARDS])
    return scores
