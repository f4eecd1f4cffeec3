"""What runs on the far side of the wall. `zygote.py` is started as a script; `values.py` is shared with the parent.

Nothing here imports the rest of grpo_nb: the scripts run in a bare interpreter without site-packages.
"""
