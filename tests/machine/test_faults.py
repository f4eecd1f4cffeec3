"""Real messages of torch, vLLM and Unsloth are recognised, and answered with a setting or a line to paste."""

import builtins
import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.machine.faults import find_fix, gpu_problem, is_out_of_memory

COLLECTED = json.loads((Path(__file__).parent.parent / "data" / "gpu_errors.json").read_text())
FIX = {
    "FlashInfer refused": 'os.environ["UNSLOTH_VLLM_NO_FLASHINFER"] = "1"',
    "driver too old": "Update the NVIDIA driver",
    "built for another torch or CUDA": "pip install -r requirements.txt -r requirements-gpu.txt",
    "no bfloat16": 'settings.replace(dtype="auto")',
    "memory in use by others": "settings.replace(gpu_memory_utilization=0.4)",
    "one engine for each process": "settings.replace(fast_inference=False)",
}


@pytest.mark.parametrize("case", COLLECTED, ids=[f"{c['is']}-{i}" for i, c in enumerate(COLLECTED)])
def test_collected_messages_are_told_apart_and_answered(case: dict) -> None:
    error = getattr(builtins, case["error"])(case["said"])
    problem = gpu_problem(error)
    assert is_out_of_memory(error) is (case["is"] == "memory") and (problem is None) is (
        case["is"] not in FIX
    )
    if problem is not None:
        assert isinstance(problem, gn.machine.EnvironmentProblem)
        assert FIX[case["is"]] in str(problem) and case["said"].splitlines()[0][:60] in str(problem)
    # An error that wraps it, as notebooks and trainers do, changes nothing.
    try:
        raise RuntimeError("the training stopped") from error
    except RuntimeError as outer:
        assert find_fix(outer) == find_fix(error) and is_out_of_memory(outer) is is_out_of_memory(
            error
        )
