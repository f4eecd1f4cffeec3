"""Text from a GGUF file through llama.cpp, with the chat template inside the file.

llama.cpp runs in a process of its own (`llama_cpp_child.py`), which imports neither the kit nor
unsloth and cannot take the kernel down with it. The package is xllamacpp (MIT), because it has
ready wheels; llama-cpp-python must be compiled.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.generation.samples import GeneratedCompletion
from grpo_nb.machine.host import usable_cores

# llama.cpp's own defaults would leave out most of the vocabulary.
_WHOLE_VOCABULARY = {
    # transformers' order of the processors
    "samplers": ["penalties", "temperature", "top_k", "top_p", "min_p"],
    "top_k": 0,
    "top_p": 1.0,
    "min_p": 0.0,
    "repeat_penalty": 1.0,
    # Tokens that the penalty looks at: all of any context, as in transformers.
    "repeat_last_n": 1_000_000,
    "seed": 0,
}
# Sampling parameters by their names in the settings, with those of llama.cpp's server.
_PARAMETERS = {
    "top_p": "top_p",
    "top_k": "top_k",
    "min_p": "min_p",
    "repetition_penalty": "repeat_penalty",
    "seed": "seed",
}


class LlamaCppError(RuntimeError):
    """llama.cpp could not read the file or answer a prompt. The message is its own."""


@dataclass(frozen=True, kw_only=True)
class GgufCompletion(GeneratedCompletion):
    """A completion with the tokens of its prompt and its log-probabilities, from llama.cpp."""

    prompt_ids: Sequence[int] = field(repr=False)
    """Token ids of the prompt, as llama.cpp read it."""
    log_probs: Sequence[float | None] = field(repr=False)
    """Log-probability of each token in nats, before temperature and the other samplers. If several
    tokens write one character, such as an emoji, llama.cpp reports only the last; the others are
    None."""


def complete_with_gguf(
    gguf: str | Path,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    *,
    max_completion_length: int,
    temperature: float = 0.0,
    sampling: Mapping[str, Any] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[GgufCompletion]:
    """Complete chat prompts with a GGUF file, in the order of the prompts.

    Prompts are answered one after the other and without a cache between them, so that an answer
    does not depend on the other prompts.

    Args:
        gguf: Path of the file. Its own chat template is used.
        prompts: Chat messages of at least one chat.
        max_completion_length: Tokens of an answer.
        temperature: 0 for greedy decoding. Above 0, tokens are sampled from the whole vocabulary,
            unless `sampling` limits it.
        sampling: With a temperature above 0: `top_p`, `top_k`, `min_p`, `repetition_penalty`, and
            the `seed` of the first prompt. Each following prompt has a seed that is one higher.
        chat_template_kwargs: Further arguments of the chat template.
        progress: Called with the number of answered prompts.

    Raises:
        EnvironmentProblem: xllamacpp is not installed.
        LlamaCppError: llama.cpp cannot read the file, or failed.
        ValueError: `sampling` has an unknown parameter.

    >>> chats = [[{"role": "user", "content": "2 + 2?"}]]
    >>> complete_with_gguf("model.gguf", chats, max_completion_length=8)  # doctest: +SKIP
    [GgufCompletion(text='4', tokens=2, is_truncated=False)]
    """
    require_llama_cpp()
    file = Path(gguf)
    request = {
        "gguf": str(file.absolute()),
        "prompts": list(prompts),
        "limit": max_completion_length,
        "sampling": _sampling(temperature, sampling or {}),
        "chat_template_kwargs": dict(chat_template_kwargs or {}),
        "threads": usable_cores(),
    }

    def report_count(line: str) -> None:
        if progress is not None and line.strip().isdigit():
            progress(int(line))

    # A crash of llama.cpp ends the child alone, and its last words are in the error.
    script = Path(__file__).with_name("llama_cpp_child.py")
    try:
        rows = run_script(script, request, on_line=report_count)
    except ChildError as error:
        raise LlamaCppError(f"llama.cpp on {file.name} {error}") from error
    return [GgufCompletion(**row) for row in rows]


def require_llama_cpp() -> None:
    """Check that llama.cpp's package is installed.

    Raises:
        EnvironmentProblem: It is not installed; with the line that installs it.
    """
    # The package is looked up, and not imported: llama.cpp is kept out of a process that has torch
    # and its OpenMP.
    if importlib.util.find_spec("xllamacpp") is None:
        raise EnvironmentProblem(
            "a GGUF file is run by llama.cpp, and its package xllamacpp is not installed. "
            "Run `pip install 'xllamacpp>=2026.10,<2027'` (34 MB, nothing is compiled)."
        )


def _sampling(temperature: float, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampling parameters as llama.cpp's server takes them."""
    unknown = sorted(changes.keys() - _PARAMETERS.keys())
    if unknown:
        raise ValueError(
            f"sampling has {unknown[0]!r}, which is not a parameter for a GGUF file. "
            f"Use {', '.join(_PARAMETERS)}."
        )
    if temperature <= 0:
        return {"temperature": 0.0}
    renamed = {_PARAMETERS[name]: value for name, value in changes.items()}
    return {**_WHOLE_VOCABULARY, **renamed, "temperature": temperature}
