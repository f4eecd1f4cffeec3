"""Rewards for answers against a strict person's labels, in every format. See also `cases`."""

import datetime
import json
from dataclasses import dataclass, replace

import numpy
import pytest

from grpo_nb import rewards
from grpo_nb.rewards.answers import (
    Undecided,
    correctness,
    exact_text,
)
from grpo_nb.tasks import formats
from tests.conftest import ROOT
from tests.rewards.cases import CASES, judged_as_labelled, slot


@pytest.mark.parametrize(
    ("name", "most_refused", "step"),
    # Every answer is put to `maths` in tests/sandbox/test_math_worker.py.
    [pytest.param("correctness", 0.02, 1), pytest.param("maths", 0.05, 5)],
)
def test_labelled_answers_get_the_score_of_their_label(
    name: str, most_refused: float, step: int
) -> None:
    result = judged_as_labelled(name, step=step)
    assert result.wrongly_scored == []
    assert result.right > 300 / step
    assert len(result.wrongly_refused) <= most_refused * result.right, result.wrongly_refused


WITH_QUESTION = [
    case for case in CASES if isinstance(case.reward, correctness) and "prompts" in case.columns
]


@pytest.mark.parametrize("case", WITH_QUESTION, ids=str)
def test_copied_question_is_seen_with_a_tolerance(case) -> None:
    tolerant = replace(case, reward=replace(case.reward, tolerance=0.001))
    assert tolerant.scores_given() == case.scores


@pytest.mark.parametrize("case", WITH_QUESTION, ids=str)
def test_copied_question_is_seen_in_the_last_chat_turn(case) -> None:
    chat = [
        {"role": "user", "content": "Example: 1/8."},
        {"role": "user", "content": case.columns["prompts"]},
    ]
    assert replace(case, columns=case.columns | {"prompts": chat}).scores_given() == case.scores


def numpy_of_lists(lists: list) -> numpy.ndarray:
    """Return lists as a cell of a Parquet file: an array of arrays."""
    cell = numpy.empty(len(lists), dtype=object)
    for place, values in enumerate(lists):
        cell[place] = numpy.array(values, dtype=object)
    return cell


FORMATS = pytest.mark.parametrize(
    "format",
    [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()],
    ids=lambda format: format.name,
)


@FORMATS
def test_correctness_reads_the_last_word_of_any_format(format: formats.AnswerFormat) -> None:
    right = format.render("many\nlines", r"\frac{1}{2}")
    wrong = format.render(r"\frac12", "41")
    texts = [right, right + "\nNo, it is 41.", wrong, "0.5"]
    assert correctness(format=format)(completions=texts, answer=["1/2"] * 4) == [1.0, 0.0, 0.0, 0.0]


@FORMATS
def test_exact_format_works_for_any_format(format: formats.AnswerFormat) -> None:
    text = format.render("many\nlines", r"\frac{1}{2}")
    reward = rewards.exact_format(format=format)
    assert reward(completions=[text, text + "\nNo, it is 41.", "0.5"]) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("make", [correctness, exact_text, rewards.maths])
def test_missing_column_error_shows_the_fix(make) -> None:
    with pytest.raises(ValueError, match=r"needs the data column 'solution'.*column="):
        make(column="solution")(completions=["7"], answer=["7"])


def test_column_with_too_few_values_is_not_called_missing() -> None:
    message = r"one value for each completion\. The columns with as many values are \[\]"
    with pytest.raises(ValueError, match=message):
        correctness()(completions=["7", "8"], answer=["7"])


@pytest.mark.parametrize(
    ("given", "score"),
    [
        pytest.param("B", 1.0, id="letter"),
        pytest.param("(b)", 1.0, id="small letter in brackets"),
        pytest.param("B) Rome", 1.0, id="letter with its text"),
        pytest.param("B (rome).", 1.0, id="text in brackets"),
        pytest.param("B) Paris", 0.0, id="letter with the text of another option"),
        pytest.param("B) Madrid", 0.0, id="letter with a text of its own"),
        pytest.param("A) Rome", 0.0, id="another letter with the right text"),
    ],
)
@pytest.mark.parametrize("question", ["Which city?\nA) Paris\nB) Rome", "(A) Paris, (B) **Rome**?"])
def test_text_after_a_letter_is_that_of_the_option(question: str, given: str, score: float) -> None:
    reward = correctness()
    assert reward(completions=[slot(given)], answer=["B"], prompts=[question]) == [score]


OPTIONS = [
    "Newton\u2019s law",
    "10\u201320 km",
    "\u00bd",
    "90\u00b0",
    "50 percent",
    "$\\frac12$ of it",
    "**bold** words",
    "Rome (Italy)",
    "a city",
    "To be a doctor",
    "x = 2",
    "x < 1 or y > 2",
    "Romeo and Juliet",
    "if and only if n is even",
]


@pytest.mark.parametrize("make", [correctness, rewards.maths])
@pytest.mark.parametrize("option", OPTIONS, ids=ascii)
@pytest.mark.parametrize(
    "question",
    [
        pytest.param("Which?\nA) first\nB) {}\nC) third", id="lines"),
        pytest.param("(A) first, (B) {}, (C) third?", id="one line"),
        pytest.param("A long text. " * 300 + "A) first B) {} C) third", id="long"),
    ],
)
def test_option_copied_in_any_spelling_is_right(question: str, option: str, make) -> None:
    prompts = [question.format(option)] * 3
    completions = [slot(f"B) {option}"), slot("B) first"), slot("B) third")]
    scores = make()(completions=completions, answer=["B"] * 3, prompts=prompts)
    assert scores == [1.0, 0.0, 0.0]


@pytest.mark.parametrize("make", [correctness, rewards.maths])
def test_letter_a_after_another_option_is_no_article(make) -> None:
    prompts = ["Which? A) cat B) a dog C) bird"] * 2
    completions = [slot("B) a dog"), slot("B) A is also right")]
    scores = make()(completions=completions, answer=["B"] * 2, prompts=prompts)
    assert scores == [1.0, 0.0]


BACTERIA = "Which bacterium? A) S. aureus B) E. coli C) vitamin C. D) Washington D.C."
CAPITALS = "Capital of Italy? A - Paris, B - Rome"


@pytest.mark.parametrize("make", [correctness, rewards.maths])
@pytest.mark.parametrize(
    ("question", "given", "gold", "score"),
    [
        pytest.param("Not a dog? A) cat B) dog", "A) dog", "A", 0.0, id="article"),
        pytest.param("Not a cat? A) cat B) dog", "A) cat", "A", 1.0, id="article and option"),
        pytest.param("A, B or C.\nA - cat\nC - dog", "C - dog", "C", 1.0, id="dash"),
        pytest.param("A, B or C.\nA - cat\nC - dog", "C", "C", 1.0, id="letter before a dash"),
        pytest.param(CAPITALS, "B) Rome", "B", 1.0, id="other mark"),
        pytest.param(CAPITALS, "B) Paris", "B", 0.0, id="other option at a dash"),
        pytest.param(CAPITALS, "A - Paris, B - Rome", "A", 0.0, id="two options at dashes"),
        pytest.param("If b - 3 = 2, b is? A) 3 B) 5", "B) 3", "B", 0.0, id="difference"),
        pytest.param(BACTERIA, "B) E. coli", "B", 1.0, id="abbreviation"),
        pytest.param(BACTERIA, "B) S. aureus", "B", 0.0, id="other abbreviation"),
        pytest.param(BACTERIA, "B) E. coli C) vitamin C", "B", 0.0, id="abbreviation and option"),
        pytest.param(BACTERIA, "C) vitamin C.", "C", 1.0, id="letter at the end"),
        pytest.param(BACTERIA, "D) Washington D.C.", "D", 1.0, id="two letters at the end"),
    ],
)
def test_option_is_read_at_its_mark(question: str, given: str, gold: str, score, make) -> None:
    assert make()(completions=[slot(given)], answer=[gold], prompts=[question]) == [score]


ASKED_BEFORE = [
    {"role": "user", "content": "Which city?\nA) Paris\nB) Rome"},
    {"role": "assistant", "content": "", "tool_calls": []},
]


@pytest.mark.parametrize(
    "last",
    [{"role": "tool", "content": "map"}, {"role": "user", "content": "Go on."}],
    ids=["tool", "user"],
)
def test_options_are_searched_in_every_message(last: dict) -> None:
    reward = correctness()
    completions = [
        [{"role": "assistant", "content": slot(text)}] for text in ("B) Rome", "B) Paris")
    ]
    columns = {"answer": ["B"] * 2, "prompts": [[*ASKED_BEFORE, last]] * 2}
    assert reward(completions=completions, **columns) == [1.0, 0.0]


@pytest.mark.parametrize("has_question", [True, False], ids=["column", "messages"])
def test_copy_of_an_earlier_message_scores_zero(has_question: bool) -> None:
    question = "What is 84 / 2?"
    prompt = [{"role": "user", "content": question}, {"role": "tool", "content": "ready"}]
    columns = {"question": [question]} if has_question else {}
    reward = correctness()
    assert reward(completions=[slot("84/2")], answer=["42"], prompts=[prompt], **columns) == [0.0]


def test_question_column_takes_the_place_of_a_missing_prompt() -> None:
    completions = [slot("84/2"), slot("42")]
    scores = correctness()(
        completions=completions, answer=["42"] * 2, question=["What is 84 / 2?"] * 2
    )
    assert scores == [0.0, 1.0]


def test_prompts_of_numpy_and_empty_questions_of_pandas_are_read() -> None:
    prompts = numpy.empty(1, dtype=object)
    prompts[0] = numpy.array(
        [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "What is 84 / 2?"},
        ],
        dtype=object,
    )
    copy = [slot("84/2")]
    assert correctness()(completions=copy, answer=["42"], prompts=prompts) == [0.0]
    assert correctness()(completions=copy, answer=["42"], question=[float("nan")]) == [1.0]


def test_percent_sign_that_only_maths_reads_raises_nothing() -> None:
    completions = [slot(r"50\mathsf{\%}")]
    scores = rewards.maths()(
        completions=completions, answer=["50"], prompts=["What is half of 100?"]
    )
    assert scores == [1.0]


@pytest.mark.parametrize("make", [correctness, rewards.maths])
def test_last_letter_of_the_alphabet_may_be_an_option(make) -> None:
    question = "Which? Y) wy Z) zed"
    assert make()(completions=[slot("Z) zed")], answer=["Z"], prompts=[question]) == [1.0]


@pytest.mark.parametrize("make", [correctness, rewards.maths])
def test_initial_in_the_text_of_an_option_is_no_other_option(make) -> None:
    question = "Who? A. Ann Lee B. John F. Kennedy C. Oslo"
    completions = [slot("B. John F. Kennedy"), slot("B. John F. Kennedy C. Oslo")]
    scores = make()(completions=completions, answer=["B", "B"], prompts=[question] * 2)
    assert scores == [1.0, 0.0]


@pytest.mark.parametrize("make", [correctness, rewards.maths])
def test_line_of_options_in_two_columns_is_wrong(make) -> None:
    question = "Where?\nA) Bern C) Paris\nB) Rome D) Oslo"
    completions = [slot("B) Rome"), slot("B) Rome D) Oslo")]
    scores = make()(completions=completions, answer=["B", "B"], prompts=[question] * 2)
    assert scores == [1.0, 0.0]


def test_numbered_constants_are_no_chemical_formula() -> None:
    gold = "C1 e^x + C2 e^{-x}"
    completions = [slot("C2 e^{-x} + C1 e^x"), slot("HO2")]
    assert rewards.maths()(completions=completions, answer=[gold, "H2O"]) == [1.0, 0.0]


def test_fraction_shown_in_the_system_prompt_is_no_copy() -> None:
    prompt = [
        {"role": "system", "content": "Write fractions, such as 1/2."},
        {"role": "user", "content": "What is 0.25 + 0.25?"},
    ]
    assert correctness()(completions=[slot("1/2")], answer=["0.5"], prompts=[prompt]) == [1.0]


EXAMPLE = [
    {"role": "user", "content": "Write 3/4 of 8 as a number."},
    {"role": "assistant", "content": slot("6")},
]

TOOL_CALL = {"role": "assistant", "content": "", "tool_calls": [{"name": "divide"}]}


@pytest.mark.parametrize(
    "after",
    [
        pytest.param([], id="question last"),
        pytest.param([TOOL_CALL, {"role": "tool", "content": "ready"}], id="call of a tool"),
        pytest.param([{"role": "assistant", "content": "<reasoning>"}], id="begun completion"),
        pytest.param(
            [
                {"role": "assistant", "content": "Shall I compute it?"},
                {"role": "user", "content": "Yes. Give the number."},
            ],
            id="turn without an answer",
        ),
    ],
)
def test_copy_of_the_question_after_an_example_scores_zero(after: list) -> None:
    question = {"role": "user", "content": "What is 84 / 2?"}
    columns = {"answer": ["42"], "prompts": [[*EXAMPLE, question, *after]]}
    assert correctness()(completions=[slot("84/2")], **columns) == [0.0]


@pytest.mark.parametrize("given", ["10.3", "9.7"])
def test_tolerance_includes_its_own_value(given: str) -> None:
    reward = correctness(tolerance=0.3)
    assert reward(completions=[slot(given), slot("10.31")], answer=["10"] * 2) == [1.0, 0.0]


@pytest.mark.parametrize(
    ("given", "score"),
    [
        pytest.param("[1]", 1.0, id="first"),
        pytest.param("[ 2.0 ]", 1.0, id="second"),
        pytest.param("[3]", 0.0, id="neither"),
    ],
)
def test_correctness_accepts_each_right_json(given: str, score: float) -> None:
    accepted = [["[1]", "[2]"]]
    reward = correctness()
    assert reward(completions=[slot(given)], answer=["[1]"], accepted_answers=accepted) == [score]


@pytest.mark.parametrize("make", [list, numpy_of_lists], ids=["list", "numpy"])
def test_list_in_a_list_of_gold_answers_is_json(make) -> None:
    golds = make([["a"], ["b", None]])
    completions = [slot('["a"]'), slot('["b", null]'), slot("['a']")]
    assert correctness()(completions=completions, answer=[golds] * 3) == [1.0, 1.0, 0.0]


def test_gold_answer_of_a_short_float_is_read_as_written() -> None:
    gold = numpy.float32(0.1)
    assert correctness()(completions=[slot("0.1")], answer=[gold]) == [1.0]


def test_numpy_and_dates_in_json_gold_answers_are_read() -> None:
    golds = [[numpy.int64(2)], {"day": datetime.date(2025, 6, 3)}, [numpy.array([1.5])]]
    completions = [slot("[2]"), slot('{"day": "2025-06-03"}'), slot("[[1.5]]"), slot("[3]")]
    assert correctness()(completions=completions, answer=[golds] * 4) == [1.0, 1.0, 1.0, 0.0]


@dataclass(frozen=True, kw_only=True)
class SameLetter(rewards.SlotReward):
    """A user's reward, which returns nothing for an answer that it does not know."""

    def is_same(self, given, gold, row):
        if given == "slow":
            raise Undecided
        if given[0] == gold[0]:
            return True


@pytest.mark.parametrize(
    ("given", "answer", "score"),
    [
        pytest.param("as", ["b", "a"], 1.0, id="second gold answer"),
        pytest.param("c", ["b", "a"], 0.0, id="nothing returned"),
        pytest.param("slow", ["b", "a"], None, id="undecided"),
    ],
)
def test_own_slot_reward_scores_each_gold_answer(given: str, answer: list, score) -> None:
    assert SameLetter()(completions=[slot(given)], answer=[answer]) == [score]


@pytest.mark.parametrize("reward", [rewards.correctness(), rewards.maths()], ids=str)
@pytest.mark.parametrize(
    ("question", "gold", "fitting", "others"),
    [
        pytest.param(
            "A car drives 120 km in 2 hours. What is its speed in km/h?",
            "60",
            ["60", "60 km/h", "60 kilometers per hour"],
            ["60 m/s", "60 mph", "60 km", "60 kg"],
            id="asked with in",
        ),
        pytest.param(
            "Tom buys 4 apples at $2 each. How many dollars does he pay in the shop?",
            "8",
            ["$8", "8 dollars", "8 apples"],
            ["8 cents", "8%", "8 hours", "$8 per week"],
            id="asked with how many",
        ),
        pytest.param(
            "A tank is 3 m long. How long are two tanks?",
            "6",
            ["6 m", "6 meters", "6 tanks"],
            ["6 mL", "6 km"],
            id="named as data",
        ),
        pytest.param("How tall is the tower?", "330", ["330 m", "330"], [], id="no unit is known"),
        pytest.param(
            "A rod's length in metres is 2. What is it in cm?",
            "200",
            ["200 cm", "200 centimetres", "200"],
            ["200 m", "200 mm", "200 kg"],
            id="two sentences with in",
        ),
        pytest.param(
            "How many cm is a rod whose length in metres is 2?",
            "200",
            ["200 cm", "200"],
            ["200 mm", "200 kg"],
            id="one sentence with two units",
        ),
        pytest.param(
            "A stone falls for 3 s. How far does it fall? Round to the nearest metre.",
            "44",
            ["44 m", "44 metres", "44"],
            ["44 s", "44 kg"],
            id="rounded to a unit",
        ),
        pytest.param(
            "A pen costs $2.10 and a pad $3.15. What do both cost, to the nearest cent?",
            "5.25",
            ["$5.25", "5.25 dollars", "5.25"],
            ["5.25 kg"],
            id="rounded to the cent",
        ),
        pytest.param(
            "Ann came in second and ran 5 km. How far did Bob run, who ran twice as far?",
            "10",
            ["10 km", "10"],
            ["10 kg", "10 mi"],
            id="ordinal",
        ),
        pytest.param(
            "Ann ran 5 km in week 2. How far did she run in week 3, if it was twice as far?",
            "10",
            ["10 km", "10"],
            ["10 kg", "10 mi"],
            id="number of a week",
        ),
        pytest.param(
            "A 50 kg bag holds 21 kg of sugar. Percentage of sugar?",
            "42",
            ["42%", "42"],
            ["42 m"],
            id="percentage with a capital",
        ),
        pytest.param(
            "Two of four coins in Tom's purse weigh 5 g. Which share is it?",
            "0.5",
            ["50%", "0.5"],
            ["0.5 s", "0.5 in"],
            id="percent is a spelling",
        ),
        pytest.param(
            "How many square centimetres are in 1.5 square metres?",
            "15000",
            ["15000 cm^2", r"15000 \text{ cm}^2", "15000 cm\u00b2", "15000 square centimetres"],
            [r"15000 \text{ cm}^3", "15000 cm", "15000 m^2"],
            id="power of the right unit",
        ),
        pytest.param(
            "What is ten percent of 80 kg?", "8", ["8 kg"], ["8 g"], id="percent of an amount"
        ),
        pytest.param(
            "How many more kilometres must she run?",
            "8",
            ["8 km"],
            ["8 m", "8 h"],
            id="word before the unit",
        ),
        pytest.param(
            "A car drives 120 m in 2 s. What is its speed in m/s?",
            "60",
            ["60 m/s", "60 m s^{-1}"],
            ["60 m s^{-2}", "60 m", "60 cm s^{-1}"],
            id="negative power",
        ),
    ],
)
def test_unit_of_an_answer_must_fit_the_question_if_the_gold_answer_has_none(
    reward, question: str, gold: str, fitting: list[str], others: list[str]
) -> None:
    answers = fitting + others
    scores = reward(
        prompts=[question] * len(answers),
        completions=[slot(answer) for answer in answers],
        answer=[gold] * len(answers),
    )
    paid = [answer for answer, score in zip(answers, scores, strict=True) if score]
    assert paid == fitting


@pytest.mark.parametrize(
    ("question", "gold", "score_of_answer"),
    [
        pytest.param(
            "Convert 150 degrees to radians.",
            r"\frac{5\pi}{6}",
            {r"\frac{5\pi}{6} \text{ rad}": 1.0, r"\frac{5\pi}{6}^\circ": 0.0},
            id="degrees for radians",
        ),
        pytest.param(
            "What is arctan(1)?",
            r"\frac{\pi}{4}",
            {r"\frac{\pi}{4}": 1.0, r"\frac{\pi}{4}^\circ": 0.0},
            id="multiple of pi",
        ),
        pytest.param(
            "A circle has a radius of 3 cm. What is its area?",
            r"9\pi",
            {r"9\pi \text{ cm}^2": 1.0, r"9\pi \text{ m}^2": 0.0},
            id="area",
        ),
        pytest.param(
            "A cylinder has a radius of 1 cm and the height h. What is its volume?",
            r"\pi h",
            {r"1\pi h": 1.0, r"\pi h \text{ m}^3": 0.0},
            id="variable",
        ),
        pytest.param(
            r"What is the area of the circle with radius 3 in $\text{cm}^2$?",
            r"9\pi",
            {r"9\pi \text{ cm}^2": 1.0, r"9\pi \text{ cm}": 0.0},
            id="unit between dollar signs",
        ),
    ],
)
def test_unit_of_a_formula_must_fit_the_question(
    question: str, gold: str, score_of_answer: dict[str, float]
) -> None:
    count = len(score_of_answer)
    completions = list(map(slot, score_of_answer))
    scores = rewards.maths()(
        prompts=[question] * count, completions=completions, answer=[gold] * count
    )
    assert scores == list(score_of_answer.values())


@pytest.mark.parametrize("reward", [rewards.correctness(), rewards.maths()], ids=str)
def test_unit_of_the_last_question_fits_after_an_example(reward) -> None:
    prompt = [
        {"role": "user", "content": "How many kg do 3 bags of 2 kg weigh?"},
        {"role": "assistant", "content": slot("6")},
        {"role": "user", "content": "How many hours are 180 minutes?"},
    ]
    completions = [slot("3 hours"), slot("3 kg")]
    assert reward(prompts=[prompt] * 2, completions=completions, answer=["3"] * 2) == [1.0, 0.0]


@pytest.mark.parametrize(
    "given",
    ["84/2", "x = 84/2", "f(x) = 84/2", "84/2 apples", "x = 84/2 m^2", "$84/2", "\u20ac84/2"],
    ids=ascii,
)
@pytest.mark.parametrize("make", [correctness, rewards.maths])
def test_name_or_unit_does_not_hide_a_copy(make, given: str) -> None:
    for question in ("What is 84 / 2?", r"What is $\frac{84}{2}$?", "What is 84/2kg?"):
        assert make()(completions=[slot(given)], answer=["42"], prompts=[question]) == [0.0]
        other = "Half of eighty-four?"
        assert make()(completions=[slot(given)], answer=["42"], prompts=[other]) == [1.0]


def test_text_of_a_json_gold_answer_is_not_escaped() -> None:
    gold = {"city": "Z\u00fcrich"}
    completion = slot('{"city": "Z\u00fcrich"}')
    assert exact_text()(completions=[completion], answer=[[gold]]) == [1.0]


@pytest.mark.parametrize(
    ("name", "row_count", "most_refused"),
    [
        # At commit 0853402d it was 168 refused and 2 paid.
        pytest.param("fresh_answers.jsonl", 1074, 129, id="answers of all kinds"),
        # At commit 0853402d it was 114 refused and 3 paid.
        pytest.param("fresh_units.jsonl", 606, 96, id="answers with units"),
    ],
)
def test_maths_on_answers_written_by_somebody_who_had_not_seen_it(
    name: str, row_count: int, most_refused: int
) -> None:
    """The bounds are what was measured."""
    file = ROOT / "tests/data" / name
    rows = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
    refused, paid = [], []
    for row in rows:
        (score,) = rewards.maths()(
            prompts=[row["question"]], completions=[slot(row["answer"])], answer=[row["gold"]]
        )
        if row["right"] and not score:
            refused.append(row)
        if score and not row["right"]:
            paid.append(row)
    assert len(rows) == row_count
    assert len(refused) <= most_refused, refused
    assert paid == []
