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
# # A model that writes code, scored by hidden tests
#
# The model writes small Python functions. It never sees a solution of a training task, and no person grades it: a program runs each
# function on hidden tests. After this notebook you can **train with tests as the reward**, and you know two ways to cheat tests.
#
# Why it matters: code suits GRPO well. Checking is cheap and exact, and writing is hard. But the model is rewarded for *passing tests*
# and not for *solving the task*. Your tests decide how far these two are apart.
#
# | Held-out tasks solved (all hidden tests passed) | before | after |
# | --- | --- | --- |
# | greedy decoding | 50 % | 95 % |
# | sampled at temperature 1 | 22 % | 85 % |
#
# The small model can only write functions of one line. On a GPU, the larger model of the preset may solve most of these tasks already. In
# that case choose harder ones.
#
# About 4 minutes on two idle CPU cores, under 5 GB of memory and 0.4 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is. `STEPS` is the length of the training, and `HELD_OUT` the number of tasks that are kept for the
# comparison. In Colab, `DRIVE = "grpo_nb/code"` keeps the run on your Google Drive.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
RUN_NAME = None  # @param {"type": "raw"}
STEPS = 10  # @param {"type": "integer"}
HELD_OUT = 40  # @param {"type": "integer"}
DRIVE = ""  # @param {"type": "string"}

# %%
changes = {"max_steps": STEPS, "max_completion_length": 48, "learning_rate": 2e-4}
changes |= {"per_device_train_batch_size": 32, "gradient_accumulation_steps": 1}
changes["run_root"] = gn.machine.choose_run_folder(DRIVE, report=print)
settings = gn.preset(PRESET, **{**changes, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)

# %% [markdown]
# ## Tasks with hidden tests
#
# Each row asks for a function `f` and has four tests in the column `tests`. The prompt contains only the question, and the tests go
# to the reward.
#
# Two solved examples are in every prompt. Without an example a model this small hardly ever writes the tags, and then there is nothing to
# reward ([Rewards](02_rewards.ipynb) shows it).
#
# You should see the first prompt, without any test.

# %%
import random

generator = random.Random(0)
KINDS = {
    "adds {b} to x": lambda x, a, b: x + b,
    "multiplies x by {a}": lambda x, a, b: x * a,
    "multiplies x by {a} and then adds {b}": lambda x, a, b: x * a + b,
    "multiplies x by {a} and then subtracts {b}": lambda x, a, b: x * a - b,
}
rows = {}
while len(rows) < 120 + HELD_OUT:
    text, function = generator.choice(list(KINDS.items()))
    a, b = generator.randint(2, 20), generator.randint(1, 50)
    question = f"Write a Python function f that {text.format(a=a, b=b)}."
    tests = [f"assert f({x}) == {function(x, a, b)}" for x in (0, 1, 5, 12)]
    rows[question] = {"question": question, "answer": text.format(a=a, b=b), "tests": tests}

# %%
answer_format = gn.tasks.AnswerFormat(
    name="code",
    answer_open="<answer>",
    answer_close="</answer>",
    instruction="Write the code as <answer>code</answer>.",
)
example = [
    {"role": "user", "content": "Write a Python function f that subtracts 4 from x."},
    {"role": "assistant", "content": "<answer>def f(x): return x - 4</answer>"},
    {"role": "user", "content": "Write a Python function f that doubles x and then subtracts 3."},
    {"role": "assistant", "content": "<answer>def f(x): return x * 2 - 3</answer>"},
]
task = gn.load_task(
    list(rows.values()),
    settings,
    format=answer_format,
    example=example,
    kind="text",
    holdout=HELD_OUT,
    tokenizer=tokenizer,
)
task

# %% [markdown]
# ## The reward
#
# `code_tests` takes the code from the answer tags, runs it, and returns the share of the tests that it passes.
#
# Code that a model wrote may do anything: loop for ever, delete files, or cheat the test. So it runs in a
# [sandbox](../docs/reference/sandbox.md), a separate process without network and files, with limits for time and memory. Only the inputs
# of the tests go in. The results come out as plain data and are compared outside, so the code never sees what is expected.
#
# **Predict before you run:** what do these five completions score? The task is *add 3*, with three tests.
#
# <details><summary>What you should see</summary>
#
# | completion | share of tests | why |
# | --- | --- | --- |
# | `return x + 3` | 1 | right |
# | `return 3` | 1/3 | right for `f(0)` only |
# | right, without tags | 0 | no code is found |
# | `while True` | 0 | stopped at the time limit |
# | equal to everything | 0 | an object is not plain data |
#
# The weight is 2, so the totals are twice these shares. Why the last two earn 0 is not printed: it follows from [the rules of the
# sandbox](../docs/reference/sandbox.md#what-the-sandbox-guarantees).
# </details>

# %%
rewards = [gn.rewards.code_tests(weight=2.0)]
row = {"tests": ["assert f(0) == 3", "assert f(1) == 4", "assert f(5) == 8"]}
completions = [
    "<answer>def f(x): return x + 3</answer>",
    "<answer>def f(x): return 3</answer>",
    "def f(x): return x + 3",
    "<answer>def f(x):\n    while True: pass</answer>",
    "<answer>class E:\n    def __eq__(self, o): return True\ndef f(x): return E()</answer>",
]
scores = gn.score(rewards, completions, row)
scores

# %% [markdown]
# ## Two loopholes in tests
#
# **Tests that the model can see.** If the prompt contains the tests, `if x == 0: return 3` for each of them earns the full score and
# solves nothing. The cell below shows it: 1.0 with the visible tests, 0.0 with hidden ones.
#
# **Partial credit for special cases.** `return 3` above is no solution and earns 0.67 of 2. That sounds harmless. But suppose that the
# seven other completions of its group earn 0. Then the mean is 0.083, the standard deviation 0.236, and its advantage (0.667 − 0.083) /
# 0.236 = +2.47. A right function among seven zeros gets the same, because dividing by the standard deviation removes the size of the
# reward.
#
# So **in a group without a solution, the special case is pushed up as strongly as a solution would be.**
#
# `all_or_nothing=True` closes this loophole, but then a group without a full solution teaches nothing. You can afford that with short
# functions and hardly with long programs. This notebook keeps partial credit; the verdict checks whether it did harm.

# %%
special_cases = "def f(x):\n    if x == 0: return 3\n    if x == 1: return 4\n    return 0"
visible = {"tests": ["assert f(0) == 3", "assert f(1) == 4"]}
hidden = {"tests": ["assert f(2) == 5", "assert f(7) == 10"]}
cheat = f"<answer>{special_cases}</answer>"
print("with the tests that it knows:", rewards[0](completions=[cheat], tests=[visible["tests"]]))
print("with hidden tests:", rewards[0](completions=[cheat], tests=[hidden["tests"]]))

# %% [markdown]
# ## Is there a signal?
#
# You should see that 19 % of the sampled functions are right, and that the totals differ in all four groups. So there is something to
# learn.
#
# The output also advises a longer limit, because 5 of 32 completions were truncated. You can ignore it here. A right function has about 20
# tokens, so completions that reach 48 have probably failed to stop. Below, the training cures that.

# %%
gate = gn.baseline(model, tokenizer, task, rewards, settings, prompts=4)
gate

# %% [markdown]
# ## Train
#
# There is no reward for the format. Code outside of the tags scores 0, so the tags are learned together with the function.
#
# You should see the total reward rise to about 1.8, of at most 2.
#
# **Predict before you look at the groups:** in step 1, six of eight completions to *multiplies x by 17 and then adds 5* score 0. Are they
# wrong in their arithmetic, or in something else?
#
# <details><summary>What you should see</summary>
#
# Mostly in something else:
#
# * Two are wrong in their arithmetic, `x * 17 - 5` and `x + 17 * 5`. The second also does not stop.
# * The other four have the right expression and fail around it: in two of them text follows, one lacks `return`, and one puts a function
#   into a function in one line.
#
# In the last group all eight are right and equal, so every advantage is 0. The alert *collapse* reports many equal texts. Harder tasks
# would be the next step.
# </details>

# %%
resume = "auto" if DRIVE else None
run = gn.train(model, tokenizer, task, rewards, settings, name=RUN_NAME, resume=resume)
display(run.step(1).groups[0], run.step(run.steps[-1]).groups[0])

# %% [markdown]
# ## Before and after
#
# A held-out task counts as solved if its function passes all hidden tests. The first table decodes greedily. The second samples two
# functions per task at temperature 1, as the training does.
#
# **Predict before you run:** the model learned to stop after the function. In which of the two tables will you see that?
#
# <details><summary>What you should see</summary>
#
# In the second. Of the sampled answers 24 % were truncated before and none after, and *in the format* rises from 62 % to 100 %.
#
# **Is the gain only the format?** No. The greedy answers were all in the format already, so their gain from 50 % to 95 % is in the
# functions. The sampled gain has both parts: of the answers in the format, at most 18 of 50 were right before (36 %), and 68 of 80 after
# (85 %). How the wrong functions failed is not shown here; `comparison.transcripts()` has their text.
#
# **Not every change is a gain.** One greedy answer that was right is now wrong. Two tasks lost a right sample. The *3 equal* ones have one
# right sample of two, before and after.
# </details>

# %%
comparison = gn.compare(run, task)
sampled = gn.compare(run, task, samples=2)
display(comparison, sampled)

# %% [markdown]
# ## Did it work?
#
# Yes, on these tasks: with both ways of decoding, the share of solved tasks rose by far more than chance would explain.
#
# **What it has learned:** to do reliably what it did now and then. The greedy answers were all in the format before and after, so the
# functions themselves improved. pass@2, the share of tasks solved at least once in two tries, rises from 35 % to 95 %, so two tries of the
# old model do not replace the training. More tries were not measured.
#
# **What it has not learned:** to write constants. No constant passes all four tests of a task, and 38 of 40 greedy functions do.
#
# **What this run does not show:**
#
# * *Programming.* The held-out tasks have new numbers, but they are of the same four kinds as in the training.
# * *Other seeds.* This is one run.
# * *Good tests.* *Solved* means that four inputs came out right. The tests that trained the model and those that judge it are of one
#   kind.

# %%
assert run.status == "finished", run.status_sentence
assert scores.values["code_tests"][0] == 1, "the right function did not pass"
assert max(scores.values["code_tests"][2:]) == 0, "a cheat scored"
print("GREEDY ANSWERS")
print(run.outcome(comparison))
print("\nSAMPLED ANSWERS")
print(run.outcome(sampled))

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *generated code is not run on this machine* | a part of the isolation is missing, such as `libseccomp` | the message names it; see [the sandbox](../docs/reference/sandbox.md) |
# | *the test ... cannot be read* | a test is no plain `assert f(...) == ...` | `rewards[0].check(task.train)` names the row |
# | all scores are 0 | the code is not found in the tags | look at `run.step(1)`; add an example to the prompt |
# | with a Drive: *was another training* | a setting was changed after a finished run | another `RUN_NAME`, such as `"second"` |
# | the training waits for the sandbox | functions that do not end | a smaller time limit: `code_tests(limits=...)` |
#
# ## Exercises
#
# **1. Which inputs?** (five minutes). The task is *multiplies x by 7 and then adds 3*. A model writes `return x + 3`, `return x * 7` and
# `return x * 7 - 3`. Which of them pass `f(0)`, and which pass `f(1)`? Find one input for which `return x + 9` is right although it is
# wrong.
#
# <details><summary>Answer</summary>
#
# Only `x + 3` passes `f(0) == 3`: a forgotten multiplication does not show at 0. None passes `f(1) == 10`. `x + 9` passes at 1, because
# 1 plus 9 is 10. So choose inputs that tell the likely mistakes apart. They are worth more than many inputs.
# </details>
#
# **2. A longer program.** Which two settings have to change for functions of ten lines? And would you keep partial credit?
#
# <details><summary>Answer</summary>
#
# `max_completion_length`, because truncated code never passes, and the example in the prompt. Keep partial credit: with ten lines, a
# group without any full solution is common, and without partial credit it teaches nothing. Then choose tests that no constant passes.
# </details>
#
# ## Next
#
# * Tests as MBPP and HumanEval have them, limits, and what the sandbox withstands: [rewards](../docs/guide/rewards.md) and [the
#   sandbox](../docs/reference/sandbox.md).
# * Let the model run its code before it answers: [tools](07_tools.ipynb).
# * Other losses than that of GRPO, measured: [Algorithms](a1_algorithms.ipynb).
#
# @NEIGHBOURS@
