"""A dry run is the start of the training that follows it, and leaves nothing changed."""

import random
import threading
from pathlib import Path

import numpy
import pytest
import torch

import grpo_nb as gn
from grpo_nb.rewards.calls import RewardError
from grpo_nb.training import dry_runs
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


def test_nothing_is_updated_and_the_training_after_it_begins_the_same(tiny, tmp_path: Path) -> None:
    model, tokenizer, task, settings = tiny
    fading = Fading(brevity)
    rewards = [fading, gn.rewards.xml_tags()]
    torch.manual_seed(77)
    random.seed(77)
    numpy.random.seed(77)
    state = torch.get_rng_state()
    drawn = (random.getstate(), numpy.random.get_state()[1].tolist())
    tensors = {name: t.detach().clone() for name, t in [*model.named_parameters(), *model.named_buffers()]}
    marks = {name: p.requires_grad for name, p in model.named_parameters()}
    modes = [module.training for module in model.modules()]

    dry = gn.dry_run(model, tokenizer, task, rewards, settings, steps=2)

    after = dict([*model.named_parameters(), *model.named_buffers()])
    assert after.keys() == tensors.keys()
    assert all(torch.equal(after[name], tensor) for name, tensor in tensors.items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert {name: p.requires_grad for name, p in model.named_parameters()} == marks
    assert [module.training for module in model.modules()] == modes and set(model.peft_config) == {"default"}
    assert torch.equal(torch.get_rng_state(), state)
    assert (random.getstate(), numpy.random.get_state()[1].tolist()) == drawn
    assert not Path(settings.run_root).exists()
    assert fading.mean == 0.0

    run = gn.train(model, tokenizer, task, rewards, settings.replace(max_steps=2), name="after")
    table = dry.table
    assert list(table.columns) == list(run.completions(1).columns)
    first = table[table["step"] == 1].reset_index(drop=True)
    assert first.equals(run.completions(1)), "prompts, completions, scores, totals and advantages of step 1"
    second, trained = table[table["step"] == 2]["prompt"].tolist(), run.completions(2)
    assert second == trained["prompt"].tolist()
    # The training has learnt from its first step, so it answers differently in the second.
    assert table[table["step"] == 2]["completion"].tolist() != trained["completion"].tolist()
    for key in ("reward", "reward_std", "frac_reward_zero_std", "completions/mean_length", "rewards/xml_tags/mean"):
        assert dry.rows[0][key] == run.rows[0][key]
    # The last two are logged by the loss itself: it was not computed, and not only not applied.
    assert not {"loss", "kl", "grad_norm", "entropy", "clip_ratio/region_mean"} & set(dry.rows[0])


def test_rewards_see_the_steps_of_the_training(tiny) -> None:
    model, tokenizer, task, settings = tiny
    seen = []

    def watching(completions: list, trainer_state: object = None, **columns: object) -> list[float]:
        if not getattr(trainer_state, "is_trial", False):  # the kit's own, before anything starts
            seen.append((trainer_state.global_step, trainer_state.max_steps))
        return brevity(completions)

    dry = gn.dry_run(model, tokenizer, task, [watching], settings, steps=3)
    assert seen == [(0, 12), (1, 12), (2, 12)] and len(dry.rows) == 3


def flat(completions: list, **columns: object) -> list[float]:
    return [1.0 if i < 4 else score for i, score in enumerate(brevity(completions))]


def test_it_shows_itself(tiny) -> None:
    model, tokenizer, task, settings = tiny
    dry = gn.dry_run(model, tokenizer, task, [flat], settings, steps=1)
    assert dry.flat_groups == 1
    assert dry.sentence.startswith("1 step generated and scored, nothing updated: 2 groups of 4")
    assert "all alike" in repr(dry) and "best: total" in repr(dry) and "1 of 2 groups without spread" in repr(dry)
    dry.table["completion"] = "<script>x</script>"
    assert "<script>" not in dry._repr_html_() and "&lt;script&gt;" in dry._repr_html_()


def test_what_training_would_refuse_is_refused(tiny) -> None:
    model, tokenizer, task, settings = tiny
    with pytest.raises(ValueError, match="steps = 13 must be between 1 and 12"):
        gn.dry_run(model, tokenizer, task, [brevity], settings, steps=13)
    with pytest.raises(ValueError, match="did you mean 'dapo'"):
        gn.dry_run(model, tokenizer, task, [brevity], settings.replace(loss_type="dapoo"))


def fails(completions: list, trainer_state=None, **columns: object) -> list[float]:
    return brevity(completions) if getattr(trainer_state, "is_trial", False) else [1 / 0]


def test_an_error_of_a_reward_is_told_as_in_training(tiny) -> None:
    model, tokenizer, task, settings = tiny
    with pytest.raises(RewardError, match=r"the reward 'fails' raised ZeroDivisionError.*on row 0"):
        gn.dry_run(model, tokenizer, task, fails, settings)
    assert set(model.peft_config) == {"default"}


def test_float16_has_nothing_to_scale(tiny, monkeypatch) -> None:
    """On a T4 accelerate unscales the gradients of a loss, which a dry run does not compute."""
    from accelerate import Accelerator

    build = dry_runs.build_trainer

    def with_scaler(*parts: object) -> object:
        trainer = build(*parts)
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu")
        return trainer

    def unscale(self: Accelerator, optimizer: object = None) -> None:
        for prepared in self._optimizers:
            self.scaler.unscale_(prepared.optimizer)

    monkeypatch.setattr(dry_runs, "build_trainer", with_scaler)
    monkeypatch.setattr(Accelerator, "unscale_gradients", unscale)
    model, tokenizer, task, settings = tiny
    assert len(gn.dry_run(model, tokenizer, task, [brevity], settings, steps=2).rows) == 2


class Counting:
    """A reward that holds what cannot be copied, and remembers."""

    __name__ = "counting"

    def __init__(self) -> None:
        self.lock, self.seen, self.weight = threading.Lock(), [], 1.0

    def __call__(self, completions: list, **columns: object) -> list[float]:
        with self.lock:
            self.seen.append(len(completions))
        return brevity(completions)

    def state_dict(self) -> dict:
        return {"seen": self.seen}  # its own list, and not a copy

    def load_state_dict(self, state: dict) -> None:
        self.seen = state["seen"]


def test_a_reward_that_cannot_be_copied_is_called_and_remembers_what_it_did_before(tiny, tmp_path: Path) -> None:
    model, tokenizer, task, settings = tiny
    counting = Counting()
    counting.seen.append(99)
    fading = Fading(brevity)
    fading.mean = 0.5
    dry = gn.dry_run(model, tokenizer, task, [counting, fading], settings, steps=2)
    assert list(dry.weights) == ["counting", "brevity"] and dry.table["counting"].notna().all()
    assert counting.seen == [99] and fading.mean == 0.5


def test_a_4_bit_adapter_keeps_its_precision_and_its_numbers(tiny, tiny_folder: Path) -> None:
    """TRL rounds it to bfloat16 when its trainer is built."""
    *_, task, settings = tiny
    model, tokenizer = gn.load_model(settings.replace(load_in_4bit=True))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    before = {name: p.detach().clone() for name, p in model.named_parameters() if p.requires_grad}
    assert {p.dtype for p in before.values()} == {torch.float32}
    first = gn.dry_run(model, tokenizer, task, [brevity], settings.replace(load_in_4bit=True), steps=1)
    after = dict(model.named_parameters())
    assert {after[name].dtype for name in before} == {torch.float32}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())
    run = gn.train(
        model, tokenizer, task, [brevity], settings.replace(load_in_4bit=True, max_steps=1), name="packed"
    )  # fmt: skip
    assert first.table.equals(run.completions(1))
    assert {after[name].dtype for name in before} == {torch.float32}, "training rounded it"
