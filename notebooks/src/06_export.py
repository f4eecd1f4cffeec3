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
# Turn a finished run into files that other programs load: a merged model, the adapter alone, and a GGUF file for llama.cpp and
# Ollama. Each export is compared with the model you trained before it is kept.
#
# About 4 minutes on two idle CPU cores, under 5 GB of memory and 1.5 GB of disk. No GPU needed.
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
TASK = {"source": "arithmetic", "train_size": 100, "holdout_size": 24}  # @param {"type": "raw"}
DRIVE = ""  # @param {"type": "string"}

# %% [markdown]
# ## The run
#
# The learning rate is high, so that six steps change something. A larger model gets harder sums, because it can do these already.
# The comparison on held-out questions goes into the model card. With 24 questions its interval is wide.

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
# `export_merged` adds the LoRA to the frozen weights and saves one ordinary model. Saving in 16 bit rounds the weights, which can erase
# a part of a short training. So the export measures this and picks a data type that keeps the change.
#
# Then a separate process, which imports neither the kit nor Unsloth, loads the folder and compares it with the base model and the
# adapter: every weight, the tokenizer and the chat template, and, if the model fits into memory, its outputs. Only then does the folder
# get its name. You should see a list of checks, all passed.

# %%
merged = gn.export_merged(run, f"{EXPORT_TO}/merged", overwrite=True)
merged

# %% [markdown]
# A pipeline of transformers is all that somebody else needs to use it. `print(merged.usage)` shows the same for servers.

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
# The adapter has a few megabytes. Send it to people who have the base model: vLLM serves many adapters on one base, and another training
# can continue from it.

# %%
adapter = gn.export.export_adapter(run, f"{EXPORT_TO}/adapter", overwrite=True)
adapter

# %% [markdown]
# ## A GGUF file
#
# llama.cpp, Ollama and LM Studio read GGUF files. The file is verified by asking llama.cpp: it must read the same prompt, and its answers
# must be as likely as under the merged model. If the converter or llama.cpp is missing, this cell says what to install.
#
# Next to the file is a *Modelfile* for Ollama: `ollama create my-model -f Modelfile`. Ollama itself is not run here.

# %%
gguf = None
try:
    gguf = gn.export_gguf(merged, f"{EXPORT_TO}/gguf", quantization="q8_0", overwrite=True)
    print((gguf.path / "Modelfile").read_text())
except gn.machine.EnvironmentProblem as problem:
    print(problem)
gguf

# %% [markdown]
# Now serve the file with llama.cpp and ask it with the `openai` client, as any program would.

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
# Three things must hold, and each line says which one did not.

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
# **1. Which one?** Which export would you send to a colleague who serves ten fine-tuned versions of the same base model with vLLM?
#
# <details><summary>Answer</summary>
#
# The adapter. vLLM loads the base model once and switches adapters per request. Ten merged models would need ten times the memory.
# </details>
#
# **2. Did the rounding cost anything?** Find the line in the card above that says how much of the training's change the merged weights
# hold.
#
# <details><summary>Answer</summary>
#
# *The merged weights hold ... % of the training's change.* Each weight is rounded once to 16 bit, and that costs a little, so the share is
# only close to 100 %. If it were much lower, the export would have refused that data type.
# </details>
#
# ## Next
#
# * Model cards and uploads: [publish](../docs/guide/publish.md). All kinds of exports: [the guide](../docs/guide/export.md).
# * Train the run again elsewhere, on many processes: [Scale out](a2_scale_out.ipynb).
# * Is it better than the base model? [Evaluate](05_evaluate.ipynb).
#
# @NEIGHBOURS@
