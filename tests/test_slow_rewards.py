"""Check `check_rewards` on rewards that are slow or hang.

These tests wait. They stand apart from tests/checks, so that the light part of the suite ends
within a minute.
"""

import time

from grpo_nb.checks.reward_check import check_rewards
from grpo_nb.rewards import completion_text
from tests.checks.test_reward_kinds import SUMS, executed, formed, kinds, right, slot


def test_slow_format_reward_is_judged_by_what_was_scored() -> None:
    def slow(completions, **columns):
        time.sleep(0.012 * len(completions))
        return formed(completions)

    report = check_rewards(slow, SUMS, seconds_per_call=0.05)
    assert report.ok, report
    assert any("slow: some probes, because it is slow" in limit for limit in report.not_checked)


def test_slow_format_reward_does_not_tell_right_from_wrong() -> None:
    calls = []

    def slow(completions, **columns):
        calls.append(completions)
        # The first 24 calls try the task's own layout. The next one tries only a right answer in
        # another layout, because the time is then up.
        if len(calls) > 21:
            time.sleep(0.55)
        return formed(completions)

    report = check_rewards(slow, SUMS, seconds_per_call=0.2)
    assert len(calls) == 25
    assert report.roles == {"slow": "rewards the format, whatever the answer"}
    assert report.ok, report


def test_reward_that_always_hangs_is_not_called_constant() -> None:
    def asleep(completions, **_):
        time.sleep(1)

    assert kinds(check_rewards([asleep, formed], SUMS, seconds_per_call=0.05)) == {"hangs"}


def test_reward_that_is_slow_with_one_completion_is_asked_little() -> None:
    asked = []

    def remote(completions, answer, **_):
        asked.append(len(completions))
        time.sleep(0.03)
        return right(completions, answer)

    report = check_rewards(remote, SUMS, seconds_per_call=0.1)
    # Ten times the limit of one call, and calls that try several completions again.
    assert sum(asked) <= 33 + 6
    assert report.roles == {"remote": "tells right from wrong"}
    assert f"tried with {sum(asked)} completions" in repr(report)


def one_line(completions, answer, **_):
    texts = [completion_text(c) for c in completions]
    golds = [f"<answer>{gold}</answer>" for gold in answer]
    return [float(text.endswith(gold)) for text, gold in zip(texts, golds, strict=True)]


def test_total_in_an_untried_layout_is_listed_as_not_checked() -> None:
    def slow(completions, answer, **_):
        time.sleep(0.03)
        return right(completions, answer)

    report = check_rewards([one_line, slow], SUMS, seconds_per_call=0.1)
    assert any("the weighted total" in part for part in report.not_checked)


def test_slow_reward_next_to_one_for_another_layout_is_checked() -> None:
    def slow(completions, answer, **_):
        time.sleep(0.006 * len(completions))
        return right(completions, answer)

    report = check_rewards([one_line, slow], SUMS, seconds_per_call=0.2)
    assert "another format" in kinds(report)


def test_slow_reward_with_format_bonus_names_another_format() -> None:
    def slow(completions, answer, **_):
        time.sleep(0.006 * len(completions))
        texts = [completion_text(completion) for completion in completions]
        is_right = [text.endswith(f"#### {gold}") for text, gold in zip(texts, answer, strict=True)]
        bonuses = [0.2 * ("<answer>" in text) for text in texts]
        return [sum(pair) for pair in zip(is_right, bonuses, strict=True)]

    assert "another format" in kinds(check_rewards(slow, SUMS))


def test_code_is_tried_before_texts_on_which_rewards_hang() -> None:
    def slow_on_long_words(completions, answer, **_):
        for completion in completions:
            executed(slot(completion) or "")
            lengths = map(len, completion_text(completion).split())
            if max(lengths, default=0) > 1000:
                time.sleep(0.2)
        return right(completions, answer)

    report = check_rewards(slow_on_long_words, SUMS, seconds_per_call=0.1)
    assert "runs the answer as code" in kinds(report)
