"""Rewards for answers: forms of one answer are paid, ways around giving one are not."""

import json
import time
from collections import defaultdict
from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_nb import rewards
from grpo_nb.rewards.answers import correctness, exact_text, is_same_answer
from grpo_nb.rewards.slot import gold_answers, is_copied
from grpo_nb.rewards.structured import json_answer, multiple_choice, regex_answer
from grpo_nb.tasks import formats
from grpo_nb.tasks.notation import parse_number, read_json

TABLE = Path(__file__).parents[1] / "data" / "answers.jsonl"


def slots(*contents: str) -> list[str]:
    return [f"<answer>{content}</answer>" for content in contents]


def scores(reward, contents: list[str], gold: object, **columns: object) -> list[float | None]:
    n = len(contents)
    return reward(
        completions=slots(*contents), answer=[gold] * n, **{key: [value] * n for key, value in columns.items()}
    )


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3/4", "3/4"),
        ("-3/4", "-3/4"),
        ("1 3/4", "7/4"),
        ("-1 3/4", "-7/4"),
        (r"\frac{3}{4}", "3/4"),
        (r"-\dfrac{3}{4}", "-3/4"),
        (r"\frac34", "3/4"),
        (r"\frac{-3}{4}", "-3/4"),
        (r"1\frac{3}{4}", "7/4"),
        ("0.5/2", "1/4"),
        ("50%", "1/2"),
        (r"12.5\%", "1/8"),
        ("1e3", "1000"),
        ("1.5E-3", "3/2000"),
        (r"1.5 \times 10^{3}", "1500"),
        ("1.5x10^3", "1500"),
        ("2*10**-1", "1/5"),
        ("1{,}250", "1250"),
        (r"1\,250", "1250"),
        ("1\u202f250", "1250"),
        ("\u20ac1,250", "1250"),
        ("-$5", "-5"),
        ("$-5", "-5"),
        (r"\$5", "5"),
        ("$42$", "42"),
        (r"\(42\)", "42"),
        (r"\boxed{42}", "42"),
        (r"$\boxed{\frac{1}{2}}$", "1/2"),
        ("**42**", "42"),
        (r"\text{42}", "42"),
        ("5.", "5"),
        ("1,234,567.5", "2469135/2"),
        ("0", "0"),
        ("007", "7"),
        ("\u00bd", "1/2"),
        ("5\u00bd", "11/2"),
        ("\uff14\uff12", "42"),
        (r"\frac{1}2", "1/2"),
        ("1'234'567", "1234567"),
        ("12,34,567", "1234567"),
        (r"10,\!000", "10000"),
        ("1 250", "1250"),
        ("5\u20ac", "5"),
        (r"0.1\overline{6}", "1/6"),
        ("two hundred and five thousand and one", "205001"),
        ("-$5.00", "-5"),
        ("forty-two", "42"),
        ("one hundred and twenty-five", "125"),
        ("Ninety\u2011nine", "99"),
        ("12,- \u20ac", "12"),
        ("CHF 12.\u2013", "12"),
        ("US$ 12.50", "12.5"),
        ("Rs. 500", "500"),
        ("twelve hundred", "1200"),
        ("a thousand", "1000"),
        ("a half", "1/2"),
        ("three-quarters", "3/4"),
        ("two and a half", "5/2"),
    ],
)
def test_numbers_as_people_write_them(text: str, value: str) -> None:
    assert parse_number(text) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "3/0",
        "0/0",
        "1 7/4",
        "1 2",
        "1/2/3",
        "1 000 00",
        "1,00",
        "1e9999",
        "1e999999999",
        "10^10^10",
        "6*7",
        "40+2",
        "2^5",
        "1..2",
        "5..",
        "--5",
        "+-5",
        "5-",
        "1/",
        "/2",
        "\\frac{1}{}",
        "x",
        "",
        " ",
        "%",
        "$",
        "1%%",
        "infinity",
        "0x1F",
        "1_000",
        "0,500",
        "1,23,4567",
        "1 250 00",
        "\u00b2\u2075",
        "4\u00b2",
        "one two",
        "third",
        "two and three halfs",
        r"4\overline{2}",
        "$5\u20ac",
        "-$-5",
        "42 43",
        "42, 43",
        "4" * 65,
        "forty - two",
        "forty-twelve",
        "route-42",
        "12,-5",
        "2\u00bd tsp",
        "5 pounds",
    ],
)
def test_what_is_no_number(text: str) -> None:
    assert parse_number(text) is None


@given(
    st.fractions(max_denominator=10_000), st.sampled_from(["{n}/{d}", "\\frac{{{n}}}{{{d}}}", "$\\frac{{{n}}}{{{d}}}$"])
)
def test_every_fraction_reads_back(value: Fraction, form: str) -> None:
    assert parse_number(form.format(n=value.numerator, d=value.denominator)) == value


@given(st.integers(-(10**15), 10**15))
def test_every_integer_reads_back_in_every_form(value: int) -> None:
    for text in (
        str(value),
        f"{value:,}",
        f"{value}.0",
        f"{value}e0",
        f"+{value}" if value >= 0 else f"\u2212{-value}",
        f"x = {value}",
    ):
        assert is_same_answer(text, str(value)), text
    assert not is_same_answer(str(value + 1), str(value))


@pytest.mark.parametrize(
    ("given_answer", "gold", "same"),
    [
        ("x = 42", "42", True),
        ("42", "x = 42", True),
        ("x = 42", "x=42", True),
        ("y = 42", "x = 42", False),
        ("x_1 = 42", "42", True),
        (r"\theta = 42", "42", True),
        ("x = y = 42", "42", False),
        ("42 = x", "42", False),
        ("x == 42", "42", False),
        ("2x = 42", "42", False),
        ("answer = 42", "42", False),
        ("**Paris**", "Paris", True),
        (r"\text{Paris}", "Paris", True),
        ("Paris or Rome", "Paris", False),
        ("Paris, Rome", "Paris", False),
        ("not Paris", "Paris", False),
        ("init", "__init__", False),
        ("50", "50%", False),
        ("0.333333", "1/3", False),
        ("$5", "\u20ac5", False),
        ("5", "\u20ac5", True),
        ("AB = 42", "42", True),
    ],
)
def test_one_answer(given_answer: str, gold: str, same: bool) -> None:
    assert is_same_answer(given_answer, gold) is same


@pytest.mark.parametrize("name", ["correctness", "maths"])
def test_the_answers_labelled_by_hand(name: str) -> None:
    """What a strict and fair person would pay for, labelled before any run.

    By `set`: a random third of the first 1,065 was put `aside` while the rewards were written, `second` was written after them.
    """
    by_options = defaultdict(list)
    for case in map(json.loads, TABLE.read_text().splitlines()):
        # Labelled for a reward that knew units: what is asked of numbers alone, or within a tolerance.
        of_numbers = (
            name == "correctness" and case["rewards"] == ["number"] and {"tolerance"} >= {*case.get("options", {})}
        )
        if name in case["rewards"] or of_numbers:
            by_options[json.dumps(case.get("options", {}))].append(case)
    wrongly_paid, wrongly_refused, right = [], [], 0
    for options, cases in by_options.items():
        patient = {"batch_seconds": 300} if name == "maths" else {}  # a busy machine is no reason to refuse
        paid = getattr(rewards, name)(**json.loads(options), **patient)(
            completions=slots(*(case["slot"] for case in cases)), answer=[case["gold"] for case in cases]
        )
        right += sum(case["pay"] for case in cases)
        wrongly_paid += [case for case, score in zip(cases, paid, strict=True) if score and not case["pay"]]
        wrongly_refused += [case for case, score in zip(cases, paid, strict=True) if not score and case["pay"]]
    assert not wrongly_paid
    assert right > 200 and len(wrongly_refused) <= 0.02 * right, wrongly_refused


def test_nothing_that_takes_it_back_may_follow() -> None:
    after = [" No, 41.", "\nWait, that is wrong.", " \u4e0d\u5bf9", " or 41", " = 41", "0", "%"]
    reward = correctness()
    assert reward(completions=[slots("42")[0] + text for text in after], answer=["42"] * len(after)) == [0.0] * len(
        after
    )
    harmless = ["", "\n", ".", " $", "\\)", " **", "```", "\\]\n"]
    assert reward(completions=[slots("42")[0] + t for t in harmless], answer=["42"] * len(harmless)) == [1.0] * len(
        harmless
    )
    assert correctness(is_last=False)(completions=[slots("42")[0] + " No, 41."], answer=["42"]) == [1.0]


@pytest.mark.parametrize(
    "format", [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()], ids=lambda f: f.name
)
def test_every_format(format: formats.AnswerFormat) -> None:
    reward = correctness(format=format)
    text = format.render("40 + 2", "42")
    assert reward(completions=[text, text + "\nNo, it is 41.", format.render("42", "41")], answer=["42"] * 3) == [
        1.0,
        0.0,
        0.0,
    ]


def test_the_question_is_no_answer_to_itself() -> None:
    asked = [[{"role": "user", "content": "Example: 1/2. "}, {"role": "user", "content": "What is 84 / 2?"}]]
    for reward in (correctness(), correctness(tolerance=0.1)):
        assert reward(completions=slots("84/2"), answer=["42"], prompts=asked) == [0.0]
        assert reward(completions=slots("42"), answer=["42"], prompts=asked) == [1.0]
        assert reward(completions=slots("126/3"), answer=["42"], prompts=asked) == [1.0]
        # What the gold answer itself says is right, wherever else it stands.
        assert reward(completions=slots("3/4"), answer=["3/4"], prompts=["Is it 3/4 or 4/3?"]) == [1.0]
    assert is_copied("50%", "0.5", {"prompts": "Write 50% as a decimal."})
    assert not is_copied("-7", "-7.0", {"prompts": "Is -7 less?"})


@pytest.mark.parametrize(
    ("given", "gold", "asked", "score"),
    [
        # The gold answer in any writing is no copy, though the question holds it.
        ("3/4.", "3/4", "Which is larger, 3/4 or 2/3?", 1.0),
        ("$3/4$", "3/4", "Which is larger, $3/4$ or $2/3$?", 1.0),
        (r"\frac{3}{4}", "3/4", r"Which is larger, $\frac34$ or $\frac23$?", 1.0),
        ("50 %", "50%", "Is it 50 % or 60 %?", 1.0),
        # A part of another number does not stand there.
        ("3/4", "0.75", "What is 13/4 - 10/4?", 1.0),
        ("3/4", "0.75", "What is 3/40 + 27/40?", 1.0),
        ("1/2", "0.5", "What is 1 1/2 - 1?", 1.0),
        ("3/4", "0.75", "What is 0.3/4 + 2.7/4?", 1.0),
        # And a copy is one wherever it stands.
        ("3/4", "0.75", "Write 3/4 as a decimal.", 0.0),
        ("3 / 4", "0.75", "Which is less: 1. 3/4, 2. 4/5?", 0.0),
        ("84/2", "42", r"What is \dfrac{84}{2}?", 0.0),
        ("(4+1)/2", "2.5", "What is (4 + 1) / 2?", 0.0),
    ],
)
def test_a_copy_is_the_question_and_no_right_answer(given, gold, asked, score) -> None:
    assert correctness()(completions=slots(given), answer=[gold], prompts=[asked]) == [score]


def test_several_gold_answers() -> None:
    assert scores(correctness(), ["1", "2", "3", "1, 2"], ["1", "2"]) == [1.0, 1.0, 0.0, 0.0]
    assert scores(correctness(), ["7"], []) == [None]
    assert gold_answers(float("nan")) == [] and gold_answers([None, " 7 ", 0]) == ["7", "0"]


UNITS = [
    ("1.5\u00b710\u2078 km", ["1.5e8 km", "150000000 km", "1.5 \u00d7 10^8 km"], ["1.5e7 km", "1.5 km", "1.5\u00b710\u2078 m"]),
    ("287 N", ["2.87\u00b710\u00b2 N", "287 newtons", r"$287\,\mathrm{N}$", "F = 287 N"], ["2.87 N", "287 kN", "287 N m"]),
    ("6.6\u00b710\u207b\u2077 m", ["6.6e-7 m", "0.00000066 metres"], ["6.6e7 m", "6.6e-7 mm"]),
    ("20 V", ["20 volts", "20 Volt"], ["20 kilovolts", "20 W"]),
    ("0.5 mol", ["0.5 moles", "1/2 mol"], ["0.5 mol/l", "0.5 mmol"]),
    ("5.0 \u03a9", ["5 ohms", r"5\,\Omega"], ["5 k\u03a9", "0.5 ohms"]),
    ("25 \u00b5m", ["25 um", "25 \u03bcm", "25 micrometers"], ["25 m", "25 mm"]),
    ("66.7 km/h", ["66.7 km\u00b7h\u207b\u00b9", "66.7 kph", "66.7 kilometers per hour"], ["66.7 km h", "66.7 m/s"]),
    ("9.81 m/s\u00b2", ["9.81 m\u00b7s^-2", "9.81 meters per second squared"], ["9.81 m/s", "9.81 m s\u00b2"]),
    ("4.18 J/(g\u00b7K)", ["4.18 J g\u207b\u00b9 K\u207b\u00b9"], ["4.18 J/g", "4.18 J K/g"]),
    ("12 m\u00b2", ["12 square meters"], ["12 m", "12 m^3", "144 m"]),
    ("pH = 2.30", ["2.3", "pH=2.3"], ["pOH = 2.3", "pH = 2.3 or 3"]),
    ("[1, 3]", ["$[1,3]$", "[1;3]"], ["(1,3)", "[13]", "[3;1]"]),
]  # fmt: skip


@pytest.mark.parametrize("reward", [correctness(), rewards.maths()])
@pytest.mark.parametrize(("gold", "right", "wrong"), UNITS)
def test_units_and_powers_as_people_write_them(reward, gold: str, right: list[str], wrong: list[str]) -> None:
    assert scores(reward, [gold, *right, *wrong], gold) == [1.0] * (1 + len(right)) + [0.0] * len(wrong)


def test_tolerance() -> None:
    assert scores(correctness(), ["42%"], "42") == [0.0]
    assert scores(correctness(tolerance=0.01), ["3.14", "3.15", "3.16"], "3.1415") == [1.0, 1.0, 0.0]
    assert scores(correctness(tolerance=1), ["6 kg", "6 m", "7.5 kg"], "5 kg") == [1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "make",
    [
        lambda: correctness(tolerance=-1),
        lambda: correctness(tolerance=float("nan")),
        lambda: json_answer(column=None),
        lambda: json_answer(schema={"type": "thing"}),
        lambda: regex_answer("("),
    ],
)
def test_settings_that_cannot_work(make) -> None:
    with pytest.raises(ValueError):
        make()


def test_a_missing_column_says_what_to_write() -> None:
    for make in (correctness, exact_text, multiple_choice, json_answer, regex_answer):
        with pytest.raises(ValueError, match=r"needs the data column 'solution'.*column="):
            make(column="solution")(completions=["7"], answer=["7"])


def test_exact_text() -> None:
    assert scores(exact_text(), ["Paris", " Paris\n", "paris", "Paris.", "Paris or Rome"], "Paris") == [
        1.0,
        1.0,
        0.0,
        0.0,
        0.0,
    ]
    assert scores(exact_text(is_case_sensitive=False), ["paris"], "Paris") == [1.0]


def test_multiple_choice_as_arc_and_mmlu_have_it() -> None:
    arc = {"label": ["A", "B", "C"], "text": ["red", "green", "blue"]}
    assert scores(
        multiple_choice(options_column="choices"), ["B", "green", "B) green", "B) red", "red"], "B", choices=arc
    ) == [1, 1, 1, 0, 0]
    numbered = multiple_choice(labels="1234")
    assert scores(numbered, ["2", "(2)", "3", "2 or 3"], "2") == [1.0, 1.0, 0.0, 0.0]
    as_mapping = {"A": "red", "B": "green"}
    assert scores(multiple_choice(), ["B", "C"], "green", options=as_mapping) == [1.0, 0.0]
    # Two options of the same text: the text says neither.
    assert scores(multiple_choice(), ["red", "A"], "A", options=["red", "red"]) == [0.0, 1.0]


def test_json() -> None:
    schema = {
        "type": "object",
        "properties": {"age": {"type": "integer", "minimum": 0}},
        "required": ["age"],
        "additionalProperties": False,
    }
    only = json_answer(column=None, schema=schema)
    assert only(completions=slots('{"age": 3}', '{"age": -3}', '{"age": 3, "x": 1}', "{}", "3")) == [
        1.0,
        0.0,
        0.0,
        0.0,
        0.0,
    ]
    assert scores(json_answer(), ["[1, 2]", "[2, 1]", "[1, 2, 3]", "1"], [1, 2]) == [1.0, 0.0, 0.0, 0.0]
    for text in (
        "NaN",
        "Infinity",
        "1e999",
        '{"a": 1, "a": 1}',
        "[1,]",
        "01",
        "'a'",
        "// x\n1",
        "[" * 65 + "]" * 65,
        '"' + "a" * 20_001 + '"',
    ):
        assert read_json(text) == (None, False), text[:20]
    assert read_json('"[[[[' + "[" * 100 + '"')[1], "brackets in a string are no depth"
    # The reference to a schema elsewhere must not be fetched.
    with pytest.raises(Exception, match=r"(?i)unresolvable|retriev"):
        json_answer(column=None, schema={"$ref": "http://localhost:9/schema"})(completions=slots("{}"))


@pytest.mark.parametrize(
    "text", ['["' + '\\"' * 9_995, '\\"' * 10_000, '"\\' * 10_000, "```json\n" + " \n" * 9_000], ids=range(4)
)
def test_json_that_is_not_closed_takes_no_longer(text: str) -> None:
    start = time.process_time()
    assert read_json(text) == (None, False)
    assert time.process_time() - start < 0.2  # quadratic, as it was: 2 s


def test_a_pattern_that_backtracks_for_ever_is_stopped_in_any_thread() -> None:
    import threading

    reward = regex_answer(r"(?:(?:a|b|ab)*)*c")
    hostile = slots(*("ab" * n + "cd" for n in range(1000, 1008)))  # without a c, one look would be enough
    found: list[object] = []
    thread = threading.Thread(target=lambda: found.append(reward(completions=[*hostile, *slots("abc")])))
    start = time.monotonic()
    thread.start()
    thread.join(30)
    assert found == [[0.0] * 8 + [1.0]]
    assert time.monotonic() - start < 10  # 8 x 0.1 s are promised
    in_schema = json_answer(column=None, schema={"type": "string", "pattern": r"^(?:(?:a|b|ab)*)*c$"})
    start = time.monotonic()
    assert in_schema(completions=slots('"' + "ab" * 1000 + 'cd"', '"abc"')) == [0.0, 1.0]
    assert time.monotonic() - start < 10


def test_a_batch_of_slow_answers_costs_its_limit_and_says_so() -> None:

    reward = regex_answer(r"(?:(?:a|b|ab)*)*c", batch_seconds=0.5)
    hostile = slots(*("ab" * n + "cd" for n in range(1000, 1300)))
    start = time.monotonic()
    with pytest.warns(RuntimeWarning, match="answers of this batch were left unjudged"):
        found = reward(completions=[*hostile, *slots("abc")])
    assert time.monotonic() - start < 15  # 300 x 0.1 s of processor time without the limit
    assert found == [0.0] * 300 + [1.0], "a short answer is judged before the slow ones"


INVOICE = '{"vendor": "Acme GmbH", "total": 245.08, "date": "2025-06-03"}'


@pytest.mark.parametrize("reward", [correctness(), json_answer(), rewards.maths()])
def test_json_is_paid_for_its_values_by_each_reward_for_answers(reward) -> None:
    """maths paid "2016" for "2025-06-03", a subtraction, and AcmeGmbH for Acme GmbH."""
    gold = json.loads(INVOICE)
    same = [INVOICE, json.dumps(gold, indent=1), json.dumps(dict(reversed(gold.items()))), INVOICE.replace("08", "080")]
    assert scores(reward, [*same, f"```json\n{INVOICE}\n```"], INVOICE) == [1.0] * 5
    other = [{"date": "2016"}, {"vendor": "AcmeGmbH"}, {"total": "245.08"}, {"total": 245.8}, {"paid": True}]
    assert scores(reward, [json.dumps(gold | change) for change in other], INVOICE) == [0.0] * 5
    assert scores(reward, ["{}", "Acme GmbH", f"{INVOICE} or {{}}", INVOICE[1:-1]], INVOICE) == [0.0] * 4


@pytest.mark.parametrize(
    ("gold", "wrong"),
    [
        ("2025-06-03", ["2016", "2025-03-06", "2024-07-03"]),
        ("12/6/2024", ["2/2024", "1/1012", "6/12/2024"]),
        ("2 h 20 min", ["4 h 10 min", "185 min", "40 h min", "20 h 2 min"]),
        ("5 ft 11 in", ["11 ft 5 in", "55 ft in"]),
        ("['a', 'b-c']", ["['a', 'c-b']"]),
    ],
)
def test_what_is_no_expression_is_not_computed(gold: str, wrong: list[str]) -> None:
    assert scores(rewards.maths(), [gold, *wrong], gold) == [1.0] + [0.0] * len(wrong)
    assert scores(correctness(), [gold, *wrong], gold) == [1.0] + [0.0] * len(wrong)


def test_lists_of_numbers_may_be_intervals() -> None:
    assert scores(correctness(), ["[1,2]", "$[1, 2]$", "[2, 1]"], "[1, 2]") == [1.0, 1.0, 0.0]
    assert scores(rewards.maths(), ["[1, 2]", r"\left[1, 2\right]", "(1, 2)"], "[1, 2]") == [1.0, 1.0, 0.0]
