"""Data that was once misread silently: it is read correctly, or refused with a message."""

from __future__ import annotations

import collections
import functools
import json
import time
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
from datasets import ClassLabel, Dataset, DatasetDict, Features, Value
from jinja2 import TemplateError
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

import grpo_nb as gn
from grpo_nb.evaluation.holdout import load_holdout
from grpo_nb.runs.writing import write_questions
from grpo_nb.scoring.grader import Grader
from grpo_nb.tasks.answers import is_right_answer
from grpo_nb.tasks.contamination import find_contamination, question_hashes

ROOT = Path(__file__).parents[2]
GRADER = Grader(reward=gn.rewards.correctness())
Rows = list[dict[str, Any]]
# The template of google/gemma-2-2b-it.
GEMMA_2 = (
    "{{ bos_token }}{% if messages[0]['role'] == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}"
    "{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}"
    "{% endif %}{% set role = 'model' if message['role'] == 'assistant' else message['role'] %}"
    "{{ '<start_of_turn>' + role + '\n' + message['content'] | trim + '<end_of_turn>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<start_of_turn>model\n' }}{% endif %}"
)
SILENT = (
    "{% for m in messages if m['role'] != 'system' %}{{ m['role'] + ': ' + m['content'] }}"
    "{% endfor %}"
)


def tokenizer_with(template: str) -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=words, unk_token="[UNK]", bos_token="[UNK]", chat_template=template
    )


def both(task: gn.tasks.Task) -> Rows:
    return [*task.train, *task.holdout]


def answers(task: gn.tasks.Task) -> list[str]:
    return sorted(row["answer"] for row in both(task))


def rows_of(golds: list[Any], **columns: list[Any]) -> Rows:
    rows = [{"question": f"Question {n}?", "answer": gold} for n, gold in enumerate(golds)]
    for name, values in columns.items():
        rows = [{**row, name: value} for row, value in zip(rows, values, strict=True)]
    return rows


# Answers after ####.


def test_gsm8k_row_without_hashes_is_noted() -> None:
    golds = [f"{n}+1={n + 1}\n#### {n + 1}" for n in range(9)] + ["9+1 is ten, so ten."]
    task = gn.load_task(rows_of(golds))
    assert answers(task) == sorted([*(str(n + 1) for n in range(9)), "9+1 is ten, so ten."])
    assert "1 of 10 answers are not of kind number, such as '9+1 is ten, so ten.'" in repr(task)


def test_gsm8k_row_with_a_plain_number_keeps_it() -> None:
    task = gn.load_task(rows_of([f"so\n#### {n}" for n in range(9)] + ["77"]))
    assert "77" in answers(task)
    assert task.left_out == {}


def test_markdown_headings_in_answers_are_kept() -> None:
    golds = [f"#### Result\nIt is {n}.\n#### Reason\nIt adds up." for n in range(4)]
    task = gn.load_task(rows_of(golds), holdout=1)
    assert answers(task) == golds
    assert "solution" not in task.train.column_names


def test_own_solution_column_stays_beside_hashes() -> None:
    task = gn.load_task(rows_of([f"so\n#### {n}" for n in range(4)], solution=["mine"] * 4))
    assert task.train[0]["solution"] == "so"
    assert task.train[0]["source_solution"] == "mine"


# Labels with names.

LABELLED = Dataset.from_dict(
    {
        "question": [f"{n}?" for n in range(9)],
        "answer": [0, 1, 0] * 2 + [1, 1, -1],
    },
    features=Features(
        {
            "question": Value("string"),
            "answer": ClassLabel(names=["neg", "pos"]),
        }
    ),
)


@pytest.mark.parametrize("kind", ["dataset", "split", "parquet", "stream"])
def test_class_labels_keep_their_names(kind: str, tmp_path: Path) -> None:
    LABELLED.to_parquet(tmp_path / "labels.parquet")
    source = {
        "dataset": LABELLED,
        "split": DatasetDict({"train": LABELLED}),
        "parquet": tmp_path / "labels.parquet",
        "stream": LABELLED.to_iterable_dataset(),
    }[kind]
    task = gn.load_task(source)
    assert answers(task) == ["neg"] * 4 + ["pos"] * 4
    assert task.left_out == {"with an empty answer": 1}, "-1 stands for no label"


# Several right answers.

CAPITALS = [["Paris", "City of Paris"], ["Rome"], ["Warsaw", "Warszawa", "City of Warsaw"]]


def test_accepted_answers_are_all_right_in_every_reward() -> None:
    rows = rows_of([names[0] for names in CAPITALS], accepted_answers=CAPITALS)
    task = gn.load_task(rows, holdout=1)
    assert task.answers.kind == "text"
    row = next(row for row in both(task) if row["answer"] == "Paris")
    texts = [task.format.render("so", given) for given in ("Paris", "City of Paris", "Rome")]
    for reward in (gn.rewards.correctness(), gn.rewards.exact_text(), gn.rewards.maths()):
        assert gn.score(reward, texts, row).values[reward.__name__] == (1.0, 1.0, 0.0)
    scores = GRADER.score(texts, [row] * 3, task.format)
    assert scores == [1.0, 1.0, 0.0]


def test_accepted_answers_are_right_in_a_held_out_set() -> None:
    rows = rows_of([names[0] for names in CAPITALS], accepted_answers=CAPITALS)
    row = load_holdout(rows).holdout[0]
    text = "<answer>City of Paris</answer>"
    assert GRADER.score([text], [dict(row)], gn.tasks.xml()) == [1.0]


def test_accepted_answers_are_kept_with_a_run(tmp_path: Path) -> None:
    from grpo_nb.runs.run_folder import Run

    rows = rows_of([names[0] for names in CAPITALS], accepted_answers=CAPITALS)
    write_questions(Run(tmp_path), [], gn.load_task(rows, holdout=2).holdout)
    kept = [json.loads(line) for line in (tmp_path / "holdout.jsonl").read_text().splitlines()]
    assert all(row["accepted_answers"][0] == row["answer"] for row in kept)


def test_each_text_in_a_list_of_answers_is_right() -> None:
    task = gn.load_task(rows_of([*CAPITALS, "Oslo"]), holdout=2)
    assert task.answers.kind == "text"
    accepted = {row["answer"]: row["accepted_answers"] for row in both(task)}
    assert accepted == {names[0]: names for names in [*CAPITALS, ["Oslo"]]}
    assert any("each text in a list of answers is right" in note for note in task.report.notes)
    row = next(row for row in both(task) if row["answer"] == "Paris")
    texts = [task.format.render("so", given) for given in ("Paris", "City of Paris", "Rome")]
    assert gn.score(gn.rewards.correctness(), texts, row).values["correctness"] == (1.0, 1.0, 0.0)


@pytest.mark.parametrize("empty", [None, float("nan")])
def test_empty_items_in_lists_of_answers_are_ignored(empty: float | None) -> None:
    golds = [["NYC", "New York"], ["Paris", empty], ["Rome", "Roma"]]
    task = gn.load_task(rows_of(golds), holdout=1)
    assert task.answers.kind == "text"
    accepted = sorted(row["accepted_answers"] for row in both(task))
    assert accepted == [["NYC", "New York"], ["Paris"], ["Rome", "Roma"]]


def test_lists_with_an_item_that_is_no_text_are_json() -> None:
    task = gn.load_task(rows_of([["NYC", "New York"], ["Paris", 7], ["Rome"]]), holdout=1)
    assert task.answers.kind == "json"


def test_lists_of_numbers_and_kind_json_stay_json() -> None:
    assert gn.load_task(rows_of([[1, 2], [3], [4]]), holdout=1).answers.kind == "json"
    listed = gn.load_task(rows_of([["a", "b"], ["c"], []]), holdout=1, kind="json")
    assert listed.answers.kind == "json"
    assert answers(listed) == ['["a", "b"]', '["c"]', "[]"]


@pytest.mark.parametrize(
    "golds", [[[1, 2], [], [3], [4, 5]], [[{"a": 1}], [{"b": 3}], []], [["a", "b"], [1, 2], []]]
)
def test_empty_list_among_json_lists_is_an_answer(golds: list[list]) -> None:
    task = gn.load_task(rows_of(golds), holdout=1)
    assert task.answers.kind == "json"
    assert answers(task) == sorted(map(json.dumps, golds))


def test_empty_list_among_lists_of_texts_is_no_answer() -> None:
    task = gn.load_task(rows_of([*CAPITALS, []]), holdout=1)
    assert answers(task) == [names[0] for names in CAPITALS]
    assert task.left_out == {"with an empty answer": 1}


def test_lists_with_blank_texts_alone_are_no_answer() -> None:
    task = gn.load_task(rows_of(["Paris", [""], "Rome"]), holdout=1)
    assert answers(task) == ["Paris", "Rome"]
    assert task.left_out == {"with an empty answer": 1}


def test_lists_of_answers_are_right_after_a_single_answer() -> None:
    row = load_holdout(rows_of(["Paris", ["NYC", "New York"]])).holdout[1]
    text = "<answer>New York</answer>"
    assert GRADER.score([text], [dict(row)], gn.tasks.xml()) == [1.0]


@pytest.mark.parametrize("golds", [["City of Paris", "Lutetia"], ["Lutetia", "paris"]])
def test_rows_with_a_common_answer_are_repeated(golds: list[str]) -> None:
    rows = [*rows_of(CAPITALS), {"question": "Question 0?", "answer": golds}]
    task = gn.load_task(rows, holdout=1)
    assert task.left_out == {"repeated": 1}
    accepted = next(row["accepted_answers"] for row in both(task) if row["answer"] == "Paris")
    assert accepted == list(dict.fromkeys([*CAPITALS[0], *golds])), "of both rows, each once"


def test_accepted_answers_of_several_types_stay_lists() -> None:
    rows = rows_of(["42", "7"], accepted_answers=[["42", 42.5, None], ["7", "seven"]])
    task = gn.load_task(rows, holdout=1)
    row = next(row for row in both(task) if row["answer"] == "42")
    assert row["accepted_answers"] == ["42", "42.5"]
    text = "<answer>42.5</answer>"
    assert GRADER.score([text], [row], task.format) == [1.0]


def test_accepted_answers_of_own_holdout_stay_lists() -> None:
    held = [{"question": "Held out?", "answer": 5, "accepted_answers": [5, 6]}]
    rows = rows_of(["1", "2"], accepted_answers=[["1", "one"], None])
    task = gn.load_task(rows, holdout=held)
    assert task.holdout[0]["accepted_answers"] == ["5", "6"]
    assert list(task.train["accepted_answers"]) == [["1", "one"], None]


@pytest.mark.parametrize("cell", [3, "['Paris', 'City of Paris']"])
def test_accepted_answers_without_lists_are_renamed(cell: Any) -> None:
    task = gn.load_task(rows_of(["Paris", "Rome"], accepted_answers=[cell] * 2), holdout=1)
    assert task.train[0]["source_accepted_answers"] == cell
    assert "accepted_answers" not in task.train.column_names
    assert any("it does not hold lists of answers" in note for note in task.report.notes)


def test_missing_split_error_names_a_split() -> None:
    splits = {"test": rows_of(["1", "2"])}
    with pytest.raises(ValueError, match=r"has no split 'train', but \['test'\]: give one"):
        gn.load_task(splits)


# Columns.


def facts_seen_by_a_reward(cells: list[Any]) -> list[Any]:
    task = gn.load_task(rows_of(["p", "q", "r"], facts=cells), holdout=1)
    seen: list[Any] = []

    def look(completions: list, facts: list[Any], **columns: Any) -> list[float]:
        seen.extend(facts)
        return [0.0] * len(facts)

    gn.score(look, ["x"] * 3, both(task))
    return seen


def test_dict_columns_reach_rewards_as_dicts() -> None:
    cells = [{"a": 1, "b": [2.5]}, {"a": 3, "b": []}, None]
    assert sorted(map(repr, facts_seen_by_a_reward(cells))) == sorted(map(repr, cells))


def test_dicts_with_other_keys_reach_rewards_as_json() -> None:
    """Arrow gives each dict the keys of all."""
    seen = facts_seen_by_a_reward([{"a": 1}, {"b": [2.5, "x"]}, None])
    assert sorted(seen, key=str) == [None, '{"a": 1}', '{"b": [2.5, "x"]}']


def test_parts_with_other_cells_have_one_type() -> None:
    task = gn.load_task(rows_of(["p", "q"], facts=[[], ["a"]]), holdout=1)
    assert task.train.features == task.holdout.features


def test_cell_that_json_does_not_know_is_kept_as_text_and_noted() -> None:
    rows = rows_of(["p", "q"], when=[{"day": pandas.Timestamp("2026-01-01")}] * 2)
    task = gn.load_task(rows, holdout=1)
    assert "2026-01-01" in task.train[0]["when"]
    assert "the column 'when' is stored as text; non-text values as JSON" in task.report.notes


TAKEN = [
    "image",
    "images",
    "completions",
    "completion",
    "completion_ids",
    "prompts",
    "trainer_state",
    "log_extra",
    "self",
]


@pytest.mark.parametrize("name", TAKEN)
def test_column_with_a_name_of_the_trainer_is_renamed(name: str) -> None:
    task = gn.load_task(rows_of(["p", "q", "r"], **{name: [None, "x", "x"]}), holdout=1)
    assert name not in task.train.column_names
    assert f"source_{name}" in task.train.column_names
    assert f"the column {name!r} is now 'source_{name}': its name is taken" in task.report.notes
    gn.score(gn.rewards.correctness(), ["<answer>p</answer>"], task.train[0])


def test_renamed_column_does_not_replace_another() -> None:
    columns = {"source_completion": ["kept"] * 3, "completion": ["renamed"] * 3}
    task = gn.load_task(rows_of(["p", "q", "r"], **columns), holdout=1)
    assert task.train[0]["source_completion"] == "kept"
    assert task.train[0]["source_source_completion"] == "renamed"


def test_names_the_trainer_takes_are_known() -> None:
    """load_task renames each name that trl 1.15 reads from a row or passes to rewards."""
    import inspect
    import re

    from trl import GRPOTrainer

    from grpo_nb.tasks.cleaning import _RESERVED_COLUMNS

    source = inspect.getsource(GRPOTrainer._calculate_rewards) + inspect.getsource(
        GRPOTrainer._generate_and_score_completions
    )
    passed = {
        *re.findall(r'reward_kwargs\["(\w+)"\]', source),
        *re.findall(r'"(\w+)" in inputs\[0\]', source),
    }
    assert {"images", "image", "trainer_state", "log_extra", "log_metric", "environments"} <= passed
    assert passed <= _RESERVED_COLUMNS | {"prompt"}


def test_unknown_role_is_named() -> None:
    with pytest.raises(
        ValueError,
        match=r"key of columns = 'anwser' is unknown; did you mean 'answer'",
    ):
        gn.load_task(rows_of(["1", "2"]), columns={"anwser": "answer"})


# Names.


def test_gsm8k_beside_a_folder_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gsm8k").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(
        "datasets.load_dataset", lambda *names, split: Dataset.from_list(rows_of(["1", "2", "3"]))
    )
    assert len(gn.load_task("gsm8k", holdout=1).train) == 2


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("arithmatic", "arithmetic"),
        ("gsm-8k", "gsm8k"),
    ],
)
def test_misspelled_name_is_refused_at_once(
    name: str, meant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("datasets.load_dataset", None)
    start = time.monotonic()
    with pytest.raises(ValueError, match=f"Only two names have no owner.*'{meant}'"):
        gn.load_task(name)
    assert time.monotonic() - start < 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"hihg": 3}, "unexpected keyword argument 'hihg'"),
        ({"low": 9, "high": 3}, "high = 3 must be a whole number of at least 9"),
        ({"low": 9, "high": 3, "terms": 3}, "high = 3 must be a whole number of at least 9"),
        ({"high": 3}, "only [0-9]+ distinct questions .* raise high"),
        ({"terms": 0}, "terms = 0 must be a whole number of at least 2"),
        ({"terms": 1}, "terms = 1 must be a whole number of at least 2"),
    ],
)
def test_arithmetic_option_error_names_the_option(options: dict, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        gn.load_task("arithmetic", **options)


# Templates without a system role.


def test_system_prompt_that_the_template_leaves_out_is_refused() -> None:
    message = "chat template leaves out the system prompt.*in a column prompt"
    with pytest.raises(ValueError, match=message):
        gn.load_task("arithmetic", tokenizer=tokenizer_with(SILENT))


def test_system_prompt_that_the_template_refuses_is_refused() -> None:
    with pytest.raises(TemplateError, match="System role not supported"):
        gn.load_task("arithmetic", tokenizer=tokenizer_with(GEMMA_2))


def test_system_prompt_of_a_later_row_is_refused_too() -> None:
    rows = [{"prompt": [{"role": "user", "content": f"{n}?"}], "answer": "1"} for n in range(20)]
    rows[7]["prompt"].insert(0, {"role": "system", "content": "Answer."})
    with pytest.raises(ValueError, match="chat template leaves out the system prompt"):
        gn.load_task(rows, tokenizer=tokenizer_with(SILENT))
    with pytest.raises(TemplateError, match="System role not supported"):
        gn.load_task(rows, tokenizer=tokenizer_with(GEMMA_2))


def test_tokenizer_that_cannot_render_prompts_is_refused() -> None:
    with pytest.raises(ValueError, match="the tokenizer has no chat template"):
        gn.load_task("arithmetic", tokenizer=tokenizer_with(None))
    with pytest.raises(TypeError, match="takes a tokenizer"):
        gn.load_task("arithmetic", tokenizer="Qwen/Qwen3-0.6B")


@pytest.mark.parametrize("template", [GEMMA_2, SILENT], ids=["refused", "left out"])
def test_instruction_in_the_question_needs_no_system_role(template: str) -> None:
    instruction = gn.tasks.xml().system_prompt()
    rows = []
    for n in range(3):
        chat = [{"role": "user", "content": f"{instruction}\n\n{n} + 1?"}]
        rows.append({"prompt": chat, "answer": str(n + 1)})
    task = gn.load_task(rows, holdout=1, tokenizer=tokenizer_with(template))
    assert [turn["role"] for turn in task.train[0]["prompt"]] == ["user"]
    assert task.report.notes == []


# Held-out rows of one's own.

TRAIN = rows_of([str(n) for n in range(20)])
TEST = [{"question": f"Test {n}?", "answer": str(n)} for n in range(5)]


@pytest.mark.parametrize("kind", ["rows", "frame", "dataset", "csv", "path"])
def test_holdout_takes_any_source(kind: str, tmp_path: Path) -> None:
    frame = pandas.DataFrame(TEST)
    frame.to_csv(tmp_path / "test.csv", index=False)
    sources = {
        "rows": TEST,
        "frame": frame,
        "dataset": Dataset.from_list(TEST),
    }
    sources |= {"csv": str(tmp_path / "test.csv"), "path": tmp_path / "test.csv"}
    task = gn.load_task(TRAIN, holdout=sources[kind])
    assert list(task.holdout["question"]) == [row["question"] for row in TEST]
    assert list(task.train["question"]) == [row["question"] for row in TRAIN]


def test_holdout_is_read_like_the_training_rows() -> None:
    train = [{"q": f"Train {n}?", "a": f"so\n#### {n}"} for n in range(8)]
    test = [{"q": f"Test {n}?", "a": "so\n#### 7"} for n in range(2)]
    test += [{"q": "", "a": "#### 1"}]
    task = gn.load_task(
        train,
        holdout=test,
        columns={"question": "q", "answer": "a"},
    )
    assert list(task.holdout["answer"]) == ["7", "7"]
    assert task.holdout[0]["prompt"][0] == task.train[0]["prompt"][0]
    assert task.left_out == {"with an empty question": 1}


@pytest.mark.parametrize(
    ("cell", "held_cell", "stored"),
    [
        pytest.param(3, "3", ["3", "3"], id="number and text"),
        pytest.param({"a": 1}, {"b": 2}, ['{"a": 1}', '{"b": 2}'], id="other keys"),
        pytest.param({"a": 3}, {"a": 2.5}, ['{"a": 3}', '{"a": 2.5}'], id="other numbers"),
        pytest.param({"a": 1}, "none", ['{"a": 1}', "none"], id="dict and text"),
        pytest.param({"a": 1}, {"a": 2}, [{"a": 1}, {"a": 2}], id="one type"),
        pytest.param(
            {"a": 1, "b": 2},
            {"b": 3, "a": 4},
            [{"a": 1, "b": 2}, {"a": 4, "b": 3}],
            id="keys in another order",
        ),
    ],
)
def test_cells_of_both_parts_are_stored_alike(cell: Any, held_cell: Any, stored: list) -> None:
    held = [{**row, "own": held_cell} for row in TEST]
    task = gn.load_task(rows_of(["p", "q"], own=[cell] * 2), holdout=held)
    assert [task.train[0]["own"], task.holdout[0]["own"]] == stored
    assert repr(task.train[0]["own"]) == repr(stored[0])


def test_training_rows_that_are_held_out_are_left_out() -> None:
    overlap = [{"question": "question  3", "answer": "3"}]
    task = gn.load_task(TRAIN, holdout=[*TEST, *overlap])
    assert task.left_out == {"whose question is held out too": 1}
    assert "Question 3?" not in task.train["question"]
    assert "Question 3?" in repr(task)
    assert len(task.holdout) == 6


@pytest.mark.parametrize("seed", range(5))
def test_labels_have_the_same_share_in_both_parts(seed: int) -> None:
    labels = ["good"] * 60 + ["bad"] * 50 + ["neither"] * 10
    rows = [{"question": f"Remark {n}", "answer": label} for n, label in enumerate(labels)]
    task = gn.load_task(rows, holdout=0.3, seed=seed)
    assert collections.Counter(task.holdout["answer"]) == {"good": 18, "bad": 15, "neither": 3}


@pytest.mark.parametrize("seed", range(5))
def test_spellings_of_one_label_share_their_part_of_the_held_out_rows(seed: int) -> None:
    labels = ["yes", "Yes", "YES", "yEs", "yeS"] * 12 + ["no"] * 60
    rows = [{"question": f"Remark {n}", "answer": label} for n, label in enumerate(labels)]
    task = gn.load_task(rows, holdout=0.1, seed=seed)
    held_out = [answer.casefold() for answer in task.holdout["answer"]]
    assert collections.Counter(held_out) == {"yes": 6, "no": 6}


def test_seed_decides_which_rows_of_a_label_are_held_out() -> None:
    rows = [{"question": f"Remark {n}", "answer": "good" if n % 2 else "bad"} for n in range(40)]
    held_out = {
        tuple(gn.load_task(rows, holdout=8, seed=seed).holdout["question"]) for seed in (0, 1)
    }
    assert len(held_out) == 2


def test_holdout_that_is_the_training_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="leaves 0 training and 20 held-out questions"):
        gn.load_task(TRAIN, holdout=TRAIN)


def test_splits_train_and_test_of_a_dataset_dict_are_read() -> None:
    data = DatasetDict({"train": Dataset.from_list(TRAIN), "test": Dataset.from_list(TEST)})
    task = gn.load_task(data, holdout=data)
    assert (len(task.train), len(task.holdout)) == (20, 5)


def test_holdout_without_a_test_split_error_names_a_split() -> None:
    data = DatasetDict({"dev": Dataset.from_list(TEST)})
    with pytest.raises(ValueError, match=r"no split 'test', but \['dev'\]"):
        gn.load_task(TRAIN, holdout=data)


def test_splits_train_and_test_of_the_hub_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = {"train": Dataset.from_list(TRAIN), "test": Dataset.from_list(TEST)}
    monkeypatch.setattr("datasets.load_dataset", lambda *names, split: parts[split])
    task = gn.load_task("gsm8k", holdout="gsm8k")
    assert (len(task.train), len(task.holdout)) == (20, 5)


def test_holdout_of_arithmetic_takes_rows() -> None:
    assert list(gn.load_task("arithmetic", holdout=TEST).holdout["answer"]) == list("01234")


@pytest.mark.parametrize(("holdout", "held_out"), [(32, 32), (TEST, 5), (None, 96)])
def test_arithmetic_trains_on_train_size_rows(holdout: Any, held_out: int) -> None:
    task = gn.load_task("arithmetic", holdout=holdout)
    assert (len(task.train), len(task.holdout)) == (224, held_out)


def test_arithmetic_refuses_a_share_of_held_out_rows() -> None:
    with pytest.raises((TypeError, ValueError), match=r"holdout = 0\.2 must be"):
        gn.load_task("arithmetic", holdout=0.2)


def test_arithmetic_has_one_name_for_its_holdout() -> None:
    with pytest.raises(TypeError, match="unexpected keyword argument 'holdout_size'"):
        gn.load_task("arithmetic", holdout_size=5)


def test_empty_system_prompt_is_that_of_the_format() -> None:
    task = gn.load_task(TRAIN, system="")
    assert task.train["prompt"] == gn.load_task(TRAIN).train["prompt"]


def test_prompt_of_one_message_that_names_the_format_has_no_note() -> None:
    rows = [
        {"prompt": [{"role": "user", "content": f"{n} + 1? Write <answer>"}], "answer": str(n + 1)}
        for n in range(5)
    ]
    assert not any("nothing in the prompt" in note for note in gn.load_task(rows).report.notes)


def test_holdout_without_its_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="the held-out data has no column 'question'"):
        gn.load_task(TRAIN, holdout=[{"text": "a", "label": "b"}])


def test_left_out_row_names_the_part_that_it_is_in() -> None:
    empty = {"question": "", "answer": "1"}
    task = gn.load_task([empty, *TRAIN], holdout=[TRAIN[0], {"question": "Who?", "answer": ""}])
    assert task.report.examples["with an empty question"].startswith("row 0: ")
    assert task.report.examples["with an empty answer"].startswith("held-out row 1: ")


def test_sentence_on_trained_questions_names_their_source() -> None:
    source = "the training questions of the run tiny"
    trained = dict.fromkeys(question_hashes(["1 + 1?"]), source)
    contamination = find_contamination(["1+1?"], trained)
    assert contamination.sentence == (
        "1 of 1 held-out questions are also in the training questions of the run tiny: "
        "a score on them measures memory."
    )


def test_contamination_leaves_out_sources_without_a_match() -> None:
    found, searched = question_hashes(["1 + 1?", "2 + 2?"])
    trained = {found: "the training part", searched: "the run tiny"}
    assert find_contamination(["1+1?"], trained).source == "the training part"


def test_contamination_without_trained_questions_says_so() -> None:
    sentence = find_contamination(["1+1?"], {}).sentence
    assert sentence.endswith("is in an empty set of training questions.")


# Numbers and units.


@pytest.mark.parametrize(
    ("gold", "same"),
    [
        ("5 min", ["5 minutes", "5 mins", "5 Minutes", "5 MINS", "5minutes", "5min", "5"]),
        ("2 hours", ["2 h", "2 hrs", "2 hr"]),
        ("20 cm", ["20 centimeters", "20 centimetres", "20cm"]),
        ("3 kilograms", ["3 kg", "3 kilos", "3 Kg"]),
        ("60 mph", ["60 miles per hour", "60 mi/h"]),
        ("5 m^2", ["5 square meters", "5 sq m", "5 m\u00b2"]),
        ("20 \u00b0C", ["20 degrees Celsius", "20\u00b0C", "20 Celsius"]),
        ("12 lbs", ["12 pounds", "12 lb"]),
        ("1.5 kWh", ["1.5 kilowatt hours", "1.5 kwh"]),
        ("4 inches", ["$4$ inches", "$4$ in", r"$4$\text{ inches}"]),
        ("$5", ["US$5", "$5 USD", "5 usd", "5 dollars"]),
        ("25 °C", ["25 C", "25 degrees C"]),
        ("5 km/h", ["5 kph", "5 kilometers per hour"]),
        ("10 years", ["10 years old"]),
        ("10 km", ["10km away"]),
        ("$42", ["$42 in total", "$42 in change", "$42 each"]),
        ("5 apples", ["5 red apples", "5 apples in total", "5 in all"]),
        ("5 inches", ["5 in wide"]),
        ("50%", ["50% off", "50% in total"]),
        ("42", ["42 points", "42 point"]),
        ("5 N m", ["5 Nm", "5 newton meters"]),
        ("20 cm2", ["20 cm^2", "20 cm²", "20 square centimeters"]),
        ("9.8 m/s^2", ["9.8 m/s/s", "9.8 meters per second per second"]),
    ],
)
def test_unit_in_another_spelling_is_right(gold: str, same: list[str]) -> None:
    texts = [f"<answer>{given}</answer>" for given in same]
    assert dict(
        zip(
            same,
            gn.rewards.correctness()(completions=texts, answer=[gold] * len(same)),
            strict=True,
        )
    ) == dict.fromkeys(same, 1.0)


@pytest.mark.parametrize(
    ("gold", "given"),
    [
        ("5 min", "5 m"),
        ("5 min", "5 h"),
        ("5 mW", "5 MW"),
        ("20 cm", "20 m"),
        ("42", "42abc"),
        ("42 km", "42km or so"),
        ("42", "42ish"),
        ("5", "5h"),
        (r"\frac{3}{56}", r"\frac{3}{5}6"),
        ("600", r"\frac{3}{5}k"),
        ("3/5", r"\frac{3}{5}e0"),
        ("5 apples", "5 pears"),
        ("5 apples", "5 kg"),
        ("5 apples", "5 apples per day"),
        ("5 km", "5 km run per day"),
        ("5 cm", "5 in wide"),
        ("5 miles", "5 nautical miles"),
        ("50%", "0.5% off"),
        ("5 hours", "5 hours thirty"),
        ("200", "2 hundred fifty"),
    ],
)
def test_other_number_or_unit_is_wrong(gold: str, given: str) -> None:
    for reward in (gn.rewards.correctness(), gn.rewards.maths()):
        assert reward(completions=[f"<answer>{given}</answer>"], answer=[gold]) == [0.0]


def test_percent_sign_has_one_meaning_beside_a_plain_gold() -> None:
    texts = [f"<answer>{given}</answer>" for given in ("0.5", "50%", "0.5%")]
    assert gn.rewards.correctness()(completions=texts, answer=["0.5"] * 3) == [1.0, 1.0, 0.0]


def test_tolerance_counts_points_of_percentages() -> None:
    reward = gn.rewards.correctness(tolerance=0.5)
    texts = ["<answer>50.4%</answer>", "<answer>90%</answer>"]
    assert reward(completions=texts, answer=["50%"] * 2) == [1.0, 0.0]


# Rewards and tools.


@pytest.mark.parametrize("column", [["7"], "7"])
def test_gold_for_other_number_of_completions_is_refused(column: Any) -> None:
    message = "'correctness' needs the data column 'answer', with one value for each completion"
    with pytest.raises(ValueError, match=message):
        gn.rewards.correctness()(
            completions=["<answer>7</answer>", "<answer>8</answer>"], answer=column
        )


def graded(completions: list, level: int = 1, **columns: Any) -> list[float]:
    return [float(level)] * len(completions)


def test_renamed_partial_reward_has_its_own_name() -> None:
    strict = functools.partial(graded, level=2)
    strict.__name__ = "strict"
    assert gn.rewards.reward_name(strict) == "strict"
    assert dict(gn.score([graded, strict], ["a"]).values) == {"graded": (1.0,), "strict": (2.0,)}


@pytest.mark.parametrize(
    ("cells", "stored"),
    [
        ([{"n": 3}, {"n": 4}], [{"n": 3}, {"n": 4}]),
        ([{"n": 3}, {"n": 2.5}], ['{"n": 3}', '{"n": 2.5}']),
        ([{"n": 1 / 3}, {"m": 0.1}], ['{"n": 0.3333333333333333}', '{"m": 0.1}']),
        ([[1, "x"], []], ['[1, "x"]', "[]"]),
        ([1, "2"], ["1", "2"]),
        ([1, 2], [1, 2]),
    ],
    ids=str,
)
def test_cells_are_stored_unchanged_or_as_text(cells: list[Any], stored: list[Any]) -> None:
    task = gn.load_task(rows_of(["p", "q"], own=cells), holdout=1)
    assert sorted(repr(row["own"]) for row in both(task)) == sorted(map(repr, stored))
    is_noted = "the column 'own' is stored as text; non-text values as JSON" in task.report.notes
    assert is_noted == (cells != stored)


def test_exported_script_reads_nested_rows_as_they_were(tmp_path: Path) -> None:
    rows = [
        {**row, "prompt": [{"role": "user", "content": "?"}]}
        for row in rows_of(["p", "q"], a=[{"n": 3}, {"n": 4}])
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    script = (ROOT / "grpo_nb/scaleout/templates/train.py.jinja").read_text()
    assert 'train_dataset=Dataset.from_list(read_rows("train.jsonl"))' in script
    names: dict[str, Any] = {"json": json, "HERE": tmp_path}
    exec(script[script.index("def read_rows(") :].partition("\n\n\n")[0], names)
    assert repr(list(Dataset.from_list(names["read_rows"]("train.jsonl")))) == repr(rows)


def test_mapped_question_takes_precedence_over_a_prompt_column() -> None:
    rows = [{"prompt": f"Think: {n}", "problem": f"{n}+2", "answer": str(n + 2)} for n in range(3)]
    task = gn.load_task(rows, columns={"question": "problem"}, holdout=1)
    assert {row["question"] for row in both(task)} == {row["problem"] for row in rows}


def test_text_prompt_next_to_a_question_is_another_column() -> None:
    rows = [{"prompt": "Answer.", "question": f"{n}+2?", "answer": str(n + 2)} for n in range(3)]
    task = gn.load_task(rows, holdout=1)
    assert sorted(row["question"] for row in both(task)) == ["0+2?", "1+2?", "2+2?"]
    assert task.train[0]["prompt"][-1]["content"] == task.train[0]["question"]
    assert task.train[0]["source_prompt"] == "Answer."
    assert "the column 'prompt' is now 'source_prompt': its name is taken" in task.report.notes


def test_columns_named_by_numbers_are_found() -> None:
    rows = [{0: f"Question {n}?", 1: "x", 2: n} for n in range(3)]
    task = gn.load_task(rows, columns={"question": 0, "answer": 1}, holdout=1)
    assert answers(task) == ["x"] * 3
    assert sorted(row["2"] for row in both(task)) == [0, 1, 2]


def test_holdout_with_hashes_of_its_own_is_read() -> None:
    held = [{"question": "Held out?", "answer": "so\n#### 77"}]
    task = gn.load_task(rows_of(["1", "2", "3"]), holdout=held)
    assert task.holdout["answer"] == ["77"]
    assert task.answers.kind == "number"


def test_holdout_without_hashes_is_read_as_written() -> None:
    train = rows_of([f"so\n#### {n}" for n in range(4)])
    task = gn.load_task(train, holdout=[{"question": "Held out?", "answer": "the mill"}])
    assert task.holdout["answer"] == ["the mill"]
    assert task.holdout["solution"] == [None]


def test_holdout_takes_numbers_of_numpy() -> None:
    rows = rows_of([str(n) for n in range(9)])
    assert len(gn.load_task(rows, holdout=numpy.int64(5)).holdout) == 5
    assert len(gn.load_task("arithmetic", holdout=numpy.int64(5)).holdout) == 5


@pytest.mark.parametrize("holdout", [1.5, -0.1])
def test_holdout_that_is_neither_share_nor_count_is_refused(holdout: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=f"holdout = {holdout} must be"):
        gn.load_task(rows_of(["1", "2", "3"]), holdout=holdout)


def test_hub_name_with_an_owner_is_no_misspelling(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def load_dataset(name: str, *_: Any, **__: Any) -> Dataset:
        asked.append(name)
        return Dataset.from_list(rows_of(["1", "2", "3"]))

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    gn.load_task("me/arithmetic", holdout=1)
    assert asked == ["me/arithmetic"]


@pytest.mark.parametrize("cell", [pandas.NA, pandas.NaT, float("nan"), None, ""])
def test_empty_cell_of_pandas_is_no_gold(cell: Any) -> None:
    for reward in (gn.rewards.correctness(), gn.rewards.maths()):
        assert reward(completions=["<answer>5</answer>"], answer=[cell]) == [None]


def test_nan_of_numpy_is_no_answer() -> None:
    task = gn.load_task(rows_of([1, 2, numpy.float32("nan")]), holdout=1)
    assert task.left_out == {"with an empty answer": 1}


def test_array_of_golds_holds_several() -> None:
    reward = gn.rewards.correctness()
    assert reward(completions=["<answer>b</answer>"], answer=[numpy.array(["a", "b"])]) == [1.0]


@pytest.mark.parametrize("given", ["5 um", "5 micrometers", "5 \u00b5m"])
def test_micro_sign_is_a_prefix(given: str) -> None:
    assert is_right_answer(given, "5 \u03bcm")


def test_refused_messages_are_found_without_settings() -> None:
    turns = [{"role": "user", "content": "Hi."}, {"role": "user", "content": "And?"}]
    rows = [
        {"prompt": [*turns, {"role": "user", "content": f"{n}?"}], "answer": "1"} for n in range(3)
    ]
    with pytest.raises(TemplateError, match="must alternate"):
        gn.load_task(rows, tokenizer=tokenizer_with(GEMMA_2), holdout=1)


def test_percent_is_read_in_any_case() -> None:
    assert is_right_answer("42 Percent", "42%")
    assert is_right_answer("42 PCT", "42%")


def test_question_next_to_a_prompt_of_text_is_refused() -> None:
    rows = [{"q": "What?", "p": "Say what it is.", "answer": "1"}] * 3
    with pytest.raises(ValueError, match="is left of 3: 3 whose prompt is not a chat") as raised:
        gn.load_task(rows, columns={"question": "q", "prompt": "p"})
    assert 'columns={"question": <column of the prompt>}' in str(raised.value)
