"""Arguments of a wrong type are named with the line to write; tests/test_public_arguments.py
tries the same at each public function.
"""

from collections import OrderedDict
from pathlib import Path
from types import SimpleNamespace

import pytest

from grpo_nb.core.argument_types import described, require

MODEL = SimpleNamespace(generate=None, parameters=None)
TOKENIZER = SimpleNamespace(apply_chat_template=None)
CALL = "gn.score(rewards, completions, rows)"


class TrainingArguments:
    """Stand-in for the base class of TRL's configurations."""

    __module__ = "transformers.training_args"


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
        pytest.param("correctness", "the text 'correctness'", id="text"),
        pytest.param(Path("runs"), "a path", id="path"),
        pytest.param(3, "3 (int)", id="number"),
        pytest.param({"a": 1}, "a dict", id="dict"),
        pytest.param([], "a list", id="empty list"),
        pytest.param(["a", "b"], "a list of texts", id="texts"),
        pytest.param([1, 2], "a list", id="numbers"),
        pytest.param([OrderedDict(), OrderedDict()], "a list", id="two rows"),
        pytest.param([SimpleNamespace(), SimpleNamespace()], "a list", id="two unknown rows"),
        pytest.param([length_reward], "a list of reward functions", id="rewards"),
        pytest.param([length_reward, "a"], "a list", id="mixed list"),
        pytest.param(length_reward, "the function length_reward", id="function"),
        pytest.param(GRPOConfig, "the class GRPOConfig", id="class"),
        pytest.param(GRPOConfig(), "a GRPOConfig of TRL", id="configuration of TRL"),
        pytest.param(MODEL, "a model", id="model"),
        pytest.param(TOKENIZER, "a tokenizer", id="tokenizer"),
        pytest.param((MODEL, TOKENIZER), "a pair of model and tokenizer", id="pair"),
        pytest.param((TOKENIZER, MODEL), "a pair of model and tokenizer", id="swapped pair"),
    ],
)
def test_described_names_the_kind_of_value(value: object, words: str) -> None:
    assert described(value) == words


def test_require_accepts_right_arguments() -> None:
    require(CALL, rewards=[length_reward], completions=["7"], rows=[{"answer": "7"}])


@pytest.mark.parametrize("argument", ["model", "tokenizer"])
def test_require_accepts_a_stand_in(argument: str) -> None:
    require("gn.train(...)", **{argument: SimpleNamespace()})


def test_require_wrong_type_names_value_and_line() -> None:
    message = r"run = 3 \(int\), but gn.ask takes a run or its folder\. Write run = gn.open_run"
    with pytest.raises(TypeError, match=message):
        require("gn.ask(run, questions)", run=3)


def test_require_frequent_mistake_gives_the_reason() -> None:
    message = r"settings = a dict, .*have not been checked.*gn.preset\(\"auto\", \*\*settings\)"
    with pytest.raises(TypeError, match=message):
        require("gn.plan(settings)", settings={"max_steps": 4})


def test_require_does_not_ask_a_large_object_for_its_text() -> None:
    with pytest.raises(TypeError, match=r"settings = a GRPOConfig of TRL, .*with TRL's names"):
        require("gn.plan(settings)", settings=GRPOConfig())


def test_require_puts_the_text_into_the_line() -> None:
    with pytest.raises(TypeError, match=r"Write task = gn.load_task\('rows.csv', settings\)"):
        require("gn.plan(settings, task)", task="rows.csv")


def test_require_swapped_arguments_shows_their_order() -> None:
    message = "rewards is a list of texts and completions is a list of reward functions: .*swapped"
    with pytest.raises(TypeError, match=message):
        require(CALL, rewards=["7"], completions=[length_reward], rows={"answer": "7"})


def test_require_optional_argument_can_be_none() -> None:
    require("gn.load_model(settings)", optional=("adapter",), adapter=None)


def test_require_none_is_refused_for_other_arguments() -> None:
    with pytest.raises(TypeError, match="adapter = None"):
        require("gn.load_model(settings)", adapter=None)


def test_require_uses_the_role_of_an_argument() -> None:
    with pytest.raises(TypeError, match=r"path = 3 .*takes a run or its folder"):
        require("gn.open_run(path)", roles={"path": "run"}, path=3)
