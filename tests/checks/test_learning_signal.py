"""Check the verdict, numbers and advice of a baseline on completions written by hand."""

import dataclasses
import random

import numpy
import pytest

import grpo_nb as gn
from grpo_nb.checks.learning_signal import Baseline
from grpo_nb.checks.levels import choose_level
from grpo_nb.scoring.advantages import group_advantages
from grpo_nb.scoring.grader import Grader, deciding_reward, make_grader

pytestmark = pytest.mark.begins(130)

FORMAT = gn.tasks.xml()
RIGHT = FORMAT.render("1 + 1 = 2", "2")
WRONG = FORMAT.render("1 + 1 = 3", "3")
PROSE = "It is two, I think."
BEGUN = "<reasoning>on and on"
REWARDS = [
    gn.rewards.correctness(weight=2.0),
    gn.rewards.exact_format(weight=1.0),
    gn.rewards.partial_format(weight=1.0),
]
EXAMPLE = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": FORMAT.render("2 + 2 = 4", "4")},
]


def make(groups, rewards=REWARDS, *, truncated="", example=True, greedy=(), **settings) -> Baseline:
    """Return a baseline of completions written by hand, in groups of the same size.

    Completions that end with `truncated` count as truncated, if that is not empty.
    """
    texts = [text for group in groups for text in group]
    prompt = [{"role": "user", "content": "1 + 1?"}]
    if example:
        prompt = [*EXAMPLE, *prompt]
    rows = tuple(
        {"prompt": prompt, "question": f"<b>question {i}</b>", "answer": "2"}
        for i in range(len(groups))
    )
    return Baseline(
        scores=gn.score(rewards, texts, {"answer": "2"}),
        greedy_scores=gn.score(rewards, greedy or [WRONG] * len(groups), rows),
        num_generations=len(groups[0]),
        rows=rows,
        is_truncated=tuple(bool(truncated) and text.endswith(truncated) for text in texts),
        format=FORMAT,
        settings=gn.preset("cpu", **settings),
        grader=Grader(reward=gn.rewards.correctness()),
    )


def advice_names(before: Baseline) -> set[str]:
    return {advice.name for advice in before.advice}


def test_baseline_with_text_after_answers_reads_none() -> None:
    assert make([[f"{RIGHT} No, 3."] * 4] * 4).readable_share == 0


def constant(completions, **columns):
    return [1.0] * len(completions)


def silent(completions, **columns):
    return [None] * len(completions)


def longer(completions, **columns):
    return [float(len(str(text))) for text in completions]


NO_TAGS = WRONG.replace("<", "(")


@pytest.mark.parametrize(
    ("groups", "rewards", "verdict", "counts"),
    [
        pytest.param([[NO_TAGS] * 4] * 8, REWARDS, "no signal", {"all wrong": 8}, id="wrong"),
        pytest.param([[RIGHT] * 4] * 8, REWARDS, "no signal", {"all right": 8}, id="right"),
        pytest.param(
            [[WRONG] * 4] * 4 + [[RIGHT] * 4] * 2,
            REWARDS,
            "no signal",
            {"all wrong": 4, "all right": 2},
            id="right or wrong groups",
        ),
        pytest.param(
            [[RIGHT, WRONG, PROSE, WRONG]] * 8, REWARDS, "signal", {"differs": 8}, id="mixed"
        ),
        pytest.param(
            [[RIGHT, WRONG]] * 4 + [[WRONG] * 2] * 4,
            REWARDS,
            "weak signal",
            {"differs": 4, "all wrong": 4},
            id="4 of 8",
        ),
        pytest.param(
            [[RIGHT, WRONG]] * 5 + [[WRONG] * 2] * 3,
            REWARDS,
            "signal",
            {"differs": 5, "all wrong": 3},
            id="5 of 8",
        ),
        pytest.param(
            [[WRONG, PROSE, PROSE, WRONG]] * 8,
            REWARDS,
            "format only",
            {"differs": 8},
            id="format only",
        ),
        # correctness() decides, which is none of these rewards.
        pytest.param(
            [[WRONG, PROSE]] * 8, [constant, longer], "format only", {"differs": 8}, id="functions"
        ),
        pytest.param([[WRONG, PROSE]] * 8, [longer], "signal", {"differs": 8}, id="one function"),
        # The grader tells right from wrong, even if the rewards do not.
        pytest.param(
            [[RIGHT, WRONG]] * 4, [constant], "no signal", {"all equal": 4}, id="constant"
        ),
        pytest.param([[WRONG] * 4] * 4, [silent], "no signal", {"all wrong": 4}, id="silent"),
    ],
)
def test_baseline_verdict_and_counts(groups, rewards, verdict: str, counts: dict) -> None:
    before = make(groups, rewards)
    assert before.verdict == verdict
    assert before.sentence.startswith(f"{verdict.capitalize()}: ")
    assert {kind: count for kind, count in before.result_counts.items() if count} == counts
    assert before.sentence in repr(before)


def test_baseline_shows_sampled_and_greedy_shares() -> None:
    before = make([[RIGHT, WRONG, WRONG, WRONG]] * 8, greedy=[RIGHT] * 7 + [WRONG])
    assert before.sampled_accuracy == 0.25
    assert "25% of the sampled completions, 88% of the greedy ones" in repr(before)


def test_baseline_shows_majority_class_baseline() -> None:
    before = make([[RIGHT, WRONG]] * 8)
    assert "always answering" not in repr(before)
    with_majority = dataclasses.replace(before, majority=("yes", 0.6))
    assert "always answering 'yes' would get 60%" in repr(with_majority)


def test_baseline_asks_its_grader_what_is_right() -> None:
    reward = gn.rewards.correctness(tolerance=0.5)
    before = make([[FORMAT.render("so", "2.3"), WRONG]], [reward])
    assert before.sampled_accuracy == 0
    assert dataclasses.replace(before, grader=Grader(reward=reward)).sampled_accuracy == 0.5


def test_baseline_asks_a_function_what_is_right() -> None:
    def twice(completions: list, answer: list, **columns: object) -> list[float]:
        return [2.0 * (gold in str(text)) for text, gold in zip(completions, answer, strict=True)]

    rewards = [twice, gn.rewards.partial_format()]
    before = make([["it is 2", "it is 3"]] * 4, rewards, greedy=["2"] * 4)
    grader = make_grader(deciding_reward(rewards), before.rows, FORMAT)
    graded = dataclasses.replace(before, grader=grader)
    assert graded.sampled_accuracy == 0.5
    assert "100% of the greedy ones" in repr(graded)
    assert "answers to which twice() gives 2 or more" in repr(graded)


@pytest.mark.parametrize(
    ("name", "before"),
    [
        pytest.param("example turn", make([[PROSE] * 4] * 4, example=False), id="example"),
        pytest.param(
            "longer completions",
            make([[RIGHT, BEGUN, WRONG, PROSE]] * 4, truncated="on"),
            id="longer",
        ),
    ],
)
def test_advice_has_numbers_and_code_that_compiles(name: str, before: Baseline) -> None:
    (advice,) = [advice for advice in before.advice if advice.name == name]
    assert any(letter.isdigit() for letter in advice.reason)
    assert name in repr(before)
    assert name in before._repr_html_()
    compile(advice.code, "advice", "exec")


def test_advice_on_settings_changes_them() -> None:
    before = make([[RIGHT, BEGUN, WRONG, PROSE]] * 4, truncated="on")
    lines = [advice.code for advice in before.advice if advice.code.startswith("settings")]
    for line in lines:
        scope = {"settings": before.settings}
        exec(line, scope)
        assert scope["settings"] != before.settings
    assert lines


def test_advice_is_empty_for_a_good_signal() -> None:
    before = make([[RIGHT, WRONG, PROSE, RIGHT]] * 8)
    assert before.advice == ()
    assert "Nothing to change" in repr(before)


def test_baseline_without_a_signal_never_says_nothing_to_change() -> None:
    before = make([[RIGHT, WRONG]] * 4, [constant])
    assert before.verdict == "no signal"
    assert before.advice == ()
    assert "to change" not in repr(before)


def test_advice_with_an_example_turn_proposes_none() -> None:
    assert "example turn" not in advice_names(make([[PROSE] * 4] * 4))


def test_advice_turn_of_a_conversation_is_no_example() -> None:
    before = make([[PROSE] * 4] * 4, example=False)
    turns = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Hello."}]
    rows = tuple({**row, "prompt": [*turns, *row["prompt"]]} for row in before.rows)
    assert "example turn" in advice_names(dataclasses.replace(before, rows=rows))


def test_advice_without_format_proposes_no_length() -> None:
    before = make([[PROSE] * 4] * 4, truncated=PROSE, example=False)
    assert "longer completions" not in advice_names(before)


def test_advice_on_length_claims_no_started_format() -> None:
    before = make([[RIGHT, PROSE]] * 4, truncated=PROSE)
    (advice,) = [one for one in before.advice if one.name == "longer completions"]
    assert advice.reason.startswith("4 of 8 completions were truncated")
    assert "begun the format" not in advice.reason


def test_advice_on_answers_cut_in_their_format_is_length_alone() -> None:
    before = make([[BEGUN] * 4] * 4, truncated="on", example=False)
    assert advice_names(before) == {"longer completions"}


def test_advice_takes_a_closed_reasoning_for_begun_format() -> None:
    closed = "3 + 4 = 7 </reasoning> and so on"
    before = make([[closed] * 4] * 4, truncated="on", example=False)
    assert advice_names(before) == {"longer completions"}


def test_advice_takes_reasoning_opened_by_the_template_for_begun_format() -> None:
    before = make([["on and on"] * 4] * 4, truncated="on", example=False)
    format = dataclasses.replace(gn.tasks.think_answer(), is_opened_by_template=True)
    assert advice_names(dataclasses.replace(before, format=format)) == {"longer completions"}


def test_advice_takes_no_closing_brace_for_begun_format() -> None:
    fraction = r"It is \frac{1}{2} and so on"
    before = make([[fraction] * 4] * 4, truncated="on", example=False)
    before = dataclasses.replace(before, format=gn.tasks.boxed())
    assert advice_names(before) == {"example turn"}


def near(completions, **columns):
    return [0.5 * ("3" in str(text)) for text in completions]


BY_NEAR = Grader(reward=near)
IN_FORMAT_ONLY = [[WRONG, PROSE]] * 7


@pytest.mark.parametrize(
    ("before", "reason"),
    [
        pytest.param(
            make([*IN_FORMAT_ONLY, [RIGHT, RIGHT]]),
            "This level gives no learning signal",
            id="one group all right",
        ),
        pytest.param(
            make([*IN_FORMAT_ONLY, [RIGHT, WRONG]]), "There is something", id="one right answer"
        ),
        pytest.param(
            dataclasses.replace(make(IN_FORMAT_ONLY, [near]), grader=BY_NEAR),
            "There is something",
            id="partial credit",
        ),
        pytest.param(
            make([*IN_FORMAT_ONLY, [RIGHT, PROSE]], [longer, constant]),
            "There is something",
            id="constant reward, grader not among the rewards",
        ),
    ],
)
def test_choose_level_takes_signal_of_answers(monkeypatch, before: Baseline, reason: str) -> None:
    monkeypatch.setattr("grpo_nb.checks.levels.baseline", lambda *_, **__: before)
    assert reason in choose_level(None, None, [None], REWARDS, None).sentence


def test_advice_finds_the_example_behind_a_call_without_text() -> None:
    before = make([[PROSE] * 4] * 4)
    call = {"role": "assistant", "content": None, "tool_calls": []}
    rows = [{**row, "prompt": [call, *row["prompt"]]} for row in before.rows]
    assert advice_names(dataclasses.replace(before, rows=rows)) == set()


@pytest.mark.parametrize("seed", range(40))
def test_baseline_numbers_add_up(seed: int) -> None:
    generator = random.Random(seed)
    size = generator.choice([2, 3, 8])
    count = generator.randint(1, 9)
    pool = [RIGHT, WRONG, PROSE, "", "<answer>2</answer>", "<reasoning>"]
    few = generator.sample(pool, generator.randint(1, 3))
    before = make([[generator.choice(few) for _ in range(size)] for _ in range(count)])
    assert sum(before.result_counts.values()) == count == len(before.group_results)

    low, high = before.differing_interval
    assert 0 <= low <= before.result_counts["differs"] / count <= high <= 1


@pytest.mark.parametrize("seed", range(10))
def test_baseline_group_differs_if_an_advantage_is_not_0(seed: int) -> None:
    generator = random.Random(seed)
    groups = [[generator.choice([RIGHT, WRONG, PROSE]) for _ in range(3)] for _ in range(9)]
    before = make(groups)
    advantages = numpy.reshape(group_advantages(before.scores.totals, 3), (9, 3))
    moved = (abs(advantages) > 0.01).any(axis=1)
    assert moved.sum() == before.result_counts["differs"]


def test_baseline_escapes_completions() -> None:
    judge_name = "<script>alert(1)</script>"

    def named(completions, **columns):
        return [float(len(str(text))) for text in completions]

    named.__name__ = judge_name
    html = make([[PROSE, WRONG], ["\ud800\0"] * 2], [named])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html
    html.encode()
