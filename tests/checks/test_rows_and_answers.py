"""Check which rows are tried, and their wrong answers."""

import math

import pytest

import grpo_nb as gn
from grpo_nb.checks.probes import list_layouts, write_hostile
from grpo_nb.checks.report import KINDS
from grpo_nb.checks.rows import (
    MAX_ROWS_TRIED,
    CheckRow,
    choose_rows,
    make_near_misses,
    make_wrong_answers,
)
from grpo_nb.tasks import formats


@pytest.mark.parametrize("count", [24, 25, 47, 71])
def test_rows_tried_come_from_the_whole_task(count: int) -> None:
    rows = [{"question": f"{n}?", "answer": str(100 + n)} for n in range(count)]
    places = [int(row.gold) - 100 for row in choose_rows(rows, "answer").rows]
    assert len(places) == MAX_ROWS_TRIED
    assert places[0] < count / 4
    assert places[-1] > count * 3 / 4


def test_nan_is_no_gold_answer() -> None:
    rows = [{"question": "a", "answer": "1"}, {"question": "b", "answer": math.nan}]
    assert choose_rows(rows, "answer").all_golds == ["1"]


@pytest.mark.parametrize("gold", ["100.00", "100.50"])
def test_near_misses_of_decimals_keep_the_tolerance(gold: str) -> None:
    for answer in make_near_misses([gold]).values():
        assert abs(float(answer) - float(gold)) > 2


def test_near_miss_of_a_signed_number_has_one_sign() -> None:
    assert make_near_misses(["+5"])["the other sign"] == "-5"


def test_near_misses_of_zero_are_no_zero() -> None:
    assert all(float(answer) != 0 for answer in make_near_misses(["0"]).values())


@pytest.mark.parametrize("gold", ["$1,800", "Paris, France", "Dec 4, 2020"])
def test_text_with_a_comma_is_no_list(gold: str) -> None:
    assert list(make_near_misses([gold])) == ["a part of it"]


@pytest.mark.parametrize("gold", ["1, 2", "2, 1, 10", "x = 1, x = 2", "red, green", "5%, 7%"])
def test_near_miss_of_a_list_has_a_new_item(gold: str) -> None:
    item = make_near_misses([gold])["an item too many"].removeprefix(f"{gold}, ")
    assert item not in gold


@pytest.mark.parametrize("gold", ["[1, 2]", "(1, 2)", "[1, 2], [3]", "f(x)"])
def test_text_with_brackets_has_no_near_miss(gold: str) -> None:
    assert make_near_misses([gold]) == {}


def test_near_misses_of_a_list_without_spaces_are_lists() -> None:
    assert make_near_misses(["2,3"])["an item too few"] == "2"


def test_near_misses_leave_out_accepted_answers() -> None:
    assert "43" not in make_near_misses(["42", "43.0"]).values()


def test_choose_rows_leaves_out_rows_without_the_column() -> None:
    rows = [{"question": f"{n}?", "answer": str(n)} for n in range(4)]
    for place in (0, 4):
        with_gap = [*rows[:place], {"question": "?"}, *rows[place:]]
        assert choose_rows(with_gap, "answer").all_golds == ["0", "1", "2", "3"]


def test_kit_reward_is_not_warned_about_lists_with_one() -> None:
    lists = ["1, 2", "1, 3", "1, 5", "2, 7"]
    rows = [{"question": f"Roots of {i}?", "answer": gold} for i, gold in enumerate(lists)]
    report = gn.check_rewards(gn.rewards.maths(), rows)
    assert not [one for one in report.findings if one.kind == "near miss"], report


def test_hostile_probes_have_no_expected_score() -> None:
    row = CheckRow(0, {}, ["42"], ["17"])
    layout = list_layouts(formats.xml())[0]
    assert not KINDS.keys() & {probe.category for probe in write_hostile(row, layout)}


def test_choose_rows_tries_no_accepted_answer_as_a_wrong_one() -> None:
    rows = [
        {"question": "1/2?", "answer": "1/2", "accepted_answers": ["1/2", "0.25"]},
        {"question": "1/4?", "answer": "0.25"},
    ]
    first = choose_rows(rows, "answer").rows[0]
    assert "0.25" not in first.wrong


def test_wrong_answers_leave_out_accepted_ones_before_the_cut() -> None:
    accepted = ["12", "31", "32", "33.0", "34"]
    wrong = make_wrong_answers(accepted, ["12", "31", "32", "33", "34", "55"])
    assert wrong == ["55", "16", "20", "8"]


def test_near_miss_of_a_record_has_another_number() -> None:
    assert make_near_misses(['{"age": 31, "name": "Ann"}']) == {
        "another number": '{"age": 311, "name": "Ann"}'
    }


def test_near_misses_of_a_record_without_numbers_are_none() -> None:
    assert make_near_misses(['{"name": "Ann"}']) == {}


def test_wrong_answers_of_a_task_with_one_text_are_distorted() -> None:
    assert make_wrong_answers(["yes"], ["yes", "yes"]) == ["sey", "yesx"]
