r"""Prepare expressions for math-verify: rewrite capitals and primes, and split a unit off.

math-verify ignores capitals and drops primes: `R/r` would be `r/R`, and `y'` would be `y`. It does
keep indices, so a capital and a prime are each rewritten as an index. All functions here read the
LaTeX of `math_latex.normalize_latex`.
"""

import re

from grpo_nb.tasks.units import unit_name

LETTERS_READ_AS_PRODUCT = re.compile(
    r"(?!(?:be|do|go|he|if|in|is|it|me|no|of|ok|on|or|ox|so|to|up|us|we)$)[a-z]{2}"
    r"|[a-df-hj-np-tv-z]{3}",
    re.IGNORECASE,
)
"""Letters that are read as a product of symbols, and not as a word.

Two letters are a product, such as `ab`, unless they are a listed word. Three letters are a product,
such as `mgh`, if none is e, i, o or u. `cat` is read as a product too, which does no harm: the
letters of a product without another sign are compared in their order (`_equals_normalized`).
"""
_SYMBOL_OR_PRODUCT = re.compile(rf"[a-z]|{LETTERS_READ_AS_PRODUCT.pattern}", re.IGNORECASE)
# Letters, a command, or one of these commands with the text in its braces: \text{cm}, \mathbb{R},
# \bar{X}.
_LETTERS_OR_COMMAND = re.compile(
    r"\\(?:text|math[a-z]+|bar|vec|hat|tilde|dot|overline)\s*\{[^{}]*\}|\\?[A-Za-z]+"
)
# Without \Gamma, which is also a function, and \Pi, which is also the sign of a product.
_GREEK_CAPITAL = re.compile(r"\\(?:Delta|Lambda|Omega|Phi|Psi|Sigma|Theta|Xi)(?![A-Za-z])")
# A symbol with primes, such as f', y'', x_{1}' or x'_{1}.
_SYMBOL_WITH_PRIMES = re.compile(r"([A-Za-z])(?:_\{(\w+)\})?\s*('+)(?:_\{(\w+)\})?")
# An expression and a text after it, which is a unit if `unit_name` knows it.
_UNIT_AT_END = re.compile(
    r"(?P<expression>.*[0-9})\]A-Za-z]) *"
    r"(?P<unit>\\text\s*\{[^{}]*\}(?:\^\{?[23]\}?)?"  # 5 \text{cm}^{2}
    r"|\^\{\\circ\}"  # 90^{\circ}
    r"| [A-Za-z/]{2,})"  # 5 km/h
)
# A letter after a number may be a unit, as in 2\pi m. After a variable, it is a variable too.
_LETTER_AFTER_NUMBER = re.compile(r"(?P<expression>(?:\\[a-z]+|[^\\A-Za-z])+) (?P<unit>[A-Za-z])")


UNIT_OR_VARIABLE = re.compile(" [A-Za-z]$")
r"""A letter at the end that may be a unit or a variable: the h of `2\pi h` may be hours."""


def has_distinct_capitals(expression: str) -> bool:
    r"""Return True if a letter occurs both as a capital and small, or if a Greek capital occurs.

    Otherwise capitals are only a spelling: `X` in one answer may be `x` in the other.

    >>> has_distinct_capitals(r"\frac{R}{r}"), has_distinct_capitals("x^{2} + C")
    (True, False)
    """
    letters = filter(_SYMBOL_OR_PRODUCT.fullmatch, _LETTERS_OR_COMMAND.findall(expression))
    symbols = set("".join(letters))
    has_both = not symbols.isdisjoint(map(str.swapcase, symbols))
    return has_both or _GREEK_CAPITAL.search(expression) is not None


def capitals_to_indices(expression: str) -> str:
    r"""Rewrite each capital of an expression as a small symbol with an index. Words stay.

    The symbol of a Latin capital is always x, because the small letter may have a meaning of its
    own, as e, i and d have. The index holds the letter. A Greek capital keeps its name: `\Delta`
    becomes `\delta_{capital}`.

    >>> capitals_to_indices(r"\frac{R_{1}}{r} + \Delta x")
    '\\frac{x_{capitalr1}}{r} + \\delta_{capital} x'
    """
    expression = _LETTERS_OR_COMMAND.sub(_capitals_to_index, expression)
    # Join two indices of a symbol: x_{capitalr}_{1} becomes x_{capitalr1}.
    return re.sub(r"(_\{capital\w*)\}_\{", r"\1", expression)


def _capitals_to_index(match: re.Match[str]) -> str:
    """Return letters with an index for each capital; a word or another command as it is."""
    letters = match[0]
    if _GREEK_CAPITAL.fullmatch(letters):
        return f"{letters.lower()}_{{capital}}"
    if _SYMBOL_OR_PRODUCT.fullmatch(letters):
        # Mg becomes x_{capitalm}g.
        return re.sub("([A-Z])", r"x_{capital\1}", letters).lower()
    return letters


def primes_to_indices(expression: str) -> str:
    r"""Rewrite the primes of each symbol as an index.

    >>> primes_to_indices("y'' + 1"), primes_to_indices("x_{1}'")
    ('y_{prime2} + 1', 'x_{1prime1}')
    """
    # An index that the symbol has already comes first.
    return _SYMBOL_WITH_PRIMES.sub(
        lambda match: match.expand(rf"\1_{{\2\4prime{len(match[3])}}}"), expression
    )


def split_unit(expression: str) -> tuple[str, str]:
    r"""Return an expression without the unit at its end, and the name of the unit.

    >>> split_unit(r"5\sqrt{2} cm"), split_unit("2ab")
    (('5\\sqrt{2}', 'centimeter'), ('2ab', ''))
    """
    match = _UNIT_AT_END.fullmatch(expression) or _LETTER_AFTER_NUMBER.fullmatch(expression)
    unit = unit_name(match["unit"]) if match else None
    return (match["expression"].strip(), unit) if unit else (expression, "")
