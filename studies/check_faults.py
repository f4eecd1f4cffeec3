"""Forty faults put into sound reward functions by a script: which does `check_rewards` find, and does it leave the sound alone?

Run: python studies/check_faults.py [--seen | --unseen] > studies/results/check_faults.md

The 24 rewards are in `tests/support/sound_rewards.py`, the faults in `tests/support/planted_faults.py`. All of it was written
before the probes that are measured here; a third of the rewards, drawn by chance, with their faults, was not run until the
probes were finished (`UNSEEN`).
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path
from typing import Any

import grpo_nb as gn
from grpo_nb.checks.report import RewardReport

sys.path.insert(0, str(Path(__file__).parents[1]))
from tests.support.planted_faults import FAULTS, faulty
from tests.support.sound_rewards import SOUND, TOGETHER, Rows, sound

# Not run while the probes were written: a third of the rewards, drawn once, with all their faults.
UNSEEN = frozenset(random.Random(16).sample(sorted(SOUND), len(SOUND) // 3))


HISTORY = (
    "Before the probes were written, 31 of the 40 faults were found (21 seen, 10 put aside), and 8 of the 31 sound rewards and "
    "sets accused (4 and 4). The first run of what was put aside found 13 of 13 faults and accused 3 of 12 sound ones, for two "
    "reasons that were then mended: phrases in an attribute of a class were not tried, and a tag was taken for a column's "
    "name. One fault, of numbers not looked at, was missed then; a probe was written for it, and has gone again with the kind "
    "that only this fault ever showed."
)


# ---- The table -----------------------------------------------------------------------------------------------------


def check(rewards: list[Any], task: Rows, **options: Any) -> RewardReport:
    """Run the check with its defaults."""
    return gn.check_rewards(rewards, task.rows, format=task.format, **options)


def serious(report: RewardReport) -> list[str]:
    """The kinds of the findings at warning or above."""
    return list(
        dict.fromkeys(f"{f.severity}: {f.kind}" for f in report.findings if f.severity != "note")
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--seen", action="store_true", help="only what the probes were written with"
    )
    parser.add_argument("--unseen", action="store_true", help="only what was put aside")
    chosen = parser.parse_args()
    is_chosen = {True: chosen.unseen or not chosen.seen, False: chosen.seen or not chosen.unseen}
    counts = {unseen: [0, 0, 0, 0] for unseen in (False, True)}
    lines = ["| reward | put aside | fault | found |", "| --- | --- | --- | --- |"]

    def add(name: str, what: str, found: list[str], is_unseen: bool, is_fault: bool) -> None:
        count = counts[is_unseen]
        count[2 * is_fault] += bool(found)
        count[2 * is_fault + 1] += 1
        lines.append(
            f"| {name} | {'yes' if is_unseen else ''} | {what} | {'; '.join(found) or '-'} |"
        )
        sys.stderr.write(lines[-1] + "\n")

    for name, entry in SOUND.items():
        if is_chosen[name in UNSEEN]:
            add(name, "none", serious(check([sound(name)], entry.task)), name in UNSEEN, False)
    for names in TOGETHER:
        is_unseen = any(name in UNSEEN for name in names)
        if is_chosen[is_unseen]:
            found = serious(check([sound(name) for name in names], SOUND[names[-1]].task))
            add(" + ".join(names), "none", found, is_unseen, False)
    for fault in FAULTS:
        if is_chosen[fault.reward in UNSEEN]:
            found = serious(check([faulty(fault)], SOUND[fault.reward].task))
            add(fault.reward, fault.what, found, fault.reward in UNSEEN, True)
    sys.stdout.write(
        f"# Faults put into sound rewards\n\nWritten by `studies/check_faults.py`. {HISTORY}\n\n"
    )
    for is_unseen, (accused, all_sound, found, all_faults) in counts.items():
        which = (
            "put aside until the probes were finished"
            if is_unseen
            else "seen while the probes were written"
        )
        if all_sound + all_faults:
            said = f"{found} of {all_faults} faults at warning or above, {accused} of {all_sound} sound rewards and sets"
            sys.stdout.write(f"- {which}: {said}.\n")
    sys.stdout.write("\n" + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
