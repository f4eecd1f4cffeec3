"""Text from a GGUF file through llama.cpp, as its users will get it: with the chat template that the file itself holds.

llama.cpp runs in a process of its own (`llama_cpp_child.py`), which imports neither the kit nor unsloth, cannot take the
kernel down with it, ends with its parent, and is ended when nothing has come from it for a while. The package is xllamacpp
(MIT): its wheels are built, where those of llama-cpp-python have to be compiled.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.child_processes import ChildError, run_script
from grpo_nb.environment import EnvironmentProblem

if TYPE_CHECKING:
    from grpo_nb.rollout import Completion

_PACKAGE = "xllamacpp"
_REQUIREMENT = "xllamacpp>=2026.10,<2027"
# Seconds without a sign of life after which the child is ended: loading the file, or one answer, takes this long at most.
_PATIENCE = 900.0
_GREEDY = {"temperature": 0.0}
_SAMPLING = ("top_p", "top_k", "min_p", "seed")


class LlamaCppError(RuntimeError):
    """llama.cpp could not read the file or answer a prompt; the message has its own words."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Answer:
    """What llama.cpp makes of one chat: the prompt as it rendered and read it, and the answer."""

    prompt: str
    prompt_ids: tuple[int, ...]
    text: str
    ids: tuple[int, ...]
    """The tokens as sampled, with the end token."""
    is_cut: bool
    """It reached the length limit without an end token."""
    log_probs: tuple[float, ...]
    """Of each token, in nats, before temperature and the other processors."""
    margins: tuple[float, ...]
    """How far the likeliest token was ahead of the second, in nats, at each position."""


def generate(
    gguf: str | Path,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    *,
    max_completion_length: int,
    temperature: float = 0.0,
    sampling: Mapping[str, Any] | None = None,
    report: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Completion]:
    """Complete chat prompts with a GGUF file, greedily at temperature 0, in the order given.

    The chat template is the file's own. Prompts are answered one after the other and without a cache between them, so that
    an answer does not depend on what else is asked.

    Args:
        gguf: The file.
        prompts: Chat messages.
        max_completion_length: Tokens.
        temperature: Above 0, tokens are drawn from the whole vocabulary.
        sampling: With a temperature above 0: `top_p`, `top_k`, `min_p`, and the `seed` of the first, which is one more for each
            that follows.
        report: Called with one line per stage.
        progress: Called with the number of prompts done.

    Raises:
        EnvironmentProblem: xllamacpp is not installed.
        FileNotFoundError: There is no such file.
        LlamaCppError: llama.cpp cannot read the file, or failed.

    >>> generate("model.gguf", [[{"role": "user", "content": "2 + 2?"}]], max_completion_length=8)  # doctest: +SKIP
    [Completion(text='4', tokens=2, is_cut=False)]
    """
    from grpo_nb.rollout import Completion

    found = answer(
        gguf, prompts, max_completion_length=max_completion_length, temperature=temperature, sampling=sampling,
        report=report, progress=progress,
    )  # fmt: skip
    return [Completion(a.text, len(a.ids), a.is_cut, a.ids) for a in found]


def answer(
    gguf: str | Path,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    *,
    max_completion_length: int,
    temperature: float = 0.0,
    sampling: Mapping[str, Any] | None = None,
    report: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Answer]:
    """Do what `generate` does, and return also what llama.cpp read and how sure it was."""
    file = Path(gguf)
    if not file.is_file():
        raise FileNotFoundError(f"{str(gguf)!r} is no file. Name the GGUF file itself, not its folder.")
    request = {
        "gguf": str(file.absolute()),
        "package_folder": str(_package_folder()),
        "prompts": [[dict(message) for message in chat] for chat in prompts],
        "limit": max_completion_length,
        "sampling": _sampling(temperature, sampling),
        "threads": thread_count(),
    }
    if not prompts:
        return []
    (report or (lambda line: None))(f"llama.cpp answers {len(prompts)} prompts with {file.name}")
    return [
        Answer(**{k: tuple(v) if isinstance(v, list) else v for k, v in row.items()})
        for row in _ask(request, progress or (lambda done: None))
    ]


def require_llama_cpp() -> None:
    """Raise `EnvironmentProblem` with the line to type if llama.cpp's package is not installed."""
    _package_folder()


def _package_folder() -> Path:
    # Found, not imported: loading llama.cpp into a process that has torch and its OpenMP is what the child is for.
    spec = importlib.util.find_spec(_PACKAGE)
    if spec is None or not spec.origin:
        raise EnvironmentProblem(
            f"a GGUF file is run by llama.cpp, and its package {_PACKAGE} is not installed. "
            f"Run `pip install '{_REQUIREMENT}'` (34 MB, nothing is compiled)."
        )
    return Path(spec.origin).parent.parent


def _sampling(temperature: float, further: Mapping[str, Any] | None) -> dict[str, Any]:
    if temperature <= 0:
        return dict(_GREEDY)
    unknown = sorted(set(further or {}) - set(_SAMPLING))
    if unknown:
        raise ValueError(f"sampling = {unknown[0]!r} is not one of {', '.join(map(repr, _SAMPLING))} for a GGUF file.")
    # transformers' order of the processors, and the whole vocabulary where nothing else is asked for.
    whole = {"samplers": ["temperature", "top_k", "top_p", "min_p"], "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": 0}
    return {**whole, **(further or {}), "temperature": temperature}


def thread_count() -> int:
    """How many threads llama.cpp may have: what OMP_NUM_THREADS says, else the cores of this process."""
    asked = os.environ.get("OMP_NUM_THREADS", "")
    if asked.isdigit() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _ask(request: Mapping[str, Any], progress: Callable[[int], None]) -> list[dict[str, Any]]:
    def count(line: str) -> None:
        if line.strip().isdigit():
            progress(int(line))

    try:
        return run_script("llama_cpp_child.py", request, on_line=count, patience=_PATIENCE)
    except ChildError as error:
        raise LlamaCppError(f"llama.cpp on {Path(request['gguf']).name} {error}") from error
