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
# A small model reads one note, stops, and makes up an answer. In twelve training steps it learns to keep reading until it
# knows, also on chains of notes that are longer than any it was trained on.
#
# About 5 minutes on two idle CPU cores, up to 5.3 GB of memory and 0.5 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# The only cell to edit. Anything of the table below can be changed by its name, `CHANGES = {"max_steps": 20}`. `HELD_OUT` is
# how many questions are kept for the proof, `LONGER` how many with chains of three, which nobody trains. In Colab,
# `DRIVE = "grpo_nb/tools"` keeps the run in that folder of your Google Drive.

# %% tags=["parameters"]
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
RUN_NAME = None  # @param {"type": "raw"}
HELD_OUT = 48  # @param {"type": "integer"}
LONGER = 24  # @param {"type": "integer"}
DRIVE = ""  # @param {"type": "string"}

# %%
is_small = gn.preset(PRESET).model == gn.preset("cpu").model
# Of a whole episode, the notes included. The calls of a larger model, in the words that it was trained on, take more.
tokens = {
    "max_completion_length": 72 if is_small else 320,
    "max_prompt_length": 320 if is_small else 1024,
}
taught = {
    "max_steps": 12,
    "warmup_steps": 2,
    "beta": 0.0,
    "holdout_every": 6,
    "holdout_questions": 16,
}
taught |= {"learning_rate": 2e-4, "max_grad_norm": 0.2} if is_small else {}
root = {"run_root": gn.machine.run_folder(DRIVE, report=print)}
settings = gn.preset(PRESET, **{**root, **tokens, **taught, **CHANGES})
settings

# %% [markdown]
# ## The model, and how it writes a call
#
# Qwen, Llama 3.1, Gemma 4 and others bring a chat template with tools. The small model has none, so it is given a short one:
# `<call>read(place=mill)</call>` is 12 tokens, and a small model has to hit every one of them.

# %%
model, tokenizer = gn.load_model(settings, report=print)
if is_small:
    from grpo_nb.models import give_tool_template

    give_tool_template(tokenizer)

# %% [markdown]
# ## The village
#
# Each place has a note. It names the next place, or the number that was asked for. The model cannot know it: it has to read.
# `Village` is an *environment*: `reset` begins an episode with a row of the data, every public method is a tool, and its
# docstring is all that the model is told of it. Each completion plays in an object of its own, and the rewards get these
# objects.

# %%
import random


class Village:
    """Each place has a note: where to go next, or the number."""

    def reset(self, chain, number, **row):
        self.chain, self.number, self.seen = chain, number, 0

    def read(self, place: str) -> str:
        """Read the note at a place.

        Args:
            place: Where the note is.
        """
        if place not in self.chain:
            return "There is no note."
        at = self.chain.index(place)
        self.seen += at == self.seen  # in order
        if at + 1 == len(self.chain):
            return f"The number is {self.number}."
        return f"Go to the {self.chain[at + 1]}."


# %% [markdown]
# Chains of one and two places to train on. What `reset` takes stands in the row: so all completions of a group play the same
# game. One that draws its game is refused, for then their advantages would be luck.

# %%
PLACES = "barn mill well shop port farm mine hill lake bank gate yard dock cave tower bridge church garden school market"


def villages(count, hops, seed):
    drawn, rows = random.Random(seed), []
    for village in drawn.sample(range(1000 * seed, 1000 * (seed + 1)), count):
        chain = drawn.sample(PLACES.split(), drawn.choice(hops))
        number = drawn.randint(10, 99)
        asked = f"Village {village}: start at the {chain[0]}. What is the number?"
        rows.append({"question": asked, "answer": str(number), "chain": chain, "number": number})
    return rows


form = gn.tasks.AnswerFormat(
    name="answer", answer_open="<answer>", answer_close="</answer>",
    instruction="Find the number by reading the notes. Answer as <answer>number</answer>.",
)  # fmt: skip
told = {"settings": settings, "format": form, "tokenizer": tokenizer}
rows = villages(192 + HELD_OUT, hops=(1, 2), seed=2)
task = gn.load_task(rows, holdout=HELD_OUT, **told).with_tools(environment=Village)

# %% [markdown]
# ## Play one yourself
#
# Before a model plays it, you do: with the same tools, and paid by the same rewards, step by step. `progress` pays for the
# share of the chain that was read in order. You should see that reading earns something, that the number counts only in your
# own answer, and that an answer without reading, a guess, earns nothing.

# %%
from grpo_nb.lab import ByHand


def progress(environments, **columns):
    return [each.seen / len(each.chain) for each in environments]


rewards = [gn.rewards.correctness(format=form), progress]
two = next(i for i, row in enumerate(task.train) if len(row["chain"]) == 2)
hand = ByHand(task, two)
for place in hand.row["chain"]:
    print(
        f"read({place}) -> {hand.do('read', place=place)}  total {hand.scores(rewards).totals[0]:g}"
    )
hand.say(f"<answer>{hand.row['number']}</answer>")
print(f"the answer: total {hand.scores(rewards).totals[0]:g}")
print(f"a guess: total {ByHand(task, two).say('<answer>5</answer>').scores(rewards).totals[0]:g}")
hand

# %% [markdown]
# ## Show it two episodes
#
# A small model has to see what a call looks like. What you have played becomes the example in every prompt, with a chain of one
# before it. You should see the tool, the two episodes and the question, as the model gets them.

# %%
one = ByHand(task, next(i for i, row in enumerate(task.train) if len(row["chain"]) == 1))
one.do("read", place=one.row["chain"][0])
one.say(f"<answer>{one.row['number']}</answer>")
shown = [*one.example(tokenizer), *hand.example(tokenizer)]
played = {one.row["question"], hand.row["question"]}
rest = [row for row in rows if row["question"] not in played]
task = gn.load_task(rest, holdout=HELD_OUT, example=shown, **told).with_tools(environment=Village)
task

# %% [markdown]
# ## Is there a signal?
#
# You should see that it reads one note and stops: it is right where the chain has one place. Groups differ, so there is
# something to learn from.

# %%
gn.baseline(model, tokenizer, task, rewards, settings, prompts=4)

# %% [markdown]
# ## Train
#
# As ever: a task with tools is trained by the same line. Tokens that a tool wrote are in the context and in no loss. The card
# *Calls per completion* should come to what the step's chains need, one or two.

# %%
resume = "auto" if DRIVE else None
run = gn.train(model, tokenizer, task, rewards, settings, name=RUN_NAME, resume=resume)

# %% [markdown]
# ## What did it do?
#
# A completion is a whole episode: calls, what came back behind an arrow, and the last word, which alone is read for the answer. The
# first step:

# %%
print(run.step(1).groups[0])

# %% [markdown]
# And the last. `run.completions(step)["turns"]` has every message; `gn.RunViewer(run)` shows them with their scores.

# %%
print(run.step(run.steps[-1]).groups[-1])

# %% [markdown]
# ## Before and after
#
# Held-out villages, played to their end, the likeliest words each time, with the LoRA off and on.

# %%
comparison = gn.compare(run, task)
comparison

# %% [markdown]
# ## Chains of three, which nobody trained
#
# The longest chain in training had two places. A model that has learnt *go on until you know* follows three as well; one that has
# learnt to read twice does not.

# %%
longer = villages(4 + LONGER, hops=(3,), seed=7)
longer = gn.load_task(longer, holdout=LONGER, example=shown, **told).with_tools(environment=Village)
room = {"max_completion_length": settings.max_completion_length * 3 // 2}
three = gn.compare(run, longer, against="base", **room)
three

# %% [markdown]
# ## Did it work?
#
# That every call was one that the tool could answer is part of it: a bug in a tool is told to the model as its answer, and no
# more is heard of it but the alert.

# %%
last = run.rows[-1]
assert run.status == "finished", run.status_sentence
assert last["tools/failure_frequency"] < 1, "every call failed: read run.step(1)"
print(run.outcome(comparison).sentence)
print(f"Chains of three: {three.sentence}")

# %% [markdown]
# What this does not show: a strategy. The model has learnt to go on, and where to is written in the note. A game of *higher or
# lower*, where the next guess has to follow from what came back, it did not learn in ten steps of the same size.

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *the chat template of this model cannot be trained with tools* | it has no place for them | a model of those named there, or `give_tool_template` |
# | *reset began one row twice* | the game is drawn in `reset` | take what is drawn from the row |
# | *all calls of tools failed* as an alert | a bug in a tool, which only the model was told | play it by hand: `ByHand(task).do(...)` |
# | *ended with a call that nobody answered* | no tokens or rounds left | a larger `max_completion_length`, `with_tools(..., rounds=...)` |
# | no calls at all | nothing shows what a call looks like | an episode as example, as above |

# %% [markdown]
# ## Next
#
# * A tool of your own is a function with types and a docstring: `def add(a: int, b: int) -> int:`, what it does and what each
#   argument is below `Args:`, and `task.with_tools(add)`.
# * Models: this one, other ChatML models with `give_tool_template`, and Qwen, Llama 3.1, Gemma 4 and others by their own
#   templates.
# * Refused for now: scale-out, GGUF, priming, images from tools, several environments in one task.
# * Tools run in this process, with your rights. For code that a model wrote there is `gn.sandbox`: docs/guide/tools.md.
# * How sure is this, and what was not measured: docs/evidence/tools.md.
#
# @NEIGHBOURS@
