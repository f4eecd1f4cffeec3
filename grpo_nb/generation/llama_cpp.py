"""Text from a GGUF file through llama.cpp, with the chat template inside the file.

llama.cpp runs in a process of its own (`llama_cpp_child.py`), which imports neither the kit nor
unsloth, so its crash does not end the kernel. The package is xllamacpp (MIT), because it has
wheels; llama-cpp-python must be compiled.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.generation.completions import GeneratedCompletion
from grpo_nb.machine.host import usable_cores


class LlamaCppError(RuntimeError):
    """Failure of llama.cpp to read the file or to complete a prompt.

    The message ends with llama.cpp's last lines of output.
    """


@dataclass(frozen=True, kw_only=True)
class GgufCompletion(GeneratedCompletion):
    """A completion with the tokens of its prompt and its log-probabilities, from llama.cpp."""

    prompt_ids: Sequence[int] = field(repr=False)
    """Token ids of the prompt, as llama.cpp read it."""
    log_probs: Sequence[float | None] = field(repr=False)
    """Log-probability of each token in nats. If several tokens write one character, such as an
    emoji, llama.cpp reports only the last; the others are None."""


def complete_with_gguf(
    gguf: str | Path,
    prompts: Sequence[Sequence[Mapping[str, str]]],
    *,
    max_completion_length: int,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[GgufCompletion]:
    """Complete chat prompts with a GGUF file by greedy decoding, in the order of the prompts.

    Prompts are completed one after the other and without a cache between them, so that a completion
    does not depend on the other prompts.

    Args:
        gguf: Path of the file. Its own chat template is used.
        prompts: At least one chat, each as a list of messages.
        max_completion_length: Largest number of tokens of a completion.
        chat_template_kwargs: Further arguments of the chat template.

    Raises:
        EnvironmentProblem: xllamacpp is not installed.
        LlamaCppError: llama.cpp cannot read the file, or failed.

    >>> chats = [[{"role": "user", "content": "2 + 2?"}]]
    >>> complete_with_gguf("model.gguf", chats, max_completion_length=8)  # doctest: +SKIP
    [GgufCompletion(text='4', is_truncated=False)]
    """
    require_llama_cpp()
    file = Path(gguf).expanduser()
    request = {
        "gguf": str(file.absolute()),
        "prompts": list(prompts),
        "max_completion_length": max_completion_length,
        "chat_template_kwargs": dict(chat_template_kwargs or {}),
        "threads": usable_cores(),
    }
    # A crash of llama.cpp ends only the child process.
    script = Path(__file__).with_name("llama_cpp_child.py")
    try:
        answers = run_script(script, request)
    except ChildError as error:
        raise LlamaCppError(f"llama.cpp on {file.name} {error}") from error
    return [GgufCompletion(**answer) for answer in answers]


def require_llama_cpp() -> None:
    """Check that llama.cpp's package is installed.

    Raises:
        EnvironmentProblem: It is not installed. The message gives the command that installs it.
    """
    # The package is only looked up. Importing it would load llama.cpp into a process that has torch
    # and its OpenMP.
    if importlib.util.find_spec("xllamacpp") is None:
        raise EnvironmentProblem(
            "a GGUF file is run by llama.cpp, and its package xllamacpp is not installed. "
            "Run `pip install 'xllamacpp>=2026.10,<2027'` (34 MB, nothing is compiled)."
        )
