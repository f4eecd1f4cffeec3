"""Arguments of a wrong type are named with the line to write; tests/test_public_arguments.py
tries the same at each public function.
"""

from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_nb.core.argument_types import describe_value, require

MODEL = SimpleNamespace(generate=None, parameters=None)
TOKENIZER = SimpleNamespace(apply_chat_template=None)
CALL = "gn.score(rewards, completions, rows)"


class TrainingArguments:
    """Stand-in for the base class of TRL's configurations."""


class GRPOConfig(TrainingArguments):
    """A configuration whose `repr` fails, as that of an incomplete one does."""

    def __repr__(self) -> str:
        raise AttributeError("this object is not complete")


def length_reward(completions: list, **columns: object) -> list[float]:
    return [float(len(completion)) for completion in completions]


@pytest.mark.parametrize(
    ("value", "words"),
    [
        pytest.param(None, "None", id="none"),
        pytest.param("correctness", "'correctness' (str)", id="text"),
        pytest.param(Path("runs"), "a path", id="path"),
        pytest.param(3, "3 (int)", id="number"),
        pytest.param({"a": 1}, "a dict", id="dict"),
        pytest.param([], "a list", id="empty list"),
        pytest.param([1, 2], "a list", id="numbers"),
        pytest.param([length_reward], "a list", id="rewards"),
        pytest.param(length_reward, "a function length_reward", id="function"),
        pytest.param(GRPOConfig, "a class GRPOConfig", id="class"),
        pytest.param(GRPOConfig(), "a configuration of TRL", id="configuration of TRL"),
        pytest.param(MODEL, "a model", id="model"),
        pytest.param(TOKENIZER, "a tokenizer", id="tokenizer"),
        pytest.param((MODEL, TOKENIZER), "a list", id="pair"),
    ],
)
def test_describe_value_names_the_kind_of_value(value: object, words: str) -> None:
    assert describe_value(value) == words


def test_require_accepts_right_arguments() -> None:
    require(CALL, rewards=[length_reward], completions=["7"], rows=[{"answer": "7"}])


@pytest.mark.parametrize("argument", ["model", "tokenizer"])
def test_require_accepts_a_stand_in(argument: str) -> None:
    require("gn.train(...)", **{argument: SimpleNamespace()})


def test_require_wrong_type_names_value_and_line() -> None:
    message = (
        r"run = 3 \(int\), but gn.ask\(run, questions\) takes a run or its folder\. Write run = "
    )
    with pytest.raises(TypeError, match=message):
        require("gn.ask(run, questions)", run=3)


def test_require_does_not_ask_a_large_object_for_its_text() -> None:
    with pytest.raises(TypeError, match=r"settings = a configuration of TRL, but"):
        require("gn.plan(settings)", settings=GRPOConfig())


def test_require_optional_argument_can_be_none() -> None:
    require("gn.load_model(settings)", optional=("adapter",), adapter=None)


def test_require_none_is_refused_for_other_arguments() -> None:
    with pytest.raises(TypeError, match="adapter = None"):
        require("gn.load_model(settings)", adapter=None)


def test_require_uses_the_role_of_an_argument() -> None:
    with pytest.raises(TypeError, match=r"path = 3 .*takes a run or its folder"):
        require("gn.open_run(path)", roles={"path": "run"}, path=3)
