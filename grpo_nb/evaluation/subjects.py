"""What can be asked held-out questions: a run, its base, a model folder, a GGUF file, a model in memory. Opened one at a time.

All are asked with the same tokenizer and chat template, that of the run or of the first one, if they share its vocabulary. A
GGUF file brings both in itself, as its users get it. llama.cpp answers with it, in a process of its own.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config.dtype import cpu_dtype
from grpo_nb.config.settings import Settings
from grpo_nb.core.randomness import kept_random_state
from grpo_nb.generation.llama_cpp import answer as generate_with_llama_cpp
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.adapter import load_adapter
from grpo_nb.models.identity import (
    base_identity,
    require_trained_on,
    tokenizer_for,
    with_template_of,
)
from grpo_nb.models.import_unsloth import import_unsloth, without_loading_bars
from grpo_nb.models.load import load_model
from grpo_nb.models.modes import kept_modes
from grpo_nb.models.sources import resolve_model
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.tasks.tools import Tools

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grpo_nb.generation.samples import Completion

BASE, START = "base", "start"
_BATCH = 48
Progress = Callable[[int], None]
Row = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Decoding:
    """How answers are drawn."""

    max_completion_length: int
    samples: int = 1
    temperature: float = 0.0
    sampling: Mapping[str, Any] = field(default_factory=dict)
    """With a temperature above 0: `top_p`, `top_k` and the like."""
    seed: int = 0
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the chat template is given beside the messages, as in the training."""
    tools: Tools | None = None
    """The tools that may be called before the answer."""

    def to_dict(self) -> dict[str, Any]:
        """What a reader must know to draw them again; greedy text has no seed."""
        drawn = {"seed": self.seed, **self.sampling} if self.temperature > 0 else {}
        if self.chat_template_kwargs:
            drawn["chat_template_kwargs"] = dict(self.chat_template_kwargs)
        if self.tools is not None:
            drawn |= {
                "tools": [tool["function"]["name"] for tool in self.tools.schemas],
                "rounds": self.tools.rounds,
            }
        return {
            "temperature": self.temperature,
            "max_completion_length": self.max_completion_length,
            **drawn,
        }


@dataclass(frozen=True)
class Subject:
    """One that answers: `ask` is given each row once for each of its samples, and keeps their order."""

    about: str
    ask: Callable[[Sequence[Row], Decoding, Progress], list[Completion]]
    tokenizer: PreTrainedTokenizerBase | None
    """None for a GGUF file, which has its own inside."""


@dataclass(frozen=True)
class Base:
    """The base model of a run, without any adapter."""

    run: Run


@dataclass(frozen=True)
class Start:
    """The model that a run started from: the base model with the adapter as it was before the first step."""

    run: Run


Located = Run | Base | Start | tuple[Any, Any] | Path | str
"""What a subject stands for: a file or folder that is no run is a path, and a name on the Hub a text."""


def located(
    subjects: Sequence[Any], run: Run | str | Path | None = None
) -> tuple[list[Located], Run | None]:
    """Turn paths and names into what they stand for, each opened once; return them and the run that they belong to.

    Args:
        subjects: Runs or their folders (their adapters), `"base"`, `"start"`, model folders, adapter folders, .gguf files,
            names of models, or `(model, tokenizer)`.
        run: Theirs, or its folder; the first run among them if not given.

    Raises:
        ValueError: `"base"` or `"start"` without a run.
        FileNotFoundError: A path that does not exist, or holds nothing that can be asked.
        OSError: A name that is neither here nor on the Hub, in the words of the Hub's library.
    """
    of_a_run = {BASE: Base, START: Start}
    named = [what if isinstance(what, str) and what in of_a_run else None for what in subjects]
    found = [name or _located(what) for name, what in zip(named, subjects, strict=True)]
    run = (
        open_run(run)
        if run is not None
        else next((what for what in found if isinstance(what, Run)), None)
    )
    missing = next((name for name in named if name is not None), None)
    if run is None and missing is not None:
        raise ValueError(
            f"{missing!r} is the model that a run started from: say which run, run=gn.open_run('runs/...')."
        )
    opened = []
    for name, what in zip(named, found, strict=True):
        opened.append(what if name is None else of_a_run[name](run))
    return opened, run


def started_from_trained_adapter(run: Run) -> bool:
    """Return True if the adapter had learnt something before this run: after priming, an earlier stage, or elsewhere.

    A LoRA as it is made has zeros in all its B matrices, so that the model is the base model.
    """
    from safetensors import safe_open

    folder = start_adapter_path(run)
    if folder is None:
        return False
    with safe_open(folder / "adapter_model.safetensors", framework="pt") as tensors:
        names = [name for name in list(tensors.keys()) if "lora_B" in name]
        return any(bool(tensors.get_tensor(name).any()) for name in names)


def start_adapter_path(run: Run) -> Path | None:
    """Return the folder of the adapter that a run started with; None if the run kept none.

    Runs of earlier versions kept it only as the reference of their KL.
    """
    for folder in (run.start_path, run.path / "reference"):
        if (folder / "adapter_model.safetensors").is_file():
            return folder
    return None


def _located(what: Any) -> Located:
    if isinstance(what, (Run, tuple)):
        return what
    path = Path(what).expanduser()
    is_adapter = (path / "adapter_config.json").is_file()
    for folder in (path, Path(Settings().run_root) / path, path.parent if is_adapter else path):
        if (folder / "run.json").is_file():
            return open_run(folder)
    if not (path / "config.json").is_file() and len(files := list(path.glob("*.gguf"))) == 1:
        path = files[0]
    if path.suffix == ".gguf" and not path.is_file():
        raise FileNotFoundError(f"there is no file {str(what)!r} (looked in {Path.cwd()}).")
    if not is_adapter and path.suffix != ".gguf":
        resolve_model(
            str(what)
        )  # what is none is told now, and not after the first model has answered
    return path if path.exists() else what


def name_of(subject: Located) -> str:
    """Return the label of a subject without opening it."""
    if isinstance(subject, tuple):
        return "model"
    if isinstance(subject, (Base, Start)):
        return BASE if isinstance(subject, Base) else START
    return subject.name if isinstance(subject, Run) else Path(subject).name.removesuffix(".gguf")


def model_id_of(subject: Located) -> str:
    """Return the id of a run's adapter or start (`Run.model_id`); empty for a model of no run.

    The base model is the start of a run that did not begin with a trained adapter.
    """
    if isinstance(subject, Run):
        return subject.model_id("adapter")
    if isinstance(subject, Base) and started_from_trained_adapter(subject.run):
        return ""
    return subject.run.model_id("start") if isinstance(subject, (Base, Start)) else ""


@contextlib.contextmanager
def open_subject(
    what: Located, *, run: Run | None = None, tokenizer: Any = None
) -> Iterator[Subject]:
    """Load what is to be asked, and let go of it afterwards if it was loaded here.

    Args:
        what: As `located` returns it.
        run: Whose tokenizer a model folder with its vocabulary gets, so that all have the same chat template.
        tokenizer: That of another subject, for the same; without a run.
    """
    if isinstance(what, tuple):
        yield _model_subject(*what, "A model in memory, as it is.")
    elif isinstance(what, Run):
        about, best = f"The adapter of the run {what.name}.", what.best
        if best is not None and what.settings.keep_adapter == "best":
            about += " It is the best of several by its score on some of these questions, so a little lucky on them."
        yield _model_subject(*model_of(what), about)
    elif isinstance(what, Base):
        model, own = model_of(what.run)
        with model.disable_adapter():
            yield _model_subject(
                model, own, f"The base model of the run {what.run.name}, without adapter."
            )
    elif isinstance(what, Start):
        model, own = model_of(what.run)
        with _start_adapter(model, what.run):
            about = f"The model that the run {what.run.name} started from, with the adapter of that moment."
            yield _model_subject(model, own, about)
    elif isinstance(what, Path) and what.suffix == ".gguf":
        yield _gguf_subject(what)
    else:
        model, own = _load(what, run)
        shared = tokenizer if run is None else tokenizer_of_run(run)
        about = f"The model {name_of(what)}."
        if shared is not None and shared.get_vocab() == own.get_vocab():
            own = shared
        elif shared is not None:
            about += " It has another vocabulary, so its own tokenizer and chat template: lengths cannot be compared."
        try:
            yield _model_subject(model, own, about)
        finally:
            del model
            gc.collect()


@contextlib.contextmanager
def _start_adapter(model: Any, run: Run) -> Iterator[None]:
    """Put the adapter that a run started with into its model, and put the trained one back afterwards, bit for bit."""
    folder = start_adapter_path(run)
    if folder is None:
        raise FileNotFoundError(
            f"the run {run.name!r} has no start/adapter_model.safetensors, so the model that it started from cannot be "
            "asked. Compare with the base model: gn.compare('base', run, task)."
        )
    trained = {
        name: p.detach().clone() for name, p in model.named_parameters() if ".default" in name
    }
    try:
        load_adapter(model, folder)
        yield
    finally:
        for name, parameter in model.named_parameters():
            if name in trained:
                parameter.data.copy_(trained[name])


def tokenizer_of_run(run: Run) -> Any:
    """Return the tokenizer that a run was trained with."""
    if run.tokenizer is None:
        import_unsloth()
        run.tokenizer = tokenizer_for(run.path, resolve_model(run.settings.model))
        run.tokenizer.clean_up_tokenization_spaces = False
    return run.tokenizer


def model_of(run: Run) -> tuple[Any, Any]:
    """Return a run's model with its adapter, loaded from disk if it is not in memory.

    Raises:
        FileNotFoundError: It has none yet.
        ValueError: The model in memory has learnt something else since: its answers would not be those of this run.
    """
    if run.model is None and not _saved_adapter(run).is_file():
        raise FileNotFoundError(
            f"the run {run.name!r} ({run.status}) has no adapter yet: train it to its end first."
        )
    if run.model is None:
        # A file of the run is data: what it may choose of Unsloth's loader are these, and no code of somebody's.
        known, loader = (
            ("text_only", "load_in_fp8", "offload_embedding"),
            run.info.get("loader", {}),
        )
        chosen = {name: loader[name] for name in known if name in loader}
        run.model, run.tokenizer = load_model(_settings_to_load(run), loader=chosen)
        with_template_of(run.path, run.tokenizer)
        load_adapter(run.model, run.adapter_path)
    elif not _holds_adapter_of(run):
        raise ValueError(
            f"the model in memory is not the one that the run {run.name!r} ended with: it was trained on since, or its adapter "
            f"was changed. From its folder it is asked as it was: gn.open_run({str(run.path)!r})."
        )
    return run.model, run.tokenizer


def _saved_adapter(run: Run) -> Path:
    return run.adapter_path / "adapter_model.safetensors"


def _holds_adapter_of(run: Run) -> bool:
    """Whether the adapter in memory is that on disk; so too where none is on disk, as after a training that was stopped."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    if not _saved_adapter(run).is_file() or not hasattr(run.model, "get_base_model"):
        return True
    held = get_peft_model_state_dict(run.model, adapter_name="default", save_embedding_layers=False)
    saved = load_file(_saved_adapter(run))
    return all(
        name in saved and value.cpu().to(saved[name].dtype).equal(saved[name])
        for name, value in held.items()
    )


def _settings_to_load(run: Run) -> Settings:
    """The settings of a run, with the number type that it was trained in where both machines are CPUs."""
    if run.info["machine"]["gpu"] is not None or find_gpu() is not None:
        return run.settings
    return run.settings.replace(dtype=run.info["number_type"])


def _load(what: Path | str, run: Run | None) -> tuple[Any, Any]:
    import_unsloth()
    import torch
    from peft import PeftConfig, PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder, base = str(what), str(what)
    is_adapter = (
        not Path(folder, "config.json").is_file() and Path(folder, "adapter_config.json").is_file()
    )
    if is_adapter:
        base = str(PeftConfig.from_pretrained(folder).base_model_name_or_path)
    source = resolve_model(base)
    with without_loading_bars():
        model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    if is_adapter:
        require_trained_on(Path(folder), base, base_identity(model, base))
        model = PeftModel.from_pretrained(model, folder)
    chosen = cpu_dtype("auto" if run is None else _settings_to_load(run).dtype)
    if find_gpu() is not None:
        model = model.to("cuda")
    elif chosen.name != "bfloat16" or model.dtype != torch.bfloat16:
        model = (
            model.float()
        )  # widened, these are the same numbers; narrowed, it would be another model
    tokenizer = with_template_of(Path(folder), AutoTokenizer.from_pretrained(source))
    tokenizer.clean_up_tokenization_spaces = False
    return model.eval(), tokenizer


def answers_of_model(
    model: Any,
    tokenizer: Any,
    rows: Sequence[Row],
    decoding: Decoding,
    progress: Progress | None = None,
) -> list[Completion]:
    """Answer the prompts of rows with a model in memory, and leave it and the random state as they were."""
    import torch

    from grpo_nb.generation.sampling import generate

    with kept_random_state(), kept_modes(model), _no_habits(model):
        torch.manual_seed(decoding.seed)
        return generate(
            model,
            tokenizer,
            [row["prompt"] for row in rows],
            max_completion_length=decoding.max_completion_length,
            temperature=decoding.temperature,
            sampling=decoding.sampling,
            # All samples of a question together, so that its prompt is computed once.
            batch_size=decoding.samples * max(1, _BATCH // decoding.samples),
            chat_template_kwargs=decoding.chat_template_kwargs,
            progress=progress,
            tools=decoding.tools,
            rows=rows,
        )


def _model_subject(model: Any, tokenizer: Any, about: str) -> Subject:
    return Subject(about, lambda *asked: answers_of_model(model, tokenizer, *asked), tokenizer)


@contextlib.contextmanager
def _no_habits(model: Any) -> Iterator[None]:
    """Take away all of a model's generation_config but its special tokens.

    Whatever the caller leaves open, transformers fills in from it: a repetition penalty or a top_p that one folder has and
    another has not would be compared along with the models, and neither vLLM nor llama.cpp would know of it.
    """
    from transformers import GenerationConfig

    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    own = inner.generation_config
    inner.generation_config = GenerationConfig(
        bos_token_id=own.bos_token_id, eos_token_id=own.eos_token_id, pad_token_id=own.pad_token_id
    )
    try:
        yield
    finally:
        inner.generation_config = own


def _gguf_subject(file: Path) -> Subject:
    def ask(rows: Sequence[Row], decoding: Decoding, progress: Progress) -> list[Completion]:
        if decoding.tools is not None:
            raise ValueError(
                f"{file.name} is asked through llama.cpp, which runs no tools here: compare the merged folder."
            )
        return generate_with_llama_cpp(
            file,
            [row["prompt"] for row in rows],
            max_completion_length=decoding.max_completion_length,
            temperature=decoding.temperature,
            sampling={**decoding.sampling, "seed": decoding.seed}
            if decoding.temperature > 0
            else None,
            chat_template_kwargs=decoding.chat_template_kwargs,
            progress=progress,
        )

    about = (
        f"The file {file.name}, through llama.cpp, with the chat template and tokenizer inside it."
    )
    return Subject(about, ask, None)
