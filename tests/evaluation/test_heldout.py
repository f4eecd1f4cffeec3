"""Sets that people know, asked as they are asked, judged as promised; and questions that were trained on are found."""

import json
import re
import shlex
import sys
import types
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.evaluation.heldout import same_expression
from grpo_nb.runs.run import trained_questions
from grpo_nb.tasks.questions import TrainedQuestions, find_contamination, normalized_question


def write_rows(file: Path, rows: list[dict]) -> None:
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def gsm8k(tmp_path: Path) -> Path:
    """A stand-in with the columns, the splits and the answers of openai/gsm8k."""
    train = [
        {"question": f"Train {i}?", "answer": f"Half of {2 * i} is <<{2 * i}/2={i}>>{i}.\n#### {i}"} for i in range(30)
    ]
    test = [{"question": f"Test {i}?", "answer": f"It is {i}.\n#### 1,{i:03}"} for i in range(12)]
    write_rows(tmp_path / "gsm8k" / "train.jsonl", train)
    write_rows(tmp_path / "gsm8k" / "test.jsonl", test)
    return tmp_path / "gsm8k"


def test_gsm8k_with_its_examples(gsm8k: Path) -> None:
    held = gn.evaluation.load_holdout("gsm8k", path=gsm8k)
    assert len(held.holdout) == 12 and held.holdout["answer"][3] == "1003" and held.format.name == "hashes"
    prompt = held.holdout[3]["prompt"]
    assert [turn["role"] for turn in prompt] == ["user", "assistant"] * 5 + ["user"], "five examples, no instruction"
    assert prompt[-1]["content"] == "Test 3?" and all("Train" in turn["content"] for turn in prompt[:-1:2])
    assert held.format.extract_last(prompt[1]["content"]) is not None, "examples end as answers must"
    assert gn.evaluation.load_holdout("gsm8k", path=gsm8k).holdout[3]["prompt"] == prompt
    assert gn.evaluation.load_holdout("gsm8k", path=gsm8k, seed=1).holdout[3]["prompt"] != prompt
    bare = gn.evaluation.load_holdout("gsm8k", path=gsm8k, shots=0, limit=4)
    assert len(bare.holdout) == 4 and [t["role"] for t in bare.holdout[0]["prompt"]] == ["system", "user"]
    own = gn.evaluation.load_holdout("gsm8k", path=gsm8k, shots=1, format=gn.tasks.xml()).holdout[0]["prompt"]
    assert own[0]["content"] == gn.tasks.xml().system_prompt() and gn.tasks.xml().is_exact(own[2]["content"])
    assert "<<" not in own[2]["content"] and "<<" in prompt[1]["content"]
    assert "5 worked examples" in repr(held) and "5 worked examples" in held._repr_html_()


def test_math_500_is_judged_as_expressions(tmp_path: Path) -> None:
    rows = [{"problem": "Simplify.", "solution": "...", "answer": answer, "subject": "Algebra", "level": 1, "unique_id": "x"}
            for answer in ("x+1", r"\frac{1}{2}", r"\text{(C)}")]  # fmt: skip
    write_rows(tmp_path / "math" / "test.jsonl", rows)
    held = gn.evaluation.load_holdout("math-500", path=tmp_path / "math")
    assert "\\boxed{}" in held.holdout[0]["prompt"][-1]["content"] and held.holdout[0]["level"] == 1
    assert held.judge(["1 + x", "0.5", "(C)"], list(held.holdout)) == [True, True, True]
    assert held.judge(["x + 2", None, "(D)"], list(held.holdout)) == [False, False, False]
    assert same_expression([r"\sqrt{12}"], [{"answer": r"2\sqrt{3}"}]) == [True]
    with pytest.raises(ValueError, match="no training part"):
        gn.evaluation.load_holdout("math-500", path=tmp_path / "math", shots=4)


def test_what_cannot_be_loaded_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_rows(tmp_path / "other" / "test.jsonl", [{"q": "?"}])
    offline = r"It is on the Hub: check the network, or say where you have it: .*path="
    for name, options, said in (
        ("gsm8k", {}, offline),
        ("math-500", {}, offline),
        ("gsm8k", {"path": tmp_path / "other"}, r"has no column 'question'; it has \['q'\]"),
        ("reasoning-gym:n_queens", {}, "runs the answer as code"),
        ("gsm8k", {"max_value": 3}, "are options of a reasoning-gym family"),
        ("gsm8k", {"limit": 0}, "limit = 0"),
    ):
        with pytest.raises(ValueError, match=said):
            gn.evaluation.load_holdout(name, **options)
    monkeypatch.setitem(sys.modules, "reasoning_gym", None)
    with pytest.raises(gn.machine.EnvironmentProblem, match="pip install reasoning-gym"):
        gn.evaluation.load_holdout("reasoning-gym:chain_sum")


def test_a_reasoning_gym_family_is_judged_by_full_marks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A stand-in with the interface of reasoning-gym 0.1.25; the real one was tried by hand (docs/evidence/evaluate.md)."""

    class Data:
        def __init__(self, size: int, seed: int, **options: int) -> None:
            self.start = seed + options.get("start", 0)

        def __getitem__(self, i: int) -> dict:
            return {"question": f"More than {self.start + i}?", "answer": str(self.start + i + 1), "metadata": {}}

        def score_answer(self, answer: str, entry: dict) -> float:
            return 1.0 if int(answer) > int(entry["answer"]) - 1 else 0.01

    package, factory = types.ModuleType("reasoning_gym"), types.ModuleType("reasoning_gym.factory")
    package.create_dataset = lambda name, **options: Data(**options)
    factory.DATASETS = {"more": Data, "coin_flip": Data}
    monkeypatch.setitem(sys.modules, "reasoning_gym", package)
    monkeypatch.setitem(sys.modules, "reasoning_gym.factory", factory)
    monkeypatch.setattr("grpo_nb.evaluation.heldout.version", lambda package: "0")
    held = gn.evaluation.load_holdout("reasoning-gym:more", limit=4, seed=5, start=10)
    assert held.holdout["answer"] == ["16", "17", "18", "19"] and held.name == "reasoning-gym:more"
    rows = list(held.holdout)
    assert held.judge(["16", "99", "3", "words"], rows) == [True, True, False, False], (
        "partial marks and garbage are wrong"
    )
    lenient = gn.evaluation.load_holdout("reasoning-gym:coin_flip", limit=4, seed=15)
    assert lenient.judge(["16", "99", None, "19"], rows) == [True, False, False, True], "its scorer is not asked"
    with pytest.raises(ValueError, match=r"no family 'mor'.*more"):
        gn.evaluation.load_holdout("reasoning-gym:mor")


def test_own_rows_and_files(tmp_path: Path) -> None:
    write_rows(tmp_path / "own.jsonl", [{"q": f"Is {i} even?", "a": "no"} for i in range(20)])
    held = gn.evaluation.load_holdout(
        tmp_path / "own.jsonl", columns={"question": "q", "answer": "a"}, limit=5, format=gn.tasks.boxed()
    )
    assert len(held.holdout) == 5 and held.holdout[0]["prompt"][0]["content"] == gn.tasks.boxed().system_prompt()


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("What is 2 + 2?", "What is  2+2", True),
        ("A total of 1,000 cows.", "A total of 1000 cows", True),
        ("He said \u201cwait\u201d.", 'He said "wait"', True),
        ("What is 3\u200b + 4?", "\ufeffWhat is 3 + 4?", True),
        ("What is 3 \u2212 4?", "What is 3 - 4?", True),
        ("What is 3 \u00d7 4 \u00f7 2?", "What is 3 * 4 / 2?", True),
        ("What is $3 + 4$?", "What is 3 + 4?", True),
        ("What is 7.0 + 2.50?", "What is 7 + 2.5?", True),
        ("( 3 + 4 ) * 2", "(3+4)*2", True),
        ("How many capitals has aB?", "How many capitals has ab?", False),
        ("What is 3.4?", "What is 34?", False),
        ("What is 100?", "What is 1?", False),
        ("What is 3.04?", "What is 3.4?", False),
        ("What came in 1.10.0?", "What came in 1.1?", False),
        ("What is 3 - 4?", "What is 3 + 4?", False),
        ("What is -3?", "What is 3?", False),
        ("What is 5!?", "What is 5?", False),
        ("2*(3+4)", "2*3+4", False),
        ("Is 3 < 4?", "Is 3 > 4?", False),
    ],
)
def test_what_is_the_same_question(one: str, other: str, same: bool) -> None:
    assert (normalized_question(one) == normalized_question(other)) == same


def test_contamination_is_counted_both_ways() -> None:
    trained = TrainedQuestions.of(["What is 2+2?", "What is 3+3?"], "the training part")
    assert trained_questions(None, []) is None
    found = find_contamination(["What is 2+2?", "What is 3 + 3", "what is 3+3?"], trained)
    assert (found.exact, found.similar, found.count, found.questions) == (1, 1, 2, 3)
    with pytest.raises(ValueError, match=r"2 held-out .* 'What is 2\+2\?'.*allow_contaminated=True"):
        found.require_none()
    find_contamination(["What is 4+4?"], trained).require_none()


def test_a_run_remembers_what_it_was_trained_on(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    kept = gn.open_run(tiny_run.path).trained_questions
    assert find_contamination(task.train["question"], kept).exact == 20
    assert find_contamination(task.holdout["question"], kept).count == 0
    assert "What is" not in (tiny_run.path / "train_questions.txt").read_text()


def test_a_task_for_the_harness(tiny_run: gn.runs.Run, task: gn.tasks.Task, tmp_path: Path) -> None:
    """What lm-evaluation-harness is given (docs/guide/evaluate.md)."""
    import yaml

    tokenizer = tiny_run.tokenizer
    written = gn.evaluation.write_harness_task(task, tmp_path / "my tasks", tokenizer, max_completion_length=12)
    settings = yaml.safe_load((tmp_path / "my tasks" / f"{written.name}.yaml").read_text())
    data = Path(settings["dataset_kwargs"]["data_files"]["test"])
    rows = [json.loads(line) for line in data.read_text().splitlines()]
    assert [row["answer"] for row in rows] == task.holdout["answer"]
    rendered = tokenizer.apply_chat_template(task.holdout[0]["prompt"], add_generation_prompt=True, tokenize=False)
    assert rows[0]["prompt"] == rendered and rendered.endswith("assistant\n")
    assert settings["generation_kwargs"] == {"until": ["<|im_end|>"], "do_sample": False, "max_gen_toks": 12}
    assert shlex.split(written.command("exports/my model"))[-4:] == [
        "--tasks", written.name, "--include_path", str(tmp_path / "my tasks")
    ]  # fmt: skip
    assert "pretrained=exports/my model" in shlex.split(written.command("exports/my model"))


@pytest.mark.parametrize(
    ("form", "answer"),
    [
        (gn.tasks.xml(), "7"),
        (gn.tasks.think_answer(), "x\ny"),
        (gn.tasks.boxed(), r"\frac{1}{2}"),
        (gn.tasks.hashes(), "7 cows"),
    ],
)
def test_the_harness_finds_the_answer_of_each_format(form: gn.tasks.AnswerFormat, answer: str) -> None:
    from grpo_nb.evaluation.harness import answer_pattern

    text = form.render("6 + 1 = 7", answer)
    assert [found.strip() for found in re.findall(answer_pattern(form), text)] == [answer]
