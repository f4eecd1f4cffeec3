"""Take Markdown, LaTeX and invisible characters out of a text, to compare answers."""

import re
import unicodedata
from collections.abc import Mapping
from functools import lru_cache

# Longer texts are not answers; the patterns below are not run on them.
_LONGEST_ANSWER = 2000  # characters

# Pattern -> spelling that replaces its matches.
_SIGN_SPELLINGS = {
    # Soft hyphens, zero-width spaces and byte order marks are invisible.
    "[\u00ad\u200b-\u200f\u2060-\u2064\ufeff]": "",
    "[\u00b7\u22c5]": r"\\cdot ",
    "\u00d7": r"\\times ",
    "\u00b0": r"^{\\circ}",
    "\u211d": r"\\mathbb{R}",
    # Exponents and indices; the digits themselves become ASCII later.
    "([\u00b2\u00b3\u00b9\u2070-\u207f]+)": r"^{\1}",
    "([\u2080-\u209c]+)": r"_{\1}",
    # Hyphens, dashes and the minus sign, also as exponent, as index and in vertical writing.
    "[\u2010-\u2013\u2212\u207b\u208b\ufe32]": "-",
    "[\u201c-\u201e]": '"',
    "[\u2018\u2019]": "'",
    # A space before the fraction in 1½.
    "(?=[\u00bc-\u00be\u2150-\u215e])": " ",
}
# Text between braces. An escaped brace, as in \{1, 2\}, is not counted.
BALANCED_TEXT = r"(?:[^{}\\]|\\.)*+"
# Each round allows one more level of pairs of braces inside; 8 are more than anyone writes.
for _ in range(8):
    BALANCED_TEXT = rf"(?:[^{{}}\\]|\\.|\{{{BALANCED_TEXT}\}})*+"
# A code block, a command of LaTeX or an announcement such as `Answer:` around a whole text.
_WRAPPER = re.compile(
    r"```\w*[ \t]*\n(.*)\n[ \t]*```"
    rf"|\\(?:boxed|fbox|text[a-z]*|mathrm|mathbf|mbox)\s*\{{({BALANCED_TEXT})\}}"
    r"|(?i:####|(?:final )?answer:)\s+(.*)",
    re.DOTALL,
)
# A text with markup has a character that is not listed here, two spaces, a full stop at the end, or
# a word for %. Most answers have none of these, and the patterns below would take time.
_SIGN_OF_MARKUP = re.compile(r"[^A-Za-z0-9 .,+/=?!-]|  |\.\Z|(?i:per ?cent|pct)")
# Mark before a text -> mark after it. Longer marks come first.
_MARK_PAIRS = {
    "$$": "$$",
    "$": "$",
    "**": "**",
    "*": "*",
    "__": "__",
    "_": "_",
    "`": "`",
    '"': '"',
    "'": "'",
    "\\(": "\\)",
    "\\[": "\\]",
    "(": ")",
    "{": "}",
}
# Pattern -> spelling that replaces its matches.
_LATEX_SPELLINGS = {
    # Commands for size, and the negative space \!.
    r"\\(?:left|right|displaystyle|textstyle)(?![A-Za-z])\s*|\\!\s*": "",
    # Spaces of LaTeX, and white space other than line breaks. ~ is a space
    # only between two texts (not ~5 or ~~), and not between digits: 1~3 is a range.
    r"(?<!\\)\\[,;: ]|(?<=\S)~(?=[^\s~])(?!(?<=\d~)\d)|[^\S\n]+": " ",
    # 1{,}000
    r"\s*\{\s*,\s*\}\s*": ",",
    # An escaped dollar sign.
    r"(?<!\\)\\+\$": "$",
    # $4$ inches
    r"^\$([^$]*)\$(?=\s*[a-z%\\][^$]*$)": r"\1",
    # Percent, as a word or as an escaped sign.
    r"(?i)\s*\\text\{\s*(?:per ?cent|pct)\s*\}|\s*(?<!\\)\\+%|\s*\b(?:per ?cent|pct)\b": "%",
    # Degrees.
    r"\s*\^\s*(?:\\circ|\{\s*\\circ\s*\})|\\degree(?![a-z])": r"^{\\circ}",
    # Fractions: \dfrac, then \frac12 in two steps.
    r"\\[dtc]frac(?![A-Za-z])": r"\\frac",
    r"\\frac\s*([0-9A-Za-z])": r"\\frac{\1}",
    rf"(\\frac\s*\{{{BALANCED_TEXT}\}})\s*([0-9A-Za-z])": r"\1{\2}",
}


# Cached, because a gold answer is read again for each completion.
@lru_cache(maxsize=4_096)
def strip_markup(text: str) -> str:
    r"""Strip Markdown and LaTeX around a text, its final full stop and invisible characters.

    The spelling changes, never the meaning: `½` becomes `1/2`, `\dfrac12` becomes
    `\frac{1}{2}`, and `about 42` stays as it is.

    >>> strip_markup(r"$\boxed{\dfrac12}$."), strip_markup("**42**"), strip_markup("#### 142")
    ('\\frac{1}{2}', '42', '142')
    """
    text = text.strip()
    if len(text) > _LONGEST_ANSWER or not _SIGN_OF_MARKUP.search(text):
        return text
    text = _unwrap(normalize_signs(text))
    return _unwrap(_rewrite_latex(text))


def normalize_markup(text: str) -> str:
    """Return a text of any length in the spelling of `strip_markup`; keep the marks around it.

    White space becomes single spaces, because the patterns are slow on long runs of it.
    """
    return _rewrite_latex(normalize_signs(" ".join(text.split())))


def _rewrite_latex(text: str) -> str:
    return rewrite(text, _LATEX_SPELLINGS) if _SIGN_OF_MARKUP.search(text) else text


def rewrite(text: str, spellings: Mapping[str, str]) -> str:
    """Replace the matches of each pattern by its spelling, one pattern after the other."""
    for pattern, spelling in spellings.items():
        text = re.sub(pattern, spelling, text)
    return text


def normalize_signs(text: str) -> str:
    r"""Return a text with the signs of mathematics in ASCII or LaTeX, and with ASCII digits.

    >>> normalize_signs("1\u00bd \u00d7 x\u00b2"), normalize_signs("3 \u2212 4")
    ('1 1/2 \\times  x^{2}', '3 - 4')
    """
    if text.isascii():
        return text
    text = rewrite(text, _SIGN_SPELLINGS)
    # NFKC writes the fraction bar of \u00bd as \u2044.
    text = unicodedata.normalize("NFKC", text).replace("\u2044", "/")
    # Decimal digits of other scripts.
    return re.sub(r"\d", lambda match: str(int(match[0])), text)


def _unwrap(text: str) -> str:
    """Remove the marks around a text, such as ** or `$`, even nested ones."""
    previous = None
    while text != previous:
        text = text.strip()
        previous = text
        if not text.endswith(".."):  # an ellipsis is part of the text
            text = text.removesuffix(".").rstrip()
        for start, end in _MARK_PAIRS.items():
            if not (text.startswith(start) and text.endswith(end)):
                continue
            inner = text[len(start) : len(text) - len(end)]
            # In (1+x)(1-x), the first bracket is not closed by the last.
            is_one_pair = start not in inner and end not in inner
            if inner and is_one_pair and not _marks_belong_to_text(start, inner):
                text = inner.strip()
        match = _WRAPPER.fullmatch(text)
        # Each kind of wrapper has a group of its own, and only one of them matches.
        if match:
            text = match[match.lastindex]
    return text


def _marks_belong_to_text(start: str, inner: str) -> bool:
    """Return True if the marks around a text belong to it: (1, 2) is a pair, __init__ a name.

    Even _Paris_ keeps its marks: it could be a name too.
    """
    if start in ("(", "{"):
        return re.search("[,;]", inner) is not None
    return start[0] == "_" and inner.isidentifier()
