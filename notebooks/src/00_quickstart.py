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
# # Train a small model, and prove that it improved
#
# In five minutes a language model with 135 million parameters learns to answer sums in the format you ask for. Nobody shows it
# the answers: it learns from a reward alone, with GRPO (group relative policy optimization).
#
# About 5 minutes on two idle CPU cores, under 5 GB of memory and 0.6 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# The only cell to edit; in Colab it is a form. `auto` takes the preset for your machine: on a CPU the small model that came with
# the installation, on a GPU a larger one in 4 bit. Anything in the table below can be changed by its name:
# `CHANGES = {"max_steps": 50}`. A `RUN_NAME` of `None` becomes the time it starts. In Colab, `DRIVE = "grpo_nb/quickstart"` keeps
# the runs in that folder of your Google Drive: when Colab takes the machine back, run all cells again, and the training goes on.
#
# Your own data in place of the sums: `TASK = {"source": "my.csv", "columns": {"question": "...", "answer": "..."}}`
# (`03_your_data`).

# %% tags=["parameters"]
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
CHANGES = {}  # @param {"type": "raw"}
RUN_NAME = None  # @param {"type": "raw"}
EXPORT_TO = "exports/quickstart"  # @param {"type": "string"}
TASK = {"source": "arithmetic"}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %%
# A score on held-out questions while it trains: at the first step, every seventh and the last.
held_out = {"holdout_every": 7, "holdout_questions": 16}
settings = gn.preset(
    PRESET, **{"run_root": gn.machine.run_folder(DRIVE, report=print), **held_out, **CHANGES}
)
settings

# %% [markdown]
# ## The model
#
# The first time, the model is converted to an ordinary checkpoint, which takes half a minute. A LoRA is put on it: small
# matrices beside the frozen weights, the only thing that will be trained.

# %%
model, tokenizer = gn.load_model(settings, report=print)

# %% [markdown]
# ## The task
#
# Sums of numbers up to 20, asked for in a fixed format: short reasoning in one pair of tags, the answer in another. One
# worked example stands in each prompt; without it a model this small never produces a tag, and then there is nothing to
# reward. Some questions are held out: they are never trained on, and decide in the end whether anything was learnt.
#
# You should see two sizes, and the first prompt as the model gets it.

# %%
task = gn.load_task(**TASK, settings=settings, tokenizer=tokenizer)
task

# %% [markdown]
# ## The rewards
#
# A reward is a function from a completion to a number. Three of them here: is the answer right (worth 2), is the whole
# completion in the format (worth 1), and how many of the four tags are there (worth a half in all). The last one is a slope
# towards the second: a model that forgets one tag is told that it is close. Being right weighs more than looking right.
#
# You should see that a right answer in the right form gets everything, and that a bare number gets nothing: only the
# answer's place counts.

# %%
rewards = [
    gn.rewards.correctness(weight=2.0),
    gn.rewards.xml_format(weight=1.0),
    gn.rewards.xml_tags(weight=0.5),
]

good = task.format.render("2 + 5 = 7", "7")
for text in (good, good.replace("</answer>", ""), "The answer is 7."):
    scores = {r.__name__: r(completions=[text], answer=["7"])[0] for r in rewards}
    print(scores, "total", sum(r.weight * scores[r.__name__] for r in rewards))

# %% [markdown]
# ## Is it hard enough?
#
# What a model can do already teaches it nothing: all completions of a group are right, and none is above the others. So the
# arithmetic has levels, from these sums to expressions with brackets, and a few questions are tried, the easiest level first,
# until fewer than two thirds of the answers are right. For the small model on a CPU that is the first, in 15 to 30 seconds; a
# larger one on a GPU is expected to go on, to products and beyond, for two minutes at most and the level then begun. A task of
# your own is measured as it is.
#
# You should see one table: the levels, what was measured, and which is taken.

# %%
from grpo_nb.checks import choose_level

harder = gn.tasks.ARITHMETIC_LEVELS[1:] if TASK == {"source": "arithmetic"} else ()
levels = [
    task,
    *(gn.load_task(**TASK, **level, settings=settings, tokenizer=tokenizer) for level in harder),
]
choice = choose_level(model, tokenizer, levels, rewards, settings)
task = choice.task
choice

# %% [markdown]
# ## Train
#
# GRPO in three sentences. For each prompt the model writes a *group* of completions, here 8. Each is scored, and its
# *advantage* is how far it lies above or below its own group. The LoRA is moved so that completions above become likelier
# and those below less likely, and a penalty (`beta`) holds it near the starting model.
#
# The figure below updates itself. Expect the tags to be learnt first, then the whole format, and correctness last, because
# it can only be paid once the answer stands where it belongs. KL grows from zero: that is the distance from the starting
# model. Held-out accuracy is that of 16 questions that are never trained on, a rough first look. A loss near zero, by the way, is
# normal in GRPO and says nothing, so it is not shown.

# %%
resume = "auto" if DRIVE else None
run = gn.train(model, tokenizer, task, rewards, settings, name=RUN_NAME, resume=resume)

# %% [markdown]
# ## What did it write?
#
# Every completion is kept with its scores. Here is the first group, before anything was learnt, best first. The
# advantages of a group sum to zero: some completions are rewarded at the expense of others. A group in which all are equal
# would teach nothing.

# %%
import pandas

pandas.set_option("display.max_colwidth", None)  # whole completions
first = run.completions(1)
shown = ["completion", "correctness", "xml_format", "xml_tags", "total", "advantage"]
first[first["group"] == 0][shown].sort_values("advantage", ascending=False).round(2)

# %% [markdown]
# And the same for the last step. Where all advantages are zero, the group agrees and the model has nothing more to learn
# from that prompt.

# %%
last = run.completions(settings.max_steps)
last[last["group"] == 0][shown].sort_values("advantage", ascending=False).round(2)

# %% [markdown]
# ## Before and after
#
# Training reward is what the model was paid for, so it is no proof. The proof is on the held-out questions: the same
# prompts, the same template, the likeliest answer each time, with the LoRA off and on. The interval says how much of the
# difference could be luck of the draw of questions; *better* stands there only if it excludes zero.

# %%
comparison = gn.compare(run, task)
comparison

# %% [markdown]
# ## Merge, verified
#
# The LoRA is added to the frozen weights, and the result saved as one model in a folder. Rounding to 16 bit can take a
# part of a short training away again, so the number type is chosen by measuring that. Then a separate process, which knows
# nothing of this kit, loads the folder as anyone would and compares it with the model you trained. If they differ, there is
# an error here and no folder. Where no completion was ever paid more than its group, nothing was learnt and nothing is merged.

# %%
has_learnt = run.metrics["grad_norm"].max() > 0
exported = gn.export_merged(run, EXPORT_TO, overwrite=True) if has_learnt else None
exported

# %% [markdown]
# A pipeline of transformers is all that someone else needs to use it. Three held-out questions: two that the trained model answered
# right, and one that it did not.

# %%
from transformers import logging, pipeline

logging.set_verbosity_error()  # three warnings about defaults that do not matter here
logging.disable_progress_bar()
answers, prompts = (
    comparison.transcripts(),
    dict(zip(task.holdout["question"], task.holdout["prompt"], strict=True)),
)
is_right = answers["after_is"] == "right"
three = pandas.concat([answers[is_right].head(2), answers[~is_right].head(1)])
if has_learnt:
    chat = pipeline("text-generation", model=str(exported.path), dtype="auto")
    for question, gold in zip(three["question"], three["answer"], strict=True):
        answer = chat(
            prompts[question], max_new_tokens=settings.max_completion_length, do_sample=False
        )
        said = answer[0]["generated_text"][-1]["content"]
        right = rewards[0](completions=[said], answer=[gold])[0] == 1
        print(f"{question} -> {said}   ({'right' if right else f'wrong, it is {gold}'})\n")

# %% [markdown]
# ## Did it work?
#
# The two asserts hold whatever the model learned: the run came to its end, and the export is the trained model. *It worked* then
# takes two measurements that agree: the held-out answers are better by a test, and the reward rose by a test over all steps. If one
# of them is missing, the sentence says which one. A model that could already answer the questions had nothing left to learn.

# %%
assert run.status == "finished", run.status_sentence
assert not has_learnt or exported.verification["passed"], (
    f"Not the trained model: {exported.verification}"
)
outcome = run.outcome(comparison)
if not outcome.worked and not choice.has_room:
    print(f"The model could already do this before the training. {choice.sentence}")
print(outcome.sentence)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *was imported before unsloth* | another import came first | restart the kernel and run from the top |
# | *operator torchvision::nms does not exist* | a torchvision that was not built for this torch | `pip uninstall -y torchvision`, restart |
# | *was another training*, after a disconnect | another level was measured | the one of then: `TASK = {"source": "arithmetic", **gn.tasks.ARITHMETIC_LEVELS[2]}` |
# | the reward stays flat | in every group all completions score the same | read `run.completions(1)`; an easier task, an example turn, or partial credit |
# | the kernel dies | out of memory | `CHANGES = {"per_device_train_batch_size": 8}` |
# | Colab disconnects | it takes machines back after some hours | set `DRIVE` before; then run all cells again |
# | *the run ... exists already* | runs are never overwritten | another `RUN_NAME`, or `None` |

# %% [markdown]
# ## Next
#
# * Your own data, from a CSV to a run: `03_your_data`.
# * Your own reward: any function of `completions` and your columns that returns one number per completion.
# * Look at this run again, without a model: `gn.open_run("runs/...").plot()`.
#
# @NEIGHBOURS@
