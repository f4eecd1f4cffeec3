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
# The model writes small Python functions. Nobody compares them with a solution: the code runs in a sandbox, and its score is the share of
# hidden tests that it passes. You also see what a loophole looks like here, and why the tests must not be in the prompt.
#
# | Held-out tasks solved (all hidden tests passed) | before | after |
# | --- | --- | --- |
# | greedy decoding | 50 % | 95 % |
# | sampled at temperature 1 | 22 % | 85 % |
#
# About 6 minutes on two idle CPU cores, under 5 GB of memory and 0.4 GB of disk. No GPU needed. The small model can only write one-line
# functions. On a GPU, the larger model of the preset gets the same tasks.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is. `STEPS` is the length of the training. In Colab, `DRIVE = "grpo_nb/code"` keeps the run on your Google
# Drive.

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
# Each row asks for a function `f` and has four tests in the column `tests`. The model never sees the tests: only the reward gets this
# column. Two solved examples are in every prompt, because a small model has to see what is wanted.
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
# `code_tests` takes the code from the answer tags and runs it in a [sandbox](../docs/reference/sandbox.md): a separate process
# without network, without your files, with limits for time and memory. Only the inputs of the tests go in. The results come out as
# plain data and are compared outside, so the code cannot print a verdict or bring an object that is equal to everything.
#
# **Predict before you run:** what do these five completions score? You should see 1, a part for the second, which is right for one input
# only, and 0 for the others: code outside of the tags, a function that never ends, and one that tries to be equal to everything.

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
# ## A loophole: tests that the model can see
#
# The second completion above shows the danger. It is not a solution, but it passes one test. If a prompt contained the tests, a model
# could learn to write `if x == 0: return 3` for each of them: the score is full, and nothing is solved. Hidden tests with several
# inputs make that useless. `all_or_nothing=True` also closes the part for special cases, but then there is less to learn from at the
# start.

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
# You should see that about one in five of the sampled functions is right, and more of the greedy ones. In most groups right and
# wrong functions are side by side: there is something to learn.

# %%
gate = gn.baseline(model, tokenizer, task, rewards, settings, prompts=4)
gate

# %% [markdown]
# ## Train
#
# There is no reward for the format. Code outside of the tags scores 0, so the format is learned together with the function.

# %%
resume = "auto" if DRIVE else None
run = gn.train(model, tokenizer, task, rewards, settings, name=RUN_NAME, resume=resume)
display(run.step(1).groups[0], run.step(run.steps[-1]).groups[0])

# %% [markdown]
# ## Before and after
#
# A held-out answer counts as correct if it passes all of its hidden tests. The first table decodes greedily. The second samples two
# functions per task, as in training.

# %%
comparison = gn.compare(run, task)
sampled = gn.compare(run, task, samples=2)
display(comparison, sampled)

# %% [markdown]
# ## Did it work?
#
# The first verdict is about greedy answers, the second about sampled ones. The model could write these functions now and then from the
# start; the training made it reliable. That is what GRPO does.

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
# **1. Fewer tests.** Keep only `f(0)` in the column `tests`. Which wrong functions would score 1?
#
# <details><summary>Answer</summary>
#
# Every function that is right at 0. "Multiplies x by 7 and then adds 3" and "adds 3" agree there, and so does `return 3`. Inputs that tell
# the likely mistakes apart are worth more than many inputs.
# </details>
#
# **2. A longer program.** Which two settings have to change for functions of ten lines?
#
# <details><summary>Answer</summary>
#
# `max_completion_length`, because truncated code never passes, and the example in the prompt. Partial credit becomes more important: with
# ten lines, a group without any full solution is common.
# </details>
#
# ## Next
#
# * Tests as MBPP and HumanEval have them, limits, and what the sandbox withstands: [rewards](../docs/guide/rewards.md) and
#   [the sandbox](../docs/reference/sandbox.md).
# * Combine it with tools, so that the model can run its code before it answers: [Tools](07_tools.ipynb).
#
# @NEIGHBOURS@
