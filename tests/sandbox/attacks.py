"""Honest code and attacks by name, from tests/data/candidates.toml.

Two attacks are here, because such a file cannot hold them.
"""

from __future__ import annotations

import os
import tomllib
from pathlib import Path

_TABLES = tomllib.loads((Path(__file__).parents[1] / "data" / "candidates.toml").read_text())
HONEST: str = _TABLES["honest"]
_PRELUDE = _TABLES["prelude"]
_MACHINE = os.uname().machine


def _of_expression(expression: str) -> str:
    return (
        f"{_PRELUDE}def f():\n"
        f"    got = {expression}\n"
        "    return None if got is None else 'GAINED %r' % (got,)"
    )


def _of_system_call(call: dict) -> str:
    system_call = f"syscall({call[_MACHINE]}, {call['arguments']})"
    return f"{_PRELUDE}def f(): return 'GAINED %d' % forked({system_call})"


ATTACKS: dict[str, str] = {
    **{name: _of_expression(expression) for name, expression in _TABLES["expressions"].items()},
    **{name: _of_system_call(call) for name, call in _TABLES["system_calls"].items()},
    **{name: f"def f(): return {expression}" for name, expression in _TABLES["lies"].items()},
    **{name: _PRELUDE + source for name, source in _TABLES["after_prelude"].items()},
    **_TABLES["whole"],
    "deep_source": "x = " + "(" * 5000 + ")" * 5000,
    "surrogate_source": "x = '\ud800'\ndef f(): return x",
}
# Each has to end at a limit, or to fail by itself.
ON_LIMITS: dict[str, str] = _TABLES["on_limits"]
