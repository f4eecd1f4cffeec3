# %% [markdown]
# ## Setup
#
# Run this cell first. It installs what is missing, which takes some minutes the first time, and shows what your machine can
# do. You should see **Ready**. If it asks for a restart, restart the kernel and run the cell again.

# %% cellView="form" jupyter={"source_hidden": true}
import importlib.util
import os
import subprocess
import sys

if importlib.util.find_spec("grpo_nb") is None:
    pass  # @CLONE@

from grpo_nb.machine import install

install(report=print)

import grpo_nb as gn

gn.check_environment()
