"""The import of unsloth, before everything that it patches, the only module in which it happens; and what it says meanwhile."""

import contextlib
import importlib.util
import io
import logging
import os
import sys
import warnings
from collections.abc import Iterator
from typing import Any

from grpo_nb.config.dtype import CPU_BF16_ENV
from grpo_nb.config.memory import STANDBY, STANDBY_OF_KIT
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.machine.gpu import Gpu, find_gpu
from grpo_nb.machine.host import usable_cores
from grpo_nb.machine.packages import BY_HAND, import_order_problem
from grpo_nb.machine.spinning import set_spin_count
from grpo_nb.upstream.unsloth import patch_vllm_for_notebooks, set_cpu_dtype

SHARED_SCORING = "UNSLOTH_GRPO_PREFIX_GROUPER"
"""Unsloth's variable, on unless it is 0: score a group behind one copy of its prompt (no vLLM)."""
_BY_THE_KIT = "imported_by_grpo_nb"  # noted on unsloth itself, which stays when the kit is reloaded
# At each sampling: Unsloth wakes an engine that TRL has woken (vllm/v1/executor/abstract.py, wake_up).
_NOT_SLEEPING = "Executor is not sleeping."


class _Silence(io.TextIOBase):
    """Stands in for stdout while unsloth is imported or a model is loaded, and keeps what was said last.

    There is one for the whole process, since what is made meanwhile may hold it for good: vLLM's log handler takes stdout as
    it is when the first engine is made (vllm/logger.py, _configure_vllm_root_logger). What comes at other times goes on to
    stderr.

    Silent is Python's stdout alone. C code and child processes write to descriptor 1 as before: to mute that would mute every
    thread of the kernel, and the last words of a crash.
    """

    kept = ""

    def fileno(self) -> int:
        """VLLM mutes it, and puts it back, while it makes its process group (vllm/utils/system_utils.py, suppress_stdout).

        Unsloth has it so for a notebook whose stdout has none (unsloth/import_fixes.py, patch_vllm_for_notebooks).
        """
        return 1

    def write(self, text: str) -> int:
        if sys.stdout is not self:
            return sys.stderr.write(text)
        self.kept = (self.kept + text)[-4000:]
        return len(text)


_SILENCE = _Silence()


@contextlib.contextmanager
def silently() -> Iterator[None]:
    """Keep what is printed, and what vLLM logs, from the notebook; `said_last` has it afterwards."""
    _SILENCE.kept = ""
    try:
        with contextlib.redirect_stdout(_SILENCE):
            yield
    finally:
        for handler in logging.getLogger("vllm").handlers:
            if getattr(handler, "stream", None) is _SILENCE:
                handler.addFilter(_is_heard)


def said_last() -> str:
    """The last lines that were said in the last `silently`."""
    return "\n".join([line[:300] for line in _SILENCE.kept.splitlines() if line.strip()][-8:])


def _is_heard(record: logging.LogRecord) -> bool:
    """All that vLLM logs while it is kept; else warnings."""
    return sys.stdout is _SILENCE or (
        record.levelno >= logging.WARNING and record.getMessage() != _NOT_SLEEPING
    )


def import_unsloth() -> Any:
    """Import unsloth, first of all that it patches, and return the module.

    Raises:
        EnvironmentProblem: On a GPU, trl, transformers or peft were imported before it, or it was before grpo_nb; it is not
            installed, or does not load.
    """
    gpu = find_gpu()
    # On a CPU a training gives the same adapter bit for bit in either order (tests/models/test_import_order.py). On a GPU
    # Unsloth itself warns of slower steps and of memory (unsloth/_gpu_init.py, `already_imported`), and nobody has measured it.
    if gpu is not None and (problem := import_order_problem()):
        raise EnvironmentProblem(
            f"{problem}, which patches them for a GPU: without its patches a training is slower or runs out of memory. Move "
            "that import below gn.load_model(settings). Restart the kernel and run from the top."
        )
    has_vllm = gpu is not None and importlib.util.find_spec("vllm") is not None
    switches = _switches(gpu, has_vllm)
    # What it reads only when it is imported. Without standby unsloth_zoo turns expandable segments on
    # (unsloth_zoo/__init__.py), and vLLM then does not start in standby; the trainers are written with shared scoring on
    # (unsloth/utils/prefix_grouper.py, `_ENABLED`).
    unset = [
        name for name in (SHARED_SCORING, STANDBY) if name in switches and name not in os.environ
    ]
    if (
        gpu is not None
        and unset
        and "unsloth" in sys.modules
        and not hasattr(sys.modules["unsloth"], _BY_THE_KIT)
    ):
        raise EnvironmentProblem(
            f"unsloth was imported before grpo_nb, without {' and '.join(unset)}, which it reads only then. "
            "Restart the kernel and import grpo_nb first."
        )
    for name, value in switches.items():
        os.environ.setdefault(name, value)
    if gpu is None:
        set_spin_count(os.environ)
    # Its warning that a faster 4-bit product on a CPU could be fetched from the Hub, which nothing here would use: a red box.
    logging.getLogger("bitsandbytes.backends.cpu.ops").setLevel(logging.ERROR)
    try:
        with (
            silently(),
            warnings.catch_warnings(),
        ):  # a banner, of which check_environment says the same in a table
            warnings.filterwarnings("ignore", message="(?s).*Unsloth should be imported before")
            import unsloth
    except (ImportError, RuntimeError) as error:
        raise EnvironmentProblem(
            f"unsloth cannot be imported ({error}). gn.check_environment() says what is in its way; else install it with "
            f"`{BY_HAND}` and restart the kernel."
        ) from error
    setattr(unsloth, _BY_THE_KIT, True)
    if has_vllm:
        # At the import it looked at `silently`: who loads by hand with Unsloth would have no vLLM.
        patch_vllm_for_notebooks()
    return unsloth


def _switches(gpu: Gpu | None, has_vllm: bool) -> dict[str, str]:
    """What is set in the environment before the import, unless the user has."""
    switches = {
        # CUDA's own order is by its idea of their speed; find_gpu counts by slots, as nvidia-smi does.
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        # In standby Unsloth would set another share of the memory than `gpu_memory_utilization` (unsloth_zoo/vllm_utils.py,
        # load_vllm, where it is read).
        "UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE": "1",
        # Read when the trainers are written. On, the completions of a group are scored behind one copy of their prompt, which
        # only the attention of six families keeps together (docs/evidence/real_engines.md, "The trainer that a GPU runs").
        SHARED_SCORING: "0",
        # Read by torch when it first compiles. Where `CI` is set torch makes an error of a warning, and Unsloth's compiled
        # masks are warned of: torch's own memory planning hands out parts of one block (torch/_functorch/config.py).
        "TORCHINDUCTOR_ERROR_ON_CUSTOM_OP_ALIASING": "0",
    }
    # In a container torch would compute with as many threads as the host has cores, and all of them would wait.
    if (cores := usable_cores()) < (os.cpu_count() or 1):
        switches["OMP_NUM_THREADS"] = str(cores)
    if gpu is None:
        # Read at torch's first allocation: large pages, with which the memory of each step is mapped in half the time. And
        # float32, which is the kit's choice whatever the processor has instructions for.
        return switches | {"THP_MEM_ALLOC_ENABLE": "1", CPU_BF16_ENV: "0"}
    # Read when unsloth is imported: lets vLLM give its memory back while the gradients are computed. Without vLLM it would
    # only keep torch from joining free blocks ("expandable segments", which unsloth_zoo switches on without it).
    if has_vllm:
        switches[STANDBY] = STANDBY_OF_KIT
    # Read at each load. Unsloth would force FlashInfer's sampler on (unsloth_zoo/vllm_utils.py,
    # load_vllm), and where vLLM then refuses it, the engine does not start
    # (vllm/v1/sample/ops/topk_topp_sampler.py, flashinfer_sampler_supported). Below 10.0 nothing
    # of the kit uses FlashInfer: requests with log-probabilities or seeds take another sampler, and
    # vLLM's first choice of attention is another. Whoever asks for the sampler gets it.
    if gpu.compute_capability < (10, 0) and "VLLM_USE_FLASHINFER_SAMPLER" not in os.environ:
        switches["UNSLOTH_VLLM_NO_FLASHINFER"] = "1"
    return switches


@contextlib.contextmanager
def without_loading_bars() -> Iterator[None]:
    """Load or save without transformers' bars, which a saved notebook shows at 0 % for ever: widgets are not saved."""
    from transformers.utils import logging as bars

    as_before = (
        bars.enable_progress_bar if bars.is_progress_bar_enabled() else bars.disable_progress_bar
    )
    bars.disable_progress_bar()
    try:
        yield
    finally:
        as_before()


def tell_unsloth(number_type: str) -> None:
    """Have Unsloth go by the kit's number type on a CPU, and not by what the processor has instructions for.

    Unsloth asks once, keeps the answer, and builds loaders and trainers by it (unsloth_zoo/cpu/runtime.py,
    `cpu_bf16_supported`): a trainer would switch bfloat16 on, or off, beside a model that was loaded otherwise.

    Args:
        number_type: `float32` or `bfloat16`. On a GPU nothing happens.
    """
    if find_gpu() is None:
        set_cpu_dtype(CPU_BF16_ENV, use_bfloat16=number_type == "bfloat16")
