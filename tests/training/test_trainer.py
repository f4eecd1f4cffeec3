"""Our trainer with shared prompts has the samples, losses and gradients of TRL's."""

import itertools
import json
from functools import partial
from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import GenerationConfig
from trl import GRPOConfig, GRPOTrainer

import grpo_nb as gn
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.training.trainer import RunTrainer, restore_states, state_owners_by_key
from tests.support.adapters import give_effect

pytestmark = pytest.mark.begins(80)

SYSTEM = "You are a careful assistant who answers in one short line and adds nothing to it."
PROMPTS = [
    "Name a colour.",
    "Name an animal that can fly.",
    "Say a number between one and nine.",
    "Why is the sky blue?",
]
# A random model would hardly ever end. With one token in twelve as an end token, completions differ
# in length.
ENDS = list(range(0, 49152, 12))


def letters(completions: list, **columns: object) -> list[float]:
    """Differs between completions of a random model, and is the same for the same text."""
    return [len(set(c[-1]["content"])) / 10 for c in completions]


def first_group_alike(completions: list, **columns: object) -> list[float]:
    return [1.0 if i < 4 else score for i, score in enumerate(letters(completions))]


@pytest.fixture(scope="module")
def base(tiny_folder):
    """The tiny model with a LoRA that has an effect, its tokenizer, and a copy of the LoRA."""
    model, tokenizer = gn.load_model(gn.preset("cpu", model=str(tiny_folder), dtype="float32"))
    give_effect(model, seed=8)
    start = {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}
    return model, tokenizer, start


def build(base, kind: type, folder, reward=letters, **arguments: object) -> GRPOTrainer:
    model, tokenizer, start = base
    if "ref" in model.peft_config:
        model.delete_adapter("ref")
    for name, parameter in model.named_parameters():
        if name in start:
            parameter.data.copy_(start[name])
            parameter.requires_grad_(True)
            parameter.grad = None
    rows = [
        [{"role": "system", "content": SYSTEM}, {"role": "user", "content": text}]
        for text in PROMPTS
    ]
    defaults = dict(
        output_dir=str(folder),
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=10,
        max_steps=2,
        learning_rate=1.0,
        lr_scheduler_type="constant",
        optim="sgd",
        beta=0.04,
        temperature=1.0,
        top_k=0,
        seed=5,
        loss_type="bnpo",
        gradient_checkpointing=False,
        bf16=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
    )
    asked = GRPOConfig(**{**defaults, **arguments})
    data = Dataset.from_dict({"prompt": rows})
    own = {"engine": CpuEngine(model)} if issubclass(kind, RunTrainer) else {}
    trainer = kind(
        model=model,
        reward_funcs=[reward],
        args=asked,
        train_dataset=data,
        processing_class=tokenizer,
        **own,
    )
    trainer.eos_token_ids = trainer.generation_config.eos_token_id = ENDS
    callbacks = trainer.callback_handler.callbacks
    trainer.callback_handler.callbacks = [c for c in callbacks if "Printer" not in type(c).__name__]
    return trainer


def run(
    base, kind: type, folder, **arguments: object
) -> tuple[list[dict], dict[str, torch.Tensor], GRPOTrainer]:
    """Train, and return the logged rows, the change of each LoRA tensor, and the trainer."""
    torch.manual_seed(31)
    trainer = build(base, kind, folder, **arguments)
    model, _, start = base
    trainer.train()
    change = {n: p.detach() - start[n] for n, p in model.named_parameters() if n in start}
    return [row for row in trainer.state.log_history if "loss" in row], change, trainer


def assert_same_runs(
    base, tmp_path, but: frozenset[str] = frozenset(), relative=2e-4, **arguments: object
) -> None:
    """The logged metrics (but some) and the change of every tensor are the same on both paths."""
    ours, our_change, _ = run(base, RunTrainer, tmp_path / "ours", **arguments)
    theirs, their_change, _ = run(base, GRPOTrainer, tmp_path / "theirs", **arguments)
    assert len(ours) == len(theirs) == arguments.get("max_steps", 2)
    for mine, other in zip(ours, theirs, strict=True):
        for key in other.keys() - {"step_time", *but}:
            assert mine[key] == pytest.approx(other[key], rel=1e-3, abs=1e-5), key
    assert any(change.norm() > 1e-6 for change in their_change.values()), (
        "nothing was learnt, so nothing was compared"
    )
    for name, change in their_change.items():
        assert (our_change[name] - change).norm() <= relative * change.norm() + 1e-8, name


LOSSES = ["grpo", "dapo", "dr_grpo", "bnpo", "cispo", "sapo", "luspo", "vespo"]


@pytest.mark.parametrize("beta", [pytest.param(0.0, marks=pytest.mark.slow), 0.1])
@pytest.mark.parametrize("loss_type", LOSSES)
def test_trainer_matches_trl_for_each_loss(base, tmp_path, loss_type: str, beta: float) -> None:
    level = {"importance_sampling_level": "sequence"} if loss_type == "luspo" else {}
    assert_same_runs(base, tmp_path, loss_type=loss_type, beta=beta, **level)


# Of those that weigh tokens alike one.
@pytest.mark.parametrize(
    "loss_type", [*LOSSES[:2], *(pytest.param(loss, marks=pytest.mark.slow) for loss in LOSSES[2:])]
)
def test_micro_batches_that_split_groups_in_float32(base, tmp_path, loss_type: str) -> None:
    sizes = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2}
    assert_same_runs(base, tmp_path, loss_type=loss_type, **sizes)


def test_trainer_matches_trl_over_several_iterations(base, tmp_path) -> None:
    # Five times the bound of the others: each of four large updates starts with the rounding of the
    # earlier ones.
    more = dict(max_steps=4, learning_rate=0.3, num_iterations=2, relative=1e-3)
    assert_same_runs(base, tmp_path, **more)
    # Two groups of eight, so that each micro-batch of four has a prompt twice.
    sizes = dict(
        num_generations=8,
        per_device_train_batch_size=4,
        gradient_accumulation_steps=2,
        steps_per_generation=4,
    )
    assert_same_runs(base, tmp_path, **sizes, **more)


def test_trainer_matches_trl_with_masked_truncation(base, tmp_path) -> None:
    assert_same_runs(
        base, tmp_path, mask_truncated_completions=True, max_completion_length=30, temperature=0.8
    )
    assert_same_runs(base, tmp_path, max_completion_length=1)
    assert_same_runs(base, tmp_path, top_p=0.9, top_k=500, min_p=0.001, repetition_penalty=1.2)
    assert_same_runs(base, tmp_path, scale_rewards="batch", entropy_coef=0.01)


def test_trainer_matches_trl_if_a_group_has_no_spread(base, tmp_path) -> None:
    assert_same_runs(base, tmp_path, reward=first_group_alike, beta=0.0)


def test_step_without_advantage_moves_only_by_momentum(base, tmp_path) -> None:
    """Pass a gradient of zeros to Adam, as in TRL, so that its momentum continues."""
    changes = {}
    for kind in (RunTrainer, GRPOTrainer):
        calls = itertools.count()

        def then_alike(completions: list, calls=calls, **columns: object) -> list[float]:
            return letters(completions) if next(calls) % 3 == 0 else [1.0] * len(completions)

        _, changes[kind], _ = run(
            base,
            kind,
            tmp_path / kind.__name__,
            reward=then_alike,
            beta=0.0,
            max_steps=3,
            optim="adamw_torch",
            learning_rate=1e-3,
            adam_epsilon=1e-4,
        )
    for name, change in changes[GRPOTrainer].items():
        assert (changes[RunTrainer][name] - change).norm() <= 1e-3 * change.norm() + 1e-7, name


@pytest.mark.parametrize(
    "asked",
    [
        {"num_beams": 2},
        {"max_time": 1.0},
        {"guidance_scale": 1.5},
        {"num_return_sequences": 2},
    ],
)
def test_engine_refuses_settings_that_it_would_ignore(asked: dict) -> None:
    assert CpuEngine.sampling_obstacle(GenerationConfig(do_sample=True, **asked)) is not None


def test_engine_samples_a_plain_generation_config() -> None:
    plain = GenerationConfig(do_sample=True, top_k=20, guidance_scale=1.0, num_return_sequences=1)
    assert CpuEngine.sampling_obstacle(plain) is None


def test_state_that_cannot_be_loaded_is_not_saved() -> None:
    """Otherwise the run would be trained, and fail when it is resumed."""

    def logged() -> None: ...

    def complete() -> None: ...

    complete.state_dict = complete.load_state_dict = dict
    logged.state_dict = dict
    assert state_owners_by_key([logged]) == {}
    assert state_owners_by_key([logged, complete]) == {"0 complete": complete}
    logged.load_state_dict = dict
    assert state_owners_by_key([logged]) == {"0 logged": logged}


def test_state_behind_partial_and_method_is_saved_and_loaded(tmp_path: Path) -> None:
    """Otherwise a resumed run would start their counters at 0, without a warning."""

    class Tracker:
        def __init__(self, calls: int) -> None:
            self.calls = calls

        def __call__(self, completions: list, *, scale: int) -> None: ...

        def observe(self, row: dict, completions: object) -> None: ...

        def state_dict(self) -> dict:
            return {"calls": self.calls}

        def load_state_dict(self, state: dict) -> None:
            self.calls = state["calls"]

    def owners(reward: Tracker, observer: Tracker) -> dict:
        return state_owners_by_key([partial(partial(reward, scale=2)), observer.observe])

    saved = {key: owner.state_dict() for key, owner in owners(Tracker(3), Tracker(5)).items()}
    assert saved == {"0 Tracker": {"calls": 3}, "1 observe": {"calls": 5}}
    (tmp_path / "states.json").write_text(json.dumps(saved))
    reward, observer = Tracker(0), Tracker(0)
    assert restore_states(owners(reward, observer), tmp_path) == []
    assert (reward.calls, observer.calls) == (3, 5)


def test_weights_of_a_reward_model_are_no_state() -> None:
    """They are frozen, and JSON could not hold them."""

    class RewardModel(torch.nn.Linear):
        def score(self, completions: list) -> None: ...

    reward_model = RewardModel(2, 1)
    assert state_owners_by_key([reward_model, reward_model.score]) == {}
