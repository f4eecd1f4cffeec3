"""grpo_nb: teach a language model with GRPO on one GPU or a plain CPU, in a notebook, with evidence at every step.

Importing this package loads nothing heavy and starts no process. What `gn.` offers stands in one list, `__init__.pyi`, which
the loader, `dir(gn)` and editors read; the rest lives in its room (`gn.tasks.xml`, `gn.runs.list`). Names are
looked up when they are used, in the order that keeps Unsloth ahead of trl and transformers, which it patches while they load.
"""

import functools
import importlib
from typing import Any

__version__ = "0.1.0"
# Not in the list, and there all the same: `gn.lab.ByHand`.
_OTHER_ROOMS = ("lab", "models", "sandbox")


@functools.cache
def _door() -> tuple[Any, Any, list[str]]:
    import lazy_loader  # not at the top: the Install cell imports grpo_nb.machine before anything is installed

    return lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in _OTHER_ROOMS:
        return importlib.import_module(f"{__name__}.{name}")
    return _door()[2] if name == "__all__" else _door()[0](name)


def __dir__() -> list[str]:
    return [*_door()[1](), "__version__"]
