"""Check that faults put into sound rewards are found, and that the sound rewards are left alone."""

import pytest
import sympy

from grpo_nb.checks.report import KINDS, RewardReport
from grpo_nb.checks.reward_check import check_rewards
from tests.checks.test_reward_check import BROKEN, BROKEN_SETS
from tests.support.planted_faults import FAULTS, Fault, faulty
from tests.support.sound_rewards import SOUND, TOGETHER, sound

pytestmark = pytest.mark.begins(150)

#: Sums of numbers that the row does not have are not tried: too few rewards ask for them.
FOUND = [fault for fault in FAULTS if fault.kind != "other numbers"]
SOUND_SETS = [*((name,) for name in SOUND), *TOGETHER]

#: Kinds that tests/checks/test_reward_kinds.py and test_judge_agreement.py show.
SHOWN_ELSEWHERE = {
    "never measured",
    "too few hand scores to tell",
    "not fit as a reward",
}


@pytest.fixture(scope="module", autouse=True)
def _load_sympy() -> None:
    """Load sympy before any time limit runs: its first use takes seconds on a busy machine."""
    sympy.sympify("1 + 1")


def check(rewards: list, reward: str, **options: float) -> RewardReport:
    """Check rewards on the task of one of them."""
    task = SOUND[reward].task
    return check_rewards(rewards, task.rows, format=task.format, **options)


@pytest.mark.parametrize("names", SOUND_SETS, ids=" ".join)
def test_sound_rewards_of_the_study_are_not_accused(names: tuple[str, ...]) -> None:
    report = check([sound(name) for name in names], names[-1])
    assert report.ok, report


#: Like the fault of `countdown`, and as slow: each reward hangs on the powers that it executes.
SLOW = {"sympify", "exec"}


def fault_cases() -> list:
    cases = []
    for fault in FOUND:
        marks = [pytest.mark.slow] if fault.what in SLOW else []
        cases.append(pytest.param(fault, marks=marks, id=f"{fault.reward}-{fault.what}"))
    return cases


@pytest.mark.parametrize("fault", fault_cases())
def test_fault_of_the_study_is_found_and_named(fault: Fault) -> None:
    # A fault that hangs costs a multiple of this limit.
    report = check([faulty(fault)], fault.reward, seconds_per_call=0.25)
    kinds = {finding.kind for finding in report.findings}
    assert fault.kind in kinds, report


def test_every_kind_of_finding_is_shown_by_a_test() -> None:
    shown = {*SHOWN_ELSEWHERE}
    shown.update(fault.kind for fault in FOUND)
    shown.update(parameter.values[1] for parameter in BROKEN)
    shown.update(parameter.values[0] for parameter in BROKEN_SETS)
    assert KINDS.keys() == shown
