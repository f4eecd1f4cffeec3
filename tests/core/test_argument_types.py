"""Arguments of a wrong type are named with the line to write; tests/test_public_arguments.py
tries the same at each public function.
"""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest

from grpo_nb.core.argument_types import require_types

MODEL = SimpleNamespace(generate=None)
TOKENIZER = SimpleNamespace(apply_chat_template=None)


class GRPOConfig:
    """A configuration whose `repr` fails, as that of an incomplete one does."""

    def __repr__(self) -> str:
        raise AttributeError("this object is not complete")


def test_require_accepts_a_stand_in() -> None:
    require_types("gn.train(...)", model=MODEL, tokenizer=TOKENIZER)


def test_require_wrong_type_names_type_and_line() -> None:
    message = (
        r"run is of type int, but gn.ask\(run, questions\) takes a run or its folder\. Write run = "
    )
    with pytest.raises(TypeError, match=message):
        require_types("gn.ask(run, questions)", run=3)


def test_require_example_does_not_name_another_function() -> None:
    with pytest.raises(TypeError, match=r"takes a run, .* Write \(model, tokenizer\)\."):
        require_types("gn.compare(run_or_model)", run_or_model=3)


def test_require_does_not_ask_a_large_object_for_its_text() -> None:
    with pytest.raises(TypeError, match=r"settings is of type GRPOConfig, but"):
        require_types("gn.plan(settings)", settings=GRPOConfig())


def test_require_refuses_an_object_with_every_attribute() -> None:
    require_types("gn.train(...)", model=MagicMock())
    with pytest.raises(TypeError, match="settings is of type MagicMock, but"):
        require_types("gn.plan(settings)", settings=MagicMock())


def test_require_optional_argument_can_be_none() -> None:
    require_types("gn.plan(settings)", optional=("task",), task=None)


def test_require_none_is_refused_for_other_arguments() -> None:
    with pytest.raises(TypeError, match="task is of type NoneType"):
        require_types("gn.plan(settings)", task=None)
