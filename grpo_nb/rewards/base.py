"""What all rewards share: the signature of TRL, a name, a weight, a range and where they looked."""

from __future__ import annotations

import abc
import dataclasses
import functools
import inspect
import math
import numbers
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from grpo_nb.core.tables import Readable, code, html_of
from grpo_nb.core.text import shorten
from grpo_nb.tasks.formats import AnswerFormat, xml

Completion = str | Sequence[Mapping[str, Any]]
RewardFunction = Callable[..., Sequence[float | None]]
WHOLE_TEXT = "whole text"


def completion_text(completion: Completion) -> str:
    """Return the text of a completion: a string as it is, chat messages as the content of the last one.

    Content in parts, as multimodal chats have it, is the text of its text parts.

    >>> completion_text([{"role": "assistant", "content": "7"}])
    '7'
    """
    if isinstance(completion, str):
        return completion
    last = completion[-1] if completion else None
    content = last.get("content") if isinstance(last, Mapping) else None
    if isinstance(content, (list, tuple)):
        texts = [part.get("text") for part in content if isinstance(part, Mapping)]
        return "".join(text for text in texts if isinstance(text, str))
    return content if isinstance(content, str) else ""


@dataclass(frozen=True, order=True)
class Span:
    """A part of a completion that a reward looked at. Sorted, they stand in the order of the text."""

    start: int
    end: int
    what: str
    """`tag`, `answer slot` or `whole text`."""


def checked(says: str, fits: Callable[[Any], bool], default: Any = dataclasses.MISSING) -> Any:
    """A field of a reward with what its value must be, which the error says too: `minimum = 0 must be at least 1.`"""
    return field(default=default, metadata={"says": says, "fits": fits})


def at_least_one(default: Any = dataclasses.MISSING) -> Any:
    """A field that holds 1 or more."""
    return checked("at least 1", lambda value: value >= 1, default)


def one_of(*choices: str) -> Any:
    """A field that holds one of these words, the first if it is not given."""
    return checked(f"one of {', '.join(choices)}", choices.__contains__, choices[0])


class _Described(str):
    """The docstring of a class of rewards; of one of them it begins with what that one pays, and is all that `help` shows."""

    def __get__(self, reward: Reward | None, kind: type) -> str:
        return str(self) if reward is None else f"{reward.pays}\n\n{inspect.cleandoc(self)}"


def _with_arguments(doc: str, shared: Mapping[str, str]) -> str:
    """A docstring with a line for each argument that it leaves to its base."""
    lines = "".join(f"        {name}: {says}\n" for name, says in shared.items() if f"        {name}:" not in doc)
    head = "    Args:\n"
    if head in doc:
        return doc.replace(head, head + lines, 1)
    before, mark, after = doc.partition("    >>>")
    return f"{before.rstrip()}\n\n{head}{lines}\n    {mark.strip()}{after}" if doc else ""


class _Kind(Readable):
    """A class of rewards, whose `help` has its arguments and none of the methods that the kit calls."""

    def __dir__(cls) -> list[str]:
        return [name for name in super().__dir__() if name == "pays"]


@dataclass(frozen=True, kw_only=True, repr=False)
class Reward(metaclass=_Kind):
    """A reward function as TRL calls it; one float per completion, higher is better; None where it has nothing to say.

    Subclasses define `score_text`, or inherit `BatchReward` where completions are judged together. `weight` is handed to TRL
    as `reward_weights`, so that curves show the plain score.
    """

    weight: float = 1.0
    format: AnswerFormat | None = None
    """Where the answer stands; `xml()`, or what the kind says, where it is not given."""
    name: str = ""
    """Under which TRL logs it; that of the class where it is not given."""

    source: ClassVar[str] = ""
    """Where the definition comes from: paper and equation, or the upstream code of the same meaning."""
    range: ClassVar[tuple[float, float]] = (0.0, 1.0)
    """The lowest and the highest score there can be, before the weight."""
    arguments: ClassVar[Mapping[str, str]] = {
        "weight": "Of the total reward.",
        "format": "Where the answer stands; `xml()`, or what the kind says, if not given.",
        "name": "Under which TRL logs it.",
    }
    """What all kinds take, for the docstrings of those that say nothing else of it."""

    def __post_init__(self) -> None:
        to_weight(self.weight, self.made_by())
        for entry in dataclasses.fields(self):
            value, must_be = getattr(self, entry.name), entry.metadata
            if "fits" in must_be and not must_be["fits"](value):
                raise ValueError(f"{entry.name} = {value!r} must be {must_be['says']}.")
        if not isinstance(self.format, AnswerFormat | None):
            raise ValueError(
                f"format = {self.format!r} must be an answer format, not its name: write format=gn.tasks.boxed(), or xml(), "
                "hashes(), think_answer()."
            )
        self._set(name=self.name or self.made_by(), format=self.format or xml())

    def __init_subclass__(cls, **more: Any) -> None:
        super().__init_subclass__(**more)
        held = vars(cls)
        taken = {k: says for k, says in cls.arguments.items() if getattr(held.get(k), "init", True)}
        cls.__doc__ = _Described(_with_arguments(held.get("__doc__") or "", taken))

    def _set(self, **values: Any) -> None:
        """Put arguments into the form that they are kept in, which is an argument too: `dataclasses.replace` hands it back."""
        for name, value in values.items():
            object.__setattr__(self, name, value)

    @property
    def __name__(self) -> str:
        # TRL makes the metric keys from this, and averages two rewards of the same name together without a word.
        return self.name

    def __repr__(self) -> str:
        parts = [f"weight={self.weight:g}", *self.changed, f"format={self.format.name!r}"]
        return (
            f"{self.made_by()}({', '.join(parts if self.name == self.made_by() else [*parts, f'name={self.name!r}'])})"
        )

    @property
    def changed(self) -> list[str]:
        """The parameters that are not the default, as they are written, but for weight, name and format."""
        own = [entry for entry in dataclasses.fields(self) if entry.name not in ("weight", "name", "format")]
        held = [(entry.name, getattr(self, entry.name), entry.default) for entry in own]
        return [f"{name}={shorten(repr(value), 80)}" for name, value, default in held if value != default]

    @property
    def pays(self) -> str:
        """What it can pay, and how much that counts, in a sentence."""
        low, high = self.range
        return f"Pays {low:g} to {high:g} for a completion, which counts {self.weight:g} times in the total."

    def _repr_html_(self) -> str:
        return html_of([code(repr(self)), (inspect.getdoc(type(self)) or "").partition("\n\n")[0], self.pays])

    @classmethod
    def made_by(cls) -> str:
        """The name of what makes such a reward."""
        return cls.__name__

    def looks_at(self, text: str) -> tuple[Span, ...]:
        """Return the parts of a completion that decide its score, in order; of a kind that does not say so, the whole text."""
        return (Span(0, len(text), WHOLE_TEXT),)

    @abc.abstractmethod
    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        """Score one completion. `row` holds the values of the data set's columns for it."""

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        """Score completions together; one by one unless a subclass gains from doing otherwise."""
        return [self.score_text(text, row) for text, row in zip(texts, rows, strict=True)]

    def __call__(self, *, completions: Sequence[Completion], **columns: Any) -> list[float | None]:
        # TRL has lists; by hand it may be a column of numpy, pandas or datasets.
        listed = {key: held.tolist() if hasattr(held, "tolist") else held for key, held in columns.items()}
        count = len(completions)
        per_row = {
            k: v for k, v in listed.items() if isinstance(v, Sequence) and type(v) is not str and len(v) == count
        }
        rows = [{key: values[i] for key, values in per_row.items()} for i in range(count)]
        return self.score_batch([completion_text(completion) for completion in completions], rows)

    def column_of(self, row: Mapping[str, Any], column: str) -> Any:
        """Return the row's value of a data column that this reward cannot do without.

        Raises:
            ValueError: The data has no such column.
        """
        if column not in row:
            raise ValueError(
                f"the reward {self.__name__!r} needs the data column {column!r}, but the data has "
                f"{sorted(row) or 'no columns'}; write {self.made_by()}(column=...) or rename the column."
            )
        return row[column]


@dataclass(frozen=True, kw_only=True, repr=False)
class BatchReward(Reward):
    """A reward that judges the completions of a call together."""

    def score_text(self, text: str, row: dict[str, Any]) -> float | None:
        return self.score_batch([text], [row])[0]

    @abc.abstractmethod
    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        """Score completions, each with its row."""


def kinds() -> dict[str, type[Reward]]:
    """Every class that a reward of the kit can be of, by name: for making one again from what was recorded of it.

    >>> kinds()["xml_tags"](weight=0.5)
    xml_tags(weight=0.5, format='xml')
    """
    found: list[type[Reward]] = [Reward]
    for kind in found:  # which grows
        found += kind.__subclasses__()
    return {kind.__name__: kind for kind in found if kind.__module__.startswith(f"{__package__}.")}


def weight_of(reward: RewardFunction) -> float:
    """The weight a reward function carries, 1.0 if it carries none, as plain functions do.

    Raises:
        ValueError: It is no finite number, and so would be every total.
    """
    return to_weight(getattr(reward, "weight", 1.0), reward_name(reward))


def range_of(reward: RewardFunction) -> tuple[float, float] | None:
    """The least and the most that a reward pays, where its attribute `range` says it."""
    ends = getattr(reward, "range", None)
    is_pair = isinstance(ends, (tuple, list)) and [isinstance(end, (int, float)) for end in ends] == [True, True]
    return (float(ends[0]), float(ends[1])) if is_pair else None


def to_weight(weight: Any, name: str) -> float:
    """Return a weight as a float.

    Raises:
        ValueError: It is no finite number.
    """
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not math.isfinite(weight):
        raise ValueError(f"weight = {weight!r} of {name} must be a finite number, such as 1.0.")
    return float(weight)


def unwrapped(reward: RewardFunction) -> RewardFunction:
    """The function that a `functools.partial` wraps, however often; any other as it is."""
    while isinstance(reward, functools.partial):
        reward = reward.func
    return reward


def reward_name(reward: RewardFunction) -> str:
    """The name under which TRL logs a reward function: for a `functools.partial`, that of the function it wraps."""
    reward = unwrapped(reward)
    return getattr(reward, "__name__", type(reward).__name__)


def reward_list(rewards: RewardFunction | Iterable[RewardFunction], *, least: int = 1) -> list[RewardFunction]:
    """Return one reward, or several, as a list, and refuse what cannot be called as a reward.

    Raises:
        ValueError: There are fewer than `least` (0 or 1), or one of them is no reward function.

    >>> from grpo_nb.rewards import xml_tags
    >>> reward_list(xml_tags()) == reward_list([xml_tags()])
    True
    """
    is_listed = (
        isinstance(rewards, Iterable) and not isinstance(rewards, (str, Mapping)) and getattr(rewards, "ndim", 1)
    )
    if not (is_listed or callable(rewards)):
        raise TypeError(f"rewards = {shorten(repr(rewards), 60)} must be a list of reward functions, or one of them.")
    listed = [rewards] if callable(rewards) else list(rewards)
    if len(listed) < least:
        raise ValueError("rewards is empty: without a reward there is nothing to score or to learn from.")
    for reward in listed:
        if not callable(reward) or isinstance(reward, type) or _is_torch_module(reward):
            raise ValueError(
                f"rewards holds {shorten(repr(reward), 80)}, which is no reward function. Pass one with TRL's signature; "
                "did you forget its brackets, or call it? How a model becomes one is in docs/guide/train.md."
            )
    return listed


def _is_torch_module(reward: Any) -> bool:
    names = (f"{kind.__module__}.{kind.__name__}" for kind in type(reward).__mro__)
    return "torch.nn.modules.module.Module" in names


def weights_by_name(rewards: RewardFunction | Iterable[RewardFunction]) -> dict[str, float]:
    """Return each reward's weight by its name, and refuse what TRL would mix up.

    Raises:
        ValueError: One is no reward function, or two have the same name: TRL logs the mean of both under it.

    >>> from grpo_nb.rewards import correctness, xml_tags
    >>> weights_by_name([correctness(), xml_tags()])
    {'correctness': 2.0, 'xml_tags': 1.0}
    """
    weights: dict[str, float] = {}
    for reward in reward_list(rewards, least=0):
        name = reward_name(reward)
        if name in weights:
            raise ValueError(
                f"two rewards are named {name!r}, and TRL would average their curves together. Give one of them another "
                "name (name=..., or __name__ of a function)."
            )
        weights[name] = weight_of(reward)
    return weights


def spans(reward: RewardFunction, text: str) -> tuple[Span, ...]:
    """Return the parts of a completion that decide what a reward gives it, in order; none where it found nothing to judge.

    Rewards for the answer look at the slot, those for the form at the tags they count. A function with an attribute `format`
    (an `AnswerFormat`) is taken to look at both. Of every other reward nobody knows, so it is the whole text.

    >>> from grpo_nb.rewards import correctness, length
    >>> spans(correctness(), "<answer>7</answer>"), spans(correctness(), "7")
    ((Span(start=8, end=9, what='answer slot'),), ())
    >>> spans(length(5), "so 7")
    (Span(start=0, end=4, what='whole text'),)
    """
    reward = unwrapped(reward)
    if hasattr(reward, "looks_at"):
        return reward.looks_at(text)
    format = getattr(reward, "format", None)
    if isinstance(format, AnswerFormat):
        return tuple(sorted([*tag_spans(format, text), *slot_span(format, format.extract(text), text)]))
    return (Span(0, len(text), WHOLE_TEXT),)


def slot_span(format: AnswerFormat, given: str | None, text: str) -> tuple[Span, ...]:
    """The answer slot with what was read from it; none where nothing was."""
    if given is None:
        return ()
    start = text.find(given, text.find(format.answer_open) + len(format.answer_open))
    return (Span(start, start + len(given), "answer slot"),)


def tag_spans(format: AnswerFormat, text: str) -> tuple[Span, ...]:
    """The tags of a format that stand in a text once, in order."""
    found = sorted(span for span in format.tag_spans(text) if span is not None)
    return tuple(Span(start, end, "tag") for start, end in found)
