"""A dry run is the first step of the training that follows it, and leaves nothing changed."""

import random
import threading
from pathlib import Path

import numpy
import pandas
import pytest
import torch

import grpo_nb as gn
from grpo_nb.runs.groups import StepGroups
from tests.conftest import brevity
from tests.support.own_rewards import Fading
from tests.support.tiny import load_tiny


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    model, *others = load_tiny(
        tiny_folder, 16, 6, max_completion_length=10, max_steps=12, warmup_steps=0, learning_rate=2e-2,
        num_generations=4, per_device_train_batch_size=8, run_root=str(tmp_path_factory.mktemp("root") / "runs"),
    )  # fmt: skip
    torch.manual_seed(5)
    for name, parameter in model.named_parameters():  # an adapter that has an effect, as in the middle of a training
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    return model, *others


def table_of(found: StepGroups) -> pandas.DataFrame:
    """In the order of the trainer."""
    return pandas.concat([group.table for group in found.groups]).sort_index()


class Counting:
    """A reward that holds what cannot be copied, and remembers."""

    __name__ = "counting"

    def __init__(self) -> None:
        self.lock, self.seen, self.weight = threading.Lock(), [99], 1.0

    def __call__(self, completions: list, trainer_state=None, **columns: object) -> list[float]:
        with self.lock:
            self.seen.append((trainer_state.global_step, trainer_state.max_steps))
        return brevity(completions)

    def state_dict(self) -> dict:
        return {"seen": self.seen}  # its own list, and not a copy

    def load_state_dict(self, state: dict) -> None:
        self.before, self.seen = self.seen, state["seen"]


def test_nothing_is_updated_and_the_training_after_it_begins_the_same(tiny) -> None:
    model, tokenizer, task, settings = tiny
    fading, counting = Fading(brevity), Counting()
    rewards = [fading, counting, gn.rewards.xml_tags()]
    for seed in (torch.manual_seed, random.seed, numpy.random.seed):
        seed(77)
    drawn = (torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist())
    tensors = {name: t.detach().clone() for name, t in [*model.named_parameters(), *model.named_buffers()]}
    marks = {name: p.requires_grad for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]

    dry = gn.dry_run(model, tokenizer, task, rewards, settings)

    after = dict([*model.named_parameters(), *model.named_buffers()])
    assert after.keys() == tensors.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in tensors.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {name: p.requires_grad for name, p in model.named_parameters()} == marks
    assert [module.training for module in model.modules()] == modes and set(model.peft_config) == {"default"}
    assert (torch.get_rng_state().tolist(), random.getstate(), numpy.random.get_state()[1].tolist()) == drawn
    assert not Path(settings.run_root).exists()
    # Rewards see the step of the training, after the trial call, and forget it.
    assert counting.before == [99, (0, 12), (0, 12)] and counting.seen == [99] and fading.mean == 0.0

    run = gn.train(model, tokenizer, task, rewards, settings.replace(max_steps=1), name="after")
    assert table_of(dry).equals(table_of(run.step(1))), "completions, scores, totals and advantages"


def test_a_4_bit_adapter_keeps_its_precision_and_its_numbers(tiny) -> None:
    """TRL rounds it to bfloat16 when its trainer is built."""
    *_, task, settings = tiny
    settings = settings.replace(load_in_4bit=True, max_steps=1)
    model, tokenizer = gn.load_model(settings)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    assert {p.dtype for p in before.values()} == {torch.float32}
    first = gn.dry_run(model, tokenizer, task, [brevity], settings)
    after = dict(model.named_parameters())
    assert all(torch.equal(after[n], t) and after[n].dtype == torch.float32 for n, t in before.items())
    run = gn.train(model, tokenizer, task, [brevity], settings, name="packed")
    assert table_of(first).equals(table_of(run.step(1)))
    assert {after[name].dtype for name in before} == {torch.float32}, "training rounded it"
