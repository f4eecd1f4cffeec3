r"""How answers are written: one plain spelling for the many of one answer, the number that it is, the parts that it has.

`plain` changes the writing only, never the meaning: `½`, `\dfrac12` and `\frac{1}{2}` become one text, a hedge stays a hedge.
`3/4`, `1 3/4`, `\frac{3}{4}`, `75\%`, `1,250.50`, `1.2e-3`, `1.2 \times 10^{-3}` are numbers. `41 + 1`, `6 \cdot 7`, `2^{10}`
are arithmetic still to be done: a model that may leave it undone learns to copy the question. The point is the decimal mark.
JSON, dates and measures of several units (`2 h 20 min`) are none, whatever signs they have in them.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Any

_LONGEST = 2000  # characters; what is longer is compared as it is written
_LONGEST_NUMBER = 64
_LONGEST_JSON, _DEEPEST_JSON = 20_000, 64  # characters, levels
_LARGEST_EXPONENT = 400  # beyond any float; keeps 1e999999999 from filling the memory


def words(text: str) -> list[str]:
    """The words of a table that is easier to read as a text."""
    return text.split()


# What is called by several names, each with the one that units are compared by; TRY in small letters is a word, PHP 8 no price.
_MONEY = {
    "$": "usd dollar usdollar", "\u20ac": "eur euro", "\u00a3": "gbp poundsterling poundssterling",
    "\u00a5": "jpy yen", "\u20b9": "inr rupee Rs rs", "\u20bd": "rub ruble rouble", "\u20a9": "krw won",
    "\u20ba": "TRY lira", "\u20aa": "ils shekel", "CHF": "chf franc franken Fr", "PLN": "z\u0142 zloty", "CZK": "K\u010d kc",
} | dict.fromkeys(words("SEK NOK DKK HUF RON BGN UAH CNY HKD SGD TWD THB IDR VND AUD CAD NZD BRL MXN ZAR AED"), "")  # fmt: skip
_MEASURED = {
    "lb": "lbs pound", "oz": "ounce", "in": "inch inche", "ft": "foot feet", "yd": "yard", "mi": "mile", "s": "sec",
    "h": "hr hrs", "day": "d", "tsp": "teaspoon", "tbsp": "tablespoon", "km/h": "kph kmph", "mi/h": "mph",
}  # fmt: skip
_NAMES_OF_UNITS = {name: unit for unit, names in {**_MONEY, **_MEASURED}.items() for name in words(names)}
CURRENCIES = "".join(unit for unit in _MONEY if len(unit) == 1)
_INSIDE = r"[^{}]*+"
for _ in range(8):  # braces nested deeper than anyone writes them
    _INSIDE = rf"(?:[^{{}}]|\{{{_INSIDE}\}})*+"
_BOX = re.compile(rf"\\(?:boxed|fbox)\s*\{{({_INSIDE})\}}")
_JOINT = re.compile(r"(?:[\s$(){},;\\]|\\[()\[\],;]|\\q?quad|\\text\b|and|or)*+")

# What Unicode has signs for and NFKC leaves alone, or would read as something else.
_SIGNS = str.maketrans({
    "\u2212": "-", "\u2013": "-", "\u2010": "-", "\u2011": "-", "\u2044": "/", "\u2019": "'", "\u00d7": r"\times ",
    "\u00b7": r"\cdot ", "\u22c5": r"\cdot ", "\u2217": "*", "\u221e": r"\infty ", "\u00b0": r"^{\circ}", "\u2264": r"\le ",
    "\u2a7d": r"\le ", "\u2265": r"\ge ", "\u2a7e": r"\ge ", "\u2260": r"\ne ", "\u00b1": r"\pm ", "\u2213": r"\mp ",
    "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in ", "\u2205": r"\emptyset ", "\u2248": r"\approx ",
    "\u2192": r"\to ", "\u211d": r"\mathbb{R}",
}) | {
    code: "\\" + unicodedata.name(chr(code)).split()[-1].lower().replace("lamda", "lambda") + " "
    for code in range(0x3B1, 0x3CA)
}  # fmt: skip
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]")
_RAISED = re.compile("[\u00b2\u00b3\u00b9\u2070-\u207f]+")
_LOWERED = re.compile("[\u2080-\u209c]+")
_FRACTION_SIGN = re.compile("[\u00bc-\u00be\u2150-\u215e]")
_ROOT = re.compile(r"\u221a\s*(?:\(([^()]*)\)|([0-9.]+|\w))")

# Commands of one meaning, and those of none; white space after one ends its name.
_SYNONYMS = {
    synonym: command
    for command, synonyms in {
        "": "left right big Big bigl bigr Bigl Bigr bigg Bigg displaystyle textstyle limits",
        "\n": "quad qquad",
        r"\le ": "le leq leqslant leqq", r"\ge ": "ge geq geqslant geqq", r"\ne ": "ne neq", "<": "lt", ">": "gt",
        r"\{": "lbrace", r"\}": "rbrace", "[": "lbrack", "]": "rbrack", "|": "vert lvert rvert mid",
        r"\emptyset ": "varnothing",
        r"\frac": "frac dfrac tfrac cfrac", r"\sqrt": "sqrt", r"^{\circ}": "degree",
        r"\text": "text textbf textit textrm textnormal textsf mathrm mathsf mbox operatorname",
    }.items()
    for synonym in words(synonyms)
}  # fmt: skip
_COMMAND = re.compile(r"(?<!\\)\\([A-Za-z]+)\s*")
_COMPARISONS = {"<=": r"\le ", ">=": r"\ge ", "!=": r"\ne "}
# One after the other, each where the text has the first column in it.
_SPELLINGS = [
    (needed, re.compile(pattern), spelling)
    for needed, pattern, spelling in (
        ("$", r"\$\s+\$", "$\n$"),
        ("$", r"(?<!\\)\$\$?((?:[^$\\]|\\.)*+)\$\$?", r" \1 "),
        ("\\", r"(?<!\\)\\[()\[\]]", " "),
        ("\\$", r"\\\$", "$"),
        ("US", r"\bUS ?(?=\$)", ""),
        ("-", rf"(?<=[0-9])[.,]--?(?=\s*(?:[{CURRENCIES}]|[A-Z]{{3}}|[Ee]uro|Fr\.?)?$)", ""),  # 12,- is a price
        ("\\", r"(?<!\\)\\!\s*|\\(?:left|right)\s*\.", ""),
        (
            "\\",
            r"\\(?:mathbf|boldsymbol|bm|mathit|underline|emph)\s*\{([^{}]*)\}|\\mathrm\s*\{\s*([eid])\s*\}",
            r"\1\2",
        ),
        ("\\", _COMMAND.pattern, lambda match: _SYNONYMS.get(match[1], match[0])),
        ("\\", r"(?<!\\)\\[,;: ]", " "),
        ("~", r"(?<=[^\s~])~(?=[^\s~])", " "),
        ("{", r"\s*\{\s*,\s*\}\s*", ","),
        ("\\", r"\\text\{\s*(and|or),?\s*\}", r" \1 "),
        ("\\", r"\\text\{\s*(?:per ?cent(?:age)?|pct)\s*\}|\\%", "%"),
        ("p", r"\s*\b(?:per ?cent(?:age)?|pct)\b", "%"),
        ("\\circ", r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})", r"^{\\circ}"),
        ("=", r"[<>!]=", lambda match: _COMPARISONS[match[0]]),
        ("\\", r"\\\{\s*\\\}", r"\\emptyset "),
        ("\\infty", r"(?<=[(\[,])\s*\+\s*(?=\\infty)", ""),
        ("\\begin", r"\\(begin|end)\s*\{[bB]?(?:small)?(?:matrix|array)\}(?:\{[clr|]*\})?", r"\\\1{pmatrix}"),
        ("\\begin", r"[\[(]\s*(?=\\begin\{pmatrix\})|(?<=\\end\{pmatrix\})\s*[\])]", ""),
        ("**", r"(?<=[\w)}])\s*\*\*\s*(?=[\w({-])", "^"),
        ("^", r"\^\s*\(([^()]*)\)", r"^{\1}"),
        ("^", r"\^\s*(-?[0-9]+|[A-Za-z])", r"^{\1}"),
        ("_", r"_\s*([0-9]+|[A-Za-z])", r"_{\1}"),
        ("=", r"(?<![\w\\}])([A-Za-z])([0-9])(?=\s*=(?!=))", r"\1_{\2}"),
        ("\\sqrt", r"\\sqrt(\[[^\]]*\])?\s*([0-9A-Za-z])", r"\\sqrt\1{\2}"),
        ("", r"(?<![\\A-Za-z])(?=(?:sqrt|pi|sin|cos|tan|log|ln|exp)(?![A-Za-z]))", r"\\"),
        ("\\sqrt", r"\\sqrt\s*\(([^()]*)\)", r"\\sqrt{\1}"),
        ("\\frac", r"\\frac([0-9A-Za-z])", r"\\frac{\1}"),
        ("\\frac", rf"(\\frac\{{{_INSIDE}\}})\s*([0-9A-Za-z])", r"\1{\2}"),
    )
]
_PLAIN_NUMBER = re.compile(r"-?[0-9]{1,50}(?:\.[0-9]{1,12})?")
_NOTHING_TO_SPELL = re.compile(r"-?[0-9]+(?:\.[0-9]+)?|[A-Za-z]+")
_PAIRS = (
    ("$$", "$$"), ("$", "$"), ("\\(", "\\)"), ("\\[", "\\]"), ("***", "***"), ("**", "**"), ("*", "*"), ("__", "__"),
    ("_", "_"), ("`", "`"), ('"', '"'), ("'", "'"), ("\u201c", "\u201d"), ("\u201e", "\u201c"), ("\u2018", "'"),
    ("\u00ab", "\u00bb"), ("(", ")"), ("{", "}"),
)  # fmt: skip
_FENCE = re.compile(r"```[A-Za-z]*[ \t]*\n(.*)\n[ \t]*```", re.DOTALL)
_IN_TEXT = re.compile(rf"\\(?:text[a-z]*|mathrm|mbox)\s*\{{({_INSIDE})\}}")


@lru_cache(maxsize=20_000)
def plain(text: str) -> str:
    r"""Return the text in the plainest spelling of what it says, without the wrappers that change nothing.

    One sign for each thing (`\le` for `\leq`, `<=` and the sign itself), digits of every script and width, fractions and powers
    that Unicode has signs for, no invisible characters; without code fences, stars, dollars, boxes, brackets around it all.

    >>> plain("**\uff14\uff12**"), plain(r"$\boxed{\dfrac12}$."), plain("x\u00b2 \u2264 4")
    ('42', '\\frac{1}{2}', 'x^{2} \\le 4')
    """
    text = text.strip()
    if _NOTHING_TO_SPELL.fullmatch(text) or len(text) > _LONGEST:
        return text
    if not text.isascii():
        text = _ascii(text)
    text = unwrap(text)
    if "\\\\" in text and "\\begin" not in text:  # escaped twice, as in JSON
        text = re.sub(r"\\\\(?=[A-Za-z{}()\[\]%])", r"\\", text)
    if "\\boxed" in text or "\\fbox" in text:
        is_list = _JOINT.fullmatch(_BOX.sub("", text))
        text = boxed_answers(text) if is_list else _BOX.sub(r"\1", text) if len(_BOX.findall(text)) == 1 else text
    # A line of its own may be another answer; in a matrix it is none.
    text = " ".join(text.split()) if "\\begin" in text else re.sub(r"[^\S\n]+", " ", text)
    for needed, pattern, spelling in _SPELLINGS:
        if needed in text:
            text = pattern.sub(spelling, text)
    return unwrap(text)


def _composed(text: str) -> str:
    return unicodedata.normalize("NFKC", text)


def _ascii(text: str) -> str:
    text = _INVISIBLE.sub("", text).translate(_SIGNS)
    text = _RAISED.sub(lambda match: f"^{{{_composed(match[0])}}}", text)
    text = _LOWERED.sub(lambda match: f"_{{{_composed(match[0])}}}", text)
    text = _FRACTION_SIGN.sub(lambda match: r"\frac{{{}}}{{{}}}".format(*_composed(match[0]).split("\u2044")), text)
    text = _ROOT.sub(lambda match: f"\\sqrt{{{match[1] or match[2]}}}", _composed(text))
    # Digits of other scripts are digits.
    text = "".join(str(unicodedata.decimal(c)) if c.isdecimal() and not c.isascii() else c for c in text)
    return text.translate(_SIGNS)


def boxed_answers(text: str) -> str:
    r"""The boxed answer of a worked solution, as in MATH; the text itself if it has none.

    Boxes with nothing between them but a comma, `and` or `or` are the parts of one answer; of others the last counts.

    >>> boxed_answers(r"So $\boxed{1}$ and $\boxed{2}$."), boxed_answers("7")
    ('1, 2', '7')
    """
    found: list[re.Match[str]] = []
    for match in _BOX.finditer(text):
        between = text[found[-1].end() : match.start()] if found else ""
        is_part = _JOINT.fullmatch(re.sub(r"\b(?!and\b|or\b)[A-Za-z]+(?=\s+(?:and|or)\b)", "", between))
        found = [*found, match] if is_part else [match]
    return ", ".join(dict.fromkeys(match[1].strip() for match in found)) or text


def unwrap(text: str) -> str:
    r"""Return the text without white space, final stop and the wrappers that change nothing, however nested.

    >>> unwrap(r" $\boxed{42}$. ")
    '42'
    """
    text = text.strip()
    for _ in range(6):  # nested deeper than anyone writes it
        before = text
        text = text.removesuffix(".").strip() if not text.endswith("..") else text
        for start, end in _PAIRS:
            inner = text[len(start) : len(text) - len(end)]
            # (1, 2) is a pair, (1+x)(1-x) a product, and __init__ a name.
            is_other = ("," in inner or ";" in inner) if start in "({" else start[0] == "_" and inner.isidentifier()
            is_around = inner and text.startswith(start) and text.endswith(end) and not (start in inner or end in inner)
            text = inner.strip() if is_around and not is_other else text
        for pattern in (_FENCE, _BOX, _IN_TEXT):
            wrapped = pattern.fullmatch(text)
            text = wrapped[1].strip() if wrapped else text
        if text == before:
            break
    return text


_DIGITS = (
    r"(?:[1-9][0-9]{0,2}(?:(?:,[0-9]{3})+|(?:[ '][0-9]{3})+|(?:\.[0-9]{3}){2,})(?![0-9])"
    r"|[1-9][0-9]?(?:,[0-9]{2})+,[0-9]{3}|[0-9]+)"
)
_DECIMAL = rf"(?:{_DIGITS}(?:\.[0-9]*)?|\.[0-9]+)"
_EXPONENT = r"(?:[eE](?P<e>[-+]?[0-9]{1,4})|\s*(?:x|\*|\\times|\\cdot)\s*10\s*\^\s*\{?\s*(?P<p>[-+]?[0-9]{1,4})\s*\}?)"
_NUMBER = re.compile(
    rf"(?![0-9]*\\overline)(?P<number>{_DECIMAL})(?:\\overline\{{(?P<cycle>[0-9]{{1,20}})\}})?{_EXPONENT}?"
)
_FRACTION = re.compile(
    rf"(?:(?P<whole>[1-9][0-9]*)(?: +| *(?=\\)))?"
    rf"(?:(?P<over>{_DECIMAL})\s*/\s*(?P<under>{_DECIMAL})"
    rf"|\\frac\s*\{{\s*(?P<Over>-?\s*{_DECIMAL})\s*\}}\s*\{{\s*(?P<Under>-?\s*{_DECIMAL})\s*\}})"
)
_SIGNS_OF_UNITS = dict.fromkeys(["", "\u00b0", *_MONEY], Fraction(1)) | {"%": Fraction(1, 100)}
_SIGN = re.compile(rf"([-+]?)\s*([{CURRENCIES}]?)\s*([-+]?)\s*")
_UNIT = re.compile(
    # The power of a number, as in 10^{8} km, is none of a unit.
    rf"(.*?[0-9.}}])\s*(?!\}}|\^\{{-?[0-9])([{CURRENCIES}%]|\^\{{\\circ\}}(?:\s*(?:\\text\s*\{{)?[CFK]\}}?)?"
    rf"|(?:[^\W\d_]|\\text|[ {{}}/*]|\\(?:cdot|mu|Omega)|\^\{{-?[0-9]\}}|/\s*\((?:[^\W\d_]|[ *]|\\cdot)+\))+)"
)
_PREFIX = dict(zip(words("kilo centi milli micro nano mega giga hecto deci"), words("k c m u n M G h d"), strict=True))
_LONG = (
    "meter metre gram liter litre hour minute second newton joule volt watt pascal hertz mole ohm ampere electronvolt"
)
_SHORT_UNIT = dict(zip(words(_LONG), words("m m g l l h min s N J V W Pa Hz mol \u03a9 A eV"), strict=True))
_LONG_UNIT = re.compile(rf"(?i)\b({'|'.join(_PREFIX)}|)({'|'.join(_SHORT_UNIT)})\b")
# What is divided by: `km h^-1` is `km/h`; `h^-1` alone is no part of a unit.
_INVERSE = re.compile(r"(?<=\w)(?:\s*(?:\*|\\cdot)\s*|\s+)([^\W\d_]+)\^-(?:1|([0-9]))")
_TEMPERATURE = re.compile(r"(?:\^\\circ|o|deg(?:ree)?s?)?([CFK]|[Cc]elsius?|[Ff]ahrenheit|[Kk]elvin)")
# What measures the same; of units with commas between them, all are one.
_QUANTITIES = [
    {unit: place for place, same in enumerate(words(units)) for unit in same.split(",")}
    for units in (
        "mg g kg t lb oz", "nm um mm cm dm m km in ft yd mi", "ms s m,min h day week", "ml cl dl l hl gal", "%",
        "mV V kV", "mA A", "mW W kW MW GW", "J kJ MJ Wh kWh MWh eV keV MeV", "Hz kHz MHz GHz",
        "Pa hPa,mbar kPa psi bar MPa atm", "N kN MN", "\u03a9 k\u03a9 M\u03a9", "mmol mol",
        "B kB,KB MB GB TB", "\u00b0C", "\u00b0F", "K",
        " ".join(_MONEY),
    )
]  # fmt: skip
_ORDINALS = words("st nd rd th")
# Units that stand together in one measure, such as 2 h 20 min, each with its factor; of one factor, the first is its name.
_TOGETHER: list[dict[str, int]] = [
    {"s": 1, "min": 60, "m": 60, "h": 3600, "day": 86400, "week": 604800},
    {"mm": 1, "cm": 10, "m": 1000, "km": 1_000_000}, {"mg": 1, "g": 1000, "kg": 1_000_000}, {"in": 1, "ft": 12, "yd": 36},
    {"ml": 1, "cl": 10, "dl": 100, "l": 1000}, {"oz": 1, "lb": 16},
]  # fmt: skip
_MEASURE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]+)")
_MEASURES = re.compile(rf"[-+]?{_MEASURE.pattern}(?:,?\s*(?:and\s+)?{_MEASURE.pattern})+")
_DAY, _MONTH = "(?:0?[1-9]|[12][0-9]|3[01])", "(?:0?[1-9]|1[0-2])"
_DATE = re.compile(
    rf"(?:[0-9]{{4}}([-/.]){_MONTH}\1{_DAY}|(?:{_DAY}([-/.]){_MONTH}\2|{_MONTH}([-/.]){_DAY}\3)[0-9]{{4}})"
    r"(?:[T ][0-9]{1,2}:[0-9]{2}\S*)?"
)
_UNIT_BEFORE = re.compile(r"([^\W\d_]+)(?:\. )?\s*(?=[.0-9])")
_ATOM = r"(?:[A-Za-z]|\\[a-z]+)(?:_\{\w+\})?'?"
_NAME = (
    rf"(?:{_ATOM}(?:\(\s*{_ATOM}\s*\))?|[A-Z]{{2,4}}|p[A-Z]{{1,2}}a?(?:_\{{\w+\}})?"  # pH, pOH, pK_a
    rf"|\|[A-Z]{{2}}\||\(\s*{_ATOM}(?:\s*,\s*{_ATOM})+\s*\))"
)
_NAMES = rf"(?:{_NAME}(?:\s*[:/]\s*{_NAME})?|\\frac\{{{_NAME}\}}\{{{_NAME}\}})"
_NAMED = re.compile(rf"\s*({_NAMES})\s*(?:=(?!=)|\\in(?![A-Za-z]))\s*")
_ONES = words(
    "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen "
    "nineteen"
)
_TENS = words("twenty thirty forty fifty sixty seventy eighty ninety")
_PARTS = {"half": 2, "quarter": 4} | {
    part: place for place, part in enumerate(words("third fourth fifth sixth seventh eighth ninth tenth"), 3)
}
_PART = re.compile(rf"(?:(.+) and )?(?:(an?|{'|'.join(_ONES[1:20])}) )?({'|'.join(_PARTS)})s?")
_BRACKET = re.compile(r"(?P<open>\\\{|[(\[{])|(?P<close>\\\}|[)\]}])")

UNION = r"\\cup(?![A-Za-z])"
_ORDER = re.compile(r"\s*(\\(?:le|ge)(?![A-Za-z])|[<>])\s*")
_OR, _AND = (rf"(?<![A-Za-z\\]){word}(?![A-Za-z])" for word in ("or", "and"))
_NUMBERED = re.compile(r"^([A-Za-z])_\{[0-9]\}(?=\s*=)")

Units = tuple[tuple[tuple[str, Fraction], ...], ...]
"""The units that may stand beside a number, in groups that are converted into each other, each with its factor."""


@dataclass(frozen=True)
class Number:
    """A number, with the variable and the unit (of a group the first) or the sign where they stand beside it."""

    value: Fraction
    variable: str = ""
    sign: str = ""

    def is_alike(self, other: Number) -> bool:
        """Whether no name that both have is another one."""
        pairs = ((self.variable, other.variable), (self.sign, other.sign))
        return all(not mine or not theirs or mine == theirs for mine, theirs in pairs)


def is_name(text: str) -> bool:
    r"""Whether a text is what one calls something: `x`, `a_{1}`, `f(x)`, `AB`, `(p, q)`, but no number, word or sum."""
    return re.fullmatch(_NAMES, text.strip()) is not None


def split_variable(text: str) -> tuple[str, str]:
    r"""Split `x = 42` into `x` and `42`; the name is empty if there is none. Digits before the sign are no variable.

    `f(x)`, `AB` and `(p, q)` are names as well, and `x \in` names as `x =` does.

    >>> split_variable("x = 42"), split_variable("41 = 42")
    (('x', '42'), ('', '41 = 42'))
    """
    match = _NAMED.match(text)
    return (match[1].replace(" ", ""), text[match.end() :].strip()) if match else ("", text)


def parse_number(text: str, units: Mapping[str, Fraction] | None = None) -> Fraction | None:
    r"""Return the number that the whole text is, exactly, or None if it is anything else.

    Takes signs, thousands separators, decimals, fractions and mixed numbers, percent (a hundredth), scientific notation,
    a currency sign before or after, English number words, and the LaTeX of all of these; `2 h 20 min` is 140 of the unit
    min. Longer than 64 characters is nobody's number.

    Args:
        text: What stands in the answer slot.
        units: Names that may stand beside the number, each with the factor it stands for. `%` as a unit of factor 1 makes
            `42%` be 42.

    >>> parse_number("$1,250.50") == Fraction("1250.5") == parse_number(r"1250\frac{1}{2}")
    True
    >>> parse_number("41 or 42") is None and parse_number("6 * 7") is None
    True
    """
    number = read_number(text, (tuple((units or {}).items()),))
    return None if number is None or number.variable else number.value


@lru_cache(maxsize=20_000)
def read_number(text: str, units: Units = ()) -> Number | None:
    """Return the number of `x = 42` or `42`, with a unit beside it if it is one of these; None if it is no number."""
    number = read_measure(text)
    if number is None:
        return None
    known = {unit_name(unit): (factor, unit_name(group[0][0])) for group in units for unit, factor in group}
    factor, sign = known.get(number.sign, (_SIGNS_OF_UNITS.get(number.sign), number.sign))
    return None if factor is None else replace(number, value=number.value * factor, sign=sign)


def is_known_unit(unit: str) -> bool:
    """Whether a unit, by its `unit_name`, is one of those whose quantity is known."""
    return any(unit in places for places in _QUANTITIES)


def unit_of(text: str) -> str:
    r"""Return the unit or the sign beside a number, whatever it is called; empty for a number alone and for any other text.

    >>> unit_of("2.5 kg"), unit_of("15 %"), unit_of("EUR 12.90"), unit_of("3rd"), unit_of("3/4")
    ('kg', '%', '€', '', '')
    """
    number = read_measure(text)
    unit = "" if number is None else number.sign
    # What stands before a number is a currency, as in EUR 5, or else part of a name: Route 66.
    is_name = unit and plain(text).startswith(unit) and unit not in _MONEY and not re.fullmatch("[A-Z]{3}", unit)
    return "" if is_name or unit in _ORDINALS or unit.startswith("/") else unit


@lru_cache(maxsize=20_000)
def read_measure(text: str) -> Number | None:
    """A number as it stands there, its sign whatever is written beside it."""
    if _PLAIN_NUMBER.fullmatch(text):
        return Number(Fraction(text))
    if len(text) > 200:  # no number, and not worth taking apart
        return None
    variable, text = split_variable(plain(text))
    if len(text) > _LONGEST_NUMBER:
        return None
    before = _SIGN.match(text)
    rest, unit = text[before.end() :], before[2]
    value = _unsigned(rest)
    if value is None and not unit:
        if match := _UNIT_BEFORE.match(rest):
            is_money = re.fullmatch("[A-Z]{3}|Euro|Rs|Fr", match[1])
            value, unit = _unsigned(rest[match.end() :]), unit_name(match[1]) if is_money else match[1]
        elif parts := _measures(rest):
            value, unit = _added(parts)
        elif match := _UNIT.fullmatch(rest):
            value, unit = _unsigned(match[1]), unit_name(match[2])
        else:
            value = _spelled(rest)
    if value is None or (before[1] and before[3]):
        return None
    return Number(-value if "-" in before[1] + before[3] else value, variable, unit)


def unit_name(unit: str) -> str:
    r"""A unit without what changes nothing in it: `cm^2` for `\text{ cm}^{2}`.

    >>> unit_name(r"\text{ km}/h"), unit_name("kilometres"), unit_name("km · h⁻¹"), unit_name("C")
    ('km/h', 'km', 'km/h', '°C')
    """
    name = re.sub(r"\\text|[{}]", "", plain(unit)).replace("\\mu", "u").replace("\\Omega", "\u03a9")
    name = re.sub(r"(?<=[a-z]{3})s\b", "", re.sub(r"\s*\bper\b\s*", "/", name))
    name = re.sub(r"\b(?:(square)|cubic) +([^\W\d_]+)", lambda match: f"{match[2]}^{2 if match[1] else 3}", name)
    name = re.sub(r"(?<=[^\W\d_]) squared\b", "^2", name)
    name = _LONG_UNIT.sub(lambda match: _PREFIX.get(match[1].lower(), "") + _SHORT_UNIT[match[2].lower()], name)
    name = _INVERSE.sub(lambda match: f"/{match[1]}" + (f"^{match[2]}" if match[2] else ""), name)
    joined = re.sub(r"\s", "", name)  # US dollar
    name = re.sub(r"(?<!\\)\b[^\W\d_]+", lambda match: _called(match[0]), name if _called(joined) == joined else joined)
    name, *under = re.sub(r"\\cdot|[\s*()]", "", name).split("/")
    name += f"/{''.join(under)}" if under else ""
    if temperature := _TEMPERATURE.fullmatch(name):
        scale = temperature[1][0].upper()
        return scale if scale == "K" else f"\u00b0{scale}"
    return "\u00b0" if name == "degree" else name.replace("^\\circ", "\u00b0")


def _called(name: str) -> str:
    """A unit by the name that it is compared by."""
    name = re.sub(r"\b([cdm]?)L\b", r"\1l", name)
    return _NAMES_OF_UNITS.get(name) or _NAMES_OF_UNITS.get(name.casefold() if len(name) > 2 else name, name)


def _unsigned(text: str) -> Fraction | None:
    if match := _NUMBER.fullmatch(text):
        exponent = int(match["e"] or match["p"] or 0)
        if abs(exponent) > _LARGEST_EXPONENT:
            return None
        value = _decimal(match["number"])
        if cycle := match["cycle"]:
            places = len(match["number"].partition(".")[2])
            value += Fraction(int(cycle), 10**places * (10 ** len(cycle) - 1))
        return value * Fraction(10) ** exponent
    if match := _FRACTION.fullmatch(text):
        over, under = _decimal(match["over"] or match["Over"]), _decimal(match["under"] or match["Under"])
        whole = match["whole"]
        if under == 0 or (whole and not 0 <= over < under):
            return None
        return over / under + int(whole or 0)
    return None


def _measures(text: str) -> list[tuple[Fraction, str, int]]:
    """The parts of a measure of several units, `2 h 20 min`: number, unit and the unit's factor; none for any other text."""
    found = _MEASURE.findall(text) if len(text) <= _LONGEST_NUMBER and _MEASURES.fullmatch(text) else []
    parts = [(Fraction(number), unit_name(unit)) for number, unit in found]
    group = next((group for group in _TOGETHER if all(unit in group for _, unit in parts)), {})
    named = {factor: unit for unit, factor in reversed(group.items())}
    return [(number, named[group[unit]], group[unit]) for number, unit in parts if group]


def _added(parts: list[tuple[Fraction, str, int]]) -> tuple[Fraction | None, str]:
    """A measure in the last of its units; no value if the next is not the smaller one each time: `20 min 2 h`, `1 h 90 min`."""
    whole = all(number.denominator == 1 for number, _, _ in parts[:-1])
    if not whole or any(number * factor >= before[2] for before, (number, _, factor) in pairwise(parts)):
        return None, ""
    return sum(number * factor for number, _, factor in parts) / Fraction(parts[-1][2]), parts[-1][1]


def is_literal(text: str) -> bool:
    """Whether signs and letters in a text are no mathematics: JSON and lists with words in them, a date, `2 h 20 min`.

    >>> is_literal("2025-06-03"), is_literal('{"a": 1}'), is_literal("2 h 20 min"), is_literal("2 x 3 y"), is_literal("[1, 2]")
    (True, True, True, False, False)
    """
    text = text.strip()
    is_written_out = text[:1] in ("{", "[") and (
        re.search("[\"']\\s*:", text) or text[1:].lstrip()[:1] in ("'", '"') or (read_container(text) and '"' in text)
    )
    return bool(is_written_out or _DATE.fullmatch(text) or _measures(plain(text)))


def _decimal(text: str) -> Fraction:
    digits = re.sub(r"[,' ]", "", text)
    if digits.count(".") > 1:
        digits = digits.replace(".", "")
    # Fraction reads neither ".5." nor "5."; the second is common.
    return Fraction(digits.removesuffix(".") or "0")


def _spelled(text: str) -> Fraction | None:
    """The value of an English number word below a thousand million, or of a fraction: `two thirds`, `two and a half`."""
    words = re.sub(r"\s+|-", " ", text.strip().casefold())
    if part := _PART.fullmatch(words):
        whole, count = _spelled(part[1]) if part[1] else 0, _spelled_hundreds().get(part[2], 1)
        # A third is a place, not a part, where nothing stands before it; two and three halves are two numbers.
        is_part = (part[2] or part[3] == "half") and not (part[1] and count >= _PARTS[part[3]])
        return Fraction(whole + Fraction(count, _PARTS[part[3]])) if is_part and whole is not None else None
    words = re.sub("^a (?=hundred|thousand|million)", "one ", words.replace(" and ", " "))
    match = re.fullmatch(r"(?:(.+?) million ?)?(?:(.+?) thousand ?)?(.*)", words)
    parts = [_spelled_hundreds().get(part) if part else 0 for part in match.groups()]
    if not words or None in parts:
        return None
    return Fraction(parts[0] * 1_000_000 + parts[1] * 1000 + parts[2])


@lru_cache(maxsize=1)
def _spelled_hundreds() -> dict[str, int]:
    tens = [f"{ten} {one}".removesuffix(" zero") for ten in _TENS for one in _ONES[:10]]
    below = [*_ONES, *tens]
    hundreds = [f"{one} hundred {rest}".removesuffix(" zero") for one in _ONES[1:] for rest in below]
    return {words: value for value, words in enumerate([*below, *hundreds])}


def split_list(text: str, count: int = 0) -> list[str]:
    r"""Split a list of answers, such as `\{1, 2\}`, `x = 1 or x = 2`, `1; 2` or `\pm 2`, into its parts.

    A comma without a space is tried last, because of `1,234`, and only where there are not yet `count` parts.

    >>> split_list(r"\{1,000, 2\}"), split_list("1,234"), split_list("1,234", 2), split_list("(1, 2)")
    (['1,000', '2'], ['1,234'], ['1', '234'], ['(1, 2)'])
    """
    brackets = in_brackets(text)
    if brackets and brackets[0] in ("\\{", "{", "["):
        text = brackets[1]
    parts = parts_at(text, r";\s*(?:(?:and|or)\s)?")
    if len(parts) > 1:
        return parts
    parts = parts_at(text, r",\s*(?:and|or)\s|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])|,\s")
    if len(parts) < 2 and (read_number(text) is None or count > 1):
        parts = parts_at(text, ",")
    elif len(parts) > 1:
        parts = [part for whole in parts for part in ([whole] if read_number(whole) else parts_at(whole, ","))]
    if len(parts) == 1 and ("\\pm" in text or "\\mp" in text):
        signs = {"\\pm": "+", "\\mp": "-"}, {"\\pm": "-", "\\mp": "+"}
        return [re.sub(r"\\[pm][pm](?![A-Za-z])\s*", lambda m, of=of: of[m[0].strip()], text) for of in signs]
    return parts


def in_brackets(text: str) -> tuple[str, str, str] | None:
    """The brackets around a text and what is inside of them, if they are one pair: `(1)(2)` is two."""
    text = text.strip()
    marks = list(_BRACKET.finditer(text))
    depths = [*accumulate(1 if mark["open"] else -1 for mark in marks)]
    if 0 in depths[:-1] or depths[-1:] != [0] or marks[0].start() or marks[-1].end() != len(text):
        return None
    return marks[0][0], text[marks[0].end() : marks[-1].start()].strip(), marks[-1][0]


def parts_at(text: str, separator: str) -> list[str]:
    """Split at a pattern, but not inside of brackets of any kind; two brackets of an interval need not be alike."""
    parts, depth, start = [], 0, 0
    for match in re.finditer(rf"{_BRACKET.pattern}|{separator}", text):
        if match["open"]:
            depth += 1
        elif match["close"]:
            depth -= 1
        elif depth == 0:
            parts.append(text[start : match.start()].strip())
            start = match.end()
    return [*parts, text[start:].strip()]


def bare(text: str) -> str:
    r"""Return a plain text without what never changes an expression: white space, `\cdot` written out.

    >>> bare(r"(\frac{1}{2}, 3 \cdot x)")
    '(\\frac{1}{2},3x)'
    """
    text = re.sub(r"\\cdot(?![A-Za-z])", "*", text)  # while the space after it still ends its name
    return re.sub(r"(?<=[A-Za-z0-9)}])\*(?=[A-Za-z(\\])", "", re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", text))


@dataclass(frozen=True)
class Shape:
    """What an answer consists of: a list `,`, a union, a ratio `:`, a tuple or interval by its brackets, or one expression."""

    name: str
    kind: str
    parts: list[str]

    @classmethod
    def of(cls, text: str, count: int = 0) -> Shape:
        if interval := _intervals(text):
            return interval
        brackets = in_brackets(text)
        if brackets and brackets[0] in "([" and brackets[2] in ")]":
            parts = parts_at(brackets[1], "[,;]")
            if len(parts) > 1:
                return cls("", brackets[0] + brackets[2], parts)
        parts = split_list(text, count)
        if 0 < count < len(parts) and " or " not in text:
            parts = list(dict.fromkeys(map(bare, parts)))  # to say one of them twice adds none
        if len(parts) > 1:
            return cls("", ",", parts)
        name, rest = split_variable(text)
        if name:
            return cls("", "", [text]) if split_variable(rest)[0] else replace(cls.of(rest, count), name=name)
        for kind in (UNION, ":"):
            parts = parts_at(text, kind)
            if len(parts) > 1:
                return cls("", kind, parts)
        return cls("", "", [text])

    @property
    def has_own_names(self) -> bool:
        """Whether it is a list such as `x = 1, y = 2`, whose parts have places."""
        names = [split_variable(part)[0] for part in self.parts]
        return self.kind == "," and all(names) and len({*names}) == len(names)

    @property
    def without_places(self) -> Shape:
        """`x_{1} = 7, x_{2} = -3` as two solutions of x, `x = 7, x = -3`."""
        return replace(self, parts=[_NUMBERED.sub(r"\1", part) for part in self.parts])


def _intervals(text: str) -> Shape | None:
    """`x < 1 or x > 3` as the union and `x > 1 and x < 3` as the interval that it is; with a comma, the one that there is."""
    if not _ORDER.search(text):
        return None
    for joint in (_OR, _AND, ","):
        parts = [part.rstrip(", ") for part in parts_at(text, joint)]
        if len(parts) > 1:
            found = [_intervals(part) for part in parts]
            ranges = [shape for shape in found if shape is not None and shape.kind != UNION]
            is_of_one = len(ranges) == len(parts) and len({shape.name for shape in ranges}) == 1
            return _joined(ranges, joint) if is_of_one else None
    return _interval(text)


def _joined(ranges: list[Shape], joint: str) -> Shape | None:
    above = [shape for shape in ranges if shape.parts[1] == r"\infty"]
    below = [shape for shape in ranges if shape.parts[0] == r"-\infty"]
    are_two = len(above) == len(below) == 1 and len(ranges) == 2
    if joint == "," and are_two:
        low, high = read_number(above[0].parts[0]), read_number(below[0].parts[1])
        joint = joint if low is None or high is None else _AND if low.value < high.value else _OR
    if joint == _OR:
        parts = [f"{shape.kind[0]}{', '.join(shape.parts)}{shape.kind[1]}" for shape in ranges]
        return Shape(ranges[0].name, UNION, parts)
    if joint == _AND and are_two:
        kind = above[0].kind[0] + below[0].kind[1]
        return Shape(ranges[0].name, kind, [above[0].parts[0], below[0].parts[1]])
    return None


def _interval(text: str) -> Shape | None:
    r"""`1 < x \le 2` and `x > 1` as the intervals that they are."""
    parts = _ORDER.split(text)
    if {*parts[1::2]} <= {">", r"\ge"}:
        parts = [{">": "<", r"\ge": r"\le"}.get(part, part) for part in reversed(parts)]
    if len(parts) == 3 and is_name(parts[0]) != is_name(parts[2]):
        parts = [r"-\infty", "<", *parts] if is_name(parts[0]) else [*parts, "<", r"\infty"]
    if len(parts) != 5 or not (parts[0] and is_name(parts[2]) and parts[4]) or not {*parts[1::2]} <= {"<", r"\le"}:
        return None
    low, after, name, before, high = parts
    return Shape(name, ("[" if after == r"\le" else "(") + ("]" if before == r"\le" else ")"), [low, high])


def read_json(text: str) -> tuple[Any, bool]:
    """Return the one JSON value that the text is, and True; or None and False. A Markdown fence around it may stay.

    Stricter than `json.loads`: no NaN, no key twice (two answers in one), at most 64 levels and 20 000 characters.

    >>> read_json('{"a": 1}'), read_json('{"a": 1, "a": 2}'), read_json("NaN")
    (({'a': 1}, True), (None, False), (None, False))
    """
    text = text.strip()
    fenced = re.fullmatch(r"```(?:json)?\s*\n(.*)\n\s*```", text[: _LONGEST_JSON + 20], re.DOTALL)
    text = fenced[1] if fenced else text
    if len(text) > _LONGEST_JSON or _depth(text) > _DEEPEST_JSON:
        return None, False
    try:
        return json.loads(text, object_pairs_hook=_without_doubles, parse_constant=_refuse, parse_float=_finite), True
    except ValueError:
        return None, False


def read_container(text: str) -> dict[str, Any] | list[Any] | None:
    """The JSON object or array that a text is; None for any other, also for `7` and `"seven"`, which are JSON as well.

    >>> read_container('{"a": 1}'), read_container("7")
    ({'a': 1}, None)
    """
    value, _ = read_json(text) if text.lstrip()[:1] in ("{", "[", "`") else (None, False)
    return value if isinstance(value, (dict, list)) else None


def _depth(text: str) -> int:
    # A string that is not closed ends with the text: else every quote in it would be tried as the start of one.
    brackets = re.sub(r'"(?:[^"\\]|\\.)*+"?|[^][{}]', "", text, flags=re.DOTALL)
    return max(accumulate(1 if bracket in "[{" else -1 for bracket in brackets), default=0)


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(dict(pairs)) != len(pairs):
        raise ValueError("a key stands twice")
    return dict(pairs)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is not JSON")


def _finite(text: str) -> float:
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{text} is no number that JSON readers agree on")
    return number


def is_same_json(a: Any, b: Any) -> bool:
    """Equality as JSON has it: 1 is 1.0, but True is not 1, and the order of keys does not matter."""
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(is_same_json(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)) and isinstance(b, (list, tuple)):
        return len(a) == len(b) and all(map(is_same_json, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b
