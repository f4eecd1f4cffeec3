"""For each kind of reward completions with the score each must get; without one, a reward is not tested to be none to cheat."""

from __future__ import annotations

import dataclasses
from typing import Any

from grpo_nb.rewards import (
    Reward,
    code_tests,
    correctness,
    exact_text,
    incremental_format,
    json_answer,
    length,
    maths,
    multiple_choice,
    regex_answer,
    xml_format,
    xml_tags,
)  # fmt: skip
from grpo_nb.sandbox.jobs import Limits
from grpo_nb.tasks.formats import xml

Row = tuple[Any, ...]
GOOD = "<reasoning>\n40 + 2 = 42\n</reasoning>\n<answer>\n42\n</answer>"
QUICK = Limits(cpu_seconds=0.3, wall_seconds=5.0)
PREFILLED = {"format": dataclasses.replace(xml(), is_opened_by_template=True)}
TRUNK = GOOD.removeprefix("<reasoning>")


def slot(content: str) -> str:
    """An answer slot with this content, and nothing else."""
    return f"<answer>{content}</answer>"


def slots(score: float, gold: Any, *contents: str, **columns: Any) -> list[Row]:
    """A case for each content of a slot, all with one score."""
    return [(slot(content), score, {"answer": gold, **columns}) for content in contents]


_HEDGES = [
    *slots(
        0.0, "42", "41 or 42", "41 = 42", "42, no, 41", "42 is wrong", "about 42", " ".join(map(str, range(1001))),
        "42" + "</answer><answer>" + "42", r"42 \text{ is wrong}", "40 + 2", "1e999999999", "42/0", "\ud800 42",
    ),
    ("42", 0.0, {"answer": "42"}),
    (slot("42") + " No, that is wrong: 41.", 0.0, {"answer": "42"}),
    ("<answer>42", 0.0, {"answer": "42"}),
    (f"<reasoning>{slot('42')}</reasoning>", 0.0, {"answer": "42"}),
    (GOOD.replace("\n42\n", "\n41\n"), 0.0, {"answer": "42"}),
    (GOOD, None, {"answer": None}),
    (GOOD, 1.0, {"answer": "42"}),
    (slot("42") + ".", 1.0, {"answer": "42"}),
    (TRUNK, 1.0, {"answer": "42"}, PREFILLED),
]  # fmt: skip
_OPTIONS = "Where?\nA) Paris\nB) London\nC) A dog"
_JSON = '{"a": 1, "b": [true]}'
_ADD = {"tests": [{"call": "add", "args": [1, 2], "expected": 3}, {"call": "add", "args": [-1, 1], "expected": 0}]}
_NO_COLUMNS: dict[str, Any] = {}

# By the name of the reward's kind: the reward, and its cases: completion, score, columns, other parameters.
TABLES: dict[str, tuple[Reward, list[Row]]] = {
    type(reward).__name__: (reward, rows)
    for reward, rows in (
        (correctness(), [
            *_HEDGES, *slots(1.0, "42", "42.0", r"$\boxed{42}$.", "x = 42", r"4.2 \times 10^{1}", "\u0664\u0662", "84/2"),
            *slots(1.0, "Paris", "paris.", "**Paris**"), *slots(0.0, "Paris", "Paris or Rome", "not Paris"),
            *slots(1.0, ["1", "2"], "2"), *slots(1.0, "-7", "\u22127"), *slots(0.0, "42", "84/2", prompts="What is 84 / 2?"),
        ]),
        (exact_text(), [
            *slots(1.0, "New York", "New York", " New \n York "), *slots(1.0, "Caf\u00e9", "Cafe\u0301"),
            *slots(0.0, "New York", "new york", "New York.", "New York or Rome"), *slots(0.0, "7", "7.0"),
            ("New York", 0.0, {"answer": "New York"}), (slot("x"), None, {"answer": ""}),
        ]),
        (maths(), [
            *_HEDGES, *slots(1.0, "x+1", "1 + x"), *slots(1.0, r"2\sqrt{3}", r"\sqrt{12}", "2*sqrt(3)"),
            *slots(1.0, r"\{1, 2\}", r"\{2, 1\}"), *slots(1.0, r"We add, so $\boxed{1+x}$.", "x+1"),
            *slots(0.0, "42", "10 20 12", r"\{41, 42\}", r"\pm 42"), *slots(0.0, "x+1", "x + 2 = x + 1", "x+1 or x+2"),
            *slots(0.0, "2x", "x + x", prompts="Simplify x + x."),
            *slots(0.0, "x+1", "9^{9^{9^9}}", "((x+1)(x-1))^{512}", "}{\\frac"),
        ]),
        (multiple_choice(), [
            *slots(1.0, "B", "B", "b", "(B)", "B."), *slots(1.0, "B", "B) London", "london", prompts=_OPTIONS),
            *slots(0.0, "B", "A", "A or B", "A, B", "ABCD", "not B"),
            *slots(0.0, "B", "B) Paris", "A dog", prompts=_OPTIONS), (slot("B") + " no, A", 0.0, {"answer": "B"}),
        ]),
        (json_answer(), [
            *slots(1.0, _JSON, _JSON, '{"b": [true], "a": 1.0}', f"```json\n{_JSON}\n```"),
            *slots(
                0.0, _JSON, "{'a': 1, 'b': [True]}", '{"a": true, "b": [true]}', '{"a": 2, "a": 1, "b": [true]}',
                _JSON + ' {"a": 2}', '{"a": 1, "b": [true], "c": 0}', "NaN", "[" * 50_000, "9" * 15_000,
            ),
            (slot("{}"), None, {"answer": None}),
        ]),
        (regex_answer(pattern=r"(?:(?:a|b|ab)*)*c|\d{4}-\d{2}"), [
            *slots(1.0, "", "2026-11", " 2026-11\n", "abc"),
            *slots(0.0, "", "x2026-11", "2026-11-21", "2026-11 2026-12", "ab" * 1000 + "cd"),
            ("2026-11", 0.0, _NO_COLUMNS), (slot("2026-11") + " no", 0.0, _NO_COLUMNS),
        ]),
        (xml_format(), [
            (GOOD, 1.0), ("<reasoning>r</reasoning><answer>7</answer>", 1.0), (TRUNK, 1.0, _NO_COLUMNS, PREFILLED),
            ("Sure! " + GOOD, 0.0), (GOOD + " Bye.", 0.0), (GOOD.replace("<answer>", "so <answer>"), 0.0),
            (GOOD + GOOD, 0.0), ("<reasoning>r</reasoning><answer> </answer>", 0.0),
            (slot("7") + "<reasoning>r</reasoning>", 0.0), (GOOD.removesuffix("</answer>"), 0.0),
            ("I write <reasoning> and </reasoning>, then <answer> and </answer>.", 0.0),
        ]),
        (xml_tags(), [
            (GOOD, 1.0), (slot("7"), 0.5), (GOOD.removesuffix("</answer>"), 0.75), ("<reasoning>so", 0.25),
            (GOOD + GOOD, 0.0), ("first <answer>, then </answer>", 0.5), (TRUNK, 1.0, _NO_COLUMNS, PREFILLED),
        ]),
        (incremental_format(), [
            (GOOD, 1.0), (slot("7"), 0.5), ("</answer>7<answer>", 0.25), (GOOD + GOOD, 0.0), (GOOD + " 0123456789", 0.99),
            ("</answer><answer></reasoning><reasoning>", 0.25), (GOOD + "x" * 200_000, 0.8), (GOOD + "\n" * 500, 1.0),
            (GOOD.removesuffix("</answer>") + "x" * 200_000, 0.75), (TRUNK, 1.0, _NO_COLUMNS, PREFILLED),
        ]),
        (length(10, 20), [
            *(("x", score, {"completion_ids": [1] * n}) for n, score in ((10, 1.0), (20, 1.0), (5, 0.5), (30, 0.5), (40, 0.0))),
            ("one two.", 0.3), ("", 0.0), ("word " * 40_000, 0.0),
        ]),
        (code_tests(limits=QUICK), [
            ("<reasoning>r</reasoning>\n<answer>\ndef add(a, b):\n    return a + b\n</answer>", 1.0, _ADD),
            ("Here it is:\n```python\ndef add(a, b):\n    return a + b\n```\nDone.", 1.0, _ADD),
            (slot("print(sum(map(int, input().split())))"), 1.0, {"tests": [{"stdin": "1 2\n", "stdout": "3\n"}]}),
            (slot("def f\u00e9(text): return text[::-1]"), 1.0, {"tests": ["assert f\u00e9('a\u00f1') == '\u00f1a'"]}),
            ("<answer>\ndef add(a, b): return a + b\n" + "# padding\n" * 20_000 + "</answer>", 1.0, _ADD),
            ("thinking</reasoning>\n<answer>\ndef add(a, b): return a + b\n</answer>", 1.0, _ADD, PREFILLED),
            (slot("def add(a, b): return 3"), 0.5, _ADD),
            (slot("def add(a, b) return a + b"), 0.0, _ADD), (slot("def add(a, b): return a - b"), 0.0, _ADD),
            (slot("def add(a, b): return a + b</answer> no: <answer>pass"), 0.0, _ADD), (slot(""), 0.0, _ADD),
            (slot("def add(a, b): return '\ud800\0'"), 0.0, _ADD), (slot("import sys; sys.exit(0)"), 0.0, _ADD),
            (slot("class Yes:\n    def __eq__(self, other): return True\ndef add(a, b): return Yes()"), 0.0, _ADD),
            (slot("def add(a, b):\n    while True: pass"), 0.0, _ADD), ("word " * 40_000, 0.0, _ADD),
            ("```python\ndef add(a, b):\n    return a + b", 0.0, _ADD),
        ]),
    )
}  # fmt: skip


def score_of(reward: Reward, completion: str, columns: Any = _NO_COLUMNS, changes: Any = _NO_COLUMNS) -> float | None:
    """What a reward gives for one completion, called as the trainer calls it."""
    asked = dataclasses.replace(reward, **changes)
    return asked(completions=[completion], **{key: [value] for key, value in columns.items()})[0]
