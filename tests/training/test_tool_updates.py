"""Gradients of episodes: our trainer and the one that Unsloth writes, against TRL's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
from trl import GRPOTrainer

from grpo_nb.training.trainer import RunTrainer
from tests.support.tool_updates import loaded, update, written_trainers
from tests.support.written_trainer import small_model

pytestmark = pytest.mark.begins(86)
LOSSES = ["dapo", "bnpo", "grpo"]


@pytest.fixture(scope="module")
def folder(embedded_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("small")
    small_model(place, embedded_folder)
    return place


@pytest.fixture(scope="module")
def parts(folder: Path) -> tuple[Any, Any]:
    return loaded(folder)


def difference(one: dict[str, Any], other: dict[str, Any]) -> float:
    gradients = numpy.array(one["gradient"]), numpy.array(other["gradient"])
    assert abs(gradients[0]).max() > 1e-3
    return float(abs(gradients[0] - gradients[1]).max())


@pytest.mark.parametrize(
    ("loss", "more"),
    [
        ("dapo", {}),
        ("dapo", {"passes": 2}),
        ("grpo", {"beta": 0.1}),
        ("bnpo", {}),
        ("bnpo", {"passes": 2}),
        ("dr_grpo", {}),
    ],
)
def test_kit_trainer_with_tools_has_trls_gradients(
    loss: str, more: dict, parts: tuple, tmp_path: Path
) -> None:
    kinds = (RunTrainer, GRPOTrainer)
    ours, trls = (update(kind, *parts, tmp_path, loss_type=loss, **more) for kind in kinds)
    assert difference(ours, trls) < 1e-7
    assert ours["completions"] == trls["completions"]
    assert len(ours["completions"][3]) == 6
    # Of other micro-batches; a loss near 0 is rounded.
    averaged = {"loss", "entropy", "kl"} if "passes" in more else {"loss"}
    for key in trls["row"].keys() - {"step_time", *averaged}:
        assert ours["row"][key] == pytest.approx(trls["row"][key], rel=1e-4, abs=1e-6), key


def test_entropy_is_that_of_the_tokens_that_the_model_wrote(parts: tuple, tmp_path: Path) -> None:
    """Also where rows without advantage are skipped: those of a group that was paid alike."""
    from tests.support import tool_updates

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            tool_updates, "won", lambda completions, **_: [0.1, 0.2, 0.3, 0.4, 1.0, 1.0, 1.0, 1.0]
        )
        ours = update(RunTrainer, *parts, tmp_path, loss_type="dapo")
        patch.setattr(tool_updates, "_SAID", [*tool_updates._SAID[:4], *tool_updates._SAID[:4]])
        first = update(GRPOTrainer, *parts, tmp_path, loss_type="dapo")
    # TRL's is of all rows, which are those of the first group twice here, but for their prompts.
    assert ours["row"]["entropy"] == pytest.approx(first["row"]["entropy"], rel=0.02)


@pytest.mark.slow
def test_unsloth_trainer_has_trls_gradients(folder: Path, parts: tuple, tmp_path: Path) -> None:
    written = written_trainers(folder, tmp_path, LOSSES)
    for loss in LOSSES:
        trls = update(GRPOTrainer, *parts, tmp_path, loss_type=loss)
        assert written[loss]["completions"] == trls["completions"]
        assert difference(written[loss], trls) < 1e-4, loss
    wrong = difference(
        written["padded"], update(GRPOTrainer, *parts, tmp_path, loss_type=LOSSES[0])
    )
    assert wrong > 1e-3, (
        "Unsloth no longer takes the end of a turn for padding: such a tokenizer can be allowed"
    )
