"""The cases of the rewards for answers. Data only, to look up what is paid and what is not.

Each line is (label, completion, expected) and, where it differs from the table's, the row's columns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from grpo_nb.rewards import answers, expressions, structured
from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.cases import ALL, GOOD, CaseTable, slot, table_of


def _number_hedges(gold: str = "42") -> list[tuple[Any, ...]]:
    return [
        ("no slot", gold, 0.0),
        ("two slots", slot("41") + slot(gold), 0.0),
        ("retracted after the slot", slot(gold) + " No, that is wrong: 41.", 0.0),
        ("retracted in the slot", slot(f"{gold}, no, 41"), 0.0),
        ("hedge: or", slot(f"41 or {gold}"), 0.0),
        ("hedge: equation", slot(f"41 = {gold}"), 0.0),
        ("hedge: is wrong", slot(f"{gold} is wrong"), 0.0),
        ("hedge: every number", slot(ALL), 0.0),
        ("unclosed slot", f"<answer>{gold}", 0.0),
        ("only in the reasoning", f"<reasoning>{gold}</reasoning>", 0.0),
        ("slot inside the reasoning", f"<reasoning>{slot(gold)}</reasoning>", 0.0),
        ("wrong in perfect format", GOOD.replace("\n42\n", "\n41\n"), 0.0),
        ("no gold answer", GOOD, None, {"answer": None}),
    ]


def _correctness(_: Reward) -> CaseTable:
    asked = {"answer": "42", "prompts": "What is 84 / 2?"}
    return table_of(
        answers.correctness(),
        [
            ("valid", GOOD, 1.0),
            ("valid: decimal", slot("42.0"), 1.0),
            ("valid: LaTeX", slot(r"$\boxed{42}$."), 1.0),
            ("valid: variable", slot("x = 42"), 1.0),
            ("valid: separators", slot("1,250"), 1.0, {"answer": "1250"}),
            ("valid: fraction", slot(r"\frac{1}{2}"), 1.0, {"answer": "0.5"}),
            ("valid: text", slot("paris."), 1.0, {"answer": "Paris"}),
            ("valid: one of several", slot("2"), 1.0, {"answer": ["1", "2"]}),
            ("valid: mark after it", slot("42") + ".", 1.0),
            ("sum left undone", slot("40 + 2"), 0.0),
            ("quotient copied", slot("84/2"), 0.0, asked),
            ("text hedge", slot("Paris or Rome"), 0.0, {"answer": "Paris"}),
            *_number_hedges(),
        ],
        {"answer": "42"},
        opened=1.0,
    )


def _exact_text(_: Reward) -> CaseTable:
    return table_of(
        answers.exact_text(),
        [
            ("valid", slot("New York"), 1.0),
            ("valid: white space", slot(" New \n York "), 1.0),
            ("other case", slot("new york"), 0.0),
            ("valid: composed letters", slot("Cafe\u0301"), 1.0, {"answer": "Caf\u00e9"}),
            ("a mark more", slot("New York."), 0.0),
            ("not as a number", slot("7.0"), 0.0, {"answer": "7"}),
            ("hedge", slot("New York or Rome"), 0.0),
            ("no slot", "New York", 0.0),
            ("retracted", slot("New York") + " or rather Rome", 0.0),
            ("no gold answer", slot("x"), None, {"answer": ""}),
        ],
        {"answer": "New York"},
    )


def _number(_: Reward) -> CaseTable:
    gold = lambda value: {"answer": value}  # noqa: E731
    return table_of(
        answers.number(units={"km": 1000, "m": 1}),
        [
            ("valid", GOOD, 1.0),
            ("valid: unit", slot("1.5 km"), 1.0, gold("1500 m")),
            ("valid: no unit", slot("1500"), 1.0, gold("1500 m")),
            ("other unit", slot("42 miles"), 0.0),
            ("wrong unit", slot("42 km"), 0.0),
            ("valid: sign", slot("\u22127"), 1.0, gold("-7")),
            ("valid: scientific", slot(r"4.2 \times 10^{1}"), 1.0),
            ("valid: mixed", slot("1 3/4"), 1.0, gold("1.75")),
            ("valid: percent", slot("50%"), 1.0, gold("0.5")),
            ("percent is a hundredth", slot("42%"), 0.0),
            ("gold is no number", slot("Paris"), None, gold("Paris")),
            ("other digits", slot("\u0664\u0662"), 0.0),
            ("hostile: exponent", slot("1e999999999"), 0.0),
            ("division by zero", slot("42/0"), 0.0),
            *_number_hedges(),
        ],
        {"answer": "42"},
        opened=1.0,
    )


def _maths(_: Reward) -> CaseTable:
    gold = lambda value: {"answer": value}  # noqa: E731
    sqrt = gold(r"2\sqrt{3}")
    return table_of(
        expressions.maths(),
        [
            ("valid", GOOD, 1.0),
            ("valid: order", slot("1 + x"), 1.0, gold("x+1")),
            ("valid: root", slot(r"\sqrt{12}"), 1.0, sqrt),
            ("valid: as Python", slot("2*sqrt(3)"), 1.0, sqrt),
            ("valid: set", slot(r"\{2, 1\}"), 1.0, gold(r"\{1, 2\}")),
            ("valid: half", slot("0.5"), 1.0, gold(r"\frac{1}{2}")),
            ("valid: six decimals", slot("0.333333"), 1.0, gold("1/3")),
            ("valid: unit", slot("5 cm"), 1.0, gold(r"5 \text{ cm}")),
            ("valid: words", slot(r"\text{Even}"), 1.0, gold("even")),
            ("valid: gold in a solution", slot("x+1"), 1.0, gold(r"We add, so $\boxed{1+x}$.")),
            ("too few decimals", slot("0.33"), 0.0, gold("1/3")),
            ("sum left undone", slot("23 + 19"), 0.0),
            ("numbers in a row", slot("10 20 12"), 0.0),
            ("hedge: set", slot(r"\{41, 42\}"), 0.0),
            ("hedge: plus-minus", slot(r"\pm 42"), 0.0),
            ("hedge: text command", slot(r"42 \text{ is wrong}"), 0.0),
            ("hedge: last of an equation", slot("x + 2 = x + 1"), 0.0, gold("x+1")),
            ("hedge: expressions", slot("x+1 or x+2"), 0.0, gold("x+1")),
            ("copied", slot("x + x"), 0.0, {**gold("2x"), "prompts": "Simplify x + x."}),
            ("hostile: tower", slot("9^{9^{9^9}}"), 0.0, gold("x+1")),
            ("hostile: power", slot("((x+1)(x-1))^{512}"), 0.0, gold("x+1")),
            ("hostile: braces", slot("}{\\frac"), 0.0, gold("x+1")),
            *_number_hedges(),
        ],
        {"answer": "42"},
        opened=1.0,
    )


def _multiple_choice(_: Reward) -> CaseTable:
    with_options = {"answer": "B", "options": ["Paris", "London", "A dog"]}
    return table_of(
        structured.multiple_choice(),
        [
            ("valid", slot("B"), 1.0),
            ("valid: small", slot("b"), 1.0),
            ("valid: brackets", slot("(B)"), 1.0),
            ("valid: full stop", slot("B."), 1.0),
            ("valid: with text", slot("B) London"), 1.0, with_options),
            ("valid: text alone", slot("london"), 1.0, with_options),
            ("valid: text in the question", slot("B) No"), 1.0, {"answer": "B", "prompts": "Is it?\nA) Yes\nB) No"}),
            ("valid: gold is the text", slot("B"), 1.0, {**with_options, "answer": "London"}),
            ("wrong", slot("A"), 0.0),
            ("hedge: two", slot("A or B"), 0.0),
            ("hedge: list", slot("A, B"), 0.0),
            ("hedge: all", slot("ABCD"), 0.0),
            ("not B", slot("not B"), 0.0),
            ("another's text", slot("B) Paris"), 0.0, with_options),
            ("begins with a letter", slot("A dog"), 0.0, with_options),
            ("retracted", slot("B") + " no, A", 0.0),
            ("no gold answer", slot("B"), None, {"answer": "maybe"}),
        ],
        {"answer": "B"},
    )


def _json_answer(_: Reward) -> CaseTable:
    return table_of(
        structured.json_answer(),
        [
            ("valid", slot('{"a": 1, "b": [true]}'), 1.0),
            ("valid: order", slot('{"b": [true], "a": 1.0}'), 1.0),
            ("valid: fence", slot('```json\n{"a": 1, "b": [true]}\n```'), 1.0),
            ("Python", slot("{'a': 1, 'b': [True]}"), 0.0),
            ("true is not 1", slot('{"a": true, "b": [true]}'), 0.0),
            ("hedge: key twice", slot('{"a": 2, "a": 1, "b": [true]}'), 0.0),
            ("hedge: two values", slot('{"a": 1, "b": [true]} {"a": 2}'), 0.0),
            ("one key more", slot('{"a": 1, "b": [true], "c": 0}'), 0.0),
            ("not a number", slot("NaN"), 0.0),
            ("hostile: deep", slot("[" * 50_000), 0.0),
            ("hostile: long number", slot("9" * 15_000), 0.0),
            ("no gold answer", slot("{}"), None, {"answer": None}),
            ("gold is no JSON", slot("{}"), None, {"answer": "{"}),
        ],
        {"answer": '{"a": 1, "b": [true]}'},
    )


def _regex_answer(_: Reward) -> CaseTable:
    return table_of(
        structured.regex_answer(r"(?:(?:a|b|ab)*)*c|\d{4}-\d{2}"),
        [
            ("valid", slot("2026-11"), 1.0),
            ("valid: white space around", slot(" 2026-11\n"), 1.0),
            ("valid: other branch", slot("abc"), 1.0),
            ("more before", slot("x2026-11"), 0.0),
            ("more after", slot("2026-11-21"), 0.0),
            ("hedge: two", slot("2026-11 2026-12"), 0.0),
            ("no slot", "2026-11", 0.0),
            ("retracted", slot("2026-11") + " no", 0.0),
            ("hostile: backtracking", slot("ab" * 1000 + "cd"), 0.0),
        ],
    )


TABLES: dict[str, Callable[[Reward], CaseTable]] = {
    answers._Correctness.__name__: _correctness,
    answers._ExactText.__name__: _exact_text,
    answers._Number.__name__: _number,
    expressions._Maths.__name__: _maths,
    structured._MultipleChoice.__name__: _multiple_choice,
    structured._JsonAnswer.__name__: _json_answer,
    structured._RegexAnswer.__name__: _regex_answer,
}
