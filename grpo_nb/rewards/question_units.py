"""Compare the unit of an answer with the unit that its question asks for."""

import re
from functools import lru_cache

from grpo_nb.rewards.math_latex import normalize_latex
from grpo_nb.rewards.math_symbols import split_unit
from grpo_nb.tasks.markup import normalize_signs
from grpo_nb.tasks.number_reading import read_number
from grpo_nb.tasks.units import UNIT_WORD, measurement_unit

_FACTOR = rf"(?:{UNIT_WORD})(?:\^\d)?"
_UNIT = rf"{_FACTOR}(?:/{_FACTOR})*"
# Pattern -> spelling that replaces its matches in a question or in the name of a unit.
_SPELLINGS = {
    # The first dollar of $\text{cm}^2$ is not money.
    r"\\(?:text|mathrm)|[{}]|\$(?=[a-z\\])": "",
    r"\^\\circ": "\u00b0",
    r"\bdegrees? (?=celsius|fahrenheit)|(?<=watt)[ -](?=hour)": "",
    r"\bper ?cent(?:age)?\b(?! points?)": "%",
    # The "in" of "a square in cm" asks for a unit.
    r"\b(?:square|sq\.?) (?!in\b)([a-z]+)": r"\1^2",
    r"\b(?:cubic|cu\.?) (?!in\b)([a-z]+)": r"\1^3",
    r"(?<=[a-z])(?: squared|2)\b": "^2",
    r"(?<=[a-z])(?: cubed|3)\b": "^3",
    # m s^-1 is m/s.
    r"(?<=\w)[ *]([a-z]+)\^-(?:1\b)?": r"/\1^",
    r"\^(?!\d)": "",
    r"\s*/\s*": "/",
    # A rate in words keeps a space before its sign.
    r"\s+(?:per|(?:an?|each|every)(?= (?:minute|hour|day|week|year)\b))\s+": " /",
    r"\bhow long (?=.*\b(?:takes?|lasts?|need for)\b)": "what time ",
}
_DATA = re.compile(
    r"(?<!nearest )(?<![\w.^])[$\u20ac\u00a3\u00a5\u20b9]?\d[\d.,]*"
    rf"(?: ?(?!(?:in|to|as)\b){_FACTOR})?(?: ?/{_FACTOR})*"
)
"""A number with its unit, such as `150 km/h`: it is given in the question, and not asked for."""
_ASKED_UNIT = re.compile(
    rf"""
    \b(?:
        # A rate after these may be left out: $15 for "How many dollars per hour?".
        (?:how[ ]many(?:[ ]0)?|in(?=[ ](?:dollar|euro|cent)s?\b))
        [ ](?!of\b|second\b)((?>{_UNIT}(?:[ ](?!in\b){_UNIT})?))  # many metres, many more metres
        |(?:in|nearest(?:[ ][\d.]+)?(?![ ]cent)|to(?![ ](?:[a-z]|us)\b(?!/)))
        [ ](?!second\b)((?>{_UNIT}(?:[ ]/{_FACTOR})?))(?![ ]\d)
    )
    """,
    re.IGNORECASE | re.VERBOSE,
)
"""The unit that a question asks for: "How many metres ...?", "... in km/h?", "Convert it to grams."

An answer to the nearest metre is in metres, but $5.25 is an answer to the nearest cent. A letter
after `to` is not a unit: "from B to A". Nor is an ordinal ("in second place"), or a word with a
number after it: "in week 3".
"""
# Not a number in words: "What is ten percent of 50 kg?"
_ASKED_PERCENTAGE = re.compile(r"(?i)(?:^|\(|\b(?:what|which|many|an?|the|its) ?)%")
_NAMED_UNIT = re.compile(rf"(?<=\d)\s?{_UNIT}|[$\u20ac\u00a3\u00a5\u20b9%\u00b0]|[A-Za-z]{{3,}}")
"""A unit right after a digit, a sign such as $, or a word of three letters or more.

The `in` and the `s` in "in Tom's shop" are not units.
"""
# Other units, such as newton, fit any quantity.
_UNITS_OF_DIMENSION = {
    "length": "meter kilometer centimeter millimeter micrometer nanometer inch foot yard mile",
    "length^3": "liter deciliter milliliter",
    "mass": "gram kilogram milligram tonne ounce",
    "money": "$ cent \u20ac \u00a3 \u00a5 \u20b9",
    "time": "second millisecond microsecond nanosecond minute hour day week year",
}
_DIMENSION_OF_UNIT: dict[str, str] = {}
for _dimension, _units in _UNITS_OF_DIMENSION.items():
    _DIMENSION_OF_UNIT |= dict.fromkeys(_units.split(), _dimension)
# A word may have two dimensions, because a rope and a film are long.
_QUANTITIES_OF_DIMENSION = {
    "length": "distance perimeter circumference height width depth radius diameter length far tall "
    "wide deep long",
    "length^2": "area",
    "length^3": "volume",
    "length/time": "speed velocity fast",
    "money": "cost price money pay earn",
    "time": "time length long fast",
}
_QUANTITIES = "|".join(_QUANTITIES_OF_DIMENSION.values()).replace(" ", "|")
_ASKED_QUANTITY = re.compile(
    r"\b(?:what|which|how|find|calculate|determine|compute|give)"
    r"(?: (?!(?:of|with|whose|if|from|in|for)\b)[\w'-]+){0,5}?"
    rf" ({_QUANTITIES})\b(?! (?:flow|rate))",
    re.IGNORECASE,
)
"""The quantity that a question asks for: "What is the total area ...?", "How far ...?"

In "the side of a square with the area 4", the side is asked for.
"""


def has_another_unit(given: str, gold: str, question: str) -> bool:
    r"""Return True if an answer has a unit of measurement that does not fit the question.

    A gold answer without a unit says nothing about it. So the answer must have a unit that the
    question asks for: its power and its rate count too. If the question asks for no unit, the
    answer must have one that it names, and that measures the quantity that it asks for. If the
    question names no unit, any unit fits. But an angle in degrees is never a multiple of \pi.

    >>> question = "A car drives 120 km in 2 hours. What is its speed in km/h?"
    >>> has_another_unit("60 km/h", "60", question), has_another_unit("60 m/s", "60", question)
    (False, True)
    >>> has_another_unit("25 cm", "25", "A square has a side of 5 cm. What is its area?")
    True
    """
    given_unit = _unit_of(given)
    units = _units_in(_respell(given_unit))
    if not units or _unit_of(gold):
        return False
    question = _respell(question)
    if given_unit == "\u00b0" and r"\pi" in normalize_latex(gold):
        return True
    # The degrees of a temperature need no scale. And 50% is 0.5 in another spelling.
    gold_number = read_number(gold)
    is_temperature = given_unit == "\u00b0" and {"\u00b0C", "\u00b0F"} & _units_in(question)
    is_share = given_unit == "%" and gold_number and gold_number.value == read_number(given).value
    if is_temperature or is_share:
        return False
    return _are_refused(units, question)


def _are_refused(units: frozenset[str], question: str) -> bool:
    """Return True if the units of an answer do not fit a respelled question.

    >>> _are_refused(frozenset({"centimeter"}), "a square has a side of 5 cm. What is its area")
    True
    """
    rates = {unit for unit in units if unit.startswith("/")}
    # The last sentence counts first, because earlier ones may hold data or an example.
    for sentence in reversed(re.split(r"[.?!]\s|\n", question)):
        sentence = _DATA.sub("0", sentence)
        # A rate may be far from its unit: "How many dollars does she earn per hour?"
        has_another_rate = bool(rates) and not rates <= _units_in(sentence)
        asked_units = _asked_units(sentence)
        if asked_units:
            # Where a number of things is asked for, only a rate fits: 300 bolts per hour.
            fits = any(asked <= units if asked else rates == units for asked in asked_units)
            return has_another_rate or not fits
        # "How much does she earn per day?" asks for a rate, and not for its unit. But "There are 60
        # minutes in an hour" asks for none.
        asks_for_rate = re.search("(?<! in) /", sentence) is not None
        asks_for_amount = re.search("(?i)(?<!by )how much", sentence) is not None
        if has_another_rate and (asks_for_rate or asks_for_amount):
            return True
        quantity = _ASKED_QUANTITY.search(sentence)
        if quantity and not asks_for_rate and not _measures(units, quantity[1].casefold()):
            return True
        if quantity:
            break
    names = _names_of(_units_in(" ".join(_NAMED_UNIT.findall(question))))
    return bool(names) and not _names_of(units) <= names


def _unit_of(answer: str) -> str:
    """Return the name of the unit of a number or of a formula; empty without a unit."""
    number = read_number(answer)
    if number is not None:
        return number.unit
    formula = normalize_latex(answer)
    # The h of 2\pi h may be a variable.
    return "" if re.search(" [A-Za-z]$", formula) else split_unit(formula)[1]


# This and the next two are cached, because the completions of a group have the same question.
@lru_cache(maxsize=1_024)
def _asked_units(sentence: str) -> list[frozenset[str]]:
    """Return the units that a sentence asks for; an empty set for things, as in "How many loaves".

    >>> _asked_units("How many loaves can you buy?"), _asked_units("What is it in cm^2?")
    ([frozenset()], [frozenset({'centimeter^2'})])
    """
    asked_units = [frozenset("%")] if _ASKED_PERCENTAGE.search(sentence) else []
    for counted, other in _ASKED_UNIT.findall(sentence):
        units = _units_in(counted or other)
        if units or counted:
            asked_units.append(units)
    return asked_units


@lru_cache(maxsize=1_024)
def _respell(text: str) -> str:
    """Return a text with one spelling of powers, rates and percent signs.

    >>> _respell("in square metres per hour"), _respell("m s^-2")
    ('in metres^2 /hour', 'm/s^2')
    """
    text = normalize_signs(text)
    for pattern, spelling in _SPELLINGS.items():
        text = re.sub(pattern, spelling, text, flags=re.IGNORECASE)
    return text


@lru_cache(maxsize=4_096)
def _units_in(text: str) -> frozenset[str]:
    """Return the units of measurement in a text: kilometer and /hour for km/h, meter^2 for m^2."""
    # A name may have two units: mph is mile/hour.
    names = re.sub(UNIT_WORD, lambda word: measurement_unit(word[0]), text)
    return frozenset(re.findall(f"/?{_FACTOR}", names))


def _names_of(units: frozenset[str]) -> set[str]:
    """Return the names of units without powers and rates: centimeter for centimeter^2."""
    return {unit.strip("/^23") for unit in units}


def _measures(units: frozenset[str], quantity: str) -> bool:
    """Return True if units measure a quantity, such as kilometer and /hour the speed.

    True also for units whose dimension is not known here.
    """
    factors = [
        re.sub(UNIT_WORD, lambda word: _DIMENSION_OF_UNIT.get(word[0], "?"), unit) for unit in units
    ]
    # The rate comes last: length/time.
    dimension = "".join(sorted(factors, reverse=True))
    return "?" in dimension or quantity in _QUANTITIES_OF_DIMENSION.get(dimension, "").split()
