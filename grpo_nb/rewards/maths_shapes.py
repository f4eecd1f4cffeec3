r"""What a mathematical answer consists of: one spelling of its LaTeX, and its parts, of lists, sets, tuples, intervals, unions.

The writing changes, never the meaning: `\leq`, `<=` and the sign itself become `\le`, and `x < 1 or x > 3` is the union that
it is.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate

from grpo_nb.tasks.numbers import INSIDE, plain

_BOX = re.compile(rf"\\(?:boxed|fbox)\s*\{{({INSIDE})\}}")
_JOINT = re.compile(r"(?:[\s$(){},;\\]|\\[()\[\],;]|\\q?quad|\\text\b|and|or)*+")
_SIGNS = str.maketrans({
    "\u221e": r"\infty ", "\u2264": r"\le ", "\u2a7d": r"\le ", "\u2265": r"\ge ", "\u2a7e": r"\ge ", "\u2260": r"\ne ",
    "\u00b1": r"\pm ", "\u2213": r"\mp ", "\u222a": r"\cup ", "\u2229": r"\cap ", "\u2208": r"\in ", "\u2205": r"\emptyset ",
    "\u2248": r"\approx ", "\u2192": r"\to ", "\u2217": "*",
}) | {
    code: f"\\{unicodedata.name(chr(code)).split()[-1].lower().replace('lamda', 'lambda')} " for code in range(0x3B1, 0x3CA)
}  # fmt: skip
_ROOT = re.compile(r"\u221a\s*(?:\(([^()]*)\)|([0-9.]+|\w))")
# Commands of one meaning; white space after one ends its name.
_SYNONYMS = {
    synonym: command
    for command, synonyms in {
        "": "big Big bigl bigr Bigl Bigr bigg Bigg", "\n": "quad qquad", "<": "lt", ">": "gt",
        r"\le ": "le leq leqslant leqq", r"\ge ": "ge geq geqslant geqq", r"\ne ": "ne neq",
        r"\{": "lbrace", r"\}": "rbrace", "[": "lbrack", "]": "rbrack", "|": "vert lvert rvert mid",
        r"\emptyset ": "varnothing", r"\text": "textbf textit textrm textnormal textsf mathrm mathsf mbox operatorname",
    }.items()
    for synonym in synonyms.split()
}  # fmt: skip
_FUNCTIONS = "sqrt|pi|sin|cos|tan|cot|log|ln|exp"
# One after the other.
_SPELLINGS = [
    (re.compile(pattern), spelling)
    for pattern, spelling in (
        (r"(?<!\\)\$\$?((?:[^$\\]|\\.)*+)\$\$?", r" \1 "),
        (r"\\(?:mathbf|boldsymbol|bm|mathit)\s*\{([^{}]*)\}|\\mathrm\s*\{\s*([eid])\s*\}", r"\1\2"),
        (r"(?<!\\)\\([A-Za-z]+)\s*", lambda found: _SYNONYMS.get(found[1], found[0])),
        (r"\\text\{\s*(and|or),?\s*\}", r" \1 "),
        (r"<=", r"\\le "),
        (r">=", r"\\ge "),
        (r"!=", r"\\ne "),
        (r"\\(begin|end)\s*\{[bB]?(?:small)?(?:matrix|array)\}(?:\{[clr|]*\})?", r"\\\1{pmatrix}"),
        (r"(?<=[\w)}])\s*\*\*\s*(?=[\w({-])", "^"),
        (r"_\s*([0-9]+|[A-Za-z])", r"_{\1}"),
        (r"(?<![\w\\}])([A-Za-z])([0-9])(?=\s*=(?!=))", r"\1_{\2}"),
        (rf"(?<![\\A-Za-z])(?=(?:{_FUNCTIONS})(?![A-Za-z]))", r"\\"),
        (r"\\sqrt(\[[^\]]*\])?\s*(?:([0-9A-Za-z])|\(([^()]*)\))", r"\\sqrt\1{\2\3}"),
        # 2/3 x is two thirds of x.
        (
            r"(?<![\d./}^])(\d+)\s*/\s*(\d+)\s*(?=[A-Za-z]|\\(?:pi|sqrt|[a-z]+\())",
            r"\\frac{\1}{\2}",
        ),
    )
]
_ATOM = r"(?:[A-Za-z]|\\[a-z]+)(?:_\{\w+\})?'?"
_NAME = (
    rf"(?:{_ATOM}(?:\(\s*{_ATOM}\s*\))?|[A-Z]{{2,4}}|p[A-Z]{{1,2}}a?(?:_\{{\w+\}})?"  # pH, pOH, pK_a
    rf"|\|[A-Z]{{2}}\||\(\s*{_ATOM}(?:\s*,\s*{_ATOM})+\s*\))"
)
_NAMES = rf"(?:{_NAME}(?:\s*[:/]\s*{_NAME})?|\\frac\{{{_NAME}\}}\{{{_NAME}\}})"
_NAMED = re.compile(rf"\s*({_NAMES})\s*(?:=(?!=)|\\in(?![A-Za-z]))\s*")
_BRACKET = re.compile(r"(?P<open>\\\{|[(\[{])|(?P<close>\\\}|[)\]}])")
_ORDER = re.compile(r"\s*(\\(?:le|ge)(?![A-Za-z])|[<>])\s*")
_OR, _AND = (rf"(?<![A-Za-z\\]){word}(?![A-Za-z])" for word in ("or", "and"))
_BETWEEN = rf"[,;]?\s*(?:{_OR}|{_AND})|;|,(?!\d{{3}}(?!\d))"  # 1,234 is a number
UNION = r"\\cup(?![A-Za-z])"


def boxed_answers(text: str) -> str:
    r"""The boxed answer of a worked solution, as in MATH; the text itself if it has none.

    Boxes with nothing between them but a comma, `and` or `or` are the parts of one answer; of others the last counts.

    >>> boxed_answers(r"So $\boxed{1}$ and $\boxed{2}$."), boxed_answers("7")
    ('1, 2', '7')
    """
    found: list[re.Match[str]] = []
    for match in _BOX.finditer(text):
        between = text[found[-1].end() : match.start()] if found else ""
        is_part = _JOINT.fullmatch(
            re.sub(r"\b(?!and\b|or\b)[A-Za-z]+(?=\s+(?:and|or)\b)", "", between)
        )
        found = [*found, match] if is_part else [match]
    return ", ".join(dict.fromkeys(match[1].strip() for match in found)) or text


@lru_cache(maxsize=4_096)
def spelled(text: str) -> str:
    r"""Return an answer in the plainest LaTeX of what it says, without the wrappers that change nothing.

    >>> spelled("x\u00b2 \u2264 4"), spelled(r"$\boxed{\dfrac12}$."), spelled("2/3\u03c0")
    ('x^{2} \\le 4', '\\frac{1}{2}', '\\frac{2}{3}\\pi')
    """
    if "\\\\" in text and "\\begin" not in text:  # escaped twice, as in JSON
        text = re.sub(r"\\\\(?=[A-Za-z{}()\[\]%])", r"\\", text)
    text = _ROOT.sub(lambda found: f"\\sqrt{{{found[1] or found[2]}}}", plain(text)).translate(
        _SIGNS
    )
    text = _BOX.sub(r"\n\1\n", text)
    # A line of its own may be another answer; in a matrix it is none.
    text = " ".join(text.split()) if "\\begin" in text else text
    for pattern, spelling in _SPELLINGS:
        text = pattern.sub(spelling, text)
    return plain(text)


def bare(text: str) -> str:
    r"""Return a spelled text without what never changes an expression: white space, `\cdot` written out.

    >>> bare(r"(\frac{1}{2}, 3 \cdot x)")
    '(\\frac{1}{2},3x)'
    """
    text = re.sub(r"\\cdot(?![A-Za-z])", "*", text)  # while the space after it still ends its name
    return re.sub(
        r"(?<=[A-Za-z0-9)}])\*(?=[A-Za-z(\\])", "", re.sub(r"(?<![0-9])\s+|\s+(?![0-9])", "", text)
    )


def split_name(text: str) -> tuple[str, str]:
    r"""Split `x = 42` into `x` and `42`; the name is empty if there is none. Digits before the sign are no name.

    `AB` and `(p, q)` are names as well, `x \in` names as `x =` does, and `f(x)` is the `y` of a function.

    >>> split_name("x = 42"), split_name("41 = 42"), split_name("f(x) = 2x")
    (('x', '42'), ('', '41 = 42'), ('y', '2x'))
    """
    if not (found := _NAMED.match(text)):
        return "", text
    name = found[1].replace(" ", "")
    return "y" if re.fullmatch(r"[a-z]\([a-z]\)", name) else name, text[found.end() :].strip()


def is_name(text: str) -> bool:
    """Whether a text is what one calls something: `x`, `f(x)`, `AB`, `(p, q)`, but no number, word or sum."""
    return re.fullmatch(_NAMES, text.strip()) is not None


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
    for mark in re.finditer(rf"{_BRACKET.pattern}|{separator}", text):
        depth += bool(mark["open"]) - bool(mark["close"])
        if depth == 0 and not mark["open"] and not mark["close"]:
            parts.append(text[start : mark.start()].strip())
            start = mark.end()
    return [*parts, text[start:].strip()]


def split_list(text: str, count: int = 0) -> list[str]:
    r"""Split a list of answers, such as `\{1, 2\}`, `x = 1 or x = 2`, `1; 2` or `\pm 2`, into its parts.

    The comma of `1,234` is one between two parts only where there are to be `count`.

    >>> split_list(r"\{1,000, 2\}"), split_list("1,234"), split_list("1,234", 2), split_list("(1, 2)")
    (['1,000', '2'], ['1,234'], ['1', '234'], ['(1, 2)'])
    """
    brackets = in_brackets(text)
    if brackets and brackets[0] in ("\\{", "{", "["):
        text = brackets[1]
    parts = parts_at(text, _BETWEEN)
    if len(parts) == 1 < count:
        parts = parts_at(text, ",")
    if len(parts) == 1 and ("\\pm" in text or "\\mp" in text):
        signs = {"\\pm": "+", "\\mp": "-"}, {"\\pm": "-", "\\mp": "+"}
        return [
            re.sub(r"\\[pm][pm](?![A-Za-z])\s*", lambda m, of=of: of[m[0].strip()], text)
            for of in signs
        ]
    return parts


@dataclass(frozen=True)
class Shape:
    """What an answer consists of: a list `,`, a union, a ratio `:`, a tuple or interval by its brackets, or one expression."""

    name: str
    kind: str
    parts: list[str]

    @classmethod
    def of(cls, text: str, count: int = 0) -> Shape:
        """Read the shape of a spelled text, `count` the number of parts that are expected."""
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
        name, rest = split_name(text)
        if name:
            return (
                cls("", "", [text])
                if split_name(rest)[0]
                else replace(cls.of(rest, count), name=name)
            )
        for kind in (UNION, ":"):
            parts = parts_at(text, kind)
            if len(parts) > 1:
                return cls("", kind, parts)
        return cls("", "", [text])

    @property
    def has_own_names(self) -> bool:
        """Whether it is a list such as `x = 1, y = 2`, whose parts have places."""
        names = [split_name(part)[0] for part in self.parts]
        return self.kind == "," and all(names) and len({*names}) == len(names)


def _intervals(text: str) -> Shape | None:
    """`x > 3` as the interval and `x < 1 or x > 3` as the union that it is."""
    parts = [_interval(part.rstrip(", ")) for part in parts_at(text, _OR)]
    if len(parts) == 1 or None in parts or len({part.name for part in parts}) > 1:
        return parts[0] if len(parts) == 1 else None
    return Shape(
        parts[0].name,
        UNION,
        [f"{part.kind[0]}{', '.join(part.parts)}{part.kind[1]}" for part in parts],
    )


def _interval(text: str) -> Shape | None:
    r"""`1 < x \le 2` and `x > 1` as the intervals that they are."""
    parts = _ORDER.split(text)
    if {*parts[1::2]} <= {">", r"\ge"}:
        parts = [{">": "<", r"\ge": r"\le"}.get(part, part) for part in reversed(parts)]
    if len(parts) == 3 and is_name(parts[0]) != is_name(parts[2]):
        parts = [r"-\infty", "<", *parts] if is_name(parts[0]) else [*parts, "<", r"\infty"]
    if (
        len(parts) != 5
        or not (parts[0] and is_name(parts[2]) and parts[4])
        or not {*parts[1::2]} <= {"<", r"\le"}
    ):
        return None
    low, after, name, before, high = parts
    return Shape(
        name, ("[" if after == r"\le" else "(") + ("]" if before == r"\le" else ")"), [low, high]
    )
