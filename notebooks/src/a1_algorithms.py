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
# GRPO, Dr. GRPO, DAPO, GSPO, CISPO, SAPO, RLOO, REINFORCE: which of these losses should your training use? After this notebook you can say
# which names are the same gradient, what the others change, and how to tell a real difference from a lucky seed. Each of the five lessons
# takes a claim from a paper and measures it.
#
# ![Held-out accuracy compared with GRPO, ten seeds each. Batches used once: only filtered prompts are clearly better, by 0.042; three other losses show no difference. Batches used eight times: CISPO is worse by 0.174 and SAPO by 0.133; clip-higher and GSPO show no difference.](../docs/algorithms.png)
#
# *How to read it:* a point is the difference from GRPO under the same conditions, a line its 95 % interval. Hollow points are differences
# that ten seeds could not show. GRPO itself reaches 0.547 on the left and 0.441 on the right. While every batch was used once, the choice of
# the prompts changed more than the choice of the loss.
#
# About 2 minutes on two idle CPU cores, under 5 GB of memory and 0.3 GB of disk. No GPU needed. You should know
# [GRPO by hand](01_grpo_by_hand.ipynb) first.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is. `PROMPTS` and `BATCH` set the size of the measurements in lessons 1 and 2. `PAIR` and `SEED` choose
# two of the stored trainings, which you repeat at the end.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
PROMPTS = 16  # @param {"type": "integer"}
BATCH = 16  # @param {"type": "integer"}
PAIR = ["grpo", "dapo"]  # @param {"type": "raw"}
SEED = 0  # @param {"type": "integer"}

# %% [markdown]
# ## What is measured, and on what
#
# Lessons 1 and 2 look at single gradients of a real model, SmolLM2-135M.
#
# Lessons 3 to 5 compare trainings, and one training proves little: with another seed it ends elsewhere. So each setting was trained with
# ten seeds. With the real model each training takes minutes, so these lessons use a model with 90,000 weights that learns in five seconds.
#
# It adds three digits. To `7+5+9` it writes an attempt, repeats the attempt as often as it likes, and ends with an answer: `21,21,21#21`.
# The first digit sets how hard a sum is. Repeating earns nothing, so lesson 3 can see what the loss alone does to the length.
#
# **Such a model shows a mechanism. It does not show how a large model will behave.**
#
# The trainings were made by `benchmarks/algorithms.py`, with `gn.train` and TRL's losses, and are stored with the kit. The cell reads them.

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
# ## Lesson 1: why subtract a mean?
#
# GRPO subtracts the mean reward of the group before it pushes. Would the rewards alone not do?
#
# **The claim.** The number that is subtracted is called a *baseline*. It does not turn the average push
# ([why](../docs/reference/losses.md#why-the-mean-may-be-subtracted)), but it removes noise
# ([Williams, 1992](https://doi.org/10.1007/BF00992696)). Plain REINFORCE has none. RLOO subtracts the mean of the *other* completions
# ([arXiv:2402.14740](https://arxiv.org/abs/2402.14740)). GRPO subtracts the mean of the group and divides by its standard deviation
# ([arXiv:2402.03300](https://arxiv.org/abs/2402.03300)).
#
# **The measurement.** The right direction is the slope of the expected reward, called the *exact gradient* here. A batch is a sample, so its
# gradient is only an estimate. The figure shows the angle between the two: 0 degrees is exact, 90 degrees says nothing.
#
# **Predict before you run:** where does a baseline help most, at a pass rate of 2 %, 50 % or 98 %?
#
# <details><summary>What you should see</summary>
#
# All lines have the shape of a U. In the middle, most groups contain right and wrong answers, and the estimate is best.
#
# One line leaves the others on the right: without a baseline the angle is 82 degrees at 98 %, with the group mean 66. At 2 % they are
# alike, 65 and 66 degrees, because there is little to subtract.
#
# Bands hold nine batches of ten. A batch without any push counts as 90 degrees.
# </details>
#
# <details><summary>How the exact gradient is known</summary>
#
# The model answers with one digit, so the expected reward is a sum of ten terms, and its gradient can be computed. Every estimate is a weighted
# sum of the same ten gradients, so thousands of batches cost nothing. The rewarded digits are chosen to give the wanted pass rate.
# </details>

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
# ### More completions, and mixed prompts
#
# **A baseline helps most where the model is already good**, and every successful training moves there. Nearly every completion is rewarded
# then, and without a baseline nearly every one is pushed up. On average these pushes nearly cancel, but not within one batch.
#
# The table shows the mean angle at a pass rate of 50 %. In its last column half of the prompts are hard (5 %) and half are easy (95 %). You
# should see:
#
# * More completions help every estimator: the group mean goes from 59.0 degrees with two completions to 13.5 with 32.
# * The group mean is better than no baseline from eight completions on. The mean of two or four rewards is noisy itself.
# * `leave-one-out` equals `group mean`: one is the other times G/(G-1), which does not change the direction.
# * The mean of the whole *batch* is best while all prompts are equally hard, because it averages more rewards. In the mixed batch the
#   group mean is better: 64.2 degrees against 70.6.

# %%
middle = table[table["pass rate"] == 0.5].pivot(index="estimator", columns="group", values="angle")
middle["G = 8, half 5 %, half 95 %"] = gradients.mixed_angles(policies)
middle.loc[list(gradients.ESTIMATORS)].round(1)

# %% [markdown]
# ## Lesson 2: many names, one gradient
#
# **The claim.** Each paper presents its loss as new.
#
# **What [GRPO by hand](01_grpo_by_hand.ipynb) lets you expect.** If every batch is used for one update only, the old and the new policy are
# the same. Then the ratio is 1, and it does not matter how a loss clips it. The only difference left is the normalisation: the number by which
# the sum over the tokens is divided.
#
# **The measurement.** One batch of completions of the real model, and the gradient of each loss, computed by TRL's own code. The figure shows by
# how much two gradients differ, as a share of their size.
#
# **Predict before you run:** how many of the eight pairs really differ?
#
# <details><summary>What you should see</summary>
#
# One. Seven pairs (dots) differ by 5e-06 at most, which is rounding. GRPO and DAPO (diamond) differ by 3e-01, about 30 %.
#
# Two of the seven agree up to a factor: `dr_grpo` is `dapo` times 0.448, and `rloo` is a plain sum over tokens times 8/7.
# </details>

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
# ### What that means for a training
#
# This holds for `num_iterations=1`, the default, and one optimizer step per sampling:
#
# | losses | what you choose between |
# | --- | --- |
# | GRPO, clip-higher, GSPO, SAPO | only names |
# | DAPO, BNPO, CISPO | only names |
# | DAPO, Dr. GRPO | a factor, which acts like another learning rate and hardly matters to Adam |
# | GRPO, RLOO | RLOO divides neither by the length nor by the standard deviation |
# | GRPO, DAPO | the divisor: lesson 3 |
#
# ## Lesson 3: length
#
# **The claim.** GRPO divides each completion by its own length. A long wrong answer then costs less per token than a short one, so wrong
# answers grow. Dr. GRPO divides by a constant ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)) and DAPO by the tokens of the batch
# ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)), which gives every token the same weight.
#
# **The measurement.** Two settings that differ only in this divisor. You should see that DAPO's wrong answers end shorter, by less than half
# a letter of about ten.
#
# <details><summary>How to read the figure and the table</summary>
#
# * *IQM* is the mean of the middle half of the seeds (diamonds). Dots are single seeds, bars and bands 95 % intervals.
# * *minus grpo, paired* compares trainings with the same seed: same initial weights, same prompts in the same order.
# * *p* is how often chance alone would give such a difference, corrected for the number of rows that are compared.
# * *minimum detectable* is the smallest true difference that these seeds would show 80 % of the time.
# * *verdict*: a difference is shown if its interval leaves out zero **and** p is below 0.05.
# </details>

# %%
length = algorithms.scores(
    lines, ["grpo", "dapo"], "letters of wrong answers", curves="tokens, wrong"
)
length

# %% [markdown]
# ### Does it last, and what is it worth?
#
# Before you believe a result that is just below 0.05, look at it from other sides. You should see three:
#
# * **Three times as long a training** (the first line): no difference is shown. Few wrong answers are left to measure by then.
# * **The Dr. GRPO of the paper**, which does not divide by the standard deviation either (first table): again shorter, and again narrowly
#   (p = 0.043).
# * **Accuracy on held-out sums** (second table): no difference is shown. Differences below 0.024 to 0.056 could not be detected.
#
# **So take the effect on length as a hint, not as a law, and expect no gain in accuracy from it.**
#
# The row `dr_grpo` of the last table is worth a second look. Its interval, +0.003 to +0.038, leaves out zero, but its p is 0.12. An
# interval alone would have announced a winner.

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
# **Two claims.** Dividing by the standard deviation gives too much weight to prompts that are nearly solved or hopeless
# ([arXiv:2503.20783](https://arxiv.org/abs/2503.20783)). And prompts that all or none of a group solve teach nothing and are better
# replaced ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)).
#
# **The measurement.** First the formula: how strongly a group pushes, as the sum of the sizes of its advantages. Then three trainings:
#
# * `grpo`: as usual,
# * `grpo unscaled`: without the division,
# * `grpo filtered`: only with prompts whose pass rate at the start was 10 to 90 %.
#
# All are tested on all held-out sums, including the kinds that were filtered out.
#
# **Predict before you run:** which changes the accuracy more, the division or the filter?
#
# <details><summary>What you should see</summary>
#
# * **The formula.** With the division, a group with 1 of 8 right pushes with 4.9, two thirds of the 7.5 of an even group. Without it, 1.8 against 4.0
#   is less than half. So the division does give such groups more weight.
# * **The division in a training.** No difference is shown: −0.005, minimum detectable 0.029.
# * **The filter.** Higher by 0.042 (p = 0.008). The gain is shown on easy and middle sums. On hard ones no difference is shown.
# * **The curves.** With the filter the share of groups without a learning signal is lower at first and higher at the end. The likely reason: the
#   filter was applied once, and by then the model has learned many of these prompts.
# </details>

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
# ### What that means for a training
#
# **Of all changes in lessons 3 and 4, only the filter shows a gain in accuracy.** It needs no other loss: measure the pass rate of
# your questions, and train on those in the middle ([how](../docs/guide/train.md#4-train-on-what-can-be-learnt)).
#
# The last table was lesson 1 again, as a training: `dr_grpo` with its baseline and `reinforce` without. No difference is shown. At the start
# [39.9 % of the sums are right](../docs/evidence/algorithms.md), and in lesson 1 the baseline mattered mainly above 50 %.
#
# ## Lesson 5: a batch used more than once
#
# Sampling is slow, so it is tempting to use each batch several times. Then the ratio leaves 1, and the losses do differ:
#
# | loss | what it does with the ratio |
# | --- | --- |
# | GRPO | clips each token at 0.8 and 1.2 |
# | clip-higher ([arXiv:2503.14476](https://arxiv.org/abs/2503.14476)) | clips at 1.28 instead of 1.2, to leave rare tokens room to grow |
# | GSPO ([arXiv:2507.18071](https://arxiv.org/abs/2507.18071)) | clips whole completions, already 3e-4 below and 4e-4 above 1 |
# | CISPO ([arXiv:2506.13585](https://arxiv.org/abs/2506.13585)) | limits the weight of a token, but drops no token's gradient |
# | SAPO ([arXiv:2511.20347](https://arxiv.org/abs/2511.20347)) | fades a token out smoothly |
#
# **The measurement.** Each batch is used eight times: 80 optimizer steps on 10 samplings.
#
# **Predict before you run:** which do worse than GRPO, those with a hard clip or those without?
#
# <details><summary>What you should see</summary>
#
# Those without: CISPO (−0.174) and SAPO (−0.133) are lower. For clip-higher and GSPO no difference is shown.
# </details>

# %%
eight_times = [f"{name}, used 8 times" for name in algorithms.CLIPS]
reused = algorithms.scores(lines, eight_times, curves="rewards")
reused

# %% [markdown]
# CISPO and SAPO end with 26.7 % and 30.8 % of the held-out sums right. That is below the 39.9 % before the training: they made the model
# *worse*. The likely reason is that at this learning rate, without a hard clip, they follow an old batch too far. The papers report the
# opposite, for large models at small learning rates.
#
# ### The same more gently
#
# The next cell uses each batch four times, and then eight times at three tenths of the learning rate. You should see:
#
# * **Four uses:** the same verdicts.
# * **A small learning rate:** on average all five end above 39.9 %. CISPO and SAPO are still lower than GRPO, and now GSPO is too, for
#   which no difference was shown before. For clip-higher none is shown.
#
# **A ranking of losses holds for one learning rate.** Ask for it whenever a paper shows one.
#
# **And reuse has a price.** GRPO reached 0.547 in lesson 3 with 40 samplings used once, and 0.441 or 0.487 here with 10 samplings used eight
# times. That is a quarter of the sampling, for twice the optimizer steps.

# %%
four_times = [f"{name}, used 4 times" for name in algorithms.CLIPS]
used_four_times = algorithms.scores(lines, four_times)
print(textwrap.fill(f"Used 4 times: {used_four_times.sentence}", 90))
slowly = [f"{name}, slowly" for name in eight_times]
algorithms.scores(lines, slowly, curves="rewards")

# %% [markdown]
# ## One pair again
#
# Do the stored numbers come from this code? Repeat two of the trainings, on one thread as they were. On a processor of the same kind you
# should see 40 of 40 steps equal. On another one, rounding can change a sampled token, and from there on the curves differ.
#
# Two things in the output are worth a look. The alert *reward_flat* is about the first 20 steps. After them the reward rises. And DAPO ends at
# 0.537, GRPO at 0.507: with this seed alone you would call DAPO the winner. Lesson 3, with ten seeds, shows no difference.

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
# The cell checks the measurements, and a failed check names itself. Then it prints three results. All five lessons in one table:
#
# | claim | in these measurements | in your training |
# | --- | --- | --- |
# | a baseline removes noise | yes, where pass rates are high | compare within the group, with eight completions or more |
# | the losses are different | not if a batch is used once: seven of eight pairs agree | do not spend days on choosing a name |
# | GRPO's divisor makes wrong answers longer | narrowly, and not in the long training | `dapo`, `bnpo` or `dr_grpo` if wrong answers grow |
# | the standard deviation gives extreme groups too much weight | in the formula yes, in the accuracy not shown | no reason here to change it |
# | prompts without a signal waste samples | yes: +0.042 for the filter | measure pass rates first |
# | the newer losses get more from a batch | the opposite, at two learning rates | keep `num_iterations=1`, or a hard clip and a small rate |
#
# **What is not shown.** The trained model has 90,000 weights. No learning rate was tuned for any loss, and long reasoning was not tried. Nothing
# is corrected across the tables, so one of twenty claims may be chance. The method carries over: paired seeds, an interval, and the
# difference that could have been detected.

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
# **1. How many seeds?** (five minutes, with pencil and paper). The paired test flips the signs of the differences in all possible ways, and counts how
# often the mean is at least as far from zero. You train two settings with five seeds each. What is the smallest p that you can get?
#
# <details><summary>Answer</summary>
#
# Five differences have $2^5 = 32$ ways to set their signs. In the best case all five point the same way, and only two ways are as extreme: all
# plus and all minus. So p is at least 2 / 32 = 0.06, and no difference can pass 0.05. With six seeds it is 2 / 64 = 0.03.
#
# For your own runs: train with `gn.preset(seed=...)`, and give the runs to `seeds.by_seed(gn.runs.list("runs"), by="loss_type")` from
# `benchmarks/seeds.py`.
# </details>
#
# **2. Which loss?** Your wrong answers get longer and longer. Which setting do you try first, and what do you leave alone?
#
# <details><summary>Answer</summary>
#
# Try `loss_type="dapo"` or `"dr_grpo"` (lesson 3). The default of the kit, `bnpo`, also gives every token the same weight. Keep `num_iterations=1`
# unless you mostly wait for the sampling (lesson 5).
# </details>
#
# ## Next
#
# * All numbers, with what the papers say: [the evidence](../docs/evidence/algorithms.md). Every loss and its settings:
#   [losses](../docs/reference/losses.md).
# * Choose your questions by their pass rate: [the guide to training](../docs/guide/train.md).
# * Test your own comparison of two runs: [Evaluate](05_evaluate.ipynb).
#
# @NEIGHBOURS@
