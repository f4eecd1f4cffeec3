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
# You learn to check a run before it starts, to let it stop itself when it learns nothing, and to resume it after a crash.
#
# Why it matters: a GRPO run can fail without any error. The loss stays near zero in a good run and in a bad one ([GRPO by
# hand](01_grpo_by_hand.ipynb) shows why). So a night of computing may leave the model as it was. Three habits prevent that:
#
# | habit | what it prevents |
# | --- | --- |
# | look at the plan and at one scored group, before the start | a lack of memory, rewards that are always 0 |
# | let an alert stop the run | hours without a learning signal |
# | write checkpoints and resume | starting again after a crash |
#
# You try all three in short runs of a real model.
#
# About 4 minutes on two idle CPU cores, under 5 GB of memory and 0.5 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is.
#
# * **Steps.** `STEPS` steps with one group of 8 completions each keep the runs short.
# * **Checkpoints.** `save_steps` writes one every second step.
# * **Colab.** `DRIVE = "grpo_nb/train"` keeps the runs on your Google Drive.
# * **Your own data** in place of the sums: see [Your own data](03_your_data.ipynb).

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
# ## Before the run: what will it need?
#
# **The first table shows settings that you did not choose.** Unsloth, TRL and this kit set some values by themselves, for example another
# optimizer if your machine does not have the one you asked for. You should see three rows on a CPU, each with its reason.
#
# **The second table is the plan:** memory by part, tokens and disk, computed from the shapes of the model. You should see that this run fits. If
# it did not, `gn.train` would refuse it on a CPU and warn you on a GPU, each time with settings that do fit. Look at two rows:
#
# * *optimizer*, 0.04 GB: AdamW keeps two numbers for each trained weight. Only the 4.9 million LoRA weights are trained. For all 135 million
#   weights it would be 1.08 GB.
# * *activations*, 0.86 GB: the largest part. They grow with the completions that are processed together
#   (`per_device_train_batch_size`, here 8) and with their length.
#
# The plan does not guess the time. The progress bar shows it after the first step.

# %%
display(gn.training.effective_settings(settings, model))
gn.plan(settings, task, model=model, tokenizer=tokenizer)

# %% [markdown]
# ## Before the run: is there a signal?
#
# `dry_run` samples and scores the prompts of the first step, and changes neither the model nor the random state. You should see one group whose
# totals differ. If all were equal, this step would teach nothing.
#
# **Predict before you run:** the question is 20 + 17. One completion gives 37, but never closes its answer tag. Another one has all tags and
# answers *Leviathan*. Which of the two is pushed up?
#
# <details><summary>What you should see</summary>
#
# *Leviathan*, on a CPU. With all tags it earns 1 + 0.5 = 1.5, and the mean of the eight totals is 0.78: advantage +0.60. The right sum with
# three of four tags earns 0.375, exactly as much as the wrong sums 45 and 22 next to it: advantage −0.34.
#
# So at first the training will teach the format, as in the [quickstart](00_quickstart.ipynb). But one of the eight completions is right
# *and* in the format. It has the advantage +2.27, so correct answers can be learned too.
# </details>

# %%
gn.dry_run(model, tokenizer, task, rewards, settings)

# %% [markdown]
# ## A run that learns nothing
#
# Now make three mistakes on purpose. The prompt has no example, completions are truncated after 12 tokens, and the reward for single tags is
# left out (`rewards[:2]`). So no completion earns anything, all advantages are 0, and nothing is learned, however long the run is. The second
# mistake is common with models that think before they answer: they are often truncated before the answer.
#
# The run is meant to have 100 steps. `stop_on_alert="critical"` lets it stop itself.
#
# **Predict before you run:** how many steps must pass with all rewards equal until you are sure that something is wrong? Is one enough?
#
# <details><summary>What you should see</summary>
#
# * **Step 10:** two alerts. *truncation*: 88 % of the completions so far were truncated. *constant_reward*: both rewards were 0 in every row.
# * **Step 20:** the critical one, *zero_variance*. In 100 % of the groups all completions got the same reward. The run ends: 80 steps are saved.
#
# Each alert says what to change, and together they name all three mistakes: raise `max_completion_length`, add an example to the prompt, give
# partial credit.
#
# Is the limit the only cause? No. The line under the figure counts 79 % truncated in the last third of the steps, so about a fifth of these
# completions ended by themselves, and they earned 0 as well.
#
# One step is not enough. A healthy run also has groups without a signal, as you will see below, so the rules wait for more steps.
# </details>

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
# A right answer counts only in the format. If the format is rare, right answers are hardly ever rewarded. One way out is to train in two
# stages: first the format, then everything.
#
# Stage one can use the same model, because the run above left it nearly as it was: KL 0.002. You can check that in the figure. Step 1 asks the
# same question as the dry run, and its pale line starts at the same mean, 0.53 for the format.
#
# **What you should see on a CPU:** step 2 is much lower, so the mean of the first two steps is 0.33. The mean of the last two is 0.79, of at
# most 1.5. Yet the line under the figure says *did not rise clearly*. Each value comes from one question only, so eight of them can rise by
# luck.
#
# *Not clear* does not mean *no rise*. It means that this run is too short to tell.

# %%
format_rewards = [gn.rewards.exact_format(weight=1.0), gn.rewards.partial_format(weight=0.5)]
stage_one = gn.train(model, tokenizer, task, format_rewards, settings, name="format", resume="auto")

# %% [markdown]
# ## Stage two, interrupted
#
# The second stage continues with the same LoRA and adds the reward for correct answers. `task.after(...)` puts the questions of
# stage one at the end, so that new ones come first.
#
# After half of the steps somebody presses the stop button. Here a function does it: an *observer*, called after each step. One press
# ends the training after the current step, a second press ends it at once.
#
# **Predict before you run:** on a CPU the reward falls from about 1.6 in step 1 to below 1 in step 3, and is 2.11 in step 4. How much of that has
# the model learned?
#
# <details><summary>What you should see</summary>
#
# Next to nothing: the KL to the adapter it started from is 0.000. The learning rate is 0 in step 1 and grows until step 5 (`warmup_steps=4`), so
# the model has hardly moved. The reward moved because each step asks another question and samples new answers.
# </details>
#
# **A curve that moves is not yet a model that moves, so look at the KL as well.** It has no general scale: compare runs of one task. On these
# sums it is 0.002 in the run that learns nothing, 0.046 in stage one, and 0.062 in the [quickstart](00_quickstart.ipynb), which learns the format and
# the sums.


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
# The same call with `resume="auto"` continues where the run stopped. The weights alone would not be enough:
#
# | from the checkpoint | without it |
# | --- | --- |
# | LoRA weights | the four steps are lost |
# | averages of AdamW | the next updates have the wrong size |
# | learning rate | the warm-up begins again |
# | order of the data | questions are asked again |
# | random state | other completions are sampled |
#
# You should see one curve over eight steps. The first four values of its pale line are those from above.
#
# With all five, the run ends like one that was never interrupted. This notebook has no such run to compare with, but the tests of the kit
# have: on a CPU the numbers are equal bit by bit, also after `kill -9` ([what was tested](../docs/evidence/runs.md)).
#
# For a training of your own, one cell with `resume="auto"` is enough. Run it again after every interruption. In Colab set `DRIVE` as well.

# %%
stage_two = gn.train(model, tokenizer, more, rewards, settings, name="answers", resume="auto")
print(f"{stage_two.status}: steps {[int(row['step']) for row in stage_two.rows]}")

# %% [markdown]
# ## Look inside
#
# Every completion is kept with its scores. Choose a step and a group. The completions are sorted by their advantages.
#
# **You should see** a surprise in step 8 (on a CPU): *0 of 1 groups with a learning signal*. The question is 10 + 14. All eight completions are in the
# format, and all are wrong: six answer 22, one 26 and one 14. Each earns 1.5, so each advantage is 0.
#
# This run is healthy, and still its last step taught nothing. Two consequences:
#
# * An alert must look at many groups, not at one.
# * With one group per step, such a step is wasted. Real trainings use several prompts per step, the [quickstart](00_quickstart.ipynb) two.

# %%
gn.RunViewer(stage_two)

# %% [markdown]
# ## Did it work?
#
# This notebook is about the run, not about the model. So the cell checks four things: the hopeless run was stopped, there was the right
# alert, the resumed run has every step once, and both stages finished.
#
# **What it does not show:**
#
# * *A better model.* No held-out answers were compared. [The next notebook](05_evaluate.ipynb) does that.
# * *That two stages beat one.* Neither stage rose clearly in eight steps, and stage two hardly moved the model (KL 0.005). The
#   [quickstart](00_quickstart.ipynb) trains all three rewards at once, in 42 longer steps, and its reward does rise. Use stages if the
#   format is so rare that nothing else can be learned.

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
# | *exists, and a new run overwrites nothing* | you ran this notebook before, and `runs/answers` is there | delete that folder, or choose another name in both cells of stage two |
# | *is not a run, because it has no run.json* | `resume` names a run that is not under `run_root` | `resume="auto"`, or the path of the run |
# | *was another training* | a resumed run must have the same settings, data and rewards | the first ones, which the message names, or a new `name` |
# | *is being trained right now* | another kernel writes into this run | shut that kernel down |
# | out of memory | the batch does not fit | the settings that the error names, or those of `gn.plan` |
# | the kernel died | out of memory, or Colab took the machine back | load model and task again, then run the cell with `resume="auto"` |
#
# ## Which setting to turn, and when
#
# The values of [GRPO by hand](01_grpo_by_hand.ipynb) and of [the quickstart](00_quickstart.ipynb) on a CPU:
#
# | setting | by hand | quickstart | turn it when |
# | --- | --- | --- | --- |
# | `num_generations`, the size of a group | 8 | 8 | most groups have equal rewards: larger |
# | prompts per step | 1 | 2 | the curve jumps from step to step: more |
# | `learning_rate` | 0.0002 | 0.0001 | the reward collapses or the KL stays high: lower. Nothing moves: higher |
# | `beta`, the weight of the KL | 0.04 | 0.04 | the texts drift into nonsense: higher |
# | `temperature` | 1 | 1 | the completions of a group are all alike, and wrong: higher |
# | `max_completion_length` | 24 | 48 | many completions are truncated: higher |
# | `loss_type` | `grpo` | `bnpo` | long and short texts should weigh differently: [all losses](../docs/reference/losses.md) |

# %% [markdown]
# ## Exercises
#
# **1. Stuck at 1.5** (two minutes). In two runs the reward stays at 1.5, and no group has a learning signal. One run has the rewards of stage one,
# the other one those of stage two. What do you do in each?
#
# <details><summary>Answer</summary>
#
# *Stage one:* 1.5 is the maximum (1 + 0.5). All completions are in the format, and nothing is left to learn. Go on to stage two.
#
# *Stage two:* the maximum is 3.5. All completions are in the format and none is right, as in step 8 above. Use easier questions, or larger
# groups, so that a right answer turns up at least once.
#
# The number alone does not tell you. Read the completions.
# </details>
#
# **2. What may change?** (two minutes). You resume a run with another `learning_rate`, then with a larger `max_steps`. What happens, and why?
#
# <details><summary>Answer</summary>
#
# *Learning rate:* an error, *was another training*. The next step depends on it, so the curve would belong to two different trainings.
#
# *More steps:* allowed, and reported. So are `save_steps` and `stop_on_alert`, which do not change how a step trains.
# </details>
#
# ## Next
#
# * All rules for alerts, with thresholds and sources: [health](../docs/guide/health.md). They also read logs of TRL and Unsloth.
# * A few supervised steps first, questions chosen by pass rate, all losses: [the guide to training](../docs/guide/train.md).
# * Watch a run from another notebook: `gn.open_run("runs/...").plot()` ([runs](../docs/guide/runs.md)).
#
# ← [Your own data: from a CSV to a trained model](03_your_data.ipynb) · [Is it really better?](05_evaluate.ipynb) →
