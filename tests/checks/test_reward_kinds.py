"""Check `check_rewards` on kinds of rewards that it once missed or wrongly accused."""

import functools
import math
import re
import threading

import pytest

import grpo_nb as gn
from grpo_nb.checks.report import RewardReport
from grpo_nb.checks.reward_check import check_rewards
from grpo_nb.rewards import completion_text
from grpo_nb.tasks import formats

pytestmark = pytest.mark.begins(60)


def make_rows(pairs: list[tuple], **columns: list) -> list[dict]:
    rows = []
    for i, (question, answer) in enumerate(pairs):
        prompt = [{"role": "user", "content": question}]
        row = {"prompt": prompt, "question": question, "answer": answer}
        rows.append(row | {name: values[i] for name, values in columns.items()})
    return rows


SUMS = make_rows(
    [(f"What is {a} + {b}?", str(a + b)) for a, b in ((14, 23), (37, 48), (61, 12), (25, 36))]
)
FEELINGS = ("positive", "negative", "neutral", "positive", "negative", "positive")
LABELS = make_rows([(f"Feeling {i}?", feeling) for i, feeling in enumerate(FEELINGS)])
LARGE = make_rows(
    [(f"Number {i}?", gold) for i, gold in enumerate(("1,204", "57", "3,918", "83", "41", "7,255"))]
)
GAMES = make_rows(
    [("Make 98.", "98"), ("Make 64.", "64"), ("Make 28.", "28")],
    nums=[[44, 19, 35], [63, 95, 94], [95, 11, 56]],
    target=[98, 64, 28],
)
SOLUTIONS = {98: "44 + 19 + 35", 64: "63 + 95 - 94", 28: "95 - 11 - 56"}
FORMED = re.compile(r"<reasoning>.*</reasoning>\s*<answer>.*</answer>\s*", re.DOTALL)


def slot(completion) -> str | None:
    slots = re.findall(r"<answer>\s*(.*?)\s*</answer>", completion_text(completion), re.DOTALL)
    return slots[0] if len(slots) == 1 else None


def right(completions, answer, **_):
    return [float(slot(c) == gold) for c, gold in zip(completions, answer, strict=True)]


def formed(completions, **_):
    return [0.2 * bool(FORMED.fullmatch(completion_text(c))) for c in completions]


def kinds(report: RewardReport, *severities: str) -> set[str]:
    chosen = severities or ("critical", "warning")
    return {finding.kind for finding in report.findings if finding.severity in chosen}


# ---- Silent where it must speak ----


def one_label(completions, **_):
    return [float(slot(c) == "positive") for c in completions]


def one_label_with_gold(completions, answer, **_):
    return [float(slot(c) == "positive") for c in completions]


def label_in_text(completions, label, **_):
    return [float(label in (slot(c) or "")) for c in completions]


class OneLabel:
    __name__ = "one_label_class"
    label = "positive"

    def __call__(self, completions, **_):
        return [float(slot(c) == self.label) for c in completions]


class InheritedOneLabel(OneLabel):
    __name__ = "inherited"


def make_one_label(label):
    def favourite(completions, **_):
        return [float(slot(c) == label) for c in completions]

    return favourite


FAVOURITES = [
    one_label,
    one_label_with_gold,
    functools.partial(label_in_text, label="positive"),
    OneLabel(),
    InheritedOneLabel(),
    make_one_label("negative"),
]


@pytest.mark.parametrize("reward", FAVOURITES, ids=range(len(FAVOURITES)))
def test_lone_reward_for_one_label_is_critical(reward) -> None:
    report = check_rewards(reward, LABELS)
    assert "nothing tells right from wrong" in kinds(report, "critical")


def test_lone_constant_reward_is_a_warning() -> None:
    report = check_rewards(lambda completions, **_: [1.0] * len(completions), SUMS)
    assert kinds(report) == {"constant"}


def test_constant_reward_with_rounding_errors_is_found() -> None:
    def parts(completions, **_):
        return [0.3 if len(completion_text(c)) % 2 else 0.1 + 0.2 for c in completions]

    assert kinds(check_rewards(parts, SUMS)) == {"constant"}


def test_reward_with_another_level_on_each_row_is_not_constant() -> None:
    def shifted(completions, answer, **_):
        pairs = zip(completions, answer, strict=True)
        return [100.0 * float(gold) + (slot(c) == gold) for c, gold in pairs]

    assert "constant" not in kinds(check_rewards(shifted, SUMS))


def test_reward_that_abstains_without_an_answer_has_no_loophole() -> None:
    def abstains(completions, answer, **_):
        scores = []
        for completion, gold in zip(completions, answer, strict=True):
            given = slot(completion)
            scores.append(None if given is None else 1.0 if given == gold else -1.0)
        return scores

    assert not kinds(check_rewards(abstains, SUMS), "critical")


def test_set_without_reward_for_answers_is_critical() -> None:
    def brief(completions, **_):
        return [-float(len(completion_text(c)) > 900) for c in completions]

    assert "nothing tells right from wrong" in kinds(
        check_rewards([formed, brief], SUMS), "critical"
    )


def brevity(completions, **_):
    return [1 / (1 + len(completion_text(c).split())) for c in completions]


def brevity_with_unused_answer(completions, answer, **_):
    return brevity(completions)


@pytest.mark.parametrize("reward", [formed, brevity, brevity_with_unused_answer])
def test_lone_format_or_length_reward_is_not_accused(reward) -> None:
    report = check_rewards(reward, SUMS)
    assert report.ok, report


def test_bounded_bonus_is_not_called_endless() -> None:
    def bonus(completions, answer, **_):
        texts = [completion_text(c) for c in completions]
        bonuses = [len(text) / (len(text) + 2000) for text in texts]
        rights = right(completions, answer)
        return [score + bonus for score, bonus in zip(rights, bonuses, strict=True)]

    report = check_rewards(bonus, SUMS)
    (finding,) = [one for one in report.findings if one.kind == "repetition is rewarded"]
    assert "still raises the score at 64 repetitions" in finding.observation


def test_keyword_repeated_without_end_is_found() -> None:
    def counted(completions, answer, **_):
        return [
            float(completion_text(c).count(a)) for c, a in zip(completions, answer, strict=True)
        ]

    assert "repetition is rewarded" in kinds(check_rewards(counted, LABELS, format=formats.bare()))


def test_growth_with_missing_scores_is_not_called_endless() -> None:
    def silent_between(completions, **_):
        lengths = [len(completion_text(c)) for c in completions]
        scores = [length / 400 if length > 900 else 0.0 for length in lengths]
        is_silent = [150 < length < 400 for length in lengths]
        return [None if silent else s for s, silent in zip(scores, is_silent, strict=True)]

    assert "repetition is rewarded" not in kinds(check_rewards(silent_between, SUMS))


def test_growth_with_failed_lengths_is_not_called_endless() -> None:
    def capped(completions, answer, **_):
        texts = [completion_text(c) for c in completions]
        if any(len(text) > 1000 for text in texts):
            raise MemoryError
        rights = right(completions, answer)
        bonuses = [min(0.5, 0.1 * text.count("the next part")) for text in texts]
        return [s + bonus for s, bonus in zip(rights, bonuses, strict=True)]

    assert "repetition is rewarded" not in kinds(check_rewards(capped, SUMS))


# ---- Loud where it must not be ----


def test_none_for_wrong_answers_counts_as_zero() -> None:
    def right_or_none(completions, answer, **_):
        return [
            1.0 if slot(c) == gold else None for c, gold in zip(completions, answer, strict=True)
        ]

    assert check_rewards(right_or_none, SUMS).ok


def test_none_for_harmless_changes_is_found() -> None:
    def strict(completions, answer, **_):
        slots = [completion_text(c).partition("<answer>\n")[2] for c in completions]
        scores = []
        for text, gold in zip(slots, answer, strict=True):
            has_spaces = text.startswith(" ")
            scores.append(None if has_spaces else float(text.strip() == f"{gold}\n</answer>"))
        return scores

    report = check_rewards(strict, SUMS)
    (finding,) = [one for one in report.findings if one.kind == "right answer refused"]
    assert "with spaces around the answer" in finding.observation


def test_infinite_score_breaks_the_contract() -> None:
    def minus_infinity(completions, answer, **_):
        return [
            1.0 if slot(c) == gold else -math.inf
            for c, gold in zip(completions, answer, strict=True)
        ]

    report = check_rewards(minus_infinity, SUMS)
    assert kinds(report) == {"breaks the contract"}
    assert "a score is -inf; it must be a finite number" in report.findings[0].observation


def test_gold_answers_that_score_nothing_are_named() -> None:
    def digits_only(completions, answer, **_):
        given = [re.fullmatch(r"\d+", slot(c) or "") for c in completions]
        return [float(bool(g) and g[0] == gold) for g, gold in zip(given, answer, strict=True)]

    report = check_rewards(digits_only, LARGE)
    (finding,) = report.findings
    assert finding.kind == "right answer refused on some rows"
    assert "'1,204', '3,918', '7,255'" in finding.observation


def test_rows_of_another_kind_are_no_fault() -> None:
    def numbers(completions, answer, **_):
        scores = right(completions, answer)
        return [
            score if gold.isdigit() else None for score, gold in zip(scores, answer, strict=True)
        ]

    def words(completions, answer, **_):
        scores = right(completions, answer)
        return [
            None if gold.isdigit() else score for score, gold in zip(scores, answer, strict=True)
        ]

    rows = [*SUMS, *LABELS[:3]]
    for rewards in (numbers, [numbers, words]):
        report = check_rewards(rewards, rows)
        assert report.ok, report


def less_the_mean(completions, answer, **_):
    scores = right(completions, answer)
    return [score - sum(scores) / len(scores) for score in scores]


def test_unmarked_ranking_reward_warns_and_shows_the_mark() -> None:
    report = check_rewards(less_the_mean, SUMS)
    assert kinds(report) == {"depends on its group"}
    assert "gn.rewards.relative(reward)" in repr(report)


def test_relative_reward_with_a_wrong_signature_is_critical() -> None:
    def two(completions):
        pytest.fail("it was called")

    report = check_rewards([right, gn.rewards.relative(two)], SUMS)
    assert kinds(report, "critical") == {"breaks the contract"}


class Counter:
    """An environment that counts the calls of its only tool."""

    def reset(self, **row: object) -> None:
        self.calls = 0

    def count(self, steps: int) -> int:
        """Count.

        Args:
            steps: Number of steps.
        """
        self.calls += steps
        return self.calls


def progress(environments, **_):
    return [float(each.calls) for each in environments]


def failing_progress(environments, **_):
    return [vars(each)["steps"] for each in environments]


def unpassed_progress(environments):
    return [float(each.calls) for each in environments]


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        (progress, set()),
        (failing_progress, {"raises"}),
        (unpassed_progress, {"breaks the contract"}),
    ],
)
def test_episode_reward_is_called_but_not_rated(reward, expected: set[str]) -> None:
    task = gn.load_task(SUMS, holdout=1).with_tools(environment=Counter)
    report = check_rewards(reward, task)
    assert kinds(report) == expected
    assert any("it scores episodes" in limit for limit in report.not_checked)


def test_relative_reward_is_not_called() -> None:
    def ranks(completions, **_):
        pytest.fail("it was called")

    report = check_rewards([right, gn.rewards.relative(ranks)], SUMS)
    assert report.ok, report
    assert report.roles == {"right": "tells right from wrong", "ranks": "unknown"}
    assert any(
        "ranks: it ranks the completions of a group" in limit for limit in report.not_checked
    )
    assert report.checked.startswith("Checked 1 reward(s)")
    assert check_rewards(gn.rewards.relative(ranks), SUMS).sentence == "Nothing was checked."


def countdown(completions, target, nums, **_):
    solved = [SOLUTIONS[goal] for goal in target]
    return [float(slot(c) == solution) for c, solution in zip(completions, solved, strict=True)]


def test_countdown_without_expressions_is_offered_a_function() -> None:
    report = check_rewards(countdown, GAMES)
    assert not kinds(report, "critical"), report
    assert kinds(report) == {"constant"}
    assert "answer=right_answer" in repr(report)


def test_countdown_with_a_function_is_judged() -> None:
    report = check_rewards(countdown, GAMES, answer=lambda row: SOLUTIONS[row["target"]])
    assert report.ok, report
    assert report.roles == {"countdown": "tells right from wrong"}


def test_instructions_with_a_function_are_judged() -> None:
    def obeys(completions, keyword, **_):
        texts = [completion_text(c).split() for c in completions]
        return [
            float(word in text and len(text) > 3) for text, word in zip(texts, keyword, strict=True)
        ]

    words = ["river", "bread", "music"]
    rows = [{"question": f"Write about {word}.", "keyword": word} for word in words]
    answer = lambda row: f"some words on {row['keyword']}"  # noqa: E731
    assert check_rewards(obeys, rows, format=formats.bare(), answer=answer).ok


def test_partial_credit_alone_is_not_called_format() -> None:
    def shared(completions, answer, **_):
        scores = []
        for completion, gold in zip(completions, answer, strict=True):
            given = slot(completion) or ""
            same = sum(a == b for a, b in zip(given, gold, strict=False))
            scores.append(1.0 if given == gold else 0.9 * same / max(len(gold), len(given), 1))
        return scores

    assert "format outweighs the answer" not in kinds(check_rewards(shared, SUMS))


def test_think_then_answer_is_a_format() -> None:
    def thinks(completions, **_):
        return [
            float(bool(re.fullmatch(r"<think>.+</think>\s*\S.*", completion_text(c), re.S)))
            for c in completions
        ]

    def after(completions, answer, **_):
        tails = [completion_text(c).partition("</think>")[2].strip() for c in completions]
        return [float(tail == gold) for tail, gold in zip(tails, answer, strict=True)]

    report = check_rewards([after, thinks], SUMS, format=formats.bare())
    assert report.ok, report
    assert report.roles["after"] == "tells right from wrong"


# ---- State ----


def test_state_that_later_calls_show_is_found() -> None:
    class Warming:
        __name__ = "warming"
        calls = 0

        def __call__(self, completions, answer, **_):
            self.calls += len(completions)
            return [score * (self.calls < 300) for score in right(completions, answer)]

    report = check_rewards(Warming(), SUMS)
    (finding,) = [finding for finding in report.findings if finding.kind == "inconsistent"]
    assert "the reward keeps state" in finding.observation


def test_missing_score_of_a_later_call_is_called_none() -> None:
    scored = set()

    def once(completions, **_):
        texts = [completion_text(c) for c in completions]
        scores = [None if text in scored else 1.0 for text in texts]
        scored.update(texts)
        return scores

    (finding,) = check_rewards(once, SUMS).findings
    assert finding.observation.startswith("the same completion gets 1 at first, and none in ")


def test_novelty_is_found_by_the_first_scores() -> None:
    seen = set()

    def novel(completions, answer, **_):
        scores = right(completions, answer)
        for i, completion in enumerate(completions):
            scores[i] += 0.5 * (completion_text(completion) not in seen)
            seen.add(completion_text(completion))
        return scores

    assert "inconsistent" in kinds(check_rewards(novel, SUMS), "critical")


class Novelty:
    """Rewards right answers that it has not seen."""

    __name__ = "novelty"

    def __init__(self) -> None:
        self.seen = ["an earlier one"]

    def state_dict(self):
        return {"seen": self.seen}

    def load_state_dict(self, state):
        self.seen = state["seen"]

    def __call__(self, completions, answer, **_):
        texts = [completion_text(completion) for completion in completions]
        scores = right(completions, answer)
        new = [score * (text not in self.seen) for score, text in zip(scores, texts, strict=True)]
        self.seen += texts
        return new


def test_check_rewards_leaves_the_memory_of_a_reward_as_it_was() -> None:
    novelty = Novelty()
    assert "inconsistent" in kinds(check_rewards(novelty, SUMS), "critical")
    assert novelty.seen == ["an earlier one"]


# ---- Calls cost money ----


def made_judge() -> gn.rewards.judge:
    return gn.rewards.judge(
        lambda messages: pytest.fail("the judge was asked"), "Is it kind?", cache=None
    )


class Panel:
    __name__ = "panel"

    def __init__(self) -> None:
        self.members = {"kind": [made_judge()]}

    def __call__(self, completions, **columns):
        return self.members["kind"][0](completions=completions, **columns)


class Office:
    __name__ = "office"

    def __init__(self) -> None:
        self.panel = Panel()

    def __call__(self, completions, **columns):
        return self.panel(completions, **columns)


def capped_judge():
    asked = made_judge()

    def capped(completions, **columns):
        return [min(score, 0.8) for score in asked(completions=completions, **columns)]

    return capped


def cached_judge():
    asked = made_judge()

    @functools.lru_cache
    def ask(text):
        return asked(completions=[text])[0]

    def cached(completions, **columns):
        return [ask(completion_text(completion)) for completion in completions]

    return cached


static_judge = made_judge()


class Jury:
    @staticmethod
    def ask(completions, columns):
        return static_judge(completions=completions, **columns)

    @classmethod
    def ask_again(cls, completions, columns):
        return cls.ask(completions, columns)


def judge_in_static_method():
    jury = Jury()

    def by_jury(completions, **columns):
        return jury.ask_again(completions, columns)

    return by_jury


def judge_behind_thousands_of_texts():
    answers = {f"question {n}": f"answer {n}" for n in range(3_000)}

    def ask(completions, columns):
        return static_judge(completions=completions, **columns)

    def with_answers(completions, **columns):
        assert answers
        return ask(completions, columns)

    return with_answers


@pytest.mark.parametrize(
    "make",
    [
        capped_judge,
        Panel,
        Office,
        cached_judge,
        judge_in_static_method,
        judge_behind_thousands_of_texts,
    ],
)
def test_function_around_a_judge_is_not_called(make) -> None:
    report = check_rewards(make(), SUMS)
    assert kinds(report) == {"never measured"}
    assert any("this would call a judge" in limit for limit in report.not_checked)


# ---- Lone rewards that look at the answer and not at the gold answer ----


def score_slots(wanted):
    def score(completions, answer, **_):
        return [float(wanted(slot(c), gold)) for c, gold in zip(completions, answer, strict=True)]

    return score


TOPICS = make_rows(
    [(f"Topic {i}?", ("sports", "politics", "science", "culture")[i % 4]) for i in range(12)]
)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda given, gold: given == "sports",
        lambda given, gold: given in ("sports", "politics", "science", "culture"),
    ],
    ids=["the shortest label", "any label"],
)
def test_lone_reward_for_certain_answers_is_no_format_reward(wanted) -> None:
    report = check_rewards(score_slots(wanted), TOPICS)
    assert "nothing tells right from wrong" in kinds(report)


def test_lone_format_reward_for_labels_is_not_accused() -> None:
    assert check_rewards(formed, TOPICS).ok


# ---- Near misses ----


def test_reward_by_distance_is_not_accused_of_searching_the_gold() -> None:
    def near(completions, answer, **_):
        numbers = [slot(c) or "" for c in completions]
        numbers = [float(n) if re.fullmatch(r"-?\d+(\.\d+)?", n) else 1e6 for n in numbers]
        return [-min(10.0, abs(n - float(a))) for n, a in zip(numbers, answer, strict=True)]

    assert kinds(check_rewards(near, SUMS)) == {"near miss"}


def test_length_target_is_not_a_format_that_is_refused() -> None:
    def near_length(completions, words, **_):
        lengths = [len(completion_text(c).split()) for c in completions]
        return [max(-1.0, -abs(n - w) / w) for n, w in zip(lengths, words, strict=True)]

    rows = [{**row, "words": words} for row, words in zip(SUMS, (40, 80, 120, 60), strict=True)]
    assert check_rewards([right, near_length], rows).ok


def test_right_by_a_function_may_hold_for_any_text() -> None:
    def without_e(completions, **_):
        texts = [completion_text(c).strip() for c in completions]
        return [float(bool(text) and "e" not in text) for text in texts]

    rows = make_rows([(f"Write {i} without that letter.", "any") for i in range(4)])
    report = check_rewards(
        without_e, rows, answer=lambda row: "Rain and sun fill a day.", format=formats.bare()
    )
    assert "missing answer is rewarded" not in kinds(report)


# ---- Rewards for a task ----


def test_rewards_for_bare_answers_has_none_for_the_format() -> None:
    rows = [{"question": f"Is {n} odd?", "answer": ("no", "yes")[n % 2]} for n in range(8)]
    task = gn.load_task(rows, format=formats.bare())
    assert [reward.__name__ for reward in gn.rewards.rewards_for(task)] == ["exact_text"]


# ---- Equations, and data of any kind ----


def test_count_of_equations_grows_without_end() -> None:
    def equations(completions, **_):
        return [0.5 * completion_text(c).count("=") for c in completions]

    report = check_rewards([right, equations], SUMS)
    assert kinds(report) == {"repetition is rewarded"}
    assert [finding.reward for finding in report.findings] == ["equations"]


class Opaque:
    """Data without a comparison: each object differs from its copy."""


@pytest.mark.parametrize(
    "make", [pytest.param(threading.Lock, id="no copy"), pytest.param(Opaque, id="no comparison")]
)
def test_column_of_unusual_objects_is_no_fault_of_the_reward(make) -> None:
    assert check_rewards(right, [{**row, "handle": make()} for row in SUMS]).ok


def test_answer_reward_of_negative_weight_lowers_the_gain() -> None:
    def exact(completions, answer, **_):
        return right(completions, answer)

    exact.weight = -1.0
    twice = functools.partial(right)
    twice.weight = 2.0
    report = check_rewards([twice, exact, gn.rewards.exact_format(weight=1.5)], SUMS)
    assert "format outweighs the answer" in kinds(report)


# ---- Answers that are executed ----


def executed(text: str) -> object:
    """Return the value of a text as Python code, None if it is no code."""
    try:
        return eval(text)
    except Exception:
        return None


def test_code_outside_the_format_that_is_executed_is_found() -> None:
    def last_line(completions, answer, **_):
        values = [executed(completion_text(one).split("\n")[-1]) for one in completions]
        is_given = [str(value) == gold for value, gold in zip(values, answer, strict=True)]
        is_right = right(completions, answer)
        return [max(pair) for pair in zip(is_given, is_right, strict=True)]

    assert "runs the answer as code" in kinds(check_rewards(last_line, SUMS))


def test_missing_score_of_wrong_answers_is_above_a_negative_one() -> None:
    def punishes(completions, answer, **_):
        pairs = zip(completions, answer, strict=True)
        scores = [-0.5 if slot(c) == gold else None for c, gold in pairs]
        return [
            -1.0 if slot(c) is None else score for c, score in zip(completions, scores, strict=True)
        ]

    report = check_rewards(punishes, SUMS)
    assert report.roles["punishes"] != "tells right from wrong", report
