"""Settings that were edited after loading are refused before anything is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import grpo_nb as gn
from grpo_nb.models.load_record import LOAD_RECORDS, LoadRecord, require_same_settings
from tests.support.tiny import load_tiny


@pytest.fixture(scope="module")
def loaded(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    return load_tiny(
        tiny_folder,
        12,
        4,
        max_completion_length=8,
        run_root=str(tmp_path_factory.mktemp("runs") / "own"),
    )


OTHERS = {
    r"lora_target_modules is \('q_proj',\)": {"lora_target_modules": ("q_proj",)},
    "model is 'other/model'": {"model": "other/model"},
    "load_in_4bit is True": {"load_in_4bit": True},
    "dtype is 'bfloat16' and the model has 'auto'": {"dtype": "bfloat16"},
    "max_prompt_length .* is 9256": {"max_completion_length": 9_000},
}


@pytest.mark.parametrize(
    "changes", [{}, {"max_steps": 99, "beta": 0.5, "max_completion_length": 4}]
)
def test_settings_of_training_alone_may_change(loaded: tuple[Any, ...], changes: dict) -> None:
    model, tokenizer, _, settings = loaded
    require_same_settings(model, tokenizer, settings.replace(**changes))


@pytest.mark.parametrize("message", OTHERS)
def test_settings_of_another_model_are_refused(loaded: tuple[Any, ...], message: str) -> None:
    model, tokenizer, _, settings = loaded
    with pytest.raises(ValueError, match=message):
        require_same_settings(model, tokenizer, settings.replace(**OTHERS[message]))


def test_model_without_a_lora_is_refused(loaded: tuple[Any, ...]) -> None:
    model, tokenizer, _, settings = loaded
    with pytest.raises(TypeError, match="no LoRA"):
        require_same_settings(model.get_base_model().lm_head, tokenizer, settings)


def test_functions_refuse_other_settings_and_write_nothing(loaded: tuple[Any, ...]) -> None:
    model, tokenizer, task, settings = loaded
    other = settings.replace(lora_rank=4)
    rewards = [gn.rewards.partial_format()]
    for use in (
        lambda: gn.train(model, tokenizer, task, rewards, other),
        lambda: gn.dry_run(model, tokenizer, task, rewards, other),
        lambda: gn.baseline(model, tokenizer, task, rewards, other),
    ):
        with pytest.raises(
            ValueError, match=r"lora_rank is 4 and the model has 16.*gn.load_model\(settings\)"
        ):
            use()
    assert not Path(settings.run_root).exists()


def test_load_model_leaves_no_attribute_on_the_model(loaded: tuple[Any, ...]) -> None:
    model = loaded[0]
    names = [*vars(model), *vars(model.get_base_model())]
    assert [name for name in names if name.startswith(("grpo_nb", "_grpo_nb"))] == []


def test_load_record_has_the_settings_of_the_model(loaded: tuple[Any, ...]) -> None:
    model, _, _, settings = loaded
    assert LOAD_RECORDS[model].settings == settings


def test_load_record_ends_with_its_model() -> None:
    model = torch.nn.Linear(1, 1)
    LOAD_RECORDS[model] = LoadRecord(gn.Settings(), vllm_obstacle=None)
    count = len(LOAD_RECORDS)
    del model
    assert len(LOAD_RECORDS) == count - 1
