"""What people bring: tables of every kind, dirt, labels, chats. What was made of it is shown, and nothing goes unsaid."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas
import pytest
from datasets import Dataset, DatasetDict

import grpo_nb as gn
from grpo_nb.rewards.hidden_tests import read_tests
from grpo_nb.tasks import reading
from grpo_nb.tasks.answers import answers_of, doubts_of
from grpo_nb.tasks.questions import normalized_question
from grpo_nb.tasks.reading import read_rows

REVIEWS = [
    {"Review text": f"{what} number {n}", "label": label}
    for n in range(8)
    for what, label in (("Lovely café", "positive"), ("Awful müsli", "negative"), ("A chair", "neutral"))
]
MAPPED = {"question": "Review text", "answer": "label"}


def csv_text(separator: str = ",") -> str:
    return "\n".join(separator.join(row) for row in [list(REVIEWS[0]), *(list(row.values()) for row in REVIEWS)])


def written(folder: Path, data: bytes, name: str = "reviews.csv") -> Path:
    file = folder / name
    file.write_bytes(data)
    return file


SOURCES = {
    "frame": lambda folder: pandas.DataFrame(REVIEWS),
    "columns": lambda folder: {name: [row[name] for row in REVIEWS] for name in REVIEWS[0]},
    "splits": lambda folder: DatasetDict({"train": Dataset.from_list(REVIEWS)}),
    "cp1252": lambda folder: written(folder, csv_text().encode("cp1252")),
    "utf-16": lambda folder: written(folder, csv_text().encode("utf-16")),
    "bom": lambda folder: written(folder, csv_text().encode("utf-8-sig")),
    "semicolons": lambda folder: written(folder, csv_text(";").encode()),
    "tabs": lambda folder: written(folder, csv_text("\t").encode(), "reviews.tsv"),
    "under data": lambda folder: written(folder, json.dumps({"data": REVIEWS}).encode(), "reviews.json"),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_what_people_have_is_taken(kind: str, tmp_path: Path) -> None:
    task = gn.load_task(SOURCES[kind](tmp_path), columns=MAPPED)
    assert {(row["question"], row["answer"]) for part in (task.train, task.holdout) for row in part} == {
        tuple(row.values()) for row in REVIEWS
    }
    assert any("as cp1252, for it is not UTF-8" in note for note in task.notes) == (kind == "cp1252")


def test_labels_are_asked_for_by_name() -> None:
    task = gn.load_task(REVIEWS, columns=MAPPED)
    told = task.train[0]["prompt"][0]["content"]
    assert "one of: negative, neutral, positive" in told and "number" not in told
    assert "3 labels: positive (33%)" in repr(task)


@pytest.mark.parametrize(
    ("golds", "kind"),
    [
        (["12", "-3.5", "1,200", "7/8", "$4", "50 %"] * 2, "numbers"),
        (["1", "2", "3", "4", "5"] * 20, "numbers"),
        (["yes", "no"] * 5, "labels"),
        (["A", "B", "C", "D"] * 5, "labels"),
        ([r"\frac{1}{2}", "x^2", "(1, 2)", "3"], "expressions"),
        (["Paris", "Rome", "Oslo", "Lima"], "text"),
        (["def f(x):\n    return x", "def g(x):\n    return 1"] * 5, "text"),
        (["He went home.", "She did not.", "They left at 5."], "text"),
        (["\u00bd", "\u2153", "3\u00bd"], "numbers"),
        (["1 h", "45 min", "2 h", "30 min"] * 3, "numbers"),
        (["CHF 5.20", "CHF 12.00", "12,90 CHF"], "numbers"),
        (["-4 \u00b0C", "12.5 \u00b0C"], "numbers"),
        (["2x", "3y", "-x"], "expressions"),
        (["2x", "3x", "5x"], "expressions"),
        (["15.6 \u00b0C", "15.6C", "15 C"], "numbers"),
        (["15.6C", "20C", "-3.5C"], "numbers"),
        (["12h", "45 min", "2h", "30 min"], "numbers"),
        (["5 A", "5A", "7 A"], "numbers"),
        (["2A", "3B", "4C", "2B"] * 4, "labels"),
        (["1A", "2C", "FF", "0B"], "text"),
        (["1st", "2nd", "3rd"] * 6, "labels"),
        (["12 Angry Men", "7 Samurai", "8 Mile", "127 Hours"], "text"),
        (["Route 66", "Area 51"], "text"),
        ([json.dumps({"vendor": f"V{n}", "total": n}) for n in range(9)], "json"),
        ([json.dumps({"mood": "ab"[n % 2]}, indent=1) for n in range(9)], "json"),
        ([json.dumps([n, n + 1]) for n in range(9)], "json"),
        (["[0, 1]", r"[2, \infty)", "(1, 3]"], "expressions"),
        ([r"\{1, 2\}", "{x, y}", "{z}"], "expressions"),
        ([str({"vendor": f"V{n}", "total": n}) for n in range(9)], "text"),
        ([f"2025-06-{n}" for n in range(10, 19)], "text"),
        (["1 h 30 min", "2 h 15 min", "50 min", "3h 5min"], "numbers"),
        (["5 ft 11 in", "6 ft 1 in", "9 in"], "numbers"),
        (["2 x 3 y", "4 x + y", "x + y"], "expressions"),
    ],
)
def test_the_kind_of_answers(golds: list[str], kind: str) -> None:
    assert answers_of(golds).kind == kind


def test_system_and_format_of_ones_own_stand() -> None:
    own = gn.load_task(REVIEWS, columns=MAPPED, system="Say <reasoning> and <answer>.")
    assert own.train[0]["prompt"][0]["content"] == "Say <reasoning> and <answer>." and not own.notes
    silent = gn.load_task(REVIEWS, columns=MAPPED, system="Judge the review.")
    assert "nothing in the prompt names <answer>" in repr(silent)
    boxed = gn.load_task(REVIEWS, columns=MAPPED, format=gn.tasks.boxed())
    assert r"\boxed{one of: negative, neutral, positive}" in boxed.train[0]["prompt"][0]["content"]


def test_each_row_left_out_is_counted_and_one_is_shown() -> None:
    dirt = [
        {"question": "", "answer": "1"}, {"question": None, "answer": "1"}, {"question": float("nan"), "answer": "1"},
        {"question": "3?", "answer": ""}, {"question": "4?", "answer": None}, {"question": "5?", "answer": ["5"]},
        {"question": {"a": 1}, "answer": "6"}, {"question": "1 + 1 ?", "answer": "2"},
    ]  # fmt: skip
    good = [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}]
    task = gn.load_task(good + dirt, holdout=1)
    assert task.dropped == {
        "with an empty question": 3, "with an empty answer": 2, "whose answer is no text": 1,
        "whose question is no text": 1, "repeated": 1,
    }  # fmt: skip
    shown = repr(task)
    assert all(reason in shown for reason in task.dropped) and "row 2: question='', answer='1'" in shown
    assert "None" not in {row["question"] for part in (task.train, task.holdout) for row in part}


def test_questions_that_differ_in_capitals_are_two() -> None:
    """Counting letters, casing, regular expressions: rows were lost, or a contradiction. The two stay on one side."""
    asked = [f"How many capitals has {word}{n}?" for n in range(10) for word in ("aB", "ab")]
    task = gn.load_task([{"question": q, "answer": str(n % 2)} for n, q in enumerate(asked)], holdout=4)
    assert (len(task.train), len(task.holdout), task.dropped) == (16, 4, {})
    assert len({question.lower() for question in task.holdout["question"]}) == 2
    alike = gn.load_task([{"question": q, "answer": "1"} for q in asked], holdout=4)
    assert not alike.dropped, "nor is one a repetition of the other"


@pytest.mark.parametrize("values", [[{"a": 1}, {"b": 1}], [{"a": 3}, {"a": 2.5}], [{1: "a"}]])
def test_hidden_tests_reach_the_reward_as_they_were_given(tmp_path: Path, values: list) -> None:
    """Arrow gives each dict the keys of all, with None, and makes 3 to 3.0 beside 2.5: every right function failed."""
    rows = [
        {"question": f"Write f, {n}.", "answer": "f", "tests": [{"call": "f", "args": [value], "expected": [value]}]}
        for n, value in enumerate(values * 2)
    ]
    file = tmp_path / "tests.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    for source in (rows, file) if 1 not in values[0] else (rows,):
        task = gn.load_task(source, holdout=1)
        tests = [row["tests"] for row in both(task)]
        read = [test for cell in tests for test in read_tests(cell)]
        assert sorted(repr(test.call.args[0]) for test in read) == sorted(map(repr, values * 2))
        assert all(repr(test.expected) == repr(list(test.call.args)) for test in read)
        assert "'tests' holds list, and is kept as" in repr(task)
    same = [{**row, "tests": [{"call": "f", "args": [{"a": 1}], "expected": 1}]} for row in rows]
    assert gn.load_task(same, holdout=1).train[0]["tests"] == same[0]["tests"], "what Arrow does not change stays so"


def test_contradictions_are_asked_about() -> None:
    rows = [
        *({"question": "Is 7 prime?", "answer": answer} for answer in ("yes", "yes", "no")),
        *({"question": f"Is {n} prime?", "answer": "no"} for n in (4, 6, 8)),
    ]
    with pytest.raises(ValueError, match=r"Is 7 prime.*'yes' and 'no'.*contradictory=\"drop\""):
        gn.load_task(rows)

    def answer(policy: str) -> Any:
        task = gn.load_task(rows, contradictory=policy, holdout=1)
        found = {row["question"]: row["answer"] for part in (task.train, task.holdout) for row in part}
        return found.get("Is 7 prime?"), task.dropped

    assert answer("drop") == (None, {"contradictory": 3})
    assert answer("majority") == ("yes", {"repeated": 1, "contradictory": 1})
    assert answer("first") == ("yes", {"repeated": 1, "contradictory": 1})
    with pytest.raises(ValueError, match="contradictory = 'last' is not known here"):
        answer("last")


def test_columns_the_other_way_round_are_read_and_said() -> None:
    task = gn.load_task(REVIEWS, columns={"Review text": "question", "label": "answer"})
    assert task.train[0]["answer"] in ("positive", "negative", "neutral")
    assert "the other way round" in repr(task)


def test_answers_after_hashes_are_split_from_their_solution() -> None:
    rows = [{"question": f"{n}+1?", "answer": f"{n}+1={n + 1}\n#### {n + 1:,}"} for n in range(1000, 1004)]
    task = gn.load_task(rows, holdout=1)
    assert set(task.train["answer"]) <= {"1,001", "1,002", "1,003", "1,004"} and task.answers.kind == "numbers"
    assert all("####" not in text for text in task.train["solution"]) and "after ####" in repr(task)


def test_chats_and_prompts_that_are_text() -> None:
    rows = [{"messages": [{"role": "user", "content": f"say {n}"}], "answer": str(n)} for n in range(4)]
    rows += [{"messages": [{"role": "user", "content": "hm"}, {"role": "assistant", "content": "ha"}], "answer": "1"}]
    chats = gn.load_task(rows, holdout=1)
    assert [turn["role"] for turn in chats.train[0]["prompt"]] == ["user"]
    assert chats.dropped == {"whose prompt does not end with what a user says": 1}
    assert "nothing in the prompt names <answer>" in repr(chats)
    texts = gn.load_task([{"prompt": f"{n} + 2?", "answer": str(n + 2)} for n in range(4)], holdout=1)
    assert texts.train[0]["prompt"][-1]["content"] == texts.train[0]["question"]


def _chat(first: str, last: str = "ok thanks") -> list[dict[str, str]]:
    turns = ("system", "Route it."), ("user", first), ("assistant", "Your number?"), ("user", last)
    return [{"role": role, "content": content} for role, content in turns]


def test_chats_that_end_alike_are_different_questions() -> None:
    rows = [{"messages": _chat(f"case {n}"), "team": ("billing", "technical")[n % 2]} for n in range(40)]
    task = gn.load_task(rows, columns={"answer": "team"}, holdout=0.25)
    assert (len(task.train), len(task.holdout)) == (30, 10)
    assert not {*map(normalized_question, task.train["question"])} & {
        *map(normalized_question, task.holdout["question"])
    }
    assert "Route it" not in task.train[0]["question"]  # what all of them are told tells no question from another
    twice = [*rows, {"messages": _chat("case 1"), "team": "billing"}]
    with pytest.raises(ValueError, match=r"user: case 1.*'technical' and 'billing'"):
        gn.load_task(twice, columns={"answer": "team"})


def test_what_is_asked_for_is_put_into_chats() -> None:
    rows = [{"messages": _chat(f"case {n}")[n % 2 :], "answer": "ab"[n % 2]} for n in range(8)]
    asked = {"system": "Answer in <answer></answer>.", "example": ("case x", "as x is one", "a")}
    for row in gn.load_task(rows, **asked).train:
        said = [(turn["role"], turn["content"]) for turn in row["prompt"]]
        assert [role for role, _ in said] == ["system", "user", "assistant", "user", "assistant", "user"]
        assert said[0][1] == asked["system"] and said[1][1] == "case x" and "<answer>" in said[2][1]
        assert said[3][1].startswith("case ") and said[5][1] == "ok thanks"
    shown = gn.load_task(rows, example=asked["example"]).train
    assert {row["prompt"][0]["content"] for row in shown} == {
        "Route it.",
        "case x",
    }  # half have nothing of the system's


@pytest.mark.parametrize("top", ["# exported on Monday, by hand\n", "# one\n# two, three\n"])
def test_remarks_above_the_names_are_left_out(top: str, tmp_path: Path) -> None:
    task = gn.load_task(written(tmp_path, (top + csv_text("\t")).encode(), "reviews.tsv"), columns=MAPPED)
    assert len(task.train) + len(task.holdout) == len(REVIEWS) and "above the names were left out" in repr(task)
    numbered = csv_text("\t").replace("Review text", "#text", 1)
    assert gn.load_task(written(tmp_path, numbered.encode(), "x.tsv"), columns={"question": "#text", "answer": "label"})


def test_cells_stay_as_written_and_other_columns_are_numbers(tmp_path: Path) -> None:
    file = written(tmp_path, b"question,answer,level\nwho?,007,1\nwhat?,NA,2\nwhere?,None,3\n")
    task = gn.load_task(file, holdout=1)
    rows = sorted([*task.train, *task.holdout], key=lambda row: row["level"])
    assert [row["answer"] for row in rows] == ["007", "NA", "None"] and [row["level"] for row in rows] == [1, 2, 3]


@pytest.mark.parametrize(
    ("source", "options", "error", "told"),
    [
        (None, {}, TypeError, "None.*takes 'arithmetic', a file"),
        (5, {}, TypeError, "of type int"),
        (["2+2?"], {}, TypeError, "row 0 is of type str, not a dict"),
        ("", {}, ValueError, "folder or nothing"),
        ({"question": "2+2?", "answer": "4"}, {}, ValueError, "lists of one length"),
        ({"question": ["a", "b"], "answer": ["1"]}, {}, ValueError, "lists of one length"),
        (REVIEWS, {}, ValueError, r'columns=\{"question": "Review text", "answer": "label"\}'),
        ([{"question": "a", "answer": "b"}], {"columns": {"question": "answer"}}, ValueError, "and none to the answer"),
        (REVIEWS, {"columns": ["a"]}, TypeError, r"columns = \['a'\] must be the name of the column of each part: columns="),
        (REVIEWS, {"columns": {"question": ["label", "x"]}}, ValueError, "no column 'x' for the question"),
        (REVIEWS, {"columns": {**MAPPED, "answer": ["label"]}}, TypeError, "the name of one column"),
        (REVIEWS, {"columns": MAPPED, "keep": "label"}, TypeError, "keep = 'label' must be a function of a row"),
        (REVIEWS, {"columns": MAPPED, "keep": lambda row: row["mood"]}, ValueError, "row 0 with KeyError.*'Review text'"),
        (REVIEWS, {"columns": MAPPED, "keep": lambda row: False}, ValueError, "no row is left of 24: 24 that keep= leaves out"),
        (REVIEWS, {"columns": {"question": "label", "answer": "label"}}, ValueError, "two parts"),
        (REVIEWS, {"columns": MAPPED, "format": "xml"}, TypeError, r"gn\.tasks\.xml\(\)"),
        (REVIEWS, {"columns": MAPPED, "system": " "}, ValueError, "must be a text"),
        (REVIEWS, {"columns": MAPPED, "example": ("a", "b")}, ValueError, "three texts"),
        (REVIEWS, {"columns": MAPPED, "example": ("a", "b", "x</answer>")}, ValueError, "cannot be read back"),
        (REVIEWS, {"columns": MAPPED, "holdout": True}, ValueError, "holdout = True"),
        (REVIEWS, {"columns": MAPPED, "holdout": "0.2"}, ValueError, "holdout = '0.2'"),
        (REVIEWS, {"columns": MAPPED, "holdout": float("nan")}, ValueError, "holdout = nan"),
        ("arithmetic", {"columns": MAPPED}, ValueError, "columns = .* does nothing for arithmetic"),
        ("arithmetic", {"holdout": 0.5}, ValueError, "holdout = 0.5 does nothing for arithmetic"),
        (REVIEWS, {"columns": MAPPED, "split": "train"}, ValueError, "split = 'train' does nothing for rows"),
        (REVIEWS, {"columns": MAPPED, "holdout": 2.5}, ValueError, "holdout = 2.5"),
        (REVIEWS, {"columns": MAPPED, "seed": "x"}, ValueError, "seed = 'x' is of type str"),
        (REVIEWS, {"columns": MAPPED, "tokenizer": "gpt2"}, TypeError, "tokenizer = 'gpt2' is no tokenizer"),
        (REVIEWS, {"columns": MAPPED, "example": (None, None, None)}, ValueError, "three texts"),
        ("a" * 5000, {}, ValueError, "neither a path nor the id"),
        (pandas.DataFrame([["a", "b", "c"]] * 3, columns=["question", "answer", "answer"]), {}, ValueError, "same name"),
        (
            DatasetDict({part: Dataset.from_list(REVIEWS) for part in ("train", "test")}), {"columns": MAPPED}, ValueError,
            r'train \(24 rows\), test \(24 rows\).*split="train"',
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_read_says_what_to_write(source: Any, options: dict, error: type, told: str) -> None:
    with pytest.raises(error, match=told):
        gn.load_task(source, **options)


@pytest.mark.parametrize(
    ("name", "data", "told"),
    [
        ("broken.jsonl", b'{"question": "a", "answer": "1"}\n{"question": \n', r"broken\.jsonl line 2 is not JSON"),
        ("wide.csv", b"question,answer\na,1\nb,2,3\n", r"wide\.csv line 3 has more cells than the 2 of the first line"),
        ("unnamed.csv", b"question,,answer\na,1,2\n", "columns in its first line have no names"),
        ("head.csv", b"question,answer\n", "no rows"),
        ("not.parquet", b"PAR1 no", "cannot be read as parquet"),
        ("number.json", b"5", "not rows"),
    ],
)
def test_a_damaged_file_names_itself_and_its_line(name: str, data: bytes, told: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=told):
        gn.load_task(written(tmp_path, data, name))


def test_columns_of_one_name_are_told_the_lines_that_load_them(tmp_path: Path) -> None:
    """As Jira exports labels; the message spoke of lines above the names."""
    file = written(tmp_path, b"question,answer,answer,answer\na,bug,login,\nb,bug,,\nc,,,\nd,login,,\n", "jira.csv")
    with pytest.raises(ValueError, match="its first line names 3 columns 'answer'") as told:
        gn.load_task(file)
    names: dict[str, Any] = {}
    exec(re.search(r"import pandas; .*?\)(?=\. )", str(told.value))[0], names)
    exec(re.search(r"one of them: (.*)\.$", str(told.value))[1], names)
    assert {row["answer"] for row in both(gn.load_task(names["frame"]))} == {"bug;login", "bug", "login"}


def test_an_encoding_that_is_asked_for_is_used(tmp_path: Path) -> None:
    file = written(tmp_path, "question,answer\nŻółw?,tak\nKoń?,nie\n".encode("cp1250"))
    task = gn.load_task(file, holdout=1, encoding="cp1250")
    assert {row["question"] for part in (task.train, task.holdout) for row in part} == {"Żółw?", "Koń?"}
    for encoding, told in (("utf-8", "is not utf-8"), ("klingon", "unknown encoding")):
        with pytest.raises(ValueError, match=told):
            gn.load_task(file, encoding=encoding)


def both(task: gn.tasks.Task) -> list[dict]:
    return [*task.train, *task.holdout]


def test_extra_columns_of_every_kind_are_kept_or_said() -> None:
    """What a newcomer brought: empty text cells, mixed types, dates that are missing, dicts with different keys."""
    frame = pandas.DataFrame(
        {
            "question": ["a?", "b?", "c?"], "answer": [1, 2, 3], "note": ["x", None, "y"], "mixed": [1, "two", 3.5],
            "when": [pandas.Timestamp("2026-01-01"), pandas.NaT, pandas.Timestamp("2026-01-03")],
            "legs": [{"hen": 2}, {"cat": 4}, {"hen": 2}],
        }
    )  # fmt: skip
    task = gn.load_task(frame, holdout=1)
    rows = sorted(both(task), key=lambda row: row["answer"])
    assert [row["note"] for row in rows] == ["x", None, "y"] and [row["mixed"] for row in rows] == ["1", "two", "3.5"]
    assert rows[1]["when"] is None and rows[1]["legs"] == '{"cat": 4}'
    shown = repr(task)
    assert (
        "'mixed' holds float, int, str, and is kept as text" in shown
        and "'legs' holds dict, and is kept as JSON text" in shown
    )


def test_numbers_beside_missing_cells_are_numbers(tmp_path: Path) -> None:
    task = gn.load_task(written(tmp_path, b",question,answer,mass\n0,a?,x,3750\n1,b?,y,NA\n2,c?,z,\n"), holdout=1)
    assert sorted(str(row["mass"]) for row in both(task)) == ["3750", "None", "None"]
    assert "first column has no name (an index)" in repr(task) and "" not in task.train.column_names


def test_labels_that_differ_in_capitals_are_one() -> None:
    rows = [
        {"question": f"{n}?", "answer": answer}
        for n, answer in enumerate(["Yes", "yes", "Yes", "No", "no", "No", "nO", "YES "])
    ]
    task = gn.load_task(rows)
    assert {row["answer"] for row in both(task)} == {"Yes", "No"} and "one of: No, Yes" in repr(task)
    assert "'yes' as 'Yes'" in repr(task) and task.answers.floor == ("Yes", 0.5)


def test_labels_that_differ_only_in_marks_around_them_are_one() -> None:
    def labels(*golds: str) -> set[str]:
        return {
            row["answer"]
            for row in both(gn.load_task([{"question": f"{n}?", "answer": g} for n, g in enumerate(golds)]))
        }

    assert labels(*["yes", "yes.", '"Yes"', "no", "yes", "no"] * 3) == {"yes", "no"}
    for marks in (["$", "$$", "$$$"], ["C", "C#", "C++"], [".", "!", "?"], [":)", ":(", "(:"]):
        assert labels(*marks * 4) == set(marks)


def test_a_decimal_comma_is_asked_about_and_read() -> None:
    rows = [{"question": f"{n}?", "answer": gold} for n, gold in enumerate(["1,50", "9,99", "1.234,50", "3"])]
    assert "may have a decimal comma: decimal=','" in repr(gn.load_task(rows))
    task = gn.load_task(rows, decimal=",")
    assert {row["answer"] for row in both(task)} == {"1.50", "9.99", "1234.50", "3"}
    # The reward reads a point, so a model that reads commas in the question has to be told.
    assert "decimal comma" not in repr(task) and "decimals with a point as in 1.23" in task.format.system_prompt()
    right = gn.rewards.rewards_for(task)[0]
    assert [paid(right, given, "1234.50") for given in ("1234.50", "1,234.5", "1.234,50")] == [1.0, 1.0, 0.0]
    for power in ("\u00b710\u207b\u00b9\u2079 J", " x 10^-19 J", "e-19 J"):
        rows = [{"question": f"{n}?", "answer": f"{n},10{power}"} for n in range(1, 9)]
        assert "may have a decimal comma" in repr(gn.load_task(rows))
        assert {row["answer"] for row in both(gn.load_task(rows, decimal=","))} == {
            f"{n}.10{power}" for n in range(1, 9)
        }
    own = repr(gn.load_task(rows, decimal=",", system="Kurz.", example=("Wie viel?", "Ein Dutzend.", "12,00")))
    assert "decimals are paid with the point alone" in own and "'12,00' would not be paid: write it as '12.00'" in own
    assert "would not be paid" not in repr(
        gn.load_task(rows, decimal=",", example=("Wie viel?", "Ein Dutzend.", "12.00"))
    )


DAYS = [f"{day}.{month}." for day in (2, 9, 10, 11, 20, 31) for month in range(1, 13)]


@pytest.mark.parametrize(
    ("golds", "form"),
    [
        (DAYS, "31.7."),
        ([f"{day[:-1].replace('.', '/')}" for day in DAYS], "31/7"),
        ([f"{n % 12 + 1}/{n % 28 + 1}/2025 {n % 12 + 1}:30 PM" for n in range(40)], "7/31/2025 9:05 PM"),
        ([f"2025-03-{n:02} 14:{n:02}" for n in range(1, 29)], "2025-07-31 09:05"),
        ([f"{n % 24:02}:{n}:00" for n in range(10, 60)] * 2 + ["-"] * 9, "09:05:30, or -"),
        ([f"{n:02}/{n + 1990}" for n in range(1, 13)], "07/2025"),
        ([f"{n}/1024" for n in range(1, 13)], None),
        (["1/2", "3/4", "2/3", "5/8", "7/16", "11/20", "3/10", "29/8", "5/1", "4/9", "1/6", "10/3"], None),
        ([f"{n}/{under}" for under in (4, 8, 14) for n in range(1, under)], None),
        ([f"{n}.{n % 10 * 10 + 9}" for n in range(40)], None),
        ([f"{n}.{n % 7}.{n % 5}" for n in range(40)], None),
    ],
)
def test_dates_are_asked_for_and_paid_as_they_are_written(golds: list[str], form: str | None) -> None:
    """2.1. was paid for 2.10., and no prompt said how a date is to be written."""
    task = gn.load_task([{"question": f"{n}?", "answer": gold} for n, gold in enumerate(golds)])
    asked = f"answer as in {form}"
    assert (asked in task.format.system_prompt()) == bool(form) and ("answer as in" in repr(task)) == bool(form)
    assert ("are taken as days and months" in repr(task)) == (form == "31/7"), "they may be fractions after all"
    right = gn.rewards.rewards_for(task)[0]
    if form == "31.7.":
        assert [paid(right, given, "2.10.") for given in ("2.10.", "2.1.", "2.1")] == [1.0, 0.0, 0.0]
    elif form is None and "1/2" in golds:
        assert paid(right, "0.5", "1/2") == 1.0


@pytest.mark.parametrize(
    ("golds", "kind", "told"),
    [
        ([*map(str, range(19)), "n/a"], "numbers", "1 of 20 answers ('n/a') is no number: asked for and paid as written"),
        ([*map(str, range(12)), *["n/a"] * 3], "text", "3 of 15 answers ('n/a') are no numbers: all are taken as text"),
        ([*map(str, range(12)), *["a dozen"] * 6], "text", "6 of 18 answers ('a dozen') are no numbers"),
        ([*"AABB" * 4, "neither"], "labels", "1 of 17 answers ('neither') comes once or twice, while all others are a few"),
        ([*"AABB" * 4, "nobody knows " * 9], "text", ") comes once or twice, while all others are a few"),
        ([*(f"x^{n}" for n in range(19)), "none"], "expressions", "1 of 20 answers ('none') is no expression"),
        ([*DAYS, *["none"] * 6], "text", "6 of 78 answers ('none') may stand for no answer: asked for and paid as written"),
        ([*DAYS, "9.5.-11.5."], "text", "1 of 73 answers ('9.5.-11.5.') is written otherwise than all others"),
        ([*"abcdefg", "4 J", "7 J", "[1, 3]", "x^2", "x = 1"], "text", "3 of 12 answers are expressions, such as '[1, 3]': gn"),
        ([f"{n}/5" for n in range(1, 8)], "numbers", "7 answers, such as '1/5', could be days and months, and are read"),
        (["4.2 mmol/l", "7 mmol/l", "n.b."], "text", "'4.2 mmol/l': gn.rewards.correctness() pays"),
    ],
)  # fmt: skip
def test_the_few_that_are_not_like_the_others_are_told(golds: list[str], kind: str, told: str) -> None:
    task = gn.load_task([{"question": f"{n}?", "answer": gold} for n, gold in enumerate(golds)])
    assert task.answers.kind == kind and told in repr(task)


@pytest.mark.parametrize(
    "golds",
    [
        ["1", "2.5", "-3"] * 4,
        ["yes", "no"] * 6,
        ["Paris", "the Seine", "1789", "none"],
        ["x^2", "3", "2x"],
        ["40/50", "3/70"],
    ],
)
def test_answers_of_one_kind_raise_no_doubt(golds: list[str]) -> None:
    assert not doubts_of(answers_of(golds), golds)


def line_that_makes_texts(error: Exception) -> str:
    begun, _, line = str(error).partition("begin with: ")[2].partition("as texts: ")
    return begun.partition(". '")[0] + "\n" + line.partition("; or, where each")[0].removesuffix(".")


def mend(task: Any, names: dict[str, Any]) -> dict[str, Any]:
    """Run all lines that a task proposes, one after the other as printed."""
    for note in task.notes:
        if line := re.search(
            r"begin with: (.*)|(?:as plain text|to mend them|to read them): (.*)|is right, (.*), and pay", note
        ):
            exec(next(filter(None, line.groups())), names)
    return names


def test_empty_options_are_told() -> None:
    rows = [
        {"Q": f"Which is {n}?", "A": "x", "B": "y", "C": ("z", " ", None)[n % 3], "right": "AB"[n % 2]}
        for n in range(9)
    ]
    task = gn.load_task(rows, columns={"question": [*"QABC"], "answer": "right"})
    assert "'C' is empty in 6 of 9 rows, first in row 1: the question does without it" in repr(task)
    assert sorted(row["question"].count("\n") for row in both(task)) == [2] * 6 + [
        3
    ] * 3 and "'B' is empty" not in repr(task)


def test_answers_are_the_letters_of_options_however_they_are_written() -> None:
    """Eight spellings of three letters were texts, each to be written as in its row."""
    golds = ["a)", "B)", "c", "A", "(B)", "C.", "a", "b", "D", "x", "B:", "C"]
    rows = [
        {"Q": f"Which is {n}?", "A": "x", "B": "y", "C": "z", "D": None, "right": gold} for n, gold in enumerate(golds)
    ]
    task = gn.load_task(rows, columns={"question": [*"QABCD"], "answer": "right"})
    assert {row["Q"][9:-1]: row["answer"] for row in both(task)} == {
        str(n): "x" if gold == "x" else gold.strip("():.").upper() for n, gold in enumerate(golds) if gold != "D"
    }
    assert "8 answers are written as the letter of an option, such as 'a)' as 'A'" in repr(task)
    assert task.dropped == {"whose answer is an empty option": 1} and "row 8: " in repr(task)
    plain = gn.load_task([{"question": f"{n}?", "answer": gold} for n, gold in enumerate(golds[:4])])
    assert {row["answer"] for row in both(plain)} == {*golds[:4]}, "without options, a) is a text"


def test_a_line_that_was_cut_off_is_left_out_where_that_is_asked_for(tmp_path: Path) -> None:
    rows = [{"question": f"{n}?\u2028Yes?", "answer": str(n)} for n in range(4)]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    cut = written(tmp_path, "\r\n".join([*lines, lines[0][:20]]).encode(), "crashed.jsonl")
    with pytest.raises(
        ValueError, match=r"line 5 is not JSON.*damaged=\"drop\" leaves out all such lines \(1\) and loads 4$"
    ):
        gn.load_task(cut)
    task = gn.load_task(cut, damaged="drop")
    assert (
        len(both(task)) == 4
        and task.dropped == {"whose line cannot be read": 1}
        and 'line 5: \'{"question"' in repr(task)
    )
    wide = written(tmp_path, b'question,answer\n"a, b",1\nb,1\nc, d,2\ne,3\n', "wide.csv")
    with pytest.raises(
        ValueError, match=r"line 4 has more cells.*damaged=\"drop\" leaves out all such lines \(1\) and loads 3$"
    ):
        gn.load_task(wide)
    task = gn.load_task(wide, damaged="drop")
    assert {row["question"] for row in both(task)} == {"a, b", "b", "e"} and "line 4: 'c,d,2'" in repr(task)
    with pytest.raises(ValueError, match="damaged = 'skip' is not known here"):
        gn.load_task(cut, damaged="skip")
    with pytest.raises(ValueError, match="damaged = 'drop' does nothing for rows"):
        gn.load_task(rows, damaged="drop")
    broken = written(tmp_path, b"[\n{]\n", "broken.json")
    with pytest.raises(ValueError, match="line 1 is not JSON") as told:
        gn.load_task(broken, damaged="drop")
    assert "loads" not in str(told.value)


def test_fields_of_nested_rows_are_columns(tmp_path: Path) -> None:
    tickets = [{"ticket": {"id": n, "body": f"It is broken, {n}."}, "solved": {"by": "ab"[n % 2]}} for n in range(8)]
    file = written(tmp_path, "\n".join(map(json.dumps, tickets)).encode(), "tickets.jsonl")
    with pytest.raises(ValueError, match=r"'ticket\.body', 'solved\.by'"):
        gn.load_task(file)
    with pytest.raises(ValueError, match=r'"question": "ticket\.body"\}.*"answer": "solved\.by"\}'):
        gn.load_task(file, columns={"question": "ticket", "answer": "solved"})
    task = gn.load_task(file, columns={"question": "ticket.body", "answer": "solved.by"})
    assert task.answers.hint == "one of: a, b" and task.train[0]["question"].startswith("It is broken")
    assert {row["ticket"]["id"] for row in both(task)} == set(range(8))


@pytest.mark.parametrize(
    "form",
    [
        "question,answer;\nWhat?,1;\nWho?,2;\n",
        "question;answer;\nWhat?;1;\nWho?;2;",
        "question;answer\nWhat?;1;\nWho?;2;",
    ],
)
def test_a_mark_at_the_end_of_lines_is_no_column(form: str, tmp_path: Path) -> None:
    task = gn.load_task(written(tmp_path, form.encode()))
    assert {row["question"]: row["answer"] for row in both(task)} == {"What?": "1", "Who?": "2"}


@pytest.mark.parametrize("name", ["Text, in full, or not", "Text\n(free)", 'He said, "no, no"'])
def test_names_in_quotes_do_not_tell_the_separator(name: str, tmp_path: Path) -> None:
    quoted = '"' + name.replace('"', '""') + '"'
    file = written(tmp_path, f"{quoted};Rating\ngood;5\nbad;1\n".encode())
    with pytest.raises(ValueError, match="Map it") as told:
        gn.load_task(file, columns={"answer": "Rating"})
    proposed = str(told.value).partition("Map it: columns=")[2].removesuffix(".")
    task = gn.load_task(file, columns=eval(proposed))
    assert {row["question"]: row["answer"] for row in both(task)} == {"good": "5", "bad": "1"}


def test_a_named_index_is_a_column() -> None:
    frame = pandas.DataFrame({"text": ["a", "b"], "label": ["x", "y"]})
    task = gn.load_task(frame.set_index("text"), columns={"question": "text", "answer": "label"})
    assert {row["question"]: row["answer"] for row in both(task)} == {"a": "x", "b": "y"}
    numbered = frame.rename_axis("row")
    assert "row" in gn.load_task(numbered, columns={"question": "text", "answer": "label"}).train.column_names


def test_spaces_around_the_names_of_columns_do_not_count() -> None:
    frame = pandas.DataFrame({" Review ": ["a", "b"], "label ": ["1", "2"]})
    task = gn.load_task(frame, columns={"question": "Review", "answer": "label "})
    assert len(both(task)) == 2 and "spaces around the names of columns were taken away" in repr(task)


def test_options_keep_their_letters_and_stay_columns() -> None:
    rows = [{"Q": f"Which is {n}?", "A": n, "B": n + 1, "right": "AB"[n % 2]} for n in range(8)]
    task = gn.load_task(rows, columns={"question": ["Q", "A", "B"], "answer": "right"})
    row = task.train[0]
    assert row["question"] == f"{row['Q']}\nA) {row['A']}\nB) {row['B']}"
    turned = [{**row, "A": row["B"], "B": row["A"], "right": "BA"[n % 2]} for n, row in enumerate(rows)]
    for seed in range(8):  # the same question with its options in another order is on the same side
        task = gn.load_task([*rows, *turned], columns={"question": ["Q", "A", "B"], "answer": "right"}, seed=seed)
        assert not set(task.train["Q"]) & set(task.holdout["Q"])


def test_a_question_of_several_columns_stands_one_below_the_other(tmp_path: Path) -> None:
    goods = [
        {"item": {"title": f"Pan {n}", "body": f"Iron, {n}." if n else None}, "kind": "ab"[n % 2]} for n in range(8)
    ]
    file = written(tmp_path, "\n".join(map(json.dumps, goods)).encode(), "goods.jsonl")
    task = gn.load_task(file, columns={"question": ["item.title", "item.body"], "answer": "kind"})
    assert {"Pan 0", "Pan 3\nIron, 3."} < {row["question"] for row in both(task)}
    carts = [{"Goods": f"{n} pans, {n} pots", "Off %": n or None, "By": "air", "sum": n * 3} for n in range(8)]
    mapped = {"question": ["Goods", "Off %", "By"], "answer": "sum"}
    task = gn.load_task(carts, columns=mapped)
    assert {"0 pans, 0 pots\nBy: air", "5 pans, 5 pots\nOff %: 5\nBy: air"} < {row["question"] for row in both(task)}
    assert "'Off %' is empty in 1 of 8 rows, first in row 0" in repr(task)
    assert "is empty" not in repr(gn.load_task(carts, columns=mapped, keep=lambda row: row["sum"]))
    told = gn.load_task([{**cart, "solution": "s", "id": 1} for cart in carts], columns=mapped).notes
    assert "not part of the prompt, but there for rewards: 'solution', 'id'" in told


def test_a_total_line_is_told_with_the_line_that_leaves_it_out(tmp_path: Path) -> None:
    file = written(
        tmp_path,
        b"no,question,answer\n" + b"".join(b"%d,is %d odd?,no\n" % (n, n) for n in range(8)) + b"Total,all,8\n",
    )
    shown = repr(gn.load_task(file))
    told = re.search(r"the last row seems to add up the others.*: keep=(lambda row: .*?) leaves it out", shown)
    task = gn.load_task(file, keep=eval(told[1]))
    assert task.dropped == {"that keep= leaves out": 1} and "row 8: question='all', answer='8'" in repr(task)
    assert {row["answer"] for row in both(task)} == {"no"} and "add up" not in repr(task)
    sums = [{"question": f"{n}?", "answer": ("total", "part")[n % 2]} for n in range(9)]
    assert "add up" not in repr(gn.load_task(sums)), "a word that other rows have is one of the data"


def test_one_answer_in_two_spellings_is_no_contradiction() -> None:
    spelled = ["70%", "70 %", "2.5 kg", "2.50 kg", "7", "7.0"]
    task = gn.load_task([{"question": f"{n // 2}?", "answer": gold} for n, gold in enumerate(spelled)])
    assert task.dropped == {"repeated": 3}
    spelled = ["refund", "Refund.", "3.01e23", "3.01 x 10^23", "a long story", "another"]
    assert gn.load_task(
        [{"question": f"{min(n // 2, 2) + n // 5}?", "answer": gold} for n, gold in enumerate(spelled)]
    ).dropped == {"repeated": 2}
    for pair in (["70 %", "70 kg"], ["007", "agent 7"], ["2.1.", "2.10."]):
        with pytest.raises(ValueError, match="different answers"):
            gn.load_task([{"question": "a?", "answer": gold} for gold in pair] + [{"question": "b?", "answer": "c"}])


def test_spaces_around_answers_are_told() -> None:
    task = gn.load_task([{"question": f"{n}?", "answer": f"{n} kg" + " " * (n % 2)} for n in range(8)])
    assert "spaces around 4 answers were taken away, as around '1 kg '" in repr(task)
    task = gn.load_task([{"question": f"{n}?", "answer": f"{n} kg" + " " * (n == 5)} for n in range(8)])
    assert "spaces around 1 answer were taken away, as around '5 kg '" in repr(task)


@pytest.mark.parametrize("name", ["__index_level_0__", "Unnamed: 0"])
def test_an_index_that_pandas_wrote_is_no_column(name: str, tmp_path: Path) -> None:
    frame = pandas.DataFrame({"question": list("abc"), "answer": list("xyz"), name: [7, 8, 9]})
    frame.to_parquet(tmp_path / "goods.parquet")
    task = gn.load_task(tmp_path / "goods.parquet")
    assert name not in task.train.column_names and f"{name} is an index that pandas wrote" in repr(task)
    asked = gn.load_task(tmp_path / "goods.parquet", columns={"question": "question", "answer": name})
    assert {row["answer"] for row in both(asked)} == {"7", "8", "9"}, "what is asked for is taken"


@pytest.mark.parametrize(
    ("row", "question", "answer"),
    [
        ({"text": "a pan", "category": {"id": 7, "name": "kitchen"}}, "text", "category.name"),
        ({"review_id": "a9", "review_text": "ok", "label": 3, "label_text": "good"}, "review_text", "label_text"),
        ({"query": "q", "class_id": 4, "score": 0.3}, "query", "class_id"),
        ({"No.": 4, "Body": "Dear all", "Result (final)": "ok"}, "Body", "Result (final)"),
        ({"Front": "p", "Back": "a much longer text"}, "Front", "Back"),
        ({"Target": "Atheism", "Tweet": "t", "Stance": "NONE"}, "Tweet", "Stance"),
        ({"tgt": "a text", "src": "a much longer one"}, "src", "tgt"),
        ({"Pytanie": "p", "Odpowied\u017a": "a much longer text"}, "Pytanie", "Odpowied\u017a"),
        ({"id": 1, "body": "b", "solution": "a long text", "answer": 3, "hint": "h"}, "body", "answer"),
    ],
)
def test_names_are_proposed_before_numbers_that_stand_for_them(row: dict, question: str, answer: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f'columns={{"question": "{question}", "answer": "{answer}"}}')):
        gn.load_task([row] * 3)


def test_of_two_columns_of_any_name_the_first_is_the_question_and_the_other_way_round_is_told() -> None:
    with pytest.raises(ValueError, match="Map it") as told:
        gn.load_task([{"German": f"p {n}", "English": f"much longer {n}"} for n in range(9)])
    assert re.findall(r"columns=(\{.*?\})", str(told.value)) == [
        '{"question": "German", "answer": "English"}',
        '{"question": "English", "answer": "German"}',
    ]
    with pytest.raises(ValueError, match=re.escape('columns={"question": "words", "answer": "kind"} (guessed')):
        gn.load_task([{"kind": "ab"[n % 2], "words": f"p {n}"} for n in range(9)])


@pytest.mark.parametrize(
    "rows", [["2 + 2?\t4", "3 + 3?\t6", "1 + 1?\t2"], ["I like it.\tgood", *["No.\tbad", "Yes!\tgood"] * 2]]
)
def test_a_file_without_names_comes_with_the_line_that_reads_it(rows: list[str], tmp_path: Path) -> None:
    file = written(tmp_path, "\n".join(rows).encode("utf-16"), "pairs.tsv")
    first = rows[0].split("\t")
    with pytest.raises(ValueError, match="These do not look like names") as told:
        gn.load_task(file)
    mapped = gn.load_task(file, columns=dict(zip(("question", "answer"), first, strict=True)))
    for said in (str(told.value), "\n".join(mapped.notes)):
        task = eval(
            re.search(r"import pandas; (gn\.load_task\(.*dtype=str\)\))", said)[1], {"gn": gn, "pandas": pandas}
        )
        assert {"question": first[0], "answer": first[1]}.items() <= next(
            r for r in both(task) if r["question"] == first[0]
        ).items()
    assert "row of the data" not in repr(gn.load_task(written(tmp_path, b"question,answer\n1?,4\n2?,5\n")))
    numbered = pandas.read_csv(file, sep="\t", header=None, encoding="utf-16")
    assert len(both(gn.load_task(numbered, columns={"question": 0, "answer": 1}))) > 1


def test_symbols_tell_questions_apart_but_not_the_sides() -> None:
    """`C#` is not `C`; but what differs only in punctuation is held out together, or a comparison would refuse it."""
    texts = ["C#", "C", ":(", "(:", "$5", "5", ".NET", "net", "a b", "a  b?"]
    task = gn.load_task(
        [{"question": text, "answer": str(i)} for i, text in enumerate(texts)], contradictory="drop", holdout=2
    )
    assert len(both(task)) == 8 and task.dropped == {"contradictory": 2}
    plain = [{normalized_question(q) for q in part["question"]} for part in (task.train, task.holdout)]
    assert not plain[0] & plain[1]


def test_chats_of_other_forms() -> None:
    share = [
        {"conversations": [{"from": "human", "value": f"{n}?"}, {"from": "gpt", "value": str(n)}]} for n in range(4)
    ]
    task = gn.load_task(share, holdout=1)
    assert task.train[0]["prompt"] == [{"role": "user", "content": task.train[0]["question"]}]
    assert {row["answer"] for row in both(task)} == {"0", "1", "2", "3"} and "what the assistant says last" in repr(
        task
    )
    written_out = [{"prompt": json.dumps([{"role": "user", "content": f"{n}?"}]), "answer": "1"} for n in range(4)]
    assert gn.load_task(written_out, holdout=1).train[0]["prompt"][0]["role"] == "user"


@pytest.mark.parametrize(
    ("source", "options", "error", "told"),
    [
        (REVIEWS, {"columns": MAPPED, "sep": ";"}, ValueError, "no argument 'sep'"),
        (REVIEWS, {"colunms": MAPPED}, ValueError, "did you mean 'columns'"),
        ("data.xlsx", {}, ValueError, r"'.xlsx' is not read.*pandas"),
        ("data.txt", {}, ValueError, r"'.txt' is not read.*pandas"),
        (pandas.DataFrame([["a?", 1], ["b?", 2]]), {}, ValueError, "do not look like names"),
        ([{"id": 1, "one": "a", "two": "b"}] * 2, {}, ValueError, r'"question": "<column>", "answer": "<column>"'),
    ],
)  # fmt: skip
def test_what_a_newcomer_stumbled_over(source: Any, options: dict, error: type, told: str) -> None:
    with pytest.raises(error, match=told):
        gn.load_task(source, **options)


def test_what_excel_saves_as_unicode_text_is_a_table(tmp_path: Path) -> None:
    table, prose = tmp_path / "Buchungen.txt", tmp_path / "notes.txt"
    table.write_text("question\tanswer\n" + "".join(f"Kunde {n}?\t{n:06d}\n" for n in range(9)), encoding="utf-16")
    assert sorted(row["answer"] for row in both(gn.load_task(table))) == [f"{n:06d}" for n in range(9)]
    prose.write_text("question and answer\n")
    with pytest.raises(ValueError, match=r"'\.txt' is not read"):
        gn.load_task(prose)


@pytest.mark.parametrize(
    ("asked", "answer"),
    [(["Subject", "Body"], "Team"), (["Subject", "Body"], "team in charg"), (["Subjekt", "Body"], "T")],
)
def test_a_column_that_is_not_there_is_told_with_a_map_that_works(asked: list[str], answer: str) -> None:
    rows = [{"Subject": f"S {n}", "Body": f"B {n}", "Team in charge": "ab"[n % 2], "T": "x"} for n in range(8)]
    with pytest.raises(ValueError, match="did you mean") as told:
        gn.load_task(rows, columns={"question": asked, "answer": answer})
    assert "+" not in str(told.value)
    mapped = eval(str(told.value).partition("columns=")[2].removesuffix("."))
    assert mapped == {"question": ["Subject", "Body"], "answer": "T" if answer == "T" else "Team in charge"}
    assert gn.load_task(rows, columns=mapped)


def test_settings_and_data_in_each_other_s_place() -> None:
    with pytest.raises(TypeError, match=r"settings = 'reviews.csv' must be settings: write settings = gn\.preset"):
        gn.load_task(gn.preset("cpu"), "reviews.csv")


def test_a_data_set_of_the_hub_is_named_with_its_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *names, **parts: asked.append((names, parts)) or Dataset.from_list(REVIEWS)
    )
    gn.load_task("gsm8k", columns=MAPPED)
    gn.load_task("me/reviews", columns=MAPPED, config="short", split="test")
    assert asked == [(("openai/gsm8k", "main"), {"split": "train"}), (("me/reviews", "short"), {"split": "test"})]


def test_a_decimal_comma_is_one_in_other_columns_too(tmp_path: Path) -> None:
    file = written(tmp_path, b"question;answer;sum;share;day\nA?;1,5;4.452,53;0.125;1.12.2024\nB?;2,5;;0.5;2.12.2024\n")
    rows = sorted(both(gn.load_task(file, decimal=",")), key=lambda row: row["question"])
    assert [(row["sum"], row["share"], row["day"]) for row in rows] == [
        (4452.53, 0.125, "1.12.2024"),
        (None, 0.5, "2.12.2024"),
    ]
    assert {row["sum"] for row in both(gn.load_task(file))} == {"4.452,53", ""}


def test_a_decimal_comma_leaves_what_is_no_number_alone() -> None:
    days = [{"question": f"due {i}", "answer": f"{i % 28 + 1}.12.2024"} for i in range(60)]
    task = gn.load_task(days, decimal=",")
    assert sorted({*task.train["answer"], *task.holdout["answer"]}) == sorted({row["answer"] for row in days})
    assert "decimal=',' changed nothing: most answers are no numbers" in repr(task)
    for unit in ("", " kg"):
        amounts = [{"question": f"amount {i}", "answer": f"{i}.000,50{unit}"} for i in range(1, 20)] + [
            {"question": "no amount", "answer": "n/k"}
        ]
        task = gn.load_task(amounts, decimal=",")
        assert {f"1000.50{unit}", "n/k"} <= {*task.train["answer"], *task.holdout["answer"]}
        assert f"wrote 19 answers anew, such as '1.000,50{unit}' as '1000.50{unit}'" in repr(task)


def test_fractions_beside_a_decimal_comma_are_numbers() -> None:
    """Of 40 answers 8 have a comma; the others are fractions, mixed numbers, percent. Rows are counted, not spellings."""
    golds = ["0,75", "3/4", "1 1/2", "12 %", r"\frac{2}{3}"] * 8
    rows = [{"question": f"How much is {n}?", "answer": gold} for n, gold in enumerate(golds)]
    assert "8 answers, such as '0,75', may have a decimal comma" in repr(gn.load_task(rows))
    task = gn.load_task(rows, decimal=",")
    assert {row["answer"] for row in both(task)} == {"0.75", *golds[1:5]}
    assert "wrote 8 answers anew, such as '0,75' as '0.75'" in repr(
        task
    ) and "decimals with a point as in 0.12" in repr(task)


def test_one_value_in_two_writings_is_a_question_of_the_comma() -> None:
    rows = [{"question": f"{n}?", "answer": str(n)} for n in range(8)]
    rows += [{"question": "Half of a half?", "answer": gold} for gold in ("0,25", "1/4")]
    with pytest.raises(ValueError, match=r"'0,25' and '1/4'.*these are one answer: decimal=','"):
        gn.load_task(rows)
    assert len(both(gn.load_task(rows, decimal=","))) == 9
    with pytest.raises(ValueError, match="different answers") as caught:
        gn.load_task([*rows[:-1], {"question": "Half of a half?", "answer": "1/3"}])
    assert "decimal" not in str(caught.value)


def test_few_numbers_that_come_again_have_a_floor_and_no_point() -> None:
    ratings = [{"question": f"review {n}", "answer": "5" if n % 3 else str(n % 4 + 1)} for n in range(90)]
    task = gn.load_task(ratings, decimal=",")
    assert task.answers.kind == "numbers" and task.answers.floor == ("5", 60 / 90)
    assert "\nnumber\n" in task.format.system_prompt()
    half = gn.load_task([*ratings, *({"question": f"r {n}", "answer": "4,5"} for n in range(9))], decimal=",")
    assert "number, decimals with a point as in 1.2\n" in half.format.system_prompt()
    assert answers_of([str(n) for n in range(90)]).floor is None and answers_of(["5"] * 40).floor is None


@pytest.mark.parametrize(
    "begins", ['"Nice" bag, said my mum', '"Nice bag', '"Nice ""thing"" bag", she said', ' "odd" one']
)
def test_a_file_without_quotes_is_read_as_it_stands(begins: str, tmp_path: Path) -> None:
    lines = [f"row {n}\t{n}" for n in range(9)]
    lines[4:4] = [f"{begins}\t5", 'and then "bad"\t1']
    (tmp_path / "x.tsv").write_text("\n# note\nquestion\tanswer\n" + "\n".join(lines) + "\n")
    read = read_rows(tmp_path / "x.tsv")
    assert [row["question"] for row in read.rows][4:6] == [begins.strip(), 'and then "bad"'] and len(read.rows) == 11
    assert any(note.startswith("line 8 begins a text with a quotation mark") for note in read.notes)


@pytest.mark.parametrize("cell", ['"said ""no"""', '"a\tb"', '"two\nlines"', '"whole"'])
def test_a_file_with_quotes_is_read_with_them(cell: str, tmp_path: Path) -> None:
    (tmp_path / "x.tsv").write_text(f"question\tanswer\na\t1\n{cell}\t2\nc\t3\n")
    meant = cell[1:-1].replace('""', '"')
    assert [row["question"] for row in read_rows(tmp_path / "x.tsv").rows] == ["a", meant, "c"]
    broken = f'\nquestion\tanswer\na\t1\n{cell}\t2\n"bad" mark\t3\n'
    (tmp_path / "x.tsv").write_text(broken)
    with pytest.raises(
        ValueError, match=rf"line {broken.count(chr(10))} cannot be read as CSV.*pandas\.read_csv\(.*quoting=3\)"
    ):
        read_rows(tmp_path / "x.tsv")


def test_quotes_that_end_are_quotes_though_each_line_has_as_many_separators(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text('question,answer\n"Dear all,\nbye",2\nc,3\n')
    assert [row["question"] for row in read_rows(tmp_path / "x.csv").rows] == ["Dear all,\nbye", "c"]


def test_an_example_must_not_tell_a_held_out_answer() -> None:
    rows = [{"question": f"Where is parcel {i}?", "answer": "lost" if i % 2 else "sent"} for i in range(40)]
    held = gn.load_task(rows).holdout[0]
    with pytest.raises(ValueError, match="is one of the held-out ones"):
        gn.load_task(rows, example=(held["question"] + " ", "It says so.", held["answer"]))
    odd = gn.load_task(rows, example=("Where is mine?", "It says so.", "Versand"))
    assert "the example's answer 'Versand' is none of the labels" in repr(odd)


def test_names_made_of_digits_and_columns_of_every_kind_are_told() -> None:
    rows = [{"question": f"order {i}", "answer": f"{i * 37:02d}", "pages": i, "paid": i % 2 == 0} for i in range(30)]
    shown = repr(gn.load_task(rows))
    assert "1 answers, such as '00', begin with zeros" in shown and "exact_text()" in shown
    assert "not part of the prompt, but there for rewards: 'pages', 'paid'" in shown


@pytest.mark.parametrize("typed", ["dates.jsn", "datess.json"])
def test_a_misspelt_file_is_told_at_once_with_the_one_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, typed: str
) -> None:
    (tmp_path / "dates.json").write_text("[]")
    monkeypatch.setattr(reading, "_read_hub", None)  # what asks the Hub for it would take 20 s to say less
    with pytest.raises(FileNotFoundError, match=r"Did you mean '.*dates\.json'"):
        gn.load_task(str(tmp_path / typed))


@pytest.mark.parametrize(
    "text",
    [
        'Nr;Text;Covered?;\r\n1;"two\r\nlines";yes;\r\n2;b;no;\r\n3;c;no;\r\n4;d;yes;\r\n',
        "Nr;Text;Covered?;;\n1;a;yes;;\n2;b;no;;\n3;c;no;;\n4;d;yes;;\n",
    ],
)
def test_marks_at_the_end_of_each_line_are_taken_away(text: str, tmp_path: Path) -> None:
    """Also where a cell has a line break in it, and where there are two of them."""
    (tmp_path / "claims.csv").write_bytes(text.encode())
    read = read_rows(tmp_path / "claims.csv")
    assert list(read.rows[0]) == ["Nr", "Text", "Covered?"] and [row["Covered?"] for row in read.rows] == [
        "yes", "no", "no", "yes",
    ]  # fmt: skip
    assert "the mark at the end of each line was taken away" in read.notes


def test_the_line_for_a_title_above_the_names_reads_the_file(tmp_path: Path) -> None:
    path = tmp_path / "claims.csv"
    path.write_bytes("Schäden;;\n;;\nNr;Text;Covered?\n1;ü;yes\n2;b;no\n".encode("cp1252"))
    with pytest.raises(ValueError, match=r"take the lines above them away") as caught:
        read_rows(path)
    line = re.search(r"pandas\.read_csv\(.*\)", str(caught.value))[0]
    assert list(eval(line, {"pandas": pandas, "path": path})["Text"]) == ["ü", "b"]


@pytest.mark.parametrize(
    "prices",
    [
        ["EUR 12,90", "EUR 5,00", "EUR 129,00"],
        ["12,90 €", "5,00 €", "129,00 €"],
        ["12,90 €", "EUR 5,00", "129,- Euro"],
    ],
)
def test_prices_that_come_again_are_no_labels(prices: list[str]) -> None:
    rows = [{"question": f"What does {n} cost?", "answer": prices[n % 3]} for n in range(30)]
    task = gn.load_task(rows, decimal=",")
    shown = repr(task)
    assert task.answers.kind == "numbers" and "the number with its currency or alone" in shown
    assert "changed nothing" not in shown and "a number with a unit" not in shown
    gold, reward = task.train[0]["answer"], gn.rewards.rewards_for(task)[0]
    assert len(task.answers.units) == 1, "EUR, Euro and € are one unit"
    bare = re.search(r"[0-9.]*[0-9]", gold)[0]
    other = f"${bare}"
    wrong = gold.replace("2", "3").replace("5", "6")
    assert [paid(reward, text, gold) for text in (gold, bare, other, wrong)] == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("ways", "others"),
    [
        (["5 €", "€5", "EUR 5.00", "5 Euro", "5 euros"], ["$5", "5 USD", "5 pounds", "5 kg", "6 €"]),
        (["$5", "5 dollars", "USD 5", "US$5", "5 US dollars"], ["5 €", "5 AUD", "5 cents", "6 USD"]),
        (["£5", "5 GBP", "5 pounds sterling"], ["5 lb", "5 kg", "5 €"]),
        (["5 lb", "5 lbs", "5 pounds"], ["£5", "5 oz", "5 kg", "5"]),
        (["2½ tsp", "2 1/2 tsp", "2.5 teaspoons", r"\frac{5}{2} tsp"], ["2.5 tbsp", "½ tsp", "2 tsp", "2.5"]),
    ],
)
def test_writings_of_one_price_or_measure_are_one_answer_and_no_contradiction(
    ways: list[str], others: list[str]
) -> None:
    for gold in ways:
        assert [given for given in ways if not paid(gn.rewards.correctness(), given, gold)] == []
        assert [given for given in others if paid(gn.rewards.correctness(), given, gold)] == []
    task = gn.load_task([{"question": f"{n // 2}?", "answer": ways[n % 2]} for n in range(12)])
    assert task.answers.kind == "numbers" and task.dropped == {"repeated": 6} and len(task.answers.units) == 1
    assert paid(gn.rewards.correctness(), "5 pounds", "£5") == 1.0, "of money, they are no weight"


def paid(reward: Any, given: str, gold: str) -> float:
    return reward(completions=[gn.tasks.xml().render("So.", given)], answer=[gold])[0]


@pytest.mark.parametrize("other", ["paris", "Paris.", '"Paris"', "'Paris'", "\u201eParis\u201c", "\u00abparis.\u00bb"])
def test_writings_of_one_text_are_paid_as_one(other: str) -> None:
    golds = ["Paris", other, "Rome", "Oslo", "the Seine"]
    task = gn.load_task([{"question": f"{n}?", "answer": gold} for n, gold in enumerate(golds)])
    right = gn.rewards.rewards_for(task)[0]
    assert paid(right, other, "Paris") == paid(right, "Paris", other) == 1.0 and paid(right, other, "Rome") == 0.0


def test_a_code_with_zeros_in_front_is_no_number() -> None:
    """All of `023954` were numbers, and `23954` was paid in full."""
    task = gn.load_task([{"question": f"Customer {n}?", "answer": f"{n * 7919 % 99991:06d}"} for n in range(40)])
    right = gn.rewards.rewards_for(task)[0]
    assert task.answers.hint == "answer as in 012345" and gn.check_rewards(right, task).ok
    assert paid(right, "023954", "023954") == 1.0 and paid(right, "23954", "023954") == 0.0
    for golds in (["100", "205", "310"], ["7", "007"], ["0", "1"]):
        assert answers_of([*golds, *map(str, range(400, 440))]).form == ""


def test_zeros_that_pandas_lost_are_told() -> None:
    frame = pandas.DataFrame(
        {"question": [f"Kd.{n:06d} pays" for n in range(1, 20)], "answer": [float(n) for n in range(1, 20)]}
    )
    assert "19 questions have their answer with zeros in front of it, such as '1'" in repr(gn.load_task(frame))
    frame["question"] = [f"What is {n} + 0.{n}?" for n in range(1, 20)]
    assert "zeros in front" not in repr(gn.load_task(frame))


def test_the_end_mark_of_a_sentence_is_its_writers() -> None:
    right = gn.rewards.correctness()
    for given, gold in (
        ("Are you sure", "Are you sure?"),
        ("shut it!", "Shut it."),
        ("\u201cStop!\u201d he cried", '"Stop!" he cried.'),
    ):
        assert paid(right, given, gold) == 1.0
    for given, gold in (("Paris?", "Paris"), ("5", "5!"), ("n", "n!"), ("Are you", "Are you sure?")):
        assert paid(right, given, gold) == 0.0


@pytest.mark.parametrize("other", ["C#", "C ++", "Dr. C", "C'"])
def test_other_texts_are_no_writings_of_one(other: str) -> None:
    assert doubts_of(answers_of(golds := ["C", other, "Rome", "Oslo"]), golds) == []


def test_one_unit_is_asked_for() -> None:
    task = gn.load_task([{"question": f"{n}?", "answer": f"{n} star" + "s" * (n > 1)} for n in range(1, 9)])
    assert task.answers.hint == "number with its unit (star)"


INVOICES = [
    {
        "text": f"Invoice {n} of V{n}",
        "gold": {"vendor": f"V{n}", "total": n if n % 2 else f"{n}.50"} | ({"paid": True} if n > 7 else {}),
    }
    for n in range(10)
]


def test_dicts_are_answers_in_json_with_their_keys_in_the_prompt() -> None:
    """A newcomer's invoices were 'expressions', and maths paid one that was not theirs."""
    task = gn.load_task(INVOICES, columns={"question": "text", "answer": "gold"})
    assert 'a JSON object with the keys "vendor", "total"\n' in task.train[0]["prompt"][0]["content"]
    assert "'gold' holds dicts, each taken as JSON" in repr(task) and 'JSON object with the keys "vendor"' in repr(task)
    written = gn.load_task(
        [{**row, "gold": json.dumps(row["gold"])} for row in INVOICES], columns={"question": "text", "answer": "gold"}
    )
    assert [row["answer"] for row in both(written)] == [row["answer"] for row in both(task)]
    right = gn.rewards.rewards_for(task)[0]
    assert paid(right, '{"total": 1.0, "vendor": "V1"}', '{"vendor": "V1", "total": 1}') == 1.0
    assert paid(right, '{"total": 2, "vendor": "V1"}', '{"vendor": "V1", "total": 1}') == 0.0
    trivia = {"aliases": ["V"], "entity": "", "normalized_value": "liechtenstein", "value": "Liechtenstein"}
    told = repr(gn.load_task([{"question": f"{n}?", "answer": trivia} for n in range(4)]))
    assert '"answer": "answer.value"' in told, "a list or nothing is no answer where there is a text"
    lists = gn.load_task([{"question": f"{n}?", "answer": json.dumps([n, "a"])} for n in range(4)])
    assert lists.answers.hint == "a JSON array"
    assert answers_of(['{"mood": "good"}'] * 3).hint == 'a JSON object with the key "mood"'


def test_json_of_one_value_is_no_contradiction_and_capitals_in_it_are_kept() -> None:
    rows = [{"question": f"{n}?", "answer": json.dumps({"name": "Xx"[n % 2]})} for n in range(8)]
    rows += [{"question": "9?", "answer": '{"a": 1, "b": 2}'}, {"question": "9?", "answer": '{"b":2,"a":1}'}]
    task = gn.load_task(rows)
    assert task.dropped == {"repeated": 1} and {row["answer"] for row in both(task)} >= {
        '{"name": "X"}',
        '{"name": "x"}',
    }
    assert "1 of 9 answers ('none') is no JSON object or array" in repr(
        gn.load_task([*rows[:8], {"question": "9?", "answer": "none"}])
    )


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (["gold.vendor", "gold.total"], 'an answer is one column: "answer": "gold" takes the dicts'),
        (["vendor", "total"], r"""make a column of dicts of them"""),
    ],
)
def test_several_columns_as_an_answer_are_told_what_to_write(answer: list[str], told: str) -> None:
    with pytest.raises(ValueError, match=told):
        gn.load_task(INVOICES, columns={"question": "text", "answer": answer})
    frame = pandas.json_normalize([row["gold"] for row in INVOICES]).assign(text=[row["text"] for row in INVOICES])
    frame["gold"] = frame[["vendor", "total"]].to_dict("records")  # as the message has it
    assert gn.load_task(frame, columns={"question": "text", "answer": "gold"}).answers.kind == "json"


def test_dicts_of_several_types_beside_the_question_are_kept_as_json() -> None:
    task = gn.load_task(INVOICES, columns={"question": "text", "answer": "gold.vendor"})
    assert "'gold' holds dict, and is kept as JSON text" in repr(task)
    assert {json.loads(row["gold"])["vendor"] for row in both(task)} == {row["answer"] for row in both(task)}


def test_labels_written_with_other_marks_between_their_words_are_one() -> None:
    labels = ["shipping status", "Shipping-Status", "refund", "refund", "shipping status", "shipping_status"] * 5
    task = gn.load_task([{"question": f"Text {n}", "answer": label} for n, label in enumerate(labels)])
    assert dict(task.answers.labels) == {"shipping status": 0.5 + 1 / 6, "refund": pytest.approx(1 / 3)}
    twice = [{"question": f"Text {n // 2}", "answer": ["IT-Support", "IT - Support"][n % 2]} for n in range(20)]
    assert gn.load_task([*twice, *({"question": f"{n}", "answer": "Sales"} for n in range(9))]).dropped == {
        "repeated": 10
    }
    often = ["IT-Support", "it support", "Sales", "IT-Support"] * 40 + [f"case {chr(n)}" for n in range(97, 122)]
    nearly = gn.load_task([{"question": f"Text {n}", "answer": label} for n, label in enumerate(often)])
    assert nearly.answers.kind == "text" and "it support" not in {row["answer"] for row in both(nearly)}
    apart = gn.load_task([{"question": f"Text {n}", "answer": ["1-2", "12", "1 2"][n % 3]} for n in range(30)])
    assert len({row["answer"] for row in both(apart)}) == 3, "of digits, a mark between them is none between words"


def test_a_list_of_options_stands_in_the_prompt_and_an_index_becomes_its_letter() -> None:
    """As in MMLU. Nothing said that the model was to guess an index of options that it had not seen."""
    rows = [{"question": f"What is {n}?", "choices": [f"x{n}", n, "y", "z"], "answer": n % 4} for n in range(16)]
    line = re.search(r"columns=(\{.*?\}) shows them", repr(gn.load_task(rows)))[1]
    mapped = eval(line)
    assert mapped == {"question": ["question", "choices"], "answer": "answer"}
    forms = {
        "0": rows,
        "1": [{**row, "answer": row["answer"] + 1} for row in rows],
        "letter": [{**row, "answer": "abcd"[row["answer"]]} for row in rows],
        "text": [{**row, "answer": row["choices"][row["answer"]]} for row in rows],
        "AQuA": [
            {**row, "choices": [f"{a}){text}" for a, text in zip("ABCD", row["choices"], strict=True)]} for row in rows
        ],
        "ARC": [
            {
                **row,
                "choices": {"label": [*"1234"], "text": [*map(str, row["choices"])]},
                "answer": str(row["answer"] + 1),
            }
            for row in rows
        ],
    }
    for form, given in forms.items():
        task = gn.load_task(given, columns=mapped)
        assert {row["question"]: row["answer"] for row in both(task)} == {
            f"What is {n}?\nA) x{n}\nB) {n}\nC) y\nD) z": "ABCD"[n % 4] for n in range(16)
        }, form
        assert type(gn.rewards.rewards_for(task)[0]).__name__ == "multiple_choice"
        assert set(task.train.column_names) == {
            "prompt",
            "question",
            "answer",
            "choices",
        } and "options that are not" not in repr(task)
    assert "counted from 0, are written as the letters of 'choices', such as 0 as 'A'" in repr(
        gn.load_task(rows, columns=mapped)
    )
    assert "counted from 1, are written" in repr(gn.load_task(forms["1"], columns=mapped))
    unknown_too = [*rows, {**rows[0], "question": "?", "answer": -1}]
    assert gn.load_task(unknown_too, columns=mapped).dropped == {"with an empty answer": 1}
    known = gn.load_task(unknown_too, columns=mapped, keep=lambda row: row["answer"] >= 0)
    assert known.dropped == {"that keep= leaves out": 1}, "keep= sees the answer of the data"
    sums = [{**row, "choices": [n, n + 1, n + 2], "answer": n + 1} for n, row in enumerate(rows)]
    dirty = gn.load_task([*sums, {**sums[0], "question": "?", "answer": 99}], columns=mapped)
    assert {row["answer"] for row in both(dirty)} == {"B", "99"}, "one that is no option makes no index of the others"
    plain = [{**row, "facts": row["choices"]} for row in rows]
    with pytest.raises(ValueError, match="whose question is no text"):  # a list that is not called options is none
        gn.load_task(plain, columns={"question": ["question", "facts"], "answer": "answer"})
