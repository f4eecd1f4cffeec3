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
# # Rewards that cannot be cheated
#
# Write a reward, try it by hand, let the kit search for loopholes, and find out whether the model would get a learning signal
# from it, before you train.
#
# About 2 minutes on two idle CPU cores, under 3 GB of memory and 0.3 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# The only cell to edit. `auto` takes the preset for your machine: on a CPU the small model that came with the installation. A
# larger one on a GPU may know the format from the start, and then the last lesson is another one: it needs no example. `PROMPTS`
# are sampled for each baseline; a change by name is, for example, `CHANGES = {"num_generations": 16}`.
#
# Your own data in place of the sums: `TASK = {"source": "my.csv", "columns": {"question": "...", "answer": "..."}}`
# (`03_your_data`).

# %% tags=["parameters"]
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
PROMPTS = 8  # @param {"type": "integer"}
TASK = {}  # @param {"type": "raw"}

# %% [markdown]
# ## The model
#
# Nothing is trained in this notebook. The model is only asked for completions, in the lab and at the end.

# %%
settings = gn.preset(PRESET, **CHANGES)
model, tokenizer = gn.load_model(settings, report=print)

# %% [markdown]
# ## Data and format
#
# Data is a list of rows with a question and the right answer, the *gold* answer. `load_task` makes prompts of them, holds some
# back for evaluation, and adds a system prompt that describes the format: reasoning in one pair of tags, the answer in another.
#
# First three texts, and what the format reads in each. Only the first has an answer: the second has no place for it, the third
# has two. Then the task. There is no example in its prompt, only the description; remember that for the end.

# %%
rows = [
    {"question": f"What is {a} + {b}?", "answer": str(a + b)}
    for a in range(1, 21)
    for b in range(1, a + 1)
]
task = gn.load_task(**{"source": rows, **TASK}, settings=settings, tokenizer=tokenizer)

good = task.format.render("2 + 5 = 7", "7")
for text in (good, "The answer is 7.", good + "\n<answer>8</answer>"):
    print(repr(text), "->", task.format.extract(text))
task

# %% [markdown]
# ## A first reward
#
# A reward is a function from completions to numbers. `correctness` pays 1 for the right answer in its place, in any written form,
# and 0 for everything else. `gn.score` tries it as a trainer would. The first two texts should be paid; the other four are texts
# that someone once got paid for.

# %%
first = gn.rewards.correctness(weight=2.0)
texts = [
    "<reasoning>40 + 2</reasoning><answer>42</answer>",
    "<answer>x = 42.0</answer>",
    "<answer>41 or 42</answer>",
    "<answer>41 = 42</answer>",
    "<answer>42</answer> No, it is 41.",
    "The answer is 42.",
]
tried = gn.score(first, texts, {"answer": "42"})
tried

# %% [markdown]
# ## A set of rewards, checked
#
# Correctness alone pays nothing until the whole form is right, so two rewards for form stand beside it. They weigh less than being
# right: 1 and 0.5 against 2. `check_rewards` now calls each with about a thousand completions, made from your own rows, that
# try to cheat. It needs no model.
#
# You should see that nothing is found.

# %%
rewards = [first, gn.rewards.xml_format(weight=1.0), gn.rewards.xml_tags(weight=0.5)]
report = gn.check_rewards(rewards, task, tokenizer=tokenizer)
report

# %% [markdown]
# ## The lab
#
# The same by hand. Change a text and watch scores, total and advantage; move a weight; sample a group from the model; run the
# check on the row. The part of a text that earned something is marked.
#
# Three completions are in it to begin with: right; right in the reasoning and wrong in the answer; right without any form.
# On a page without a kernel, as on GitHub, you see a picture of it as it stood when the cell was run.

# %%
lab = gn.RewardLab(rewards, task, model, tokenizer, settings)
gold = lab.row["answer"]
other = (
    str(int(gold) + 1)
    if gold.isdigit()
    else next(row["answer"] for row in task.train if row["answer"] != gold)
)
lab.completions = [
    task.format.render(f"The sum is {gold}.", gold),
    task.format.render(f"It is {gold}, or one more.", other),
    f"The answer is {gold}.",
]
lab

# %% [markdown]
# What the lab shows can be had without it, in one line. The *advantage* is how far a total lies above or below the mean of
# its group: positive completions become likelier in training, negative ones less likely.

# %%
scores = gn.score(rewards, lab.completions, lab.row)
print("advantages:", [round(advantage, 2) for advantage in scores.advantages()])
scores

# %% [markdown]
# ## A reward with a hole
#
# Here is a reward that many people write first: it gives 1 if the gold number is anywhere in the text. Of the three texts of
# the lab it rewards all three, though one answer is wrong and one has no format. It looks generous, but it invites the model to cheat.
#
# The check should say *critical*, with the shortest text that cheats: every number at once, a wrong number that contains
# the right one, the right one in the reasoning only. Training pays a model for finding such texts; here the check finds them first.


# %%
def gold_somewhere(completions, answer, **columns):
    """1 if the gold number stands anywhere in the text."""
    texts = map(gn.rewards.completion_text, completions)
    return [float(gold in text) for text, gold in zip(texts, answer, strict=True)]


print(list(gn.score(gold_somewhere, lab.completions, lab.row).totals))
holed = gn.check_rewards(gold_somewhere, task, tokenizer=tokenizer)
holed

# %% [markdown]
# ## Fixed
#
# Every fix in that table says the same: take the answer from its slot, and compare all of it. `extract_last` gives the content
# of the one answer slot, if nothing follows that could take it back.
#
# You should see 1, 0 and 0 now, and that nothing is found. One difference remains: this reward wants the number written exactly
# as in the data, and gives 0 to `7.0` for `7`. `correctness` reads numbers as numbers, so the set above stays as it is.


# %%
def gold_in_its_slot(completions, answer, **columns):
    """1 if the answer slot holds the gold number and nothing else."""
    slots = [task.format.extract_last(gn.rewards.completion_text(c)) for c in completions]
    return [float(slot == gold) for slot, gold in zip(slots, answer, strict=True)]


print(list(gn.score(gold_in_its_slot, lab.completions, lab.row).totals))
mended = gn.check_rewards(gold_in_its_slot, task, tokenizer=tokenizer)
mended

# %% [markdown]
# ## Rewards together
#
# Sound rewards can still make a bad sum. The same scores under other weights, with form worth more than being right: the first
# two texts, right and wrong, move close together, and both are far above a right answer in poor form. The check sees it without
# being told.
#
# You should see two lines of advantages, and a warning that *format outweighs the answer*.

# %%
from grpo_nb.scoring import reweight

formal = {"correctness": 0.5, "xml_format": 2.0}
for name, scored in (("as above", scores), ("formal", reweight(scores, formal))):
    advantages = [round(advantage, 2) for advantage in scored.advantages()]
    print(f"{name:9} totals {list(scored.totals)}, advantages {advantages}")
weighed = gn.check_rewards(rewards, task, tokenizer=tokenizer, weights=formal)
weighed

# %% [markdown]
# ## Will training get a signal?
#
# A sound reward is not enough: GRPO learns from differences *within* a group of completions for the same prompt. If all of them
# score the same, right or wrong, the step teaches nothing. So sample some groups before you train, and look.
#
# With the small model you should see **no signal**: not one completion holds a tag, so every total is 0 in every group. (On another
# machine a single tag may fall by chance, about once in 400 completions, and make it a *weak signal*.) Training would run to its
# end, with a flat curve and no error. The advice names what is missing. A larger model may give a signal right here.

# %%
before = gn.baseline(model, tokenizer, task, rewards, settings, prompts=PROMPTS)
before

# %% [markdown]
# ## With one example turn
#
# The same questions, model, rewards and seed. The only change is the one that the advice proposes: each prompt now shows one solved
# question before the real one.
#
# You should see **signal**, or **format only** where by chance not one answer is right: the totals differ in most groups. By reward,
# nearly all of that is form, and hardly an answer is right yet: so the form will be learnt first, and being right after it, as in
# `00_quickstart`. The intervals are wide, because eight groups are few; the sentence claims no more than they allow.

# %%
example = ("What is 3 + 4?", "3 + 4 = 7", "7")
task_with_example = gn.load_task(
    **{"source": rows, "example": example, **TASK}, settings=settings, tokenizer=tokenizer
)
after = gn.baseline(model, tokenizer, task_with_example, rewards, settings, prompts=PROMPTS)
after

# %% [markdown]
# ## Did it work?
#
# Five things that must hold; each line says which one did not. Whether the example helped is said by a test (Fisher's exact one),
# because eight groups are few: how often would so many more groups differ by luck?

# %%
from scipy.stats import fisher_exact

differing = [after.counts["differs"], before.counts["differs"]]
luck = fisher_exact(
    [differing, [PROMPTS - count for count in differing]], alternative="greater"
).pvalue
assert tried.values["correctness"] == (1, 1, 0, 0, 0, 0), "the first reward paid for another text"
assert report.ok, report.summary
assert any(finding.severity == "critical" for finding in holed.findings), "the hole was not found"
assert mended.ok, mended.summary
assert any("outweighs" in finding.kind for finding in weighed.findings), (
    "the weights were not noticed"
)
print(
    "The loophole was found and closed, and the weights that reward format more than being right were noticed."
)
clear = "more groups have a learning signal" if luck < 0.01 else "no clear difference is shown"
print(f"With the example turn {clear} (p = {luck:.2g}).")
print(f"Without the example: {before.sentence}\nWith it: {after.sentence}")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *was imported before unsloth* | another import came first | restart the kernel and run from the top |
# | the lab is a table without buttons | ipywidgets is not installed where Jupyter runs, or the page has no kernel | `pip install ipywidgets`, reload the page, run the cell again; or use `gn.score` |
# | *needs the data column* | the reward asks for a column that your rows lack | rename it: `gn.load_task(..., columns={...})` |
# | *hangs* or *not checked to the end* | a reward is too slow, or hangs on a hostile text | look at the text in the table; `seconds_per_call=` allows more |
# | *no signal* with an example | too hard, too easy, or cut off | follow the advice under the verdict |
# | *weak signal* | too few groups to say | `PROMPTS = 32` |
# | *format only* | nothing that was sampled is right, so only the form would be learnt | easier questions, as the advice says |

# %% [markdown]
# ## Next
#
# * Train on this task: `gn.train(model, tokenizer, task_with_example, rewards, settings)`, as in `00_quickstart`.
# * Choose rewards for your own answers: `docs/guide/rewards.md`.
# * Keep what you tried, in a cell or in your own tests: `assert gn.score(reward, [text], row).totals == (0.0,)`.
# * Stop a script before it wastes hours: `gn.check_rewards(rewards, task).raise_if_critical()`.
#
# @NEIGHBOURS@
