"""The baseline says what its sample shows and no more: on crafted scores, and on a real model."""

import dataclasses
import math
import random

import numpy
import pytest
import torch

import grpo_nb as gn
from grpo_nb.checks.baseline import Baseline
from grpo_nb.checks.groups import estimate
from grpo_nb.cpu import engine
from grpo_nb.generation import sampling
from grpo_nb.scoring.right_by import choose_judge
from tests.support.tiny import load_tiny

pytestmark = pytest.mark.begins(130)

FORMAT = gn.tasks.xml()
RIGHT = FORMAT.render("1 + 1 = 2", "2")
WRONG = FORMAT.render("1 + 1 = 3", "3")
BARE = "It is two, I think."
REWARDS = [
    gn.rewards.correctness(weight=2.0),
    gn.rewards.xml_format(weight=1.0),
    gn.rewards.xml_tags(weight=1.0),
]
EXAMPLE = [
    {"role": "user", "content": "2 + 2?"},
    {"role": "assistant", "content": FORMAT.render("2 + 2 = 4", "4")},
]


def made(groups, rewards=REWARDS, *, cut=lambda text: False, example=True, **settings) -> Baseline:
    """A baseline of completions written by hand, scored by real rewards, in groups of the same size."""
    texts = [text for group in groups for text in group]
    prompt = [*(EXAMPLE if example else []), {"role": "user", "content": "1 + 1?"}]
    rows = tuple(
        {"prompt": prompt, "question": f"<b>question {i}</b>", "answer": "2"}
        for i in range(len(groups))
    )
    return Baseline(
        scores=gn.score(rewards, texts, {"answer": "2"}),
        num_generations=len(groups[0]),
        rows=rows,
        tokens=tuple(len(text.split()) for text in texts),
        is_cut=tuple(map(cut, texts)),
        right=gn.score(rewards, [RIGHT] * len(groups), rows),
        empty=gn.score(rewards, [""] * len(groups), rows),
        format=FORMAT,
        settings=gn.preset("cpu", **settings),
        judge=gn.rewards.correctness(),
    )


def kinds(gate: Baseline) -> set[str]:
    return {advice.kind for advice in gate.advice}


def constant(completions, **columns):
    return [1.0] * len(completions)


def silent(completions, **columns):
    return [None] * len(completions)


@pytest.mark.parametrize(
    ("groups", "rewards", "verdict", "counts"),
    [
        ([[WRONG.replace("<", "(")] * 4] * 8, REWARDS, "no signal", {"all wrong": 8}),
        ([[RIGHT] * 4] * 8, REWARDS, "no signal", {"all right": 8}),
        (
            [[WRONG] * 4] * 4 + [[RIGHT] * 4] * 2,
            REWARDS,
            "no signal",
            {"all equal": 4, "all right": 2},
        ),
        ([[RIGHT, WRONG, BARE, WRONG]] * 8, REWARDS, "signal", {"differs": 8}),
        (
            [[RIGHT, WRONG]] * 4 + [[WRONG] * 2] * 4,
            REWARDS,
            "weak signal",
            {"differs": 4, "all equal": 4},
        ),
        (
            [[RIGHT, WRONG]] * 5 + [[WRONG] * 2] * 3,
            REWARDS,
            "signal",
            {"differs": 5, "all equal": 3},
        ),
        ([[WRONG, BARE, BARE, WRONG]] * 8, REWARDS, "form only", {"differs": 8}),
        # Rewards that cannot tell right do not call anything right or wrong.
        ([[WRONG] * 4] * 4, [constant], "no signal", {"all equal": 4}),
        ([[WRONG] * 4] * 4, [silent], "no signal", {"all equal": 4}),
    ],
)
def test_the_verdict_and_what_the_groups_are(groups, rewards, verdict: str, counts: dict) -> None:
    gate = made(groups, rewards)
    assert gate.verdict == verdict and gate.sentence.startswith(verdict)
    assert {kind: n for kind, n in gate.counts.items() if n} == counts
    assert repr(gate) and gate._repr_html_()


def test_right_sampled_and_likeliest_stand_side_by_side_with_the_floor() -> None:
    gate = made([[RIGHT, WRONG, WRONG, WRONG]] * 8)
    assert (
        gate.right_shares[0] == 0.25
        and math.isnan(gate.right_shares[1])
        and "always answering" not in repr(gate)
    )
    apart = dataclasses.replace(gate, greedy=(RIGHT,) * 7 + (WRONG,), floor=("yes", 0.6))
    assert apart.right_shares == (0.25, 0.875)
    assert "25% of the sampled completions, 88% of the likeliest ones" in repr(apart)
    assert "always answering 'yes' would get 60%" in repr(apart)
    near = made(
        [[FORMAT.render("so", "2.3"), WRONG]], [judge := gn.rewards.correctness(tolerance=0.5)]
    )
    assert (
        near.right_shares[0] == 0 and dataclasses.replace(near, judge=judge).right_shares[0] == 0.5
    )


@pytest.mark.parametrize(
    ("kind", "gate"),
    [
        ("example turn", made([[BARE] * 4] * 4, example=False)),
        ("easier data", made([[WRONG] * 4] * 8, [gn.rewards.correctness()])),
        ("harder data", made([[RIGHT] * 4] * 8)),
        (
            "longer completions",
            made([[RIGHT, "<reasoning>on", WRONG, BARE]] * 4, cut=lambda text: text.endswith("on")),
        ),
        (
            "larger group or warmer",
            made([[RIGHT, WRONG]] + [[f"{i}", f"{i} or so"] for i in range(7)]),
        ),
        ("larger group or warmer", made([[WRONG] * 8] * 8, temperature=0.7)),
        ("flat reward", made([[RIGHT, WRONG]] * 8, [*REWARDS, constant])),
    ],
)
def test_advice_comes_with_its_numbers_and_a_line_that_is_code(kind: str, gate: Baseline) -> None:
    (advice, *_) = [advice for advice in gate.advice if advice.kind == kind]
    assert (
        any(letter.isdigit() for letter in advice.what)
        and kind in repr(gate)
        and kind in gate._repr_html_()
    )
    compile(advice.line, "advice", "exec")
    if advice.line.startswith("settings"):
        exec(advice.line, scope := {"settings": gate.settings})
        assert scope["settings"] != gate.settings


def test_advice_that_does_not_fit_is_not_given() -> None:
    healthy = made([[RIGHT, WRONG, BARE, RIGHT]] * 8)
    assert healthy.advice == () and "Nothing to change" in repr(healthy)
    assert kinds(made([[BARE] * 4] * 4)) >= {"priming"} and "example turn" not in kinds(
        made([[BARE] * 4] * 4)
    )
    # Room is not what it lacks, and the form is why.
    bare = made([[BARE] * 4] * 4, cut=lambda text: True, example=False)
    assert not {"longer completions", "easier data", "flat reward"} & kinds(bare)


def test_baseline_with_example_but_no_format_advises_priming() -> None:
    (advice,) = [advice for advice in made([[BARE] * 4] * 4).advice if advice.kind == "priming"]
    assert advice.line.startswith("SFTTrainer(")


def test_baseline_of_one_word_labels_asks_for_no_more_tokens() -> None:
    groups = [[RIGHT, "<reasoning>on and on", WRONG, BARE]] * 4
    gate = made(groups, cut=lambda text: text.endswith("on"))
    assert "longer completions" in kinds(gate)
    of_labels = dataclasses.replace(gate, floor=("2", 0.5))
    assert "longer completions" not in kinds(of_labels)


def test_baseline_of_labels_without_a_floor_asks_for_no_more_tokens() -> None:
    groups = [[RIGHT, "<reasoning>on and on", WRONG, BARE]] * 4
    gate = made(groups, cut=lambda text: text.endswith("on"))
    assert "longer completions" not in kinds(dataclasses.replace(gate, has_labels=True))


@pytest.mark.parametrize(("example", "kind"), [(False, "example turn"), (True, "priming")])
def test_baseline_with_slots_but_no_format_advises_the_format(example: bool, kind: str) -> None:
    groups = [["<answer>2</answer>", "<answer>3</answer>", BARE, BARE]] * 8
    gate = made(groups, example=example)
    assert kind in kinds(gate)
    assert "and none is exactly in the format" in repr(gate)


def test_baseline_asks_a_function_what_is_right() -> None:
    def twice(completions: list, answer: list, **columns: object) -> list[float]:
        return [2.0 * (gold in str(text)) for text, gold in zip(completions, answer, strict=True)]

    rewards = [twice, gn.rewards.xml_tags()]
    gate = made([["it is 2", "it is 3"]] * 4, rewards)
    judge = choose_judge(rewards, gate.rows, FORMAT)
    asked = dataclasses.replace(gate, judge=judge, greedy=("2",) * 4, greedy_scores=(2.0,) * 4)
    assert asked.right_shares == (0.5, 1.0)
    assert "right is what twice() scores with 2 or more" in repr(asked)


@pytest.mark.parametrize("seed", range(40))
def test_the_numbers_add_up_on_random_samples(seed: int) -> None:
    draw = random.Random(seed)
    size, count = draw.choice([2, 3, 8]), draw.randint(1, 9)
    few = draw.sample(
        [RIGHT, WRONG, BARE, "", "<answer>2</answer>", "<reasoning>"], draw.randint(1, 3)
    )
    gate = made([[draw.choice(few) for _ in range(size)] for _ in range(count)])
    assert sum(gate.counts.values()) == count == len(gate.groups) and not {
        "easier data",
        "harder data",
    } <= kinds(gate)
    low, high = gate.useful_interval
    assert 0 <= low <= gate.counts["differs"] / count <= high <= 1
    totals, table = list(gate.scores.totals), gate.by_reward
    means = [estimate.mean for estimate in table["mean"]]
    assert sum(table["weight"] * means) == pytest.approx(sum(totals) / len(totals))
    assert (
        (table["lowest"] <= means).all()
        and (means <= table["highest"]).all()
        and (table["groups"] <= count).all()
    )
    advantages = numpy.reshape(gate.scores.advantages(size), (count, size))
    moved = (abs(advantages) > 0.01).any(axis=1)
    assert moved.sum() == gate.counts["differs"], "a group that differs is one with an advantage"
    assert len(gate.table) == size * count and list(gate.table["total"]) == totals


def test_groups_are_the_units_of_the_interval() -> None:
    one_kind = estimate([[1.0] * 8, [0.0] * 8] * 4).interval
    # Student's t with 7 degrees of freedom, by hand: 2.3646 * sqrt(2 / 7) / sqrt(8).
    assert one_kind[1] - 0.5 == pytest.approx(2.3646 * math.sqrt(2 / 7) / math.sqrt(8), abs=1e-3)
    assert estimate([[1.0, 0.0] * 4] * 8).interval is None and estimate([[1.0]]).interval is None
    assert estimate([[1.0], [1.0], [0.5], [0.0]]).interval == (0.0, 1.0), (
        "no interval reaches beyond the possible"
    )
    assert estimate([[1.0], [1.0], [0.5], [-0.1]]).interval[0] < -0.1
    draw = numpy.random.default_rng(0)
    samples = [
        [draw.binomial(1, rate, 8).tolist() for rate in draw.beta(1.5, 1.5, 8)] for _ in range(600)
    ]
    intervals = [
        given for given in (estimate(sample).interval for sample in samples) if given is not None
    ]
    held = sum(low <= 0.5 <= high for low, high in intervals)
    assert 0.92 <= held / len(intervals) <= 0.98, "it holds the truth as often as it says"


def test_everything_shown_is_escaped() -> None:
    shown = made([["<script>alert(1)</script>"] * 2, ["\ud800\0"] * 2])._repr_html_()
    assert "<script>" not in shown and "&lt;script&gt;" in shown and "<b>question" not in shown
    shown.encode()


@pytest.fixture(scope="module")
def tiny(tiny_folder) -> tuple:
    return load_tiny(tiny_folder, 12, 4, max_completion_length=12, num_generations=4)


def test_the_same_seed_the_same_result_and_nothing_is_changed(tiny) -> None:
    model, tokenizer, task, settings = tiny

    def measured(seed: int) -> Baseline:
        return gn.baseline(model, tokenizer, task, REWARDS, settings.replace(seed=seed), prompts=3)

    before = {name: p.clone() for name, p in model.state_dict().items()}
    modes = [module.training for module in model.modules()]
    torch.manual_seed(5)
    state = torch.get_rng_state()
    first = measured(1)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
    again, other = measured(1), measured(2)
    assert again.scores.completions == first.scores.completions and repr(again) == repr(first)
    assert other.rows != first.rows and first.has_example and len(first.greedy) == 3


def test_what_is_sampled_is_what_training_would_sample(tiny, monkeypatch) -> None:
    model, tokenizer, task, settings = tiny
    seen, plain = {}, engine.sample

    def watched(model, prompts, config, folded):
        seen.update(
            {} if seen else {**config.to_dict(), "prompts": prompts}
        )  # the likeliest answers come after
        return plain(model, prompts, config, folded)

    def length(completions, completion_ids, **columns):
        return [float(len(ids)) for ids in completion_ids]

    monkeypatch.setattr(engine, "sample", watched)
    wanted = {"temperature": 0.7, "top_p": 0.8, "top_k": 30}
    settings = settings.replace(max_completion_length=7, extra={"min_p": 0.01}, **wanted)
    gate = gn.baseline(model, tokenizer, task, length, settings, prompts=2)
    assert (
        {name: seen[name] for name in wanted} == wanted
        and seen["max_new_tokens"] == 7
        and seen["min_p"] == 0.01
    )
    assert len(seen["prompts"]) == 8 and len({tuple(prompt) for prompt in seen["prompts"]}) == 2
    assert gate.scores.values["length"] == tuple(map(float, gate.tokens)), (
        "a reward sees the sampled token ids"
    )


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"prompts": 0}, "prompts = 0"), ({"rewards": []}, "reward"),
        ({"rewards": lambda completions, solution, **columns: [0.0]}, "solution"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_told_before_anything_is_sampled(tiny, monkeypatch, given, said) -> None:
    model, tokenizer, task, settings = tiny
    monkeypatch.setattr(sampling, "generate", lambda *_, **more: pytest.fail("it sampled first"))
    with pytest.raises(Exception, match=said):
        gn.baseline(
            model, tokenizer, **{"task": task, "rewards": REWARDS, "settings": settings, **given}
        )
