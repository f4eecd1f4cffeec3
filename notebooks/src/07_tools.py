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
# A small model gets a tool that reads notes: "Go to the yard.", then "The number is 19." Before the training it reads one note, stops, and
# makes up an answer. After twelve training steps it keeps reading until it knows, also on chains of notes that are longer than any it
# was trained on.
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
# You can leave everything as it is. `HELD_OUT` questions are kept for the comparison at the end, and `LONGER` questions have the
# chains of three. `CHANGES = {"max_steps": 20}` changes a setting by its name. In Colab, `DRIVE = "grpo_nb/tools"` keeps the run on
# your Google Drive.

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
# A completion is now a whole *episode*: the model writes a call, the tool answers, the model writes again. `max_completion_length` counts
# the tokens of the episode, including the notes.
#
# Qwen, Llama 3.1, Gemma 4 and others have a chat template with tools. The small model has none, so it gets a short one:
# `<call>read(place=mill)</call>` is 12 tokens, and a small model has to get every one of them right.

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
    from grpo_nb.models import give_tool_template

    give_tool_template(tokenizer)

# %% [markdown]
# ## The village
#
# Each place of a village has a note. The note names the next place, or the number that the question asks for. The model cannot know
# the number, so it has to read.
#
# `Village` is an *environment*. `reset` starts an episode with a row of the data. Every public method is a tool, and its docstring is all
# that the model is told about it. Each completion gets an object of its own, and the rewards get these objects.


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
# The training has chains of one and two places. `reset` gets its data from the row, so all completions of a group play the same game. An
# environment that draws a random game is refused: its advantages would measure luck, not skill.

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
# Before the model plays, play an episode by hand, with the same tool and the same rewards. `progress` gives the share of the chain that was
# read in the right order.
#
# You should see that reading earns something, that the number counts only in the final answer, and that a guess without reading earns
# nothing.


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
# A small model has to see what a call looks like. The episode that you played becomes an example in every prompt, after another one with
# a single note. You should see the tool, the two episodes and the question, as the model gets them.

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
# You should see that many answers are right where the chain has one place, and few where it has two: the model reads one note and stops.
# The totals of a group differ, so there is something to learn from.

# %%
gn.baseline(model, tokenizer, task, rewards, settings, prompts=4)

# %% [markdown]
# ## Train
#
# A task with tools is trained with the same line as any other. Tokens that a tool wrote are in the context, but not in the loss:
# the model is not trained to predict the notes.

# %%
resume = "auto" if DRIVE else None
run = gn.train(model, tokenizer, task, rewards, settings, name=RUN_NAME, resume=resume)

# %% [markdown]
# ## How it reads, before and after
#
# You see one group of the first step, and of the last step the group with the longest chain. Follow the calls and the notes that came back
# (→). In the first group the model mostly answers after one note. In the last group it goes on until a note has the number.

# %%
last_groups = run.step(run.steps[-1]).groups
longest = max(last_groups, key=lambda group: group.transcripts.str.count("→").max())
display(run.step(1).groups[0], longest)

# %% [markdown]
# ## Before and after, on villages it has never seen
#
# The first comparison asks held-out villages with chains of one and two places. The second asks chains of three, which never occurred in
# training. A model that has learned *go on until you know* follows them. A model that has learned to read twice does not.

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
# We also check that tool calls succeeded. TRL passes the exception of a tool to the model as its result, so a bug in your tool shows up
# only as an alert.
#
# What this run does not show is a strategy. The model has learned to go on, and where to go is written in the note. In an earlier trial, it
# did not learn a game of *higher or lower*, where the next guess must follow from the last answer, in ten steps of the same size.

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
# | *the chat template of this model cannot be trained with tools* | the template has no place for tools | one of the models that the message names, or `give_tool_template` |
# | *reset started one row twice* | the game is drawn in `reset` | read what is drawn from the row |
# | *of the tool calls failed* as an alert | a bug in a tool | call it by hand: `ManualEpisode(task).do(...)` |
# | `run.metrics["tools/unanswered"]` above 0 | no tokens or rounds left | a larger `max_completion_length`, `with_tools(..., rounds=...)` |
# | with a Drive: *was another training* | a setting was changed after a finished run | another `RUN_NAME`, such as `"second"` |
# | no calls at all | nothing shows what a call looks like | an episode as example, as above |
#
# ## Exercises
#
# **1. Remove `progress`.** What would the rewards of the first groups look like, and where would the signal come from?
#
# <details><summary>Answer</summary>
#
# Only right answers would score. Chains of one place are often right at the start, so some groups still differ. In groups with chains of
# two, all completions are wrong at first, and there is no signal until one of them happens to read twice.
# </details>
#
# **2. A loophole.** Suppose `progress` counted *all* calls of `read` and not the notes in the right order. What would the model learn?
#
# <details><summary>Answer</summary>
#
# To call the tool again and again, on any place, until the tokens run out. That reward grows without a maximum. The version above has a
# maximum of 1, which only the right notes reach.
# </details>
#
# ## Next
#
# * A tool of your own is a function with types and a docstring, and `task.with_tools(add)`: [the guide to tools](../docs/guide/tools.md).
# * Environments from elsewhere: [what to write](../docs/guide/environments.md).
# * The same result on eight seeds, and what was not measured: [the evidence](../docs/evidence/tools.md).
#
# @NEIGHBOURS@
