"""Private symbols of Unsloth and unsloth_zoo that the kit relies on or replaces."""

from __future__ import annotations

import os
from functools import wraps
from typing import Any
from unittest.mock import patch

from grpo_nb.core.processes import SPIN_VARIABLES
from grpo_nb.upstream.symbols import require_symbol

#: Unsloth's variable (unsloth_zoo/cpu/runtime.py, `cpu_bf16_supported`): 1 is bfloat16, 0 float32.
CPU_BF16_ENV = "UNSLOTH_CPU_BF16"
#: Unsloth's variable, read at its import. vLLM then frees its memory while gradients are computed.
STANDBY_ENV = "UNSLOTH_VLLM_STANDBY"
#: Unsloth's variable. Unless it is 0, Unsloth scores a group as one sequence: the prompt once, then
#: all completions. With vLLM it scores them separately.
SHARED_SCORING_ENV = "UNSLOTH_GRPO_PREFIX_GROUPER"


def variables_before_import(gpu: Any, *, can_use_vllm: bool) -> dict[str, str]:
    """Return the environment variables that must be set before unsloth is imported.

    FlashInfer's sampler is not needed below compute capability 10.0: requests with
    log-probabilities or seeds use another sampler, and vLLM prefers another attention. Unsloth
    forces it on at each load (unsloth_zoo/vllm_utils.py, load_vllm), and if vLLM refuses it, the
    engine does not start (vllm/v1/sample/ops/topk_topp_sampler.py, flashinfer_sampler_supported).

    Args:
        gpu: GPU that trains (`machine.gpu.Gpu`), or None for a CPU.
        can_use_vllm: True if there is a GPU, and vLLM is installed.
    """
    variables = {
        # By default CUDA orders GPUs by speed. `find_gpu` and nvidia-smi order them by slot.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # Read by unsloth_zoo/vllm_utils.py, load_vllm. In standby, Unsloth would otherwise replace
        # the value of `gpu_memory_utilization`.
        "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE": "1",
        # Read when Unsloth writes its trainers. Shared scoring is right only if attention separates
        # the completions of a group. Unsloth does that for six families; for the others the loss
        # would be wrong (docs/evidence/real_engines.md, "The trainer that a GPU runs").
        SHARED_SCORING_ENV: "0",
        # Read by torch when it first compiles. If `CI` is set, torch turns a harmless warning
        # about the masks that Unsloth compiles into an error (torch/_functorch/config.py).
        "TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING": "0",
    }
    if gpu is None:
        # Read at torch's first allocation. Large pages halve the time to map the memory of a step.
        variables["THP_MEM_ALLOC_ENABLE"] = "1"
        # By default the kit computes in float32, also on processors with bfloat16 instructions.
        variables[CPU_BF16_ENV] = "0"
        return variables | SPIN_VARIABLES
    # Only with vLLM, because the variable also keeps unsloth_zoo from switching on "expandable
    # segments", with which torch joins free blocks.
    if can_use_vllm:
        variables[STANDBY_ENV] = "1"
    if gpu.compute_capability < (10, 0):
        variables["UNSLOTH_VLLM_NO_FLASHINFER"] = "1"
    return variables


def give_vllm_lora_copies() -> None:
    """Make Unsloth give vLLM copies of the LoRA tensors, whenever the kit or a trainer samples.

    Unsloth's `load_lora(load_tensors=True)` passes the trained tensors themselves, and vLLM
    multiplies `lora_B` by the LoRA's scaling in place (vLLM 0.31, lora/lora_weights.py,
    `optimize`). If engine and LoRA have the same dtype, no conversion copies the tensors: with a
    real engine in float32, each sampling doubled the trained weights.

    `_build_lora_request` is replaced, and not `load_lora`, because it builds all of Unsloth's
    requests. Merged rollouts that fall back to a LoRA do not call `load_lora`
    (unsloth_zoo/vllm_utils.py, `_merged_rollout_lora_fallback`). Once `_build_lora_request` copies
    the tensors itself, or vLLM no longer changes them, this function can go.
    """
    from unsloth_zoo import vllm_utils

    original = require_symbol(vllm_utils, "_build_lora_request", "unsloth_zoo")
    # This function is called before each sampling, and a second wrapper would copy once more.
    if hasattr(original, "gives_lora_copies"):
        return

    @wraps(original)
    def build_with_copies(*args: Any, **kwargs: Any) -> Any:
        request = original(*args, **kwargs)
        # None if the merged weights already hold the whole LoRA.
        if request is not None:
            tensors = require_symbol(request, "lora_tensors", "unsloth_zoo")
            # None if vLLM reads the LoRA from a folder.
            if tensors is not None:
                request.lora_tensors = {name: tensor.clone() for name, tensor in tensors.items()}
        return request

    build_with_copies.gives_lora_copies = True
    vllm_utils._build_lora_request = build_with_copies


def set_cpu_dtype(*, use_bfloat16: bool) -> None:
    """Make Unsloth's CPU backend use this dtype, whichever instructions the processor has.

    Unsloth calls `cpu_bf16_supported` once, caches the answer, and uses it in loaders and trainers
    (unsloth_zoo/cpu/loader.py, `_resolve_dtype`, and cpu/trainer.py,
    `normalize_cpu_training_arguments`). Without this function, a trainer could switch bfloat16 on
    or off for a model that was loaded with the other dtype. The environment variable is restored
    before the function returns. Once Unsloth's trainer follows the dtype of the model, this
    function can go.

    Args:
        use_bfloat16: True for bfloat16, False for float32.
    """
    from unsloth_zoo.cpu import runtime

    probe = require_symbol(runtime, "cpu_bf16_supported", "unsloth_zoo")
    # `functools.cache` gives the function this method.
    clear_answer = require_symbol(probe, "cache_clear", "unsloth_zoo")
    with patch.dict(os.environ, {CPU_BF16_ENV: "1" if use_bfloat16 else "0"}):
        clear_answer()
        probe()


def trl_config_class() -> Any:
    """Return TRL's own `GRPOConfig`.

    On a GPU, Unsloth's class inherits from TRL's and has the same name, so TRL's is the last class
    of that name.
    """
    from trl import GRPOConfig

    return [cls for cls in GRPOConfig.__mro__ if cls.__name__ == "GRPOConfig"][-1]


def patch_vllm_for_notebooks() -> None:
    """Let vLLM start in a notebook whose stdout has no file descriptor, as in Colab.

    Unsloth also does this while it is imported (unsloth/_gpu_init.py). At that moment the kit has
    replaced stdout, so Unsloth examines the replacement. The kit therefore calls the function again
    after the import. If the notebook's stdout has a descriptor, the call changes nothing. Once vLLM
    starts without the descriptor (vllm/utils/system_utils.py, `suppress_stdout`), this function can
    go.
    """
    from unsloth import import_fixes

    require_symbol(import_fixes, "patch_vllm_for_notebooks", "unsloth")()
