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
# # Rewards that are hard to cheat
#
# A model is trained to raise a number. If some of its samples get points by a shortcut, it learns the shortcut. In this notebook you write
# a reward with a loophole, let the kit find it, watch a model exploit it, and train again with sound rewards.
#
# ![The same model, trained twice. Left: both rewards rise, with loopholes from 3.12 to 6.25, with sound rewards from 0.62 to 3.19. Right: of the held-out sums, the first training falls from 58 to 12 percent right, the second rises from 58 to 83 percent.](../docs/hacking.png)
#
# *How to read it:* one model, trained twice, one run each. Left, both rewards rise, so both trainings look like a success. (They are different rewards:
# compare each line with its own start, not their heights.) Right, questions that the model was never trained on: one training made the answers worse.
#
# About 7 minutes on two idle CPU cores (and three quarters of an hour of reading), under 5 GB of memory and 0.4 GB of disk. No GPU needed.
#
# As before: write each prediction down, look at the output of the next cell, and only then open the fold.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is. To use your own data instead of the sums, see [Your own data](03_your_data.ipynb).
#
# | setting | meaning |
# | --- | --- |
# | `PROMPTS` | how many questions are sampled to see if a training can learn |
# | `STEPS` | the length of each of the two trainings |
# | `CHANGES` | other settings of the preset, such as `{"learning_rate": 1e-4}` |
# | `TASK` | other arguments of `load_task`, such as `{"holdout": 0.2}` |

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
PROMPTS = 8  # @param {"type": "integer"}
STEPS = 16  # @param {"type": "integer"}
TASK = {}  # @param {"type": "raw"}

# %% [markdown]
# ## The model and the task
#
# Data is a list of rows. Each row has a question and its correct answer, the *gold answer*. `load_task` turns the rows into prompts, and
# holds some rows back for the comparison at the end.
#
# The system prompt asks for a format: the reasoning between one pair of tags, the answer between another. Each prompt also shows one solved
# question. Further below you measure what happens without it.
#
# You should see the number of rows, the kind of answers and the first prompt.

# %%
import pandas
from IPython.display import HTML, Markdown

changes = {"max_steps": STEPS, "learning_rate": 2e-4, "max_completion_length": 64}
settings = gn.preset(PRESET, **{**changes, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)

rows = []
for a in range(1, 21):
    for b in range(1, a + 1):
        rows.append({"question": f"What is {a} + {b}?", "answer": str(a + b)})
solved = ("What is 3 + 4?", "3 + 4 = 7", "7")
data = {"source": rows, "holdout": 0.4, "example": solved, **TASK}
task = gn.load_task(**data, settings=settings, tokenizer=tokenizer)
task

# %% [markdown]
# ## Rewards, tried and checked
#
# A reward is a function that turns completions into numbers. The cell has two parts.
#
# **1. One reward.** `correctness` gives 1 for the right answer between the answer tags, and 0 for everything else. The number may be
# written in several ways: 42, 42.0 or x = 42. `gn.score` calls the reward as the trainer would.
#
# **2. All rewards together.** On its own, `correctness` gives nothing until the answer is between its tags. So two rewards for the format
# are added. They weigh less than a correct answer: 1 and 0.5 against 2. `check_rewards` then tries to cheat. From your rows it builds about
# two thousand completions and looks at what each one earns. It needs no model.
#
# **Predict before you run:** look at the six `texts` in the cell below. Which of them deserve the point?
#
# <details><summary>What you should see</summary>
#
# Only the first two get it. The third hedges, the fourth writes an equation that is false, the fifth takes its answer back, and the
# last has no answer tags.
#
# The check finds nothing, and shows one line for each reward. *Tells right from wrong* compares only a simple right answer with a simple wrong
# one. Tricks are not part of it, so a reward with a loophole can get this line too.
# </details>

# %%
right = gn.rewards.correctness(weight=2.0)
texts = [
    "<reasoning>40 + 2</reasoning><answer>42</answer>",
    "<answer>x = 42.0</answer>",
    "<answer>41 or 42</answer>",
    "<answer>41 = 42</answer>",
    "<answer>42</answer> No, it is 41.",
    "The answer is 42.",
]
tried = gn.score(right, texts, {"answer": "42"})
display(tried)

rewards = [right, gn.rewards.exact_format(weight=1.0), gn.rewards.partial_format(weight=0.5)]
report = gn.check_rewards(rewards, task, tokenizer=tokenizer)
report

# %% [markdown]
# ## The reward lab
#
# Try the same by hand. Change a completion and watch its scores, its total and its advantage. Move a weight. Let the model write a
# group. On a page without a kernel, such as GitHub, you see a picture of the lab.
#
# The lab starts with three completions: (1) right, in the format, (2) right in the reasoning, wrong in the answer, (3) right, without any
# format.
#
# Under *Scores by hand* you can give your own marks; [a later notebook](08_judge.ipynb) measures a reward against such marks.
#
# **Try it.** The second completion has the advantage −0.095. Lower the weight of `correctness` until it is pushed *up*. At which weight does
# it turn? Then set the weight to 2 again, and add a second copy of the first completion.
#
# <details><summary>Answer</summary>
#
# It turns at 1.5. Then the totals are 3, 1.5 and 0, and 1.5 is their mean. With the weight 1 its advantage is +0.13, so a wrong answer
# becomes more likely.
#
# With the weight 2 and a second right completion it falls to −0.37, although nothing about it changed. Only the group decides.
# </details>

# %%
lab = gn.RewardLab(rewards, task, model, tokenizer, settings)
gold = lab.row["answer"]
wrong = next(row["answer"] for row in task.train if row["answer"] != gold)
lab.completions = [
    task.format.render(f"The sum is {gold}.", gold),
    task.format.render(f"It is {gold}, or one more.", wrong),
    f"The answer is {gold}.",
]
lab

# %% [markdown]
# ## Two rewards with loopholes
#
# Here are two rewards that many people write first. Both look harmless.
#
# * `gold_somewhere` gives a point if the gold answer occurs anywhere in the text.
# * `thinks_long` gives a point for every 20 characters, because longer thinking should be better thinking.
#
# **Predict before you run:** how would *you* get a high score from them without solving the sum?
#
# <details><summary>Answer</summary>
#
# Write a list of all possible answers: the gold answer is among them. Or write any text again and again: each 20 characters are one more
# point. In Table 1 these tricks are *every candidate* and *repetition is rewarded*.
# </details>
#
# The check finds six faults, two of them critical, and lists them in Table 1. Unfold the line below the table for an example and a
# fix of each.
#
# * *Critical*: a training that finds the trick learns the wrong thing.
# * *Warning*: points for something that you did not ask for, or that is only almost right.
#
# Neither word says how likely a trick is. Which one is learned first depends on what the model samples.
#
# <details><summary>How to read a line of the table</summary>
#
# *Every candidate* is the name of a trick. *4 of 4 such completions score like a right
# answer* is the measurement. The *slot* is the place between the answer tags. The last line may surprise you, because no reward for the
# format is in the list. But tags are text, and `thinks_long` gives points for their characters.
# </details>


# %%
def show(caption, table):
    """Show a table under its caption."""
    display(Markdown(f"**{caption}**"), table)


def gold_somewhere(completions, answer, **columns):
    """Return 1 for each completion that contains the gold answer anywhere."""
    texts = [gn.rewards.completion_text(completion) for completion in completions]
    return [1.0 if gold in text else 0.0 for text, gold in zip(texts, answer, strict=True)]


def thinks_long(completions, **columns):
    """Return one point for every 20 characters."""
    return [len(gn.rewards.completion_text(completion)) / 20 for completion in completions]


left = [{"selector": "th, td", "props": "text-align: left"}]
gold_somewhere.weight = 2.0
with_loopholes = [gold_somewhere, thinks_long]
found = gn.check_rewards(with_loopholes, task, tokenizer=tokenizer)
print(found.sentence)
tricks = pandas.DataFrame(found.findings)[["severity", "reward", "kind", "observation"]]
tricks = tricks.style.format(escape="html").hide().set_table_styles(left)
show("Table 1. Tricks that the check found", tricks)
display(HTML(f"<details><summary>Examples and fixes</summary>{found._repr_html_()}</details>"))

# %% [markdown]
# ## Watch it happen
#
# Ignore the findings and train. You should see a curve that looks like a success: within sixteen steps the total reward doubles.
#
# **Predict before you run:** which of the two loopholes will the model find first, and how would the curves of the two look?
#
# <details><summary>What you should see</summary>
#
# Length. `thinks_long` first falls to about 2 points, and then rises to more than 5, while `gold_somewhere` hardly moves before step 13. (The panel shows
# scores without weights: `gold_somewhere` can reach 1 at most, and counts twice.)
# </details>
#
# After the figure come four short tables. All points in them are weighted.
#
# * Table 2: does the advantage follow the length or the right sum (first column, steps 2 to 16)? And how far apart are the points in the first
#   group and in the last? The *spread* is their standard deviation within a group.
# * Table 3: is a long wrong text pushed up?
# * Tables 4 and 5: a group of the first step and one of the last, with the first 75 characters of each completion. Which text do you expect on top?

# %%
hacked = gn.train(model, tokenizer, task, with_loopholes, settings)

table = hacked.completions().rename(columns={"thinks_long": "length"})
table["sum"] = 2 * table["gold_somewhere"]
points = table.groupby(["step", "group"])[["sum", "length"]]
from_mean = table[["sum", "length"]] - points.transform("mean")
learned = table["step"] > 1  # in step 1 the learning rate is 0
correlation = from_mean[learned].corrwith(table["advantage"])
decides = pandas.DataFrame({"correlation with the advantage": correlation})
decides["spread, first group"] = points.std().loc[(1, 0)]
decides["spread, last group"] = points.std().loc[(STEPS, 0)]
show("Table 2. What the advantage follows, from step 2 on", decides.style.format(precision=2))
is_long = (from_mean["length"] > 0).map({True: "longer than its group", False: "shorter"})
has_sum = table["sum"].map({2: "right sum somewhere", 0: "no right sum"})
means = table[learned].groupby([is_long, has_sum])["advantage"].mean().unstack()
means = means.rename_axis(index=None, columns=None).style.format("{:+.2f}")
show("Table 3. Mean advantage, from step 2 on", means)
table["completion"] = table["completion"].str.split().str.join(" ").str[:75]
columns = ["sum", "length", "total", "advantage", "completion"]
for number, step in ((4, 1), (5, STEPS)):
    group = table.query("step == @step and group == 0").sort_values("advantage", ascending=False)
    question = hacked.step(step).groups[0].question
    lines = group[columns].style.format(precision=2, escape="html").hide().set_table_styles(left)
    show(f"Table {number}. Points and advantages in step {step}: {question}", lines)

# %% [markdown]
# ### Why this one?
#
# Why length, and not the list of all answers, which the check called *critical*? None of the completions above lists them, and GRPO can
# only make more frequent what the model samples. Long texts are among its samples.
#
# Long texts also win, because the advantage is computed from the *total*. Table 2: in steps 2 to 16 the advantage follows the length
# (correlation 0.82) more than the points for the right sum (0.45). Table 3: on average, a text longer than its group was pushed up *even without* the right sum
# (+0.84), and a shorter one was pushed down *even with* it (−0.19).
#
# Table 4 shows how this happens. Its first line is a long text without the sum. It earns 15.75 for its length, and its advantage is +2.07. The
# fourth line is the right answer, in its place. It earns 2 + 2.85 = 4.85, and its advantage is −0.32. (This group shows what the original model
# samples. In step 1 the learning rate is still 0, so this group itself changed nothing. Steps 2 to 16 did.)
#
# This is **reward hacking**: the model learns what you scored, not what you wanted. The check called it only a *warning*: read warnings too.
#
# **Which reward decides?** For each reward, multiply its weight by the standard deviation of its scores within the group. Table 2 shows this product,
# because its points are already weighted: in the first group 4.98 for the length and 0.93 for the sum. Usually the largest product decides,
# whether the check called its fault *critical* or *warning*.
#
# **Look again** at the last group, Table 5: all eight texts earn the 2 points of `gold_somewhere`. How many write 7, and only that, between the answer
# tags? What does the model learn from these points?
#
# <details><summary>Answer</summary>
#
# None: two write an equation there, such as `4 + 3 = 7`, two even answer 22 and 10, one writes *yes*, and the three long ones fill the place of the
# answer with words. But a 7
# stands in the reasoning of all eight, so all earn the 2 points: the trick *answer outside the slot*. Since all earn them, these points move no
# advantage (spread 0.00). Only length is left.
# </details>
#
# ### Does the held-out measure see it?
#
# The comparison asks the held-out questions and grades with `correctness`, which this training never used. *Correct anywhere* reads the last
# number of a completion. You know from the picture at the top that it falls.
#
# **Predict before you run:** the limit is 64 tokens, and none of the greedy answers before the training runs into it. How many do after it? And
# what happens to *correct*?
#
# <details><summary>What you should see</summary>
#
# 30 % of the answers are truncated. *Correct anywhere* fell from 58 % to 12 %, and *correct* from 10 % to 1 %. *In the format* rose from 11 % to
# 29 %. No reward asked for the format, but tags are characters, and `thinks_long` paid for them (last line of Table 1). This run does not show
# whether that is the reason.
#
# The total shows none of this: it rises. Three things show it: a check of the reward beforehand, the completions themselves, and a held-out
# measure that was not trained on.
# </details>

# %%
after_hacking = gn.compare(hacked, task, grader=gn.rewards.correctness())
after_hacking

# %% [markdown]
# ### Did it unlearn adding?
#
# The last number of the completion is right less often than before. That could mean two things:
#
# * the model no longer computes the sum, or
# * it computes the sum, and then writes on until another number is the last one.
#
# **Predict before you run:** which of the two? The cell counts the completions that have the right sum after a `=`.
#
# <details><summary>What you should see</summary>
#
# The second. The right sum is there in 49 of 84 completions before the training, and in 54 after it. So this model can still add (though a text
# of twice the length also has more chances to contain a sum). Its habit changed: it writes on where the answer belongs. One run shows that this
# can happen, not that it always does.
# </details>

# %%
import re

answers = after_hacking.transcripts()
for name in ("before", "after"):
    has_sum = [
        bool(re.search(rf"= {gold}\b", str(text)))
        for gold, text in zip(answers["answer"], answers[name], strict=True)
    ]
    print(f"{name}: the right sum is after a = in {sum(has_sum)} of {len(has_sum)} completions")

# %% [markdown]
# ## Close the loopholes
#
# **Before you read the code:** which line of `gold_somewhere` would you change, and into what?
#
# <details><summary>What was changed</summary>
#
# The line that compares: `gold in text` became `extract_final(text) == gold`. `extract_final` returns the text between the answer tags. The
# bonus for length is dropped, because length is not what you want. The two rewards for the format are those from the beginning.
# </details>
#
# You should see that nothing is found any more.


# %%
def gold_in_its_place(completions, answer, **columns):
    """Return 1 for each completion whose answer tags hold the gold answer and nothing else."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = gn.rewards.completion_text(completion)
        scores.append(1.0 if task.format.extract_final(text) == gold else 0.0)
    return scores


gold_in_its_place.weight = 2.0
repaired = [gold_in_its_place, *rewards[1:]]  # with the two rewards for the format
fixed = gn.check_rewards(repaired, task, tokenizer=tokenizer)
fixed

# %% [markdown]
# ## Will training get a signal?
#
# A sound reward is not enough. GRPO learns from differences *within* a group. If all completions of a group get the same total, right or
# wrong, the step teaches nothing. So let the model write some groups before you train.
#
# **Predict before you run:** the cell measures twice, first without the solved question in the prompts, then with it. Does one example matter?
#
# <details><summary>What you should see</summary>
#
# * Without the example: **no signal**. No completion contains a tag, so every total is 0. Training would run to its end with a flat curve and
#   no error.
# * With the example: **signal**. The totals differ in all 8 groups. A larger model may know the format without an example.
#
# Then read two columns of the table by reward. *Groups with a signal* counts the groups in which the reward differs at all: only 2 of 8 for
# `gold_in_its_place`. *Std within groups* is the spread inside a group. Times the weight, it says how much this reward decides. Here: 2 · 0.088
# = 0.18 for the sum, and 1 · 0.21 = 0.21 and 0.5 · 0.3 = 0.15 for the two format rewards, which rise together. So expect the format first.
#
# *0 % of the greedy ones* does not contradict the 10 % of the comparison above. Here none of 8 questions is right, there 8 of 84 were. Eight
# questions are enough to see if groups differ, and too few to measure a share.
# </details>

# %%
# `gn.train` has changed the LoRA of the model above, so load the model again.
model, tokenizer = gn.load_model(settings, report=print)
plain_task = gn.load_task(**{**data, "example": None}, settings=settings, tokenizer=tokenizer)
without_example = gn.baseline(model, tokenizer, plain_task, repaired, settings, prompts=PROMPTS)
with_example = gn.baseline(model, tokenizer, task, repaired, settings, prompts=PROMPTS)
display(Markdown("#### Without the example"), without_example)
display(Markdown("#### With the example"), with_example)

# %% [markdown]
# ## Train with the sound rewards
#
# The original model, the same prompts and the same number of steps. Only the rewards differ: this time `gold_in_its_place` and the two for the
# format. You should see the reward rise again. This time the held-out answers improve too.
#
# **Predict before you run:** what decides the advantages in the first steps, in the middle, and at the end: the format or the sum? Table 6
# shows the spread of both, four steps at a time. Then look at the curve of `gold_in_its_place`: when does it rise?
#
# <details><summary>What you should see</summary>
#
# First the format. In steps 1 to 4 its spread is 0.51, that of the sum 0.27; in steps 5 to 8 it is 0.45 against 0.26. Then nearly all
# completions are in the format, and the sum decides: 0.66 against 0.11 of the format in steps 9 to 12, and 0.44 against 0.04 in steps 13 to 16. In the figure, `gold_in_its_place` rises last.
# </details>

# %%
sound = gn.train(model, tokenizer, task, repaired, settings)
table = sound.completions()
table["format"] = table["exact_format"] + 0.5 * table["partial_format"]
table["sum"] = 2 * table["gold_in_its_place"]
spread = table.groupby(["step", "group"])[["format", "sum"]].std()
first = (spread.index.get_level_values("step") - 1) // 4 * 4 + 1
spread["steps"] = [f"steps {step} to {step + 3}" for step in first]
by_steps = spread.groupby("steps", sort=False).mean().round(2).rename_axis(None)
show("Table 6. Spread of the points within a group, mean of four steps", by_steps)
comparison = gn.compare(sound, task, grader=gn.rewards.correctness())
comparison

# %% [markdown]
# ## Did it work?
#
# The cell stops with a message if one of four checks fails. Then it prints the results.
#
# **What the curves show.** Both trainings raised their reward by more than chance: steps in a random order would hardly ever rise as steadily (the
# *Mann-Kendall test*). So the reward alone would call both a success. The KL gives no warning either. In the captions, which show its mean over the last third of the steps, it is 0.094 with loopholes and 0.184 without. (The progress
# bar shows the last step alone: 0.078 and 0.024.) A KL says how far the model has moved, not whether in the right direction.
#
# **What should have made you look.** With loopholes 22 % of the completions of the last third were truncated, against 1 % without, and most of the rise came from the
# length. But neither of the two tells you that answers are wrong. For that, read a group: Table 5 has the answers 22 and 10 to 4 + 3. The held-out questions then say how often:
# the last number is right in only 12 % of them.
#
# **Why is the format learned first?** The format differs in more groups: before the training `partial_format` differed in all 8, the sum in only 2. And
# the tags are the same in every prompt, so the pushes of different groups can add up. Each sum has another answer.
#
# **What cured it?** Three things changed: where the answer is read, no bonus for length, and two rewards for the format. One run with one seed
# cannot say which of them did it. [The quickstart's seeds](../docs/evidence/quickstart_seeds.md) show how much such a gain varies. Exercise 2
# changes only where the answer is read.
#
# **Before each training:** `check_rewards`, then weight times spread for each reward, then read one group. **After it:** held-out questions, with a
# measure that was not trained on. Here that is *correct anywhere*, the last number in the text. *Correct* would not do for the second training,
# because `gold_in_its_place` is nearly the same function.

# %%
import textwrap

assert tried.values["correctness"] == (1, 1, 0, 0, 0, 0), "correctness rewarded another text"
assert report.ok, report.sentence
assert any(finding.severity == "critical" for finding in found.findings), "no loophole was found"
assert fixed.ok, fixed.sentence
rise = hacked.rise()
print(textwrap.fill(f"With loopholes: {rise.sentence}", 90))
print(textwrap.fill(f"Without loopholes: {sound.rise().sentence}", 90))
print(f"Held-out answers, with loopholes: {after_hacking.headline}")
print(f"Held-out answers, without loopholes: {comparison.headline}")
print(f"Signal without an example: {without_example.verdict}. With one: {with_example.verdict}.")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *must not be imported before* | another import came first | restart the kernel and run from the top |
# | the lab is a table without buttons | ipywidgets is not installed where Jupyter runs, or the page has no kernel | `pip install ipywidgets`, reload the page, run the cell again; or use `gn.score` |
# | *needs the data column* | the reward asks for a column that your rows lack | rename it: `gn.load_task(..., columns={...})` |
# | *hangs*, or *some probes, because it is slow* | a reward is too slow, or does not end on a hostile text | look at the text in the table; `seconds_per_call=` allows more |
# | *no signal* with an example | the task is too hard or too easy, or completions are truncated | all wrong: easier questions; all right: harder ones; truncated: a longer limit |
# | *weak signal* | too few groups to say | `PROMPTS = 32` |
#
# ## Exercises
#
# **1. Would a larger weight have helped?** (five minutes, with pencil and paper). In the first group of the hacked training (Table 4), six of eight
# completions contain the right sum, and length earns 4.79 points on average. The right answer in its place earns 2.85 for its length. How large
# must the weight $w$ of `gold_somewhere` be, so that this answer is above the average of the group? What would you change instead?
#
# <details><summary>Answer</summary>
#
# The answer earns $w + 2.85$, and the average is $0.75 w + 4.79$. So it is above the average from $w = 7.8$ on. But the critical findings stay
# at every weight. Give the bonus a maximum instead, `min(1.0, ...)`, or leave it out.
# </details>
#
# **2. What cured it?** (five minutes, with pencil and paper). The sound training reads the answer in its place, and it does not reward
# length. Suppose that `gold_in_its_place` replaces `gold_somewhere`, `thinks_long` stays, and no reward for the format is added. In the first
# group (Table 4), only the right answer in its place keeps its 2 points. Is it pushed up now?
#
# <details><summary>Answer</summary>
#
# No. The totals are 15.75, 8.20, 4.85, 4.30, 2.65, 2.35, 1.75 and 0.50, and their mean is 5.04. The right answer (4.85) is still pushed down, by
# −0.04, and the long text gets +2.17. A sound reward does not save you from an unbounded one next to it.
#
# With at most one point for length, the totals are 3, six times 1, and 0.5. Their mean is 1.19, and the right answer gets +2.41.
# </details>
#
# **3. Write one, and attack it** (a quarter of an hour; put each step into a cell of its own). Write a reward `shows_work` that gives 1 point if the right
# sum stands after a `=` anywhere in the completion. Run `gn.check_rewards([*rewards, shows_work], task)`. Then be the model: find two texts that get
# the point without the right sum (`gn.score(shows_work, texts, {"answer": "7"})`). Repair the reward, and score your texts again.
#
# <details><summary>Answer</summary>
#
# Written like `gold_somewhere`, with `f"= {gold}" in text`, it passes: the check finds nothing. But for *What is 4 + 3?* it pays `4 + 3 = 71`, which
# begins with `= 7`, and it pays the list `= 1 = 2 = 3 = 4 = 5 = 6 = 7 = 8 = 9`. Read only the last number after a `=`, up to its end:
# `re.findall(r"= (\d+)\b", text)[-1:] == [gold]`. Then both texts get 0, and `4 + 3 = 7` still gets 1.
# *Nothing found* never means that a reward is safe: it means that no trick of the list works. Inventing your own is the best test of a reward.
# </details>
#
# ## Next
#
# * Choose rewards for your own answers: [the guide to rewards](../docs/guide/rewards.md), with [recipes](../docs/guide/recipes.md).
# * Keep what you tried as a test: `assert gn.score(reward, [text], row).totals == (0.0,)`.
# * Stop a script before it wastes hours: `gn.check_rewards(rewards, task).raise_if_critical()`.
#
# @NEIGHBOURS@
