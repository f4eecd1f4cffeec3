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
# # Training that you can leave alone
#
# Plan the memory of a run, recognise a run that learns nothing, resume after a crash, and train in two stages.
#
# About 4 minutes on two idle CPU cores, under 5 GB of memory and 0.5 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# The only cell to edit. `auto` takes the preset for your machine. One group of 8 completions a step and `STEPS` steps
# keep the runs short, half of them in each of two stages at the end; `save_steps` writes a checkpoint every second step. In
# Colab, `DRIVE = "grpo_nb/train"` keeps the runs in that folder of your Google Drive.
#
# Your own data in place of the sums: `TASK = {"source": "my.csv", "columns": {"question": "...", "answer": "..."}}`
# (`03_your_data`).

# %% tags=["parameters"]
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {"per_device_train_batch_size": 8, "save_steps": 2}  # @param {"type": "raw"}
STEPS = 8  # @param {"type": "integer"}
TASK = {"source": "arithmetic"}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %%
changes = {
    "run_root": gn.machine.run_folder(DRIVE, report=print),
    "max_steps": STEPS,
    "max_completion_length": 40,
    "gradient_accumulation_steps": 1,
}
settings = gn.preset(PRESET, **{**changes, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)
task = gn.load_task(**TASK, settings=settings, tokenizer=tokenizer)
rewards = [
    gn.rewards.correctness(weight=2.0),
    gn.rewards.xml_format(weight=1.0),
    gn.rewards.xml_tags(weight=0.5),
]

# %% [markdown]
# ## What you asked for, and what will run
#
# Unsloth and TRL change some settings by themselves: a loss that brings its own clipping, an optimizer that this machine lacks.
# The configuration is built here as for the training, and this table shows what it holds, and why.

# %%
gn.training.effective_settings(settings, model)

# %% [markdown]
# ## A plan
#
# Memory by part, tokens and disk, computed from the shapes of the model. Time is not guessed: it stays *not measured* until the
# first steps have been. A run that does not fit what is free is refused on a CPU and warned of on a GPU, with settings that fit.

# %%
gn.plan(settings, task, model=model, tokenizer=tokenizer)

# %% [markdown]
# ## A step without training
#
# `dry_run` samples and scores what the first step will see, and changes nothing: not the model, not even the random state. You
# should see one group of eight, with scores that differ. Where all are equal there is nothing to learn.

# %%
gn.dry_run(model, tokenizer, task, rewards, settings)

# %% [markdown]
# ## An alert, provoked
#
# The same questions without the example turn, and completions cut off after 12 tokens, which is less than the format needs: a
# mistake that many make with a model that thinks before it answers. All completions of a group score the same, no advantage is
# left, and nothing is learnt, however long it runs. People find that out in the morning.
#
# Here a rule says so at step 10, with the numbers and what to change, and at step 20, where it is beyond doubt, the run ends
# by itself: that is what `stop_on_alert="critical"` asks for.

# %%
rows = [
    {"question": f"What is {a} + {b}?", "answer": str(a + b)}
    for a in range(1, 21)
    for b in range(1, a + 1)
]
bare = gn.load_task(rows, settings, tokenizer=tokenizer)
hopeless = settings.replace(
    max_steps=100,
    max_completion_length=12,
    num_generations=4,
    per_device_train_batch_size=4,
    stop_on_alert="critical",
)
provoked = gn.train(model, tokenizer, bare, rewards[:2], hopeless)

# %%
print(f"{provoked.status} after {len(provoked.rows)} of {hopeless.max_steps} steps")
provoked.alerts[0]

# %% [markdown]
# ## Mended, and interrupted
#
# `task` has the example turn, and `settings` room for an answer. The model is as it was: without an advantage there was no
# gradient. After half of the steps somebody presses the stop button: here an observer does, a function that is called with each
# row. A press ends the training after the step that is under way, a second one at once.


# %%
def stop_button(row, completions):
    """Interrupt after half of the steps."""
    if row["step"] == STEPS // 2:
        raise KeyboardInterrupt


run = gn.train(model, tokenizer, task, rewards, settings, observers=[stop_button])
print(f"{run.status} after {len(run.rows)} of {STEPS} steps")

# %% [markdown]
# ## Resumed
#
# The same cell with `resume="auto"` goes on where it stopped: weights, optimizer, learning rate, data order and random state
# come from the checkpoint, and the weights are compared with its file. The numbers are those of a run that was never
# interrupted; a test in this repository compares them step by step, after `kill -9` too. On Colab, set `DRIVE` and, after a
# disconnection, run this very cell again.
#
# You should see one line over all steps.

# %%
run = gn.train(model, tokenizer, task, rewards, settings, resume="auto")

# %%
print(f"{run.status}: steps {[int(row['step']) for row in run.rows]}")

# %% [markdown]
# ## Look inside
#
# Every completion is kept with its scores. Pick a step and a group: its completions stand in the order of their advantages.
# What other weights would have paid is asked in the lab (02).

# %%
gn.RunViewer(run)

# %% [markdown]
# ## Two stages
#
# First the form, then the answer, on one adapter: each stage is a run with rewards of its own. Run the cell again after a
# disconnection: `resume="auto"` gives a finished stage back with its adapter, and goes on with one that was cut short.

# %%
kept, form = [], [gn.rewards.xml_tags(), gn.rewards.xml_format()]
half = settings.replace(max_steps=STEPS // 2)
for name, paid in (("form", form), ("answer", rewards)):
    kept.append(gn.train(model, tokenizer, task.after(kept), paid, half, name=name, resume="auto"))
    if kept[-1].status != "finished":
        break

gn.runs.side_by_side(*kept)

# %% [markdown]
# ## Did it work?
#
# Four things that must hold; each line says which one did not. A better model is not among them: the last lines show how the
# reward of each stage went, and nothing here compares held-out answers.

# %%
assert provoked.status == "stopped", "a run without any signal was not stopped"
assert any(alert.rule == "no_spread" for alert in provoked.alerts), (
    "nobody said that no group has spread"
)
assert [row["step"] for row in run.rows] == list(range(1, STEPS + 1)), (
    "the resumed run has gaps or repeats steps"
)
assert [r.status for r in kept] == ["finished", "finished"], "a stage did not finish"
print(
    f"The run without a learning signal stopped at step {len(provoked.rows)}, and the interrupted run was resumed."
)
for stage in kept:
    print(f"Stage {stage.name}: {stage.rise().sentence}")
print(
    "No gain is claimed: the held-out answers were not compared. gn.compare(kept[-1], task) does it."
)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *is not a run, because it has no run.json* | `resume` names a run that is not under `run_root` | `resume="auto"`, or the path of the run |
# | *was another training* | a resumed run must be the same run | the line it prints, or a new run |
# | *is being trained right now* | another kernel writes into this run | shut that kernel down |
# | out of memory | the batch does not fit | the error names the setting; or ask `gn.plan` before |
# | the kernel died | memory, or Colab took the machine | run from the top, with `resume="auto"` in the training cell |

# %% [markdown]
# ## Next
#
# * All rules, with their thresholds and sources: docs/guide/health.md. For a log of your own: `gn.health.check_health("trainer_state.json")`.
# * What else: a few supervised steps first (the recipe of `docs/guide/train.md`), questions by measured pass rate (`task.curriculum`), every loss of TRL:
#   docs/guide/train.md.
# * Watch a run from another notebook: `gn.open_run("runs/...").plot()`.
#
# @NEIGHBOURS@
