"""Write reward functions as source code that runs without the notebook.

A reward of the kit becomes the call that makes it. A function of the user becomes its source, after
the imports, constants, functions and classes that it uses. `writing.py` then runs the result in a
fresh process, which shows whatever is still missing.
"""

import ast
import dataclasses
import importlib.metadata
import inspect
import modulefinder
import re
import symtable
import sys
import textwrap
import types
from collections.abc import Callable, Mapping
from pathlib import Path, PurePath
from typing import Any

from grpo_nb.core.words import in_line
from grpo_nb.rewards.base import Reward, reward_name
from grpo_nb.rewards.judge_model import judge

KIT = __name__.partition(".")[0]
#: Folder that holds the kit's package.
ROOT = Path(__file__).resolve().parents[2]


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
            kind = type(value)
            self._add_global(kind.__name__, kind)
            arguments = []
            for field in dataclasses.fields(value):
                part = getattr(value, field.name)
                # Fields that are not compared are state, such as caches, and start empty there.
                if field.init and field.compare and part != field.default:
                    arguments.append(f"{field.name}={self._expression(part, field.name)}")
            return f"{kind.__name__}({', '.join(arguments)})"
        if isinstance(value, types.FunctionType):
            return self.add(value)
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
        own_name = getattr(value, "__name__", "")
        # Unwrap first: getsource then includes decorators such as lru_cache.
        original = inspect.unwrap(value) if callable(value) else value
        if isinstance(value, types.ModuleType):
            self._add_import(name, own_name, f"import {own_name}")
        elif isinstance(original, types.FunctionType | type) and is_own_module(module):
            self._add_source(original)
            if name != original.__name__:
                self.definitions[name] = f"{name} = {original.__name__}"
        elif own_name and getattr(sys.modules.get(module), own_name, None) is value:
            self._add_import(name, module, f"from {module} import {own_name}")
        elif isinstance(value, re.Pattern):
            self.imports["re"] = "import re"
            self.definitions[name] = f"{name} = re.compile({value.pattern!r}, {int(value.flags)})"
        elif name not in self.definitions:
            self.definitions[name] = f"{name} = {self._expression(value, name)}"

    def _add_import(self, name: str, module: str, line: str) -> None:
        if is_own_module(module):
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
        self._add_submodules(source, namespace)
        del self.definitions[name]
        self.definitions[name] = source

    def _add_submodules(self, source: str, namespace: Mapping[str, Any]) -> None:
        """Import the submodules that a source reaches through their package.

        `import xml` alone does not load `xml.etree.ElementTree`, and in the copied files
        `import grpo_nb` loads no subpackage.
        """
        for node in ast.walk(ast.parse(source)):
            if not isinstance(node, ast.Attribute):
                continue
            first, *parts = ast.unparse(node).split(".")
            if not isinstance(namespace.get(first), types.ModuleType):
                continue
            module = namespace[first].__name__
            for part in parts:
                module = f"{module}.{part}"
                if module in sys.modules:
                    self.imports[module] = f"import {module}"


def is_own_module(module: str) -> bool:
    """Return whether a module is a notebook, or a file that is neither installed nor the kit's."""
    top = (module or "__main__").partition(".")[0]
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    is_installed = {"site-packages", "dist-packages"} & set(PurePath(file).parts)
    return top == "__main__" or not (is_installed or top == KIT or top in sys.stdlib_module_names)


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


class KitFiles(modulefinder.ModuleFinder):
    """Files of the kit that a program imports, directly or through other files of the kit.

    The kit's own `__init__.py` is left out, because it is replaced. The `__init__.py` of a
    subpackage brings everything in it, so it is followed only if the program imports a package
    itself, as `gn.rewards` does.

    Attributes:
        files: The files, also scripts and tables that a module opens next to its own file. Empty if
            the program imports nothing of the kit.
    """

    def __init__(self, program: Path) -> None:
        super().__init__(path=[str(ROOT)])
        text = program.read_text("utf-8")
        imported = re.findall(rf"^ *(?:import|from) ({KIT}[.\w]*)", text, re.MULTILINE)
        self._follows_init = any(hasattr(sys.modules.get(name), "__path__") for name in imported)
        self.run_script(str(program))
        self.files: set[Path] = set()
        for name, module in self.modules.items():
            if name == "__main__" or not module.__file__:
                continue
            file = Path(module.__file__)
            self.files.add(file / "__init__.py" if file.is_dir() else file)
        for file in list(self.files):
            for name in re.findall(r'with_name\("(.+?)"\)', file.read_text("utf-8")):
                if file.with_name(name).is_file():
                    self.files.add(file.with_name(name))

    def find_module(self, name: str, path: Any, parent: Any = None) -> Any:
        """Find a module of the kit; other modules count as missing and end up in `badmodules`."""
        if path is None and name != KIT:
            raise ImportError(name)
        return super().find_module(name, path, parent)

    def load_package(self, name: str, folder: str) -> Any:
        """Load a package, without its `__init__.py` unless that is followed."""
        if self._follows_init and name != KIT:
            return super().load_package(name, folder)
        package = self.add_module(name)
        package.__path__ = [folder]
        return package

    def requirements(self) -> list[str]:
        """Return the installed packages that these files import, pinned to their versions."""
        installed = importlib.metadata.packages_distributions()
        imported = {name.partition(".")[0] for name in self.badmodules}
        names = sorted({installed[package][0] for package in imported & installed.keys()})
        pins = []
        for name in names:
            # A local version such as 2.9.1+cpu is not on the package index.
            pins.append(f"{name}=={importlib.metadata.version(name).partition('+')[0]}")
        return pins
