r"""The parts of a mathematical answer.

`Shape.of` splits an answer into the parts of a list, tuple or interval. Inequalities become
intervals first: `x < 1 or x > 3` is a union of two. An answer without such parts is one expression.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import chain

from grpo_nb.rewards.math_latex import without_spaces

SYMBOL = r"(?:\\[A-Za-z]+|[A-Za-z])(?:_\{\w+\})?'*"
r"""One symbol: `x`, `x_{1}`, `f'`, `\alpha`."""
_LEFT_SIDE = (
    r"(?!\\(?:pi|infty)\b)"  # these two are values
    rf"(?:{SYMBOL}(?:\(\s*{SYMBOL}\s*\))?"  # x, f(x), f(\pi)
    rf"|\(\s*{SYMBOL}(?:\s*,\s*{SYMBOL})+\s*\))"  # (x, y)
)
# x = 42, f(x) = 2x, x \in [1, 2]; but not x == 42.
_EQUATION = re.compile(
    rf"\s*(?P<left>{_LEFT_SIDE})\s*(?:=(?!=)|\\in(?![A-Za-z]))\s*(?P<right>.*)", re.DOTALL
)
_BRACKET = re.compile(r"(?P<open>\\\{|[(\[{])|(?P<close>\\\}|[)\]}])")
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

EXPRESSION = "expression"
LIST = "list"
# The kind of a tuple or interval is its pair of brackets.
ROUND = "()"
_BRACKET_KINDS = (ROUND, "[]", "[)", "(]")
_SET_BRACKETS = r"\{\}"


@dataclass(frozen=True)
class Shape:
    """The parts of an answer and how they belong together."""

    kind: str
    """`EXPRESSION`, `LIST`, or the brackets of a tuple or interval, such as `[)`."""
    parts: list[str]
    """The parts; those of `x = 1, y = 2` are whole equations. An expression is its only part."""
    left_side: str = ""
    """The left side that all parts share: `x` in `x = 1` and in `x = (1, 2)`."""
    has_left_sides: bool = False
    """True for a list whose parts each have a left side of their own: `x = 1, y = 2`."""
    is_numbered: bool = False
    """True if these left sides differ only in their index: `x_1 = 1, x_2 = 2`."""
    is_alternative: bool = False
    """True if `or` joins equations for several variables, or inequalities: `x = 1 or y = 2`. In
    other lists, as in `1 or 2`, the word means the same as `and`."""

    @classmethod
    def of(cls, text: str) -> Shape:
        r"""Return the shape of a normalised text.

        >>> shape = Shape.of("x = (1, 2]")
        >>> shape.kind, shape.parts, shape.left_side
        ('(]', ['1', '2'], 'x')
        >>> Shape.of("x + 1").kind, Shape.of(r"\{1, 2\}").kind, Shape.of("1 or 2").parts
        ('expression', 'list', ['1', '2'])
        """
        text = _inequalities_to_intervals(text)
        brackets, content = _split_brackets(text)
        # A tuple or an interval: (1, 2].
        if brackets in _BRACKET_KINDS:
            elements = _split_outside_brackets(content, "[,;]")
            if len(elements) > 1:
                return cls(brackets, elements)
        # Round brackets around a single element, as in (x + 1), belong to an expression.
        listed = text if brackets == ROUND else content
        if brackets == _SET_BRACKETS:
            # The comma of a set always separates: {100,200} has two elements.
            listed = listed.replace(",", ", ")
        shape = cls._of_list(listed)
        if len(shape.parts) > 1:
            return shape
        # A left side before one of these shapes: x = (1, 2).
        left_side, right_side = _split_equation(text)
        if left_side:
            return replace(cls.of(right_side), left_side=left_side)
        return cls(EXPRESSION, [text])

    @classmethod
    def _of_list(cls, text: str) -> Shape:
        """Return a text as a list, which may have a single part: 1, 2 or x = 1, y = 2."""
        parts = _split_outside_brackets(text, _SEPARATOR)
        left_sides = {_split_equation(part)[0] for part in parts}
        has_left_sides = len(parts) == len(left_sides) > 1 and "" not in left_sides
        if not has_left_sides:
            parts = list(chain.from_iterable(map(_split_plus_minus, parts)))
        # In `x = \pm 1, y = \pm 2`, the signs belong together, and such parts stay whole.
        elif all(len(left_side) == 1 for left_side in left_sides):
            # In the order of the alphabet, so that `y = 2, x = 1` equals the tuple (1, 2). Other
            # left sides have no order that everybody keeps: r and \theta.
            parts.sort()
        letters = {left_side.partition("_")[0] for left_side in left_sides}
        is_numbered = has_left_sides and len(letters) == 1
        has_variables = has_left_sides and not is_numbered
        has_statements = has_variables or any(map(_INEQUALITY_SIGN.search, parts))
        return cls(
            LIST,
            parts,
            has_left_sides=has_left_sides,
            is_numbered=is_numbered,
            is_alternative=has_statements and re.search(_OR, text) is not None,
        )

    @property
    def has_parts(self) -> bool:
        """True for a list, a tuple or an interval."""
        return self.kind != EXPRESSION


def _split_equation(text: str) -> tuple[str, str]:
    r"""Split `x = 42` into `x` and `42`. The left side is empty if it is no variable.

    `f(x)` and `(p, q)` are left sides too, but a number is not. `\in` splits a text as `=` does.

    >>> _split_equation("x = 42"), _split_equation("41 = 42"), _split_equation("f(x) = 2x")
    (('x', '42'), ('', '41 = 42'), ('f(x)', '2x'))
    """
    match = _EQUATION.fullmatch(text)
    if match is None:
        return "", text
    return without_spaces(match["left"]), match["right"].strip()


def _split_brackets(text: str) -> tuple[str, str]:
    """Return the pair of brackets around a whole text, such as `[)`, and the content.

    Without such a pair, as in `(1)(2)`, return an empty pair and the text.
    """
    opening = _BRACKET.match(text)
    depth = 0
    for bracket in _BRACKET.finditer(text):
        depth += 1 if bracket["open"] else -1
        if depth == 0:
            # Back at depth 0: the first pair has closed. In ]1, 2[, no bracket was open.
            if opening and opening["open"] and bracket.end() == len(text):
                return opening[0] + bracket[0], text[opening.end() : bracket.start()]
            break
    return "", text


def _split_outside_brackets(text: str, separator: str) -> list[str]:
    """Split a text at a pattern, but not inside brackets.

    The two brackets of an interval need not be alike, so any bracket closes any other.
    """
    parts = []
    depth = 0
    start = 0
    for mark in re.finditer(rf"{_BRACKET.pattern}|{separator}", text):
        if mark["open"]:
            depth += 1
        elif mark["close"]:
            depth -= 1
        elif depth == 0:
            parts.append(text[start : mark.start()].strip())
            start = mark.end()
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
    intervals = [_interval_of(part) for part in _split_outside_brackets(text, _OR)]
    left_sides = {left_side for left_side, _ in intervals}
    if len(left_sides) > 1 or "" in left_sides:
        return text
    union = r" \cup ".join(interval for _, interval in intervals)
    return rf"{left_sides.pop()} \in {union}"


def _interval_of(text: str) -> tuple[str, str]:
    r"""Return `x` and `(1, 2]` for `1 < x \le 2`; an empty left side and "" for other texts."""
    # Values and signs in turn: 1, <, x, \le, 2. A comma at the end was before an "or".
    pieces = _INEQUALITY_SIGN.split(text.rstrip(", "))
    signs = set(pieces[1::2])
    is_falling = signs <= {">", r"\ge"}
    is_rising = signs <= {"<", r"\le"}
    if len(pieces) not in (3, 5) or is_falling == is_rising:
        return "", ""
    if is_falling:
        # `2 > x > 1` is `1 < x < 2`. The direction of the signs has no meaning from here on.
        pieces.reverse()
    if len(pieces) == 3:
        # `x < 2` is `-\infty < x < 2`, and `1 < x` is `1 < x < \infty`. If both sides are symbols,
        # the last name in the alphabet is the variable: x in `a < x`, \theta in `a < \theta`.
        symbols = filter(_is_left_side, pieces[::2])
        variable = max(symbols, key=lambda symbol: symbol.strip("\\").casefold(), default="")
        is_below = pieces[0] == variable
        pieces = [r"-\infty", "<", *pieces] if is_below else [*pieces, "<", r"\infty"]
    low, sign_after_low, left_side, sign_before_high, high = pieces
    if not _is_left_side(left_side):
        return "", ""
    opening = "[" if sign_after_low in _OR_EQUAL else "("
    closing = "]" if sign_before_high in _OR_EQUAL else ")"
    return left_side, f"{opening}{low}, {high}{closing}"


def _is_left_side(text: str) -> bool:
    """Return True for `x`, `f(x)` or `(p, q)`, and not for a number, a word or a sum."""
    return re.fullmatch(_LEFT_SIDE, text) is not None
