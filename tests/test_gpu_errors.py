"""Real messages of torch, vLLM and Unsloth are recognised, and answered with a setting or a line to paste."""

import builtins
import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.failures import explained
from grpo_nb.gpu_errors import find_fault, gpu_problem, place_of
from grpo_nb.health_memory import explain_out_of_memory, is_out_of_memory

COLLECTED = json.loads((Path(__file__).parent / "data" / "gpu_errors.json").read_text())


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
    assert isinstance(problem, gn.EnvironmentProblem)
    said = str(problem)
    assert case["said"].splitlines()[0][:60] in said
    assert any(mark in said for mark in ("settings.replace(", "os.environ[", "pip install")), said


def test_an_error_of_training_is_explained_where_all_are(tmp_path: Path) -> None:
    case = next(c for c in COLLECTED if c["is"] == "illegal memory access")
    shown = explained(raised(case), tmp_path)
    assert isinstance(shown, gn.EnvironmentProblem) and "resume='auto'" in str(shown)
    other = raised(COLLECTED[-1])
    assert explained(other, tmp_path) is other


@pytest.mark.parametrize(
    ("place", "changes", "standby", "expected"),
    [
        ("loading", {"load_in_4bit": False}, "0", {"load_in_4bit": True}),
        ("loading", {}, "0", {"gpu_memory_utilization": 0.4}),
        ("loading", {"fast_inference": False}, "0", {}),
        ("generation", {}, "0", {"gpu_memory_utilization": 0.4}),
        ("generation", {"fast_inference": False}, "0", {"max_completion_length": 128}),
        ("the loss", {}, "0", {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 8}),
        ("the loss", {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}, "1", {"max_completion_length": 128}),
    ],
)  # fmt: skip
def test_the_setting_is_the_one_of_the_place(place, changes, standby, expected, monkeypatch) -> None:
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", standby)
    alert = explain_out_of_memory(RuntimeError("CUDA out of memory"), gn.preset("t4", **changes), place=place)
    assert alert.evidence["change"] == expected
    if expected:
        gn.preset("t4", **changes).replace(**expected)


def test_under_standby_the_share_needs_a_switch_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unsloth's standby replaces `gpu_memory_utilization`: advice to lower it would change nothing."""
    from tests.signatures import source_of

    assert 'os.getenv("UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE", "0")' in source_of("unsloth_zoo/vllm_utils.py").read_text()
    error, settings = RuntimeError("CUDA out of memory"), gn.preset("t4")
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", "1")
    why = explain_out_of_memory(error, settings, place="generation").why
    assert 'os.environ["UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE"] = "1"' in why
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE", "1")
    assert "OVERRIDE" not in explain_out_of_memory(error, settings, place="generation").why
    short = ValueError("No available memory for the cache blocks")
    assert explain_out_of_memory(short, settings).evidence["change"] == {"gpu_memory_utilization": 0.6}
    monkeypatch.delenv("UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE")
    assert explain_out_of_memory(short, settings).evidence["change"] == {"max_completion_length": 128}
