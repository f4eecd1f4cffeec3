"""Which modules of the standard library a piece of code will import: behind the wall there is no file to import from."""

from __future__ import annotations

import re
import sys

# By pattern and not by parsing: what no compiler takes must not bring down this process, and a name too many costs
# milliseconds. The second also finds __import__("math") and importlib.import_module("math"). Both take linear time on any
# text: no two parts that repeat can match the same characters.
_FROM = re.compile(r"\bfrom[ \t]+([\w.]+)[ \t]+import[ \t(]*([\w, \t]*)")
_IMPORT = re.compile(r"(?:\b|__)import(?:__|_module)?[ \t(]+['\"]?([\w., \t]+)")

# What others import late: warnings for any of them, unicodedata for \N{...} and names in other scripts.
_ALWAYS = ("unicodedata", "warnings")
# What the standard library imports at the first call of something, by a word that stands in the code then.
_LATER = {
    "most_common": "heapq",
    "strptime": "_strptime",
    "singledispatch": "typing",
    "UserDict": "copy",
}
# Windows, pages in a browser, printed poems, and what runs when it is imported.
_NEVER = {"antigravity", "idlelib", "this", "tkinter", "turtle", "turtledemo", "__main__"}
# They are imported before the limit of processor time begins, and code must not stretch that. The 150 exercises of the tests
# name at most 6, the modules of the standard library itself at most 71.
_MOST_NAMES = 100
_LONGEST_NAME = 100


def modules_of(code: str) -> list[str]:
    """Return the names to import before this code runs, some of which may not exist.

    >>> modules_of("from collections import Counter")
    ['collections', 'collections.Counter', 'unicodedata', 'warnings']
    """
    names = {*_ALWAYS, *(module for word, module in _LATER.items() if word in code)}
    for package, members in _FROM.findall(code):
        names |= {package, *(f"{package}.{member}" for member in re.findall(r"\w+", members))}
    for named in _IMPORT.findall(code):
        names |= {part.split()[0] for part in named.split(",") if part.strip()}
    return sorted(name for name in names if _is_importable(name))[:_MOST_NAMES]


def _is_importable(name: str) -> bool:
    """Return whether this may be a module of the standard library that does nothing when it is imported."""
    parts = name.split(".")
    return (
        len(name) <= _LONGEST_NAME
        and parts[0] in sys.stdlib_module_names
        and _NEVER.isdisjoint(parts)
    )
