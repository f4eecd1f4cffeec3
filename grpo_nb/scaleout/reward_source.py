"""Write reward functions as source code that runs without the notebook.

A reward of the kit becomes the call that makes it. A function of the user becomes its source, after
the imports, constants, functions and classes that it uses. `writing.py` then runs the result in a
fresh process, which shows missing names and files.
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
from pathlib import Path, PurePath
from typing import Any

from grpo_nb import __version__
from grpo_nb.core.pages import render
from grpo_nb.core.words import in_line
from grpo_nb.rewards.base import Reward, reward_name
from grpo_nb.rewards.judge_model import judge

#: The name `grpo_nb`.
THIS_PACKAGE = __name__.partition(".")[0]


class NotPortable(ValueError):
    """Raised if a reward cannot run outside of this process; the message says what to change."""


def write_rewards(folder: Path, run_name: str, rewards: Sequence[Callable[..., Any]]) -> bool:
    """Write rewards.py, and a copy of the kit if a reward needs it; return whether one does.

    Raises:
        NotPortable: A reward holds something that exists in this process only.
    """
    source = RewardSource()
    expressions = [source.add(reward) for reward in rewards]
    imports = sorted(set(source.imports.values()))
    definitions = source.definitions.values()
    # A function may also import the kit in its body.
    import_of_kit = re.compile(rf"^\s*(from|import) {THIS_PACKAGE}\b", re.MULTILINE)
    needs_kit = any(import_of_kit.search(part) for part in [*imports, *definitions])
    text = render(
        "scaleout/templates/rewards.py.jinja",
        run_name=run_name,
        version=__version__,
        imports=imports,
        definitions=definitions,
        rewards=expressions,
        needs_kit=needs_kit,
    )
    (folder / "rewards.py").write_text(text, "utf-8")
    if needs_kit:
        package = Path(__file__).resolve().parents[1]
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(package, folder / "kit" / THIS_PACKAGE, ignore=ignored)
    return needs_kit


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
        if not isinstance(reward, Reward | types.FunctionType):
            raise NotPortable(
                f"the reward {name!r} is not a function, so its source cannot be written. Define "
                "it as def NAME(completions, **columns)."
            )
        return self._expression(reward, name)

    def _expression(self, value: Any, name: str) -> str:
        """Return code that makes a value: a reward of the kit, a function, or plain data."""
        if dataclasses.is_dataclass(value):
            cls = type(value)
            self._define_global(cls.__name__, cls)
            arguments = []
            for field in dataclasses.fields(value):
                field_value = getattr(value, field.name)
                # Fields that are not compared are state, such as caches, and start empty there.
                if field.init and field.compare and field_value != field.default:
                    argument = self._expression(field_value, field.name)
                    arguments.append(f"{field.name}={argument}")
            return f"{cls.__name__}({', '.join(arguments)})"
        if isinstance(value, types.FunctionType):
            self._define_global(value.__name__, value)
            return value.__name__
        if isinstance(value, re.Pattern):
            # repr() would shorten a long pattern.
            self.imports["re"] = "import re"
            return f"re.compile({value.pattern!r}, {int(value.flags)})"
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

    def _define_global(self, name: str, value: Any) -> None:
        """Collect the import, source or constant that defines a global name."""
        module = getattr(value, "__module__", None) or ""
        defined_name = getattr(value, "__name__", "")
        # Unwrap first: getsource then includes decorators such as lru_cache.
        unwrapped = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.ModuleType):
            self._add_import(name, f"import {defined_name}")
        elif isinstance(unwrapped, types.FunctionType | type) and is_user_module(module):
            self._add_source(unwrapped)
            if name != unwrapped.__name__:
                self.definitions[name] = f"{name} = {unwrapped.__name__}"
        elif defined_name and getattr(sys.modules.get(module), defined_name, None) is value:
            self._add_import(name, f"from {module} import {defined_name}")
        elif name not in self.definitions:
            self.definitions[name] = f"{name} = {self._expression(value, name)}"

    def _add_import(self, name: str, line: str) -> None:
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
            self._define_global(used_name, namespace[used_name])
        # Put it last, after what it uses.
        del self.definitions[name]
        self.definitions[name] = source


def is_user_module(module: str) -> bool:
    """Return whether a module is a notebook, or a file that is neither installed nor the kit's."""
    package = module.partition(".")[0]
    if package in ("", "__main__"):
        return True
    if package == THIS_PACKAGE or package in sys.stdlib_module_names:
        return False
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    # Debian's own Python installs packages into dist-packages.
    return not {"site-packages", "dist-packages"} & set(PurePath(file).parts)


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
