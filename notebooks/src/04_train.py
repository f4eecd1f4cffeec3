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
# A run that trains through the night should show beforehand what it needs, stop when it learns nothing, and survive a crash. In this
# notebook you see all three happen, in short runs of a real model.
#
# About 4 minutes on two idle CPU cores, under 5 GB of memory and 0.5 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is. One group of 8 completions per step and `STEPS` steps keep the runs short, and `save_steps`
# writes a checkpoint every second step. In Colab, `DRIVE = "grpo_nb/train"` keeps the runs on your Google Drive. To use your own data
# instead of the sums, see [Your own data](03_your_data.ipynb).

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {"per_device_train_batch_size": 8, "save_steps": 2}  # @param {"type": "raw"}
STEPS = 8  # @param {"type": "integer"}
TASK = {"source": "arithmetic"}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %%
changes = {
    "run_root": gn.machine.choose_run_folder(DRIVE, report=print),
    "max_steps": STEPS,
    "max_completion_length": 40,
    "gradient_accumulation_steps": 1,
}
settings = gn.preset(PRESET, **{**changes, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)
task = gn.load_task(**TASK, settings=settings, tokenizer=tokenizer)
rewards = [
    gn.rewards.correctness(weight=2.0),
    gn.rewards.exact_format(weight=1.0),
    gn.rewards.partial_format(weight=0.5),
]

# %% [markdown]
# ## What you asked for, and what will run
#
# Unsloth and TRL change some settings by themselves, for example the optimizer if your machine does not have the one you asked for.
# The first table shows each setting that will differ from what you wrote, and why.
#
# The second table is the **plan**: memory by part, tokens and disk, computed from the shapes of the model. It does not guess the time,
# which the progress bar shows after the first step. On a CPU, a run that does not fit into the free memory is refused before
# it starts; on a GPU you get a warning. Both name the setting to lower first.

# %%
display(gn.training.effective_settings(settings, model))
gn.plan(settings, task, model=model, tokenizer=tokenizer)

# %% [markdown]
# ## A step without training
#
# `dry_run` samples and scores what the first step will see, and changes nothing: neither the model nor the random state. You should
# see one group of eight completions whose totals differ. If all were equal, there would be nothing to learn.

# %%
gn.dry_run(model, tokenizer, task, rewards, settings)

# %% [markdown]
# ## A run that learns nothing
#
# Now make a mistake on purpose, one that is common with models that think before they answer. The prompts have no example, and
# completions are truncated after 12 tokens, which is less than the format needs. All completions of a group get the same total, so
# every advantage is 0 and nothing is learned, however long the run is.
#
# Without help you would find out in the morning. You should see an alert at step 10 with the numbers and what to change, and the end of
# the run at step 20: this is what `stop_on_alert="critical"` asks for.

# %%
rows = []
for a in range(1, 21):
    for b in range(1, a + 1):
        rows.append({"question": f"What is {a} + {b}?", "answer": str(a + b)})
without_example = gn.load_task(rows, settings, tokenizer=tokenizer)
hopeless = settings.replace(
    max_steps=100,
    max_completion_length=12,
    num_generations=4,
    per_device_train_batch_size=4,
    stop_on_alert="critical",
)
provoked = gn.train(model, tokenizer, without_example, rewards[:2], hopeless)

# %%
print(f"{provoked.status} after {len(provoked.rows)} of {hopeless.max_steps} steps")
provoked.alerts[0]

# %% [markdown]
# ## Stage one: the format
#
# Nothing was learned above, so the model is still the one that you loaded. Train it in two stages. The first stage scores only the
# format. You should see the reward start low and rise. With eight steps the line under the figure may still call the rise unclear.

# %%
format_rewards = [gn.rewards.exact_format(weight=1.0), gn.rewards.partial_format(weight=0.5)]
stage_one = gn.train(model, tokenizer, task, format_rewards, settings, name="format", resume="auto")

# %% [markdown]
# ## Stage two, interrupted
#
# The second stage continues with the same LoRA and adds the reward for correct answers. `task.after(...)` puts the questions that
# stage one has already used at the end, so that new ones come first. After half of the steps somebody presses the stop button. Here
# a function does it: an *observer* is called after each step. One press ends the training after the current step, a second press
# ends it at once.


# %%
def stop_button(row, completions):
    """Interrupt the training after half of the steps."""
    if row["step"] == STEPS // 2:
        raise KeyboardInterrupt


more = task.after([stage_one])
interrupted = gn.train(
    model, tokenizer, more, rewards, settings, name="answers", observers=[stop_button]
)
print(f"{interrupted.status} after {len(interrupted.rows)} of {STEPS} steps")

# %% [markdown]
# ## Stage two, resumed
#
# The same call with `resume="auto"` continues where the run stopped. Weights, optimizer, learning rate, order of the data and random state
# come from the checkpoint. The numbers are those of a run that was never interrupted: a test of the kit compares them step by
# step, also after `kill -9`. In Colab, set `DRIVE`, and after a disconnection run all cells again.
#
# You should see one curve over all steps.

# %%
stage_two = gn.train(model, tokenizer, more, rewards, settings, name="answers", resume="auto")
print(f"{stage_two.status}: steps {[int(row['step']) for row in stage_two.rows]}")

# %% [markdown]
# ## Look inside
#
# Every completion is kept with its scores. Choose a step and a group; the completions are sorted by their advantages.

# %%
gn.RunViewer(stage_two)

# %% [markdown]
# ## Did it work?
#
# Four things must hold, and each line says which one did not. A better model is not among them: nothing here compares held-out answers.

# %%
import textwrap

assert provoked.status == "stopped", "a run without any signal was not stopped"
assert any(alert.rule == "zero_variance" for alert in provoked.alerts), "there was no alert"
steps = [row["step"] for row in stage_two.rows]
assert steps == list(range(1, STEPS + 1)), "the resumed run has gaps or repeats steps"
assert [stage_one.status, stage_two.status] == ["finished", "finished"], "a stage did not finish"
print(f"The run without a learning signal stopped at step {len(provoked.rows)}.")
print("The interrupted run was resumed without a gap.")
for stage in (stage_one, stage_two):
    print(textwrap.fill(f"Stage {stage.name}: {stage.rise().sentence}", 90))
print("No gain is claimed, because no held-out answers were compared: gn.compare(stage_two, task).")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *is not a run, because it has no run.json* | `resume` names a run that is not under `run_root` | `resume="auto"`, or the path of the run |
# | *was another training* | a resumed run must have the same settings, data and rewards | the first ones, which the message names, or a new `name` |
# | *is being trained right now* | another kernel writes into this run | shut that kernel down |
# | out of memory | the batch does not fit | the error names the setting; or ask `gn.plan` beforehand |
# | the kernel died | out of memory, or Colab took the machine back | run from the top, with `resume="auto"` in the training cell |
#
# ## Exercises
#
# **1. Which one is it?** A run shows a flat reward of 1.5, and no group has a learning signal. Name two opposite reasons.
#
# <details><summary>Answer</summary>
#
# Either no completion ever earns more (too hard), or all completions earn all they can (too easy). In both cases the totals of a group are
# equal. `run.step(n)` shows which: look at the scores and at the completions.
# </details>
#
# **2. What may change?** You resume a run with another `learning_rate`. What happens, and why?
#
# <details><summary>Answer</summary>
#
# An error: *was another training*. The next step depends on the learning rate, so the curve would be that of two different
# trainings. Settings on which the next step does not depend, such as `max_steps` or `save_steps`, may change.
# </details>
#
# ## Next
#
# * All rules for alerts, with thresholds and sources: [health](../docs/guide/health.md).
# * A few supervised steps first, questions chosen by pass rate, all losses: [the guide to training](../docs/guide/train.md).
# * Watch a run from another notebook: `gn.open_run("runs/...").plot()` ([runs](../docs/guide/runs.md)).
#
# @NEIGHBOURS@
