"""Rewards for form, length and style: TRL's numbers where TRL has them, and no pay for what only looks the part."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from trl.rewards import (
    get_cosine_scaled_reward,
    get_repetition_penalty_reward,
    get_soft_overlong_punishment,
    think_format_reward,
)

from grpo_nb.rewards.answers import correctness
from grpo_nb.rewards.classifiers import classifier
from grpo_nb.rewards.compose import combined
from grpo_nb.rewards.expressions import maths
from grpo_nb.rewards.form import answer_format, incremental_format, json_format, think_format, xml_format
from grpo_nb.rewards.style import (
    banned_phrases,
    cosine_length,
    ideal_length,
    language,
    minimum_length,
    reasoning_steps,
    repetition,
    soft_overlong,
)
from grpo_nb.tasks import formats

GOOD = "<reasoning>r</reasoning><answer>7</answer>"
IDS = st.lists(st.lists(st.integers(0, 4), max_size=40), min_size=1, max_size=5)


def one(reward, text: str, **columns: object) -> float | None:
    return reward(completions=[text], **{key: [value] for key, value in columns.items()})[0]


# The documented examples and those of TRL's own tests of the same reward.
THINK = [
    "<think>\nThis is my reasoning.\n</think>\nThis is my answer.",
    "<think>\nThis is my reasoning.\nThis is my answer.",
    "<think>This is my reasoning.</think>This is my answer.",
    "<think>This is my reasoning.\nThis is my answer.",
    "This is my reasoning.</think>\nThis is my answer.",
    "This is my reasoning. This is my answer.",
    "<think>\nThis is</think> my reasoning.\nThis is my answer.",
    "<think>This is\nmy reasoning.</think>\n\nThis is\nmy answer.",
    "",
    "<think>one<think>two</think>three",
]


def test_think_format_gives_trls_numbers() -> None:
    chats = [[{"role": "assistant", "content": text}] for text in THINK]
    assert think_format()(completions=chats) == think_format_reward(chats)


@pytest.mark.parametrize("text", ["<think>reasoning</think>", "<think></think>answer", "<think>a</think>b</think>c"])
def test_think_format_is_stricter_where_it_says_so(text: str) -> None:
    assert think_format_reward([[{"content": text}]]) == [1.0]
    assert one(think_format(), text) == 0.0


def test_think_format_where_the_template_opens_the_tag() -> None:
    opened = think_format(format=dataclasses.replace(formats.think_answer(), is_opened_by_template=True))
    assert opened(completions=["r</think>7", "\nr\n</think>\n7", "<think>r</think>7", "r"]) == [1.0, 1.0, 0.0, 0.0]
    with pytest.raises(ValueError, match="no tags around the reasoning"):
        think_format(format=formats.boxed())


@given(IDS, st.integers(1, 5), st.sampled_from([-1.0, -0.3]))
def test_repetition_gives_trls_numbers(ids: list[list[int]], size: int, penalty: float) -> None:
    theirs = get_repetition_penalty_reward(ngram_size=size, max_penalty=penalty)(completion_ids=ids)
    assert repetition(ngram_size=size, max_penalty=penalty)(completions=[""] * len(ids), completion_ids=ids) == theirs


@given(IDS, st.integers(1, 40), st.data())
def test_soft_overlong_gives_trls_numbers(ids: list[list[int]], longest: int, data: st.DataObject) -> None:
    cache = data.draw(st.integers(0, longest))
    theirs = get_soft_overlong_punishment(max_completion_len=longest, soft_punish_cache=cache)(completion_ids=ids)
    assert soft_overlong(longest, cache)(completions=[""] * len(ids), completion_ids=ids) == theirs


@settings(deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 150)), min_size=1, max_size=6))
def test_cosine_gives_trls_numbers(rows: list[tuple[bool, int]]) -> None:
    chats = [[{"role": "assistant", "content": r"\boxed{7}" if right else r"\boxed{8}"}] for right, _ in rows]
    ids, gold = [[1] * length for _, length in rows], ["7"] * len(rows)
    ours = cosine_length(100, judge=maths(format=formats.boxed(), column="solution"))
    theirs = get_cosine_scaled_reward(max_len=100)(chats, gold, ids)
    assert ours(completions=chats, solution=gold, completion_ids=ids) == pytest.approx(theirs)


def test_no_order_of_wrong_and_right_pays_the_wrong_more() -> None:
    reward = cosine_length(50)
    right = [one(reward, "<answer>7</answer>", answer="7", completion_ids=[1] * n) for n in range(0, 120, 5)]
    wrong = [one(reward, "<answer>8</answer>", answer="7", completion_ids=[1] * n) for n in range(0, 120, 5)]
    assert min(right) > max(wrong)
    assert right == sorted(right, reverse=True) and wrong == sorted(wrong)
    with pytest.raises(ValueError, match="must rise"):
        cosine_length(50, wrong=(0.0, 0.9), right=(0.5, 1.0))


def test_a_judge_says_what_is_right_by_its_highest_score() -> None:
    halved = cosine_length(50, judge=combined([correctness(weight=0.5)]))
    texts, ids = ["<answer>7</answer>", "<answer>8</answer>"], [[], []]
    assert halved(completions=texts, answer=["7", "7"], completion_ids=ids) == [1.0, -1.0]
    for judge in (lambda completions, **_: [1.0], classifier("x", output="logit")):
        with pytest.raises(ValueError, match=r"judge = .* must be a reward of the kit whose highest score is known"):
            cosine_length(50, judge=judge)


def test_a_judge_is_asked_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    whole = correctness.score_batch
    monkeypatch.setattr(
        correctness, "score_batch", lambda self, texts, rows: asked.append(len(texts)) or whole(self, texts, rows)
    )
    cosine_length(50)(completions=["<answer>7</answer>"] * 5, answer=["7"] * 5)
    assert asked == [5]


def test_incremental_format_cannot_be_gamed() -> None:
    reward = incremental_format()
    assert one(reward, GOOD) == 1.0
    # Stopping always pays better than leaving the last tag out, however much follows.
    for trailing in (0, 10, 100, 1000, 100_000):
        assert one(reward, GOOD + "x" * trailing) > one(reward, GOOD.removesuffix("</answer>") + "x" * trailing)
    assert one(reward, GOOD + "x" * 50) == pytest.approx(0.95)
    assert one(reward, GOOD * 2) == 0.0
    assert one(reward, GOOD + "<answer>") < 1.0
    # Any order but the right one earns less than the right one.
    import itertools

    tags = formats.xml().tags
    best = [order for order in itertools.permutations(tags) if one(reward, "".join(order)) == 1.0]
    assert best == [tags]
    with pytest.raises(ValueError, match="penalty"):
        incremental_format(penalty=-1)


@pytest.mark.parametrize(
    "format", [formats.xml(), formats.think_answer(), formats.boxed(), formats.hashes()], ids=lambda f: f.name
)
def test_any_format(format: formats.AnswerFormat) -> None:
    text = format.render("many\nlines", r"\frac{1}{2}")
    for reward in (answer_format(format), xml_format(format=format), incremental_format(format=format)):
        assert one(reward, text) == 1.0, reward
        has_no_end = reward.__name__ == "incremental_format" and not format.answer_close
        assert has_no_end or one(reward, text + "\nand more") < 1.0
        assert one(reward, "7") == 0.0


@pytest.mark.parametrize("text", [r"\boxed{7} is wrong }", "\\boxed{7}\n", r"\boxed{\{1,2\}}", "\\boxed{\n7\n}"])
def test_boxed_is_read_to_its_own_brace(text: str) -> None:
    assert one(answer_format(formats.boxed()), text) == float("wrong" not in text)


def test_json_format() -> None:
    in_slot = json_format(is_in_slot=True)
    texts = ["<answer>{}</answer>", "<answer>[1]</answer>", "{}", "<answer>7</answer>", "<answer>{} {}</answer>"]
    assert in_slot(completions=texts) == [1.0, 1.0, 0.0, 0.0, 0.0]


def test_units_of_length() -> None:
    reward = minimum_length(10)
    assert one(reward, "one two", completion_ids=[1] * 5) == 0.5
    assert one(reward, "one two") == 0.2  # no ids: words
    assert one(minimum_length(10, unit="characters"), "12345", completion_ids=[1] * 9) == 0.5
    assert one(minimum_length(10, unit="words"), "a b c d e", completion_ids=[1] * 9) == 0.5
    with pytest.raises(ValueError, match="unit"):
        minimum_length(10, unit="lines")


@given(st.integers(1, 50), st.integers(0, 50), st.integers(0, 300))
def test_ideal_length_is_best_inside_and_falls_outside(low: int, more: int, length: int) -> None:
    reward = ideal_length(low, low + more)
    at = lambda n: one(reward, "", completion_ids=[1] * n)  # noqa: E731
    assert (at(length) == 1.0) == (low <= length <= low + more)
    if length < low:
        assert at(length) < at(length + 1)
    if length >= low + more:
        assert at(length) >= at(length + 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda: ideal_length(5, 4),
        lambda: ideal_length(0),
        lambda: minimum_length(0),
        lambda: soft_overlong(10, 11),
        lambda: cosine_length(0),
        lambda: repetition(max_penalty=1),
        lambda: repetition(ngram_size=0),
        lambda: reasoning_steps(0),
        lambda: banned_phrases([]),
        lambda: banned_phrases([" "]),
        lambda: banned_phrases(["x"], penalty=1),
        lambda: language("Klingon"),
        lambda: language(letters=0),
    ],
)
def test_settings_that_cannot_work(make) -> None:
    with pytest.raises(ValueError):
        make()


def test_steps_are_counted_in_the_reasoning_only_and_once() -> None:
    steps = "Step 1: add three and four\nStep 2: the sum is seven\n- so seven it is"
    assert one(reasoning_steps(3), f"<reasoning>\n{steps}\n</reasoning>\n<answer>7</answer>") == 1.0
    assert one(reasoning_steps(3), f"<reasoning>short</reasoning><answer>\n{steps}\n</answer>") == 0.0
    assert one(reasoning_steps(10), "1. a b c\n" * 100) == 0.1
    opened = dataclasses.replace(formats.xml(), is_opened_by_template=True)
    assert one(reasoning_steps(3, format=opened), f"{steps}\n</reasoning>\n<answer>7</answer>") == 1.0


def test_banned_phrases_are_found_as_they_read() -> None:
    reward = banned_phrases(["as an AI language model", "as an AI"])
    assert one(reward, "As an AI language model, no.") == -0.5  # once, not twice
    assert one(reward, "as\u00a0an\u200b AI") == -0.5
    assert one(banned_phrases("!!!"), "So!!!") == -0.5


def test_language_by_script() -> None:
    russian = "\u0421\u0443\u043c\u043c\u0430 \u0440\u0430\u0432\u043d\u0430 \u0441\u0435\u043c\u0438."
    japanese = "\u7b54\u3048\u306f\u4e03\u3067\u3059\u3002\u30ab\u30bf\u30ab\u30ca\u3067"
    assert one(language("Cyrillic"), russian) == one(language("Han", "Hiragana", "Katakana"), japanese) == 1.0
    half = "abcdefghij \u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03\u4e03"
    assert one(language(), half) == one(language("Han"), half) == 0.5
    assert one(language("Han"), half[11:] + " ```print('hello world')```") == 1.0
