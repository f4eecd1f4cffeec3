"""Real messages of torch, vLLM and Unsloth are recognised, and answered with a setting or a line to paste."""

import builtins
import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.health.monitor import explain_out_of_memory
from grpo_nb.machine.faults import find_fault, gpu_problem, is_out_of_memory, place_of
from grpo_nb.training.errors import explained

COLLECTED = json.loads((Path(__file__).parent.parent / "data" / "gpu_errors.json").read_text())


def raised(case: dict) -> Exception:
    """The error as it arrives: raised inside a function of that name, with the words that were collected."""
    scope: dict = {}
    name = case.get("in", "somewhere")
    exec(f"def {name}(error):\n    raise error", scope)
    try:
        scope[name](getattr(builtins, case["error"])(case["said"]))
    except Exception as error:
        return error
    raise AssertionError


@pytest.mark.parametrize("case", COLLECTED, ids=[f"{c['is']}-{i}" for i, c in enumerate(COLLECTED)])
def test_collected_messages_are_told_apart(case: dict) -> None:
    error = raised(case)
    fault = find_fault(error)
    assert is_out_of_memory(error) is (case["is"] == "memory")
    assert (fault and fault.name) == (None if case["is"] == "memory" else case["is"])
    if case["is"] == "memory":
        assert place_of(error) == case["place"]
        alert = explain_out_of_memory(error, gn.preset("t4"))
        assert alert.evidence["change"], "no setting was named"
        assert case["place"].replace("loading", "while loading") in alert.message
    # An error that wraps it, as notebooks and trainers do, changes nothing.
    try:
        raise RuntimeError("the training stopped") from error
    except RuntimeError as outer:
        assert find_fault(outer) == fault and is_out_of_memory(outer) is is_out_of_memory(error)


@pytest.mark.parametrize("case", [c for c in COLLECTED if c["is"] not in (None, "memory")], ids=lambda c: c["is"])
def test_a_problem_has_its_reason_its_line_and_its_words(case: dict) -> None:
    problem = gpu_problem(raised(case))
    assert isinstance(problem, gn.machine.EnvironmentProblem)
    said = str(problem)
    assert case["said"].splitlines()[0][:60] in said
    assert any(mark in said for mark in ("settings.replace(", "os.environ[", "pip install")), said


def test_an_error_of_training_is_explained_where_all_are(tmp_path: Path) -> None:
    case = next(c for c in COLLECTED if c["is"] == "illegal memory access")
    shown = explained(raised(case), tmp_path, gn.preset("cpu"))
    assert isinstance(shown, gn.machine.EnvironmentProblem) and "resume='auto'" in str(shown)
    other = raised(COLLECTED[-1])
    assert explained(other, tmp_path, gn.preset("cpu")) is other


ONE_BY_ONE = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}


@pytest.mark.parametrize(
    ("place", "changes", "standby", "expected"),
    [
        ("loading", {"load_in_4bit": False}, "1", {"load_in_4bit": True}),
        ("loading", {}, "1", {"gpu_memory_utilization": 0.66}),
        ("loading", {"fast_inference": False}, "1", {}),
        ("generation", {}, "1", {"gpu_memory_utilization": 0.66}),
        ("generation", {"fast_inference": False}, "1", {"max_completion_length": 128}),
        ("the loss", {}, "0", {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}),
        ("the loss", ONE_BY_ONE, "0", {"gpu_memory_utilization": 0.66}),
        ("the loss", ONE_BY_ONE, "1", {"max_completion_length": 128}),
    ],
)  # fmt: skip
def test_the_setting_is_the_one_of_the_place(place, changes, standby, expected, monkeypatch) -> None:
    """In standby vLLM has given its share back by the time of the loss: lowering it would change nothing there."""
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", standby)
    alert = explain_out_of_memory(RuntimeError("CUDA out of memory"), gn.preset("t4", **changes), place=place)
    assert alert.evidence["change"] == expected
    if expected:
        gn.preset("t4", **changes).replace(**expected)


def test_too_little_for_vllm_itself() -> None:
    short = ValueError("No available memory for the cache blocks")
    for changes, expected in (
        ({}, {"gpu_memory_utilization": 0.86}),
        ({"gpu_memory_utilization": 0.9, "load_in_4bit": False}, {"load_in_4bit": True}),
        ({"gpu_memory_utilization": 0.9}, {"max_completion_length": 128}),
        ({"gpu_memory_utilization": 0.9, "max_completion_length": 64}, {"fast_inference": False}),
    ):
        assert explain_out_of_memory(short, gn.preset("t4", **changes)).evidence["change"] == expected
