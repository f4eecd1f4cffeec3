"""Faults put into sound rewards by a script: all but one are found and named, and the sound are left alone, also together."""

import importlib.util
import sys

import pytest
import sympy

from grpo_nb.checks.findings import KINDS
from tests.checks.test_check_rewards import BROKEN, OF_THE_SET
from tests.conftest import ROOT

pytestmark = pytest.mark.begins(150)

_spec = importlib.util.spec_from_file_location("check_faults", ROOT / "studies" / "check_faults.py")
study = sys.modules["check_faults"] = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(study)
# The study names kinds as they were called when its faults were written.
TODAY = {
    "cannot be read": ["breaks the contract"],
    "depends on the order": ["unsteady"],
    "depends on neighbours": ["depends on its group"],
    "repetition pays": ["more pays"],
    "retracted": ["several answers"],
    "near miss": ["near miss", "contains the answer"],
    "right answer refused": ["right answer refused", "another format"],
    "format refused": ["format refused", "another format"],
}
# Nothing tries sums of other numbers than the row's: too few rewards ask for them.
FOUND = [fault for fault in study.FAULTS if fault.kind != "other numbers"]


@pytest.fixture(scope="module", autouse=True)
def _load_sympy() -> None:
    """Load sympy before any time limit runs: its first use in a process takes seconds on a busy machine."""
    sympy.sympify("1 + 1")


@pytest.mark.parametrize(
    "names", [*((name,) for name in study.SOUND), *study.TOGETHER], ids=" ".join
)
def test_sound_rewards_are_not_accused_alone_or_together(names: tuple[str, ...]) -> None:
    report = study.check(
        [study.sound(name) for name in names], study.SOUND[names[-1]].task, seconds_per_call=0.5
    )
    assert not study.serious(report), report


@pytest.mark.parametrize("fault", FOUND, ids=lambda fault: f"{fault.reward}-{fault.what}")
def test_a_fault_is_found_and_named(fault) -> None:
    report = study.check(
        [study.faulty(fault)], study.SOUND[fault.reward].task, seconds_per_call=0.5
    )
    found = {finding.kind for finding in report.findings if finding.severity != "note"}
    assert found & {*TODAY.get(fault.kind, [fault.kind])}, report


def test_every_kind_is_found_by_some_test() -> None:
    names = [TODAY.get(fault.kind, [fault.kind]) for fault in FOUND]
    seen = {name for name, *others in names if not others}
    seen |= {kind for _, kind, _ in BROKEN} | {kind for kind, _, _ in OF_THE_SET}
    own = {
        "near miss",
        "number form refused",
        "format refused",
        "never measured",
        "refused by its measure",
    }
    # tests/checks/test_reward_kinds.py
    own |= {"infinite score", "skips rows", "right answer unknown", "follows nothing"}
    own |= {"ignores the gold answer", "no reward for answers"}
    assert len(KINDS) <= 36
    assert KINDS.keys() - seen == own, "these have tests of their own"
