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
# The only cell to edit. `auto` takes the preset for your machine. `RUN` is the folder of a run, one of the earlier notebooks
# for example; while it is empty, a small one is trained here: too short to be good, long enough to be exported. Nothing is sent
# anywhere while `PUSH_TO` is empty. In Colab, `DRIVE = "grpo_nb/export"` keeps the run in that folder of your Google Drive.
#
# Your own data in place of the sums: `TASK = {"source": "my.csv", "columns": {"question": "...", "answer": "..."}}`
# (`03_your_data`).

# %% tags=["parameters"]
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
# A high learning rate, so that six steps change something, and harder sums for a larger model, which would get these all right.
# The comparison on held-out questions goes into the model card; with 24 questions its interval is wide.

# %%
if RUN:
    run = gn.open_run(RUN)  # its model need not be loaded
    settings = run.settings
    task = gn.load_task(**TASK, settings=settings)
else:
    changes = {
        "learning_rate": 5e-4,
        "warmup_steps": 0,
        "max_completion_length": 40,
        "per_device_train_batch_size": 8,
    }
    changes["run_root"] = gn.machine.run_folder(DRIVE, report=print)
    settings = gn.preset(PRESET, max_steps=STEPS, **changes)
    model, tokenizer = gn.load_model(settings)
    is_small = settings.model == gn.preset("cpu").model
    level = (
        gn.tasks.ARITHMETIC_LEVELS[0 if is_small else 2] if TASK["source"] == "arithmetic" else {}
    )
    task = gn.load_task(**TASK, **level, settings=settings, tokenizer=tokenizer)
    rewards = [gn.rewards.correctness(weight=2.0), gn.rewards.xml_format(), gn.rewards.xml_tags()]
    run = gn.train(model, tokenizer, task, rewards, settings)
    gn.compare(run, task)
run

# %% [markdown]
# ## One model
#
# The adapter is added to the frozen weights. The folder is made under another name and gets its own only after a separate process
# has compared it with base and adapter: every weight, the tokenizer and template, and what it says where it fits into memory.

# %%
merged = gn.export_merged(run, f"{EXPORT_TO}/merged", overwrite=True)
merged

# %% [markdown]
# This is all that someone else needs to use it. First the cell for elsewhere, with the lines for servers; then the same here:

# %%
print(merged.usage)

# %%
from transformers import logging, pipeline

logging.set_verbosity_error()  # warnings about defaults that do not matter here
logging.disable_progress_bar()
question = run.holdout[0]
chat = pipeline("text-generation", model=str(merged.path))
answer = chat(question["prompt"], max_new_tokens=settings.max_completion_length, do_sample=False)
print(question["question"], "->", answer[0]["generated_text"][-1]["content"])

# %% [markdown]
# ## The adapter alone
#
# A few megabytes, for those who have the base model: vLLM serves many adapters on one base, and another training can go on from it.

# %%
adapter = gn.export.export_adapter(run, f"{EXPORT_TO}/adapter", overwrite=True)
adapter

# %% [markdown]
# ## A GGUF file
#
# For llama.cpp, Ollama and LM Studio. It is verified by asking it through llama.cpp: the prompt as it reads it, and how likely its
# answers are to the merged model. Without the converter or llama.cpp, this cell says what to install, and the rest goes on.

# %%
gguf = None
try:
    gguf = gn.export_gguf(merged, f"{EXPORT_TO}/gguf", quantization="q8_0", overwrite=True)
except gn.machine.EnvironmentProblem as problem:
    print(problem)
gguf

# %% [markdown]
# Beside it lies the Modelfile: `ollama create my-model -f Modelfile` takes system prompt and stop token from it. Ollama itself
# is not run here.

# %%
print((gguf.path / "Modelfile").read_text() if gguf else "No GGUF file, so no Modelfile.")

# %% [markdown]
# Served by llama.cpp inside this kernel, and asked by the `openai` client, as any program asks that speaks this protocol:

# %%
served = None
if gguf is not None:
    import xllamacpp
    from openai import OpenAI

    params = xllamacpp.CommonParams()
    params.model.path, params.use_jinja, params.verbosity = str(gguf.file), True, 1
    params.hostnames, params.port = ["127.0.0.1"], 0
    server = xllamacpp.Server(params)
    client = OpenAI(base_url=f"{server.listening_address}/v1", api_key="not needed")
    limit = settings.max_completion_length
    asked = client.chat.completions.create(
        model="mine", messages=question["prompt"], max_tokens=limit, temperature=0
    )
    served = asked.choices[0].message.content
    print(question["question"], "->", served)
    del server

# %% [markdown]
# ## To the Hub, if you want
#
# The model card is in the folder: base, data, rewards with their source, settings, curves, the held-out result with its interval.
# What speaks against a push stands here first: an empty list. A push is private unless you say `private=False`, and compared by
# hash afterwards. Log in with `hf auth login` in a terminal, or on Colab through its secrets; a token has no place in a
# notebook.

# %%
gn.export.push_problems(merged)

# %%
if PUSH_TO:
    print(gn.export.push_to_hub(merged, PUSH_TO))
else:
    print("Nothing was sent: PUSH_TO is empty.")

# %% [markdown]
# ## Did it work?
#
# Three things that must hold; each line says which one did not.

# %%
assert merged.verification["passed"] and adapter.verification["passed"], (
    "an export was kept that is not verified"
)
assert gguf is None or (gguf.verification["passed"] and served is not None), (
    "the GGUF file does not answer"
)
assert not gn.export.push_problems(merged), "the folder is not fit for the Hub"
print(
    f"The merged model and the adapter are verified. GGUF file: {'verified and served' if gguf else 'not made'}."
)

# %% [markdown]
# ## If something goes wrong
#
# | What you see | What it is | What to do |
# | --- | --- | --- |
# | *rounding the merged weights would lose a part of the training* | the change is too small for 16 bit | `dtype="float32"`, or train longer |
# | *is not the trained one, so it was not kept* | the check found a difference | the message names it; nothing was left behind |
# | the kernel was restarted | an export is its folder | `merged = gn.export.open(EXPORT_TO + "/merged")` |
# | *exists. Choose another folder* | exports are not overwritten | another `EXPORT_TO`, or `overwrite=True` |
# | *401* | not logged in | `hf auth login` in a terminal |
# | *403* | a token for reading, or another's name | a token with the right to write; your own name |
# | *holds other content* | the repository is in use | another name, or `overwrite=True` |

# %% [markdown]
# ## Next
#
# * All about cards and pushing: docs/guide/publish.md.
# * Train it again elsewhere, on many processes: notebook a2.
# * Serve the merged folder: `transformers serve`, or `vllm serve` on a GPU; the lines are in `merged.usage`.
# * Is it better than the base? Notebook 05 compares on held-out questions.
#
# @NEIGHBOURS@
