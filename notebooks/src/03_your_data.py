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
# Turn a messy CSV with labels into a task, write two rewards, train, and test the result. The first training passes its test, and yet the
# model, asked greedily, never answers *neutral*, one of the three labels. You find out why, add rows with this label, and train again.
#
# ![Right answers to the 42 held-out remarks before the training, after it, and after a training with 20 more neutral rows: negative 7, 15 and 13 of 15, positive 16, 18 and 16 of 18, neutral 0, 0 and 9 of 9. All together 23, 33 and 38 of 42.](../docs/your_data.png)
#
# *How to read it:* the height of a bar is the share of right answers to remarks that the model was never trained on. The number above a bar counts them. The
# first training improves two labels and leaves the third at 0. The second one, with 20 more rows of this label, learns it.
#
# About 13 minutes on two idle CPU cores (and three quarters of an hour of reading), up to 6.1 GB of memory and 0.4 GB of disk. No GPU needed.
#
# As before: write each prediction down, look at the output of the next cell, and only then open the fold.
#
# ### Is GRPO the right tool here?
#
# | you have | use |
# | --- | --- |
# | a label for each row, and labels are all you want | a small classifier: try it first |
# | good texts to imitate | supervised fine-tuning |
# | no texts, but a program that can check one | GRPO |
#
# For labels alone, GRPO is the wrong tool. This notebook uses labels because you can count them, and so see what GRPO learns. For replies it would be the
# right tool: *write at most 30 words that name the thing, and apologise if the remark is negative*. A program can check these three rules,
# although nobody has written a reply. Exercise 1 writes such a reward. [Can a judge model be trusted?](08_judge.ipynb) trains on summaries, where no single text is right.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# For your own data, change four settings:
#
# | setting | write |
# | --- | --- |
# | `DATA` | the path of your file, a DataFrame, a `datasets.Dataset`, or the id of a dataset on the Hub |
# | `COLUMNS` | the name of the column with the question, and of the one with the answer |
# | `EXAMPLE` | one solved question: question, reasoning, answer. Every prompt shows it, and a small model needs it |
# | `MORE_DATA` | `None` for one training. For a second one: a file that repeats all rows of `DATA` and adds new ones |
#
# Give your own file another name than `reviews.csv`. The cell of *A file as it comes* writes a file of that name.
#
# Some later tables count the answers to each label. If your answers are numbers or texts, set `MORE_DATA = None` and skip *Why it fails*. Exercise 3 is on your own file.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {"max_steps": 24, "per_device_train_batch_size": 32}  # @param {"type": "raw"}
DATA = "reviews.csv"  # @param {"type": "raw"}
COLUMNS = {"question": "Guest's remark", "answer": "mood (by hand)"}  # @param {"type": "raw"}
MORE_DATA = "more_reviews.csv"  # @param {"type": "raw"}
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
#
# The cell then loads the file, first without saying which column is which, and then with the columns. You should see some of its lines, and two
# errors. The kit does not guess which column is which, and it asks you what to do when one question has two different answers. Each message says
# what to write instead.

# %%
import pathlib
import textwrap

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
settings = gn.preset(PRESET, **{"gradient_accumulation_steps": 1, **CHANGES})
for attempt in ({}, {"columns": COLUMNS}):
    try:
        gn.load_task(DATA, settings, **attempt)
    except ValueError as error:
        print("\n" + textwrap.fill(str(error), 90))

# %% [markdown]
# ## The task
#
# Now with the columns and a decision. Table 1 counts the moods. Each has the same share in both parts: 21 % of the training rows and 21 % of
# the held-out rows are *neutral*.
#
# Read the rest from top to bottom:
#
# * **rows left out**: each of these rows is counted, with the reason and an example.
# * **answers**: the kit found that the answers are labels (a *choice*), so the system prompt asks for *one of* them.
# * **the first prompt**, as the model gets it, with the solved example. `system="..."` replaces the text of the system prompt.

# %%
import pandas
from IPython.display import Markdown


def show(caption, table, number=None, **bar):
    """Show a table under its caption. Arguments for `bar` draw a bar into each cell."""
    styled = table.rename_axis(index=None, columns=None).style.format(number, escape="html")
    styled = styled.format_index(escape="html").format_index(escape="html", axis="columns")
    if bar and table.fillna(0).any(axis=None):
        styled = styled.bar(width=70, **bar)
    display(Markdown(f"**{caption}**"), styled)


model, tokenizer = gn.load_model(settings, report=print)
choices = {"columns": COLUMNS, "example": EXAMPLE, "on_conflict": "drop"}
task = gn.load_task(DATA, settings, **choices, holdout=0.3, tokenizer=tokenizer)
counts = {"trained on": task.train.to_pandas()["answer"].value_counts()}
counts["held out"] = task.holdout.to_pandas()["answer"].value_counts()
show("Table 1. Rows of each mood", pandas.DataFrame(counts))
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
#
# <details><summary>Answer</summary>
#
# `positive negative neutral`: it contains every label, so it earns the point for every remark. The check calls this trick *every candidate*.
# </details>


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
# `rewards_for` returns rewards that fit the answers of this task:
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
# answers if you always give the most frequent label. A model that does not beat it may only have learned which label is frequent.
#
# Table 2 counts the right answers by mood. It matters, because GRPO can only make more frequent what the model already samples.
# A group in which nobody answers *neutral* cannot teach *neutral*.
#
# <details><summary>What you should see</summary>
#
# *Signal*. Sampled, 22 % of the answers are right; greedily, 68 %. Sampling picks an unlikely token now and then, and 45 % of the samples have
# no answer that can be read. The model is sometimes right, but not reliably. Training can improve this.
#
# The verdict looks at all groups together. Table 2 is the warning: of 40 sampled answers to *neutral* remarks 4 are right, and 3 of the 5 groups
# have none.
# </details>

# %%
gate = gn.baseline(model, tokenizer, task, rewards, settings, prompts=40)
sampled = pandas.DataFrame({"mood": [row["answer"] for row in gate.rows]})
sampled["groups"] = 1
sampled["right answers"] = [sum(group) for group in gate.is_correct_by_group]
sampled["groups without one"] = sampled["right answers"].eq(0)
display(gate)
show("Table 2. Sampled answers, eight in a group", sampled.groupby("mood").sum())

# %% [markdown]
# ## Train
#
# Twenty-four steps with 4 prompts and 8 completions each. The reward may fall for a step or two: with four prompts in a step, luck matters.
#
# **Predict before you run**, twice:
#
# 1. Which curve gets near its maximum first, format or labels, and why?
# 2. Before the training, 2 of the 5 *neutral* groups held a right answer. Of the 24 × 4 = 96 groups of the training about 21 have a neutral
#    remark. How many of the 21 will hold one?
#
# <details><summary>What you should see</summary>
#
# **1. The format.** Before the training about half of the completions have it, and all 40 groups hold good and bad examples of it. It is
# the same for all remarks, so the pushes of different groups can add up, as in [Rewards](02_rewards.ipynb). A right label is rarer, and each mood must be
# learned by itself.
#
# **2.** You would expect 8, two fifths of 21. In fact 13 do: under Table 6 you will read that 8 of the 21 have none. There are two reasons. Five groups are too few for an estimate. And later in the
# training nearly every answer is between its tags, the only place where it can earn the point. So the label is there to be learned. Whether it is, the figure does not show: the section *Before and after* does.
# </details>

# %%
run = gn.train(model, tokenizer, task, rewards, settings)

# %% [markdown]
# ## Before and after
#
# The model answers each held-out remark greedily, as somebody who uses it would do. In the comparison read the three rows *correct*, *in the
# format* and *correct anywhere*, and then the sentence about the majority-class baseline.
#
# One number for all remarks hides *which* answers are wrong. `transcripts()` returns every answer with its grade. Tables 3 and 4 show which
# labels the remarks of each mood got, before and after the training: a line for each mood, a column for each answer.
#
# **Predict before you run:** none of the 9 *neutral* remarks will be right. What does the model call them? And is the average of all 42 still above
# *always positive* (43 %)?
#
# <details><summary>What you should see</summary>
#
# The model gains, and clearly: 23 of the 42 remarks are right before, 33 after (79 %). Ten became right and none became wrong (p-value 0.002).
#
# Table 4 shows what the average hides. All *negative* and all *positive* remarks are right. Of the 9 *neutral* ones none is, and 8 of them are called
# *positive*. Table 3 shows that *positive* was the likeliest label from the start, also for neutral remarks.
#
# Why 55 % before, when `baseline` counted 68 %? It asked an easier mix: 21 of its 40 remarks were positive, the label that the model prefers, and
# only 5 were neutral.
# </details>

# %%
comparison = gn.compare(run, task)
labels = sorted({row["answer"] for row in task.train})


def labels_given(comparison, when="after"):
    """Count the labels that a model gave to the held-out remarks of each mood."""
    answers = comparison.transcripts()
    given = answers[when].map(task.format.extract_final)
    given = given.where(given.isin(labels), "no label")
    table = pandas.crosstab(answers["answer"], given)
    return table.reindex(columns=[*labels, "no label"], fill_value=0)


display(comparison)
blue_bars = {"axis": None, "vmin": 0, "color": "#007FC666"}
before = labels_given(comparison, "before")
diagonal = "(right ones on the diagonal)"
show(f"Table 3. Answers to each mood before the training {diagonal}", before, **blue_bars)
after = labels_given(comparison)
show(f"Table 4. Answers to each mood after the training {diagonal}", after, **blue_bars)

# %% [markdown]
# ## Why it fails
#
# The run has kept every completion of the training with its advantage, so you can look for the reason.
#
# * Table 5 counts the right answers to each mood, in each third of the steps. Is *neutral* ever right?
# * Table 6 adds up the advantages: a line for the mood of the remark, a column for the answer. Who pushes *neutral* up, and who down?
#
# **Predict before you run:** do the neutral remarks push *neutral* up or down? And the other remarks?
#
# <details><summary>What you should see</summary>
#
# *Neutral* is right in all three thirds (Table 5), so the model does sample it. The neutral remarks push *neutral* up (+36.9) and *positive* down
# (−7.0), as they should. All other remarks push *neutral* down (−7.4 and −15.4): for them it is a wrong answer.
# </details>

# %%
import json

mood_of = {json.dumps(row["prompt"]): row["answer"] for row in task.train}
tried = run.completions()
tried["mood"] = tried["prompt"].map(mood_of)
tried["right"] = tried["exact_text"].eq(1)
tried["steps"] = pandas.cut(tried["step"], 3, labels=["first third", "middle third", "last third"])
counts = tried.groupby(["mood", "steps"], observed=True)["right"].agg(["sum", "count"])
of_all = counts["sum"].astype(str) + " of " + counts["count"].astype(str)
show("Table 5. Right answers in the training", of_all.unstack())

two_sides = {"axis": None, "align": "zero", "color": ["#C7580066", "#008A6566"]}
given = tried["completion"].map(task.format.extract_final)
tried["given"] = given.where(given.isin(labels), "no label")
sums = {"values": "advantage", "columns": "given", "aggfunc": "sum", "observed": True}
pushes = tried.pivot_table(index="mood", **sums, margins=True, margins_name="all")
pushes = pushes.reindex(columns=[*labels, "no label"]).fillna(0)
show("Table 6. Sum of the advantages", pushes, "{:+.1f}", **two_sides)
rare = tried["mood"].value_counts().idxmin()
has_right = tried.groupby(["step", "prompt"])["right"].any()
is_rare = has_right.index.get_level_values("prompt").map(mood_of) == rare
print(f"{(~has_right[is_rare]).sum()} of {is_rare.sum()} groups of {rare} have no right answer.")

# %% [markdown]
# ### How a label can lose although its own remarks push it up
#
# 1. **All remarks share one fork.** The label is the word after `<answer>`: *negative*, *neutral* or *positive*. At first the model does not tell
#    *neutral* from *positive*. So all remarks push at this one fork: a *positive* remark that pushes *neutral* down does so for neutral remarks too.
# 2. **Two sides pull at *neutral*.** In the column *neutral* of Table 6, the neutral remarks push up by 36.9. The others push down by 7.4 and
#    15.4. So +14.2 remains, in the line *all* (the numbers are rounded).
# 3. **More than 0 is not enough.** All three labels have a sum above 0, because an answer with a label beats one without. But at a fork one label can
#    become more frequent only if another becomes less frequent. So a label needs more than its share. An example: a label is 10 % of the answers,
#    and all labels together get a sum of 100. With 15 it gains, with 5 it loses, although 5 is above 0. This is the rule of [GRPO by hand](01_grpo_by_hand.ipynb), where the comma fell with a sum above 0.
#
# Table 7 shows the share $p$ of each label among the answers with a label, in each third of the steps. For Table 8, the advantages of all these
# answers are added up. It shows the share of this sum that a label gets, minus $p$. Above 0 the label gains, below 0 it loses, and each line adds up to 0 (apart from rounding).
#
# **Predict before you run:** each third has 32 groups; by chance 9, 4 and 8 of them are neutral. In which third does *neutral* lose?
#
# <details><summary>What you should see</summary>
#
# In the middle third. There *neutral* is 7 % of the answers and gets −9 % of the sum, so it loses 16 points: 28 of the 32 groups have another mood, and
# they push it down. In the first and the last third it gains a little, +4 points each. (Do not add the points of the three thirds: each is a
# share of another sum.) Over all steps its share of the sum is 14.2 / (72.4 + 14.2 + 43.5) = 11 %, about its share of the answers, 7 to 16 %.
# So on average the training hardly moves *neutral*.
#
# Table 8 also shows a limit of the rule. *Negative* gains much at the cost of *positive*: +79 points in the last third, of the sum of
# that third alone. With one fork for all remarks, *negative* would take over. It does not (Table 4), because by then the model can tell negative
# remarks apart, so *negative* rises only in these. It has not learned to tell *neutral* from *positive*, so for these two the shared fork is a fair picture.
# </details>

# %%
labelled = tried[tried["given"].isin(labels)]
by_third = labelled.pivot_table(index="steps", **sums).reindex(columns=labels).fillna(0)
p = pandas.crosstab(labelled["steps"], labelled["given"], normalize="index")
p = p.reindex(columns=labels, fill_value=0)
gain = by_third.div(by_third.sum(axis=1), axis=0) - p
show("Table 7. Share of the answers, p", p, "{:.0%}", **blue_bars)
show("Table 8. Share of the sum, minus p", gain, "{:+.0%}", **two_sides)

# %% [markdown]
# **Why does it gain so little?** It has fewer groups: 21, next to 40 (*positive*) and 35 (*negative*). And each neutral group pushes its own label
# less: 36.9 / 21 = 1.8, against 93.4 / 40 = 2.3 and 100.0 / 35 = 2.9.
#
# **Two other suspects.** Eight neutral groups have no right answer, and such a group pushes up a tidy *wrong* one. But over all 21 groups *positive* was
# pushed down (−7.0), so this is not the main reason. And every prompt shows a solved *neutral* example. We did not test whether it helps or harms.
#
# The explanation fits the numbers. Whether it is right, only another training can tell.
#
# ## The remedy: more rows of the rare label
#
# If this is the reason, more neutral rows should help. The next cell adds 20 of them, with two new phrases: 41 in place of 21, next to 42
# *positive* ones. So there are more neutral rows and more neutral phrases, and this run cannot separate the two. (To separate
# them, add 20 rows with the three old phrases and new things, such as *The pool was as described.*) The model is loaded again, without the first training. Steps and seed stay the same, and so do the 42 held-out remarks, which are passed as `holdout=`.
#
# **Predict before you run:** the picture at the top shows that *neutral* is learned, and that *negative* and *positive* lose two answers each. What are
# these four called now?
#
# <details><summary>What you should see</summary>
#
# They are called *neutral*: at the shared fork the new rows push *neutral* up for the other remarks too. In the same 24 steps fewer *negative* and
# *positive* remarks are seen, which may add to it.
#
# Is the gain luck? Count coins, as in [the quickstart](00_quickstart.ipynb). *Neutral* rises from 0 to 9 of 9, and nine coins rarely fall the same way
# (p-value 0.004). Of all 42 remarks 38 are right, 5 more than after the first training: 9 became right and 4 became wrong (last line of the output).
# 13 coins often fall as unevenly as this (p-value 0.27). So *neutral* is better, and the total is not shown to be better. It is one run: another seed may give other numbers.
# </details>

# %%
if DATA == "reviews.csv":
    phrases = ["next to the stairs", "near the entrance"]
    more = [f"The {thing} was {phrase}.;neutral" for thing in things for phrase in phrases]
    pathlib.Path("more_reviews.csv").write_bytes("\n".join(lines + more).encode("cp1252"))

second, second_comparison = run, comparison
if MORE_DATA is not None:
    question, answer = COLUMNS["question"], COLUMNS["answer"]
    held_out = [
        {question: row["prompt"][-1]["content"], answer: row["answer"]} for row in task.holdout
    ]
    model, tokenizer = gn.load_model(settings, report=print)
    more_task = gn.load_task(MORE_DATA, settings, **choices, holdout=held_out, tokenizer=tokenizer)
    print(pandas.Series([row["answer"] for row in more_task.train]).value_counts().to_dict())
    second = gn.train(model, tokenizer, more_task, rewards, settings)
    second_comparison = gn.compare(second, more_task)
after_second = labels_given(second_comparison)
caption = f"Table 9. Answers to each mood after the second training {diagonal}"
show(caption, after_second, **blue_bars)
first_right, second_right = (
    one.transcripts().set_index("question")["after_grade"].eq("right")
    for one in (comparison, second_comparison)
)
gained, lost = (second_right & ~first_right).sum(), (first_right & ~second_right).sum()
print(f"Since the first training {gained} became right and {lost} became wrong.")

# %% [markdown]
# ## Did it work?
#
# *It worked* needs three measurements that agree, one more than in the quickstart, because labels have a majority class: the answers are better by a
# test, they are clearly above the majority-class baseline, and the reward rose. If one is missing, the sentence says which one.
#
# The cell prints the first verdict in full, and the first sentences of the second. Both get *It worked*, although the first never gives one of the labels. **A clear verdict on the average does not replace
# a look at the parts.**
#
# ### Four ideas, one from each notebook
#
# | question | rule | where |
# | --- | --- | --- |
# | Is this text pushed up? | Yes, if its reward is above the mean of its group. | [the quickstart](00_quickstart.ipynb) |
# | Which word of it gains? | The branch whose mean advantage is above that of its fork. | [GRPO by hand](01_grpo_by_hand.ipynb) |
# | Which reward decides? | Usually the one with the largest weight times spread. | [Rewards](02_rewards.ipynb) |
# | Which answer wins over many prompts? | The one whose share of the sum is larger than its share of the answers. | *Why it fails*, above |
#
# ### What you take with you
#
# | before a training | during | after |
# | --- | --- | --- |
# | `check_rewards`: can it be cheated? | each reward alone, not only the total | held-out questions, with one measure that was not trained on |
# | `baseline`: do groups differ, for *each* kind of answer? | read one group: who is pushed up, and why? | *in the format* apart from *correct anywhere* |
# | weight times spread: which reward decides? | truncated and repeated answers | every part by itself, then a second seed |
#
# **Which measure was not trained on?** *Correct anywhere*: it shows the same 79 %. *Correct* uses `exact_text`, on which the model was trained. That is
# sound only because the check found no trick. [Rewards](02_rewards.ipynb) shows what happens otherwise.
#
# ### A competitor
#
# The last line comes from a few lines of code that count which words came with which mood. They see only the 98 rows of the first training, without
# the 20 new ones, and get all 42 remarks right: for labels alone, a small classifier is the better tool.

# %%
import collections

assert sum(task.left_out.values()) >= 4 or DATA != "reviews.csv", f"left out: {task.left_out}"
assert not with_loophole.ok
assert report.ok, report.sentence
assert run.status == second.status == "finished", second.status_sentence
print(f"First training. {run.outcome(comparison)}\n")
verdict = second.outcome(second_comparison).facts[0]
print(textwrap.fill(f"Second training. {verdict} {second_comparison.headline}", 90), "\n")

seen, total = collections.Counter(), collections.Counter()
for row in task.train:
    for word in row["prompt"][-1]["content"].split():
        seen[word, row["answer"]] += 1
        total[word] += 1


def by_counting(row):
    """Return the label that most often came with the words of a remark."""
    known = [word for word in row["prompt"][-1]["content"].split() if total[word]]
    return max(labels, key=lambda label: sum(seen[word, label] / total[word] for word in known))


right = sum(by_counting(row) == row["answer"] for row in task.holdout)
print(f"Counting words: {right} of {len(task.holdout)} held-out remarks are right.")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *has no column* | `COLUMNS` names a column that is not in the file | copy the line at the end of the message |
# | *with different answers* | the same question has two answers | `on_conflict="drop"` or `"first"` |
# | *answers: text* where you have labels | fewer than three rows for each label (on average), or more than 24 labels | more rows, or `kind="choice"` |
# | *nothing in the prompt names &lt;answer&gt;* | your own `system=` does not describe the format | describe it, or give an `example` |
# | a label that is never right | too few rows, so few groups that teach it | as many rows for each label, then more steps |
#
# ## Exercises
#
# **1. A reward without a right answer** (ten minutes). A program can check replies that nobody has written. Complete this reward, then score the three replies. Which one cheats, and what would you change?
#
# ```python
# def fit_reply(completions, answer, thing, **columns):
#     texts = [gn.rewards.completion_text(completion).lower() for completion in completions]
#     # 1/3 each: at most 30 words; names the thing; says "sorry" exactly if the mood is negative
#     return [... for text, mood, name in zip(texts, answer, thing, strict=True)]
# replies = ["We are sorry about the soup.", "Soup sorry.", "We are glad!"]
# gn.score(fit_reply, replies, {"answer": "negative", "thing": "soup"})
# ```
#
# <details><summary>Answer</summary>
#
# In place of `...` write `((len(text.split()) <= 30) + (name in text) + (("sorry" in text) == (mood == "negative"))) / 3`. The scores are 1, 1 and 1/3: *Soup sorry.* earns as much as a sentence. A minimum of six words helps a little. What a program cannot check needs a judge ([Can a judge model be trusted?](08_judge.ipynb)). To train with this reward, add a column `thing` to the file (all columns reach the reward), give `load_task` `format=gn.tasks.bare()`, because a reply needs no tags, and give `gn.train` `[fit_reply]` as its rewards.
# </details>
#
# **2. Two rules at once** (five minutes, with a pencil). Eight answers to a neutral remark are in the format. Two say *neutral*, one of them with a short reason. Of the six wrong ones three have a short reason. Give `short_reason` the weight 4 in place of 0.25. Which reward decides (weight times spread, from [Rewards](02_rewards.ipynb))? Is the *neutral* without a short reason pushed up? And does *neutral* gain at its fork (the rule of [GRPO by hand](01_grpo_by_hand.ipynb))?
#
# <details><summary>Answer</summary>
#
# `short_reason` decides: 4 · 0.53 = 2.14, against 2 · 0.46 = 0.93 for `exact_text`. Without the points for the format, which all eight have, the totals are 6 and 2 for *neutral*, three times 4, and three times 0. Their mean is 2.5, so the *neutral* without a short reason is pushed down (−0.21). The other one gets +1.50, so the two have the sum +1.29. The sum at the fork is 0, so *neutral* gains nevertheless, by +1.29 − 0.25 · 0: more slowly than it should, while short reasons gain (+1.50 + 3 · 0.64 = +3.43).
# </details>
#
# **3. Your own CSV** (an hour). Take a file with labels and at least 50 rows. Change `DATA`, `COLUMNS` and `EXAMPLE`, and set `MORE_DATA = None`. Run up to Table 2 and look at three things: the rows left out, the line *answers*, and the groups without a right answer. **Predict:** which label is not learned?
#
# <details><summary>What a good answer looks like</summary>
#
# *Before:* you know why each row was left out, *answers* says *choice*, the verdict is *signal*, and every label has groups with a right answer. *After:* better by a test, above the majority class, and each line of Table 4 has its largest number at its own label. If one label fails, add rows with it, as above. And if counting words does as well as the model, use that.
# </details>
#
# ## What to do first with your own problem
#
# 1. Write down ten questions and one good answer to each. Can a program tell good from bad? If not, you need a judge, or texts to imitate.
# 2. Write this program as a reward, and let `check_rewards` attack it. This costs seconds.
# 3. Run `baseline` with one solved example. *No signal*: easier questions, a longer limit, or a larger model. Otherwise look at each kind of answer.
# 4. Train for a few minutes, read a group of the last step, and `compare` on held-out questions, part by part.
# 5. Only then take more steps, more rows and a second seed.
#
# ## Next
#
# * Memory, alerts, resuming: [Train](04_train.ipynb). Every source, format and kind of answer: [the guide to data](../docs/guide/data.md), and rewards for them: [the guide to rewards](../docs/guide/rewards.md).
#
# @NEIGHBOURS@
