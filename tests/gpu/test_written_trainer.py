"""The trainer that Unsloth writes for a GPU, run on a CPU with every hook of the kit.

Unsloth writes the GRPO trainer as source text.

In another process, where it takes the place of TRL's. What only a checkpoint would show is read
from its syntax: what `grpo_nb.training.checkpointing` keeps (`_buffered_inputs`, `_step`).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.support import first_losses
from tests.support.signatures import text_of
from tests.support.written_trainer import trained_elsewhere

NAME = "UnslothGRPOTrainer"
KIT = Path(gn.__file__).parent / "training"


@pytest.fixture(
    scope="module", params=["as it is written", pytest.param("compiled", marks=pytest.mark.slow)]
)
def trained(
    request: pytest.FixtureRequest, embedded_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> dict:
    """Run the written source plainly, and compiled, which takes a C++ compiler minutes."""
    place = tmp_path_factory.mktemp("trained")
    is_compiled = request.param == "compiled"
    return {"place": place} | trained_elsewhere(place, embedded_folder, is_compiled=is_compiled)


@pytest.fixture(scope="module")
def written(trained) -> dict[str, ast.ClassDef]:
    """Return the classes that Unsloth wrote.

    The class with `_` is its rewriting of TRL's; the other inherits from that one.
    """
    (file,) = trained["place"].rglob(f"{NAME}.py")
    return classes_of(file.read_text())


def classes_of(source: str) -> dict[str, ast.ClassDef]:
    return {
        node.name: node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)
    }


def methods_of(trainer: ast.ClassDef) -> dict[str, ast.FunctionDef]:
    return {node.name: node for node in trainer.body if isinstance(node, ast.FunctionDef)}


def test_written_trainer_buffers_completions_like_a_checkpoint(written) -> None:
    trainer = written[f"_{NAME}"]
    prepared, step = (
        ast.unparse(methods_of(trainer)[name]) for name in ("_prepare_inputs", "training_step")
    )
    assert "generate_every = self.args.steps_per_generation * self.num_iterations" in prepared
    assert "if self._step % generate_every == 0 or self._buffered_inputs is None:" in prepared
    assert "inputs = self._buffered_inputs[self._step % self.args.steps_per_generation]" in prepared
    assert prepared.count("self._buffered_inputs = ") == 1, (
        "a list of batches, which a checkpoint keeps"
    )
    assert "self._step += 1" in step


def test_written_trainer_has_every_method_the_kit_uses(written) -> None:
    """Check methods by name, because the written trainer does not inherit from TRL's."""
    trls = methods_of(classes_of(text_of("trl/trainer/grpo_trainer.py"))["GRPOTrainer"]).keys()
    nodes = [node for file in KIT.glob("*.py") for node in ast.walk(ast.parse(file.read_text()))]
    used = trls & {getattr(node, "attr", None) or getattr(node, "name", None) for node in nodes}
    assert {"_prepare_inputs", "training_step", "_save_checkpoint"} <= used
    assert used <= methods_of(written[f"_{NAME}"]).keys()


def check_run(seen: dict) -> None:
    """Check what any run of three steps must show, with any sampler."""
    assert seen["trainer"] == NAME
    assert seen["dry"] == 4
    assert [row["step"] for row in seen["rows"]] == [1, 2, 3]
    assert seen["moved"] > 0
    assert all(row["grad_norm"] > 0 for row in seen["rows"])
    first, *later = [row["kl"] for row in seen["rows"]]
    assert abs(first) < 1e-5, "before the first update the model is its own reference"
    assert min(later) > 1e-5
    assert seen["rewards"] == pytest.approx(seen["again"], abs=1e-6), (
        "what is recorded beside a completion is its own"
    )
    mean = sum(seen["rewards"]) / len(seen["rewards"])
    assert all(
        (a > 0) == (r > mean) for a, r in zip(seen["advantages"], seen["rewards"], strict=True)
    )
    assert seen["rows"][0]["reward"] == pytest.approx(mean, abs=1e-6)


def test_it_trains_on_a_cpu_with_all_that_the_kit_adds(trained) -> None:
    """Compare loss, KL and generation; kernels, dtypes and the engine are left for a GPU."""
    check_run(trained)
    assert trained["calls"] == 0
    assert trained["changed"] == []


@pytest.fixture(scope="module")
def stock(trained) -> tuple:
    """The model that was trained elsewhere, in a process where the trainer is TRL's own."""
    return gn.load_model(gn.preset("cpu", model=str(trained["place"] / "model"), lora_dropout=0.0))


@pytest.mark.parametrize(
    ("trained", "case"),
    [
        *(("as it is written", case) for case in first_losses.FEW),
        *(pytest.param("compiled", case, marks=pytest.mark.slow) for case in first_losses.CASES),
    ],
    indirect=["trained"],
)
def test_written_trainer_updates_match_trl_with_table_arguments(
    case: str, trained, stock, tmp_path: Path
) -> None:
    """Unsloth's loss with the requested settings equals TRL's loss with the effective ones."""
    told, found = (trained["cases"][case][name] for name in ("told", "found"))
    wanted = first_losses.updates(*stock, told["arguments"], tmp_path)
    for name in ("advantages", "loss", "grad_norm", "gradient"):
        # A norm of float32 gradients depends on the order of its sums: by 1.03e-5 in the second
        # pass of sapo on an AMD with bfloat16, where each number of the gradient agrees to 1e-7.
        near = 2e-5 if name == "grad_norm" else 1e-5
        assert found[name] == pytest.approx(wanted[name], rel=near, abs=1e-5), name
    # Logged as the mean of the completions' means there, by TRL as the mean over tokens; in the
    # loss it is the same.
    assert found["kl"] == pytest.approx(wanted["kl"], rel=0.5)
    assert max(wanted["grad_norm"]) > 0.1


@pytest.mark.parametrize(("case", "runs"), [("dapo, beta 0", 0.28), ("cispo, two passes", 5.0)])
def test_what_its_class_changes_by_itself_is_told(case: str, runs: float, trained) -> None:
    told = trained["cases"][case]["told"]["changed"]["epsilon_high"]
    assert (told["requested"], told["effective"]) == ("not set", runs)
    assert told["reason"]
