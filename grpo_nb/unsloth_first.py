"""The import of unsloth, before everything that it patches. The only module in which it happens."""

from __future__ import annotations

import contextlib
import importlib.util
import io
import os
from typing import Any

from grpo_nb.environment import EnvironmentProblem, check_torchvision, find_gpu, import_order_problem


def import_unsloth() -> Any:
    """Import unsloth, first of all that it patches, and return the module.

    Raises:
        EnvironmentProblem: trl, transformers or peft were imported before it, or it is not installed or does not load.
    """
    problem = import_order_problem()
    if problem:
        raise EnvironmentProblem(
            f"{problem}, which it patches while they load. Restart the kernel and import grpo_nb (or unsloth) first."
        )
    vision = check_torchvision()
    if vision.status == "problem":
        raise EnvironmentProblem(f"torchvision {vision.found}. {vision.fix}")
    if find_gpu() is not None:
        # Read when unsloth is imported: lets vLLM give its memory back while the gradients are computed. Without vLLM it
        # would only keep torch from joining free blocks ("expandable segments", which unsloth_zoo switches on without it).
        if importlib.util.find_spec("vllm") is not None:
            os.environ.setdefault("UNSLOTH_VLLM_STANDBY", "1")
    else:
        # Read at torch's first allocation: large pages, with which the memory of each step is mapped in half the time.
        os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
    try:
        with contextlib.redirect_stdout(io.StringIO()):  # a banner; check_environment says the same in a table
            import unsloth
    except ImportError as error:
        raise EnvironmentProblem(
            f"unsloth cannot be imported ({error}). Install it with "
            "`pip install -r requirements.txt && pip install --no-deps -r requirements-no-deps.txt`, then restart the kernel."
        ) from error
    except RuntimeError as error:
        raise EnvironmentProblem(f"unsloth does not load: {error}. Look at gn.check_environment().") from error
    return unsloth


def is_bfloat16_supported() -> bool:
    """Whether Unsloth trains in bfloat16 here: only where the hardware computes it fast."""
    return bool(import_unsloth().is_bfloat16_supported())
