"""A user's main reward decides what is correct where the set has no kit reward for the answer."""

import dataclasses
import functools

import pytest

from grpo_nb.rewards import (
    Reward,
    SlotReward,
    code_tests,
    correctness,
    exact_format,
    exact_text,
    maths,
    partial_format,
    relative,
)
from grpo_nb.rewards.base import range_of
from grpo_nb.scoring.grader import Grader, deciding_reward, make_grader
from grpo_nb.scoring.scores import first_step_state, score
from grpo_nb.tasks.formats import AnswerFormat, boxed, xml
from tests.scoring.test_scores import Counting

ROWS = [{"question": f"What is {i} + {i}?", "answer": str(2 * i)} for i in range(1, 4)]


def solved(completions: list, answer: list, **columns: object) -> list[float]:
    """Score 2.0 for the gold answer as a word of the completion, wherever it stands."""
    texts = [turns if isinstance(turns, str) else turns[-1]["content"] for turns in completions]
    return [2.0 * (gold in text.split()) for text, gold in zip(texts, answer, strict=True)]


def verdicts(grader: Grader, texts: list, rows: list, format: AnswerFormat) -> list[bool]:
    return grader.are_correct(grader.score(texts, rows, format))


def style(completions: list, **columns: object) -> list[float]:
    return [0.0] * len(completions)


class Weighed:
    """A function of the user's with a weight, and a declared range."""

    __name__ = "weighed"

    def __init__(self, weight: float, range: tuple[float, float] | None = None) -> None:
        self.weight = weight
        if range is not None:
            self.range = range

    def __call__(self, completions: list, **columns: object) -> list[float]:
        return [3.0] * len(completions)


def test_deciding_reward_is_the_only_one_of_the_user() -> None:
    assert deciding_reward([solved, partial_format(), exact_format()]) is solved


def test_relative_reward_does_not_decide() -> None:
    ranking = relative(Weighed(2.0))
    assert deciding_reward([ranking]) == correctness()
    assert deciding_reward([ranking, solved]) == correctness()
    assert deciding_reward([relative(correctness(tolerance=0.5))]) == correctness()


def test_deciding_reward_has_the_highest_weight() -> None:
    heavy = Weighed(2.0)
    assert deciding_reward([solved, heavy]) is heavy


def test_function_below_another_weight_does_not_decide() -> None:
    assert deciding_reward([solved, partial_format(weight=2.0)]) == correctness()


def test_two_functions_of_one_weight_do_not_decide() -> None:
    assert deciding_reward([solved, style]) == correctness()


def test_kit_reward_for_the_answer_takes_precedence() -> None:
    assert deciding_reward([Weighed(9.0), maths()]) == maths()
    assert deciding_reward([Weighed(9.0), correctness()]) == correctness()


def test_code_tests_decide_where_they_are_the_main_reward() -> None:
    tests = code_tests()
    assert deciding_reward([tests, partial_format()]) is tests


def test_pass_score_is_that_of_gold_answers() -> None:
    assert make_grader(solved, ROWS, xml()).pass_score == 2.0


def test_pass_score_fits_a_format_that_the_template_opens() -> None:
    format = dataclasses.replace(xml(), is_opened_by_template=True)

    def in_format(completions: list, answer: list, **columns: object) -> list[float]:
        right = solved([text.replace("\n", " ") for text in completions], answer)
        pairs = zip(completions, right, strict=True)
        return [score * format.is_exact(text) for text, score in pairs]

    assert make_grader(in_format, ROWS, format).pass_score == 2.0


def test_pass_score_is_the_declared_maximum() -> None:
    assert make_grader(Weighed(1.0, (0.0, 3.0)), ROWS, xml()).pass_score == 3.0


def test_declared_maximum_that_no_gold_answer_reaches_is_reported() -> None:
    def strict(completions: list, answer: list, **columns: object) -> list[float]:
        return solved(completions, answer)

    strict.range = (0.0, 10.0)
    rule = make_grader(strict, ROWS, xml()).correctness_rule
    assert rule.endswith("(its declared maximum; no gold answer reaches it)")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Points(Reward):
    """A user's reward from 0 to 5, with no declared range."""

    def score_text(self, text: str, row: dict) -> float:
        return 5.0 if row["answer"] in text else float(len(text) > 0)


def test_pass_score_of_a_users_class_is_that_of_gold_answers() -> None:
    grader = make_grader(Points(), ROWS, xml())
    assert grader.pass_score == 5.0
    assert range_of(Points()) is None


def test_pass_score_is_one_where_no_gold_answer_is_scored() -> None:
    assert make_grader(style, ROWS, xml()).pass_score == 1.0


def test_completion_with_the_full_score_is_correct() -> None:
    grader = make_grader(deciding_reward([solved, partial_format()]), ROWS, xml())
    assert verdicts(grader, ["it is 2", "it is 5", "6"], ROWS, xml()) == [True, False, True]


def test_correctness_rule_names_function_and_threshold() -> None:
    grader = make_grader(solved, ROWS, xml())
    assert (
        grader.correctness_rule
        == "answers to which solved() gives 2 or more (its score for a gold answer in the format)"
    )


BOXED = boxed()


@dataclasses.dataclass(frozen=True, kw_only=True)
class Remembering(SlotReward):
    """A user's reward with defaults of its own, which remembers the answers that it has seen."""

    name: str = "mine"
    format: AnswerFormat = BOXED
    seen: list[str] = dataclasses.field(default_factory=list, repr=False)

    def is_same(self, given: str, gold: str, row: dict) -> bool:
        self.seen.append(given)
        return given == gold

    def state_dict(self) -> dict[str, list[str]]:
        return {"seen": self.seen}

    def load_state_dict(self, state: dict[str, list[str]]) -> None:
        self.seen[:] = state["seen"]


def test_correctness_rule_leaves_out_own_defaults() -> None:
    phrase = "answers to which Remembering() gives the full score"
    assert Grader(reward=Remembering()).correctness_rule == phrase
    renamed = Remembering(name="other", format=xml(), weight=1.0)
    assert Grader(reward=renamed).correctness_rule == phrase


@dataclasses.dataclass(frozen=True, kw_only=True)
class Cached(SlotReward):
    """A user's reward that keeps a value made from its format."""

    @functools.cached_property
    def opening(self) -> str:
        return self.format.answer_open

    def is_same(self, given: str, gold: str, row: dict) -> bool:
        return given == gold and self.opening == BOXED.answer_open


def test_slot_reward_in_another_format_keeps_nothing_of_its_own() -> None:
    reward = Cached(format=xml())
    assert reward.opening == "<answer>"
    assert verdicts(Grader(reward=reward), [r"\boxed{2}"], ROWS[:1], BOXED) == [True]


def test_grading_leaves_the_memory_of_a_slot_reward_as_it_was() -> None:
    reward = Remembering()
    texts = [BOXED.render_completion("reasoning", row["answer"]) for row in ROWS]
    assert verdicts(Grader(reward=reward), texts, ROWS, BOXED) == [True] * 3
    assert reward.seen == []


def test_function_that_returns_booleans_can_grade() -> None:
    def is_even(completions: list, **columns: object) -> list[bool]:
        return [text.endswith("2") for text in completions]

    is_even.range = (0, 1)
    assert verdicts(make_grader(is_even, ROWS, xml()), ["12", "13", "2"], ROWS, xml()) == [
        True,
        False,
        True,
    ]


def test_answer_without_a_score_is_not_correct() -> None:
    def silent(completions: list, **columns: object) -> list[None]:
        return [None] * len(completions)

    grader = make_grader(silent, ROWS, xml())
    assert verdicts(grader, ["<answer>2</answer>"], ROWS[:1], xml()) == [False]


def test_grading_leaves_the_memory_of_a_reward_as_it_was() -> None:
    counting = Counting(value=1.0)
    grader = make_grader(counting, ROWS, xml())
    verdicts(grader, ["1"] * 3, ROWS, xml())
    assert counting.calls == 0


def test_grading_is_marked_as_a_trial() -> None:
    trials = []

    def learning(completions: list, trainer_state: object, **columns: object) -> list[float]:
        trials.append(trainer_state.is_trial)
        return [1.0] * len(completions)

    verdicts(make_grader(learning, ROWS, xml()), ["1"] * 3, ROWS, xml())
    assert set(trials) == {True}
    state = first_step_state()
    score(learning, ["1"], ROWS[0], trainer_state=state)
    assert not hasattr(state, "is_trial")


@pytest.mark.parametrize("kind", [maths, exact_text])
def test_kit_grader_still_compares_the_slot(kind: type) -> None:
    rows = [{"question": "?", "answer": "A"}]
    grader = Grader(reward=kind())
    assert verdicts(grader, ["<answer>A</answer>"], rows, xml()) == [True]


def by_points(completions: list, answer: list, points: list, **columns: object) -> list[float]:
    """Score a right answer with the points of its question."""
    right = solved(completions, answer=answer)
    return [worth * (score > 0) for worth, score in zip(points, right, strict=True)]


def test_questions_of_different_worth_share_the_lowest_score() -> None:
    rows = [{**row, "points": float(i)} for i, row in enumerate(ROWS, 1)]
    grader = make_grader(by_points, rows, xml())
    assert grader.pass_score == 1.0
    assert verdicts(grader, ["it is 2", "it is 4", "no"], rows, xml()) == [True, True, False]


def test_pass_score_is_above_partial_credit_of_other_questions() -> None:
    """A wrong answer to the hard question scores 1.2, more than a right one to the easy question."""

    def partly(completions: list, answer: list, points: list, **columns: object) -> list[float]:
        right = solved(completions, answer=answer)
        pairs = zip(points, right, completions, strict=True)
        return [worth if score else 0.4 * worth * bool(text) for worth, score, text in pairs]

    rows = [{**ROWS[0], "points": 1.0}, {**ROWS[1], "points": 3.0}]
    assert make_grader(partly, rows, xml()).pass_score == 3.0


def test_gold_answer_that_scores_as_a_wrong_one_sets_no_limit() -> None:
    def for_even_answers(completions: list, answer: list, **columns: object) -> list[float]:
        right = solved(completions, answer=answer)
        is_known = [int(gold) % 4 == 0 for gold in answer]
        return [
            bool(text) + score * known
            for text, score, known in zip(completions, right, is_known, strict=True)
        ]

    assert make_grader(for_even_answers, ROWS, xml()).pass_score == 3.0


def test_gold_answer_inside_a_wrong_one_leaves_the_pass_score() -> None:
    def contains(completions: list, answer: list, **columns: object) -> list[float]:
        return [2.0 * (gold in text) for text, gold in zip(completions, answer, strict=True)]

    rows = [{"question": "?", "answer": "2"}, {"question": "?", "answer": "12"}]
    grader = make_grader(contains, rows, xml())
    assert grader.pass_score == 2.0
    assert grader.tells_gold_from_wrong


def test_gold_answers_of_a_list_are_tried() -> None:
    def is_listed(completions: list, answer: list, **columns: object) -> list[float]:
        pairs = zip(completions, answer, strict=True)
        return [2.0 * (xml().extract(text) in golds) for text, golds in pairs]

    rows = [{"answer": ["Paris", "City of Paris"]}, {"answer": ["Rome"]}]
    assert make_grader(is_listed, rows, xml()).pass_score == 2.0


def test_wrong_answer_may_come_from_a_later_row() -> None:
    rows = [*[{"answer": "1"}] * 8, {"answer": "2"}]
    assert make_grader(solved, rows, xml()).tells_gold_from_wrong


def test_first_rows_without_a_gold_answer_are_not_tried() -> None:
    rows = [*[{"answer": ""}] * 8, *ROWS]
    assert make_grader(solved, rows, xml()).tells_gold_from_wrong


def test_source_of_pass_score_without_a_gold_answer_says_so() -> None:
    source = make_grader(solved, [], xml()).pass_score_source
    assert source == "the default; there was no gold answer to try"


@pytest.mark.parametrize("rows", [[], [{"answer": None}]], ids=["no row", "no gold answer"])
def test_pass_score_without_a_gold_answer_is_one(rows: list) -> None:
    grader = make_grader(solved, rows, xml())
    assert grader.pass_score == 1.0
    assert not grader.tells_gold_from_wrong


def test_function_that_pays_any_answer_is_named_as_that() -> None:
    def has_slot(completions: list, **columns: object) -> list[float]:
        return [float("<answer>" in turns) for turns in completions]

    grader = make_grader(has_slot, ROWS, xml())
    assert not grader.tells_gold_from_wrong
    assert grader.correctness_rule.endswith("no gold answer scores above a wrong one)")


def test_pass_score_above_wrong_answers_is_tested() -> None:
    assert make_grader(solved, ROWS, xml()).tells_gold_from_wrong
    assert not make_grader(style, ROWS, xml()).tells_gold_from_wrong


@pytest.mark.parametrize(
    "rows",
    [
        pytest.param([{"answer": "1/2"}, {"answer": "0.5"}], id="same number"),
        pytest.param(
            [{"answer": city, "accepted_answers": ["Rome", "Roma"]} for city in ("Rome", "Roma")],
            id="accepted",
        ),
    ],
)
def test_right_answer_of_another_row_is_not_tried_as_wrong(rows: list) -> None:
    def fair(completions: list, **columns: object) -> list[float]:
        return [2.0 * any(gold in text for gold in RIGHT) for text in completions]

    assert make_grader(fair, rows, xml()).pass_score == 2.0


RIGHT = ("1/2", "0.5", "Rome", "Roma")


def test_pass_score_without_a_wrong_answer_is_not_tested() -> None:
    grader = make_grader(solved, ROWS[:1] * 2, xml())
    assert grader.pass_score == 2.0
    assert not grader.tells_gold_from_wrong


@pytest.mark.parametrize("rewards", [[correctness()], [style, Weighed(1.0)]])
def test_copied_question_is_no_correct_answer(rewards: list) -> None:
    rows = [{"question": "What is 84 / 2?", "answer": "42"}]
    grader = make_grader(deciding_reward(rewards), rows, xml())
    assert verdicts(grader, ["<answer>84/2</answer>"], rows, xml()) == [False]


def test_reversed_or_broken_range_is_no_pass_score() -> None:
    for ends in ((3.0, 0.0), (3.0,), ("low", "high")):
        assert make_grader(Weighed(1.0, ends), ROWS, xml()).pass_score == 1.0


def test_function_that_counts_tokens_can_grade() -> None:
    def brief(completions: list, completion_ids: list, **columns: object) -> list[float]:
        return [float(len(ids) < 3) for ids in completion_ids]

    def tokenizer(text: str, **how: object) -> dict[str, list[int]]:
        return {"input_ids": list(range(len(text)))}

    assert make_grader(brief, ROWS, xml(), tokenizer=tokenizer).pass_score == 1.0
