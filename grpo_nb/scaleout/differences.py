"""What is not here as it was where a run was made: versions, machine, number type, rewards."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from grpo_nb.machine import find_gpu, package_versions
from grpo_nb.rewards import describe_difference, parts_of, weight_of
from grpo_nb.settings import Settings, number_type
from grpo_nb.tasks import Task

# Of these every release computes something a little differently; others only have to work.
_TELLING = ("torch", "transformers", "trl", "unsloth", "unsloth_zoo", "peft", "bitsandbytes", "vllm", "grpo_nb")


@dataclass(frozen=True)
class Difference:
    """One thing that was otherwise where the run was made."""

    what: str
    then: str
    now: str
    changes_results: bool


def version_differences(recorded: Mapping[str, Any]) -> list[Difference]:
    """Compare the recorded versions with the installed ones."""
    from grpo_nb import __version__

    then = {"grpo_nb": recorded.get("grpo_nb", "unknown"), **recorded["versions"]}
    now = {"grpo_nb": __version__, **package_versions()}
    return [
        Difference(name, then.get(name, "not installed"), now.get(name, "not installed"), name in _TELLING)
        for name in sorted({*then, *now})
        if then.get(name) != now.get(name)
    ]


def machine_differences(recorded: Mapping[str, Any], settings: Settings) -> list[Difference]:
    """Compare the recorded device with this one, and the number type that each computes in."""
    then, gpu = recorded["machine"].get("gpu"), find_gpu()
    was = then["name"] if then else "CPU"
    now = gpu.name if gpu else "CPU"
    found = [Difference("device", was, now, True)] if was != now else []
    types = (recorded["number_type"], number_type(settings, gpu).name)
    if types[0] != types[1]:
        found.append(Difference("number type", *types, True))
    platform = recorded["machine"].get("platform", "unknown")
    here = _platform()
    return found + ([Difference("system", platform, here, False)] if platform != here else [])


def reward_difference(entry: Mapping[str, Any], reward: Callable[..., Any]) -> list[Difference]:
    """Compare a reward that was made again with what was recorded of it, part by part, and its weight."""
    found = []
    said = describe_difference(entry.get("parts") or {}, parts_of(reward))
    if said:
        found.append(Difference(f"reward {entry['name']}", "as recorded", said, True))
    if weight_of(reward) != entry["weight"]:
        found.append(Difference(f"weight of {entry['name']}", f"{entry['weight']:g}", f"{weight_of(reward):g}", True))
    return found


def data_difference(recorded: Mapping[str, Any], task: Task) -> list[Difference]:
    """Compare the rows with those that the run was trained on."""
    if task.fingerprint == recorded["fingerprint"]:
        return []
    return [Difference("data", f"fingerprint {recorded['fingerprint']}", f"fingerprint {task.fingerprint}", True)]


def _platform() -> str:
    import platform

    return platform.platform()
