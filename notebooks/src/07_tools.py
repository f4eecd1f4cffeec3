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
# # A model that looks things up
#
# Some answers are not in the weights of a model: a price, a file, today's weather. The model has to call a tool. After this notebook you
# can **train a model that calls your own functions before it answers**, and test whether it learned a rule or only repeats its examples.
#
# Here the tool reads notes. Two completions to the same question, both sampled before any training:
#
# ```text
# read(farm) → Go to the yard.                                           <answer>farmyard</answer>   wrong
# read(farm) → Go to the yard.  read(yard) → The number is 19.           <answer>19</answer>         right
# ```
#
# The model can write a call, but it often stops too early. Twelve training steps change that:
#
# | Held-out questions answered correctly | before | after |
# | --- | --- | --- |
# | chains of one or two notes, as in training | 77 % | 100 % |
# | chains of three notes, longer than in training | 8 % | 100 % |
#
# About 5 minutes on two idle CPU cores, up to 5.3 GB of memory and 0.5 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# You can leave everything as it is. `HELD_OUT` is the number of questions that are kept for the comparison at the end. `LONGER` is the
# number of questions with chains of three. `CHANGES = {"max_steps": 20}` changes a setting by its name. In Colab, `DRIVE =
# "grpo_nb/tools"` keeps the run on your Google Drive.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
RUN_NAME = None  # @param {"type": "raw"}
HELD_OUT = 48  # @param {"type": "integer"}
LONGER = 24  # @param {"type": "integer"}
DRIVE = ""  # @param {"type": "string"}

# %% [markdown]
# ## The model, and how it writes a call
#
# With tools, a completion becomes an **episode**: the model writes a call, the tool answers, the model writes again, until it gives its
# answer. Each message with calls is a *round*. `max_completion_length` counts the tokens of the whole episode, including the notes.
#
# The chat template decides how a call is written. Qwen, Llama 3.1, Gemma 4 and others have a template with tools. The small model has
# none, so this cell gives it a short form: `<call>read(place=mill)</call>`. Short is better here, because every token of a call has to be
# right.
#
# `beta` is 0. The KL penalty [did not change the reward of another short run](../docs/reference/losses.md#what-beta-costs), and each step
# is cheaper without it.

# %%
is_small = gn.preset(PRESET).model == gn.preset("cpu").model
changes = {"max_steps": 12, "warmup_steps": 2, "beta": 0.0}
changes |= {"holdout_every": 6, "holdout_questions": 16}
if is_small:
    changes |= {"max_completion_length": 72, "max_prompt_length": 320}
    changes |= {"learning_rate": 2e-4, "max_grad_norm": 0.2}
else:
    changes |= {"max_completion_length": 320, "max_prompt_length": 1024}
changes["run_root"] = gn.machine.choose_run_folder(DRIVE, report=print)
settings = gn.preset(PRESET, **{**changes, **CHANGES})
model, tokenizer = gn.load_model(settings, report=print)
if is_small:
    from grpo_nb.models import set_tool_template

    set_tool_template(tokenizer)

# %% [markdown]
# ## The village
#
# Each place of a village has a note. The note names the next place, or it has the number that the question asks for. The number is
# random, so the model cannot know it and has to read.
#
# `Village` is an **environment**, a class that follows one episode:
#
# * `reset` starts an episode with a row of the data.
# * Every public method is a tool. The model sees its name, its types and its docstring, and nothing else.
# * Each completion gets an object of its own, and the rewards get these objects.


# %%
class Village:
    """Each place has a note: where to go next, or the number."""

    def reset(self, chain, number, **row):
        self.chain = chain
        self.number = number
        self.notes_read = 0  # in the right order

    def read(self, place: str) -> str:
        """Read the note at a place.

        Args:
            place: Where the note is.
        """
        if place not in self.chain:
            return "There is no note."
        position = self.chain.index(place)
        if position == self.notes_read:
            self.notes_read += 1
        if position + 1 == len(self.chain):
            return f"The number is {self.number}."
        return f"Go to the {self.chain[position + 1]}."


# %% [markdown]
# ## Data
#
# The training has chains of one and two places. Chains of three are kept for a test at the end.
#
# `reset` gets its data from the row, so all completions of a group play the same game. This matters because the advantage compares them: if
# each had a different game, luck with an easy one would look like a good completion. So an environment that draws a random game is refused.

# %%
import random

PLACES = "barn mill well shop port farm mine hill lake bank gate yard dock cave tower bridge church garden school market"


def make_rows(count, hops, seed):
    generator = random.Random(seed)
    rows = []
    for village in generator.sample(range(1000 * seed, 1000 * (seed + 1)), count):
        chain = generator.sample(PLACES.split(), generator.choice(hops))
        number = generator.randint(10, 99)
        question = f"Village {village}: start at the {chain[0]}. What is the number?"
        rows.append({"question": question, "answer": str(number), "chain": chain, "number": number})
    return rows


answer_format = gn.tasks.AnswerFormat(
    name="answer",
    answer_open="<answer>",
    answer_close="</answer>",
    instruction="Find the number by reading the notes. Answer as <answer>number</answer>.",
)
common = {"settings": settings, "format": answer_format, "tokenizer": tokenizer}
rows = make_rows(192 + HELD_OUT, hops=(1, 2), seed=2)
task = gn.load_task(rows, holdout=HELD_OUT, **common).with_tools(environment=Village)

# %% [markdown]
# ## Play an episode yourself
#
# Before the model plays, play an episode by hand, with the same tool and the same rewards. There are two rewards: 2 points for the right
# number in the answer, and `progress`, the share of the chain that was read in the right order.
#
# **Predict before you run:** the chain has two places. What is the total after the first note, after the second, and with the answer? And
# what does a guess without reading earn?
#
# <details><summary>What you should see</summary>
#
# 0.5, 1 and 3. The guess earns 0. So an episode that stops half-way earns more than a guess, and much less than one that goes on.
# </details>

# %%
from grpo_nb.lab import ManualEpisode


def progress(environments, **columns):
    """Return the share of each chain that was read in order."""
    return [village.notes_read / len(village.chain) for village in environments]


rewards = [gn.rewards.correctness(weight=2.0, format=answer_format), progress]
two_places = next(i for i, row in enumerate(task.train) if len(row["chain"]) == 2)
episode = ManualEpisode(task, two_places)
for place in episode.row["chain"]:
    note = episode.do("read", place=place)
    print(f"read({place}) -> {note}  total {episode.scores(rewards).totals[0]:g}")
episode.say(f"<answer>{episode.row['number']}</answer>")
print(f"the answer: total {episode.scores(rewards).totals[0]:g}")
guess = ManualEpisode(task, two_places).say("<answer>5</answer>")
print(f"a guess: total {guess.scores(rewards).totals[0]:g}")

# %% [markdown]
# ## Show the model two episodes
#
# GRPO can only make more frequent what the model already does sometimes. This model has never seen our form of a call, so without an
# example it would hardly ever write one. That is why two solved episodes go into every prompt: yours, and one with a single note.
#
# You should see the tool, the two episodes and the question, as the model gets them.

# %%
one_place = next(i for i, row in enumerate(task.train) if len(row["chain"]) == 1)
short = ManualEpisode(task, one_place)
short.do("read", place=short.row["chain"][0])
short.say(f"<answer>{short.row['number']}</answer>")
example = [*short.example(tokenizer), *episode.example(tokenizer)]
shown = {short.row["question"], episode.row["question"]}
rest = [row for row in rows if row["question"] not in shown]
task = gn.load_task(rest, holdout=HELD_OUT, example=example, **common)
task = task.with_tools(environment=Village)
task

# %% [markdown]
# ## Is there a signal?
#
# You should see that the totals differ in all four groups, so there is something to learn from. Both rewards differ within the groups:
# `progress` also tells two wrong answers apart, if one of them has read more.
#
# About four in ten sampled answers are correct, and two of the four greedy ones. The 77 % at the top rest on 48 questions and greedy
# decoding. Four prompts are few, and sampling is harder, because one unlikely token spoils a call.

# %%
gn.baseline(model, tokenizer, task, rewards, settings, prompts=4)

# %% [markdown]
# ## Train
#
# A task with tools is trained with the same line as any other. Two things are different inside:
#
# * **The notes are not trained on.** They are in the context, but not in the loss. Training on them would be useless: the tool writes
#   them, not the model.
# * **One advantage for the whole episode.** Every token that the model wrote gets it, the first call as well as the answer. GRPO does not
#   know which call was the good one. It only compares whole episodes.
#
# You should see `progress` (middle) run ahead of `correctness` until about step 9: reading comes first, right answers follow. The held-out
# curve has a wide interval, because it rests on 16 questions. KL is not measured, because `beta` is 0.

# %%
resume = "auto" if DRIVE else None
run = gn.train(model, tokenizer, task, rewards, settings, name=RUN_NAME, resume=resume)

# %% [markdown]
# ## How it reads, before and after
#
# You see one group of the first step and one of the last. Follow the calls and the notes that came back (→).
#
# **Predict before you run:** in the first group, three completions read one of two notes and make up an answer. They earn 0.5. The mean
# of the group is 0.56. Are they pushed up or down?
#
# <details><summary>What you should see</summary>
#
# Slightly down (−0.06), while those that earn nothing get −0.55. The one completion that read both notes gets +2.40. So this step teaches
# the model to go on, and it prefers stopping half-way to not reading at all.
#
# One of the others answers *The number is 87.* It copies the example in the prompt.
#
# The cell picks the group of the last step with the most notes. On a CPU even that group needs only one: all eight completions are right
# and equal, and every advantage is 0. So this group does not show that the model goes on. The next section tests that.
#
# The alert *collapse* above warns of groups with many equal texts. Where they are right, as here, harder questions would teach more.
# </details>

# %%
last_groups = run.step(run.steps[-1]).groups
longest = max(last_groups, key=lambda group: group.transcripts.str.count("→").max())
display(run.step(1).groups[0], longest)

# %% [markdown]
# ## Before and after, on villages it has never seen
#
# The first comparison asks held-out villages with chains of one and two places. The second asks chains of three, which never occurred in
# training or in the examples, and allows half as many tokens again. It tells two habits apart:
#
# * A model that has learned *read twice, then answer* fails on all of them.
# * A model that has learned *go on until a note has a number* answers them.
#
# **Predict before you run:** which of the two has it learned? Look at *correct* and at *mean length* in the second table.
#
# <details><summary>What you should see</summary>
#
# On chains of three, *correct* goes from 8 % (2 of 24) to 100 %, and the mean length from 27 to 49 tokens. So it goes on. Before the
# training it answered every question too, but 27 tokens are too few to read three notes (`three.transcripts()` has the texts).
#
# *In the format* is 100 % before and after, so nothing of this gain is the format. In [the quickstart](00_quickstart.ipynb) most of it was.
# </details>

# %%
comparison = gn.compare(run, task)
longer = gn.load_task(
    make_rows(4 + LONGER, hops=(3,), seed=7), holdout=LONGER, example=example, **common
).with_tools(environment=Village)
length = settings.max_completion_length * 3 // 2
three = gn.compare(run, longer, against="base", max_completion_length=length)
display(comparison, three)

# %% [markdown]
# ## Did it work?
#
# Yes, and it was not the luck of this seed. On eight other seeds, 0 to 4 % of the chains of three were correct before the training, and 96
# to 100 % after it ([all numbers](../docs/evidence/tools.md)).
#
# **What it has learned:** a rule for when to stop. It was taught on one and two notes, and it holds for three.
#
# **What this run does not show:**
#
# * *Longer chains.* Try `hops=(5,)` in the cell above, with a larger length limit.
# * *New words.* The villages are new, but their twenty places are those of the training.
# * *A strategy.* The note says where to go next. In an earlier trial the model did not learn *higher or lower*, where the next guess must
#   follow from the last answer, in ten steps of the same size.
#
# The cell also checks that not every tool call failed. TRL passes the exception of a tool to the model as its result, so a bug in your
# tool does not stop the training. It shows only as an alert.

# %%
assert run.status == "finished", run.status_sentence
assert run.rows[-1]["tools/failure_frequency"] < 1, "every call failed: read run.step(1)"
print(run.outcome(comparison))
print("Chains of three:", three.headline)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *the chat template of this model cannot be trained with tools* | the template has no place for tools | one of the models that the message names, or `set_tool_template` |
# | *reset started one row twice* | the game is drawn in `reset` | read what is drawn from the row |
# | *of the tool calls failed* as an alert | a bug in a tool | call it by hand: `ManualEpisode(task).do(...)` |
# | `run.metrics["tools/unanswered"]` above 0 | no tokens or rounds left | a larger `max_completion_length`, `with_tools(..., rounds=...)` |
# | with a Drive: *was another training* | a setting was changed after a finished run | another `RUN_NAME`, such as `"second"` |
# | no calls at all | nothing shows what a call looks like | an episode as example, as above |
#
# ## Exercises
#
# **1. Remove `progress`** (five minutes, with pencil and paper). Take the first group above with `correctness` alone. Which advantages
# would its eight completions get? When would you miss `progress` most?
#
# <details><summary>Answer</summary>
#
# The totals are 2 and seven times 0. Their mean is 0.25 and their standard deviation (with n - 1) 0.71. So the right one gets (2 - 0.25)
# / 0.71 = +2.47, and all others −0.35: reading one note is now as bad as not reading.
#
# You would miss it most in a group without a right answer. There all totals would be 0, and only `progress` makes a difference. With
# longer chains such groups are more common.
# </details>
#
# **2. A loophole.** Suppose `progress` counted *all* calls of `read` and not the notes in the right order. What would the model learn?
#
# <details><summary>Answer</summary>
#
# To call the tool again and again, on any place, until no tokens or rounds are left. That reward grows with every call. The version above
# has a maximum of 1, which only the right notes reach.
# </details>
#
# ## Next
#
# * A tool of your own is a function with types and a docstring, and `task.with_tools(add)`: [the guide to tools](../docs/guide/tools.md).
# * Environments from elsewhere: [what to write](../docs/guide/environments.md).
# * A reward for answers without a gold answer: [Can a judge model be trusted?](08_judge.ipynb)
#
# @NEIGHBOURS@
