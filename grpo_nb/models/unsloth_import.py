"""Import unsloth before everything that it patches, and keep its output out of the notebook."""

import importlib.util
import logging
import os
import sys
import warnings
from typing import Any

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.host import usable_cores
from grpo_nb.machine.packages import INSTALL_COMMAND
from grpo_nb.upstream.transformers import hide_loading_bars
from grpo_nb.upstream.unsloth import patch_vllm_for_notebooks, variables_before_import
from grpo_nb.upstream.vllm import hiding_stdout

# Attribute that marks the module unsloth as imported by the kit, also after a reload of the kit.
_KIT_IMPORT_MARK = "imported_by_grpo_nb"


def import_unsloth() -> Any:
    """Import unsloth before everything that it patches, and return the module.

    Raises:
        EnvironmentProblem: unsloth is not installed or does not load. On a GPU, also: unsloth, trl,
            transformers or peft was imported before this function first imported unsloth.
    """
    gpu = find_gpu()
    can_use_vllm = gpu is not None and importlib.util.find_spec("vllm") is not None
    if gpu is not None:
        _require_import_order()
    variables = variables_before_import(gpu, can_use_vllm=can_use_vllm)
    # In a container torch would start one thread per core of the host, more than can run at once.
    cores = usable_cores()
    if cores < (os.cpu_count() or 1):
        variables["OMP_NUM_THREADS"] = str(cores)
    for name, value in variables.items():
        # A value of the user's stays.
        os.environ.setdefault(name, value)
    # bitsandbytes warns in a red box that faster 4-bit kernels for a CPU could be downloaded. The
    # kit would not use them.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        # `check_environment` shows the facts of Unsloth's banner in a table.
        with hiding_stdout(), warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="(?s).*Unsloth should be imported before")
            import unsloth
    except (ImportError, RuntimeError) as error:
        raise EnvironmentProblem(
            f"unsloth cannot be imported ({error}). gn.check_environment() shows the reason if it "
            f"is known; else install it with `{INSTALL_COMMAND}` and restart the kernel."
        ) from error
    setattr(unsloth, _KIT_IMPORT_MARK, True)
    hide_loading_bars()
    if can_use_vllm:
        # When Unsloth is imported, it patches vLLM if stdout has no file descriptor, as in Colab.
        # Here Unsloth saw the stdout of `hiding_stdout`, which has one, so the kit applies the
        # patch. Without the patch, a model that the user loads with Unsloth directly would have no
        # vLLM.
        patch_vllm_for_notebooks()
    return unsloth


def _require_import_order() -> None:
    """Raise if unsloth or a package that it patches was imported too early for a GPU.

    Unsloth reads its variables only when it is imported. If the kit sets them later
    (`import_variables` in upstream/unsloth.py), vLLM does not start in standby, and shared scoring
    stays on, with which most models are trained wrongly. Unsloth itself warns of slower steps and
    memory problems if trl, transformers or peft come first (unsloth/_gpu_init.py,
    `already_imported`). On a CPU the order changes nothing: a training gives the same adapter bit
    for bit (tests/models/test_import_order.py).
    """
    if hasattr(sys.modules.get("unsloth"), _KIT_IMPORT_MARK):
        return
    imported_early = [
        name for name in ("unsloth", "trl", "transformers", "peft") if name in sys.modules
    ]
    if imported_early:
        raise EnvironmentProblem(
            f"{', '.join(imported_early)} must not be imported before grpo_nb imports unsloth for "
            "a GPU: a training would be slower, run out of memory or compute another loss. Move "
            "that import below gn.load_model(settings), or below "
            "grpo_nb.models.unsloth_import.import_unsloth() if you load the model yourself. "
            "Restart the kernel and run from the top."
        )
