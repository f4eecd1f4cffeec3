"""The rewards that fit a task, by its answers; and rows that a reward cannot read."""

import pytest

import grpo_nb as gn


@pytest.mark.parametrize(
    ("golds", "gold", "right", "wrong", "kind"),
    [
        (["12", "7", "1,200"], "1,200", "1200", "13", "correctness"),
        (
            ["negative", "positive", "neutral"],
            "positive",
            "Positive",
            "positive or negative",
            "exact_text",
        ),
        (["A", "B", "C"], "B", "(B)", "A or B", "multiple_choice"),
        ([r"\frac{x}{2}", "x^2", "2x"], "x^2", r"x \cdot x", "x^3", "maths"),
        (['{"a": 1}', '{"a": 2}', '{"a": 3}'], '{"a": 2}', '{"a": 2.0}', '{"a": 1}', "json_answer"),
        (["Paris", "Oslo is cold", "Lima"], "Lima", "lima.", "Paris", "correctness"),
    ],
)
def test_being_right_pays_more_than_looking_right(
    golds: list, gold: str, right: str, wrong: str, kind: str
) -> None:
    copies = 4 if kind in ("exact_text", "multiple_choice") else 1
    rows = [
        {"question": f"question {i} {j}", "answer": gold}
        for j in range(copies)
        for i, gold in enumerate(golds)
    ]
    for format in (gn.tasks.xml(), gn.tasks.boxed()):
        task = gn.load_task(rows, holdout=1, format=format)
        rewards = gn.rewards.rewards_for(task)
        assert type(rewards[0]).__name__ == kind and [reward.weight for reward in rewards] == [
            2.0,
            1.0,
            0.5,
        ]
        texts = [task.format.render("so", answer) for answer in (right, wrong)] + [right]
        assert gn.score(rewards, texts, {"answer": gold}).totals == (3.5, 1.5, 0.0)
        assert [reward.weight for reward in gn.rewards.rewards_for(task, weight=4.0)] == [
            4.0,
            2.0,
            1.0,
        ]


def test_a_row_that_cannot_be_read_is_named() -> None:
    rows = [{"tests": ["assert f(1) == 2"]}, {"tests": ["assert f(1) < 2"]}]
    gn.rewards.check_rows([gn.rewards.code_tests(), gn.rewards.xml_tags()], rows[:1])
    with pytest.raises(
        ValueError, match="the reward 'code_tests' cannot read the data: row 1: the test"
    ):
        gn.rewards.check_rows([gn.rewards.code_tests()], rows)
