"""Every loss of the installed TRL trains, and does what docs/reference/losses.md says of it."""

import functools
import itertools
import math
from pathlib import Path

import pytest
import torch

import grpo_nb as gn
from grpo_nb.config.arguments import LOSS_TYPES
from tests.support.adapters import way_back
from tests.support.own_rewards import hashed

# A random model would hardly ever end. With one token in eight as an end token, completions differ
# in length.
ENDS = list(range(0, 49152, 8))


@pytest.fixture(scope="module")
def trained(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """A function that trains two steps on the same samples, so that the second is off-policy."""
    settings = gn.preset(
        "cpu",
        model=str(tiny_folder),
        max_steps=2,
        num_generations=2,
        per_device_train_batch_size=4,
        warmup_steps=0,
        max_completion_length=16,
        learning_rate=2e-2,
        max_grad_norm=100.0,
        run_root=str(tmp_path_factory.mktemp("losses")),
    )
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=4, holdout=1, tokenizer=tokenizer)
    start = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}

    back = way_back(model)

    @functools.cache
    def train(loss_type: str, level: str) -> tuple[gn.runs.Run, dict[str, torch.Tensor]]:
        back()
        sampling = {"num_iterations": 2, "generation_kwargs": {"eos_token_id": ENDS}}
        changed = settings.replace(
            loss_type=loss_type, extra={**sampling, "importance_sampling_level": level}
        )
        run = gn.train(model, tokenizer, task, [hashed], changed)
        return run, {n: p.detach() - start[n] for n, p in model.named_parameters() if n in start}

    return train


LEVELS = [
    pytest.param(level, marks=[] if level == "token" else pytest.mark.slow)
    for level in ("sequence", "token")
]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("loss_type", LOSS_TYPES)
def test_each_loss_trains_two_steps(trained, loss_type: str, level: str) -> None:
    run, change = trained(loss_type, level)
    assert run.status == "finished"
    assert len(run.rows) == 2
    assert all(math.isfinite(row["loss"]) for row in run.rows)
    assert all(row["grad_norm"] > 0 for row in run.rows)
    assert all(math.isfinite(row["kl"]) for row in run.rows)
    assert any(tensor.any() for tensor in change.values()), "the adapter did not change"
    assert all(torch.isfinite(tensor).all() for tensor in change.values())
    assert len(set(run.completions(1)["completion"].str.len())) > 1, (
        "completions of one length tell few losses apart"
    )


def distance(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Return the difference of two adapter changes, relative to the first."""
    return (
        sum((a[n] - b[n]).norm() ** 2 for n in a).sqrt() / sum(a[n].norm() ** 2 for n in a).sqrt()
    )


def test_each_loss_is_another_one(trained) -> None:
    """But bnpo and dapo, which are the same for one process and one micro-batch."""
    changes = {loss: trained(loss, "token")[1] for loss in LOSS_TYPES}
    for a, b in itertools.combinations(sorted(changes), 2):
        apart = distance(changes[a], changes[b])
        assert apart < 1e-3 if {a, b} == {"bnpo", "dapo"} else apart > 1e-3, (a, b, apart)


# vespo always takes its weights over the sequence; the level only reaches its KL term.
@pytest.mark.parametrize(
    "loss", ["grpo", "vespo", *(pytest.param(x, marks=pytest.mark.slow) for x in LOSS_TYPES)]
)
def test_importance_sampling_level_changes_the_loss(trained, loss: str) -> None:
    assert distance(*(trained(loss, level)[1] for level in ("token", "sequence"))) > 1e-4
