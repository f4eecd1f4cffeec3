"""Names of units: `km/h`, `kph` and `kilometers per hour` are all `kilometer/hour`.

A unit is a unit of measurement, a currency, or a thing that is counted, such as apples.
"""

import re
from functools import lru_cache

from grpo_nb.tasks.markup import rewrite
from grpo_nb.tasks.number_words import NUMBER_WORDS

# Each line is the name of a unit of measurement, and its other spellings.
# Spellings of one or two letters are read only with these capitals, because mW is not MW.
# Longer spellings are read with any capitals.
# A final s is removed before the look-up, so `inches` needs the spelling `inche`.
_UNITS = """\
second: s sec
millisecond: ms
microsecond: us
nanosecond: ns
minute: min
hour: h hr
day: d
week: wk
year: yr
meter: m metre
kilometer: km Km KM kilometre
centimeter: cm centimetre
millimeter: mm millimetre
micrometer: um micrometre
nanometer: nm nanometre
gram: g gm
kilogram: kg Kg KG kilo
milligram: mg
liter: l L litre
deciliter: dl dL decilitre
milliliter: ml mL millilitre
tonne: t
inch: in inche
foot: ft feet
yard: yd
mile: mi
mile/hour: mph
kilometer/hour: kph kmh
pound: lb
ounce: oz
hertz: Hz
kilohertz: kHz
megahertz: MHz
gigahertz: GHz
watt: W
milliwatt: mW
kilowatt: kW
megawatt: MW
watthour: Wh
kilowatthour: kWh
joule: J
kilojoule: kJ
megajoule: MJ
calorie: cal
kilocalorie: kcal
volt: V
ampere: A amp
milliampere: mA milliamp
ohm: Ω
newton: N
newton*meter: Nm
pascal: Pa
kilopascal: kPa
byte: B
kilobyte: kB KB
megabyte: MB
gigabyte: GB
terabyte: TB
mole: mol
kelvin: K °K
°C: C celsius centigrade
°F: F fahrenheit
°: degree deg
radian: rad
%:
$: USD dollar
cent: ¢
€: EUR euro
£: GBP
¥: JPY yen
₹: INR rupee
"""


def _unit_key(spelling: str) -> str:
    return spelling.casefold() if len(spelling) > 2 else spelling


# The name of a unit for each of its spellings.
_NAME_OF_UNIT: dict[str, str] = {}
for _line in _UNITS.splitlines():
    _spellings = _line.replace(":", "").split()
    _NAME_OF_UNIT |= dict.fromkeys(map(_unit_key, _spellings), _spellings[0])
# Words after a number that change it, take it back or are numbers themselves. They are no unit.
_NOT_A_UNIT = re.compile(
    rf"(?:(?:{'|'.join(NUMBER_WORDS)})(?:th)?|third|fifth|eighth|ninth|twelfth|[a-z]+tieth"
    "|or|and|not|but|ish|to|nor|if|than|wrong|right|false|true|incorrect|about|approx|approximately"
    "|around|roughly|nearly|maybe|perhaps|probably|possibly|plus|minus|more|less|over|under|max"
    "|maximum|minimum|rounded|negative|below|squared|cubed|factorial|choose|mod|pi|sqrt|sin|cos|tan"
    "|log|exp|half|halve|quarter|lakh|crore|score|gross|permille|infinity)s?"
)
# Pattern -> spelling that replaces its matches in a unit.
_UNIT_SPELLINGS = {
    r"\\(?:text[a-z]*|mathrm|mbox)(?![a-z])|[{}]": "",
    r"\^\\circ": "\u00b0",  # undoes the spelling of `strip_markup`
    r"\\cdot": "*",
    r"\\mu|[\u00b5\u03bc]": "u",
    r"\b(?:cubic|cu)\b\.?\s+([A-Za-z]+)": r"\1^3",
    r"\b(?:square|sq)\b\.?\s+([A-Za-z]+)": r"\1^2",
    r"\bper\b": "/",
    r"(\s*/\s*[a-z]+)\1\b": r"\1^2",  # m/s/s
    r"\b([a-z]?m|ft|in|yd)([23])\b": r"\1^\2",  # cm2
    # Not part of the unit: "42 marbles left", "42 in total".
    r"\b(?:in\s+(?:total|all)|left|total|remaining|altogether|each)\b": "",
    # Not inches: "$42 in change". But 4 in and 4 in wide are.
    r"(?<=[a-z$\u20ac\u00a3\u00a5\u20b9]\s)in(?=\s[a-z])": "",
}
UNIT_WORD = r"[A-Za-z\u00c0-\u024f\u03a9]+|[$\u20ac\u00a3\u00a5\u20b9%]|\u00b0[CFK]?"
# Signs of units, which a word after them may repeat.
_SIGNS = set("$\u20ac\u00a3\u00a5\u20b9\u00b0")
_POWER = rf"({UNIT_WORD})(\^-?\d)?"
# Up to four words, with or without exponents, joined by a space, a product or a quotient.
_UNIT = re.compile(rf"{_POWER}(?:(?: ?[/*] ?\(?| ){_POWER}\)?){{0,3}}")


# Cached, because the answers of a group have the same few units.
@lru_cache(maxsize=4_096)
def unit_name(text: str) -> str | None:
    """Return the name of a unit, without a final s; None for other texts, such as `or 43`.

    >>> unit_name("miles per hour"), unit_name("red apples"), unit_name("x"), unit_name("is wrong")
    ('mile/hour', 'apple', None, None)
    >>> unit_name("km/h"), unit_name("square metres"), unit_name("years old")
    ('kilometer/hour', 'meter^2', 'year')
    >>> unit_name("N m"), unit_name("kW h")
    ('newton*meter', 'kilowatthour')
    """
    text = normalize_unit(text)
    if text and not _UNIT.fullmatch(text):
        return None
    names = []
    was_thing = False  # of the word before
    for operator, word, exponent in re.findall(rf"([/*])? ?\(?{_POWER}", text):
        unit = measurement_unit(word)
        thing = "" if unit else _counted_thing(word)
        if not (unit or thing):
            return None
        if operator:
            names.append(operator)
        elif names:
            word_before = names[-1]
            if thing and not was_thing:
                continue  # years old, $5 apiece
            # Of several things, and of two signs of one unit, the last one counts: red apples,
            # degrees Celsius, $5 USD.
            is_sign_repeated = word_before in _SIGNS and unit.startswith(word_before)
            if thing or is_sign_repeated:
                names.pop()
            elif not (was_thing or word_before.endswith("watt")):
                names.append("*")  # N m; but light years and kW h are units of their own
        names.append((unit or thing) + exponent)
        was_thing = bool(thing)
    return "".join(names)


@lru_cache(maxsize=4_096)
def normalize_unit(text: str) -> str:
    """Return a unit without LaTeX, and with one spelling of `per`, powers and degrees."""
    return " ".join(rewrite(text, _UNIT_SPELLINGS).split())


@lru_cache(maxsize=4_096)
def measurement_unit(word: str) -> str:
    """Return the full name of a unit of measurement; empty for any other word."""
    name = _NAME_OF_UNIT.get(_unit_key(word))
    return name or _NAME_OF_UNIT.get(_unit_key(_singular(word)), "")


def _counted_thing(word: str) -> str:
    """Return `apple` for the word `apples`; empty if it names no thing that is counted.

    Any word in small letters may be such a thing, unless it changes the number, as in `5 squared`,
    or takes it back, as in `42 wrong`. Words with a capital are not counted: 25 December is a day,
    and 10 Downing Street a house.
    """
    is_word = len(word) > 2 and word.islower() and re.search("[aeiouy]", word)
    return _singular(word) if is_word and not _NOT_A_UNIT.fullmatch(word) else ""


def _singular(word: str) -> str:
    return re.sub("(?<=..)[sS]$", "", word)
