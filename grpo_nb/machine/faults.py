"""Errors of a GPU and of what drives it, recognised by their words, with what to do.

Where memory is short, `grpo_nb.config.out_of_memory` says more.

The texts that each is recognised by are collected, with the thread each was found in, in tests/data/gpu_errors.json.
"""

import re
from collections.abc import Iterator

from grpo_nb.core.words import EnvironmentProblem

# Words by which a kind of failure is known, and why and what to do. The first that fits is taken.
_FIXES = {
    # Every refusal of FlashInfer: by vLLM (v1/sample/ops/topk_topp_sampler.py,
    # flashinfer_sampler_supported), by Unsloth (unsloth_zoo/vllm_utils.py, load_vllm), and by its
    # own compiler (flashinfer/jit/core.py and cpp_ext.py, compilation_context.py).
    r"flashinfer top-p/top-k sampling unavailable|flashinfer failed to jit-compile"
    r"|flashinfer requires gpus with|sm 12\.x requires cuda|no supported cuda architectures found"
    r"|ninja build failed|jit compilation is disabled via flashinfer|could not find nvcc and default"
    r"|could not parse cuda version from nvcc|nvcc not found and pytorch is not built": (
        "FlashInfer cannot be used here (it compiles its kernels for the card), and the kit does "
        "not need it: restart the kernel and switch it off before the model is loaded: "
        'os.environ["UNSLOTH_VLLM_NO_FLASHINFER"] = "1"'
    ),
    r"nvidia driver on your system is too old|driver version is insufficient|non supported hw|unsupported toolchain": (
        "Update the NVIDIA driver, or install a torch that was built for its CUDA (the number at the top right of "
        "`nvidia-smi`): pip install torch --index-url https://download.pytorch.org/whl/cu126, then restart the kernel"
    ),
    r"undefined symbol|lib(cuda|cublas|nv)\w*\.so[.\d]*: cannot open|vllm[/.]_c\S*: cannot open|no kernel image": (
        "torch, vLLM or bitsandbytes was built for another torch, CUDA or card: pip install -r requirements.txt -r "
        "requirements-gpu.txt, then restart the kernel; or without vLLM: settings = settings.replace(fast_inference=False)"
    ),
    r"bfloat16 is only supported|support bf(loat)?16|bf16 requested, but amp|you want to use b?float16 precision": (
        "This card computes no bfloat16, or model and trainer were told different precisions: "
        'settings = settings.replace(dtype="auto"), and load the model again'
    ),
    r"free memory on device .{0,60}less than desired gpu memory utilization": (
        "vLLM wants a fixed share of the whole card, and others hold some: restart this kernel and end what `nvidia-smi` "
        "lists; or settings = settings.replace(gpu_memory_utilization=0.4)"
    ),
    r"can only be used for one instance per process": (
        "A vLLM in standby was started in this kernel before, and keeps its memory: restart the kernel; or load this model "
        "without: settings = settings.replace(fast_inference=False)"
    ),
}
_MEMORY_SIGNS = (
    "out of memory", "outofmemory", "can't allocate memory", "cannot allocate memory", "cublas_status_alloc_failed",
    "unable to allocate", "no available memory for the cache blocks", "failed to allocate", "not enough memory",
    "larger than the available kv cache memory", "tokens that can be stored in kv cache",
)  # fmt: skip


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """The error and those that it came from."""
    yield error
    if (source := error.__cause__ or error.__context__) is not None:
        yield from error_chain(source)


def is_out_of_memory(error: BaseException) -> bool:
    """Say whether an error, or one that it came from, is a lack of memory of the machine or of its GPU."""
    chain = list(error_chain(error))
    # What a reward says of a completion is not the machine's word.
    said = [
        _said_of(cause) for cause in chain if isinstance(cause, (RuntimeError, OSError, ValueError))
    ]
    is_said = any(sign in words for words in said for sign in _MEMORY_SIGNS)
    return is_said or any(isinstance(cause, MemoryError) for cause in chain)


def _said_of(error: BaseException) -> str:
    """Kind and words of an error, in small letters, by which it is recognised."""
    return f"{type(error).__name__}: {error}".lower()


def summary(error: BaseException) -> str:
    """Kind and first line of an error, to be shown beside what it means."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or ['no message'])[0][:300]}"


def find_fix(error: BaseException) -> str | None:
    """Why and what to do, by the words of an error or of one that it came from; None if they are not known.

    >>> find_fix(RuntimeError("CuMem allocator can only be used for one instance per process."))[:21]
    'A vLLM in standby was'
    """
    said = [_said_of(cause) for cause in error_chain(error)]
    known = (
        fix
        for words, fix in _FIXES.items()
        if any(re.search(words, text, re.DOTALL) for text in said)
    )
    return next(known, None)


def gpu_problem(error: BaseException) -> EnvironmentProblem | None:
    """The error to raise instead, with reason and line to paste, or None for an error that is not the GPU's."""
    fix = find_fix(error)
    return fix and EnvironmentProblem(f"{fix}. ({summary(error)})")
