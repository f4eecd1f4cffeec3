"""The code of docs/guide/rewards.md and recipes.md runs, and each recipe scores as it says."""

import re
import types

import pytest

import grpo_nb as gn
from grpo_nb.scoring.record import difference_in_words, record_of
from tests.conftest import ROOT

GUIDE = ROOT / "docs/guide"
GOOD = "<reasoning>so</reasoning><answer>7</answer>"
CYRILLIC = "\u0421\u0443\u043c\u043c\u0430 \u0440\u0430\u0432\u043d\u0430 \u0441\u0435\u043c\u0438"
STEPS = "1. add three and four\n2. check the sum again\n- write it down now"


def run_page(name: str, **names: object) -> dict:
    names["gn"] = gn
    for block in re.findall(r"```python\n(.*?)```", (GUIDE / name).read_text(), re.DOTALL):
        exec(block, names)
    return names


def unbounded(completions: list, **columns: object) -> list[float]:
    return [len(completion) - 2.0 for completion in completions]


@pytest.fixture(scope="module")
def recipes() -> dict:
    return run_page("recipes.md", unbounded=unbounded)


def test_guide_on_choosing_rewards_runs() -> None:
    names = run_page("rewards.md")
    rewards = [names["polite"], names["SameLetters"](name="letters")]
    assert gn.score(rewards, ["Please: <answer>ba</answer>"], {"answer": "ab"}).totals == (2.5,)


def test_length_recipe_weighs_less_than_a_right_answer(recipes: dict) -> None:
    assert recipes["length"].weight <= gn.rewards.correctness().weight / 5


ANSWER_ROWS = re.findall(
    r"^\| (`.*?) \| ([01]) \|", (GUIDE / "rewards.md").read_text(), re.MULTILINE
)


def test_guide_has_the_table_of_answers() -> None:
    assert len(ANSWER_ROWS) == 5


@pytest.mark.parametrize(("cell", "score"), ANSWER_ROWS)
def test_guide_table_shows_the_scores_of_answers(cell: str, score: str) -> None:
    row = {"answer": "42", "prompt": "What is 84 / 2?" if "What" in cell else "?"}
    text_after = " no, 41" if "no, 41" in cell else ""
    for answer in re.findall("`(.+?)`", cell):
        completion = f"<answer>{answer}</answer>{text_after}"
        scores = gn.score(gn.rewards.correctness(), [completion], row)
        assert scores.values["correctness"] == (float(score),), answer


@pytest.mark.parametrize(
    ("name", "columns", "texts", "expected"),
    [
        pytest.param(
            "cosine", {"answer": "7", "completion_ids": []}, [GOOD, "8"], [1.0, -1.0], id="short"
        ),
        pytest.param(
            "cosine",
            {"answer": "7", "completion_ids": [1] * 999},
            [GOOD, "8"],
            [0.5, -0.5],
            id="long",
        ),
        pytest.param(
            "cosine", {"answer": None, "completion_ids": [1]}, [GOOD], [None], id="no gold answer"
        ),
        pytest.param("length", {"completion_ids": [1] * 25}, [GOOD], [0.5], id="too short"),
        pytest.param("length", {"completion_ids": [1] * 200}, [GOOD], [1.0], id="long enough"),
        pytest.param("length", {"completion_ids": [1] * 300}, [GOOD], [0.5], id="too long"),
        pytest.param("length", {"completion_ids": [1] * 500}, [GOOD], [0.0], id="far too long"),
        pytest.param(
            "steps", {}, [STEPS, "1. a b c\n" * 9, "1. \n2. "], [1.0, 1 / 3, 0.0], id="steps"
        ),
        pytest.param(
            "without_excuses",
            {},
            ["It is 7.", "Sorry, it is 7.", "As an AI I say 7."],
            [0.0, -1.0, -1.0],
            id="excuses",
        ),
        pytest.param(
            "in_cyrillic", {}, [CYRILLIC, "The sum is seven.", ""], [1.0, 0.0, 0.0], id="script"
        ),
        pytest.param("bounded", {}, ["", "abc", "a" * 99], [-1.0, 1.0, 1.0], id="bounded"),
        pytest.param(
            "tags_in_order",
            {},
            [GOOD, "</answer>7<answer>", "<answer>7</answer> bye"],
            [1.0, 0.25, 0.5],
            id="tags in order",
        ),
        pytest.param(
            "right_fields",
            {"answer": '{"a": 1, "b": 2}'},
            ['<answer>{"a": 1, "b": 3}</answer>', '<answer>{"b": 2, "a": 1}</answer>', "{", "[1]"],
            [0.5, 1.0, 0.0, 0.0],
            id="right fields",
        ),
        pytest.param(
            "is_month",
            {},
            ["<answer>2026-11</answer>", "<answer>2026-11-21</answer>", "2026-11"],
            [1.0, 0.0, 0.0],
            id="pattern",
        ),
        pytest.param(
            "fits_schema",
            {},
            ['<answer>{"age": 7}</answer>', "<answer>{}</answer>", "<answer>age</answer>"],
            [1.0, 0.0, 0.0],
            id="schema",
        ),
        pytest.param(
            "row_pattern",
            {"pattern": r"\d"},
            ["<answer>7</answer>", "<answer>77</answer>", "7"],
            [1.0, 0.0, 0.0],
            id="pattern of the row",
        ),
    ],
)
def test_recipe_scores_as_the_page_says(
    recipes: dict, name: str, columns: dict, texts: list, expected: list
) -> None:
    per_completion = {key: [value] * len(texts) for key, value in columns.items()}
    assert recipes[name](completions=texts, **per_completion) == expected


def test_debug_recipe_prints_every_ten_steps(recipes: dict, capsys) -> None:
    for step in (0, 1, 10):
        state = types.SimpleNamespace(global_step=step, max_steps=20)
        scores = gn.score(recipes["shown"], ["a <b>", "c"], trainer_state=state)
        assert scores.totals == (0.0, 0.0)
    assert capsys.readouterr().out == "0 a <b>\n10 a <b>\n"


def trained(reward, steps: int) -> list[float]:
    """Return the totals of a good completion over the steps of a training."""
    totals = []
    state = types.SimpleNamespace(global_step=0, max_steps=20)
    for state.global_step in range(1, steps + 1):
        totals += reward(completions=[GOOD], trainer_state=state)
    return totals


def test_adaptive_recipe_learns_nothing_from_a_trial(recipes: dict) -> None:
    reward = recipes["Adaptive"](gn.rewards.partial_format())
    state = types.SimpleNamespace(global_step=0, max_steps=20)
    for _ in range(2):
        scores = gn.score(reward, [GOOD], trainer_state=state)
        assert scores.values == {"adaptive_partial_format": (1.0,)}


def test_adaptive_recipe_falls_as_the_format_is_learnt(recipes: dict) -> None:
    totals = trained(recipes["Adaptive"](gn.rewards.partial_format()), steps=20)
    assert totals == sorted(totals, reverse=True)
    assert totals[0] == 1.0
    assert totals[-1] < 0.2


def test_adaptive_recipe_of_another_reward_is_another_reward(recipes: dict) -> None:
    before = record_of(recipes["Adaptive"](gn.rewards.correctness()))
    now = record_of(recipes["Adaptive"](gn.rewards.correctness(tolerance=0.5)))
    assert "other values" in difference_in_words(before, now)


def test_adaptive_recipe_is_restored_from_its_state(recipes: dict) -> None:
    reward = recipes["Adaptive"](gn.rewards.partial_format())
    trained(reward, steps=20)
    copy = recipes["Adaptive"](gn.rewards.partial_format())
    copy.load_state_dict(reward.state_dict())
    assert gn.score(copy, [GOOD]).totals == gn.score(reward, [GOOD]).totals
