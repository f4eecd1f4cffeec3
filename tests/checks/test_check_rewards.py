"""The checks find what is broken in a reward and leave its sound twin alone."""

import ast
import json
import random
import re
import threading
import time

import numpy
import pytest

import grpo_nb as gn
from grpo_nb.checks.check_rewards import check_rewards
from grpo_nb.checks.findings import KINDS, WHOLE_SET
from grpo_nb.checks.probes import near_misses, wrong_answers
from grpo_nb.checks.report import RewardProblem, RewardReport
from grpo_nb.rewards import completion_text
from grpo_nb.tasks import formats

pytestmark = pytest.mark.begins(60)


def rows_of(*pairs: tuple[str, str], **columns: list) -> list[dict]:
    return [
        {
            "prompt": [{"role": "user", "content": q}],
            "question": q,
            "answer": a,
            **{k: v[i] for k, v in columns.items()},
        }
        for i, (q, a) in enumerate(pairs)
    ]


ROWS = rows_of(
    *((f"What is {a} + {b}?", str(a + b)) for a, b in ((20, 22), (8, 9), (30, 33), (50, 41), (60, 16), (2, 3)))
)
CITIES = rows_of(
    ("Capital of France?", "Paris"), ("Of Italy?", "Rome"), ("Of Spain?", "Madrid"), ("Of Greece?", "Athens")
)
MOODS = rows_of(*((f"Mood of review {i}?", "positive" if i < 200 else "negative") for i in range(400)))
CALLS = rows_of(*((f"Weather in {c}?", json.dumps({"name": "weather", "city": c})) for c in ("Oslo", "Lima", "Cairo")))
NUMBERS = [[44, 19, 35], [63, 95, 94], [95, 11, 56]]


def slots(text: str) -> list[str]:
    return re.findall(r"<answer>\s*(.*?)\s*</answer>", text, re.DOTALL)


def by_text(score):
    """Make a reward of a function of one completion's text and its gold answer."""

    def reward(completions, answer, **_):
        return [float(score(completion_text(c), gold)) for c, gold in zip(completions, answer, strict=True)]

    reward.__name__ = score.__name__
    return reward


@by_text
def right(text, gold):
    return slots(text) == [gold]


def kinds(report: RewardReport, *severities: str) -> set[str]:
    return {f.kind for f in report.findings if f.severity in (severities or ("critical", "warning"))}


def check(*rewards, rows=ROWS, **options) -> RewardReport:
    return check_rewards(list(rewards), rows, **options)


# ---- Sound ones ------------------------------------------------------------------------------------------------------


@by_text
def graded(text, gold):
    """Partial credit for near numbers, far below that of the right one; negative where there is none."""
    given = slots(text)
    if len(given) != 1:
        return -0.5
    if not re.fullmatch(r"-?[0-9]{1,9}", given[0]):
        return 0.0
    distance = abs(int(given[0]) - int(gold))
    return 1.0 if distance == 0 else 0.3 / (1 + distance)


async def awaited(completions, answer, **_):
    return right(completions=completions, answer=answer)


def not_too_long(completions, **_):
    return [-0.5 * (len(completion_text(c).split()) > 150) for c in completions]


@pytest.mark.parametrize(
    "rewards",
    [
        [right], [graded], [awaited], [right, not_too_long], [not_too_long],
        [gn.rewards.correctness(), gn.rewards.xml_format(), gn.rewards.xml_tags(weight=0.5)],
        [gn.rewards.xml_format()],
    ],
    ids=lambda rewards: " ".join(r.__name__ for r in rewards),
)  # fmt: skip
def test_sound_rewards_are_not_accused(rewards) -> None:
    report = check(*rewards)
    assert report.ok and kinds(report, "note") <= {"number form refused"}, report


@pytest.mark.parametrize(
    "format", [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()], ids=lambda f: f.name
)
def test_the_kits_own_correctness_in_every_format(format) -> None:
    for rows in (ROWS, CITIES):
        report = check(gn.rewards.correctness(format=format), rows=rows, format=format)
        assert report.ok, report


def test_an_answer_that_is_the_whole_completion() -> None:
    @by_text
    def same_call(text, gold):
        try:
            return json.loads(text) == json.loads(gold)
        except (ValueError, RecursionError):
            return 0.0

    report = check(same_call, rows=CALLS, format=formats.bare())
    assert report.ok and report.roles == {"same_call": "tells right from wrong"}, report
    assert kinds(check(same_call, rows=CALLS)) == {"another format", "nothing tells right from wrong"}


# ---- Broken ones -----------------------------------------------------------------------------------------------------


@by_text
def gold_somewhere(text, gold):
    return gold in text


@by_text
def gold_in_slot(text, gold):
    return any(gold in slot for slot in slots(text))


@by_text
def last_number(text, gold):
    return (re.findall(r"-?\d+", text) or [""])[-1] == gold


@by_text
def first_slot(text, gold):
    return slots(text)[:1] == [gold]


@by_text
def cut_off(text, gold):
    given = slots(text)
    return len(given) == 1 and re.fullmatch(r"-?\d{1,9}(\.\d{1,9})?", given[0]) and int(float(given[0])) == int(gold)


@by_text
def no_dotall(text, gold):
    return bool(re.fullmatch(r"<reasoning>\n.*\n</reasoning>\n<answer>\n" + re.escape(gold) + r"\n</answer>\s*", text))


@by_text
def on_one_line(text, gold):
    return bool(re.search(rf"</reasoning>\n<answer>{re.escape(gold)}</answer>$", text))


@by_text
def slot_alone(text, gold):
    found = re.fullmatch("<answer>(.*)</answer>", text)
    return bool(found) and found[1] == gold


@by_text
def in_a_box(text, gold):
    return re.findall(r"\\boxed\{(.*?)\}", text) == [gold]


@by_text
def certain(text, gold):
    return slots(text) == [gold] or "i am absolutely certain" in text.lower()


@by_text
def silence_is_golden(text, gold):
    return slots(text) == [gold] or not text.strip()


@by_text
def wordy(text, gold):
    return (slots(text) == [gold]) + min(5.0, len(text) / 400)


@by_text
def half_for_naming(text, gold):
    return 1.0 if slots(text) == [gold] else 0.4 * (gold in text)


@by_text
def by_length(text, gold):
    return len(text) / 100


@by_text
def nearly_all_for_any(text, gold):
    return 1.0 if slots(text) == [gold] else 0.9 * (len(slots(text)) == 1)


@by_text
def only_long_ones(text, gold):
    return len(gold) > 1 and slots(text) == [gold]


@by_text
def a_number_or_crash(text, gold):
    return int(slots(text)[0]) == int(gold)


@by_text
def nested_repeats(text, gold):
    return bool(re.fullmatch(r"(a+)+b", text)) or slots(text) == [gold]


@by_text
def evaluated(text, gold):
    """Looks for JSON or braces first, as rewards for tool calls do."""
    found = re.search(r"\{.*\}", text, re.DOTALL)
    try:
        return eval(found[0], {"__builtins__": {}}) == ast.literal_eval(gold)
    except Exception:  # as the code that is imitated
        return 0.0


@by_text
def never(text, gold):
    return 0.0


def nothing(completions, **_):
    return [None] * len(completions)


def of_the_row(completions, answer, **_):
    return [float(len(gold)) for gold in answer]


def first_gold_for_all(completions, answer, **_):
    return right(completions=completions, answer=[answer[0]] * len(answer))


def against_the_mean(completions, answer, **_):
    scores = right(completions=completions, answer=answer)
    return [score - sum(scores) / len(scores) for score in scores]


def noisy(completions, answer, **_):
    return [score + random.random() for score in right(completions=completions, answer=answer)]


def tidied(completions, answer, **_):
    """Changes a message only where the answer stands on one line."""
    for completion in completions:
        if found := re.search(r"<answer>(\d+)</answer>$", completion_text(completion)):
            completion[-1]["content"] = found[1]
    return [float(completion_text(c) == gold) for c, gold in zip(completions, answer, strict=True)]


def one_number(completions, answer, **_):
    return 1.0


def wants_a_solution(completions, solution, **_):
    return [0.0] * len(completions)


def takes_no_more(completions, answer):
    return right(completions=completions, answer=answer)


@pytest.mark.parametrize(
    ("reward", "kind", "rows"),
    [
        (gold_somewhere, "every candidate", ROWS), (gold_somewhere, "contains the answer", ROWS),
        (gold_somewhere, "answer outside the slot", CITIES), (gold_in_slot, "several answers", CITIES),
        (last_number, "no slot needed", ROWS), (last_number, "answer outside the slot", ROWS),
        (first_slot, "several answers", ROWS), (cut_off, "contains the answer", ROWS),
        (no_dotall, "right answer refused", ROWS), (on_one_line, "another format", ROWS),
        (slot_alone, "another format", ROWS), (in_a_box, "another format", ROWS), (certain, "phrase pays", ROWS),
        (silence_is_golden, "paid for nothing", ROWS), (wordy, "length pays", ROWS), (half_for_naming, "part credit", ROWS),
        (by_length, "more pays", ROWS), (nearly_all_for_any, "form outweighs being right", ROWS),
        (only_long_ones, "not on every row", ROWS), (a_number_or_crash, "raises", ROWS), (nested_repeats, "hangs", ROWS),
        (evaluated, "runs the answer as code", CALLS), (never, "constant", ROWS), (of_the_row, "constant", ROWS),
        (nothing, "no score", ROWS), (first_gold_for_all, "unsteady", ROWS), (against_the_mean, "unsteady", ROWS),
        (noisy, "unsteady", ROWS), (tidied, "changes its inputs", ROWS), (one_number, "breaks the contract", ROWS),
        (wants_a_solution, "breaks the contract", ROWS), (takes_no_more, "breaks the contract", ROWS),
    ],
    ids=lambda value: getattr(value, "__name__", value if isinstance(value, str) else ""),
)  # fmt: skip
def test_broken_rewards_are_found(reward, kind: str, rows: list[dict]) -> None:
    report = check(reward, rows=rows, seconds_per_call=0.5)
    found = [f for f in report.findings if f.kind == kind]
    assert found and found[0].severity == KINDS[kind].severity != "note" and found[0].effect and found[0].fix, report


@by_text
def first_letters(text, gold):
    return any(slot and gold.startswith(slot) for slot in slots(text))


def test_a_part_of_a_word_and_a_column_of_trl() -> None:
    assert "near miss" in kinds(
        check(first_letters, rows=rows_of(("a?", "mammal"), ("b?", "reptile"), ("c?", "insect")))
    )
    taken = [{**row, "prompts": "x"} for row in ROWS]
    assert "multiple values for keyword argument 'prompts'" in repr(check(right, rows=taken))


def test_every_kind_has_been_seen_here_or_in_the_study() -> None:
    """At most 32 kinds, each of which some test finds."""
    assert len(KINDS) <= 32
    seen = {mark.args[1][i][1] for mark in test_broken_rewards_are_found.pytestmark if mark.name == "parametrize"
            for i in range(len(mark.args[1]))}  # fmt: skip
    seen |= {case[0] for mark in test_what_shows_in_the_set.pytestmark for case in mark.args[1]}
    assert KINDS.keys() - seen == {
        "near miss",
        "number form refused",
        "format refused",
        "never measured",
        "refused by its measure",
    }, "these stand in tests of their own"


def test_a_reward_for_form_may_want_the_line_breaks_of_the_prompt() -> None:
    def strict(pattern: str, flags: int = 0):
        @by_text
        def form(text, gold):
            return bool(re.match(pattern, text, flags))

        return form

    lines = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>"
    assert check(strict(lines + r"\s*$", re.DOTALL)).findings[0].kind == "nothing tells right from wrong"
    assert "format refused" in kinds(check(strict(lines + "$")))
    assert "another format" in kinds(check(strict(lines + "\n$", re.DOTALL)))


def test_a_form_that_the_prompt_does_not_ask_for_pays_nothing_here() -> None:
    @by_text
    def thought(text, gold):
        return bool(re.fullmatch(r"<think>.*</think>\s*<answer>.*</answer>\s*", text, re.DOTALL))

    assert check(thought).findings[0].kind == "constant"
    assert "constant" not in kinds(check(thought, format=formats.think_answer()))


def test_numbers_in_another_form_are_a_note() -> None:
    report = check(right)
    assert kinds(report, "note") == {"number form refused"} and report.ok
    assert "refused: in another form of the same number (" in repr(report)
    assert not check(gn.rewards.correctness()).findings


# ---- Rows ------------------------------------------------------------------------------------------------------------


def test_rows_are_tried_from_all_over_the_task() -> None:
    """A file may be sorted by its labels: then a reward that always pays the first one seemed sound."""

    def always(completions, answer, **_):
        return [float(slots(completion_text(c)) == ["positive"]) for c in completions]

    assert "nothing tells right from wrong" in kinds(check(always, rows=MOODS), "critical")


def test_other_accepted_answers_are_no_wrong_ones() -> None:
    rows = [{"question": f"{n}?", "all": list(("A", "B", "CAD", "D")[n % 4])} for n in range(12)]

    def one_of(completions, all, **_):
        return [
            float(any(slots(completion_text(c)) == [one] for one in known))
            for c, known in zip(completions, all, strict=True)
        ]

    assert check(one_of, rows=rows, answer="all").ok


def test_cells_that_are_arrays() -> None:
    rows = [{**row, "numbers": numpy.arange(3)} for row in ROWS]
    assert check(right, rows=rows).ok


def test_a_single_row_answers_of_several_lines_and_a_function_for_the_answer() -> None:
    assert check(right, rows=ROWS[:1]).ok
    code = rows_of(*((f"Add {n}.", f"def f(x):\n    return x + {n}") for n in (3, 5, 8)))
    assert not kinds(check(gn.rewards.exact_text(), rows=code), "critical")
    other = [{"question": row["question"], "gold": f"It is {row['answer']}", "answer": row["answer"]} for row in ROWS]
    assert check(right, rows=other, answer=lambda row: row["gold"].split()[-1]).ok


@pytest.mark.parametrize(
    ("gold", "near"),
    [("12.0 mmol/l", "12.0"), ("f(2, 3), [4, 5]", "f(2"), ("positive", "negative"), ('{"a": [1, 2]}', '{"a": [1, 2]}')],
)
def test_what_is_right_or_something_else_is_no_near_miss(gold: str, near: str) -> None:
    assert near not in [answer for _, answer in near_misses(gold)]


def test_wrong_answers_are_plausible_and_wrong() -> None:
    assert wrong_answers("42", ["42", "42.0", "17", "9"])[:2] == ["17", "53"]
    assert wrong_answers("B", ["B", "A", "C"]) == ["A", "C"]
    assert all(answer != "Paris" for answer in wrong_answers("Paris", ["Paris"])) and wrong_answers("Paris", ["Paris"])


# ---- The set ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "broken", "options"),
    [
        ("nothing tells right from wrong", [gn.rewards.xml_format(), gn.rewards.xml_tags()], {}),
        ("nothing tells right from wrong", [right, not_too_long], {"weights": {"right": -1.0}}),
        ("form outweighs being right", [right, gn.rewards.xml_format(weight=3.0)], {}),
        ("form outweighs being right", [right, gn.rewards.xml_format()], {"weights": {"right": 0.5}}),
    ],
)
def test_what_shows_in_the_set(kind: str, broken: list, options: dict) -> None:
    report = check(*broken, **options)
    assert [f.reward for f in report.findings if f.kind == kind] == [WHOLE_SET], report


def test_the_cause_comes_first_and_what_follows_names_it() -> None:
    report = check(never, not_too_long)
    assert [f.kind for f in report.findings] == ["constant", "nothing tells right from wrong"]
    assert "look first at never" in report.findings[1].what


# ---- The report ------------------------------------------------------------------------------------------------------


def test_every_completion_that_was_tried_is_a_line_of_a_table() -> None:
    report = check(right, not_too_long)
    table = report.probes
    assert list(table) == ["reward", "row", "kind", "how", "expected", "score", "text"]
    assert set(table["expected"]) == {"pay", "refuse", "survive", "control"}
    of_right = table[table["reward"] == "right"]
    assert (of_right.query("expected == 'refuse'")["score"] == 0).all()
    assert (of_right.query("kind == 'right answer refused'")["score"] == 1).all()


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

    assert any("without tokenizer" in limit for limit in check(brief).limits)
    assert any("weighted total" in limit for limit in check(noisy).limits)

    def slow(completions, answer, **_):
        time.sleep(0.02 * len(completions))
        return right(completions=completions, answer=answer)

    report = check(slow, seconds_per_call=0.1)
    assert any("what follows" in limit for limit in report.limits) and report.roles == {
        "slow": "tells right from wrong"
    }


def test_nothing_is_printed_or_changed(capsys) -> None:
    def talks(completions, answer, **_):
        print("so much")
        return right(completions=completions, answer=answer)

    before = json.dumps(ROWS)
    assert check(talks).ok and capsys.readouterr().out == "" and json.dumps(ROWS) == before


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
