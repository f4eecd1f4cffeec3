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
# # Your own data: from a CSV to a trained model
#
# Turn a messy CSV with labels into a task, write two rewards, train, and compare the result with two simple competitors: always giving the most
# frequent label, and counting words. You will see a training that passes its test and hardly ever gives one of the three labels. Finding this,
# and why, is the lesson.
#
# **Is GRPO the right tool here?**
#
# | you have | use |
# | --- | --- |
# | a label for each row, and want only the label | a small classifier: try it first |
# | good texts to imitate | supervised fine-tuning |
# | no texts, but a program that can check one | GRPO |
#
# For labels alone GRPO is not the right tool. For replies it would be: *write at most 30 words that name the thing, and apologise if the remark is
# negative*. A program can check all of it, and nobody has written the replies (exercise 2). This notebook uses labels, because they are easy to
# count: you see which labels GRPO learns. The model also writes a short reason before each label. Nothing here rewards a
# *good* reason.
#
# About 8 minutes on two idle CPU cores, up to 6.1 GB of memory and 0.4 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# To use your own data, put the path of your file into `DATA` (or a DataFrame, a `datasets.Dataset`, or the id of a dataset on the Hub),
# and write into `COLUMNS` which column is the question and which is the answer. `EXAMPLE` is one solved question that is shown in every
# prompt: question, reasoning, answer. A small model needs it.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {"max_steps": 24, "per_device_train_batch_size": 32}  # @param {"type": "raw"}
DATA = "reviews.csv"  # @param {"type": "raw"}
COLUMNS = {"question": "Guest's remark", "answer": "mood (by hand)"}  # @param {"type": "raw"}
EXAMPLE = ("The bed was on the left.", "on the left is a fact", "neutral")  # @param {"type": "raw"}

# %% [markdown]
# ## A file as it comes
#
# This cell writes a CSV as a hotel might have it: remarks of guests, each with one of three moods. The columns are separated by
# semicolons, the text is not in UTF-8, and the file has the usual faults: a remark without a mood, a mood without a remark, a repeated
# row, and one remark with two different moods. (The remarks are generated from ten things and fourteen phrases, so the held-out ones
# combine known words in a new way. Your own data will be harder.)

# %%
import pathlib

things = ["soup", "room", "café", "bed", "view", "staff", "shower", "breakfast", "garden", "lift"]
words = {
    "positive": ["wonderful", "excellent", "a delight", "perfect", "great", "superb"],
    "negative": ["awful", "a disgrace", "terrible", "disgusting", "dreadful"],
    "neutral": ["on the first floor", "as described", "open until nine"],
}
lines = ["Guest's remark;mood (by hand)"]
for mood, phrases in words.items():
    for thing in things:
        lines += [f"The {thing} was {phrase}.;{mood}" for phrase in phrases]
lines += ["The tea was cold.;", ";positive", lines[1]]  # no mood, no remark, a repeated row
lines += ["The bar was loud.;negative", "The bar was loud.;neutral"]  # two moods
if DATA == "reviews.csv":
    pathlib.Path(DATA).write_bytes("\n".join(lines).encode("cp1252"))
print(*lines[:3], "...", *lines[-5:], sep="\n")

# %% [markdown]
# ## First attempt
#
# You should see two errors. Each message says what to write instead. The kit does not guess which column is which, and it asks you what to do
# when one question has two different answers.

# %%
settings = gn.preset(PRESET, **{"gradient_accumulation_steps": 1, **CHANGES})
for attempt in ({}, {"columns": COLUMNS}):
    try:
        gn.load_task(DATA, settings, **attempt)
    except ValueError as error:
        print(error, end="\n\n")

# %% [markdown]
# ## The task
#
# Now with the columns and a decision. Read the result from top to bottom:
#
# * **rows left out**: each of these rows is counted here, with the reason and an example.
# * **answers**: the kit found that the answers are labels (a *choice*), so the system prompt asks for *one of* them.
# * **the first prompt**, as the model gets it, with the solved example. `system="..."` replaces the text of the system prompt.
#
# The small table counts the moods. The rows were split at random: *neutral* is rare in one part and frequent in the other.

# %%
import pandas

model, tokenizer = gn.load_model(settings, report=print)
task = gn.load_task(
    DATA,
    settings,
    columns=COLUMNS,
    example=EXAMPLE,
    on_conflict="drop",
    holdout=0.3,
    tokenizer=tokenizer,
)
parts = {"trained on": task.train, "held out": task.holdout}
moods = {part: pandas.Series([row["answer"] for row in rows]) for part, rows in parts.items()}
display(pandas.DataFrame({part: labels.value_counts() for part, labels in moods.items()}))
task

# %% [markdown]
# ## Rewards of your own
#
# A reward is a function: it gets the completions and the columns of your data, and returns one number for each completion. (Your column with
# the answers is called `answer` here, whatever its name in the file.) The
# attribute `weight` says how much it counts in the sum. Here are two. The first gives a point if the right label occurs anywhere in the
# text, the way many people first write it. The second gives a point for a short reason of three to fifteen words. This is only a wish about
# the form and says nothing about the mood, so its weight is small.
#
# **Predict before you run:** write a wrong completion that still earns the point of the first reward, and find two more kinds. (The check
# lists them. `short_reason` should follow neither answers nor format: it is about length only.)


# %%
def names_the_mood(completions, answer, **columns):
    """Return 1 for each completion that contains the right label."""
    scores = []
    for completion, label in zip(completions, answer, strict=True):
        text = gn.rewards.completion_text(completion)
        scores.append(1.0 if label in text else 0.0)
    return scores


def short_reason(completions, **columns):
    """Return 1 for each completion with a reason of three to fifteen words."""
    scores = []
    for completion in completions:
        reason = task.format.reasoning(gn.rewards.completion_text(completion))
        scores.append(1.0 if 3 <= len(reason.split()) <= 15 else 0.0)
    return scores


names_the_mood.weight = 2.0
short_reason.weight = 0.25
with_loophole = gn.check_rewards([names_the_mood, short_reason], task, tokenizer=tokenizer)
with_loophole

# %% [markdown]
# ## The loophole, closed
#
# The worst finding: a completion that names all three labels always gets the point. `rewards_for` returns rewards that fit the
# answers of this task: `exact_text` (weight 2), which reads the answer from its tags and nothing else, and two rewards for the format (1 and
# 0.5). Your second reward stays, with the weight 0.25. You should see that nothing is found any more.

# %%
rewards = [*gn.rewards.rewards_for(task), short_reason]
report = gn.check_rewards(rewards, task, tokenizer=tokenizer)
report

# %% [markdown]
# ## What can the model do already?
#
# `baseline` samples some groups as the training would, and scores them. It also names the **majority-class baseline**: the share of
# correct answers that you would get by always giving the most frequent label, without reading anything. A model that does not beat it
# may not have read the remarks at all.
#
# The second table counts the right answers by mood. It matters, because GRPO can only make more frequent what the model already samples: a group
# in which nobody answers *neutral* cannot teach *neutral*.
#
# <details><summary>What you should see</summary>
#
# *Signal*. Sampled, 22 % of the answers are right; greedily, 68 %. Sampling picks an unlikely token now and then, so 46 % of the samples have no
# answer that can be read. So the model is sometimes right, but not reliably. This is what training can improve. The verdict
# looks at all groups together. The table by mood is the warning: of 48 sampled answers to *neutral* remarks 2 are right, and in 4 of the 6
# groups there is none.
# </details>

# %%
gate = gn.baseline(model, tokenizer, task, rewards, settings, prompts=60)
sampled = pandas.DataFrame({"mood": [row["answer"] for row in gate.rows]})
sampled["right answers"] = [sum(group) for group in gate.is_correct_by_group]
sampled["groups without one"] = sampled["right answers"].eq(0)
sampled["groups"] = 1
display(gate)
sampled.groupby("mood").sum()[["groups", "right answers", "groups without one"]]

# %% [markdown]
# ## Train
#
# Twenty-four steps with 4 prompts and 8 completions each. The reward may fall for a step or two: with four prompts in a step, luck matters.
#
# **Predict before you run**, twice:
#
# 1. Which curve gets near its maximum first, format or labels, and why?
# 2. Before the training, one in 24 sampled answers to *neutral* remarks is right. Of the 24 × 4 = 96 groups about 15 have such a remark. In how
#    many of these do you expect at least one right answer among the eight? Which mood will be learned last?
#
# <details><summary>What you should see</summary>
#
# The format. Before the training about half of the completions have it, so nearly every group holds good and bad examples of it. It is the same
# for all remarks, so its pushes add up ([Rewards](02_rewards.ipynb)). A right label is rarer, and each mood must be learned by itself.
#
# Eight answers all miss with the probability $(23/24)^8 = 71\%$. So a right one is in 29 % of the groups: about 4 of 15, and a few more once
# the format is learned. The other groups cannot teach the label. So *neutral* should come last, if at all. (The figure does not show the moods.
# Section *Why it fails* counts.)
# </details>

# %%
run = gn.train(model, tokenizer, task, rewards, settings)

# %% [markdown]
# ## Before and after
#
# The held-out remarks were never trained on. The model answers each of them greedily, as somebody who uses it would do. Read
# the three rows *correct*, *in the format* and *correct anywhere*, and then the sentence about the majority-class baseline: a
# model below it may not read the remarks at all. The column *verdict, p-value* says whether the *training* improved
# anything. Held out, 15 of 42 remarks are *neutral*; in the baseline 6 of 60 were. So always answering *positive* gets only 36 %, and the model
# starts at 45 %, not at 68 %.
#
# The first line of the output is the second competitor: a few lines that count which words came with
# which mood. **Predict before you run:** will our trained model beat it?
#
# <details><summary>What you should see</summary>
#
# The model gains: 45 % before, 64 % after. Only after the training is its accuracy clearly above the majority-class baseline. Before the training the interval
# (31 % to 60 %) contains the baseline, so the accuracy alone does not show that the model reads the remarks.
#
# It does not beat the second competitor: counting words gets all 42 remarks right, and the model 27. GRPO earns its place where the output is more than a
# label: where a program can check a text that nobody has written.
# </details>

# %%
import collections

seen, total = collections.Counter(), collections.Counter()
for row in task.train:
    for word in row["prompt"][-1]["content"].split():
        seen[word, row["answer"]] += 1
        total[word] += 1
labels = sorted({row["answer"] for row in task.train})


def by_counting(row):
    """Return the label that most often came with the words of a remark."""
    known = [word for word in row["prompt"][-1]["content"].split() if total[word]]
    return max(labels, key=lambda label: sum(seen[word, label] / total[word] for word in known))


right = sum(by_counting(row) == row["answer"] for row in task.holdout)
print(f"Counting words: {right} of {len(task.holdout)} held-out remarks are right.")
comparison = gn.compare(run, task)
comparison

# %% [markdown]
# ## Where it fails
#
# One number for all remarks hides *which* answers are wrong. `transcripts()` returns every answer with its grade. You see which labels the
# model gave to each mood, before and after, and what it wrote about two neutral remarks.
#
# **Predict before you run:** are the right answers spread evenly over the three moods?
#
# <details><summary>What you should see</summary>
#
# All *positive* and *negative* remarks are right, and not one *neutral* remark, although the example in the prompt is neutral.
#
# Now read the two remarks. The reason is right (*is a fact*, as in the example of the prompt), and the answer does not follow from it.
# Nothing asks for a reason that leads to the answer: the reward looks at the answer and at the length of the reason. A reward for the label
# alone does not give you good reasons.
# </details>

# %%
answers = comparison.transcripts()
greedy = {}
for name in ("before", "after"):
    given = answers[name].map(task.format.extract_final).rename("given")
    given = given.where(given.isin(labels), "none of them")
    table = pandas.crosstab(answers["answer"].rename("mood"), given)
    greedy[name] = table.reindex(columns=[*labels, "none of them"], fill_value=0)
display(pandas.concat(greedy, axis="columns"))
for row in answers[answers["answer"] == "neutral"].head(2).itertuples():
    print(row.question, "BEFORE:", row.before, "AFTER:", row.after, sep="\n", end="\n\n")

# %% [markdown]
# ## Why it fails
#
# The run has kept every completion of the training with its advantage, so you can look for the reason. Three tables:
#
# 1. the right answers to each mood, counted in the first, middle and last third of the steps,
# 2. in how many groups at least one of the eight answers was right,
# 3. the sum of the advantages of each answer, by the mood of the remark, in groups with a right answer and without. Each row adds up to 0: what
#    one answer gains, others lose.
#
# **Predict before you run:** to a neutral remark four completions answer *positive* in the format, and four write no tags. Nobody answers *neutral*.
# Which of them are pushed up?
#
# <details><summary>What you should see</summary>
#
# The four wrong *positive*. They earn 1.5 for the format and the others 0, so their advantage is +0.94. An advantage compares a completion with
# its group, not with the truth.
#
# The row *neutral, none* shows it. In these 8 groups *positive* got +4.3 and *negative* +3.2, at the expense of completions without a label
# (−7.4), and *neutral* got 0. **A group without a right answer cannot teach the label. It still pushes wrong ones up.**
#
# You predicted 4 groups with a right answer; there were 7. Add the two rows of *neutral*: *neutral* got +18.0, *no label* −19.4, and *positive*
# only −0.5. So the neutral remarks taught the model to give a label, and hardly to stop saying *positive*. Positive remarks pushed *positive* up
# by 105.4, and all remarks share one LoRA. Probably this is why *neutral* fell from 9 of 48 right answers in the first third to 1 of 40 in the last.
# </details>

# %%
import json

mood_of = {json.dumps(row["prompt"]): row["answer"] for row in task.train}
tried = run.completions()
tried["mood"] = tried["prompt"].map(mood_of)
tried["right"] = tried["exact_text"].eq(1)
thirds = pandas.cut(tried["step"], 3, labels=["first third", "middle", "last third"])
counts = tried.groupby(["mood", thirds], observed=True)["right"].agg(["sum", "count"])
of_all = counts["sum"].astype(str) + " of " + counts["count"].astype(str)
display(of_all.unstack().rename_axis(columns="right answers"))

has_right = tried.groupby(["step", "prompt"])["right"].transform("any")
tried["right in the group"] = has_right.map({True: "at least one", False: "none"})
first_of_group = tried.drop_duplicates(["step", "prompt"])
display(pandas.crosstab(first_of_group["mood"], first_of_group["right in the group"]))

given = tried["completion"].map(task.format.extract_final)
tried["given"] = given.where(given.isin(labels), "no label")
kinds = ["mood", "right in the group"]
pushes = tried.pivot_table("advantage", kinds, "given", aggfunc="sum", fill_value=0)
display(pushes.round(1).rename_axis(columns="sum of the advantages"))

# %% [markdown]
# ## Did it work?
#
# *It worked* needs three measurements that agree: the answers are better by a test, they are clearly above the majority-class baseline,
# and the reward rose. If one is missing, the sentence says which one.
#
# For the small model you should see *It worked*. That is true, and it is not the whole story: the tables above show that the
# model never answers *neutral*. A clear verdict on the average does not replace a look at the parts.
#
# Equally many rows of each mood and more steps: we trained once with three phrases for each mood and 36 steps, and all of 27 held-out remarks were
# right, among them all 7 neutral ones (52 % before). Three things differ in it (the phrases, the balance, the steps), so it does not say which helped. In `words`, keep the first three phrases of each mood, and add
# `{"max_steps": 36, "per_device_train_batch_size": 32}` to `CHANGES`.

# %%
assert sum(task.left_out.values()) >= 4 or DATA != "reviews.csv", f"left out: {task.left_out}"
assert not with_loophole.ok
assert report.ok, report.sentence
assert run.status == "finished", run.status_sentence
print(run.outcome(comparison))

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *has no column* | `COLUMNS` names a column that is not in the file | copy the line at the end of the message |
# | *with different answers* | the same question has two answers | `on_conflict="drop"` or `"first"` |
# | *answers: text* where you have labels | fewer than three rows for each label (on average), or more than 24 labels | more rows, or `kind="choice"` |
# | *nothing in the prompt names &lt;answer&gt;* | your own `system=` does not describe the format | describe it, or give an `example` |
# | *no signal* | all completions of a group get the same total | an `EXAMPLE`, easier questions, partial credit |
# | a label that is never right | too few rows, so few groups that teach it | as many rows for each label, more steps |
# | *the settings are not those of the loaded model* | the settings changed after the model was loaded | run the cell with `load_model` again |
#
# ## Exercises
#
# **1. How large must a group be?** (five minutes, with a calculator). One sampled answer in ten is right. How many completions does a group need,
# so that nine groups in ten hold at least one right answer? What does that cost, and what else could you change?
#
# <details><summary>Answer</summary>
#
# $1 - 0.9^n \ge 0.9$ needs $n \ge \ln 0.1 / \ln 0.9 = 21.9$, so 22. In practice 24, with a batch of 96 for four prompts: three times
# the sampling. Cheaper: make a right answer more frequent before the training (some supervised steps), give partial credit, or choose questions
# that are a little easier. With one answer in four right,
# eight are enough: $1 - 0.75^8$ is 90 %.
# </details>
#
# **2. A reward without a right answer** (ten minutes). Nobody has written replies to these remarks, but a program can check one. Score the three
# replies. Which one cheats, and what would you change?
#
# ```python
# def fit_reply(completions, answer, thing, **columns):
#     scores = []
#     for completion, mood, name in zip(completions, answer, thing):
#         text = gn.rewards.completion_text(completion).lower()
#         is_short = len(text.split()) <= 30
#         fits_mood = ("sorry" in text) == (mood == "negative")
#         scores.append((is_short + (name in text) + fits_mood) / 3)
#     return scores
#
# replies = ["We are sorry about the soup.", "Soup sorry.", "We are glad!"]
# gn.score(fit_reply, replies, {"answer": "negative", "thing": "soup"})
# ```
#
# <details><summary>Answer</summary>
#
# 1, 1 and 1/3: *Soup sorry.* earns as much as a sentence. A minimum of six words helps a little. For what a program cannot check there is a
# [judge](08_judge.ipynb).
# </details>
#
# ## Next
#
# * Every source, format and kind of answer: [the guide to data](../docs/guide/data.md). Which reward for which: [the guide to rewards](../docs/guide/rewards.md).
# * Try rewards by hand: [Rewards](02_rewards.ipynb).
# * Memory, alerts, resuming: [Train](04_train.ipynb).
#
# @NEIGHBOURS@
