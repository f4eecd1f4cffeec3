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
# # Appendix: GRPO and its relatives, measured
#
# GRPO, Dr. GRPO, DAPO, GSPO, CISPO, SAPO, RLOO and REINFORCE: five short lessons, each with a claim from a paper and a measurement.
#
# About 4 minutes on two idle CPU cores, under 5 GB of memory and 0.3 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# The only cell to edit. `auto` takes the preset for your machine, but with the small model in float32 everywhere: the lessons are
# about its gradients. `PROMPTS` is how many sums lesson 1 takes its gradients of, `BATCH` how many completions lesson 2. `PAIR` and
# `SEED` are the two trainings that are done again here, of those that are stored.

# %% tags=["parameters"]
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
PROMPTS = 16  # @param {"type": "integer"}
BATCH = 16  # @param {"type": "integer"}
PAIR = ["grpo", "dapo"]  # @param {"type": "raw"}
SEED = 0  # @param {"type": "integer"}

# %% [markdown]
# ## What is measured on what
#
# Lessons 1 and 2 take gradients of the real model, SmolLM2-135M. Lessons 3 to 5 need many trainings, and one of the real model
# takes minutes; so they use a model of 90,000 weights that learns in five seconds, in `benchmarks/results`. It reads `7+5+9`
# and writes an attempt, writes it again as often as it likes, and ends with an answer: `21,21,21#21`. How hard a sum is was set
# by its first digit, and how long the answer is helps nothing. **What such a model shows is a mechanism, not how a large one
# will do.**
#
# Each of the trainings was made with ten seeds by `benchmarks/algorithms.py`, through `gn.train` and with TRL's losses. The
# trainings of one seed are pairs: the same weights at the start, and the same prompts in the same order.

# %%
import sys
from pathlib import Path

sys.path.insert(0, str(Path(gn.machine.__file__).parents[2] / "benchmarks"))
import algorithms
import gradients

lines = algorithms.kept()
print(
    f"{len(lines)} trainings of {len({line['name'] for line in lines})} settings, {lines[0]['machine']}"
)

# %% [markdown]
# ## Lesson 1: where the noise comes from
#
# **The claim.** REINFORCE is right on average with or without a baseline; a baseline takes noise away (Williams, 1992). RLOO takes the mean
# of the other completions as the baseline (arXiv:2402.14740), GRPO the mean of the group, divided by its spread (arXiv:2402.03300).
#
# **The measurement.** Where the answer is one digit, the expected reward is a sum of ten terms, and its exact gradient can be
# computed. Every estimator is a weighted sum of ten gradients a prompt, so thousands of batches cost nothing. Which digits are paid
# is chosen so that the pass rate is what we want. First the gradients, and whether the sum agrees with autograd:

# %%
small = {
    "model": gn.preset("cpu").model,
    "load_in_4bit": False,
    "fast_inference": False,
    "dtype": "float32",
}
batch = {
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 48,
}
settings = gn.preset(PRESET, **small, **batch)
model, tokenizer = gn.load_model(settings, report=print)
policies = gradients.digit_policies(model, tokenizer, PROMPTS)
print(
    f"{policies.parameters:,} weights of the LoRA; exact gradient and autograd differ by {policies.error:.0e}"
)

# %% [markdown]
# You should see one line leave the others: without a baseline the estimate gets worse as the prompts get easier, for then
# nearly every completion is paid, and each payment pushes. For hard prompts a baseline changes nothing: there is hardly
# anything to take off. 90 degrees is an estimate that knows nothing. Bands hold nine batches in ten.

# %%
table = gradients.angle_table(policies)
gradients.draw_angles(table)

# %% [markdown]
# More completions help everyone. The mean of the group and leave-one-out have one direction, for one is G/(G-1) times the
# other. And where a batch has easy and hard prompts side by side, the mean of the *batch* is a bad baseline for both, and in a
# group of two the baseline is so rough that none at all does better:

# %%
middle = table[table["pass rate"] == 0.5].pivot(index="estimator", columns="group", values="angle")
middle["G = 8, half 5 %, half 95 %"] = gradients.mixed_angles(policies)
middle.loc[list(gradients.ESTIMATORS)].round(1)

# %% [markdown]
# ## Lesson 2: many names, one gradient
#
# **The claim.** Each new loss is presented as another one. Used once, a batch has ratios of 1 everywhere, and nothing is clipped: what is left
# is what the sum over the tokens is divided by.
#
# **The measurement.** One batch of completions of the real model, and the gradient of each loss, by TRL's own code. You should see
# rounding (dots at the left), and one pair that really differs (diamond).

# %%
task = gn.load_task("arithmetic", settings, tokenizer=tokenizer)
rewards = [
    gn.rewards.correctness(weight=2.0),
    gn.rewards.xml_format(weight=1.0),
    gn.rewards.xml_tags(weight=1.0),
]
identities = gradients.identities(
    *gradients.loss_gradients(model, tokenizer, task, rewards, settings)
)
gradients.draw_identities(identities)

# %% [markdown]
# So with `num_iterations=1` and one optimizer step a sampling, choosing among GRPO, clip-higher, GSPO and SAPO is choosing a
# name; so is CISPO, DAPO or BNPO. RLOO is GRPO without its two divisions, times G/(G-1), which the optimizer takes as a little
# more learning rate.

# %% [markdown]
# ## Lesson 3: length
#
# **The claim.** GRPO divides each completion by its length. A long wrong answer then costs less a token than a short one, so wrong answers
# grow; Dr. GRPO divides by a constant, and they do not (arXiv:2503.20783). DAPO divides by the tokens of the batch
# (arXiv:2503.14476).
#
# **The measurement.** The two settings of a comparison differ in this divisor alone. Length is free here, so nothing but the loss moves
# it. You should see the lines part: dots are seeds, diamonds the mean of the middle half (IQM), bars its 95 % interval.

# %%
length = algorithms.scores(
    lines, ["grpo", "dapo"], "letters of wrong answers", curves="tokens, wrong"
)
length

# %% [markdown]
# The same without the division by the spread, which is Dr. GRPO as its paper has it. And what the shorter wrong answers are
# worth on held-out sums: read the column *would have shown* before you call it nothing. The first line is a warning: in
# trainings three times as long, which leave few wrong answers to measure, the same effect cannot be told.

# %%
longer = algorithms.scores(
    lines, ["grpo, 120 steps", "dapo, 120 steps"], "letters of wrong answers"
)
print("120 steps:", longer.sentence)
algorithms.scores(
    lines, ["grpo unscaled", "dr_grpo"], "letters of wrong answers", curves="tokens, wrong"
)

# %%
algorithms.scores(lines, ["grpo", "dapo", "grpo unscaled", "dr_grpo"])

# %% [markdown]
# ## Lesson 4: difficulty
#
# **The claim.** Dividing by the spread of the group gives too much weight to prompts that are nearly solved or hopeless
# (arXiv:2503.20783). Prompts that all or none of a group solve teach nothing, and are better replaced (arXiv:2503.14476).
#
# **The measurement.** How much a group pushes, by how many of its eight completions are right:

# %%
from grpo_nb.scoring import group_advantages

for right in (1, 2, 4, 7):
    totals = [1.0] * right + [0.0] * (8 - right)
    pushes = [
        sum(map(abs, group_advantages(totals, 8, scale_rewards=how))) for how in ("group", "none")
    ]
    print(f"{right} of 8 right: {pushes[0]:.1f} divided by the spread, {pushes[1]:.1f} not divided")

# %% [markdown]
# Then the trainings: as GRPO has it, not divided, and with the prompts kept whose pass rate at the start was from 10 to 90 %
# (as it was set; for a task of your own, `task.curriculum()` goes by what was measured). The score is of all held-out sums,
# those that were filtered away included.

# %%
difficulty = algorithms.scores(
    lines, ["grpo", "grpo unscaled", "grpo filtered"], curves="silent groups"
)
difficulty

# %%
for part in ("easy", "middle", "hard"):
    print(
        algorithms.scores(
            lines, ["grpo", "grpo unscaled", "grpo filtered"], f"held-out accuracy, {part}"
        ).sentence
    )
algorithms.scores(lines, ["dr_grpo", "reinforce"])

# %% [markdown]
# The last table is lesson 1 again, as a training: REINFORCE without a baseline beside the same with one. They are not told
# apart. Most of these sums are hard, where a baseline has little to take off, and Adam does not mind how large a gradient is.
#
# ## Lesson 5: used more than once
#
# **The claim.** Here the names part. Clip-higher leaves rare tokens room to grow (arXiv:2503.14476); GSPO clips whole completions, at 3e-4
# (arXiv:2507.18071); CISPO clips the weight and drops no token's gradient (arXiv:2506.13585); SAPO fades in place of clipping
# (arXiv:2511.20347).
#
# **The measurement.** Each sampling is used eight times, for 80 optimizer steps on 10 samplings. You should see two stay behind: CISPO and
# SAPO have no hard clip, and at this learning rate they follow an old sample too far. The papers report the opposite, of large
# models at small learning rates.

# %%
reused = algorithms.scores(
    lines, [f"{name}, used 8 times" for name in algorithms.CLIPS], curves="rewards"
)
reused

# %% [markdown]
# Used four times the verdicts are the same. At three tenths of the learning rate nothing breaks down, and the hard clip of GRPO is
# still ahead of the three that replace it:

# %%
print(
    "Used 4 times:",
    algorithms.scores(lines, [f"{name}, used 4 times" for name in algorithms.CLIPS]).sentence,
)
algorithms.scores(
    lines, [f"{name}, used 8 times, slowly" for name in algorithms.CLIPS], curves="rewards"
)

# %% [markdown]
# ## One pair again
#
# Two of the stored trainings, done here and now, on one thread as they were. On a processor of the same kind you should see the
# same numbers to the last digit; on another one a rounding can turn a draw, and the curves part from there on.

# %%
import torch

torch.set_num_threads(1)
live = {name: algorithms.train(name, SEED) for name in PAIR}
for name, now in live.items():
    (then,) = [line for line in lines if (line["name"], line["seed"]) == (name, SEED)]
    same = sum(a == b for a, b in zip(now["rewards"], then["rewards"], strict=True))
    print(
        f"{name}: held-out {now['after']['all']:.3f} now, {then['after']['all']:.3f} stored; {same} of {len(now['rewards'])} steps alike"
    )

# %% [markdown]
# ## Your own experiment
#
# The same table and figure for your runs: train with several seeds, `gn.preset(seed=...)`, compare each with `gn.compare(run)`, and
# give them to `by_seed` of `benchmarks/seeds.py`. Ten seeds are a good start; with five no difference can pass the test.
#
# ```python
# import seeds
#
# seeds.by_seed(gn.runs.list("runs"), by="loss_type")
# ```

# %% [markdown]
# ## Did it work?
#
# Four things that must hold; each line says which one did not.

# %%
assert policies.error < 1e-3, "the exact gradient is not that of autograd"
assert all(difference < 1e-3 for said, difference in identities[:-1]), (
    "two losses that are one differ"
)
assert identities[-1][1] > 0.01, "two losses that differ do not"
assert all(len(found) == 10 for found in reused.scores.values()), (
    "not every setting has its ten seeds"
)
assert all(
    abs(now["after"]["all"] - algorithms.mean_after(lines, name)) < 0.2
    for name, now in live.items()
), "another result"
print(length.sentence, difficulty.sentence, reused.sentence)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *No module named 'algorithms'* | the kit is installed without its repository | clone it, and run the install cell again |
# | the live pair differs from the stored one | another processor rounds otherwise | nothing: compare the held-out scores |
# | *another result* | the training does not do what it did in November 2026 | `python benchmarks/algorithms.py` makes all of them again |

# %% [markdown]
# ## Next
#
# * All numbers, and what the papers say beside what was found: docs/evidence/algorithms.md. Every loss and its settings: docs/reference/losses.md.
# * Choose by what you can see: `loss_type="dr_grpo"` where wrong answers grow, `task.curriculum()` where groups are silent, and keep
#   `num_iterations=1` unless sampling is what you wait for.
#
# @NEIGHBOURS@
