"""The code reward runs completions in the sandbox: labelled cases, endless loops and any text."""

import re
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import grpo_nb as gn
from grpo_nb.rewards import code
from grpo_nb.rewards.code import code_tests
from grpo_nb.sandbox.outcomes import NO_RESULT, CallResult, Limits, Outcome
from grpo_nb.sandbox.runner import run_untrusted_batch
from grpo_nb.tasks.formats import xml
from tests.conftest import ROOT
from tests.rewards.cases import CASES, KINDS, Case, slot

ADD = ["assert add(1, 2) == 3"]
CODE_CASES = [case for case in CASES if isinstance(case.reward, code_tests)]


@pytest.mark.parametrize("is_chat", [False, True], ids=["texts", "chats"])
@pytest.mark.parametrize("case", CODE_CASES, ids=str)
def test_code_reward_gives_the_score_labelled_by_hand(case: Case, is_chat: bool) -> None:
    expected = [score if score is None else pytest.approx(score) for score in case.scores]
    assert case.scores_given(is_chat=is_chat) == expected, case.completions


def test_endless_loop_costs_a_batch_its_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    statuses = []

    def recorded(*arguments: object, **options: object) -> list:
        outcomes = run_untrusted_batch(*arguments, **options)
        statuses.extend(outcome.status for outcome in outcomes)
        return outcomes

    monkeypatch.setattr(code, "run_untrusted_batch", recorded)
    loop = slot("def add(a, b):\n    while True: pass")
    completions = [loop, *[slot("def add(a, b): return a + b")] * 15]
    reward = code_tests(limits=Limits(cpu_seconds=1.0))
    with ThreadPoolExecutor(1) as threads:
        scores = threads.submit(reward, completions=completions, tests=[ADD * 5] * 16).result(60)
    assert scores == [0.0] + [1.0] * 15
    # The loop runs out of time in one process for its five tests, and no other completion does.
    assert statuses == ["limit"] + ["ok"] * 15


def prints_right() -> Callable:
    """Return the reward for programs that docs/reference/sandbox.md shows."""
    page = (ROOT / "docs/reference/sandbox.md").read_text()
    *_, block = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names = {"gn": gn, "task": SimpleNamespace(format=xml())}
    exec(block, names)
    return names["prints_right"]


PROGRAMS = [{"stdin": "3 4", "stdout": "7"}, {"stdin": "1 1\n", "stdout": "2\n"}]
ADDS = slot(
    "import math, sys\nprint(int(math.fsum(map(int, sys.stdin.read().split()))))\nsys.exit()"
)


def test_reward_for_programs_scores_as_the_page_says(monkeypatch: pytest.MonkeyPatch) -> None:
    batches = []

    def recorded(batch: list) -> list:
        batches.append(len(batch))
        return run_untrusted_batch(batch)

    monkeypatch.setattr(gn.sandbox, "run_untrusted_batch", recorded)
    completions = [ADDS, slot("print(7)"), "no code", slot("print(7); 1 / 0")]
    assert prints_right()(completions, [PROGRAMS] * 4) == [1.0, 0.5, 0.0, 0.0]
    # All programs run at once, so that endless loops run out of time together.
    assert batches == [8]


def test_reward_for_programs_scores_no_program_that_fails() -> None:
    assert prints_right()(["no code"], [[{"stdin": "", "stdout": "None"}]]) == [0.0]


def test_reward_for_programs_gives_no_score_if_the_machine_fails(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = [Outcome(status="ok", results=(CallResult("7"),))]
    lost.append(Outcome(status="lost", results=(NO_RESULT,)))
    monkeypatch.setattr(gn.sandbox, "run_untrusted_batch", lambda batch: lost)
    assert prints_right()([ADDS], [PROGRAMS]) == [None]


FRAMES = ["{}", "<answer>{}</answer>", "```python\n{}\n```", "<answer>```\n{}\n```</answer>"]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(text=st.text(), frame=st.sampled_from(FRAMES))
def test_no_text_makes_code_tests_raise_or_score(text: str, frame: str) -> None:
    completions = [frame.replace("{}", text), slot(text)]
    tests = [ADD, ["assert never() == 1"]]
    assert KINDS["code_tests"](completions=completions, tests=tests) == [0.0, 0.0]
