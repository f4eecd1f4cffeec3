"""Write the rewards of a run as source code that runs without the notebook.

A reward of grpo_nb is written as the call that makes it. A function of the user is written with the
imports, constants and functions that it uses. Everything else is refused. `project_writing.py` then
runs the result in a fresh process and compares the scores, which reveals a missing or different
part.
"""

import ast
import dataclasses
import inspect
import re
import shutil
import symtable
import sys
import textwrap
import types
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from grpo_nb import __version__
from grpo_nb.core.pages import render
from grpo_nb.core.words import short_repr
from grpo_nb.rewards.base import Reward, reward_name
from grpo_nb.rewards.judge_model import judge

#: The folder `grpo_nb`.
PACKAGE_FOLDER = Path(__file__).resolve().parents[1]
PORTABLE_REWARD_ADVICE = (
    "Define the reward as a function with def, at the top of a cell or file. It may use imports, "
    "constants (numbers, texts, lists, dicts, regular expressions) and other such functions."
)


class NotPortableError(ValueError):
    """Raised if a reward cannot run outside of this process; the message says what to change."""


def write_rewards(folder: Path, rewards: Sequence[Callable[..., Any]]) -> None:
    """Write rewards.py, and in `kit/` a copy of grpo_nb, which most rewards use.

    Raises:
        NotPortableError: A reward holds something that exists in this process only.
    """
    source = RewardSource()
    expressions = [source.add(reward) for reward in rewards]
    text = render(
        "scaleout/templates/rewards.py.jinja",
        version=__version__,
        imports=sorted(source.imports.values()),
        definitions=source.definitions.values(),
        rewards=expressions,
    )
    (folder / "rewards.py").write_text(text, "utf-8")
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(PACKAGE_FOLDER, folder / "kit" / PACKAGE_FOLDER.name, ignore=ignored)


class RewardSource:
    """Source code of rewards, collected one reward at a time.

    Attributes:
        imports: Import line of each imported name.
        definitions: Source of each constant and function by name, in order of dependency.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.definitions: dict[str, str] = {}

    def add(self, reward: Callable[..., Any]) -> str:
        """Collect what a reward needs, and return the expression that makes the reward.

        Raises:
            NotPortableError: The reward holds something that exists in this process only.
        """
        name = reward_name(reward)
        # Checked before `Reward`, because a judge is a `Reward` too.
        if isinstance(reward, judge):
            raise NotPortableError(
                f"the judge {name!r} calls a function that may hold an address or a key, so the "
                "function is not written to a file. Train where it is defined, with gn.train."
            )
        if isinstance(reward, Reward):
            return self._expression_of(name, reward)
        self._add_global(name, reward)
        return name

    def _add_global(self, name: str, value: Any) -> None:
        """Collect the import or the definition of a global name.

        Args:
            name: Name by which a reward uses the value.
            value: A module, function, class or constant. Its `__name__` may differ from `name`, as
                after `import numpy as np`.
        """
        module = getattr(value, "__module__", None) or ""
        own_name = getattr(value, "__name__", "")
        if isinstance(value, types.ModuleType):
            # Refused here, because the fresh process would not notice a file that is installed in
            # editable mode: it can import the file too.
            if not is_installed(own_name):
                raise NotPortableError(
                    f"{own_name} is a file of your own, which does not exist elsewhere. Import its "
                    "functions by name, outside of the reward, and their source is written along: "
                    f"from {own_name} import NAME."
                )
            self._add_import(name, f"import {own_name}")
        elif callable(value) and not is_installed(module):
            self._add_function(name, value)
        elif own_name and getattr(sys.modules.get(module), own_name, None) is value:
            # A function or class of a package.
            self._add_import(name, f"from {module} import {own_name}")
        else:
            self._add_once(self.definitions, name, f"{name} = {self._expression_of(name, value)}")

    def _add_once(self, code_by_name: dict[str, str], name: str, code: str) -> None:
        # All rewards go into one file, so a name can mean one thing only.
        known_code = (self.imports | self.definitions).get(name, code)
        if known_code != code:
            raise NotPortableError(
                f"the rewards use two different things named {name}, and rewards.py can hold only "
                "one of them. Give one of them another name."
            )
        code_by_name[name] = code

    def _add_import(self, name: str, line: str) -> None:
        if line.split()[-1] != name:
            line += f" as {name}"
        self._add_once(self.imports, name, line)

    def _add_function(self, name: str, function: Callable[..., Any]) -> None:
        """Collect a function of the user, after everything that it uses."""
        source = portable_source(name, function)
        if self.definitions.get(name) == source:
            return
        # Added before the names that it uses, so that a function that calls itself is added once.
        self._add_once(self.definitions, name, source)
        namespace = inspect.unwrap(function).__globals__
        for used_name in sorted(global_names(source) & namespace.keys()):
            self._add_global(used_name, namespace[used_name])
        # Moved after the names that it uses.
        self.definitions[name] = self.definitions.pop(name)

    def _expression_of(self, name: str, value: Any) -> str:
        """Return code that makes a value: plain data, or an object of grpo_nb such as a reward."""
        if dataclasses.is_dataclass(value) and is_installed(type(value).__module__):
            return self._call_that_makes(value)
        if isinstance(value, re.Pattern):
            self._add_import("re", "import re")
            # repr() would shorten a long pattern.
            return f"re.compile({value.pattern!r}, {int(value.flags)})"
        # repr() of most objects is not code that makes an equal object.
        try:
            is_plain_data = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            is_plain_data = False
        if not is_plain_data:
            raise NotPortableError(
                f"{name} is {short_repr(value)} of type {type(value).__name__}, which lives in "
                f"this process only. {PORTABLE_REWARD_ADVICE}"
            )
        return repr(value)

    def _call_that_makes(self, value: Any) -> str:
        """Return the call that makes a dataclass object, without arguments at their default."""
        cls = type(value)
        self._add_global(cls.__name__, cls)
        arguments = []
        for field in dataclasses.fields(value):
            field_value = getattr(value, field.name)
            # Fields that are not compared are state, such as caches, and start empty in the new
            # process.
            if field.init and field.compare and field_value != field.default:
                arguments.append(f"{field.name}={self._expression_of(field.name, field_value)}")
        return f"{cls.__name__}({', '.join(arguments)})"


def portable_source(name: str, function: Callable[..., Any]) -> str:
    """Return the source of a function of the user, with its decorators.

    Raises:
        NotPortableError: The source alone would not define this function.
    """
    # The source of a decorated function includes its decorators, such as lru_cache.
    unwrapped = inspect.unwrap(function)
    code = getattr(unwrapped, "__code__", None)
    has_own_def = code is not None and code.co_name == name and name.isidentifier()
    if not has_own_def or code.co_freevars:
        raise NotPortableError(
            f"{name} is not defined by def {name}(...) alone: it is a class, an object, a lambda, "
            "a renamed function, or one that uses variables of the function around it. "
            f"{PORTABLE_REWARD_ADVICE}"
        )
    try:
        source = inspect.getsource(unwrapped)
    except OSError as error:
        raise NotPortableError(
            f"{name} has no source ({error}). {PORTABLE_REWARD_ADVICE}"
        ) from error
    return textwrap.dedent(source).rstrip()


def is_installed(module: str) -> bool:
    """Return True if a module belongs to grpo_nb, Python or an installed package."""
    package = module.partition(".")[0]
    if package == PACKAGE_FOLDER.name or package in sys.stdlib_module_names:
        return True
    loaded = sys.modules.get(package)
    # A namespace package, such as google, has folders but no file.
    file = getattr(loaded, "__file__", None) or str(getattr(loaded, "__path__", ""))
    # Debian's own Python installs packages into dist-packages.
    return "site-packages" in file or "dist-packages" in file


def global_names(source: str) -> set[str]:
    """Return the names that a source looks up outside of itself.

    `inspect.getclosurevars` would miss those in nested functions and comprehensions. Names that are
    only in annotations are left out, because rewards.py does not evaluate annotations.
    """
    names = set()
    text = f"from __future__ import annotations\n{source}"
    scopes = [symtable.symtable(text, "<reward>", "exec")]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                names.add(symbol.get_name())
    return names
