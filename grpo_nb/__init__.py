"""grpo_nb: train a language model with GRPO in a notebook, on one GPU or a plain CPU.

Importing this package loads nothing heavy and starts no process. The public names are listed in
`__init__.pyi`, which the loader, `dir(gn)` and editors read. Everything else is in its subpackage,
such as `gn.tasks.xml` and `gn.runs.list`. A name is imported when it is first used, in the order
that Unsloth needs: it patches trl and transformers while they are imported.
"""

import functools
import importlib
from typing import Any

__version__ = "0.1.0"
# Subpackages that are not in the list of public names, but can be reached: `gn.lab.ManualEpisode`.
_UNLISTED = ("lab", "models", "sandbox")


@functools.cache
def _public_api() -> tuple[Any, Any, list[str]]:
    """Return the `__getattr__`, `__dir__` and `__all__` that belong to `__init__.pyi`."""
    # Not at the top, because the Setup cell imports grpo_nb.machine before anything is installed.
    import lazy_loader

    return lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> Any:
    if name in _UNLISTED:
        return importlib.import_module(f"{__name__}.{name}")
    get_attribute, _, public_names = _public_api()
    return public_names if name == "__all__" else get_attribute(name)


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), "__version__"]
