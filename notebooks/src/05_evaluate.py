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
# # Is it really better?
#
# Compare a trained model with the model it started from, on questions that it has never seen. You learn how sure you can be, what the
# difference between format and skill is, and how many questions you need.
#
# About 5 minutes on two idle CPU cores, under 4 GB of memory and 0.4 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# `RUN` is the folder of a finished run, such as `"runs/2026-11-21_10-00-00"` from the quickstart. Without one, a run of `STEPS` steps is
# trained here. For pass@k, `SAMPLES` answers are sampled to each of `QUESTIONS` questions. To use your own data instead of the sums,
# see [Your own data](03_your_data.ipynb).

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
RUN = ""  # @param {"type": "string"}
STEPS = 14  # @param {"type": "integer"}
SAMPLES = 4  # @param {"type": "integer"}
QUESTIONS = 32  # @param {"type": "integer"}
TASK = {"source": "arithmetic"}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %% [markdown]
# ## A run
#
# This is the training of the [quickstart](00_quickstart.ipynb), if you have no run yet. You should see the curves, or the summary of
# your own run.

# %%
if RUN:
    run = gn.open_run(RUN)
    rewards = []  # the run folder knows the rewards of the kit
else:
    folder = gn.machine.choose_run_folder(DRIVE, report=print)
    settings = gn.preset(PRESET, max_steps=STEPS, run_root=folder)
    model, tokenizer = gn.load_model(settings, report=print)
    task = gn.load_task(**TASK, settings=settings, tokenizer=tokenizer)
    rewards = [
        gn.rewards.correctness(weight=2.0),
        gn.rewards.exact_format(weight=1.0),
        gn.rewards.partial_format(weight=0.5),
    ]
    run = gn.train(model, tokenizer, task, rewards, settings)
run

# %% [markdown]
# ## Ask a few questions
#
# The first look: two held-out questions, answered by the model before and after the training, with the same prompt as in training. You
# should see different answers. Two answers prove nothing, in either direction: after the training the model may even get one wrong that
# it had right before.

# %%
first_questions = [row["question"] for row in run.holdout[:2]]
gn.ask(run, first_questions)  # or your own: gn.ask(run, "What is 17 + 25?")

# %% [markdown]
# ## Before and after
#
# Why not simply look at the training reward? It is the number that the model was trained to raise. It rises when the model learns the
# task, and also when the model finds a loophole ([Rewards](02_rewards.ipynb) shows one). A proof needs questions that were held out, the
# same conditions for both models, and a statement about chance.
#
# So each held-out question is answered once by each model, greedily. Read the table in this order:
#
# * **Three rows.** *Correct* needs the right answer in the format. *In the format* is the format alone. *Correct anywhere* compares the
#   last number of the text, wherever it is, with the right answer. If only the format improved, this row does not move.
# * **The interval in brackets.** Other questions of the same kind would give another number. 95 % of such intervals contain the
#   true share.
# * **How sure.** Both models answered the same questions, so the test is *paired* (McNemar): it looks only at questions whose result
#   changed. p is the probability of so uneven a change if neither model were better. Below 0.05 the change counts as shown.
#
# If it says *no difference shown*, it also tells you how large a difference it could have detected.

# %%
comparison = gn.compare(run, rewards=rewards)
comparison

# %% [markdown]
# ## How many questions are enough?
#
# A small sample shows only large differences. The table gives the *minimum detectable difference*: the smallest true difference that
# a paired test with so many questions detects 80 % of the time, if a third of the answers changes. Before you call a run useless, check
# whether your test set was large enough to see an improvement.

# %%
from grpo_nb.evaluation import detectable_difference

for questions in (12, 48, 96, 480, 1320):
    better = questions // 6
    worse = questions // 6
    changes = [1.0] * better + [-1.0] * worse + [0.0] * (questions - better - worse)
    print(f"{questions:5} questions: {100 * detectable_difference(changes):4.0f} points")

# %% [markdown]
# ## One try, several tries
#
# *pass@k* is the probability that at least one of k sampled answers is correct. It separates two things. If pass@1 rises and pass@4
# hardly does, the training made answers reliable that the model could already find. If pass@4 rises as well, the model now solves
# questions that it did not solve in four tries before.
#
# You should see that both rise here. The reason is the format again: before the training even four tries rarely contain one in the
# right format. Compare the row *correct anywhere*, which starts much higher.

# %%
answer_format = gn.tasks.AnswerFormat(**run.info["task"]["format"])
questions = gn.evaluation.load_holdout(run.holdout[:QUESTIONS], format=answer_format)
before = gn.evaluate("base", questions, run=run, samples=SAMPLES, label="before")
after = gn.evaluate(run, questions, run=run, samples=SAMPLES, label="after")
display(before, after)

# %% [markdown]
# ## Read the answers
#
# Numbers hide *how* a model fails. Every answer is in a table, changed ones first. `answers[answers.change == "lost"]` shows the
# questions that only the model before the training got right. You should see that many *gained* answers had the right sum before,
# without the closing tags.

# %%
answers = comparison.transcripts()
columns = ["change", "question", "answer", "before", "after"]
wrapped = [{"selector": "th, td", "props": "text-align: left; white-space: pre-wrap"}]
shown = answers[columns].head(8).style.format(escape="html")
shown.hide(axis="index").set_table_styles(wrapped)

# %% [markdown]
# ## Memory is not skill
#
# A held-out question that was also trained on measures memory. Each run keeps a hash of its training questions, so any test set can be
# checked against them, even if spaces and punctuation differ. You should see that the evaluation refuses.

# %%
trained_prompt = run.completions(1)["prompt"].iloc[0]
sum_in_it = trained_prompt.rsplit("What is", 1)[1].split("?")[0]
leaked = {"question": f"What is{sum_in_it.replace(' ', '  ')} ?", "answer": "0"}
try:
    gn.evaluate(run, gn.evaluation.load_holdout([leaked, *run.holdout[:11]]))
    is_refused = False
except ValueError as error:
    is_refused = True
    print(error)

# %% [markdown]
# ## Did it work?
#
# Three things must hold, and each line says which one did not. The last line is the verdict on the model. The small model improves; a
# larger one may already know these sums, and then no difference is shown.

# %%
assert comparison.contamination.trained_count == 0, comparison.contamination.sentence
for side in (before, after):
    assert side.pass_at[SAMPLES][0] >= side.pass_at[1][0], "more tries cannot be worse"
assert is_refused, "a question that was trained on was accepted"
print(run.outcome(comparison))

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *no difference shown* | too few questions, too short a run, or nothing was learned | read the answers; more `STEPS`; more held-out questions |
# | *held-out questions are also in* | the score would measure memory | make the task with `gn.load_task`, which keeps the parts separate |
# | *is not a run, because it has no run.json* | `RUN` is not the folder of a run | the folder that the training cell printed |
# | *has no adapter yet* | the run was interrupted | `gn.train(..., resume="auto")` |
#
# ## Exercises
#
# **1. Which row?** A colleague reports: "Accuracy rose from 9 % to 70 %." Which question do you ask first?
#
# <details><summary>Answer</summary>
#
# "How often was the answer right, but not in the format, before the training?" If *correct anywhere* was at 55 %, most of the
# gain is the format. That is a real gain for a program that reads the answers, but it is not arithmetic.
# </details>
#
# **2. Two runs.** You trained with two seeds and compare them on 96 questions: 66 % and 70 %. Is the second seed better?
#
# <details><summary>Answer</summary>
#
# The table above says that 96 questions detect about 17 points. Four points can easily be chance. `gn.compare(run, task,
# against=other_run)` makes the paired test; more questions make it sharper.
# </details>
#
# ## Next
#
# * Public test sets, your own measure of correctness, judges: [the guide to evaluation](../docs/guide/evaluate.md).
# * An export is evaluated as it is: `gn.compare("exports/my-model", against="base", task=task, run=run)` ([Export](06_export.ipynb)).
# * A number that does not come from this kit: lm-evaluation-harness ([how](../docs/guide/evaluate.md)).
#
# @NEIGHBOURS@
