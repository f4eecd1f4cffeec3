"""Comparisons say no more than the data shows, on the real path and on made-up answers; and own questions side by side."""

import json
from dataclasses import replace
from pathlib import Path

import pandas
import pytest
import torch

import grpo_nb as gn
from grpo_nb.evaluation.results import Comparison, Evaluation
from grpo_nb.scoring.record import record_of
from tests.conftest import brevity


def made(label: str, right: list[bool], samples: int = 1, gold: str = "7") -> Evaluation:
    row = {"answer": gold, "completion": "<script>alert(1)</script>", "tokens": 5, "is_cut": False}
    judged = [
        {"given": "7" if ok else None, "is_correct": ok, "is_formatted": ok, "is_anywhere": ok}
        for ok in right
    ]
    return Evaluation(
        label, [{"question": f"<q{i}>", **row, **each} for i, each in enumerate(judged)], samples
    )


def paired(before: list[bool], after: list[bool], samples: int = 1) -> Comparison:
    return Comparison(made("before", before, samples), made("after", after, samples))


def fresh(count: int = 12) -> list[dict[str, str]]:
    return [
        {"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(30, 30 + count)
    ]


@pytest.mark.parametrize(
    ("before", "after", "verdict"),
    [
        ([False] * 40, [True] * 30 + [False] * 10, "better"),
        ([True] * 30 + [False] * 10, [False] * 40, "worse"),
        (
            [False] * 40,
            [True] * 4 + [False] * 36,
            "no difference shown",
        ),  # 0 and 4 of 40: p = 0.125
        ([True] * 10, [True] * 10, "no difference shown"),
        ([False] * 9, [True] * 9, "no difference shown"),  # p = 0.004, of nine questions
    ],
)
def test_verdicts(before: list[bool], after: list[bool], verdict: str) -> None:
    found = paired(before, after)
    changed = (
        " in correct answers."
        if verdict == "no difference shown"
        else ": the answers and the format."
    )
    assert found.verdict == verdict and found.sentence.startswith(
        f"{verdict.capitalize()}{changed}"
    )
    unseen = (
        "A true difference of" if len(before) > 9 else "Under 10 questions no difference is claimed"
    )
    assert (unseen in found.sentence) == (verdict == "no difference shown")


def test_numbers_against_the_definitions() -> None:
    comparison = paired([False] * 20 + [True] * 20, [True] * 15 + [False] * 10 + [True] * 15)
    # 15 gained, 5 lost. Exact McNemar: two-sided binomial(20, 1/2). Bonett and Price: one more each way, of 42.
    assert comparison.result.p_value == pytest.approx(0.04139, abs=1e-5)
    half = 1.959964 * ((16 / 42 + 6 / 42 - (10 / 42) ** 2) / 42) ** 0.5
    assert comparison.result.interval == pytest.approx((10 / 42 - half, 10 / 42 + half))
    assert "on 40 questions (difference +25.0 points" in comparison.sentence


def test_ratings_have_a_floor_and_sums_have_none() -> None:
    for golds, said in (
        (
            list("551534" * 3),
            "Always answering '5' would get 50.0%: 'after' with 0.0% is below that floor.",
        ),
        ([str(n % 14) for n in range(20)], ""),  # sums, of which some come twice
    ):
        rows = [made("x", [False], gold=gold).rows[0] for gold in golds]
        found = Comparison(Evaluation("before", rows), Evaluation("after", rows))
        assert found.floor_sentence == said and said in repr(found)


def test_changed_answers_come_first_and_everything_is_escaped() -> None:
    comparison = paired([True, True, False, False], [True, False, True, False])
    table = comparison.transcripts()
    assert table["question"].tolist() == ["<q1>", "<q2>", "<q3>", "<q0>"]
    assert table["change"].tolist() == ["lost", "gained", "both wrong", "both right"]
    assert (table["before_is"][0], table["after_is"][0]) == ("right", "no answer")
    shown = comparison._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "&lt;q2&gt;" in shown
    assert 'alt="Held-out comparison. No difference shown' in shown and "no answer" in shown


def test_several_samples_of_a_question_are_no_further_questions() -> None:
    """Twelve questions with eight samples each, of which one changed: 8 of 96 answers, but one question of twelve."""
    before, after = [False] * 96, [True] * 8 + [False] * 88
    found = paired(before, after, samples=8)
    assert found.result.questions == 12 and found.after.pass_at[8][0] == pytest.approx(1 / 12)
    assert found.verdict == "no difference shown" and found.result.p_value == 1.0
    assert paired(before, after).verdict == "better", "what ignoring that would say"
    assert found.transcripts()["change"].tolist() == ["gained"] * 8 + ["both wrong"] * 88


def test_compare_a_run_from_memory_and_from_disk(
    tiny_run: gn.runs.Run, task: gn.tasks.Task
) -> None:
    # The folder has only the source of the run's main reward, which decides what is correct.
    here, there = (
        gn.compare(tiny_run, task),
        gn.compare(gn.open_run(tiny_run.path), correct=brevity),
    )
    assert [row["question"] for row in here.before.rows] == task.holdout["question"]
    assert here.before.rows[0]["completion"] != here.after.rows[0]["completion"], (
        "the adapter was not switched"
    )
    assert (there.before.rows, there.after.rows) == (here.before.rows, here.after.rows)
    assert tiny_run.comparison.sentence == here.sentence and "Held-out:" in repr(tiny_run)
    assert (
        not here.contamination.count
        and "training questions of the run tiny" in here.contamination.source
    )
    assert here.after.cut_share > 0.5 and "of 'after' were cut at the length limit" in repr(here)


def test_own_questions_are_answered_side_by_side_as_in_training(run: gn.runs.Run) -> None:
    known = gn.compare(run)
    found = gn.ask(run, [row["question"] for row in run.holdout[:2]])
    for side in ("before", "after"):
        texts = [completion.text for completion in getattr(found, side)]
        assert texts == [row["completion"] for row in getattr(known, side).rows[:2]], (
            "the very prompts of the run"
        )
    shown = gn.ask(str(run.path), "What is <b>2</b> + 2?", max_completion_length=3)
    page = shown._repr_html_()
    assert (
        len(shown.before) == 1
        and shown.after[0].tokens <= 3
        and "&lt;b&gt;2" in page
        and "<b>2" not in page
    )


def test_greedy_and_sampled_on_a_model(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    greedy = gn.evaluate(
        (tiny_run.model, tiny_run.tokenizer), task, max_completion_length=12, rewards=brevity
    )
    assert gn.evaluate(tiny_run, task, rewards=brevity).rows == greedy.rows
    expected = [brevity([[{"content": row["completion"]}]])[0] for row in greedy.rows]
    assert greedy.rewards["brevity"].mean == pytest.approx(sum(expected) / 10)
    state = torch.get_rng_state()
    drawn = gn.evaluate(tiny_run, task, samples=4)
    assert torch.equal(torch.get_rng_state(), state), (
        "an evaluation must not change what is drawn afterwards"
    )
    assert (
        len(drawn.rows) == 40
        and [row["question"] for row in drawn.rows[::4]] == task.holdout["question"]
    )
    assert set(drawn.pass_at) == {1, 2, 4} and "4 drawn for each at temperature 1." in repr(drawn)
    assert len({row["completion"] for row in drawn.rows[:4]}) > 1, (
        "the samples of a question are draws of their own"
    )
    assert gn.evaluate(tiny_run, task, samples=4).rows == drawn.rows, (
        "the same seed, the same draws"
    )


@pytest.mark.parametrize(
    ("how", "problem"),
    [
        ({"samples": 2, "temperature": 0}, "must be 1, or several at a temperature above 0"),
        ({"limit": 0}, "there are no held-out questions"),
        ({"max_completion_length": 0}, "max_completion_length = 0 must be"),
        ({"task": [{"question": "Say hello."}]}, "no column 'answer'"),
    ],
)
def test_what_cannot_work_is_told_before_anything_is_loaded(
    run: gn.runs.Run, how: dict, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        gn.compare(run, **how)
    assert run.model is None


def test_questions_that_were_trained_on_are_refused(
    tiny_run: gn.runs.Run, task: gn.tasks.Task
) -> None:
    spoilt = replace(task, holdout=task.train.select(range(10)))
    for ask in (gn.compare, gn.evaluate):
        with pytest.raises(ValueError, match="10 held-out questions are also in the training part"):
            ask(tiny_run, spoilt)
    # From the folder alone, written otherwise: nothing but the run's own record can know.
    asked = [
        {"question": f"What is  {q[8:-1]} ?", "answer": "1"} for q in task.train["question"][:2]
    ] + fresh(10)
    with pytest.raises(
        ValueError, match=r"2 held-out questions.*training questions of the run tiny"
    ):
        gn.evaluate(gn.open_run(tiny_run.path), asked)
    told = gn.compare(tiny_run, asked, allow_contaminated=True)
    assert "2 of 12 held-out questions are also in the training part" in told.sentence
    alone = gn.evaluate((tiny_run.model, tiny_run.tokenizer), fresh(), max_completion_length=4)
    assert "Which questions were trained on is not known" in repr(alone)


def test_what_is_not_the_runs_own_result_is_not_kept_as_that(
    run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = gn.compare(run, fresh())
    assert other.path is None and gn.open_run(run.path).comparison is None
    own = gn.compare(run, rewards=brevity)
    assert (
        own.path == run.path / "comparison" and own.sentence in (run.path / "README.md").read_text()
    )
    for how in ({"max_completion_length": 4}, {"limit": 3}, {"samples": 2}, {"task": fresh()}):
        assert gn.compare(run, **how).path is None and run.comparison.sentence == own.sentence, how
    # A new one that cannot be written leaves the old one whole.
    with monkeypatch.context() as patch:
        patch.delattr(Comparison, "_picture")
        with pytest.raises(AttributeError):
            gn.compare(run)
    opened = gn.evaluation.open_comparison(run.path)
    assert repr(opened) == repr(own) and opened._repr_html_() == own._repr_html_()
    assert opened.transcripts().equals(own.transcripts())
    assert gn.evaluation.open_comparison(other.save(tmp_path / "mine").path).result.questions == 12
    assert (tmp_path / "mine" / "comparison.png").read_bytes().startswith(b"\x89PNG")


def test_rows_and_files_of_ones_own_are_asked_in_the_format_of_the_run(
    tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    file = tmp_path / "mine.csv"
    pandas.DataFrame(fresh()).to_csv(file, index=False)
    wanted = gn.evaluation.load_holdout(
        fresh(), format=gn.tasks.AnswerFormat(**tiny_run.info["task"]["format"])
    )
    expected = gn.evaluate(tiny_run, wanted).rows
    assert gn.evaluate(tiny_run, fresh()).rows == gn.evaluate(tiny_run, file).rows == expected
    assert gn.compare(tiny_run, str(file), limit=3).result.questions == 3, (
        "no model of that name is looked for"
    )


def test_who_says_what_is_right_is_always_named(run: gn.runs.Run) -> None:
    """The run's only reward for the answer, with its parameters, from its folder too; who names another has that one."""
    paid_by_the_kit = [gn.rewards.correctness(), gn.rewards.xml_tags()]
    records = []
    for reward in paid_by_the_kit:
        records.append(
            {"name": reward.__name__, "weight": 1.0, "call": repr(reward), **record_of(reward)}
        )
    (run.path / "run.json").write_text(json.dumps(run.info | {"rewards": records}))
    plain, near = (
        "Right is what correctness() pays in full.",
        "Right is what correctness(tolerance=0.5) pays in full.",
    )
    own = gn.compare(run).sentence
    assert (
        plain in own
        and own == run.comparison.sentence
        and own in (run.path / "README.md").read_text()
    )
    paid, (first, second) = gn.rewards.correctness(tolerance=0.5), run.info["rewards"]
    recorded = run.info | {"rewards": [{**first, "name": "correctness", **record_of(paid)}, second]}
    (run.path / "run.json").write_text(json.dumps(recorded))
    opened = gn.open_run(run.path)
    assert near in gn.compare(opened, fresh()).sentence
    assert plain in gn.compare(opened, rewards=gn.rewards.correctness()).sentence
    mixed = [row | {"answer": "May" if n < 4 else '{"a": 1}'} for n, row in enumerate(fresh(12))]
    found = gn.evaluate(opened, mixed, rewards=gn.rewards.json_answer(), max_completion_length=4)
    assert "no opinion (4 of 12 questions) what correctness() does" in repr(found)


def test_a_model_that_was_trained_on_is_not_the_run_any_more(tiny_run: gn.runs.Run) -> None:
    run = gn.runs.Run(tiny_run.path, model=tiny_run.model, tokenizer=tiny_run.tokenizer)
    layer = next(p for name, p in run.model.named_parameters() if "lora_B" in name)
    kept = layer.data.clone()
    try:
        layer.data[0, 0] += 0.01
        for ask in (gn.compare, gn.evaluate, lambda run: gn.ask(run, "?")):
            with pytest.raises(
                ValueError, match=r"not the one that the run 'tiny' ended with.*gn.open_run\("
            ):
                ask(run)
    finally:
        layer.data.copy_(kept)
