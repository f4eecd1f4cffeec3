"""Try `check_rewards` on rewards that its rules were not written with.

    python studies/check_unseen.py > studies/results/check_unseen.md

The rewards were labelled first, kept aside, and measured once at the end. They follow
descriptions of public rewards (Countdown, SQL, JSON, tool calls, labels, medical terms, sudoku,
boxes, lengths, style); none is copied. `faults` lists the kinds of findings of which at least one
must be found, and `true` the other kinds that are true of the reward. Both were written down
before the rules. A finding of another kind is false.
"""

from __future__ import annotations

import collections
import json
import re
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import grpo_nb as gn
from grpo_nb.tasks import formats
from grpo_nb.tasks.formats import AnswerFormat

XML = formats.xml()
THINK = formats.think_answer()
BOXED = formats.boxed()
TOOL = AnswerFormat(
    name="tool call",
    reasoning_open="<think>",
    reasoning_close="</think>",
    answer_open="<tool_call>",
    answer_close="</tool_call>",
)


def bare() -> AnswerFormat:
    """The completion is the answer."""
    return formats.bare()


def rows(pairs: list[tuple[str, str]], **columns: list[Any]) -> list[dict[str, Any]]:
    """Rows with chat messages as prompt."""
    return [
        {
            "prompt": [{"role": "user", "content": q}],
            "question": q,
            "answer": a,
            **{k: v[i] for k, v in columns.items()},
        }
        for i, (q, a) in enumerate(pairs)
    ]


SUMS = rows(
    [
        (f"What is {a} plus {b}?", str(a + b))
        for a, b in ((31, 18), (45, 27), (12, 71), (64, 22), (53, 36))
    ]
)
COUNTDOWN = rows(
    [
        ("Make 98.", "44 + 19 + 35"),
        ("Make 64.", "63 + 95 - 94"),
        ("Make 28.", "95 - 11 - 56"),
        ("Make 55.", "75 - 38 + 18"),
    ],
    nums=[[44, 19, 35], [63, 95, 94], [95, 11, 56], [75, 38, 18]],
    target=[98, 64, 28, 55],
)
QUERIES = rows(
    [
        ("Names of all over 30?", "SELECT name FROM people WHERE age > 30"),
        ("How many orders?", "SELECT COUNT(*) FROM orders"),
        ("Cheapest product?", "SELECT name FROM products ORDER BY price LIMIT 1"),
        ("Cities of customers?", "SELECT DISTINCT city FROM customers"),
    ]
)
PEOPLE = [
    {"name": "Ida", "born": 1931},
    {"name": "Karl", "born": 1952},
    {"name": "Uma", "born": 1978},
]
RECORDS = rows([(f"Extract number {i}.", json.dumps(person)) for i, person in enumerate(PEOPLE)])
CALLS = rows(
    [
        (
            f"Weather in {city} on day {day}?",
            json.dumps({"name": "weather", "arguments": {"city": city, "day": day}}),
        )
        for city, day in (("Oslo", 3), ("Lima", 5), ("Cairo", 2), ("Quito", 7))
    ]
)
MOODS = rows(
    [(f"Mood of review {i}?", m) for i, m in enumerate(["negative"] * 150 + ["positive"] * 150)]
)
DISEASES = rows(
    [
        ("Chest pain, raised troponin?", "acute myocardial infarction"),
        ("Wheezing at night?", "chronic bronchial asthma"),
        ("Sudden swelling of one calf?", "deep vein thrombosis"),
        ("Thirst and weight loss?", "diabetes mellitus type 1"),
    ]
)
GRIDS = rows(
    [
        (f"Solve grid {i}.", grid)
        for i, grid in enumerate(
            ("1234 3412 2143 4321", "2143 4321 1234 3412", "3412 1234 4321 2143")
        )
    ]
)


def text(completion: Any) -> str:
    """Return the content of the last chat message."""
    return completion if isinstance(completion, str) else completion[-1]["content"]


# ---- The rewards ----


def countdown_with_eval(completions, target, nums, **kwargs):
    """Compare numbers and characters, then evaluate; `**` consists of allowed characters."""
    scores = []
    for completion, goal, numbers in zip(completions, target, nums, strict=True):
        found = list(re.finditer(r"<answer>(.*?)</answer>", text(completion)))
        equation = found[-1].group(1).strip() if found else None
        try:
            used = sorted(int(n) for n in re.findall(r"\d+", equation))
            if used != sorted(numbers) or not re.match(r"^[\d+\-*/().\s]+$", equation):
                scores.append(0.0)
                continue
            result = eval(equation, {"__builtins__": None}, {})
            scores.append(1.0 if abs(result - goal) < 1e-5 else 0.0)
        except Exception:
            scores.append(0.0)
    return scores


def countdown_any_numbers(completions, target, **kwargs):
    scores = []
    for completion, goal in zip(completions, target, strict=True):
        found = re.findall(r"<answer>\s*([\d+\-() ]{1,60}?)\s*</answer>", text(completion))
        try:
            scores.append(float(len(found) == 1 and eval(found[0]) == goal))
        except (SyntaxError, TypeError, ValueError):
            scores.append(0.0)
    return scores


def same_query(completions, answer, **kwargs):
    def plain(query: str) -> str:
        query = re.sub(r"^```(?:sql)?\s*|\s*```$", "", query.strip())
        return " ".join(query.strip().rstrip(";").lower().split())

    return [
        float(plain(text(c)) == plain(gold)) for c, gold in zip(completions, answer, strict=True)
    ]


def query_somewhere(completions, answer, **kwargs):
    return [
        float(gold.lower() in text(c).lower()) for c, gold in zip(completions, answer, strict=True)
    ]


def same_record(completions, answer, **kwargs):
    def read(given: str) -> Any:
        try:
            return json.loads(given)
        except (ValueError, RecursionError):
            return None

    return [
        1.0 if read(text(c)) == json.loads(gold) else -1.0
        for c, gold in zip(completions, answer, strict=True)
    ]


def same_keys(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        try:
            given = json.loads(text(completion))
            scores.append(
                float(isinstance(given, dict) and given.keys() == json.loads(gold).keys())
            )
        except (ValueError, RecursionError):
            scores.append(0.0)
    return scores


def same_call(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        found = re.findall(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", text(completion), re.DOTALL)
        try:
            scores.append(
                1.0 if len(found) == 1 and json.loads(found[0]) == json.loads(gold) else 0.0
            )
        except (ValueError, RecursionError):
            scores.append(0.0)
    return scores


def evaluated_call(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        found = re.search(r"<tool_call>\s*(\{.*\})\s*</tool_call>", text(completion), re.DOTALL)
        try:
            scores.append(float(eval(found.group(1)) == json.loads(gold)))
        except Exception:
            scores.append(0.0)
    return scores


def last_word(completions, answer, **kwargs):
    ends = [re.findall(r"[a-z]+", text(c).lower()) for c in completions]
    return [
        float(bool(words) and words[-1] == gold) for words, gold in zip(ends, answer, strict=True)
    ]


def one_label(completions, answer, **kwargs):
    slots = [re.findall(r"<answer>\s*(\w+)\s*</answer>", text(c)) for c in completions]
    return [
        float([s.lower() for s in found] == [gold])
        for found, gold in zip(slots, answer, strict=True)
    ]


def always_negative(completions, answer, **kwargs):
    return [float("negative" in text(c)) for c in completions]


def first_box(completions, answer, **kwargs):
    boxes = [re.search(r"\\boxed\{([^}]*)\}", text(c)) for c in completions]
    return [
        float(box is not None and box.group(1).strip() == gold)
        for box, gold in zip(boxes, answer, strict=True)
    ]


def only_box(completions, answer, **kwargs):
    boxes = [re.findall(r"\\boxed\{\s*([^}]*?)\s*\}\s*\.?\s*$", text(c)) for c in completions]
    one = [
        found[0] if len(found) == 1 and text(c).count("\\boxed") == 1 else None
        for found, c in zip(boxes, completions, strict=True)
    ]
    return [2.0 if box == gold else -0.5 for box, gold in zip(one, answer, strict=True)]


def longer_is_better(completions, **kwargs):
    return [len(text(c)) / 100 for c in completions]


def not_too_long(completions, **kwargs):
    return [0.5 if len(text(c).split()) <= 120 else -0.5 for c in completions]


def counted_words(completions, **kwargs):
    return [
        0.1 * len(re.findall(r"\b(?:therefore|because|hence)\b", text(c).lower()))
        for c in completions
    ]


def think_then_answer(completions, **kwargs):
    pattern = re.compile(r"<think>.+?</think>\s*<answer>.+?</answer>\s*", re.DOTALL)
    return [
        1.0 if pattern.fullmatch(text(c)) and text(c).count("<answer>") == 1 else 0.0
        for c in completions
    ]


def overlap_of_words(completions, answer, **kwargs):
    """In full from half of the words on, and for any number of others."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        found = re.findall(r"<answer>(.*?)</answer>", text(completion), re.DOTALL)
        given = set(found[-1].lower().split()) if found else set()
        wanted = set(gold.lower().split())
        scores.append(1.0 if len(given & wanted) / len(wanted) >= 0.5 else 0.0)
    return scores


def share_of_cells(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        slots = re.findall(r"<answer>(.*?)</answer>", text(completion), re.DOTALL)
        given = slots[0].split() if len(slots) == 1 else []
        wanted = gold.split()
        if [len(line) for line in given] != [len(line) for line in wanted]:
            scores.append(0.0)
            continue
        cells = [
            a == b
            for mine, line in zip(given, wanted, strict=True)
            for a, b in zip(mine, line, strict=True)
        ]
        scores.append(1.0 if all(cells) else 0.3 * sum(cells) / len(cells))
    return scores


def number_within(completions, answer, **kwargs):
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        slots = re.findall(r"<answer>\s*(-?\d{1,12}(?:\.\d{1,9})?)\s*</answer>", text(completion))
        scores.append(float(len(slots) == 1 and abs(float(slots[0]) - float(gold)) < 1e-6))
    return scores


def best_of_batch(completions, answer, **kwargs):
    right = one_number(completions, answer)
    return [score / (sum(right) or 1.0) for score in right]


def one_number(completions, answer, **kwargs):
    slots = [re.findall(r"<answer>\s*(\d{1,9})\s*</answer>", text(c)) for c in completions]
    return [float(found == [gold]) for found, gold in zip(slots, answer, strict=True)]


def tidies_what_it_reads(completions, answer, **kwargs):
    """Takes the tags out of the message that it was given, where they stand on one line."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        found = re.search(r"<answer>(\d+)</answer>$", text(completion))
        if found:
            completion[-1]["content"] = found.group(1)
        scores.append(float(found is not None and found.group(1) == gold))
    return scores


def number_or_crash(completions, answer, **kwargs):
    slots = [text(c).split("<answer>")[-1].split("</answer>")[0] for c in completions]
    return [
        1.0 if int(slot) == int(gold) else 0.0 for slot, gold in zip(slots, answer, strict=True)
    ]


def on_one_line(completions, answer, **kwargs):
    """Read an answer between tags on one line, as the prompt of its repository shows it."""
    slots = [re.findall(r"</think>\n<answer>(.*?)</answer>$", text(c)) for c in completions]
    return [float(found == [gold]) for found, gold in zip(slots, answer, strict=True)]


class Case(NamedTuple):
    """A reward with its labels, written before it was run."""

    reward: Callable[..., Any]
    rows: list[dict[str, Any]]
    format: Callable[[], AnswerFormat]
    faults: tuple[str, ...] = ()
    """At least one of these has to be found; none where the reward is sound."""
    true: tuple[str, ...] = ()
    """Further kinds that are right for this case."""


_LAX = (
    "every candidate",
    "several answers",
    "near miss",
    "answer outside the slot",
)
CASES = [
    Case(
        countdown_with_eval,
        COUNTDOWN,
        lambda: THINK,
        ("hangs",),
        ("another format", "runs the answer as code"),
    ),
    Case(
        countdown_any_numbers,
        COUNTDOWN,
        lambda: XML,
        ("other numbers",),
        ("runs the answer as code", "hangs", "raises"),
    ),
    Case(same_query, QUERIES, bare),
    Case(query_somewhere, QUERIES, bare, _LAX, ("every candidate",)),
    Case(same_record, RECORDS, bare),
    Case(same_keys, RECORDS, bare, ("nothing tells right from wrong",)),
    Case(same_call, CALLS, lambda: TOOL),
    Case(evaluated_call, CALLS, lambda: TOOL, ("runs the answer as code",), (*_LAX, "hangs")),
    Case(last_word, MOODS, bare, ("several answers", "answer outside the slot"), _LAX),
    Case(one_label, MOODS, lambda: XML),
    Case(always_negative, MOODS, lambda: XML, ("nothing tells right from wrong",)),
    Case(first_box, SUMS, lambda: BOXED, ("several answers",), ("answer outside the slot",)),
    Case(only_box, SUMS, lambda: BOXED),
    Case(longer_is_better, SUMS, lambda: XML, ("repetition is rewarded",)),
    Case(not_too_long, SUMS, lambda: XML),
    Case(counted_words, SUMS, lambda: XML, ("repetition is rewarded",), ("a phrase is rewarded",)),
    Case(think_then_answer, SUMS, lambda: THINK),
    Case(
        overlap_of_words,
        DISEASES,
        lambda: XML,
        ("several answers", "near miss", "every candidate"),
        (*_LAX, "a phrase is rewarded"),
    ),
    Case(share_of_cells, GRIDS, lambda: XML),
    Case(number_within, SUMS, lambda: XML),
    Case(best_of_batch, SUMS, lambda: XML, ("inconsistent",)),
    Case(tidies_what_it_reads, SUMS, lambda: XML, ("changes its inputs",), ("another format",)),
    Case(number_or_crash, SUMS, lambda: XML, ("raises",), ("several answers",)),
    Case(on_one_line, SUMS, lambda: THINK, ("another format",), ("right answer refused",)),
]


def main() -> None:
    lines = ["| reward | sound | found | of another kind |", "| --- | --- | --- | --- |"]
    counts = collections.Counter()
    took = []
    for case in CASES:
        begun = time.perf_counter()
        report = gn.check_rewards(case.reward, case.rows, format=case.format())
        took.append(time.perf_counter() - begun)
        kinds = list(dict.fromkeys(f.kind for f in report.findings))
        false = [kind for kind in kinds if kind not in case.faults + case.true]
        if case.faults:
            counts["faulty"] += 1
            counts["found"] += any(kind in case.faults for kind in kinds)
        else:
            counts["sound"] += 1
            counts["left alone"] += not kinds
        counts["findings"] += len(kinds)
        counts["false"] += len(false)
        true = ", ".join(kind for kind in kinds if kind not in false)
        is_sound = "" if case.faults else "yes"
        name = case.reward.__name__
        lines.append(f"| {name} | {is_sound} | {true or '-'} | {', '.join(false)} |")
    print("# Rewards that the rules were not written with\n")
    print("Written by `studies/check_unseen.py`.\n")
    print(
        f"{counts['found']} of {counts['faulty']} faulty ones found, "
        f"{counts['left alone']} of {counts['sound']} sound ones left alone; "
        f"{counts['false']} of {counts['findings']} findings are false. "
        f"A check takes {statistics.median(took):.1f} s in the median, {max(took):.1f} s at most.\n"
    )
    print("\n".join(lines))


if __name__ == "__main__":
    main()
