"""Rewards for how a completion is written: length, repetition, steps, banned phrases, script.

None of them says anything about its worth, and style is easy to fake: keep their weights small. Lengths are in tokens when the
trainer gives `completion_ids`, as TRL does. Tried by hand without them, words and punctuation marks are counted instead, which
is near enough to see what a reward does. `unit` asks for words or characters always.
"""

from __future__ import annotations

import math
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import lru_cache
from typing import Any, ClassVar

from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.base import BatchReward, Reward, at_least_one, checked, one_of
from grpo_nb.tasks.formats import AnswerFormat


@dataclass(frozen=True, kw_only=True, repr=False)
class LengthReward(Reward):
    """A reward of the length alone."""

    weight: float = 0.2
    unit: str = one_of("tokens", "words", "characters")
    arguments: ClassVar[Mapping[str, str]] = {**Reward.arguments, "unit": '`"tokens"`, `"words"` or `"characters"`.'}
    source: ClassVar[str] = "the kit's own"

    def length(self, text: str, row: dict[str, Any]) -> int:
        """The length of a completion in this reward's unit."""
        ids = row.get("completion_ids")
        if self.unit == "tokens" and ids is not None and hasattr(ids, "__len__"):
            return len(ids)
        return len(text if self.unit == "characters" else split_words(text))


def split_words(text: str) -> list[str]:
    """Words and punctuation marks, each by itself.

    >>> split_words("It's 7.")
    ['It', "'", 's', '7', '.']
    """
    return re.findall(r"\w+|[^\w\s]", text)


@dataclass(frozen=True, repr=False)
class ideal_length(LengthReward):
    """1.0 for a length from `low` to `high`, falling in a straight line to 0.0 at nothing and at twice `high`.

    Padding earns it as well as thinking does. Give it a fifth of what a right answer earns, or less.

    Args:
        low: The shortest length of full score.
        high: The longest; `low` if not given.
        weight: Of the total reward.
        name: Under which TRL logs it.
        unit: `"tokens"`, `"words"` or `"characters"`.

    >>> ideal_length(2, 4, unit="words")(completions=["one", "one two", "one two three four five six"])
    [0.5, 1.0, 0.5]
    """

    low: int
    high: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._set(high=self.low if self.high is None else self.high)
        if not 1 <= self.low <= self.high:
            raise ValueError(
                f"low = {self.low!r} and high = {self.high!r}: lengths must be at least 1, and low at most high."
            )

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        length = self.length(text, row)
        return length / self.low if length < self.low else max(0.0, 1.0 - max(length - self.high, 0) / self.high)


@dataclass(frozen=True, repr=False)
class minimum_length(LengthReward):
    """1.0 from `minimum` on, below it the share of it that is there: against answers without any reasoning.

    Args:
        minimum: The length from which on it pays in full.

    >>> minimum_length(4, unit="words")(completions=["one", "one two three four five"])
    [0.25, 1.0]
    """

    minimum: int = at_least_one()

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        return min(1.0, self.length(text, row) / self.minimum)


@dataclass(frozen=True, repr=False)
class soft_overlong(LengthReward):
    """0.0 up to `max_length - cache`, then down in a straight line to -1.0 at `max_length` and beyond.

    TRL's `get_soft_overlong_punishment(max_completion_len, soft_punish_cache)`, the same numbers. It works only if
    `max_length` is at most the trainer's `max_completion_length`: no completion gets longer than that.

    Args:
        max_length: From which on it is -1.0.
        cache: How far before that it begins to fall.

    >>> soft_overlong(100, 20)(completions=["..."], completion_ids=[[1] * 90])
    [-0.5]
    """

    max_length: int
    cache: int
    _: KW_ONLY
    weight: float = 1.0
    source: ClassVar[str] = "DAPO, arXiv:2503.14476, equation 13; TRL's get_soft_overlong_punishment"
    range: ClassVar[tuple[float, float]] = (-1.0, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        longest, cache = self.max_length, self.cache
        if not 0 <= cache <= longest or longest < 1:
            raise ValueError(f"max_length = {longest!r}, cache = {cache!r}: cache must be between 0 and max_length.")

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        length, free = self.length(text, row), self.max_length - self.cache
        if length <= free:
            return 0.0
        return (free - length) / self.cache if length <= self.max_length else -1.0


@dataclass(frozen=True, repr=False)
class cosine_length(LengthReward, BatchReward):
    r"""A right answer earns more the shorter it is; a wrong one loses less the longer it is, on a cosine.

    TRL's `get_cosine_scaled_reward` with the same numbers, but for the judge: any reward of the kit, where TRL's is its
    `accuracy_reward`. Put it in the place of a reward for correctness, not beside it.

    Args:
        max_length: Where the cosine ends.
        judge: The reward that says what is right, by the highest score that it can give; `correctness()` if not given.
        weight: Of the total reward.
        name: Under which TRL logs it.
        unit: `"tokens"`, `"words"` or `"characters"`.
        wrong: Score of a wrong completion of no length, and of `max_length`.
        right: Score of a right completion of `max_length`, and of no length.

    >>> reward = cosine_length(max_length=100)
    >>> reward(completions=["<answer>7</answer>", "<answer>8</answer>"], answer=["7", "7"], completion_ids=[[1] * 50] * 2)
    [0.75, -0.75]
    """

    max_length: int = at_least_one()
    _: KW_ONLY
    judge: Reward | None = None
    weight: float = 1.0
    wrong: tuple[float, float] = (-1.0, -0.5)
    right: tuple[float, float] = (0.5, 1.0)
    source: ClassVar[str] = "arXiv:2502.03373, appendix C.1; TRL's get_cosine_scaled_reward"

    def __post_init__(self) -> None:
        judge = self.judge or correctness()
        if not isinstance(judge, Reward) or not math.isfinite(judge.range[1]):
            raise ValueError(
                f"judge = {judge!r} must be a reward of the kit whose highest score is known, such as correctness(); "
                "put clipped(...) around one without bounds."
            )
        self._set(judge=judge, format=judge.format, wrong=tuple(self.wrong), right=tuple(self.right))
        super().__post_init__()
        if not self.wrong[0] <= self.wrong[1] <= self.right[0] <= self.right[1]:
            raise ValueError(
                f"wrong = {self.wrong!r} and right = {self.right!r} must rise: else being wrong pays better than being right."
            )

    @property
    def range(self) -> tuple[float, float]:
        return (min(self.wrong), max(self.right))

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        verdicts = self.judge.score_batch(texts, rows)
        return [
            None if verdict is None else self._scale(verdict >= self.judge.range[1] - 1e-9, self.length(text, row))
            for verdict, text, row in zip(verdicts, texts, rows, strict=True)
        ]

    def _scale(self, is_right: bool, length: int) -> float:
        # Beyond the maximum the cosine would rise again.
        cosine = math.cos(min(length / self.max_length, 1.0) * math.pi)
        # Right: short is best. Wrong: long is best, as thinking on may still help.
        end, start = self.right if is_right else reversed(self.wrong)
        return float(end + 0.5 * (start - end) * (1.0 + cosine))


@dataclass(frozen=True, kw_only=True, repr=False)
class repetition(Reward):
    """0.0 if no run of `ngram_size` tokens comes twice, down towards `max_penalty` the more of them do.

    TRL's `get_repetition_penalty_reward`, the same numbers on `completion_ids`; without them, words and punctuation marks
    are counted. It does not see what is repeated in other words.

    Args:
        ngram_size: Tokens of a run.
        max_penalty: The score where every run is a repeat; 0 or negative.

    Raises:
        ValueError: `max_penalty` above 0, `ngram_size` below 1.

    >>> repetition(ngram_size=2)(completions=["", ""], completion_ids=[[1, 2, 3, 4], [5, 5, 5, 5, 5]])
    [0.0, -0.75]
    """

    ngram_size: int = at_least_one(3)
    max_penalty: float = checked("0 or negative: it is a penalty", lambda value: -1e6 <= value <= 0, -1.0)
    source: ClassVar[str] = "arXiv:2502.03373, appendix C.2; TRL's get_repetition_penalty_reward"

    @property
    def range(self) -> tuple[float, float]:
        return (self.max_penalty, 0.0)

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        parts = row.get("completion_ids")
        if not isinstance(parts, (list, tuple)):
            parts = split_words(text)
        if len(parts) < self.ngram_size:
            return 0.0
        ngrams = list(zip(*(parts[i:] for i in range(self.ngram_size)), strict=False))
        repeated = 1 - len(set(ngrams)) / len(ngrams)
        return repeated * self.max_penalty if repeated else 0.0


_STEP = re.compile(
    r"^[ \t]*(?:[-*\u2022]|\(?[0-9]{1,3}[.):]|(?:\*\*)?step\s+[0-9]{1,3}\b[:.)]?(?:\*\*)?"
    r"|(?:first|second|third|next|then|now|so|therefore|finally)(?:ly)?\b,?)[ \t]*(\S.*)$",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True, repr=False)
class reasoning_steps(Reward):
    """The share of `count` steps in the reasoning: lines that begin as `1.`, `Step 2:`, `-`, `First,` and say something new.

    Only lines with at least `words` different words count, and equal lines once, so that markers alone earn nothing.
    Whether a step makes sense, this cannot see. Words such as "First" are English; numbers and dashes are everybody's.

    Args:
        count: Steps that pay in full.
        words: The fewest different words of a line that counts.

    >>> reasoning_steps(2)(completions=["1. 3 + 4 is 7\\n2. so it is 7", "1. Step\\n2. Step\\nFirst, First, First"])
    [1.0, 0.0]
    """

    count: int = at_least_one(3)
    _: KW_ONLY
    words: int = at_least_one(3)
    weight: float = 0.2
    source: ClassVar[str] = "the reasoning-steps reward of open-r1, counted so that markers alone earn nothing"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        bodies = (split_words(match[1].casefold()) for match in _STEP.finditer(self.format.reasoning(text)))
        distinct = {tuple(body) for body in bodies if len(set(body)) >= self.words}
        return min(1.0, len(distinct) / self.count)


@dataclass(frozen=True, repr=False)
class banned_phrases(Reward):
    """0.0 without any of the phrases, `penalty` for each time one stands there, never below -1.0.

    Whole words, without regard to case, width of letters, invisible characters and line breaks. Other words for the same
    thing pass.

    Args:
        phrases: Texts that must not stand there.
        penalty: For each time; -1 to 0.

    >>> banned_phrases(["as an AI"])(completions=["As an  AI, I can't.", "As a nail, it holds."])
    [-0.5, 0.0]
    """

    phrases: Sequence[str]
    _: KW_ONLY
    penalty: float = checked("between -1 and 0", lambda value: -1 <= value <= 0, -0.5)
    weight: float = 0.5
    source: ClassVar[str] = "the kit's own"
    range: ClassVar[tuple[float, float]] = (-1.0, 0.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        phrases = (self.phrases,) if isinstance(self.phrases, str) else tuple(self.phrases)
        if not phrases or not all(isinstance(p, str) and _canonical(p).strip() for p in phrases):
            raise ValueError(f"phrases = {list(phrases)!r} must hold at least one phrase, and no empty one.")
        self._set(phrases=phrases)

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        found = _banned(self.phrases).findall(_canonical(text))
        return max(-1.0, self.penalty * len(found)) if found else 0.0


@lru_cache(maxsize=64)
def _banned(phrases: tuple[str, ...]) -> re.Pattern[str]:
    # The longest first, so that one that begins like another is found whole. Boundaries only where a word ends.
    found = sorted({_canonical(phrase).strip() for phrase in phrases}, key=len, reverse=True)
    starts = (r"(?<!\w)" if phrase[0].isalnum() else "" for phrase in found)
    ends = (r"(?!\w)" if phrase[-1].isalnum() else "" for phrase in found)
    bounded = (start + re.escape(phrase) + end for start, phrase, end in zip(starts, found, ends, strict=True))
    return re.compile("|".join(bounded))


def _canonical(text: str) -> str:
    """The text as it reads: without invisible characters and accents of form, in one case, with single spaces."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    visible = "".join(c for c in folded if unicodedata.category(c) != "Cf") if not folded.isascii() else folded
    return " ".join(visible.split())


@dataclass(frozen=True, kw_only=True, repr=False)
class ScriptReward(Reward):
    """What `language` makes.

    Args:
        scripts: Names of Unicode scripts.
        letters: The fewest that are a sample.
    """

    weight: float = 0.2
    scripts: tuple[str, ...] = ("Latin",)
    letters: int = at_least_one(10)
    source: ClassVar[str] = (
        "the language consistency reward of DeepSeek-R1 (arXiv:2501.12948, section 2.3.2), by script"
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        _letters(self.scripts)

    @classmethod
    def made_by(cls) -> str:
        return "language"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        for tag in (*self.format.tags, self.format.reasoning_open):
            text = text.replace(tag, " ") if tag else text
        # LaTeX commands and code are Latin letters in every language.
        text = re.sub(r"```.*?(?:```|\Z)|\\[A-Za-z]+", " ", text, flags=re.DOTALL)
        every, own = _letters(self.scripts)
        count = len(every.findall(text))
        return 0.0 if count < self.letters else len(own.findall(text)) / count


@lru_cache(maxsize=64)
def _letters(scripts: tuple[str, ...]) -> tuple[Any, Any]:
    import regex

    classes = "".join(rf"\p{{Script={script}}}" for script in scripts)
    try:
        return regex.compile(r"\p{L}"), regex.compile(rf"[[{classes}]&&\p{{L}}]", regex.V1)
    except regex.error as error:
        raise ValueError(
            f"scripts = {list(scripts)!r} must be names of Unicode scripts, such as Latin, Cyrillic, Han, Hiragana, "
            f"Katakana, Hangul, Arabic, Devanagari, Greek, Hebrew ({error})."
        ) from error


def language(
    *scripts: str, letters: int = 10, weight: float = 0.2, format: AnswerFormat | None = None, name: str = "language"
) -> Reward:
    """The share of letters in the given Unicode scripts, Latin if none is given, 0.0 to 1.0.

    Against mixing, as when a model drifts from English into Chinese. It tells scripts apart, not languages: English and
    French are both Latin. No letter counts inside tags, LaTeX commands and code fences. Fewer than `letters` letters are no
    sample and score 0.0, as saying nothing must not pay.

    Args:
        *scripts: Names of Unicode scripts, such as Cyrillic or Han.
        letters: The fewest that are a sample.
        weight: Of the total reward.
        format: Whose tags do not count; `xml()` if not given.
        name: Under which TRL logs it.

    Raises:
        ValueError: A script that Unicode does not have.

    >>> language()(completions=["The sum is seven.", "The sum is \u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03"])
    [1.0, 0.5]
    """
    return ScriptReward(scripts=scripts or ("Latin",), letters=letters, weight=weight, format=format, name=name)
