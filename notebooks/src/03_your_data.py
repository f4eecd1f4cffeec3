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
# Turn a messy CSV with labels into a task, write two rewards, train, and compare the result with the simplest competitor there
# is: always giving the most frequent label.
#
# About 5 minutes on two idle CPU cores, under 5 GB of memory and 0.3 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# The only cell to edit. For your own data, put your file's path (or a DataFrame, a `datasets.Dataset`, the id of a data set on the
# Hub) in `DATA` and say in `COLUMNS` which column is the question and which the answer. `EXAMPLE` is one solved question that
# stands in every prompt: question, reasoning, answer. A small model needs it. `SAMPLES` is how many answers are drawn to each
# held-out remark.

# %% tags=["parameters"]
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {"max_steps": 12, "per_device_train_batch_size": 32}  # @param {"type": "raw"}
DATA = "reviews.csv"  # @param {"type": "raw"}
COLUMNS = {"question": "Guest's remark", "answer": "mood (by hand)"}  # @param {"type": "raw"}
EXAMPLE = ("The bed was lovely.", "lovely is praise", "positive")  # @param {"type": "raw"}
SAMPLES = 2  # @param {"type": "integer"}

# %%
settings = gn.preset(PRESET, **{"gradient_accumulation_steps": 1, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)

# %% [markdown]
# ## A file as it comes
#
# This cell writes one: remarks of hotel guests, sorted by hand into three moods. It is separated by semicolons, not in UTF-8, and
# has what such files have: a remark without a mood, a mood without a remark, one that stands there twice, one with two moods.

# %%
import itertools
import pathlib

things = ["soup", "room", "café", "bed", "view", "staff", "shower", "breakfast", "garden", "lift"]
words = {
    "positive": ["wonderful", "excellent", "a delight", "perfect", "great", "superb"],
    "negative": ["awful", "a disgrace", "terrible", "disgusting", "dreadful"],
    "neutral": ["on the first floor", "as described", "open until nine"],
}
rows = [
    (f"The {t} was {w}.", mood) for mood in words for t, w in itertools.product(things, words[mood])
]
dirt = [
    ("The tea was cold.", ""),
    ("", "positive"),
    rows[0],
    ("The bar was loud.", "negative"),
    ("The bar was loud.", "neutral"),
]
lines = ["Guest's remark;mood (by hand)", *(";".join(row) for row in rows + dirt)]
if DATA == "reviews.csv":
    pathlib.Path(DATA).write_bytes("\n".join(lines).encode("cp1252"))
print("\n".join(lines[:4]), "...", sep="\n")

# %% [markdown]
# ## First attempt
#
# You should see two messages, each with the line that helps: without a map nothing is guessed, and a question with two different
# answers is yours to decide.

# %%
for attempt in ({}, {"columns": COLUMNS}):
    try:
        gn.load_task(DATA, settings, **attempt)
    except ValueError as error:
        print(error, end="\n\n")

# %% [markdown]
# ## The task
#
# Now with the map and a decision. Read the result from top to bottom:
#
# * **rows left out**, each reason with one of them. Nothing is dropped that does not stand here.
# * **answers**: the kit found labels, a *choice*, and so the system prompt asks for *one of* them, not for a number.
# * **the first prompt**, as the model sees it, with the example turn. `system="..."` replaces its first paragraph.

# %%
task = gn.load_task(
    DATA,
    settings,
    columns=COLUMNS,
    example=EXAMPLE,
    on_conflict="drop",
    holdout=0.3,
    tokenizer=tokenizer,
)
task

# %% [markdown]
# ## Rewards of your own
#
# A reward is a function: the completions and your columns go in, one number per completion comes out. An attribute `weight` says
# what it counts in the sum. Two of them here. The first pays if the label stands anywhere in the text, as many write it first.
# The second pays for a short reason, between three and fifteen words.


# %%
def names_the_mood(completions, answer, **columns):
    """1 if the right label stands somewhere in the text."""
    texts = map(gn.rewards.completion_text, completions)
    return [float(label in text) for text, label in zip(texts, answer, strict=True)]


def short_reason(completions, **columns):
    """1 for a reason of three to fifteen words."""
    reasons = [task.format.reasoning(gn.rewards.completion_text(c)) for c in completions]
    return [float(3 <= len(reason.split()) <= 15) for reason in reasons]


names_the_mood.weight, short_reason.weight = 2.0, 0.25
holed = gn.check_rewards([names_the_mood, short_reason], task, tokenizer=tokenizer)
holed

# %% [markdown]
# ## The hole, closed
#
# *Critical*, and rightly: whoever writes all three labels is always paid. `rewards_for` gives rewards that fit the answers of this
# task: for labels `exact_text`, which reads the answer's place and nothing else, and two for the format. Your own second reward
# stays, with a small weight. You should see no warning now.

# %%
rewards = [*gn.rewards.rewards_for(task), short_reason]
report = gn.check_rewards(rewards, task, tokenizer=tokenizer)
report

# %% [markdown]
# ## What can the model do already?
#
# Some groups are sampled as training would, and scored. Beside the verdict stands a floor: what one gets for always giving the most
# frequent label, without reading anything.
#
# You should see *signal*, and two shares that lie far apart: of the answers that the model draws, few are right; of its
# likeliest ones, many. It knows these moods already, and cannot say them reliably: that is what training will mend. (So it is
# with the small model of a CPU; a larger one on a GPU may have little left to learn, and the verdict says so.)

# %%
gate = gn.baseline(model, tokenizer, task, rewards, settings)
gate

# %% [markdown]
# ## Train
#
# Twelve steps. Expect the format first, then the labels: the model becomes sure of what it half knew.

# %%
run = gn.train(model, tokenizer, task, rewards, settings)

# %% [markdown]
# ## Before and after, against the floor
#
# The held-out remarks were never trained on. Two answers to each are drawn, as in training, because that is what was trained;
# `gn.compare(run, task)` alone takes the likeliest answer to each, and would show a smaller difference here. Read the verdict, then
# whether the model is above the floor.

# %%
comparison = gn.compare(run, task, samples=SAMPLES)
comparison

# %% [markdown]
# ## Runs side by side
#
# Change a setting, train again, and look at both: what differs between them stands in the list.
# `gn.runs.side_by_side("<one>", "<other>")` draws them in one figure.

# %%
gn.runs.list(settings.run_root)

# %% [markdown]
# ## Did it work?
#
# The asserts hold whatever the model learned. *It worked* then takes three measurements that agree: the held-out answers are better
# by a test, they are clearly above the majority-class baseline, and the reward rose. If one is missing, the sentence says which one.
# A larger model may know these moods from the start, and then has nothing left to learn.

# %%
assert sum(task.dropped.values()) >= 4 or DATA != "reviews.csv", f"left out: {task.dropped}"
assert not holed.ok and report.ok, report.summary
assert run.status == "finished", run.status_sentence
print(run.outcome(comparison).sentence)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *has no column* | the map names a column that is not there | copy the line at the end of the message |
# | *with different answers* | the same question, two answers | `on_conflict="drop"` or `"first"` |
# | *answers: text* where you have labels | a label occurs less than three times on average, or there are more than 24 | more rows, or `kind="choice"` |
# | *nothing in the prompt names &lt;answer&gt;* | your own `system=` does not describe the format | describe it, or give an `example` |
# | *no signal* | no completion differs from another | an `EXAMPLE`, easier questions, partial credit |
# | *the settings are not those of the model in hand* | the settings cell was edited after the model was loaded | run the cell with `load_model` again |

# %% [markdown]
# ## Next
#
# * Try rewards by hand, with sliders: `02_rewards`.
# * Every source, format and kind of answer: `docs/guide/data.md`.
# * Everything that training can do: `04_train`.
#
# @NEIGHBOURS@
