"""Which losses the installed TRL has, read from its source, so that a new one is known, and tested, by itself.

docs/losses.md says what each changes, with its paper. Not covered: what Unsloth's own trainer on a GPU makes of them.
"""

from __future__ import annotations

import ast
import functools
import importlib.util
from pathlib import Path

from grpo_nb.config import Settings, did_you_mean


@functools.cache
def _compared_with(attribute: str) -> tuple[str, ...]:
    """The strings that TRL's GRPO trainer compares `self.<attribute>` with, in order of appearance.

    From the file and not from the class: Unsloth replaces the class, and importing trl takes seconds.
    """
    package = importlib.util.find_spec("trl")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("trl is not installed: run `pip install -r requirements.txt`.")
    file = Path(package.origin).parent / "trainer" / "grpo_trainer.py"
    found: dict[str, None] = {}
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Compare) or ast.unparse(node.left) != f"self.{attribute}":
            continue
        for part in ast.walk(ast.Tuple(node.comparators, ast.Load())):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.setdefault(part.value)
    if not found:
        raise RuntimeError(f"trl's GRPO trainer no longer compares self.{attribute} with names; look into {file.name}.")
    return tuple(sorted(found))


def loss_types() -> tuple[str, ...]:
    """Return every `loss_type` of the installed TRL.

    >>> "dapo" in loss_types()
    True
    """
    return _compared_with("loss_type")


def importance_sampling_levels() -> tuple[str, ...]:
    """Return every `importance_sampling_level` of the installed TRL.

    >>> importance_sampling_levels()
    ('sequence', 'token')
    """
    return _compared_with("importance_sampling_level")


def check_loss(settings: Settings) -> None:
    """Refuse a loss that the installed TRL lacks. TRL itself notices at the first loss, after the first generation.

    Raises:
        ValueError: With the nearest name.

    >>> check_loss(Settings(loss_type="dr_grpo"))
    """
    level = settings.extra.get("importance_sampling_level", "token")
    for name, value, known in (
        ("loss_type", settings.loss_type, loss_types()),
        ("importance_sampling_level", level, importance_sampling_levels()),
    ):
        if value not in known:
            raise ValueError(f"{name} = {value!r} is none of the installed TRL's{did_you_mean(str(value), known)}.")
