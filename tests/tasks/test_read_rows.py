"""Each source is read unchanged, or refused with its file, row and line."""

from __future__ import annotations

import html
import json
from pathlib import Path
from typing import Any

import pandas
import pytest
from datasets import Dataset, DatasetDict

import grpo_nb as gn
from grpo_nb.tasks.read_rows import read_rows
from tests.conftest import ROOT

ROWS = [{"question": f"Año {n}, or not?", "answer": str(n), "level": f"0{n}"} for n in range(8)]
DATA = Dataset.from_list(ROWS)
LINES = "\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS).encode()


def csv_of(separator: str = ",") -> str:
    quoted = [[f'"{row["question"]}"', row["answer"], row["level"]] for row in ROWS]
    return "\n".join(map(separator.join, [[*ROWS[0]], *quoted]))


FILES = {
    "comma.csv": csv_of().encode(),
    "semicolon.csv": csv_of(";").encode(),
    "bom.csv": csv_of("|").encode("utf-8-sig"),
    "windows.CSV": csv_of(";").encode("cp1252"),
    "tab.tsv": csv_of("\t").encode(),
    "unicode.csv": csv_of("\t").encode("utf-16"),
    "returns.csv": csv_of().replace("\n", "\r\n").encode(),
    "lines.jsonl": LINES,
    "lines.json": LINES,
    "rows.json": json.dumps(ROWS, indent=1).encode(),
}
IN_MEMORY = {
    "rows": ROWS,
    "generator": (row for row in ROWS),
    "frame": pandas.DataFrame(ROWS),
    "dataset": DATA,
    "one split": DatasetDict({"train": DATA}),
}


@pytest.mark.parametrize("name", FILES)
def test_file_is_read_unchanged(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(FILES[name])
    read = read_rows(tmp_path / name)
    assert read.rows == ROWS
    assert read.task_name == name.partition(".")[0]
    assert ("so read as cp1252" in read.note) == ("windows" in name)


def test_tsv_file_is_read_with_tabs(tmp_path: Path) -> None:
    path = tmp_path / "a.tsv"
    path.write_text("question, or text, or both\tanswer\n1 + 1?\t2\n")
    assert read_rows(path).rows == [{"question, or text, or both": "1 + 1?", "answer": "2"}]


@pytest.mark.parametrize("kind", IN_MEMORY)
def test_rows_in_memory_are_read_unchanged(kind: str) -> None:
    assert read_rows(IN_MEMORY[kind]).rows == ROWS


def test_cells_are_read_unchanged(tmp_path: Path) -> None:
    """pandas reads 007 as 7, 2024_01 as 202401, and 7 beside an empty cell as 7.0."""
    nested = [{"question": "a?", "options": ["x", "y"], "more": {"n": 1}}]
    pandas.DataFrame(nested).to_parquet(tmp_path / "a.parquet")
    assert read_rows(tmp_path / "a.parquet").rows == nested
    (tmp_path / "a.csv").write_text(
        'question,answer,batch\n"two\nlines, one cell",007,2024_01\nNA,,0.10\n'
    )
    assert read_rows(tmp_path / "a.csv").rows == [
        {"question": "two\nlines, one cell", "answer": "007", "batch": "2024_01"},
        {"question": "NA", "answer": "", "batch": "0.10"},
    ]
    frame = pandas.DataFrame(
        {"question": ["a?", "b?", "c?"], "answer": [7, None, 8], "day": [None, pandas.NaT, None]}
    )
    assert [row["answer"] for row in read_rows(frame).rows] == [7, None, 8]
    task = gn.load_task(frame, holdout=1)
    assert {row["answer"] for part in (task.train, task.holdout) for row in part} == {"7", "8"}
    assert task.left_out == {"with an empty answer": 1}


def test_nested_lists_of_pandas_parquet_are_read_unchanged(tmp_path: Path) -> None:
    nested = [{"question": "a?", "answer": [[1, 2], [3]], "more": {"n": [1]}}]
    pandas.DataFrame(nested).to_parquet(tmp_path / "a.parquet")
    rows = read_rows(pandas.read_parquet(tmp_path / "a.parquet")).rows
    assert repr(rows) == repr(nested)


def test_one_json_object_on_several_lines_is_one_row(tmp_path: Path) -> None:
    row = {"question": "a?", "answer": "1"}
    (tmp_path / "one.json").write_text(json.dumps(row, indent=1))
    assert read_rows(tmp_path / "one.json").rows == [row]


def test_json_lines_of_one_row_are_read(tmp_path: Path) -> None:
    (tmp_path / "one.jsonl").write_text('{"question": "a?", "answer": "1"}\n')
    assert read_rows(tmp_path / "one.jsonl").rows == [{"question": "a?", "answer": "1"}]


def test_tsv_with_a_comma_in_a_name_is_split_at_tabs(tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("Question, full\tanswer\na?\t1\n")
    assert read_rows(tmp_path / "a.tsv").rows == [{"Question, full": "a?", "answer": "1"}]


BROKEN = {
    "empty.csv": (b"", "empty.csv cannot be read: No columns"),
    "wide.csv": (
        b"question,answer\na,1\nb,c,2\n",
        "wide.csv cannot be read.*2 fields in line 3, saw 3",
    ),
    "all_wide.csv": (
        b"question,answer\na, b,1\nc, d,2\n",
        "more cells than the first line has names.*',' needs quotation",
    ),
    "open.csv": (b'question,answer\n"a,1\nb,2\n', "open.csv cannot be read.*EOF inside string"),
    "cut.jsonl": (
        b'{"question": "a?", "answer": "1"}\n{"question": "b',
        "cut.jsonl cannot be read: .*line 2",
    ),
    "bad.json": (b"[\n{]\n", "bad.json cannot be read.*line 2"),
    "true.json": (
        b"true",
        r"true.json cannot be read: row 0 \(counted from 0\) is True, not a dict",
    ),
    "bad.parquet": (b"question,answer\n", "bad.parquet cannot be read"),
    "bytes.csv": (b"question,answer\n\x81\x8d,1\n", "bytes.csv cannot be read.*decode"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_file_error_names_file_and_line(name: str, tmp_path: Path) -> None:
    data, message = BROKEN[name]
    (tmp_path / name).write_bytes(data)
    with pytest.raises((ValueError, TypeError), match=message):
        read_rows(tmp_path / name)


def test_file_whose_name_begins_with_a_tilde_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("~rows.jsonl").write_bytes(LINES)
    assert list(read_rows("~rows.jsonl").rows) == ROWS


def test_path_in_the_home_folder_is_read(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "rows.jsonl").write_bytes(LINES)
    assert list(read_rows("~/rows.jsonl").rows) == ROWS


@pytest.mark.parametrize(
    ("source", "error", "message"),
    [
        (None, TypeError, "source = None: load_task takes 'arithmetic', a file"),
        (5, TypeError, "source = 5"),
        (b"question", TypeError, r"row 0 \(counted from 0\) is 113, not a dict"),
        (["2+2?"], TypeError, r"row 0 \(counted from 0\) is '2\+2\?', not a dict"),
        (pandas.Series([1, 2]), TypeError, r"row 0 \(counted from 0\) is 1, not a dict"),
        ({"question": ["2+2?"], "answer": ["4"]}, ValueError, r"make a pandas.DataFrame\(data\)"),
        (DatasetDict({"a": DATA}), ValueError, r"no split 'train', but \['a'\]: give one of them"),
        ("nowhere.csv", FileNotFoundError, "No such file or directory: 'nowhere.csv'"),
        ("data.txt", ValueError, "'data.txt' is neither a file .*DataFrame"),
        ("data/rows.txt", ValueError, r"'data/rows.txt' is neither a file of a known kind \(.csv,"),
        (Path("data/rows.TXT"), ValueError, "'data/rows.TXT' is neither a file of a known kind"),
        ("data.xlsx", FileNotFoundError, "No such file or directory: 'data.xlsx'"),
    ],
)
def test_source_without_rows_is_refused(
    source: Any, error: type[Exception], message: str, monkeypatch
) -> None:
    # To ask the Hub for a misspelled file would take 20 s.
    monkeypatch.setattr("datasets.load_dataset", None)
    with pytest.raises(error, match=message):
        read_rows(source)


def test_file_of_another_kind_is_not_looked_for_on_the_hub(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr("datasets.load_dataset", None)
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    Path("data/rows.log").write_bytes(LINES)
    with pytest.raises(ValueError, match=r"'data/rows\.log' is neither a file of a known kind"):
        read_rows("data/rows.log")


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list:
    """A Hub with the same rows under every name; the list is what it was asked for."""
    asked: list = []

    def load_dataset(*names: Any, split: str) -> Dataset:
        asked.append((names, split))
        return DATA

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    return asked


def test_excel_file_is_read_by_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = pandas.DataFrame({"question": ["a?", "b?"], "answer": [7, None]}, dtype=object)
    monkeypatch.setattr(pandas, "read_excel", lambda path, dtype: frame)
    (tmp_path / "table.xlsx").touch()
    read = read_rows(tmp_path / "table.xlsx")
    assert read.rows == [{"question": "a?", "answer": 7}, {"question": "b?", "answer": None}]


def test_incomplete_excel_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "cut.xlsx").write_bytes(b"PK\x03\x04 and no more")
    with pytest.raises(ValueError, match=r"cut\.xlsx cannot be read"):
        read_rows(tmp_path / "cut.xlsx")


def test_hub_is_asked_for_name_and_configuration(hub: list) -> None:
    assert len(gn.load_task("gsm8k").train) == 6
    gn.load_task("openai/gsm8k")
    gn.load_task("me/reviews-1.0")
    gn.load_task("me/reviews.en")
    names = [name for name, _ in hub]
    gsm8k = ("openai/gsm8k", "main")
    assert names == [gsm8k, gsm8k, ("me/reviews-1.0", None), ("me/reviews.en", None)]
    assert {split for _, split in hub} == {"train"}


@pytest.mark.parametrize(
    ("source", "name", "value"),
    [
        (ROWS, "split", "train"),
        (ROWS, "high", 3),
        (ROWS, "colunms", {}),
    ],
)
def test_argument_without_meaning_is_refused(source: Any, name: str, value: Any, hub: list) -> None:
    with pytest.raises(TypeError, match=f"{name}= means nothing for"):
        gn.load_task(source, **{name: value})


def test_lines_of_the_tables_guide_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """docs/guide/tables.md, each line on a file or column of the kind that it is for."""
    monkeypatch.chdir(tmp_path)
    Path("titled.csv").write_bytes(
        "Skargi\n\nquestion;answer\nCo to źdźbło?;trawa\n".encode("cp1250")
    )
    Path("unnamed.tsv").write_text('"Nice" bag, said mum\tgood\n"odd\tbad\n')
    Path("cut.csv").write_text("question,answer\nwho?,007\na, b,1\n")
    Path("nested.json").write_text(
        json.dumps({"data": [{"question": "a?", "more": {"answer": 1}}]})
    )
    monkeypatch.setattr(
        pandas, "read_excel", lambda name: pandas.read_csv("cut.csv", on_bad_lines="skip")
    )
    lines = (
        (ROOT / "docs/guide/tables.md")
        .read_text()
        .partition("```python\n")[2]
        .partition("```")[0]
        .splitlines()
    )
    columns = {"answer": ["1.234,50", "3"], "label": [0, 1], "question": ["It&#39;s?", "b?"]}
    names = {"pandas": pandas, "html": html, "json": json}
    made = []
    for line in lines:
        names["frame"] = pandas.DataFrame(columns)
        exec(line, names)
        made.append(read_rows(names["frame"]).rows)
    _, titled, unnamed, cut, commas, labels, escaped, nested = made
    assert titled == [{"question": "Co to źdźbło?", "answer": "trawa"}]
    assert unnamed[0] == {"question": '"Nice" bag, said mum', "answer": "good"}
    assert len(unnamed) == 2
    assert cut == [{"question": "who?", "answer": "007"}]
    assert nested == [{"question": "a?", "more.answer": 1}]
    assert [row["answer"] for row in commas] == ["1234.50", "3"]
    assert escaped[0]["question"] == "It's?"
    assert [row["label"] for row in labels] == ["no", "yes"]


def test_error_in_json_lines_counts_blank_lines(tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text('\n\n{"question": "1?"} \n\n{"question": broken}\n')
    with pytest.raises(ValueError, match="line 5"):
        read_rows(file)
