"""Tools that a model may call before it answers, and the environments whose methods are tools.

TRL (tested with 1.15) calls the tools. An episode is what happens for one completion: the model's
messages and the results of its tools. A message is a dict with `role` and `content`, as in
transformers.
"""

from __future__ import annotations

import copy
import functools
import inspect
import itertools
import pickle
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.core.deadlines import run_with_deadline
from grpo_nb.core.words import require_number, require_whole_number, short_repr
from grpo_nb.tasks.prompts import Chat
from grpo_nb.tasks.read_rows import Row

Tool = Callable[..., Any]
# Number of starts that are compared. Of environments that toss a coin, 1 in 128 is missed.
_TRIAL_STARTS = 8


@dataclass(frozen=True)
class Tools:
    """The tools of a task, and the limits of an episode, as `Task.with_tools` describes them."""

    functions: tuple[Tool, ...]
    environment: type | None
    rounds: int
    seconds_per_call: float

    def __post_init__(self) -> None:
        require_whole_number("rounds", self.rounds, 1)
        require_number("seconds_per_call", self.seconds_per_call, 0.01)
        if not isinstance(self.environment, type | None):
            raise TypeError(
                f"environment = {short_repr(self.environment)} is not a class. Each completion "
                "needs an object of its own: write environment=Game, not environment=Game()."
            )
        # TRL adds the result of `get_reward` after the weighted rewards.
        if hasattr(self.environment, "get_reward"):
            raise ValueError(
                "TRL would add get_reward of the environment to the score, unweighted and "
                "unlogged. Rename it, for example _won (a public method would be a tool), and "
                "write a reward: "
                "def won(environments, **_): return [float(e._won()) for e in environments]."
            )
        if self.environment is not None and not hasattr(self.environment, "reset"):
            raise ValueError(
                "the environment has no method reset(self, **row), which starts an episode: write "
                "one, even if it does nothing."
            )
        for tool in (*self.functions, *self._methods.values()):
            if not hasattr(tool, "__name__"):
                raise TypeError(
                    f"the tool {short_repr(tool)} has no name, by which the model could call it: "
                    "write a function with def."
                )
            # An async tool would return a coroutine that nobody awaits.
            if inspect.iscoroutinefunction(tool):
                raise ValueError(f"the tool {tool.__name__} is async: write it with def alone.")
        if len(set(self.names)) < len(self.names):
            raise ValueError(
                f"two tools have the same name: {self.names}. The model calls a tool by its name, "
                "so rename one of them."
            )
        if not self.names:
            raise ValueError(
                "there is no tool: pass a function, or give the environment a public method, whose "
                "name does not begin with _."
            )

    @property
    def _methods(self) -> dict[str, Tool]:
        """The environment's public methods, as TRL finds them; none without an environment."""
        if self.environment is None:
            return {}
        methods = dict(inspect.getmembers(self.environment, inspect.isfunction))
        return {name: methods[name] for name in methods if name != "reset" and name[0] != "_"}

    @functools.cached_property
    def environment_factory(self) -> type | None:
        """The environment as a class whose `reset` starts each episode with a fresh object.

        TRL reuses objects. Without this class, attributes of the last completion would remain where
        the environment's own `reset` does not set them. The row is copied, because a list that one
        episode has emptied would be empty for the next.
        """
        environment = self.environment
        if environment is None:
            return None

        def reset(self: Any, **row: Any) -> str | None:
            # As in a new object: no attributes but those that `__init__` sets.
            vars(self).clear()
            self.__init__()
            return environment.reset(self, **copy.deepcopy(row))

        return type(environment.__name__, (environment,), {"reset": reset})

    def as_called_by_model(self, tool: Tool) -> Tool:
        """Return a tool as the model calls it: in limited time, with a result that is text.

        The time limit does not hold when the environment or a reward calls the same method.
        """

        @functools.wraps(tool)
        def call(**arguments: Any) -> str:
            return str(run_with_deadline(lambda: tool(**arguments), self.seconds_per_call))

        return call

    def for_episode(self, instance: Any = None) -> list[Tool]:
        """Return the tools of one episode, with the methods of its object of the environment."""
        methods = [getattr(instance, name) for name in self._methods]
        return [self.as_called_by_model(tool) for tool in (*self.functions, *methods)]

    @functools.cached_property
    def schemas(self) -> list[dict[str, Any]]:
        """JSON schemas of the tools, for the chat template."""
        # Imported here, because unsloth has to be imported before transformers.
        from transformers.utils import get_json_schema

        # The methods of an object, because those of a class would have `self` as an argument.
        instance = self.environment_factory() if self.environment is not None else None
        return [get_json_schema(tool) for tool in self.for_episode(instance)]

    @property
    def names(self) -> list[str]:
        """The names that the model calls."""
        return [tool.__name__ for tool in (*self.functions, *self._methods.values())]

    def start_episode(self, row: Row) -> Row:
        """Start an episode, and return its row.

        With an environment, the prompt ends with the text that its `reset` returns, and the row has
        the new object in the column `environments`. TRL gives rewards the column of that name.
        """
        # A copy, because the text of `reset` is added below.
        prompt = [dict(message) for message in row["prompt"]]
        started = {**row, "prompt": prompt}
        if self.environment is not None:
            instance = self.environment_factory()
            prompt[-1]["content"] += instance.reset(**row) or ""
            started["environments"] = instance
        return started

    def require_repeatable(self, row: Row) -> None:
        """Refuse an environment whose start from the same row is random.

        With such an environment, the completions of a group would play different games.

        Raises:
            ValueError: The prompt or an attribute of the environment was different.
        """
        if self.environment is None:
            return
        states = []
        for _ in range(_TRIAL_STARTS):
            started = self.start_episode(row)
            state = {"the prompt": started["prompt"], **vars(started["environments"])}
            states.append({name: _pickled_or_empty(value) for name, value in state.items()})
        names = dict.fromkeys(itertools.chain(*states))
        different = [name for name in names if len({state.get(name) for state in states}) > 1]
        if different:
            raise ValueError(
                f"{self.environment.__name__}.reset started from the same row with different "
                f"values of {' and '.join(different)}: completions of a group would play different "
                "games, and advantages would be luck. Take what is random from the row: a column "
                "for it, or random.Random(row['question']). Make what is no part of the game, such "
                "as a temporary folder or the time, when a tool is first called."
            )


def _pickled_or_empty(value: Any) -> bytes:
    """Return a pickled value, to compare it; empty if it cannot be pickled, such as a lock."""
    try:
        return pickle.dumps(value)
    except Exception:  # pickle raises errors of any class
        return b""


# Episodes as text.


def final_text(messages: Chat) -> str:
    """Return the text of an episode's last message; empty if that is a tool result."""
    last = messages[-1] if messages else {}
    if last.get("role") == "tool":
        return ""
    return last.get("content") or ""


def transcript(messages: Chat) -> str:
    """Return an episode as text: the model's texts and calls, and tool results after an arrow.

    >>> call = {"function": {"name": "read", "arguments": {"place": "mill"}}}
    >>> messages = [{"role": "assistant", "content": "", "tool_calls": [call]},
    ...             {"role": "tool", "content": "7"}]
    >>> transcript(messages)
    'read(place=mill)\\n→ 7'
    """
    lines = []
    for message in messages:
        content = str(message.get("content") or "")
        if message.get("role") == "tool":
            lines.append(f"→ {content}")
        elif content:
            lines.append(content)
        for tool_call in message.get("tool_calls") or ():
            function = tool_call["function"]
            arguments = function["arguments"]
            # If a model writes arguments without names, they are not a dict. TRL has then already
            # told the model that the call failed.
            if isinstance(arguments, Mapping):
                arguments = ", ".join(f"{name}={value}" for name, value in arguments.items())
            lines.append(f"{function['name']}({arguments})")
    return "\n".join(lines)
