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
# `auto` chooses the preset for your card. The model is trained on `DATA` and asked `QUESTIONS` questions of `TEST`. `"gsm8k"` means
# `openai/gsm8k` on the Hub, with its training part and its test part. Files with the columns `question` and `answer` work as well. With
# 200 questions, an accuracy is known to about 7 points in either direction. In Colab, `DRIVE = "grpo_nb/gsm8k"` keeps the run on your
# Google Drive: after a disconnection, run all cells again.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
DATA = "gsm8k"  # @param {"type": "string"}
TEST = "gsm8k"  # @param {"type": "string"}
QUESTIONS = 200  # @param {"type": "integer"}
EXPORT_TO = "exports/gsm8k"  # @param {"type": "string"}
DRIVE = ""  # @param {"type": "string"}

# %% [markdown]
# ## The model
#
# The model is loaded in 4 bit with a LoRA, and vLLM samples the completions if it can start. If it cannot, a
# warning gives the reason.

# %%
run_root = gn.machine.choose_run_folder(DRIVE, report=print)
settings = gn.preset(PRESET, **{"run_root": run_root, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)

# %% [markdown]
# ## The task
#
# An answer of GSM8K is a worked solution that ends in `#### 42`. The number becomes the gold answer. The solution becomes a column of its
# own and is never shown to the model. Each prompt has one solved example, which is not from GSM8K. You should see that the answers
# are numbers, and the first prompt.

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
# A correct number is worth 2, the complete format 1, and the tags together half a point. The check tries a few thousand completions
# made from these rows. You should see that nothing is found.

# %%
rewards = gn.rewards.rewards_for(task)
report = gn.check_rewards(rewards, task, tokenizer=tokenizer)
report.raise_if_critical()
report

# %% [markdown]
# ## Does it fit, and is there a signal?
#
# The plan computes memory and tokens from the shapes of the model. Then the model writes some groups, as the training would sample them.
# Only groups with right and wrong answers side by side teach something. The share of correct answers is the accuracy at temperature 1
# before the training.

# %%
display(gn.plan(settings, task, model=model, tokenizer=tokenizer))
gate = gn.baseline(model, tokenizer, task, rewards, settings)
gate

# %% [markdown]
# ## Train
#
# You can run this cell again: it resumes an interrupted run, and returns a finished one.

# %%
run = gn.train(model, tokenizer, task, rewards, settings, name="gsm8k", resume="auto")

# %% [markdown]
# ## Before and after
#
# The questions of the test part are answered greedily with the LoRA off and on. A short training that moves an instructed model by less
# than the interval shows *no difference*, and the report tells you which difference it could have detected.

# %%
comparison = gn.compare(run, test)
comparison

# %% [markdown]
# ## Export
#
# One ordinary model in a folder, compared with the trained one in a separate process. If nothing was learned, nothing is exported.

# %%
has_learned = run.metrics["grad_norm"].max() > 0
exported = gn.export_merged(run, EXPORT_TO, overwrite=True) if has_learned else None
exported

# %% [markdown]
# ## Did it work?
#
# Two things must hold, whatever was learned. Then follows the result in words that you may quote: number, interval, questions.

# %%
assert run.status == "finished", run.status_sentence
assert not has_learned or exported.verification["passed"], "the export is not the trained model"
print(f"{TEST}, {len(test.holdout)} questions of the test part.")
print(run.outcome(comparison))

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *generated without vLLM* | vLLM could not start; the warning shows why | nothing: the training runs, but more slowly |
# | out of memory | another program uses the card, or the completions are long | the error names the setting to lower first |
# | *no signal*, or *format only* | the model gets all answers wrong, or all right | a larger model, or [questions that it can learn](../docs/guide/train.md) |
# | *no difference shown* | too few steps, or too few questions | `CHANGES = {"max_steps": 250}`, `QUESTIONS = 1319` |
# | the data cannot be reached | no network | files: `DATA = "train.jsonl"`, `TEST = "test.jsonl"` |
# | Colab disconnects | Colab takes machines back after some hours | set `DRIVE` before the run; then run all cells again |
#
# ## Exercises
#
# **1. Is 200 enough?** You expect a gain of 4 points. How many questions do you need?
#
# <details><summary>Answer</summary>
#
# More than 200: [Evaluate](05_evaluate.ipynb) has a table of the minimum detectable difference. For 4 points it needs about 1,320
# questions, nearly the whole test part.
# </details>
#
# **2. Too hard.** The baseline says that in most groups all completions are wrong. What can you change before you take a larger model?
#
# <details><summary>Answer</summary>
#
# Choose questions by their measured pass rate ([how](../docs/guide/train.md)), sample more completions per question (`num_generations`), or
# allow longer completions if many are truncated.
# </details>
#
# ## Next
#
# * Your own data instead of GSM8K: [Your own data](03_your_data.ipynb). Other questions for the same model: `gn.ask(run, "...")`.
# * If you ran this on a GPU, please [send the last cell's lines](../docs/gpu.md), the card and the time.
#
# @NEIGHBOURS@
