"""Tasks are split without leakage, asked by kind of answer, and filtered by token count."""

import dataclasses
import re
from pathlib import Path

import pytest
from datasets import Dataset, concatenate_datasets
from transformers import AutoTokenizer

import grpo_nb as gn
from grpo_nb.tasks.contamination import normalize_question
from tests.tasks.test_answers import KINDS

ROWS = [{"question": f"What is {i} + 1?", "answer": str(i + 1), "level": i % 3} for i in range(20)]
LABELS = [
    {"question": f"Where is parcel {i}?", "answer": "lost" if i % 2 else "sent"} for i in range(40)
]


@pytest.fixture(scope="module")
def tokenizer(embedded_folder: Path):
    return AutoTokenizer.from_pretrained(embedded_folder)


def questions(part: Dataset) -> set[str]:
    return set(part["question"])


def system_prompt_of(task: gn.tasks.Task) -> str:
    return task.train[0]["prompt"][0]["content"]


def test_quickstart_task_has_the_measured_fingerprint() -> None:
    """Check the exact rows, because the quickstart's seeds were chosen by results."""
    assert gn.load_task("arithmetic").fingerprint == "68848a0793866c43"


SIZED = {"train_size": 30, "holdout": 10, "low": 0, "high": 9, "operators": "-*"}
WIDE = {"high": 10**9, "operators": "-"}  # a wide range is sampled, not enumerated


@pytest.mark.parametrize("options", [*gn.tasks.ARITHMETIC_LEVELS, SIZED, WIDE], ids=str)
def test_arithmetic_is_right_seeded_and_split(options: dict) -> None:
    task = gn.load_task("arithmetic", seed=5, **options)
    sizes = (options.get("train_size", 224), options.get("holdout", 96))
    assert (len(task.train), len(task.holdout), task.answers.kind) == (*sizes, "number")
    assert not questions(task.train) & questions(task.holdout)
    for row in [*task.train, *task.holdout]:
        asked = row["question"].removeprefix("What is ").removesuffix("?")
        numbers = [int(number) for number in re.findall(r"\d+", asked)]
        assert int(row["answer"]) == eval(asked)
        assert len(numbers) == options.get("terms", 2)
        assert options.get("low", 1) <= min(numbers)
        assert max(numbers) <= options.get("high", 20)
        assert [turn["role"] for turn in row["prompt"]] == ["system", "user", "assistant", "user"]
        assert row["prompt"][-1]["content"] == row["question"]
        assert row["question"] != "What is 3 + 4?", "the example is not one of the questions"
    assert task.format.is_exact(task.train[0]["prompt"][2]["content"])
    assert gn.load_task("arithmetic", seed=5, **options).fingerprint == task.fingerprint
    assert gn.load_task("arithmetic", seed=6, **options).fingerprint != task.fingerprint


@pytest.mark.parametrize(
    ("source", "options", "error", "message"),
    [
        ("arithmetic", {"high": 5}, ValueError, "2[45] distinct questions"),
        ("arithmetic", {"terms": 3, "high": 2}, ValueError, "only [0-9]+ distinct questions"),
        ("arithmetic", {"hihg": 30}, TypeError, "unexpected keyword argument 'hihg'"),
        ([], {}, ValueError, "the data has no rows: each part of a task needs one"),
        (ROWS, {"kind": "numbers"}, ValueError, "did you mean 'number'"),
        (ROWS[:1], {}, ValueError, "each part needs one"),
        (ROWS, {"holdout": 20}, ValueError, "each part needs one"),
        (ROWS, {"holdout": 0}, ValueError, "each part needs one"),
        (
            [*ROWS[:1], {"question": "", "answer": "1"}],
            {},
            ValueError,
            "Rows left out: 1 with an empty question",
        ),
        (ROWS, {"example": ("1 + 1?", "2")}, ValueError, r"write \(question, reasoning, answer"),
        (ROWS, {"example": "abc"}, ValueError, "example = 'abc': write"),
        pytest.param(
            ROWS,
            {"example": [{"role": "assistant", "content": None}]},
            ValueError,
            r"example = .*: write \(question, reasoning, answer",
            id="a message of the example without a text",
        ),
        (
            ROWS,
            {"example": [{"role": "user", "content": "1 + 1?"}, {"role": "assistant"}]},
            ValueError,
            r"example = .*: write \(question, reasoning, answer",
        ),
        ("arithmetic", {"low": 1.5}, ValueError, "low = 1.5 must be a whole number"),
        ("arithmetic", {"train_size": 9.5}, ValueError, "train_size = 9.5 must be a whole number"),
        ("question,answer\n" + "1+1?,2\n" * 60, {}, ValueError, "neither a file of a known kind"),
        (
            ROWS,
            {"example": {"question": "1 + 1?", "reasoning": "", "answer": "2"}},
            ValueError,
            r"example = .*: write \(question, reasoning, answer",
        ),
        (
            "arithmetic",
            {"holdout": "arithmetic"},
            ValueError,
            "For holdout=, write a number in place of 'arithmetic'",
        ),
        (
            [{"question": q, "answer": "2"} for q in ("1+1?", "1 + 1?")],
            {"holdout": 1},
            ValueError,
            "differ only in punctuation",
        ),
        (
            ROWS,
            {"columns": {"level": "question"}},
            ValueError,
            "key of columns = 'level' is unknown; choose from: answer, prompt, question",
        ),
        (
            [{"question": "1 + 1?", "answer": ""}],
            {},
            ValueError,
            r"left of 1: 1 with an empty answer .row 0: question=.*\. Rows are counted from 0",
        ),
        (ROWS, {"format": gn.tasks.boxed}, TypeError, r"boxed at .* is not an answer format: "),
        (ROWS, {"format": "boxed"}, TypeError, r"'boxed' is not an answer format: write"),
        (ROWS, {"on_conflict": "last"}, ValueError, "on_conflict = 'last' is unknown"),
    ],
)
def test_impossible_task_is_refused(
    source: object, options: dict, error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        gn.load_task(source, **options)


def test_questions_in_other_writing_are_in_one_part() -> None:
    """`f(x) + 1` and `f(y) + 1` were once one question: `x)` looked like an option's letter."""
    asked = [
        "C#",
        "C",
        ":(",
        "(:",
        "$5",
        "5",
        ".NET",
        "net",
        "a b",
        "a  b?",
        "f(x) + 1",
        "f(y) + 1",
    ]
    rows = [{"question": text, "answer": str(i)} for i, text in enumerate(asked)]
    apart = 0
    for seed in range(12):
        task = gn.load_task(rows, holdout=4, seed=seed)
        train, held = (
            {*map(normalize_question, part["question"])} for part in (task.train, task.holdout)
        )
        assert not train & held
        apart += len(questions(task.holdout) & {"f(x) + 1", "f(y) + 1"}) == 1
    assert apart


def test_line_break_alone_keeps_questions_in_one_part() -> None:
    rows = [{"question": f"What is {n}+2?", "answer": str(n + 2)} for n in range(5)]
    rows += [{"question": f"What is\n{n}+2", "answer": str(n + 2)} for n in range(5)]
    task = gn.load_task(rows, holdout=4)
    train, held = (
        {*map(normalize_question, part["question"])} for part in (task.train, task.holdout)
    )
    assert not train & held


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("Is x - y even?", "Is xy even?", id="difference"),
        pytest.param("Is a-b-c zero?", "Is abc zero?", id="two-differences"),
        pytest.param("Is ab - cd even?", "Is abcd even?", id="difference-of-words"),
        pytest.param("Is x = -y?", "Is x = y?", id="negative"),
        pytest.param("Is f(x) - g(x) even?", "Is f(x)g(x) even?", id="difference-of-calls"),
        pytest.param(r"Find \alpha - \beta", r"Find \alpha\beta", id="difference-in-latex"),
        pytest.param("Is n! even?", "Is n even?", id="factorial"),
        pytest.param("Find f'(x).", "Find f(x).", id="derivative"),
        pytest.param("Who wrote C#?", "Who wrote C?", id="sharp"),
        pytest.param("Who wrote C++?", "Who wrote C?", id="plus"),
        pytest.param("Find x^{2}y.", "Find x^{2y}.", id="exponent"),
        pytest.param(r"Find \log_{2}8.", r"Find \log_{28}.", id="index"),
    ],
)
def test_questions_with_another_sign_differ(one: str, other: str) -> None:
    assert normalize_question(one) != normalize_question(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        pytest.param("Is x - y even?", "Is x-y even", id="spaces"),
        pytest.param("Is 2 - (x) even?", "Is 2-(x) even", id="spaces-before-a-bracket"),
        pytest.param("Is x = - y?", "Is x=-y", id="spaces-around-a-sign"),
        pytest.param("Stop! Who is it?", "Stop Who is it", id="exclamation"),
        pytest.param("Quoi ?! Et o\u00f9 ?", "Quoi? Et o\u00f9?", id="spaces-before-marks"),
    ],
)
def test_questions_with_other_punctuation_are_the_same(one: str, other: str) -> None:
    assert normalize_question(one) == normalize_question(other)


@pytest.mark.parametrize(("golds", "kind", "hint"), KINDS)
def test_prompt_asks_for_the_kind_of_answers(golds: list[str], kind: str, hint: str) -> None:
    rows = [{"question": f"{n}?", "answer": gold} for n, gold in enumerate(golds)]
    task = gn.load_task(rows)
    assert task.answers.kind == kind
    assert f"<answer>\n{hint}\n</answer>" in system_prompt_of(task)
    assert re.search(rf"answers +{kind}", repr(task))
    as_text = gn.load_task(rows, kind="text")
    assert as_text.answers.kind == "text"
    assert "<answer>\nanswer\n</answer>" in system_prompt_of(as_text)


def test_answers_of_another_kind_are_shown() -> None:
    rows = [{"question": f"{n}?", "answer": "n/a" if n % 20 == 7 else str(n)} for n in range(40)]
    assert "2 of 40 answers are not of kind number, such as 'n/a'" in repr(gn.load_task(rows))
    assert "not of kind number" not in repr(gn.load_task(ROWS))
    assert "40 of 40 answers are not of kind number" in repr(gn.load_task(LABELS, kind="number"))


def test_own_system_format_and_hint_are_used() -> None:
    own = gn.load_task(LABELS, system="Say <reasoning> and <answer>.")
    assert system_prompt_of(own) == "Say <reasoning> and <answer>."
    assert not own.report.notes
    assert "nothing in the prompt names <answer>" in repr(gn.load_task(LABELS, system="Judge it."))
    assert r"\boxed{one of: lost, sent}" in system_prompt_of(
        gn.load_task(LABELS, format=gn.tasks.boxed())
    )
    hinted = dataclasses.replace(gn.tasks.xml(), answer_hint="a city")
    assert "<answer>\na city\n</answer>" in system_prompt_of(gn.load_task(LABELS, format=hinted))
    bare = gn.load_task(
        LABELS, format=gn.tasks.bare(), example=("Where is mine?", "It says so.", "lost")
    )
    assert system_prompt_of(bare).endswith("nothing but the answer:\none of: lost, sent")
    assert not bare.report.notes
    assert bare.train[0]["prompt"][2] == {"role": "assistant", "content": "lost"}


def test_without_long_prompts_counts_those_left_out(
    tokenizer, monkeypatch: pytest.MonkeyPatch, capfd
) -> None:
    rows = [
        *ROWS,
        *({"question": f"{word} " * 300, "answer": "1", "level": 0} for word in ("word", "more")),
    ]
    task = gn.load_task(rows, holdout=0.3, seed=0)
    monkeypatch.setattr(tokenizer, "model_max_length", 256)
    capfd.readouterr()
    short = task.without_long_prompts(tokenizer, 256)
    assert "indexing errors" not in capfd.readouterr().err, (
        "a warning of transformers that such a prompt was met"
    )
    assert short.left_out == {"too long": 2}
    assert "too long" in repr(short)
    keeps_all = int(
        re.search(
            r"replace\(max_prompt_length=(\d+)\) keeps all", short.report.examples["too long"]
        )[1]
    )
    assert task.without_long_prompts(tokenizer, keeps_all) is task
    parts = (short.train, short.holdout)
    lengths = [length for part in parts for length in short.prompt_lengths(part, tokenizer)]
    exactly = task.without_long_prompts(tokenizer, max(lengths))
    assert len(exactly.train) + len(exactly.holdout) == len(lengths) == 20
    assert max(lengths) <= 256
    text = tokenizer.apply_chat_template(
        short.train[0]["prompt"], add_generation_prompt=True, tokenize=False
    )
    assert short.prompt_lengths(short.train, tokenizer)[:1] == [len(tokenizer(text)["input_ids"])]
    with pytest.raises(
        ValueError,
        match=r"all \d+ train prompts are longer than max_prompt_length = 8 .*Write max_",
    ):
        task.without_long_prompts(tokenizer, 8)


def test_without_long_prompts_needs_no_held_out_questions(tokenizer) -> None:
    rows = [*ROWS[:3], {"question": "word " * 300, "answer": "1", "level": 0}]
    task = gn.load_task(rows, holdout=1, seed=1)
    train = concatenate_datasets([task.train, task.holdout])
    task = dataclasses.replace(task, train=train, holdout=train.select([]))
    short = task.without_long_prompts(tokenizer, 256)
    assert (len(short.train), len(short.holdout)) == (3, 0)
    assert short.left_out == {"too long": 1}


def test_prompt_has_a_monospaced_font_without_styles(tokenizer) -> None:
    rows = [{"question": "1 + 1?", "answer": "2"}, {"question": "2 + 2?", "answer": "4"}]
    shown = gn.load_task(rows, holdout=1, tokenizer=tokenizer)._repr_html_()
    assert "<pre><code>&lt;|im_start|&gt;" in re.sub(" style='[^']*'", "", shown)


def test_repr_html_is_escaped(tokenizer) -> None:
    rows = [{"question": f"<script>alert({i})</script>", "answer": "<b>"} for i in range(3)]
    for options in ({}, {"tokenizer": tokenizer}):
        shown = gn.load_task(rows, holdout=1, **options)._repr_html_()
        assert "<script>" not in shown
        assert "&lt;script&gt;" in shown
        assert "whose answer is &#x27;&lt;b&gt;&#x27;:" in shown
    assert "<|im_start|>user" in repr(gn.load_task(rows, holdout=1, tokenizer=tokenizer)), (
        "as the model sees it"
    )


def test_question_of_the_example_is_left_out() -> None:
    held = gn.load_task(LABELS).holdout[0]
    example = (held["question"] + " ", "It says so.", held["answer"])
    task = gn.load_task(LABELS, example=example)
    assert held["question"] not in questions(task.train) | questions(task.holdout)
    assert task.left_out == {"that the example shows": 1}
    assert len(task.holdout) == 8


def test_own_held_out_row_that_the_example_shows_is_left_out() -> None:
    example = (LABELS[0]["question"], "It says so.", "sent")
    task = gn.load_task(LABELS[2:], holdout=LABELS[:2], example=example)
    assert task.left_out == {"that the example shows": 1}
    assert list(task.holdout["question"]) == [LABELS[1]["question"]]


@pytest.mark.parametrize("operators", ["/", "", "+/"])
def test_operator_without_a_whole_answer_is_refused(operators: str) -> None:
    with pytest.raises(ValueError, match="must be some of"):
        gn.load_task("arithmetic", operators=operators)


class Greeting:
    """An environment whose `reset` adds to the question."""

    def reset(self, **row) -> str:
        return " You are at the gate."

    def wait(self) -> str:
        """Wait."""
        return "ok"


def test_shown_prompt_has_the_text_of_the_environment() -> None:
    task = gn.load_task(ROWS).with_tools(environment=Greeting)
    assert "You are at the gate." in str(task)
