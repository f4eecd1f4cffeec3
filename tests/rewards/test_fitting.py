"""The rewards that fit a task, by its answers."""

import pytest

import grpo_nb as gn


@pytest.mark.parametrize(
    ("golds", "right", "wrong", "kind"),
    [
        (["12", "7", "1,200"], "1200", "13", "correctness"),
        (["negative", "positive", "neutral"], "Positive", "positive or negative", "exact_text"),
        (["A", "B", "C"], "(B)", "A or B", "multiple_choice"),
        ([r"\frac{x}{2}", "x^2", "2x"], r"x \cdot x", "x^3", "maths"),
        (["Paris", "Oslo is cold", "Lima"], "lima.", "Paris", "correctness"),
    ],
)
def test_right_pays_most_and_wrong_nothing(golds: list[str], right: str, wrong: str, kind: str) -> None:
    copies = 1 if kind == "maths" or "Lima" in golds else 4
    rows = [{"question": f"question {i} {j}", "answer": gold} for j in range(copies) for i, gold in enumerate(golds)]
    task = gn.load_task(rows, holdout=1)
    rewards = gn.rewards.rewards_for(task)
    assert type(rewards[0]).__name__ == kind and rewards[0].weight > sum(r.weight for r in rewards[1:]) - 1
    gold = {"12": "1,200", "negative": "positive", "A": "B", r"\frac{x}{2}": "x^2", "Paris": "Lima"}[golds[0]]
    paid = gn.score(rewards, [task.format.render("so", answer) for answer in (right, wrong)], {"answer": gold}).totals
    assert paid[0] == sum(r.weight for r in rewards) and paid[1] == paid[0] - rewards[0].weight


def test_it_follows_the_format() -> None:
    task = gn.load_task([{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)], format=gn.tasks.boxed())
    assert gn.score(gn.rewards.rewards_for(task), ["so \\boxed{3}"], {"answer": "3"}).totals == (4.0,)
