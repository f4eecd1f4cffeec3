"""Real messages of torch, vLLM and Unsloth are recognised, and answered with a setting or a line to paste."""

import builtins
import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.machine.faults import find_fault, gpu_problem, is_out_of_memory

COLLECTED = json.loads((Path(__file__).parent.parent / "data" / "gpu_errors.json").read_text())


@pytest.mark.parametrize("case", COLLECTED, ids=[f"{c['is']}-{i}" for i, c in enumerate(COLLECTED)])
def test_collected_messages_are_told_apart(case: dict) -> None:
    error = getattr(builtins, case["error"])(case["said"])
    fault = find_fault(error)
    assert is_out_of_memory(error) is (case["is"] == "memory")
    assert (fault and fault.name) == (None if case["is"] == "memory" else case["is"])
    # An error that wraps it, as notebooks and trainers do, changes nothing.
    try:
        raise RuntimeError("the training stopped") from error
    except RuntimeError as outer:
        assert find_fault(outer) == fault and is_out_of_memory(outer) is is_out_of_memory(error)


@pytest.mark.parametrize("case", [c for c in COLLECTED if c["is"] not in (None, "memory")], ids=lambda c: c["is"])
def test_a_problem_has_its_line_and_its_words(case: dict) -> None:
    problem = gpu_problem(getattr(builtins, case["error"])(case["said"]))
    assert isinstance(problem, gn.machine.EnvironmentProblem) and case["said"].splitlines()[0][:60] in str(problem)
    assert any(mark in str(problem) for mark in ("settings.replace(", "os.environ[", "pip install"))
