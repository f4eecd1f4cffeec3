r"""Numbers as people write them: the value, exactly, with the name before it and the unit behind it.

`3/4`, `1 3/4`, `\frac{3}{4}`, `75\%`, `1,250.50`, `1.2e-3`, `1.2 \times 10^{-3}`, `forty-two` are numbers. `41 + 1`, `6 \cdot 7`,
`2^{10}` are arithmetic still to be done: a model that may leave it undone learns to copy the question. The point is the decimal
mark, and what begins with a zero (`007`) is a text.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

_LONGEST, _LONGEST_NUMBER = 2000, 100  # characters
_SIGNS = str.maketrans({
    "\u2212": "-", "\u2013": "-", "\u2010": "-", "\u2011": "-", "\u2044": "/", "\u2019": "'", "\u00d7": r"\times ",
    "\u211d": r"\mathbb{R}", "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u00b0": r"^{\circ}", "\u201c": '"', "\u201d": '"', "\u201e": '"',
})  # fmt: skip
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_RAISED, _LOWERED = re.compile("[\u00b2\u00b3\u00b9\u2070-\u207f]+"), re.compile("[\u2080-\u209c]+")
_FRACTION_SIGN = re.compile("(?<=[0-9])?(?=[\u00bc-\u00be\u2150-\u215e])")
_INSIDE = r"[^{}]*+"
for _ in range(8):  # braces nested deeper than anyone writes them
    _INSIDE = rf"(?:[^{{}}]|\{{{_INSIDE}\}})*+"
INSIDE = _INSIDE
r"""What stands between `{` and its `}`, as a pattern."""
_AROUND = [
    re.compile(pattern, re.DOTALL)
    for pattern in (
        r"```\w*[ \t]*\n(.*)\n[ \t]*```",
        rf"\\(?:boxed|fbox|text[a-z]*|mathrm|mathbf|mbox)\s*\{{({_INSIDE})\}}",
        r"(?i)(?:####\s|(?:the )?(?:final )?answer(?: is:?|:)\s)\s*(.*)",
    )
]
_PAIRS = (
    ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("***", "***"), ("**", "**"), ("*", "*"), ("__", "__"),
    ("_", "_"), ("`", "`"), ('"', '"'), ("'", "'"), ("\u00ab", "\u00bb"), ("(", ")"), ("{", "}"),
)  # fmt: skip
_SPELLINGS = [
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"\\(?:left|right|displaystyle|textstyle)(?![A-Za-z])\s*", ""),
        (r"\\!\s*", ""),
        (r"(?<!\\)\\[,;: ]|(?<=\S)~(?=[^\s~])", " "),
        (r"\s*\{\s*,\s*\}\s*", ","),
        (r"\\\$", "$"),
        (r"\s*\\text\{\s*(?:per ?cent(?:age)?|pct)\s*\}|\s*\\%|\s*\b(?:per ?cent(?:age)?|pct)\b", "%"),
        (r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![a-z])", r"^{\\circ}"),
        (r"\\[dtc]frac(?![A-Za-z])", r"\\frac"),
        (r"\\frac\s*([0-9A-Za-z])", r"\\frac{\1}"),
        (rf"(\\frac\s*\{{{_INSIDE}\}})\s*([0-9A-Za-z])", r"\1{\2}"),
        (r"[^\S\n]+", " "),
    )
]


@lru_cache(maxsize=4_096)
def plain(text: str) -> str:
    r"""Return a text without what changes nothing in it: wrappers of Markdown and LaTeX, a full stop, invisible characters.

    The writing changes, never the meaning: `½` and `\dfrac12` become one text, a hedge stays a hedge.

    >>> plain(r"$\boxed{\dfrac12}$."), plain("**42**"), plain("#### 142")
    ('\\frac{1}{2}', '42', '142')
    """
    text = text.strip()
    if text.isalnum() and text.isascii() or len(text) > _LONGEST:
        return text
    if not text.isascii():
        text = _FRACTION_SIGN.sub(" ", _INVISIBLE.sub("", text)).translate(_SIGNS)
        for mark, signs in (("^", _RAISED), ("_", _LOWERED)):
            text = signs.sub(lambda found, mark=mark: f"{mark}{{{unicodedata.normalize('NFKC', found[0])}}}", text)
        text = unicodedata.normalize("NFKC", text).translate(_SIGNS)
        text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() else c for c in text)
    text = _unwrapped(text)
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return _unwrapped(text)


def _unwrapped(text: str) -> str:
    before = None
    while text != before:
        before = text = text.strip()
        text = text if text.endswith("..") else text.removesuffix(".").rstrip()
        for start, end in _PAIRS:
            inner = text[len(start) : len(text) - len(end)]
            # (1, 2) is a pair, (1+x)(1-x) a product, and __init__ a name.
            is_other = re.search("[,;]", inner) if start in "({" else start[0] == "_" and inner.isidentifier()
            is_around = inner and text.startswith(start) and text.endswith(end) and not (start in inner or end in inner)
            text = inner.strip() if is_around and not is_other else text
        for pattern in _AROUND:
            found = pattern.fullmatch(text)
            text = found[1].strip() if found else text
    return text


_DIGITS = (
    r"(?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?:[ '][0-9]{3})+)(?![0-9])|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}|(?!0[0-9])[0-9]+)"
)
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_NAME = r"[A-Za-z](?:_\{?\w\}?)?(?:\([a-z]\))?|[A-Z]{2,4}|p[A-Z]{1,2}|\\[a-z]+"
_FRAC = re.compile(rf"\\frac\s*\{{\s*(-?\s*{_DECIMAL})\s*\}}\s*\{{\s*(-?\s*{_DECIMAL})\s*\}}")
_NUMBER = re.compile(
    rf"(?:(?P<name>{_NAME})\s*=(?!=)\s*)?(?P<sign>[-+]?)\s*(?P<money>(?:US ?)?[$\u20ac\u00a3\u00a5\u20b9]|USD|EUR|GBP)?\s*(?P<minus>-?)\s*"
    rf"(?:(?P<whole>[1-9][0-9]*) +(?=[0-9.,]+\s*/\s*-?[0-9.]))?(?P<over>{_DECIMAL})(?:\s*/\s*(?P<under>-?\s*{_DECIMAL}))?"
    r"(?:[eE](?P<e>[-+]?[0-9]{1,3})|\s*(?:x|\*|\\times|\\cdot)\s*10\s*(?:\^|\*\*)\s*\{?\s*(?P<power>[-+]?[0-9]{1,3})\s*\}?)?"
    r"(?P<unit>(?:\s*[^\s0-9.,;=].{0,39})?)"
)
_SCALES = {
    "hundred": 100, "thousand": 1000, "million": 10**6, "billion": 10**9, "trillion": 10**12, "dozen": 12, "k": 1000,
}  # fmt: skip
_SAME_UNIT = {
    "$": "dollar usd US$", "\u20ac": "euro eur", "\u00a3": "gbp", "\u00b0": "degree deg", "h": "hour hr hrs", "min": "minute",
    "s": "second sec", "m": "meter metre", "cm": "centimeter centimetre", "km": "kilometer kilometre", "g": "gram",
    "kg": "kilogram", "in": "inch inche", "ft": "foot feet", "lb": "lbs pound", "m/s": "mps", "km/h": "kmh kph", "mi": "mile", "mi/h": "mph",
}  # fmt: skip
_UNIT_NAMES = {name: unit for unit, names in _SAME_UNIT.items() for name in names.split()}
_KNOWN_UNITS = {*"mm dm nm um mg ml cl dl oz yd ms hz kw kj kb mb gb tb pa ev wh".split(), *_SAME_UNIT, *_UNIT_NAMES}
_ALONE = frozenset("dghlmstACFJKLNVW$\u20ac\u00a3\u00a5\u20b9%\u00b0\u03a9")  # other letters behind a number are factors
_NO_UNITS = frozenset(
    "or and not but is to no nor if than wrong right false true incorrect about approximately approx around roughly nearly maybe "
    "perhaps probably possibly plus minus more less over under max maximum minimum rounded odd ish squared cubed factorial th st nd "
    "rd pi sqrt sin cos tan log ln exp mod half halve third quarter fourth fifth sixth seventh eighth ninth tenth hundredth "
    "thousandth millionth ten mn bn lakh crore score gross permille point bps ppm infinity".split()
)
_WORD = r"[A-Za-z\u00b5\u00c0-\u024f\u03a9]+|[$\u20ac\u00a3\u00a5\u20b9%\u00b0]"
_UNIT = re.compile(rf"(?:{_WORD})(?:\^-?[0-9])?(?:(?: ?[/*] ?\(?| )(?:{_WORD})(?:\^-?[0-9])?\)?){{0,3}}")


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
    text = text if len(text) > _LONGEST_NUMBER else plain(text)
    if len(text) > _LONGEST_NUMBER:
        return None
    found = _NUMBER.fullmatch(_FRAC.sub(r" \1/\2", text).strip())
    if found is None:
        spelled = _spelled(text)
        return None if spelled is None else Number(spelled)
    measured = _measured(found["money"] or "", found["unit"])
    over, under = _decimal(found["over"]), _decimal(found["under"] or "1")
    is_improper = found["whole"] is not None and not 0 <= over < under
    if measured is None or under == 0 or is_improper or (found["sign"] and found["minus"]):
        return None
    factor, unit = measured
    value = (over / under + int(found["whole"] or 0)) * Fraction(10) ** int(found["e"] or found["power"] or 0) * factor / (100 if unit == "%" else 1)
    name = found["name"] or ""
    return Number(
        -value if "-" in found["sign"] + found["minus"] else value,
        "y" if "(" in name else re.sub("[_{}]", "", name),  # f(x) = 3 is y = 3
        unit,
    )


def is_same_number(given: Number, gold: Number, tolerance: float = 0.0) -> bool:
    """Whether two numbers are equal, and name no two variables or units; one of them may lack either.

    Of two numbers of which one has a percent sign the sign may be left out: the question asks for percent.

    >>> is_same_number(read_number("50 %"), read_number("0.5")), is_same_number(read_number("50"), read_number("50%"))
    (True, True)
    >>> is_same_number(read_number("12 pounds"), read_number("12")), is_same_number(read_number("5 kg"), read_number("5 g"))
    (True, False)
    """
    if any(a and b and a != b for a, b in ((given.name, gold.name), (given.unit, gold.unit))):
        return False
    if abs(given.value - gold.value) <= tolerance:
        return True
    percents = [100 if number.unit == "%" else 1 for number in (given, gold)]
    return percents[0] != percents[1] and abs(given.value * percents[0] - gold.value * percents[1]) <= tolerance


def unit_name(text: str) -> str | None:
    """The one name of a unit however it is written: `km/h` for `kilometers per hour`; None for what is no unit, such as `or 43`.

    >>> unit_name("grams"), unit_name("square cm"), unit_name("x"), unit_name("is wrong")
    ('g', 'cm^2', None, None)
    """
    text = re.sub(r"\\(?:text[a-z]*|mathrm|mbox)(?![a-z])|[{}]", "", text).replace("^\\circ", "\u00b0")
    text = text.replace("\\cdot", "*").replace("\\mu", "u").replace("\\Omega", "\u03a9")
    text = re.sub(r"\bper\b", "/", " ".join(text.split()))
    text = re.sub(r"\b(?:(square)|cubic) ([^\W\d_]+)", lambda found: f"{found[2]}^{2 if found[1] else 3}", text)
    words = re.findall(_WORD, text)
    if not _UNIT.fullmatch(text) or not all(map(_is_unit, words)):
        return None
    return re.sub(r"[ ()]*([/*]?)[ ()]*", r"\1", re.sub(_WORD, lambda found: _unit_word(found[0]), text))


def _is_unit(word: str) -> bool:
    if len(word) == 1:
        return word in _ALONE
    names = {word.casefold(), word.casefold().removesuffix("s")}
    is_word = len(word) > 2 and word.islower() and re.search("[aeiouy]", word)  # 25 December is a day, 10 Downing Street a house
    return not names & _NO_UNITS and bool(is_word or names & _KNOWN_UNITS)


def _unit_word(word: str) -> str:
    name = word.casefold() if len(word) > 3 else word  # MW is no mW
    name = name.removesuffix("s") if len(name) > 2 else name
    return _UNIT_NAMES.get(name.casefold() if len(name) > 1 else name, name)


def _measured(money: str, unit: str) -> tuple[int, str] | None:
    """What a number is multiplied by, and its unit; None where what stands behind it is no unit."""
    behind, is_attached = unit.strip(), unit[:1].isalpha()
    first, _, rest = behind.partition(" ")
    scale = first.casefold().removesuffix("s")
    if scale in _SCALES and (first != "K" or is_attached):
        factor, behind, is_attached = _SCALES[scale], rest.strip(), False
    else:
        factor = 1
    if len(behind) == 1 and behind.isalpha() and (is_attached or money):
        return None  # 2x is a product, and $5 M an amount
    name = unit_name(behind) if behind else ""
    return None if name is None else (factor, " ".join(filter(None, (_unit_word(money.replace(" ", "")), name))))


def _decimal(text: str) -> Fraction:
    return Fraction(re.sub(r"[,' ]", "", text).removesuffix("."))


_ONES = (
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen"
).split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_BELOW_HUNDRED = [*_ONES, *(f"{ten} {one}".removesuffix(" zero") for ten in _TENS for one in _ONES[:10])]
_SPELLED = {words: value for value, words in enumerate(_BELOW_HUNDRED)}
_PARTS = {"half": 2, "halves": 2, "third": 3, "quarter": 4, "fourth": 4, "fifth": 5, "sixth": 6, "eighth": 8, "tenth": 10}


def _spelled(text: str) -> Fraction | None:
    """The value of an English number word below a million million, or of a fraction: `two thirds`, `two and a half`."""
    words = re.sub(r"\s+|(?<=\w)-(?=\w)", " ", text.strip().casefold())
    if part := re.fullmatch(r"(?:(.+) and )?(an?|\w+) (\w+?)s?", words):
        whole, count = _spelled(part[1]) if part[1] else 0, _SPELLED.get(part[2], int(part[2] in ("a", "an")))
        under = _PARTS.get(part[3], 0) or _PARTS.get(f"{part[3]}s", 0)
        if whole is not None and 0 < count and under and (count < under or not part[1]):
            return whole + Fraction(count, under)
    for name, factor in (("billion", 10**9), ("million", 10**6), ("thousand", 1000), ("hundred", 100)):
        many, found, rest = words.partition(f" {name}")
        if found:
            values = [Fraction(1) if many == "a" else _spelled(many), _spelled(rest.strip().removeprefix("and ")) if rest else 0]
            is_below = values[1] is not None and values[1] < factor
            return None if values[0] is None or not is_below or values[0].denominator > 1 else values[0] * factor + values[1]
    return Fraction(_SPELLED[words]) if words in _SPELLED else None
