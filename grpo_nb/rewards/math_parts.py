r"""The parts of a mathematical answer.

`AnswerParts.of` splits an answer into the parts of a list, tuple or interval. Inequalities become
intervals first: `x < 1 or x > 3` is a union of two. An answer without such parts is one expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import chain

from grpo_nb.rewards.math_latex import without_spaces

SYMBOL = r"(?:\\[A-Za-z]+|[A-Za-z])(?:_\{\w+\})?'*"
r"""One symbol: `x`, `x_{1}`, `f'`, `\alpha`."""
_LEFT_SIDE = re.compile(
    r"(?!\\(?:pi|infty)\b)"  # these two are values
    rf"(?:{SYMBOL}(?:\(\s*{SYMBOL}\s*\))?"  # x, f(x), f(\pi)
    rf"|\(\s*{SYMBOL}(?:\s*,\s*{SYMBOL})+\s*\))"  # (x, y)
)
# x = 42, f(x) = 2x, x \in [1, 2]; but not x == 42.
_EQUATION = re.compile(
    rf"\s*(?P<left>{_LEFT_SIDE.pattern})\s*(?:=(?!=)|\\in(?![A-Za-z]))\s*(?P<right>.*)", re.DOTALL
)
_OPENING = r"(?P<opening>\\\{|[(\[{])"
_CLOSING = r"(?P<closing>\\\}|[)\]}])"
_BRACKET_OR_TEXT = re.compile(rf"{_OPENING}|{_CLOSING}|[^\\()\[\]{{}}]+|\\")
_INEQUALITY_SIGN = re.compile(r"\s*(\\(?:le|ge)(?![A-Za-z])|[<>])\s*")
_OR_EQUAL = (r"\le", r"\ge")
# \pm, but not the beginning of \pmod.
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])\s*")
# A word of its own: in `1 or 2`, but not in `\floor`.
_OR = r"(?<![A-Za-z\\])or(?![A-Za-z])"
_SEPARATOR = (
    r"[,;]?\s*(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])"  # 1 and 2; 1, or 2
    r"|;"
    r"|,(?!\d{3}(?!\d))"  # 1,2 and 1,2345, but not 1,234
)
"""Pattern between two parts of a list."""

# How parts may be read.
ANY_ORDER = "list in any order"
IN_ORDER = "list in order"
EQUATIONS = "equations"
ALTERNATIVES = "alternatives"
_ROUND_BRACKETS = "()"
_BRACKET_PAIRS = (_ROUND_BRACKETS, "[]", "[)", "(]")
_SET_BRACKETS = r"\{\}"


@dataclass(frozen=True)
class AnswerParts:
    r"""The parts of an answer, and how they may be read.

    An answer and a gold answer are compared part by part if they share a reading. A tuple or an
    interval is read as its pair of brackets:

    | answer             | readings                         |
    | ------------------ | -------------------------------- |
    | `x + 1`            | none: one expression             |
    | `1, 2`             | list in any order, list in order |
    | `(1, 2)`           | `()`                             |
    | `(1, 2]`           | `(]`                             |
    | `x = 1, y = 2`     | equations, list in order, `()`   |
    | `x = 1 or y = 2`   | alternatives                     |

    Equations are also read as the tuple of their values: `x = 1, y = 2` equals `(1, 2)`.
    The word `or` makes alternatives only of equations for several variables, and of inequalities.
    In other lists, as in `1 or 2`, it means the same as `and`.
    """

    readings: set[str]
    """The readings; none for an expression."""
    parts: list[str]
    """The parts; those of `x = 1, y = 2` are whole equations. An expression is its only part."""
    left_side: str = ""
    """The left side that all parts share: `x` in `x = 1` and in `x = (1, 2)`."""
    is_indexed: bool = False
    """True if the left sides are one variable with indices: `x_1 = 1, x_2 = 2`."""

    @classmethod
    def of(cls, text: str) -> AnswerParts:
        r"""Return the parts of a normalized text.

        >>> answer = AnswerParts.of("x = (1, 2]")
        >>> answer.readings, answer.parts, answer.left_side
        ({'(]'}, ['1', '2'], 'x')
        >>> AnswerParts.of("x + 1").readings, AnswerParts.of(r"\{1, 2\}").parts
        (set(), ['1', '2'])
        """
        text = _inequalities_to_intervals(text)
        brackets, content = _split_brackets(text)
        # A tuple or an interval: (1, 2].
        if brackets in _BRACKET_PAIRS:
            elements = _split_outside_brackets(content, "[,;]")
            if len(elements) > 1:
                return cls({brackets}, elements)
        # The brackets of a set are taken away. Round ones around a single element belong to it, as
        # in (x + 1). Without brackets, `content` is the text.
        list_text = text if brackets == _ROUND_BRACKETS else content
        if brackets == _SET_BRACKETS:
            # The comma of a set always separates: {100,200} has two elements.
            list_text = list_text.replace(",", ", ")
        answer = cls._of_list(list_text)
        if len(answer.parts) > 1:
            return answer
        # A left side before one of the above: x = (1, 2).
        left_side, right_side = _split_equation(text)
        if left_side:
            return replace(cls.of(right_side), left_side=left_side)
        return cls(set(), [text])

    @classmethod
    def _of_list(cls, text: str) -> AnswerParts:
        """Return a text as a list, which may have a single part: 1, 2 or x = 1, y = 2."""
        parts = _split_outside_brackets(text, _SEPARATOR)
        left_sides = {_split_equation(part)[0] for part in parts}
        # Each part has a left side, and no two are the same.
        is_named = len(parts) > 1 and len(left_sides) == len(parts) and "" not in left_sides
        has_or = re.search(_OR, text) is not None
        if not is_named:
            are_inequalities = any(map(_INEQUALITY_SIGN.search, parts))
            readings = {ALTERNATIVES} if has_or and are_inequalities else {ANY_ORDER, IN_ORDER}
            return cls(readings, list(chain.from_iterable(map(_split_plus_minus, parts))))
        is_indexed = len({side.partition("_")[0] for side in left_sides}) == 1
        readings = {EQUATIONS, IN_ORDER, _ROUND_BRACKETS}
        if has_or and not is_indexed:
            readings = {ALTERNATIVES}
        # In the order of the alphabet, so that `y = 2, x = 1` equals the tuple (1, 2). Other left
        # sides have no order that everybody keeps: r and \theta.
        if all(len(left_side) == 1 for left_side in left_sides):
            parts.sort()
        # The parts stay whole: in `x = \pm 1, y = \pm 2`, the signs belong together.
        return cls(readings, parts, is_indexed=is_indexed)


def _split_equation(text: str) -> tuple[str, str]:
    r"""Split `x = 42` into `x` and `42`. The left side is empty if it is not a variable.

    `f(x)` and `(p, q)` are left sides too, but a number is not. `\in` splits a text as `=` does.

    >>> _split_equation("x = 42"), _split_equation("41 = 42"), _split_equation("f(x) = 2x")
    (('x', '42'), ('', '41 = 42'), ('f(x)', '2x'))
    """
    match = _EQUATION.fullmatch(text)
    if match is None:
        return "", text
    return without_spaces(match["left"]), match["right"].strip()


def _outline(text: str) -> str:
    """Return a text with a dot for each character inside brackets.

    The two brackets of an interval need not be alike, so any closing bracket closes any opening
    one.

    >>> _outline("x = (1, f(2)], 3")
    'x = (.......], 3'
    """
    outline = ""
    depth = 0
    for match in _BRACKET_OR_TEXT.finditer(text):
        if match["closing"]:
            depth -= 1
        outline += match[0] if depth == 0 else "." * len(match[0])
        if match["opening"]:
            depth += 1
    return outline


def _split_brackets(text: str) -> tuple[str, str]:
    """Return the pair of brackets around a whole text, such as `[)`, and the content.

    Without such a pair, as in `(1)(2)`, return an empty pair and the text.
    """
    match = re.fullmatch(rf"{_OPENING}\.*{_CLOSING}", _outline(text))
    if match is None:
        return "", text
    content = text[match.end("opening") : match.start("closing")]
    return match["opening"] + match["closing"], content


def _split_outside_brackets(text: str, separator: str) -> list[str]:
    """Split a text at a pattern, but not inside brackets."""
    parts = []
    start = 0
    for match in re.finditer(separator, _outline(text)):
        parts.append(text[start : match.start()].strip())
        start = match.end()
    return [*parts, text[start:].strip()]


def _split_plus_minus(part: str) -> list[str]:
    r"""Return both values of `\pm 2`, and any other part alone.

    A part with several `\pm` stays whole, because it may have two values or four.

    >>> _split_plus_minus(r"1 \pm x"), _split_plus_minus(r"\pm 1 \pm x")
    (['1 +x', '1 -x'], ['\\pm 1 \\pm x'])
    """
    if len(_PLUS_MINUS.findall(part)) != 1:
        return [part]
    return [_PLUS_MINUS.sub(sign, part) for sign in "+-"]


def _inequalities_to_intervals(text: str) -> str:
    r"""Return `x > 3` as `x \in (3, \infty)`, and other texts as they are.

    `x < 1 or x > 3` is the union of two intervals.
    """
    pairs = map(_interval_of, _split_outside_brackets(text, _OR))
    left_sides, intervals = zip(*pairs, strict=True)
    if not left_sides[0] or len(set(left_sides)) > 1:
        return text
    union = r" \cup ".join(intervals)
    return rf"{left_sides[0]} \in {union}"


def _interval_of(text: str) -> tuple[str, str]:
    r"""Return `x` and `(1, 2]` for `1 < x \le 2`; an empty left side and "" for other texts."""
    # Values and signs in turn: 1, <, x, \le, 2. `x < 1, or x > 3` leaves a comma at the end.
    pieces = _INEQUALITY_SIGN.split(text.rstrip(", "))
    signs = set(pieces[1::2])
    is_falling = signs.issubset((">", r"\ge"))
    is_rising = signs.issubset(("<", r"\le"))
    if not signs or not (is_falling or is_rising) or len(pieces) > 5:
        return "", ""
    if is_falling:
        # `2 > x > 1` is `1 < x < 2`. The direction of the signs has no meaning from here on.
        pieces.reverse()
    if len(pieces) == 3:
        # `x < 2` is `-\infty < x < 2`, and `1 < x` is `1 < x < \infty`. If both sides are symbols,
        # the last name in the alphabet is the variable: x in `a < x` and in `x < a`.
        symbols = filter(_LEFT_SIDE.fullmatch, pieces[::2])
        variable = max(symbols, key=lambda symbol: symbol.strip("\\").casefold(), default="")
        variable_comes_first = pieces[0] == variable
        pieces = [r"-\infty", "<", *pieces] if variable_comes_first else [*pieces, "<", r"\infty"]
    low, sign_after_low, left_side, sign_before_high, high = pieces
    if not _LEFT_SIDE.fullmatch(left_side):
        return "", ""
    opening = "[" if sign_after_low in _OR_EQUAL else "("
    closing = "]" if sign_before_high in _OR_EQUAL else ")"
    return left_side, f"{opening}{low}, {high}{closing}"
