"""The baseline says what its sample shows and no more: on crafted scores, and on the real model with and without an example."""

import dataclasses
import math
import random

import pytest
import torch

import grpo_nb as gn
from grpo_nb.checks.gate import Baseline
from grpo_nb.checks.groups import estimate

pytestmark = pytest.mark.begins(130)

FORMAT = gn.tasks.xml()
RIGHT = FORMAT.render("1 + 1 = 2", "2")
WRONG = FORMAT.render("1 + 1 = 3", "3")
BARE = "It is two, I think."
REWARDS = [gn.rewards.correctness(weight=2.0), gn.rewards.xml_format(weight=1.0), gn.rewards.xml_tags(weight=1.0)]


def made(groups, rewards=REWARDS, *, cut=lambda text: False, example=True, name="task", **settings) -> Baseline:
    """A baseline of completions written by hand, scored by real rewards, in groups of the same size."""
    texts = [text for group in groups for text in group]
    rows = [{"answer": "2"}] * len(groups)
    return Baseline(
        scores=gn.score(rewards, texts, {"answer": "2"}),
        num_generations=len(groups[0]),
        questions=tuple(f"<b>question {i}</b>" for i in range(len(groups))),
        answers=("2",) * len(groups),
        tokens=tuple(len(text.split()) for text in texts),
        is_cut=tuple(map(cut, texts)),
        right=gn.score(rewards, [RIGHT] * len(groups), rows),
        empty=gn.score(rewards, [""] * len(groups), rows),
        format=FORMAT,
        settings=gn.preset("cpu", **settings),
        task_name=name,
        has_example=example,
        ranges={r.__name__: r.range for r in rewards if hasattr(r, "range")},
    )


def kinds(gate: Baseline) -> list[str]:
    return [advice.kind for advice in gate.advice]


def constant(completions, **columns):
    return [1.0] * len(completions)


def dead(completions, **columns):
    return [0.0] * len(completions)


def silent(completions, **columns):
    return [None] * len(completions)


class TestWhatIsRightAlready:
    """Sampled and likeliest answers side by side, and of labels what the most frequent one would get."""

    def test_right_is_what_the_reward_for_the_answer_pays(self) -> None:
        near = FORMAT.render("1 + 1 = 2.3", "2.3")
        gate = made([[near, WRONG]], [near_enough := gn.rewards.correctness(tolerance=0.5)])
        assert gate.right_shares[0] == 0 and "pays in full" not in gate._right_facts["right"]
        gate = dataclasses.replace(gate, judge=near_enough)
        assert gate.right_shares[0] == 0.5 and gate._right_facts["right"].endswith(
            "right is what correctness(tolerance=0.5) pays in full"
        )

    def test_far_apart_is_explained(self) -> None:
        gate = made([[RIGHT, WRONG, WRONG, WRONG]] * 8)
        assert gate.right_shares[0] == 0.25 and math.isnan(gate.right_shares[1]) and "sampling" not in kinds(gate)
        apart = dataclasses.replace(gate, greedy=(RIGHT,) * 7 + (WRONG,))
        assert apart.right_shares == (0.25, 0.875)
        assert "25% of the sampled completions, 88% of the likeliest ones" in repr(apart)
        assert "sampling" in kinds(apart) and "sampling" not in kinds(dataclasses.replace(gate, greedy=(WRONG,) * 8))

    def test_the_floor_of_labels_is_said(self) -> None:
        gate = made([[RIGHT, WRONG]] * 8)
        assert "always answering" not in repr(gate)
        assert "always answering 'yes' would get 60%" in repr(dataclasses.replace(gate, floor=("yes", 0.6)))


class TestVerdict:
    def test_all_wrong_is_no_signal(self) -> None:
        gate = made([[WRONG.replace("<", "(")] * 4] * 8)
        assert gate.verdict == "no signal" and gate.counts["all wrong"] == 8
        assert "in none of 8 groups of 4" in gate.sentence and "0% to 32% of groups" in gate.sentence

    def test_all_right_is_no_signal_and_not_mistaken_for_all_wrong(self) -> None:
        gate = made([[RIGHT] * 4] * 8)
        assert gate.verdict == "no signal" and gate.counts["all right"] == 8 and gate.counts["all wrong"] == 0
        assert "harder data" in kinds(gate) and "easier data" not in kinds(gate)

    def test_equal_totals_in_between_are_neither(self) -> None:
        gate = made([[WRONG] * 4] * 4 + [[RIGHT] * 4] * 2 + [[BARE] * 4] * 2)
        assert gate.verdict == "no signal"
        assert gate.counts == {"differs": 0, "all right": 2, "all wrong": 2, "all equal": 4, "no score": 0}

    def test_mixed_groups_are_a_signal(self) -> None:
        gate = made([[RIGHT, WRONG, BARE, WRONG]] * 8)
        assert gate.verdict == "signal" and gate.useful_interval[0] == pytest.approx(0.6756, abs=1e-3)
        assert "in 8 of 8 groups of 4 the totals differ (95 % interval 68% to 100% of groups)" in gate.sentence
        assert "No group differs" not in gate.sentence
        assert "By reward: correctness in 8, xml_format in 8, xml_tags in 8." in gate.sentence

    @pytest.mark.parametrize(
        ("differ", "expected"), [(0, "no signal"), (1, "weak signal"), (4, "weak signal"), (5, "signal")]
    )
    def test_the_interval_decides_between_weak_and_strong(self, differ: int, expected: str) -> None:
        gate = made([[RIGHT, WRONG]] * differ + [[WRONG, WRONG]] * (8 - differ))
        assert gate.verdict == expected

    def test_two_groups_are_too_few_for_a_signal_of_one(self) -> None:
        assert made([[RIGHT, WRONG], [WRONG, WRONG]]).verdict == "weak signal"

    def test_a_signal_that_is_not_from_the_answers_says_so(self) -> None:
        gate = made([[WRONG, BARE, BARE, WRONG]] * 8)
        assert gate.verdict == "form only" and gate.sentence.startswith(
            "form only: in 8 of 8 groups of 4 the totals differ"
        )
        assert "None of them differs in correctness, and none of the sampled answers is right" in gate.sentence
        assert "would learn what earns xml_format and xml_tags, and" in gate.sentence
        assert {"unearned reward", "easier data"} <= set(kinds(gate))
        one_right = made([[WRONG, BARE, BARE, WRONG]] * 7 + [[RIGHT] * 4])
        assert one_right.verdict == "signal" and "No group differs in correctness" in one_right.sentence

    def test_totals_that_differ_by_rounding_are_equal(self) -> None:
        def tenths(completions, **columns):
            return [0.1 + 0.2 if i % 2 else 0.3 for i in range(len(completions))]

        assert made([[WRONG, WRONG]] * 4, [tenths]).verdict == "no signal"

    def test_rewards_that_cannot_tell_right_do_not_call_anything_right_or_wrong(self) -> None:
        gate = made([[WRONG] * 4] * 4, [constant])
        assert gate.counts["all equal"] == 4 and gate.counts["all wrong"] == gate.counts["all right"] == 0

    def test_groups_without_any_score(self) -> None:
        gate = made([[WRONG] * 4] * 4, [silent])
        assert gate.counts["no score"] == 4 and gate.verdict == "no signal" and kinds(gate)[0] == "no score"
        assert math.isnan(gate.total.mean)
        repr(gate), gate._repr_html_()


class TestAdvice:
    def test_a_healthy_sample_needs_none(self) -> None:
        gate = made([[RIGHT, WRONG, BARE, RIGHT]] * 8)
        assert gate.advice == () and "Nothing to change" in repr(gate) and "Nothing to change" in gate._repr_html_()

    def test_dead_constant_and_earned_rewards_are_told_apart(self) -> None:
        gate = made([[RIGHT, WRONG]] * 8, [*REWARDS, constant, dead])
        by_kind = {advice.kind: advice.what for advice in gate.advice}
        assert set(by_kind) == {"dead reward", "constant reward", "earned reward"}
        assert "dead gave 0 to all 16 completions" in by_kind["dead reward"]
        assert "constant gave 1 to all 16 completions" in by_kind["constant reward"]
        assert sum(a.kind == "earned reward" for a in gate.advice) == 2, "format and tags are full in every completion"

    def test_an_unearned_reward_is_not_called_dead(self) -> None:
        gate = made([[WRONG, BARE]] * 8)
        assert "dead reward" not in kinds(gate)
        (advice,) = [a for a in gate.advice if a.kind == "unearned reward"]
        assert "correctness gave 0 to all 16" in advice.what and "a right answer in the format gets 1" in advice.what

    def test_form_is_no_partial_credit_for_answers_and_no_line_stands_twice(self) -> None:
        formed = made([[WRONG, BARE]] * 8, [*REWARDS, gn.rewards.exact_text()])
        (advice,) = [a for a in formed.advice if a.kind == "unearned reward"]
        assert "correctness gave 0" in advice.what and "exact_text gave 0" in advice.what
        assert "num_generations=" in advice.line and "incremental_format" not in repr(formed)
        half = [gn.rewards.correctness(), gn.rewards.xml_format()]
        (advice,) = [a for a in made([["<answer>3</answer>"] * 2] * 8, half).advice if a.kind == "unearned reward"]
        assert "incremental_format" in advice.line and "xml_format gave 0" in advice.what

    def test_a_reward_of_weight_nought_is_left_alone(self) -> None:
        assert "dead reward" not in kinds(made([[RIGHT, BARE]] * 4, [*REWARDS, gn.rewards.exact_text(weight=0.0)]))

    def test_an_example_turn_only_where_there_is_none(self) -> None:
        bare = made([[BARE] * 4] * 4, example=False)
        assert "example turn" in kinds(bare) and "example=(" in repr(bare) and "none of 16 completions" in repr(bare)
        assert "unearned reward" not in kinds(bare), "the form is why"
        assert "easier data" not in kinds(bare), "how hard the questions are is not seen without answers"
        shown = made([[BARE] * 4] * 4, example=True)
        assert "example turn" not in kinds(shown) and "other format" in kinds(shown)
        begun = made([["<reasoning>" + BARE] * 4] * 4, example=True)
        assert "partial credit" in kinds(begun)
        assert "The prompts describe the format and show no example" in repr(bare)
        for told, said in (
            (FORMAT.system_prompt(), "The prompts describe"),
            ("Translate.", "Nothing in the prompts names <a"),
        ):
            prompt = [{"role": "system", "content": told}, {"role": "user", "content": "1 + 1?"}]
            assert said in repr(dataclasses.replace(bare, rows=({"prompt": prompt, "answer": "2"},) * 4))
        formed = kinds(made([[WRONG] * 4] * 4, example=False))
        assert not {"example turn", "partial credit", "other format"} & set(formed)

    def test_easier_data(self) -> None:
        gate = made([[WRONG] * 4] * 8, [gn.rewards.correctness()])
        assert "easier data" in kinds(gate)
        assert "in all 8 groups no completion earned more than an empty one" in repr(gate)
        for read in (1, 3):  # of 16: the form is what failed
            few = made([[WRONG] + [BARE] * 3] * read + [[BARE] * 4] * (4 - read), [gn.rewards.correctness()])
            assert few.counts["all wrong"] == 4 and "easier data" not in kinds(few)
        cut = made([[WRONG, "<reasoning>on and on"] * 2] * 8, cut=lambda text: text.endswith("on and on"))
        assert "longer completions" in kinds(cut) and "easier data" not in kinds(cut)

    def test_longer_completions(self) -> None:
        gate = made([[RIGHT, "<reasoning>on and on", WRONG, BARE]] * 4, cut=lambda text: text.endswith("on and on"))
        (advice,) = [a for a in gate.advice if a.kind == "longer completions"]
        assert "4 of 16 completions were cut at 48 tokens, 4 of them with the format begun" in advice.what
        assert advice.line == "settings = settings.replace(max_completion_length=96)"
        bare = made([[BARE] * 4] * 4, cut=lambda text: True)
        assert "longer completions" not in kinds(bare), "room is not what it lacks"
        assert "longer completions" not in kinds(made([[RIGHT, WRONG, BARE, RIGHT]] * 4))

    def test_a_larger_group_by_the_sample_itself(self) -> None:
        groups = [[RIGHT] + [f"{WRONG} {i}" for i in range(7)]] * 4 + [[f"{i} (none)" for i in range(8)]] * 4
        gate = made(groups, correct := [gn.rewards.correctness()])
        assert gate.useful_share_of(8) == 0.5 and gate.useful_share_of(4) == pytest.approx(0.25)
        (advice,) = [a for a in gate.advice if a.kind == "larger group"]
        assert "of groups of 4 taken from these, 25% would differ, of groups of 8 50% do" in advice.what
        exec(advice.line, scope := {"settings": gate.settings})
        assert scope["settings"].num_generations == 16
        # With a batch that it divides.
        (advice,) = [
            a for a in made(groups, correct, per_device_train_batch_size=24).advice if a.kind == "larger group"
        ]
        exec(advice.line, scope := {"settings": gate.settings.replace(per_device_train_batch_size=24)})
        assert scope["settings"].num_generations == 16 and scope["settings"].batch_size == 32

    @pytest.mark.parametrize(("temperature", "line"), [(0.2, "temperature=1.0"), (1.0, "temperature=1.2")])
    def test_completions_that_are_all_the_same(self, temperature: float, line: str) -> None:
        gate = made([[WRONG] * 8] * 8, temperature=temperature)
        (advice,) = [a for a in gate.advice if a.kind == "temperature"]
        assert "a group of 8 holds 1.0 different completions" in advice.what and line in advice.line

    def test_a_temperature_that_breaks_the_format(self) -> None:
        gate = made([[f"{BARE} {i}", RIGHT, f"{i} {i}", f"{i}"] for i in range(8)], temperature=1.5)
        (advice,) = [a for a in gate.advice if a.kind == "temperature"]
        assert advice.line == "settings = settings.replace(temperature=1.0)"

    def test_more_prompts_where_the_sample_is_too_small(self) -> None:
        gate = made([[WRONG, WRONG]] * 7 + [[RIGHT, WRONG]])
        assert gate.advice[-1].kind == "more prompts" and "prompts=32" in gate.advice[-1].line
        assert "more prompts" not in kinds(made([[WRONG, WRONG]] * 60))
        few = [[RIGHT, WRONG]] + [[WRONG, RIGHT + str(i)] for i in range(2)]
        assert "more prompts" in kinds(made(few + [[WRONG] * 2] * 9))

    def test_a_few_questions_give_no_contradictory_advice(self) -> None:
        draw = random.Random(1)
        for _ in range(200):
            count = draw.randint(1, 8)
            groups = [[draw.choice([RIGHT, WRONG, BARE])] * 4 for _ in range(count)]
            gate = made(groups, temperature=draw.choice([0.7, 1.0, 1.2]))
            gate = dataclasses.replace(gate, greedy=tuple(draw.choice([RIGHT, WRONG]) for _ in groups), available=count)
            said = kinds(gate)
            assert not {"easier data", "harder data"} <= set(said) and not {"sampling", "temperature"} <= set(said), (
                gate
            )
            assert "more prompts" not in said, "there are no more"
            assert count >= 5 or "sampling" not in said, "one answer of a few is no share"
        assert (
            "prompts=12"
            in dataclasses.replace(made([[WRONG] * 2] * 7 + [[RIGHT, WRONG]]), available=12).advice[-1].line
        )

    def test_every_line_of_advice_is_code(self) -> None:
        samples = [
            made([[BARE] * 4] * 4, [*REWARDS, dead, constant, silent], example=False),
            made([["<reasoning>" + BARE] * 4] * 4),
            made([[BARE] * 4] * 4),
            made([[WRONG] * 4] * 8, [gn.rewards.correctness()], name="arithmetic"),
            made([[RIGHT] * 4] * 8, name="arithmetic"),
        ]
        lines = [advice.line for gate in samples for advice in gate.advice]
        assert len(set(lines)) > 6
        for line in lines:
            compile(line, "advice", "exec")

    def test_the_arithmetic_lines_run(self) -> None:
        for texts, kind in ((WRONG, "easier data"), (RIGHT, "harder data")):
            gate = made([[texts] * 4] * 8, [gn.rewards.correctness()], name="arithmetic")
            (advice,) = [a for a in gate.advice if a.kind == kind]
            exec(advice.line.replace(", tokenizer=tokenizer", ""), {"gn": gn, "settings": gate.settings})


class TestNumbers:
    def test_they_add_up_on_random_samples(self) -> None:
        draw = random.Random(0)
        for _ in range(60):
            size, count = draw.choice([2, 3, 8]), draw.randint(1, 9)
            texts = [RIGHT, WRONG, BARE, "", "<answer>2</answer>", "<reasoning>"]
            few = draw.sample(texts, draw.randint(1, 3))
            gate = made([[draw.choice(few) for _ in range(size)] for _ in range(count)])
            assert sum(gate.counts.values()) == count == len(gate.groups)
            low, high = gate.useful_interval
            assert 0 <= low <= gate.counts["differs"] / count <= high <= 1
            assert gate.useful_share_of(size) == pytest.approx(gate.counts["differs"] / count)
            totals = [total for group in gate.groups for total in group.totals]
            assert gate.total.mean == pytest.approx(sum(totals) / len(totals))
            assert gate.total.mean == pytest.approx(sum(r.weight * r.estimate.mean for r in gate.rewards))
            for part in (gate.total, *(r.estimate for r in gate.rewards)):
                if part.interval is not None:
                    assert part.interval[0] <= part.mean <= part.interval[1]
            for reward in gate.rewards:
                assert reward.lowest <= reward.estimate.mean <= reward.highest
                assert reward.groups_that_differ <= count
            advantages = gate.scores.advantages(size)
            moved = [any(abs(a) > 0.01 for a in advantages[i : i + size]) for i in range(0, len(advantages), size)]
            assert sum(moved) == gate.counts["differs"], "a group that differs is one with an advantage"
            assert len(gate.table) == size * count and list(gate.table["total"]) == totals

    def test_groups_are_the_units_of_the_interval(self) -> None:
        one_kind = estimate([[1.0] * 8, [0.0] * 8] * 4).interval
        mixed = estimate([[1.0, 0.0] * 4, [0.0, 1.0, 0.25, 0.75] * 2] * 4).interval
        assert one_kind[1] - one_kind[0] > 0.8, "eight groups, not 64 completions"
        assert mixed is None
        # Student's t with 7 degrees of freedom, by hand: 2.3646 * sqrt(2 / 7) / sqrt(8).
        assert one_kind[1] - 0.5 == pytest.approx(2.3646 * math.sqrt(2 / 7) / math.sqrt(8), abs=1e-3)

    def test_the_interval_holds_the_truth_as_often_as_it_says(self) -> None:
        import numpy

        draw, held, given = numpy.random.default_rng(0), 0, 0
        for _ in range(600):
            rates = draw.beta(1.5, 1.5, 8)
            got = estimate([draw.binomial(1, rate, 8).tolist() for rate in rates]).interval
            given += got is not None
            held += got is not None and got[0] <= 0.5 <= got[1]
        assert 0.92 <= held / given <= 0.98

    def test_no_interval_where_the_sample_cannot_say(self) -> None:
        assert made([[RIGHT, WRONG]]).total.interval is None
        assert made([[WRONG, WRONG]] * 8).total.interval is None
        assert "no interval from groups all alike" in repr(made([[WRONG, WRONG]] * 8))

    def test_no_interval_reaches_beyond_the_possible(self) -> None:
        """A function of the user's says no range; one that paid 0 to 1 was given 0.40 to 1.26."""
        assert estimate([[1.0], [1.0], [0.5], [0.0]]).interval == (0.0, 1.0)
        assert estimate([[1.2], [1.0], [0.5], [0.0]]).interval[1] > 1.2
        assert estimate([[1.0], [1.0], [0.5], [-0.1]]).interval[0] < -0.1
        gate = made([[BARE, BARE]] * 7 + [[RIGHT, WRONG]])
        assert gate.total.interval[0] == 0.0 and gate.rewards[0].estimate.interval[0] == 0.0

        def own(completions, **columns):
            return [0.5 * ("2" in text) for text in completions]

        mixed = made([[BARE, BARE]] * 7 + [[RIGHT, WRONG]], [*REWARDS, own])
        assert mixed.total.interval[0] == 0.0, "the total of rewards that gave nothing below 0"
        assert mixed.total.interval[1] > 1.0
        minus = made([["2", BARE]] * 4 + [[BARE, BARE]] * 4, [lambda completions, **_: [-s for s in own(completions)]])
        assert minus.total.interval[0] < -0.2, "what can be below 0 may be"

    def test_a_sample_that_does_not_fit_together_is_refused(self) -> None:
        gate = made([[RIGHT, WRONG]] * 2)
        with pytest.raises(ValueError, match="2 groups of 3 need 6 scores"):
            dataclasses.replace(gate, num_generations=3)

    def test_everything_shown_is_escaped(self) -> None:
        shown = made([["<script>alert(1)</script>"] * 2, ["\ud800\0"] * 2])._repr_html_()
        assert "<script>" not in shown and "&lt;script&gt;" in shown and "<b>question" not in shown
        shown.encode()

    def test_long_samples_show_the_first_groups_only(self) -> None:
        assert "8 more groups in" in made([[RIGHT, WRONG]] * 20)._repr_html_()


def counting(completions, **columns):
    """A reward that a random model can earn."""
    return [float(len(text[-1]["content"]) % 5) for text in completions]


@pytest.fixture(scope="module")
def tiny(tiny_folder):
    settings = gn.preset("cpu", model=str(tiny_folder), max_completion_length=12)
    model, tokenizer = gn.load_model(settings)
    return model, tokenizer, gn.load_task("arithmetic", settings, tokenizer=tokenizer), settings


class TestSampling:
    def test_a_seed_decides_and_nothing_is_left_behind(self, tiny) -> None:
        model, tokenizer, task, settings = tiny
        before = {name: p.clone() for name, p in model.state_dict().items()}
        # Unsloth leaves some modules in eval mode inside a model in training mode.
        next(module for module in model.modules() if module is not model).eval()
        modes = [module.training for module in model.modules()]
        assert len(set(modes)) == 2
        torch.manual_seed(5)
        state = torch.get_rng_state()
        first = gn.baseline(model, tokenizer, task, counting, settings, prompts=3, seed=1)
        assert torch.equal(torch.get_rng_state(), state)
        assert [module.training for module in model.modules()] == modes
        assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())
        torch.manual_seed(6)
        again = gn.baseline(model, tokenizer, task, counting, settings, prompts=3, seed=1)
        assert again.scores.completions == first.scores.completions and repr(again) == repr(first)
        other = gn.baseline(model, tokenizer, task, counting, settings, prompts=3, seed=2)
        assert other.scores.completions != first.scores.completions and other.questions != first.questions

    def test_what_is_sampled_is_what_training_would_sample(self, tiny, monkeypatch) -> None:
        from grpo_nb.generation import sampling

        model, tokenizer, task, settings = tiny
        seen = {}
        plain = sampling.sample

        def watched(model, prompts, config, folded=None):
            seen.update({} if seen else {**config.to_dict(), "prompts": prompts})  # the likeliest answers come after
            return plain(model, prompts, config, folded)

        monkeypatch.setattr(sampling, "sample", watched)
        wanted = {"temperature": 0.7, "top_p": 0.8, "top_k": 30}
        settings = settings.replace(max_completion_length=7, num_generations=4, extra={"min_p": 0.01}, **wanted)
        gate = gn.baseline(model, tokenizer, task, counting, settings, prompts=2)
        wanted |= {"max_new_tokens": 7, "min_p": 0.01, "do_sample": True}
        assert {name: seen[name] for name in wanted} == wanted
        assert len(seen["prompts"]) == 8 and len({tuple(prompt) for prompt in seen["prompts"]}) == 2
        assert set(gate.questions) <= set(task.train["question"]) and max(gate.tokens) <= 7
        assert gate.has_example and gate.num_generations == 4

    def test_a_reward_sees_the_sampled_token_ids(self, tiny) -> None:
        model, tokenizer, task, settings = tiny

        def length(completions, completion_ids, **columns):
            return [float(len(ids)) for ids in completion_ids]

        gate = gn.baseline(model, tokenizer, task, length, settings, prompts=2)
        assert gate.scores.values["length"] == tuple(map(float, gate.tokens))
        cut = [n == 12 for n in gate.tokens]
        assert all(is_long or not is_cut for is_cut, is_long in zip(gate.is_cut, cut, strict=True))

    def test_a_reward_that_cannot_be_called_fails_before_sampling(self, tiny, monkeypatch) -> None:
        model, tokenizer, task, settings = tiny
        monkeypatch.setattr("grpo_nb.generation.sampling.generate", lambda *_, **more: pytest.fail("it sampled first"))

        def broken(completions, solution, **columns):
            return [0.0] * len(completions)

        with pytest.raises(Exception, match="broken"):
            gn.baseline(model, tokenizer, task, broken, settings)

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ({"num_generations": 1}, "num_generations = 1 must be at least 2"),
            ({"prompts": 0}, "prompts = 0"),
            ({"prompts": 2.5}, "prompts = 2.5 must be a whole number"),
            ({"seed": -1}, "seed = -1"),
            ({"rewards": None}, "rewards = None"),
            (
                {"rewards": gn.preset("cpu"), "settings": None},
                r"rewards are missing: gn.baseline\(model, tokenizer, task, r",
            ),
            ({"rewards": gn.rewards.correctness}, "no reward function"),
        ],
    )
    def test_bad_input_is_told_before_anything_is_sampled(self, tiny, monkeypatch, given, said) -> None:
        model, tokenizer, task, settings = tiny
        monkeypatch.setattr("grpo_nb.generation.sampling.generate", lambda *_, **more: pytest.fail("it sampled first"))
        taken = {"task": task, "rewards": counting, "settings": settings, **given}
        with pytest.raises((ValueError, TypeError), match=said):
            gn.baseline(model, tokenizer, **taken)
