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

from grpo_nb.core.randomness import kept_modes, kept_random_state
from grpo_nb.core.words import did_you_mean
from grpo_nb.generation.llama_cpp import answer as generate_with_llama_cpp
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.identity import base_identity, require_trained_on, template_of, tokenizer_for
from grpo_nb.models.load import load_adapter, load_model, resolve_model
from grpo_nb.models.unsloth import import_unsloth, without_loading_bars
from grpo_nb.runs.run import Run, open_run
from grpo_nb.settings.number_types import cpu_number_type
from grpo_nb.settings.settings import EMBEDDED_MODEL, Settings

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grpo_nb.generation.samples import Completion

BASE = "base"
_BATCH = 48
Progress = Callable[[int], None]


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

    def to_dict(self) -> dict[str, Any]:
        """What a reader must know to draw them again; greedy text has no seed."""
        drawn = {"seed": self.seed, **self.sampling} if self.temperature > 0 else {}
        if self.chat_template_kwargs:
            drawn["chat_template_kwargs"] = dict(self.chat_template_kwargs)
        return {"temperature": self.temperature, "max_completion_length": self.max_completion_length, **drawn}


@dataclass(frozen=True)
class Subject:
    """One that answers: `ask` is given each prompt once for each of its samples, and keeps their order."""

    about: str
    ask: Callable[[Sequence[list[dict[str, str]]], Decoding, Progress], list[Completion]]
    tokenizer: PreTrainedTokenizerBase | None
    """None for a GGUF file, which has its own inside."""
    note: str = ""
    folder: str = ""
    """Of a model on disk that other programs can load too."""


@dataclass(frozen=True)
class Base:
    """The model that a run started from, without adapter."""

    run: Run


Located = Run | Base | tuple[Any, Any] | Path | str
"""What a subject stands for: a file or folder that is no run is a path, and a name on the Hub a text."""


def located(subjects: Sequence[Any], run: Run | None = None) -> tuple[list[Located], Run | None]:
    """Turn paths and names into what they stand for, each opened once; return them and the run that they belong to.

    Args:
        subjects: Runs or their folders (their adapters), `"base"`, model folders, adapter folders, .gguf files, names of
            models, or `(model, tokenizer)`.
        run: Theirs, or its folder; the first run among them if not given.

    Raises:
        TypeError, ValueError: One is none of these, or `"base"` without a run.
        FileNotFoundError: A path that does not exist.
        OSError: A name that is neither here nor on the Hub, in the words of the Hub's library.
    """
    if run is not None and not isinstance(run, Run):
        run = _located(run) if isinstance(run, (str, Path)) and str(run) != BASE else run
    found = [None if isinstance(what, (str, Path)) and str(what) == BASE else _located(what) for what in subjects]
    run = run or next((what for what in found if isinstance(what, Run)), None)
    if run is None and any(what is None for what in found):
        raise ValueError("'base' is the model that a run started from: say which, run=gn.open_run('runs/...').")
    return [Base(run) if what is None else what for what in found], run


def _located(what: Any) -> Located:
    if isinstance(what, (Run, Base)):
        return what
    if isinstance(what, tuple) and len(what) == 2:
        if hasattr(what[0], "parameters") and hasattr(what[1], "apply_chat_template"):
            return what
        kinds = ", ".join(type(part).__name__ for part in what)
        raise TypeError(f"({kinds}) is no model with its tokenizer: give (model, tokenizer), in this order.")
    if isinstance(what, str) and what == "gsm8k":
        raise ValueError(f"{what!r} is a set of questions, not a model: gn.evaluate(run, {what!r}).")
    path = Path(what).expanduser()
    if path.suffix == ".gguf" and not path.is_file():
        raise _missing(what, path, "file")
    is_adapter = (path / "adapter_config.json").is_file()
    for folder in (path, *([path.parent] if is_adapter else []), Path(Settings().run_root) / path):
        if (folder / "run.json").is_file():
            return open_run(folder)
    if is_adapter or path.suffix == ".gguf" or (path / "config.json").is_file():
        return path
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if len(files) == 1:
            return files[0]
        several = f"several GGUF files, of which one must be named: {[f.name for f in files]}"
        raise ValueError(
            f"{str(path)!r} is no run (run.json), model (config.json), adapter (adapter_config.json) or GGUF file: "
            f"{several if files else 'none of these'}."
        )
    if isinstance(what, Path) or what.startswith((".", "/", "~")) or what.count("/") > 1:
        raise _missing(what, path, "folder")
    if what != EMBEDDED_MODEL:
        try:
            resolve_model(what)  # a name that is none is told now, and not after the first model has answered
        except (OSError, ValueError) as error:
            if path.parent != Path() and path.parent.is_dir():  # `exports/my-modle`
                raise _missing(what, path, "folder") from error
            raise
    return what


def _missing(what: str | Path, path: Path, kind: str) -> FileNotFoundError:
    there = [other.name for other in path.parent.iterdir()] if path.parent.is_dir() else []
    nearest = did_you_mean(path.name, there) if there else ""
    hint = nearest if "did you mean" in nearest else "."
    return FileNotFoundError(f"there is no {kind} {str(what)!r} (looked in {Path.cwd()}){hint}")


def name_of(subject: Located) -> str:
    """Return the label of a subject without opening it."""
    if isinstance(subject, (tuple, Base)):
        return "model" if isinstance(subject, tuple) else BASE
    if isinstance(subject, Run):
        return subject.name
    return Path(subject).name.removesuffix(".gguf")


@contextlib.contextmanager
def open_subject(
    what: Located,
    *,
    run: Run | None = None,
    tokenizer: Any = None,
    report: Callable[[str], None] = lambda line: None,
) -> Iterator[Subject]:
    """Load what is to be asked, and let go of it afterwards if it was loaded here.

    Args:
        what: As `located` returns it.
        run: Whose tokenizer a model folder with its vocabulary gets, so that all have the same chat template.
        tokenizer: That of another subject, for the same; without a run.
        report: Called with one line per stage.
    """
    if isinstance(what, tuple):
        yield _model_subject(*what, "A model in memory, as it is.")
    elif isinstance(what, Run):
        yield _model_subject(*model_of(what, report), f"The adapter of the run {what.name}.")
    elif isinstance(what, Base):
        about = f"The model that the run {what.run.name} started from, without adapter."
        if what.run.model is None and not _has_adapter(what.run):
            # Its LoRA is new, which adds nothing.
            yield _model_subject(*load_model(_settings_to_load(what.run), report=report), about)
            return
        model, own = model_of(what.run, report)
        with model.disable_adapter():
            yield _model_subject(model, own, about)
    elif isinstance(what, Path) and what.suffix == ".gguf":
        yield _gguf_subject(what, report)
    else:
        model, own = _load(what, run, report)
        shared = tokenizer if run is None else tokenizer_of_run(run)
        is_same = shared is not None and shared.get_vocab() == own.get_vocab()
        other = (
            f"{name_of(what)} has another vocabulary, so it was asked with its own tokenizer and chat template: lengths in "
            "tokens cannot be compared."
        )
        note = "" if is_same or shared is None else other
        about = f"The model {what.name if isinstance(what, Path) else what}."
        folder = str(what) if isinstance(what, Path) and (what / "config.json").is_file() else ""
        try:
            yield _model_subject(model, shared if is_same else own, about, note, folder)
        finally:
            del model
            gc.collect()


def tokenizer_of_run(run: Run) -> Any:
    """Return the tokenizer that a run was trained with."""
    if run.tokenizer is None:
        import_unsloth()
        run.tokenizer = tokenizer_for(run.path, resolve_model(run.settings.model))
        run.tokenizer.clean_up_tokenization_spaces = False
    return run.tokenizer


def model_of(run: Run, report: Callable[[str], None]) -> tuple[Any, Any]:
    """Return a run's model with its adapter, loaded from disk if it is not in memory.

    Raises:
        FileNotFoundError: It has none yet.
        ValueError: The model in memory has learnt something else since: its answers would not be those of this run.
    """
    if run.model is None:
        require_adapter(run)
        run.model, run.tokenizer = load_model(_settings_to_load(run), report=report)
        run.tokenizer.chat_template = template_of(run.path) or run.tokenizer.chat_template
        load_adapter(run.model, run.adapter_path)
    elif not _holds_adapter_of(run):
        raise ValueError(
            f"the model in memory is not the one that the run {run.name!r} ended with: it was trained on since, or its adapter "
            f"was changed. From its folder it is asked as it was: gn.open_run({str(run.path)!r})."
        )
    return run.model, run.tokenizer


def require_adapter(run: Run) -> None:
    """Raise `FileNotFoundError` for a run that has no adapter, in memory or on disk."""
    if run.model is None and not _has_adapter(run):
        raise FileNotFoundError(f"the run {run.name!r} ({run.status}) has no adapter yet: train it to its end first.")


def _has_adapter(run: Run) -> bool:
    return (run.adapter_path / "adapter_model.safetensors").is_file()


def _holds_adapter_of(run: Run) -> bool:
    """Whether the adapter in memory is that on disk; so too where none is on disk, as after a training that was stopped."""
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    if not _has_adapter(run) or not hasattr(run.model, "get_base_model"):
        return True
    held = get_peft_model_state_dict(run.model, adapter_name="default", save_embedding_layers=False)
    saved = load_file(run.adapter_path / "adapter_model.safetensors")
    return all(
        name in saved and tensor.detach().cpu().to(saved[name].dtype).equal(saved[name])
        for name, tensor in held.items()
    )


def _settings_to_load(run: Run) -> Settings:
    """The settings of a run, with the number type that it was trained in where both machines are CPUs."""
    if run.info["machine"]["gpu"] is not None or find_gpu() is not None:
        return run.settings
    return run.settings.replace(dtype=run.info["number_type"])


def _load(what: Path | str, run: Run | None, report: Callable[[str], None]) -> tuple[Any, Any]:
    import_unsloth()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    report(f"loading {what}")
    folder = Path(what)
    base, adapter = str(what), None
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        from peft import PeftConfig

        base, adapter = str(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path), str(folder)
    source = resolve_model(base)
    with without_loading_bars():
        model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    if adapter is not None:
        from peft import PeftModel

        require_trained_on(folder, base, base_identity(model, base))
        model = PeftModel.from_pretrained(model, adapter)
    if find_gpu() is not None:
        model = model.to("cuda")
    else:
        asked = "auto" if run is None else _settings_to_load(run).dtype
        chosen = cpu_number_type(asked)
        # Widened, these are exactly the same numbers; narrowed, it would be another model.
        if chosen.name != "bfloat16" or model.dtype != torch.bfloat16:
            model = model.float()
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.clean_up_tokenization_spaces = False
    return model.eval(), tokenizer


def answers_of_model(
    model: Any,
    tokenizer: Any,
    prompts: Sequence[list[dict[str, str]]],
    decoding: Decoding,
    progress: Progress | None = None,
) -> list[Completion]:
    """Answer chats with a model in memory, and leave it and the random state as they were."""
    import torch

    from grpo_nb.generation.sampling import generate

    with kept_random_state(), kept_modes(model), _no_habits(model):
        torch.manual_seed(decoding.seed)
        return generate(
            model,
            tokenizer,
            prompts,
            max_completion_length=decoding.max_completion_length,
            temperature=decoding.temperature,
            sampling=decoding.sampling,
            # All samples of a question together, so that its prompt is computed once.
            batch_size=decoding.samples * max(1, _BATCH // decoding.samples),
            chat_template_kwargs=decoding.chat_template_kwargs,
            progress=progress,
        )


def _model_subject(model: Any, tokenizer: Any, about: str, note: str = "", folder: str = "") -> Subject:
    return Subject(about, lambda *asked: answers_of_model(model, tokenizer, *asked), tokenizer, note, folder)


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


def _gguf_subject(file: Path, report: Callable[[str], None]) -> Subject:
    def ask(prompts: Sequence[list[dict[str, str]]], decoding: Decoding, progress: Progress) -> list[Completion]:
        return generate_with_llama_cpp(
            file,
            prompts,
            max_completion_length=decoding.max_completion_length,
            temperature=decoding.temperature,
            sampling={**decoding.sampling, "seed": decoding.seed} if decoding.temperature > 0 else None,
            chat_template_kwargs=decoding.chat_template_kwargs,
            report=report,
            progress=progress,
        )

    about = f"The file {file.name}, through llama.cpp, with the chat template and tokenizer inside it."
    return Subject(about, ask, None)
