"""Scores outside a trainer equal those of TRL's own statements, and those of a run."""

import ast
import asyncio
import contextlib
import functools
import importlib.util
import math
import pickle
import re
import statistics
import threading
import types
from pathlib import Path
from typing import Any

import numpy
import pandas
import pytest
import torch
from transformers import AutoTokenizer, TrainerState
from trl.trainer.utils import is_async_callable

import grpo_nb as gn
from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.rewards import correctness, exact_format, partial_format
from grpo_nb.scoring.advantages import effect_in_words, group_advantages
from grpo_nb.scoring.scores import (
    TRL_KEYWORDS,
    RewardError,
    make_batch,
    score,
    with_final_model_message,
)

TRL = Path(importlib.util.find_spec("trl").origin).parent
GOOD = "<reasoning>\n3 + 4\n</reasoning>\n<answer>\n7\n</answer>"
NAN = math.nan
INF = math.inf


def definition(file: str, name: str) -> ast.FunctionDef:
    """Return the source of a function of trl, without the decorators that need a trainer."""
    tree = ast.parse((TRL / "trainer" / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    (node,) = [function for function in functions if function.name == name]
    node.decorator_list = []
    return node


def run(statements: list[ast.stmt], names: dict) -> dict:
    exec(compile(ast.Module(statements, []), "trl", "exec"), names)
    return names


@pytest.fixture(scope="module")
def trl_advantages():
    """Return TRL's statements that compute advantages as a function."""
    body = definition("grpo_trainer.py", "_generate_and_score_completions").body
    sources = [ast.unparse(statement) for statement in body]
    start = next(i for i, s in enumerate(sources) if s.startswith("unscorable_mask"))
    end = next(i for i, s in enumerate(sources) if s.startswith("advantages = torch.nan_to_num"))
    names = run([definition("utils.py", "nanstd")], {"torch": torch, "device": "cpu"})

    def compute(totals: list[float], num_generations: int, scale_rewards: str) -> list[float]:
        trainer = types.SimpleNamespace(
            scale_rewards=scale_rewards,
            multi_objective_aggregation="sum_then_normalize",
            reward_weights=torch.ones(1),
        )
        arguments = {
            "self": trainer,
            "num_generations": num_generations,
            "rewards_per_func": torch.tensor(totals, dtype=torch.float32).unsqueeze(1),
        }
        return run(body[start : end + 1], names | arguments)["advantages"].tolist()

    return compute


@pytest.mark.parametrize("scale", ["group", "none"])
@pytest.mark.parametrize(
    ("totals", "size"),
    [
        pytest.param([2.0, 0.0, 0.0, 0.0], 4, id="one right"),
        pytest.param([2.0, 0.0, 1.0, 1.0, 3.0, 1.0], 3, id="two groups"),
        pytest.param([1.0, 0.0], 2, id="pair"),
        pytest.param([1.0, NAN, 0.0, 0.5], 4, id="one without score"),
        pytest.param([1.0, NAN], 2, id="one of two without score"),
        pytest.param([0.3] * 8, 8, id="equal"),
        pytest.param([NAN] * 4, 2, id="no scores"),
        pytest.param([1.0], 1, id="group of one"),
    ],
)
def test_advantages_equal_those_of_trl(trl_advantages, totals, size, scale) -> None:
    expected = pytest.approx(trl_advantages(totals, size, scale), abs=5e-4, rel=1e-5)
    assert group_advantages(totals, size, scale_rewards=scale) == expected


@pytest.mark.parametrize("make", [numpy.array, pandas.Series])
def test_advantages_of_an_array_are_those_of_a_list(make) -> None:
    totals = [2.0, 0.0, 0.0, 0.0]
    assert group_advantages(make(totals), 4) == group_advantages(totals, 4)


def test_advantages_of_half_a_group_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot reshape array of size 3"):
        group_advantages([1, 2, 3], 2)


def test_advantages_with_an_unknown_scale_are_refused() -> None:
    with pytest.raises(ValueError, match="scale_rewards = 'groups'"):
        group_advantages([1, 2], 2, scale_rewards="groups")


def call_by_trl(
    rewards: list, completions: list, rows: list[dict], ids: list, state: TrainerState
) -> None:
    """Call rewards by TRL's own `_calculate_rewards`."""
    names = {
        "torch": torch,
        "nn": torch.nn,
        "asyncio": asyncio,
        "gather": lambda tensor: tensor,
        "profiling_context": lambda trainer, name: contextlib.nullcontext(),
        "is_async_callable": is_async_callable,
    }
    run([definition("grpo_trainer.py", "_calculate_rewards")], names)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    trainer = types.SimpleNamespace(
        accelerator=types.SimpleNamespace(device="cpu"),
        state=state,
        environments=None,
        async_loop=loop,
        reward_funcs=rewards,
        reward_processing_classes=[None] * 3,
        reward_func_names=["silent", "first", "second"],
        _log_completion_extra=print,
        _log_metric=print,
    )
    prompts = [row["prompt"] for row in rows]
    names["_calculate_rewards"](trainer, rows, prompts, completions, ids)
    loop.call_soon_threadsafe(loop.stop)


def recording(calls: list[dict], name: str, value: float | None = 1.0):
    """Return a reward of this name that keeps the keywords of each call."""

    def reward(**keywords):
        calls.append(keywords)
        return [value] * len(keywords["completions"])

    reward.__name__ = name
    return reward


def recording_rewards(calls: list[dict]) -> list:
    names = {"silent": None, "first": 1.0, "second": 1.0}
    return [recording(calls, name, value) for name, value in names.items()]


@pytest.mark.parametrize("is_chat", [False, True], ids=["texts", "chats"])
def test_score_calls_rewards_with_trls_keywords(is_chat: bool) -> None:
    prompt: Any = "3 + 4?"
    completions: list = ["7", "8"]
    if is_chat:
        prompt = [{"role": "user", "content": prompt}]
        completions = [[{"role": "assistant", "content": text}] for text in completions]
    rows = [{"prompt": prompt, "answer": "7", "completion": "x", "level": i} for i in range(2)]
    ids = [[1, 2]] * 2
    trls: list[dict] = []
    call_by_trl(recording_rewards(trls), completions, rows, ids, TrainerState(max_steps=3))
    own: list[dict] = []
    state = TrainerState(max_steps=3)
    score(recording_rewards(own), completions, rows, completion_ids=ids, trainer_state=state)
    assert len(trls) == len(own) == 3
    for trl_call, own_call in zip(trls, own, strict=True):
        assert list(own_call) == list(trl_call)
        for key in set(trl_call) - {"log_extra", "log_metric"}:
            assert own_call[key] == trl_call[key], key


def returning(scores: Any, name: str = "returning"):
    """Return a reward that gives these scores, or the result of a function of the completions."""

    def reward(completions, **columns):
        return scores(completions) if callable(scores) else scores

    reward.__name__ = name
    return reward


@pytest.mark.parametrize(
    "scores",
    [
        pytest.param(numpy.array([0.5, 1.0]), id="numpy array"),
        pytest.param(torch.tensor([0.5, 1.0]), id="torch tensor"),
        pytest.param([0.5, numpy.bool_(True)], id="numpy bool"),
    ],
)
def test_scores_may_be_of_another_library(scores: Any) -> None:
    assert score(returning(scores), ["a", "b"]).totals == (0.5, 1.0)


def test_completions_may_be_a_part_of_a_column() -> None:
    texts = pandas.Series(["a", "b", "c"])[1:]
    assert score(returning([0.5, 1.0]), texts, {"answer": "b"}).completions == ("b", "c")


def test_prompt_of_a_row_goes_before_its_question() -> None:
    chat = [{"role": "user", "content": "3 + 4?"}]
    batch = make_batch(["7"], {"question": "3 + 4?", "prompt": chat})
    assert batch["prompts"] == [chat]


@pytest.mark.parametrize("question", [None, 7, NAN])
def test_strings_stay_strings_without_a_chat_prompt(question: object) -> None:
    assert make_batch(["7"], {"question": question})["completions"] == ["7"]


def test_strings_become_messages_for_a_chat_prompt() -> None:
    row = dict(gn.load_task("arithmetic").train[0])
    rewards = [correctness(), exact_format(), partial_format()]
    scores = score(rewards, [f"<answer>{row['answer']}</answer>", "?"], row)
    assert scores.values["correctness"] == (1.0, 0.0)
    assert scores.values["exact_format"] == (0.0, 0.0)
    assert scores.values["partial_format"] == (0.5, 0.0)
    assert scores.totals == (2.25, 0.0)
    assert scores.advantages() == pytest.approx([0.7071, -0.7071], abs=1e-3)


@pytest.fixture
def with_none() -> gn.scoring.Scores:
    first = returning([None, None, 1.0], "first")
    second = returning([2.0, None, 3.0], "second")
    second.weight = 0.5
    return score([first, second], ["a", "b", "c"])


def test_none_is_shown_as_nan(with_none: gn.scoring.Scores) -> None:
    assert with_none.values["first"] == pytest.approx((NAN, NAN, 1.0), nan_ok=True)


def test_none_is_left_out_of_the_total(with_none: gn.scoring.Scores) -> None:
    assert with_none.totals == pytest.approx((1.0, NAN, 2.5), nan_ok=True)


def picky(completions, answer, **columns):
    return [float(int(text) == int(gold)) for text, gold in zip(completions, answer, strict=True)]


def test_failing_reward_is_named_with_row_and_completion() -> None:
    message = r"'picky' raised ValueError.*row 1: 'seven \\ud800'"
    with pytest.raises(RewardError, match=message) as error:
        score(picky, ["7", "seven \ud800", "8"], {"answer": "7"})
    assert isinstance(error.value.__cause__, ValueError)
    assert str(pickle.loads(pickle.dumps(error.value))) == str(error.value)


def test_failure_of_a_reward_that_shortens_a_list_is_reported() -> None:
    def shortening(completions: list, **columns: object) -> list[float]:
        if len(completions) > 1:
            del completions[1:]
            raise ValueError("too many")
        return [0.0] * len(completions)

    with pytest.raises(RewardError, match="'shortening' raised ValueError: too many"):
        score(shortening, ["a", "b", "c"])


def test_error_of_a_lone_row_is_not_that_of_the_batch() -> None:
    def spread(completions: list, points: list, **columns: object) -> list[float]:
        known = [{"easy": 1.0}[level] for level in points]
        return [statistics.stdev(known)] * len(completions)

    rows = [{"points": "easy"}, {"points": "easy"}, {"points": "hard"}]
    with pytest.raises(RewardError, match=r"'spread' raised KeyError: 'hard' \(on row 2: 'c'\)"):
        score(spread, ["a", "b", "c"], rows)


class Counting:
    """A reward that counts its calls, and saves their number."""

    __name__ = "counting"

    def __init__(self, value: float = 0.0) -> None:
        self.calls = 0
        self.value = value

    def __call__(self, completions: list, **columns: object) -> list[float]:
        self.calls += 1
        return [self.value] * len(completions)

    def state_dict(self) -> dict[str, int]:
        return {"calls": self.calls}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.calls = state["calls"]


@pytest.mark.parametrize(
    "wrap",
    [
        pytest.param(lambda reward: reward, id="object"),
        pytest.param(lambda reward: functools.partial(reward, low=1), id="partial"),
        pytest.param(lambda reward: reward.__call__, id="bound method"),
    ],
)
def test_score_restores_the_state_of_a_reward(wrap) -> None:
    reward = Counting()
    score(wrap(reward), ["a"])
    assert reward.calls == 0


@pytest.mark.parametrize("name", TRL_KEYWORDS)
def test_column_with_a_name_of_the_trainer_is_left_out(name: str) -> None:
    def by_state(completions: list, trainer_state: object, **columns: object) -> list[float]:
        assert "mine" not in str([columns, trainer_state.global_step])
        return [float(text == "a") for text in completions]

    assert score(by_state, ["a"], {name: "mine"}).totals == (1.0,)


def test_reward_may_log_with_the_names_of_trl() -> None:
    def logging(completions: list, log_extra, log_metric, **columns: object) -> list[float]:
        log_extra(column="words", values=[1])
        log_metric(name="words", value=1.0)
        return [1.0]

    assert score(logging, ["a"]).totals == (1.0,)


def test_problem_of_the_machine_on_one_row_is_raised() -> None:
    def breaks_down(completions: list, **columns: object) -> list[float]:
        if len(completions) > 1:
            raise ValueError("a row is wrong")
        raise EnvironmentProblem("the server is down")

    with pytest.raises(EnvironmentProblem, match="the server is down"):
        score(breaks_down, ["a", "b"])


def test_nan_is_no_score_as_in_trl() -> None:
    scores = score([returning([NAN, 1.0]), partial_format(weight=1.0)], [GOOD, "b"])
    assert scores.totals == (1.0, 1.0)


@pytest.fixture(params=[INF, -INF, 1e39])
def not_finite(request: pytest.FixtureRequest):
    def scores(completions: list) -> list[float]:
        return [request.param if text == "b" else 1.0 for text in completions]

    return returning(scores, "odd")


def test_score_that_is_not_finite_is_an_error(not_finite) -> None:
    message = r"'odd' failed: a score is .* a finite number, or None.*row 1: 'b'"
    with pytest.raises(RewardError, match=message):
        score(not_finite, ["a", "b"])


@pytest.mark.parametrize("value", ["0.5", [1.0], 10**400], ids=["text", "list", "huge"])
def test_score_that_is_no_number_is_named(value: object) -> None:
    message = rf"'odd' failed: a score is {re.escape(repr(value)[:40])}"
    with pytest.raises(RewardError, match=message):
        score(returning([value], "odd"), ["a"])


def test_wrong_number_of_scores_is_an_error() -> None:
    one_less = returning(lambda completions: [1.0] * (len(completions) - 1))
    with pytest.raises(RewardError, match="0 scores for 1 completions"):
        score(one_less, ["a", "b"])


def test_reward_that_returns_no_list_is_an_error() -> None:
    message = "'returning' failed: it returned None; it must be a list"
    with pytest.raises(RewardError, match=message):
        score(returning(None), ["a"])


def test_reward_that_returns_one_array_number_is_an_error() -> None:
    with pytest.raises(gn.scoring.RewardError, match=r"failed: it returned .* must be a list"):
        gn.score(returning(numpy.array(0.5)), ["7"])


def test_column_that_cannot_be_copied_is_passed_as_it_is() -> None:
    row = {"answer": "7", "lock": threading.Lock()}
    assert score(picky, ["7"], row).values == {"picky": (1.0,)}


@pytest.mark.parametrize("name", ["completion", "total"])
def test_table_refuses_a_reward_named_as_a_column(name: str) -> None:
    with pytest.raises(ValueError, match="rename the reward"):
        _ = gn.score(returning([1.0], name), ["7"]).table


def count_tokens(completions, completion_ids, **columns):
    return [float(len(ids)) for ids in completion_ids]


def test_token_ids_are_passed_on() -> None:
    assert score(count_tokens, ["a"], completion_ids=[[1, 2, 3]]).totals == (3.0,)


def test_token_ids_without_a_tokenizer_are_none() -> None:
    with pytest.raises(RewardError, match="'count_tokens' raised TypeError: 'NoneType'"):
        score(count_tokens, ["a"])


def test_token_ids_are_made_of_hostile_and_long_texts(embedded_folder, caplog) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder, model_max_length=50)
    texts = ["\ud800 7", "\0", "one two " * 500, ""]
    surrogate, zero, long, empty = score(count_tokens, texts, tokenizer=tokenizer).totals
    assert surrogate > 0
    assert zero > 0
    assert long > 900
    assert empty == 0
    assert "longer than the specified maximum" not in caplog.text


def weighing(weight: object):
    reward = returning([1.0], "constant")
    reward.weight = weight
    return reward


TAGS = [partial_format()]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        pytest.param(([], ["a"]), "rewards is empty", id="no reward"),
        pytest.param(
            ([*TAGS, *TAGS], ["a"]), "two rewards are named 'partial_format'", id="two of one name"
        ),
        pytest.param((TAGS, []), r"completions = \[\] must be .* at least one", id="no completion"),
        pytest.param(
            (TAGS, ["a", "b", "c"], [{}, {}]), "each of the 3 completions", id="too few rows"
        ),
        pytest.param(
            (TAGS, ["a"], "abc"), "rows = 'abc' must be a list with one dict", id="text row"
        ),
        pytest.param((TAGS, ["a"], ["abc"]), "must be a list with one dict", id="list of texts"),
        pytest.param(
            (TAGS, ["a"], 5), "rows = 5 must be a list with one dict", id="number as rows"
        ),
        pytest.param((TAGS, ["a", []]), "list of texts", id="texts and chats"),
        pytest.param((TAGS, "abc"), "list of texts", id="one text"),
        pytest.param(
            (TAGS, [{"role": "assistant", "content": "a"}]), "list of lists of chat", id="one chat"
        ),
        pytest.param(
            ([weighing(NAN)], ["a"]), "weight of constant = nan must be .*finite", id="NaN weight"
        ),
        pytest.param(
            ([weighing("2")], ["a"]), "weight of constant = '2' must be .*finite", id="text weight"
        ),
    ],
)
def test_score_refuses_arguments_with_the_fix(arguments, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        score(*arguments)


def test_score_of_a_text_as_reward_is_refused() -> None:
    with pytest.raises(ValueError, match="'gpt2' is not a reward function: write rewards="):
        score(["gpt2"], ["a"])


def test_scores_show_completions_escaped() -> None:
    html = score(TAGS, ["<script>alert(1)</script>\ud800\0", GOOD])._repr_html_()
    assert "<script>" not in html
    assert "&lt;script&gt;" in html


def test_scores_of_hostile_texts_can_be_written() -> None:
    scores = score(TAGS, ["\ud800\0", GOOD])
    assert scores._repr_html_().encode()
    assert repr(scores).encode()


def test_table_has_a_row_for_each_completion() -> None:
    table = score(TAGS, ["\ud800\0", GOOD]).table
    assert list(table.columns) == ["completion", "partial_format", "total"]
    assert len(table) == 2


@pytest.mark.parametrize(
    ("advantage", "words"),
    [
        (0.7, "pushed up"),
        (-0.7, "pushed down"),
        (0.0, "no push"),
        (NAN, "no push"),
    ],
)
def test_push_names_the_effect_of_an_advantage(advantage: float, words: str) -> None:
    assert effect_in_words(advantage) == words


@pytest.mark.parametrize(
    "last",
    [{"role": "tool", "content": "7"}, {"role": "assistant", "content": None, "tool_calls": []}],
    ids=["result of a tool", "calls only"],
)
def test_completion_without_a_final_text_ends_with_an_empty_message(last: dict) -> None:
    completion = with_final_model_message([last])
    assert completion == [last, {"role": "assistant", "content": ""}]
