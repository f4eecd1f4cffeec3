"""The checks find what is broken in a reward and leave its sound twin alone."""

import ast
import dataclasses
import difflib
import functools
import itertools
import json
import math
import random
import re
import statistics
import sys
import threading
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import grpo_nb as gn
from grpo_nb.checks import judge
from grpo_nb.checks.catalogue import CATALOGUE, WHOLE_SET
from grpo_nb.checks.probes import harmless, wrong_answers
from grpo_nb.checks.report import RewardProblem, RewardReport
from grpo_nb.checks.run import check_rewards
from grpo_nb.rewards.answers import correctness, is_same_answer
from grpo_nb.rewards.base import completion_text, reward_name
from grpo_nb.rewards.code import code_tests
from grpo_nb.rewards.fitting import check_rows
from grpo_nb.rewards.form import xml_format, xml_tags
from grpo_nb.rewards.length import length
from grpo_nb.tasks import formats
from grpo_nb.tasks.task import Task

pytestmark = pytest.mark.begins(150)

ROWS = [
    {"prompt": [{"role": "user", "content": f"What is {a} + {b}?"}], "question": f"What is {a} + {b}?", "answer": str(a + b)}
    for a, b in ((20, 22), (8, 9), (30, 33), (5, 3), (50, 41), (60, 16), (12, 13), (2, 3))
]  # fmt: skip
WORDS = [
    {"question": f"What is the capital of {country}?", "answer": city}
    for country, city in (("France", "Paris"), ("Italy", "Rome"), ("Spain", "Madrid"), ("Greece", "Athens"), ("Peru", "Lima"))
]  # fmt: skip
SLOT = re.compile(r"<answer>\s*(.*?)\s*</answer>", re.DOTALL)
counter, slow_calls = itertools.count(), itertools.count()


def slot(completion) -> str | None:
    found = SLOT.findall(completion_text(completion))
    return found[0] if len(found) == 1 else None


def right(completions, answer, **_):
    return [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


def by_text(score):
    """Make a reward of a function of one completion's text and its gold answer."""

    def reward(completions, answer, **_):
        return [float(score(completion_text(c), gold)) for c, gold in zip(completions, answer, strict=True)]

    reward.__name__, reward.__doc__ = score.__name__, score.__doc__
    return reward


def kinds(report: RewardReport, severity: str | None = None) -> set[str]:
    return {f.kind for f in report.findings if severity in (None, f.severity)}


def check(*rewards, rows=ROWS, **options) -> RewardReport:
    return check_rewards(list(rewards), rows, **options)


def test_another_accepted_answer_is_no_wrong_one() -> None:
    rows = [{"question": f"{n}?", "all": list(("A", "B", "CAD", "D")[n % 4])} for n in range(12)]
    report = check_rewards([gn.rewards.multiple_choice(column="all")], rows, answer="all")
    assert report.ok and not kinds(report, "critical"), report


@pytest.mark.parametrize("unit", ["%", "\u00b0C", "km"])
def test_a_number_without_its_unit_is_no_near_miss(unit: str) -> None:
    """`4` for `4 %` was a critical finding on the reward that the task proposes."""
    rows = [{"question": f"{n}?", "answer": f"{n} {unit}"} for n in range(3, 40)]
    assert not kinds(check_rewards(correctness(), rows), "critical")


def test_an_alias_in_another_column_is_no_near_miss() -> None:
    """A part of the gold answer may be right, too: it was called an item too few."""
    cities = ("Washington, D.C.", "Boston, MA", "Paris, France", "Rome, Italy")
    rows = [
        {"question": f"{n}?", "answer": city, "all": [city, city.partition(",")[0]]} for n, city in enumerate(cities)
    ]
    assert not kinds(check_rewards([gn.rewards.correctness(column="all")], rows), "critical")
    only = [{**row, "all": [row["answer"]]} for row in rows]

    def begins_with_it(completions, all, **_):
        given = [gn.tasks.xml().extract_last(completion_text(text)) for text in completions]
        return [float(bool(one) and known[0].startswith(one)) for one, known in zip(given, all, strict=True)]

    assert "near miss" in kinds(check_rewards([begins_with_it], only))


def test_what_a_column_that_is_taken_holds_is_tried() -> None:
    rows = [{**row, "city": f"Town {n}"} for n, row in enumerate(ROWS)]

    def names_the_city(completions, city, **_):
        return [float(c in completion_text(text)) for text, c in zip(completions, city, strict=True)]

    assert not kinds(check(right, names_the_city, rows=rows)) & {"constant", "phrase pays"}


# ---- Sound rewards: nothing but notes, alone beside a correctness reward -------------------------------------------


@by_text
def graded(text, gold):
    """Partial credit for answers that are near numbers, far below that of the right one; negative where there is none."""
    given_answer = slot(text)
    if given_answer is None:
        return -0.5
    if not re.fullmatch(r"-?[0-9]{1,9}", given_answer):
        return 0.0
    distance = abs(int(given_answer) - int(gold))
    return 1.0 if distance == 0 else 0.3 / (1 + distance)


async def awaited(completions, answer, **_):
    return right(completions, answer)


class Judge:
    """A callable object with settings."""

    def __init__(self, factor: float) -> None:
        self.factor = factor

    def __call__(self, completions, answer, **_):
        return [self.factor * score for score in right(completions, answer)]


def short_enough(completions, completion_ids, **_):
    """A soft punishment beyond 200 tokens: nought for almost everything, and sound."""
    return [-min(1.0, max(0, len(ids) - 200) / 100) for ids in completion_ids]


def no_apology(completions, **_):
    return [-1.0 * ("as an AI model" in completion_text(c)) for c in completions]


def enough_lines(completions, **_):
    return [min(1.0, completion_text(c).count("\n") / 12) * 0.3 for c in completions]


def counts_steps(completions, **_):
    """More than three line breaks, however made."""
    return [0.2 * (completion_text(c).strip().count("\n") > 4) for c in completions]


def near_length(completions, **_):
    return [0.3 * math.exp(-abs(len(completion_text(c).split()) - 40) / 40) for c in completions]


def no_opinion(completions, answer, **_):
    """None for rows it cannot judge."""
    return [None if len(gold) == 1 else float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


@by_text
def seeded(text, gold):
    """A tie broken by a draw that the text alone decides."""
    return (slot(text) == gold) + 0.01 * random.Random(text).random()


SOUND = [
    right, graded, awaited, Judge(1.5), functools.partial(right), short_enough, no_apology,
    near_length, enough_lines, counts_steps, no_opinion, seeded, correctness(), xml_format(), xml_tags(),
]  # fmt: skip


@pytest.mark.parametrize("reward", SOUND, ids=lambda r: getattr(r, "__name__", type(r).__name__))
def test_sound_rewards_are_not_accused(reward) -> None:
    judges_answers = "answer" in str(getattr(reward, "__doc__", "")) and not isinstance(reward, (xml_format, xml_tags))
    report = check(reward) if judges_answers else check(reward, correctness(name="other"))
    accused = [f for f in report.findings if f.severity != "note"]
    assert not accused, accused
    assert report.ok and report.raise_if_critical() is report


@pytest.mark.parametrize(
    "format", [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()], ids=lambda f: f.name
)
@pytest.mark.parametrize("rows", [ROWS, WORDS], ids=["numbers", "words"])
def test_the_kits_own_rewards_in_every_format(format, rows) -> None:
    rewards = [correctness(format=format), xml_format(format=format), xml_tags(format=format, weight=0.5)]
    report = check_rewards(rewards, rows, format=format)
    assert report.ok, report
    assert next(iter(report.roles.values())) == "tells right from wrong"


def test_a_task_and_a_format_that_the_template_opens() -> None:
    task = gn.load_task("arithmetic")
    assert check_rewards([correctness(), xml_format(), xml_tags()], task).ok
    opened = dataclasses.replace(formats.think_answer(), is_opened_by_template=True)
    rewards = [correctness(format=opened), xml_format(format=opened)]
    report = check_rewards(rewards, ROWS, format=opened)
    assert report.ok and "tells" in report.roles["correctness"], report


def test_nothing_found_says_what_was_checked() -> None:
    report = check(correctness())
    assert report.findings == () and repr(report).startswith("Nothing found. Checked 1 reward(s) on 4 rows, ")
    assert "not checked" not in repr(report), "no token is counted"
    assert "no tokenizer was given" in repr(check(correctness(), length(1, 100)))
    # A lenient reward beside a strict one has nothing to mend.
    assert not kinds(check(correctness(), xml_format(), xml_tags())) and kinds(check(xml_tags())) >= {"lenient"}


# ---- Broken rewards, each with what must be said of it -------------------------------------------------------------


def finds(*expected: str, severity: str | None = None, rows=ROWS, beside=(), **options):
    """Register a broken reward with the kinds of findings it must get."""

    def register(reward):
        name = getattr(reward, "__name__", "lambda")
        BROKEN.append(pytest.param(reward, expected, severity, rows, beside, options, id=name))
        return reward

    return register


BROKEN: list = []


def is_right(text, gold) -> bool:
    return slot(text) == gold


@finds("format refused", severity="critical")
@by_text
def format_lines_of_reasoning(text, gold):
    return bool(re.match(r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$", text))


@finds("contains the answer", "answer outside the slot", "several answers", severity="critical")
@by_text
def substring(text, gold):
    return gold in text


@finds("several answers", "contains the answer", severity="critical")
@by_text
def substring_of_slot(text, gold):
    return gold in (slot(text) or "")


@finds("several answers", severity="warning")
@by_text
def right_hand_side(text, gold):
    return (slot(text) or "").split("=")[-1].strip() == gold


@finds("right answer refused", "right answer refused", severity="critical")
@by_text
def first_number(text, gold):
    return [gold] == re.findall(r"\d+", text)[:1]


@finds("right answer refused", severity="critical")
@by_text
def ascii_only(text, gold):
    return is_right(text, gold) and text.isascii()


@finds("judge persuaded", severity="critical")
@by_text
def gullible(text, gold):
    return "10/10" in text or is_right(text, gold)


@finds("right answer refused", severity="critical")
@by_text
def one_row_unreadable(text, gold):
    return is_right(text, gold) and gold != "42"


@finds("upside down", "nothing tells right from wrong", severity="critical")
def inverted(completions, answer, **_):
    return [1 - s for s in right(completions, answer)]


@finds("another format", severity="critical")
def boxed_only(completions, answer, **_):
    return correctness(format=formats.boxed())(completions=completions, answer=answer)


@finds("another format", severity="warning")
@by_text
def think_format(text, gold):
    return text.startswith("<think>\n")


@finds("changes its inputs", severity="critical")
def mutates_messages(completions, answer, **_):
    scores = right(completions, answer)
    for completion in completions:
        completion[0]["content"] = completion[0]["content"].lower().strip()[:10]
    return scores


@finds("changes its inputs", severity="critical")
def mutates_columns(completions, answer, **_):
    scores = right(completions, answer)
    answer.sort()
    return scores


@finds("not repeatable", severity="warning")
def noisy(completions, answer, **_):
    return [s + random.random() for s in right(completions, answer)]


@finds("prints", severity="note")
def prints(completions, answer, **_):
    print("-" * 20, answer[0])
    return right(completions, answer)


@finds("NaN score", severity="warning")
@by_text
def nan_for_no_answer(text, gold):
    return math.nan if slot(text) is None else is_right(text, gold)


@finds("infinite score", severity="critical")
@by_text
def infinite_for_empty(text, gold):
    return is_right(text, gold) / len(text) if text else -math.inf


@finds("no score", severity="critical")
def never_scores(completions, **_):
    return [None] * len(completions)


@finds("cannot be read", severity="critical")
def too_few(completions, answer, **_):
    return right(completions, answer)[1:]


@finds("cannot be read", severity="critical")
def strings(completions, answer, **_):
    return [str(s) for s in right(completions, answer)]


@finds("raises", severity="critical")
@by_text
def raises_on_all(text, gold):
    return int(text) == int(gold)


@finds("raises", severity="note")
@by_text
def raises_on_surrogates(text, gold):
    return is_right(text, gold) * bool(text.encode() or 1)


@finds("argument nobody passes", severity="critical")
def misspelt(completions, answer, completions_ids, **_):
    return right(completions, answer)


@finds("argument nobody passes", severity="warning")
def misspelt_optional(completions, answer, completions_ids=None, **_):
    return right(completions, answer)


@finds("arguments refused", severity="critical")
def no_keywords(completions, answer):
    return right(completions, answer)


@finds("grows with length", severity="note")
def longer_is_better(completions, **_):
    return [len(completion_text(c)) / 10_000 for c in completions]


@finds("hangs", severity="critical", seconds_per_call=0.3)
@by_text
def catastrophic(text, gold):
    return is_right(text, gold) * (re.match(r"(\w+)*$", text) is None)


@finds("slow on hostile text", severity="warning", seconds_per_call=0.3)
def sleepy(completions, answer, **_):
    if any("1e9999" in completion_text(c) for c in completions):
        time.sleep(0.8)
    return right(completions, answer)


@finds("phrase pays", severity="critical")
@by_text
def magic_words(text, gold):
    return is_right(text, gold) or bool(re.search(r"\bI am (?:quite )?certain\b", text) or "without doubt" in text)


@finds(
    "near miss", severity="critical", rows=[{"question": f"{n}?", "answer": f"{n}, {n + 2}, {n + 4}"} for n in (3, 4)]
)
@by_text
def part_of_a_list(text, gold):
    given = re.findall(r"\d+", slot(text) or "")
    return given[:2] == re.findall(r"\d+", gold)[:2] and len(given) < 9


@finds("near miss", severity="critical")
@by_text
def part_is_enough(text, gold):
    return bool(slot(text)) and slot(text) in gold


@finds("near miss", severity="critical")
@by_text
def any_order_of_digits(text, gold):
    return sorted(slot(text) or "") == sorted(gold)


@finds("near miss", severity="critical", rows=[{"question": f"{n}?", "answer": str(-n)} for n in (12, 25, 37)])
@by_text
def no_sign(text, gold):
    return (slot(text) or "").lstrip("-") == gold.lstrip("-")


@finds("contains the answer", severity="critical")
@by_text
def no_zeros_at_the_end(text, gold):
    return (slot(text) or "").rstrip("0") == gold.rstrip("0")


@finds("several answers", "contains the answer", severity="critical")
@by_text
def lax_on_one_line(text, gold):
    found = re.fullmatch(r"<reasoning>[^\n]*</reasoning><answer>([^\n]*)</answer>", text)
    return found is not None and gold in found.group(1)


@finds("raises", severity="critical")
@by_text
def json_of_all(text, gold):
    try:
        return json.loads(text).get("answer") == gold
    except ValueError:
        return 0.0


@finds("another format", severity="critical")
@by_text
def json_completion(text, gold):
    found = re.fullmatch(r'{"answer": "?(.*?)"?}', text)
    return found is not None and found.group(1) == gold


@finds("fails on a batch", severity="critical")
def one_for_each_text(completions, answer, **_):
    return list(
        {completion_text(c): float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)}.values()
    )


@finds("fails on a batch", severity="critical")
def at_most_sixteen(completions, answer, **_):
    if len(completions) > 16:
        raise RuntimeError("too many at once")
    return right(completions, answer)


@finds("not checked to the end", severity="warning", seconds_per_call=0.3)
def slower_and_slower(completions, answer, **_):
    time.sleep(0.4 * (next(slow_calls) > 25))
    return right(completions, answer)


@finds("not checked to the end", severity="warning", seconds_per_call=0.12)
def slow_but_never_late(completions, answer, **_):
    time.sleep(0.01 * len(completions))
    return right(completions, answer)


@finds("raises", "raises", severity="critical")
@by_text
def two_kinds_of_errors(text, gold):
    """One that no training sees, and one that ends it."""
    text.encode()
    return is_right(text, gold) or (slot(text) == "inf" and int(float(slot(text))) == 1)


@pytest.mark.parametrize(("reward", "expected", "severity", "rows", "beside", "options"), BROKEN)
def test_broken_rewards_are_found(reward, expected, severity, rows, beside, options) -> None:
    report = check(reward, *beside, rows=rows, **options)
    assert set(expected) <= kinds(report, severity), report
    for finding in report.findings:
        assert finding.what and finding.effect and finding.fix
    if severity == "critical":
        with pytest.raises(RewardProblem, match=re.escape(expected[0])):
            report.raise_if_critical()


def returns_one(completions, **_):
    return 1.0


def returns_texts(completions, **_):
    return ["1"] * len(completions)


def compares_messages(completions, answer, **_):
    return [float(completion == gold) for completion, gold in zip(completions, answer, strict=True)]


def forgets_to_return(completions, **_):
    [0.0 for _ in completions]


def always_one(completions, **_):
    return [1.0] * len(completions)


def stars_of_the_row(completions, stars, **_):
    return [count / 5 for count in stars]


def always_nan(completions, **_):
    return [math.nan] * len(completions)


def counts_messages(completions, **_):
    return [float(completion.count("<answer>")) for completion in completions]


def splits_messages(completions, **_):
    return [float(len(completion.split())) for completion in completions]


def indexes_text(completions, answer, **_):
    return [float(slot(completion[0]["content"]) == gold) for completion, gold in zip(completions, answer, strict=True)]


def unreachable(completions, **_):
    raise ConnectionError("connection refused")


def exits(completions, answer, **_):
    return right(completions, answer) if all(map(completion_text, completions)) else sys.exit("no text")


def other_column(completions, **columns):
    return [float(gold == 1) for gold in columns["anwser"]]


def unknown_name(completions, **_):
    return [no_such_name for _ in completions]  # noqa: F821


def every_other_call(completions, answer, **_):
    return [score * (next(counter) // len(completions) % 2) for score in right(completions, answer)]


@pytest.mark.parametrize(
    ("reward", "kind", "fix", "rows"),
    [
        (returns_one, "cannot be read", "does `return` stand inside the loop", ROWS),
        (returns_texts, "cannot be read", "a list of one float", ROWS),
        (compares_messages, "wrong shape", "completion_text(completion)", ROWS),
        (forgets_to_return, "cannot be read", "without a return", ROWS),
        (always_one, "constant", "pays whatever is written", ROWS),
        (
            stars_of_the_row,
            "constant",
            "depends on the completion, beside",
            [{**row, "stars": i % 5} for i, row in enumerate(ROWS)],
        ),
        (always_nan, "no score", "division by nought", ROWS),
        (counts_messages, "wrong shape", "completion_text(completion)", ROWS),
        (splits_messages, "wrong shape", "completion_text(completion)", ROWS),
        (
            indexes_text,
            "wrong shape",
            "completion_text(completion)",
            [{**row, "prompt": row["question"]} for row in ROWS],
        ),
        (unreachable, "raises", "try again inside the reward, then return None", ROWS),
        (exits, "raises", "no exit() or sys.exit()", ROWS),
        (other_column, "raises", "did you mean 'answer'", ROWS),
        (unknown_name, "raises", "no completion will change it", ROWS),
        (every_other_call, "not repeatable", "no globals that calls change", ROWS),
    ],
)
def test_advice_comes_from_the_cause_and_nothing_else_is_said(reward, kind, fix, rows) -> None:
    report = check(reward, rows=rows)
    said = [finding for finding in report.findings if finding.severity != "note" and finding.reward == reward.__name__]
    assert [finding.kind for finding in said] == [kind] and fix in said[0].fix, said
    rest = [finding for finding in report.findings if finding.reward == WHOLE_SET]
    assert all(reward.__name__ in finding.fix for finding in rest) and not report.ok


# ---- What rewards of a newcomer do: near answers, the look of an answer, rows and time --------------------------------

SENTENCES = [
    {"question": question, "answer": answer}
    for question, answer in (
        ("What does a mitochondrion do?", "It makes most of the energy that the cell uses"),
        ("Why is the sky blue?", "Air scatters short blue waves more than long red ones"),
        ("What is inflation?", "Prices rise over time and money buys less than before"),
        ("What is a firewall?", "A program that blocks network traffic by its rules"),
        ("What causes tides?", "The moon and the sun pull on the water of the sea"),
    )
]
MEASURES = [{"question": "How much?", "answer": held} for held in ("12.5 kg", "250 g", "40 km", "15 min", "6 l")]
CODE = [
    {"question": f"Write {name}.", "answer": f"def {name}(a, b):\n    return a {sign} b"}
    for name, sign in (("add", "+"), ("mul", "*"), ("sub", "-"), ("mod", "%"))
]


def likeness(given: str, gold: str) -> float:
    return difflib.SequenceMatcher(None, given, gold).ratio()


@by_text
def as_like_as_it_is(text, gold):
    return likeness(slot(text) or "", gold)


@by_text
def most_for_any_answer(text, gold):
    return 0.6 + 0.4 * likeness(slot(text), gold) if slot(text) else 0.0


@by_text
def like_from_a_threshold_on(text, gold):
    return score if (score := likeness(slot(text) or "", gold)) > 0.67 else 0.0


@by_text
def shared_words(text, gold):
    """F1 over words, as of SQuAD."""
    given, wanted = (slot(text) or "").lower().split(), gold.lower().split()
    shared = sum(min(given.count(word), wanted.count(word)) for word in set(given))
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


@by_text
def words_recalled(text, gold):
    return len({*gold.split()} & {*(slot(text) or "").split()}) / len({*gold.split()})


@pytest.mark.parametrize(
    ("reward", "rows", "severity", "fix"),
    [
        (as_like_as_it_is, SENTENCES, "note", "exact_text()"),
        (as_like_as_it_is, WORDS, "note", "exact_text()"),
        (most_for_any_answer, SENTENCES, "warning", "max(0.0, score - 0.7"),
        (like_from_a_threshold_on, SENTENCES, "note", "exact_text()"),
        (shared_words, SENTENCES, "warning", "score if score > 0."),
    ],
)
def test_a_reward_of_likeness_is_told_what_it_pays_and_not_blamed_for_near_answers(reward, rows, severity, fix) -> None:
    report = check(reward, rows=rows)
    (said,) = report.of(reward.__name__)
    assert (said.kind, said.severity) == ("pays by likeness", severity) and fix in said.fix, report
    assert "by degrees" in report.roles[reward.__name__]
    assert not [finding for finding in report.findings if finding.reward == WHOLE_SET]
    # The advice can be followed: what it says of two answers is what the reward gives at most.
    golds = [row["answer"] for row in rows]
    gold, other = golds[:2]
    both = reward([f"<answer>{other} or {gold}</answer>"], answer=[gold])[0]
    pairs = [*itertools.permutations(golds, 2)]
    unrelated = statistics.median(
        reward([f"<answer>{given}</answer>" for given, _ in pairs], answer=[b for _, b in pairs])
    )
    told = {what: float(value) for value, what in re.findall(r"([\d.]+) for ([\w ]+)", said.what)}
    assert told["two answers side by side"] >= both - 0.01, said
    assert told["a typical unrelated one"] == pytest.approx(unrelated, abs=0.1), said


def test_what_is_paid_for_naming_every_word_is_no_likeness() -> None:
    assert "several answers" in kinds(check(words_recalled, rows=SENTENCES), "critical")


# ---- What reads the whole completion, and what takes a slot that is not there or more than the slot ------------------


@by_text
def like_in_whole(text, gold):
    return likeness(text, gold)


@by_text
def the_same_in_whole(text, gold):
    return text.strip().lower() == gold.lower()


@by_text
def last_line(text, gold):
    return text.strip().split("\n")[-1] == gold


@by_text
def shared_words_in_whole(text, gold):
    given, wanted = re.findall(r"\w+", text.lower()), re.findall(r"\w+", gold.lower())
    shared = sum(min(given.count(word), wanted.count(word)) for word in set(given))
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


@by_text
def number_in_whole(text, gold):
    return 2.0 if re.fullmatch(r"\s*-?\d{1,9}\s*", text) and int(text) == int(gold) else -1.0


@pytest.mark.parametrize(
    ("reward", "rows", "format"),
    [
        (like_in_whole, WORDS, formats.xml()),
        (like_in_whole, SENTENCES, formats.think_answer()),
        (the_same_in_whole, WORDS, formats.hashes()),
        (last_line, WORDS, formats.xml()),
        (shared_words_in_whole, SENTENCES, formats.boxed()),
        (number_in_whole, ROWS, formats.xml()),
    ],
    ids=lambda held: getattr(held, "__name__", getattr(held, "name", "")),
)
def test_a_reward_that_reads_the_whole_completion_is_told_so_and_nothing_else(reward, rows, format) -> None:
    report = check(reward, rows=rows, format=format)
    (said,) = report.findings
    assert (said.kind, said.severity) == ("another format", "critical") and report.findings[0] is said, report
    assert "the whole completion" in said.what and "the whole completion" in report.roles[reward.__name__]
    bare, wrong, shown, _ = map(float, re.findall(r"-?\d[\d.]*", said.what))
    assert bare == reward([rows[0]["answer"]], answer=[rows[0]["answer"]])[0] > max(wrong, shown), said
    # The line that it advises mends it.
    names = {"gn": gn, "task": Task("any", format, rows, rows)}

    def mended(completions, answer, **_):
        texts = []
        for completion in completions:
            exec(said.fix.partition(";")[0], names | {"completion": completion}, held := {})
            texts.append(held["text"])
        return reward(texts, answer=answer)

    assert not kinds(check(mended, rows=rows, format=format), "critical")
    # Beside a sound reward for the answer, the set is judged by that one.
    beside = check(reward, correctness(format=format), rows=rows, format=format)
    assert [f.kind for f in beside.findings if f.severity != "note"] == ["another format"], beside


@by_text
def slot_or_all(text, gold):
    return text.split("<answer>")[-1].split("</answer>")[0].strip() == gold


@by_text
def less_outside_the_slot(text, gold):
    return 1.0 if slot(text) == gold else 0.5 * (text.strip() == gold)


@by_text
def like_in_slot_or_all(text, gold):
    return likeness(slot(text), gold) if slot(text) else 0.5 * likeness(text, gold)


@by_text
def brief_or_not(text, gold):
    """What is right, less for each character."""
    return slot_or_all([text], answer=[gold])[0] - 0.01 * len(text)


@by_text
def named_anywhere(text, gold):
    return gold in text


@by_text
def as_long_as_the_answer(text, gold):
    return -abs(len(text) - len(gold)) / 100


@by_text
def few_characters(text, gold):
    return len(text) < 30


@by_text
def full_from_a_length_on(text, gold):
    return min(len(text) / 60, 1)


SOUND_ON_BARE = [
    slot_or_all, less_outside_the_slot, like_in_slot_or_all, brief_or_not, named_anywhere, as_long_as_the_answer,
    few_characters, full_from_a_length_on, as_like_as_it_is, shared_words, graded,
]  # fmt: skip


@pytest.mark.parametrize("reward", SOUND_ON_BARE, ids=lambda reward: reward.__name__)
def test_what_a_reward_gives_for_bare_answers_is_no_fault_where_it_reads_the_slot_or_no_answer(reward) -> None:
    rows = ROWS if reward is graded else SENTENCES
    assert "another format" not in kinds(check(reward, rows=rows), "critical")


def test_that_it_reads_the_whole_completion_is_said_before_what_else_is_critical() -> None:
    @by_text
    def raises_without_text(text, gold):
        return likeness(text, gold) / bool(text)

    report = check(raises_without_text, rows=WORDS)
    assert [f.kind for f in report.findings if f.severity == "critical"] == ["another format", "raises"]


def test_where_else_such_a_reward_looks_is_told() -> None:
    @by_text
    def after_hashes(text, gold):
        return text.split("####")[-1].strip() == gold

    (said,) = [f for f in check(after_hashes).findings if f.severity != "note"]
    assert (
        "the whole completion or #### answer, not the slot" in said.what and "another format for the task" in said.fix
    )
    assert check(after_hashes, format=formats.hashes()).roles["after_hashes"].startswith("tells")


ALIASES = [
    {**row, "aliases": names}
    for row, names in zip(
        WORDS,
        [["City of Light", "Lutetia"], ["Eternal City"], ["Villa y Corte"], ["Astu", "Athina"], ["City of Kings"]],
        strict=True,
    )
]


def any_alias(completions, aliases, **_):
    return [float(slot(c) in known) for c, known in zip(completions, aliases, strict=True)]


def any_alias_in_any_case(completions, **columns):
    lowered = [[name.lower() for name in known] for known in columns["aliases"]]
    return [float((slot(c) or "").lower() in known) for c, known in zip(completions, lowered, strict=True)]


@pytest.mark.parametrize(
    "reward",
    [
        gn.rewards.exact_text(column="aliases"),
        correctness(column="aliases"),
        any_alias,
        any_alias_in_any_case,
    ],
    ids=reward_name,
)
@pytest.mark.parametrize("lost", [(0, 1, 2, 3, 4), (0, 2, 3), (1, 4)], ids=len)
def test_answers_that_a_column_of_right_answers_lacks_are_told_with_the_line_that_adds_them(reward, lost) -> None:
    rows = [row if n in lost else {**row, "aliases": [row["answer"], *row["aliases"]]} for n, row in enumerate(ALIASES)]
    (said,) = [finding for finding in check(reward, rows=rows).findings if finding.severity != "note"]
    assert (said.kind, said.severity) == ("answer not listed", "critical" if len(lost) > 2 else "warning"), said
    assert f"in {len(lost)} of 5 rows tried" in said.what and "'aliases'" in said.what
    gold, names = ALIASES[lost[0]]["answer"], ALIASES[lost[0]]["aliases"]
    assert f"{gold!r} is not in {names}" in said.what
    data = {column: [row[column] for row in rows] for column in rows[0]}
    exec(said.fix.partition(": ")[2], {"data": data})
    mended = [dict(zip(data, values, strict=True)) for values in zip(*data.values(), strict=True)]
    assert check(reward, rows=mended).ok


def test_likeness_to_listed_answers_is_told_of_the_answers_that_lack_alone() -> None:
    def like_an_alias(completions, aliases, **_):
        pairs = zip(completions, aliases, strict=True)
        return [max(likeness(slot(c) or "", name) for name in known) for c, known in pairs]

    rows = [{**row, "aliases": [row["answer"][-len(row["answer"]) // 3 :]]} for row in SENTENCES]
    (said,) = check(like_an_alias, rows=rows).findings
    assert said.kind == "answer not listed" and "in 5 of 5 rows" in said.what


def test_lists_that_are_no_right_answers_need_not_hold_them() -> None:
    rows = [{**row, "words": ["first", "moreover"], "others": ["Bonn", "Bern"]} for row in ALIASES]

    def says(completions, words, **_):
        return [
            0.3 * any(word in completion_text(c) for word in known) for c, known in zip(completions, words, strict=True)
        ]

    def right_or_near(completions, answer, aliases, others, **_):
        return [
            1.0 if slot(c) == gold else 0.3 * (slot(c) in near) - 0.5 * (slot(c) in far)
            for c, gold, near, far in zip(completions, answer, aliases, others, strict=True)
        ]

    for rewards in ([says, correctness()], [right_or_near], [correctness()]):
        assert "answer not listed" not in kinds(check(*rewards, rows=rows))


@by_text
def has_the_unit(text, gold):
    return re.fullmatch(rf"[\d.]+ {gold.split()[-1]}", slot(text) or "") is not None


@by_text
def defines_it(text, gold):
    try:
        made = ast.parse(slot(text) or "").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return False
    return any(getattr(part, "name", None) == ast.parse(gold).body[0].name for part in made)


@by_text
def is_whole(text, gold):
    return re.fullmatch(r"-?\d+", slot(text) or "") is not None


@pytest.mark.parametrize(
    ("reward", "rows"),
    [(has_the_unit, MEASURES), (defines_it, CODE), (is_whole, ROWS)],
    ids=lambda held: str(held)[:20],
)
def test_what_only_looks_like_the_answer_is_part_credit_on_form(reward, rows) -> None:
    report = check(reward, rows=rows)
    assert "how an answer looks" in report.roles[reward.__name__], report
    assert not kinds(report) & {"near miss", "several answers", "another format"}, report
    assert "nothing tells right from wrong" in kinds(report)
    beside = check(right, reward, rows=rows, weights={reward.__name__: 0.2})
    assert beside.ok and beside.roles["right"] == "tells right from wrong", beside


@by_text
def runs_it(text, gold):
    try:
        return eval(slot(text) or "", {"__builtins__": {}}) == int(gold)
    except Exception:  # as rewards do that newcomers write
        return False


def test_advice_on_time_comes_from_what_took_it() -> None:
    (hangs,) = [f for f in check(runs_it, seconds_per_call=0.1).findings if f.kind == "hangs"]
    assert "computes or runs" in hangs.fix and "nested repeats" not in hangs.fix


def test_the_time_that_a_reward_for_code_gives_to_code_is_no_fault() -> None:
    rows = [{**row, "tests": ["assert f(1) == 1"]} for row in CODE]
    reward = code_tests(limits=gn.sandbox.Limits(cpu_seconds=3))
    reward(completions=["<answer>1</answer>"], tests=[["assert f(1) == 1"]])  # the sandbox takes a moment to start
    report = check(reward, rows=rows)
    said = report.of("code_tests")
    assert any("cpu_seconds" in f.fix for f in said) and not any("nested repeats" in f.fix for f in said), report


def test_a_row_on_which_everything_raises_is_named_and_no_completion_blamed() -> None:
    @by_text
    def as_numbers(text, gold):
        return slot(text) == str(int(gold))

    report = check(as_numbers, rows=[*ROWS, {**ROWS[0], "answer": "n/a"}])
    (said,) = report.of("as_numbers")
    assert "the row with the answer 'n/a'" in said.fix and "with that row" in said.effect


def test_words_that_only_an_inner_function_looks_for_are_tried() -> None:
    def keywords(completions, **_):
        return [sum(word in completion_text(c) for word in CONNECTIVES) / 3 for c in completions]

    assert "constant" not in kinds(check(right, keywords))


CONNECTIVES = ("because of this", "therefore it", "by evidence")


def test_part_credit_inside_a_reward_is_not_weighed_against_being_right_unless_it_is_more() -> None:
    @by_text
    def half_for_a_number(text, gold):
        return 1.0 if slot(text) == gold else 0.5 * bool(re.fullmatch(r"\d+", slot(text) or ""))

    @by_text
    def most_for_a_number(text, gold):
        return 1.0 if slot(text) == gold else 0.9 * bool(re.fullmatch(r"\d+", slot(text) or ""))

    assert "form outweighs being right" not in kinds(check(half_for_a_number))
    (said,) = [f for f in check(most_for_a_number).findings if f.kind == "form outweighs being right"]
    assert "of the right kind" in said.fix


def test_what_was_not_looked_at_is_named() -> None:
    def slow(completions, answer, **_):  # in time by a quarter at each call of 8, and not with all of them
        time.sleep(0.03 * len(completions))
        return right(completions, answer)

    report = check(slow, right, seconds_per_call=0.31)
    assert not report.ok and "too slow to be judged" in report.roles["slow"]
    assert any("the weighted total" in limit for limit in report.limits)
    assert "check_rewards(..., seconds_per_call=3)" in report.of("slow")[0].fix


@pytest.mark.parametrize("reward", [xml_format(), xml_tags(), short_enough, no_apology, enough_lines], ids=reward_name)
def test_a_sound_reward_for_form_alone_is_no_fault(reward) -> None:
    report = check(reward)
    assert report.ok and kinds(report, "note") >= {"nothing tells right from wrong"}, report


def test_data_that_a_reward_cannot_read_is_told_by_the_check_and_before_training() -> None:
    from grpo_nb.training.run_info import checked_rewards

    rewards = [code_tests()]
    check_rows(rewards, [{"tests": ["assert f(1) == 2"]}])
    rows = [{**row, "tests": [{"call": "f", "args": [1], "expected": "two", "tolerance": 0.1}]} for row in ROWS]
    said = "the reward 'code_tests' cannot read the data: row 0: the test"
    assert "raises" in kinds(check(*rewards, rows=rows), "critical")
    with pytest.raises(ValueError, match=said):
        checked_rewards(rewards, Task("sums", formats.xml(), rows, rows), gn.preset("cpu"))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rewards": None}, "rewards = None must be a list of reward functions"),
        ({"rewards": correctness}, "no reward function"),
        ({"rewards": {"a": right}}, "rewards holds 'a'"),
        ({"task": None}, "task = None is no task"),
        ({"task": "data.csv"}, r"task = gn.load_task\('data.csv', settings\)"),
        ({"task": [5]}, "row 0 is"),
        ({"task": [{"answer": " "}]}, "no row has a gold answer in 'answer'"),
        ({"answer": 5}, "no column 5"),
        ({"weights": {"nope": 1}}, r"weights names 'nope', but the rewards are \['right'\]"),
        ({"weights": {"right": math.nan}}, "weight = nan of right must be a finite number"),
        ({"tokenizer": 5}, "tokenizer = 5"),
        ({"seconds_per_call": 0}, "seconds_per_call = 0"),
    ],
)
def test_bad_input_is_told_before_anything_is_called(given, said) -> None:
    def never(completions, **_):
        pytest.fail("it was called")

    never.__name__ = "right"
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=said) as caught:
        check_rewards(**{"rewards": never, "task": ROWS, **given})
    assert "\n" not in str(caught.value)


def test_the_catalogue_has_what_can_be_found_and_no_more() -> None:
    files = [path for path in Path(judge.__file__).parent.glob("*.py") if path.name != "catalogue.py"]
    source = "".join(path.read_text() for path in files)
    assert set(re.findall(r'\bfound\(\s*"([^"]+)", (?:name|caller.name|WHOLE_SET)', source)) <= CATALOGUE.keys()
    by_table = {*judge.PAID, *(f"right answer refused ({kind})" for kind in judge._REFUSALS)}
    by_table |= {f"right answer refused (right{layout})" for layout in (*judge._LAYOUTS, ", newline wanted")}
    assert by_table <= CATALOGUE.keys() <= by_table | set(re.findall(r'"([^"\n]+)"', source))


# ---- The set ---------------------------------------------------------------------------------------------------------


def longer(weight: float):
    def longer_is_better_weighted(**keywords):
        return longer_is_better(**keywords)

    longer_is_better_weighted.weight = weight
    return longer_is_better_weighted


def brevity(completions, **_):
    return [max(0.0, 1 - len(completion_text(c)) / 200) for c in completions]


@pytest.mark.parametrize(
    ("finding", "severity", "broken", "options", "sound"),
    [
        ("nothing tells right from wrong", "critical", [xml_format(), xml_tags()], {}, [xml_format(), right]),
        ("same name twice", "critical", [right, correctness(name="right")], {}, [right, correctness()]),
        ("form outweighs being right", "warning", [right, xml_format(weight=3.0)], {}, [right, xml_format(weight=0.5)]),
        ("form outweighs being right", "warning", [right, xml_format()], {"weights": {"right": 0.5}}, [right]),
        ("beats the right answer", "critical", [right, longer(20.0)], {}, [right, longer(0.2)]),
        ("silence pays", "warning", [right, brevity], {}, [right, near_length]),
        # In the format an empty completion gets less, but at first nothing is in the format.
        ("silence pays", "warning", [right, brevity, xml_format()], {}, [right, near_length, xml_format()]),
        ("wrong pays as much as right", "critical", [right], {"weights": {"right": -1.0}}, [right]),
        ("column name taken", "critical", [right], {"rows": [{**row, "completions": 1} for row in ROWS]}, [right]),
    ],
)  # fmt: skip
def test_what_shows_only_in_the_set(finding: str, severity: str, broken: list, options: dict, sound: list) -> None:
    assert finding in kinds(check(*broken, **options), severity)
    assert finding not in kinds(check(*sound))


@pytest.mark.parametrize(("reward", "fix"), [(correctness(), "name='correctness_2'"), (right, "__name__ = 'right_2'")])
def test_two_of_a_name_are_told_what_works_for_them(reward, fix: str) -> None:
    (twice,) = [f for f in check(reward, reward).findings if f.kind == "same name twice"]
    assert fix in twice.fix and ("__name__" in twice.fix) == (reward is right), "a reward of the kit is frozen"


def test_a_reward_is_tried_in_every_form_on_a_row_that_it_scores() -> None:
    """It was called constant after ten short completions, and that was to be mended where a reward for the answer lacked."""
    rows = [{**row, "priority": "high" if n % 8 == 7 else "low"} for n, row in enumerate(3 * ROWS)]

    def short_if_urgent(completions, priority, **_):
        texts = map(completion_text, completions)
        return [float(len(t) < 200) if p == "high" else None for t, p in zip(texts, priority, strict=True)]

    found = {f.kind: f for f in check(short_if_urgent, xml_format(), rows=rows).findings}
    assert "constant" not in found and "gold" not in found["rows without score"].fix
    assert "add a reward for the answer" in found["nothing tells right from wrong"].fix


@pytest.mark.parametrize("label_of", [lambda i: i >= 400, lambda i: i % 2], ids=["sorted", "in turns"])
def test_rows_are_tried_from_all_over_the_task(label_of) -> None:
    """Among the first rows of a file that is sorted by its labels, a reward that pays always the same one looked right."""
    rows = [
        {"question": f"Was {i} liked?", "answer": ("negative", "positive")[label_of(i)], "number": i}
        for i in range(800)
    ]
    seen = set()

    def always_negative(completions, number, **_):
        seen.update(number)
        return [float(slot(c) == "negative") for c in completions]

    assert not check_rewards(always_negative, rows).ok
    assert min(seen) < 100 and max(seen) >= 700, "in a file without labels, too"
    assert check_rewards(right, rows).findings == ()


def test_rows_beyond_the_first_are_tried_with_their_right_answer() -> None:
    """Every tenth gold answer is written in a way that this reward does not read."""

    @by_text
    def digits_alone(text, gold):
        return gold.isdigit() and slot(text) == gold

    rows = [{"question": f"{n}?", "answer": f"{n},5" if n % 10 == 3 else str(n)} for n in range(100, 160)]
    assert check(right, rows=rows).ok
    (found,) = [f for f in check(digits_alone, rows=rows).of("digits_alone") if "more rows" in f.what]
    assert found.severity == "warning" and re.match(
        "on [56] of 56 more rows gold gets no more .*'1[0-5]3,5'", found.what
    )


@pytest.mark.parametrize("row", [0, 8], ids=["tried in every form", "beyond the first"])
def test_a_row_on_which_a_wrong_answer_is_paid_too_is_not_called_refused(row: int) -> None:
    rows = [{**row, "answer": str(n)} for n, row in enumerate(2 * ROWS, 101)]

    def lax(completions, answer, **_):
        given = map(slot, completions)
        return [
            float(g == gold or (bool(g) and gold == rows[row]["answer"])) for g, gold in zip(given, answer, strict=True)
        ]

    (found,) = [f for f in check(lax, rows=rows).findings if f.severity != "note"]
    assert found.kind == "wrong answer paid" and rows[row]["answer"] in found.what
    assert rows[row]["answer"] not in found.example, "the wrong one is shown"


@pytest.mark.parametrize(
    ("gold", "forms"), [("16", ["16.0", "16.", "+16"]), ("-1200", ["-1200.0", "-1200.", "-1,200"])]
)
def test_other_forms_of_a_number_are_numbers(gold: str, forms: list[str]) -> None:
    def tried(gold: str) -> list[str]:
        made = harmless(0, gn.tasks.xml(), lambda _, answer: answer, gold, "99")
        return [probe.text for probe in made if probe.kind == "number form"]

    assert tried(gold) == forms
    assert not [form for other in ("sixteen", "84/2", "16.0", "007", "$42$") for form in tried(other)]


@pytest.mark.parametrize("given", [list, str])
def test_an_expression_of_other_numbers_than_the_given_is_tried(given: type) -> None:
    rows = [
        {"question": f"Make {8 * k + 7}.", "answer": f"8 * {k} + 7", "numbers": given([8, k, 7])} for k in (2, 3, 4)
    ]

    @by_text
    def any_sum(text, gold):
        said = slot(text) or ""
        # No powers: a probe's tower of nines would be computed for seconds.
        return "**" not in said and bool(re.fullmatch(r"[0-9 +*-]+", said)) and eval(said) == eval(gold)

    assert "other numbers" in kinds(check(any_sum, rows=rows), "critical")
    assert "other numbers" not in kinds(check(right, rows=rows))
    for row in rows:
        del row["numbers"]
    assert "other numbers" not in kinds(check(any_sum, rows=rows)), "any sum may be right where no numbers are given"


# ---- Rows, what is shown ---------------------------------------------------------------------------------------------


def test_every_completion_that_was_tried_is_a_line_of_a_table() -> None:
    probes = check_rewards([right, by_text(lambda text, _: "42" in text)], ROWS).probes
    assert list(probes) == ["reward", "row", "kind", "how", "expected", "score", "text"]
    own = probes.query("reward == 'right' and row == 0").set_index("how")
    assert tuple(own.loc["right", ["kind", "expected", "score"]]) == ("right", "pay", 1.0)
    assert tuple(own.loc["hedge", ["kind", "expected", "score"]]) == ("several answers", "refuse", 0.0)
    holes = probes.query("reward != 'right' and row == 0 and expected == 'refuse' and score == 1")
    assert {"several answers", "answer outside the slot", "near miss"} & set(holes.kind) and all(
        "42" in t for t in holes.text
    )


def test_rows_without_an_answer_column_say_so() -> None:
    with pytest.raises(ValueError, match=r"no column 'answer' but \['question', 'solution'\]"):
        check(right, rows=[{"question": "?", "solution": "7"}])
    with pytest.raises(ValueError, match="no rows"):
        check(right, rows=[])
    rows = [{"question": row["question"], "solution": row["answer"]} for row in ROWS]
    found = check(lambda completions, solution, **_: right(completions, solution), rows=rows, answer="solution")
    assert "tells" in found.roles["<lambda>"]


def test_answers_of_several_lines() -> None:
    grids = [{"question": f"Grid {i}?", "answer": f"{i} {i + 1}\n{i + 2} {i + 3}"} for i in range(2, 7)]
    assert check(right, rows=grids).ok and "tells" in check(right, rows=grids).roles["right"]


def test_a_single_row_is_enough() -> None:
    assert check(right, rows=ROWS[:1]).ok and "several answers" in kinds(check(substring_of_slot, rows=ROWS[:1]))


def test_shows_itself_and_escapes() -> None:
    def bad(completions, answer, **_):
        raise KeyError("<script>alert(1)</script>\ud800")

    report = check(bad, correctness(), xml_format())
    page = report._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "&lt;reasoning&gt;" in page
    page.encode(), repr(report).encode()
    assert set(report.table["severity"]) == {"critical"} and report.of("correctness") == ()
    assert "critical" in page and "tells right from wrong" in page and report.of(WHOLE_SET) == ()


def test_prints_nothing(capsys) -> None:
    check(prints)
    assert capsys.readouterr() == ("", "")


def test_the_rows_are_untouched() -> None:
    before = repr(ROWS)
    check(mutates_columns, mutates_messages)
    assert repr(ROWS) == before


def test_off_the_main_thread() -> None:
    found = []
    thread = threading.Thread(target=lambda: found.append(check(right, substring_of_slot)))
    thread.start()
    thread.join(30)
    assert "several answers" in kinds(found[0])


def test_hung_rewards_cost_a_bounded_time() -> None:
    def never(completions, answer, **_):
        while True:
            pass

    start = time.perf_counter()
    report = check(never, catastrophic, right, seconds_per_call=0.3)
    assert {"too slow to check", "hangs"} <= kinds(report, "critical")
    assert "tells" in report.roles["right"]
    # Four limits for each stopped reward, and room for a busy machine: the promise is that it ends at all.
    assert time.perf_counter() - start < 20


@given(
    gold=st.one_of(st.integers(-(10**6), 10**6).map(str), st.text(min_size=1).map(str.strip).filter(bool)),
    golds=st.lists(st.text(min_size=1), max_size=4),
)
@settings(deadline=None, max_examples=200)
def test_wrong_answers_are_wrong(gold, golds) -> None:
    wrong = wrong_answers(gold, golds)
    assert wrong and not any(is_same_answer(answer, gold) for answer in wrong)


def test_a_stateful_reward_of_the_kit_is_left_as_it_was() -> None:
    states = []

    class Counting(type(correctness())):
        def __call__(self, *, completions, trainer_state=None, **columns):
            states.append(trainer_state)
            return super().__call__(completions=completions, **columns)

    check(Counting(weight=1.0, format=formats.xml(), name="counting", column="answer"))
    assert states and set(states) == {None}
