# %% [markdown]
# ## Install
#
# Run this cell first, on Colab and Kaggle before anything else. It takes some minutes the first time, leaves numpy as it is,
# and ends with **Ready** or **Restart needed**; on a GPU a line says whether there is vLLM, why, and what that costs. In an
# environment that `make lab` made there is nothing to do, and it says so.

# %%
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("grpo_nb") is None:
    if not os.path.isdir("grpo_nb_clone"):
        subprocess.run(["git", "clone", "--depth=1", "@REPOSITORY@", "grpo_nb_clone"], check=True)
    sys.path.insert(0, os.path.abspath("grpo_nb_clone"))

from grpo_nb.machine import install

install(report=print)
