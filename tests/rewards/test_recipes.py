"""The rewards to copy from docs/guide/rewards.md do what they say, and TRL's own are taken as they are."""

import re

import pytest

import grpo_nb as gn
from tests.conftest import ROOT

PAGE = (ROOT / "docs/guide/rewards.md").read_text()
GOOD = "<reasoning>so</reasoning><answer>7</answer>"


@pytest.fixture(scope="module")
def recipes() -> dict:
    blocks = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names = {"gn": gn, "unbounded": lambda completions, **columns: [len(c) - 2.0 for c in completions]}
    for block in blocks:
        if "trl.rewards" in block or "import re\n" in block:
            exec(block, names)
    return names


def test_the_recipes(recipes: dict) -> None:
    def paid(name: str, *texts: str, **columns: object) -> list[float]:
        return recipes[name](completions=list(texts), **{k: [v] * len(texts) for k, v in columns.items()})

    ids = [1] * 256
    assert paid("right_and_short", GOOD, "8", answer="7", completion_ids=ids) == [0.75, 0.0]
    assert paid("right_and_short", GOOD, answer=None, completion_ids=ids) == [None]
    listed = "1. add three and four\n2. check the sum again\n- write it down now"
    assert paid("steps", listed, "1. a b c\n" * 9, "1. \n2. ") == [1.0, 1 / 3, 0.0]
    assert paid("without_excuses", "It is 7.", "Sorry, it is 7.", "As an AI I say 7.") == [0.0, -1.0, -1.0]
    cyrillic = "\u0421\u0443\u043c\u043c\u0430 \u0440\u0430\u0432\u043d\u0430 \u0441\u0435\u043c\u0438"
    assert paid("in_cyrillic", cyrillic, "The sum is seven.", "") == [1.0, 0.0, 0.0]
    assert paid("bounded", "", "abc", "a" * 99) == [-1.0, 1.0, 1.0]


def test_trls_own_are_taken_as_they_are(recipes: dict) -> None:
    given = [recipes[name] for name in ("overlong", "repeated", "think_format_reward")]
    chats = [[{"role": "assistant", "content": text}] for text in ("<think>so</think>7", "7")]
    scores = gn.score(given, chats, completion_ids=[[5] * 600] * 2)
    assert scores.values["soft_overlong_punishment_reward"] == (-1.0, -1.0)
    assert scores.values["repetition_penalty_reward"][0] < -0.9
    assert scores.values["think_format_reward"] == (1.0, 0.0)
    assert scores.totals[0] - scores.totals[1] == 1.0
