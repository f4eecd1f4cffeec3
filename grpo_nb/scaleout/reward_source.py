"""Write reward functions as source code that runs without the notebook.

A reward of the kit becomes the call that makes it. A function of the user becomes its source, after
the imports, constants, functions and classes that it uses. `writing.py` then runs the result in a
fresh process, which shows missing names and files.
"""

import ast
import dataclasses
import importlib.util
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


def write_rewards(folder: Path, rewards: Sequence[Callable[..., Any]]) -> bool:
    """Write rewards.py, and a copy of the kit if a reward needs it; return whether one does.

    Raises:
        NotPortable: A reward holds something that exists in this process only.
    """
    source = RewardSource()
    expressions = [source.add(reward) for reward in rewards]
    imports = sorted(set(source.imports.values()))
    definitions = source.definitions.values()
    modules = imported_modules("\n".join([*imports, *definitions]))
    for module in sorted(modules):
        # A fresh process can import a file of the user if that file belongs to an editable
        # installation. The error of that process is enough for a module that nobody finds.
        package = module.partition(".")[0]
        if is_user_module(module) and _location(package) is not None:
            raise NotPortable(
                f"{module} is a file of your own, which does not exist elsewhere. Import its "
                "functions by name, outside of the reward, and their source is written along: "
                f"from {module} import NAME."
            )
    needs_kit = THIS_PACKAGE in {module.partition(".")[0] for module in modules}
    text = render(
        "scaleout/templates/rewards.py.jinja",
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
        values: What each of these names means, to notice a name with two meanings.
    """

    def __init__(self) -> None:
        self.imports: dict[str, str] = {}
        self.definitions: dict[str, str] = {}
        self.values: dict[str, Any] = {}

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
            parameters = {field.name for field in dataclasses.fields(value) if field.init}
            if parameters != inspect.signature(cls).parameters.keys():
                raise NotPortable(
                    f"{cls.__name__} has an __init__ of its own, so the arguments of {name} are "
                    "not known. Write its parameters as fields, with @dataclass above the class."
                )
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
            self._define_global("re", re)
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
        # The source of the inner function includes decorators such as lru_cache.
        unwrapped = inspect.unwrap(value) if callable(value) else value
        self._require_one_meaning(name, unwrapped)
        if isinstance(value, types.ModuleType):
            self._add_import(name, f"import {defined_name}")
        elif isinstance(unwrapped, types.FunctionType | type) and is_user_module(module):
            if unwrapped is not value and not source_of(unwrapped).startswith("@"):
                raise NotPortable(
                    f"{unwrapped.__name__} is used in a wrapper that is not part of its source. "
                    f"Write the wrapper as a decorator, above def {unwrapped.__name__}."
                )
            self._add_source(unwrapped)
            if name != unwrapped.__name__:
                self.definitions[name] = f"{name} = {unwrapped.__name__}"
        elif defined_name and getattr(sys.modules.get(module), defined_name, None) is value:
            self._add_import(name, f"from {module} import {defined_name}")
        elif name not in self.definitions:
            self.definitions[name] = f"{name} = {self._expression(value, name)}"

    def _require_one_meaning(self, name: str, value: Any) -> None:
        # The rewards of several files share the names of rewards.py.
        known = self.values.setdefault(name, value)
        if known is not value and repr(known) != repr(value):
            raise NotPortable(
                f"the rewards use two different things named {name}, and rewards.py can hold only "
                "one of them. Give one of them another name."
            )

    def _add_import(self, name: str, line: str) -> None:
        self.imports[name] = line if line.split()[-1] == name else f"{line} as {name}"

    def _add_source(self, definition: Any) -> None:
        """Collect a function or class of the user, after everything that it uses."""
        name = definition.__name__
        self._require_one_meaning(name, definition)
        if name in self.definitions:
            return
        source = source_of(definition)
        used_names = global_names(source)
        # Methods that @dataclass has written have free variables too, which no source uses.
        outer_names = sorted(used_names & free_variables(definition))
        if outer_names:
            raise NotPortable(
                f"{name} uses {', '.join(outer_names)} of the function around it, and the values "
                f"are not part of its source. Define {name} and what it uses at the top of a cell "
                "or a file."
            )
        namespace = vars(sys.modules[definition.__module__])
        _require_same_defaults(definition, source, namespace)
        self.definitions[name] = ""  # Ends the recursion of a definition that uses itself.
        for used_name in sorted(used_names & namespace.keys()):
            self._define_global(used_name, namespace[used_name])
        # Put it last, after what it uses.
        del self.definitions[name]
        self.definitions[name] = source


def source_of(definition: Any) -> str:
    """Return the source of a function or class, with its decorators.

    Raises:
        NotPortable: It has no source of its own, as a lambda or a function with a changed name.
    """
    name = definition.__name__
    code = getattr(definition, "__code__", None)
    defined_name = name if code is None else code.co_name
    # The source of a lambda is the whole line around it.
    if not name.isidentifier():
        raise NotPortable(
            f"a {name} has no name of its own, so its source cannot be written. Define it with "
            "def NAME(...)."
        )
    if name != defined_name:
        raise NotPortable(
            f"{name} was defined as {defined_name}, and its source has that name. Define it with "
            f"def {name}(...)."
        )
    try:
        source = textwrap.dedent(inspect.getsource(definition)).rstrip()
        global_names(source)
    except (OSError, TypeError, SyntaxError) as error:
        raise NotPortable(
            f"{name} has no complete source ({error}). Define it with def, in a cell or a file."
        ) from error
    return source


def _require_same_defaults(definition: Any, source: str, namespace: dict[str, Any]) -> None:
    """Raise `NotPortable` if a default such as `limit=LIMIT` names a value that has changed.

    The folder would hold the value of now, and the run was trained with the earlier one.
    """
    if not isinstance(definition, types.FunctionType):
        return
    arguments = ast.parse(source).body[0].args
    nodes = [*arguments.defaults, *filter(None, arguments.kw_defaults)]
    values = [*(definition.__defaults__ or ()), *(definition.__kwdefaults__ or {}).values()]
    for node, old_value in zip(nodes, values, strict=False):
        default_name = getattr(node, "id", None)
        # Compared as text, because a cell that ran again has made an equal value.
        if default_name in namespace and repr(namespace[default_name]) != repr(old_value):
            raise NotPortable(
                f"{definition.__name__} has the default value {in_line(old_value)}, which was "
                f"named {default_name}, and {default_name} has another value now. Write the value "
                "in place of the name."
            )


def free_variables(definition: Any) -> set[str]:
    """Return the variables of an outer function that a function, or methods of a class, can use."""
    functions = [definition, *vars(definition).values()]
    names: set[str] = set()
    for function in functions:
        if isinstance(function, types.FunctionType):
            names.update(function.__code__.co_freevars)
    return names


def is_user_module(module: str) -> bool:
    """Return whether a module is a notebook, or a file that is neither installed nor the kit's."""
    package = module.partition(".")[0]
    if package in ("", "__main__"):
        return True
    if package == THIS_PACKAGE or package in sys.stdlib_module_names:
        return False
    # Debian's own Python installs packages into dist-packages.
    location = PurePath(_location(package) or "")
    return not {"site-packages", "dist-packages"} & set(location.parts)


def _location(package: str) -> str | None:
    """Return the file of a top-level module, or the folder of one without a file; None if unknown.

    The module need not be imported yet.
    """
    try:
        spec = importlib.util.find_spec(package)
    except ValueError:
        # A module that a program has made has no spec.
        return None
    if spec is None:
        return None
    folders = list(spec.submodule_search_locations or [None])
    return spec.origin or folders[0]


def imported_modules(program: str) -> set[str]:
    """Return the modules that a program imports, also within its functions.

    >>> sorted(imported_modules("import os.path; from json import loads"))
    ['json', 'os.path']
    """
    names = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
    return names


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
