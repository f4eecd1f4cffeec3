"""Measure gradients for two lessons on algorithms: where the noise comes from, and which losses are equal.

Both lessons use gradients of a real model with respect to its LoRA. notebooks/a1_algorithms calls
these functions, and

    python benchmarks/gradients.py

prints their tables for docs/evidence/algorithms.md.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy

import grpo_nb as gn
from grpo_nb.core.palette import INK
from grpo_nb.core.tables import Part, ReprMixin
from grpo_nb.runs.figure import COLOURS, figure_html

DIGITS = tuple("0123456789")
PASS_RATES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
GROUPS = (2, 4, 8, 16, 32)
ESTIMATORS = ("no baseline", "batch mean", "leave-one-out", "group mean", "group mean and std")
TRAINED_LAYERS = 8
GRID = "#80808040"


@dataclass(frozen=True, repr=False)
class Picture(ReprMixin):
    """A figure with its message in words."""

    figure: Any
    words: str

    def _shown_parts(self) -> Iterable[Part]:
        yield figure_html(self.figure, self.words)


# Lesson 1: the exact gradient.


@dataclass(frozen=True)
class Policies:
    """Policies over ten answers, one per prompt, and the inner products of all their gradients."""

    chances: numpy.ndarray
    """(prompts, 10): probability of each digit after the given start of the answer."""
    products: numpy.ndarray
    """(prompts x 10, prompts x 10): inner products of the gradients of the log-probabilities."""
    parameters: int
    """Number of trained LoRA weights."""
    error: float
    """Relative distance of the exact gradient from autograd's."""

    @property
    def prompts(self) -> int:
        return len(self.chances)


def digit_policies(model: Any, tokenizer: Any, prompts: int = 16) -> Policies:
    """Compute the gradient of each digit's log-probability, for prompts that ask for one digit.

    The policy is the model's, renormalised over the ten digits, so the expected reward is a sum of ten
    terms, sum_y p(y) r(y) (Sutton and Barto, 2018, section 13.3, with one step). Every estimator is a
    weighted sum of the same gradients. They are taken for the LoRA of the last eight layers before training.

    Args:
        model: Model of `gn.load_model`.
        tokenizer: Its tokenizer.
        prompts: Number of prompts; each asks for the last digit of a sum.
    """
    import torch

    ids = [tokenizer.encode(digit, add_special_tokens=False)[-1] for digit in DIGITS]
    layers = model.config.num_hidden_layers
    wanted = tuple(f".layers.{i}." for i in range(layers - TRAINED_LAYERS, layers))
    parameters = [
        p
        for name, p in model.named_parameters()
        if p.requires_grad and "lora_B" in name and any(w in name for w in wanted)
    ]
    asked = [f"{11 + 7 * i % 83} + {5 + 11 * i % 79}" for i in range(prompts)]
    chances = []
    gradients = []
    error = 0.0
    for number, question in enumerate(asked):
        turns = [{"role": "user", "content": f"What is the last digit of {question}?"}]
        text = (
            tokenizer.apply_chat_template(turns, tokenize=False, add_generation_prompt=True)
            + "The last digit is "
        )
        inputs = torch.tensor([tokenizer.encode(text, add_special_tokens=False)])
        log_chances = model(input_ids=inputs).logits[0, -1, ids].float().log_softmax(0)
        rows = []
        for one in log_chances:
            found = torch.autograd.grad(one, parameters, retain_graph=True)
            rows.append(torch.cat([part.flatten() for part in found]))
        rows = torch.stack(rows)
        chances.append(log_chances.detach().exp())
        gradients.append(rows)
        if number == 0:
            # Check with autograd: the gradient of the expected reward, if the even digits are rewarded.
            rewarded = torch.tensor([1.0, 0.0] * 5)
            exact = torch.cat(
                [
                    p.flatten()
                    for p in torch.autograd.grad((log_chances.exp() * rewarded).sum(), parameters)
                ]
            )
            from_products = (chances[0] * rewarded) @ rows
            error = float((from_products - exact).norm() / exact.norm())
    rows = torch.cat(gradients).double()
    return Policies(
        torch.stack(chances).double().numpy(),
        (rows @ rows.T).numpy(),
        sum(p.numel() for p in parameters),
        error,
    )


def paid_digits(policies: Policies, rate: float) -> numpy.ndarray:
    """Return (prompts, 10): 1 for the rewarded digits, whose total probability is nearest to `rate`."""
    sets = numpy.arange(1, 2**10 - 1)[:, None] >> numpy.arange(10) & 1
    sums = policies.chances / policies.chances.sum(1, keepdims=True) @ sets.T
    return sets[numpy.abs(sums - rate).argmin(1)].astype(float)


def angles(
    policies: Policies,
    rewards: numpy.ndarray,
    group: int,
    draws: int = 1_000,
    prompts: int = 4,
    seed: int = 0,
) -> dict[str, numpy.ndarray]:
    """Return the angles between estimates and the exact gradient, in degrees, by estimator.

    An estimate of zero has an angle of 90.

    Args:
        policies: Policies of all prompts; each batch has some of the prompts at random.
        rewards: Reward of each digit, (prompts, 10).
        group: Completions per prompt.
        draws: Number of batches.
        prompts: Prompts per batch.
        seed: Seed of the samples.
    """
    draw = numpy.random.default_rng(seed)
    count = policies.prompts
    chosen = numpy.argsort(draw.random((draws, count)), axis=1)[:, :prompts]
    edges = policies.chances.cumsum(1)
    edges /= edges[:, -1:]
    uniform = draw.random((draws, prompts, group))
    digits = (uniform[..., None] > edges[chosen][:, :, None, :]).sum(-1)
    sampled = rewards[chosen[..., None], digits]
    mean = sampled.mean(2, keepdims=True)
    deviation = sampled.std(2, ddof=1, keepdims=True)
    others_mean = (sampled.sum(2, keepdims=True) - sampled) / (group - 1)
    advantages = {
        "no baseline": sampled,
        "batch mean": sampled - sampled.mean((1, 2), keepdims=True),
        "leave-one-out": sampled - others_mean,
        "group mean": sampled - mean,
        "group mean and std": (sampled - mean) / (deviation + 1e-4),
    }
    # Estimates and the exact gradient of a batch are weights of the gradients of (prompt, digit).
    of_each = policies.chances / policies.chances.sum(1, keepdims=True) * rewards
    exact = numpy.zeros((draws, count, 10))
    exact[numpy.arange(draws)[:, None], chosen] = of_each[chosen]
    exact = exact.reshape(draws, -1)
    toward = exact @ policies.products
    length = numpy.sqrt((exact * toward).sum(1))
    place = (chosen[..., None] * 10 + digits).reshape(draws, -1)
    found = {}
    for name, advantage in advantages.items():
        weights = numpy.zeros((draws, count * 10))
        numpy.add.at(weights, (numpy.arange(draws)[:, None], place), advantage.reshape(draws, -1))
        lengths = numpy.sqrt(numpy.maximum((weights @ policies.products * weights).sum(1), 0))
        with numpy.errstate(invalid="ignore", divide="ignore"):
            cosines = numpy.where(
                lengths > 1e-12, (weights * toward).sum(1) / (lengths * length), 0.0
            )
        found[name] = numpy.degrees(numpy.arccos(numpy.clip(cosines, -1, 1)))
    return found


def angle_table(
    policies: Policies, rates: Sequence[float] = PASS_RATES, groups: Sequence[int] = GROUPS
) -> Any:
    """Return the mean angle, and the range of nine batches in ten, by estimator, pass rate and group size."""
    import pandas

    rows = []
    for rate in rates:
        rewards = paid_digits(policies, rate)
        for group in groups:
            for name, found in angles(policies, rewards, group).items():
                low, high = numpy.quantile(found, [0.05, 0.95])
                rows.append(
                    {
                        "estimator": name,
                        "pass rate": rate,
                        "group": group,
                        "angle": found.mean(),
                        "low": low,
                        "high": high,
                    }
                )
    return pandas.DataFrame(rows)


def mixed_angles(policies: Policies, low: float = 0.05, high: float = 0.95, group: int = 8) -> Any:
    """Return the mean angle of each estimator if half the prompts have a low, half a high pass rate."""
    import pandas

    is_high = numpy.arange(policies.prompts)[:, None] % 2 == 1
    rewards = numpy.where(is_high, paid_digits(policies, high), paid_digits(policies, low))
    return pandas.Series(
        {name: found.mean() for name, found in angles(policies, rewards, group).items()},
        name="angle",
    )


def draw_angles(table: Any, group: int = 8) -> Picture:
    """Draw the mean angle of each estimator over the pass rate, with the range of nine batches in ten for two of them."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 3.6), layout="constrained")
    figure.patch.set_alpha(0.0)
    axis = figure.add_subplot()
    part = table[table["group"] == group]
    ends = []
    # Leave-one-out has the direction of the group mean, and no line of its own.
    styles = {
        "no baseline": (1, "-"),
        "batch mean": (2, "--"),
        "group mean": (0, "-"),
        "group mean and std": (4, ":"),
    }
    for name, (colour, style) in styles.items():
        colour = COLOURS[colour]
        rows = part[part["estimator"] == name]
        rates = 100 * rows["pass rate"]
        if name in ("no baseline", "group mean"):
            axis.fill_between(
                rates, rows["low"], rows["high"], color=colour, alpha=0.12, linewidth=0
            )
        axis.plot(rates, rows["angle"], style, color=colour, linewidth=2)
        said = "group mean, leave-one-out" if name == "group mean" else name
        ends.append((float(rows["angle"].iloc[-1]), said, colour))
    axis.axhline(90, color=INK, linewidth=0.9)
    axis.annotate("90 degrees: no information", (1, 92), fontsize=9, color=INK)
    axis.set_ylim(0, 120)
    axis.set_xlim(0, 100)
    place = 120.0
    for end, name, colour in sorted(ends, reverse=True):
        place = min(end, place - 8)
        axis.annotate(
            name,
            (100, place),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=9,
            annotation_clip=False,
        )
    axis.set_title(
        f"degrees between the estimate and the exact gradient, 4 prompts x {group} completions",
        loc="left",
        color=INK,
        fontsize=12,
        fontweight="bold",
    )
    axis.set_xlabel("pass rate, %", fontsize=9, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    _set_ink(axis)
    axis.grid(axis="y", color=GRID)
    at = part.set_index(["estimator", "pass rate"])["angle"]
    lowest = part["pass rate"].min()
    highest = part["pass rate"].max()
    words = "; ".join(
        f"{name} {at[name, lowest]:.0f} degrees at a pass rate of {lowest:.0%}, "
        f"{at[name, 0.5]:.0f} at 50%, "
        f"{at[name, highest]:.0f} at {highest:.0%}"
        for name in ("no baseline", "group mean")
    )
    return Picture(
        figure, f"Angle to the exact gradient, {group} completions of each prompt: {words}."
    )


# Lesson 2: which losses are equal.

LOSSES: dict[str, dict[str, Any]] = {
    "grpo": {"loss_type": "grpo"},
    "grpo, clip-higher": {"loss_type": "grpo", "epsilon_high": 0.28},
    "gspo": {
        "loss_type": "grpo",
        "importance_sampling_level": "sequence",
        "epsilon": 3e-4,
        "epsilon_high": 4e-4,
    },
    "sapo": {"loss_type": "sapo"},
    "dapo": {"loss_type": "dapo"},
    "bnpo": {"loss_type": "bnpo"},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "sum, not scaled": {
        "loss_type": "luspo",
        "importance_sampling_level": "sequence",
        "scale_rewards": "none",
    },
}
"""The last one sums over tokens and divides by neither length nor standard deviation; TRL calls it `luspo`."""


def loss_gradients(
    model: Any, tokenizer: Any, task: gn.tasks.Task, rewards: list[Any], settings: gn.Settings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Compute the gradient of each loss on one batch of completions, with the kit's trainer.

    Returns:
        The gradient of each loss with respect to the LoRA, (parameters,); `rloo` comes from TRL's
        `RLOOTrainer`. Then what they share: `lengths` (completions,), `longest` and `group`.
    """
    import torch

    from grpo_nb.training.prepare import build_trainer, check_training
    from grpo_nb.training.trainer import RunTrainer

    shared_batch: dict[str, Any] = {}

    class SameCompletions(RunTrainer):
        """Use the completions of the first trainer in all others."""

        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            if "texts" not in shared_batch:
                shared_batch["texts"] = super()._generate_single_turn(*args, **kwargs)
            return shared_batch["texts"]

    def gradient(trainer: Any) -> Any:
        inputs = [
            row
            for row in list(task.train)[: settings.completions_per_step // settings.num_generations]
        ]
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        batch = trainer._generate_and_score_completions(
            [r for r in inputs for _ in range(settings.num_generations)]
        )
        shared_batch["lengths"] = batch["completion_mask"].sum(1)
        shared_batch["advantages"] = batch["advantages"]
        trainer.model.zero_grad()
        trainer._compute_loss(trainer.model, batch).backward()
        parts = [
            p.grad.flatten()
            for _, p in sorted(trainer.model.named_parameters())
            if p.grad is not None
        ]
        return torch.cat(parts).double()

    found = {}
    for name, changes in LOSSES.items():
        changes = dict(changes)
        changed = settings.replace(loss_type=changes.pop("loss_type"), beta=0.0, extra=changes)
        prepared = check_training(model, tokenizer, task, rewards, changed)
        found[name] = gradient(build_trainer(prepared, SameCompletions))
    found["rloo"] = gradient(
        _rloo(model, tokenizer, task, rewards, settings, lambda: shared_batch["texts"][0])
    )
    shared = {
        "lengths": shared_batch["lengths"],
        "longest": settings.max_completion_length,
        "group": settings.num_generations,
    }
    return found, shared


def _rloo(
    model: Any,
    tokenizer: Any,
    task: Any,
    rewards: list[Any],
    settings: gn.Settings,
    completions: Any,
) -> Any:
    """Return TRL's RLOO trainer for these completions."""
    from trl import RLOOConfig, RLOOTrainer

    class GivenCompletions(RLOOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            return completions()

    with tempfile.TemporaryDirectory() as folder:
        config = RLOOConfig(
            folder,
            num_generations=settings.num_generations,
            per_device_train_batch_size=settings.completions_per_step,
            beta=0.0,
            max_completion_length=settings.max_completion_length,
            reward_weights=[reward.weight for reward in rewards],
            report_to="none",
            use_cpu=True,
            bf16=False,
        )
        return GivenCompletions(
            model=model,
            processing_class=tokenizer,
            reward_funcs=rewards,
            args=config,
            train_dataset=task.train,
        )


def identities(found: Mapping[str, Any], shared: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Return each claimed identity with the relative difference of its two gradients."""

    def apart(one: Any, other: Any) -> float:
        return float((one - other).norm() / other.norm())

    lengths = shared["lengths"].double()
    group = shared["group"]
    said = [
        (f"{name} = grpo", apart(found[name], found["grpo"]))
        for name in ("grpo, clip-higher", "gspo", "sapo")
    ]
    said += [(f"{name} = dapo", apart(found[name], found["dapo"])) for name in ("bnpo", "cispo")]
    share = float(lengths.mean()) / shared["longest"]
    said.append(
        (
            f"dr_grpo = dapo x {share:.3f}, mean length / limit",
            apart(found["dr_grpo"], found["dapo"] * share),
        )
    )
    more = group / (group - 1)
    said.append(
        (
            f"rloo = sum, not scaled x {group}/{group - 1}",
            apart(found["rloo"], found["sum, not scaled"] * more),
        )
    )
    said.append(("grpo = dapo (it is not)", apart(found["grpo"], found["dapo"])))
    return said


def draw_identities(said: Sequence[tuple[str, float]]) -> Picture:
    """Draw the relative differences on a logarithmic axis, so that rounding is left and a real one right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8.5, 0.32 * len(said) + 0.9), layout="constrained")
    figure.patch.set_alpha(0.0)
    axis = figure.add_subplot()
    for at, (_, difference) in enumerate(said):
        is_equal = difference < 1e-4
        colour = COLOURS[0] if is_equal else COLOURS[1]
        axis.plot(
            [max(difference, 1e-9)], [at], "o" if is_equal else "D", color=colour, markersize=7
        )
        axis.annotate(
            "0" if difference == 0 else f"{difference:.0e}",
            (max(difference, 1e-9), at),
            xytext=(8, 0),
            textcoords="offset points",
            va="center",
            fontsize=9,
            color=colour,
        )
    axis.set_xscale("log")
    axis.set_xlim(5e-10, 3)
    axis.set_ylim(len(said) - 0.5, -0.5)
    axis.set_yticks(range(len(said)), [name for name, _ in said], fontsize=9)
    axis.set_title(
        "relative difference of two gradients",
        loc="left",
        color=INK,
        fontsize=12,
        fontweight="bold",
    )
    axis.spines[["top", "right", "left"]].set_visible(False)
    _set_ink(axis)
    axis.tick_params(axis="y", length=0)
    axis.grid(axis="x", color=GRID)
    return Picture(
        figure,
        "Relative differences: " + "; ".join(f"{name}: {value:.0e}" for name, value in said) + ".",
    )


def _set_ink(axis: Any) -> None:
    """Use ink that is readable on white and on dark pages."""
    axis.patch.set_alpha(0.0)
    axis.spines[["left", "bottom"]].set_color(INK)
    axis.tick_params(colors=INK)


def main() -> None:
    settings = gn.preset("cpu", per_device_train_batch_size=16)
    model, tokenizer = gn.load_model(settings)
    policies = digit_policies(model, tokenizer)
    print(f"{policies.parameters} parameters; autograd and products differ by {policies.error:.1e}")
    table = angle_table(policies)
    print(
        table.pivot_table(index=["group", "pass rate"], columns="estimator", values="angle")
        .round(1)
        .to_string()
    )
    print(table[table["group"] == 8].round(1).to_string())
    task = gn.load_task("arithmetic", settings, tokenizer=tokenizer)
    rewards = [
        gn.rewards.correctness(weight=2.0),
        gn.rewards.exact_format(weight=1.0),
        gn.rewards.partial_format(weight=1.0),
    ]
    for said, difference in identities(*loss_gradients(model, tokenizer, task, rewards, settings)):
        print(f"{said}: {difference:.1e}")


if __name__ == "__main__":
    main()
