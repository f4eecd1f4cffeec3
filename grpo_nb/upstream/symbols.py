"""Check that a private symbol of a library is still there before it is used."""

from importlib import metadata
from typing import Any

from grpo_nb.core.problems import EnvironmentProblem

#: Pinned versions of the libraries, for which `grpo_nb.upstream` was written.
PINNED_VERSIONS = {
    "peft": "0.21.2",
    "transformers": "5.17.0",
    "trl": "1.15.0",
    "unsloth": "2026.10.9",
    "unsloth_zoo": "2026.10.9",
    "vllm": "0.31.0",
}


def require_symbol(owner: Any, name: str, package: str) -> Any:
    """Return an attribute of a library; raise if there is no such attribute.

    The value of the attribute may be None.

    Args:
        owner: Module, class or object of the library.
        name: Name of the attribute.
        package: Name of the library, a key of `PINNED_VERSIONS`.

    Raises:
        EnvironmentProblem: The attribute is missing.
    """
    if hasattr(owner, name):
        return getattr(owner, name)
    version = PINNED_VERSIONS[package]
    owner_name = getattr(owner, "__name__", type(owner).__name__)
    installed = installed_version(package) or "(not installed)"
    raise EnvironmentProblem(
        f"{owner_name}.{name} is missing in {package} {installed}, and grpo_nb was written for "
        f"{package} {version}. Install the pinned version: pip install {package}=={version}"
    )


def installed_version(package: str) -> str | None:
    """Return the version in a package's metadata on disk, or None if it is not installed."""
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
