"""Find the modules of the standard library that a piece of code will import.

They are imported before the code is isolated, because afterwards it can open no file.
"""

from __future__ import annotations

import re
import sys

# Patterns instead of a parser, because generated code could crash a parser, and with it this
# process. A superfluous name only costs milliseconds. Both patterns take linear time on any text.
_FROM_IMPORT = re.compile(r"\bfrom[ \t]+([\w.]+)[ \t]+import[ \t]*(\([\w,\s]*|[\w, \t]*)")
# Also finds __import__("math") and importlib.import_module("math").
_IMPORT = re.compile(r"(?:\b|__)import(?:__|_module)?[ \t(]+['\"]?([\w., \t]+)")

# Modules that Python itself imports late: unicodedata for \N{...} and for names in other scripts.
_ALWAYS = ("unicodedata", "warnings")
# Modules that the standard library imports only when one of these names is used.
_IMPORTED_LATE = {
    "most_common": "heapq",
    "strptime": "_strptime",
    "singledispatch": "typing",
    "UserDict": "copy",
}
# These modules open a window or a browser, print a poem, or run when they are imported.
_NEVER = {"antigravity", "idlelib", "this", "tkinter", "turtle", "turtledemo", "__main__"}
_MAX_NAMES = 100
"""Most names to import. The imports are not part of the limit of processor time, so code must not
be able to prolong them. The 150 exercises of the tests name at most 6 modules, and the files of the
standard library at most 71."""
_LONGEST_NAME = 100


def modules_of(code: str) -> list[str]:
    """Return the names to import before this code runs. Some of them may not exist.

    >>> modules_of("from collections import Counter")
    ['unicodedata', 'warnings', 'collections', 'collections.Counter']
    """
    # A backslash continues an import in the next line.
    code = code.replace("\\\n", " ")
    names = {module for function, module in _IMPORTED_LATE.items() if function in code}
    for package, members in _FROM_IMPORT.findall(code):
        names.add(package)
        names |= {f"{package}.{member}" for member in re.findall(r"\w+", members)}
    for imported in _IMPORT.findall(code):
        # `a.b as c, d` imports a.b and d.
        names |= {part.split()[0] for part in imported.split(",") if part.strip()}
    importable = sorted(filter(_is_importable, names))
    return [*_ALWAYS, *importable[:_MAX_NAMES]]


def _is_importable(name: str) -> bool:
    """Return True if a name can be a module of the standard library that is safe to import."""
    parts = name.split(".")
    return (
        len(name) <= _LONGEST_NAME
        and parts[0] in sys.stdlib_module_names
        and _NEVER.isdisjoint(parts)
    )
