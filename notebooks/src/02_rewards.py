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
# # Rewards that are hard to cheat
#
# A model is trained to raise a number. If some of its samples get points by a shortcut, it learns the shortcut. In this
# notebook you write a reward with a loophole, let the kit find it, watch a model exploit it, and train again with sound rewards.
#
# About 8 minutes on two idle CPU cores, under 5 GB of memory and 0.4 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is. `PROMPTS` is how many questions are sampled to see whether a training can learn, `STEPS` is the
# length of the two trainings. To use your own data instead of the sums, see [Your own data](03_your_data.ipynb).

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
PROMPTS = 8  # @param {"type": "integer"}
STEPS = 16  # @param {"type": "integer"}
TASK = {}  # @param {"type": "raw"}

# %% [markdown]
# ## The model and the task
#
# Data is a list of rows. Each row has a question and its correct answer, the *gold answer*. `load_task` turns the rows into prompts,
# and holds some rows back for the comparison at the end. The system prompt asks for a format: the reasoning between one pair of tags,
# the answer between another. Each prompt also shows one solved question. (Below you see what happens without it.)
#
# You should see the number of rows, the kind of answers and the first prompt.

# %%
changes = {"max_steps": STEPS, "learning_rate": 2e-4, "max_completion_length": 64}
settings = gn.preset(PRESET, **{**changes, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)

rows = []
for a in range(1, 21):
    for b in range(1, a + 1):
        rows.append({"question": f"What is {a} + {b}?", "answer": str(a + b)})
solved = ("What is 3 + 4?", "3 + 4 = 7", "7")
data = {"source": rows, "holdout": 0.4, "example": solved, **TASK}
task = gn.load_task(**data, settings=settings, tokenizer=tokenizer)
task

# %% [markdown]
# ## Rewards, tried and checked
#
# A reward is a function that turns completions into numbers. `correctness` gives 1 for the right answer between the answer tags, however
# the number is written (42, 42.0, x = 42), and 0 for everything else. `gn.score` calls it as the trainer would.
#
# **Predict before you run:** which of these six completions deserve the point?
#
# <details><summary>What you should see</summary>
#
# Only the first two get it. The third hedges, the fourth writes an equation that is false, the fifth takes its answer back, and the
# last has no answer tags.
# </details>
#
# On its own, `correctness` gives nothing until the answer is between its tags. So two rewards for the format are added. They weigh
# less than a correct answer: 1 and 0.5 against 2. From your rows `check_rewards` builds a few thousand completions, many of them cheats,
# and looks at what each one earns. It needs no model. (Its findings say *slot* for the place of the answer: what stands between the answer
# tags.)
#
# You should see that nothing is found, and one line for each reward. *Tells right from wrong* says that plain right answers score above
# plain wrong ones. A reward that can be cheated gets this line too.

# %%
right = gn.rewards.correctness(weight=2.0)
texts = [
    "<reasoning>40 + 2</reasoning><answer>42</answer>",
    "<answer>x = 42.0</answer>",
    "<answer>41 or 42</answer>",
    "<answer>41 = 42</answer>",
    "<answer>42</answer> No, it is 41.",
    "The answer is 42.",
]
tried = gn.score(right, texts, {"answer": "42"})
display(tried)

rewards = [right, gn.rewards.exact_format(weight=1.0), gn.rewards.partial_format(weight=0.5)]
report = gn.check_rewards(rewards, task, tokenizer=tokenizer)
report

# %% [markdown]
# ## The reward lab
#
# Try the same by hand. Change a completion and watch its scores, its total and its advantage. Move a weight. Let the model write a
# group. The part of a completion that earned something is marked.
#
# The lab starts with three completions: one that is right, one that is right in the reasoning and wrong in the answer, and one that is
# right without any format. On a page without a kernel, such as GitHub, you see a picture of the lab.
#
# **Try it.** The second completion is wrong and has the advantage −0.095. Lower the weight of `correctness` until it is pushed *up*. At which
# weight does it turn? Then set the weight to 2 again, and add a second copy of the first completion.
#
# <details><summary>Answer</summary>
#
# At 1.5: then the totals are 3, 1.5 and 0, and 1.5 is their mean. With the weight 1 it has +0.13, so a wrong answer becomes more likely. With
# a second right completion and the weight 2 it falls to −0.37, although nothing about it changed: only the group decides.
# </details>

# %%
lab = gn.RewardLab(rewards, task, model, tokenizer, settings)
gold = lab.row["answer"]
wrong = next(row["answer"] for row in task.train if row["answer"] != gold)
lab.completions = [
    task.format.render(f"The sum is {gold}.", gold),
    task.format.render(f"It is {gold}, or one more.", wrong),
    f"The answer is {gold}.",
]
lab

# %% [markdown]
# ## A reward with two loopholes
#
# Here are two rewards that many people write first. `gold_somewhere` gives a point if the gold answer occurs anywhere in the text.
# `thinks_long` gives a point for every 20 characters, because longer thinking should be better thinking. Both look harmless.
#
# **Predict before you run:** how would *you* get a high score from them without solving the sum?
#
# <details><summary>What you should see</summary>
#
# | finding | means | here |
# | --- | --- | --- |
# | critical | the trick replaces the task, and the model learns the trick instead | a completion that lists all answers of the task contains the right one |
# | warning | the reward also pays for something else. How bad that is depends on how much it pays | 30 contains 3, so 30 gets the point where 3 is right; repeated words raise the second reward on and on |
#
# *Critical* means that it ends badly if the model finds the trick. A model finds a trick only if it sometimes samples it. (Read the *critical* rows and the row *repetition is rewarded* first. The others are
# details of the same two.)
#
# How to read a row, with the first one as the example. *every candidate* is the name of the trick. *4 of 4 such completions score like a
# right answer* is what was measured. The *example* is one of the four, and *fix* is what to change in the function.
# </details>


# %%
def gold_somewhere(completions, answer, **columns):
    """Return 1 for each completion that contains the gold answer anywhere."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = gn.rewards.completion_text(completion)
        scores.append(1.0 if gold in text else 0.0)
    return scores


def thinks_long(completions, **columns):
    """Return one point for every 20 characters."""
    return [len(gn.rewards.completion_text(completion)) / 20 for completion in completions]


gold_somewhere.weight = 2.0
with_loopholes = [gold_somewhere, thinks_long]
found = gn.check_rewards(with_loopholes, task, tokenizer=tokenizer)
found

# %% [markdown]
# ## Watch it happen
#
# Ignore the findings and train. You should see a curve that looks like a success: within sixteen steps the total reward doubles.
#
# **Predict before you run:** which of the two loopholes will the model find first? Compare how the completions of the first group are
# written with those of the last one (the questions differ).

# %%
hacked = gn.train(model, tokenizer, task, with_loopholes, settings)
groups = {"first": hacked.step(1).groups[0], "last": hacked.step(STEPS).groups[0]}
display(*groups.values())
print("Standard deviation of the weighted scores")
for when, group in groups.items():
    for name, weight in group.weights.items():
        spread = (weight * group.table[name]).std()
        print(f"  in the {when} group, {name}: {spread:.2f}")

# %% [markdown]
# It writes more. Why this, and not the list of all answers that the check called *critical*? No completion of the first group lists
# them, and GRPO can only make more frequent what the model samples. Long texts are among its samples. And they win, because the
# advantage is computed from the *total*. In the first group the scores for length spread much more than those for the sum (a standard
# deviation of 4.98 against 0.93), so they decide who is above the average. Compare two completions of that group:
#
# | completion | for the sum | for the length | total | advantage |
# | --- | --- | --- | --- | --- |
# | the right answer, in its place | 2 | 2.85 | 4.85 | −0.316 |
# | a long text without the sum | 0 | 15.75 | 15.75 | +2.071 |
#
# So the right answer in its place is pushed down, and rambling is pushed up. The check called this only a *warning*. It does the damage because its
# points spread five times as widely: read warnings too, and look at the spread. (From step 2 on: in step 1 the learning rate is 0, so this very group moves
# nothing.) This is **reward hacking**: it did what you scored, not what you wanted.
#
# Look at the last group again. Two texts answer 22 and 10 and still earn the 2 points, because the 7 is in the reasoning: the finding
# *answer outside the slot*. All eight texts earn the 2 points, so `gold_somewhere` has no spread in this group (the third printed line) and teaches nothing. Only length is left.
#
# All eight of the last group still write the sum first. The long ones then fill the place of the answer with words.
#
# The comparison asks the held-out questions and grades with `correctness`, which this training never used.
#
# **Predict before you run:** the reward doubled. Write down what you expect of the three rows *correct*, *in the format* and *correct
# anywhere* (the last number of the completion): up, down, or no change?
#
# <details><summary>What you should see</summary>
#
# *Correct anywhere* fell from 58 % to 12 %, and *correct* from 10 % to 1 %. *In the format* rose to 29 % although nobody scored it, perhaps
# because a longer text reaches the last tag more often.
#
# Neither curve shows this: the total rises, and `gold_somewhere` rises a little at the end.
# Three things show it: a check of the reward beforehand, the completions themselves, and a held-out measure that is not the reward.
# </details>

# %%
after_hacking = gn.compare(hacked, task, grader=gn.rewards.correctness())
after_hacking

# %% [markdown]
# ### Did it unlearn adding?
#
# The last number of the completion is right less often than before. That could mean two things: the model no longer computes the sum, or
# it computes it and then writes on until another number is the last one.
#
# **Predict before you run:** which of the two? The cell counts the completions in which the right sum stands after a `=`.
#
# <details><summary>What you should see</summary>
#
# In 49 of 84 completions before the training, and in 54 after it. So this model can still add. (It now writes twice as much, so it also has more
# chances to write a sum.) What changed is what it does afterwards: it writes on where the answer belongs. One run shows that this can happen,
# not that it always does.
# </details>

# %%
import re

answers = after_hacking.transcripts()
for name in ("before", "after"):
    has_sum = [
        bool(re.search(rf"= {gold}\b", str(text)))
        for gold, text in zip(answers["answer"], answers[name], strict=True)
    ]
    print(f"{name}: the right sum stands after = in {sum(has_sum)} of {len(has_sum)} completions")

# %% [markdown]
# ## Close the loopholes
#
# The training below uses `correctness`. **Before you read the code:** which line of `gold_somewhere` would you change, and into what? The fixes in the table of the check say: read the answer from its place, compare all of it, and give every bonus a maximum. Here the
# bonus for length is dropped, because length is not what you want. `task.format.extract_final` returns the content of the answer
# tags. You should see that nothing is found any more.
#
# One difference from `correctness` remains. This reward wants the number exactly as it is written in the data, and gives 0 to `7.0` for `7`.


# %%
def gold_in_its_place(completions, answer, **columns):
    """Return 1 for each completion whose answer tags hold the gold answer and nothing else."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = gn.rewards.completion_text(completion)
        scores.append(1.0 if task.format.extract_final(text) == gold else 0.0)
    return scores


fixed = gn.check_rewards(gold_in_its_place, task, tokenizer=tokenizer)
fixed

# %% [markdown]
# ## Will training get a signal?
#
# A sound reward is not enough. GRPO learns from differences *within* a group: if all completions of a group get the same total, right or
# wrong, the step teaches nothing. So let the model write some groups first, and look. The cell measures twice: without the solved
# question in the prompts, and then with it.
#
# For the small model you should see **no signal** without the example: no completion contains a tag, so every total is 0. Training
# would run to its end with a flat curve and no error. With the example you should see **signal**. In the table by reward, read two
# columns. *std within groups* says how much this reward differs inside a group. Multiply it by the weight: the reward with the largest product
# decides most of the advantage. *groups with a signal* counts the groups in which the reward differs at all. Here it is the
# format: `correctness` differs in only 2 of the 8 groups. A larger model may know the format without an example.

# %%
# `gn.train` has changed the LoRA of the model above, so load the model again.
model, tokenizer = gn.load_model(settings, report=print)
plain_task = gn.load_task(**{**data, "example": None}, settings=settings, tokenizer=tokenizer)
without_example = gn.baseline(model, tokenizer, plain_task, rewards, settings, prompts=PROMPTS)
with_example = gn.baseline(model, tokenizer, task, rewards, settings, prompts=PROMPTS)
display(without_example, with_example)

# %% [markdown]
# ## Train with the sound rewards
#
# The original model, the same prompts and the same number of steps: only the rewards differ from the first training. They are the three from the
# section *Rewards, tried and checked*, in which `correctness` reads numbers as numbers. You should see the reward rise again. This time the
# held-out measures rise with it.
#
# **Predict before you run:** which of the three rewards decides the advantages in the first step, in the middle, and at the end? The cell
# prints how much each differs within a group. Then look at the curve of `correctness`: when does it rise?
#
# <details><summary>What you should see</summary>
#
# The two rewards for the format mostly go together, so add them: in step 1 up to 0.35 + 0.17 = 0.52, against 0.35 for the sums, and in the eight
# groups of the section before up to 0.21 + 0.15 = 0.36, against 0.18. So at first the format decides. In the middle the sums do: 0.52 against at most 0.26 + 0.08. In the curve they rise from about step 9 on. In step 16 all totals are 3.5, so every
# spread is 0, and these prompts have nothing more to teach.
#
# **Why is the format learned first?** First, it differs in more groups: the section before shows the sums in only 2 of 8. Second (probably), the
# pushes of different prompts agree: every prompt asks for the same tags, so these pushes add up, while each sum has another answer. Besides, an
# answer counts only between its tags.
#
# This is one run with one seed. [The quickstart's seeds](../docs/evidence/quickstart_seeds.md) show how much such a gain varies.
# </details>

# %%
sound = gn.train(model, tokenizer, task, rewards, settings)
print("Mean standard deviation within a group, of the weighted scores")
for step in (1, STEPS // 2, STEPS):
    step_groups = sound.step(step).groups
    for name, weight in step_groups[0].weights.items():
        spread = sum((weight * group.table[name]).std() for group in step_groups)
        print(f"  step {step}, {name}: {spread / len(step_groups):.2f}")
comparison = gn.compare(sound, task)
comparison

# %% [markdown]
# ## Did it work?
#
# The cell stops with a message if one of four checks fails. Then it prints the results. The whole lesson in two rows (on a CPU):
#
# | training | reward | right sums anywhere, held out | KL |
# | --- | --- | --- | --- |
# | with loopholes | 3.12 to 6.25 | 58 % to 12 % | 0.094 |
# | sound | 0.62 to 3.19 | 58 % to 83 % | 0.184 |
#
# Both trainings raised their reward by more than chance, so the reward alone would call both a success. The KL (the mean of the last third of
# the steps) gives no warning: it is larger in the sound training. Only the held-out answers tell them apart.
#
# Three things changed between the two trainings: where the answer is read, no bonus for length, and two rewards for the format. One run cannot
# say which of them cured it. Exercise 2 looks at the first two in one group.
#
# You can now write a reward, find its loopholes before you train, and recognise reward hacking in a run.

# %%
import textwrap

assert tried.values["correctness"] == (1, 1, 0, 0, 0, 0), "correctness rewarded another text"
assert report.ok, report.sentence
assert any(finding.severity == "critical" for finding in found.findings), "no loophole was found"
assert fixed.ok, fixed.sentence
rise = hacked.rise()
print(textwrap.fill(f"With loopholes: {rise.sentence}", 90))
print(textwrap.fill(f"Without: {sound.rise().sentence}", 90))
print(f"Without the example: {without_example.verdict}. With it: {with_example.verdict}.")
print(f"Held-out answers, with loopholes: {after_hacking.headline}")
print(f"Held-out answers, without: {comparison.headline}")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *must not be imported before* | another import came first | restart the kernel and run from the top |
# | the lab is a table without buttons | ipywidgets is not installed where Jupyter runs, or the page has no kernel | `pip install ipywidgets`, reload the page, run the cell again; or use `gn.score` |
# | *needs the data column* | the reward asks for a column that your rows lack | rename it: `gn.load_task(..., columns={...})` |
# | *hangs*, or *some probes, because it is slow* | a reward is too slow, or does not end on a hostile text | look at the text in the table; `seconds_per_call=` allows more |
# | *no signal* with an example | the task is too hard or too easy, or completions are truncated | all wrong: easier questions; all right: harder ones; truncated: a longer limit |
# | *weak signal* | too few groups to say | `PROMPTS = 32` |
#
# ## Exercises
#
# **1. Would a larger weight have helped?** (five minutes, with pencil and paper). In the first group of the hacked training, six of eight
# completions contain the right sum, and length earns 4.79 points on average. The right answer in its place earns 2.85 for its length. How large
# must the weight $w$ of `gold_somewhere` be, so that it is above the average of the group? What would you change instead?
#
# <details><summary>Answer</summary>
#
# It earns $w + 2.85$, and the average is $0.75 w + 4.79$. So it is above the average from $w = 7.8$ on. The long text without the sum
# still earns more than the right answer up to $w = 12.9$, and the critical findings stay at every weight. Give the bonus a maximum instead: with `min(1.0, ...)` in `thinks_long` two warnings of the check are gone, *repetition is rewarded* and
# *format outweighs the answer*, because length then adds at most 1. It still teaches length and nothing else, so give it a small weight or leave it out.
# </details>
#
# **2. What cured it?** (five minutes, with pencil and paper). The sound training reads the answer in its place, and it does not
# pay for length. Suppose that `correctness` replaces `gold_somewhere`, and `thinks_long` stays. Of the first group, only the right answer in its
# place keeps its 2 points. Is it pushed up now?
#
# <details><summary>Answer</summary>
#
# No. The totals are 15.75, 8.20, 4.85, 4.30, 2.65, 2.35, 1.75 and 0.50, and their mean is 5.04. The right answer (4.85) is still pushed down, by
# −0.04, and the long text without the sum gets +2.17. A sound reward does not save you from an unbounded one beside it. With at most one point
# for length, `min(1.0, ...)`, the totals are 3, six times 1, and 0.5. Their mean is 1.19, and the right answer gets +2.41. Here the limit does it.
# </details>
#
# **3. Be the model** (five minutes). Write three completions to *What is 4 + 3?* that earn 10 points or more from `with_loopholes` without the right sum
# in the answer tags. Score them with `gn.score(with_loopholes, texts, {"answer": "7"})`. What do the same three earn from `rewards`?
#
# <details><summary>Answer</summary>
#
# `"7 " * 100` earns 2 + 200 / 20 = 12 there and 0 here. So does any long text with a 7 in it, and without the 7 a text of 200 characters
# still earns 10. Inventing such texts is the best test of a reward that you have, next to the check.
# </details>
#
# ## Next
#
# * Choose rewards for your own answers: [the guide to rewards](../docs/guide/rewards.md), with [recipes](../docs/guide/recipes.md).
# * Keep what you tried as a test: `assert gn.score(reward, [text], row).totals == (0.0,)`.
# * Stop a script before it wastes hours: `gn.check_rewards(rewards, task).raise_if_critical()`.
#
# @NEIGHBOURS@
