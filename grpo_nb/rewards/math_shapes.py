r"""One spelling of LaTeX for mathematical answers, and the parts of an answer.

`normalize_latex` changes the spelling and not the meaning: `\leq`, `<=` and the Unicode sign become
`\le`. `Shape.of` then splits the answer into the parts of a list, tuple or interval.
Inequalities become intervals first: `x < 1 or x > 3` is a union of two. An answer without such
parts is one expression.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from html.entities import name2codepoint
from itertools import chain

from grpo_nb.tasks.markup import BALANCED_TEXT, strip_markup

_BOX = re.compile(rf"\\(?:boxed|fbox)\s*\{{({BALANCED_TEXT})\}}")
_BETWEEN_BOXES = (
    r"(?:[\s$(){},;]|\\[()\[\],;\\ ]|\\q?quad|\\text\b|and|or|\b[A-Za-z]+(?=\s+(?:and|or)\b))*"
)
r"""Text between two boxes that are parts of one answer. A word before `and` or `or` may be a unit
and is ignored: \boxed{3} apples and \boxed{4} pears.
"""
_RUN_OF_BOXES = re.compile(rf"{_BOX.pattern}(?:{_BETWEEN_BOXES}{_BOX.pattern})*")

# Unicode character -> LaTeX.
_LATEX_OF_CHARACTER = {
    "\u221e": r"\infty ",
    "\u2264": r"\le ",
    "\u2265": r"\ge ",
    "\u2260": r"\ne ",
    "\u00b1": r"\pm ",
    "\u222a": r"\cup ",
    "\u2208": r"\in ",
    "\u2205": r"\emptyset ",
    "\u2032": "'",  # prime
    "\u03c2": r"\sigma ",  # sigma at the end of a word
}
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma "
    "tau upsilon phi chi psi omega Delta Theta Lambda Xi Sigma Phi Psi"
)
"""Greek letters have the same names in LaTeX and in HTML. Omega is not here, because that sign may
be the unit ohm.
"""
_LATEX_OF_GREEK = {name2codepoint[name]: f"\\{name} " for name in _GREEK_NAMES.split()}
_TO_LATEX = str.maketrans(_LATEX_OF_CHARACTER) | _LATEX_OF_GREEK

# Canonical spelling -> commands that mean the same. "" removes the command. A space ends the name
# of a command. \quad is a line break, because a second answer may follow it (`is_single_answer`).
_SYNONYMS = {
    "": "big Big bigl bigr Bigl Bigr bigg Bigg",
    "\n": "quad qquad",
    "<": "lt",
    ">": "gt",
    r"\le ": "le leq leqslant leqq",
    r"\ge ": "ge geq geqslant geqq",
    r"\ne ": "ne neq",
    r"\{": "lbrace",
    r"\}": "rbrace",
    "[": "lbrack",
    "]": "rbrack",
    "|": "vert lvert rvert mid",
    r"\emptyset ": "varnothing",
    r"\text": "textbf textit textrm textnormal textsf mathrm mathsf mbox operatorname",
}
_CANONICAL_COMMANDS = {
    synonym: canonical for canonical, synonyms in _SYNONYMS.items() for synonym in synonyms.split()
}
_FUNCTIONS = "sqrt|pi|sin|cos|tan|cot|log|ln|exp"


# Pattern -> replacement. The order matters: each pattern sees the result of the earlier ones.
_REWRITES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    # $x$ is x.
    (r"(?<!\\)\$\$?((?:[^$\\]|\\.)*+)\$\$?", r" \1 "),
    # The Unicode root sign before (x + 1), 2 or x is \sqrt{x + 1}, \sqrt{2} or \sqrt{x}.
    (r"\u221a\s*(?:\(([^()]*)\)|([0-9.]+|\w|\\[A-Za-z]+))", r"\\sqrt{\1\2}"),
    # \mathbf{x} is x, and \mathrm{e} is e.
    (r"\\(?:mathbf|boldsymbol|bm|mathit)\s*\{([^{}]*)\}|\\mathrm\s*\{\s*([eid])\s*\}", r"\1\2"),
    # Every command in its canonical spelling: \leq is \le.
    (
        r"(?<!\\)\\([A-Za-z]+)\s*",
        lambda match: _CANONICAL_COMMANDS.get(match[1], match[0]),
    ),
    # \text{and} is the word between two parts, and not a unit.
    (r"\\text\{\s*(and|or),?\s*\}", r" \1 "),
    (r"<=", r"\\le "),
    (r">=", r"\\ge "),
    (r"!=", r"\\ne "),
    # Every matrix and array is a pmatrix.
    (r"\\(begin|end)\s*\{[bB]?(?:small)?(?:matrix|array)\}(?:\{[clr|]*\})?", r"\\\1{pmatrix}"),
    # f^{\prime} is f'.
    (
        r"\^\s*(?:\{(?:\s*\\prime)+\s*\}|\\prime(?![A-Za-z]))",
        lambda match: "'" * match[0].count("prime"),
    ),
    # x**2 is x^2.
    (r"(?<=[\w)}])\s*\*\*\s*(?=[\w({-])", "^"),
    # x_1 is x_{1}.
    (r"_\s*([0-9]+|[A-Za-z])", r"_{\1}"),
    # sin x is \sin x.
    (rf"(?<![\\A-Za-z])(?=(?:{_FUNCTIONS})(?![A-Za-z]))", r"\\"),
    # \sqrt2 and \sqrt(2) are \sqrt{2}.
    (r"\\sqrt(\[[^\]]*\])?\s*(?:([0-9A-Za-z])|\(([^()]*)\))", r"\\sqrt\1{\2\3}"),
    # 2/3 x is two thirds of x, and not 2 divided by 3x.
    (
        r"(?<![\d./}^])(\d+)\s*/\s*(\d+)\s*(?=[A-Za-z]|\\(?:pi|sqrt|[a-z]+\())",
        r"\\frac{\1}{\2}",
    ),
]

_SYMBOL = r"(?:[A-Za-z]|\\[a-z]+)(?:_\{\w+\})?'*"
# x, f(x), f(\pi) and (x, y) may be left of an equals sign, but \pi is a number.
_LEFT_SIDE = (
    r"(?!\\pi\b)"
    rf"(?:{_SYMBOL}(?:\(\s*{_SYMBOL}\s*\))?|\(\s*{_SYMBOL}(?:\s*,\s*{_SYMBOL})+\s*\))"
)
_EQUATION = re.compile(
    rf"\s*(?P<left>{_LEFT_SIDE})\s*(?:=(?!=)|\\in(?![A-Za-z]))\s*(?P<right>.*)", re.DOTALL
)
_BRACKET = re.compile(r"(?P<open>\\\{|[(\[{])|(?P<close>\\\}|[)\]}])")
_INEQUALITY_SIGN = re.compile(r"\s*(\\(?:le|ge)(?![A-Za-z])|[<>])\s*")
_OR_EQUAL = (r"\le", r"\ge")
# \pm, but not the beginning of \pmod.
_PLUS_MINUS = re.compile(r"\\pm(?![A-Za-z])\s*")
_OR = r"(?<![A-Za-z\\])or(?![A-Za-z])"
_AND_OR = re.compile(r"(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])")
# "and", "or", a semicolon or a comma between two parts, but not the comma of 1,234.
_SEPARATOR = rf"[,;]?\s*{_AND_OR.pattern}|;|,(?!\d{{3}}(?!\d))"

EXPRESSION = "expression"
LIST = "list"
# The kind of a tuple or interval is its pair of brackets.
ROUND = "()"
_BRACKET_KINDS = (ROUND, "[]", "[)", "(]")


def boxed_answers(text: str) -> str:
    r"""Return the boxed answer of a worked solution, as in MATH; the text itself if it has no box.

    Boxes with nothing but punctuation, `and`, `or` or a unit between them are the parts of one
    answer. Of other boxes, the last counts.

    >>> boxed_answers(r"So $\boxed{1}$ and $\boxed{2}$."), boxed_answers("7")
    ('1, 2', '7')
    """
    last_run = ""
    for match in _RUN_OF_BOXES.finditer(text):
        last_run = match[0]
    # Each answer once, in order.
    answers = dict.fromkeys(map(str.strip, _BOX.findall(last_run)))
    return ", ".join(answers) or text


@lru_cache(maxsize=4_096)
def normalize_latex(text: str) -> str:
    r"""Return an answer in one spelling of LaTeX, without boxes, dollar signs and other wrappers.

    >>> normalize_latex("x\u00b2 \u2264 4"), normalize_latex(r"$\boxed{\dfrac12}$.")
    ('x^{2} \\le 4', '\\frac{1}{2}')
    >>> normalize_latex("2/3\u03c0")
    '\\frac{2}{3}\\pi'
    """
    if "\\begin" not in text:
        # `\\frac` is `\frac` that was escaped twice, as in JSON. In a matrix, `\\` ends a row.
        text = re.sub(r"\\\\(?=[A-Za-z{}()\[\]%])", r"\\", text)
    text = strip_markup(text).translate(_TO_LATEX)
    # A box gets a line of its own, because it may be a second answer, and `is_single_answer`
    # refuses an extra line break. In a matrix, line breaks have no meaning.
    text = _BOX.sub(r"\n\1\n", text)
    if "\\begin" in text:
        text = " ".join(text.split())
    for pattern, replacement in _REWRITES:
        text = re.sub(pattern, replacement, text)
    return strip_markup(text)


def without_spaces(text: str) -> str:
    r"""Return a normalised text without white space, and with `*` for `\cdot`.

    The space between two digits stays: `1 2` is not `12`.

    >>> without_spaces(r"(\frac{1}{2}, 3 \cdot x)")
    '(\\frac{1}{2},3*x)'
    """
    # First, while the space of `\cdot x` still shows where the name of the command ends.
    text = re.sub(r"\\cdot(?![A-Za-z])", "*", text)
    return re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", text)


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


@dataclass(frozen=True)
class Shape:
    """The parts of an answer and how they belong together."""

    kind: str
    """`EXPRESSION`, `LIST`, or the brackets of a tuple or interval, such as `[)`."""
    parts: list[str]
    """The parts; those of `x = 1, y = 2` are whole equations. An expression is its only part."""
    left_side: str = ""
    """The left side that all parts share: `x` in `x = 1` and in `x = (1, 2)`."""
    variables: Collection[str] = ()
    """Variables of the parts if each part has a left side of its own: x and y in `x = 1, y = 2`,
    and only x in `x_1 = 1, x_2 = 2`. Otherwise empty."""
    conjunctions: Sequence[str] = ()
    """The words `and` and `or` of a list, in order."""

    @classmethod
    def of(cls, text: str) -> Shape:
        """Return the shape of a normalised text."""
        text = _inequalities_to_intervals(text)
        brackets, content = _split_brackets(text)
        # A tuple or an interval: (1, 2].
        if brackets in _BRACKET_KINDS:
            elements = _split_outside_brackets(content, "[,;]")
            if len(elements) > 1:
                return cls(brackets, elements)
        # Round brackets around a single element, as in (x + 1), belong to an expression. Others are
        # those of a list: {1, 2}.
        shape = cls._of_list(text if brackets == ROUND else content)
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
        variables = {left_side.partition("_")[0] for left_side in left_sides}
        if len(parts) == 1 or "" in left_sides or len(left_sides) < len(parts):
            # Not each part has a left side of its own. If each has one, as in
            # `x = \pm 1, y = \pm 2`, the signs belong together, and the parts stay whole.
            variables = set()
            parts = list(chain.from_iterable(map(_split_plus_minus, parts)))
        elif all(len(left_side) == 1 for left_side in left_sides):
            # In the order of the alphabet, so that `y = 2, x = 1` equals the tuple (1, 2). Other
            # left sides have no order that everybody keeps: r and \theta.
            parts.sort()
        return cls(LIST, parts, variables=variables, conjunctions=_AND_OR.findall(text))


def _inequalities_to_intervals(text: str) -> str:
    r"""Return `x > 3` as `x \in (3, \infty)`, and other texts as they are.

    `x < 1 or x > 3` is the union of two intervals.
    """
    intervals = [_interval_of(part) for part in _split_outside_brackets(text, _OR)]
    variables = {variable for variable, _ in intervals}
    if len(variables) > 1 or "" in variables:
        return text
    union = r" \cup ".join(interval for _, interval in intervals)
    return rf"{variables.pop()} \in {union}"


def _interval_of(text: str) -> tuple[str, str]:
    r"""Return `x` and `(1, 2]` for `1 < x \le 2`; an empty variable and "" for other texts."""
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
        # `x < 2` is `-\infty < x < 2`, and `1 < x` is `1 < x < \infty`. In `a < x`, the variable is
        # the last letter in the alphabet.
        variable = max(filter(_is_variable, pieces[::2]), default="")
        is_below = pieces[0] == variable
        pieces = [r"-\infty", "<", *pieces] if is_below else [*pieces, "<", r"\infty"]
    low, sign_after_low, variable, sign_before_high, high = pieces
    if not _is_variable(variable):
        return "", ""
    opening = "[" if sign_after_low in _OR_EQUAL else "("
    closing = "]" if sign_before_high in _OR_EQUAL else ")"
    return variable, f"{opening}{low}, {high}{closing}"


def _is_variable(text: str) -> bool:
    """Return True for `x`, `f(x)` or `(p, q)`, and not for a number, a word or a sum."""
    return re.fullmatch(_LEFT_SIDE, text) is not None
