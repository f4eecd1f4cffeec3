"""Rewards as code that stands by itself: a call for one of the kit, and for the user's own the source with what it uses.

What a function uses of its notebook or file goes with it: imports, constants, other functions, patterns. What lives in this
process only, such as a widget, a loaded model or the variables of an outer function, cannot go, and is refused by name.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import functools
import importlib.metadata
import inspect
import re
import sys
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

from grpo_nb.core.words import shorten
from grpo_nb.rewards.base import Reward, kinds, reward_name
from grpo_nb.scaleout.own_code import globals_used, is_own_module
from grpo_nb.tasks.formats import AnswerFormat

_LONGEST = 1_000_000
_KIT = __name__.partition(".")[0]


class CannotLeave(ValueError):
    """A reward that cannot be written as code; the message names what holds it here, and what to write instead."""


class RewardsCode:
    """Collects what `rewards.py` is made of.

    Attributes:
        imports: Lines, in the order in which they were needed.
        parts: Constants and functions by name, each behind those that it uses.
        needs_kit: Whether anything of the kit is used.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.parts: dict[str, str] = {}
        self.needs_kit = False
        # What rewards.py names itself.
        self._held: dict[str, Any] = dict.fromkeys(("HERE", "REWARDS"), self)
        self._held["kit"] = sys.modules[Reward.__module__.rpartition(".")[0]]
        self._packages: set[str] = set()

    def add(self, reward: Callable[..., Any]) -> str:
        """Return the expression that makes a reward.

        Args:
            reward: As a trainer takes it.

        Raises:
            CannotLeave: It holds something that is only here.
        """
        name = reward_name(reward)
        if isinstance(reward, Reward):
            return self._written(reward, name)
        if isinstance(reward, functools.partial):
            given = [self.add(reward.func), *(self._plain(a, name, "an argument") for a in reward.args)]
            given += [f"{key}={self._plain(value, name, key)}" for key, value in reward.keywords.items()]
            self._take("functools", functools, name)
            return f"functools.partial({', '.join(given)})"
        if not isinstance(reward, types.FunctionType):
            raise CannotLeave(
                f"the reward {name!r} is an object of the class {type(reward).__name__}, whose state is only here. Write it "
                "as a function: def NAME(completions, **columns)."
            )
        return self._take_function(reward.__name__, reward, name)

    def requirements(self) -> list[str]:
        """The installed packages that the rewards import, pinned."""
        known = importlib.metadata.packages_distributions()
        found = {known[package][0] for package in self._packages if package in known}
        return [f"{name}=={importlib.metadata.version(name).partition('+')[0]}" for name in sorted(found)]

    # -- rewards of the kit -----------------------------------------------------------------------------------------

    def _written(self, value: Any, reward: str) -> str:
        """Code for a reward of the kit, and for what it is made of."""
        if isinstance(value, Reward) and type(value) in kinds().values():
            self.needs_kit = True
            if type(value).__name__ == "maths":
                self._packages.add("math_verify")
            return f"kit.{type(value).__name__}({', '.join(self._fields(value, reward))})"
        room = type(value).__module__.split(".")[:2]
        if dataclasses.is_dataclass(value) and room[0] == _KIT:  # such as an answer format
            self.needs_kit = True
            self.imports[type(value).__name__] = f"from {'.'.join(room)} import {type(value).__name__}"
            return f"{type(value).__name__}({', '.join(self._fields(value, reward))})"
        if isinstance(value, list | tuple):
            held = [self._written(item, reward) for item in value]
            ends = "[]" if isinstance(value, list) else "()"
            return f"{ends[0]}{', '.join(held)}{',' * (len(held) == 1)}{ends[1]}"
        return self.add(value) if callable(value) else self._plain(value, reward, "a parameter")

    def _fields(self, value: Any, reward: str) -> Iterator[str]:
        for field in dataclasses.fields(value):
            held = getattr(value, field.name)
            if field.init and field.compare and not (held == field.default and type(held) is type(field.default)):
                yield f"{field.name}={self._written(held, reward)}"

    # -- the user's own ---------------------------------------------------------------------------------------------

    def _take_function(self, name: str, function: types.FunctionType, reward: str) -> str:
        """Take the source of a function, with what it uses, and return its name there."""
        if function.__code__.co_freevars:
            raise CannotLeave(
                f"the reward {reward!r} uses {', '.join(function.__code__.co_freevars)} of the function around "
                f"{function.__name__}, a closure, which cannot leave this process. Make it a default argument: "
                f"def {reward}(completions, {function.__code__.co_freevars[0]}=..., **columns)."
            )
        if function.__code__.co_name == "<lambda>":
            raise CannotLeave(
                f"the reward {reward!r} is or uses a lambda, whose source is no statement. Write it with def."
            )
        source = _source(function, reward)
        tree = ast.parse(source).body[0]
        if self._is_taken(tree.name, function, reward):
            return tree.name
        self._take_imports(tree, reward)
        outside = [*tree.decorator_list, *tree.args.defaults, *(d for d in tree.args.kw_defaults if d is not None)]
        used = {node.id for part in outside for node in ast.walk(part) if isinstance(node, ast.Name)}
        self._take_used(used | globals_used(function.__code__), function.__globals__, reward)
        if function.__name__ != tree.name:  # what it is called in curves
            source += f"\n\n\n{tree.name}.__name__ = {function.__name__!r}"
        self.parts[tree.name] = source
        return tree.name

    def _take_class(self, kind: type, reward: str) -> str:
        source = _source(kind, reward)
        if not self._is_taken(kind.__name__, kind, reward):
            tree = ast.parse(source)
            self._take_imports(tree, reward)
            used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
            self._take_used(used, vars(sys.modules[kind.__module__]), reward)
            self.parts[kind.__name__] = source
        return kind.__name__

    def _take_imports(self, tree: ast.AST, reward: str) -> None:
        """Note what is imported inside, which the source brings along by itself, if it was needed here."""
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                names = ["." * node.level + (node.module or "")] if isinstance(node, ast.ImportFrom) else []
            for module in names:
                if module in sys.modules or module.startswith("."):
                    self._require(module, reward)

    def _take_used(self, names: set[str], held: dict[str, Any], reward: str) -> None:
        for name in sorted(names):
            if name in held and not (hasattr(builtins, name) and held[name] is getattr(builtins, name)):
                self._take(name, held[name], reward)

    def _take(self, name: str, value: Any, reward: str) -> None:
        """Take what a function knows under a name."""
        if isinstance(value, functools._lru_cache_wrapper):  # its source has the decorator
            value = value.__wrapped__
        module = getattr(value, "__module__", None)
        if isinstance(value, types.ModuleType):
            self._import(name, value.__name__, f"import {value.__name__}", reward, value)
        elif isinstance(value, Reward | AnswerFormat):
            self._define(name, value, self._written(value, reward), reward)
        elif isinstance(value, types.FunctionType | type) and is_own_module(module):
            is_class = isinstance(value, type)
            taken = self._take_class(value, reward) if is_class else self._take_function(name, value, reward)
            if taken != name:
                self._define(name, value, taken, reward)
        elif module is not None and getattr(sys.modules.get(module), getattr(value, "__name__", ""), None) is value:
            self._import(name, module, f"from {module} import {value.__name__}", reward, value)
        elif isinstance(value, re.Pattern):
            self._import("re", "re", "import re", reward, re)
            self._define(name, value, f"re.compile({value.pattern!r}, {int(value.flags)})", reward)
        else:
            self._define(name, value, self._plain(value, reward, name), reward)

    def _import(self, name: str, module: str, line: str, reward: str, value: Any) -> None:
        self._require(module, reward)
        if not self._is_taken(name, value, reward):
            self.imports[name] = line if line.split()[-1] == name else f"{line} as {name}"

    def _require(self, module: str, reward: str) -> None:
        """Note the package of a module."""
        if is_own_module(module):
            raise CannotLeave(
                f"the reward {reward!r} uses the module {module}, a file of your own that is not there elsewhere. Import "
                f"what is used of it outside of functions, and it goes with the reward: from {module} import NAME."
            )
        self._packages.add(module.partition(".")[0])
        self.needs_kit |= module.partition(".")[0] == _KIT

    def _define(self, name: str, value: Any, code: str, reward: str) -> None:
        if not self._is_taken(name, value, reward):
            self.parts[name] = f"{name} = {code}"

    def _is_taken(self, name: str, value: Any, reward: str) -> bool:
        """Whether it is there already, under its name."""
        if name in self._held and self._held[name] is not value:
            raise CannotLeave(
                f"the reward {reward!r} uses another {name!r} than rewards.py has already: rename one of the two."
            )
        is_known = name in self._held
        self._held[name] = value
        return is_known

    def _plain(self, value: Any, reward: str, name: str) -> str:
        """Code for plain data."""
        code = repr(value)
        try:
            is_plain = len(code) <= _LONGEST and _is_same(ast.literal_eval(code), value)
        except (ValueError, SyntaxError, RecursionError, MemoryError):
            is_plain = False
        if not is_plain:
            raise CannotLeave(
                f"the reward {reward!r} uses {name}, {shorten(code, 60)} of the kind {type(value).__name__}, which lives in "
                f"this process only. Write the numbers or texts that it needs into a constant: {name.upper()} = ..."
            )
        return code


def _is_same(read: Any, value: Any) -> bool:
    return type(read) is type(value) and read == value


def _source(made: Any, reward: str) -> str:
    try:
        return textwrap.dedent(inspect.getsource(made)).rstrip()
    except (OSError, TypeError) as error:
        raise CannotLeave(
            f"the reward {reward!r} uses {made.__name__}, whose source is not known here ({error}). Define it in a cell or a "
            "file, and train or open the run again."
        ) from error
