"""Find and open the models that can be asked held-out questions.

Every model is asked with its own tokenizer and chat template, as its users will ask it. An export
has the template of its training.
"""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from grpo_nb.config.settings import Settings
from grpo_nb.core.progress import progress_bar
from grpo_nb.generation.completions import GeneratedCompletion
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.adapter import load_adapter
from grpo_nb.models.load import load_model
from grpo_nb.models.restoring import (
    restoring_generation_config,
    restoring_modes,
    restoring_random_state,
)
from grpo_nb.models.sources import resolve_model
from grpo_nb.models.templates import load_templates
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.tasks.prompts import render_prompt
from grpo_nb.tasks.read_rows import Row
from grpo_nb.tasks.tools import Tools

RunOrFolder = Run | str | Path
"""A run or its folder, which `open_run` opens."""

EARLIER_VERSIONS = ("base", "start")
"""Names of the earlier models of a run: its base model, and the model that it started from."""

VERSION_DESCRIPTIONS = {
    "base": "The base model of the run {}, without adapter.",
    "start": "The model that the run {} started from, with the adapter as it was before the first "
    "step.",
    "trained": "The adapter of the run {}.",
}
"""Description of each model of a run. The braces stand for the name of the run."""

ADAPTER_FILE = "adapter_model.safetensors"


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """Decoding of all answers of an evaluation: greedy, or sampled at a temperature above 0."""

    settings: Settings
    """Settings for the length, the seed, and further sampling, such as `top_p`."""
    temperature: float = 0.0
    """Temperature of the answers, in place of the one in the settings."""
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """Arguments of the chat template, as in training."""
    tools: Tools | None = None
    """Tools that may be called before the answer."""


@dataclass(frozen=True)
class RunModel:
    """A model of a run: its base model, the model that it started from, or the trained one."""

    run: Run
    version: Literal["base", "start", "trained"] = "trained"


ModelSource = RunModel | tuple[Any, Any] | str
"""A model under evaluation: a model of a run, a model in memory with its tokenizer, or the folder
or the Hub name of a model."""


def locate_models(
    models: Sequence[Any], run: RunOrFolder | None = None
) -> tuple[list[ModelSource], Run | None]:
    """Find the models that paths and names refer to, and the run that they belong to.

    Args:
        models: Runs or their folders, `"base"`, `"start"`, folders or names of models, or pairs of
            model and tokenizer.
        run: Run of the models, or its folder. By default the last run among the models.

    Raises:
        ValueError: `"base"` or `"start"` without a run.
        FileNotFoundError: There is no such folder or model.
        OSError: The Hub does not provide the model.
    """
    sources = [_locate_model(model) for model in models]
    if run is not None:
        run = open_run(run)
    else:
        for source in sources:
            if isinstance(source, RunModel):
                run = source.run
    # "base" and "start" may belong to the run of another model, so they are located last.
    for index, source in enumerate(sources):
        if source in EARLIER_VERSIONS:
            if run is None:
                raise ValueError(
                    f"{source!r} is an earlier model of a run, but no run was given. Write "
                    "run=gn.open_run('runs/...')."
                )
            sources[index] = RunModel(run, source)
    return sources, run


def _locate_model(model: Any) -> ModelSource:
    """Return the source of one model. `"base"` and `"start"` are returned as they are."""
    if isinstance(model, Run):
        return RunModel(model)
    if isinstance(model, tuple) or model in EARLIER_VERSIONS:
        return model
    # `open_run` raises FileNotFoundError if the model is not a run.
    with contextlib.suppress(FileNotFoundError):
        return RunModel(open_run(model))
    # A wrong name is reported now, and not after the first model has answered.
    resolve_model(str(model))
    return str(model)


def default_label(source: ModelSource) -> str:
    """Return the label of a model without opening it."""
    if isinstance(source, tuple):
        return "model"
    if isinstance(source, RunModel):
        return source.run.name if source.version == "trained" else source.version
    # The path is made absolute, because the name of "." is empty.
    return Path(source).absolute().name


def model_id_of(source: ModelSource) -> str:
    """Return the id of a run's adapter (`Run.adapter_id`), empty if the model has none."""
    if not isinstance(source, RunModel):
        return ""
    # The base model has no id, except if the run started from it: then the new adapter changed
    # nothing, and its id stands for the base model.
    if source.version == "base" and version_before_training(source.run) != "base":
        return ""
    part = "adapter" if source.version == "trained" else "start"
    # A missing adapter has no id, so that no comparison is attributed to it.
    return source.run.adapter_id(part) or ""


def version_before_training(run: Run) -> Literal["base", "start"]:
    """Return the version of the model that a run started from.

    `"start"`: the adapter had learnt something before, in priming, in an earlier stage or
    elsewhere. A comparison with the base model would credit the run with that learning too.
    `"base"`: the adapter was a new LoRA, whose B matrices are zero, so it changed nothing.
    """
    from safetensors.torch import load_file

    file = run.start_path / ADAPTER_FILE
    tensors = load_file(file) if file.is_file() else {}
    has_learnt = any(tensor.any() for name, tensor in tensors.items() if "lora_B" in name)
    return "start" if has_learnt else "base"


@contextlib.contextmanager
def open_model(source: ModelSource) -> Iterator[tuple[Any, Any]]:
    """Provide a model and its tokenizer in a `with` block.

    The model of a run stays in memory. Other models can be freed after the block.

    Args:
        source: A model as `locate_models` returns it.
    """
    if isinstance(source, tuple):
        yield source
    elif isinstance(source, str):
        yield _load_model(source)
    else:
        # The three models of a run share one model in memory. Only the adapter is switched.
        model, tokenizer = _trained_model_of(source.run)
        adapter_switch = contextlib.nullcontext()
        if source.version == "base":
            # PEFT's own switch, so no weight is changed.
            adapter_switch = model.disable_adapter()
        elif source.version == "start":
            adapter_switch = _with_start_adapter(model, source.run)
        with adapter_switch:
            yield model, tokenizer


def description_of(source: ModelSource) -> str:
    """Return a sentence about the origin of a model."""
    if isinstance(source, tuple):
        return "A model in memory, as it is."
    if isinstance(source, str):
        return f"The model {default_label(source)}, with its own tokenizer and chat template."
    return VERSION_DESCRIPTIONS[source.version].format(source.run.name)


@contextlib.contextmanager
def _with_start_adapter(model: Any, run: Run) -> Iterator[None]:
    """Load the adapter that a run started with, and restore the trained one bit for bit."""
    # The trained adapter is copied, because its file may have another dtype, or not exist yet.
    trained = [
        (parameter, parameter.detach().clone())
        for name, parameter in model.named_parameters()
        # PEFT names the parameters of the trained adapter `default`.
        if ".default" in name
    ]
    try:
        load_adapter(model, run.start_path)
        yield
    finally:
        for parameter, value in trained:
            parameter.data.copy_(value)


def _trained_model_of(run: Run) -> tuple[Any, Any]:
    """Return the model of a run with its adapter, and the tokenizer. Load them if necessary.

    Raises:
        FileNotFoundError: The run has no adapter yet.
        ValueError: The adapter in memory is no longer the one that the run ended with.
    """
    has_adapter = (run.adapter_path / ADAPTER_FILE).is_file()
    if run.model is None:
        if not has_adapter:
            raise FileNotFoundError(
                f"the run {run.name!r} ({run.status}) has no adapter yet: train it to its end "
                "first."
            )
        model, tokenizer = load_model(run.settings)
        load_templates(run.path, tokenizer)
        load_adapter(model, run.adapter_path)
        # Kept with the run, so that the next evaluation need not load the model again. Only a
        # complete model is kept: after an interruption, the next call loads it again.
        run.tokenizer = tokenizer
        run.model = model
    # A stopped training leaves a model in memory, but no adapter file to compare it with.
    elif has_adapter and not _has_final_adapter(run):
        raise ValueError(
            f"the model in memory is not the one that the run {run.name!r} ended with: it was "
            "trained on since, or its adapter was changed. To ask the model as it was at the end "
            f"of the run, open the run from its folder: gn.open_run({str(run.path)!r})."
        )
    return run.model, run.tokenizer


def _has_final_adapter(run: Run) -> bool:
    """Return True if the adapter in memory equals the adapter on disk."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    saved = load_file(run.adapter_path / ADAPTER_FILE)
    # The adapter has no embeddings. By default, PEFT asks the Hub whether they were resized.
    in_memory = get_peft_model_state_dict(
        run.model, adapter_name="default", save_embedding_layers=False
    )
    for name, value in in_memory.items():
        # Compare in the dtype of the file, because training may use another dtype.
        if name not in saved or not value.cpu().to(saved[name].dtype).equal(saved[name]):
            return False
    return True


def _load_model(source: str) -> tuple[Any, Any]:
    """Load a model from a folder or the Hub, and its tokenizer."""
    import_unsloth()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    name_or_path = resolve_model(source)
    model = AutoModelForCausalLM.from_pretrained(name_or_path, dtype="auto")
    # A GPU computes in the dtype of the checkpoint. On a CPU, float32 holds all of its weights
    # exactly.
    model = model.float() if find_gpu() is None else model.to("cuda")
    tokenizer = AutoTokenizer.from_pretrained(name_or_path)
    load_templates(Path(name_or_path), tokenizer)
    # A tokenizer with the GPT-2 clean-up would change the text that is graded.
    tokenizer.clean_up_tokenization_spaces = False
    return model.eval(), tokenizer


def complete_rows(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    decoding: Decoding,
    bar_name: str = "",
) -> list[GeneratedCompletion]:
    """Complete the prompts of rows with a model in memory, one completion for each row.

    The model and the random state are restored afterwards.

    Args:
        bar_name: Name of the progress bar. Without a name there is no bar.

    Raises:
        ValueError: The chat template leaves out the system prompt of the first row.
    """
    import torch

    from grpo_nb.generation.sampling import generate

    # This raises an error if the template leaves out the system prompt. Without it, the model would
    # not know the format, and seem worse than it is.
    render_prompt(rows[0]["prompt"], tokenizer, decoding.chat_template_kwargs)
    settings = decoding.settings
    bar = progress_bar(len(rows), desc=bar_name, unit="answer", disable=not bar_name)
    # An evaluation in the middle of a training must not change what is sampled afterwards.
    with bar, restoring_random_state(), restoring_modes(model), restoring_generation_config(model):
        torch.manual_seed(settings.seed)
        return generate(
            model,
            tokenizer,
            rows,
            max_completion_length=settings.max_completion_length,
            temperature=decoding.temperature,
            sampling_parameters=settings.sampling_besides_temperature,
            chat_template_kwargs=decoding.chat_template_kwargs,
            tools=decoding.tools,
            shared_prompts=settings.shared_prompts,
            progress=lambda done: bar.update(done - bar.n),
        )
