r"""Numbers as people write them: the value, exactly, with the name before it and the unit behind it.

`3/4`, `1 3/4`, `\frac{3}{4}`, `75\%`, `1,250.50`, `1.2 \times 10^{-3}`, `forty-two` are numbers. `41 + 1`, `6 \cdot 7` and
`2^{10}` are arithmetic still to be done: a model that may leave it undone learns to copy the question. The point is the
decimal mark, and what begins with a zero (`007`) is a text.
"""

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_LONGEST, _LONGEST_NUMBER = 2000, 100  # characters
_SIGNS = str.maketrans({
    "\u2212": "-", "\u2013": "-", "\u2010": "-", "\u2011": "-", "\u2044": "/", "\u2019": "'", "\u201c": '"', "\u201d": '"',
    "\u201e": '"', "\u00d7": r"\times ", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u00b0": r"^{\circ}",
    "\u211d": r"\mathbb{R}",
})  # fmt: skip
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_FRACTION = re.compile("(?=[\u00bc-\u00be\u2150-\u215e])")
_RAISED, _LOWERED = re.compile("[\u00b2\u00b3\u00b9\u2070-\u207f]+"), re.compile("[\u2080-\u209c]+")
INSIDE = r"[^{}]*+"
for _ in range(8):  # braces nested deeper than anyone writes them
    INSIDE = rf"(?:[^{{}}]|\{{{INSIDE}\}})*+"
_AROUND = re.compile(
    rf"```\w*[ \t]*\n(.*)\n[ \t]*```|\\(?:boxed|fbox|text[a-z]*|mathrm|mathbf|mbox)\s*\{{({INSIDE})\}}"
    r"|(?i:####|(?:final )?answer:)\s+(.*)",
    re.DOTALL,
)
_PLAIN = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?|[A-Za-z]+")
_PAIRS = [(mark, mark) for mark in ("$$", "$", "**", "*", "__", "_", "`", '"', "'")]
_PAIRS += [("\\(", "\\)"), ("\\[", "\\]"), ("(", ")"), ("{", "}")]
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
    r"""Return a text without what changes nothing in it: wrappers of Markdown and LaTeX, a full stop, invisible characters.

    The writing changes, never the meaning: `½` and `\dfrac12` become one text, a hedge stays a hedge.

    >>> plain(r"$\boxed{\dfrac12}$."), plain("**42**"), plain("#### 142")
    ('\\frac{1}{2}', '42', '142')
    """
    text = text.strip()
    if len(text) > _LONGEST or _PLAIN.fullmatch(text):
        return text
    if not text.isascii():
        text = _FRACTION.sub(" ", _INVISIBLE.sub("", text)).translate(_SIGNS)
        for mark, signs in (("^", _RAISED), ("_", _LOWERED)):
            text = signs.sub(
                lambda found, mark=mark: f"{mark}{{{unicodedata.normalize('NFKC', found[0])}}}",
                text,
            )
        text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
        text = "".join(
            str(unicodedata.decimal(letter)) if letter.isdecimal() else letter for letter in text
        )
    text = _unwrapped(text)
    for pattern, spelling in _SPELLINGS.items():
        text = re.sub(pattern, spelling, text)
    return _unwrapped(text)


def _unwrapped(text: str) -> str:
    before = None
    while text != before:
        before = text = text.strip()
        text = text if text.endswith("..") else text.removesuffix(".").rstrip()
        for start, end in _PAIRS:
            inner = text[len(start) : len(text) - len(end)]
            # (1, 2) is a pair, (1+x)(1-x) a product, and __init__ a name.
            is_other = (
                re.search("[,;]", inner)
                if start in "({"
                else start[0] == "_" and inner.isidentifier()
            )
            is_around = (
                inner
                and text.startswith(start)
                and text.endswith(end)
                and not (start in inner or end in inner)
            )
            text = inner.strip() if is_around and not is_other else text
        found = _AROUND.fullmatch(text)
        text = found[found.lastindex] if found else text
    return text


_DIGITS = r"(?:[1-9]\d{0,2}(?:(?:,\d{3})+|(?:[ ']\d{3})+)(?!\d)|[1-9]\d?(?:,\d\d)+,\d{3}|(?!0\d)\d+)"  # the second as in India
_DECIMAL = rf"(?:{_DIGITS}(?:\.\d*)?|\.\d+)"
# A digit right after a fraction is a factor: it must not become a part of the denominator. Nor must an exponent.
_NO_FACTOR = r"(?!\.?\d|[eEk](?![A-Za-z]))"
_FRAC = re.compile(
    rf"\\frac\s*\{{\s*(-?\s*{_DECIMAL})\s*\}}\s*\{{\s*(-?\s*{_DECIMAL})\s*\}}{_NO_FACTOR}"
)
_NUMBER = re.compile(
    r"(?:(?P<name>[A-Za-z](?:_\{?\w\}?)?(?:\([a-z]\))?|[A-Z]{2,4}|p[A-Z]{1,2}|\\[a-z]+)\s*=(?!=)\s*)?(?P<sign>[-+]?)\s*"
    r"(?P<money>(?:(?:US ?)?[$\u20ac\u00a3\u00a5\u20b9]|USD|EUR|GBP)?)\s*(?P<minus>-?)\s*"
    rf"(?:(?P<whole>[1-9]\d*) +(?=[\d.,]+\s*/\s*-?[\d.]))?(?P<over>{_DECIMAL})(?:\s*/\s*(?P<under>-?\s*{_DECIMAL}))?"
    r"(?:[eE](?P<e>[-+]?\d{1,3})|\s*(?:x|\*|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{?\s*(?P<power>[-+]?\d{1,3})\s*\}?)?"
    r"(?:\s*(?P<scale>(?i:hundred|thousand|million|billion|trillion|dozen)(?=s?\b)|k\b|(?<=\d)K\b)s?)?"
    r"(?:(?!\s*[\d.,;=])(?P<gap>\s*)(?![A-Za-z]\b(?<!\s.))(?P<unit>.{1,40}))?",
    re.ASCII,
)
_SCALES = {
    "dozen": 12, "hundred": 100, "thousand": 10**3, "k": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12,
}  # fmt: skip
# Letters behind a number are factors, but for these; without a vowel they are no word.
_SHORT = re.compile(
    "[dghlmstACFJKLNVW$\u20ac\u00a3\u00a5\u20b9%\u03a9]|[cmnudk]m|[km]?g|in|ft|lb|mi|min|mph|m[lLsAWV]|[cd]l|k[WJBNV]|kWh|kHz|kPa"
    "|Hz|Pa|eV|Wh|M[WBJ]|[GT]B|oz|yd|USD|EUR|GBP|\u00b0[CFK]?"
)
_NO_UNIT = re.compile(
    "or|and|not|but|ish|to|nor|if|than|wrong|right|false|true|incorrect|about|approx|approximately|around|roughly|nearly|maybe|perhaps"
    "|probably|possibly|plus|minu|more|les|over|under|max|maximum|minimum|rounded|negative|below|squared|cubed|factorial|choose|mod"
    "|pi|sqrt|sin|cos|tan|log|exp|half|halve|third|quarter|fourth|fifth|sixth|seventh|eighth|ninth|tenth|hundredth|thousandth|ten"
    "|hundred|thousand|million|billion|trillion|dozen|lakh|crore|score|gros|permille|point|infinity"
)
_SIGN_OF = {
    "dollar": "$", "USD": "$", "euro": "\u20ac", "EUR": "\u20ac", "GBP": "\u00a3", "degree": "\u00b0", "deg": "\u00b0",
}  # fmt: skip
# Full name of a unit, in the singular -> its other spellings. A plural s is removed before the look-up.
_UNITS = {
    "second": "s sec", "minute": "min", "hour": "h hr", "day": "d", "week": "wk", "year": "yr",
    "meter": "m metre", "gram": "g gm gramme", "liter": "l L litre", "tonne": "t",
    "inch": "in inche", "foot": "ft feet", "yard": "yd", "mile": "mi", "pound": "lb", "ounce": "oz",
    "hertz": "Hz", "watt": "W", "joule": "J", "volt": "V", "newton": "N", "pascal": "Pa", "ampere": "A amp",
    "ohm": "\u03a9", "byte": "B", "mole": "mol", "calorie": "cal", "watthour": "Wh", "electronvolt": "eV",
    "kilogram": "kilo Kg KG", "kilometer": "Km KM", "kilobyte": "KB",
    "mile/hour": "mph", "kilometer/hour": "kph kmh kmph",
    "\u00b0C": "celsius centigrade", "\u00b0F": "fahrenheit",
}  # fmt: skip
_PREFIXES = {
    "k": "kilo", "d": "deci", "c": "centi", "m": "milli", "u": "micro", "n": "nano", "M": "mega",
    "G": "giga", "T": "tera",
}  # fmt: skip
_MICRO = str.maketrans("\u00b5\u03bc", "uu")  # the sign, and the Greek letter that NFKC makes of it
_PREFIXED = (
    "second", "meter", "gram", "liter", "hertz", "watt", "joule", "volt", "newton", "pascal", "ampere", "ohm", "byte",
    "mole", "calorie", "watthour", "electronvolt",
)  # fmt: skip


def _unit_spellings() -> tuple[dict[str, str], dict[str, str]]:
    """Return the full name of each spelling of a unit, and of those that may stand in capitals."""
    full_names, in_any_case = {}, {}
    for name, spellings in _UNITS.items():
        for spelling in (name, *spellings.split()):
            full_names[spelling] = name
            if len(spelling) > 2:
                in_any_case[spelling.casefold()] = name
            if name not in _PREFIXED:
                continue
            for sign, prefix in _PREFIXES.items():
                # Signs go with signs and words with words: "km", "kilometre".
                is_word = len(spelling) > 3
                prefixed = f"{prefix if is_word else sign}{spelling}"
                full_names.setdefault(prefixed, f"{prefix}{name}")
                if is_word:
                    in_any_case[prefixed.casefold()] = f"{prefix}{name}"
    return full_names, in_any_case


_FULL_NAMES, _IN_ANY_CASE = _unit_spellings()
# Abbreviations that count as a unit though _SHORT does not have them.
_ALSO_SHORT = frozenset(
    (
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
    )
)
_SQUARE = re.compile(r"\b(square|sq|cubic|cu)\b\.?\s+([A-Za-z]+)")
_TEMPERATURE = re.compile(
    r"(?:\bdeg(?:rees?)?\s+|\u00b0\s*)(?i:(c)(?:elsius|entigrade)?|(f)(?:ahrenheit)?)(?![A-Za-z])"
)
_WORD = r"[A-Za-z\u00c0-\u024f\u03a9]+|[$\u20ac\u00a3\u00a5\u20b9%]|\u00b0[CFK]?"
_UNIT = re.compile(rf"(?:{_WORD})(?:\^-?\d)?(?:(?: ?[/*] ?\(?| )(?:{_WORD})(?:\^-?\d)?\)?){{0,3}}")


@dataclass(frozen=True)
class Number:
    """A number with what stands beside it: `x` of `x = 42`, `kg` of `42 kg`, `%` of `42%`, whose value is 0.42."""

    value: Fraction
    name: str = ""
    unit: str = ""


@lru_cache(maxsize=16_384)
def read_number(text: str) -> Number | None:
    r"""Return the number that the whole text is, exactly; None if it is anything else.

    >>> read_number("$1,250.50").value == Fraction("1250.5") == read_number(r"1250\frac{1}{2} kg").value
    True
    >>> read_number("41 or 42"), read_number("6 * 7"), read_number("007"), read_number("2.5 million").value == 2_500_000
    (None, None, None, True)
    """
    if len(text) > _LONGEST_NUMBER or len(text := plain(text)) > _LONGEST_NUMBER:
        return None
    if text[-1:].isdigit() and _PLAIN.fullmatch(text):
        return Number(Fraction(text))
    if not (found := _NUMBER.fullmatch(_FRAC.sub(r" \1/\2", text).strip())):
        value = _spelled(re.sub(r"\s+|(?<=\w)-(?=\w)", " ", text.casefold()))
        return None if value is None else Number(Fraction(value))
    over, under = (
        Fraction(re.sub(r"[,' ]|\.$", "", part)) for part in (found["over"], found["under"] or "1")
    )
    unit = unit_name(f"{found['money']} {found['unit'] or ''}")
    if found["unit"] and not found["gap"] and not _are_known_units(found["unit"]):
        return None  # 42abc and 42ish are no numbers, while 42km and 42min are
    is_amount = found["money"] and re.fullmatch("[A-Za-z]", found["unit"] or "")  # $5 m
    is_improper = found["whole"] and not 0 <= over < under
    if under == 0 or is_improper or is_amount or unit is None or (found["sign"] and found["minus"]):
        return None
    value = (over / under + int(found["whole"] or 0)) * Fraction(10) ** int(
        found["e"] or found["power"] or 0
    )
    value *= Fraction(_SCALES.get((found["scale"] or "").casefold(), 1), 100 if unit == "%" else 1)
    name = found["name"] or ""
    name = "y" if "(" in name else re.sub("[_{}]", "", name)  # f(x) = 3 is y = 3
    return Number(-value if "-" in (found["sign"], found["minus"]) else value, name, unit)


def is_same_number(given: Number, gold: Number, tolerance: float = 0.0) -> bool:
    """Whether two numbers are equal, and name no two variables or units; one of them may lack either.

    Where the gold answer has a percent sign, it may be left out: the question asks for percent. Where only the given
    number has one, it has one meaning: a gold answer of 42 is 42 %, and one of 0.5 is 50 %, never both.

    >>> is_same_number(read_number("50 %"), read_number("0.5")), is_same_number(read_number("50"), read_number("50%"))
    (True, True)
    >>> is_same_number(read_number("42%"), read_number("42")), is_same_number(read_number("0.5%"), read_number("0.5"))
    (True, False)
    >>> is_same_number(read_number("12 pounds"), read_number("12")), is_same_number(read_number("5 kg"), read_number("5 g"))
    (True, False)
    """
    if any(a and b and a != b for a, b in ((given.name, gold.name), (given.unit, gold.unit))):
        return False
    difference = abs(given.value - gold.value)
    given_points, gold_points = (
        number.value * (100 if number.unit == "%" else 1) for number in (given, gold)
    )
    difference_in_points = abs(given_points - gold_points)
    if gold.unit == "%":
        return difference_in_points <= tolerance or 100 * difference <= tolerance
    if given.unit == "%" and _is_in_points(gold.value):
        return difference_in_points <= tolerance
    return difference <= tolerance


def _is_in_points(gold: Fraction) -> bool:
    """Say whether a gold answer without a sign, if it is a percentage, counts percents: 42 does, 0.5 and 3.5 do not."""
    return abs(gold) >= 10 or (gold.denominator == 1 and abs(gold) > 1)


def unit_name(text: str) -> str | None:
    """A unit in one spelling, each word without the plural s; None for what is none, such as `or 43`.

    >>> unit_name("miles per hour"), unit_name("red apples"), unit_name("x"), unit_name("is wrong")
    ('mile/hour', 'redapple', None, None)
    >>> unit_name("km/h"), unit_name("square metres"), unit_name("mins")
    ('kilometer/hour', 'meter^2', 'minute')
    """
    text = _plain_unit(text)
    words = [_unit_word(word) for word in re.findall(_WORD, text)]
    if text and not (_UNIT.fullmatch(text) and all(words)):
        return None
    return re.sub(r"[ ()]", "", re.sub(_WORD, lambda found: words.pop(0), text))


def _plain_unit(text: str) -> str:
    """Return the text of a unit without LaTeX: per as /, squares and degrees in one spelling."""
    text = re.sub(r"\\(?:text[a-z]*|mathrm|mbox)(?![a-z])|[{}]", "", text).replace(
        "^\\circ", "\u00b0"
    )
    text = text.translate(_MICRO)
    text = _TEMPERATURE.sub(lambda found: "\u00b0C" if found[1] else "\u00b0F", text)
    text = _SQUARE.sub(lambda found: f"{found[2]}^{2 if found[1] in ('square', 'sq') else 3}", text)
    return " ".join(
        re.sub(r"\bper\b", "/", text.replace("\\cdot", "*").replace("\\mu", "u")).split()
    )


def _unit_word(word: str) -> str:
    """Return one word of a unit in one spelling; empty for what is none: 25 December is a day, 10 Downing Street a house."""
    if known := _known_unit(word):
        return known
    name = word.removesuffix("s") if len(word) > 2 else word
    is_word = (
        len(word) > 2
        and word.islower()
        and re.search("[aeiouy]", word)
        and not _NO_UNIT.fullmatch(name)
    )
    return name if is_word else ""


def _known_unit(word: str) -> str:
    """Return the full name of a unit that people measure in; empty for any other word."""
    singular = word.removesuffix("s") if len(word) > 2 else word
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


_ONES = [
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve", "thirteen",
    "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
]  # fmt: skip
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_SPELLED = dict(zip([*_ONES, *_TENS], [*range(20), *range(20, 100, 10)], strict=True))


def _spelled(words: str) -> int | None:
    """The value of an English number word: `two hundred and five`."""
    for name in ("billion", "million", "thousand", "hundred"):
        many, found, rest = words.partition(f" {name}")
        if found:
            whole = 1 if many == "a" else _spelled(many)
            more = _spelled(rest.strip().removeprefix("and ")) if rest else 0
            return (
                None
                if None in (whole, more) or more >= _SCALES[name]
                else whole * _SCALES[name] + more
            )
    ten, _, one = words.partition(" ")
    return (
        _SPELLED[ten] + _SPELLED[one]
        if ten in _TENS and one in _ONES[1:10]
        else _SPELLED.get(words)
    )
