"""What a reward raises, and why: the advice follows from the cause, which is tried out where that is possible."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Iterator, Sequence

from grpo_nb.checks.catalogue import Finding, found
from grpo_nb.checks.contract import Caller, Outcome
from grpo_nb.checks.probes import MORE, Probe
from grpo_nb.checks.roles import Results
from grpo_nb.core.words import did_you_mean
from grpo_nb.rewards.base import completion_text
from grpo_nb.rewards.calls import Batch

BatchOf = Callable[[Sequence[Probe]], Batch]
# By the names of the error and of what it inherits; for all others the completion is to blame.
_FIXES = (
    (
        "OSError|Connect|Timeout|RateLimit|HTTP|API",
        "a service or file that it needs is missing: try again inside the reward, then return None, which is no opinion",
    ),
    ("SystemExit", "no exit() or sys.exit() in a reward: return 0.0"),
    ("MemoryError|RecursionError", "limit the length of what it parses before it parses, and return 0.0 beyond"),
    ("NameError|ImportError|SyntaxError", "mend the line that the error names: no completion will change it"),
)


def find_failures(caller: Caller, results: Results, batch_of: BatchOf) -> Iterator[Finding]:
    """Find each kind of error with its shortest completion, and batches that fail though none of their completions does.

    Args:
        caller: Of the reward.
        results: What it gave so far.
        batch_of: Makes a call of the reward of some probes.
    """
    name, errors = caller.name, {}
    for probe, outcome in results.outcomes.items():
        if outcome.error is not None and not outcome.is_late:
            errors.setdefault(type(outcome.error).__name__, []).append(probe)
    if caller.failed_together:
        size, error = caller.failed_together[0]
        what = f"{type(error).__name__} on a batch of {size}, on none of them alone: {str(error)[:200]}"
        yield found("fails on a batch", name, what)
    failing = sum(map(len, errors.values()))
    is_everywhere = failing == len(results.outcomes) > 0
    if is_everywhere and (mistaken := list(wrong_shape(caller, batch_of(list(results.outcomes)[:8]), least=1))):
        yield from mistaken
        return
    for kind, probes in errors.items():
        ordinary = [probe for probe in probes if not probe.is_long and probe.kind != "lone surrogate"]
        probe = min(ordinary or probes, key=lambda p: len(p.text))
        outcome = results.outcomes[probe]
        what = f"on {len(probes)} of {len(results.outcomes)} completions ({probe.kind}): {str(outcome.error)[:200]}"
        fixed = _fix(outcome, batch_of([probe]), is_everywhere) or _fix_of_row(results, probes)
        if _is_unreadable(outcome):
            yield found("cannot be read", name, what, [probe.text], **fixed)
        else:
            key = "raises" if ordinary else "raises (never in training)"
            yield found(key, name, f"{kind} {what}", [probe.text], **fixed)


def _is_unreadable(outcome: Outcome) -> bool:
    return str(outcome.error).startswith("it returned ") or outcome.raw is not None


def _fix(outcome: Outcome, batch: Batch, is_everywhere: bool) -> dict[str, str]:
    """The advice for an error, where it is other than in the catalogue."""
    error = outcome.error
    if str(error).startswith("it returned "):
        if str(error).startswith("it returned None"):
            return {"fix": "it ends without a return: end it with return scores"}
        return {"fix": "return a list with a score for each completion; does `return` stand inside the loop?"}
    if _is_unreadable(outcome):
        return {}
    names = " ".join(kind.__name__ for kind in type(error).__mro__)
    for pattern, fix in _FIXES:
        if re.search(pattern, names):
            return {"fix": fix}
    if isinstance(error, KeyError) and is_everywhere and error.args and error.args[0] not in batch.columns:
        near = did_you_mean(str(error.args[0]), batch.columns)
        return {"fix": f"the data has the columns {', '.join(batch.columns)}: name one of them, or add it{near}"}
    if is_everywhere:
        return {
            "fix": "mend the line that raises: it does so on every completion, also on the right answer in the format"
        }
    return {}


def _fix_of_row(results: Results, probes: Sequence[Probe]) -> dict[str, str]:
    """The advice where an error is a row's: it comes with every completion of that row, and with none of another."""
    rows = {probe.row for probe in probes}
    is_failed = {probe: outcome.error is not None for probe, outcome in results.outcomes.items()}
    if all(is_failed.values()) or any((probe.row in rows) != failed for probe, failed in is_failed.items()):
        return {}
    golds = ", ".join(repr(p.detail) for row in rows for p in probes if p.row == row and p.kind in ("right", MORE[0]))
    fix = f"every completion of the row with the answer {golds} raises, and no other: mend or drop that row"
    return {"effect": "the training stops at the first batch with that row", "fix": fix}


def wrong_shape(caller: Caller, batch: Batch, *, least: int) -> Iterator[Finding]:
    """Find out whether a reward gives `least` different scores, given texts in place of messages or messages for texts."""
    is_text = isinstance(batch.completions[0], str)
    texts = [completion_text(completion) for completion in batch.completions]
    other = [[{"role": "assistant", "content": text}] for text in texts] if is_text else texts
    scores = caller.call(dataclasses.replace(batch, completions=other)).scores or []
    if len({score for score in scores if not math.isnan(score)}) >= least:
        taken, are = ("a list of messages", "text") if is_text else ("text", "a list of messages")
        what = f"it takes a completion for {taken}, but where the prompt is {'' if is_text else 'a chat, it is '}{are}"
        yield found("wrong shape", caller.name, what)
