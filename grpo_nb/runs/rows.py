"""Rows of a run, one for each logged step: made from the trainer's logs, and read from a file."""

import contextlib
import json
import math
import numbers
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from grpo_nb.core.files import shown_path
from grpo_nb.core.words import in_line

Row = Mapping[str, Any]
ACCURACY = "holdout/accuracy"


class HeldoutMeasure(NamedTuple):
    """Names of one held-out measure.

    Attributes:
        name: Name in `Evaluation.share_of`.
        label: Name that users see.
        key: Key of the share in a row of a run.
        low_key, high_key: Keys of the ends of its 95 % interval in a row.
        share_field, interval_field: Fields of share and interval in a comparison.
    """

    name: str
    label: str
    key: str
    low_key: str
    high_key: str
    share_field: str
    interval_field: str


#: The measures of held-out answers, in the order in which they are shown. The format may improve
#: where the answers do not, so no text shows one without the others.
HELDOUT_MEASURES = (
    HeldoutMeasure(
        "correct",
        "correct",
        ACCURACY,
        "holdout/low",
        "holdout/high",
        "accuracy",
        "interval",
    ),
    HeldoutMeasure(
        "format",
        "in the format",
        "holdout/in_format",
        "holdout/in_format_low",
        "holdout/in_format_high",
        "format_share",
        "format_interval",
    ),
    HeldoutMeasure(
        "anywhere",
        "correct anywhere",
        "holdout/anywhere",
        "holdout/anywhere_low",
        "holdout/anywhere_high",
        "anywhere_share",
        "anywhere_interval",
    ),
)
#: Errors that a damaged file can cause when its content is parsed and checked. Lookup and attribute
#: errors are among them, because valid JSON can have any shape. A bug of ours in a block of
#: `reading` would be reported as a damaged file, so keep such blocks small.
CONTENT_ERRORS = (
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    OSError,
)


@contextlib.contextmanager
def reading(
    file: Path, where: str = "", cure: str = "put a copy of it back, or move it away"
) -> Iterator[None]:
    """Raise any error about the content of a file as a `ValueError` that names the file.

    The errors of JSON and pyarrow do not name the file.

    Args:
        file: The file that is read in the block.
        where: The place in the file, for the message.
        cure: What the user can do, for the message.
    """
    try:
        yield
    except CONTENT_ERRORS as error:
        # pyarrow raises an OSError without a number for a damaged file.
        has_errno = isinstance(error, OSError) and error.errno is not None
        if has_errno:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise ValueError(
            f"{shown_path(file)}{where} is damaged, or was written by another version of grpo_nb "
            f"({reason}): {cure}."
        ) from error


def read_rows(file: Path) -> list[dict[str, Any]]:
    """Read a file of JSON lines, one mapping in each. A missing file has no rows.

    The last line of `metrics.jsonl` is left out if a crash truncated it. All other files are
    written at once.

    Raises:
        ValueError: A line cannot be read; the message names file and line.
    """
    if not file.is_file():
        return []
    # A power cut can leave zero bytes at the end of a file.
    lines = file.read_bytes().rstrip(b"\0 \r\n").splitlines()
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        with reading(file, f", line {number},", "delete that line"):
            try:
                row = json.loads(line)
            except json.JSONDecodeError:
                if file.name == "metrics.jsonl" and number == len(lines):
                    break
                raise
            if not isinstance(row, dict):
                raise ValueError(f"{in_line(row)} is not a JSON object")
            rows.append(row)
    return rows


def tidy_row(logs: Mapping[str, Any], step: int, max_steps: int, beta: float) -> dict[str, Any]:
    """Return a row from an entry of the trainer's log: the numbers that were measured."""
    # Rewards may log numbers of numpy, which become plain ones.
    measured = {key: float(value) for key, value in logs.items() if isinstance(value, numbers.Real)}
    # With beta = 0 Unsloth logs a KL of exact zeros, which was never computed.
    if beta == 0:
        measured.pop("kl", None)
    # A reward can log under any name (TRL's `log_metric`), also under those that every row has.
    measured.pop("alerts", None)
    return measured | {"step": step, "max_steps": max_steps}


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
        # Models that repeat themselves still vary their line breaks.
        texts = [" ".join(completion.split()) for completion in group]
        group_count += 1
        all_texts.extend(texts)
        if len(texts) > 1:
            duplicates = len(texts) - len(set(texts))
            duplicate_shares.append(duplicates / (len(texts) - 1))

    metrics = {}
    if duplicate_shares:
        metrics["completions/duplicates"] = fmean(duplicate_shares)
    # Within one prompt the same answer may simply be the right one.
    if group_count > 1:
        highest_count = max(Counter(all_texts).values())
        metrics["completions/same_answer"] = highest_count / len(all_texts)
    return metrics


def series(rows: Sequence[Row], key: str) -> list[float]:
    """Return the value of a metric in each row, and NaN where it was not measured."""
    values = []
    for row in rows:
        value = row.get(key)
        values.append(float(value) if isinstance(value, (int, float)) else math.nan)
    return values


def mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are not NaN; NaN if there are none."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


def best_row(rows: Iterable[Row]) -> Row | None:
    """Return the row with the best held-out score, the earliest of equals; None without a score.

    >>> best_row([{"step": step, ACCURACY: score} for step, score in enumerate((0.5, 0.8, 0.8), 1)])
    {'step': 2, 'holdout/accuracy': 0.8}
    """
    scored = [row for row in rows if isinstance(row.get(ACCURACY), (int, float))]
    return max(scored, key=lambda row: row[ACCURACY], default=None)
