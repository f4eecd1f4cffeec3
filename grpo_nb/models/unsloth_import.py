"""Import unsloth before everything that it patches, and keep its output out of the notebook."""

import contextlib
import importlib.util
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.core.processes import SPIN_VARIABLES
from grpo_nb.machine.gpu import Gpu, find_gpu
from grpo_nb.machine.host import usable_cores
from grpo_nb.machine.packages import INSTALL_COMMAND
from grpo_nb.upstream.unsloth import CPU_BF16_ENV, patch_vllm_for_notebooks

#: Unsloth's variable, read at its import. vLLM then frees its memory while gradients are computed.
STANDBY_ENV = "UNSLOTH_VLLM_STANDBY"
#: Unsloth's variable. Unless it is 0, Unsloth scores all completions of a group in one sequence
#: that has their prompt once. With vLLM it does not.
SHARED_SCORING_ENV = "UNSLOTH_GRPO_PREFIX_GROUPER"
# Attribute that marks the module unsloth as imported by the kit, also after a reload of the kit.
_KIT_IMPORT_MARK = "imported_by_grpo_nb"


class _HiddenStdout(io.StringIO):
    """Replacement of stdout while unsloth is imported or a model is loaded.

    Only Python's stdout is replaced. C code and child processes still write to descriptor 1.
    Redirecting descriptor 1 would silence every thread, and hide the last message before a crash.
    """

    def fileno(self) -> int:
        """Return the descriptor of stdout, which vLLM mutes while it makes its process group.

        See vllm/utils/system_utils.py, suppress_stdout.
        """
        return 1


@contextlib.contextmanager
def hiding_stdout() -> Iterator[None]:
    """Hide printed output within the block.

    vLLM's log handler keeps the stdout that it finds when the first engine is made
    (vllm/logger.py, _configure_vllm_root_logger). If the block makes that engine, the handler
    afterwards shows only errors, on stderr.
    """
    try:
        with contextlib.redirect_stdout(_HiddenStdout()):
            yield
    finally:
        for handler in logging.getLogger("vllm").handlers:
            if isinstance(getattr(handler, "stream", None), _HiddenStdout):
                handler.setStream(sys.stderr)
                handler.setLevel(logging.ERROR)


def import_unsloth() -> Any:
    """Import unsloth before everything that it patches, and return the module.

    Raises:
        EnvironmentProblem: unsloth is not installed or does not load. On a GPU also: unsloth was
            imported before grpo_nb, or trl, transformers or peft before unsloth.
    """
    gpu = find_gpu()
    can_use_vllm = gpu is not None and importlib.util.find_spec("vllm") is not None
    if gpu is not None:
        _require_import_order()
    for name, value in _environment_variables(gpu, can_use_vllm).items():
        os.environ.setdefault(name, value)
    # bitsandbytes warns in a red box that faster 4-bit kernels for a CPU could be downloaded. The
    # kit would not use them.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        # `check_environment` shows the facts of Unsloth's banner in a table.
        with hiding_stdout(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Unsloth should be imported before")
            import unsloth

            from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
            from transformers.utils import logging as transformers_logging
    except (ImportError, RuntimeError) as error:
        raise EnvironmentProblem(
            f"unsloth cannot be imported ({error}). gn.check_environment() shows the reason if it "
            f"is known; else install it with `{INSTALL_COMMAND}` and restart the kernel."
        ) from error
    setattr(unsloth, _KIT_IMPORT_MARK, True)
    # A saved notebook would show transformers' bars at 0 % for ever.
    downloads_were_hidden = are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()
    # `disable_progress_bar` hides the bars of downloads too.
    if not downloads_were_hidden:
        enable_progress_bars()
    if can_use_vllm:
        # Unsloth patches vLLM at its import if stdout has no descriptor, as in Colab. It saw the
        # replacement, which has one. Without this patch, a model that the user loads with Unsloth
        # directly would have no vLLM.
        patch_vllm_for_notebooks()
    return unsloth


def _require_import_order() -> None:
    """Raise if unsloth or a package that it patches was imported too early for a GPU.

    Unsloth reads its variables only when it is imported. Without `STANDBY_ENV` vLLM does not start
    in standby, and with shared scoring most models are trained wrongly. Unsloth itself warns of
    slower steps and memory problems if trl, transformers or peft come first (unsloth/_gpu_init.py,
    `already_imported`). On a CPU the order changes nothing: a training gives the same adapter bit
    for bit (tests/models/test_import_order.py).
    """
    if hasattr(sys.modules.get("unsloth"), _KIT_IMPORT_MARK):
        return
    early = [name for name in ("unsloth", "trl", "transformers", "peft") if name in sys.modules]
    if early:
        raise EnvironmentProblem(
            f"{', '.join(early)} must not be imported before grpo_nb imports unsloth for a "
            "GPU: a training would be slower, run out of memory or compute another loss. Move that "
            "import below gn.load_model(settings), or below "
            "grpo_nb.models.unsloth_import.import_unsloth() if you load the model yourself. "
            "Restart the kernel and run from the top."
        )


def _environment_variables(gpu: Gpu | None, can_use_vllm: bool) -> dict[str, str]:
    """Return the environment variables with the kit's values.

    They are set before the import; the caller keeps each value that the user has set.
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
        # Read by torch when it first compiles. If `CI` is set, torch turns a warning about the
        # masks that Unsloth compiles into an error (torch/_functorch/config.py). The warning is
        # harmless: torch's own memory planner returns parts of one block.
        "TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING": "0",
    }
    # In a container torch would start one thread per core of the host, more than can run at once.
    cores = usable_cores()
    if cores < (os.cpu_count() or 1):
        variables["OMP_NUM_THREADS"] = str(cores)
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
    # Read at each load. Unsloth would force FlashInfer's sampler on (unsloth_zoo/vllm_utils.py,
    # load_vllm), and if vLLM refuses this sampler, the engine does not start
    # (vllm/v1/sample/ops/topk_topp_sampler.py, flashinfer_sampler_supported). Below compute
    # capability 10.0 the kit does not need FlashInfer: requests with log-probabilities or seeds use
    # another sampler, and vLLM prefers another attention.
    if gpu.compute_capability < (10, 0):
        variables["UNSLOTH_VLLM_NO_FLASHINFER"] = "1"
    return variables
