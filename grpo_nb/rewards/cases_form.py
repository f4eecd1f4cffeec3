"""The cases of the rewards for form, length, text and models, and of composed ones. Data only.

Each line is (label, completion, expected) and, where it differs from the table's, the row's columns.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from grpo_nb import formats
from grpo_nb.rewards import answers, classifiers, compose, format, length, text
from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.cases import GOOD, Case, CaseTable, slot, table_of, table_with


def _exact(_: Reward) -> CaseTable:
    return table_of(
        format.xml_format(),
        [
            ("valid", GOOD, 1.0),
            ("valid: one line", "<reasoning>r</reasoning><answer>7</answer>", 1.0),
            ("text before", "Sure! " + GOOD, 0.0),
            ("text after", GOOD + " Bye.", 0.0),
            ("text between", GOOD.replace("<answer>", "so <answer>"), 0.0),
            ("twice", GOOD + GOOD, 0.0),
            ("no answer in it", "<reasoning>r</reasoning><answer> </answer>", 0.0),
            ("other order", slot("7") + "<reasoning>r</reasoning>", 0.0),
            ("named in prose", "I write <reasoning> and </reasoning>, then <answer> and </answer>.", 0.0),
            ("unclosed", GOOD.removesuffix("</answer>"), 0.0),
        ],
        opened=1.0,
    )


def _tags(_: Reward) -> CaseTable:
    rows = [
        ("valid", GOOD, 1.0),
        ("half", slot("7"), 0.5),
        ("three", GOOD.removesuffix("</answer>"), 0.75),
        ("one", "<reasoning>so", 0.25),
        ("twice", GOOD + GOOD, 0.0),
        ("named in prose", "first <answer>, then </answer>", 0.5),
        ("one too many", GOOD + "<answer>", 0.75),
    ]
    table = table_of(format.xml_tags(), rows, opened=1.0)
    return table_with(table, {"hostile: speaks to the judge": 0.25})


def _incremental(_: Reward) -> CaseTable:
    table = table_of(
        format.incremental_format(),
        [
            ("valid", GOOD, 1.0),
            ("half", slot("7"), 0.5),
            ("wrong order", "</answer>7<answer>", 0.25),
            ("twice", GOOD + GOOD, 0.0),
            ("all, reversed", "</answer><answer></reasoning><reasoning>", 0.25),
            ("ten characters after", GOOD + " 0123456789", 0.99),
            ("trailing without end", GOOD + "x" * 200_000, 0.8),
            ("left open instead", GOOD.removesuffix("</answer>") + "x" * 200_000, 0.75),
            ("white space after", GOOD + "\n" * 500, 1.0),
        ],
        opened=1.0,
    )
    return table_with(table, {"hostile: speaks to the judge": 0.25})


def _think(_: Reward) -> CaseTable:
    opened = dataclasses.replace(formats.think_answer(), is_opened_by_template=True)
    table = table_of(
        format.think_format(),
        [
            ("valid", "<think>\nThis is my reasoning.\n</think>\nThis is my answer.", 1.0),
            ("not closed", "<think>\nThis is my reasoning.\nThis is my answer.", 0.0),
            ("valid: one line", "<think>r</think>7", 1.0),
            ("nothing after", "<think>r</think>", 0.0),
            ("nothing inside", "<think> </think>7", 0.0),
            ("text before", "Well, <think>r</think>7", 0.0),
            ("opened twice", "<think>a<think>b</think>7", 0.0),
            ("closed twice", "<think>a</think>b</think>7", 0.0),
            ("named in prose", "Use <think> and </think> for it.", 0.0),
            ("tag the template should have opened", "r</think>7", 0.0),
        ],
    )
    prefilled = [Case(label="prefilled tag", completion="\nr</think>\n7", expected=1.0, format=opened)]
    prefilled.append(
        Case(label="prefilled tag, opened again", completion="<think>r</think>7", expected=0.0, format=opened)
    )
    return dataclasses.replace(table, cases=table.cases + tuple(prefilled))


def _json_format(_: Reward) -> CaseTable:
    return table_of(
        format.json_format(schema={"type": "object", "required": ["city"]}),
        [
            ("valid", '{"city": "Oslo"}', 1.0),
            ("valid: lines", '\n{\n  "city": "Oslo"\n}\n', 1.0),
            ("valid: fence", '```json\n{"city": 1}\n```', 1.0),
            ("against the schema", "{}", 0.0),
            ("no object", '["city"]', 0.0),
            ("a number", "7", 0.0),
            ("text before", 'Sure! {"city": 1}', 0.0),
            ("two values", '{"city": 1}{"city": 2}', 0.0),
            ("key twice", '{"city": 1, "city": 2}', 0.0),
            ("not closed", '{"city": 1', 0.0),
            ("hostile: deep", '{"city": ' + "[" * 9000, 0.0),
        ],
    )


def _ids(count: int) -> dict[str, Any]:
    return {"completion_ids": [1] * count}


def _ideal_length(_: Reward) -> CaseTable:
    table = table_of(
        length.ideal_length(10, 20),
        [
            ("valid: shortest", "x", 1.0, _ids(10)),
            ("valid: longest", "x", 1.0, _ids(20)),
            ("half", "x", 0.5, _ids(5)),
            ("half too long", "x", 0.5, _ids(30)),
            ("twice", "x", 0.0, _ids(40)),
            ("no token", "x", 0.0, _ids(0)),
            ("far beyond", "x", 0.0, _ids(100_000)),
            ("words without ids", "one two.", 0.3),
        ],
    )
    return table_with(
        table,
        {
            "unicode": 0.5,
            "hostile: NUL and lone surrogates": 0.4,
            "hostile: speaks to the judge": 1.0,
            "very long: one word": 0.1,
        },
    )


def _minimum_length(_: Reward) -> CaseTable:
    table = table_of(
        length.minimum_length(10),
        [
            ("valid", "x", 1.0, _ids(10)),
            ("valid: more", "x", 1.0, _ids(1000)),
            ("half", "x", 0.5, _ids(5)),
            ("no token", "x", 0.0, _ids(0)),
            ("words without ids", "one two.", 0.3),
        ],
        hostile=1.0,
    )
    return table_with(
        table,
        {
            "empty": 0.0,
            "only white space": 0.0,
            "unicode": 0.5,
            "hostile: NUL and lone surrogates": 0.4,
            "very long: one word": 0.1,
        },
    )


def _soft_overlong(_: Reward) -> CaseTable:
    table = table_of(
        length.soft_overlong(100, 20),
        [
            ("valid: short", "x", 0.0, _ids(5)),
            ("valid: free part's end", "x", 0.0, _ids(80)),
            ("TRL's example", "x", -0.5, _ids(90)),
            ("at the end", "x", -1.0, _ids(100)),
            ("beyond", "x", -1.0, _ids(101)),
            ("far beyond", "x", -1.0, _ids(100_000)),
            ("one over", "x", -0.05, _ids(81)),
            ("no token", "", 0.0, _ids(0)),
        ],
    )
    return table_with(table, {"very long: 200 kB": -1.0, "hostile: tags without end": -0.55})


def _cosine_length(_: Reward) -> CaseTable:
    at = lambda count: {**_ids(count), "answer": "42"}  # noqa: E731
    table = table_of(
        length.cosine_length(100),
        [
            ("right, TRL's example", GOOD, 0.75, at(50)),
            ("wrong, TRL's example", slot("41"), -0.75, at(50)),
            ("right, short", GOOD, 1.0, at(0)),
            ("right, long", GOOD, 0.5, at(100)),
            ("right, beyond", GOOD, 0.5, at(250)),
            ("wrong, short", slot("41"), -1.0, at(0)),
            ("wrong, long", slot("41"), -0.5, at(100)),
            ("hedge", slot("41 or 42"), -0.75, at(50)),
            ("no gold answer", GOOD, None, {**at(50), "answer": None}),
        ],
        {"answer": "42"},
        hostile=(-1.0, -0.5),
    )
    return table_with(table, {"empty": -1.0, "very long: 200 kB": -0.5})


def _repetition(_: Reward) -> CaseTable:
    ids = lambda *values: {"completion_ids": list(values)}  # noqa: E731
    table = table_of(
        text.repetition(ngram_size=2),
        [
            ("TRL's example, none", "x", 0.0, ids(1, 2, 3, 4)),
            ("TRL's example, all", "x", -0.75, ids(5, 5, 5, 5, 5)),
            ("shorter than a run", "x", 0.0, ids(1)),
            ("no token", "x", 0.0, ids()),
            ("half", "x", -0.4, ids(1, 2, 1, 2, 1, 3)),
            ("words without ids", "so so so", -0.5),
            ("valid: all different", "one two three", 0.0),
            ("a pair once more", "one two three one two", -0.25),
        ],
    )
    return table_with(table, {"hostile: tags without end": (-1.0, -0.9), "very long: 200 kB": (-1.0, -0.99)})


def _steps(_: Reward) -> CaseTable:
    lines = "1. add 3 and 4\n2. that makes seven here\n3. check it by counting"
    return table_of(
        text.reasoning_steps(3),
        [
            ("valid", f"<reasoning>{lines}</reasoning>" + slot("7"), 1.0),
            ("valid: without tags", lines, 1.0),
            ("two of three", lines.rsplit("\n", 1)[0], 2 / 3),
            ("valid: dashes", "- add 3 and 4\n- that makes seven here\n* check it by counting", 1.0),
            ("valid: words", "First, add three and four\nThen check the sum again\nFinally we write seven down", 1.0),
            ("markers alone", "1. \n2. \n3. ", 0.0),
            ("the same step", "1. add 3 and 4\n2. add 3 and 4\n3. add 3 and 4", 1 / 3),
            ("one word repeated", "1. so so so so\n2. no no no no", 0.0),
            ("all in one line", "First, second, third, then next, finally.", 1 / 3),
            ("after the answer", slot("7") + lines, 0.0),
        ],
    )


def _banned_phrases(_: Reward) -> CaseTable:
    return table_of(
        text.banned_phrases(["as an AI", "sorry"]),
        [
            ("valid", "It is seven.", 0.0),
            ("once", "As an AI, I say seven.", -0.5),
            ("twice", "Sorry, as an AI I can't.", -1.0),
            ("often", "sorry " * 50, -1.0),
            ("other case and spaces", "AS  AN\nai", -0.5),
            ("part of a word", "as an aide, not sorrying", 0.0),
            ("invisible characters", "so\u200brry", -0.5),
            ("wide letters", "\uff53\uff4f\uff52\uff52\uff59", -0.5),
        ],
    )


def _language(_: Reward) -> CaseTable:
    table = table_of(
        text.language(),
        [
            ("valid", "The sum of both is seven.", 1.0),
            ("valid: accents", "La somme vaut \u00e0 peu pr\u00e8s z\u00e9ro.", 1.0),
            ("half", "abcdefgh \u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03", 0.5),
            (
                "other script",
                "\u0421\u0443\u043c\u043c\u0430 \u0440\u0430\u0432\u043d\u0430 \u0441\u0435\u043c\u0438",
                0.0,
            ),
            ("too few letters", "Seven.", 0.0),
            ("only tags", "<reasoning></reasoning><answer>7</answer>", 0.0),
            (
                "LaTeX is no language",
                "\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03" + r"\frac{1}{2}\sqrt\alpha",
                0.0,
            ),
            ("look-alike letters", "\u0430\u0435\u043e\u0440\u0441\u0443\u0445\u0430\u0435\u043e", 0.0),
        ],
    )
    return table_with(
        table, {"hostile: speaks to the judge": 1.0, "very long: 200 kB": 1.0, "very long: one word": 1.0}
    )


def _classifier(reward: Reward) -> CaseTable:
    return table_of(reward, [("valid", GOOD, reward.range), ("question", "Why?", reward.range)], hostile=reward.range)


def _clipped(_: Reward) -> CaseTable:
    table = table_of(
        compose.clipped(length.soft_overlong(100, 20), -0.25, 1.0),
        [
            ("within", "x", 0.0, _ids(5)),
            ("above the floor", "x", -0.2, _ids(84)),
            ("below the floor", "x", -0.25, _ids(90)),
            ("far below", "x", -0.25, _ids(1000)),
        ],
    )
    return table_with(table, {"very long: 200 kB": -0.25, "hostile: tags without end": -0.25})


def _combined(_: Reward) -> CaseTable:
    table = table_of(
        compose.combined([answers.correctness(), format.xml_tags(weight=0.5)]),
        [
            ("valid", GOOD, 2.5),
            ("right, half the tags", slot("42"), 2.25),
            ("wrong in perfect format", GOOD.replace("\n42\n", "\n41\n"), 0.5),
            ("no gold answer", GOOD, 0.5, {"answer": None}),
        ],
        {"answer": "42"},
    )
    return table_with(table, {"hostile: speaks to the judge": 0.125})


def _adaptive(_: Reward) -> CaseTable:
    table = _tags(_)
    return CaseTable(compose.adaptive(format.xml_tags()), tuple(c for c in table if c.format is None))


def _dummy(_: Reward) -> CaseTable:
    return table_of(compose.dummy(), [("any", GOOD, (0.0, 1.0))], hostile=(0.0, 1.0))


TABLES: dict[str, Callable[[Reward], CaseTable]] = {
    format._Exact.__name__: _exact,
    format._Tags.__name__: _tags,
    format._Incremental.__name__: _incremental,
    format._ThinkFormat.__name__: _think,
    format._JsonFormat.__name__: _json_format,
    length._IdealLength.__name__: _ideal_length,
    length._MinimumLength.__name__: _minimum_length,
    length._SoftOverlong.__name__: _soft_overlong,
    length._CosineLength.__name__: _cosine_length,
    text._Repetition.__name__: _repetition,
    text._Steps.__name__: _steps,
    text._BannedPhrases.__name__: _banned_phrases,
    text._Language.__name__: _language,
    classifiers._Classifier.__name__: _classifier,
    compose._Clipped.__name__: _clipped,
    compose._Combined.__name__: _combined,
    compose._Adaptive.__name__: _adaptive,
    compose._Dummy.__name__: _dummy,
}
