r"""Numbers as people write them: the exact value, its variable and its unit.

`3/4`, `1 3/4`, `\frac{3}{4}`, `75\%`, `1,250.50`, `1.2 \times 10^{-3}` and `forty-two` are numbers.
`41 + 1`, `6 \cdot 7` and `2^{10}` are not: sums, products and powers are left to be computed, and
may be copied from the question. (Rewards compare a quotient such as `84/2` with the question.) The
decimal mark is the point. An integer with leading zeros, such as `007`, is not a number.

`read_number` takes the markup away, matches one pattern, and computes the value from its parts.
`is_right_number` compares two numbers.
"""

import re
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from grpo_nb.tasks.markup import strip_markup
from grpo_nb.tasks.number_words import SCALES, value_of_words
from grpo_nb.tasks.units import UNIT_WORD, measurement_unit, normalize_unit, unit_name

_LONGEST_NUMBER = 100  # characters

_INTEGER = (
    r"(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?:[ ']\d{3})+)(?!\d)"  # 1,250,000 or 1 250 000
    r"|[1-9]\d?(?:,\d\d)+,\d{3}"  # 12,50,000, as in India
    r"|(?!0\d)\d+)"  # 42, but not 042
)
_DECIMAL = rf"(?:{_INTEGER}(?:\.\d*)?|\.\d+)"
# No digit, exponent or `k` (thousand) may follow a fraction: `\frac{1}{2}3` must not become 1/23.
_END_OF_FRACTION = r"(?!\.?\d|[eEk](?![A-Za-z]))"
_LATEX_FRACTION = re.compile(
    rf"\\frac\s*\{{\s*(-?\s*{_DECIMAL})\s*\}}\s*\{{\s*(-?\s*{_DECIMAL})\s*\}}{_END_OF_FRACTION}"
)
# Each line is one part of a number. Spaces are written as \s or in brackets.
_NUMBER = re.compile(
    rf"""
    (?:(?P<variable>
        [A-Za-z](?:_\{{?\w\}}?)?(?:\([a-z]\))?  # x =, x_1 =, f(x) =
        |[A-Z]{{2,4}}  # AB =
        |p[A-Z]{{1,2}}  # pH =
        |\\[a-z]+  # \theta =
    )\s*=(?!=)\s*)?
    (?P<sign>[-+]?)\s*
    (?:US[ ]?(?=\$))?(?P<currency>(?:[$\u20ac\u00a3\u00a5\u20b9]|USD|EUR|GBP)?)\s*
    (?P<minus>-?)\s*  # the sign of $-5
    (?:(?P<whole>[1-9]\d*)[ ]+(?=[\d.,]+\s*/\s*-?[\d.]))?  # the 1 of 1 3/4
    (?P<numerator>{_DECIMAL})(?:\s*/\s*(?P<denominator>-?\s*{_DECIMAL}))?
    (?:  # a power of ten
        [eE](?P<exponent>[-+]?\d{{1,3}})  # 1e3
        |\s*(?:x|\*|\\times|\\cdot)\s*10  # 1 x 10^3
        \s*(?:\^|\*\*)\s*\{{?\s*(?P<power_of_ten>[-+]?\d{{1,3}})\s*\}}?
    )?
    (?:\s*(?P<scale>
        (?i:{"|".join(SCALES)})(?=s?\b)
        |k\b
        |(?<=\d)K\b  # 5K, but 5 K is a temperature
    )s?)?
    (?:  # a unit
        (?!\s*[\d.,;=])  # not a second number
        (?P<gap>\s*)
        # One letter without a gap before it is a variable (2x). So 5 m is read, and 5m is not.
        (?!(?<=\S)[A-Za-z]\b)
        (?P<unit>.{{1,40}})
    )?
    """,
    re.ASCII | re.VERBOSE,
)


@dataclass(frozen=True)
class Number:
    """A number with its variable, `x` in `x = 42`, and its unit, `kilogram` in `42 kg`.

    The value of `42 %` is 0.42.
    """

    value: Fraction
    variable: str = ""
    unit: str = ""
    """A name from `unit_name`; empty without a unit."""

    @property
    def value_as_written(self) -> Fraction:
        """The value without its percent sign: 42 for `42 %`."""
        return self.value * 100 if self.unit == "%" else self.value


# Cached, because a gold answer is read again for each completion.
@lru_cache(maxsize=16_384)
def read_number(text: str) -> Number | None:
    r"""Read a text that is a number, exactly; return None for any other text.

    >>> read_number("$1,250.50").value == read_number(r"1250\frac{1}{2} kg").value
    True
    >>> read_number("41 or 42"), read_number("6 * 7"), read_number("007")
    (None, None, None)
    >>> read_number("2.5 million").value == 2_500_000
    True
    """
    if len(text) > _LONGEST_NUMBER:
        return None
    text = strip_markup(text)
    match = _NUMBER.fullmatch(_LATEX_FRACTION.sub(r" \1/\2", text).strip())
    if match is None:
        words = re.sub(r"\s+|(?<=\w)-(?=\w)", " ", text.casefold())
        value = value_of_words(words)
        return None if value is None else Number(Fraction(value))
    return _number_of(match)


def _number_of(match: re.Match[str]) -> Number | None:
    """Return the number of a match of `_NUMBER`; None if its parts contradict."""
    numerator = _decimal(match["numerator"])
    denominator = _decimal(match["denominator"] or "1")
    unit = _unit_of(match)
    # None is no unit at all, as in `5 or 6`; a number without a unit has "".
    if unit is None or denominator == 0 or (match["sign"] and match["minus"]):
        return None
    # The fraction of a mixed number is below 1: 1 3/4, but not 1 7/4.
    if match["whole"] and not 0 <= numerator < denominator:
        return None
    value = numerator / denominator + int(match["whole"] or 0)
    exponent = match["exponent"] or match["power_of_ten"]
    # Most numbers have none, and a power of a `Fraction` takes time.
    if exponent:
        value *= Fraction(10) ** int(exponent)
    if match["scale"]:
        value *= SCALES.get(match["scale"].casefold(), 1_000)  # `k` is a thousand
    if unit == "%":
        value /= 100
    if "-" in (match["sign"], match["minus"]):
        value = -value
    return Number(value, re.sub("[_{}]", "", match["variable"] or ""), unit)


def _unit_of(match: re.Match[str]) -> str | None:
    """Return the unit with its currency; None if the text after the number is not a unit."""
    text = match["unit"] or ""
    if not (text or match["currency"]):
        return ""  # Most numbers have no unit, and the patterns below would double the time.
    # Directly after the digits, only a unit of measurement may follow: 42km is a number, but 42abc
    # is not.
    first_word = re.match(UNIT_WORD, normalize_unit(text))
    if not match["gap"] and first_word and not measurement_unit(first_word[0]):
        return None
    if match["currency"] and re.fullmatch("[A-Za-z]", text):  # $5 m
        return None
    # Currency and text make one unit: $5 per hour.
    return unit_name(f"{match['currency']} {text}")


def _decimal(text: str) -> Fraction:
    """Return the value of a decimal number, with or without separators between its digits.

    White space, even a line break, may also follow the minus sign of a denominator.
    """
    # `Fraction` reads an int ten times as fast as a text.
    return Fraction(int(text) if text.isdigit() else re.sub(r"[,'\s]|\.$", "", text))


def is_right_number(given: Number, gold: Number, tolerance: float = 0.0) -> bool:
    """Return True if two numbers are equal, and their variables and units do not contradict.

    A variable or unit that only one of them has contradicts nothing. A percent sign may also be
    missing from one of them:

    | gold answer | accepted       |
    | ----------- | -------------- |
    | 50%         | 50%, 50, 0.5   |
    | 42          | 42, 42%        |
    | 0.5         | 0.5, 50%       |

    >>> is_right_number(read_number("50 %"), read_number("0.5"))
    True
    >>> gold = read_number("50%")
    >>> is_right_number(read_number("50"), gold), is_right_number(read_number("0.5"), gold)
    (True, True)
    >>> is_right_number(read_number("42%"), read_number("42"))
    True
    >>> is_right_number(read_number("0.5%"), read_number("0.5"))
    False
    >>> is_right_number(read_number("12 pounds"), read_number("12"))
    True
    >>> is_right_number(read_number("5 kg"), read_number("5 g"))
    False
    """
    if given.variable and gold.variable and given.variable != gold.variable:
        return False
    if given.unit and gold.unit and given.unit != gold.unit:
        return False
    # `str` keeps the decimal digits: Fraction(0.3) would be a little less than 3/10.
    tolerance = Fraction(str(tolerance)) if tolerance else 0
    difference = abs(given.value - gold.value)
    are_percentages = gold.unit == "%" or (given.unit == "%" and _may_be_percentage(gold.value))
    if not are_percentages:
        return difference <= tolerance
    # Percentages are compared as they are written: 42 and 42% are the same.
    if abs(given.value_as_written - gold.value_as_written) <= tolerance:
        return True
    # For the gold answer 50%, 0.5 is right too. The tolerance counts percentage points.
    return gold.unit == "%" and 100 * difference <= tolerance


def _may_be_percentage(value: Fraction) -> bool:
    """Return True if a gold answer without a percent sign may be a percentage: 42, but not 0.5.

    Integers above 1 and all numbers from 10 on may be percentages, so `200%` is right for 200, but
    not for 2. Other numbers are factors: 3.5 is 350 %.
    """
    return abs(value) >= 10 or (value.denominator == 1 and abs(value) > 1)
