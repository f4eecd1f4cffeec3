"""Recognise known errors of the GPU, its driver and vLLM by their text, and give a fix for each.

The advice for a lack of memory is in `grpo_nb.config.planning`. tests/data/gpu_errors.json
lists real error messages, each with the public thread that reports the message.
"""

import re

from grpo_nb.core.problems import EnvironmentProblem, error_chain, error_summary
from grpo_nb.machine.packages import VLLM_INSTALL_COMMAND

# Pattern of an error's text (lower case) -> cause and fix. The first matching pattern is used.
_EXPLANATIONS = {
    # All errors with which FlashInfer is refused: by vLLM (v1/sample/ops/topk_topp_sampler.py,
    # flashinfer_sampler_supported), by Unsloth (unsloth_zoo/vllm_utils.py, load_vllm), and by its
    # own compiler (flashinfer/jit/core.py and cpp_ext.py, compilation_context.py).
    r"flashinfer top-p/top-k sampling unavailable|flashinfer failed to jit-compile"
    r"|flashinfer requires gpus with|sm 12\.x requires cuda|no supported cuda architectures found"
    r"|ninja build failed|jit compilation is disabled via flashinfer"
    r"|could not find nvcc and default|could not parse cuda version from nvcc"
    r"|nvcc not found and pytorch is not built": (
        "FlashInfer, which compiles its kernels for the GPU, cannot be used here, and the kit "
        "does not need it: restart the kernel and switch FlashInfer off before you load the model: "
        'os.environ["UNSLOTH_VLLM_NO_FLASHINFER"] = "1"'
    ),
    r"nvidia driver on your system is too old|driver version is insufficient|non supported hw"
    r"|unsupported toolchain": (
        "Update the NVIDIA driver, or install a torch that was built for its CUDA (the number at "
        "the top right of `nvidia-smi`): pip install torch --index-url "
        "https://download.pytorch.org/whl/cu126, then restart the kernel"
    ),
    r"undefined symbol|lib(cuda|cublas|nv)\w*\.so[.\d]*: cannot open|vllm[/.]_c\S*: cannot open"
    r"|no kernel image|needs a working vllm": (
        "torch, vLLM or bitsandbytes was built for another torch, CUDA or GPU. "
        "gn.check_environment() reports a GPU that is too old for the pinned builds. If there is "
        f"no such report, install them: `{VLLM_INSTALL_COMMAND}`, then restart the kernel. If only "
        "vLLM fails, go on without it: settings = settings.replace(fast_inference=False)"
    ),
    r"bfloat16 is only supported|support bf(loat)?16|bf16 requested, but amp"
    r"|you want to use b?float16 precision": (
        "This GPU does not support bfloat16, or model and trainer have different precisions: "
        'settings = settings.replace(dtype="auto"), and load the model again'
    ),
    r"free memory on device .{0,60}less than desired gpu memory utilization": (
        "vLLM reserves a fixed share of the GPU's memory, and other programs use some of it: "
        "restart this kernel and end the programs that `nvidia-smi` lists; or "
        "settings = settings.replace(gpu_memory_utilization=0.4)"
    ),
    r"can only be used for one instance per process": (
        "A vLLM in standby was started in this kernel before, and keeps its memory: restart the "
        "kernel; or load this model without vLLM: settings = settings.replace(fast_inference=False)"
    ),
}
# Patterns of an error's text (lower case) that mean a lack of memory.
_OUT_OF_MEMORY = (
    r"out of memory|outofmemory|can(not|'t) allocate memory|cublas_status_alloc_failed"
    r"|(unable|failed) to allocate|not enough memory"
)
#: Patterns of vLLM's own errors about a cache that is too small. These errors give the fix.
VLLM_CACHE_TOO_SMALL = (
    r"no available memory for the cache blocks|larger than the available kv cache memory"
    r"|tokens that can be stored in kv cache"
)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error or one of its causes says that GPU or host is out of memory."""
    return any(_is_memory_error(cause) for cause in error_chain(error))


def _is_memory_error(error: BaseException) -> bool:
    if isinstance(error, (RuntimeError, OSError)):
        pattern = f"{_OUT_OF_MEMORY}|{VLLM_CACHE_TOO_SMALL}"
    elif isinstance(error, ValueError):
        # vLLM raises a ValueError, so only vLLM's texts count. An error of a reward function may
        # quote a completion, as that of int("out of memory") does.
        pattern = VLLM_CACHE_TOO_SMALL
    else:
        return isinstance(error, MemoryError)
    return re.search(pattern, searchable_text(error)) is not None


def searchable_text(error: BaseException) -> str:
    """Return type and message of an error in lower case."""
    return f"{type(error).__name__}: {error}".lower()


def explanation_of(error: BaseException) -> str | None:
    """Return cause and fix of a known error, or None.

    The error is recognised by its own text or by the text of one of its causes.

    >>> explanation_of(RuntimeError("CuMem can only be used for one instance per process."))[:21]
    'A vLLM in standby was'
    """
    texts = [searchable_text(cause) for cause in error_chain(error)]
    for pattern, explanation in _EXPLANATIONS.items():
        if any(re.search(pattern, text, re.DOTALL) for text in texts):
            return explanation
    return None


def explained_error(error: BaseException) -> EnvironmentProblem | None:
    """Return an error with cause and fix to raise in place of `error`; None if it is unknown."""
    explanation = explanation_of(error)
    if explanation is None:
        return None
    return EnvironmentProblem(f"{explanation}. ({error_summary(error)})")
