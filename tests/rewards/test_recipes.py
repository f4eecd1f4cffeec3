"""The code of docs/guide/rewards.md runs, and the rewards to copy from docs/guide/recipes.md do what they say."""

import re
import types

import pytest

import grpo_nb as gn
from tests.conftest import ROOT

GOOD = "<reasoning>so</reasoning><answer>7</answer>"


def run_page(name: str, **names: object) -> dict:
    names |= {"gn": gn}
    for block in re.findall(
        r"```python\n(.*?)```", (ROOT / "docs/guide" / name).read_text(), re.DOTALL
    ):
        exec(block, names)
    return names


@pytest.fixture(scope="module")
def recipes() -> dict:
    return run_page(
        "recipes.md", unbounded=lambda completions, **columns: [len(c) - 2.0 for c in completions]
    )


def test_the_page_on_choosing() -> None:
    names = run_page("rewards.md")
    same = names["SameLetters"](name="letters")
    assert gn.score(
        [names["polite"], same], ["Please: <answer>ba</answer>"], {"answer": "ab"}
    ).totals == (2.5,)


def test_the_table_of_answers() -> None:
    rows = re.findall(
        r"^\| (`.*?) \| ([01]) \|", (ROOT / "docs/guide/rewards.md").read_text(), re.MULTILINE
    )
    assert len(rows) == 5
    for said, score in rows:
        row = {"answer": "42", "prompt": "What is 84 / 2?" if "What" in said else "?"}
        after = " no, 41" if "no, 41" in said else ""
        for answer in re.findall("`(.+?)`", said):
            paid = gn.score(gn.rewards.correctness(), [f"<answer>{answer}</answer>{after}"], row)
            assert paid.values["correctness"] == (float(score),), answer


def test_what_each_recipe_pays(recipes: dict) -> None:
    def paid(name: str, *texts: str, **columns: object) -> list[float]:
        return recipes[name](
            completions=list(texts), **{k: [v] * len(texts) for k, v in columns.items()}
        )

    assert paid("cosine", GOOD, "8", answer="7", completion_ids=[]) == [1.0, -1.0]
    assert paid("cosine", GOOD, "8", answer="7", completion_ids=[1] * 999) == [0.5, -0.5]
    assert paid("cosine", GOOD, answer=None, completion_ids=[1]) == [None]
    listed = "1. add three and four\n2. check the sum again\n- write it down now"
    assert paid("steps", listed, "1. a b c\n" * 9, "1. \n2. ") == [1.0, 1 / 3, 0.0]
    assert paid("without_excuses", "It is 7.", "Sorry, it is 7.", "As an AI I say 7.") == [
        0.0,
        -1.0,
        -1.0,
    ]
    cyrillic = (
        "\u0421\u0443\u043c\u043c\u0430 \u0440\u0430\u0432\u043d\u0430 \u0441\u0435\u043c\u0438"
    )
    assert paid("in_cyrillic", cyrillic, "The sum is seven.", "") == [1.0, 0.0, 0.0]
    assert paid("bounded", "", "abc", "a" * 99) == [-1.0, 1.0, 1.0]


def test_a_debug_reward_shows_and_pays_nothing(recipes: dict, capsys) -> None:
    for step in (0, 1, 10):
        state = types.SimpleNamespace(global_step=step, max_steps=20)
        assert gn.score(recipes["shown"], ["a <b>", "c"], trainer_state=state).totals == (0.0, 0.0)
    assert capsys.readouterr().out == "0 a <b>\n10 a <b>\n"


def test_an_adaptive_weight_falls_as_the_form_is_learnt_and_is_kept(recipes: dict) -> None:
    reward = recipes["Adaptive"](gn.rewards.xml_tags())
    state = types.SimpleNamespace(global_step=0, max_steps=20)
    assert gn.score(reward, [GOOD]).values == {"adaptive_xml_tags": (1.0,)}, (
        "a trial changes nothing"
    )
    paid = []
    for state.global_step in range(1, 21):
        paid += gn.score(reward, [GOOD], trainer_state=state).totals
    assert paid == sorted(paid, reverse=True) and paid[0] == 1.0 and paid[-1] < 0.2
    again = recipes["Adaptive"](gn.rewards.xml_tags())
    again.load_state_dict(reward.state_dict())
    assert gn.score(again, [GOOD]).totals == gn.score(reward, [GOOD]).totals
