"""Every reward pays for what it says and for nothing else, on strings and on chat messages; none raises on any text."""

import dataclasses
import functools
import html
import inspect
import math
import pickle
import pydoc
import re
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.trainer.utils import get_callable_name

import grpo_nb as gn
from grpo_nb.rewards import base
from grpo_nb.rewards.answers import correctness, is_same_answer
from grpo_nb.rewards.form import xml_format, xml_tags
from grpo_nb.tasks import formats
from grpo_nb.tasks.notation import parse_number
from tests.rewards import cases

REWARDS = [correctness(), xml_format(), xml_tags()]
# Code needs a sandbox: tests/rewards/test_code.py.
TABLES = {kind: table for kind, table in cases.TABLES.items() if kind != "code_tests"}
EVERY = [reward for reward, _ in TABLES.values()]


@pytest.mark.parametrize(
    ("given_answer", "gold", "same"),
    [
        ("42", "42", True), (" 42 ", "42", True), ("42.0", "42", True), ("+42", "42", True), ("42.", "42", True),
        ("1,234", "1234", True), ("$1,234.50", "1234.5", True), ("-7", "-7", True), ("\u22127", "-7", True),
        (".5", "0.5", True),
        ("41 = 42", "42", False), ("42 is wrong", "42", False), ("41 or 42", "42", False), ("42 43", "42", False),
        ("0 1 2 42", "42", False), ("1,23", "123", False), ("4 2", "42", False), ("x", "42", False), ("", "42", False),
        ("\u0664\u0662", "42", True), ("4" * 5000, "42", False), ("NaN", "42", False), ("-", "42", False), (".", "42", False),
        ("Paris", "paris", True), ("New  York", "new york", True), ("London", "Paris", False),
    ],
)  # fmt: skip
def test_same_answer(given_answer: str, gold: str, same: bool) -> None:
    assert is_same_answer(given_answer, gold) is same


def test_only_the_answer_slot_counts() -> None:
    texts = [
        "<answer>7</answer>",
        "7",
        "7 <answer>8</answer>",
        "<answer>8</answer> no, <answer>7</answer>",
        "<reasoning>7</reasoning>",
        "<answer>the answer is 7</answer>",
    ]
    assert correctness()(completions=texts, answer=["7"] * len(texts)) == [1, 0, 0, 0, 0, 0]


def test_strings_and_chat_messages_score_alike() -> None:
    texts = ["<reasoning>r</reasoning><answer>7</answer>", "7", ""]
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    for reward in REWARDS:
        assert reward(completions=texts, answer=["7"] * 3) == reward(completions=chats, answer=["7"] * 3)


def test_other_formats() -> None:
    assert correctness(format=formats.boxed())(completions=[r"so \boxed{7}"], answer=["7"]) == [1.0]
    assert correctness(format=formats.hashes())(completions=["so\n#### 7"], answer=["7"]) == [1.0]


def test_a_missing_column_says_what_to_write() -> None:
    with pytest.raises(ValueError, match=r"'right' needs the data column 'solution'.*write correctness\(column="):
        correctness(column="solution", name="right")(completions=["7"], answer=["7"])


@pytest.mark.parametrize("reward", REWARDS, ids=lambda r: r.__name__)
def test_a_format_by_its_name_is_told_when_the_reward_is_made(reward) -> None:
    with pytest.raises(
        ValueError, match=r"format = 'boxed' must be an answer format.*write format=gn\.tasks\.boxed\(\)"
    ):
        type(reward)(format="boxed")


@pytest.mark.parametrize("reward", REWARDS, ids=lambda r: r.__name__)
def test_named_and_weighted(reward) -> None:
    assert type(reward)(weight=3.0, name="other").__name__ == "other"
    with pytest.raises(ValueError, match="finite"):
        type(reward)(weight=math.nan)


@pytest.mark.parametrize(
    ("reward", "case"),
    [
        pytest.param(reward, case, id=f"{kind}: {case.label}")
        for kind, (reward, listed) in TABLES.items()
        for case in listed
    ],
)
def test_cases(reward: base.Reward, case: cases.Case) -> None:
    score = case.score(reward)
    assert case.is_met(score), f"must be {case.expected}, is {score}"
    low, high = reward.range
    assert score is None or low <= score <= high


def test_every_reward_of_the_kit_has_cases_a_range_and_a_source() -> None:
    made = vars(gn.rewards).values()
    kinds = {kind.__name__ for kind in made if isinstance(kind, type) and issubclass(kind, base.Reward)}
    assert kinds - {"Reward"} <= cases.TABLES.keys()
    for reward in EVERY:
        low, high = reward.range
        assert low < high and reward.source


ODD = [
    "\x00", "\ud800", "\u202e", "<answer>", "</answer>", "<reasoning>", "</reasoning>", "<think>", "</think>",
    "\\boxed{", "}", "{", '"', "[", "42", "x", "=", " or ", "\\frac", "^", "9", ",", "\n", "1. ", "```",
    "\u0664", "B", "a|a",
]  # fmt: skip
TEXT = st.one_of(
    st.text(max_size=200),
    st.text(alphabet=st.characters(categories=["Cs", "Cc", "L", "N", "S"]), max_size=50),
    st.lists(st.sampled_from(ODD), max_size=30).map("".join),
    st.lists(st.sampled_from(ODD), max_size=12).map(lambda parts: f"<answer>{''.join(parts)}</answer>"),
)
COLUMNS = {"answer": "42"}


def call(reward: base.Reward, texts: list, prompts: list[str] | None = None) -> list[float | None]:
    ids = [list(range(len(text) if isinstance(text, str) else len(text[0]["content"]))) for text in texts]
    extra = {"prompts": prompts} if prompts else {}
    return reward(completions=texts, completion_ids=ids, answer=["42"] * len(texts), **extra)


def is_fit(reward: base.Reward, score: float | None) -> bool:
    low, high = reward.range
    return score is None or (isinstance(score, float) and not math.isnan(score) and low <= score <= high)


@pytest.mark.parametrize("reward", EVERY, ids=TABLES)
@settings(deadline=None, max_examples=60)
@given(texts=st.lists(TEXT, min_size=1, max_size=4))
def test_no_text_makes_a_reward_raise_or_leave_its_range(reward: base.Reward, texts: list[str]) -> None:
    scores = call(reward, texts)
    assert len(scores) == len(texts)
    assert all(is_fit(reward, score) for score in scores), scores
    chats = [[{"role": "assistant", "content": text}] for text in texts]
    assert call(reward, chats) == scores, "chat messages score differently"
    assert call(reward, texts[::-1]) == scores[::-1], "the order of the batch matters"
    assert [call(reward, [text])[0] for text in texts] == scores, "neighbours matter"
    assert call(pickle.loads(pickle.dumps(reward)), texts) == scores, "the pickled reward scores differently"


@pytest.mark.parametrize("reward", EVERY, ids=TABLES)
@pytest.mark.parametrize(
    "text",
    [
        "<answer>" * 25_000,
        "(" * 200_000,
        "<answer>" + "9" * 200_000 + "</answer>",
        "<answer>" + "{[" * 100_000 + "</answer>",
        "\ud800" * 200_000,
        "1. a b c\n" * 20_000,
        "<think>" + "</think><think>" * 20_000,
        "<answer>" + "\\frac" * 40_000 + "</answer>",
        "<answer>" + "1," * 100_000 + "</answer>",
        "- " * 100_000,
        " " * 200_000,
        "<answer>" + " " * 200_000 + "x</answer>",
        "$" * 200_000,
        "<answer>" + "\\text{" * 30_000 + "}" * 30_000 + "</answer>",
    ],
    ids=lambda text: repr(text[:12]),
)
def test_200_kb_take_no_more_than_a_moment(reward: base.Reward, text: str) -> None:
    import time

    start = time.process_time()
    (score,) = call(reward, [text], prompts=["A) x\n" * 1000])
    assert is_fit(reward, score)
    # Linear time is some tens of milliseconds; what is quadratic takes minutes.
    assert time.process_time() - start < 5


@pytest.mark.parametrize("reward", EVERY, ids=TABLES)
def test_picklable_with_name_and_weight(reward: base.Reward) -> None:
    copy = pickle.loads(pickle.dumps(reward))
    assert copy == reward and copy.__name__ == reward.__name__ and copy.weight == reward.weight
    assert repr(copy) == repr(reward)


@pytest.mark.parametrize("reward", EVERY, ids=TABLES)
def test_works_as_trl_calls_it_and_changes_nothing(reward: base.Reward) -> None:
    columns = {
        "prompts": [[{"role": "user", "content": "?"}]] * 2,
        "completions": [[{"role": "assistant", "content": "<answer>42</answer>"}]] * 2,
        "completion_ids": [[1, 2, 3]] * 2,
        "answer": ["42"] * 2,
        "options": [["a", "b"]] * 2,
    }
    before = pickle.dumps(columns)
    scores = reward(**columns, trainer_state=None, log_extra=lambda *a: None, log_metric=lambda *a: None)
    assert len(scores) == 2 and scores[0] == scores[1]
    assert pickle.dumps(columns) == before


def test_help_and_a_notebook_show_what_a_reward_is_and_not_what_python_adds() -> None:
    reward = correctness(weight=3.0, name="right")
    shown = pydoc.plain(pydoc.render_doc(reward))
    assert "Pays 0 to 1" in shown and "counts 3 times" in shown and "column:" in shown
    assert "__" not in shown and len(shown.splitlines()) < 40, shown
    assert correctness.__doc__.startswith("1.0 if the answer slot") and "Pays" not in correctness.__doc__
    assert "counts 3 times" in reward._repr_html_() and html.escape("name='right'") in reward._repr_html_()

    class Own(base.Reward):
        def score_text(self, text, row):
            return 1.0

    assert "Pays 0 to 1" in Own()._repr_html_()


@pytest.mark.parametrize("kind", [kind for kind in base.kinds().values() if not inspect.isabstract(kind)])
def test_help_of_a_kind_has_each_argument_and_no_machinery(kind: type[base.Reward]) -> None:
    shown = pydoc.plain(pydoc.render_doc(kind))
    said = kind.__doc__ or ""
    for entry in dataclasses.fields(kind):
        is_said = re.search(rf"^ {{8}}\*?{entry.name}: \S", said, re.M) is not None
        assert is_said == entry.init, f"{entry.name} can be given and is not said, or the other way round"
    assert said.count("    Args:") == 1 and shown.index("Args:") < shown.index("Method resolution order")
    assert "__" not in shown.partition("Method resolution order")[2], "what Python and the kit call is not the user's"


def test_importing_rewards_is_light() -> None:
    code = (
        "import sys, grpo_nb as gn; gn.rewards.maths(); gn.rewards.correctness(); "
        "print(*{m.split('.')[0] for m in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    heavy = {"torch", "transformers", "trl", "unsloth", "numpy", "pandas", "sympy", "math_verify", "jsonschema"}
    assert not loaded & heavy


@pytest.mark.parametrize(
    ("completion", "text"),
    [
        ("7", "7"),
        ([], ""),
        ([{"role": "assistant", "content": None}], ""),
        ([{"role": "assistant"}], ""),
        ([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}], "b"),
        ([{"content": [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]}], "ab"),
    ],
)
def test_completion_text(completion, text: str) -> None:
    assert base.completion_text(completion) == text


def test_two_rewards_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two rewards are named 'correctness'"):
        base.weights_by_name([correctness(), xml_tags(), correctness()])
    for wrong in ([correctness()(completions=["7"], answer=["7"])], [correctness], ["correctness"]):
        with pytest.raises(ValueError, match="no reward function"):
            base.weights_by_name(wrong)


def graded(completions: list, **columns: object) -> list[float]:
    return [float(len(c)) for c in completions]


def test_a_partial_has_the_name_that_trl_gives_it() -> None:
    reward = functools.partial(functools.partial(graded, level=[1]), other=2)
    assert base.reward_name(reward) == get_callable_name(reward) == "graded"
    assert base.reward_name(functools.partial(correctness(name="right"))) == "right"
    assert list(base.weights_by_name([reward, xml_tags()])) == ["graded", "xml_tags"]
    with pytest.raises(ValueError, match="two rewards are named 'graded'"):
        base.weights_by_name([reward, graded])


def test_one_reward_or_several() -> None:
    one = xml_tags()
    assert base.reward_list(one) == base.reward_list([one]) == base.reward_list(iter([one])) == [one]
    assert base.reward_list([], least=0) == []
    with pytest.raises(ValueError, match="rewards is empty"):
        base.reward_list([])


def test_a_class_is_its_own_factory_with_positions_where_they_read_well() -> None:
    assert (
        repr(gn.rewards.length(2, 4, unit="words")) == "length(weight=0.2, low=2, high=4, unit='words', format='xml')"
    )
    assert correctness(format=None).format == gn.tasks.xml() and correctness(name="right").__name__ == "right"
    for call in (lambda: correctness(2.0), lambda: gn.rewards.length(1, 2, 0.5), lambda: xml_tags(weigth=1)):
        with pytest.raises(TypeError):
            call()
    for reward in EVERY:
        assert dataclasses.replace(reward) == reward, "what is kept is an argument too"


def test_columns_of_numpy_pandas_and_datasets_are_columns() -> None:
    import datasets
    import numpy
    import pandas

    texts = ["<answer>7</answer>", "<answer>8</answer>"]
    for column in (
        numpy.array(["7", "7"]),
        pandas.Series([7, 7], index=[5, 6]),
        datasets.Dataset.from_dict({"a": ["7", "7"]})["a"],
    ):
        assert correctness()(completions=texts, answer=column) == [1.0, 0.0]


def test_the_kinds_by_name_make_a_reward_again() -> None:
    kinds = base.kinds()
    assert {type(reward).__name__ for reward in EVERY} <= kinds.keys() and "Own" not in kinds
    assert kinds["correctness"](tolerance=1.0) == correctness(tolerance=1.0)


@given(st.text(max_size=80))
def test_parse_number_never_raises(text: str) -> None:
    number = parse_number(text)
    assert number is None or parse_number(str(float(number))) is not None or abs(number) > 1e15
