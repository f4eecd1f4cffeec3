"""Own functions decide what is correct: the run's main one by itself, any other with `grader=`."""

import dataclasses
import json
from collections.abc import Callable
from types import SimpleNamespace

import pytest

import grpo_nb as gn
from grpo_nb.evaluation.exam import Exam
from grpo_nb.evaluation.holdout import Holdout
from grpo_nb.generation.completions import GeneratedCompletion
from grpo_nb.scoring.record import record_of
from grpo_nb.training.recorder import HoldoutObserver
from tests.run_fixtures import brevity
from tests.support.judges import by_length


def everything(completions: list, **columns: object) -> list[float]:
    return [1.0] * len(completions)


def in_text(completions: list, answer: list, **columns: object) -> list[float]:
    """Score 2.0 where the gold answer is the last word, in any format."""
    texts = [turns if isinstance(turns, str) else turns[-1]["content"] for turns in completions]
    scores = []
    for text, gold in zip(texts, answer, strict=True):
        words = text.replace("<answer>", " ").replace("</answer>", " ").split()
        scores.append(2.0 * (words[-1:] == [gold]))
    return scores


def needs_a_column(completions: list, level: list, **columns: object) -> list[float]:
    return [float(value == 1) for value in level]


def test_main_function_of_a_run_grades(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    comparison = gn.compare(tiny_run, task)
    assert "answers to which brevity() gives " in comparison.after.grader.correctness_rule
    assert comparison.after.share_of("anywhere") is None
    assert "not measured, because brevity() does not say where it reads the answer" in repr(
        comparison
    )


def test_correct_takes_any_function(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    comparison = gn.compare(tiny_run, task, grader=everything)
    assert (comparison.before.accuracy, comparison.after.accuracy) == (1.0, 1.0)
    assert (
        "Counted as correct: answers to which everything() gives 1 or more" in comparison.sentence
    )


def test_correct_takes_a_reward_of_the_kit(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    evaluation = gn.evaluate(tiny_run, task, grader=gn.rewards.maths())
    assert evaluation.grader.correctness_rule == "answers to which maths() gives the full score"
    assert evaluation.share_of("anywhere") is not None


def test_function_without_a_run_grades_in_evaluate(
    tiny_run: gn.runs.Run, task: gn.tasks.Task
) -> None:
    model = (tiny_run.model, tiny_run.tokenizer)
    assert gn.evaluate(model, task, grader=everything).accuracy == 1.0
    assert "correctness()" in gn.evaluate(model, task).grader.correctness_rule


def test_run_from_its_folder_names_the_missing_function(run: gn.runs.Run) -> None:
    message = r"your function brevity\(\).*unless you write grader=brevity"
    with pytest.warns(UserWarning, match=message) as warned:
        evaluation = gn.evaluate(run, limit=2)
    assert (
        evaluation.grader.correctness_rule == "answers to which correctness() gives the full score"
    )
    assert warned[0].filename == __file__
    assert "brevity()" in gn.evaluate(run, limit=2, grader=brevity).grader.correctness_rule


def test_function_reads_columns_kept_with_the_run(run: gn.runs.Run) -> None:
    rows = [{**row, "level": 1} for row in run.holdout]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (run.path / "holdout.jsonl").write_text(lines)
    assert gn.evaluate(run, grader=needs_a_column).accuracy == 1.0


def test_run_with_format_rewards_only_uses_correctness(run: gn.runs.Run) -> None:
    kit = gn.rewards.partial_format()
    reward = {"name": "partial_format", "weight": 0.5, "call": repr(kit), **record_of(kit)}
    info = run.info | {"rewards": [reward]}
    (run.path / "run.json").write_text(json.dumps(info))
    assert (
        gn.evaluate(run, limit=2).grader.correctness_rule
        == "answers to which correctness() gives the full score"
    )


def exam_of_reopened_run(
    *,
    trained_with: tuple = (brevity,),
    minor: tuple = (),
    grader: Callable[..., list[float]] | None = None,
) -> Exam:
    """Questions for a run whose folder has records of these rewards.

    All have the weight 1, but the minor ones 0.5.
    """
    question = {"prompt": [{"role": "user", "content": "q"}], "question": "1 + 1?", "answer": "2"}
    weights = {reward.__name__: 1.0 for reward in trained_with}
    weights |= {reward.__name__: 0.5 for reward in minor}
    records = []
    for (name, weight), reward in zip(weights.items(), trained_with + minor, strict=True):
        records.append({"name": name, "weight": weight, **record_of(reward)})
    run = SimpleNamespace(
        name="reopened",
        rewards=[],
        weights=weights,
        info={"rewards": records, "task": {}},
        holdout=[question],
        settings=gn.Settings(),
        chat_template_kwargs={},
        tokenizer=lambda text, **options: {"input_ids": [0]},
    )
    task = Holdout(format=gn.tasks.xml(), holdout=[question])
    return Exam(model_sources=[], run=run, task=task, grader_argument=grader)


def test_exam_with_the_function_of_the_run_is_its_result() -> None:
    assert exam_of_reopened_run(grader=brevity).is_result_of_run


@pytest.mark.filterwarnings("ignore:The main reward")
def test_exam_without_the_function_is_not_its_result() -> None:
    assert not exam_of_reopened_run().is_result_of_run


def test_exam_with_an_edited_function_is_not_its_result() -> None:
    def edited(completions: list, **columns: object) -> list[float]:
        return [0.5] * len(completions)

    edited.__name__ = "brevity"
    exam = exam_of_reopened_run(grader=edited)
    assert exam.grading_reward is edited
    assert not exam.is_result_of_run


def test_exam_with_a_minor_reward_of_the_run_is_not_its_result() -> None:
    exam = exam_of_reopened_run(minor=(everything,), grader=everything)
    assert not exam.is_result_of_run
    assert exam_of_reopened_run(minor=(everything,), grader=brevity).is_result_of_run


def test_exam_with_a_minor_reward_of_a_run_in_memory_is_not_its_result() -> None:
    exam = exam_of_reopened_run(minor=(everything,), grader=everything)
    exam.run.rewards = [gn.rewards.correctness(), everything]
    assert not exam.is_result_of_run
    own = exam_of_reopened_run(grader=gn.rewards.correctness())
    own.run.rewards = exam.run.rewards
    assert own.is_result_of_run


def at_most(words: int) -> Callable[..., list[float]]:
    def short(completions: list, **columns: object) -> list[float]:
        return [float(len(text.split()) <= words) for text in completions]

    return short


def test_exam_with_other_values_in_a_function_is_not_its_result() -> None:
    assert exam_of_reopened_run(trained_with=(at_most(9),), grader=at_most(9)).is_result_of_run
    other = exam_of_reopened_run(trained_with=(at_most(9),), grader=at_most(5))
    assert not other.is_result_of_run


JUDGE = gn.rewards.judge(by_length, "Long is good.", cache=None)


@gn.rewards.relative
def ranks(completions: list, **columns: object) -> list[float]: ...


@pytest.mark.parametrize("reward", [JUDGE, ranks], ids=["judge", "relative"])
def test_reward_of_a_reopened_run_that_never_decides(reward: Callable) -> None:
    exam = exam_of_reopened_run(trained_with=(reward,))
    assert exam.grading_reward == gn.rewards.correctness()
    assert exam.is_result_of_run


def test_function_beside_a_judge_of_a_reopened_run_is_named() -> None:
    exam = exam_of_reopened_run(trained_with=(brevity, JUDGE))
    with pytest.warns(UserWarning, match=r"your function brevity\(\)"):
        assert exam.grading_reward == gn.rewards.correctness()


def test_two_functions_of_a_reopened_run_leave_it_to_correctness() -> None:
    code_tests = gn.rewards.code_tests(weight=1.0)
    exam = exam_of_reopened_run(trained_with=(brevity, everything, code_tests))
    assert exam.grading_reward == gn.rewards.correctness()


def test_function_beside_code_tests_of_a_reopened_run_is_not_its_main_one(
    recwarn: pytest.WarningsRecorder,
) -> None:
    exam = exam_of_reopened_run(trained_with=(brevity, gn.rewards.code_tests(weight=1.0)))
    assert exam.grading_reward == gn.rewards.correctness()
    assert exam.is_result_of_run
    assert not recwarn.list


def test_exam_is_graded_by_the_given_reward() -> None:
    assert exam_of_reopened_run(grader=gn.rewards.maths()).grading_reward == gn.rewards.maths()


def test_function_is_tried_once_with_the_tokenizer_of_the_first_model(run: gn.runs.Run) -> None:
    calls = []

    def token_count(completions: list, completion_ids: list, **columns: object) -> list[float]:
        calls.append(len(completions))
        return [float(len(ids)) for ids in completion_ids]

    gn.compare(run, grader=token_count)
    golds = min(8, len(run.holdout))
    # One trial: gold answers and wrong ones. Then the answers of both models.
    assert calls == [2 * golds, len(run.holdout), len(run.holdout)]


@pytest.fixture
def curve(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, float]]:
    """Held-out scores of three steps: a function grades 1, 3 and 2 of 4 questions right."""
    questions = [{"prompt": "q", "question": f"{i} + {i}?", "answer": str(2 * i)} for i in range(4)]
    right = iter((1, 3, 2))

    def answers(*given: object) -> list[GeneratedCompletion]:
        count = next(right)
        texts = [str(2 * i if i < count else 99) for i in range(4)]
        return [GeneratedCompletion(text, False, ids=range(1)) for text in texts]

    monkeypatch.setattr("grpo_nb.training.recorder.complete_rows", answers)
    task = SimpleNamespace(
        holdout=questions,
        format=gn.tasks.xml(),
        chat_template_kwargs={},
        tools=None,
        start_episode=dict,
    )
    settings = gn.preset("cpu", holdout_every=1, holdout_questions=4)
    rewards = [in_text, gn.rewards.partial_format(weight=0.5)]
    prepared = SimpleNamespace(
        task=task,
        settings=settings,
        model=None,
        tokenizer=None,
        rewards=rewards,
        settings_as_run=settings,
    )
    watch = HoldoutObserver(prepared)
    rows = [{"step": step, "max_steps": 3} for step in (1, 2, 3)]
    for row in rows:
        watch(row, None)
    return rows


def test_holdout_curve_is_graded_by_the_main_function(curve: list[dict[str, float]]) -> None:
    assert [row["holdout/accuracy"] for row in curve] == [0.25, 0.75, 0.5]
    assert [row["holdout/in_format"] for row in curve] == [0.0, 0.0, 0.0]
    assert "holdout/anywhere" not in curve[0]


def test_curve_of_a_function_that_reads_environments_starts() -> None:
    def won(environments: list, **columns: object) -> list[float]:
        return [float(environment) for environment in environments]

    task = SimpleNamespace(
        holdout=[{"prompt": "q", "question": "1 + 1?", "answer": "2"}],
        format=gn.tasks.xml(),
        start_episode=lambda row: {**row, "environments": 0.0},
    )
    settings = gn.preset("cpu", holdout_every=1, holdout_questions=1)
    prepared = SimpleNamespace(task=task, settings=settings, tokenizer=None, rewards=[won])
    assert HoldoutObserver(prepared).grader.name == "won"


def test_answer_without_a_score_counts_as_not_correct(
    tiny_run: gn.runs.Run, task: gn.tasks.Task
) -> None:
    def sometimes(completions: list, answer: list, **columns: object) -> list[float | None]:
        return [None if int(gold) % 2 else 1.0 for gold in answer]

    odd = sum(int(row["answer"]) % 2 for row in task.holdout)
    with pytest.warns(UserWarning, match=rf"returned None for {odd} of 10 answers"):
        evaluation = gn.evaluate(tiny_run, task, grader=sometimes)
    assert [row["is_correct"] for row in evaluation.rows] == [
        int(row["answer"]) % 2 == 0 for row in task.holdout
    ]


def test_gain_of_a_function_that_ignores_answers_names_its_score(
    tiny_run: gn.runs.Run, task: gn.tasks.Task
) -> None:
    comparison = gn.compare(tiny_run, task, grader=everything)
    before = dataclasses.replace(
        comparison.before, rows=[{**row, "is_correct": False} for row in comparison.before.rows]
    )
    better = dataclasses.replace(comparison, before=before)
    assert better.headline == "Better: the score of everything()."


def test_majority_baseline_stands_next_to_a_proven_function(tiny_run: gn.runs.Run) -> None:
    rows = [
        {"question": f"Is {i} even?", "answer": "no" if i % 3 else "yes"} for i in range(100, 112)
    ]
    comparison = gn.compare(tiny_run, rows, against="start", grader=in_text)
    assert comparison.majority.share == 8 / 12
    assert not comparison.majority.is_beaten
    assert set(comparison.transcripts()["after_grade"]) == {"wrong"}


def test_two_functions_cannot_both_decide(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    with pytest.raises(ValueError, match="is not a reward function"):
        gn.evaluate(tiny_run, task, grader=[everything, in_text])
