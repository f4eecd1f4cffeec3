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
# You should know [GRPO by hand](01_grpo_by_hand.ipynb) first.
#
# About 4 minutes on two idle CPU cores, under 5 GB of memory and 0.3 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# `PAIR` and `SEED` choose two of the stored trainings, which are repeated at the end. `PROMPTS` and `BATCH` are the size of the batches for
# lessons 1 and 2.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
PROMPTS = 16  # @param {"type": "integer"}
BATCH = 16  # @param {"type": "integer"}
PAIR = ["grpo", "dapo"]  # @param {"type": "raw"}
SEED = 0  # @param {"type": "integer"}

# %% [markdown]
# ## What is measured, and on what
#
# Lessons 1 and 2 take gradients of the real model, SmolLM2-135M. Lessons 3 to 5 need many trainings, and one of the real model takes
# minutes. So they use a model with 90,000 weights that learns in five seconds. It reads `7+5+9`, writes an attempt, repeats the attempt as
# often as it likes, and ends with an answer: `21,21,21#21`. The first digit sets how hard a sum is. Longer answers earn no extra reward.
# **Such a model shows a mechanism. It does not show how a large model will behave.**
#
# Each training was made with ten seeds by `benchmarks/algorithms.py`, with `gn.train` and TRL's losses. Trainings with the same seed are
# paired: they have the same initial weights and the same prompts in the same order.

# %%
import sys
from pathlib import Path

sys.path.insert(0, str(Path(gn.machine.__file__).parents[2] / "benchmarks"))
import algorithms
import gradients

lines = algorithms.kept()
names = {line["name"] for line in lines}
print(f"{len(lines)} trainings of {len(names)} settings, {lines[0]['machine']}")

# %% [markdown]
# ## Lesson 1: where the noise comes from
#
# **The claim.** REINFORCE is right on average with or without a baseline, and a baseline removes noise (Williams, 1992). RLOO uses
# the mean of the other completions as the baseline ([arXiv:2402.14740](https://arxiv.org/abs/2402.14740)). GRPO uses the mean of
# the group and divides by its standard deviation ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)).
#
# **The measurement.** If the answer is one digit, the expected reward is a sum of ten terms, so its exact gradient can be computed. Every
# estimator is a weighted sum of the same ten gradients, so thousands of batches cost nothing. The rewarded digits are chosen to give
# the pass rate that we want. The figure shows the angle between each estimate and the exact gradient: 0 degrees is exact, 90 degrees
# says nothing. Bands hold nine batches of ten.
#
# You should see one line leave the others. Without a baseline the estimate gets worse as the prompts get easier: nearly every completion
# is rewarded, and each reward pushes. For hard prompts a baseline changes little, because there is little to subtract.

# %%
small = {"model": gn.preset("cpu").model, "load_in_4bit": False}
small |= {"fast_inference": False, "dtype": "float32"}
batch = {
    "per_device_train_batch_size": BATCH,
    "gradient_accumulation_steps": 1,
    "max_completion_length": 48,
}
settings = gn.preset(PRESET, **small, **batch)
model, tokenizer = gn.load_model(settings, report=print)
policies = gradients.digit_policies(model, tokenizer, PROMPTS)
print(
    f"{policies.parameters:,} LoRA weights; exact gradient and autograd differ by {policies.error:.0e}"
)
table = gradients.angle_table(policies)
gradients.draw_angles(table)

# %% [markdown]
# More completions help every estimator. The mean of the group and leave-one-out have the same direction, because one is G/(G-1) times the
# other. If a batch has easy and hard prompts, the mean of the whole *batch* is a bad baseline for both. In a group of two the baseline is
# so rough that no baseline is better.

# %%
middle = table[table["pass rate"] == 0.5].pivot(index="estimator", columns="group", values="angle")
middle["G = 8, half 5 %, half 95 %"] = gradients.mixed_angles(policies)
middle.loc[list(gradients.ESTIMATORS)].round(1)

# %% [markdown]
# ## Lesson 2: many names, one gradient
#
# **The claim.** Each paper presents its loss as new. But if every batch is used for one update only, the old and the new policy are
# the same, the ratio is 1, and clipping does nothing. The only difference left is the normalisation.
#
# **The measurement.** One batch of completions of the real model, and the gradient of each loss, computed by TRL's own code. You should see
# pairs that agree up to rounding (dots on the left), and one pair that really differs (diamond).

# %%
task = gn.load_task("arithmetic", settings, tokenizer=tokenizer)
# Equal weights for format and tags, as in the stored trainings.
rewards = [
    gn.rewards.correctness(weight=2.0),
    gn.rewards.exact_format(weight=1.0),
    gn.rewards.partial_format(weight=1.0),
]
losses = gradients.loss_gradients(model, tokenizer, task, rewards, settings)
identities = gradients.identities(*losses)
gradients.draw_identities(identities)

# %% [markdown]
# So with `num_iterations=1` and one optimizer step per sampling, choosing among GRPO, clip-higher, GSPO and SAPO is choosing a
# name. The same is true of CISPO, DAPO and BNPO. RLOO is GRPO without its two divisions, times G/(G-1), which acts like a slightly
# larger learning rate.
#
# ## Lesson 3: length
#
# **The claim.** GRPO divides each completion by its length. A long wrong answer then costs less per token than a short one, so
# wrong answers grow. Dr. GRPO divides by a constant, and they do not ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)). DAPO
# divides by the tokens of the batch ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)).
#
# **The measurement.** The two settings of a comparison differ only in this divisor. Length earns nothing here, so only the loss moves it.
# Dots are seeds, diamonds the mean of the middle half (IQM), bars its 95 % interval. You should see that DAPO's wrong answers stay
# shorter, by less than half a letter of about ten.

# %%
length = algorithms.scores(
    lines, ["grpo", "dapo"], "letters of wrong answers", curves="tokens, wrong"
)
length

# %% [markdown]
# The same comparison without the division by the standard deviation is the Dr. GRPO of the paper. In trainings three times as long, which
# leave few wrong answers to measure, the same effect is not shown: read the first line as a warning. The last table asks what the shorter
# wrong answers are worth on held-out sums. Look at its column with the minimum detectable difference before you call it nothing.

# %%
import textwrap

wrong_letters = "letters of wrong answers"
longer = algorithms.scores(lines, ["grpo, 120 steps", "dapo, 120 steps"], wrong_letters)
print(textwrap.fill(f"120 steps: {longer.sentence}", 90))
unscaled = ["grpo unscaled", "dr_grpo"]
display(algorithms.scores(lines, unscaled, wrong_letters, curves="tokens, wrong"))
algorithms.scores(lines, ["grpo", "dapo", *unscaled])

# %% [markdown]
# ## Lesson 4: difficulty
#
# **The claim.** Dividing by the standard deviation gives too much weight to prompts that are nearly solved or hopeless
# ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)). Prompts that all or none of a group solve teach nothing and are better
# replaced ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)).
#
# **The measurement.** First, how strongly a group pushes, by the number of its correct completions. Then the trainings: as in GRPO, without
# the division, and with only those prompts whose pass rate at the start was 10 to 90 %. The score is over all held-out sums, including the
# kinds that were filtered out.

# %%
from grpo_nb.scoring import group_advantages

for right in (1, 2, 4, 7):
    totals = [1.0] * right + [0.0] * (8 - right)
    divided = sum(abs(a) for a in group_advantages(totals, 8, scale_rewards="group"))
    plain = sum(abs(a) for a in group_advantages(totals, 8, scale_rewards="none"))
    print(
        f"{right} of 8 right: {divided:.1f} divided by the standard deviation, {plain:.1f} not divided"
    )
filtered = ["grpo", "grpo unscaled", "grpo filtered"]
difficulty = algorithms.scores(lines, filtered, curves="silent groups")
display(difficulty)
for part in ("easy", "middle", "hard"):
    of_part = algorithms.scores(lines, filtered, f"held-out accuracy, {part}")
    print(textwrap.fill(of_part.sentence, 90))
algorithms.scores(lines, ["dr_grpo", "reinforce"])

# %% [markdown]
# The last table is lesson 1 again, as a training: REINFORCE without and with a baseline. No difference is shown. Most of these sums are
# hard, where a baseline has little to subtract, and Adam does not depend on the size of a gradient.
#
# ## Lesson 5: a batch used more than once
#
# **The claim.** Here the names differ. Clip-higher leaves rare tokens room to grow ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)).
# GSPO clips whole completions, at 3e-4 ([arXiv:2507.18071](https://arxiv.org/abs/2507.18071)). CISPO clips the weight and drops no token's
# gradient ([arXiv:2506.13585](https://arxiv.org/abs/2506.13585)). SAPO fades instead of clipping
# ([arXiv:2511.20347](https://arxiv.org/abs/2511.20347)).
#
# **The measurement.** Each batch is used eight times, for 80 optimizer steps on 10 samplings. You should see two stay behind: CISPO
# and SAPO have no hard clip, and at this learning rate they follow an old batch too far. The papers report the opposite, for large
# models at small learning rates.

# %%
eight_times = [f"{name}, used 8 times" for name in algorithms.CLIPS]
reused = algorithms.scores(lines, eight_times, curves="rewards")
reused

# %% [markdown]
# With four uses the verdicts are the same. At three tenths of the learning rate nothing breaks down, and the hard clip of GRPO is still
# ahead of the three that replace it.

# %%
four_times = [f"{name}, used 4 times" for name in algorithms.CLIPS]
used_four_times = algorithms.scores(lines, four_times)
print(textwrap.fill(f"Used 4 times: {used_four_times.sentence}", 90))
slowly = [f"{name}, slowly" for name in eight_times]
algorithms.scores(lines, slowly, curves="rewards")

# %% [markdown]
# ## One pair again
#
# Two of the stored trainings, repeated now, on one thread as they were. On a processor of the same kind you should see the same numbers to
# the last digit. On another one, rounding can change a sampled token, and from there on the curves differ.

# %%
import torch

torch.set_num_threads(1)
live = {name: algorithms.train(name, SEED) for name in PAIR}
for name, now in live.items():
    (then,) = [line for line in lines if (line["name"], line["seed"]) == (name, SEED)]
    same = sum(a == b for a, b in zip(now["rewards"], then["rewards"], strict=True))
    accuracies = f"held-out {now['after']['all']:.3f} now, {then['after']['all']:.3f} stored"
    print(f"{name}: {accuracies}; {same} of {len(now['rewards'])} steps are equal")

# %% [markdown]
# ## Did it work?
#
# Four things must hold, and each line says which one did not.

# %%
assert policies.error < 1e-3, "the exact gradient is not that of autograd"
assert all(difference < 1e-3 for _, difference in identities[:-1]), "equal losses differ"
assert identities[-1][1] > 0.01, "two losses that differ agree"
assert all(len(seeds) == 10 for seeds in reused.scores.values()), "a setting lacks seeds"
for name, now in live.items():
    assert abs(now["after"]["all"] - algorithms.mean_after(lines, name)) < 0.2, "another result"
for result in (length, difficulty, reused):
    print(textwrap.fill(result.sentence, 90))

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *No module named 'algorithms'* | the kit is installed without its repository | clone it, and run the setup cell again |
# | the repeated pair differs from the stored one | another processor rounds in another way | nothing: compare the held-out scores |
# | *another result* | the training no longer does what it did in November 2026 | `python benchmarks/algorithms.py` makes all of them again |
#
# ## Exercises
#
# **1. Your own experiment.** Train with several seeds, `gn.preset(seed=...)`, and give the runs to `seeds.by_seed(gn.runs.list("runs"),
# by="loss_type")` from `benchmarks/seeds.py`. Why are five seeds too few?
#
# <details><summary>Answer</summary>
#
# The paired test flips signs. With five pairs the smallest possible two-sided p is 2 / 32 = 0.06, so no difference can pass 0.05.
# </details>
#
# **2. Which loss?** Your wrong answers get longer and longer. Which setting do you try first?
#
# <details><summary>Answer</summary>
#
# `loss_type="dapo"` or `"dr_grpo"` (lesson 3). The default of the kit, `bnpo`, also averages over tokens. Keep `num_iterations=1` unless
# you mostly wait for the sampling (lesson 5).
# </details>
#
# ## Next
#
# * All numbers, with what the papers say: [the evidence](../docs/evidence/algorithms.md). Every loss and its settings:
#   [losses](../docs/reference/losses.md).
# * Questions whose groups have no learning signal: pass rates in [the guide to training](../docs/guide/train.md).
#
# @NEIGHBOURS@
