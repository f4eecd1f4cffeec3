"""What a model may do before it answers: call tools, or act in an environment whose methods are tools. TRL 1.15 calls them."""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.deadlines import run_with_deadline
from grpo_nb.core.words import in_line, require_number

Tool = Callable[..., Any]
_CONSTANTS = (str, bool, int, float, tuple, list, dict, type(None))
_NO_IMAGES = "gives an image: tools of this kit give text. Have it describe what is to be seen."
_HOW = "Write types for its arguments, and a docstring that says what it does and, below 'Args:', what each argument is."
# How `repr` ends for an object without one of its own.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


class _Refused(BaseException):
    """Not an Exception: those of a tool TRL tells to the model as the tool's answer, and goes on."""


@contextlib.contextmanager
def refusing() -> Iterator[None]:
    """Around what calls tools: what no training could use ends it, as a `ValueError`, while what a tool raises does not."""
    try:
        yield
    except _Refused as refused:
        raise ValueError(str(refused)) from None


@dataclass(frozen=True)
class Tools:
    """The tools of a task: functions, an environment with an object for each completion, and how much an episode may do."""

    functions: tuple[Tool, ...] = ()
    environment: type | None = None
    rounds: int = 8
    """Of calls, each after the answers to those before."""
    seconds_per_call: float = 10.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "functions", tuple(map(_as_function, self.functions)))
        require_number("rounds", self.rounds, 1)
        require_number("seconds_per_call", self.seconds_per_call, 0.01, is_whole=False)
        kind = self.environment
        if isinstance(kind, (Mapping, Sequence)):
            raise ValueError(
                "several environments in one task are not supported: make a task of each, and train them in turn."
            )
        if kind is not None and not (isinstance(kind, type) and hasattr(kind, "reset")):
            raise TypeError(
                f"environment = {in_line(kind)} must be a class, as each completion plays in an object of its own, with "
                "def reset(self, **row), which begins an episode and is given the columns of the row."
            )
        if hasattr(kind, "get_reward"):  # TRL adds it behind the rewards that have weights
            raise ValueError(
                f"{kind.__name__}.get_reward would be paid without weight, check or column. Name it _won and pay it by a "
                "reward: def won(environments, **_): return [float(e._won()) for e in environments]."
            )
        every = [*self.functions, *self._methods.values()]
        if (
            not every
            or not all(map(callable, every))
            or any(map(inspect.iscoroutinefunction, every))
        ):
            raise ValueError(
                "there is no tool, or one that is async: give functions, or methods without _, written with def."
            )
        names = [tool.__name__ for tool in every]
        if twice := {name for name in names if names.count(name) > 1}:
            raise ValueError(
                f"two tools are called {min(twice)!r}, and a model could call only one of them."
            )
        for tool in every:
            if missing := _undescribed(tool):
                raise ValueError(
                    f"a tool cannot be described to the model: {tool.__name__} has no {missing}. {_HOW}"
                )

    @property
    def _methods(self) -> dict[str, Tool]:
        """The public methods of the environment, as TRL finds them."""
        held = (
            inspect.getmembers(self.environment, inspect.isfunction)
            if self.environment is not None
            else []
        )
        return {
            name: method for name, method in held if name != "reset" and not name.startswith("_")
        }

    @property
    def identity(self) -> list[str]:
        """What makes these tools others: sources, as far as known, what a model is told of them, constants of the class."""
        own = (
            [held for _, held in inspect.getmembers(self.environment, inspect.isfunction)]
            if self.environment
            else []
        )
        held = vars(self.environment) if self.environment else {}
        return [
            str(self.rounds),
            *(
                f"{f.__name__}{inspect.signature(f)} {f.__doc__} {_source_of(f)}"
                for f in (*self.functions, *own)
            ),
            *(
                f"{f.__name__} {f.arguments_set}"
                for f in self.functions
                if hasattr(f, "arguments_set")
            ),
            *(
                f"{name} = {held[name]!r}"
                for name in held
                if isinstance(held[name], _CONSTANTS) and name[:2] != "__"
            ),
        ]

    @functools.cached_property
    def fresh_environment(self) -> type | None:
        """The environment, each episode of it with nothing left of the one before, and with a row of its own.

        TRL takes an object again for a later completion, and what `reset` forgets would be there still; and where a question is
        asked several times, a list that an episode has emptied would be empty for the next.
        """
        kind = self.environment
        if kind is None:
            return None

        def reset(self: Any, **row: Any) -> str | None:
            vars(self).clear()
            self.__init__()
            said = kind.reset(self, **copy.deepcopy(row))
            if said is not None and not isinstance(said, str):
                raise ValueError(
                    f"{kind.__name__}.reset returned {in_line(said)}: a text for the prompt, or None."
                )
            return said

        return type(
            kind.__name__,
            (kind,),
            {"reset": reset, "__doc__": kind.__doc__, "__module__": kind.__module__},
        )

    def limited(self, tool: Tool) -> Tool:
        """A tool as the model calls it, under the time limit. Environment and rewards call methods as they were written."""
        return _limited(tool, self.seconds_per_call)

    def of(self, environment: Any = None) -> list[Tool]:
        """The tools of one episode as the model calls them, in which it plays in this environment."""
        return [
            *map(
                self.limited,
                (*self.functions, *(getattr(environment, name) for name in self._methods)),
            )
        ]

    @functools.cached_property
    def schemas(self) -> list[dict[str, Any]]:
        """The tools as a chat template takes them."""
        from transformers.utils import (
            get_json_schema,  # when a model is there, and with it unsloth, which comes before
        )

        return [
            get_json_schema(tool) for tool in self.of(self.environment and self.fresh_environment())
        ]

    def begin(self, row: Mapping[str, Any]) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        """Begin an episode: the prompt with what the environment says at first, and the environment as a column of rewards."""
        prompt = [dict(turn) for turn in row["prompt"]]
        if self.environment is None:
            return prompt, {}
        environment = self.fresh_environment()
        prompt[-1]["content"] += environment.reset(**row) or ""
        return prompt, {"environments": environment}

    def require_repeatable(self, row: Mapping[str, Any]) -> None:
        """Refuse an environment that begins a row otherwise each time: the completions of a group would play different games.

        Raises:
            ValueError: It does; the message names what was different.
        """
        if self.environment is None:
            return
        (first, one), (second, other) = self.begin(row), self.begin(row)
        held, again = ({"what it says": said[-1]["content"], **vars(each["environments"])}
                       for said, each in ((first, one), (second, other)))  # fmt: skip
        for name, value in held.items():
            if not _is_same(value, again.get(name)):
                raise ValueError(
                    f"{self.environment.__name__}.reset began one row twice, and {name} was {in_line(value)}, then "
                    f"{in_line(again.get(name))}: completions of a group would play different games, and advantages would be "
                    "luck. Take what is drawn from the row: a column for it, or random.Random(row['question'])."
                )


def _as_function(tool: Tool) -> Tool:
    """Return a `functools.partial` as the function that a model can call: with a name, and without what is set already.

    Raises:
        TypeError: An object without a name, such as an instance with `__call__`.
    """
    if isinstance(tool, functools.partial):
        return _function_of_partial(tool)
    if callable(tool) and not hasattr(tool, "__name__"):
        name = type(tool).__name__
        raise TypeError(
            f"the tool {in_line(tool)} has no name for the model to call: give a function or a method, such as "
            f"{name.lower()}.{next((n for n in dir(tool) if not n.startswith('_')), 'look')}."
        )
    return tool


def _function_of_partial(partial: functools.partial) -> Tool:
    function = partial.func
    while isinstance(function, functools.partial):
        function = function.func
    signature = _signature_of(partial)
    free = [
        parameter
        for name, parameter in signature.parameters.items()
        if name not in partial.keywords
    ]

    @functools.wraps(function)
    def tool(*args: Any, **arguments: Any) -> Any:
        return partial(*args, **arguments)

    own = vars(partial)
    tool.__name__ = own.get("__name__", function.__name__)
    tool.__doc__ = own.get("__doc__", function.__doc__)
    names = {parameter.name for parameter in free} | {"return"}
    # Built-in functions have none.
    annotations = getattr(function, "__annotations__", {})
    tool.__annotations__ = {name: kind for name, kind in annotations.items() if name in names}
    tool.__signature__ = signature.replace(parameters=free)
    # A tool with other arguments is another one. An address is not the same in two processes.
    tool.arguments_set = _ADDRESS.sub("", f"{partial.args} {partial.keywords}")
    return tool


def _signature_of(tool: Tool) -> inspect.Signature:
    """Return the signature of a tool.

    Raises:
        TypeError: Python knows none, as for `max` and other built-in functions.
    """
    try:
        return inspect.signature(tool)
    except ValueError:
        raise TypeError(
            f"the tool {in_line(tool)} has no signature that Python can read, so the model cannot be told its arguments: "
            f"write a function that calls it. {_HOW}"
        ) from None


def _limited(tool: Tool, seconds: float) -> Tool:
    """The tool under a time limit, with the texts that it asks for: a template may read the argument "7" as a number."""

    @functools.wraps(tool)
    def call(*args: Any, **arguments: Any) -> str:
        texts = {name for name, kind in tool.__annotations__.items() if kind in (str, "str")}
        given = {name: str(value) if name in texts else value for name, value in arguments.items()}
        result = run_with_deadline(lambda: tool(*args, **given), seconds)
        parts = result if isinstance(result, (list, tuple)) else [result]
        if any(
            type(part).__module__.startswith("PIL")
            or (isinstance(part, dict) and part.get("type") == "image")
            for part in parts
        ):
            raise _Refused(f"the tool {tool.__name__} {_NO_IMAGES}")
        return str(result)

    return call


def _undescribed(tool: Tool) -> str:
    """What is missing of what the model is told of a tool; empty if nothing is."""
    if not (told := inspect.getdoc(tool)):
        return "docstring"
    taken = [p for name, p in _signature_of(tool).parameters.items() if name != "self"]
    untyped = next((f"type for {p.name}" for p in taken if p.annotation is p.empty), "")
    return untyped or next(
        (f"line for {p.name} below 'Args:'" for p in taken if f"{p.name}:" not in told), ""
    )


def _source_of(function: Tool) -> str:
    try:
        return inspect.getsource(function)
    except (OSError, TypeError):  # typed at a prompt
        return ""


def _is_same(value: Any, other: Any) -> bool:
    """Whether two values are the same, as far as can be told: by what they say of it, or else by what they hold."""
    with contextlib.suppress(Exception):  # arrays have no one truth
        if bool(value == other):
            return True
    try:
        return pickle.dumps(value) == pickle.dumps(other)
    except Exception:  # a connection, a lock
        return type(value) is type(other)
