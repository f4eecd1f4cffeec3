"""Decide if a run worked, test whether its reward rose, and describe the run in one sentence.

Prompts and samples differ from step to step, so a comparison of the first and last steps alone
could show a rise that is luck. The test uses all steps.
"""

import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from grpo_nb.core.statistics import rise_p_value
from grpo_nb.core.words import displayable
from grpo_nb.runs.rows import MetricRow, finite_values, metric_values
from grpo_nb.runs.run_info import SavedComparison

#: Significance level: of 100 runs that learn nothing, the test finds a rise in about one.
SIGNIFICANCE_LEVEL = 0.01
#: Fewest steps that can show a rise. Four values can be ordered in 24 ways, so even a steady rise
#: of four steps has p = 1/24, above `SIGNIFICANCE_LEVEL`.
MIN_STEPS = 5
#: Characters of a printed line. Notebooks break longer lines in the middle of a word.
LINE_CHARACTERS = 88


@dataclass(frozen=True)
class Rise:
    """Result of the test whether the reward of a run rose."""

    first_mean: float
    """Mean reward over the first third of the steps."""
    last_mean: float
    """Mean reward over the last third of the steps."""
    p_value: float
    """Probability that a model which learns nothing shows a rise at least as clear. It is 1 with
    fewer than `MIN_STEPS` steps."""
    step_count: int
    """Number of logged steps with a finite reward. With `logging_steps=5`, a logged step is the
    mean of five steps."""

    @property
    def is_clear(self) -> bool:
        """True if `p_value` is below `SIGNIFICANCE_LEVEL`, and the last steps have the higher mean.

        The test uses only ranks. So it can find a rise although a high outlier at the start makes
        the last mean the lower one.
        """
        return self.p_value < SIGNIFICANCE_LEVEL and self.last_mean > self.first_mean

    @property
    def finding(self) -> str:
        """Clause that all texts about the reward of a run share, so that they agree."""
        if self.step_count == 0:
            return "No logged step has a finite reward"
        if self.step_count < MIN_STEPS:
            return (
                f"The last logged reward is {self.last_mean:.2f} (fewer than {MIN_STEPS} logged "
                "steps are too few to show a rise)"
            )
        third = self.step_count // 3
        start = f"{self.first_mean:.2f} (first {third} of {self.step_count} logged steps)"
        end = f"{self.last_mean:.2f} (last {third})"
        if self.is_clear:
            return f"The reward rose from {start} to {end}"
        return f"The reward did not rise clearly: it went from {start} to {end}"

    @property
    def sentence(self) -> str:
        """Result in words, with what to do if the reward did not rise."""
        return f"{self.finding}. {self.explanation}"

    @property
    def explanation(self) -> str:
        """Sentences after the finding: how rare such a rise is by chance, or what to do."""
        if self.is_clear:
            # 1 / p, rounded down to a power of ten: p = 0.003 gives 100 runs. The p of a long run
            # can be 0, which has no logarithm.
            runs = 10 ** math.floor(-math.log10(max(self.p_value, 1e-9)))
            return (
                "A model that learns nothing would show such a rise less than once in "
                f"{runs:,} runs."
            )
        if self.step_count == 0:
            return (
                "If steps were logged, gn.check_rewards(rewards, task) shows whether a reward "
                "returns no finite score."
            )
        return (
            "run.plot() shows the curves, and run.alerts what the health rules found. More steps "
            "or an easier task make a rise clearer."
        )

    def __repr__(self) -> str:
        return self.sentence


def reward_rise(rows: Sequence[MetricRow]) -> Rise:
    """Test whether the reward rises over the steps of a run (Mann-Kendall test, one-sided).

    Each step of a model that learns nothing samples other prompts and completions, so all orders of
    its means are equally likely. This does not hold if the rows are ordered from hard to easy.

    Args:
        rows: Rows of a run. Steps without a finite reward are left out.

    >>> rewards = [0.2, 0.4, 0.3, 0.9, 1.1, 1.2, 1.4]
    >>> rows = [{"step": step, "reward": reward} for step, reward in enumerate(rewards, 1)]
    >>> reward_rise(rows).is_clear
    True
    """
    values = finite_values(rows, "reward")
    third = max(1, len(values) // 3)
    # Too few steps cannot show a rise, so they have the p-value of no evidence.
    p_value = rise_p_value(list(values)) if len(values) >= MIN_STEPS else 1.0
    return Rise(
        first_mean=float(values.iloc[:third].mean()),
        last_mean=float(values.iloc[-third:].mean()),
        p_value=p_value,
        step_count=len(values),
    )


def describe_run(rows: Sequence[MetricRow], reference: str) -> str:
    """Describe a run so far in one sentence: reward, KL, and truncated completions.

    KL and the share of truncated completions are means over the last third of the steps.

    Args:
        rows: Rows of the run.
        reference: Description of the model that the KL is measured against.
    """
    rise = reward_rise(rows)
    if not rise.step_count:
        return f"{rise.finding}."
    # All rows, because a step without a finite reward has a KL and truncated completions too.
    last = rows[-max(1, len(rows) // 3) :]
    # Not `finite_values`, because an infinite KL must be visible.
    kl = metric_values(last, "kl")
    kl_text = f"KL to {reference} {kl.mean():.3f}" if len(kl) else "KL not measured"
    parts = [rise.finding, kl_text]
    truncated = metric_values(last, "completions/clipped_ratio")
    if len(truncated):
        parts.append(
            f"in the last third of the steps, {truncated.mean():.0%} of the completions were "
            "truncated"
        )
    return "; ".join(parts) + "."


@dataclass(frozen=True)
class Outcome:
    """The verdict on a run, for the end of a notebook. Each fact is shown as one paragraph."""

    has_worked: bool
    """True if all conditions of `decide_outcome` hold."""
    facts: tuple[str, ...]
    """Paragraphs on the run. The first one has the verdict, the objections to a gain, and how the
    reward went. The others have the held-out results."""

    def __repr__(self) -> str:
        # The sentences of a comparison are read from a file, and can hold control characters.
        return "\n".join(textwrap.fill(displayable(fact), LINE_CHARACTERS) for fact in self.facts)


def decide_outcome(
    rise: Rise,
    comparison: SavedComparison | None,
    start_id: str | None = None,
    adapter_id: str | None = None,
) -> Outcome:
    """Decide if a run worked, and name all objections if it did not.

    "It worked" needs all of these:

    - The held-out comparison is better.
    - The two models of the comparison are the start of this run and the adapter that the run has
      now. This is not checked if the comparison did not record its models.
    - None of the held-out questions is known to have been trained on.
    - Right answers anywhere in the completion did not become rarer. Otherwise the format alone may
      have improved.
    - The model beats the majority-class baseline, if there is one.
    - The reward rose.

    Args:
        rise: The test of the reward over the steps, from `Run.rise`.
        comparison: The held-out comparison as saved with a run; None if there is none. The
            `Comparison` that `gn.compare` returns has the same fields.
        start_id: `Run.adapter_id` of the model that the run started from.
        adapter_id: `Run.adapter_id` of the trained adapter.

    >>> rise = Rise(first_mean=0.2, last_mean=0.9, p_value=0.001, step_count=12)
    >>> decide_outcome(rise, comparison=None).has_worked
    False
    """
    no_gain = list(_reasons_against_a_gain(comparison, start_id, adapter_id))
    # All objections are named, not only the first, so that one rerun can answer them all.
    objections = [*no_gain, *_reasons_to_doubt_a_gain(rise, comparison)]
    verdict = "It worked."
    if objections:
        start = "No gain is shown: " if no_gain else "A gain is shown, but "
        verdict = f"{start}{', and '.join(objections)}."
    # If the reward did not rise, the verdict has the finding already.
    reward_text = rise.sentence if rise.is_clear else rise.explanation
    facts = (f"{verdict} {reward_text}", *_facts_of_comparison(comparison))
    return Outcome(has_worked=not objections, facts=facts)


def _reasons_against_a_gain(
    comparison: SavedComparison | None, start_id: str | None, adapter_id: str | None
) -> Iterator[str]:
    """Yield the reasons why a comparison shows no gain of this run."""
    if comparison is None:
        yield "the held-out answers were not compared"
        return
    if comparison.after.model_id not in (None, adapter_id):
        yield "the comparison is not of the adapter that this run has now"
    if comparison.before.model_id not in (None, start_id):
        # The start may also have been deleted from the folder of the run.
        yield "the comparison is not known to start with the model that this run started from"
    contamination = comparison.contamination
    if contamination is not None and contamination.trained_count:
        yield f"{contamination.trained_count} of the held-out questions were trained on"
    if comparison.verdict == "worse":
        yield "the held-out answers got worse"
    elif comparison.verdict != "better":
        yield "the held-out comparison shows no difference"


def _reasons_to_doubt_a_gain(rise: Rise, comparison: SavedComparison | None) -> Iterator[str]:
    """Yield the reasons why a gain on the held-out questions is not enough."""
    if comparison is not None:
        # More answers in the format can hide that fewer answers are right.
        if comparison.anywhere_verdict == "worse":
            yield "right answers were found less often anywhere in the completion"
        majority = comparison.majority
        if majority is not None and not majority.is_beaten:
            yield "the majority-class baseline is not beaten"
    if not rise.is_clear:
        # The finding continues the sentence of the verdict.
        yield rise.finding[0].lower() + rise.finding[1:]


def _facts_of_comparison(comparison: SavedComparison | None) -> Iterator[str]:
    """Yield the results of a comparison in words, or how to get one."""
    if comparison is None:
        yield (
            "gn.compare(run, task) compares the held-out answers. A task without held-out "
            "questions needs gn.load_task(..., holdout=0.2)."
        )
        return
    yield f"Held-out: {comparison.sentence}"
    if comparison.majority is not None:
        yield comparison.majority.sentence
    if comparison.contamination is None:
        yield (
            "Not all training questions are known, so some held-out questions may have been "
            "trained on."
        )
