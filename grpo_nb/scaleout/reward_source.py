"""Write reward functions as source code that runs without the notebook.

A reward of the kit becomes the call that makes it. A function of the user becomes its source, after
the imports, constants, functions and classes that it uses. `writing.py` then runs the result in a
fresh process, which shows missing names and files. That process has the packages of this
environment, so a package that is missing from `pinned_packages` is not noticed.
"""

import ast
import dataclasses
import importlib.metadata
import inspect
import re
import symtable
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import PurePath
from typing import Any

from grpo_nb.core.words import in_line
from grpo_nb.rewards.base import Reward, reward_name
from grpo_nb.rewards.judge_model import judge

KIT = __name__.partition(".")[0]
#: Packages that the kit's rewards need, besides those of every folder.
KIT_PACKAGES = ("lazy_loader", "math-verify", "pydantic")


class NotPortable(ValueError):
    """Raised if a reward cannot run outside of this process; the message says what to change."""


class RewardSource:
    """Source code of rewards, collected one reward at a time.

    Attributes:
        imports: Import lines by the name that they bind.
        definitions: Source of constants, functions and classes by name, in order of dependency.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.definitions: dict[str, str] = {}

    def add(self, reward: Callable[..., Any]) -> str:
        """Collect what a reward needs, and return the expression that makes the reward.

        Raises:
            NotPortable: The reward holds something that exists in this process only.
        """
        name = reward_name(reward)
        # First of all, because a judge is also a reward of the kit.
        if isinstance(reward, judge):
            raise NotPortable(
                f"the judge {name!r} calls a function that may hold an address or a key, so the "
                "function is not written to a file. Train where it is defined, with gn.train."
            )
        if isinstance(reward, Reward):
            return self._expression(reward, name)
        if not isinstance(reward, types.FunctionType):
            raise NotPortable(
                f"the reward {name!r} is not a function, so its source cannot be written. Define "
                "it as def NAME(completions, **columns)."
            )
        self._add_global(reward.__name__, reward)
        return reward.__name__

    def _expression(self, value: Any, name: str) -> str:
        """Return code for a reward of the kit or a part of one: format, function, plain data."""
        if dataclasses.is_dataclass(value):
            cls = type(value)
            self._add_global(cls.__name__, cls)
            arguments = []
            for field in dataclasses.fields(value):
                field_value = getattr(value, field.name)
                # Fields that are not compared are state, such as caches, and start empty there.
                if field.init and field.compare and field_value != field.default:
                    argument = self._expression(field_value, field.name)
                    arguments.append(f"{field.name}={argument}")
            return f"{cls.__name__}({', '.join(arguments)})"
        if isinstance(value, types.FunctionType):
            return self.add(value)
        # The text of most objects is no code, and that of some is code for another object.
        try:
            is_plain_data = ast.literal_eval(repr(value)) == value
        except (ValueError, SyntaxError):
            is_plain_data = False
        if not is_plain_data:
            raise NotPortable(
                f"{name} is {in_line(value)} of type {type(value).__name__}, which lives in this "
                "process only. Write the numbers or texts that the reward needs as a constant: "
                f"{name.upper()} = ..."
            )
        return repr(value)

    def _add_global(self, name: str, value: Any) -> None:
        """Collect the import, source or constant that defines a global name."""
        module = getattr(value, "__module__", None) or ""
        defined_name = getattr(value, "__name__", "")
        # Unwrap first: getsource then includes decorators such as lru_cache.
        unwrapped = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.ModuleType):
            self._add_import(name, defined_name, f"import {defined_name}")
        elif isinstance(unwrapped, types.FunctionType | type) and is_user_module(module):
            self._add_source(unwrapped)
            if name != unwrapped.__name__:
                self.definitions[name] = f"{name} = {unwrapped.__name__}"
        elif defined_name and getattr(sys.modules.get(module), defined_name, None) is value:
            self._add_import(name, module, f"from {module} import {defined_name}")
        elif isinstance(value, re.Pattern):
            # repr() would shorten a long pattern.
            self.imports["re"] = "import re"
            self.definitions[name] = f"{name} = re.compile({value.pattern!r}, {int(value.flags)})"
        elif name not in self.definitions:
            self.definitions[name] = f"{name} = {self._expression(value, name)}"

    def _add_import(self, name: str, module: str, line: str) -> None:
        # A file of the user may be importable here, even in a fresh process.
        if is_user_module(module):
            raise NotPortable(
                f"{name} is from {module}, a file of your own that does not exist elsewhere. "
                "Import the functions themselves, and their source is written along: "
                f"from {module} import NAME."
            )
        self.imports[name] = line if line.split()[-1] == name else f"{line} as {name}"

    def _add_source(self, definition: Any) -> None:
        """Collect a function or class of the user, after everything that it uses."""
        name = definition.__name__
        if name in self.definitions:
            return
        # The source of a lambda is the whole line around it.
        if not name.isidentifier():
            raise NotPortable(
                f"a {name} has no name of its own, so its source cannot be written. Define it with "
                "def NAME(...)."
            )
        try:
            source = textwrap.dedent(inspect.getsource(definition)).rstrip()
            used_names = global_names(source)
        except (OSError, TypeError, SyntaxError) as error:
            raise NotPortable(
                f"{name} has no complete source ({error}). Define it with def, in a cell or a file."
            ) from error
        namespace = vars(sys.modules[definition.__module__])
        self.definitions[name] = ""  # Ends the recursion of a definition that uses itself.
        for used_name in sorted(used_names & namespace.keys()):
            self._add_global(used_name, namespace[used_name])
        # Put it last, after what it uses.
        del self.definitions[name]
        self.definitions[name] = source


def is_user_module(module: str) -> bool:
    """Return whether a module is a notebook, or a file that is neither installed nor the kit's."""
    package = (module or "__main__").partition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    # Debian's own Python installs packages into dist-packages.
    is_installed = {"site-packages", "dist-packages"} & set(PurePath(file).parts)
    is_public = is_installed or package == KIT or package in sys.stdlib_module_names
    return package == "__main__" or not is_public


def global_names(source: str) -> set[str]:
    """Return the names that a source looks up outside of itself.

    `inspect.getclosurevars` would miss those in nested functions and comprehensions.
    """
    names = set()
    scopes = [symtable.symtable(source, "<reward>", "exec")]
    while scopes:
        scope = scopes.pop()
        scopes += scope.get_children()
        for symbol in scope.get_symbols():
            if symbol.is_global() and symbol.is_referenced():
                names.add(symbol.get_name())
    return names


def imported_modules(program: str) -> set[str]:
    """Return the top-level modules that a program imports, also within its functions.

    >>> sorted(imported_modules("import os.path; from json import loads"))
    ['json', 'os']
    """
    names = []
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names.append(node.module or "")
    return {name.partition(".")[0] for name in names}


def pinned_packages(modules: set[str]) -> list[str]:
    """Return the installed packages of these modules, with their versions, such as `numpy==2.3`."""
    packages = set(KIT_PACKAGES) if KIT in modules else set()
    distributions = importlib.metadata.packages_distributions()
    for module in modules - {KIT}:
        # A module such as `google` can belong to many packages; the first one has to do.
        packages.update(distributions.get(module, [])[:1])
    # A local version such as 2.9.1+cpu is not on the package index.
    versions = {name: importlib.metadata.version(name).partition("+")[0] for name in packages}
    return [f"{name}=={versions[name]}" for name in sorted(versions)]
