r"""One spelling of LaTeX for mathematical answers.

`normalize_latex` changes the spelling and not the meaning: `\leq`, `<=` and the Unicode sign become
`\le`.
"""

import re
from collections.abc import Callable
from functools import lru_cache
from html.entities import name2codepoint

from grpo_nb.tasks.markup import BALANCED_TEXT, strip_markup

_BOX = re.compile(rf"\\(?:boxed|fbox)\s*\{{({BALANCED_TEXT})\}}")
_BETWEEN_BOXES = (
    r"(?:[\s$(){},;]|\\[()\[\],;\\ ]|\\q?quad"  # \boxed{3}, \boxed{4}; \boxed{3}$ \quad $\boxed{4}
    r"|\\text\b|and|or"  # \boxed{3} and \boxed{4}; \boxed{3} \text{ or } \boxed{4}
    r"|\b[A-Za-z]+(?=\s+(?:and|or)\b))*+"  # a unit: \boxed{3} apples and \boxed{4} pears
)
"""Text between two boxes that are parts of one answer."""
_RUN_OF_BOXES = re.compile(rf"{_BOX.pattern}(?:{_BETWEEN_BOXES}{_BOX.pattern})*")

# Unicode character -> LaTeX.
_LATEX_OF_CHARACTER = {
    "\u221e": r"\infty ",
    "\u2264": r"\le ",
    "\u2265": r"\ge ",
    "\u2260": r"\ne ",
    "\u00b1": r"\pm ",
    "\u222a": r"\cup ",
    "\u2208": r"\in ",
    "\u2205": r"\emptyset ",
    "\u2032": "'",  # prime
    "\u03c2": r"\sigma ",  # sigma at the end of a word
}
_GREEK_NAMES = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi omicron pi rho sigma "
    "tau upsilon phi chi psi omega Delta Theta Lambda Xi Sigma Phi Psi"
)
"""Greek letters have the same names in LaTeX and in HTML.

Omega is not here, because that sign may be the unit ohm. Nor are Gamma, which is also a function,
and Pi, which is also the sign of a product.
"""
_LATEX_OF_GREEK = {name2codepoint[name]: f"\\{name} " for name in _GREEK_NAMES.split()}
_TO_LATEX = str.maketrans(_LATEX_OF_CHARACTER) | _LATEX_OF_GREEK

# Canonical spelling -> commands that mean the same. "" removes the command. The space after `\le`
# keeps a letter after it from joining the name. \quad is a line break, because a second answer may
# follow it (`is_single_answer`).
_SYNONYMS = {
    "": "big Big bigl bigr Bigl Bigr bigg Bigg biggl biggr Biggl Biggr",
    "\n": "quad qquad",
    "<": "lt",
    ">": "gt",
    r"\le ": "le leq leqslant leqq",
    r"\ge ": "ge geq geqslant geqq",
    r"\ne ": "ne neq",
    r"\{": "lbrace",
    r"\}": "rbrace",
    "[": "lbrack",
    "]": "rbrack",
    "|": "vert lvert rvert mid",
    r"\emptyset ": "varnothing",
    r"\text": "textbf textit textrm textnormal textsf mathrm mathsf mbox operatorname",
}
_CANONICAL_COMMANDS = {
    synonym: canonical for canonical, synonyms in _SYNONYMS.items() for synonym in synonyms.split()
}
_FUNCTIONS = "sqrt|pi|sin|cos|tan|cot|log|ln|exp"


# Pattern -> replacement. The order matters: each pattern sees the result of the earlier ones.
_REWRITES: list[tuple[str, str | Callable[[re.Match[str]], str]]] = [
    # $x$ is x.
    (r"(?<!\\)\$\$?((?:[^$\\]|\\.)*+)\$\$?", r" \1 "),
    # The Unicode root sign before (x + 1), 2 or x is \sqrt{x + 1}, \sqrt{2} or \sqrt{x}.
    (r"\u221a\s*(?:\(([^()]*)\)|([0-9.]+|\w|\\[A-Za-z]+))", r"\\sqrt{\1\2}"),
    # \mathbf{x} is x, and \mathrm{e} is e.
    (r"\\(?:mathbf|boldsymbol|bm|mathit)\s*\{([^{}]*)\}|\\mathrm\s*\{\s*([eid])\s*\}", r"\1\2"),
    # Every command in its canonical spelling: \leq is \le.
    (
        r"(?<!\\)\\([A-Za-z]+)\s*",
        lambda match: _CANONICAL_COMMANDS.get(match[1], match[0]),
    ),
    # \text{and} is the word between two parts, and not a unit.
    (r"\\text\{\s*(and|or),?\s*\}", r" \1 "),
    (r"<=", r"\\le "),
    (r">=", r"\\ge "),
    (r"!=", r"\\ne "),
    # Every matrix and array is a pmatrix.
    (r"\\(begin|end)\s*\{[bB]?(?:small)?(?:matrix|array)\}(?:\{[clr|]*\})?", r"\\\1{pmatrix}"),
    # f^{\prime} is f'.
    (
        r"\^\s*(?:\{(?:\s*\\prime)+\s*\}|\\prime(?![A-Za-z]))",
        lambda match: "'" * match[0].count("prime"),
    ),
    # x**2 is x^2.
    (r"(?<=[\w)}])\s*\*\*\s*(?=[\w({-])", "^"),
    # x_1 is x_{1}.
    (r"_\s*([0-9]+|[A-Za-z])", r"_{\1}"),
    # sin x is \sin x.
    (rf"(?<![\\A-Za-z])(?=(?:{_FUNCTIONS})(?![A-Za-z]))", r"\\"),
    # \sqrt2 and \sqrt(2) are \sqrt{2}.
    (r"\\sqrt(\[[^\]]*\])?\s*(?:([0-9A-Za-z])|\(([^()]*)\))", r"\\sqrt\1{\2\3}"),
    # 2/3 x is two thirds of x, and not 2 divided by 3x.
    (
        r"(?<![\d./}^])(\d+)\s*/\s*(\d+)\s*(?=[A-Za-z]|\\(?:pi|sqrt|[a-z]+\())",
        r"\\frac{\1}{\2}",
    ),
]


def boxed_answers(text: str) -> str:
    r"""Return the boxed answer of a worked solution, as in MATH; the text itself if it has no box.

    Boxes with nothing but punctuation, `and`, `or` or a unit between them are the parts of one
    answer. If other text stands between the boxes, only those after it count.

    >>> boxed_answers(r"So $\boxed{1}$ and $\boxed{2}$."), boxed_answers("7")
    ('1, 2', '7')
    """
    last_run = ""
    for match in _RUN_OF_BOXES.finditer(text):
        last_run = match[0]
    # Each answer once, in order.
    answers = dict.fromkeys(map(str.strip, _BOX.findall(last_run)))
    return ", ".join(answers) or text


@lru_cache(maxsize=4_096)
def normalize_latex(text: str) -> str:
    r"""Return an answer in one spelling of LaTeX, without boxes, dollar signs and other wrappers.

    >>> normalize_latex("x\u00b2 \u2264 4"), normalize_latex(r"$\boxed{\dfrac12}$.")
    ('x^{2} \\le 4', '\\frac{1}{2}')
    >>> normalize_latex("2/3\u03c0")
    '\\frac{2}{3}\\pi'
    """
    if "\\begin" not in text:
        # `\\frac` is `\frac` that was escaped twice, as in JSON. In a matrix, `\\` ends a row.
        text = re.sub(r"\\\\(?=[A-Za-z{}()\[\]%])", r"\\", text)
    text = strip_markup(text).translate(_TO_LATEX)
    # A box gets a line of its own, because it may be a second answer, and `is_single_answer`
    # refuses an extra line break. In a matrix, line breaks have no meaning.
    text = _BOX.sub(r"\n\1\n", text)
    if "\\begin" in text:
        text = " ".join(text.split())
    for pattern, replacement in _REWRITES:
        text = re.sub(pattern, replacement, text)
    return strip_markup(text)


def without_spaces(text: str) -> str:
    r"""Return a normalized text without white space, and with `*` for `\cdot`.

    The space between two digits stays: `1 2` is not `12`.

    >>> without_spaces(r"(\frac{1}{2}, 3 \cdot x)")
    '(\\frac{1}{2},3*x)'
    """
    # First, while the space of `\cdot x` still shows where the name of the command ends.
    text = re.sub(r"\\cdot(?![A-Za-z])", "*", text)
    return re.sub(r"(?<![0-9]) | (?![0-9])", "", " ".join(text.split()))
