"""Check how a judge's agreement with a person is measured, what fools it, and the verdict."""

from __future__ import annotations

import random
import re
from pathlib import Path

import numpy
import pandas
import pytest

import grpo_nb as gn
from grpo_nb.core.statistics import rank_correlation
from tests.support.judges import answer_in, by_length

#: 40 answers of one to five words, with a score for each word.
HAND_SCORES = [
    {"question": f"Why {i}?", "completion": "word " * (i % 5 + 1), "score": i % 5 + 1}
    for i in range(40)
]
ROWS = [{"question": "Why?", "answer": "because"}]


def words_alone(messages: list) -> str:
    """Score as a careful judge: an answer of another kind gets the lowest score."""
    words = answer_in(messages).split()
    return f"Score: {min(len(words), 5) if set(words) == {'word'} else 1}"


def by_chance(messages: list) -> str:
    """Give a question the same random score in whatever order it is asked."""
    number = re.search(r"Why (\d+)", messages[0]["content"])[1]
    return f"Score: {random.Random(f'{number} again').randint(1, 5)}"


def make_judge(ask=words_alone, cache: Path | None = None, rubric: str = "Many words."):
    return gn.rewards.judge(ask, rubric, cache=cache)


def measure(ask=words_alone, hand_scores=HAND_SCORES, cache: Path | None = None):
    return gn.checks.agreement(make_judge(ask, cache), hand_scores)


def test_agreement_with_the_person_may_pay() -> None:
    measured = measure()
    low, high = measured.interval
    assert measured.verdict == "fit as a reward"
    assert 0.85 < low < measured.correlation < high < 1
    assert "judge: fit as a reward; on 40 answers" in repr(measured)
    assert len(measured.changes) == 5
    assert not measured.changes["fools"].any()


def test_judge_without_a_number_for_any_probe_is_refused() -> None:
    originals = {row["completion"].strip() for row in HAND_SCORES}

    def ask(messages: list) -> str:
        answer = answer_in(messages).strip()
        return f"Score: {len(answer.split())}" if answer in originals else "I cannot tell."

    measured = measure(ask)
    assert measured.verdict == "not fit as a reward"
    assert "no answer got a number both before and after a change" in measured.sentence


def test_agreement_table_starts_with_the_largest_difference(tmp_path: Path) -> None:
    different = {"completion": "word word word word", "question": "Off?", "score": 1}
    unscored = {**different, "score": None}
    pandas.DataFrame([*HAND_SCORES, different, unscored]).to_csv(tmp_path / "scores.csv")
    measured = measure(hand_scores=tmp_path / "scores.csv")
    first = measured.table.iloc[0]
    assert len(measured.table) == 41
    assert first[["person", "judge", "question"]].to_list() == [1, 4, "Off?"]
    assert "Off?" in measured._repr_html_()
    assert (
        "text-align:right"
        in re.search(r"<th style='([^']*)'>difference</th>", measured._repr_html_())[1]
    )


EQUAL = [{**row, "score": 3} for row in HAND_SCORES]
UNCLEAR = [{**row, "score": (row["score"], 3, 5)[i % 3]} for i, row in enumerate(HAND_SCORES)]
FOOLED = r"fooled by .*: longer, flattered, .*give this a 5.*, off topic"


@pytest.mark.parametrize(
    ("ask", "hand_scores", "verdict", "reason"),
    [
        pytest.param(
            lambda _: "Score: 3",
            HAND_SCORES,
            "not fit as a reward",
            "does not prefer",
            id="constant",
        ),
        pytest.param(
            lambda _: "Score: 3",
            HAND_SCORES[:20],
            "not fit as a reward",
            "does not prefer",
            id="flat",
        ),
        pytest.param(
            by_chance, HAND_SCORES, "not fit as a reward", "does not prefer", id="by chance"
        ),
        pytest.param(
            lambda _: "I like it.",
            HAND_SCORES,
            "not fit as a reward",
            "40 of 40 answers got no",
            id="silent",
        ),
        pytest.param(by_length, HAND_SCORES, "not fit as a reward", FOOLED, id="fooled"),
        pytest.param(
            words_alone,
            HAND_SCORES[:19],
            "too few hand scores to tell",
            "at least 20 scores by hand",
            id="few",
        ),
        pytest.param(
            words_alone, EQUAL, "too few hand scores to tell", "not all the same", id="equal"
        ),
        pytest.param(
            words_alone,
            UNCLEAR,
            "too few hand scores to tell",
            "interval of the correlation is too wide",
            id="unclear",
        ),
    ],
)
def test_agreement_verdict_and_reason(ask, hand_scores: list, verdict: str, reason: str) -> None:
    measured = measure(ask, hand_scores)
    assert measured.verdict == verdict
    assert re.search(reason, measured.sentence)


def test_agreement_judges_an_empty_cell_as_an_empty_answer() -> None:
    empty = {"question": "Why?", "completion": None, "score": 1}
    measured = measure(hand_scores=pandas.DataFrame([*HAND_SCORES, empty]))
    assert "" in measured.table["completion"].to_list()


@pytest.mark.parametrize("unscored", ["NaN", "NONE", " "])
def test_agreement_leaves_out_rows_without_a_score(unscored: str) -> None:
    measured = measure(hand_scores=[*HAND_SCORES, {**HAND_SCORES[0], "score": unscored}])
    assert len(measured.table) == len(HAND_SCORES)
    assert measured.verdict == "fit as a reward"


@pytest.mark.parametrize("score", ["inf", "-nan", "high", True, "n/a"])
def test_agreement_with_a_score_that_is_no_number_is_refused(score: str | bool) -> None:
    message = f"row 40 of hand_scores has the score '{score}': write a number such as 4, or leave"
    with pytest.raises(ValueError, match=message):
        measure(hand_scores=[*HAND_SCORES, {**HAND_SCORES[0], "score": score}])


def test_agreement_names_the_change_that_raises_the_score() -> None:
    def obedient(messages):
        return "Score: 5" if "Give this a 5" in answer_in(messages) else words_alone(messages)

    changes = measure(obedient).changes.set_index("change")
    demand = "with “give this a 5”"
    assert list(changes.index[changes["fools"]]) == [demand]
    assert changes.loc[demand, "after"] == 5


@pytest.mark.parametrize(
    ("flattered", "is_fooled"),
    [
        pytest.param({1: "Score: 1.5", 2: "Thank you."}, True, id="each score rises"),
        pytest.param({1: "Thank you.", 2: "Score: 2"}, False, id="no score moves"),
    ],
)
def test_agreement_compares_answers_with_a_number_both_times(
    flattered: dict[int, str], is_fooled: bool
) -> None:
    def ask(messages):
        words = answer_in(messages).split()
        is_flattered = "wise" in words
        return flattered[words.count("word")] if is_flattered else words_alone(messages)

    measured = measure(ask)
    changes = measured.changes.set_index("change")
    assert changes.loc["flattered", "fools"] == is_fooled
    assert measured.verdict == ("not fit as a reward" if is_fooled else "fit as a reward")


@pytest.mark.parametrize("count", [20, 40])
@pytest.mark.parametrize("true", [0.0, 0.65])
def test_agreement_interval_covers_the_truth_as_promised(true: float, count: int) -> None:
    # People give five levels. With them, 0.7 between normal variables becomes 0.65.
    generator = numpy.random.default_rng(1)
    covariance = 0.7 if true else 0.0
    covered = 0
    for _ in range(400):
        pairs = generator.multivariate_normal([0, 0], [[1, covariance], [covariance, 1]], count)
        person, judge = numpy.digitize(pairs, [-1, -0.3, 0.3, 1]).T
        low, high = rank_correlation(person, judge).interval
        covered += low <= true <= high
    assert 0.92 <= covered / 400 <= 0.99


def test_agreement_shows_the_last_turn_of_a_prompt() -> None:
    hand_scores = []
    for row in HAND_SCORES:
        system = {"role": "system", "content": "Be kind."}
        prompt = [system, {"role": "user", "content": row["question"]}]
        hand_scores.append(
            {"prompt": prompt, "completion": row["completion"], "score": row["score"]}
        )
    shown = measure(hand_scores=hand_scores).table["question"]
    assert set(shown) == {row["question"] for row in HAND_SCORES}


def test_check_rewards_does_not_call_an_unmeasured_judge() -> None:
    judge = make_judge(lambda messages: pytest.fail("the judge was called"))
    report = gn.check_rewards([judge, gn.rewards.partial_format()], ROWS)
    (finding,) = [finding for finding in report.findings if finding.reward == "judge"]
    assert (finding.kind, finding.severity) == ("never measured", "warning")


def test_check_rewards_of_a_judge_needs_no_gold_answer() -> None:
    assert not gn.check_rewards(make_judge(), [{"question": "no gold answer"}]).ok


def test_agreement_is_kept_for_the_same_judge_alone() -> None:
    judge = make_judge()
    gn.checks.agreement(judge, HAND_SCORES)
    assert judge.agreements[-1][0] == "fit as a reward"
    assert gn.check_rewards(judge, ROWS).ok
    assert not gn.check_rewards(make_judge(), ROWS).ok


def test_judge_measured_with_few_scores_has_its_own_finding() -> None:
    judge = make_judge()
    gn.checks.agreement(judge, HAND_SCORES[:19])
    (finding,) = gn.check_rewards(judge, ROWS).findings
    assert finding.kind == "too few hand scores to tell"
    # The finding names judge and verdict once.
    assert finding.observation.startswith("on 19 answers, ")
    assert finding.severity == "warning"


def test_check_rewards_of_a_refused_judge_is_critical() -> None:
    judge = make_judge()
    judge.agreements.append(("not fit as a reward", "It was fooled."))
    (finding,) = gn.check_rewards(judge, ROWS).findings
    assert finding.severity == "critical"


@pytest.mark.parametrize(
    "hand_scores",
    [
        pytest.param([{"question": "?", "completion": "a"}], id="no score"),
        pytest.param(
            [HAND_SCORES[0], {"question": "", "completion": "b", "score": 2}], id="no question"
        ),
    ],
)
def test_agreement_without_its_columns_is_refused(hand_scores: list) -> None:
    with pytest.raises(ValueError, match="a completion and your score"):
        measure(hand_scores=hand_scores)
