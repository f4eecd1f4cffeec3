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
# A run that works on one machine can quietly become another training on eight GPUs: a larger batch, or a loss that is averaged in another way. After
# this notebook you can move a run to several processes and *prove* on its own completions that they compute the same numbers.
#
# You write a finished run as a folder that trains with TRL alone, replay the recorded completions in one process and in two, and
# bring the new training back as a run.
#
# About 3 minutes on two idle CPU cores and 0.4 GB of disk; two processes each load the model. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is. `RUN` is the folder of a finished run, for example of the [quickstart](00_quickstart.ipynb). If it is
# empty, a small run of `STEPS` steps is trained here. That is enough to compare numbers, and too short to learn anything. The folder to be
# written is `FOLDER`.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
RUN = ""  # @param {"type": "string"}
FOLDER = "anywhere"  # @param {"type": "string"}
STEPS = 3  # @param {"type": "integer"}
TASK = {"source": "arithmetic", "train_size": 100, "holdout": 24}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %% [markdown]
# ## A run
#
# A *process* is one running copy of the training script, usually one per GPU. Each has the whole model and works on a share of the batch.
# Before each update they average their gradients, so their weights stay equal.
#
# Each step of this run has eight completions in groups of four. So with two processes, each gets one whole group. The run uses the small
# model in float32, on a GPU too, because the numbers are compared to their last digits.

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
# One line writes the folder. Before that, its rewards are tried in a separate process: they must give the scores that the run recorded.
#
# You should see a list of files, and a sentence about the loss: **bnpo becomes dapo**. Here is why. `bnpo` divides by the number of
# tokens of *one process*. Suppose that two processes have these completions:
#
# | | sum of the loss | tokens | sum / tokens |
# | --- | --- | --- | --- |
# | process 1 | 10 | 10 | 1.00 |
# | process 2 | 10 | 40 | 0.25 |
# | average of the two: `bnpo` | | | 0.63 |
# | all tokens together: `dapo` | 20 | 50 | **0.40** |
#
# The tokens of process 1 count four times as much, only because its completions are short. So with `bnpo` the result depends on
# the number of processes. With `dapo` it does not, and in one process (with one forward pass per step) the two are equal.
#
# <details><summary>What the files are for</summary>
#
# | file | content |
# | --- | --- |
# | `README.md` | the commands, for one process, two, or N GPUs |
# | `train.py`, `run.yaml`, `rewards.py` | the training, its settings and its rewards |
# | `train.jsonl`, `holdout.jsonl` | the rows in their order |
# | `base`, `adapter_init`, `chat_template.jinja` | the model, the LoRA before the first step, the template of the prompts |
# | `record.jsonl`, `replay.py` | the completions of the run, and the comparison with them |
# | `cpu2.yaml`, `origin.json`, `kit` | two processes on a CPU; versions and machine of the run; a copy of the kit |
# </details>

# %%
import html

from IPython.display import HTML, Markdown

project = gn.scaleout.write_project(run, FOLDER, overwrite=True)
there = project.path.resolve()
print(*sorted(path.name for path in there.iterdir()), sep="\n")
all_settings = html.escape((there / "run.yaml").read_text())
display(HTML(f"<details><summary>run.yaml</summary><pre>{all_settings}</pre></details>"))
project

# %% [markdown]
# ### The rewards
#
# The rewards are a file that you can read and change. These come from the kit, so the folder `kit/` has a copy of it.
#
# A reward of your own would be written into `rewards.py`, with everything that it uses. If it depends on an object of this
# notebook, such as a widget, it is refused with its name: it would not work elsewhere.

# %%
print((there / "rewards.py").read_text())

# %% [markdown]
# ## The same numbers in one process
#
# How do you compare two trainings, if each samples other completions? You take the sampling out. With `--replay` the trainer gets the
# recorded completions, and computes rewards, advantages, loss and gradient from them. Each is compared with the record.
#
# Three steps are enough to test the updates as well: a wrong update would change the loss of a later step.
#
# `train.py` needs TRL 1.16, whose plain trainer can take a step on a CPU. It is installed into a folder of its own, so this kernel keeps
# its version.
#
# **Predict before you run:** which quantities will agree exactly, and which only nearly?
#
# <details><summary>What you should see</summary>
#
# Rewards and advantages agree exactly. Loss and gradient norm differ by about 1e-9 and 1e-6. These are the last digits of float32, which
# depend on the order in which numbers are added.
# </details>

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
# Now two processes exchange rewards and gradients, as processes on several GPUs do. This is the command from the folder's `README.md`.
#
# **This is the real test.** A loss that is averaged in a wrong way, or a batch that is divided in a wrong way, is invisible with one process. You
# should see the same line at the end, and again differences in the last digits only.

# %%
launch = ["-m", "accelerate.commands.launch", "--config_file", "cpu2.yaml"]
two_processes = [*launch, "train.py", "--processes", "2"]
same = start(*two_processes, "--replay")
print(same)

# %% [markdown]
# ## Trained there, and back here
#
# Now the folder trains with its own completions. Each process samples with another seed, so the curve differs from that of the run
# above. **The promise is the same numbers for the same completions, not the same luck.**
#
# You should see both runs in one figure and one table. The column *what differs* names the loss and the version of TRL.
#
# Do not read a result into the curves: three steps of eight completions show luck. In the group below them, no answer is right. One
# completion opened a tag, and the 0.125 points for it put it above its group.

# %%
start(*two_processes, "--set", f"max_steps={STEPS}")
folder_run = gn.scaleout.open(FOLDER).run
display(gn.runs.side_by_side(run, folder_run), folder_run.step(1).groups[0])

# %% [markdown]
# ## Several GPUs
#
# It is the same folder, with another line of its README. That text also says what was tested.
#
# In many projects eight GPUs mean an eightfold batch, because the batch is set *per device*. Here the batch of the run is divided among
# the processes, so a step stays the same step. The plan shows how. You should see two processes with four completions each.
#
# If you want the larger batch, set it on purpose, and expect another training.

# %%
readme = (there / "README.md").read_text()
display(Markdown(readme[readme.index("| where") : readme.index("## The same numbers")]))
print(start("train.py", "--plan", "--processes", "2"))

# %% [markdown]
# ## Did it work?
#
# The cell checks that two processes gave the same numbers, and that the training came back whole, with the same prompts.
#
# **What this shows.** Rewards, advantages, loss and gradient do not depend on whether one process computes them or two. They agree to about 1e-6.
#
# **What it does not show.** It was three steps of a small model in float32, on one CPU. In bfloat16, or on another kind of machine, rounding is
# larger. And it says nothing about speed.
#
# **The habit is worth keeping:** before a long run on a new machine, replay a few recorded steps. It takes minutes, and finds mistakes
# that no reward curve shows.

# %%
assert "The same numbers" in same, "two processes computed something else than the run"
assert folder_run.status == "finished", folder_run.status_sentence
assert len(folder_run.rows) == STEPS, "the training in the folder did not come back whole"
prompts = [one.completions(1)["prompt"].tolist() for one in (run, folder_run)]
assert prompts[0] == prompts[1], "the folder asks other questions than the run"
print("One process and two processes computed the same numbers.")
print("The training in the folder came back as a run.")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *lives in this process only* or *fails in a process of its own* | a reward depends on an object of this notebook | the message says what to write instead |
# | the message asks for `rewards=[...]` | the run was opened from its folder, which has only the source of your rewards | `gn.scaleout.write_project(run, FOLDER, rewards=[...])` |
# | *planned for 2 processes, started with 1* | the launcher started fewer | `cpu2.yaml`, not `accelerate launch --cpu` |
# | *NOT the same numbers* | another dtype, version or machine | compare `finished.json` with `origin.json`; `--tolerance 0.05` for bfloat16 |
# | *holds a training already* | nothing is overwritten | move `result/` to another place |
#
# ## Exercises
#
# **1. Three processes.** Run `start("train.py", "--plan", "--processes", "3")`. Predict first: what happens, and why?
#
# <details><summary>Answer</summary>
#
# The cell fails with a message: 8 completions in groups of 4 cannot be divided among 3 processes. There are only two groups, and a third process
# would have to take a part of one. A reward may look at its whole group, so the plan keeps each group in one process.
# </details>
#
# **2. A wrong average.** Process 1 has one completion of 10 tokens, process 2 one of 30 tokens. The sum of the loss over the tokens is 5 in
# process 1 and 3 in process 2. What is the loss with `bnpo`, and what with `dapo`?
#
# <details><summary>Answer</summary>
#
# With `bnpo` each process divides by its own tokens: 5 / 10 = 0.5 and 3 / 30 = 0.1, on average 0.3. With `dapo` it is 8 / 40 = 0.2. In
# one process `bnpo` would also give 0.2: this is the change that you would not notice.
# </details>
#
# ## Next
#
# * What stays equal and what cannot: [the guide to scaling out](../docs/guide/scale_out.md).
# * How the losses divide: [losses](../docs/reference/losses.md), and measured in [GRPO and its relatives](a1_algorithms.ipynb).
# * Export what was trained there: [Export](06_export.ipynb) with `RUN = str(folder_run.path)`.
#
# @NEIGHBOURS@
