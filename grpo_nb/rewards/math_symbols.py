r"""A spelling of expressions from which math-verify drops no symbol.

math-verify ignores capitals, drops primes, and takes a variable at the end for a unit: `R/r` would
be `r/R`, `y'` would be `y`, and `\pi r^2 h` would be `\pi r^2`. It does keep indices, so a capital
and a prime are each rewritten as an index. It also keeps a variable in braces. All functions here
read the LaTeX of `math_shapes.normalize_latex`.
"""

import re

from grpo_nb.tasks.number_reading import unit_name

SYMBOL_PRODUCT = re.compile(
    r"(?!(?:be|do|go|he|if|in|is|it|me|no|of|ok|on|or|ox|so|to|up|us|we)$)[a-z]{2}"
    r"|[a-df-hj-np-tv-z]{3}",
    re.IGNORECASE,
)
"""Letters that are read as a product of symbols, and not as a word.

Two letters are a product, such as `ab`, unless they are a listed word. Three letters are a product,
such as `mgh`, if none is e, i, o or u. So `cat` is read as a product too.
"""
_SYMBOL_OR_PRODUCT = re.compile(rf"[a-z]|{SYMBOL_PRODUCT.pattern}", re.IGNORECASE)
# Letters, a command, or one of these commands with the text in its braces: \text{cm}, \mathbb{R},
# \bar{X}.
_LETTERS_OR_COMMAND = re.compile(
    r"\\(?:text|math[a-z]+|bar|vec|hat|tilde|dot|overline)\s*\{[^{}]*\}|\\?[A-Za-z]+"
)
# Without \Gamma, which is also a function, and \Pi, which is also the sign of a product.
_GREEK_CAPITAL = re.compile(r"\\(?:Delta|Lambda|Phi|Psi|Sigma|Theta|Xi)(?![A-Za-z])")
# A symbol with primes, such as f', y'', x_{1}' or x'_{1}.
_SYMBOL_WITH_PRIMES = re.compile(r"([A-Za-z])(?:_\{(\w+)\})?\s*('+)(?:_\{(\w+)\})?")
# A variable at the end, after another variable. A letter that follows only a number, as in 5 h, is
# a unit.
_LAST_VARIABLE = re.compile(
    r"""
    (?P<before>.*(?<![\\A-Za-z])
        (?:(?!d[A-Za-z]$)[A-Za-hj-z]+  # 2a before the b of 2ab; but not dx, and not bi
        |[A-Za-z].*[\d}\s])  # \pi r^2 before h
    )
    (?P<variable>[A-Za-hj-z])
    """,
    re.VERBOSE,
)
UNIT_AT_END = re.compile(
    r"(?P<expression>.*[0-9})\]A-Za-z]) *"
    r"(?P<unit>\\text\s*\{[^{}]*\}(?:\^\{[23]\})?"  # 5 \text{cm}^{2}
    r"|\^\{\\circ\}"  # 90^{\circ}
    r"| [A-Za-z/]{2,})"  # 5 km/h
)
"""An expression and a text after it, which is a unit if `unit_name` knows it."""


def has_distinct_capitals(expression: str) -> bool:
    r"""Return True if a letter occurs both as a capital and small, or if a Greek capital occurs.

    Otherwise capitals are only a spelling: `X` in one answer may be `x` in the other.

    >>> has_distinct_capitals(r"\frac{R}{r}"), has_distinct_capitals("x^{2} + C")
    (True, False)
    """
    letters = filter(_SYMBOL_OR_PRODUCT.fullmatch, _LETTERS_OR_COMMAND.findall(expression))
    symbols = set("".join(letters))
    has_both = any(symbol.isupper() and symbol.lower() in symbols for symbol in symbols)
    return has_both or _GREEK_CAPITAL.search(expression) is not None


def capitals_to_indices(expression: str) -> str:
    r"""Rewrite each capital of an expression as a small symbol with an index. Words stay.

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


def protect_symbols(expression: str) -> str:
    r"""Spell an expression so that math-verify drops no prime and no variable at the end.

    Primes become an index, and a variable at the end is put in braces. An expression with a unit is
    returned as it is.

    >>> protect_symbols("y'' + 1"), protect_symbols(r"\pi r^2 h")
    ('y_{prime2} + 1', '\\pi r^2 {h}')
    """
    if without_unit(expression) != expression:
        return expression
    expression = _SYMBOL_WITH_PRIMES.sub(_primes_to_index, expression)
    last = _LAST_VARIABLE.fullmatch(expression)
    return f"{last['before']}{{{last['variable']}}}" if last else expression


def _primes_to_index(match: re.Match[str]) -> str:
    """Return a symbol with its number of primes in the index: `y_{prime2}` for `y''`."""
    letter, index_before, primes, index_after = match.groups("")
    return f"{letter}_{{{index_before}{index_after}prime{len(primes)}}}"


def without_unit(expression: str) -> str:
    r"""Return an expression without the unit at its end.

    >>> without_unit(r"5\sqrt{2} cm"), without_unit("2ab")
    ('5\\sqrt{2}', '2ab')
    """
    match = UNIT_AT_END.fullmatch(expression)
    has_unit = match is not None and unit_name(match["unit"])
    return match["expression"].strip() if has_unit else expression
