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
# # A model that works elsewhere
#
# You learn to turn a finished run into files that other programs load, and to check that these files hold the model you trained.
#
# Why it matters: an export can go wrong without an error. Rounding can lose a part of a short training, and without its chat template a model
# gets prompts that it was not trained on. So each export is compared with the trained model before it is kept.
#
# | export | what it is | for whom |
# | --- | --- | --- |
# | merged | one ordinary model | programs that load Hugging Face models |
# | adapter | the LoRA alone | people who have the base model |
# | GGUF | one compressed file | llama.cpp, Ollama, LM Studio |
#
# About 3 minutes on two idle CPU cores, under 5 GB of memory and 1.5 GB of disk. No GPU needed.
#
# @BADGE@

# %% [markdown]
# @CELLS _setup.py@

# %% [markdown]
# ## Settings
#
# `RUN` is the folder of a finished run, for example of the [quickstart](00_quickstart.ipynb). If it is empty, a small run is trained here:
# too short to be good, but long enough to be exported. Nothing is uploaded as long as `PUSH_TO` is empty.

# %% tags=["parameters"] cellView="form"
PRESET = "auto"  # @param ["auto", "cpu", "t4", "l4", "a100", "h100"]
RUN = ""  # @param {"type": "string"}
EXPORT_TO = "exports/notebook"  # @param {"type": "string"}
PUSH_TO = ""  # @param {"type": "string"}
STEPS = 6  # @param {"type": "integer"}
TASK = {"source": "arithmetic", "train_size": 100, "holdout": 24}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %% [markdown]
# ## The run
#
# Six steps are few, so the learning rate is high. A larger model than the one for CPUs gets harder sums, so that there is something to learn. The
# comparison on held-out questions goes into the model card.
#
# You should see on a CPU that the format is learned, from 8 % to 100 %. For the sums *no difference shown*: 38 % before, 42 % after, on only 24
# questions. [Is it really better?](05_evaluate.ipynb) explains these rows. This model is good enough to test an export, and no more.

# %%
if RUN:
    run = gn.open_run(RUN)  # the model need not be loaded
    settings = run.settings
else:
    changes = {"max_steps": STEPS, "learning_rate": 5e-4, "warmup_steps": 0}
    changes |= {"max_completion_length": 40, "per_device_train_batch_size": 8}
    changes["run_root"] = gn.machine.choose_run_folder(DRIVE, report=print)
    settings = gn.preset(PRESET, **changes)
    model, tokenizer = gn.load_model(settings)
    is_small = settings.model == gn.preset("cpu").model
    level = {}
    if TASK["source"] == "arithmetic":
        level = gn.tasks.ARITHMETIC_LEVELS[0 if is_small else 2]
    task = gn.load_task(**TASK, **level, settings=settings, tokenizer=tokenizer)
    rewards = [
        gn.rewards.correctness(weight=2.0),
        gn.rewards.exact_format(weight=1.0),
        gn.rewards.partial_format(weight=0.5),
    ]
    run = gn.train(model, tokenizer, task, rewards, settings)
    gn.compare(run, task)
run

# %% [markdown]
# ## One model
#
# `export_merged` adds the LoRA to the frozen weights and saves one ordinary model. Saving in 16 bit rounds each weight. Why is that a danger?
#
# ![Numbers near 0.1 on two lines. In bfloat16 they are far apart: a base weight of 0.1001, changed by 0.0001, is saved as the base weight. In float16 they are close together, and it is saved near 0.1002.](../docs/rounding.png)
#
# *How to read it:* each grey mark is a number that the dtype has. The training wants to move this weight to the orange line, and it is saved as the
# nearest mark. In *bfloat16* the marks are 0.0005 apart, and the nearest one is the old weight: its change is lost. In *float16* they are 0.00006
# apart, so the change survives, a little rounded.
#
# **Predict, then try it in a new cell:** what happens in bfloat16 if the change is five times as large, 0.0005?
#
# ```python
# import torch
# weight = torch.tensor(0.1, dtype=torch.bfloat16).float()
# for change in (0.0001, 0.0005):
#     for dtype in (torch.bfloat16, torch.float16, torch.float32):
#         saved = (weight + change).to(dtype).float()
#         print(change, dtype, round((saved - weight).item(), 6))
# ```
#
# <details><summary>Answer</summary>
#
# 0.0001 is lost in bfloat16 (0.0), and 0.0005 is kept (0.000488). What counts is half the distance between two numbers, here 0.00024:
# smaller changes vanish. So a short or gentle training needs a finer dtype than a long one.
# </details>
#
# A short training consists of many such small changes. How bad is it if they are rounded? In [another
# run](../docs/evidence/export.md#where-the-limits-come-from) bfloat16 kept 34.6 % of the change of the weights, and the answers still showed 0.83
# times the training's effect. The training was not erased, but this was no longer the model that had been measured. In float16 the effect was 0.994
# times as large.
#
# So the export tries bfloat16, float16 and float32 in this order, and takes the first that keeps at least 95 % of the change.

# %% [markdown]
# ### How the files are checked
#
# A separate process, which imports neither the kit nor Unsloth, loads the folder. It compares every weight, the tokenizer and the chat
# template with those of the training. If the model fits into memory, it also compares the probabilities of answers to held-out prompts. Only then
# does the folder get its name.
#
# **A check is worth something only if it can fail.** So mistakes were made by hand, in the [same other
# run](../docs/evidence/export.md#where-the-limits-come-from). The answers must show 0.85 to 1.15 times the training's effect:
#
# | mistake | effect on the answers | the answers alone would | the weights |
# | --- | --- | --- | --- |
# | the adapter is lost | 0.000 times | refuse it | refuse it |
# | half the scaling | 0.803 times | refuse it | refuse it |
# | the adapter is added twice | 1.137 times | keep it | refuse it |
# | one of 30 layers without the adapter | 0.989 times | keep it | refuse it |
#
# The answers miss two of the four mistakes. That is why every weight is compared too.
#
# **Predict before you run:** this run has few steps, but a high learning rate. Which of the three dtypes will be chosen?
#
# <details><summary>What you should see</summary>
#
# On a CPU: *float16*, which keeps 100.0 % of the change (rounded). bfloat16 was tried before it and kept less than 95 %, so it was rejected.
#
# Four checks have passed. The last two compare the probabilities of answers:
#
# * **1.000 times the effect.** The training changed the log-probabilities, and the files change them just as much.
# * **0.0001 nats apart.** Nats are the unit of natural logarithms: on average a token's probability differs by 0.01 %.
#
# Why does an adapter that is added twice not have twice the effect? Probably because tokens that are almost certain already can hardly become
# more probable.
# </details>

# %%
merged = gn.export_merged(run, f"{EXPORT_TO}/merged", overwrite=True)
merged

# %% [markdown]
# ## Use it as somebody else would
#
# A pipeline of transformers is enough. `print(merged.usage)` shows the same for servers.
#
# Note the prompt: `question["prompt"]` has the system prompt and the solved example, as in training. **The prompt is part of what you
# trained.** Other programs must send the same messages, or the model may answer differently.
#
# You should see the right answer in the format. One answer shows that the file works, not how good the model is.

# %%
from transformers import logging, pipeline

logging.set_verbosity_error()  # warnings about defaults that do not matter here
logging.disable_progress_bar()
question = run.holdout[0]
limit = settings.max_completion_length
chat = pipeline("text-generation", model=str(merged.path))
answer = chat(question["prompt"], max_new_tokens=limit, do_sample=False)
print(question["question"], "->", answer[0]["generated_text"][-1]["content"])

# %% [markdown]
# ## The adapter alone
#
# The adapter is small: 4.9 million LoRA weights, or 0.02 GB, against 0.27 GB for the merged model ([the plan](04_train.ipynb) counts both). Send it
# to people who have the base model. vLLM serves many adapters on one base, and another training can continue from it.
#
# You should see that its 420 tensors are a copy of the run's. Nothing is rounded here.

# %%
adapter = gn.export.export_adapter(run, f"{EXPORT_TO}/adapter", overwrite=True)
adapter

# %% [markdown]
# ## A GGUF file
#
# llama.cpp, Ollama and LM Studio read GGUF files. `q8_0` stores the weights in about 8 bits each, so it rounds once more. The file is checked with
# the real llama.cpp: it must read the same prompts, and its answers must be as likely as under the merged model. If the converter or llama.cpp
# is missing, this cell says what to install.
#
# **Predict before you run:** the merged files were 0.0001 nats from the trained model. Will the 8-bit file be farther from the merged one?
#
# <details><summary>What you should see</summary>
#
# Yes, but only a little: 0.0044 nats. A token's probability differs by 0.4 % on average. The file is 145 MB.
#
# With fewer bits the file moves away from the model. In [one measurement](../docs/evidence/export.md#what-a-quantization-keeps) `q8_0` was 0.0015
# nats from the merged model, `q4_k_m` 0.026 and `q2_k` 0.136. With `q2_k` 7 of 16 prompts were answered correctly, instead of 14. The
# 13 of `q8_0` show no loss with so few prompts.
# </details>
#
# Next to the file is a *Modelfile* for Ollama, printed first: `ollama create my-model -f Modelfile`. It has the system prompt, but not the solved example.
# Send the example with each question. Ollama itself is not run here.

# %%
gguf = None
try:
    gguf = gn.export_gguf(merged, f"{EXPORT_TO}/gguf", quantization="q8_0", overwrite=True)
    print((gguf.path / "Modelfile").read_text())
except gn.machine.EnvironmentProblem as problem:
    print(problem)
gguf

# %% [markdown]
# ### Ask it over HTTP
#
# Serve the file with llama.cpp and ask it with the `openai` client, as any program would. You should see the same answer as from the merged
# model.

# %%
served = None
if gguf is not None:
    import xllamacpp
    from openai import OpenAI

    parameters = xllamacpp.CommonParams()
    parameters.model.path = str(gguf.file)
    parameters.use_jinja = True
    parameters.verbosity = 1
    parameters.hostnames = ["127.0.0.1"]
    parameters.port = 0  # any free port
    server = xllamacpp.Server(parameters)
    client = OpenAI(base_url=f"{server.listening_address}/v1", api_key="not needed")
    reply = client.chat.completions.create(
        model="mine", messages=question["prompt"], max_tokens=limit, temperature=0
    )
    served = reply.choices[0].message.content
    print(question["question"], "->", served)
    del server

# %% [markdown]
# ## To the Hub, if you want
#
# The folder has a model card: base model, data, rewards with their source, settings, curves, and the held-out result with its interval.
# `push_problems` lists everything that should stop you from uploading. You should see an empty list.
#
# An upload is private unless you write `private=False`. Log in with `hf auth login` in a terminal, or in Colab with its secrets. Never
# write a token into a notebook.

# %%
problems = gn.export.push_problems(merged)
print("Problems:", problems)
if PUSH_TO:
    print(gn.export.push_to_hub(merged, PUSH_TO))
else:
    print("Nothing was uploaded: PUSH_TO is empty.")

# %% [markdown]
# ## Did it work?
#
# The cell checks that merged model and adapter are verified, and that nothing stops an upload. If there is a GGUF file, it must be verified
# and have answered.
#
# **What *verified* means:** the files hold the model that you trained. It does not mean that this model is good. The one above gives 42 % of 24 sums in
# the format, and better sums than before are not shown. An export keeps the weaknesses as faithfully as the rest. And no check finds every
# mistake: exercise 2 shows one that passes all four.

# %%
assert merged.verification["passed"], "the merged model is not verified"
assert adapter.verification["passed"], "the adapter is not verified"
assert not problems, "the folder is not fit for the Hub"
print("The merged model and the adapter are verified.")
if gguf is None:
    print("There is no GGUF file.")
else:
    assert gguf.verification["passed"], "the GGUF file is not verified"
    assert served is not None, "the GGUF file does not answer"
    print("The GGUF file is verified, and llama.cpp answered a question with it.")

# %% [markdown]
# ## If something goes wrong
#
# | What you see | Reason | What to do |
# | --- | --- | --- |
# | *rounding the merged weights would lose a part of the training* | the change is too small even for float32 | train longer |
# | *does not match the trained model, so it was not kept* | the check found a difference | the message names it; nothing was left behind |
# | the kernel was restarted | an export is its folder | `merged = gn.export.open(EXPORT_TO + "/merged", run="runs/<name>")` |
# | *exists, and is kept* | exports are not overwritten | another `EXPORT_TO`, or `overwrite=True` |
# | *401* | not logged in | `hf auth login` in a terminal |
# | *403* | a token for reading, or somebody else's name | a token with the right to write; your own name |
# | *has files already* | the repository is in use | another name, or `overwrite=True` |
#
# ## Exercises
#
# **1. Which one?** (two minutes). A colleague serves ten fine-tuned versions of the same base model with vLLM. Which export do you send?
#
# <details><summary>Answer</summary>
#
# The adapter. vLLM loads the base model once and switches adapters per request. Ten merged models would need about ten times the memory.
# </details>
#
# **2. Which check would notice?** (three minutes). Look at the four checks of the merged model. Which of them refuses a folder with
#
# * the chat template of another model,
# * one layer without the adapter,
# * a `config.json` with `rope_theta` 10,000 instead of 100,000, which shifts how the model reads positions?
#
# Guess first, then look at [the page of measurements](../docs/evidence/export.md#where-the-limits-come-from).
#
# <details><summary>Answer</summary>
#
# The chat template: the second check. The layer: only the first, because the answers keep 0.989 times the effect. The `config.json`: **none**. Its
# weights are right, and 0.893 times the effect is within the limits. That is why the export copies this file from the base model, and why you ask the
# finished export some questions yourself: `gn.compare(merged.path, against=run, task=task)`.
# </details>
#
# ## Next
#
# * Model cards and uploads: [publish](../docs/guide/publish.md). All kinds of exports: [the guide](../docs/guide/export.md).
# * Is it better than the base model? [Evaluate](05_evaluate.ipynb).
# * Train the run again elsewhere, on many processes: [Scale out](a2_scale_out.ipynb).
#
# ← [Is it really better?](05_evaluate.ipynb) · [A model that looks things up](07_tools.ipynb) →
