"""Rewards for how a completion is written: repetition, steps, banned phrases, script. Small weights: style is easy to fake."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

from grpo_nb.formats import AnswerFormat, xml
from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.length import split_words


@dataclass(frozen=True, repr=False)
class _Repetition(Reward):
    ngram_size: int = 3
    max_penalty: float = -1.0
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
class _Steps(Reward):
    count: int = 3
    words: int = 3
    source: ClassVar[str] = "the reasoning-steps reward of open-r1, counted so that markers alone earn nothing"

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        bodies = (split_words(match[1].casefold()) for match in _STEP.finditer(self.format.reasoning(text)))
        distinct = {tuple(body) for body in bodies if len(set(body)) >= self.words}
        return min(1.0, len(distinct) / self.count)


@dataclass(frozen=True, repr=False)
class _BannedPhrases(Reward):
    phrases: tuple[str, ...] = ()
    penalty: float = -0.5
    source: ClassVar[str] = "the kit's own"

    @property
    def range(self) -> tuple[float, float]:
        return (-1.0, 0.0)

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


@dataclass(frozen=True, repr=False)
class _Language(Reward):
    scripts: tuple[str, ...] = ("Latin",)
    letters: int = 10
    source: ClassVar[str] = (
        "the language consistency reward of DeepSeek-R1 (arXiv:2501.12948, section 2.3.2), by script"
    )

    def score_text(self, text: str, row: dict[str, Any]) -> float:
        for tag in (*self.format.tags, self.format.reasoning_open):
            text = text.replace(tag, " ") if tag else text
        # LaTeX commands and code are Latin letters in every language.
        text = re.sub(r"```.*?(?:```|\Z)|\\[A-Za-z]+", " ", text, flags=re.DOTALL)
        every, own = _letters(self.scripts)
        count = len(every.findall(text))
        if count < self.letters:
            return 0.0
        return len(own.findall(text)) / count


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


def repetition(
    *, ngram_size: int = 3, max_penalty: float = -1.0, weight: float = 1.0, name: str = "repetition"
) -> Reward:
    """0.0 if no run of `ngram_size` tokens comes twice, down towards `max_penalty` the more of them do.

    TRL's `get_repetition_penalty_reward`, the same numbers on `completion_ids`; without them, words and punctuation marks
    are counted. It does not see what is repeated in other words.

    Raises:
        ValueError: `max_penalty` above 0, `ngram_size` below 1.

    >>> repetition(ngram_size=2)(completions=["", ""], completion_ids=[[1, 2, 3, 4], [5, 5, 5, 5, 5]])
    [0.0, -0.75]
    """
    if ngram_size < 1:
        raise ValueError(f"ngram_size = {ngram_size!r} must be at least 1.")
    if not -1e6 <= max_penalty <= 0:
        raise ValueError(f"max_penalty = {max_penalty!r} must be 0 or negative: it is a penalty.")
    return _Repetition(weight=weight, name=name, ngram_size=ngram_size, max_penalty=float(max_penalty))


def reasoning_steps(
    count: int = 3,
    *,
    words: int = 3,
    weight: float = 0.2,
    format: AnswerFormat | None = None,
    name: str = "reasoning_steps",
) -> Reward:
    """The share of `count` steps in the reasoning: lines that begin as `1.`, `Step 2:`, `-`, `First,` and say something new.

    Only lines with at least `words` different words count, and equal lines once, so that markers alone earn nothing.
    Whether a step makes sense, this cannot see. Words such as "First" are English; numbers and dashes are everybody's.

    >>> reasoning_steps(2)(completions=["1. 3 + 4 is 7\\n2. so it is 7", "1. Step\\n2. Step\\nFirst, First, First"])
    [1.0, 0.0]
    """
    if count < 1 or words < 1:
        raise ValueError(f"count = {count!r} and words = {words!r} must be at least 1.")
    return _Steps(weight=weight, format=format or xml(), name=name, count=count, words=words)


def banned_phrases(
    phrases: Sequence[str], *, penalty: float = -0.5, weight: float = 0.5, name: str = "banned_phrases"
) -> Reward:
    """0.0 without any of the phrases, `penalty` for each time one stands there, never below -1.0.

    Whole words, without regard to case, width of letters, invisible characters and line breaks. Other words for the same
    thing pass.

    >>> banned_phrases(["as an AI"])(completions=["As an  AI, I can't.", "As a nail, it holds."])
    [-0.5, 0.0]
    """
    phrases = (phrases,) if isinstance(phrases, str) else tuple(phrases)
    if not phrases or not all(isinstance(p, str) and _canonical(p).strip() for p in phrases):
        raise ValueError(f"phrases = {list(phrases)!r} must hold at least one phrase, and no empty one.")
    if not -1 <= penalty <= 0:
        raise ValueError(f"penalty = {penalty!r} must be between -1 and 0.")
    return _BannedPhrases(weight=weight, name=name, phrases=phrases, penalty=penalty)


def language(
    *scripts: str,
    letters: int = 10,
    weight: float = 0.2,
    format: AnswerFormat | None = None,
    name: str = "language",
) -> Reward:
    """The share of letters in the given Unicode scripts, Latin if none is given, 0.0 to 1.0.

    Against mixing, as when a model drifts from English into Chinese. It tells scripts apart, not languages: English and
    French are both Latin. No letter counts inside tags, LaTeX commands and code fences. Fewer than `letters` letters are no
    sample and score 0.0, as saying nothing must not pay.

    Raises:
        ValueError: A script that Unicode does not have.

    >>> language()(completions=["The sum is seven.", "The sum is \u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03"])
    [1.0, 0.5]
    """
    scripts = scripts or ("Latin",)
    _letters(scripts)
    if letters < 1:
        raise ValueError(f"letters = {letters!r} must be at least 1.")
    return _Language(weight=weight, format=format or xml(), name=name, scripts=scripts, letters=letters)
