"""Scores outside a trainer are those inside one: TRL's own statements run on the same numbers, and a real run's log."""

import ast
import asyncio
import contextlib
import importlib.util
import math
import threading
import types
from pathlib import Path

import numpy
import pandas
import pytest
import torch
from transformers import AutoTokenizer, TrainerState
from trl.trainer.utils import is_async_callable

import grpo_nb as gn
from grpo_nb.rewards import correctness, xml_format, xml_tags
from grpo_nb.scoring.calls import RewardError
from grpo_nb.scoring.scores import group_advantages, reweight, score

TRL = Path(importlib.util.find_spec("trl").origin).parent
GOOD = "<reasoning>\n3 + 4\n</reasoning>\n<answer>\n7\n</answer>"
NAN, INF = math.nan, math.inf


def definition(file: str, name: str) -> ast.FunctionDef:
    """One function's source out of a module of trl, without the decorators that need a trainer."""
    tree = ast.parse((TRL / "trainer" / file).read_text())
    (node,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    node.decorator_list = []
    return node


def run(statements: list[ast.stmt], names: dict) -> dict:
    exec(compile(ast.Module(statements, []), "trl", "exec"), names)
    return names


@pytest.fixture(scope="module")
def trl_advantages():
    """Return the statements of `_generate_and_score_completions` that turn scores into advantages, as a function."""
    body = definition("grpo_trainer.py", "_generate_and_score_completions").body
    sources = [ast.unparse(statement) for statement in body]
    start = next(i for i, s in enumerate(sources) if s.startswith("unscorable_mask"))
    end = next(i for i, s in enumerate(sources) if s.startswith("advantages = torch.nan_to_num"))
    names = run([definition("utils.py", "nanstd")], {"torch": torch, "device": "cpu"})
    kind = {"multi_objective_aggregation": "sum_then_normalize", "reward_weights": torch.ones(1)}

    def compute(totals: list[float], num_generations: int, scale_rewards: str) -> list[float]:
        given = {
            "self": types.SimpleNamespace(scale_rewards=scale_rewards, **kind), "num_generations": num_generations,
            "rewards_per_func": torch.tensor(totals, dtype=torch.float32).unsqueeze(1),
        }  # fmt: skip
        return run(body[start : end + 1], names | given)["advantages"].tolist()

    return compute


SCALES = ["group", "batch", "none"]


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize(
    ("totals", "size"),
    [
        ([2.0, 0.0, 0.0, 0.0], 4), ([2.0, 0.0, 1.0, 1.0, 3.0, 1.0], 3), ([1.0, 0.0], 2), ([1.0, NAN, 0.0, 0.5], 4),
        ([1.0, NAN], 2), ([INF, 0.0, 1.0], 3), ([INF, -INF, 1.0], 3), ([0.3] * 8, 8), ([NAN] * 4, 2), ([1.0], 1),
    ],
)  # fmt: skip
def test_advantages_are_those_of_trls_own_statements(trl_advantages, totals, size, scale) -> None:
    expected = pytest.approx(trl_advantages(totals, size, scale), abs=5e-4, rel=1e-5)
    assert group_advantages(totals, size, scale_rewards=scale) == expected


def test_advantages_of_a_real_run(tiny_run: gn.runs.Run) -> None:
    logged = pandas.concat(
        [pandas.read_parquet(path) for path in sorted((tiny_run.path / "completions").glob("*"))]
    )
    size = tiny_run.settings.num_generations
    assert logged["advantage"].abs().max() > 0.5
    for _, step in logged.groupby("step"):
        assert group_advantages(step["total"].tolist(), size) == pytest.approx(
            step["advantage"].tolist(), abs=2e-3
        )


def test_advantages_refuse_half_groups_and_unknown_scales() -> None:
    with pytest.raises(
        ValueError, match=r"3 totals cannot be divided into groups of num_generations = 2"
    ):
        group_advantages([1, 2, 3], 2)
    with pytest.raises(ValueError, match="scale_rewards = 'groups'"):
        group_advantages([1, 2], 2, scale_rewards="groups")
    assert group_advantages([1, 2], 2, scale_rewards=False) == [-0.5, 0.5]


def called_by_trl(
    rewards: list, completions: list, rows: list[dict], ids: list, state: TrainerState
) -> None:
    """Call rewards by TRL's own `_calculate_rewards`."""
    names = {
        "torch": torch, "nn": torch.nn, "asyncio": asyncio, "gather": lambda tensor: tensor,
        "profiling_context": lambda trainer, name: contextlib.nullcontext(), "is_async_callable": is_async_callable,
    }  # fmt: skip
    run([definition("grpo_trainer.py", "_calculate_rewards")], names)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    trainer = types.SimpleNamespace(
        accelerator=types.SimpleNamespace(device="cpu"), state=state, environments=None, async_loop=loop,
        reward_funcs=rewards, reward_processing_classes=[None] * 3, reward_func_names=["later", "first", "second"],
        _log_completion_extra=print, _log_metric=print,
    )  # fmt: skip
    names["_calculate_rewards"](trainer, rows, [row["prompt"] for row in rows], completions, ids)
    loop.call_soon_threadsafe(loop.stop)


def recording(calls: list[dict], name: str, value: float | None = 1.0):
    """A reward of this name that keeps the keywords of each call."""

    def reward(**keywords):
        calls.append(keywords)
        return [value] * len(keywords["completions"])

    reward.__name__ = name
    return reward


@pytest.mark.parametrize("is_chat", [False, True])
def test_the_call_is_trls(is_chat: bool) -> None:
    prompt = [{"role": "user", "content": "3 + 4?"}] if is_chat else "3 + 4?"
    rows = [{"prompt": prompt, "answer": "7", "completion": "x", "level": i} for i in range(2)]
    completions = (
        [[{"role": "assistant", "content": t}] for t in ("7", "8")] if is_chat else ["7", "8"]
    )
    theirs, ours = [], []
    for calls in (theirs, ours):

        async def later(*, calls=calls, **keywords):
            return recording(calls, "later", value=None)(**keywords)

        rewards, ids = [later, recording(calls, "first"), recording(calls, "second")], [[1, 2]] * 2
        if calls is theirs:
            called_by_trl(rewards, completions, rows, ids, TrainerState(max_steps=3))
        else:
            score(
                rewards,
                completions,
                rows,
                completion_ids=ids,
                trainer_state=TrainerState(max_steps=3),
            )
    assert len(theirs) == len(ours) == 3
    for a, b in zip(theirs, ours, strict=True):
        assert list(a) == list(b)
        for key in set(a) - {"log_extra", "log_metric"}:
            assert a[key] == b[key], key


def paying(scores: object, name: str = "paying"):
    """A reward that gives these scores, or what a function makes of the completions."""

    def reward(completions, **_):
        return scores(completions) if callable(scores) else scores

    reward.__name__ = name
    return reward


def test_numpy_and_torch_scores_count() -> None:
    made = {
        "array": numpy.array([0.5, 1.0]),
        "tensor": torch.tensor([0.5, 1.0]),
        "bools": [numpy.bool_(True), False],
    }
    assert score([paying(scores, name) for name, scores in made.items()], ["a", "b"]).totals == (
        2.0,
        2.0,
    )


def test_strings_become_messages_where_the_prompt_is_a_chat() -> None:
    row = dict(gn.load_task("arithmetic").train[0])
    found = score(
        [correctness(), xml_format(), xml_tags()], [f"<answer>{row['answer']}</answer>", "?"], row
    )
    assert found.values == {
        "correctness": (1.0, 0.0),
        "xml_format": (0.0, 0.0),
        "xml_tags": (0.5, 0.0),
    }
    assert found.totals == (2.5, 0.0)
    assert found.advantages() == pytest.approx([0.7071, -0.7071], abs=1e-3)


def test_none_is_left_out_of_the_sum_and_all_none_is_nan() -> None:
    first, second = paying([None, None, 1.0], "first"), paying([2.0, None, 3.0], "second")
    found = score([first, second], ["a", "b", "c"], weights={"second": 0.5})
    assert found.values["first"][2] == 1.0 and found.values["second"] == pytest.approx(
        (2.0, NAN, 3.0), nan_ok=True
    )
    assert found.totals == pytest.approx((1.0, NAN, 2.5), nan_ok=True)


def test_reweight_calls_nothing_again() -> None:
    calls: list[dict] = []
    before = score([recording(calls, "first"), xml_tags()], [GOOD, "7"])
    after = reweight(before, {"first": -2.0})
    assert len(calls) == 1 and before.weights["first"] == 1.0
    assert (before.totals, after.totals) == ((2.0, 1.0), (-1.0, -2.0))
    with pytest.raises(ValueError, match="weights names 'frist', but"):
        reweight(before, {"frist": 1.0})


def picky(completions, answer, **_):
    return [float(int(text) == int(gold)) for text, gold in zip(completions, answer, strict=True)]


def test_a_failing_reward_names_row_and_completion_or_is_recorded_and_the_rest_scored() -> None:
    with pytest.raises(
        RewardError, match=r"'picky' raised ValueError.*row 1: 'seven \\ud800'"
    ) as caught:
        score(picky, ["7", "seven \ud800", "8"], {"answer": "7"})
    assert isinstance(caught.value.__cause__, ValueError) and caught.value.row == 1
    found = score([picky, xml_tags()], ["7", "seven", "8"], {"answer": "7"}, on_error="record")
    assert found.values["picky"] == pytest.approx((1.0, NAN, 0.0), nan_ok=True)
    assert [error.row for error in found.errors] == [1]
    assert found.totals[0] == 1.0 and math.isnan(found.totals[1]), (
        "a total that nobody knows is not the rest's"
    )
    assert "row 1" in repr(found) and "row 1" in found._repr_html_()


@pytest.mark.parametrize("value", [NAN, INF, -INF, 1e39])
def test_a_score_that_is_no_finite_number_is_an_error(value: float) -> None:
    odd = paying(lambda completions: [value if text == "b" else 1.0 for text in completions], "odd")
    told = r"'odd' raised ValueError: a score is .* a finite number, or None.*row 1: 'b'"
    with pytest.raises(RewardError, match=told):
        score(odd, ["a", "b"])
    assert score(odd, ["a", "b"], on_error="record").errors[0].row == 1


def test_a_wrong_number_of_scores_and_none_at_all_are_errors() -> None:
    with pytest.raises(RewardError, match="0 scores for 1 completions"):
        score(paying(lambda completions: [1.0] * (len(completions) - 1)), ["a", "b"])
    with pytest.raises(
        RewardError, match="'paying' raised TypeError: it returned None; it must be a list"
    ):
        score(paying(None), ["a"])


def tokens(completions, completion_ids, **_):
    return [float(len(ids)) for ids in completion_ids]


def test_token_ids_are_those_given_or_of_a_tokenizer_on_hostile_and_endless_text_too(
    embedded_folder, caplog
) -> None:
    assert score(tokens, ["a"], completion_ids=[[1, 2, 3]]).totals == (3.0,)
    with pytest.raises(RewardError, match="'tokens' raised TypeError: 'NoneType'"):
        score(tokens, ["a"])
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder, model_max_length=50)
    got = score(tokens, ["\ud800 7", "\0", "one two " * 500, ""], tokenizer=tokenizer).totals
    assert got[0] > 0 and got[1] > 0 and got[2] > 900 and got[3] == 0
    assert "longer than the specified maximum" not in caplog.text


def weighing(weight: object):
    reward = paying([1.0], "constant")
    reward.weight = weight
    return reward


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], ["a"]), "rewards is empty"), (([xml_tags(), xml_tags()], ["a"]), "two rewards are named 'xml_tags'"),
        (([xml_tags()], []), "list of texts"), (([xml_tags()], ["a", "b", "c"], [{}, {}]), "2 rows for 3 completions"),
        (([xml_tags()], ["a", []]), "list of texts"), (([xml_tags()], "abc"), "list of texts"),
        (([xml_tags()], [{"role": "assistant", "content": "a"}]), "list of lists of chat messages"),
        (([weighing(NAN)], ["a"]), "weight = nan of constant must be a finite number"),
        (([weighing("2")], ["a"]), "weight = '2' of constant must be a finite number"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_says_so(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        score(*arguments)


def test_score_of_a_text_as_reward_is_refused() -> None:
    with pytest.raises(TypeError, match="takes reward functions"):
        score(["gpt2"], ["a"])


def test_shows_itself_and_escapes() -> None:
    found = score([xml_tags()], ["<script>alert(1)</script>\ud800\0", GOOD])
    assert "<script>" not in found._repr_html_() and "&lt;script&gt;" in found._repr_html_()
    found._repr_html_().encode(), repr(found).encode()
    assert (
        list(found.table.columns) == ["completion", "xml_tags", "total"] and len(found.table) == 2
    )
