"""Real steps of GRPO with the trainer that Unsloth writes for a GPU, sampled by a real vLLM, on a CPU."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.gpu.test_written_trainer import check_run
from tests.support.real_vllm import needs_vllm
from tests.support.written_trainer import trained_elsewhere

pytestmark = [needs_vllm, pytest.mark.begins(140)]


def test_the_trainer_samples_from_the_engine_and_only_the_optimizer_moves_the_adapter(
    embedded_folder: Path, tmp_path: Path
) -> None:
    """Through TRL's colocated vLLM as Unsloth changes it: the engine in this process, the adapter with each call."""
    seen = trained_elsewhere(tmp_path, embedded_folder, "--vllm")
    check_run(seen)
    assert seen["rows"][0]["kl"] == pytest.approx(0, abs=1e-6), "nothing has been learnt yet"
    assert seen["calls"] == 4, "one for the dry run, and one for each step"
    assert seen["changed"] == [], "float32 in engine and LoRA: without copies vLLM would scale what is trained"
