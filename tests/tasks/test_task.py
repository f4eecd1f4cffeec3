"""Tasks from every source, split without leakage, filtered by token count, refused when they cannot work."""

import functools
import re
from pathlib import Path

import pytest
from datasets import Dataset
from transformers import AutoTokenizer

import grpo_nb as gn
from grpo_nb.core.text import prompt_lengths

ROWS = [{"question": f"What is {i} + 1?", "answer": str(i + 1), "level": i % 3} for i in range(20)]


@pytest.fixture(scope="module")
def tokenizer(embedded_folder: Path):
    return AutoTokenizer.from_pretrained(embedded_folder)


def questions(part: Dataset) -> set[str]:
    return set(part["question"])


def test_arithmetic_is_right_seeded_and_split() -> None:
    task = gn.load_task("arithmetic", seed=5)
    assert (len(task.train), len(task.holdout)) == (224, 96)
    assert not questions(task.train) & questions(task.holdout)
    for row in [*task.train, *task.holdout]:
        a, b = row["question"].removeprefix("What is ").removesuffix("?").split(" + ")
        assert int(a) + int(b) == int(row["answer"]) and 1 <= int(a) <= 20 and 1 <= int(b) <= 20
        assert row["prompt"][-1] == {"role": "user", "content": row["question"]}
        assert [m["role"] for m in row["prompt"]] == ["system", "user", "assistant", "user"]
    assert "What is 3 + 4?" not in questions(task.train) | questions(task.holdout), "the example turn is no question"
    assert task.format.is_exact(task.train[0]["prompt"][2]["content"])
    assert gn.load_task("arithmetic", seed=5).fingerprint == task.fingerprint
    assert gn.load_task("arithmetic", seed=6).fingerprint != task.fingerprint


def test_arithmetic_options() -> None:
    task = gn.load_task("arithmetic", train_size=30, holdout_size=10, low=0, high=9, operators="-*", seed=1)
    assert (len(task.train), len(task.holdout)) == (30, 10)
    for row in task.train:
        assert int(row["answer"]) == eval(row["question"].removeprefix("What is ").removesuffix("?")) >= 0


@pytest.mark.parametrize("level", gn.tasks.ARITHMETIC_LEVELS)
def test_arithmetic_levels_are_right_and_seeded(level: dict) -> None:
    task = gn.load_task("arithmetic", seed=5, **level)
    assert (len(task.train), len(task.holdout), task.answers.kind) == (224, 96, "numbers")
    assert not questions(task.train) & questions(task.holdout)
    for row in [*task.train, *task.holdout]:
        asked = row["question"].removeprefix("What is ").removesuffix("?")
        numbers = [int(number) for number in re.findall(r"\d+", asked)]
        assert int(row["answer"]) == eval(asked) >= 0 and len(numbers) == level.get("terms", 2)
        assert level.get("low", 1) <= min(numbers) and max(numbers) <= level.get("high", 20)
        assert asked.count("(") == asked.count(")") == len(numbers) - 2
    assert gn.load_task("arithmetic", seed=5, **level).fingerprint == task.fingerprint


def test_a_wide_range_is_drawn_and_not_listed() -> None:
    task = gn.load_task("arithmetic", high=10**9, operators="-")
    assert len(task.train) == 224 and all(int(answer) >= 0 for answer in task.train["answer"])


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"high": 5}, "25|24 distinct questions"),
        ({"operators": "/"}, "made of"),
        ({"train_size": 0}, "at least 1"),
        ({"train_size": "5"}, "train_size takes int"),
        ({"low": 1.5}, "low takes int"),
        ({"terms": 1}, "terms = 1 must be at least 2"),
        ({"terms": 3, "high": 2}, "give [0-9]+ distinct questions"),
        ({"hihg": 30}, "did you mean 'high'"),
    ],
)
def test_arithmetic_refuses(options: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        gn.load_task("arithmetic", **options)


def write(path: Path, kind: str) -> Path:
    file, rows = path / f"rows.{kind}", Dataset.from_list(ROWS)
    as_list = functools.partial(rows.to_json, lines=False)
    {"jsonl": rows.to_json, "json": as_list, "csv": rows.to_csv, "parquet": rows.to_parquet}[kind](str(file))
    return file


@pytest.mark.parametrize("kind", ["rows", "dataset", "csv", "json", "jsonl", "parquet"])
def test_every_source_gives_the_same_task(kind: str, tmp_path: Path) -> None:
    made = {"rows": ROWS, "dataset": Dataset.from_list(ROWS)}
    source = made[kind] if kind in made else write(tmp_path, kind)
    task = gn.load_task(source, holdout=0.25, seed=3)
    assert (len(task.train), len(task.holdout)) == (15, 5)
    assert questions(task.train) | questions(task.holdout) == {row["question"] for row in ROWS}
    assert task.fingerprint == gn.load_task(ROWS, holdout=0.25, seed=3).fingerprint
    assert set(task.train.column_names) == {"prompt", "question", "answer", "level"}


def test_columns_are_mapped_by_name() -> None:
    rows = [{"problem": row["question"], "solution": int(row["answer"]), "extra": 1} for row in ROWS]
    task = gn.load_task(rows, columns={"question": "problem", "answer": "solution"}, holdout=2)
    assert set(task.train.column_names) == {"prompt", "question", "answer", "extra"}
    assert all(isinstance(answer, str) for answer in task.train["answer"])


def test_the_mapped_column_is_the_answer_whatever_else_is_called_so() -> None:
    rows = [{"question": f"{n}+2?", "answer": f"{n}+2={n + 2} #### {n + 2}", "final": n + 2} for n in range(4)]
    task = gn.load_task(rows, columns={"answer": "final"}, holdout=1)
    assert {row["answer"] for row in [*task.train, *task.holdout]} == {"2", "3", "4", "5"}


def test_own_prompts_are_kept() -> None:
    rows = [{"prompt": [{"role": "user", "content": f"say {i}"}], "answer": str(i)} for i in range(4)]
    task = gn.load_task(rows, holdout=1)
    assert {row["prompt"][0]["content"] for row in [*task.train, *task.holdout]} == {f"say {i}" for i in range(4)}


def test_repeated_questions_cannot_leak() -> None:
    rows = [*ROWS, *({**row, "question": row["question"] + "  "} for row in ROWS)]
    task = gn.load_task(rows, holdout=0.5)
    assert len(task.train) + len(task.holdout) == 20
    assert task.dropped == {"repeated": 20}
    assert "20  repeated" in repr(task)
    apart = gn.load_task([{"question": q, "answer": "4"} for q in ("2+2?", "2 + 2?", "3 - 2", "3 + 2")], holdout=1)
    assert apart.dropped == {"repeated": 1}, "other writing is the same question, another sign is not"


@pytest.mark.parametrize(
    ("source", "options", "told"),
    [
        ([], {}, "no rows"),
        (ROWS[:1], {}, "at least one"),
        (ROWS, {"holdout": 20}, "at least one"),
        (ROWS, {"holdout": 0}, "at least one"),
        (ROWS, {"columns": {"question": "qestion"}}, "no column 'qestion'.*did you mean 'question'"),
        (ROWS, {"columns": {"answer": "gold"}}, "no column 'gold' for the answer"),
        (ROWS, {"columns": {"solution": "answer"}}, "the parts are"),
        (
            [{"question": "?", "answer": None}, {"question": "!", "answer": ""}],
            {},
            "no row is left of 2: 2 with an empty answer",
        ),
        (ROWS, {"high": 3}, "option of the generated task"),
    ],
)
def test_bad_data_is_refused(source: list, options: dict, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        gn.load_task(source, **options)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="no file"):
        gn.load_task(tmp_path / "none.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(ValueError, match="is empty"):
        gn.load_task(tmp_path / "empty.csv")


def test_an_unreachable_hub_id_is_explained() -> None:
    with pytest.raises(ValueError, match=r"neither 'arithmetic', a \.csv.*network"):
        gn.load_task("nobody/no-such-data")


def test_the_length_filter_counts_what_it_drops(
    tokenizer, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    rows = [*ROWS, *({"question": f"{word} " * 300, "answer": "1", "level": 0} for word in ("word", "more"))]
    task = gn.load_task(rows, holdout=0.3, seed=0)
    monkeypatch.setattr(tokenizer, "model_max_length", 256)
    capfd.readouterr()
    short = task.fit(tokenizer, 256)
    assert "indexing errors" not in capfd.readouterr().err, "a warning of transformers that such a prompt was met"
    assert short.dropped["too long"] == 2
    assert "2  too long" in repr(short)
    *_, said = short.notes
    assert said.startswith(
        "2 of 22 prompts (9%) left out: longer than max_prompt_length = 256 tokens; settings.replace("
    )
    assert task.fit(tokenizer, int(re.search(r"replace\(max_prompt_length=(\d+)\) keeps all", said)[1])).dropped == {}
    lengths = prompt_lengths([*short.train["prompt"], *short.holdout["prompt"]], tokenizer)
    assert len(lengths) == 20 and max(lengths) <= 256
    text = tokenizer.apply_chat_template(short.train[0]["prompt"], add_generation_prompt=True, tokenize=False)
    assert prompt_lengths(short.train["prompt"][:1], tokenizer) == [len(tokenizer(text)["input_ids"])]


def test_answers_and_an_example_that_would_be_cut_are_told_with_the_setting(tokenizer) -> None:
    long = " ".join(f"field{n}: {n}," for n in range(12))
    rows = [{"question": f"Read form {n}.", "answer": f"{long} {n}" if n % 4 == 0 else str(n)} for n in range(40)]
    settings = gn.preset("cpu", max_completion_length=48, max_prompt_length=400)
    (note,) = [
        note for note in gn.load_task(rows, settings, tokenizer=tokenizer).notes if "max_completion_length" in note
    ]
    assert "48 tokens is too few for 10 of 40 answers, in the format and without any reasoning" in note
    longer = eval(note.partition("settings = ")[2], {"settings": settings})
    assert "max_completion_length" not in repr(gn.load_task(rows, longer, tokenizer=tokenizer))
    short, example = [{**row, "answer": "7"} for row in rows], ("Read this.", long, "7")
    assert "max_completion_length" not in repr(gn.load_task(short, settings, tokenizer=tokenizer))
    assert "is too few for the example's reply" in repr(
        gn.load_task(short, settings, tokenizer=tokenizer, example=example)
    )


def test_all_prompts_too_long_is_an_error_with_the_right_length(tokenizer) -> None:
    settings = gn.preset("cpu", max_prompt_length=8)
    told = r"all 224 train prompts are longer than max_prompt_length = 8 .*max_prompt_length="
    with pytest.raises(ValueError, match=told):
        gn.load_task("arithmetic", settings, tokenizer=tokenizer)


def test_a_task_shows_itself_escaped() -> None:
    rows = [{"question": f"<script>alert({i})</script>", "answer": "<b>"} for i in range(3)]
    shown = gn.load_task(rows, holdout=1)._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "<code>&lt;b&gt;</code>" in shown
