"""Measure how much the completions of a step repeat each other."""

from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean


def repetition_metrics(groups: Iterable[Sequence[str]]) -> dict[str, float]:
    """Return metrics of how alike the completions of one step are.

    Texts that differ only in whitespace count as equal.

    Args:
        groups: The completions of one step, one group for each prompt.

    Returns:
        Two shares between 0 and 1.

        - `completions/duplicates`: For a group of `n` completions with `d` different texts, the
          share is `(n - d) / (n - 1)`: 0 if all differ, 1 if all are equal. The metric is the mean
          over the groups. It is missing if every group has a single completion.
        - `completions/same_answer`: Share of the step's completions that have its most common text.
          It is missing if the step has a single prompt.

    >>> repetition_metrics([["a", "a "], ["b", "c"]])
    {'completions/duplicates': 0.5, 'completions/same_answer': 0.5}
    """
    group_count = 0
    all_texts: list[str] = []
    duplicate_shares: list[float] = []
    for group in groups:
        texts = [" ".join(completion.split()) for completion in group]
        group_count += 1
        all_texts.extend(texts)
        if len(texts) > 1:
            duplicates = len(texts) - len(set(texts))
            duplicate_shares.append(duplicates / (len(texts) - 1))

    metrics = {}
    if duplicate_shares:
        metrics["completions/duplicates"] = fmean(duplicate_shares)
    if group_count > 1:
        highest_count = max(Counter(all_texts).values())
        metrics["completions/same_answer"] = highest_count / len(all_texts)
    return metrics
