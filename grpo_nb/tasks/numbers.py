r"""Numbers as people write them: the exact value, with the name before it and the unit after it.

`3/4`, `1 3/4`, `\frac{3}{4}`, `75\%`, `1,250.50`, `1.2 \times 10^{-3}` and `forty-two` are numbers.
`41 + 1`, `6 \cdot 7` and `2^{10}` are not: a model that may leave arithmetic undone learns to copy
the question. The decimal mark is the point. An integer with leading zeros, such as `007`, is no
number.

`plain` removes what changes nothing, `read_number` reads a number, and `is_same_number` compares
two.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

# Longer texts are not answers; the patterns below are not run on them.
_LONGEST = 2000  # characters
_LONGEST_NUMBER = 100  # characters

# Wrappers and spellings that change nothing.

_SIGNS = str.maketrans(
    dict.fromkeys("\u2212\u2013\u2010\u2011", "-")  # minus, dash, hyphens
    | dict.fromkeys("\u201c\u201d\u201e", '"')
    | dict.fromkeys("\u00b7\u22c5", r"\cdot ")
    | {"\u2044": "/", "\u2019": "'", "\u00d7": r"\times "}
    | {"\u00b0": r"^{\circ}", "\u211d": r"\mathbb{R}"}
)
# Soft hyphens, zero-width spaces and byte order marks.
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
# The place before a character such as ½, where 1½ gets a space.
_FRACTION = re.compile("(?=[\u00bc-\u00be\u2150-\u215e])")
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070-\u207f]+")
_LOWERED = re.compile("[\u2080-\u209c]+")
# Text between braces, with further braces inside: 8 levels are more than anyone writes.
INSIDE = r"[^{}]*+"
for _ in range(8):
    INSIDE = rf"(?:[^{{}}]|\{{{INSIDE}\}})*+"
_AROUND = re.compile(
    r"```\w*[ \t]*\n(.*)\n[ \t]*```"
    rf"|\\(?:boxed|fbox|text[a-z]*|mathrm|mathbf|mbox)\s*\{{({INSIDE})\}}"
    r"|(?i:####|(?:final )?answer:)\s+(.*)",
    re.DOTALL,
)
# Most answers: a number without decoration, or one word.
_PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|[A-Za-z]+")
_PAIRS = [(mark, mark) for mark in ("$$", "$", "**", "*", "__", "_", "`", '"', "'")]
_PAIRS += [("\\(", "\\)"), ("\\[", "\\]"), ("(", ")"), ("{", "}")]
# Pattern -> the one spelling of what it finds.
_SPELLINGS = {
    r"\\(?:left|right|displaystyle|textstyle)(?![A-Za-z])\s*|\\!\s*": "",
    r"(?<!\\)\\[,;: ]|(?<=\S)~(?=[^\s~])|[^\S\n]+": " ",
    r"\s*\{\s*,\s*\}\s*": ",",
    r"\\\$": "$",
    r"\s*\\text\{\s*(?:per ?cent|pct)\s*\}|\s*\\%|\s*\b(?:per ?cent|pct)\b": "%",
    r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![a-z])": r"^{\\circ}",
    r"\\[dtc]frac(?![A-Za-z])": r"\\frac",
    r"\\frac\s*([0-9A-Za-z])": r"\\frac{\1}",
    rf"(\\frac\s*\{{{INSIDE}\}})\s*([0-9A-Za-z])": r"\1{\2}",
}


@lru_cache(maxsize=4_096)
def plain(text: str) -> str:
    r"""Return a text without wrappers of Markdown and LaTeX, full stop and invisible characters.

    The spelling changes, never the meaning: `½` and `\dfrac12` become one text, and `about 42`
    stays as it is.

    >>> plain(r"$\boxed{\dfrac12}$."), plain("**42**"), plain("#### 142")
    ('\\frac{1}{2}', '42', '142')
    """
    text = text.strip()
    if len(text) > _LONGEST or _PLAIN.fullmatch(text):
        return text
    if not text.isascii():
        text = _in_ascii(text)
    text = _unwrapped(text)
    for pattern, spelling in _SPELLINGS.items():
        text = re.sub(pattern, spelling, text)
    return _unwrapped(text)


def _in_ascii(text: str) -> str:
    """Return a text with ASCII spellings of digits, fractions, exponents and signs."""
    text = _FRACTION.sub(" ", _INVISIBLE.sub("", text)).translate(_SIGNS)
    text = _RAISED.sub(lambda match: f"^{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{unicodedata.normalize('NFKC', match[0])}}}", text)
    text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
    # Decimal digits of other scripts.
    return "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)


def _unwrapped(text: str) -> str:
    """Return a text without the marks around it, however many there are."""
    before = None
    while text != before:
        before = text = text.strip()
        if not text.endswith(".."):  # an ellipsis is part of the text
            text = text.removesuffix(".").rstrip()
        for start, end in _PAIRS:
            inner = text[len(start) : len(text) - len(end)]
            has_marks = text.startswith(start) and text.endswith(end)
            # In (1+x)(1-x), the first bracket is not closed by the last.
            is_one_pair = start not in inner and end not in inner
            if inner and has_marks and is_one_pair and not _is_marked_value(start, inner):
                text = inner.strip()
        match = _AROUND.fullmatch(text)
        text = match[match.lastindex] if match else text
    return text


def _is_marked_value(start: str, inner: str) -> bool:
    """Say whether the marks around a text belong to it: (1, 2) is a pair, __init__ a name."""
    if start in "({":
        return re.search("[,;]", inner) is not None
    return start[0] == "_" and inner.isidentifier()


# Numbers.

_DIGITS = (
    r"(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?:[ ']\d{3})+)(?!\d)"  # 1,250,000 or 1 250 000
    r"|[1-9]\d?(?:,\d\d)+,\d{3}"  # 12,50,000, as in India
    r"|(?!0\d)\d+)"
)
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
# A digit right after a fraction is a factor, and must not become a part of the denominator. Nor
# must an exponent.
_NO_FACTOR = r"(?!\.?\d|[eEk](?![A-Za-z]))"
_FRAC = re.compile(
    rf"\\frac\s*\{{\s*(-?\s*{_DECIMAL})\s*\}}\s*\{{\s*(-?\s*{_DECIMAL})\s*\}}{_NO_FACTOR}"
)
_NUMBER = re.compile(
    r"(?:(?P<name>[A-Za-z](?:_\{?\w\}?)?(?:\([a-z]\))?|[A-Z]{2,4}|p[A-Z]{1,2}|\\[a-z]+)"
    r"\s*=(?!=)\s*)?(?P<sign>[-+]?)\s*"
    r"(?P<money>(?:(?:US ?)?[$\u20ac\u00a3\u00a5\u20b9]|USD|EUR|GBP)?)\s*(?P<minus>-?)\s*"
    r"(?:(?P<whole>[1-9]\d*) +(?=[\d.,]+\s*/\s*-?[\d.]))?"
    rf"(?P<over>{_DECIMAL})(?:\s*/\s*(?P<under>-?\s*{_DECIMAL}))?"
    r"(?:[eE](?P<e>[-+]?\d{1,3})"
    r"|\s*(?:x|\*|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{?\s*(?P<power>[-+]?\d{1,3})\s*\}?)?"
    r"(?:\s*(?P<scale>(?i:hundred|thousand|million|billion|trillion|dozen)(?=s?\b)"
    r"|k\b|(?<=\d)K\b)s?)?"
    r"(?:(?!\s*[\d.,;=])(?P<gap>\s*)(?![A-Za-z]\b(?<!\s.))(?P<unit>.{1,40}))?",
    re.ASCII,
)
_SCALES = {
    "dozen": 12,
    "hundred": 100,
    "thousand": 10**3,
    "k": 10**3,
    "million": 10**6,
    "billion": 10**9,
    "trillion": 10**12,
}

# Units.

# Letters after a number are factors, except these abbreviations of units.
_SHORT = re.compile(
    "[dghlmstACFJKLNVW$\u20ac\u00a3\u00a5\u20b9%\u03a9]|[cmnudk]m|[km]?g|in|ft|lb|mi|min|mph"
    "|m[lLsAWV]|[cd]l|k[WJBNV]|kWh|kHz|kPa|Hz|Pa|eV|Wh|M[WBJ]|[GT]B|oz|yd|USD|EUR|GBP|\u00b0[CFK]?"
)
# Words after a number that change it, take it back or are numbers themselves. A plural s is
# removed before the look-up, so "minus" is "minu".
_NO_UNIT = re.compile(
    "or|and|not|but|ish|to|nor|if|than|wrong|right|false|true|incorrect|about|approx|approximately"
    "|around|roughly|nearly|maybe|perhaps|probably|possibly|plus|minu|more|les|over|under|max"
    "|maximum|minimum|rounded|negative|below|squared|cubed|factorial|choose|mod|pi|sqrt|sin|cos|tan"
    "|log|exp|half|halve|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth"
    "|thousandth|ten|hundred|thousand|million|billion|trillion|dozen|lakh|crore|score|gros|permille"
    "|point|infinity"
)
_SIGN_OF = dict(
    dollar="$", USD="$", euro="\u20ac", EUR="\u20ac", GBP="\u00a3", degree="\u00b0", deg="\u00b0"
)
# A line for each unit: its full name in the singular, then its other spellings.
_UNITS = """
    second s sec
    minute min
    hour h hr
    day d
    week wk
    year yr
    meter m metre
    gram g gm gramme
    liter l L litre
    tonne t
    inch in inche
    foot ft feet
    yard yd
    mile mi
    pound lb
    ounce oz
    hertz Hz
    watt W
    joule J
    volt V
    newton N
    pascal Pa
    ampere A amp
    ohm Ω
    byte B
    mole mol
    calorie cal
    watthour Wh
    electronvolt eV
    kilogram kilo Kg KG
    kilometer Km KM
    kilobyte KB
    mile/hour mph
    kilometer/hour kph kmh kmph
    °C celsius centigrade
    °F fahrenheit
"""
_PREFIXES = {
    "k": "kilo",
    "d": "deci",
    "c": "centi",
    "m": "milli",
    "u": "micro",
    "n": "nano",
    "M": "mega",
    "G": "giga",
    "T": "tera",
}
_PREFIXED = (
    "second meter gram liter hertz watt joule volt newton pascal ampere ohm byte mole calorie "
    "watthour electronvolt"
)
# The micro sign, and the Greek letter that NFKC makes of it.
_MICRO = str.maketrans("\u00b5\u03bc", "uu")
# Abbreviations that count as a unit though _SHORT does not have them.
_ALSO_SHORT = [
    "hr",
    "sec",
    "yr",
    "wk",
    "gm",
    "mol",
    "cal",
    "kcal",
    "kph",
    "kmh",
    "kmph",
    "KB",
    "kB",
    "Kg",
    "KG",
    "Km",
    "KM",
]


def _unit_spellings() -> tuple[dict[str, str], dict[str, str]]:
    """Return the full name of each spelling of a unit, and of those that may be in capitals."""
    full_names: dict[str, str] = {}
    in_any_case: dict[str, str] = {}
    for line in _UNITS.strip().splitlines():
        name, *others = line.split()
        prefixes = _PREFIXES if name in _PREFIXED.split() else {}
        for spelling in (name, *others):
            full_names[spelling] = name
            if len(spelling) > 2:
                in_any_case[spelling.casefold()] = name
            # Signs go with signs and words with words: "km", "kilometre".
            is_word = len(spelling) > 3
            for sign, prefix in prefixes.items():
                prefixed = f"{prefix if is_word else sign}{spelling}"
                full_names.setdefault(prefixed, f"{prefix}{name}")
                if is_word:
                    in_any_case[prefixed.casefold()] = f"{prefix}{name}"
    return full_names, in_any_case


_FULL_NAMES, _IN_ANY_CASE = _unit_spellings()
_SQUARE = re.compile(r"\b(square|sq)\b\.?\s+([A-Za-z]+)")
_CUBIC = re.compile(r"\b(cubic|cu)\b\.?\s+([A-Za-z]+)")
_TEMPERATURE = re.compile(
    r"(?:\bdeg(?:rees?)?\s+|\u00b0\s*)(?i:(c)(?:elsius|entigrade)?|(f)(?:ahrenheit)?)(?![A-Za-z])"
)
_WORD = r"[A-Za-z\u00c0-\u024f\u03a9]+|[$\u20ac\u00a3\u00a5\u20b9%]|\u00b0[CFK]?"
_UNIT = re.compile(rf"(?:{_WORD})(?:\^-?\d)?(?:(?: ?[/*] ?\(?| )(?:{_WORD})(?:\^-?\d)?\)?){{0,3}}")


@dataclass(frozen=True)
class Number:
    """A number with its name, `x` in `x = 42`, and its unit, `kg` in `42 kg`.

    With the unit `%`, the value of 42 is 0.42.
    """

    value: Fraction
    name: str = ""
    unit: str = ""


@lru_cache(maxsize=16_384)
def read_number(text: str) -> Number | None:
    r"""Return the number that the whole text is, exactly; None for any other text.

    >>> read_number("$1,250.50").value == read_number(r"1250\frac{1}{2} kg").value
    True
    >>> read_number("41 or 42"), read_number("6 * 7"), read_number("007")
    (None, None, None)
    >>> read_number("2.5 million").value == 2_500_000
    True
    """
    if len(text) > _LONGEST_NUMBER:
        return None
    text = plain(text)
    if len(text) > _LONGEST_NUMBER:
        return None
    if text[-1:].isdigit() and _PLAIN.fullmatch(text):
        return Number(Fraction(text))
    match = _NUMBER.fullmatch(_FRAC.sub(r" \1/\2", text).strip())
    if match is None:
        words = re.sub(r"\s+|(?<=\w)-(?=\w)", " ", text.casefold())
        value = _spelled(words)
        return None if value is None else Number(Fraction(value))
    return _number_of(match)


def _number_of(match: re.Match[str]) -> Number | None:
    """Return the number of a match of `_NUMBER`; None if its parts make none together."""
    over = _decimal(match["over"])
    under = _decimal(match["under"] or "1")
    unit = unit_name(f"{match['money']} {match['unit'] or ''}")
    if unit is None or under == 0 or (match["sign"] and match["minus"]):
        return None
    # The fraction of a mixed number is below 1: 1 3/4, but not 1 7/4.
    if match["whole"] and not 0 <= over < under:
        return None
    # 42abc and 42ish are no numbers, while 42km and 42min are.
    if match["unit"] and not match["gap"] and not _are_known_units(match["unit"]):
        return None
    if match["money"] and re.fullmatch("[A-Za-z]", match["unit"] or ""):  # $5 m
        return None
    value = over / under + int(match["whole"] or 0)
    value *= Fraction(10) ** int(match["e"] or match["power"] or 0)
    value *= _SCALES.get((match["scale"] or "").casefold(), 1)
    if unit == "%":
        value /= 100
    if "-" in (match["sign"], match["minus"]):
        value = -value
    name = match["name"] or ""
    # f(x) = 3 is y = 3.
    name = "y" if "(" in name else re.sub("[_{}]", "", name)
    return Number(value, name, unit)


def _decimal(text: str) -> Fraction:
    """Return the value of digits with separators between groups of three."""
    return Fraction(re.sub(r"[,' ]|\.$", "", text))


def is_same_number(given: Number, gold: Number, tolerance: float = 0.0) -> bool:
    """Say whether two numbers are equal, and have no two different names or units.

    One of them may have no name or unit. For a gold answer of 50 %, both 50 and 0.5 are right,
    because the question asks for percent. If only the given number has a percent sign, the gold
    answer has one meaning: 42 is 42 %, and 0.5 is 50 %, never both.

    >>> is_same_number(read_number("50 %"), read_number("0.5"))
    True
    >>> gold = read_number("50%")
    >>> is_same_number(read_number("50"), gold), is_same_number(read_number("0.5"), gold)
    (True, True)
    >>> is_same_number(read_number("42%"), read_number("42"))
    True
    >>> is_same_number(read_number("0.5%"), read_number("0.5"))
    False
    >>> is_same_number(read_number("12 pounds"), read_number("12"))
    True
    >>> is_same_number(read_number("5 kg"), read_number("5 g"))
    False
    """
    if given.name and gold.name and given.name != gold.name:
        return False
    if given.unit and gold.unit and given.unit != gold.unit:
        return False
    difference = abs(given.value - gold.value)
    difference_in_points = abs(_in_points(given) - _in_points(gold))
    if gold.unit == "%":
        return difference_in_points <= tolerance or 100 * difference <= tolerance
    if given.unit == "%" and _counts_percents(gold.value):
        return difference_in_points <= tolerance
    return difference <= tolerance


def _in_points(number: Number) -> Fraction:
    """Return the number as it is written: 42 for 42 %."""
    return number.value * 100 if number.unit == "%" else number.value


def _counts_percents(gold: Fraction) -> bool:
    """Say whether a gold answer without a sign counts percents: 42 does, 0.5 and 3.5 do not."""
    return abs(gold) >= 10 or (gold.denominator == 1 and abs(gold) > 1)


def unit_name(text: str) -> str | None:
    """Return a unit in one spelling, in the singular; None for other texts, such as `or 43`.

    >>> unit_name("miles per hour"), unit_name("red apples"), unit_name("x"), unit_name("is wrong")
    ('mile/hour', 'redapple', None, None)
    >>> unit_name("km/h"), unit_name("square metres"), unit_name("mins")
    ('kilometer/hour', 'meter^2', 'minute')
    """
    text = _plain_unit(text)
    names = [_unit_word(word) for word in re.findall(_WORD, text)]
    if text and not (_UNIT.fullmatch(text) and all(names)):
        return None
    in_order = iter(names)
    return re.sub(r"[ ()]", "", re.sub(_WORD, lambda match: next(in_order), text))


def _plain_unit(text: str) -> str:
    """Return a unit without LaTeX, and with one spelling of per, squares and degrees."""
    text = re.sub(r"\\(?:text[a-z]*|mathrm|mbox)(?![a-z])|[{}]", "", text)
    text = text.replace("^\\circ", "\u00b0").translate(_MICRO)
    text = _TEMPERATURE.sub(lambda match: "\u00b0C" if match[1] else "\u00b0F", text)
    text = _SQUARE.sub(r"\2^2", _CUBIC.sub(r"\2^3", text))
    text = text.replace("\\cdot", "*").replace("\\mu", "u")
    return " ".join(re.sub(r"\bper\b", "/", text).split())


def _unit_word(word: str) -> str:
    """Return one word of a unit in one spelling; empty for a word that is none.

    A word in capitals is none: 25 December is a day, and 10 Downing Street a house.
    """
    name = _known_unit(word)
    if name:
        return name
    name = _singular(word)
    is_word = len(word) > 2 and word.islower() and re.search("[aeiouy]", word)
    return name if is_word and not _NO_UNIT.fullmatch(name) else ""


def _singular(word: str) -> str:
    return word.removesuffix("s") if len(word) > 2 else word


def _known_unit(word: str) -> str:
    """Return the full name of a unit of measurement; empty for any other word."""
    singular = _singular(word)
    for name in (word, singular):
        if name in _SIGN_OF:
            return _SIGN_OF[name]
        is_word = len(name) > 2 and name.islower()
        if name in _FULL_NAMES and (is_word or name in _ALSO_SHORT or _SHORT.fullmatch(name)):
            return _FULL_NAMES[name]
    # "Min", "KILOMETERS": signs of one or two letters mean something else in capitals.
    for name in (word.casefold(), singular.casefold()):
        if name in _IN_ANY_CASE:
            return _IN_ANY_CASE[name]
    return singular if _SHORT.fullmatch(singular) else ""


def _are_known_units(text: str) -> bool:
    return all(map(_known_unit, re.findall(_WORD, _plain_unit(text))))


# Number words.

_ONES = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
    "fourteen",
    "fifteen",
    "sixteen",
    "seventeen",
    "eighteen",
    "nineteen",
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SPELLED = dict(zip([*_ONES, *_TENS], [*range(20), *range(20, 100, 10)], strict=True))


def _spelled(words: str) -> int | None:
    """Return the value of an English number word, such as `two hundred and five`."""
    for scale in ("billion", "million", "thousand", "hundred"):
        count, name, rest = words.partition(f" {scale}")
        if name:
            whole = 1 if count == "a" else _spelled(count)
            more = _spelled(rest.strip().removeprefix("and ")) if rest else 0
            if whole is None or more is None or more >= _SCALES[scale]:
                return None
            return whole * _SCALES[scale] + more
    ten, _, one = words.partition(" ")
    if ten in _TENS and one in _ONES[1:10]:
        return _SPELLED[ten] + _SPELLED[one]
    return _SPELLED.get(words)
