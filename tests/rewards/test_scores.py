"""Scores outside a trainer are those inside one: TRL's own statements run on the same numbers, and a real run's log."""

import ast
import functools
import importlib.util
import math
import types
from pathlib import Path

import pandas
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import TrainerState

import grpo_nb as gn
from grpo_nb.rewards import correctness, xml_format, xml_tags
from grpo_nb.rewards.calls import RewardError, to_float
from grpo_nb.rewards.scores import group_advantages, reweight, score

TRL = Path(importlib.util.find_spec("trl").origin).parent
GOOD = "<reasoning>\n3 + 4\n</reasoning>\n<answer>\n7\n</answer>"


def definition(path: Path, name: str, namespace: dict) -> None:
    """Run one function's source out of a module of trl, without the decorators that need a trainer."""
    tree = ast.parse(path.read_text())
    (node,) = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == name]
    node.decorator_list = []
    exec(compile(ast.Module([node], []), str(path), "exec"), namespace)


@pytest.fixture(scope="module")
def trl_advantages():
    """Return the statements of `_generate_and_score_completions` that turn scores into advantages, as a function."""
    namespace: dict = {"torch": torch}
    definition(TRL / "trainer/utils.py", "nanstd", namespace)
    tree = ast.parse((TRL / "trainer/grpo_trainer.py").read_text())
    (method,) = [
        n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef) and n.name == "_generate_and_score_completions"
    ]
    sources = [ast.unparse(statement) for statement in method.body]
    start = next(i for i, s in enumerate(sources) if s.startswith("unscorable_mask"))
    end = next(i for i, s in enumerate(sources) if s.startswith("advantages = torch.nan_to_num"))
    code = compile("\n".join(sources[start : end + 1]), "trl", "exec")

    def compute(totals: list[float], num_generations: int, scale_rewards: str) -> list[float]:
        trainer = types.SimpleNamespace(
            multi_objective_aggregation="sum_then_normalize", scale_rewards=scale_rewards, reward_weights=torch.ones(1)
        )
        scope = {
            **namespace, "self": trainer, "num_generations": num_generations, "device": "cpu",
            "rewards_per_func": torch.tensor(totals, dtype=torch.float32).unsqueeze(1),
        }  # fmt: skip
        exec(code, scope)
        return scope["advantages"].tolist()

    return compute


numbers = st.one_of(st.floats(-4, 4, width=16), st.just(math.nan), st.sampled_from([0.0, 1.0]))


@settings(deadline=None, max_examples=300)
@given(
    data=st.data(), groups=st.integers(1, 4), num_generations=st.integers(1, 6),
    scale=st.sampled_from(["group", "batch", "none"]),
)  # fmt: skip
def test_advantages_are_those_of_trls_own_statements(trl_advantages, data, groups, num_generations, scale) -> None:
    count = groups * num_generations
    totals = data.draw(st.lists(numbers, min_size=count, max_size=count))
    # TRL works in float32: an advantage is a difference of totals over as little as 1e-4.
    expected = trl_advantages(totals, num_generations, scale)
    assert group_advantages(totals, num_generations, scale_rewards=scale) == pytest.approx(expected, abs=2e-2, rel=1e-3)


@pytest.mark.parametrize(
    ("totals", "num_generations", "scale"),
    [
        ([2.0, 0.0, 0.0, 0.0], 4, "group"), ([2.0, 0.0, 1.0, 1.0, 3.0, 1.0], 3, "batch"), ([1.0, 0.0], 2, "none"),
        ([1.0, math.nan, 0.0, 0.5], 4, "group"), ([1.0, math.nan], 2, "group"), ([math.inf, 0.0, 1.0], 3, "none"),
        ([math.inf, 0.0, 1.0], 3, "group"), ([0.3] * 8, 8, "group"), ([math.nan] * 4, 2, "batch"), ([1.0], 1, "batch"),
        ([math.inf, -math.inf, 1.0], 3, "group"),
    ],
)  # fmt: skip
def test_advantages_closely(trl_advantages, totals, num_generations, scale) -> None:
    expected = trl_advantages(totals, num_generations, scale)
    assert group_advantages(totals, num_generations, scale_rewards=scale) == pytest.approx(expected, abs=5e-4, rel=1e-5)


def test_advantages_of_a_real_run(tiny_run: gn.runs.Run) -> None:
    logged = pandas.concat([pandas.read_parquet(path) for path in sorted((tiny_run.path / "completions").glob("*"))])
    size = tiny_run.settings.num_generations
    assert logged["advantage"].abs().max() > 0.5
    for _, step in logged.groupby("step"):
        assert group_advantages(step["total"].tolist(), size) == pytest.approx(step["advantage"].tolist(), abs=2e-3)


def test_advantages_refuse_half_groups_and_unknown_scales() -> None:
    with pytest.raises(ValueError, match=r"3 totals cannot be divided into groups of num_generations = 2"):
        group_advantages([1, 2, 3], 2)
    with pytest.raises(ValueError, match="scale_rewards = 'groups'"):
        group_advantages([1, 2], 2, scale_rewards="groups")
    assert group_advantages([1, 2], 2, scale_rewards=False) == [-0.5, 0.5]


def seen(reward_of, rows: list[dict], completions: list, trl: bool) -> list[dict]:
    """The keywords of each call, from TRL's own `_calculate_rewards` or from `score`."""
    calls: list[dict] = []

    def make(name: str):
        def reward(**keywords):
            calls.append(dict(keywords))
            return [1.0] * len(keywords["completions"])

        reward.__name__ = name
        return reward

    async def later(**keywords):
        calls.append(dict(keywords))
        return [None] * len(keywords["completions"])

    rewards = [later, make("first"), make("second")]
    ids = [[1, 2]] * len(completions)
    if not trl:
        score(rewards, completions, rows, completion_ids=ids, trainer_state=TrainerState(max_steps=3))
        return calls
    import asyncio
    import contextlib
    import threading

    from trl.trainer.utils import is_async_callable

    namespace = {
        "torch": torch, "nn": torch.nn, "asyncio": asyncio, "gather": lambda tensor: tensor,
        "profiling_context": lambda trainer, name: contextlib.nullcontext(), "is_async_callable": is_async_callable,
    }  # fmt: skip
    definition(TRL / "trainer/grpo_trainer.py", "_calculate_rewards", namespace)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    trainer = types.SimpleNamespace(
        accelerator=types.SimpleNamespace(device="cpu"), state=TrainerState(max_steps=3), environments=None, async_loop=loop,
        reward_funcs=rewards, reward_processing_classes=[None] * 3, reward_func_names=["later", "first", "second"],
        _log_completion_extra=print, _log_metric=print,
    )  # fmt: skip
    namespace["_calculate_rewards"](trainer, rows, [row["prompt"] for row in rows], completions, ids)
    loop.call_soon_threadsafe(loop.stop)
    return calls


@pytest.mark.parametrize("chat", [False, True])
def test_the_call_is_trls(chat: bool) -> None:
    prompt = [{"role": "user", "content": "3 + 4?"}] if chat else "3 + 4?"
    rows = [{"prompt": prompt, "answer": "7", "completion": "x", "level": i} for i in range(2)]
    completions = [[{"role": "assistant", "content": t}] for t in ("7", "8")] if chat else ["7", "8"]
    theirs, ours = (seen(score, rows, completions, trl) for trl in (True, False))
    assert len(theirs) == len(ours) == 3
    for a, b in zip(theirs, ours, strict=True):
        assert list(a) == list(b)
        for key in set(a) - {"log_extra", "log_metric"}:
            assert a[key] == b[key], key


@pytest.mark.parametrize("value", [True, 1, 1.5, None, "1.5", [1.0], 1j, {}, object(), 1e39, 10**400, -1e300])
def test_a_score_is_read_as_torch_reads_it(value) -> None:
    try:
        column = torch.zeros(2)
        column[:] = torch.tensor([math.nan if v is None else v for v in (value, value)], dtype=torch.float32)
    except (TypeError, ValueError, RuntimeError, OverflowError):
        with pytest.raises((TypeError, OverflowError)):
            to_float(value)
    else:
        assert to_float(value) == pytest.approx(column[0].item(), nan_ok=True)


def test_numpy_and_torch_scores_count() -> None:
    numpy = pytest.importorskip("numpy")
    made = {
        "array": lambda completions, **_: numpy.array([0.5, 1.0]),
        "tensor": lambda completions, **_: torch.tensor([0.5, 1.0]),
        "booleans": lambda completions, **_: [numpy.bool_(True), False],
    }
    for name, reward in made.items():
        reward.__name__ = name
    assert score(list(made.values()), ["a", "b"]).totals == (2.0, 2.0)


def test_strings_become_messages_where_the_prompt_is_a_chat() -> None:
    task = gn.load_task("arithmetic")
    row = dict(task.train[0])
    found = score([correctness(), xml_format(), xml_tags()], [f"<answer>{row['answer']}</answer>", "?"], row)
    assert found.values == {"correctness": (1.0, 0.0), "xml_format": (0.0, 0.0), "xml_tags": (0.5, 0.0)}
    assert found.totals == (2.5, 0.0)
    assert found.advantages() == pytest.approx([0.7071, -0.7071], abs=1e-3)


def test_none_is_left_out_of_the_sum_and_all_none_is_nan() -> None:
    def first(completions, **_):
        return [None, None, 1.0]

    def second(completions, **_):
        return [2.0, None, 3.0]

    found = score([first, second], ["a", "b", "c"], weights={"second": 0.5})
    totals = found.totals
    assert found.values["first"][2] == 1.0 and found.values["second"] == pytest.approx(
        (2.0, math.nan, 3.0), nan_ok=True
    )
    assert totals[0] == 1.0 and math.isnan(totals[1]) and totals[2] == 2.5


def test_reweight_calls_nothing_again() -> None:
    calls = []

    def first(completions, **_):
        calls.append(1)
        return [1.0, 0.0]

    before = score([first, xml_tags()], [GOOD, GOOD])
    after = reweight(before, {"first": -2.0})
    assert len(calls) == 1
    assert (before.totals, after.totals) == ((2.0, 1.0), (-1.0, 1.0))
    assert before.weights["first"] == 1.0
    with pytest.raises(ValueError, match="weights names 'frist', but"):
        reweight(before, {"frist": 1.0})
    with pytest.raises(ValueError, match="finite"):
        reweight(before, {"first": math.nan})


def picky(completions, answer, **_):
    return [float(int(text) == int(gold)) for text, gold in zip(completions, answer, strict=True)]


def test_a_failing_reward_names_row_and_completion() -> None:
    with pytest.raises(RewardError, match=r"'picky' raised ValueError.*row 1: 'seven \\ud800'") as caught:
        score(picky, ["7", "seven \ud800", "8"], {"answer": "7"})
    assert isinstance(caught.value.__cause__, ValueError) and caught.value.row == 1


def test_failures_can_be_recorded_and_the_rest_is_scored() -> None:
    found = score([picky, xml_tags()], ["7", "seven", "8"], {"answer": "7"}, on_error="record")
    assert found.values["picky"][0] == 1.0 and math.isnan(found.values["picky"][1])
    assert [error.row for error in found.errors] == [1]
    assert found.totals[0] == 1.0 and math.isnan(found.totals[1]), "a total that nobody knows is not the rest's"
    assert "row 1" in repr(found) and "row 1" in found._repr_html_()


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e39])
def test_a_score_that_is_no_finite_number_is_an_error(value: float) -> None:
    def odd(completions, **_):
        return [value if text == "b" else 1.0 for text in completions]

    with pytest.raises(
        RewardError, match=r"'odd' raised ValueError: a score is .* a finite number, or None.*row 1: 'b'"
    ):
        score(odd, ["a", "b"])
    assert score(odd, ["a", "b"], on_error="record").errors[0].row == 1


def test_a_wrong_number_of_scores_and_none_at_all_are_errors() -> None:
    def short(completions, **_):
        return [1.0] * (len(completions) - 1)

    with pytest.raises(RewardError, match="0 scores for 1 completions"):
        score(short, ["a", "b"])
    with pytest.raises(RewardError, match="'<lambda>' raised TypeError: it returned None; it must be a list"):
        score(lambda **_: None, ["a"])


def test_what_a_reward_changes_is_not_the_callers() -> None:
    def vandal(completions, answer, **_):
        completions[0][0]["content"] = ""
        answer[0] = "8"
        return [0.0]

    row = {"prompt": [{"role": "user", "content": "?"}], "answer": "7"}
    chat = [[{"role": "assistant", "content": "<answer>7</answer>"}]]
    found = score([vandal, correctness()], chat, [row])
    assert chat[0][0]["content"] == "<answer>7</answer>" and row["answer"] == "7"
    # The next reward sees the damage, as in the trainer.
    assert found.values["correctness"] == (0.0,) and found.completions == ("<answer>7</answer>",)


def test_async_partial_and_what_is_logged() -> None:
    async def judge(completions, log_extra, log_metric, factor, trainer_state, **_):
        log_extra("note", ["n"] * len(completions))
        log_metric("mean", 0.5)
        return [factor + trainer_state.global_step / trainer_state.max_steps] * len(completions)

    assert score(functools.partial(judge, factor=3), ["a", "b"]).values == {"judge": (3.0, 3.0)}


def test_token_ids_are_those_given() -> None:
    def long(completion_ids, **_):
        return [float(len(ids)) for ids in completion_ids]

    assert score(long, ["a"], completion_ids=[[1, 2, 3]]).totals == (3.0,)
    with pytest.raises(RewardError, match="'long' raised TypeError: 'NoneType'"):
        score(long, ["a"])


def weighing(weight: object):
    def constant(completions, **_):
        return [1.0] * len(completions)

    constant.weight = weight
    return constant


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([], ["a"]), "rewards is empty"), (([xml_tags(), xml_tags()], ["a"]), "two rewards are named 'xml_tags'"),
        ((["gpt2"], ["a"]), "no reward function"),
        (([xml_tags()], []), "list of texts"), (([xml_tags()], ["a", "b", "c"], [{}, {}]), "2 rows for 3 completions"),
        (([xml_tags()], ["a", []]), "list of texts"),
        (([xml_tags()], "abc"), "list of texts"),
        (([xml_tags()], [{"role": "assistant", "content": "a"}]), "list of lists of chat messages"),
        (([weighing(math.nan)], ["a"]), "weight = nan of constant must be a finite number"),
        (([weighing("2")], ["a"]), "weight = '2' of constant must be a finite number"),
    ],
)  # fmt: skip
def test_what_cannot_be_scored_says_so(arguments, message) -> None:
    with pytest.raises(ValueError, match=message):
        score(*arguments)


def test_shows_itself_and_escapes() -> None:
    found = score([xml_tags()], ["<script>alert(1)</script>\ud800\0", GOOD])
    assert "<script>" not in found._repr_html_() and "&lt;script&gt;" in found._repr_html_()
    found._repr_html_().encode(), repr(found).encode()
    assert list(found.table.columns) == ["completion", "xml_tags", "total"] and len(found.table) == 2


def test_a_real_tokenizer_counts_hostile_and_endless_text(embedded_folder, caplog) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(embedded_folder, model_max_length=50)

    def tokens(completions, completion_ids, **columns):
        return [float(len(ids)) for ids in completion_ids]

    got = score(tokens, ["\ud800 7", "\0", "one two " * 500, ""], tokenizer=tokenizer).totals
    assert got[0] > 0 and got[1] > 0 and got[2] > 900 and got[3] == 0
    assert "longer than the specified maximum" not in caplog.text
