# ---
# jupyter:
#   accelerator: GPU
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
# # Appendix: GSM8K on one GPU
#
# School problems in words from the Hub, a model of 1.5 billion parameters or more, checked rewards, a training run, and the
# accuracy on the test part before and after, with its interval.
#
# **Nobody has run this notebook on a GPU yet**, so it has no outputs. Computed for a T4: up to 53 minutes of training without vLLM, 13.1 of
# 15.6 GB of memory, 7.4 GB of disk. The tests execute every cell on a CPU, with the small model and rows of the same form.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# The only cell to edit. `auto` takes the preset for your card. `DATA` is trained on, `TEST` is asked: `"gsm8k"` is
# `openai/gsm8k` on the Hub, its training part in one place and its test part in the other; files with columns `question` and
# `answer` work as well. `QUESTIONS` of the test part are asked: with 200 an accuracy is known to about 7 points either way. In
# Colab, `DRIVE = "grpo_nb/gsm8k"` keeps the run in that folder of your Google Drive: after a disconnection, run all cells
# again.

# %% tags=["parameters"]
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
DATA = "gsm8k"  # @param {"type": "string"}
TEST = "gsm8k"  # @param {"type": "string"}
QUESTIONS = 200  # @param {"type": "integer"}
EXPORT_TO = "exports/gsm8k"  # @param {"type": "string"}
DRIVE = ""  # @param {"type": "string"}

# %%
settings = gn.preset(PRESET, **{"run_root": gn.machine.run_folder(DRIVE, report=print), **CHANGES})
settings

# %% [markdown]
# ## The model
#
# In 4 bit, with a LoRA, and with vLLM for the sampling where it can start. One line says whether it did, and what it costs if not.

# %%
model, tokenizer = gn.load_model(settings, report=print)

# %% [markdown]
# ## The task
#
# An answer of GSM8K is a worked solution that ends in `#### 42`. The number is the gold answer; the solution becomes a column
# of its own and is never shown. One example of our own stands in each prompt. You should see that the answers are numbers, and
# the first prompt.

# %%
example = (
    "A box holds 12 eggs. How many eggs are in 3 boxes and 4 more?",
    "3 * 12 = 36 and 36 + 4 = 40",
    "40",
)
task = gn.load_task(DATA, settings, example=example, holdout=16, tokenizer=tokenizer)
test = gn.evaluation.load_holdout(TEST, limit=QUESTIONS, format=task.format, example=example)
task

# %% [markdown]
# ## The rewards, checked
#
# The right number counts twice, the form once, the tags a half. About a thousand completions, made from these rows, try to be paid
# for something else. You should see that nothing is found.

# %%
rewards = gn.rewards.rewards_for(task)
report = gn.check_rewards(rewards, task, tokenizer=tokenizer)
report.raise_if_critical()
report

# %% [markdown]
# ## Does it fit, and is there a signal?
#
# First memory and tokens, computed from the shapes of the model. Then some groups, sampled as training would sample them: how
# many hold right and wrong answers side by side? Only those teach something. The share that is right by now is what others call the
# baseline at a temperature of 1.

# %%
gn.plan(settings, task, model=model, tokenizer=tokenizer)

# %%
gate = gn.baseline(model, tokenizer, task, rewards, settings)
gate

# %% [markdown]
# ## Train
#
# The cell can be run again: it goes on where it was interrupted, and gives a finished run back.

# %%
run = gn.train(model, tokenizer, task, rewards, settings, name="gsm8k", resume="auto")

# %% [markdown]
# ## The number, before and after
#
# The test questions, the likeliest answer to each, with the LoRA off and on. The interval is of the difference in pairs. *better*
# stands there only if an exact test says so; a short training that moved an instructed model by less than the interval shows
# *no difference*, and says which difference would have shown.

# %%
comparison = gn.compare(run, test)
comparison

# %% [markdown]
# What changed, changed answers first:

# %%
comparison.transcripts().head(6)

# %% [markdown]
# ## Export
#
# One model in a folder, compared with the trained one by a process of its own. Where nothing was learnt, nothing is merged.

# %%
has_learnt = run.metrics["grad_norm"].max() > 0
exported = gn.export_merged(run, EXPORT_TO, overwrite=True) if has_learnt else None
exported

# %% [markdown]
# ## Did it work?
#
# Two things that must hold, whatever was learnt. Then the result, in the words that may be quoted: number, interval, questions.

# %%
assert run.status == "finished", run.status_sentence
assert not has_learnt or exported.verification["passed"], (
    f"Not the trained model: {exported.verification}"
)
print(f"{test.name}, {len(test.holdout)} questions of the test part.")
print(run.outcome(comparison).sentence)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *sampling without vLLM* | vLLM could not start; the line says why | the training runs all the same, slower |
# | out of memory | another program uses the card, or long completions | the error names smaller settings |
# | *no signal*, or *form only* | the model gets all wrong, or all right | a larger model, or `task.curriculum(...)` after a baseline |
# | *no difference shown* | too few steps, or too few questions | `CHANGES = {"max_steps": 250}`, `QUESTIONS = 1319` |
# | the data cannot be reached | no network | files: `DATA = "train.jsonl"`, `TEST = "test.jsonl"` |
# | Colab disconnects | it takes machines back after some hours | set `DRIVE` before; then run all cells again |

# %% [markdown]
# ## Next
#
# * Your own data in place of GSM8K: `03_your_data`. Other questions for the same model: `gn.ask(run, "...")`.
# * If you ran this on a GPU: an issue with the last cell's lines, the card and the time would make the head of this page shorter.
#
# @NEIGHBOURS@
