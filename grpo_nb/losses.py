"""Which losses the installed TRL has, read from its source, so that a new one is known, and tested, by itself.

docs/losses.md says what each changes, with its paper. Not covered: what Unsloth's own trainer on a GPU makes of them.
"""

from __future__ import annotations

from grpo_nb.arguments import compared_in_trainer, did_you_mean
from grpo_nb.config import Settings


def _values_of(attribute: str) -> tuple[str, ...]:
    found = compared_in_trainer(attribute)
    if found is None:
        raise ModuleNotFoundError("trl is not installed: run `pip install -r requirements.txt`.")
    return tuple(sorted(found))


def loss_types() -> tuple[str, ...]:
    """Return every `loss_type` of the installed TRL.

    >>> "dapo" in loss_types()
    True
    """
    return _values_of("loss_type")


def importance_sampling_levels() -> tuple[str, ...]:
    """Return every `importance_sampling_level` of the installed TRL.

    >>> importance_sampling_levels()
    ('sequence', 'token')
    """
    return _values_of("importance_sampling_level")


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
