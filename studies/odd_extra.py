"""Which values for arguments in `extra` are taken by the settings and refused by TRL's own configuration?

    python studies/odd_extra.py

Each argument of the installed `GRPOConfig` gets each of eighteen values. What the settings take, the class has to build;
what it does not is printed by argument, with the first value and what is said of it.
"""

from __future__ import annotations

import collections
import math
import warnings

import unsloth  # noqa: F401 - before trl

from trl import GRPOConfig

import grpo_nb as gn
from grpo_nb.settings.arguments import installed_arguments

VALUES = (
    "x", "", 0, -1, 1, 2, 0.5, 1e9, math.nan, math.inf, None, True, False, [], [1], {}, {"a": 1}, "nope.json",
)  # fmt: skip
GIVEN = {"output_dir": "x", "per_device_train_batch_size": 8, "num_generations": 8, "bf16": False, "use_cpu": True}


def main() -> None:
    warnings.simplefilter("ignore")
    settings, taken, refused = gn.preset("cpu"), 0, collections.defaultdict(list)
    for name in installed_arguments() or ():
        for value in VALUES:
            try:
                settings.replace(extra={name: value})
            except (ValueError, TypeError):
                continue
            taken += 1
            try:
                GRPOConfig(**{**GIVEN, name: value})
            except Exception as error:
                refused[name].append((value, f"{type(error).__name__}: {error}".splitlines()[0][:100]))
    print(f"{taken} taken by the settings, {sum(map(len, refused.values()))} of them refused by GRPOConfig")
    for name, found in refused.items():
        print(f"  {name}: {len(found)}, such as {found[0][0]!r}: {found[0][1]}")


if __name__ == "__main__":
    main()
