"""Rewards as code that stands by itself: a call for one of the kit, and for the user's own the source with what it uses.

What can be written is written, and `project` tries it in a fresh process, which says what is missing there: the variables of an
outer function, a file beside the notebook. Only what has no source, or is no plain data, is refused before.
"""

import ast
import dataclasses
import dis
import importlib.metadata
import inspect
import modulefinder
import re
import sys
import textwrap
import types
from collections.abc import Callable
from pathlib import Path, PurePath
from typing import Any

from grpo_nb.core.words import in_line
from grpo_nb.rewards.base import Reward, reward_name
from grpo_nb.rewards.judge_model import judge

KIT = __name__.partition(".")[0]
ROOT = Path(__file__).resolve().parents[2]


class CannotLeave(ValueError):
    """A reward that cannot be written as code; the message names what holds it here, and what to write instead."""


class RewardsCode:
    """Collects what `rewards.py` is made of.

    Attributes:
        imports: Lines, by the names that they give.
        parts: Constants, functions and classes by name, each behind those that it uses.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.parts: dict[str, str] = {}

    def add(self, reward: Callable[..., Any]) -> str:
        """Return the expression that makes a reward.

        Args:
            reward: As a trainer takes it.

        Raises:
            CannotLeave: It holds something that is only here.
        """
        if isinstance(reward, judge):
            what = f"the judge {reward_name(reward)!r} asks through a function that may hold an address or a key"
            raise CannotLeave(
                f"{what}, and none of it is written down: train where that function is defined, with gn.train."
            )
        if isinstance(reward, Reward):
            return self._written(reward)
        if not isinstance(reward, types.FunctionType) or not reward.__name__.isidentifier():
            what = f"the reward {reward_name(reward)!r} is no function with a name of its own"
            raise CannotLeave(f"{what}: write it as def NAME(completions, **columns).")
        self._take(reward.__name__, reward)
        return reward.__name__

    def _written(self, value: Any, name: str = "a parameter") -> str:
        """Code for a reward of a class, and for what it is made of: an answer format, functions, plain data."""
        if dataclasses.is_dataclass(value):
            kind = type(value)
            self._take(kind.__name__, kind)
            given = [
                (f, getattr(value, f.name))
                for f in dataclasses.fields(value)
                if f.init and f.compare
            ]
            named = [f"{f.name}={self._written(held)}" for f, held in given if held != f.default]
            return f"{kind.__name__}({', '.join(named)})"
        if isinstance(value, types.FunctionType):
            return self.add(value)
        try:
            if ast.literal_eval(repr(value)) == value:
                return repr(value)
        except (ValueError, SyntaxError):
            pass
        raise CannotLeave(
            f"{name}, {in_line(value)} of the kind {type(value).__name__}, lives in this process only. Write the numbers or "
            f"texts that a reward needs into a constant: {name.upper().replace(' ', '_')} = ..."
        )

    def _take(self, name: str, value: Any) -> None:
        """Take what a function knows under a name."""
        module, own_name = getattr(value, "__module__", None), getattr(value, "__name__", "")
        made = (
            inspect.unwrap(value) if callable(value) else value
        )  # the source of what is cached has its decorator
        if isinstance(value, types.ModuleType):
            self._import(name, own_name, f"import {own_name}")
            if own_name == KIT:  # its rooms come with it here, and would not there
                self.imports |= {
                    f"{KIT}.{room}": f"import {KIT}.{room}" for room in ("rewards", "tasks")
                }
        elif isinstance(made, types.FunctionType | type) and is_own_module(module):
            self._take_source(made)
        elif own_name and getattr(sys.modules.get(module or ""), own_name, None) is value:
            self._import(name, module, f"from {module} import {own_name}")
        elif isinstance(value, re.Pattern):
            self.imports["re"] = "import re"
            self.parts.setdefault(
                name, f"{name} = re.compile({value.pattern!r}, {int(value.flags)})"
            )
        else:
            self.parts.setdefault(name, f"{name} = {self._written(value, name)}")

    def _take_source(self, made: Any) -> None:
        """Take a function or class as it is written, behind what it names of its notebook or file."""
        name = made.__name__
        if name in self.parts:
            return
        try:
            source = textwrap.dedent(inspect.getsource(made)).rstrip()
            used = _names_used(compile(source, name, "exec"))
        except (OSError, TypeError, SyntaxError) as error:
            raise CannotLeave(
                f"{name} has no source here that stands by itself ({error}): define it with def, in a cell or a file."
            ) from error
        held = (
            made.__globals__
            if isinstance(made, types.FunctionType)
            else vars(sys.modules[made.__module__])
        )
        self.parts[name] = ""  # should it name itself
        for other in sorted(used & held.keys()):
            self._take(other, held[other])
        del self.parts[name]  # behind what it uses
        self.parts[name] = source

    def _import(self, name: str, module: str, line: str) -> None:
        if is_own_module(module):
            raise CannotLeave(
                f"{name} is of {module}, a file of your own that is not there elsewhere. Import what is used of it, and that "
                f"goes along: from {module} import NAME."
            )
        self.imports[name] = line if line.split()[-1] == name else f"{line} as {name}"


def is_own_module(module: str | None) -> bool:
    """Whether a module is the user's own: a notebook, or a file that is neither of the kit nor installed."""
    top = (module or "__main__").partition(".")[0]
    file = getattr(sys.modules.get(module or ""), "__file__", None) or ""
    is_installed = {"site-packages", "dist-packages"} & set(PurePath(file).parts)
    return top == "__main__" or not (is_installed or top == KIT or top in sys.stdlib_module_names)


def _names_used(code: types.CodeType) -> set[str]:
    """The names that code looks up outside of itself, also in the functions and loops inside of it."""
    used = {
        step.argval
        for step in dis.get_instructions(code)
        if step.opname in ("LOAD_GLOBAL", "LOAD_NAME")
    }
    used.discard("__name__")  # which each class body looks up
    return used.union(
        *(_names_used(held) for held in code.co_consts if isinstance(held, types.CodeType))
    )


class KitFiles(modulefinder.ModuleFinder):
    """The files of the kit that a program needs, and the packages that it and they import.

    Args:
        program: rewards.py. Where it names no room, as `gn.rewards`, no `__init__.py` is needed, which would bring the whole
            room.
    """

    def __init__(self, program: Path) -> None:
        super().__init__(path=[str(ROOT)])
        imported = re.findall(
            rf"^\s*(?:from|import) ({KIT}[\w.]*)", program.read_text("utf-8"), re.M
        )
        self.has_rooms = any(hasattr(sys.modules.get(name), "__path__") for name in imported)
        self.run_script(str(program))
        found = [
            Path(module.__file__)
            for name, module in self.modules.items()
            if name != "__main__" and module.__file__
        ]
        self.files = {file / "__init__.py" if file.is_dir() else file for file in found}
        # Scripts and tables, which are started or read from beside a file.
        named = [
            (file, name)
            for file in self.files
            for name in re.findall(r'with_name\("(.+?)"\)', file.read_text())
        ]
        self.files |= {
            file.with_name(name) for file, name in named if file.with_name(name).is_file()
        }

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """Only the kit's own are followed."""
        if path is None and name != KIT:
            raise ImportError(name)
        return super().find_module(name, path, parent)

    def load_package(self, name: str, folder: str) -> Any:
        """A room, with or without its door; the door of the house stays here."""
        if self.has_rooms and name != KIT:
            return super().load_package(name, folder)
        package = self.add_module(name)
        package.__path__ = [folder]
        return package

    def requirements(self) -> list[str]:
        """The installed packages that are imported, pinned."""
        known = importlib.metadata.packages_distributions()
        found = {
            known[package][0]
            for package in {name.partition(".")[0] for name in self.badmodules} & known.keys()
        }
        return [
            f"{name}=={importlib.metadata.version(name).partition('+')[0]}"
            for name in sorted(found)
        ]
