"""Compare the unit of an answer with the unit that its question asks for."""

import re
from functools import lru_cache

from grpo_nb.rewards.math_latex import normalize_latex
from grpo_nb.rewards.math_symbols import UNIT_OR_VARIABLE, split_unit
from grpo_nb.tasks.markup import normalize_signs, rewrite
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.units import UNIT_WORD, measurement_unit

_FACTOR = rf"(?:{UNIT_WORD})(?:\^\d)?"
_UNIT = rf"{_FACTOR}(?:/{_FACTOR})?"
# Pattern -> spelling that replaces its matches in a question or in the name of a unit.
_SPELLINGS = {
    # The first dollar of $\text{cm}^2$ is not money.
    r"\\(?:text|mathrm)|[{}]|\$(?=[a-z\\])": "",
    r"(?i)\bper ?cent(?:age)?\b(?! points?)": "%",
    r"(?i)\bper\b": "/",
    # The "in" of "a square in cm" is no unit.
    r"(?i)\b(?:square|sq\.?) (?!in\b)([a-z]+)": r"\1^2",
    r"(?i)\b(?:cubic|cu\.?) (?!in\b)([a-z]+)": r"\1^3",
    r" ?/ ?": "/",
}
_ASKED_UNIT = re.compile(
    r"\b(?:how many|in|nearest(?! cent)|to(?= [a-z]{3})|(?:share|fraction|part) of an?) "
    rf"(?!second\b)((?>{_UNIT}))(?! \d)",
    re.IGNORECASE,
)
"""The unit that a question asks for: "How many metres ...?", "... in km/h?", "Convert it to grams."

* "to the nearest metre" asks for metres, but "to the nearest cent" may be answered by $5.25.
* "What share of an hour ...?" may be answered by 1/4 hour, but not by 15 minutes.
* A short word after `to` is not a unit: "from B to A".
* Nor is an ordinal ("in second place"), or a word with a number after it ("in week 3").
"""
_PERCENTAGE_OF = re.compile(r"(?i)\b(?:what is|how much is|find|calculate|compute) [\d.,]+ ?% of\b")
"""A question such as "What is 30% of 250?", whose answer is no percentage."""
_NAMED_UNIT = re.compile(rf"(?<=\d)\s?{_UNIT}|[$\u20ac\u00a3\u00a5\u20b9%\u00b0]|[A-Za-z]{{3,}}")
"""A unit right after a digit, a sign such as $, or a word of three letters or more.

The `in` and the `s` in "in Tom's shop" are not units.
"""


def has_another_unit(given: str, gold: str, question: str) -> bool:
    r"""Return True if an answer has a unit of measurement that does not fit the question.

    A gold answer without a unit says nothing about it. So the answer must have a unit that the
    question asks for, with its power. The last sentence that asks for a unit decides. If the answer
    has one unit more (L/min after "How many liters?"), the question must name that one too. If the
    question asks for no unit, the unit must be one that it names. If it names none either, any unit
    fits. But an angle in degrees is never a multiple of \pi.

    >>> question = "A car drives 120 km in 2 hours. What is its speed in km/h?"
    >>> has_another_unit("60 km/h", "60", question), has_another_unit("60 m/s", "60", question)
    (False, True)
    >>> has_another_unit("4 cm^3", "4", "How many square centimetres are there?")
    True
    >>> question = "How many liters does the pump move per minute?"
    >>> has_another_unit("30 L/min", "30", question), has_another_unit("30 L/h", "30", question)
    (False, True)
    """
    given_unit = _unit_of(given)
    given_units = _units_in(given_unit)
    if not given_units or _unit_of(gold):
        return False
    if given_unit == "\u00b0" and r"\pi" in normalize_latex(gold):
        return True
    # 50% is the number 0.5 in another spelling.
    gold_number = read_number(gold)
    given_number = read_number(given)  # None for a formula, which can have a unit too
    is_same_number = gold_number and given_number and gold_number.value == given_number.value
    if given_unit == "%" and is_same_number:
        return False
    question = rewrite(normalize_signs(question), _SPELLINGS)
    if given_unit == "%" and _PERCENTAGE_OF.search(question):
        return True
    # An area in cm^2 fits a question that names cm.
    named_units = _base_units(_units_in(" ".join(_NAMED_UNIT.findall(question))))
    # The last sentence that asks for a unit decides. Earlier ones may hold data or an example.
    for sentence in reversed(re.split(r"[.?!]\s|\n", question)):
        asked_units = list(filter(None, map(_units_in, _ASKED_UNIT.findall(sentence))))
        if asked_units:
            return not any(
                units <= given_units and _base_units(given_units - units) <= named_units
                for units in asked_units
            )
    return bool(named_units) and not _base_units(given_units) <= named_units


def _unit_of(answer: str) -> str:
    """Return the name of the unit of a number or of a formula; empty without a unit."""
    number = read_number(answer)
    if number is not None:
        return number.unit
    formula = normalize_latex(answer)
    return "" if UNIT_OR_VARIABLE.search(formula) else split_unit(formula)[1]


# Cached, because the answers of a group have the same question and few units.
@lru_cache(maxsize=4_096)
def _units_in(text: str) -> frozenset[str]:
    """Return the units of measurement in a text: kilometer and /hour for km/h, meter^2 for m^2."""
    # A name may have two units: mph is mile/hour.
    names = re.sub(UNIT_WORD, lambda word: measurement_unit(word[0]), text)
    # g cm^-3 is g/cm^3, and m s^-1 is m/s.
    names = re.sub(rf"\*?({UNIT_WORD})\^-(?:1\b)?", r"/\1^", names)
    return frozenset(factor.rstrip("^") for factor in re.findall(rf"/?{_FACTOR}", names))


def _base_units(units: frozenset[str]) -> set[str]:
    """Return units without their powers, and without the / before the lower unit of a rate."""
    return {unit.strip("/").partition("^")[0] for unit in units}
