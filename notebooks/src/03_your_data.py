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
# Turn a messy CSV with labels into a task, write two rewards, train, and test the result. You will see a training that passes its
# test. Yet in this test the model never answers *neutral*, one of the three labels. You will find out why.
#
# ![Right answers to the 42 held-out remarks, before and after the training: negative 6 and 12 of 12, neutral 0 and 0 of 15, positive 13 and 15 of 15. All together 19 and 27 of 42.](../docs/your_data.png)
#
# *How to read it:* each bar counts right answers to remarks that the model was never trained on. All together they clearly improve. One label
# stays at 0.
#
# About 8 minutes on two idle CPU cores, up to 6.1 GB of memory and 0.4 GB of disk. No GPU needed.
#
# ### Is GRPO the right tool here?
#
# | you have | use |
# | --- | --- |
# | a label for each row, and want only the label | a small classifier: try it first |
# | good texts to imitate | supervised fine-tuning |
# | no texts, but a program that can check one | GRPO |
#
# For labels alone, GRPO is the wrong tool. This notebook uses labels because you can count them, and so see what GRPO learns. For replies it would be the
# right tool: *write at most 30 words that name the thing, and apologise if the remark is negative*. A program can check all of it, and
# nobody has written the replies. Exercise 2 writes such a reward, and [08](08_judge.ipynb) trains with one.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# For your own data, change three settings:
#
# | setting | write |
# | --- | --- |
# | `DATA` | the path of your file, a DataFrame, a `datasets.Dataset`, or the id of a dataset on the Hub |
# | `COLUMNS` | the name of the column with the question, and of the one with the answer |
# | `EXAMPLE` | one solved question: question, reasoning, answer. Every prompt shows it, and a small model needs it |
#
# Give your own file another name than `reviews.csv`. The cell of *A file as it comes* writes a file of that name.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {"max_steps": 24, "per_device_train_batch_size": 32}  # @param {"type": "raw"}
DATA = "reviews.csv"  # @param {"type": "raw"}
COLUMNS = {"question": "Guest's remark", "answer": "mood (by hand)"}  # @param {"type": "raw"}
EXAMPLE = ("The bed was on the left.", "on the left is a fact", "neutral")  # @param {"type": "raw"}

# %% [markdown]
# ## A file as it comes
#
# This cell writes a CSV as a hotel might have it: remarks of guests, each with one of three moods. It has the usual faults:
#
# * the columns are separated by semicolons, and the text is not in UTF-8,
# * a remark has no mood, and a mood has no remark,
# * a row is repeated,
# * one remark has two different moods.
#
# The remarks are generated from ten things and fourteen phrases. So the held-out ones only combine known words in a new way. Your own data
# will be harder.

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
# You should see two errors. The kit does not guess which column is which, and it asks you what to do when one question has two different
# answers. Each message says what to write instead.

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
# Now with the columns and a decision. The small table counts the moods. The random split is unlucky: 15 of 98 training
# rows are *neutral* (15 %), but 15 of 42 held-out rows (36 %). For your own data, pass held-out rows in which every label has the same share: `holdout=rows`.
#
# Read the rest from top to bottom:
#
# * **rows left out**: each of these rows is counted, with the reason and an example.
# * **answers**: the kit found that the answers are labels (a *choice*), so the system prompt asks for *one of* them.
# * **the first prompt**, as the model gets it, with the solved example. `system="..."` replaces the text of the system prompt.

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
# A reward is a function. It gets the completions and the columns of your data, and returns one number for each completion. The column with
# the answers is always called `answer`, whatever its name in the file. The attribute `weight` says how much the reward counts in the sum.
#
# * `names_the_mood` gives a point if the right label occurs anywhere in the text, the way many people first write it.
# * `short_reason` gives a point for a reason of three to fifteen words. This is only a wish about the form, so its weight is small.
#
# **Predict before you run:** write a wrong completion that still earns the point of the first reward. The output shows the worst trick that
# the check found. A *slot* is the place between the answer tags.


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
        reason = task.format.extract_reasoning(gn.rewards.completion_text(completion))
        scores.append(1.0 if 3 <= len(reason.split()) <= 15 else 0.0)
    return scores


names_the_mood.weight = 2.0
short_reason.weight = 0.25
with_loophole = gn.check_rewards([names_the_mood, short_reason], task, tokenizer=tokenizer)
print(with_loophole.sentence)
display(*with_loophole.findings[:1])

# %% [markdown]
# ## The loophole, closed
#
# A completion that names all three labels always gets the point. `rewards_for` returns rewards that fit the answers of this task:
# `exact_text` (weight 2), which reads only what is between the answer tags, and two rewards for the format (1 and 0.5). Your second reward
# stays, with the weight 0.25.
#
# You should see that nothing is found any more. `short_reason` follows neither answers nor format: it looks only at the length.

# %%
rewards = [*gn.rewards.rewards_for(task), short_reason]
report = gn.check_rewards(rewards, task, tokenizer=tokenizer)
report

# %% [markdown]
# ## What can the model do already?
#
# `baseline` samples some groups as the training would, and scores them. It also names the **majority-class baseline**: the share of correct
# answers if you always give the most frequent label. A model that does not beat it may not have read the remarks at all.
#
# The second table counts the right answers by mood. It matters, because GRPO can only make more frequent what the model already samples.
# A group in which nobody answers *neutral* cannot teach *neutral*.
#
# <details><summary>What you should see</summary>
#
# *Signal*. Sampled, 22 % of the answers are right; greedily, 68 %. Sampling picks an unlikely token now and then, and 46 % of the samples have
# no answer that can be read. The model is sometimes right, but not reliably. Training can improve this.
#
# The verdict looks at all groups together. The table by mood is the warning: of 48 sampled answers to *neutral* remarks 2 are right, and 4 of
# the 6 groups have none.
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
# 2. Before the training, 2 of the 6 *neutral* groups held a right answer. Of the 24 × 4 = 96 groups of the training about 15 have a neutral
#    remark. How many of the 15 will hold one?
#
# <details><summary>What you should see</summary>
#
# **1. The format.** Before the training about half of the completions have it, so nearly every group holds good and bad examples of it. It is
# the same for all remarks, so its pushes add up, as in [Rewards](02_rewards.ipynb). A right label is rarer, and each mood must be learned by itself.
#
# **2. About 5,** one third, and a few more once the format is learned. The other groups cannot teach the label, so *neutral* should come last,
# if at all. The figure does not show the moods. The section *Why it fails* counts them.
# </details>

# %%
run = gn.train(model, tokenizer, task, rewards, settings)

# %% [markdown]
# ## Before and after
#
# The model answers each held-out remark greedily, as somebody who uses it would do. In the table read the three rows *correct*, *in the
# format* and *correct anywhere*. The column *verdict, p-value* says whether the *training* improved anything. Then read the sentence about the
# majority-class baseline.
#
# Only 6 of the 60 remarks of the baseline above were neutral, and 15 of the 42 held-out ones are. The model gets none of these right. So it
# starts at 45 % here, not at 68 %, and always answering *positive* gets 36 %.
#
# ### A second competitor
#
# The first line of the output comes from a few lines of code that count which words came with which mood. **Predict before you run:** will our
# trained model beat them?
#
# <details><summary>What you should see</summary>
#
# The model gains: 45 % before, 64 % after. After the training it clearly beats *always positive*. Before it did not: 36 % lies inside its
# interval, 31 % to 60 %.
#
# It does not beat the second competitor. Counting words gets all 42 remarks right, the model 27. GRPO earns its place where the output is more
# than a label.
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
# One number for all remarks hides *which* answers are wrong. `transcripts()` returns every answer with its grade. The table shows which labels
# the model gave to each mood. Below it are its answers to two neutral remarks.
#
# **Predict before you run:** the picture at the top shows no right answer to a *neutral* remark. Which label do they get instead?
#
# <details><summary>What you should see</summary>
#
# Nearly always *positive*: 13 of 15 after the training. No remark at all is answered *neutral*, although the example in the prompt is neutral.
#
# Now read the two answers. The reason is right (*is a fact*, as in the example), and the label does not follow from it. Nothing asks for a
# reason that leads to the label: the rewards look at the label and at the length of the reason.
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
# 1. the right answers to each mood, in the first, middle and last third of the steps,
# 2. the number of groups with at least one right answer among the eight, and with none,
# 3. how much each answer was pushed (the sum of its advantages), by mood and by the two kinds of groups. Each row adds up to
#    about 0.
#
# **Predict before you run:** to a neutral remark four completions answer *positive* in the format, and four write no tags. Nobody answers *neutral*.
# Which of them are pushed up? An advantage compares a completion with its group, not with the truth.
#
# <details><summary>What you should see</summary>
#
# **The four wrong *positive*.** They earn 1.5 for the format and the others 0, so their advantage is +0.94.
#
# **Groups without a right answer push wrong ones up.** See the row *neutral, none*. In these 8 groups *positive* got +4.3 and
# *negative* +3.2, *no label* −7.4, and *neutral* 0.
#
# **There were 7 groups with a right answer.** You predicted about 5.
#
# **What did the neutral remarks teach?** Add their two rows:
#
# | *neutral* | *no label* | *positive* | *negative* |
# | --- | --- | --- | --- |
# | +18.0 | −19.4 | −0.5 | +2.0 |
#
# They taught the model to give some label. They hardly taught it to avoid *positive* (−0.5).
#
# **Why did *neutral* fall from 9 of 48 to 1 of 40?** Add the columns over all moods:
#
# | *negative* | *positive* | *neutral* | *no label* |
# | --- | --- | --- | --- |
# | +79.5 | +51.5 | +7.4 | −138.3 |
#
# *Neutral* was pushed up too, but the other labels far more. They compete for one place, as at a fork in
# [GRPO by hand](01_grpo_by_hand.ipynb). By its rule *neutral* is pushed by 7.4 − p · 138.4, with its share p of the labels. This is negative as
# soon as p is above 5 %. The neutral remarks alone would push it up: 18.0 − p · 19.5. So it was the other remarks, which share the LoRA.
#
# (The baseline had 2 of 48 and the first third 9 of 48. With six groups each, such a difference may be luck.)
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
# For the small model you should see *It worked*. That is true, and it is not the whole story: in the test above the model never answers
# *neutral*. A clear verdict on the average does not replace a look at the parts. Two things to remember: a group without a right
# answer still pushes wrong ones up, and a rare label can lose although it is pushed up.
#
# **A remedy:** exercise 3.

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
# | *the settings are not those of the loaded model* | they changed after it was loaded | run the cell with `load_model` again |
#
# ## Exercises
#
# **1. How large must a group be?** (five minutes, with a calculator). One sampled answer in ten is right. How many completions does a group need, so that nine groups in ten hold at least one right answer? What does that cost, and what else could you change?
#
# <details><summary>Answer</summary>
#
# $1 - 0.9^n \ge 0.9$ needs $n \ge \ln 0.1 / \ln 0.9 = 21.9$, so 22. In practice take 24, with a batch of 96 for four prompts: three times the sampling. It is cheaper to make right answers more frequent: some supervised steps first, partial credit, or easier questions. With one answer in four right, eight are enough: $1 - 0.75^8$ is 90 %.
# </details>
#
# **2. A reward without a right answer** (ten minutes). A program can check replies that nobody has written. Score these three. Which one cheats, and what would you change?
#
# ```python
# def fit_reply(completions, answer, thing, **columns):
#     scores = []
#     for completion, mood, name in zip(completions, answer, thing):
#         text = gn.rewards.completion_text(completion).lower()
#         fits_mood = ("sorry" in text) == (mood == "negative")
#         scores.append(((len(text.split()) <= 30) + (name in text) + fits_mood) / 3)
#     return scores
# replies = ["We are sorry about the soup.", "Soup sorry.", "We are glad!"]
# gn.score(fit_reply, replies, {"answer": "negative", "thing": "soup"})
# ```
#
# <details><summary>Answer</summary>
#
# 1, 1 and 1/3: *Soup sorry.* earns as much as a sentence. A minimum of six words helps a little. What a program cannot check needs a judge. [Can a judge model be trusted?](08_judge.ipynb) trains a reward that checks summaries, for which no right answer exists.
# </details>
#
# **3. A remedy** (ten minutes of computing). In `words` keep the first three phrases of each mood, and set `"max_steps": 36` in `CHANGES`. Will *neutral* be learned? Which one of the changes would you try alone?
#
# <details><summary>Answer</summary>
#
# In our one run all 27 held-out remarks were right, among them the 7 neutral ones (52 % before). But three things changed: the phrases, the
# balance of the moods and the steps. To learn which one helped, change one at a time: first only `max_steps`, then only the phrases.
# </details>
#
# ## Next
#
# * Every source, format and kind of answer: [the guide to data](../docs/guide/data.md). Which reward for which: [the guide to rewards](../docs/guide/rewards.md).
# * Memory, alerts, resuming: [Train](04_train.ipynb).
#
# @NEIGHBOURS@
