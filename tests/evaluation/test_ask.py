"""Comparisons say no more than the data shows, on the real path and on made-up answers."""

import html
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from datasets import Dataset

import grpo_nb as gn
from grpo_nb.evaluation.ask import _Asked, _How, _is_questions, _paired
from grpo_nb.evaluation.comparison import Comparison, Evaluation, cut_sentence, frequent_answer
from grpo_nb.evaluation.heldout import read_answers, same_as_gold
from grpo_nb.generation.samples import Completion
from grpo_nb.rewards.record import record_of
from tests.conftest import brevity


def made(label: str, right: list[bool], samples: int = 1) -> Evaluation:
    rows = [
        {"question": f"<q{i}>", "answer": "7", "completion": "<script>alert(1)</script>", "given": "7" if ok else None,
         "is_correct": ok, "is_formatted": ok, "tokens": 5, "is_cut": False}
        for i, ok in enumerate(right)
    ]  # fmt: skip
    return Evaluation.of(label, rows, samples)


def _how(**more: object) -> _How:
    wanted = dict.fromkeys(("limit", "temperature", "max_completion_length", "settings", "seed", "report"))
    return _How(**{"rewards": (), "samples": 1, "allow_contaminated": False, **wanted, **more})


def paired(before: list[bool], after: list[bool], samples: int = 1) -> Comparison:
    return _paired(made("before", before, samples), made("after", after, samples))


def test_verdicts() -> None:
    no, yes = [False], [True]
    assert paired(no * 40, yes * 30 + no * 10).verdict == "better"
    assert paired(yes * 30 + no * 10, no * 40).verdict == "worse"
    assert paired(no * 40, yes * 2 + no * 38).verdict == "no difference shown"
    assert paired(yes * 10, yes * 10).verdict == "no difference shown"
    assert paired(no * 3, yes * 3).verdict == "no difference shown", "three questions show nothing"
    nine = paired(no * 9, yes * 9)  # p = 0.004, of nine questions
    assert nine.p_value < 0.05 and nine.verdict == "no difference shown"
    assert "Under 10 questions no difference is claimed, however large it is: ask more." in nine.sentence


def test_ratings_have_a_floor_and_sums_have_none() -> None:
    def floor(golds: list[str]) -> str:
        rows = [{**row, "answer": gold} for row, gold in zip(made("x", [False] * len(golds)).rows, golds, strict=True)]
        sides = Evaluation.of("before", rows), Evaluation.of("after", rows)
        return _paired(*sides, frequent=frequent_answer(golds)).floor_sentence

    said = "Always answering '5' would get 50.0%: 'after' with 0.0% is below that floor."
    assert floor(["5", "5", "1", "5", "3", "4"] * 3) == said
    assert floor([str(n % 14) for n in range(20)]) == "", "sums, of which some come twice"
    assert floor([str(n // 3) for n in range(18)]) == "", "each as often as the others, and none often"


def test_the_floor_is_of_the_most_frequent_answer_of_the_task(run: gn.runs.Run) -> None:
    """It was that of the few that were asked, picked afterwards, and of many labels there was none."""
    rows = [{"question": f"Item {i}?", "answer": f"code {i % 19 if i % 9 else 'x'}"} for i in range(125)]
    task = gn.load_task(rows, run.settings)
    assert task.answers.floor[0] == "code x"
    for limit in (None, 12, 3):
        asked = _Asked(task, None, _how(limit=limit))
        sides = [replace(made(name, [False]), rows=[{"answer": row["answer"]} for row in asked.rows]) for name in "ab"]
        golds = [row["answer"] for row in asked.rows]
        said = f"Always answering 'code x' would get {golds.count('code x') / len(golds):.1%}"
        found = replace(paired([False], [False]), before=sides[0], after=sides[1], frequent=asked.frequent)
        assert found.floor_sentence.startswith(said)
    (run.path / "run.json").write_text(json.dumps({**run.info, "task": {**run.info["task"], "floor": ["7", 0.1]}}))
    assert "Always answering '7' would get" in gn.compare(gn.open_run(run.path), limit=2).floor_sentence


def test_numbers_against_the_definitions() -> None:
    comparison = paired([False] * 20 + [True] * 20, [True] * 15 + [False] * 10 + [True] * 15)
    assert comparison.difference == pytest.approx((15 - 5) / 40)
    # Exact McNemar: 15 gained, 5 lost; two-sided binomial(20, 1/2).
    assert comparison.p_value == pytest.approx(0.04139, abs=1e-5)
    low, high = comparison.interval
    assert low < comparison.difference < high
    assert low == pytest.approx(0.25 - 1.96 * 0.1037, abs=0.03)
    assert "difference +25.0 points" in comparison.sentence and "on 40 questions" in comparison.sentence


def test_changed_answers_come_first_and_everything_is_escaped() -> None:
    comparison = paired([True, True, False, False], [True, False, True, False])
    table = comparison.transcripts()
    assert table["question"].tolist() == ["<q1>", "<q2>", "<q0>", "<q3>"]
    assert table["change"].tolist() == ["lost", "gained", "same", "same"]
    assert (table["before_is"][0], table["after_is"][0]) == ("right", "no answer")
    shown = comparison._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "&lt;q2&gt;" in shown
    assert "<td" in shown and "right" in shown and "no answer" in shown and 'alt="Held-out comparison.' in shown


def test_compare_a_run_from_memory_and_from_disk(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    here = gn.compare(tiny_run, task)
    assert [row["question"] for row in here.before.rows] == task.holdout["question"]
    assert here.before.rows[0]["completion"] != here.after.rows[0]["completion"], "the adapter was not switched"
    saved = json.loads((tiny_run.path / "comparison" / "comparison.json").read_text())
    assert saved["sentence"] == here.sentence
    assert "Held-out:" in repr(tiny_run) and here.sentence in (tiny_run.path / "README.md").read_text()
    opened = gn.compare(gn.open_run(tiny_run.path))
    assert [row["completion"] for row in opened.after.rows] == [row["completion"] for row in here.after.rows]
    assert [row["completion"] for row in opened.before.rows] == [row["completion"] for row in here.before.rows]
    assert not here.contamination.count and "training questions of the run tiny" in here.contamination.source


def test_what_is_saved_is_what_was_found(tmp_path: Path) -> None:
    import pandas

    result = paired([False] * 30, [True] * 20 + [False] * 10).save(tmp_path / "saved")
    saved = json.loads((result.path / "comparison.json").read_text())
    assert saved["verdict"] == "better" and saved["questions"] == 30 and saved["changed"]["gained"] == 20
    table = pandas.read_parquet(result.path / "transcripts.parquet")
    assert list(table["model"]) == ["before"] * 30 + ["after"] * 30 and table["is_correct"].sum() == 20
    assert (result.path / "comparison.png").read_bytes().startswith(b"\x89PNG")
    assert result.sentence in (result.path / "comparison.txt").read_text(), (
        "the words for those who do not see the figure"
    )


@pytest.mark.parametrize(
    ("gained", "told"),
    [(4, "The interval leaves out zero and the test does not reach 0.05"), (12, ""), (0, "")],
)
def test_interval_and_test_agree_in_words(gained: int, told: str) -> None:
    """Four of forty gained and none lost: bootstrap 2.5 to 20 points, exact McNemar 0.125."""
    found = paired([False] * 40, [True] * gained + [False] * (40 - gained))
    assert (told in found.sentence) and bool(found.disagreement) == bool(told)
    if gained == 4:
        assert found.p_value == pytest.approx(0.125) and found.interval[0] > 0
        assert found.verdict == "no difference shown" and told in repr(found) and told in found._repr_html_()


def test_a_sentence_says_what_could_not_be_seen() -> None:
    shown = paired([False] * 90 + [True] * 10, [True] * 4 + [False] * 86 + [True] * 8 + [False] * 2)
    assert shown.verdict == "no difference shown"
    assert (
        f"A true difference of {100 * shown.smallest:.0f} points or more is shown by so many questions four times in five; a"
        in shown.sentence
    )


def test_several_samples_of_a_question_are_no_further_questions() -> None:
    """Twelve questions with eight samples each, of which one changed: 8 of 96 answers, but one question of twelve."""
    before, after = [False] * 96, [True] * 8 + [False] * 88
    result = paired(before, after, samples=8)
    assert result.questions == 12 and result.after.pass_at[8][0] == pytest.approx(1 / 12)
    assert result.verdict == "no difference shown" and result.p_value == 1.0
    assert paired(before, after).verdict == "better", "what ignoring that would say"
    assert result.transcripts()["change"].tolist() == ["gained"] * 8 + ["same"] * 88


def test_greedy_and_sampled_on_a_model(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    rewards = [brevity, gn.rewards.xml_tags()]
    greedy = gn.evaluate((tiny_run.model, tiny_run.tokenizer), task, max_completion_length=12, rewards=rewards)
    again = gn.evaluate(tiny_run, task, rewards=rewards)
    assert again.rows == greedy.rows and (greedy.label, again.label) == ("model", "tiny")
    assert list(greedy.rewards) == ["brevity", "xml_tags"]
    expected = [brevity([[{"content": row["completion"]}]])[0] for row in greedy.rows]
    assert greedy.rewards["brevity"].mean == pytest.approx(sum(expected) / 10)
    torch.manual_seed(0)
    state = torch.get_rng_state()
    drawn = gn.evaluate(tiny_run, task, samples=4)
    assert torch.equal(torch.get_rng_state(), state), "an evaluation must not change what is drawn afterwards"
    assert drawn.samples == 4 and drawn.questions == 10 and len(drawn.rows) == 40 and set(drawn.pass_at) == {1, 2, 4}
    assert drawn.decoding["temperature"] == tiny_run.settings.temperature and drawn.decoding["seed"] == 3407
    assert [row["question"] for row in drawn.rows[::4]] == task.holdout["question"]
    assert len({row["completion"] for row in drawn.rows[:4]}) > 1, "the samples of a question are draws of their own"
    assert gn.evaluate(tiny_run, task, samples=4).rows == drawn.rows, "the same seed, the same draws"
    with pytest.raises(ValueError, match="several greedy answers are all the same"):
        gn.evaluate(tiny_run, task, samples=2, temperature=0)


def test_questions_that_were_trained_on_are_refused(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> None:
    spoilt = replace(task, holdout=task.train.select(range(10)))
    for ask in (gn.compare, gn.evaluate):
        with pytest.raises(ValueError, match="10 held-out questions are also in the training part"):
            ask(tiny_run, spoilt)
    # From the folder alone, written otherwise: nothing but the run's own record can know.
    asked = [{"question": f"What is  {q[8:-1]} ?", "answer": "1"} for q in task.train["question"][:2]]
    opened = gn.open_run(tiny_run.path)
    with pytest.raises(ValueError, match=r"2 held-out questions.*training questions of the run tiny"):
        gn.evaluate(opened, gn.evaluation.load_holdout(asked + fresh(10)))
    told = gn.evaluate(tiny_run, gn.evaluation.load_holdout(asked + fresh(10)), allow_contaminated=True)
    assert told.contamination.count == 2 and "2 of 12 held-out questions are also in the training part" in repr(told)


def fresh(count: int = 12) -> list[dict[str, str]]:
    return [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(30, 30 + count)]


def test_what_is_not_the_runs_own_result_is_not_kept_as_that(
    run: gn.runs.Run, task: gn.tasks.Task, tmp_path: Path
) -> None:
    other = gn.compare(run, fresh())
    assert (
        "on 12 questions of rows" in other.sentence and other.path is None and gn.open_run(run.path).comparison is None
    )
    drawn = gn.compare(run, samples=2)
    assert drawn.path == run.path / "comparison", "as long as there is nothing better"
    own = gn.compare(run)
    assert own.path == drawn.path and own.other_set == "" and "on 10 questions," in own.sentence
    for how in ({"max_completion_length": 4}, {"limit": 3}, {"samples": 2}, {"task": fresh()}):
        less = gn.compare(run, **how)
        assert less.path is None and repr(gn.evaluation.open_comparison(run.path)) == repr(own), how
    assert own.sentence in (run.path / "README.md").read_text()
    assert gn.evaluation.open_comparison(other.save(tmp_path / "mine").path).questions == 12
    (own.path / "comparison.json").write_text("{")
    assert gn.compare(run, max_completion_length=16).path == own.path, "in the place of a damaged one"


def test_rows_and_files_of_ones_own_are_asked_in_the_format_of_the_run(
    tiny_run: gn.runs.Run, run: gn.runs.Run, tmp_path: Path
) -> None:
    file = tmp_path / "mine.csv"
    file.write_text("question,answer\n" + "".join(f"{row['question']},{row['answer']}\n" for row in fresh()))
    wanted = gn.evaluation.load_holdout(fresh(), format=gn.tasks.AnswerFormat(**tiny_run.info["task"]["format"]))
    expected = gn.evaluate(tiny_run, wanted, rewards=brevity).rows
    assert gn.evaluate(tiny_run, fresh(), rewards=brevity).rows == expected
    assert gn.evaluate(tiny_run, str(file), rewards=brevity).rows == expected
    assert gn.evaluate(tiny_run.model, file, tokenizer=tiny_run.tokenizer, run=tiny_run).questions == 12
    with pytest.raises(ValueError, match="no column 'answer'"):
        gn.evaluate(tiny_run, [{"question": "Say hello."}])
    assert _is_questions("gsm8k") and not _is_questions("gpt2")
    assert gn.compare(run, fresh()).other_set == "rows" and gn.compare(run, str(file)).other_set == "mine"


def test_a_part_of_the_questions_is_the_same_part_each_time(tiny_run: gn.runs.Run) -> None:
    few = [gn.evaluate(tiny_run, limit=3).rows for _ in range(2)]
    assert few[0] == few[1] and len(few[0]) == 3
    asked = [row["question"] for row in tiny_run.holdout]
    assert [row["question"] for row in few[0]] == [q for q in asked if q in {row["question"] for row in few[0]}]
    assert gn.evaluate(tiny_run, fresh(), limit=100).questions == 12
    with pytest.raises(ValueError, match="limit = 0 must be between 1"):
        gn.evaluate(tiny_run, limit=0)


def test_what_one_must_know_stands_beside_the_numbers(tiny_run: gn.runs.Run, run: gn.runs.Run) -> None:
    comparison = gn.compare(run)
    assert comparison.after.cut_share > 0.5
    shares = [
        f"{side.cut_share:.0%} of the answers of '{side.label}'" for side in (comparison.before, comparison.after)
    ]
    end = "were cut at 12 tokens, and what they would have said is"
    (cut,) = [note for note in comparison.notes if "were cut" in note]
    assert cut.startswith(f"{' and '.join(shares)} {end}")
    for side, share in zip((comparison.before, comparison.after), shares, strict=True):
        assert f"{share} {end}" in repr(side) and share in html.unescape(side._repr_html_())
    short = replace(comparison.after, cut_share=0.05)
    assert cut_sentence(short) == "" and "were cut" not in repr(short)
    assert cut_sentence(comparison.before, short) == cut_sentence(comparison.before)
    unknown = "Which questions were trained on is not known"
    assert unknown not in repr(comparison.after)
    alone = gn.evaluate(
        (tiny_run.model, tiny_run.tokenizer), gn.evaluation.load_holdout(fresh()), max_completion_length=4
    )
    assert unknown in repr(alone) and unknown in alone._repr_html_()


def test_who_says_what_is_right_is_named_where_the_run_was_paid_by_another(run: gn.runs.Run) -> None:
    """It was the column `answer` as `correctness` reads it, without a word, where a user's own function had paid."""
    named = "right is what correctness(column='answer') pays in full"
    found = gn.compare(run)
    (note,) = [note for note in found.notes if "may judge otherwise" in note]
    assert named in found.sentence and note.startswith("The run's own brevity may judge otherwise")
    assert named in gn.compare(run, fresh()).sentence, "on other questions, too"
    alone = gn.evaluate(run, rewards=brevity)
    assert named in repr(alone) and named in html.unescape(alone._repr_html_())
    shown = gn.compare(run, rewards=brevity)
    assert named in shown.sentence and not any("may judge otherwise" in note for note in shown.notes)

    own, form = run.info["rewards"]
    paid = {**form, "name": "correctness", **record_of(gn.rewards.correctness())}
    for rewards, is_named in (([own, form], True), ([form], True), ([own, paid], False), ([paid, form], False)):
        (run.path / "run.json").write_text(json.dumps({**run.info, "rewards": rewards}))
        asked = _Asked(None, gn.open_run(run.path), _how())
        assert bool(asked.judged_by) == is_named and bool(asked._other_judge()) == (rewards == [own, form])
    assert "right is what" not in gn.compare(gn.open_run(run.path)).sentence, "it was paid by correctness()"


def test_json_is_judged_by_its_values() -> None:
    assert same_as_gold(['{"a":1.0}', '{"a": 2}', None], [{"answer": '{"a": 1}'}] * 3) == [True, False, False]


def test_what_the_run_was_paid_for_is_what_is_right(run: gn.runs.Run, tmp_path: Path) -> None:
    """The run's only reward for the answer judges, with its parameters, from its folder too; who names another has that one."""
    answers = {"<answer>\n17.4\n</answer>": True, "<answer>\n19\n</answer>": False, "17.4": False}
    rows = [{"question": "?", "prompt": [], "answer": "17"}] * 3
    # A hint as long as that of a task with many labels.
    form = replace(gn.tasks.xml(), answer_hint=f"one of: {', '.join(map(str, range(99)))}")
    near = gn.rewards.correctness(tolerance=0.5, format=form)
    said = [Completion(text, 5, False) for text in answers]
    read = read_answers(rows, said, gn.tasks.xml(), reward=near)
    assert [row["is_correct"] for row in read] == [*answers.values()]
    assert not any(row["is_correct"] for row in read_answers(rows, said, gn.tasks.xml()))

    mine = {**run.info["rewards"][0], "name": "correctness", **record_of(near)}
    (run.path / "run.json").write_text(json.dumps({**run.info, "rewards": [mine, *run.info["rewards"][1:]]}))
    opened = gn.open_run(run.path)
    assert _Asked(None, opened, _how()).judge == near
    found = gn.compare(opened)
    assert "right is what correctness(tolerance=0.5) pays in full (difference" in found.sentence.replace("\n", " ")
    assert repr(gn.evaluation.open_comparison(run.path)) == repr(found), "kept with it"
    # What it cannot read is judged by another, and that is said.
    values = gn.rewards.json_answer(format=form)
    task = gn.load_task(fresh(8), holdout=4)
    for days in (4, 1):
        rows = [row | {"answer": "May" if n < days else '{"a": 1}'} for n, row in enumerate(task.holdout)]
        dated = replace(task, holdout=Dataset.from_list(rows))
        words = f"no opinion ({days} of 4 questions) what correctness() does"
        assert words in repr(gn.evaluate(opened, dated, rewards=values, max_completion_length=4))
    exact = gn.rewards.exact_text()
    assert _Asked(None, opened, _how(rewards=exact)).judge == exact
    assert _Asked(None, opened, _how(rewards=gn.rewards.correctness())).judge is None
    assert _Asked(gn.evaluation.load_holdout(fresh()), opened, _how()).judge == near, "on other questions as well"


def test_a_model_that_was_trained_on_is_not_the_run_any_more(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    run = gn.runs.Run(tiny_run.path, model=tiny_run.model, tokenizer=tiny_run.tokenizer)
    layer = next(p for name, p in run.model.named_parameters() if "lora_B" in name)
    kept = layer.data.clone()
    try:
        layer.data[0, 0] += 0.01
        with pytest.raises(ValueError, match=r"not the one that the run 'tiny' ended with.*gn.open_run\("):
            gn.compare(run)
        with pytest.raises(ValueError, match="not the one that the run 'tiny' ended with"):
            gn.evaluate(run)
    finally:
        layer.data.copy_(kept)
    assert gn.evaluate(run).questions == 10


def test_a_saved_comparison_is_opened_again(run: gn.runs.Run, tmp_path: Path) -> None:

    def some(completions: list, **_: object) -> list[float | None]:
        return [None] * (len(completions) - 1) + [0.25]

    def none(completions: list, **_: object) -> list[None]:
        return [None] * len(completions)

    found = gn.compare(run, samples=2, rewards=[some, none, brevity])
    opened = gn.evaluation.open_comparison(run.path)
    assert repr(opened) == repr(found) and opened._repr_html_() == found._repr_html_()
    assert opened.transcripts().equals(found.transcripts())
    assert opened.path == found.path == run.path / "comparison"
    text = (opened.path / "comparison.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
    with pytest.raises(FileNotFoundError, match="holds no comparison"):
        gn.evaluation.open_comparison(tmp_path)


def test_what_was_asked_is_kept_where_it_cannot_be_saved(
    run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gn.compare(run)

    def files() -> dict[str, bytes]:
        return {file.name: file.read_bytes() for file in (run.path / "comparison").iterdir() if file.is_file()}

    before, write = files(), Path.write_bytes

    def full(path: Path, data: bytes) -> int:
        if path.suffix == ".png":
            raise OSError(28, "No space left on device")
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        found = gn.compare(run, rewards=brevity)
    assert found.path is None and found.questions == 10
    assert any("could not be saved in the run's folder ([Errno 28] No space left" in note for note in found.notes)
    assert files() == before, "the earlier one is whole"
    assert found.save(tmp_path / "elsewhere").path == tmp_path / "elsewhere"
