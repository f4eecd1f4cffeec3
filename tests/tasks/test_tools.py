"""Tools of a task: what is refused and why, what limits a call, what makes them others."""

from __future__ import annotations

import functools
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer
from transformers.utils.chat_template_utils import TypeHintParsingException

import grpo_nb as gn
from grpo_nb.generation.completions import GeneratedCompletion, scoring_arguments
from tests.support.village import Village, village_rows, village_task


@pytest.fixture(scope="module")
def task() -> gn.tasks.Task:
    return gn.load_task(village_rows(), holdout=4)


def read(place: str) -> str:
    """Read a note.

    Args:
        place: Where.
    """
    return repr(place)


class Named(Village):
    def get_reward(self) -> float:
        return 1.0


class Endless:
    def wait(self) -> None:
        """Wait."""


class Late(Village):
    async def wait(self) -> None:
        """Wait."""


class Dice(Village):
    def reset(self, **row: Any) -> None:
        self.number = random.random()


class Growing(Village):
    starts = 0

    def reset(self, **row: Any) -> None:
        Growing.starts += 1
        if Growing.starts % 2 == 0:
            self.gift = 1


class Rare(Village):
    starts = 0

    def reset(self, **row: Any) -> None:
        Rare.starts += 1
        self.is_lucky = Rare.starts == 3


class Loose(Village):
    def reset(self, **row: Any) -> None:
        self.drawn = random.Random()  # says nothing of itself, and is another each time


def counted(function: Callable) -> Callable:
    def wrapper(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return wrapper


class Wrapped(Village):
    @counted
    def look(self, place: str) -> str:
        """Look at a place.

        Args:
            place: Where.
        """
        return place


class Talking(Village):
    def reset(self, **row: Any) -> str:
        return f" You begin at {random.random()}."


def untyped(place):
    """Read a note.

    Args:
        place: Where.
    """


@pytest.mark.parametrize(
    ("functions", "options", "message"),
    [
        (
            [],
            {"environment": Named},
            "TRL would add get_reward of the environment to the score, unweighted and unlogged",
        ),
        ([], {"environment": Late}, "is async: write it with def"),
        ([], {"environment": Endless}, "environment has no method reset.* starts an episode"),
        ([], {"environment": Village()}, "is not a class.*write environment=Game, not"),
        ([], {"environment": Growing}, "with different values of gift: completions"),
        ([functools.partial(read, "mill")], {}, "the tool functools.partial.* has no name"),
        ([read], {"environment": Village}, "two tools have the same name: .'read', 'read'"),
        (
            [],
            {"environment": Dice},
            "Dice.reset started from the same row.* different games",
        ),
        ([], {"environment": Rare}, "with different values of is_lucky: completions"),
        ([], {"environment": Loose}, "different values of drawn:.* when a tool is first called"),
        ([], {"environment": Talking}, "with different values of the prompt: completions"),
        ([], {}, "there is no tool: pass a function"),
        ([[read]], {}, "the tool .<function read .* has no name"),
        ([read], {"rounds": 0}, "rounds = 0 must be a whole number of at least 1"),
        (
            [read],
            {"seconds_per_call": -1},
            "seconds_per_call = -1 must be a finite number of at least 0.01",
        ),
        ([read], {"seconds_per_call": None}, "seconds_per_call = None"),
    ],
)
def test_unusable_tools_are_refused(
    task: gn.tasks.Task, functions: list, options: dict, message: str
) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        task.with_tools(*functions, **options)


def test_method_that_a_decorator_renames_can_be_called(task: gn.tasks.Task) -> None:
    """TRL gives the model the name of the function that the decorator returns."""
    tools = task.with_tools(environment=Wrapped).tools
    assert tools.names == ["wrapper", "read"]
    assert tools.for_episode(Wrapped())[0](place="mill") == "mill"


def test_tool_without_types_is_refused_by_transformers(task: gn.tasks.Task) -> None:
    with pytest.raises(TypeHintParsingException, match="missing a type hint in function untyped"):
        _ = task.with_tools(untyped).tools.schemas


def test_episode_starts_with_an_empty_environment(task: gn.tasks.Task) -> None:
    class Hoarding(Village):
        def reset(self, **row: Any) -> None:
            super().reset(**row)
            self.seen = getattr(self, "seen_before", 0)

        def read(self, place: str) -> str:
            """Read the note at a place.

            Args:
                place: Where the note is.
            """
            self.seen_before = 1
            return super().read(place)

    played = task.with_tools(environment=Hoarding).tools.environment_factory()
    row = task.train[0]
    played.reset(**row)
    played.read(place=row["chain"][0])
    played.reset(**row)  # as TRL takes an object again
    assert played.seen == 0
    assert not hasattr(played, "seen_before")


def test_episode_changes_no_row_and_no_method(
    task: gn.tasks.Task,
) -> None:
    class Deck(Village):
        def draw(self) -> str:
            """Draw a place."""
            return self.chain.pop() if self._is_left() and self.is_open() else "none"

        def _is_left(self) -> bool:
            return bool(self.chain)

        def is_open(self) -> bool:
            """Tell whether the deck is open."""
            return len(self.chain) < 2

        @staticmethod
        def sign() -> int:
            """Read the sign."""
            return 7

    held = task.with_tools(environment=Deck).tools
    row = task.train[0]
    before = list(row["chain"])
    for _ in range(2):  # the second finds the deck as it was
        deck = held.start_episode(row)["environments"]
        tools = {tool.__name__: tool for tool in held.for_episode(deck)}
        assert tools["is_open"]() == str(len(before) < 2)
        assert deck.is_open() is (len(before) < 2)
        assert tools["sign"]() == "7"
        deck.chain.pop()
    assert row["chain"] == before


def test_rewards_get_the_prompt_with_the_first_text(task: gn.tasks.Task) -> None:
    class Telling(Village):
        def reset(self, **row: Any) -> str:
            super().reset(**row)
            return " You begin."

    row = task.train[0]
    started = task.with_tools(environment=Telling).start_episode(row)
    completion = GeneratedCompletion("7", is_truncated=False, row=started)
    [scored] = scoring_arguments([completion], [row])["rows"]
    assert scored["prompt"][-1]["content"] == row["prompt"][-1]["content"] + " You begin."
    assert isinstance(scored["environments"], Telling)


def test_first_text_of_environment_counts_as_prompt(embedded_folder: Path) -> None:
    class Chatty(Village):
        def reset(self, **row: Any) -> str:
            super().reset(**row)
            return " word" * 300

    tokenizer = gn.models.set_tool_template(AutoTokenizer.from_pretrained(embedded_folder))
    settings = gn.preset("cpu", max_prompt_length=256)
    task = village_task(settings, tokenizer)
    with pytest.raises(ValueError, match="prompts are longer than max_prompt_length = 256 tokens"):
        task.with_tools(environment=Chatty).without_long_prompts(tokenizer, 256)


@pytest.mark.parametrize(
    "name", ["rollout_func", "environment_factory", "tools", "max_tool_calling_iterations"]
)
def test_trl_tool_arguments_are_refused_with_with_tools(name: str) -> None:
    with pytest.raises(ValueError, match=r"task.with_tools\("):
        gn.preset("cpu", extra={name: 1})


def test_tool_call_has_a_time_limit_and_returns_text(
    task: gn.tasks.Task,
) -> None:
    def slow(place: str) -> str:
        """Read a note.

        Args:
            place: Where.
        """
        time.sleep(30)
        return place

    (limited,) = task.with_tools(slow, seconds_per_call=0.05).tools.for_episode()
    began = time.monotonic()
    with pytest.raises(TimeoutError, match=r"stopped after 0.05 s"):
        limited(place="mill")
    assert time.monotonic() - began < 5
    (reading,) = task.with_tools(read).tools.for_episode()
    assert reading(place="mill") == "'mill'"


def test_fingerprint_depends_on_the_tools(task: gn.tasks.Task) -> None:
    class Other(Village):
        def _helper(self) -> int:
            return 2

    kinds = [
        {},
        {"environment": Village},
        {"environment": Village, "rounds": 2},
        {"environment": Other},
    ]
    found = [(task.with_tools(**kind) if kind else task).fingerprint for kind in kinds]
    found.append(task.with_tools(read).fingerprint)
    assert len(set(found)) == 5
    assert found[1] == task.with_tools(environment=Village).fingerprint


def test_check_rewards_uses_a_started_environment(task: gn.tasks.Task) -> None:
    def progress(environments: list[Village], **columns: Any) -> list[float]:
        return [each.seen / len(each.chain) for each in environments]

    played = task.with_tools(environment=Village)
    report = gn.check_rewards([gn.rewards.correctness(), progress], played)
    assert report.ok, report
    assert any("progress: it scores episodes" in limit for limit in report.not_checked)

    def broken(environments: list[Village], **columns: Any) -> list[float]:
        return [each.nothing for each in environments]

    assert "raises" in {
        finding.kind for finding in gn.check_rewards(functools.partial(broken), played).findings
    }
