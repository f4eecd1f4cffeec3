r"""Reading numbers: what one number is, in the ways people and language models write it, exactly and without evaluation.

`3/4`, `1 3/4`, `\frac{3}{4}`, `75\%`, `1,250.50`, `1.2e-3`, `1.2 \times 10^{-3}` are numbers. `41 + 1`, `6 \cdot 7`, `2^{10}`
are arithmetic still to be done: a model that may leave it undone learns to copy the question.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fractions import Fraction

_LONGEST = 64
_LARGEST_EXPONENT = 400  # beyond any float; keeps 1e999999999 from filling the memory

# 1,250 and 1{,}250 and 1\,250 and 1 250 with a narrow space are one number; 1 250 with an ordinary one may be two.
_SEPARATOR = r"(?:,|\{,\}|\\,|\u202f|\u2009|\u00a0)"
_DIGITS = rf"(?:[0-9]{{1,3}}(?:{_SEPARATOR}[0-9]{{3}})+|[0-9]+)"
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_EXPONENT = (
    r"(?:[eE](?P<e>[-+]?[0-9]{1,4})"
    r"|\s*(?:x|\*|\u00d7|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{?(?P<p>[-+]?[0-9]{1,4})\}?)"
)
_NUMBER = re.compile(rf"(?P<number>{_DECIMAL}){_EXPONENT}?")
_FRACTION = re.compile(
    rf"(?:(?P<whole>{_DIGITS})(?:\s+|\s*(?=\\)))?"
    rf"(?:(?P<over>{_DECIMAL})\s*/\s*(?P<under>{_DECIMAL})"
    rf"|\\[dt]?frac\s*(?:\{{\s*(?P<sign>-?)(?P<Over>{_DECIMAL})\s*\}}\s*\{{\s*(?P<Under>{_DECIMAL})\s*\}}|(?P<o>[0-9])\s*(?P<u>[0-9])))"
)
_VARIABLE = re.compile(r"\s*((?:[A-Za-z]|\\[a-z]+)(?:_(?:\w|\{\w+\}))?)\s*=(?!=)\s*")
_WRAPPERS = (("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("**", "**"), ("`", "`"))
_BRACED = re.compile(r"\\(?:boxed|fbox|text|mathrm|mathbf|textbf)\s*\{([^{}]*(?:\{[^{}]*\}[^{}]*)*)\}")


def unwrap(text: str) -> str:
    r"""Return the text without white space, final stop and the wrappers that change nothing, however nested.

    >>> unwrap(r" $\boxed{42}$. ")
    '42'
    """
    text = text.strip()
    for _ in range(6):  # nested deeper than anyone writes it
        before = text
        text = text.removesuffix(".").strip() if not text.endswith("..") else text
        for start, end in _WRAPPERS:
            inner = text[len(start) : len(text) - len(end)]
            if len(text) > len(start + end) and text.startswith(start) and text.endswith(end) and start not in inner:
                text = inner.strip()
        braced = _BRACED.fullmatch(text)
        text = braced[1].strip() if braced else text
        if text == before:
            break
    return text


def split_variable(text: str) -> tuple[str, str]:
    """Split `x = 42` into `x` and `42`; the name is empty if there is none. Digits before the sign are no variable.

    >>> split_variable("x = 42"), split_variable("41 = 42")
    (('x', '42'), ('', '41 = 42'))
    """
    match = _VARIABLE.match(text)
    return (match[1], text[match.end() :].strip()) if match else ("", text)


def parse_number(text: str, units: Mapping[str, Fraction] | None = None) -> Fraction | None:
    r"""Return the number that the whole text is, exactly, or None if it is anything else.

    Takes signs, thousands separators, decimals, fractions and mixed numbers, percent (a hundredth), scientific notation,
    a currency sign before, a full stop after, and the LaTeX of all of these. Longer than 64 characters is nobody's number.

    Args:
        text: What stands in the answer slot.
        units: Names that may stand beside the number, each with the factor it stands for. `%` as a unit of factor 1 makes
            `42%` be 42.

    >>> parse_number("$1,250.50") == Fraction("1250.5") == parse_number(r"1250\frac{1}{2}")
    True
    >>> parse_number("41 or 42") is None and parse_number("6 * 7") is None
    True
    """
    text = text.strip()
    if len(text) > _LONGEST:
        return None
    text, factor = _without_unit(unwrap(text), units or {})
    text = text.replace("\u2212", "-").replace("\\$", "$").strip()
    negative = text.startswith("-")
    text = text[1:].lstrip() if text.startswith(("-", "+")) else text
    if text[:1] in {"$", "\u20ac", "\u00a3", "\u00a5"}:
        text = text[1:].strip()
        if not negative and text.startswith("-"):
            negative, text = True, text[1:].lstrip()
    if text.endswith("%"):
        text, factor = text[:-1].removesuffix("\\").rstrip(), factor / 100
    value = _unsigned(text)
    return None if value is None else (-value if negative else value) * factor


def _without_unit(text: str, units: Mapping[str, Fraction]) -> tuple[str, Fraction]:
    # The longest first: "km" before "m".
    for unit in sorted(units, key=len, reverse=True):
        for written in (f"\\text{{{unit}}}", f"\\text{{ {unit}}}", f"\\mathrm{{{unit}}}", f"\\{unit}", unit):
            if text.endswith(written):
                rest = text.removesuffix(written).rstrip().removesuffix("\\,").removesuffix("~").rstrip()
            elif text.startswith(written):
                rest = text.removeprefix(written).lstrip()
            else:
                continue
            return rest, Fraction(units[unit])
    return text, Fraction(1)


def _unsigned(text: str) -> Fraction | None:
    if match := _NUMBER.fullmatch(text):
        exponent = int(match["e"] or match["p"] or 0)
        if abs(exponent) > _LARGEST_EXPONENT:
            return None
        return _decimal(match["number"]) * Fraction(10) ** exponent
    if match := _FRACTION.fullmatch(text):
        over = _decimal(match["over"] or match["Over"] or match["o"])
        under = _decimal(match["under"] or match["Under"] or match["u"])
        whole = match["whole"]
        if under == 0 or (whole and (match["sign"] or over >= under)):
            return None
        value = over / under + (_decimal(whole) if whole else 0)
        return -value if match["sign"] else value
    return None


def _decimal(text: str) -> Fraction:
    digits = re.sub(_SEPARATOR, "", text)
    # Fraction reads neither ".5." nor "5."; the second is common.
    return Fraction(digits.removesuffix(".") or "0")
