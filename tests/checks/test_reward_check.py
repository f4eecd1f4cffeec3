"""Check what `check_rewards` finds in broken rewards, and that it leaves sound ones alone.

tests/test_check_faults.py has more of both, and `test_reward_kinds.py` rewards of special kinds.
"""

import functools
import random
import re
import threading
import time
from dataclasses import dataclass

import numpy
import pytest

import grpo_nb as gn
from grpo_nb.checks.report import KINDS, WHOLE_SET, RewardReport, make_finding
from grpo_nb.checks.reward_check import check_rewards
from grpo_nb.checks.reward_code import texts_in
from grpo_nb.checks.rows import FIRST_ROW_COUNT
from grpo_nb.rewards import completion_text
from grpo_nb.tasks import formats

pytestmark = pytest.mark.begins(60)


def make_rows(*pairs: tuple[str, str]) -> list[dict]:
    rows = []
    for question, answer in pairs:
        prompt = [{"role": "user", "content": question}]
        rows.append({"prompt": prompt, "question": question, "answer": answer})
    return rows


PAIRS = ((20, 22), (8, 9), (30, 33), (50, 41), (60, 16), (2, 3))
SUMS = make_rows(*((f"What is {a} + {b}?", str(a + b)) for a, b in PAIRS))
CITIES = make_rows(
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
        texts = map(completion_text, completions)
        return [float(score(text, gold)) for text, gold in zip(texts, answer, strict=True)]

    reward.__name__ = score.__name__
    return reward


def matching(pattern: str, flags: int = 0):
    """Make a format reward for texts that begin with a pattern."""

    @by_text
    def matches(text, gold):
        return bool(re.match(pattern, text, flags))

    return matches


def kinds(report: RewardReport, *severities: str) -> set[str]:
    wanted = severities or ("critical", "warning")
    return {finding.kind for finding in report.findings if finding.severity in wanted}


# ---- Sound rewards ----


@by_text
def right(text, gold):
    return slots(text) == [gold]


def weighted(reward, weight: float):
    """Return the reward with another weight."""
    changed = functools.partial(reward)
    changed.weight = weight
    return changed


def not_too_long(completions, **_):
    return [-0.5 * (len(completion_text(c).split()) > 150) for c in completions]


KIT_REWARDS = [
    gn.rewards.correctness(),
    gn.rewards.exact_format(),
    gn.rewards.partial_format(weight=0.5),
]


@pytest.mark.parametrize(
    "rewards",
    [
        pytest.param([right], id="answer"),
        pytest.param([right, not_too_long], id="answer and length"),
        pytest.param([not_too_long], id="length"),
        pytest.param(KIT_REWARDS, id="rewards of the kit"),
        pytest.param(KIT_REWARDS[1:2], id="format"),
    ],
)
def test_sound_rewards_are_not_accused(rewards) -> None:
    report = check_rewards(rewards, SUMS)
    assert report.ok, report


@pytest.mark.parametrize("rows", [SUMS, CITIES], ids=["sums", "cities"])
@pytest.mark.parametrize(
    "format",
    [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes(), formats.bare()],
    ids=lambda format: format.name,
)
def test_correctness_is_sound_in_every_format(format, rows) -> None:
    report = check_rewards(gn.rewards.correctness(format=format), rows, format=format)
    assert report.ok, report


def test_reward_with_answers_outside_the_gold_column_is_sound() -> None:
    def one_of(completions, all, **_):
        texts = map(completion_text, completions)
        pairs = zip(texts, all, strict=True)
        return [float(any(slots(text) == [one] for one in golds)) for text, golds in pairs]

    rows = [{"question": f"{n}?", "all": list(("A", "B", "CAD", "D")[n % 4])} for n in range(12)]
    assert check_rewards(one_of, rows, answer="all").ok


def test_rows_with_arrays_are_sound() -> None:
    assert check_rewards(right, [{**row, "numbers": numpy.arange(3)} for row in SUMS]).ok


def test_a_single_row_is_enough() -> None:
    assert check_rewards(right, SUMS[:1]).ok


def test_reward_for_source_code_is_not_critical() -> None:
    code = make_rows(*((f"Add {n}.", f"def f(x):\n    return x + {n}") for n in (3, 5, 8)))
    assert not kinds(check_rewards(gn.rewards.exact_text(), code), "critical")


@dataclass
class GoldAnswer:
    """A function of the row that has no hash, because a dataclass compares its fields."""

    column: str

    def __call__(self, row: dict) -> str:
        return row[self.column]


def test_answer_function_without_a_hash_is_accepted() -> None:
    rows = [{"question": f"{n} + {n}?", "gold": str(2 * n)} for n in range(3, 9)]
    report = check_rewards(gn.rewards.exact_format(), rows, answer=GoldAnswer("gold"))
    assert report.ok


def test_answer_may_be_a_function_of_the_row() -> None:
    rows = [{**row, "gold": f"It is {row['answer']}"} for row in SUMS]
    assert check_rewards(right, rows, answer=lambda row: row["gold"].split()[-1]).ok


# ---- Broken rewards, of kinds that no fault of the study has ----

PHRASES = {"i am certain": 1.0}
WITH_BOUNDARY = r"\bi am certain\b"
LONG_PATTERN = r"^(?=.*\bi am certain\b)(?!.*\bmaybe\b)(?!.*\bperhaps\b)(?!.*\blikely\b)"


@by_text
def key_somewhere(text, gold):
    return slots(text) == [gold] or any(phrase in text for phrase in PHRASES)


@by_text
def certain_words(text, gold):
    return slots(text) == [gold] or bool(re.search(WITH_BOUNDARY, text))


@by_text
def long_pattern(text, gold):
    return slots(text) == [gold] or bool(re.search(LONG_PATTERN, text, re.DOTALL))


@pytest.mark.parametrize("reward", [key_somewhere, certain_words, long_pattern])
def test_phrase_in_a_key_or_pattern_is_tried(reward) -> None:
    assert "a phrase is rewarded" in kinds(check_rewards(reward, SUMS), "critical")


@by_text
def gold_somewhere(text, gold):
    return gold in text


@by_text
def last_number(text, gold):
    return (re.findall(r"-?\d+", text) or [""])[-1] == gold


@by_text
def no_dotall(text, gold):
    slot = rf"<answer>\n{re.escape(gold)}\n</answer>"
    return bool(re.fullmatch(rf"<reasoning>\n.*\n</reasoning>\n{slot}\s*", text))


@by_text
def slot_alone(text, gold):
    slot = re.fullmatch("<answer>(.*)</answer>", text)
    return bool(slot) and slot[1] == gold


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
    pytest.param(gold_somewhere, "every candidate", id="gold somewhere"),
    pytest.param(last_number, "answer outside the slot", id="last number"),
    pytest.param(no_dotall, "right answer refused", id="no DOTALL"),
    pytest.param(slot_alone, "another format", id="slot alone"),
    pytest.param(only_long_ones, "right answer refused on some rows", id="only long answers"),
    pytest.param(nested_repeats, "hangs", id="nested repeats"),
    pytest.param(of_the_row, "constant", id="same for a row"),
    pytest.param(nothing, "constant", id="None"),
    pytest.param(noisy, "inconsistent", id="random"),
    pytest.param(wants_a_solution, "breaks the contract", id="missing column"),
    pytest.param(takes_no_more, "breaks the contract", id="no **columns"),
]


@pytest.mark.parametrize(("reward", "kind"), BROKEN)
def test_broken_reward_is_found(reward, kind: str) -> None:
    seconds = 0.1 if kind == "hangs" else 0.25
    report = check_rewards(reward, SUMS, seconds_per_call=seconds)
    findings = [finding for finding in report.findings if finding.kind == kind]
    assert findings, report
    assert findings[0].severity == KINDS[kind]["severity"]


def test_findings_have_effect_and_fix() -> None:
    (finding, *_) = check_rewards(gold_somewhere, SUMS).findings
    assert finding.effect == KINDS[finding.kind]["effect"]
    assert finding.fix == KINDS[finding.kind]["fix"]
    assert finding.example


def test_reward_for_the_first_letters_is_a_near_miss() -> None:
    @by_text
    def first_letters(text, gold):
        return any(slot and gold.startswith(slot) for slot in slots(text))

    animals = make_rows(("a?", "mammal"), ("b?", "reptile"), ("c?", "insect"))
    assert "near miss" in kinds(check_rewards(first_letters, animals))


@pytest.mark.parametrize("compare", [set.issubset, set.issuperset])
def test_reward_for_a_part_of_a_list_of_words_has_a_near_miss(compare) -> None:
    @by_text
    def other_length(text, gold):
        return any(
            slot and compare(set(slot.split(", ")), gold.split(", ")) for slot in slots(text)
        )

    colours = make_rows(("a?", "red, green"), ("b?", "blue, black"), ("c?", "white, pink"))
    assert "near miss" in kinds(check_rewards(other_length, colours))


LINES = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>"


def test_broken_reward_is_critical_with_a_renamed_gold_column() -> None:
    def never_right(completions, solution, **_):
        return [float(gold == "x") for gold in solution]

    rows = [{"question": row["question"], "solution": row["answer"]} for row in SUMS]
    report = check_rewards(never_right, rows, answer="solution")
    assert "nothing tells right from wrong" in kinds(report, "critical")


def test_error_of_a_reward_is_not_taken_for_its_return_value() -> None:
    def fails(completions, **_):
        raise ValueError("it returned nothing")

    assert "raises" in kinds(check_rewards(fails, SUMS))


def test_reward_that_fails_on_each_right_answer_is_judged() -> None:
    def fails(text, gold):
        if gold in slots(text):
            raise KeyError(gold)
        return int((re.findall(r"\d+", text) or ["0"])[-1]) % 2

    report = check_rewards(by_text(fails), SUMS)
    assert {"raises", "nothing tells right from wrong"} <= kinds(report)


def test_texts_are_found_once_in_data_with_shared_parts() -> None:
    words = ["a phrase"]
    for _ in range(3):
        words = [words] * 100

    def reward(completions, **_):
        return [float(text in words) for text in completions]

    assert list(texts_in(reward)).count("a phrase") == 1


PATTERN_OF_BYTES = re.compile(rb"<answer>\s*(.*?)\s*</answer>", re.DOTALL)


def test_reward_with_a_pattern_of_bytes_is_checked() -> None:
    @by_text
    def encoded(text, gold):
        return PATTERN_OF_BYTES.findall(text.encode("utf-8", "replace")) == [gold.encode()]

    assert check_rewards(encoded, SUMS).ok


def test_format_reward_may_want_the_line_breaks_of_the_prompt() -> None:
    report = check_rewards(matching(rf"{LINES}\s*$", re.DOTALL), SUMS)
    assert report.ok, report


def test_format_reward_without_dotall_is_found() -> None:
    assert "right answer refused" in kinds(check_rewards(matching(f"{LINES}$"), SUMS))


def test_format_reward_that_wants_a_last_newline_is_found() -> None:
    assert "another format" in kinds(check_rewards(matching(f"{LINES}\n$", re.DOTALL), SUMS))


def test_format_reward_for_another_prompt_is_constant() -> None:
    thought = matching(r"<think>.*</think>\s*<answer>.*</answer>\s*$", re.DOTALL)
    assert check_rewards(thought, SUMS).findings[0].kind == "constant"
    assert "constant" not in kinds(check_rewards(thought, SUMS, format=formats.think_answer()))


def test_reward_for_the_first_label_of_a_sorted_file_is_found() -> None:
    @by_text
    def always(text, gold):
        return slots(text) == ["positive"]

    labels = ["positive"] * 200 + ["negative"] * 200
    moods = make_rows(*((f"Mood of review {i}?", label) for i, label in enumerate(labels)))
    assert "nothing tells right from wrong" in kinds(check_rewards(always, moods), "critical")


# ---- Sets of rewards ----

FORMAT_ONLY = [gn.rewards.exact_format(), gn.rewards.partial_format()]
BROKEN_SETS = [
    pytest.param("nothing tells right from wrong", FORMAT_ONLY, id="format only"),
    pytest.param(
        "nothing tells right from wrong", [weighted(right, -1.0), not_too_long], id="negative"
    ),
    pytest.param(
        "format outweighs the answer",
        [right, gn.rewards.exact_format(weight=3.0)],
        id="heavy format",
    ),
    pytest.param(
        "format outweighs the answer",
        [weighted(right, 0.5), gn.rewards.exact_format()],
        id="light answer",
    ),
]


@pytest.mark.parametrize(("kind", "rewards"), BROKEN_SETS)
def test_broken_set_is_found(kind: str, rewards: list) -> None:
    report = check_rewards(rewards, SUMS)
    assert [f.reward for f in report.findings if f.kind == kind] == [WHOLE_SET], report


# ---- The report ----


def test_report_escapes_completions() -> None:
    html = check_rewards(gold_somewhere, SUMS)._repr_html_()
    assert "<answer>" not in html
    assert "&lt;answer&gt;" in html


def test_report_names_the_reward_of_each_finding() -> None:
    report = check_rewards(gold_somewhere, SUMS)
    assert {finding.reward for finding in report.findings} == {"gold_somewhere"}
    assert not report.ok


@by_text
def first_word(text, gold):
    return text.split()[0] == gold or right([text], [gold])[0]


def test_report_counts_a_failed_text_on_each_row() -> None:
    report = check_rewards(first_word, SUMS)
    (finding,) = [finding for finding in report.findings if finding.kind == "raises"]
    assert finding.observation.startswith(f"{FIRST_ROW_COUNT} of ")


def test_report_shows_an_empty_completion_as_such() -> None:
    report = check_rewards(first_word, SUMS)
    (finding,) = [finding for finding in report.findings if finding.kind == "raises"]
    assert finding.example == ""
    assert "an empty completion" in repr(finding)


def test_report_without_an_example_shows_none() -> None:
    (finding,) = check_rewards(of_the_row, SUMS[:1]).findings[:1]
    assert finding.example is None
    assert "example" not in repr(finding)


def test_report_lists_the_worst_findings_first() -> None:
    @by_text
    def long_gold_somewhere(text, gold):
        return len(gold) > 1 and gold in text

    findings = check_rewards(long_gold_somewhere, SUMS).findings
    severities = [finding.severity for finding in findings]
    assert severities == sorted(severities)  # "critical" comes before "warning"
    assert {*severities} == {"critical", "warning"}


def test_report_counts_the_worst_findings_first() -> None:
    findings = [make_finding(kind, "a", "") for kind in ("near miss", "raises")]
    report = RewardReport(findings=tuple(findings), roles={}, checked="")
    assert report.sentence == "Found: 1 critical, 1 warning."


def test_raise_if_critical_names_the_findings() -> None:
    with pytest.raises(gn.checks.RewardProblem, match="every candidate"):
        check_rewards(gold_somewhere, SUMS).raise_if_critical()


def test_raise_if_critical_returns_a_good_report() -> None:
    assert check_rewards(right, SUMS).raise_if_critical().ok


def test_report_says_that_tokens_were_not_counted() -> None:
    def brief(completions, completion_ids, **_):
        return [float(len(ids) < 50) for ids in completion_ids]

    not_checked = check_rewards(brief, SUMS).not_checked
    assert any("without tokenizer" in limit for limit in not_checked)


def test_report_says_what_a_slow_reward_was_not_tried_with() -> None:
    def slow(completions, answer, **_):
        time.sleep(0.01 * len(completions))
        return right(completions=completions, answer=answer)

    report = check_rewards(slow, SUMS, seconds_per_call=0.05)
    assert any("slow: some probes, because it is slow" in limit for limit in report.not_checked)
    assert report.roles == {"slow": "tells right from wrong"}


def asleep(completions, **_):
    time.sleep(0.25)


def test_reward_that_hangs_on_a_second_call_is_found() -> None:
    seen = set()
    hung = []

    def slow_again(completions, answer, **_):
        calls = {*zip(map(completion_text, completions), answer, strict=True)}
        if calls & seen:
            hung.append(calls)
            time.sleep(1)
        seen.update(calls)
        return right(completions=completions, answer=answer)

    assert kinds(check_rewards(slow_again, SUMS, seconds_per_call=0.05)) == {"hangs"}
    assert len(hung) == 1  # it is not called again


def test_second_call_that_fails_is_shown_with_its_completion() -> None:
    seen = set()
    failed = []

    @by_text
    def forgets_wrong_answers(text, gold):
        is_right = right([text], [gold])[0]
        if not is_right and (text, gold) in seen:
            failed.append(text)
            raise KeyError(text)
        seen.add((text, gold))
        return is_right

    report = check_rewards(forgets_wrong_answers, SUMS)
    (finding,) = [finding for finding in report.findings if finding.kind == "inconsistent"]
    assert finding.example == failed[0]


def test_reward_that_changes_a_column_is_found() -> None:
    def empties_a_column(completions, answer, **_):
        scores = right(completions=completions, answer=answer)
        answer.clear()
        return scores

    assert "changes its inputs" in kinds(check_rewards(empties_a_column, SUMS), "critical")


def test_reward_that_changes_a_cell_leaves_the_rows_as_they_were() -> None:
    def empties_the_cells(completions, answer, nums, **_):
        for cell in nums:
            cell.clear()
        return right(completions=completions, answer=answer)

    rows = [{**row, "nums": [1, 2]} for row in SUMS]
    assert "changes its inputs" in kinds(check_rewards(empties_the_cells, rows), "critical")
    assert all(row["nums"] == [1, 2] for row in rows)


def test_column_that_some_rows_lack_is_none_there() -> None:
    hints = set()

    def hinted(completions, answer, hint, **_):
        hints.update(hint)
        return right(completions=completions, answer=answer)

    assert check_rewards(hinted, [*SUMS[:3], {**SUMS[3], "hint": "add"}]).ok
    assert hints == {None, "add"}


def test_hung_reward_costs_a_bounded_time() -> None:
    start = time.monotonic()
    assert "hangs" in kinds(check_rewards(asleep, SUMS, seconds_per_call=0.05))
    assert time.monotonic() - start < 5


def test_hung_reward_off_the_main_thread_costs_a_bounded_time() -> None:
    reports = []
    start = time.monotonic()
    check = lambda: reports.append(check_rewards(asleep, SUMS, seconds_per_call=0.05))  # noqa: E731
    thread = threading.Thread(target=check)
    thread.start()
    thread.join()
    assert "hangs" in kinds(reports[0])
    assert time.monotonic() - start < 10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"rewards": []}, "reward", id="no rewards"),
        pytest.param({"rewards": [right, right]}, "right", id="two of one name"),
        pytest.param({"task": []}, "no rows", id="no rows"),
        pytest.param({"task": None}, "None", id="no task"),
        pytest.param(
            {"answer": "gold"}, "no row has a gold answer with answer='gold'", id="no such column"
        ),
        pytest.param(
            {"answer": lambda row: None},
            "no row has a gold answer with answer=<function .*<lambda>",
            id="no answer",
        ),
        pytest.param({"seconds_per_call": 0}, "seconds_per_call", id="no time"),
    ],
)
def test_invalid_argument_is_refused_before_any_call(change: dict, message: str) -> None:
    def uncalled(completions, **_):
        pytest.fail("it was called")

    arguments = {"rewards": uncalled, "task": SUMS, **change}
    with pytest.raises((ValueError, TypeError), match=message):
        check_rewards(**arguments)
