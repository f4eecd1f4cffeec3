"""What can be asked held-out questions: a run, its base, a model folder, a GGUF file, a model in memory. Opened one at a time.

All are asked with the same tokenizer and chat template, that of the run or of the first one, if they share its vocabulary. A
GGUF file brings both in itself, as its users get it. llama.cpp answers with it, in a process of its own.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.base_identity import template_of, tokenizer_for
from grpo_nb.metrics import Run, open_run

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from grpo_nb.rollout import Completion

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

    def to_dict(self) -> dict[str, Any]:
        """What a reader must know to draw them again; greedy text has no seed."""
        drawn = {"seed": self.seed, **self.sampling} if self.temperature > 0 else {}
        return {"temperature": self.temperature, "max_completion_length": self.max_completion_length, **drawn}


@dataclass(frozen=True)
class Subject:
    """One that answers: `ask` returns the samples of each prompt next to each other."""

    label: str
    about: str
    ask: Callable[[Sequence[list[dict[str, str]]], Decoding, Progress], list[Completion]]
    tokenizer: PreTrainedTokenizerBase | None
    """None for a GGUF file, which has its own inside."""
    note: str = ""
    folder: str = ""
    """Of a model on disk that other programs can load too."""


@contextlib.contextmanager
def open_subject(
    what: Any, *, run: Run | None = None, tokenizer: Any = None, report: Callable[[str], None] | None = None
) -> Iterator[Subject]:
    """Load what is to be asked, and let go of it afterwards if it was loaded here.

    Args:
        what: A `Run` or its folder (its adapter), `"base"` (that of `run`), a model folder, an adapter folder, a .gguf file,
            the name of a model, or `(model, tokenizer)`.
        run: Whose base `"base"` is.
        tokenizer: To be used for models with its vocabulary, so that all get the same chat template.
        report: Called with one line per stage.

    Raises:
        ValueError: It is none of these.
        FileNotFoundError: A path that does not exist.
    """
    what = _located(what, run)
    report = report or (lambda line: None)
    if isinstance(what, tuple):
        model, own = what
        yield _model_subject(model, own, "model", "A model in memory, as it is.")
    elif isinstance(what, Run):
        model, own = model_of(what, report)
        yield _model_subject(model, own, what.name, f"The adapter of the run {what.name}.")
    elif isinstance(what, _Base):
        with _base_of(what.run, report) as (model, own):
            yield _model_subject(
                model, own, BASE, f"The model that the run {what.run.name} started from, without adapter."
            )
    elif isinstance(what, Path) and what.suffix == ".gguf":
        yield _gguf_subject(what, report)
    else:
        model, own = _load(what, report)
        try:
            same = tokenizer is not None and tokenizer.get_vocab() == own.get_vocab()
            note = "" if same or tokenizer is None else _other_tokenizer(str(what))
            name = what.name if isinstance(what, Path) else str(what)
            chosen = tokenizer if same else own
            opened = _model_subject(model, chosen, name, f"The model {name}.", note)
            yield dataclasses.replace(opened, folder=str(what)) if _is_whole_model(what) else opened
        finally:
            del model
            gc.collect()


def _is_whole_model(what: Path | str) -> bool:
    return isinstance(what, Path) and (what / "config.json").is_file()


@dataclass(frozen=True)
class _Base:
    run: Run


def _located(what: Any, run: Run | None) -> Any:
    """Turn a path or a name into what it stands for."""
    if isinstance(what, Run) or (isinstance(what, tuple) and len(what) == 2):
        return what
    if not isinstance(what, (str, Path)):
        raise ValueError(
            f"{what!r:.80} cannot be asked: give a run, 'base', a model folder, a .gguf file, or (model, tokenizer)."
        )
    if str(what) == BASE:
        if run is None:
            raise ValueError("'base' is the model that a run started from: say which, run=gn.open_run('runs/...').")
        return _Base(run)
    path = Path(what).expanduser()
    if path.suffix == ".gguf":
        if not path.is_file():
            raise FileNotFoundError(f"there is no file {str(path)!r} (looked in {Path.cwd()}).")
        return path
    if (path / "run.json").is_file():
        return open_run(path)
    if (path / "adapter_config.json").is_file() and (path.parent / "run.json").is_file():
        return open_run(path.parent)
    if path.is_dir():
        files = sorted(path.glob("*.gguf"))
        if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
            return path
        if len(files) == 1:
            return files[0]
        found = (
            f"several GGUF files, of which one must be named: {[f.name for f in files]}" if files else "none of these"
        )
        raise ValueError(
            f"{str(path)!r} is no run (run.json), model (config.json), adapter (adapter_config.json) or GGUF file: {found}."
        )
    if isinstance(what, Path) or str(what).startswith((".", "/", "~")) or str(what).count("/") > 1:
        raise FileNotFoundError(f"there is no folder {str(what)!r} (looked in {Path.cwd()}).")
    return str(what)


def run_of(*subjects: Any) -> Run | None:
    """Return the first run among what is to be asked, opened if it is a path."""
    for what in subjects:
        found = _located(what, None) if isinstance(what, (str, Path)) and str(what) != BASE else what
        if isinstance(found, Run):
            return found
    return None


def tokenizer_of_run(run: Run) -> Any:
    """Return the tokenizer that a run was trained with."""
    if run.tokenizer is None:
        from grpo_nb.models import import_unsloth, resolve_model

        import_unsloth()
        run.tokenizer = tokenizer_for(run, resolve_model(run.settings.model))
        run.tokenizer.clean_up_tokenization_spaces = False
    return run.tokenizer


def model_of(run: Run, report: Callable[[str], None] | None = None) -> tuple[Any, Any]:
    """Return a run's model with its adapter, loaded from disk if it is not in memory.

    Raises:
        FileNotFoundError: It has none yet.
        ValueError: The model in memory has learnt something else since: its answers would not be those of this run.
    """
    if run.model is None:
        from grpo_nb.models import load_adapter, load_model

        if not (run.adapter_path / "adapter_model.safetensors").is_file():
            raise FileNotFoundError(
                f"the run {run.name!r} ({run.status}) has no adapter yet: train it to its end first."
            )
        run.model, run.tokenizer = load_model(run.settings, report=report)
        run.tokenizer.chat_template = template_of(run) or run.tokenizer.chat_template
        load_adapter(run.model, run.adapter_path)
    elif not _holds_adapter_of(run):
        raise ValueError(
            f"the model in memory is not the one that the run {run.name!r} ended with: it was trained on since, or its adapter "
            f"was changed. From its folder it is asked as it was: gn.open_run({str(run.path)!r})."
        )
    return run.model, run.tokenizer


def _holds_adapter_of(run: Run) -> bool:
    """Whether the adapter in memory is that on disk; so too where none is on disk, as after a training that was stopped."""
    import torch
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    file = run.adapter_path / "adapter_model.safetensors"
    if not file.is_file() or not hasattr(run.model, "get_base_model"):
        return True
    held = get_peft_model_state_dict(run.model, adapter_name="default", save_embedding_layers=False)
    saved = load_file(str(file))
    return all(
        name in saved and torch.equal(tensor.detach().cpu().to(saved[name].dtype), saved[name])
        for name, tensor in held.items()
    )


@contextlib.contextmanager
def _base_of(run: Run, report: Callable[[str], None]) -> Iterator[tuple[Any, Any]]:
    if run.model is None and not (run.adapter_path / "adapter_model.safetensors").is_file():
        from grpo_nb.models import load_model

        yield load_model(run.settings, report=report)  # its LoRA is new, which adds nothing
        return
    model, tokenizer = model_of(run, report)
    with model.disable_adapter():
        yield model, tokenizer


def _load(what: Path | str, report: Callable[[str], None]) -> tuple[Any, Any]:
    from grpo_nb.models import import_unsloth, is_bfloat16_supported, resolve_model

    import_unsloth()
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    from grpo_nb.environment import find_gpu

    report(f"loading {what}")
    folder = Path(what)
    base, adapter = str(what), None
    if (folder / "adapter_config.json").is_file() and not (folder / "config.json").is_file():
        from peft import PeftConfig

        base, adapter = str(PeftConfig.from_pretrained(str(folder)).base_model_name_or_path), str(folder)
    source = resolve_model(base)
    model = AutoModelForCausalLM.from_pretrained(source, dtype="auto")
    if adapter is not None:
        from peft import PeftModel

        model = PeftModel.from_pretrained(model, adapter)
    if find_gpu() is not None:
        model = model.to("cuda")
    elif model.dtype == torch.float16 or (model.dtype == torch.bfloat16 and not is_bfloat16_supported()):
        model = model.float()  # exactly the same numbers, and this processor computes with them many times faster
    tokenizer = AutoTokenizer.from_pretrained(source)
    tokenizer.clean_up_tokenization_spaces = False
    return model.eval(), tokenizer


def _other_tokenizer(name: str) -> str:
    return (
        f"{name} has another vocabulary, so it was asked with its own tokenizer and chat template: lengths in tokens "
        "cannot be compared."
    )


def _model_subject(model: Any, tokenizer: Any, label: str, about: str, note: str = "") -> Subject:
    def ask(prompts: Sequence[list[dict[str, str]]], decoding: Decoding, progress: Progress) -> list[Completion]:
        import torch

        from grpo_nb.random_state import kept_random_state
        from grpo_nb.rollout import generate

        samples = decoding.samples
        # One by one: train(True) on the whole would also switch on what was switched off inside, as frozen parts are.
        modes = [(module, module.training) for module in model.modules()]
        try:
            with kept_random_state(), _no_habits(model):
                torch.manual_seed(decoding.seed)
                return generate(
                    model,
                    tokenizer,
                    [prompt for prompt in prompts for _ in range(samples)],
                    max_completion_length=decoding.max_completion_length,
                    temperature=decoding.temperature,
                    sampling=decoding.sampling,
                    # All samples of a question together, so that its prompt is computed once.
                    batch_size=samples * max(1, _BATCH // samples),
                    progress=progress,
                )
        finally:
            for module, mode in modes:
                module.training = mode

    return Subject(label, about, ask, tokenizer, note)


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
        from grpo_nb import llama_cpp

        return llama_cpp.generate(
            file,
            [prompt for prompt in prompts for _ in range(decoding.samples)],
            max_completion_length=decoding.max_completion_length,
            temperature=decoding.temperature,
            sampling={**decoding.sampling, "seed": decoding.seed} if decoding.temperature > 0 else None,
            report=report,
            progress=progress,
        )

    about = f"The file {file.name}, through llama.cpp, with the chat template and tokenizer inside it."
    return Subject(file.stem, about, ask, None)


def name_of(what: Any, run: Run | None) -> str:
    """Return the label of a subject without opening it."""
    found = _located(what, run)
    if isinstance(found, tuple):
        return "model"
    if isinstance(found, _Base):
        return BASE
    if isinstance(found, Run):
        return found.name
    return found.stem if isinstance(found, Path) and found.suffix == ".gguf" else Path(found).name
