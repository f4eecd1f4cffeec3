"""Rewards together: made of others (bounded, summed up, fading as they are learnt), and those that fit a task.

And one that is no reward, for debugging.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

from grpo_nb.rewards.answers import correctness, exact_text
from grpo_nb.rewards.base import (
    Completion,
    Reward,
    RewardFunction,
    Span,
    checked,
    one_of,
    range_of,
    reward_name,
    spans,
    weight_of,
    weights_by_name,
)
from grpo_nb.rewards.expressions import maths
from grpo_nb.rewards.form import xml_format, xml_tags
from grpo_nb.rewards.structured import json_answer, multiple_choice

if TYPE_CHECKING:
    from grpo_nb.tasks.task import Task

Scores = list[float | None]


_UNBOUNDED = (-math.inf, math.inf)


@dataclass(frozen=True, kw_only=True, repr=False)
class Composed(Reward):
    """A reward whose scores come from other rewards, called as the trainer calls them."""

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        return self(completions=[text], **{key: [value] for key, value in row.items()})[0]


@dataclass(frozen=True, repr=False)
class Wrapper(Composed):
    """A reward that changes the scores of another, whose name and weight it carries."""

    reward: RewardFunction
    _: KW_ONLY
    weight: float | None = None
    arguments: ClassVar[Mapping[str, str]] = {
        "reward": "The one whose scores are changed.",
        **Composed.arguments,
        "weight": "That of the reward if not given.",
        "name": "That of the reward if not given.",
    }

    def __post_init__(self) -> None:
        weight = weight_of(self.reward) if self.weight is None else self.weight
        self._set(name=self.name or reward_name(self.reward), weight=weight)
        super().__post_init__()

    def looks_at(self, text: str) -> tuple[Span, ...]:
        return spans(self.reward, text)


@dataclass(frozen=True, repr=False)
class clipped(Wrapper):
    """The scores of any reward, held between `low` and `high`. Name and weight stay; NaN becomes None.

    For rewards without bounds, where one outlier would make up the whole advantage of its group.

    Args:
        low: The lowest score that is left.
        high: The highest.

    >>> def length(completions, **columns): return [float(len(c)) for c in completions]
    >>> clipped(length, 0, 3)(completions=["ab", "abcdef"])
    [2.0, 3.0]
    """

    low: float = -1.0
    high: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.low < self.high or not math.isfinite(self.low) or not math.isfinite(self.high):
            raise ValueError(f"low = {self.low!r} must be below high = {self.high!r}, and both finite.")
        self._set(low=float(self.low), high=float(self.high))

    @property
    def source(self) -> str:
        return getattr(self.reward, "source", "") or "the user's own"

    @property
    def range(self) -> tuple[float, float]:
        low, high = range_of(self.reward) or _UNBOUNDED
        return (min(max(low, self.low), self.high), min(max(high, self.low), self.high))

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> Scores:
        scores = self.reward(completions=completions, **columns)
        # NaN compares with nothing: an unknown score is no score, not the lowest.
        return [None if s is None or math.isnan(s) else float(min(max(s, self.low), self.high)) for s in scores]


@dataclass(frozen=True, repr=False)
class combined(Composed):
    """One reward that is the sum of score times weight over the given ones, as TRL adds them up; None counts as nothing.

    For where only one function is taken. Given to a trainer one by one they are better: each has its curve then.

    Args:
        rewards: Each with its weight.

    Raises:
        ValueError: No rewards, or two of the same name.

    >>> from grpo_nb.rewards import correctness, xml_tags
    >>> combined([correctness(), xml_tags()])(completions=["<answer>7</answer>"], answer=["7"])
    [2.5]
    """

    rewards: Sequence[RewardFunction]
    source: ClassVar[str] = "TRL's GRPOTrainer: the sum of score times weight over the rewards that gave one"

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(rewards=tuple(self.rewards))
        if not self.rewards:
            raise ValueError("rewards is empty: there is nothing to combine.")
        weights_by_name(self.rewards)

    @property
    def range(self) -> tuple[float, float]:
        ends = [
            sorted(weight_of(r) * end if weight_of(r) else 0.0 for end in range_of(r) or _UNBOUNDED)
            for r in self.rewards
        ]
        # A reward may have nothing to say, which counts as nothing.
        return (sum(min(low, 0.0) for low, _ in ends), sum(max(high, 0.0) for _, high in ends))

    def looks_at(self, text: str) -> tuple[Span, ...]:
        return tuple(sorted({span for part in self.rewards for span in spans(part, text)}))

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> Scores:
        table = [(weight_of(r), r(completions=completions, **columns)) for r in self.rewards]
        totals: Scores = []
        for i in range(len(completions)):
            parts = [w * scores[i] for w, scores in table if scores[i] is not None and not math.isnan(scores[i])]
            totals.append(math.fsum(parts) if parts else None)
        return totals


@dataclass(eq=False)
class AdaptiveState:
    """What an adaptive reward has seen: the success rate it knew at the start of each step.

    The mean `m` moves as `m <- decay * m + (1 - decay) * s`, where `s` is the share of one step's completions that
    succeeded, at the end of that step; it starts at 0. Pickled with its reward, and kept in the checkpoints of a run.
    """

    history: list[tuple[int, float]] = field(default_factory=list)
    """(step, success rate known at its start), steps rising."""
    count: int = 0
    successes: int = 0

    @property
    def success(self) -> float:
        """The success rate as of the start of the present step."""
        return self.history[-1][1] if self.history else 0.0

    def begin(self, step: int, decay: float) -> None:
        """Go to a step: onwards, or back, as when training is resumed from an earlier checkpoint."""
        if self.history and step == self.history[-1][0]:
            return
        if self.history and step < self.history[-1][0]:
            # What came after the checkpoint is undone; the rate known at the start of that step is taken up again.
            rate = next((rate for at, rate in reversed(self.history) if at <= step), 0.0)
            self.history = [entry for entry in self.history if entry[0] < step]
        else:
            rate = self._next(decay)
        self.history.append((step, rate))
        self.count = self.successes = 0

    def _next(self, decay: float) -> float:
        """The success rate once the present step has ended."""
        return decay * self.success + (1 - decay) * self.successes / self.count if self.count else self.success

    def carry_over(self, decay: float) -> None:
        """Go on in a new run, whose steps count from 0 again: the rate stays, the steps it came from are forgotten."""
        self.history, self.count, self.successes = [(-1, self._next(decay))], 0, 0

    def start_over(self) -> None:
        """Forget everything, as a reward just made."""
        self.history, self.count, self.successes = [], 0, 0

    def state_dict(self) -> dict[str, Any]:
        """What to keep in a checkpoint, fit for JSON."""
        return {"history": [list(entry) for entry in self.history], "count": self.count, "successes": self.successes}

    def load_state_dict(self, values: Mapping[str, Any]) -> None:
        """Take up what was kept."""
        self.history = [(step, rate) for step, rate in values["history"]]
        self.count, self.successes = values["count"], values["successes"]

    def add(self, successes: int, count: int) -> None:
        """Count completions of the present step."""
        self.successes += successes
        self.count += count


@dataclass(frozen=True, kw_only=True, repr=False)
class adaptive(Wrapper):
    """A reward that fades as it is learnt: its score times `floor + (1 - floor) * (1 - m)`, `m` its mean success rate.

    Keep the format reward strong while the model has to find the format, and out of the way when it has. `m` is an
    exponential mean over training steps (`AdaptiveState` has the formula). It moves only between steps, so all
    completions of a step have the same factor, and only in training: called by hand, where no `trainer_state` is
    given, nothing changes. The same steps give the same factors again, also after going back to a checkpoint, in which a run
    keeps what its rewards remember. A call counts as training unless `trainer_state.is_trial` is true: a trainer that evaluates
    in between has to say so there, for the step alone cannot tell. The curve shows the faded score.

    Args:
        reward: Any reward; name and weight stay.
        state: What it has learnt so far; nothing if not given.
        floor: What is left of the weight when every completion succeeds.
        decay: Of the mean; 0.9 remembers about ten steps.
        threshold: From which score on a completion has succeeded; by default the top of the reward's range.

    >>> from grpo_nb.rewards import xml_tags
    >>> adaptive(xml_tags()).factor
    1.0
    """

    floor: float = checked("between 0 and 1", lambda value: 0 <= value <= 1, 0.1)
    decay: float = checked("at least 0 and below 1", lambda value: 0 <= value < 1, 0.9)
    threshold: float | None = None
    state: AdaptiveState = field(default_factory=AdaptiveState, compare=False)
    source: ClassVar[str] = "the kit's own; factor = floor + (1 - floor) * (1 - success rate)"

    def __post_init__(self) -> None:
        super().__post_init__()
        threshold = (range_of(self.reward) or _UNBOUNDED)[1] if self.threshold is None else float(self.threshold)
        if self.threshold is None and not math.isfinite(threshold):
            raise ValueError(f"{self.name} has no range, so success is not known: write threshold=1.0, or what it is.")
        self._set(threshold=threshold)

    @property
    def range(self) -> tuple[float, float]:
        low, high = range_of(self.reward) or _UNBOUNDED
        return (min(low, low * self.floor), max(high, high * self.floor))

    @property
    def factor(self) -> float:
        """What scores are multiplied with at the present step."""
        return self.floor + (1 - self.floor) * (1 - self.state.success)

    def __repr__(self) -> str:
        return f"adaptive({self.reward!r}, factor={self.factor:.3f}, success={self.state.success:.3f})"

    def __call__(
        self, *, completions: Sequence[Completion], trainer_state: Any = None, log_metric: Any = None, **columns: Any
    ) -> Scores:
        scores = self.reward(completions=completions, trainer_state=trainer_state, log_metric=log_metric, **columns)
        if trainer_state is not None and not getattr(trainer_state, "is_trial", False):
            self.state.begin(int(trainer_state.global_step), self.decay)
            known = [s for s in scores if s is not None and not math.isnan(s)]
            self.state.add(sum(s >= self.threshold for s in known), len(known))
            if log_metric is not None:
                log_metric(f"{self.__name__}/factor", self.factor)
        factor = self.factor
        return [None if s is None or math.isnan(s) else s * factor for s in scores]


@dataclass(frozen=True, repr=False)
class dummy(Reward):
    """A reward that measures nothing, to see whether a trainer runs: 0.5, the length, or a number made from the text.

    It is always named `dummy_...`, and refuses a training of more than `max_steps` steps. `hash` has spread in
    every group, so gradients flow; `constant` has none.

    Args:
        kind: `"hash"`, `"length"` or `"constant"`.
        max_steps: Of a training that takes it.

    >>> dummy("constant")(completions=["anything"])
    [0.5]
    """

    kind: str = one_of("hash", "length", "constant")
    _: KW_ONLY
    max_steps: int = 20
    source: ClassVar[str] = "none: it measures nothing"

    def __post_init__(self) -> None:
        self._set(name=f"dummy_{self.kind}")
        super().__post_init__()

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        if self.kind == "constant":
            return 0.5
        if self.kind == "length":
            return min(1.0, len(text) / 1000)
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
        return int.from_bytes(digest[:4], "big") / 0xFFFFFFFF

    def __call__(self, *, completions: Sequence[Completion], trainer_state: Any = None, **columns: Any) -> Scores:
        steps = getattr(trainer_state, "max_steps", 0) or 0
        if steps > self.max_steps:
            raise ValueError(
                f"{self.__name__} is a dummy for debugging, and this training has {steps} steps: the model would learn "
                f"nonsense. Put a real reward in its place, or train at most {self.max_steps} steps."
            )
        return super().__call__(completions=completions, **columns)


def adaptive_states(rewards: Iterable[RewardFunction]) -> list[tuple[AdaptiveState, float]]:
    """Return state and decay of each adaptive reward among these, also of those inside others."""
    found: list[tuple[AdaptiveState, float]] = []
    for reward in rewards:
        if isinstance(reward, adaptive):
            found.append((reward.state, reward.decay))
        found += adaptive_states(inner_rewards(reward))
    return found


def check_rows(rewards: Iterable[RewardFunction], rows: Iterable[Mapping[str, Any]]) -> None:
    """Let every reward of the kit that reads a data column before it judges, as `code_tests` does, read it in all rows.

    Raises:
        ValueError: A row cannot be read; the message names the reward and the row.

    >>> from grpo_nb.rewards import code_tests
    >>> check_rows([code_tests()], [{"tests": ["assert f(1) == 2"]}])
    """
    for reward in rewards:
        if isinstance(reward, Reward) and hasattr(reward, "check"):
            try:
                reward.check(rows)
            except ValueError as error:
                raise ValueError(f"the reward {reward_name(reward)!r} cannot read the data: {error}") from error
        check_rows(inner_rewards(reward), rows)


def inner_rewards(reward: RewardFunction) -> tuple[RewardFunction, ...]:
    """The rewards that a reward is made of; none for most."""
    inner = getattr(reward, "reward", None)
    return (inner,) if callable(inner) else tuple(getattr(reward, "rewards", ()))


def rewards_for(task: Task, *, weight: float = 2.0) -> list[Reward]:
    """Return rewards to begin with: one for the right answer, which weighs most, and the format's.

    Numbers are compared as numbers, labels as text without regard to case (single letters as options; several as a set),
    expressions with math-verify, JSON by its values, other text as `correctness` does, but dates as written.

    Args:
        task: Its `answers` and its `format` decide.
        weight: Of being right.

    >>> task = gn.load_task([{"question": f"Is {n} odd?", "answer": ("no", "yes")[n % 2]} for n in range(8)])
    >>> [type(reward).__name__ for reward in rewards_for(task)]
    ['exact_text', 'xml_format', 'xml_tags']
    """
    labels, separator = [label for label, _ in task.answers.labels], task.answers.separator
    common = {"weight": weight, "format": task.format}
    if task.answers.kind in ("numbers", "text") and not task.answers.form:
        right: Reward = correctness(**common)
    elif task.answers.kind == "expressions":
        right = maths(**common)
    elif task.answers.kind == "json":
        right = json_answer(**common)
    elif labels and not separator and all(len(label) == 1 and label.isalpha() for label in labels):
        right = multiple_choice(**common)
    else:
        is_case_sensitive = len({label.casefold() for label in labels}) < len(labels)
        right = exact_text(**common, is_case_sensitive=is_case_sensitive, needs_all=separator or False)
    return [right, xml_format(format=task.format), xml_tags(format=task.format)]
