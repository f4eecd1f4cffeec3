"""Known errors of the GPU, its driver and vLLM: recognised by their text, each with a fix.

`grpo_nb.config.memory_savers` has the advice for a lack of memory. tests/data/gpu_errors.json lists
real messages, each with the thread in which somebody reported it.
"""

import re
from collections.abc import Iterator

from grpo_nb.core.words import EnvironmentProblem

# Pattern of an error's text (lower case) -> cause and fix. The first pattern that matches is used.
_FIXES = {
    # Every refusal of FlashInfer: by vLLM (v1/sample/ops/topk_topp_sampler.py,
    # flashinfer_sampler_supported), by Unsloth (unsloth_zoo/vllm_utils.py, load_vllm), and by its
    # own compiler (flashinfer/jit/core.py and cpp_ext.py, compilation_context.py).
    r"flashinfer top-p/top-k sampling unavailable|flashinfer failed to jit-compile"
    r"|flashinfer requires gpus with|sm 12\.x requires cuda|no supported cuda architectures found"
    r"|ninja build failed|jit compilation is disabled via flashinfer"
    r"|could not find nvcc and default|could not parse cuda version from nvcc"
    r"|nvcc not found and pytorch is not built": (
        "FlashInfer cannot be used here (it compiles its kernels for the card), and the kit does "
        "not need it: restart the kernel and switch it off before the model is loaded: "
        'os.environ["UNSLOTH_VLLM_NO_FLASHINFER"] = "1"'
    ),
    r"nvidia driver on your system is too old|driver version is insufficient|non supported hw"
    r"|unsupported toolchain": (
        "Update the NVIDIA driver, or install a torch that was built for its CUDA (the number at "
        "the top right of `nvidia-smi`): pip install torch --index-url "
        "https://download.pytorch.org/whl/cu126, then restart the kernel"
    ),
    r"undefined symbol|lib(cuda|cublas|nv)\w*\.so[.\d]*: cannot open|vllm[/.]_c\S*: cannot open"
    r"|no kernel image": (
        "torch, vLLM or bitsandbytes was built for another torch, CUDA or card: pip install -r "
        "requirements.txt -r requirements-gpu.txt, then restart the kernel; or without vLLM: "
        "settings = settings.replace(fast_inference=False)"
    ),
    r"bfloat16 is only supported|support bf(loat)?16|bf16 requested, but amp"
    r"|you want to use b?float16 precision": (
        "This card computes no bfloat16, or model and trainer were told different precisions: "
        'settings = settings.replace(dtype="auto"), and load the model again'
    ),
    r"free memory on device .{0,60}less than desired gpu memory utilization": (
        "vLLM wants a fixed share of the whole card, and others hold some: restart this kernel and "
        "end what `nvidia-smi` lists; or settings = settings.replace(gpu_memory_utilization=0.4)"
    ),
    r"can only be used for one instance per process": (
        "A vLLM in standby was started in this kernel before, and keeps its memory: restart the "
        "kernel; or load this model without: settings = settings.replace(fast_inference=False)"
    ),
}
# Parts of an error's text (lower case) that mean a lack of memory.
_OUT_OF_MEMORY_TEXTS = (
    "out of memory",
    "outofmemory",
    "can't allocate memory",
    "cannot allocate memory",
    "cublas_status_alloc_failed",
    "unable to allocate",
    "no available memory for the cache blocks",
    "failed to allocate",
    "not enough memory",
    "larger than the available kv cache memory",
    "tokens that can be stored in kv cache",
)
_SUMMARY_CHARACTERS = 300


def error_chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it, the outermost first."""
    yield error
    cause = error.__cause__ or error.__context__
    if cause is not None:
        yield from error_chain(cause)


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if an error or one of its causes is a lack of memory, on the GPU or not."""
    return any(_is_memory_error(cause) for cause in error_chain(error))


def _is_memory_error(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    # torch, the system and vLLM raise these. Any other type can come from a user's reward function,
    # whose message may quote a completion.
    if not isinstance(error, (RuntimeError, OSError, ValueError)):
        return False
    text = _searchable_text(error)
    return any(part in text for part in _OUT_OF_MEMORY_TEXTS)


def _searchable_text(error: BaseException) -> str:
    """Return type and message of an error in lower case."""
    return f"{type(error).__name__}: {error}".lower()


def summary(error: BaseException) -> str:
    """Return type and first line of an error, to be shown next to its explanation."""
    lines = str(error).strip().splitlines()
    first_line = lines[0] if lines else "no message"
    return f"{type(error).__name__}: {first_line[:_SUMMARY_CHARACTERS]}"


def find_fix(error: BaseException) -> str | None:
    """Return cause and fix of an error, recognised by its text or its causes' texts, or None.

    >>> find_fix(RuntimeError("CuMem can only be used for one instance per process."))[:21]
    'A vLLM in standby was'
    """
    texts = [_searchable_text(cause) for cause in error_chain(error)]
    for pattern, fix in _FIXES.items():
        if any(re.search(pattern, text, re.DOTALL) for text in texts):
            return fix
    return None


def gpu_problem(error: BaseException) -> EnvironmentProblem | None:
    """Return the error to raise instead, with cause and fix; None for an unknown error."""
    fix = find_fix(error)
    if fix is None:
        return None
    return EnvironmentProblem(f"{fix}. ({summary(error)})")
