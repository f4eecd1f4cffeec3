"""Which algorithm? The two lessons that need no training: where the noise comes from, and which losses are one.

Both take gradients of a real model with respect to its LoRA. notebooks/a1_algorithms calls these functions, and

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
from grpo_nb.core.tables import Part, Shown
from grpo_nb.runs.figure import COLOURS, figure_html

DIGITS = tuple("0123456789")
PASS_RATES = (0.02, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98)
GROUPS = (2, 4, 8, 16, 32)
ESTIMATORS = ("no baseline", "batch mean", "leave-one-out", "group mean", "group mean and std")
TRAINED_LAYERS = 8
GRID = "#80808040"


@dataclass(frozen=True, repr=False)
class Picture(Shown):
    """A figure, and what it says in words."""

    figure: Any
    words: str

    def _parts(self) -> Iterable[Part]:
        yield figure_html(self.figure, self.words)


# Lesson 1: the exact gradient.


@dataclass(frozen=True)
class Policies:
    """A policy over ten answers for each of some prompts, and the inner products of all their gradients."""

    chances: numpy.ndarray
    """(prompts, 10): of each digit, after the forced beginning of the answer."""
    products: numpy.ndarray
    """(prompts x 10, prompts x 10): inner products of the gradients of log-probabilities with respect to the LoRA."""
    parameters: int
    """Of the LoRA."""
    error: float
    """How far the exact gradient made of these products is from autograd's, relative to its length."""

    @property
    def prompts(self) -> int:
        return len(self.chances)


def digit_policies(model: Any, tokenizer: Any, prompts: int = 16) -> Policies:
    """Take the gradient of each digit's log-probability, of sums whose answer must begin with one digit.

    The policy is the model's, renormalised over the ten digits, so that all there is can be summed: the gradient of the
    expected reward is that of sum_y p(y) r(y) (Sutton and Barto, 2018, section 13.3, with one step), and every estimator
    a weighted sum of these gradients. With the LoRA of the last eight layers, as it is before training.

    Args:
        model, tokenizer: From `gn.load_model`.
        prompts: Sums, each with the last digit of its value asked for.
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
    chances, gradients, error = [], [], 0.0
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
            # The same by autograd: the gradient of the expected reward, where the even digits are paid.
            paid = torch.tensor([1.0, 0.0] * 5)
            exact = torch.cat(
                [
                    p.flatten()
                    for p in torch.autograd.grad((log_chances.exp() * paid).sum(), parameters)
                ]
            )
            made = (chances[0] * paid) @ rows
            error = float((made - exact).norm() / exact.norm())
    rows = torch.cat(gradients).double()
    return Policies(
        torch.stack(chances).double().numpy(),
        (rows @ rows.T).numpy(),
        sum(p.numel() for p in parameters),
        error,
    )


def paid_digits(policies: Policies, rate: float) -> numpy.ndarray:
    """(prompts, 10): 1 for the digits that are paid, those of each prompt whose chances together are nearest to `rate`."""
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
    """Estimator -> angle to the exact gradient of the same prompts in degrees, of many batches; 90 where the estimate is zero.

    Args:
        policies: Of all prompts; each batch has some of them at random.
        rewards: (prompts, 10).
        group: Completions of each prompt.
        draws: Batches.
        prompts: In a batch.
        seed: Of the draws.
    """
    draw = numpy.random.default_rng(seed)
    count = policies.prompts
    chosen = numpy.argsort(draw.random((draws, count)), axis=1)[:, :prompts]
    edges = policies.chances.cumsum(1)
    edges /= edges[:, -1:]
    uniform = draw.random((draws, prompts, group))
    digits = (uniform[..., None] > edges[chosen][:, :, None, :]).sum(-1)
    paid = rewards[chosen[..., None], digits]
    mean, spread = paid.mean(2, keepdims=True), paid.std(2, ddof=1, keepdims=True)
    advantages = {
        "no baseline": paid,
        "batch mean": paid - paid.mean((1, 2), keepdims=True),
        "leave-one-out": paid - (paid.sum(2, keepdims=True) - paid) / (group - 1),
        "group mean": paid - mean,
        "group mean and std": (paid - mean) / (spread + 1e-4),
    }
    # Each estimate as weights of the gradients of (prompt, digit), and so is the exact gradient of the prompts in the batch.
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
    """One row for each estimator, pass rate and group size: the mean angle, and the range of nine batches in ten."""
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
    """Estimator -> mean angle, where every second prompt has a low and the others a high pass rate."""
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
    part, ends = table[table["group"] == group], []
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
    axis.annotate("90 degrees: no information", (1, 92), fontsize=8.5, color=INK)
    axis.set_ylim(0, 120)
    axis.set_xlim(0, 100)
    place = 120.0
    for end, name, colour in sorted(ends, reverse=True):
        place = min(end, place - 8)
        axis.annotate(name, (100, place), xytext=(6, 0), textcoords="offset points", va="center", color=colour, fontsize=9,
                      annotation_clip=False)  # fmt: skip
    axis.set_title(
        f"degrees between the estimate and the exact gradient, 4 prompts x {group} completions",
        loc="left",
        color=INK,
        fontsize=10,
        fontweight="bold",
    )
    axis.set_xlabel("pass rate, %", fontsize=9, color=INK)
    axis.spines[["top", "right"]].set_visible(False)
    _set_ink(axis)
    axis.grid(axis="y", color=GRID)
    at = part.set_index(["estimator", "pass rate"])["angle"]
    lowest, highest = part["pass rate"].min(), part["pass rate"].max()
    words = "; ".join(
        f"{name} {at[name, lowest]:.0f} degrees at a pass rate of {lowest:.0%}, {at[name, 0.5]:.0f} at 50%, "
        f"{at[name, highest]:.0f} at {highest:.0%}"
        for name in ("no baseline", "group mean")
    )
    return Picture(
        figure, f"Angle to the exact gradient, {group} completions of each prompt: {words}."
    )


# Lesson 2: which losses are one.

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
"""The last one is GRPO's sum over tokens, with neither length nor spread divided out, under TRL's name `luspo`."""


def loss_gradients(
    model: Any, tokenizer: Any, task: gn.tasks.Task, rewards: list[Any], settings: gn.Settings
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Take the gradient of each loss on one batch of completions, used for the first time, through the kit's own trainer.

    Returns:
        Loss -> its gradient with respect to the LoRA (parameters,); `rloo` is that of TRL's `RLOOTrainer`. And what they share:
        `lengths` (completions,), `longest` and `group`.
    """
    import torch

    from grpo_nb.training.prepare import build_trainer, prepare
    from grpo_nb.training.trainer import KitTrainer

    drawn: dict[str, Any] = {}

    class SameCompletions(KitTrainer):
        """Gives the completions of the first trainer to all others."""

        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            if "texts" not in drawn:
                drawn["texts"] = super()._generate_single_turn(*args, **kwargs)
            return drawn["texts"]

    def gradient(trainer: Any) -> Any:
        inputs = [
            row for row in list(task.train)[: settings.batch_size // settings.num_generations]
        ]
        trainer.model.train()
        trainer.current_gradient_accumulation_steps = 1
        batch = trainer._generate_and_score_completions(
            [r for r in inputs for _ in range(settings.num_generations)]
        )
        drawn["lengths"] = batch["completion_mask"].sum(1)
        drawn["advantages"] = batch["advantages"]
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
        prepared = prepare(model, tokenizer, task, rewards, changed)
        found[name] = gradient(build_trainer(prepared, SameCompletions))
    found["rloo"] = gradient(
        _rloo(model, tokenizer, task, rewards, settings, lambda: drawn["texts"][0])
    )
    shared = {
        "lengths": drawn["lengths"],
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
    """TRL's own trainer of RLOO, for these completions."""
    from trl import RLOOConfig, RLOOTrainer

    class GivenCompletions(RLOOTrainer):
        def _generate_single_turn(self, *args: Any, **kwargs: Any) -> Any:
            return completions()

    with tempfile.TemporaryDirectory() as folder:
        config = RLOOConfig(
            folder, num_generations=settings.num_generations, per_device_train_batch_size=settings.batch_size, beta=0.0,
            max_completion_length=settings.max_completion_length, reward_weights=[reward.weight for reward in rewards],
            report_to="none", use_cpu=True, bf16=False,
        )  # fmt: skip
        return GivenCompletions(
            model=model,
            processing_class=tokenizer,
            reward_funcs=rewards,
            args=config,
            train_dataset=task.train,
        )


def identities(found: Mapping[str, Any], shared: Mapping[str, Any]) -> list[tuple[str, float]]:
    """(what is said to be equal, the relative difference)."""

    def apart(one: Any, other: Any) -> float:
        return float((one - other).norm() / other.norm())

    lengths, group = shared["lengths"].double(), shared["group"]
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
    """Draw the relative differences on a logarithmic axis: those of rounding at the left, a real one at the right."""
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
        axis.annotate("0" if difference == 0 else f"{difference:.0e}", (max(difference, 1e-9), at), xytext=(8, 0),
                      textcoords="offset points", va="center", fontsize=9, color=colour)  # fmt: skip
    axis.set_xscale("log")
    axis.set_xlim(5e-10, 3)
    axis.set_ylim(len(said) - 0.5, -0.5)
    axis.set_yticks(range(len(said)), [name for name, _ in said], fontsize=9)
    axis.set_title(
        "relative difference of two gradients",
        loc="left",
        color=INK,
        fontsize=10,
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
        gn.rewards.xml_format(weight=1.0),
        gn.rewards.xml_tags(weight=1.0),
    ]
    for said, difference in identities(*loss_gradients(model, tokenizer, task, rewards, settings)):
        print(f"{said}: {difference:.1e}")


if __name__ == "__main__":
    main()
