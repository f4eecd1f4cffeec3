"""The checks find what is broken in a reward and leave its sound twin alone; `test_faults` has more of both."""

import random
import re
import threading
import time

import numpy
import pytest

import grpo_nb as gn
from grpo_nb.checks.check_rewards import check_rewards
from grpo_nb.checks.findings import KINDS, WHOLE_SET
from grpo_nb.checks.report import RewardProblem, RewardReport
from grpo_nb.rewards import completion_text
from grpo_nb.tasks import formats

pytestmark = pytest.mark.begins(60)


def rows_of(*pairs: tuple[str, str]) -> list[dict]:
    return [
        {"prompt": [{"role": "user", "content": q}], "question": q, "answer": a} for q, a in pairs
    ]


SUMS = ((20, 22), (8, 9), (30, 33), (50, 41), (60, 16), (2, 3))
ROWS = rows_of(*((f"What is {a} + {b}?", str(a + b)) for a, b in SUMS))
CITIES = rows_of(
    ("Of France?", "Paris"),
    ("Of Italy?", "Rome"),
    ("Of Spain?", "Madrid"),
    ("Of Greece?", "Athens"),
)


def slots(text: str) -> list[str]:
    return re.findall(r"<answer>\s*(.*?)\s*</answer>", text, re.DOTALL)


def by_text(score):
    """Make a reward of a function of one completion's text and its gold answer."""

    def reward(completions, answer, **_):
        return [
            float(score(completion_text(c), gold))
            for c, gold in zip(completions, answer, strict=True)
        ]

    reward.__name__ = score.__name__
    return reward


def matching(pattern: str, flags: int = 0):
    """A reward for form alone: a text that begins with this."""

    @by_text
    def form(text, gold):
        return bool(re.match(pattern, text, flags))

    return form


def kinds(report: RewardReport, *severities: str) -> set[str]:
    return {
        f.kind for f in report.findings if f.severity in (severities or ("critical", "warning"))
    }


def check(*rewards, rows=ROWS, **options) -> RewardReport:
    return check_rewards(list(rewards), rows, **options)


# ---- Sound ones ------------------------------------------------------------------------------------------------------


@by_text
def right(text, gold):
    return slots(text) == [gold]


def not_too_long(completions, **_):
    return [-0.5 * (len(completion_text(c).split()) > 150) for c in completions]


KITS = [gn.rewards.correctness(), gn.rewards.xml_format(), gn.rewards.xml_tags(weight=0.5)]
SETS = ([right], [right, not_too_long], [not_too_long], KITS, KITS[1:2])


@pytest.mark.parametrize(
    "rewards", SETS, ids=lambda rewards: " ".join(reward.__name__ for reward in rewards)
)
def test_sound_rewards_are_not_accused(rewards) -> None:
    report = check(*rewards)
    assert report.ok and kinds(report, "note") <= {
        "number form refused",
        "no reward for answers",
    }, report


@pytest.mark.parametrize(
    "format",
    [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes(), formats.bare()],
)
def test_the_kits_own_correctness_in_every_format(format) -> None:
    for rows in (ROWS, CITIES):
        report = check(gn.rewards.correctness(format=format), rows=rows, format=format)
        assert report.ok, report


# ---- Broken ones: of kinds that no fault of the study is, or that show in several ways -------------------------------


@by_text
def gold_somewhere(text, gold):
    return gold in text


@by_text
def last_number(text, gold):
    return (re.findall(r"-?\d+", text) or [""])[-1] == gold


@by_text
def no_dotall(text, gold):
    return bool(
        re.fullmatch(
            r"<reasoning>\n.*\n</reasoning>\n<answer>\n" + re.escape(gold) + r"\n</answer>\s*", text
        )
    )


@by_text
def slot_alone(text, gold):
    found = re.fullmatch("<answer>(.*)</answer>", text)
    return bool(found) and found[1] == gold


@by_text
def only_long_ones(text, gold):
    return len(gold) > 1 and slots(text) == [gold]


@by_text
def nested_repeats(text, gold):
    return bool(re.fullmatch(r"(a+)+b", text)) or slots(text) == [gold]


def nothing(completions, **_):
    return [None] * len(completions)


def of_the_row(completions, answer, **_):
    return [float(len(gold)) for gold in answer]


def noisy(completions, answer, **_):
    return [score + random.random() for score in right(completions=completions, answer=answer)]


def wants_a_solution(completions, solution, **_):
    return [0.0] * len(completions)


def takes_no_more(completions, answer):
    return right(completions=completions, answer=answer)


BROKEN = [
    (gold_somewhere, "every candidate", ROWS), (last_number, "no slot needed", ROWS),
    (no_dotall, "right answer refused", ROWS), (slot_alone, "another format", ROWS), (only_long_ones, "not on every row", ROWS),
    (nested_repeats, "hangs", ROWS), (of_the_row, "constant", ROWS), (nothing, "no score", ROWS), (noisy, "unsteady", ROWS),
    (wants_a_solution, "breaks the contract", ROWS), (takes_no_more, "breaks the contract", ROWS),
]  # fmt: skip


@pytest.mark.parametrize(
    ("reward", "kind", "rows"), BROKEN, ids=[f"{reward.__name__}: {k}" for reward, k, _ in BROKEN]
)
def test_broken_rewards_are_found(reward, kind: str, rows: list[dict]) -> None:
    report = check(reward, rows=rows, seconds_per_call=0.5)
    found = [f for f in report.findings if f.kind == kind]
    assert (
        found
        and found[0].severity == KINDS[kind].severity != "note"
        and found[0].effect
        and found[0].fix
    ), report


def test_a_part_of_a_word() -> None:
    @by_text
    def first_letters(text, gold):
        return any(slot and gold.startswith(slot) for slot in slots(text))

    animals = rows_of(("a?", "mammal"), ("b?", "reptile"), ("c?", "insect"))
    assert "near miss" in kinds(check(first_letters, rows=animals))


def test_a_reward_for_form_may_want_the_line_breaks_of_the_prompt() -> None:
    lines = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>"
    assert [f.kind for f in check(matching(lines + r"\s*$", re.DOTALL)).findings] == [
        "no reward for answers"
    ]
    assert "format refused" in kinds(check(matching(lines + "$")))
    assert "another format" in kinds(check(matching(lines + "\n$", re.DOTALL)))
    thought = matching(r"<think>.*</think>\s*<answer>.*</answer>\s*$", re.DOTALL)
    assert check(thought).findings[0].kind == "constant", (
        "a form that the prompt does not ask for pays nothing here"
    )
    assert "constant" not in kinds(check(thought, format=formats.think_answer()))


def test_numbers_in_another_form_are_a_note() -> None:
    report = check(right)
    assert kinds(report, "note") == {"number form refused"} and report.ok
    assert "refused: in another form of the same number (" in repr(report)
    assert not check(gn.rewards.correctness()).findings


# ---- Rows ------------------------------------------------------------------------------------------------------------


def test_rows_are_tried_from_all_over_the_task() -> None:
    """A file may be sorted by its labels: then a reward that always pays the first one seemed sound."""

    @by_text
    def always(text, gold):
        return slots(text) == ["positive"]

    moods = rows_of(
        *((f"Mood of review {i}?", "positive" if i < 200 else "negative") for i in range(400))
    )
    assert "nothing tells right from wrong" in kinds(check(always, rows=moods), "critical")


def test_rows_of_other_kinds_are_no_reason_to_accuse() -> None:
    def one_of(completions, all, **_):
        given = [slots(completion_text(c)) for c in completions]
        return [
            float(any(slot == [one] for one in known))
            for slot, known in zip(given, all, strict=True)
        ]

    several = [{"question": f"{n}?", "all": list(("A", "B", "CAD", "D")[n % 4])} for n in range(12)]
    assert check(one_of, rows=several, answer="all").ok, "other accepted answers are no wrong ones"
    assert check(right, rows=[{**row, "numbers": numpy.arange(3)} for row in ROWS]).ok
    assert check(right, rows=ROWS[:1]).ok
    code = rows_of(*((f"Add {n}.", f"def f(x):\n    return x + {n}") for n in (3, 5, 8)))
    assert not kinds(check(gn.rewards.exact_text(), rows=code), "critical")
    worded = [
        {"question": row["question"], "gold": f"It is {row['answer']}", "answer": row["answer"]}
        for row in ROWS
    ]
    assert check(right, rows=worded, answer=lambda row: row["gold"].split()[-1]).ok


# ---- The set, and the report -----------------------------------------------------------------------------------------


OF_THE_SET = [
    ("nothing tells right from wrong", [gn.rewards.xml_format(), gn.rewards.xml_tags()], {}),
    ("nothing tells right from wrong", [right, not_too_long], {"weights": {"right": -1.0}}),
    ("form outweighs being right", [right, gn.rewards.xml_format(weight=3.0)], {}),
    ("form outweighs being right", [right, gn.rewards.xml_format()], {"weights": {"right": 0.5}}),
]


@pytest.mark.parametrize(("kind", "broken", "options"), OF_THE_SET)
def test_what_shows_in_the_set(kind: str, broken: list, options: dict) -> None:
    report = check(*broken, **options)
    assert [f.reward for f in report.findings if f.kind == kind] == [WHOLE_SET], report


def test_the_report_shows_itself_escaped_and_can_stop_a_script() -> None:
    report = check(gold_somewhere)
    assert "<answer>" not in report._repr_html_() and "&lt;answer&gt;" in report._repr_html_()
    assert report.of("gold_somewhere") == report.findings and not report.ok
    with pytest.raises(RewardProblem, match="every candidate"):
        report.raise_if_critical()
    assert check(right).raise_if_critical().ok


def test_what_was_not_looked_at_is_named() -> None:
    def brief(completions, completion_ids, **_):
        return [float(len(ids) < 50) for ids in completion_ids]

    def slow(completions, answer, **_):
        time.sleep(0.02 * len(completions))
        return right(completions=completions, answer=answer)

    assert any("without tokenizer" in limit for limit in check(brief).limits)
    report = check(slow, seconds_per_call=0.1)
    assert any("slow: some probes, because it is slow" in limit for limit in report.limits)
    assert report.roles == {"slow": "tells right from wrong"}


def test_hung_rewards_cost_a_bounded_time_also_off_the_main_thread() -> None:
    def asleep(completions, **_):
        time.sleep(2)

    reports, begun = [], time.monotonic()
    thread = threading.Thread(target=lambda: reports.append(check(asleep, seconds_per_call=0.1)))
    thread.start()
    thread.join()
    assert "hangs" in kinds(reports[0]) and "hangs" in kinds(check(asleep, seconds_per_call=0.1))
    assert time.monotonic() - begun < 10


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"rewards": []}, "reward"), ({"rewards": [right, right]}, "right"),
        ({"task": []}, "no rows"), ({"task": None}, "None"),
        ({"answer": "gold"}, "no column 'gold'"), ({"answer": lambda row: None}, "no row has a gold answer"),
        ({"seconds_per_call": 0}, "seconds_per_call"), ({"weights": {"other": 1.0}}, "other"),
    ],
)  # fmt: skip
def test_bad_input_is_told_before_anything_is_called(given: dict, said: str) -> None:
    def uncalled(completions, **_):
        pytest.fail("it was called")

    with pytest.raises((ValueError, TypeError), match=said):
        check_rewards(**{"rewards": uncalled, "task": ROWS, **given})
