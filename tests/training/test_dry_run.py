"""A dry run is the first step of the training that follows it, and leaves nothing changed."""

import random
import threading
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from transformers.integrations import TensorBoardCallback

import grpo_nb as gn
from grpo_nb.runs.groups import StepGroups
from grpo_nb.training import dry_run
from tests.run_fixtures import brevity
from tests.support.adapters import give_effect
from tests.support.own_rewards import Fading
from tests.support.tiny import SMALL, load_tiny


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    root = str(tmp_path_factory.mktemp("root") / "runs")
    loaded = load_tiny(
        tiny_folder, 16, 6, **SMALL, max_completion_length=10, max_steps=12, run_root=root
    )
    give_effect(loaded[0])
    return loaded


def table_of(found: StepGroups) -> pandas.DataFrame:
    """In the order of the trainer."""
    return pandas.concat([group.table for group in found.groups]).sort_index()


class Counting:
    """A reward that holds what cannot be copied, and remembers."""

    __name__ = "counting"

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.seen = [99]
        self.weight = 1.0

    def __call__(self, completions: list, trainer_state=None, **columns: object) -> list[float]:
        with self.lock:
            self.seen.append((trainer_state.global_step, trainer_state.max_steps))
        return brevity(completions)

    def state_dict(self) -> dict:
        return {"seen": self.seen}  # its own list, and not a copy

    def load_state_dict(self, state: dict) -> None:
        self.before = self.seen
        self.seen = state["seen"]


def test_dry_run_changes_nothing(tiny) -> None:
    model, tokenizer, task, settings = tiny
    fading = Fading(brevity)
    counting = Counting()
    rewards = [fading, counting, gn.rewards.partial_format()]
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(77)
    tensors = {
        name: t.detach().clone() for name, t in [*model.named_parameters(), *model.named_buffers()]
    }
    as_it_is = lambda: (  # noqa: E731
        {name: p.requires_grad for name, p in model.named_parameters()},
        [part.training for part in model.modules()],
        torch.get_rng_state().tolist(),
        random.getstate(),
        numpy.random.get_state()[1].tolist(),
        set(model.peft_config),
    )
    before = as_it_is()

    dry = gn.dry_run(model, tokenizer, task, rewards, settings)

    after = dict([*model.named_parameters(), *model.named_buffers()])
    assert after.keys() == tensors.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in tensors.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert as_it_is() == before
    assert not Path(settings.run_root).exists()
    # Rewards see the step of the training, and forget it.
    assert counting.before == [99, (0, 12)]
    assert counting.seen == [99]
    assert fading.mean == 0.0

    run = gn.train(model, tokenizer, task, rewards, settings.replace(max_steps=1), name="after")
    assert table_of(dry).equals(table_of(run.step(1))), "completions, scores, totals and advantages"


def test_dry_run_keeps_a_4_bit_adapters_precision(tiny) -> None:
    """TRL rounds it to bfloat16 when its trainer is built."""
    *_, task, settings = tiny
    settings = settings.replace(load_in_4bit=True, max_steps=1)
    model, tokenizer = gn.load_model(settings)
    give_effect(model)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    assert {p.dtype for p in before.values()} == {torch.float32}
    first = gn.dry_run(model, tokenizer, task, [brevity], settings)
    after = dict(model.named_parameters())
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    assert {after[name].dtype for name in before} == {torch.float32}
    run = gn.train(model, tokenizer, task, [brevity], settings, name="packed")
    assert table_of(first).equals(table_of(run.step(1)))
    assert {after[name].dtype for name in before} == {torch.float32}, "training rounded it"


def test_dry_run_starts_no_tracker(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    model, tokenizer, task, settings = tiny
    started = []
    monkeypatch.setattr(
        TensorBoardCallback, "on_train_begin", lambda *arguments, **more: started.append(arguments)
    )
    tracked = settings.replace(extra={"report_to": "tensorboard"})
    gn.dry_run(model, tokenizer, task, [brevity], tracked)
    assert not started


def test_dry_run_without_a_lora_is_refused(tiny) -> None:
    _, tokenizer, task, settings = tiny
    with pytest.raises(TypeError, match=r"the model \(Linear\) has no LoRA"):
        gn.dry_run(torch.nn.Linear(1, 1), tokenizer, task, [brevity], settings)


def test_dry_run_out_of_memory_names_a_setting(tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    def run_out_of_memory(*arguments: object, **options: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    model, tokenizer, task, settings = tiny
    monkeypatch.setattr(dry_run._DryRunTrainer, "training_step", run_out_of_memory)
    with pytest.raises(
        gn.machine.EnvironmentProblem, match=r"settings\.replace\(per_device_train_batch_size="
    ) as caught:
        gn.dry_run(model, tokenizer, task, [brevity], settings)
    assert "resume this run" not in str(caught.value)
    assert set(model.peft_config) == {"default"}
