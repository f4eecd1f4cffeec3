"""The rewards that fit a task, by its answers."""

import collections
import random

import pandas
import pytest

import grpo_nb as gn
from grpo_nb.rewards.identity import parts_of
from grpo_nb.rewards.rebuild import rebuild_reward


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


def labelled(separator: str) -> list[str]:
    """Sixty cells of one to three labels."""
    names, draw = ("billing", "bug", "data-privacy", "feature request", "login"), random.Random(0)
    return [separator.join(draw.sample(names, 1 + n % 3)) for n in range(60)]


@pytest.mark.parametrize("separator", [";", "; ", "|", ", ", ",", " / "])
def test_several_labels_in_a_cell_are_a_set(separator: str) -> None:
    """Each order of them was a label of its own, or a text paid letter for letter."""
    golds = [*labelled(separator), f"Login{separator}bug{separator}", f"bug{separator}login"]
    task = gn.load_task([{"question": f"{n}?", "answer": gold} for n, gold in enumerate(golds)])
    mark, said = separator.strip(), "commas" if "," in separator else separator.strip()
    assert task.answers.separator == mark
    hint = f"one or more of: billing, bug, data-privacy, feature request, login, with {said} between them"
    assert hint in task.train[0]["prompt"][0]["content"] and "one or more of 5 labels, with" in repr(task)
    sets = collections.Counter(frozenset(filter(None, (p.strip().lower() for p in gold.split(mark)))) for gold in golds)
    assert task.answers.floor[1] == pytest.approx(max(sets.values()) / len(golds))
    right, *_ = rewards = gn.rewards.rewards_for(task)
    given = [
        f"bug{separator}login",
        "login, bug",
        "Bug; login;",
        "- login\n- bug",
        "login",
        "bug or login",
        "bug, login, bug",
    ]
    paid = right(completions=[task.format.render("so", one) for one in given], answer=[golds[-2]] * len(given))
    assert paid == [1.0] * 4 + [0.0] * 3
    assert gn.check_rewards(rewards, task).ok
    rebuilt, why = rebuild_reward({"name": right.name, "parts": parts_of(right)})
    assert rebuilt == right, why


@pytest.mark.parametrize(
    "golds",
    [
        ["Paris, France", "Lyon, France", "Rome, Italy", "Singapore", "Monaco"],
        ["Smith, John", "Smith, Mary", "Jones, John", "Doe, Jane", "Madonna"],
        ["yes", "no", "n/a"],
        ["he", "she", "they", "he/she"],
        ["EUR/USD", "USD/JPY", "GBP/USD", "EUR/GBP"],
        ["Hardware/Printer", "Hardware/Laptop", "Hardware", "Software"],
        ["1, 2, 3", "2, 3", "1", "4, 1"],
        ["x=1; x=2", "x=3; x=4", "x=1"],
        ["5/3/2024", "7/3/2024", "1/12/2023"],
        ["Yes, always.", "No, never.", "No", "Yes"],
        ["10am", "10am, 2pm", "2pm, 10am"],
    ],
    ids=lambda golds: golds[0],
)
def test_what_has_a_separator_and_is_no_set_of_labels(golds: list[str]) -> None:
    assert gn.tasks.answers_of(golds * 12).separator == ""


def test_codes_are_labels_also_where_few_sets_have_commas() -> None:
    golds = ["E11.90, I10.90", "I10.90", "N18.3, E11.90, Z79.4", "Z92.1"]
    assert gn.tasks.answers_of(golds * 12).hint.startswith("one or more of: E11.90, I10.90, N18.3, Z79.4, Z92.1, with")


def test_a_misspelt_label_is_told_with_the_line_that_mends_it() -> None:
    frame = pandas.DataFrame({"answer": [*labelled(";"), "bug;feature requesst"]})
    frame["question"] = [f"{n}?" for n in range(len(frame))]
    (told,) = [note for note in gn.load_task(frame).notes if "to mend them" in note]
    exec(told.partition("to mend them: ")[2], {"frame": frame})
    assert frame["answer"].iloc[-1] == "bug;feature request" and frame["answer"].iloc[:-1].tolist() == labelled(";")


def test_it_follows_the_format() -> None:
    task = gn.load_task([{"question": f"{n} + 1?", "answer": str(n + 1)} for n in range(4)], format=gn.tasks.boxed())
    assert gn.score(gn.rewards.rewards_for(task), ["so \\boxed{3}"], {"answer": "3"}).totals == (4.0,)
