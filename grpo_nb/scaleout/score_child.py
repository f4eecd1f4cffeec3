"""Score recorded completions with the rewards.py of a folder, and compare the scores.

`grpo_nb.core.processes.run_script` runs this script in a process of its own, which imports nothing
of grpo_nb except the copy in the folder.
"""

import os
import sys

import numpy


def answer(request):
    """Return the name of the first reward whose scores are not the recorded ones, or None.

    A missing score is NaN in the record and in the new scores.
    """
    sys.dont_write_bytecode = True  # The folder must hold only what was written to it.
    os.chdir(request["folder"])  # train.py starts here too, without the files of the notebook.
    sys.path.insert(0, request["folder"])
    from rewards import REWARDS

    # Imported after rewards.py, which puts the copy of grpo_nb on the path.
    from grpo_nb.scoring.scores import call_reward

    for step in request["recorded_steps"]:
        for reward, (name, recorded) in zip(REWARDS, step["rewards"].items(), strict=True):
            scores = call_reward(reward, step["batch"])
            # Scores are recorded in float32, and a reward model may have run in another batch.
            if not numpy.allclose(recorded, scores, rtol=1e-4, atol=1e-4, equal_nan=True):
                return name
    return None
