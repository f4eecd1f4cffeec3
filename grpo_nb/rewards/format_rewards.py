"""Rewards for the format of a completion.

`partial_format` leads a model to its answer format tag by tag, and `exact_format` keeps it there.
By default, `exact_format` weighs 1.0 and `partial_format` 0.5, together less than the 2.0 of an
answer reward. docs/guide/recipes.md has rewards for length and style.
"""

from dataclasses import dataclass

from grpo_nb.rewards.base import Reward
from grpo_nb.tasks.read_rows import Row


@dataclass(frozen=True, kw_only=True)
class exact_format(Reward):
    r"""1.0 if the completion is exactly in its answer format, else 0.0.

    The completion must have each tag of its `format` once and in order, and only white space around
    the parts. With `boxed()`, it must have a single `\boxed{}` and end with it: `$\boxed{7}$` and
    `\boxed{7}.` score 0.0, although the rewards for answers accept them. Source: DeepSeek-R1
    (arXiv:2501.12948, section 2.2.2).

    >>> exact_format()(completions=["<reasoning>r</reasoning><answer>7</answer>", "7"])
    [1.0, 0.0]
    """

    range = (0.0, 1.0)

    def score_text(self, text: str, row: Row) -> float:
        return float(self.format.is_exact(text))


@dataclass(frozen=True, kw_only=True)
class partial_format(Reward):
    r"""The share of the answer format's tags that occur exactly once, 0.0 to 1.0.

    The tags of `boxed()` are `\boxed{` and its `}`. `exact_format` gives all or nothing, while this
    score rises with every tag. It also rewards tags in the wrong order and tags that are only
    mentioned, so its weight must be below that of the answer. Source: the tag count of open-r1, as
    a share.

    >>> partial_format()(completions=["<answer>7</answer>"])
    [0.5]
    """

    weight: float = 0.5
    range = (0.0, 1.0)

    def score_text(self, text: str, row: Row) -> float:
        return self.format.completeness(text)
