"""Rewards for answers: forms of one answer are paid, ways around giving one are not."""

import json
import threading
import time
from collections import defaultdict
from pathlib import Path

import pytest
from jsonschema import SchemaError

from grpo_nb import rewards
from grpo_nb.rewards.answers import correctness, exact_text, gold_answers, json_answer, multiple_choice, regex_answer
from grpo_nb.tasks import formats

TABLE = Path(__file__).parents[1] / "data" / "answers.jsonl"


def scores(reward, contents: list[str], gold: object, **columns: object) -> list[float | None]:
    repeated = {name: [value] * len(contents) for name, value in {"answer": gold, **columns}.items()}
    return reward(completions=[f"<answer>{content}</answer>" for content in contents], **repeated)


@pytest.mark.parametrize(("name", "most_refused"), [("correctness", 0.02), ("maths", 0.05)])
def test_the_answers_labelled_by_hand(name: str, most_refused: float) -> None:
    """What a strict and fair person would pay for, labelled before any run; those of other rewards than these are not asked."""
    by_options = defaultdict(list)
    for case in map(json.loads, TABLE.read_text().splitlines()):
        of_numbers = (
            name == "correctness" and case["rewards"] == ["number"] and {"tolerance"} >= {*case.get("options", {})}
        )
        if name in case["rewards"] or of_numbers:
            by_options[json.dumps(case.get("options", {}))].append(case)
    wrongly_paid, wrongly_refused, right = [], [], 0
    for options, cases in by_options.items():
        reward = getattr(rewards, name)(**json.loads(options))
        paid = [
            scores(reward, [case["slot"]], case["gold"])[0] for case in cases
        ]  # one by one: no batch runs out of time
        right += sum(case["pay"] for case in cases)
        wrongly_paid += [case for case, score in zip(cases, paid, strict=True) if score and not case["pay"]]
        wrongly_refused += [case for case, score in zip(cases, paid, strict=True) if not score and case["pay"]]
    assert not wrongly_paid
    assert right > 300 and len(wrongly_refused) <= most_refused * right, wrongly_refused


# What was learnt from answers of other people's graders and of training logs: gold, right, wrong.
LESSONS = [
    ("12", ["12 pounds", r"\$12", "12 red apples", "#### 12"], ["12 dozen", "12k", "12 million", "12 or 13", "12x"]),
    ("20 cm", ["20", "20cm", r"20\text{ cm}"], ["20 m", "2 cm", "20 kg", "20 cm or so"]),
    ("2500000", ["2.5 million", "2.5 million dollars"], ["2.5", "2.5 billion"]),
    ("85", ["85%", "85 percent", r"85\%"], ["0.85", "8.5%", "85%-90%"]),
    ("50%", ["50", "0.5", r"\frac12"], ["5", "0.05", "50 dollars"]),
    ("Spam", ["spam", '"Spam"', "**Spam**.", "SPAM!"], ["not spam", "spam or ham", "spam?"]),
    ("C", ["c", "Answer: C", "**C.** No", "[C]", "Option C", "C (Paris)", "C - Paris"], ["B", "C or A", "C (or A)", "CD"]),
    ("007", ["007"], ["7", "7.0"]),
    ("7", ["7.0", "seven"], ["007", "7!", "7 thirds", "7th"]),
    ("25 December", ["25 december"], ["25"]),
    ("ISO 9001", ["iso 9001"], ["9001"]),
]  # fmt: skip


@pytest.mark.parametrize("name", ["correctness", "maths"])
@pytest.mark.parametrize(("gold", "right", "wrong"), LESSONS, ids=[gold for gold, _, _ in LESSONS])
def test_what_other_graders_taught(name: str, gold: str, right: list[str], wrong: list[str]) -> None:
    given = [gold, *right, *wrong]
    assert scores(getattr(rewards, name)(), given, gold) == [1.0] * (1 + len(right)) + [0.0] * len(wrong)


def test_nothing_that_takes_it_back_may_follow() -> None:
    after = [" No, 41.", "\nWait, that is wrong.", " \u4e0d\u5bf9", " or 41", " = 41", "0", "%"]
    harmless = ["", "\n", ".", " $", "\\)", " **", "```", "\\]\n"]
    texts = [f"<answer>42</answer>{text}" for text in after + harmless]
    assert correctness()(completions=texts, answer=["42"] * len(texts)) == [0.0] * len(after) + [1.0] * len(harmless)


@pytest.mark.parametrize("format", [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()])
def test_every_format(format: formats.AnswerFormat) -> None:
    text = format.render("40 + 2", "42")
    texts = [text, text + "\nNo, it is 41.", format.render("42", "41")]
    assert correctness(format=format)(completions=texts, answer=["42"] * 3) == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("given", "gold", "asked", "score"),
    [
        # The gold answer in any writing is no copy, though the question holds it.
        ("3/4.", "3/4", "Which is larger, 3/4 or 2/3?", 1.0),
        (r"\frac{3}{4}", "3/4", r"Which is larger, $\frac34$ or $\frac23$?", 1.0),
        ("50 %", "50%", "Is it 50 % or 60 %?", 1.0),
        ("50%", "50", "Is it 50% or 60%?", 1.0),
        ("5 km/h", "5", "Does he walk 5 km/h or 6 km/h?", 1.0),
        # A part of another number does not stand there.
        ("3/4", "0.75", "What is 13/4 - 10/4?", 1.0),
        ("3/4", "0.75", "What is 3/40 + 27/40?", 1.0),
        ("1/2", "0.5", "What is 1 1/2 - 1?", 1.0),
        ("126/3", "42", "What is 84 / 2?", 1.0),
        # And a copy is one wherever it stands.
        ("3/4", "0.75", "Write 3/4 as a decimal.", 0.0),
        ("3 / 4", "0.75", "Which is less: 1. 3/4, 2. 4/5?", 0.0),
        (r"84/2", "42", r"What is \dfrac{84}{2}?", 0.0),
        ("50%", "0.5", "Write 50% as a decimal.", 0.0),
    ],
)
def test_a_copy_is_the_question_and_no_right_answer(given, gold, asked, score) -> None:
    for reward in (correctness(), correctness(tolerance=0.001)):
        assert scores(reward, [given], gold, prompts=asked) == [score]
    chat = [{"role": "user", "content": "Example: 1/8."}, {"role": "user", "content": asked}]
    assert scores(correctness(), [given], gold, prompts=chat) == [score]


def test_several_gold_answers() -> None:
    assert scores(correctness(), ["1", "2", "3", "1, 2"], ["1", "2"]) == [1.0, 1.0, 0.0, 0.0]
    assert scores(correctness(), ["7"], []) == [None]
    assert gold_answers(float("nan")) == [] and gold_answers([None, " 7 ", 0]) == ["7", "0"]


def test_tolerance() -> None:
    assert scores(correctness(tolerance=0.01), ["3.14", "3.15", "3.16"], "3.1415") == [1.0, 1.0, 0.0]
    assert scores(correctness(tolerance=1), ["6 kg", "6", "6 m", "7.5 kg"], "5 kg") == [1.0, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: correctness(tolerance=-1), ValueError),
        (lambda: correctness(tolerance=float("nan")), ValueError),
        (lambda: json_answer(column=None), ValueError),
        (lambda: json_answer(schema={"type": "thing"}), SchemaError),
        (lambda: regex_answer("("), Exception),
    ],
)
def test_settings_that_cannot_work(make, error) -> None:
    with pytest.raises(error):
        make()


def test_a_missing_column_says_what_to_write() -> None:
    for make in (correctness, exact_text, multiple_choice, json_answer, regex_answer, rewards.maths):
        with pytest.raises(ValueError, match=r"needs the data column 'solution'.*column="):
            make(column="solution")(completions=["7"], answer=["7"])


def test_exact_text() -> None:
    given = ["Paris", " Paris\n", "paris", "Paris.", "Paris or Rome"]
    assert scores(exact_text(), given, "Paris") == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert scores(exact_text(is_case_sensitive=False), given, "Paris") == [1.0, 1.0, 1.0, 1.0, 0.0]
    assert scores(exact_text(), ["7", "7.0"], "7") == [1.0, 0.0]


def test_multiple_choice() -> None:
    asked = "Which colour?\nA) red\nB) green\nC) blue\nD) blue"
    right, wrong = ["B", "(b)", "green", "B) green", "B - Green."], ["B) red", "red", "A or B", "B or green", "not B"]
    for gold in ("B", "green", "B) green"):
        assert scores(multiple_choice(), [*right, *wrong], gold, prompts=asked) == [1.0] * len(right) + [0.0] * len(
            wrong
        )
    # Two options of one text: the text says neither. A letter that no option has is right nowhere, and no lack of a score.
    assert scores(multiple_choice(), ["blue", "C"], "C", prompts=asked) == [0.0, 1.0]
    assert scores(multiple_choice(), ["A", "B"], "E", prompts=asked) == [0.0, 0.0]
    assert scores(multiple_choice(), ["B", "B. No", "A", "B or A", "A dog"], "B") == [1.0, 1.0, 0.0, 0.0, 0.0]


INVOICE = '{"vendor": "Acme GmbH", "total": 245.08, "date": "2025-06-03"}'


@pytest.mark.parametrize("reward", [correctness(), json_answer(), rewards.maths()])
def test_json_is_paid_for_its_values_by_each_reward_for_answers(reward) -> None:
    gold = json.loads(INVOICE)
    same = [INVOICE, json.dumps(gold, indent=1), json.dumps(dict(reversed(gold.items()))), f"```json\n{INVOICE}\n```"]
    other = [
        json.dumps(gold | {"total": "245.08"}),
        json.dumps(gold | {"paid": True}),
        "{}",
        f"{INVOICE} or {{}}",
        INVOICE[1:-1],
    ]
    assert scores(reward, [*same, *other], INVOICE) == [1.0] * 4 + [0.0] * 5


def test_json_answer() -> None:
    assert scores(json_answer(), ["[1, 2]", "[2, 1]", "[1, 2, 3]", "1"], [1, 2]) == [1.0, 0.0, 0.0, 0.0]
    schema = {"type": "object", "properties": {"age": {"$ref": "#/$defs/age"}}, "$defs": {"age": {"minimum": 0}}}
    given = ['{"age": 7}', '{"age": -7}', "[]", "age: 7"]
    assert scores(json_answer(column=None, schema=schema), given, None) == [1.0, 0.0, 0.0, 0.0]
    assert scores(json_answer(schema=json.dumps(schema)), given, '{"age": 7}') == [1.0, 0.0, 0.0, 0.0]
    # A reference that leads nowhere raises at no completion, and nothing is fetched.
    for reference in ("#/$defs/x", "http://localhost:9/schema"):
        assert scores(json_answer(column=None, schema={"$ref": reference}), ["{}", "7"], None) == [0.0, 0.0]
    assert scores(json_answer(), ["{}"], None) == scores(json_answer(), ["{}"], "{") == [None]


def test_partial_pays_the_share_of_right_fields() -> None:
    reward = json_answer(partial=True, schema={"type": "object"})
    changed = [
        '{"a": 1, "b": 2}',
        '{"a": 1, "b": 3}',
        '{"a": 1}',
        '{"a": 1, "b": 2, "c": 3, "d": 4}',
        "{}",
        "[1]",
        "a: 1",
    ]
    assert scores(reward, changed, '{"a": 1, "b": 2}') == [1.0, 0.5, 0.5, 0.5, 0.0, 0.0, 0.0]
    assert scores(json_answer(partial=True), ["[1, 2]", "[1]"], "[1, 2]") == [1.0, 0.0]


def test_a_pattern_that_backtracks_for_ever_is_stopped_in_any_thread() -> None:
    hostile = ["ab" * n + "cd" for n in range(1000, 1008)]  # without a c, one look would be enough
    found: list[object] = []

    def judge() -> None:
        found.append(scores(regex_answer(r"(?:(?:a|b|ab)*)*c"), [*hostile, "abc", "abc d"], None))

    thread, start = threading.Thread(target=judge), time.monotonic()
    thread.start()
    thread.join(30)
    assert found == [[0.0] * 8 + [1.0, 0.0]]
    assert time.monotonic() - start < 15
    assert scores(regex_answer(), ["7", "8"], r"\d") == [1.0, 1.0]
