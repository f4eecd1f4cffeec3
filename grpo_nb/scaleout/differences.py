"""What is not here as it was where a run was made: versions, machine, number type, rewards, data."""

from __future__ import annotations

import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.packages import package_versions
from grpo_nb.rewards.base import weight_of
from grpo_nb.rewards.identity import describe_difference, parts_of
from grpo_nb.settings.number_types import number_type
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.task import Task

# Of these every release computes something a little differently; others only have to work.
_TELLING = ("torch", "transformers", "trl", "unsloth", "unsloth_zoo", "peft", "bitsandbytes", "vllm", "grpo_nb")


@dataclass(frozen=True)
class Difference:
    """One thing that was otherwise where the run was made."""

    what: str
    then: str
    now: str
    changes_results: bool


def find_differences(
    recorded: Mapping[str, Any],
    settings: Settings,
    task: Task,
    rewards: Sequence[tuple[Mapping[str, Any], Callable[..., Any]]],
) -> tuple[Difference, ...]:
    """Compare what a folder recorded of its run with what is here.

    Args:
        recorded: What `origin.json` says.
        settings: Of the run, as it would be trained here.
        task: The rows in the folder.
        rewards: Those that were made again, each behind what was recorded of it.
    """
    from grpo_nb import __version__

    then = {"grpo_nb": recorded.get("grpo_nb", "unknown"), **recorded["versions"]}
    now = {"grpo_nb": __version__, **package_versions()}
    absent, same, machine, gpu = "not installed", "as recorded", recorded["machine"], find_gpu()
    # What is compared, how it was, how it is, and whether a difference changes results.
    rows = [(name, then.get(name, absent), now.get(name, absent), name in _TELLING) for name in sorted({*then, *now})]
    rows += [
        ("device", (machine.get("gpu") or {"name": "CPU"})["name"], gpu.name if gpu else "CPU", True),
        ("number type", recorded["number_type"], number_type(settings, gpu).name, True),
        ("system", machine.get("platform", "unknown"), platform.platform(), False),
    ]
    for entry, reward in rewards:
        said = describe_difference(entry.get("parts") or {}, parts_of(reward))
        rows.append((f"reward {entry['name']}", same, said or same, True))
        rows.append((f"weight of {entry['name']}", f"{entry['weight']:.12g}", f"{weight_of(reward):.12g}", True))
    was, here = recorded["task"]["fingerprint"], task.fingerprint
    rows.append(("data", f"fingerprint {was}", f"fingerprint {here}", True))
    return tuple(Difference(*row) for row in rows if row[1] != row[2])
