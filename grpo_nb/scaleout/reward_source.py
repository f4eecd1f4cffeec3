"""Write the rewards of a run as source code that runs without the notebook.

A reward of grpo_nb is written as the call that makes it. A function of the user is written with the
imports, constants and functions that it uses. Everything else is refused. `project_writing.py` then
runs the result in a fresh process and compares the scores, which reveals a missing or different
part.
"""

import ast
import contextlib
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

from grpo_nb.core.pages import render
from grpo_nb.core.words import short_repr
from grpo_nb.rewards.base import Reward, RewardFunction, reward_name

PORTABLE_REWARD_ADVICE = (
    "Define the reward as a function with def, at the top of a cell or file. It may use imports, "
    "constants (finite numbers, texts, lists, dicts, regular expressions) and other such "
    "functions, but no other file. Outside of the reward, import functions of your own files by "
    "name (from helpers import score), and a module of a package under a name of its own (import "
    "xml.etree.ElementTree as ET). The run need not be trained again: pass the rewritten reward "
    "among all rewards of the run, write_project(run, folder, rewards=[...]). Train with a judge "
    "where it is defined, with gn.train."
)


class NotPortableError(ValueError):
    """Raised if a reward cannot run outside of this process; the message says what to change."""


def write_rewards_and_kit(folder: Path, rewards: Sequence[RewardFunction]) -> None:
    """Write rewards.py, and in `kit/` a copy of grpo_nb, which most rewards use.

    Raises:
        NotPortableError: A reward holds something that exists in this process only.
    """
    source = RewardSource()
    expressions = [source.add_reward(reward) for reward in rewards]
    text = render(
        "scaleout/templates/rewards.py.jinja",
        imports=sorted(source.imports),
        definitions=source.definitions,
        rewards=expressions,
    )
    (folder / "rewards.py").write_text(text, "utf-8")
    shutil.copytree(
        Path(__file__).resolve().parents[1],
        folder / "kit/grpo_nb",
        ignore=shutil.ignore_patterns("__pycache__"),
    )


class RewardSource:
    """Source code of rewards, collected one reward at a time.

    Attributes:
        identities: What each name in rewards.py stands for, to notice a second meaning: the value,
            or the `__code__` of a function.
        imports: Import lines.
        definitions: Source of constants and functions, each after what it uses.
    """

    def __init__(self) -> None:
        # The list at the end of rewards.py has the name REWARDS, so nothing else may have it.
        self.identities = {"REWARDS": None}
        self.imports = []
        self.definitions = []

    def add_reward(self, reward: RewardFunction) -> str:
        """Collect what a reward needs, and return the expression that makes the reward.

        Raises:
            NotPortableError: The reward holds something that exists in this process only.
        """
        name = reward_name(reward)
        if isinstance(reward, Reward):
            return self._expression_of(name, reward)
        self._add_name(name, reward)
        return name

    def _add_name(self, name: str, value: Any) -> None:
        """Collect the import or the definition of a name, unless it is known already.

        Args:
            name: Name by which a reward uses the value.
            value: A module, function, class or constant. Its `__name__` may differ from `name`, as
                after `import numpy as np`.
        """
        # A cell that was run twice made two equal functions, so the code of functions is compared.
        identity = getattr(value, "__code__", value)
        if name in self.identities:
            # All rewards go into one file, so a name can mean one thing only.
            if self.identities[name] != identity:
                raise NotPortableError(
                    f"the rewards use two different things named {name}, and rewards.py can hold "
                    "only one of them. Give one of them another name."
                )
            return
        # Noted before the code is collected, so that a function that calls itself is added once.
        self.identities[name] = identity
        module = getattr(value, "__module__", None) or ""
        own_name = getattr(value, "__name__", "")
        alias = "" if own_name == name else f" as {name}"
        # A function of the user must be written out: `__main__`, from which the third case would
        # import it, is another file elsewhere.
        if isinstance(value, types.ModuleType) and is_importable_elsewhere(own_name):
            self.imports.append(f"import {own_name}{alias}")
        elif callable(value) and not is_importable_elsewhere(module):
            # A function of the user. A class of the user is refused.
            self._add_function(name, value)
        elif own_name and getattr(sys.modules.get(module), own_name, None) is value:
            # A function or class of a package.
            self.imports.append(f"from {module} import {own_name}{alias}")
        else:
            # A constant. `_expression_of` refuses everything else, such as a module of the user.
            self.definitions.append(f"{name} = {self._expression_of(name, value)}")

    def _add_function(self, name: str, function: Callable) -> None:
        """Collect a function of the user, after everything that it uses."""
        # A decorator such as lru_cache returns an object without source. The source of the function
        # inside has the decorator too.
        unwrapped = inspect.unwrap(function)
        if (
            not isinstance(unwrapped, types.FunctionType)  # a class, an object or its method
            or name == "<lambda>"
            or unwrapped.__code__.co_name != name  # a renamed function
            or unwrapped.__code__.co_freevars  # variables of the function around it
        ):
            raise NotPortableError(
                f"{name} is not defined by def {name}(...) alone: it is a class, an object, a "
                "method, a lambda, a renamed function, or one that uses variables of the function "
                f"around it. {PORTABLE_REWARD_ADVICE}"
            )
        source = textwrap.dedent(inspect.getsource(unwrapped)).rstrip()
        namespace = unwrapped.__globals__
        for used_name in sorted(global_names(source) & namespace.keys()):
            self._add_name(used_name, namespace[used_name])
        self.definitions.append(source)

    def _expression_of(self, name: str, value: Any) -> str:
        """Return code that makes a value: plain data, or an object of grpo_nb such as a reward."""
        cls = type(value)
        if dataclasses.is_dataclass(cls) and is_importable_elsewhere(cls.__module__):
            self._add_name(cls.__name__, cls)
            arguments = []
            for field in dataclasses.fields(value):
                field_value = getattr(value, field.name)
                if field_value != field.default:
                    expression = self._expression_of(field.name, field_value)
                    arguments.append(f"{field.name}={expression}")
            return f"{cls.__name__}({', '.join(arguments)})"
        if isinstance(value, re.Pattern):
            self._add_name("re", re)
            # repr() would shorten a long pattern.
            return f"re.compile({value.pattern!r}, {value.flags})"
        # repr() of most objects is not code that makes an equal object.
        with contextlib.suppress(ValueError, SyntaxError):
            if ast.literal_eval(repr(value)) == value:
                return repr(value)
        raise NotPortableError(
            f"{name} is {short_repr(value)} of type {cls.__name__}, which lives in this process "
            f"only. {PORTABLE_REWARD_ADVICE}"
        )


def is_importable_elsewhere(module: str) -> bool:
    """Return True for a module of Python, an installed package, or grpo_nb, which is in `kit/`."""
    package = module.partition(".")[0]
    # Has the folders of a namespace package too, such as google, which has no file.
    location = str(getattr(sys.modules.get(package), "__spec__", None))
    return (
        package in ("grpo_nb", *sys.stdlib_module_names)
        or "site-packages" in location
        # Debian's own Python, which Colab uses too, installs packages there.
        or "dist-packages" in location
    )


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
        names |= {
            symbol.get_name()
            for symbol in scope.get_symbols()
            if symbol.is_global() and symbol.is_referenced()
        }
    return names
