"""Steps of the trainer that Unsloth writes for a GPU, sampled by a real vLLM on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.test_written_trainer import check_run
from tests.support.real_vllm import needs_vllm
from tests.support.written_trainer import trained_elsewhere

pytestmark = [needs_vllm, pytest.mark.begins(140)]


@pytest.fixture(scope="module")
def sampled(embedded_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """Three steps through TRL's colocated vLLM as Unsloth changes it, with this engine."""
    return trained_elsewhere(tmp_path_factory.mktemp("sampled"), embedded_folder, "--vllm")


def test_trainer_samples_from_vllm_without_moving_the_adapter(
    sampled,
) -> None:
    check_run(sampled)
    assert sampled["rows"][0]["kl"] == pytest.approx(0, abs=1e-6), "nothing has been learnt yet"
    assert sampled["calls"] == 4, "one for the dry run, and one for each step"
    assert sampled["changed"] == [], (
        "float32 in engine and LoRA: without copies vLLM would scale what is trained"
    )


def test_holdout_curve_samples_from_vllm(sampled, embedded_folder: Path, tmp_path: Path) -> None:
    """The training equals the one without the curve."""
    seen = trained_elsewhere(tmp_path, embedded_folder, "--vllm", "--held-out")
    assert seen["calls"] == sampled["calls"] + 3
    for row, before in zip(seen["rows"], sampled["rows"], strict=True):
        assert {"holdout/accuracy", "holdout/accuracy_low"} <= set(row)
        for name in ("reward", "kl", "loss", "grad_norm", "completions/mean_length"):
            assert row[name] == before[name], name
    assert seen["changed"] == []
