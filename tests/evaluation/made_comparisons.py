"""Made-up evaluations and comparisons, which need no model."""

from grpo_nb.evaluation.comparison import Comparison
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.rewards.answers import correctness
from grpo_nb.scoring.grader import Grader

SCRIPT = "<script>alert(1)</script>"


def evaluation(
    label: str, right: list[bool], samples: int = 1, golds: list[str] | None = None
) -> Evaluation:
    """Return an evaluation in which these answers are correct, and in the format if correct."""
    rows = []
    for place, is_right in enumerate(right):
        row = {
            "question": f"<q{place}>",
            "answer": golds[place] if golds else "7",
            "completion": SCRIPT,
            "extracted_answer": "7" if is_right else None,
            "is_correct": is_right,
            "is_formatted": is_right,
            "is_correct_anywhere": is_right,
            "tokens": 5,
            "is_truncated": False,
        }
        rows.append(row)
    return Evaluation(label, rows, Grader(reward=correctness()), samples)


def comparison(before: list[bool], after: list[bool], samples: int = 1) -> Comparison:
    """Return the comparison of two such evaluations."""
    return Comparison(
        evaluation("before", before, samples=samples), evaluation("after", after, samples=samples)
    )
