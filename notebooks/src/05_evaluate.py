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
# You learn to tell whether a training improved a model, how sure that is, and how many test questions you need.
#
# Why it matters: one training can be reported with three different numbers. These are from the run in this notebook, on questions that it was
# never trained on.
#
# ![Held-out questions before and after the training: correct 9 and 67 of 96, in the format 16 and 96, correct anywhere 53 and 67.](../docs/evaluate.png)
#
# *Left:* right answers in the required format. *Middle:* the format alone. *Right:* right answers, in the format or not. *Accuracy rose from
# 9 % to 70 %* (left) is true, and it misleads: most of the gain is the format. The right sums alone gain far less, from 53 to 67.
#
# About 4 minutes on two idle CPU cores, under 4 GB of memory and 0.4 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# `RUN` is the folder of a finished run, such as `"runs/2026-11-21_10-00-00"`. Without one, a run of `STEPS` steps is
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
# If you have no run yet, this is the training of the [quickstart](00_quickstart.ipynb), with 14 of its 42 steps. You should see the curves, or
# the summary of your own run.

# %%
if RUN:
    run = gn.open_run(RUN)
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
# The first look: two held-out questions, answered by the model before and after the training, with the same prompt as in training.
#
# You should see on a CPU that 8 + 18 was wrong and is right now. And 11 + 8 was right, without any tags, and is wrong now. If you had asked only
# one of the two, you would have the wrong impression. A few answers prove nothing, in either direction.

# %%
first_questions = [row["question"] for row in run.holdout[:2]]
gn.ask(run, first_questions)  # or your own: gn.ask(run, "What is 17 + 25?")

# %% [markdown]
# ## Before and after
#
# Why not simply look at the training reward? It is the number that the model was trained to raise. It rises when the model learns the
# task, and also when the model finds a loophole ([Rewards](02_rewards.ipynb) shows one). A fair comparison needs three things:
#
# * **Held-out questions**, here 96.
# * **The same conditions** for both models. Each question is answered once by each model, *greedily*: each token is the most likely one.
# * **A statement about chance.** Other questions would have given other numbers.
#
# The table has three rows: *correct* needs the right answer in the format, *in the format* is the format alone, and *correct anywhere* takes
# the last number of the text, wherever it is. So look there for the sums: 55 % to 70 %. You should see *Better: mostly the format, but also
# the answers*.
#
# **Predict before you run:** below the rows, the questions are counted as *gained*, *lost*, *both right* or *both wrong*. Above, 11 + 8 was right
# without tags, and is wrong now. Where is it counted?
#
# <details><summary>What you should see</summary>
#
# Among *both wrong*: these four numbers are about *correct*, and the right answer before the training had no tags. So *0 lost* does not mean
# that no sum was lost.
# </details>

# %%
comparison = gn.compare(run)
comparison

# %% [markdown]
# ### How sure is that?
#
# **The interval in brackets.** *Correct anywhere* after the training is 69.8 % (60.0 % to 78.1 %). With 96 other questions of the same kind it
# would be another number. Intervals made in this way contain the true share in 95 % of cases.
#
# **The p-value.** Both models answered the same questions, so the test is *paired* (McNemar's test): only questions whose result changed count.
# For *correct anywhere*, 17 sums became right and 3 became wrong (`comparison.transcripts()` has them). If neither model were better, each change would be a coin toss. Twenty coins fall 17 to 3, or more unevenly, in 0.3 % of cases: p = 0.003. Below
# 0.05 the change counts as shown.
#
# *No difference shown* does not mean *equal*: the difference may be too small for this number of questions. And test once. If you compare ten
# checkpoints and report the best, that one may have won by luck.

# %% [markdown]
# ## How many questions are enough?
#
# The table gives the *minimum detectable difference*: the smallest true difference that the test detects 80 % of the time. It depends on how
# many answers change. The table assumes a third, half of them for the better and half for the worse.
#
# **Predict before you run:** 48 questions detect a difference of 24 points. How many questions detect 8 points?
#
# <details><summary>What you should see</summary>
#
# 480: not 3 times as many, but about 9 or 10 times. The error of an average shrinks with the square root of the number of questions. So a third
# of the difference needs about nine times the questions.
#
# For 96 questions the table says 17 points, and the card above said 22. The table assumes that 32 answers change, and in the card 58 of 96
# changed. The more answers change, the larger a difference must be to stand out. In the row *correct anywhere* only 20 answers changed.
# There the test can already detect about 14 points.
# </details>
#
# Do not believe the row of 12 questions. A third of them is 4 answers, which move the share by 33 points at most and not by 60, and even
# 4 to 0 is p = 0.125. Twelve questions show nothing but a landslide.
#
# **Before you call a run useless, check whether your test set was large enough to see an improvement.**

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
# So far each answer was greedy. Now `SAMPLES` answers are *sampled* to each question, as in training. *pass@1* is the share of correct
# answers, the row *correct*. *pass@4* is the share of questions with at least one correct answer among four. Together they can tell two
# effects apart:
#
# * pass@1 rises, pass@4 hardly: the training made answers reliable that the model could already find.
# * pass@4 rises as well: four tries now solve questions that four tries did not solve before.
#
# Much of what GRPO does is of the first kind, because it amplifies what is sampled already. Whether it adds more is disputed
# ([arXiv:2504.13837](https://arxiv.org/abs/2504.13837)).
#
# **Predict before you run:** will pass@4 rise here? Remember what *correct* needs.
#
# <details><summary>What you should see</summary>
#
# **Both rise:** pass@1 from 6 % to 66 %, and pass@4 from 22 % to 88 %, which is 7 and 28 of 32 questions. It does not follow that the model
# found new sums. *Correct* needs the tags, and before the training only 18 % of the samples had them. So pass@4 rises with the format.
#
# **Sampled answers improved more than greedy ones.** Compare the row *correct anywhere* with the card above:
#
# | *correct anywhere* | before | after |
# | --- | --- | --- |
# | greedy (96 questions) | 55 % | 70 % |
# | sampled (32 of them, 4 answers each) | 33 % | 68 % |
#
# Before the training, sampled answers were right much less often than greedy ones: even the 95 % intervals do not meet (23 to 44 %, and 45 to
# 65 %). After it the two are nearly alike, so sampling seems to cost less accuracy now. This would be the first effect. To be sure, compare
# both on the same questions. And always say which kind of answers a number is about.
# </details>
#
# **pass@k can tell the two effects apart only if the format stays the same. Here it did not, so these tables cannot answer the question.**

# %%
answer_format = gn.tasks.AnswerFormat(**run.info["task"]["format"])
questions = gn.evaluation.load_holdout(run.holdout[:QUESTIONS], format=answer_format)
before = gn.evaluate("base", questions, run=run, samples=SAMPLES, label="before")
after = gn.evaluate(run, questions, run=run, samples=SAMPLES, label="after")
display(before, after)

# %% [markdown]
# ## Read the answers
#
# Numbers hide *how* a model fails. `transcripts()` returns every answer, changed ones first. *Gained* means: not *correct* before, *correct* after.
#
# You should see eight *gained* rows of two kinds. Three had the right sum before, but not the whole format (10 + 4, 9 + 4, 4 + 2). Five had a
# wrong sum, such as 3 + 19 = 52.
#
# `answers[answers.change == "lost"]` would show the opposite. Here it is empty, as the card says: *0 lost*.

# %%
answers = comparison.transcripts()
columns = ["change", "question", "answer", "before", "after"]
wrapped = [{"selector": "th, td", "props": "text-align: left; white-space: pre-wrap"}]
shown = answers[columns].head(8).style.format(escape="html")
shown.hide(axis="index").set_table_styles(wrapped)

# %% [markdown]
# ## Memory is not skill
#
# A held-out question that was also trained on measures memory. Each run keeps a hash of its training questions, and any test set is
# checked against them. Spaces and punctuation make no difference.
#
# You should see that the evaluation refuses. The check does not find the same question in other words: 7 + 3 and 3 + 7 are two questions for it.

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
# The cell checks that no test question was trained on, that pass@4 is not below pass@1, and that the leaked question was refused. Then it
# prints the verdict. If a larger model already knows these sums, no difference is shown.

# %%
assert comparison.contamination.trained_count == 0, comparison.contamination.sentence
for side in (before, after):
    assert side.pass_at_samples[0] >= side.accuracy, "more tries cannot be worse"
assert is_refused, "a question that was trained on was accepted"
print(run.outcome(comparison))

# %% [markdown]
# ### How far does the verdict reach?
#
# Two doubts were tested outside this notebook ([all numbers](../docs/evidence/quickstart_seeds.md)).
#
# *Is it adding?* The tags do not count in *correct anywhere*, but they can still help. With only the first tag written for it, the original
# model gets 58 sums right instead of 53. So up to 5 of the 14 additional right sums may come from the tag, and 9 remain.
#
# *Is it this seed?* On all three seeds, *correct* rises clearly and the format reaches 100 %. For the sums, 14 steps show a difference on one
# of them only, and 42 steps on all three:
#
# | seed | *correct anywhere*, 14 steps | 42 steps |
# | --- | --- | --- |
# | 3407 (this one) | 55 % to 70 % (p = 0.003) | 55 % to 80 % (p < 0.001) |
# | 0 | 54 % to 57 % (p = 0.51) | 54 % to 72 % (p < 0.001) |
# | 1 | 53 % to 60 % (p = 0.07) | 53 % to 80 % (p < 0.001) |
#
# The honest verdict: 14 steps teach the format, and at most a little adding. So report the three rows, their intervals, and more than one seed.

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
# **1. How much of it is the format?** (five minutes). The card counts 58 *gained* questions. How many of them had the right sum before the training?
# You need three numbers: 53 sums were right before, 9 of them in the format, and 3 of the 53 are wrong now.
#
# <details><summary>Answer</summary>
#
# 53 − 9 − 3 = 41. (*0 lost* says that all 9 are still correct, so none of the 3 is among them.) These 41 were right before, not in the
# format, and are still right. So 41 of the 58 gained the format, and only the other 17 a right sum.
#
# For a program that reads the answers, all 58 are a gain. Only 17 can be about arithmetic, and the 3 lost sums count against them.
# </details>
#
# **2. Two seeds** (five minutes). Two trainings get 66 % and 70 % on the same 96 questions. Is the second one better?
#
# <details><summary>Answer</summary>
#
# You cannot tell. 4 points are 4 questions. Suppose that 16 results differ, 10 against 6: sixteen coins fall so unevenly in 45 % of
# cases. With so few changes 96 questions detect about 12 points, fewer than the 17 of the table, but still far more than 4.
#
# `gn.compare(run, task, against=other_run)` makes the paired test. If a third of the answers changes, 4 points need about 1,320 questions.
# </details>
#
# ## Next
#
# * Public test sets, your own measure of correctness, judges: [the guide to evaluation](../docs/guide/evaluate.md).
# * An export is evaluated as it is: `gn.compare("exports/my-model", against="base", task=task, run=run)` ([Export](06_export.ipynb)).
# * A number that does not come from this kit: lm-evaluation-harness ([how](../docs/guide/evaluate.md)).
#
# ← [Training that you can leave alone](04_train.ipynb) · [A model that works elsewhere](06_export.ipynb) →
