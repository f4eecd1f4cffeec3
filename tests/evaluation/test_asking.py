"""Models are asked as in training, results are kept, and impossible calls fail before a model
loads.
"""

import dataclasses
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from jinja2 import TemplateError

import grpo_nb as gn
from grpo_nb.evaluation.comparison import Comparison
from grpo_nb.evaluation.exam import Exam, shared_messages
from grpo_nb.evaluation.holdout import Holdout
from grpo_nb.scoring.record import record_of
from grpo_nb.tasks.prompts import messages_of_example, with_prompts
from tests.run_fixtures import brevity
from tests.support.run_folders import info_of, write_run_folder

# The folder of the tiny run has only the source of its main reward, which does not matter here.
pytestmark = pytest.mark.filterwarnings("ignore:The main reward of the run")


def new_questions(count: int = 12) -> list[dict[str, str]]:
    """Return questions that the tiny run was not trained on."""
    numbers = range(30, 30 + count)
    return [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in numbers]


def completions_of(side: gn.evaluation.Evaluation) -> list[str]:
    return [row["completion"] for row in side.rows]


def test_compare_asks_all_held_out_questions(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    comparison = gn.compare(tiny_run, task)
    assert [row["question"] for row in comparison.before.rows] == task.holdout["question"]
    assert completions_of(comparison.before) != completions_of(comparison.after)
    assert tiny_run.comparison.sentence == comparison.sentence
    assert "Held-out:" in repr(tiny_run)


def test_compare_from_disk_equals_compare_from_memory(
    tiny_run: gn.runs.Run, task: gn.tasks.Task
) -> None:
    in_memory = gn.compare(tiny_run, task)
    # The folder has only the source of the run's main reward, which decides what is correct.
    from_disk = gn.compare(gn.open_run(tiny_run.path), grader=brevity)
    assert from_disk.before.rows == in_memory.before.rows
    assert from_disk.after.rows == in_memory.after.rows


def test_compare_shows_contamination_and_truncation(
    tiny_run: gn.runs.Run, task: gn.tasks.Task
) -> None:
    comparison = gn.compare(tiny_run, task)
    assert comparison.contamination.trained_count == 0
    assert "training questions of the run tiny" in comparison.contamination.source
    assert comparison.after.truncated_share > 0.5
    share = f"{comparison.after.truncated_share:.1%}"
    lines = repr(comparison).splitlines()
    (line,) = [line for line in lines if line.startswith("truncated at the length limit")]
    assert line.endswith(share)


def test_compare_against_another_model_takes_it_as_before(
    tiny_run: gn.runs.Run, task: gn.tasks.Task
) -> None:
    own = gn.compare(tiny_run, task)
    comparison = gn.compare(tiny_run, against="base", task=task)
    assert [side.label for side in comparison.sides.values()] == ["before", "after"]
    assert comparison.before.rows == own.before.rows
    assert comparison.after.rows == own.after.rows


def test_ask_gives_the_answers_of_the_comparison(run: gn.runs.Run) -> None:
    comparison = gn.compare(run)
    answers = gn.ask(run, [row["question"] for row in run.holdout[:2]])
    before = [completion.text for completion in answers.before]
    after = [completion.text for completion in answers.after]
    assert before == completions_of(comparison.before)[:2]
    assert after == completions_of(comparison.after)[:2]


def test_ask_one_question_from_a_folder_is_escaped(run: gn.runs.Run) -> None:
    answers = gn.ask(str(run.path), "What is <b>2</b> + 2?")
    page = answers._repr_html_()
    assert len(answers.before) == 1
    assert answers.after[0].token_count <= run.settings.max_completion_length
    assert "&lt;b&gt;2" in page
    assert "<b>2" not in page


def test_model_in_memory_answers_as_its_run(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    model = (tiny_run.model, tiny_run.tokenizer)
    greedy = gn.evaluate(model, task, max_completion_length=12, grader=brevity)
    assert gn.evaluate(tiny_run, task, grader=brevity).rows == greedy.rows


def test_evaluate_with_samples_is_reproducible(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    state = torch.get_rng_state()
    sampled = gn.evaluate(tiny_run, task, samples=4)
    assert torch.equal(torch.get_rng_state(), state)
    assert len(sampled.rows) == 40
    assert [row["question"] for row in sampled.rows[::4]] == task.holdout["question"]
    assert len(set(completions_of(sampled)[:4])) > 1
    assert "pass@4" in dict(sampled.table_rows)
    assert "4 answers to each, sampled at temperature 1." in repr(sampled)
    assert gn.evaluate(tiny_run, task, samples=4).rows == sampled.rows


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param({"samples": 0}, "samples = 0 must be a whole number of", id="samples"),
        pytest.param({"samples": 2.0}, "samples = 2.0 must be a whole number", id="half samples"),
        pytest.param({"limit": 0}, "limit = 0 must be a whole number of at least 1", id="limit"),
        pytest.param({"limit": -1}, "limit = -1 must be a whole number", id="negative limit"),
        pytest.param({"limit": 10.0}, "limit = 10.0 must be a whole number", id="float limit"),
        pytest.param(
            {"max_completion_length": 0}, "max_completion_length\n  Input should be", id="length"
        ),
        pytest.param(
            {"task": Holdout(format=gn.tasks.xml(), holdout=[])},
            "there are no held-out questions",
            id="no questions",
        ),
        pytest.param({"task": [{"question": "Hi."}]}, "no column 'answer'", id="no answers"),
    ],
)
def test_compare_refuses_before_it_loads_a_model(
    run: gn.runs.Run, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        gn.compare(run, **arguments)
    assert run.model is None


WRONG_ORDERS = [
    pytest.param(lambda run, task: gn.compare("base", run, task), id="before, after, task"),
    pytest.param(lambda run, task: gn.compare(run, "model.gguf", task), id="a file second"),
    pytest.param(lambda run, task: gn.compare(run, "base", task), id="base second"),
    pytest.param(lambda run, task: gn.compare(run, against=task), id="task as other"),
]


@pytest.mark.parametrize("call", WRONG_ORDERS)
def test_compare_with_swapped_arguments_is_refused(
    run: gn.runs.Run, task: gn.tasks.Task, call: Callable[..., Any]
) -> None:
    with pytest.raises(TypeError, match=r"gn\.compare\(.*\) takes"):
        call(run, task)
    assert run.model is None


def test_compare_of_base_with_a_run_as_task_asks_for_the_run(run: gn.runs.Run) -> None:
    with pytest.raises(ValueError, match="but no run was given"):
        gn.compare("base", run)


@pytest.mark.parametrize("function", [gn.compare, gn.evaluate])
def test_questions_that_were_trained_on_are_refused(
    tiny_run: gn.runs.Run, task: gn.tasks.Task, function: Callable[..., Any]
) -> None:
    spoilt = dataclasses.replace(task, holdout=task.train.select(range(10)))
    with pytest.raises(
        ValueError, match="10 held-out questions are also in the training questions of the run tiny"
    ):
        function(tiny_run, spoilt)


@pytest.fixture
def trained_questions(task: gn.tasks.Task) -> list[dict[str, str]]:
    """Two training questions with other spaces, and ten new questions."""
    rows = []
    for question in task.train["question"][:2]:
        rows.append({"question": f"What is  {question[8:-1]} ?", "answer": "1"})
    return rows + new_questions(10)


def test_trained_question_is_known_from_the_folder(
    tiny_run: gn.runs.Run, trained_questions: list[dict[str, str]]
) -> None:
    message = r"2 held-out questions.*training questions of the run tiny"
    with pytest.raises(ValueError, match=message):
        gn.evaluate(gn.open_run(tiny_run.path), trained_questions)


def test_allowed_contamination_is_in_the_sentence(
    tiny_run: gn.runs.Run, trained_questions: list[dict[str, str]]
) -> None:
    comparison = gn.compare(tiny_run, trained_questions, allow_contaminated=True)
    expected = "2 of 12 held-out questions are also in the training questions of the run tiny"
    assert expected in comparison.sentence


def test_unknown_training_questions_are_noted(tiny_run: gn.runs.Run) -> None:
    model = (tiny_run.model, tiny_run.tokenizer)
    alone = gn.evaluate(model, new_questions(), max_completion_length=4)
    assert "Not all training questions are known" in repr(alone)


def test_run_without_question_hashes_is_noted(run: gn.runs.Run, task: gn.tasks.Task) -> None:
    (run.path / "train_questions.txt").unlink()
    evaluation = gn.evaluate(run, task, limit=2, max_completion_length=2)
    assert evaluation.contamination is None
    # Contamination that is known is still refused.
    spoilt = dataclasses.replace(task, holdout=task.train)
    with pytest.raises(ValueError, match="also in the training part of the task"):
        gn.evaluate(run, spoilt)


def write_settings(run: gn.runs.Run, **values: Any) -> gn.runs.Run:
    """Change settings in the record of a run, and open the run again."""
    settings = run.info["settings"] | values
    (run.path / "run.json").write_text(json.dumps(run.info | {"settings": settings}))
    return gn.open_run(run.path)


def test_runs_with_other_template_arguments_are_not_compared(
    tiny_run: gn.runs.Run, run: gn.runs.Run
) -> None:
    arguments = {"enable_thinking": False}
    other = write_settings(run, extra={"chat_template_kwargs": arguments})
    with pytest.raises(ValueError, match="of another run, the two runs cannot be compared"):
        gn.compare(other, against=tiny_run)


def test_compare_asks_as_in_another_run_and_keeps_nothing_with_it(
    tiny_run: gn.runs.Run, run: gn.runs.Run
) -> None:
    other = write_settings(run, max_completion_length=2)
    comparison = gn.compare(tiny_run, run=other, grader=brevity)
    assert max(row["tokens"] for row in comparison.after.rows) == 2
    assert comparison.after.description == "The adapter of the run tiny."
    assert other.comparison is None


def test_interrupted_loading_is_repeated_by_the_next_call(
    run: gn.runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*args: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("grpo_nb.evaluation.model_sources.load_adapter", interrupted)
        with pytest.raises(KeyboardInterrupt):
            gn.evaluate(run, limit=1, max_completion_length=1)
    assert gn.evaluate(run, limit=1, max_completion_length=1).question_count == 1


def test_own_comparison_is_kept_with_the_run(run: gn.runs.Run) -> None:
    own = gn.compare(run, grader=brevity)
    assert own.sentence in (run.path / "README.md").read_text()
    assert run.comparison.sentence == own.sentence
    kept = pandas.read_parquet(run.path / "comparison" / "transcripts.parquet")
    pandas.testing.assert_frame_equal(kept, own.transcripts(), check_categorical=False)


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({"max_completion_length": 4}, id="shorter"),
        pytest.param({"max_completion_length": 16}, id="longer"),
        pytest.param({"limit": 3}, id="fewer questions"),
        pytest.param({"samples": 2}, id="sampled"),
        pytest.param({"task": new_questions()}, id="other questions"),
        pytest.param({"grader": gn.rewards.maths()}, id="another grader"),
    ],
)
def test_other_comparison_is_not_kept_with_the_run(
    run: gn.runs.Run, arguments: dict[str, Any]
) -> None:
    gn.compare(run, **{"grader": brevity, **arguments})
    assert run.comparison is None


def test_comparison_in_another_format_is_not_kept(run: gn.runs.Run) -> None:
    rows = [{"question": row["question"], "answer": row["answer"]} for row in run.holdout]
    boxed = gn.evaluation.load_holdout(rows, format=gn.tasks.boxed())
    gn.compare(run, boxed)
    assert run.comparison is None


def test_comparison_with_other_answers_is_not_kept(run: gn.runs.Run) -> None:
    rows = [row | {"answer": "0"} for row in run.holdout]
    format = gn.tasks.AnswerFormat(**run.info["task"]["format"])
    gn.compare(run, Holdout(format=format, holdout=rows), grader=brevity)
    assert run.comparison is None


def test_comparison_graded_by_the_reward_of_the_run_is_kept(run: gn.runs.Run) -> None:
    comparison = gn.compare(run, grader=brevity)
    assert run.comparison.sentence == comparison.sentence


def write_prompts(run: gn.runs.Run, rows: list[dict], train_rows: list[dict] | None = None) -> None:
    """Write held-out rows into the folder of a run, and training rows, by default the same."""
    for path, some_rows in (
        ("holdout.jsonl", rows),
        ("start/train.jsonl", rows if train_rows is None else train_rows),
    ):
        (run.path / path).write_text("".join(json.dumps(row) + "\n" for row in some_rows))


@pytest.mark.parametrize("has_system_role", [True, False])
def test_own_rows_get_the_example_of_the_run(run: gn.runs.Run, has_system_role: bool) -> None:
    example = ("What is 1 + 1?", "One more than 1.", "2")
    format = gn.tasks.AnswerFormat(**run.info["task"]["format"])
    rows = with_prompts(
        [{"question": row["question"], "answer": row["answer"]} for row in run.holdout],
        format,
        messages_of_example(example, format),
    )
    if not has_system_role:
        for row in rows:
            system, first, *others = row["prompt"]
            content = f"{system['content']}\n\n{first['content']}"
            row["prompt"] = [first | {"content": content}, *others]
    write_prompts(run, rows)
    exam = Exam(model_sources=[], run=run, task=new_questions())
    *start, question = exam.rows[0]["prompt"]
    assert start == rows[0]["prompt"][:-1]
    assert question == {"role": "user", "content": "What is 30 + 30?"}


def test_turns_of_a_conversation_are_not_shared(run: gn.runs.Run) -> None:
    rows = []
    for row in run.holdout:
        greeting = [
            {"role": "user", "content": f"Hello, {row['answer']}."},
            {"role": "assistant", "content": "Hello."},
        ]
        rows.append(row | {"prompt": [*greeting, row["prompt"][-1]]})
    write_prompts(run, rows)
    assert shared_messages(run) == []
    # The training had no system prompt either.
    exam = Exam(model_sources=[], run=run, task=new_questions())
    assert exam.rows[0]["prompt"] == [{"role": "user", "content": "What is 30 + 30?"}]


SYSTEM = {"role": "system", "content": "Answer with a number."}
DIALOGUE = [
    SYSTEM,
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hello. What is the question?"},
    {"role": "user", "content": "What is 1 + 1?"},
]
QUESTION = [SYSTEM, DIALOGUE[-1]]
OTHER_REPLY = [*DIALOGUE[:2], {"role": "assistant", "content": "Hi."}, DIALOGUE[-1]]


@pytest.mark.parametrize(
    ("train_prompts", "shared"),
    [
        pytest.param([QUESTION], [SYSTEM], id="train rows without dialogue"),
        pytest.param([OTHER_REPLY], [SYSTEM], id="another reply"),
        pytest.param([DIALOGUE], DIALOGUE[:3], id="an example of all rows"),
    ],
)
def test_dialogue_of_the_only_held_out_row_is_not_shared(
    run: gn.runs.Run, train_prompts: list, shared: list
) -> None:
    train_rows = [{"prompt": prompt} for prompt in train_prompts]
    write_prompts(run, [{"prompt": DIALOGUE}], train_rows)
    assert shared_messages(run) == shared


def test_own_system_prompts_are_replaced_by_that_of_the_format(run: gn.runs.Run) -> None:
    rows = []
    for number, row in enumerate(run.holdout):
        system = {"role": "system", "content": f"You are calculator {number}."}
        rows.append(row | {"prompt": [system, row["prompt"][-1]]})
    write_prompts(run, rows)
    format = gn.tasks.AnswerFormat(**run.info["task"]["format"])
    assert shared_messages(run) == [{"role": "system", "content": format.system_prompt()}]


def test_run_without_known_prompts_starts_with_the_format(run: gn.runs.Run) -> None:
    write_prompts(run, [])
    format = gn.tasks.AnswerFormat(**run.info["task"]["format"])
    assert shared_messages(run) == [{"role": "system", "content": format.system_prompt()}]


def test_ask_without_questions_is_refused(run: gn.runs.Run) -> None:
    with pytest.raises(ValueError, match="questions is empty"):
        gn.ask(run, [])


def counted_brevity() -> Callable[..., list[float]]:
    """Return a reward that remembers its calls, as one with a cache does."""
    calls: list[int] = []

    def counted(completions: list, **columns: Any) -> list[float]:
        calls.append(len(completions))
        return brevity(completions=completions, **columns)

    return counted


def test_comparison_by_a_reward_that_remembers_calls_is_kept(
    run: gn.runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "rewards", [counted_brevity()])
    shutil.rmtree(run.path / "comparison", ignore_errors=True)
    gn.compare(run, grader=counted_brevity())
    assert (run.path / "comparison").is_dir()


def test_comparison_that_cannot_be_written_keeps_the_old_one(
    run: gn.runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    gn.compare(run, grader=brevity)
    own = {file.name: file.read_bytes() for file in (run.path / "comparison").iterdir()}
    with monkeypatch.context() as patch:
        patch.delattr(Comparison, "to_dict")
        with pytest.raises(AttributeError):
            gn.compare(run, grader=brevity)
    now = {file.name: file.read_bytes() for file in (run.path / "comparison").iterdir()}
    assert now == own


def test_comparison_is_saved_in_any_folder(run: gn.runs.Run, tmp_path: Path) -> None:
    gn.compare(run, new_questions()).save(tmp_path / "mine")
    assert len(pandas.read_parquet(tmp_path / "mine" / "transcripts.parquet")) == 12


def test_own_rows_and_files_are_asked_as_the_run_was_trained(
    tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    file = tmp_path / "mine.csv"
    pandas.DataFrame(new_questions()).to_csv(file, index=False)
    format = gn.tasks.AnswerFormat(**tiny_run.info["task"]["format"])
    _, *example = shared_messages(tiny_run)
    holdout = gn.evaluation.load_holdout(new_questions(), format=format, example=example)
    expected = gn.evaluate(tiny_run, holdout).rows
    assert gn.evaluate(tiny_run, new_questions()).rows == expected
    assert gn.evaluate(tiny_run, file).rows == expected
    assert gn.compare(tiny_run, str(file), limit=3).accuracy_test.questions == 3


def record_rewards(run: gn.runs.Run, rewards: list[Any]) -> gn.runs.Run:
    """Write these rewards into the run's record, and open the run again."""
    records = []
    for reward in rewards:
        record = {"name": reward.__name__, "weight": 1.0, "call": repr(reward)}
        records.append(record | record_of(reward))
    (run.path / "run.json").write_text(json.dumps(run.info | {"rewards": records}))
    return gn.open_run(run.path)


PLAIN = "Counted as correct: answers to which correctness() gives the full score."


def test_grader_of_the_run_is_named_in_sentence_and_card(run: gn.runs.Run) -> None:
    opened = record_rewards(run, [gn.rewards.correctness(), gn.rewards.partial_format()])
    sentence = gn.compare(opened).sentence
    assert PLAIN in sentence
    assert sentence == opened.comparison.sentence
    assert sentence in (run.path / "README.md").read_text()


def test_grader_of_the_run_has_its_parameters(run: gn.runs.Run) -> None:
    opened = record_rewards(
        run, [gn.rewards.correctness(tolerance=0.5), gn.rewards.partial_format()]
    )
    near = "Counted as correct: answers to which correctness(tolerance=0.5) gives the full score."
    assert near in gn.compare(opened, new_questions()).sentence
    assert PLAIN in gn.compare(opened, grader=gn.rewards.correctness()).sentence


@pytest.mark.parametrize(
    "function",
    [
        pytest.param(gn.compare, id="compare"),
        pytest.param(gn.evaluate, id="evaluate"),
        pytest.param(lambda run: gn.ask(run, "?"), id="ask"),
    ],
)
def test_model_that_was_trained_on_is_refused(
    tiny_run: gn.runs.Run, function: Callable[[gn.runs.Run], Any]
) -> None:
    run = gn.runs.Run(tiny_run.path, model=tiny_run.model, tokenizer=tiny_run.tokenizer)
    parameters = run.model.named_parameters()
    weights = next(parameter for name, parameter in parameters if "lora_B" in name)
    saved = weights.data.clone()
    message = r"not the one that the run 'tiny' ended with.*gn.open_run\("
    try:
        weights.data[0, 0] += 0.01
        with pytest.raises(ValueError, match=message):
            function(run)
    finally:
        weights.data.copy_(saved)


REFUSING = (
    "{% for m in messages %}{% if m.role == 'system' %}"
    "{{ raise_exception('System role not supported') }}{% endif %}{{ m.content }}{% endfor %}"
)
SILENT = "{% for m in messages %}{% if m.role != 'system' %}{{ m.content }}{% endif %}{% endfor %}"


@pytest.mark.parametrize(
    ("template", "error", "message"),
    [
        pytest.param(REFUSING, TemplateError, "System role not supported", id="refused"),
        pytest.param(SILENT, ValueError, "leaves out the system prompt", id="left out"),
    ],
)
@pytest.mark.parametrize(
    "function",
    [
        pytest.param(lambda run: gn.compare(run, new_questions()), id="compare"),
        pytest.param(lambda run: gn.ask(run, "?"), id="ask"),
    ],
)
def test_system_prompt_that_the_template_does_not_render_is_refused(
    run: gn.runs.Run,
    template: str,
    error: type[Exception],
    message: str,
    function: Callable[[gn.runs.Run], Any],
) -> None:
    (run.path / "chat_template.jinja").write_text(template)
    with pytest.raises(error, match=message):
        function(run)


def test_ask_of_a_run_with_tools_names_compare(tmp_path: Path) -> None:
    info = info_of({"right": 1.0})
    info["task"]["tools"] = ["search"]
    run = write_run_folder(tmp_path / "with_tools", info)
    with pytest.raises(ValueError, match=r"gn\.ask cannot ask such a run, but gn\.compare\(run"):
        gn.ask(run, "Where?")


def test_task_without_the_tools_of_the_run_is_refused(tmp_path: Path, task: gn.tasks.Task) -> None:
    info = info_of({"right": 1.0})
    info["task"]["tools"] = ["search"]
    run = write_run_folder(tmp_path / "with_tools", info)
    with pytest.raises(ValueError, match=r"Pass the task with its tools: gn\.compare\(run, task"):
        gn.compare(run, task)
