"""Whatever stands in the place of an argument: a line of ours that says so, before anything slow starts or is written."""

import dataclasses
from pathlib import Path

import pytest

import grpo_nb as gn
from tests.conftest import brevity
from tests.support.tiny import load_tiny

OURS = str(Path(gn.__file__).parent)


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """A folder for runs, and for each function a call that is right."""
    root = tmp_path_factory.mktemp("root") / "runs"
    model, tokenizer, task, settings = load_tiny(
        tiny_folder, 12, 4, max_completion_length=40, max_steps=3, run_root=str(root)
    )  # fmt: skip
    parts = {"model": model, "tokenizer": tokenizer, "task": task, "settings": settings}
    rewards = {**parts, "rewards": [brevity]}
    asked = {"before": (model, tokenizer), "after": (model, tokenizer), "task": task, "allow_contaminated": True}
    return root, {
        gn.train: rewards, gn.dry_run: rewards, gn.training.prime: parts,
        gn.evaluate: {"subject": asked["before"], "task": task}, gn.compare: asked,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"extra": {"logging_steps": 0}}, "logging"),
        ({"extra": {"save_strategy": "nope"}}, "save_strategy"),
        ({"extra": {"eval_strategy": "steps"}}, "eval"),
        ({"extra": {"sync_ref_model": True}}, "ref_model"),
        ({"extra": {"generation_kwargs": 5}}, "generation_kwargs"),
        ({"seed": -1}, "(?i)seed"), ({"seed": 2**40}, "(?i)seed"),
        ({"keep": "best"}, "holdout_every = 0 makes none"),
    ],
)  # fmt: skip
def test_what_trl_refuses_is_told_before_there_is_a_folder(tiny, changes: dict, told: str) -> None:
    root, calls = tiny
    right = calls[gn.train]
    with pytest.raises(ValueError, match=told) as caught:
        changed = {**right, "settings": right["settings"].replace(**changes)}
        gn.train(**changed)
    assert "\n" not in str(caught.value) and not list(root.glob("*"))
    assert set(right["model"].peft_config) == {"default"}, "the trainer that was half built left its adapter"


@pytest.mark.parametrize("name", ["step", "group", "prompt", "completion", "total", "advantage"])
def test_a_reward_with_the_name_of_a_column_is_refused(tiny, name: str) -> None:
    root, calls = tiny

    def reward(completions: list, **columns: object) -> list[float]:
        return brevity(completions)

    reward.__name__ = name
    with pytest.raises(ValueError, match=f"the reward '{name}' has the name of a column"):
        gn.train(**{**calls[gn.train], "rewards": [reward]})
    assert not list(root.glob("*"))


def test_held_out_scores_need_questions(tiny) -> None:
    _, calls = tiny
    right = calls[gn.train]
    empty = dataclasses.replace(right["task"], holdout=right["task"].holdout.select([]))
    with pytest.raises(ValueError, match="needs held-out questions"):
        gn.train(**{**right, "task": empty, "settings": right["settings"].replace(holdout_every=1)})
