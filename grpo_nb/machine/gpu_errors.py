"""Recognise known errors of the GPU, its driver and vLLM by their text, and explain each fix.

This file also recognises a lack of memory, for which `grpo_nb.config.planning` gives the advice.
tests/data/gpu_errors.json lists real error messages, each with its source.
"""

import re

from grpo_nb.core.problems import EnvironmentProblem, error_chain, error_summary
from grpo_nb.machine.packages import CUDA_12_TORCH_COMMAND, VLLM_INSTALL_COMMAND

# Pattern of an error's text (lower case) -> cause and fix. The first matching pattern is used. Code
# in a fix is in backticks, so that a user can see where it ends.
_EXPLANATIONS = {
    # All errors with which FlashInfer is refused: by vLLM (v1/sample/ops/topk_topp_sampler.py,
    # flashinfer_sampler_supported), by Unsloth (unsloth_zoo/vllm_utils.py, load_vllm), and by its
    # own compiler (flashinfer/jit/core.py and cpp_ext.py, compilation_context.py).
    r"flashinfer top-p/top-k sampling unavailable|flashinfer failed to jit-compile"
    r"|flashinfer requires gpus with|sm 12\.x requires cuda|no supported cuda architectures found"
    r"|ninja build failed|jit compilation is disabled via flashinfer"
    r"|could not find nvcc and default|could not parse cuda version from nvcc"
    r"|nvcc not found and pytorch is not built": (
        "FlashInfer, an optional library that compiles code for the GPU, does not work on this "
        "machine. The kit does not need it. Restart the kernel, and run this line before all "
        'others: `import os; os.environ["UNSLOTH_VLLM_NO_FLASHINFER"] = "1"`'
    ),
    r"nvidia driver on your system is too old|driver version is insufficient|non supported hw"
    r"|unsupported toolchain": (
        "The NVIDIA driver does not support the CUDA version of the installed torch. Update the "
        "NVIDIA driver to version 580 or newer. If you cannot, and the table of "
        "`gn.check_environment()` shows a driver for CUDA 12, run "
        f"`{CUDA_12_TORCH_COMMAND}` in a cell, and restart the kernel"
    ),
    r"undefined symbol|lib(cuda|cublas|nv)\w*\.so[.\d]*: cannot open|vllm[/.]_c\S*: cannot open"
    r"|no kernel image|needs a working vllm": (
        "The installed torch, vLLM and bitsandbytes do not fit each other, the driver or the GPU. "
        "If `gn.check_environment()` reports a problem, follow its advice. If only vLLM fails, "
        "load the model without it: `settings = settings.replace(fast_inference=False)`. To "
        "install all three again, open a terminal in the folder of the repository, activate this "
        f"environment, run `pip uninstall -y torch vllm bitsandbytes && {VLLM_INSTALL_COMMAND}`, "
        "and restart the kernel"
    ),
    r"bfloat16 is only supported|support bf(loat)?16|bf16 requested, but amp"
    r"|you want to use b?float16 precision": (
        "This GPU cannot compute in bfloat16, or the model was loaded in another dtype than the "
        'one of the training. Write `settings = settings.replace(dtype="auto")`, and load the '
        "model again"
    ),
    r"free memory on device .{0,60}less than desired gpu memory utilization": (
        "vLLM reserves a fixed share of the GPU's memory, but other programs use too much of it. "
        "Restart this kernel, and shut down your other notebooks and programs on this GPU. If that "
        "is not enough, let vLLM reserve less before you load the model: "
        "`settings = settings.replace(gpu_memory_utilization=0.4)`"
    ),
    r"can only be used for one instance per process": (
        "vLLM was started in this kernel before, and can start only once in each kernel. Restart "
        "the kernel, or load this model without vLLM: "
        "`settings = settings.replace(fast_inference=False)`"
    ),
}
# Patterns of an error's text (lower case) which show that the memory is full.
_OUT_OF_MEMORY = (
    r"out of memory|outofmemory|can(not|'t) allocate memory|cublas_status_alloc_failed"
    r"|(unable|failed) to allocate|not enough memory"
)
#: Patterns of vLLM's own errors about a cache that is too small. These errors name the settings of
#: vLLM that help.
VLLM_CACHE_TOO_SMALL = (
    r"no available memory for the cache blocks|larger than the available kv cache memory"
    r"|tokens that can be stored in kv cache"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error or one of its causes shows that the memory of GPU or host is full."""
    return any(_is_memory_error(cause) for cause in error_chain(error))


def _is_memory_error(error: BaseException) -> bool:
    """Return True if this error itself, without its causes, shows that the memory is full."""
    if isinstance(error, (RuntimeError, OSError)):
        pattern = f"{_OUT_OF_MEMORY}|{VLLM_CACHE_TOO_SMALL}"
    elif isinstance(error, ValueError):
        # vLLM raises a ValueError. Only vLLM's texts count for this type, because the error of a
        # reward may quote a completion, as that of int("out of memory") does.
        pattern = VLLM_CACHE_TOO_SMALL
    else:
        return isinstance(error, MemoryError)
    return re.search(pattern, _searchable_text(error)) is not None


def _searchable_text(error: BaseException) -> str:
    """Return type and message of an error in lower case."""
    return f"{type(error).__name__}: {error}".lower()


def explanation_of(error: BaseException) -> str | None:
    """Return cause and fix of a known error; None if the error is not known.

    The error is recognised by its own text or by the text of one of its causes.

    >>> explanation_of(RuntimeError("CuMem can only be used for one instance per process."))[:40]
    'vLLM was started in this kernel before, '
    """
    texts = "\n".join(map(_searchable_text, error_chain(error)))
    for pattern, explanation in _EXPLANATIONS.items():
        if re.search(pattern, texts):
            return explanation
    return None


def raise_if_known(error: BaseException) -> None:
    """Raise `EnvironmentProblem` with cause and fix if an error is known; otherwise do nothing."""
    explanation = explanation_of(error)
    if explanation is not None:
        raise EnvironmentProblem(f"{explanation}. ({error_summary(error)})") from error
