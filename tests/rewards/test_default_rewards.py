"""The rewards that fit a task, by its answers; and rows that a reward cannot read."""

import pytest

import grpo_nb as gn

KINDS = [
    pytest.param(["12", "7", "1,200"], "1,200", "1200", "13", "correctness", id="numbers"),
    pytest.param(
        ["negative", "positive", "neutral"],
        "positive",
        "Positive",
        "positive or negative",
        "exact_text",
        id="labels",
    ),
    pytest.param(["A", "B", "C"], "B", "(B)", "A or B", "correctness", id="letters"),
    pytest.param(
        [r"\frac{x}{2}", "x^2", "2x"], "x^2", r"x \cdot x", "x^3", "maths", id="expressions"
    ),
    pytest.param(
        ['{"a": 1}', '{"a": 2}', '{"a": 3}'],
        '{"a": 2}',
        '{"a": 2.0}',
        '{"a": 1}',
        "correctness",
        id="json",
    ),
    pytest.param(
        ["Paris", "Oslo is cold", "Lima"], "Lima", "lima.", "Paris", "correctness", id="text"
    ),
]


@pytest.mark.parametrize("format", [gn.tasks.xml(), gn.tasks.boxed()], ids=lambda one: one.name)
@pytest.mark.parametrize(("golds", "gold", "right", "wrong", "kind"), KINDS)
def test_default_rewards_score_right_above_the_format(
    golds: list, gold: str, right: str, wrong: str, kind: str, format: gn.tasks.AnswerFormat
) -> None:
    # Labels and letters are told from text by their repetition.
    copies = 4 if gold in ("positive", "B") else 1
    rows = []
    for copy in range(copies):
        rows += [{"question": f"question {i} {copy}", "answer": a} for i, a in enumerate(golds)]
    task = gn.load_task(rows, holdout=1, format=format)
    rewards = gn.rewards.rewards_for(task)
    assert type(rewards[0]).__name__ == kind
    texts = [task.format.render("so", right), task.format.render("so", wrong), right]
    assert gn.score(rewards, texts, {"answer": gold}).totals == (3.5, 1.5, 0.0)


def test_default_format_rewards_weigh_less_together() -> None:
    rows = [{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)]
    rewards = gn.rewards.rewards_for(gn.load_task(rows, holdout=1))
    assert [reward.weight for reward in rewards] == [2.0, 1.0, 0.5]
