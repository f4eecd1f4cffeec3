"""Which questions to train on, by what was measured: pass rates, order by difficulty, groups without spread left out.

GRPO learns nothing from a question that every completion of its group solves, or none: its advantages are zero. DAPO samples
until a batch holds no such group (arXiv:2503.14476, section 3.2); that multiplies the sampling, which on one GPU is most
of the time, and TRL has no such option. So the kit chooses between runs and stages instead: from a baseline or a run it
knows the questions, and leaves those out for the next. Balanced filtering of that kind, by pass rates in the middle, is what
arXiv:2504.03380 argues for; Kimi k1.5 orders from easy to hard and prefers what is not solved yet (arXiv:2501.12599).

Not covered: choosing inside a run. On a CPU with `beta = 0` such groups at least cost no loss there (docs/cpu_step.md).
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeVar

if TYPE_CHECKING:
    from datasets import Dataset

Order = Literal["easy first", "hard first"]
TaskType = TypeVar("TaskType", bound="Curriculum")

_SAME = (
    1e-6  # totals nearer than this are equal, as in the baseline: beside TRL's 1e-4 nothing is left of such a spread
)


@dataclass(frozen=True)
class Visit:
    """One group of completions of one question, as it was scored."""

    prompt: str
    """The prompt as `_prompt_key` writes it; empty if only the question is known."""
    question: str
    scores: Mapping[str, Sequence[float]]
    totals: Sequence[float]

    @property
    def has_spread(self) -> bool:
        """Whether the totals differ, so that GRPO learns from the group."""
        known = [total for total in self.totals if not math.isnan(total)]
        return len(known) > 1 and max(known) - min(known) > _SAME


def question_key(question: Any) -> str:
    """The text under which two questions are the same."""
    return " ".join(str(question).casefold().split())


def _prompt_key(prompt: Any) -> str:
    if isinstance(prompt, str):
        return prompt
    return json.dumps([[turn["role"], turn["content"]] for turn in prompt])


def visits_of(measured: Any) -> list[Visit]:
    """Return every group that a baseline, a run, a staged run or several of these have scored, in order of time.

    Raises:
        ValueError: It is none of them, or has no completions.
    """
    if isinstance(measured, Sequence) and not isinstance(measured, str):
        return [visit for part in measured for visit in visits_of(part)]
    if hasattr(measured, "runs"):
        return [visit for run in measured.runs for visit in visits_of(run)]
    if hasattr(measured, "groups") and hasattr(measured, "scores"):
        return _visits_of_baseline(measured)
    if hasattr(measured, "completions"):
        return _visits_of_run(measured)
    raise ValueError(
        f"pass rates come from gn.baseline, from a run, or from a list of these, not from {measured!r:.80}."
    )


def _visits_of_baseline(baseline: Any) -> list[Visit]:
    size = baseline.num_generations
    return [
        Visit(
            prompt="",
            question=question_key(group.question),
            scores={name: s[i * size : (i + 1) * size] for name, s in baseline.scores.values.items()},
            totals=group.totals,
        )
        for i, group in enumerate(baseline.groups)
    ]


def _visits_of_run(run: Any) -> list[Visit]:
    table = run.completions()
    rewards = [reward["name"] for reward in run.info["rewards"]]
    visits, last = [], None
    for _, step in table.groupby("step", sort=True):
        sampled = step[["prompt", "completion"]].to_numpy().tolist()
        if sampled == last:  # a step that goes on with the samples of the one before is no second visit
            continue
        last = sampled
        for _, group in step.groupby("group", sort=True):
            prompt = group["prompt"].iloc[0]
            messages = json.loads(prompt) if prompt.startswith("[") else prompt
            asked = messages if isinstance(messages, str) else messages[-1]["content"]
            visits.append(
                Visit(
                    prompt=_prompt_key(messages),
                    question=question_key(asked),
                    scores={name: group[name].tolist() for name in rewards},
                    totals=group["total"].tolist(),
                )
            )
    return visits


def _by_row(rows: Dataset, visits: Iterable[Visit]) -> list[list[Visit]]:
    """The visits of each row, in order of time."""
    found: list[list[Visit]] = [[] for _ in range(len(rows))]
    at: dict[str, int] = {}
    for i, (prompt, question) in enumerate(zip(rows["prompt"], rows["question"], strict=True)):
        at[f"question {question_key(question)}"] = i
        at[f"prompt {_prompt_key(prompt)}"] = i
    for visit in visits:
        row = at.get(f"prompt {visit.prompt}", at.get(f"question {visit.question}"))
        if row is not None:
            found[row].append(visit)
    if not any(found):
        raise ValueError(
            "none of the measured groups belongs to a training question of this task: it was measured on other questions. "
            "Take the baseline or the run of this task."
        )
    return found


def _chosen_reward(visits: Sequence[Visit], reward: str | None) -> str:
    names = list(dict.fromkeys(name for visit in visits for name in visit.scores))
    if reward is None and "correctness" in names:
        return "correctness"
    if reward is None and len(names) == 1:
        return names[0]
    if reward not in names:
        said = "which reward says that an answer is right?" if reward is None else f"there is no reward {reward!r}."
        raise ValueError(f"{said} Write reward='<name>' with one of {names}.")
    return reward


def _refuse_faded(measured: Any, reward: str) -> None:
    """The logged scores of an adaptive reward shrink while the model gets better."""
    if isinstance(measured, Sequence):
        for part in measured:
            _refuse_faded(part, reward)
        return
    for run in getattr(measured, "runs", [measured]):
        for entry in getattr(run, "info", {}).get("rewards", ()):
            # Runs from before `fades` was noted have only the call, where an adaptive reward may stand inside of another.
            if entry["name"] == reward and entry.get("fades", "adaptive(" in entry["call"]):
                raise ValueError(
                    f"the run's reward {reward!r} is adaptive: its scores were faded, so they do not say what was right. "
                    "Take another reward, or measure with gn.baseline and the plain reward."
                )


class Curriculum:
    """The methods of a `Task` that choose its training rows by what was measured. All of them return a new task."""

    train: Dataset
    dropped: Mapping[str, int]

    def with_pass_rates(
        self: TaskType, measured: Any, *, reward: str | None = None, threshold: float = 1.0, last: int | None = None
    ) -> TaskType:
        """Return the task with the share of right completions of each training question that was sampled.

        New columns of `train`: `pass_rate`, None where nothing was measured, and `pass_count`, how many completions it rests
        on. With eight completions a rate is known to about a third, no better. Rates from before stay where
        `measured` has none.

        Args:
            measured: A `Baseline`, a `Run`, a staged run, or a list of these, oldest first.
            reward: Which reward says what is right; `correctness`, or the only one, if not given.
            threshold: The unweighted score from which on a completion is right.
            last: Only the last so many groups of each question: a model in training was worse before.

        Raises:
            ValueError: No such reward, an adaptive one, or nothing measured on these questions.

        >>> from grpo_nb import Task, load_task
        >>> task = load_task([{"question": q, "answer": "1"} for q in "abcd"], holdout=1)
        >>> task.curriculum()
        Traceback (most recent call last):
        ValueError: no pass rate is known: measure first, task = task.with_pass_rates(gn.baseline(...)).
        """
        if last is not None and last < 1:
            raise ValueError(f"last = {last!r} must be at least 1, or None for all groups.")
        visits = visits_of(measured)
        name = _chosen_reward(visits, reward)
        _refuse_faded(measured, name)
        known = "pass_rate" in self.train.column_names
        rates = list(self.train["pass_rate"]) if known else [None] * len(self.train)
        counts = list(self.train["pass_count"]) if known else [0] * len(self.train)
        for i, seen in enumerate(_by_row(self.train, visits)):
            groups = [visit.scores.get(name, ()) for visit in (seen[-last:] if last else seen)]
            scores = [score for group in groups for score in group if not math.isnan(score)]
            if scores:
                rates[i] = sum(score >= threshold - _SAME for score in scores) / len(scores)
                counts[i] = len(scores)
        train = self.train.remove_columns(["pass_rate", "pass_count"]) if known else self.train
        train = train.add_column("pass_rate", _column(rates, "float64"))
        return dataclasses.replace(self, train=train.add_column("pass_count", _column(counts, "int64")))

    def curriculum(
        self: TaskType,
        low: float = 0.1,
        high: float = 0.9,
        *,
        unmeasured: Literal["keep", "drop"] = "keep",
        order: Order | None = None,
    ) -> TaskType:
        """Return the task with the training questions whose pass rate lies between `low` and `high`, both included.

        The default drops what all or none of eight completions solved, and no more. What is dropped is counted in `dropped`.

        Args:
            low, high: Pass rates, 0 to 1.
            unmeasured: What to do with questions that were never sampled.
            order: Train in this order, those never measured last, instead of a shuffled one; a second pass over the data
                begins again with the first.

        Raises:
            ValueError: No pass rate is known, or no question is left.
        """
        if not 0 <= low <= high <= 1:
            raise ValueError(f"low = {low!r} and high = {high!r} must be shares with 0 <= low <= high <= 1.")
        if unmeasured not in ("keep", "drop") or order not in (None, "easy first", "hard first"):
            raise ValueError(
                f"unmeasured = {unmeasured!r} must be 'keep' or 'drop', order = {order!r} None, 'easy first' or 'hard first'."
            )
        if "pass_rate" not in self.train.column_names:
            raise ValueError("no pass rate is known: measure first, task = task.with_pass_rates(gn.baseline(...)).")
        rates = list(self.train["pass_rate"])
        reasons = {
            f"with a pass rate below {low:g}": [i for i, r in enumerate(rates) if r is not None and r < low],
            f"with a pass rate above {high:g}": [i for i, r in enumerate(rates) if r is not None and r > high],
            "never measured": [i for i, r in enumerate(rates) if r is None and unmeasured == "drop"],
        }
        sign = {"easy first": -1, "hard first": 1}.get(order or "", 0)
        # Python's sort is stable: without an order, and among equals, the rows stay as they are.
        by_rate = sorted(range(len(rates)), key=lambda i: (sign != 0 and rates[i] is None, sign * (rates[i] or 0.0)))
        task = self._without(reasons, by_rate, "Widen low and high, or unmeasured='keep'.")
        return dataclasses.replace(task, is_ordered=True) if order else task

    def without_flat_groups(self: TaskType, measured: Any, *, visits: int = 2) -> TaskType:
        """Return the task without the training questions whose last `visits` groups had no spread in the total.

        For the next run or stage: such a question was solved by all of its group or by none, `visits` times in a row, and
        taught nothing. Questions sampled less often stay.

        Args:
            measured: As in `with_pass_rates`; a run or staged run, for a baseline samples each question once.
            visits: Groups in a row. One is little evidence: with a pass rate of 0.8, one group of eight in six is flat.

        Raises:
            ValueError: Nothing measured on these questions, or no question is left.
        """
        if visits < 1:
            raise ValueError(f"visits = {visits!r} must be at least 1.")
        seen = _by_row(self.train, visits_of(measured))
        flat = [i for i, v in enumerate(seen) if len(v) >= visits and not any(x.has_spread for x in v[-visits:])]
        reason = f"without spread in the last {visits} groups" if visits > 1 else "without spread in the last group"
        return self._without({reason: flat}, range(len(self.train)), "Raise visits, or bring harder questions.")

    def pass_rate_facts(self) -> str:
        """What is known of the pass rates, in words; empty if nothing was measured."""
        if "pass_rate" not in self.train.column_names:
            return ""
        rates = list(self.train["pass_rate"])
        known = [rate for rate in rates if rate is not None]
        text = f"measured for {len(known)} of {len(rates)} questions"
        if known:
            text += (
                f", mean {sum(known) / len(known):.2f}; {sum(r == 0 for r in known)} never right, "
                f"{sum(r == 1 for r in known)} always"
            )
        return text

    def _without(self: TaskType, reasons: Mapping[str, Sequence[int]], order: Iterable[int], advice: str) -> TaskType:
        """The task without these rows, counted by reason, the others in the order given."""
        gone = {i for rows in reasons.values() for i in rows}
        kept = [i for i in order if i not in gone]
        if not kept:
            why = ", ".join(f"{len(rows)} {reason}" for reason, rows in reasons.items() if rows)
            raise ValueError(f"no training question would be left of {len(self.train)}: {why}. {advice}")
        dropped = dict(self.dropped)
        for reason, rows in reasons.items():
            if rows:
                dropped[reason] = dropped.get(reason, 0) + len(rows)
        return dataclasses.replace(self, train=self.train.select(kept), dropped=dropped)


def _column(values: Sequence[Any], kind: str) -> Any:
    """A typed column: a list that holds only None would get no type at all."""
    import pyarrow

    return pyarrow.array(values, type=getattr(pyarrow, kind)())
