# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # Appendix: from one process to many
#
# Write a run as a folder that trains it again with TRL alone, on several processes, and show that they compute the same numbers.
#
# About 3 minutes on two idle CPU cores and 0.4 GB of disk; two processes each load the model. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# `RUN` is the folder of a finished run, for example of the [quickstart](00_quickstart.ipynb). If it is empty, a small run of
# `STEPS` steps is trained here: enough to compare, too short to be good.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
RUN = ""  # @param {"type": "string"}
FOLDER = "anywhere"  # @param {"type": "string"}
STEPS = 3  # @param {"type": "integer"}
TASK = {"source": "arithmetic", "train_size": 100, "holdout_size": 24}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %% [markdown]
# ## A run
#
# Each step has eight completions in groups of four, so each of two processes gets one whole group. The small model in float32 is used on a
# GPU too, because here numbers are compared to their last digits.

# %%
if RUN:
    run = gn.open_run(RUN)
else:
    changes = {"max_steps": STEPS, "max_completion_length": 32, "num_generations": 4}
    changes |= {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 1}
    changes |= {"model": gn.preset("cpu").model, "dtype": "float32"}
    changes |= {"load_in_4bit": False, "fast_inference": False}
    changes["run_root"] = gn.machine.choose_run_folder(DRIVE, report=print)
    settings = gn.preset(PRESET, **changes)
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task(**TASK, settings=settings, tokenizer=tokenizer)
    rewards = [
        gn.rewards.correctness(weight=2.0),
        gn.rewards.exact_format(weight=1.0),
        gn.rewards.partial_format(weight=0.5),
    ]
    run = gn.train(model, tokenizer, task, rewards, settings)
run

# %% [markdown]
# ## The folder
#
# One line writes the folder. First its rewards are tried in a separate process: they must give the scores that the run recorded.
#
# You should see what was changed on the way. The default loss, `bnpo`, averages over the tokens of one process. With several processes
# that would change the result, so the folder uses `dapo`, which averages over all tokens. With one process they are identical.

# %%
import html

from IPython.display import HTML, Markdown

project = gn.scaleout.write(run, FOLDER, overwrite=True)
there = project.path.resolve()
print(*sorted(path.name for path in there.iterdir()), sep="\n")
all_settings = html.escape((there / "run.yaml").read_text())
display(HTML(f"<details><summary>run.yaml</summary><pre>{all_settings}</pre></details>"))
project

# %% [markdown]
# The rewards are a file that you can read and change. The folder `kit/` has a copy of the kit, because these rewards use it. A
# function of your own would be in `rewards.py` with everything that it uses. A function that depends on an object of this notebook, such
# as a widget, is refused by name.

# %%
print((there / "rewards.py").read_text())

# %% [markdown]
# ## The same numbers in one process
#
# `train.py` needs TRL 1.16, whose plain trainer can take a step on a CPU. It is installed into a folder of its own, so this kernel keeps
# its version. With `--replay` the trainer gets the recorded completions instead of sampling, and each quantity of each step is compared
# with the record. You should see differences in the last digits of float32 only.

# %%
import os
import subprocess
import sys

target = str(there / "packages")
command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", target]
subprocess.run([*command, "trl==1.16.0"], check=True, capture_output=True)
variables = os.environ | {"PYTHONPATH": target, "HF_HUB_OFFLINE": "1"}


def start(*command):
    """Run a script in the folder and return its output without the progress bars."""
    done = subprocess.run(
        [sys.executable, *command], cwd=there, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stdout.splitlines() if "%" not in line and "{" not in line]
    return "\n".join(lines)


print(start("train.py", "--replay"))

# %% [markdown]
# ## The same numbers in two processes
#
# This is the command of the folder's `README.md` for two processes. They exchange rewards and gradients as eight GPUs would.

# %%
launch = ["-m", "accelerate.commands.launch", "--config_file", "cpu2.yaml"]
two_processes = [*launch, "train.py", "--processes", "2"]
same = start(*two_processes, "--replay")
print(same)

# %% [markdown]
# ## Trained there, and back here
#
# Now the folder trains with its own completions. Each process samples with another seed, so the curve is not that of the run above. The
# promise is the same numbers for the same completions, not the same luck. What comes back is a run like any other. You should see
# both runs in one figure.

# %%
start(*two_processes, "--set", f"max_steps={STEPS}")
back = gn.scaleout.open(FOLDER).run
display(gn.runs.side_by_side(run, back), back.step(1).groups[0])

# %% [markdown]
# ## Several GPUs
#
# The same folder, with another line of its README. The plan shows how the completions are divided among the processes. A number of
# processes that would split a group is refused before anything is loaded.

# %%
readme = (there / "README.md").read_text()
display(Markdown(readme[readme.index("| where") : readme.index("## The same numbers")]))
print(start("train.py", "--plan", "--processes", "2"))

# %% [markdown]
# ## Did it work?
#
# Three things must hold, and each line says which one did not.

# %%
assert "The same numbers" in same, "two processes computed something else than the run"
assert back.status == "finished", back.status_sentence
assert len(back.rows) == STEPS, "the training in the folder did not come back whole"
prompts = [one.completions(1)["prompt"].tolist() for one in (run, back)]
assert prompts[0] == prompts[1], "the folder asks other questions than the run"
print("One process and two processes computed the same numbers.")
print("The training in the folder came back as a run.")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *lives in this process only* or *fails in a process of its own* | a reward depends on an object of this notebook | the message says what to write instead |
# | the message asks for `rewards=[...]` | the run was opened from its folder, which has only the source of your rewards | `gn.scaleout.write(run, FOLDER, rewards=[...])` |
# | *planned for 2 processes, started with 1* | the launcher started fewer | `cpu2.yaml`, not `accelerate launch --cpu` |
# | *NOT the same numbers* | another dtype, version or machine | compare `finished.json` with `origin.json`; `--tolerance 0.05` for bfloat16 |
# | *holds a training already* | nothing is overwritten | move `result/` to another place |
#
# ## Exercises
#
# **1. Three processes.** Run `start("train.py", "--plan", "--processes", "3")`. What happens, and why?
#
# <details><summary>Answer</summary>
#
# It is refused. Eight completions in groups of four are two groups, and three processes would have to split a group. Advantages
# compare the completions of one group, so the plan keeps each group on one process.
# </details>
#
# **2. Same numbers, another curve.** Replay agrees to the last digits, and yet the training in the folder has another curve. Is
# that a fault?
#
# <details><summary>Answer</summary>
#
# No. Replay feeds recorded completions, so only arithmetic is compared. The training samples new completions with other seeds, and
# one different token leads to a different path.
# </details>
#
# ## Next
#
# * What stays equal and what cannot: [the guide to scaling out](../docs/guide/scale_out.md).
# * Export what was trained there: [Export](06_export.ipynb) with `RUN = str(back.path)`.
#
# @NEIGHBOURS@
