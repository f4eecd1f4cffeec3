"""Text from a GGUF file through llama.cpp, as its users will get it: with the chat template that the file itself holds.

llama.cpp runs in a process of its own (`llama_cpp_child.py`), which imports neither the kit nor unsloth, and cannot take
the kernel down with it. The package is xllamacpp (MIT): its wheels are built, where those of llama-cpp-python have to be
compiled.
"""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.generation.samples import Completion
from grpo_nb.machine.host import usable_cores


class LlamaCppError(RuntimeError):
    """llama.cpp could not read the file or answer a prompt; the message has its own words."""


@dataclass(frozen=True, kw_only=True)
class Answer(Completion):
    """A completion, with the tokens that llama.cpp read, and its log-probabilities."""

    prompt_ids: tuple[int, ...] = field(repr=False)
    log_probs: tuple[float | None, ...] = field(repr=False)
    """Of each token, in nats, before temperature and the other processors. Of several that write one character, such as an
    emoji, llama.cpp tells the last one's alone: None for the others."""


def answer(
    gguf: str | Path,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    *,
    max_completion_length: int,
    temperature: float = 0.0,
    sampling: Mapping[str, Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    report: Callable[[str], None] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[Answer]:
    """Complete chat prompts with a GGUF file, greedily at temperature 0, in the order given.

    The chat template is the file's own. Prompts are answered one after the other and without a cache between them, so that
    an answer does not depend on what else is asked.

    Args:
        gguf: The file.
        prompts: Chat messages, one chat at least.
        max_completion_length: Tokens.
        temperature: Above 0, tokens are drawn from the whole vocabulary.
        sampling: With a temperature above 0: `top_p`, `top_k`, `min_p`, and the `seed` of the first, which is one more for each
            that follows.
        chat_template_kwargs: What the chat template is given beside the messages.
        report: Called with one line per stage.
        progress: Called with the number of prompts done.

    Raises:
        EnvironmentProblem: xllamacpp is not installed.
        LlamaCppError: llama.cpp cannot read the file, or failed.

    >>> answer("model.gguf", [[{"role": "user", "content": "2 + 2?"}]], max_completion_length=8)  # doctest: +SKIP
    [Answer(text='4', tokens=2, is_cut=False)]
    """
    file = Path(gguf)
    request = {
        "gguf": str(file.absolute()),
        "package_folder": str(require_llama_cpp()),
        "prompts": [[dict(message) for message in chat] for chat in prompts],
        "limit": max_completion_length,
        "sampling": _sampling(temperature, sampling),
        "chat_template_kwargs": dict(chat_template_kwargs or {}),
        "threads": thread_count(),
    }
    if report is not None:
        report(f"llama.cpp answers {len(prompts)} prompts with {file.name}")

    def count(line: str) -> None:
        if progress is not None and line.strip().isdigit():
            progress(int(line))

    try:
        rows = run_script(Path(__file__).with_name("llama_cpp_child.py"), request, on_line=count)
    except ChildError as error:
        raise LlamaCppError(f"llama.cpp on {file.name} {error}") from error
    lists = ("ids", "prompt_ids", "log_probs")
    return [
        Answer(tokens=len(row["ids"]), **row | {name: tuple(row[name]) for name in lists})
        for row in rows
    ]


def require_llama_cpp() -> Path:
    """Return where llama.cpp's package was found; raise `EnvironmentProblem` with the line to type if it is not installed."""
    # Found, not imported: loading llama.cpp into a process that has torch and its OpenMP is what the child is for.
    spec = importlib.util.find_spec("xllamacpp")
    if spec is None:
        raise EnvironmentProblem(
            "a GGUF file is run by llama.cpp, and its package xllamacpp is not installed. "
            "Run `pip install 'xllamacpp>=2026.10,<2027'` (34 MB, nothing is compiled)."
        )
    return Path(spec.origin).parent.parent


def _sampling(temperature: float, further: Mapping[str, Any] | None) -> dict[str, Any]:
    if temperature <= 0:
        return {"temperature": 0.0}
    if unknown := sorted({*(further or {})} - {"top_p", "top_k", "min_p", "seed"}):
        raise ValueError(
            f"sampling = {unknown[0]!r} is not one of top_p, top_k, min_p, seed for a GGUF file."
        )
    # transformers' order of the processors, and the whole vocabulary where nothing else is asked for.
    whole = {
        "samplers": ["temperature", "top_k", "top_p", "min_p"],
        "top_k": 0,
        "top_p": 1.0,
        "min_p": 0.0,
        "seed": 0,
    }
    return {**whole, **(further or {}), "temperature": temperature}


def thread_count() -> int:
    """How many threads llama.cpp may have: what OMP_NUM_THREADS says, else the cores of this process."""
    return int(os.environ.get("OMP_NUM_THREADS") or usable_cores())
