"""Find the modules of the standard library that a piece of code will import.

They are imported before the code is isolated, because afterwards it can open no file. The names are
found by patterns, because generated code could crash a parser, and with it the notebook. The
patterns take linear time on any text. A name that the code does not import only costs milliseconds.
"""

from __future__ import annotations

import re
import sys

# Names in brackets may be on several lines, with comments between them.
_FROM_IMPORT = re.compile(r"\bfrom[ \t]+([\w.]+)[ \t]+import[ \t]*(\([^)]*|[\w, \t]*)")
# Also finds __import__("math") and importlib.import_module("math").
_IMPORT = re.compile(r"(?:\b|__)import(?:__|_module)?[ \t(]+['\"]?([\w., \t]+)")

# Modules that Python itself imports late: unicodedata for \N{...} and for names in other scripts.
_ALWAYS_IMPORTED = ("unicodedata", "warnings")
# Modules that the standard library imports only when one of these names is used.
_IMPORTED_LATE = {
    "most_common": "heapq",
    "strptime": "_strptime",
    "singledispatch": "typing",
    "asyncio": "concurrent.futures.thread",
    "futures": "concurrent.futures.thread",
    "ProcessPoolExecutor": "concurrent.futures.process",
    "IsolatedAsyncioTestCase": "unittest.async_case",
    "rot13": "encodings.rot_13",
    "rot_13": "encodings.rot_13",
}
# These modules open a window or a browser, or run when they are imported.
_NEVER_IMPORTED = {"antigravity", "idlelib", "tkinter", "turtle", "turtledemo", "__main__"}
# The limit of processor time does not cover the imports, so code must not be able to prolong them.
_MAX_NAMES = 100
_MAX_NAME_CHARACTERS = 100


def modules_to_import(code: str) -> list[str]:
    """Return the names to import before this code runs. Some of them may be no modules.

    >>> modules_to_import("from collections import Counter")
    ['unicodedata', 'warnings', 'collections', 'collections.Counter']
    """
    # A backslash continues an import in the next line.
    code = re.sub(r"\\\r?\n", " ", code)
    names = {module for name, module in _IMPORTED_LATE.items() if name in code}
    for package, members in _FROM_IMPORT.findall(code):
        names.add(package)
        names |= {f"{package}.{member}" for member in re.findall(r"\w+", members)}
    for imported in _IMPORT.findall(code):
        # `a.b as c, d` imports a.b and d.
        names |= {part.split()[0] for part in imported.split(",") if part.strip()}
    importable = sorted(filter(_is_importable, names))
    return [*_ALWAYS_IMPORTED, *importable[:_MAX_NAMES]]


def _is_importable(name: str) -> bool:
    """Return True if a name can be a module of the standard library that is safe to import."""
    parts = name.split(".")
    return (
        len(name) <= _MAX_NAME_CHARACTERS
        and parts[0] in sys.stdlib_module_names
        and _NEVER_IMPORTED.isdisjoint(parts)
    )
