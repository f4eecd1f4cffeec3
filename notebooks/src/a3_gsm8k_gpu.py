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
# Train a model of 1.5 billion parameters or more on school problems in words, and report what it gained so that others can check it: the
# accuracy on the official test part before and after, with an interval, and with what it does not prove.
#
# **Nobody has run this notebook on a GPU yet**, so it has no outputs. Computed for a T4: up to 53 minutes of training without vLLM, 13.1 of
# 15.6 GB of memory, 7.4 GB of disk. The tests execute every cell on a CPU, with the small model and rows of the same form.
#
# You should know [the quickstart](00_quickstart.ipynb) first. It has the same steps, with outputs.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is: `auto` chooses the preset for your card.
#
# * `DATA` is what the model is trained on, and `TEST` what it is tested on, with `QUESTIONS` questions. `"gsm8k"` means `openai/gsm8k` on the
#   Hub, with its training part and its test part. Files with the columns `question` and `answer` work as well.
# * `CHANGES` changes settings of the preset, for example `{"max_steps": 250}`.
# * In Colab, `DRIVE = "grpo_nb/gsm8k"` keeps the run on your Google Drive. After a disconnection, run all cells again.
#
# **Decide now how much you want to see.** With 200 questions an accuracy is known to about 7 points in either direction. A gain is detected reliably
# from about 12 points on, if a third of the answers change. For smaller gains take more questions: see exercise 1.

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
# The weights are loaded in 4 bit, which saves memory, and a LoRA is put on them. Only the LoRA is trained. On an H100 the weights stay in 16 bit.
#
# Sampling is the slow part of most GRPO trainings, so vLLM samples the completions if it can start. If it cannot, a warning gives the reason, and
# the training goes on more slowly.

# %%
run_root = gn.machine.choose_run_folder(DRIVE, report=print)
settings = gn.preset(PRESET, **{"run_root": run_root, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)

# %% [markdown]
# ## The task
#
# Each row of GSM8K has a worked solution that ends in `#### 42`. The number becomes the gold answer. The solution becomes a column of its
# own and is never shown to the model: it has to find its own way there.
#
# Each prompt has one solved example, so that the model knows the format from the start. The example is not from GSM8K.
#
# You should see that the answers are numbers, and the first prompt.

# %%
example = (
    "A box holds 12 eggs. How many eggs are in 3 boxes and 4 more?",
    "3 * 12 = 36 and 36 + 4 = 40",
    "40",
)
task = gn.load_task(DATA, settings, example=example, holdout=16, tokenizer=tokenizer)
test = gn.evaluation.load_holdout(TEST, format=task.format, example=example)
task

# %% [markdown]
# ## The rewards, checked
#
# A correct number is worth 2, the complete format 1, and the tags together half a point. So the answer is worth more than everything else
# together, and a tidy wrong answer never beats a right one.
#
# The check tries a few thousand completions made from these rows, and looks for ways to cheat. You should see that nothing is found.

# %%
rewards = gn.rewards.rewards_for(task)
report = gn.check_rewards(rewards, task, tokenizer=tokenizer)
report.raise_if_critical()
report

# %% [markdown]
# ## Does it fit, and is there a signal?
#
# Two questions, answered before you spend an hour.
#
# **Does it fit?** The plan computes memory and tokens from the shapes of the model.
#
# **Is there a signal?** The model writes some groups, as the training would sample them. A group in which all totals are equal teaches
# nothing. So look for *signal*, and for groups with right and wrong answers side by side.
#
# The share of correct answers is the accuracy at temperature 1. It can differ from the accuracy below, which uses greedy decoding.

# %%
display(gn.plan(settings, task, model=model, tokenizer=tokenizer))
gate = gn.baseline(model, tokenizer, task, rewards, settings)
gate

# %% [markdown]
# ## Train
#
# You can run this cell again: it resumes an interrupted run, and returns a finished one.
#
# With the preset for a T4, a step has 16 completions, eight to each of two questions. So 100 steps use 200 questions, a small part of GSM8K.
# Expect a first result, not a record.

# %%
run = gn.train(model, tokenizer, task, rewards, settings, name="gsm8k", resume="auto")

# %% [markdown]
# ## Before and after
#
# The questions of the test part are answered greedily with the LoRA off and on. How to read the verdict:
#
# | you see | it means | next |
# | --- | --- | --- |
# | *better*, and the answers themselves too | the training helped on new questions | report it with its interval |
# | *better: the format* | it learned the tags; look at the row *correct anywhere* | more steps, if you want better answers |
# | *no difference shown* | any gain is smaller than the test can detect | more questions first, then more steps |
# | *worse* | the training did harm | read the lost answers, check the rewards, try a smaller learning rate |
#
# **Look once.** If you compare ten checkpoints and report the best, one of them is "better" by chance.

# %%
comparison = gn.compare(run, test, limit=QUESTIONS)
comparison

# %% [markdown]
# ## Export
#
# You get one ordinary model in a folder, compared with the trained one in a separate process. If no gradient ever moved the model, nothing is
# exported.

# %%
has_learned = run.metrics["grad_norm"].max() > 0
exported = gn.export_merged(run, EXPORT_TO, overwrite=True) if has_learned else None
exported

# %% [markdown]
# ## Did it work?
#
# Two things must hold, whatever was learned: the run is finished, and the export is the trained model. Then follows the result in words that you may
# quote: number, interval, questions.
#
# **What a gain does not prove.** Better answers do not show that *your reward* taught them. In one study a Qwen2.5-Math model gained 21 points on a
# mathematics test from *random* rewards, and other model families hardly did ([arXiv:2506.10947](https://arxiv.org/abs/2506.10947)). The presets for
# GPUs use Qwen2.5 models too, though not the Math ones. Before you claim more than "accuracy rose", train once more with a random reward, or with another family.
#
# One run is also one seed. [GRPO and its relatives](a1_algorithms.ipynb) shows how far seeds lie apart.

# %%
assert run.status == "finished", run.status_sentence
assert not has_learned or exported.verification["passed"], "the export is not the trained model"
print(f"{TEST}, {comparison.after.question_count} questions of the test part.")
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
# **1. Is 200 enough?** (five minutes, with pencil and paper). [Evaluate](05_evaluate.ipynb) has a table of the minimum detectable difference: 17 points
# with 96 questions. It shrinks with the square root of the number of questions. What can 200 detect? And how many questions do you need for a gain
# of 4 points?
#
# <details><summary>Answer</summary>
#
# $17 \cdot \sqrt{96 / 200}$ is about 12 points. For 4 points you need $96 \cdot (17 / 4)^2$, about 1,700 by these rounded numbers. The table, which rounds as well, has 4 points
# at 1,320. So take the whole test part: `QUESTIONS = 1319`. All this holds if a third of the answers change. If fewer change, smaller gains are detected.
# </details>
#
# **2. Too hard.** The baseline shows that in most groups all completions are wrong. What can you change before you take a larger model?
#
# <details><summary>Answer</summary>
#
# Choose questions by their measured pass rate ([how](../docs/guide/train.md#4-train-on-what-can-be-learnt)), sample more completions per question
# (`num_generations`), or allow longer completions if many are truncated. Each makes it more likely that a group has a right answer among
# the wrong ones.
# </details>
#
# ## Next
#
# * Your own data instead of GSM8K: [Your own data](03_your_data.ipynb). Other questions for the same model: `gn.ask(run, "...")`.
# * Which losses to try, and which not: [GRPO and its relatives](a1_algorithms.ipynb).
# * If you ran this on a GPU, please [send the last cell's lines](../docs/gpu.md), the card and the time.
#
# @NEIGHBOURS@
