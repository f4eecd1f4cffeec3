"""Check that faults put into sound rewards are found, and that the sound rewards are left alone."""

import importlib.util
import sys

import pytest
import sympy

from grpo_nb.checks.findings import KINDS
from tests.checks.test_reward_check import BROKEN, BROKEN_SETS
from tests.conftest import ROOT

pytestmark = pytest.mark.begins(150)

_spec = importlib.util.spec_from_file_location("check_faults", ROOT / "studies" / "check_faults.py")
study = sys.modules["check_faults"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(study)

#: Names of kinds today, by the name that the study had when its faults were written.
TODAY = {
    "cannot be read": ["breaks the contract"],
    "depends on the order": ["unsteady"],
    "depends on neighbours": ["depends on its group"],
    "repetition pays": ["repetition is rewarded"],
    "length pays": ["length is rewarded"],
    "phrase pays": ["a phrase is rewarded"],
    "paid for nothing": ["missing answer is rewarded"],
    "form outweighs being right": ["format outweighs the answer"],
    "retracted": ["several answers"],
    "contains the answer": ["near miss"],
    "right answer refused": ["right answer refused", "another format"],
    "format refused": ["right answer refused", "another format"],
}
#: Sums of numbers that the row does not have are not tried: too few rewards ask for them.
FOUND = [fault for fault in study.FAULTS if fault.kind != "other numbers"]
SOUND_SETS = [*((name,) for name in study.SOUND), *study.TOGETHER]

#: Kinds that tests/checks/test_reward_kinds.py and test_judge_agreement.py show.
SHOWN_ELSEWHERE = {
    "never measured",
    "refused by its measure",
    "infinite score",
    "skips rows",
    "right answer unknown",
    "follows nothing",
    "ignores the gold answer",
    "no reward for answers",
}


@pytest.fixture(scope="module", autouse=True)
def _load_sympy() -> None:
    """Load sympy before any time limit runs: its first use takes seconds on a busy machine."""
    sympy.sympify("1 + 1")


@pytest.mark.parametrize("names", SOUND_SETS, ids=" ".join)
def test_sound_rewards_of_the_study_are_not_accused(names: tuple[str, ...]) -> None:
    rewards = [study.sound(name) for name in names]
    report = study.check(rewards, study.SOUND[names[-1]].task, seconds_per_call=0.5)
    assert not study.serious(report), report


@pytest.mark.parametrize("fault", FOUND, ids=lambda fault: f"{fault.reward}-{fault.what}")
def test_fault_of_the_study_is_found_and_named(fault) -> None:
    task = study.SOUND[fault.reward].task
    report = study.check([study.faulty(fault)], task, seconds_per_call=0.5)
    kinds = {finding.kind for finding in report.findings if finding.severity != "note"}
    assert kinds & {*TODAY.get(fault.kind, [fault.kind])}, report


def test_every_kind_of_finding_is_shown_by_a_test() -> None:
    shown = {*SHOWN_ELSEWHERE}
    for fault in FOUND:
        shown.update(TODAY.get(fault.kind, [fault.kind]))
    shown.update(parameter.values[1] for parameter in BROKEN)
    shown.update(parameter.values[0] for parameter in BROKEN_SETS)
    assert KINDS.keys() == shown
