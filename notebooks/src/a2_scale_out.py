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
# The only cell to edit. `auto` takes the preset for your machine. `RUN` is the folder of a finished run, such as that of the
# quickstart; while it is empty, a small one is trained here. `STEPS` is how far it is trained, here and in the folder: enough
# to compare, too short to be good. In Colab, `DRIVE = "grpo_nb/scale_out"` keeps the run in that folder of your Google Drive.
#
# Your own data in place of the sums: `TASK = {"source": "my.csv", "columns": {"question": "...", "answer": "..."}}`
# (`03_your_data`).

# %% tags=["parameters"]
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
RUN = ""  # @param {"type": "string"}
FOLDER = "anywhere"  # @param {"type": "string"}
STEPS = 3  # @param {"type": "integer"}
TASK = {"source": "arithmetic", "train_size": 100, "holdout_size": 24}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %% [markdown]
# ## A run
#
# Eight completions a step in groups of four, so that each of two processes has one whole group. On a GPU too it is the small
# model in float32: here arithmetic is compared, to the last digits.

# %%
if RUN:
    run = gn.open_run(RUN)
else:
    small = {
        "model": gn.preset("cpu").model,
        "load_in_4bit": False,
        "fast_inference": False,
        "dtype": "float32",
    }
    batch = {
        "per_device_train_batch_size": 8,
        "gradient_accumulation_steps": 1,
        "num_generations": 4,
    }
    root = gn.machine.run_folder(DRIVE, report=print)
    settings = gn.preset(
        PRESET, max_steps=STEPS, max_completion_length=32, run_root=root, **small, **batch
    )
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task(**TASK, settings=settings, tokenizer=tokenizer)
    rewards = [gn.rewards.correctness(weight=2.0), gn.rewards.xml_format(), gn.rewards.xml_tags()]
    run = gn.train(model, tokenizer, task, rewards, settings)
run

# %% [markdown]
# ## The folder
#
# One line. Before the folder appears, its rewards have been tried in a process of their own: the same scores for the completions
# that the run recorded. You should see what was changed on the way, and the files: the default loss divides by the tokens of one
# process, so its place is taken by the one that divides by those of all, which for one process is the same.

# %%
project = gn.scaleout.write(run, FOLDER, overwrite=True)
project

# %%
there = project.path.resolve()
print(*sorted(path.name for path in there.iterdir()), sep="  ")
print((there / "run.yaml").read_text())

# %% [markdown]
# The rewards are a file that you can read and change; of the kit, `kit/` has the files that they need and no others. A function of
# your own would stand in it with all that it uses; one that holds something of this notebook, such as a widget, would have been
# refused by name.

# %%
print((there / "rewards.py").read_text())
print(*sorted(file.relative_to(there).as_posix() for file in there.glob("kit/**/*.py")), sep="  ")

# %% [markdown]
# ## The same numbers, in one process
#
# `train.py` needs TRL 1.16, whose plain trainer takes a step on a CPU. It goes into a folder of its own, so this kernel keeps
# what it has. With `--replay` the trainer is given the recorded completions in place of new ones, and each quantity of each step is
# compared with the record. You should see differences in the last digits of float32.

# %%
import os
import subprocess
import sys

into = ["--no-deps", "--target", str(there / "packages"), "trl==1.16.0"]
subprocess.run(
    [sys.executable, "-m", "pip", "install", "--quiet", *into], check=True, capture_output=True
)
variables = os.environ | {"PYTHONPATH": str(there / "packages"), "HF_HUB_OFFLINE": "1"}


def start(*command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=there, env=variables, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return "\n".join(
        line for line in done.stdout.splitlines() if not {"%", "{"} & set(line)
    )  # without the progress


print(start("train.py", "--replay"))

# %% [markdown]
# ## The same numbers, in two
#
# The line of the folder's `README.md` for two processes: they exchange rewards and gradients as eight GPUs would.

# %%
two = [
    "-m",
    "accelerate.commands.launch",
    "--config_file",
    "cpu2.yaml",
    "train.py",
    "--processes",
    "2",
]
same = start(*two, "--replay")
print(same)

# %% [markdown]
# ## Trained there, and back here
#
# Now with completions of its own. Each process draws with another seed, so the curve is not that of the run above: the promise is
# the same numbers for the same completions, not the same luck. What comes back is a run like any other.

# %%
start(*two, "--set", f"max_steps={STEPS}")
back = gn.scaleout.open(FOLDER).run
back

# %%
gn.runs.side_by_side(run, back)

# %%
back.step(1)

# %% [markdown]
# ## Several GPUs
#
# The same folder, with another line of its README. You should see what divides: a number of processes that would split a group is
# refused there before anything is loaded. Only processes on a CPU were run; the rest is rendered, and says so.

# %%
readme = (there / "README.md").read_text()
print(readme[readme.index("| where") : readme.index("## The same numbers")])
print(start("train.py", "--plan", "--processes", "2"))

# %% [markdown]
# ## Did it work?
#
# Three things that must hold; each line says which one did not.

# %%
assert "The same numbers" in same, "two processes computed something else than the run"
assert back.status == "finished" and len(back.rows) == STEPS, (
    "the training in the folder did not come back whole"
)
prompts = [one.completions(1)["prompt"].tolist() for one in (run, back)]
assert prompts[0] == prompts[1], "the folder asks other questions than the run"
print(
    "One process and two processes computed the same numbers, and the training in the folder came back as a run."
)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *lives in this process only* or *fails in a process of its own* | a reward holds something of this notebook | the message says what to write instead |
# | *of ... the text alone* | a run from its folder, with rewards of your own | `gn.scaleout.write(run, FOLDER, rewards=[...])` |
# | *has not kept what it began with* | a run of an earlier version, or of more than 100 MB of rows | train it again |
# | *planned for 2 processes, started with 1* | the launcher started fewer | `cpu2.yaml`, not `accelerate launch --cpu` |
# | *NOT the same numbers* | another number type, version or machine | compare `finished.json` with `origin.json`; `--tolerance 0.05` for bfloat16 |
# | *holds a training already* | nothing is written over | move `result/` away |

# %% [markdown]
# ## Next
#
# * What stays equal and what cannot: docs/guide/scale_out.md.
# * Export what was trained there: notebook 06 with `RUN = str(back.path)`.
#
# @NEIGHBOURS@
