"""Real messages of torch, vLLM and Unsloth are recognised, and get a setting or a line to paste."""

import builtins
import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.machine.gpu_errors import explanation_of, is_out_of_memory, raise_if_known
from grpo_nb.machine.packages import CUDA_12_TORCH_COMMAND

COLLECTED = json.loads((Path(__file__).parent.parent / "data" / "gpu_errors.json").read_text())
#: Part of the message for each kind of error.
FIX = {
    "FlashInfer refused": '`import os; os.environ["UNSLOTH_VLLM_NO_FLASHINFER"] = "1"`',
    "driver too old": f"`{CUDA_12_TORCH_COMMAND}`",
    "built for another torch or CUDA": "pip install -r requirements.txt -r requirements-gpu.txt",
    "no bfloat16": '`settings = settings.replace(dtype="auto")`',
    "memory in use by others": "`settings = settings.replace(gpu_memory_utilization=0.4)`",
    "one engine for each process": "`settings = settings.replace(fast_inference=False)`",
}
CASES = [pytest.param(case, id=f"{case['is']}-{i}") for i, case in enumerate(COLLECTED)]


def error_of(case: dict) -> Exception:
    return getattr(builtins, case["error"])(case["said"])


@pytest.mark.parametrize("case", CASES)
def test_collected_message_is_out_of_memory_or_not(case: dict) -> None:
    assert is_out_of_memory(error_of(case)) is (case["is"] == "memory")


@pytest.mark.parametrize("case", CASES)
def test_collected_message_gets_its_fix(case: dict) -> None:
    error = error_of(case)
    if case["is"] not in FIX:
        raise_if_known(error)
        return
    with pytest.raises(gn.machine.EnvironmentProblem) as caught:
        raise_if_known(error)
    assert FIX[case["is"]] in str(caught.value)
    assert case["said"].splitlines()[0][:60] in str(caught.value)
    assert caught.value.__cause__ is error


@pytest.mark.parametrize("case", CASES)
def test_collected_message_is_recognised_inside_another(case: dict) -> None:
    """Notebooks and trainers wrap errors."""
    error = error_of(case)
    wrapper = RuntimeError("the training stopped")
    wrapper.__cause__ = error
    assert explanation_of(wrapper) == explanation_of(error)
    assert is_out_of_memory(wrapper) is is_out_of_memory(error)


def test_error_that_quotes_a_completion_is_not_out_of_memory() -> None:
    with pytest.raises(ValueError) as caught:
        int("out of memory")
    assert not is_out_of_memory(caught.value)


def test_error_raised_from_none_hides_its_context() -> None:
    with pytest.raises(RuntimeError) as caught:
        try:
            raise MemoryError
        except MemoryError:
            raise RuntimeError("something else") from None
    assert not is_out_of_memory(caught.value)
