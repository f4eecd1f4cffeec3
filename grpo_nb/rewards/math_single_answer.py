r"""Refuse a text with more than one answer, before math-verify reads it.

math-verify was made to find an answer in a text. So it accepts `41 = 42`, `42 \text{ is wrong}` and
`x + 1 = 42` as 42, and it reads `1 2 3 4` as 10.
"""

import re
from collections import Counter

from grpo_nb.tasks.markup import BALANCED_TEXT

RELATION = re.compile(r"[=<>]|\\(?:le|ge|ne|approx|sim|simeq|cong|equiv|in|to)(?![A-Za-z])")
r"""Any sign between two sides, such as `=` or `\approx`."""
_HUGE_POWER = re.compile(
    r"[0-9)}]\s*\^\s*[({]*\s*-?"
    r"(?:[0-9]{5}"  # five digits or more in the exponent: 2^{-99999}
    r"|[0-9]+[)}\s]*\^)"  # a power in the exponent: 2^{9^9}
)
"""Powers that may be too large to compute. Each completion with such a number would keep a worker
busy until its limit ends it.
"""
_TOKEN = re.compile(r"\\text\s*\{[^{}]*\}|\\[a-z]+|\\.|[a-z]{2,}|[0-9]+\s+[0-9.]|\n|\S", re.DOTALL)
"""Numbers side by side ("1 2") and a line break are tokens too, because they show a second answer.
Other numbers are read digit by digit: "12" is two tokens, "1 2" is one.
"""
_HARMLESS_TOKEN = re.compile(
    r"[-+*/^_(){}\[\].'=<>|0-9a-z]|\\[{}]"
    r"|\\?(?:le|ge|frac|sqrt|pi|cdot|times|div|infty|circ|binom|overline"
    r"|(?:arc)?(?:sin|cos|tan)|cot|sec|csc|sinh|cosh|tanh|log|ln|lg|exp"
    r"|alpha|beta|gamma|delta|epsilon|zeta|eta|theta|iota|kappa|lambda|mu|nu|xi|rho|sigma|tau"
    r"|upsilon|phi|chi|psi|omega)"
)
"""Tokens that an answer may contain more often than the gold answer: operators, brackets, single
digits and letters, functions and Greek letters. Relations are harmless here, because
`is_single_answer` has counted them already. The backslash of a name may be missing.
"""


def is_single_answer(given: str, gold: str) -> bool:
    r"""Return True if a text holds a single answer, judged by its form.

    Relations, commas, words, `\text{}`, most commands and numbers side by side, as in `1 2`, can
    show a second answer. So the text may not have more of them than the gold answer. A power that
    may be too large to compute is refused too, unless the gold answer has one.

    >>> is_single_answer("1+x", "x+1"), is_single_answer(r"42x \text{ is wrong}", "42x")
    (True, False)
    >>> is_single_answer("x or y", "x")
    False
    """
    if len(RELATION.findall(given)) > len(RELATION.findall(gold)):
        return False
    # Open or deeply nested braces would take seconds to parse.
    if not re.fullmatch(BALANCED_TEXT, given):
        return False
    # A gold answer with such a power, as 2^{2^n} + 1, shows that the question asks for one.
    if _HUGE_POWER.search(given) and not _HUGE_POWER.search(gold):
        return False
    gold_tokens = _TOKEN.findall(gold.casefold())
    gold_letters = set("".join(filter(str.isalpha, gold_tokens)))
    # Tokens that the answer has more often than the gold answer.
    extra_tokens = Counter(_TOKEN.findall(given.casefold())) - Counter(gold_tokens)
    # Letters side by side, as in ab, must all occur in the gold answer: otherwise they are a word.
    return all(
        _HARMLESS_TOKEN.fullmatch(token) or gold_letters.issuperset(token) for token in extra_tokens
    )
