"""Columns are found, and nothing is left out, changed or guessed without a message."""

from __future__ import annotations

import csv
import json
from typing import Any

import pytest
from datasets import Dataset
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import grpo_nb as gn
from tests.conftest import ROOT

Rows = list[dict[str, Any]]


def both(task: gn.tasks.Task) -> Rows:
    return [*task.train, *task.holdout]


def answers(task: gn.tasks.Task) -> dict[str, str]:
    return {row["question"]: row["answer"] for row in both(task)}


def of_answers(golds: list[Any]) -> Rows:
    return [{"question": f"{n}?", "answer": gold} for n, gold in enumerate(golds)]


def test_columns_are_mapped_and_others_kept() -> None:
    rows = [
        {"problem": f"{n} + 1?", "final": n + 1, "answer": "see there", "extra": [n, 2.5]}
        for n in range(6)
    ]
    rows = [{**row, "mixed": [1, "a", None][n % 3]} for n, row in enumerate(rows)]
    task = gn.load_task(rows, columns={"question": "problem", "answer": "final"})
    assert answers(task) == {f"{n} + 1?": str(n + 1) for n in range(6)}
    names = {"prompt", "question", "answer", "source_answer", "extra", "mixed"}
    assert set(task.train.column_names) == names
    assert task.train[0]["extra"] == [0, 2.5]
    assert "the column 'answer' is now 'source_answer'" in repr(task)
    assert {row["mixed"] for row in both(task)} == {"1", "a", None}
    assert "the column 'mixed' is stored as text" in repr(task)


@pytest.mark.parametrize(
    ("names", "proposed"),
    [
        pytest.param(
            ["German", "English"], {"question": "German", "answer": "English"}, id="two columns"
        ),
        pytest.param(
            ["id", "one", "two"], {"question": "<column>", "answer": "<column>"}, id="more columns"
        ),
        pytest.param(
            ["label", "question"], {"question": "question", "answer": "label"}, id="known question"
        ),
        pytest.param(
            ["solution", "prompt"], {"prompt": "prompt", "answer": "solution"}, id="known prompt"
        ),
    ],
)
def test_missing_column_error_has_a_map_to_copy(names: list[str], proposed: dict[str, str]) -> None:
    rows = [dict.fromkeys(names, "x")]
    with pytest.raises(ValueError, match="the data has no column") as raised:
        gn.load_task(rows)
    assert json.loads(str(raised.value).partition("columns=")[2]) == proposed
    assert str(names) in str(raised.value)


def test_rows_left_out_are_counted_with_an_example() -> None:
    asked = [
        ("1 + 1?", "2"),
        ("2 + 2?", "4"),
        ("", "1"),
        (None, "1"),
        (float("nan"), "1"),
        ("3?", ""),
        ({"a": 1}, "6"),
        ("1 +  1?", "2.0"),
    ]
    rows = [{"question": question, "answer": answer} for question, answer in asked]
    task = gn.load_task(rows, holdout=1)
    assert task.left_out == {
        "with an empty question": 3,
        "with an empty answer": 1,
        "whose question is neither text nor a number": 1,
        "repeated": 1,
    }
    shown = repr(task)
    assert all(reason in shown for reason in task.left_out)
    assert "row 2: question='', answer='1'" in shown
    assert len(both(task)) == 2


def test_on_conflict_asks_drops_or_keeps_the_first() -> None:
    rows = [{"question": "Is 7 prime?", "answer": answer} for answer in ("yes", "Yes.", "no")]
    rows += [{"question": f"Is {n} prime?", "answer": "no"} for n in (4, 6, 8)]
    message = (
        r"rows 0 and 2 \(counted from 0, without a header line\) ask 'Is 7 prime\?' "
        r".*\['yes', 'no'\]\. on_conflict=.drop"
    )
    with pytest.raises(ValueError, match=message):
        gn.load_task(rows)
    dropped, first = (
        gn.load_task(rows, on_conflict=policy, holdout=1) for policy in ("drop", "first")
    )
    assert "Is 7 prime?" not in answers(dropped)
    assert dropped.left_out == {"repeated": 1, "contradictory": 2}
    assert answers(first)["Is 7 prime?"] == "yes"
    assert first.left_out == {
        "repeated": 1,
        "contradictory": 1,
    }


def test_capitals_separate_questions_but_not_labels() -> None:
    """Questions about letters and capitals were once lost or contradictory."""
    asked = [f"How many capitals has {word}{n}?" for n in range(10) for word in ("aB", "ab")]
    task = gn.load_task(
        [{"question": q, "answer": str(n % 2)} for n, q in enumerate(asked)], holdout=4
    )
    assert (len(task.train), len(task.holdout), task.left_out) == (16, 4, {})
    assert len({question.lower() for question in task.holdout["question"]}) == 2
    labelled = gn.load_task(of_answers(["Yes", "yes", "no"] * 6))
    assert labelled.answers.majority == ("Yes", 2 / 3)
    assert labelled.answers.hint == "one of: Yes, no"
    assert len(set(answers(gn.load_task(of_answers(["C", "C#", "C++"] * 6))).values())) == 3


def test_answer_after_hashes_is_split_from_its_solution() -> None:
    task = gn.load_task(
        of_answers([f"{n}+1={n + 1}\n#### {n + 1:,}" for n in range(1000, 1004)]), holdout=1
    )
    assert set(answers(task).values()) == {"1,001", "1,002", "1,003", "1,004"}
    assert task.answers.kind == "number"
    assert task.train[0]["solution"] == "1000+1=1001"
    assert "after ####" in repr(task)
    assert (
        "solution" not in gn.load_task(of_answers(["1 #### 1", "2"]), holdout=1).train.column_names
    )


@pytest.mark.parametrize("values", [[{"a": 1}, {"b": 1}], [{"a": 3}, {"a": 2.5}]])
def test_hidden_tests_reach_the_reward_unchanged(values: list) -> None:
    """Arrow gives each dict the keys of all and makes 3 to 3.0: every right function failed."""
    tests = [[{"call": "f", "args": [value], "expected": [value]}] for value in values * 2]
    rows = [{**row, "tests": cell} for row, cell in zip(of_answers("ffff"), tests, strict=True)]
    task = gn.load_task(rows, holdout=1)
    read = [test for row in both(task) for test in json.loads(row["tests"])]
    assert sorted(repr(test["args"]) for test in read) == sorted(
        repr([value]) for value in values * 2
    )
    assert all(repr(test["expected"]) == repr(test["args"]) for test in read)
    assert "the column 'tests' is stored as text; non-text values as JSON" in repr(task)


def _chat(first: str) -> list[dict[str, str]]:
    turns = (
        ("system", "Route it."),
        ("user", first),
        ("assistant", "Your number?"),
        ("user", "ok thanks"),
    )
    return [{"role": role, "content": content} for role, content in turns]


def test_chats_are_kept_and_compared_by_all_messages() -> None:
    rows = [
        {"prompt": _chat(f"case {n}"), "team": ("billing", "technical")[n % 2]} for n in range(40)
    ]
    rows += [
        {"prompt": _chat("case 0")[:3], "team": "billing"},
        {"prompt": [{"role": "robot"}], "team": "billing"},
    ]
    task = gn.load_task(rows, columns={"answer": "team"}, holdout=0.25)
    assert (len(task.train), len(task.holdout)) == (30, 10)
    assert set(task.left_out) == {
        "whose prompt does not end with what a user says",
        'whose prompt is not a chat, [{"role": "user", "content": "..."}, ...] (if it is the '
        'question as text, write columns={"question": <column of the prompt>})',
    }
    assert _chat("case 0") in [row["prompt"] for row in both(task)]
    assert all(row["question"].startswith("case ") for row in both(task)), (
        "the system prompt, equal for all, is left out"
    )
    with pytest.raises(ValueError, match=r"case 1.*'technical', 'billing'"):
        gn.load_task(
            [*rows, {"prompt": _chat("case 1"), "team": "billing"}], columns={"answer": "team"}
        )


@pytest.mark.parametrize("answers", [("B) Paris", "B"), ("B", "B) Paris")])
def test_letter_with_and_without_its_option_is_repeated(answers: tuple[str, str]) -> None:
    rows = [{"question": "Capital of France? A) Rome B) Paris", "answer": one} for one in answers]
    rows += [{"question": f"Capital of country {n}?", "answer": "A"} for n in range(4)]
    assert gn.load_task(rows, holdout=1).left_out == {"repeated": 1}


def test_other_answer_that_the_data_accepts_is_repeated() -> None:
    names = ["Paris", "City of Paris"]
    rows = [{"question": "Capital?", "answer": name, "accepted_answers": names} for name in names]
    rows.append({"question": "And of Italy?", "answer": "Rome", "accepted_answers": None})
    assert gn.load_task(rows, holdout=1).left_out == {"repeated": 1}
    rows[1] = {"question": "Capital?", "answer": "Paris", "accepted_answers": [1]}
    assert gn.load_task(rows, holdout=1).left_out == {"repeated": 1}


def test_chats_that_differ_in_white_space_are_repeated() -> None:
    firsts = ["case 0\nis urgent", "case 0  is urgent", "case 1"]
    rows = [{"prompt": _chat(first), "answer": "a"} for first in firsts]
    assert gn.load_task(rows, holdout=1).left_out == {"repeated": 1}


TOOL_CALL = {"function": {"name": "read", "arguments": {"place": "mill"}}}


def test_example_with_tool_calls_is_refused() -> None:
    example = [
        {"role": "user", "content": "Where?"},
        {"role": "assistant", "content": "", "tool_calls": [TOOL_CALL]},
    ]
    with pytest.raises(ValueError, match=r"example= has tool_calls.*ManualEpisode\(task\)"):
        gn.load_task(of_answers("abcd"), example=example, holdout=1)


def test_chats_with_tool_calls_are_left_out() -> None:
    rows = [{"prompt": _chat(f"case {n}"), "answer": "a"} for n in range(5)]
    # Data sets have the key in each message, with None where there is no call.
    rows[0]["prompt"][2] |= {"tool_calls": None}
    rows[1]["prompt"][2] |= {"content": None, "tool_calls": [TOOL_CALL]}
    rows[2]["prompt"][2] = {"role": "assistant", "tool_calls": [TOOL_CALL]}
    task = gn.load_task(rows, holdout=1)
    reason = (
        "whose prompt has tool_calls (write each call in content, as the model's template writes "
        "it)"
    )
    assert task.left_out == {reason: 2}
    assert len(both(task)) == 3


def test_missing_column_error_keeps_the_given_columns() -> None:
    rows = [{"label": "pos", "text": "great"}]
    with pytest.raises(ValueError, match="no column 'question'") as raised:
        gn.load_task(rows, columns={"answer": "label"})
    advice = json.loads(str(raised.value).partition("columns=")[2])
    assert advice == {"question": "text", "answer": "label"}


def test_advice_for_chats_can_be_copied() -> None:
    rows = [{"prompt": _chat(f"case {n}"), "solution": str(n)} for n in range(4)]
    with pytest.raises(ValueError, match="no column 'answer'") as raised:
        gn.load_task(rows)
    advice = json.loads(str(raised.value).partition("columns=")[2])
    assert len(both(gn.load_task(rows, columns=advice))) == 4


def test_advice_keeps_the_column_of_the_answer() -> None:
    rows = [{"answer": "4", "text": "2+2?"}] * 3
    with pytest.raises(ValueError, match=r'columns=\{"question": "text", "answer": "answer"'):
        gn.load_task(rows)


def test_system_and_example_are_put_into_chats() -> None:
    rows = [{"prompt": _chat(f"case {n}")[n % 2 :], "answer": "ab"[n % 2]} for n in range(8)]
    asked = {"system": "Answer in <answer></answer>.", "example": ("case x", "as x is one", "a")}
    for row in gn.load_task(rows, **asked).train:
        messages = [(turn["role"], turn["content"]) for turn in row["prompt"]]
        assert [role for role, _ in messages] == [
            "system",
            "user",
            "assistant",
            "user",
            "assistant",
            "user",
        ]
        assert messages[0][1] == asked["system"]
        assert messages[1][1] == "case x"
        assert "<answer>" in messages[2][1]
        assert messages[3][1].startswith("case ")
        assert messages[5][1] == "ok thanks"
    first = {
        row["prompt"][0]["content"] for row in gn.load_task(rows, example=asked["example"]).train
    }
    assert first == {"Route it.", "case x"}, "half have nothing of the system's"


def test_system_message_in_the_middle_of_a_chat_stays_there() -> None:
    roles = ["system", "user", "system", "user"]
    chats = [[{"role": role, "content": f"{role} {n}"} for role in roles] for n in range(8)]
    rows = [{"prompt": chat, "answer": "a"} for chat in chats]
    for row in gn.load_task(rows, system="Be short.").train:
        assert [message["role"] for message in row["prompt"]] == roles
        assert row["prompt"][0]["content"] == "Be short."


def task_of_recipe(heading: str, data: list[dict[str, Any]]) -> gn.tasks.Task:
    """Return the task that a recipe of docs/guide/data.md makes."""
    guide = (ROOT / "docs/guide/data.md").read_text()
    recipe = guide.partition(f"{heading}\n")[2].partition("```python\n")[2].partition("```")[0]
    names: dict[str, Any] = {"data": data, "gn": gn}
    exec(recipe, names)
    return names["task"]


def test_recipe_for_options_makes_letters() -> None:
    data = [
        {"question": f"What is {n}?", "choices": [f"x{n}", "y"], "answer": n % 2} for n in range(4)
    ]
    task = task_of_recipe("## Options", data)
    shown = {f"What is {n}?\nA) x{n}\nB) y": "AB"[n % 2] for n in range(4)}
    assert answers(task) == shown


@pytest.mark.parametrize(
    ("column", "role", "content", "user", "assistant"),
    [
        pytest.param("messages", "role", "content", "user", "assistant", id="messages"),
        pytest.param("conversations", "from", "value", "human", "gpt", id="ShareGPT"),
    ],
)
def test_recipe_for_chats_takes_the_last_reply_as_answer(
    column: str, role: str, content: str, user: str, assistant: str
) -> None:
    data = [
        {column: [{role: user, content: f"{n}?"}, {role: assistant, content: str(n)}]}
        for n in range(4)
    ]
    task = task_of_recipe("## Chats", data)
    assert answers(task) == {f"{n}?": str(n) for n in range(4)}
    assert task.train[0]["prompt"][-1] == {"role": "user", "content": task.train[0]["question"]}


def test_answers_that_are_dicts_are_json() -> None:
    golds = [{"vendor": f"V{n}", "total": n / 2, "paid": True} for n in range(10)]
    task = gn.load_task(of_answers(golds))
    assert task.answers.kind == "json"
    assert answers(gn.load_task(of_answers([*map(json.dumps, golds)]))) == answers(task)


CELLS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=8)
    | st.lists(st.text(max_size=3), max_size=3)
    | st.dictionaries(st.text(max_size=3), st.integers(), max_size=2)
    | st.sampled_from(["1+1?", "yes", "\ud800", "#### 4"])
)
NAMES = st.sampled_from(["question", "answer", "prompt", "messages", "note"])


@given(
    rows=st.lists(st.dictionaries(NAMES, CELLS, max_size=4), max_size=6)
    | st.lists(
        st.fixed_dictionaries({"question": st.text(), "answer": CELLS, "note": CELLS}), max_size=9
    )
)
@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@example(
    [{"question": f"{n}?", "answer": "1", "nested": {"a": [1] if n else "x"}} for n in range(4)]
)
def test_any_rows_are_taken_or_refused_with_a_message(rows: Rows) -> None:
    try:
        task = gn.load_task(rows)
    except (ValueError, TypeError) as error:
        assert str(error)
        return
    assert isinstance(task.train, Dataset)
    assert len(task.train)
    assert len(task.holdout)
    assert repr(task)
    assert all(row["question"].strip() for row in both(task))
    assert all(row["answer"] for row in both(task))
    assert len(both(task)) + sum(task.left_out.values()) == len(rows)


def test_row_without_a_prompt_is_read_by_its_question() -> None:
    rows = [
        {"question": "1 + 1?", "answer": "2"},
        {"question": "1 + 2?", "answer": "3", "prompt": [{"role": "user", "content": "1 + 2?"}]},
    ]
    task = gn.load_task(rows, holdout=1)
    assert len(task.train) + len(task.holdout) == 2


def test_chat_without_its_own_question_is_read_beside_rows_with_one() -> None:
    chat = [{"role": "user", "content": "1 + 2?"}]
    rows = [
        {"question": "1 + 1?", "answer": "2", "prompt": None},
        {"question": None, "answer": "3", "prompt": chat},
    ]
    task = gn.load_task(rows, holdout=1)
    assert sorted([*task.train["question"], *task.holdout["question"]]) == ["1 + 1?", "1 + 2?"]


def test_row_with_more_cells_than_the_header_is_read() -> None:
    lines = ["question,answer", "1 + 1?,2,extra", "2 + 2?,4", "3 + 3?,6"]
    task = gn.load_task(list(csv.DictReader(lines)), holdout=1)
    assert task.left_out == {}
    assert sorted(answers(task).values()) == ["2", "4", "6"]


def test_tuple_is_an_answer_as_a_list_is() -> None:
    task = gn.load_task(of_answers([("a", "b"), ["c"]]), holdout=1, kind="json")
    assert answers(task) == {"0?": '["a", "b"]', "1?": '["c"]'}
