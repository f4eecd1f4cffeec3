"""Check that a private symbol of a library is still there before it is used."""

import importlib.metadata
import inspect
from collections.abc import Collection
from typing import Any

from grpo_nb.core.problems import EnvironmentProblem


def require_symbol(
    owner: Any, name: str, *, written_for: str, parameters: Collection[str] = ()
) -> Any:
    """Return a function or object of a library, checked to exist and to take some parameters.

    Args:
        owner: Module, class or object of the library.
        name: Name of the attribute. An attribute that is None counts as missing.
        written_for: Package and version that the caller was written for: `trl 1.15.0`.
        parameters: Names that the function must take.

    Raises:
        EnvironmentProblem: The attribute is missing, or no longer takes one of the parameters.
    """
    symbol = require_attribute(owner, name, written_for=written_for)
    if symbol is None:
        raise missing_symbol(owner, name, written_for=written_for)
    missing = _missing_parameters(symbol, parameters)
    if missing:
        raise _changed(owner, f"{name} no longer takes {', '.join(missing)}", written_for)
    return symbol


def require_attribute(owner: Any, name: str, *, written_for: str) -> Any:
    """Return an attribute of a library, checked to exist; its value may be None.

    Raises:
        EnvironmentProblem: The attribute is missing.
    """
    if not hasattr(owner, name):
        raise missing_symbol(owner, name, written_for=written_for)
    return getattr(owner, name)


def missing_symbol(owner: Any, name: str, *, written_for: str) -> EnvironmentProblem:
    """Return the error for an attribute or table entry that a library no longer has."""
    return _changed(owner, f"{name} is missing", written_for)


def _changed(owner: Any, problem: str, written_for: str) -> EnvironmentProblem:
    package, _, version = written_for.partition(" ")
    label = getattr(owner, "__name__", type(owner).__name__)
    installed = installed_version(package) or "(not installed)"
    return EnvironmentProblem(
        f"{label}.{problem} in {package} {installed}, and grpo_nb was written for {package} "
        f"{version}. Install the pinned version: pip install {package}=={version}"
    )


def _missing_parameters(function: Any, names: Collection[str]) -> list[str]:
    """Return the names that are no parameters of a function; empty if it takes any keyword."""
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
