"""Check that a private symbol of a library is still there."""

import importlib.metadata
import inspect
from collections.abc import Collection
from typing import Any

from grpo_nb.core.words import EnvironmentProblem


def require_symbol(
    owner: Any, name: str, *, written_for: str, parameters: Collection[str] = ()
) -> Any:
    """Return an attribute of a module, class or object, or raise one sentence if it has changed.

    Args:
        owner: Module, class or object of the library.
        name: Name of the attribute.
        written_for: Package and version that the caller was written for: `trl 1.15.0`.
        parameters: Names that the function must take.

    Raises:
        EnvironmentProblem: The attribute is missing, or no longer takes one of the parameters.
    """
    package, _, version = written_for.partition(" ")
    label = getattr(owner, "__name__", type(owner).__name__)
    symbol = getattr(owner, name, None)
    if symbol is None:
        problem = f"{label}.{name} is missing"
    else:
        missing = missing_parameters(symbol, parameters)
        if not missing:
            return symbol
        problem = f"{label}.{name} no longer takes {', '.join(missing)}"
    installed = installed_version(package) or "(not installed)"
    raise EnvironmentProblem(
        f"{problem} in {package} {installed}, and grpo_nb was written for {package} {version}. "
        f"Install the pinned version: pip install {package}=={version}"
    )


def missing_parameters(function: Any, names: Collection[str]) -> list[str]:
    """Return the names that a function does not take; none if it takes arbitrary keywords."""
    if not names:
        return []
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return []
    return [name for name in names if name not in parameters]


def installed_version(package: str) -> str | None:
    """Return the version in a package's metadata on disk, or None if it is not installed."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
