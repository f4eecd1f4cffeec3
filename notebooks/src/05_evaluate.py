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
# Compare a trained model with the model it started from, on questions that it has never seen, and learn how sure you can be.
#
# About 5 minutes on two idle CPU cores, under 4 GB of memory and 0.4 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# The only cell to edit. `auto` takes the preset for your machine. `RUN` is the folder of a run, such as
# `"runs/2026-11-21_10-00-00"` from the quickstart; its own held-out questions are asked. Without one, a run of `STEPS` steps is
# made here. `SAMPLES` is the number of answers to each of `QUESTIONS` questions, for pass@k. In Colab,
# `DRIVE = "grpo_nb/evaluate"` keeps the run in that folder of your Google Drive.
#
# Your own data in place of the sums: `TASK = {"source": "my.csv", "columns": {"question": "...", "answer": "..."}}`
# (`03_your_data`).

# %% tags=["parameters"]
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
# The training of the quickstart, if you have none yet. You should see the curves, or the summary of your own run.

# %%
if not RUN:
    settings = gn.preset(
        PRESET, max_steps=STEPS, run_root=gn.machine.run_folder(DRIVE, report=print)
    )
    model, tokenizer = gn.load_model(settings, report=print)
    task = gn.load_task(**TASK, settings=settings, tokenizer=tokenizer)
    rewards = [
        gn.rewards.correctness(weight=2.0),
        gn.rewards.xml_format(weight=1.0),
        gn.rewards.xml_tags(weight=0.5),
    ]
    run = gn.train(model, tokenizer, task, rewards, settings)
else:
    run = gn.open_run(RUN)
    rewards = []
run

# %% [markdown]
# ## Ask it yourself
#
# The first look: questions of your own, to the model before and after, asked as in training. You should see the two answer
# differently.

# %%
gn.ask(
    run, [row["question"] for row in run.holdout[:2]]
)  # or your own: gn.ask(run, "What is 17 + 25?")

# %% [markdown]
# ## Why not the training reward?
#
# It is what the model was paid for. It rises when the model learns, and just as well when it finds a way to be paid without
# learning. It is drawn at a temperature, from questions that were trained on, under a policy that changed at each step. So it
# says that something happened, not that the model is better.
#
# The proof needs questions that were held out, both models asked alike, and a word on chance.

# %% [markdown]
# ## Before and after
#
# Each held-out question once, the likeliest answer. Three numbers say how sure it is:
#
# * the **interval** of each accuracy: other questions of the same kind would give another number, and 95 % of such intervals hold
#   the true one;
# * the interval of the **difference**, in pairs: both answered the same questions, so what is hard for both cancels out;
# * **p**: if neither were better, how often would the changed answers fall one way as unevenly as here?
#
# *better* stands there only if p is below 0.05, and *no difference shown* comes with the difference that would have been. Who says
# what is right stands there too. Numbers, figure and every answer are saved in the run, under `comparison/`.

# %%
comparison = gn.compare(run, rewards=rewards)
comparison

# %% [markdown]
# ## How many questions are enough?
#
# A small sample shows large differences only. Here is the smallest true difference that so many questions show four times in five,
# when a third of the answers changes. Before you call a training useless, look whether you could have seen its use.

# %%
from grpo_nb.evaluation import smallest_difference

for questions in (12, 48, 96, 480, 1320):
    changed = [1.0, -1.0] * (questions // 6) + [0.0] * (questions - questions // 6 * 2)
    print(f"{questions:5} questions: {100 * smallest_difference(changed):4.0f} points")

# %% [markdown]
# ## One try, several tries
#
# *pass@k* is the chance that at least one of k drawn answers is right. A rising pass@1 with an equal pass@k says that training made
# likely what the model could do before; that is what GRPO mostly does. The samples of a question are no further questions, so
# the interval does not shrink by asking the same one again.
#
# You should see pass@4 at pass@1 or above, and for the trained model the two close together.

# %%
asked = gn.evaluation.load_holdout(
    run.holdout[:QUESTIONS], format=gn.tasks.AnswerFormat(**run.info["task"]["format"])
)
sampled = [
    gn.evaluate(who, asked, run=run, samples=SAMPLES, label=name)
    for who, name in (("base", "before"), (run, "after"))
]
sampled[0]

# %%
sampled[1]

# %% [markdown]
# ## Read the answers
#
# Numbers hide how a model fails. Every answer is in a table, those that changed first: `answers[answers.change == "lost"]`, or
# `answers[answers.after_is == "no answer"]`.

# %%
import pandas

pandas.set_option("display.max_colwidth", None)  # whole answers
answers = comparison.transcripts()
answers.head(20)

# %% [markdown]
# ## Memory is not skill
#
# A held-out question that was trained on measures memory. The run kept a hash of each question it was trained on, so it can be
# asked about any data, also where only the writing differs. You should see that it refuses.

# %%
seen = run.completions(1)["prompt"].iloc[0]
question = seen.rsplit("What is", 1)[1].split("?")[0]
rows = [{"question": f"What is{question.replace(' ', '  ')} ?", "answer": "0"}, *run.holdout[:11]]
try:
    gn.evaluate(run, gn.evaluation.load_holdout(rows))
    refused = False
except ValueError as error:
    refused = True
    print(error)

# %% [markdown]
# ## Did it work?
#
# Three things that must hold; each line says which one did not. Whether the model got better is said by the held-out questions: the
# small model of a CPU does, a larger one can do these sums already, and no difference is shown.

# %%
assert comparison.contamination.count == 0, comparison.contamination.sentence
assert all(side.pass_at[SAMPLES][0] >= side.pass_at[1][0] for side in sampled), (
    "more tries cannot hurt"
)
assert refused, "a question that was trained on was let through"
print(run.outcome(comparison).sentence)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *no difference shown* | too few questions, too short a run, or nothing learnt | read the transcripts; more `STEPS`; more held-out questions |
# | *are also in the training part* | the score would measure memory | make the task with `gn.load_task`, which keeps them apart |
# | *is not a run, because it has no run.json* | `RUN` is not a run's folder | the folder that the training cell printed |
# | *has no adapter yet* | the run did not come to its end | `gn.train(..., resume="auto")` |

# %% [markdown]
# ## Next
#
# * Sets that others use too: `gn.evaluation.load_holdout("gsm8k", limit=200, format=task.format)`; more in docs/guide/evaluate.md.
# * What you export is evaluated as it is: `gn.compare("exports/my-model", against="base", task=task, run=run)`, and a `.gguf` file the same way.
# * A number that does not come from this kit: lm-evaluation-harness, as docs/guide/evaluate.md has it.
#
# @NEIGHBOURS@
