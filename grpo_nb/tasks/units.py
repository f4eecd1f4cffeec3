"""Units in one spelling: `km/h`, `kph` and `kilometers per hour` are one unit.

A unit of measurement is in the table below. Any other word in small letters counts as the thing
that is counted, `12 apples`, unless it changes the number or takes it back: `42 wrong`.
"""

import re

# Name | signs | prefixes of the signs | other words. A sign counts in this case only, because mW is
# not MW. Name and words count in any case and in the plural, with the prefixes of the signs in
# full.
_UNITS = """
second       | s          | mun       | sec
minute       | min        |           | min
hour         | h          |           | hr
day          | d          |           |
week         | wk         |           | wk
year         | yr         |           | yr
meter        | m          | kdcmun    | metre
kilometer    | Km KM      |           |
gram         | g          | km        | gm gramme
kilogram     | Kg KG      |           | kilo
liter        | l L        | dcm       | litre
tonne        | t          |           |
inch         | in         |           | inche
foot         | ft         |           | feet
yard         | yd         |           | yd
mile         | mi         |           |
mile/hour    | mph        |           | mph
kilometer/hour |          |           | kph kmh kmph
pound        | lb         |           | lb
ounce        | oz         |           | oz
hertz        | Hz         | kMG       |
watt         | W          | kmM       |
watthour     | Wh         | k         |
joule        | J          | kM        |
calorie      | cal        | k         |
electronvolt | eV         |           |
volt         | V          | km        |
ampere       | A          | m         | amp
ohm          | Ω          |           |
newton       | N          | k         |
pascal       | Pa         | k         |
byte         | B          | kKMGT     |
mole         | mol        |           |
kelvin       | K °K       |           |
°C           | °C C       |           | celsius centigrade
°F           | °F F       |           | fahrenheit
°            | °          |           | degree deg
%            | %          |           |
$            | $ USD      |           | dollar
€            | € EUR      |           | euro
£            | £ GBP      |           |
¥            | ¥          |           |
₹            | ₹          |           |
"""
_PREFIXES = dict(
    re.findall(
        r"(\w) (\w+)",
        "n nano, u micro, m milli, c centi, d deci, k kilo, K kilo, M mega, G giga, T tera",
    )
)


def _unit_names() -> tuple[dict[str, str], dict[str, str]]:
    """Return the full names of units by their signs, and by their words in small letters."""
    by_sign: dict[str, str] = {}
    by_word: dict[str, str] = {}
    for line in _UNITS.strip().splitlines():
        name, signs, prefixes, words = (cell.strip() for cell in line.split("|"))
        for prefix in ["", *prefixes]:
            long_prefix = _PREFIXES.get(prefix, "")
            for sign in signs.split():
                by_sign[prefix + sign] = long_prefix + name
            for word in [name, *words.split()]:
                by_word[long_prefix + word.casefold()] = long_prefix + name
    return by_sign, by_word


_NAME_OF_SIGN, _NAME_OF_WORD = _unit_names()
# Words after a number that change it, take it back or are numbers themselves, in the singular.
_NO_UNIT = re.compile(
    "or|and|not|but|ish|to|nor|if|than|wrong|right|false|true|incorrect|about|approx|approximately"
    "|around|roughly|nearly|maybe|perhaps|probably|possibly|plus|minus|more|less|over|under|max"
    "|maximum|minimum|rounded|negative|below|squared|cubed|factorial|choose|mod|pi|sqrt|sin|cos|tan"
    "|log|exp|half|halve|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth"
    "|thousandth|ten|hundred|thousand|million|billion|trillion|dozen|lakh|crore|score|gross"
    "|permille|point|infinity"
)
# The micro sign, and the Greek letter that NFKC makes of it.
_MICRO = str.maketrans("\u00b5\u03bc", "uu")
_SQUARE = re.compile(r"\b(?:square|sq)\b\.?\s+([A-Za-z]+)")
_CUBIC = re.compile(r"\b(?:cubic|cu)\b\.?\s+([A-Za-z]+)")
UNIT_WORD = r"[A-Za-z\u00c0-\u024f\u03a9]+|[$\u20ac\u00a3\u00a5\u20b9%]|\u00b0[CFK]?"
# Up to four words, each with an exponent, joined by a space, a product or a quotient.
_UNIT = re.compile(
    rf"(?:{UNIT_WORD})(?:\^-?\d)?(?:(?: ?[/*] ?\(?| )(?:{UNIT_WORD})(?:\^-?\d)?\)?){{0,3}}"
)


def unit_name(text: str) -> str | None:
    """Return a unit in one spelling, in the singular; None for other texts, such as `or 43`.

    >>> unit_name("miles per hour"), unit_name("red apples"), unit_name("x"), unit_name("is wrong")
    ('mile/hour', 'redapple', None, None)
    >>> unit_name("km/h"), unit_name("square metres"), unit_name("mins")
    ('kilometer/hour', 'meter^2', 'minute')
    """
    text = simple_unit(text)
    names = [known_unit(word) or _counted_thing(word) for word in re.findall(UNIT_WORD, text)]
    if text and not (_UNIT.fullmatch(text) and all(names)):
        return None
    in_order = iter(names)
    name = re.sub(UNIT_WORD, lambda match: next(in_order), text)
    # "degrees Celsius" has the sign of degrees twice.
    return re.sub(r"[ ()]|\u00b0(?= ?\u00b0)", "", name)


def simple_unit(text: str) -> str:
    """Return a unit without LaTeX, and with one spelling of per, squares and degrees."""
    text = re.sub(r"\\(?:text[a-z]*|mathrm|mbox)(?![a-z])|[{}]", "", text)
    text = text.replace("^\\circ", "\u00b0").replace("\\cdot", "*").replace("\\mu", "u")
    text = _SQUARE.sub(r"\1^2", _CUBIC.sub(r"\1^3", text.translate(_MICRO)))
    return " ".join(re.sub(r"\bper\b", "/", text).split())


def known_unit(word: str) -> str:
    """Return the full name of a unit of measurement; empty for any other word."""
    singular = _singular(word)
    for spelling in (word, singular):
        name = _NAME_OF_SIGN.get(spelling) or _NAME_OF_WORD.get(spelling.casefold())
        if name:
            return name
    return ""


def _counted_thing(word: str) -> str:
    """Return a word such as `apples` in the singular; empty for a word that is no unit.

    A word in capitals is none: 25 December is a day, and 10 Downing Street a house.
    """
    singular = _singular(word)
    is_word = len(word) > 2 and word.islower() and re.search("[aeiouy]", word)
    is_refused = _NO_UNIT.fullmatch(word) or _NO_UNIT.fullmatch(singular)
    return singular if is_word and not is_refused else ""


def _singular(word: str) -> str:
    return word.removesuffix("s") if len(word) > 2 else word
