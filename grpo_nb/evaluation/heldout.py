"""Held-out sets that people know, under one name each, asked the way they are usually asked, and how answers are judged.

GSM8K, MATH-500, reasoning-gym. Nothing here is trained on. What a published score means also depends on prompt, shots and how
answers are read, so the set says how it asks, and only scores that were asked alike can be compared.
"""

from __future__ import annotations

import dataclasses
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.arguments import did_you_mean, require_path
from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.core.tables import Part, Shown, Table, as_written, bold, facts
from grpo_nb.rewards.answers import is_same_answer
from grpo_nb.rewards.base import Reward
from grpo_nb.rewards.judging import right_by
from grpo_nb.tasks.answers import answers_of
from grpo_nb.tasks.cleaning import clean
from grpo_nb.tasks.formats import AnswerFormat, boxed, hashes, think_answer
from grpo_nb.tasks.reading import Source, read_rows
from grpo_nb.tasks.sources import Messages, fitting_format, with_prompts

if TYPE_CHECKING:
    from datasets import Dataset

    from grpo_nb.generation.samples import Completion

Judge = Callable[[Sequence[str | None], Sequence[Mapping[str, Any]]], Sequence[bool]]
"""From what was given (None: no answer) and the data rows to which answers are right."""
_GYM, _MATH_500 = "reasoning-gym:", ("math-500", "math500")
# Their scorers run the answer as code, sympy's parser among them (docs/evidence/reward_checks.md), pay for garbage, or raise
# on it.
_UNSAFE_FAMILIES = {
    "runs the answer as code": ("string_insertion", "spiral_matrix", "binary_matrix", "n_queens"),
    "has sympy run the answer as Python": ("polynomial_equations", "polynomial_multiplication", "simple_integration"),
    "gives full marks to wrong answers": ("game_of_life_halting", "puzzle24"),
    "fails on answers that are not in its form": ("prime_factorization", "game_of_life"),
}
# Full marks for more than one answer at once, where there is one right answer that a text can be compared with.
_LENIENT_FAMILIES = (
    "coin_flip", "figlet_font", "fraction_simplification", "gsm_symbolic", "letter_jumble", "spell_backward", "word_sorting",
)  # fmt: skip
_ANNOTATION = re.compile(r"<<[^>]*>>")


def same_as_gold(given: Sequence[str | None], rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Judge by the column `answer`: as numbers where it is one, else as text."""
    return [g is not None and is_same_answer(g, str(row["answer"])) for g, row in zip(given, rows, strict=True)]


def read_answers(
    questions: Sequence[Mapping[str, Any]],
    completions: Sequence[Completion],
    format: AnswerFormat,
    judge: Judge = same_as_gold,
    reward: Reward | None = None,
) -> list[dict[str, Any]]:
    """Return a row for each question: what was given (only as the last word, as the rewards read it), and if it is right.

    Args:
        questions: Rows with `question` and `answer`.
        completions: One of each.
        format: In which they were asked.
        judge: Says what is right.
        reward: Says it instead, as it paid in training: from `rewards.answer_reward`.
    """
    answers = [format.extract_last(completion.text) for completion in completions]
    if reward is None:
        verdicts = judge(answers, questions)
    else:
        verdicts = right_by(reward, [completion.text for completion in completions], questions, format)
    return [
        {
            "question": row["question"],
            "answer": str(row["answer"]),
            "completion": completion.text,
            "given": given,
            "is_correct": is_correct,
            "is_formatted": format.is_exact(completion.text),
            "tokens": completion.tokens,
            "is_cut": completion.is_cut,
        }
        for row, completion, given, is_correct in zip(questions, completions, answers, verdicts, strict=True)
    ]


@dataclass(frozen=True, kw_only=True, repr=False)
class HeldOut(Shown):
    """Questions to evaluate on, and how they are asked and judged. Shows itself with its first prompt."""

    name: str
    format: AnswerFormat
    holdout: Dataset
    """Columns `prompt`, `question`, `answer` and those of the source."""
    judge: Judge = dataclasses.field(default=same_as_gold)
    asked: str
    """How the questions are asked, in words."""
    judged: str = "as numbers where the gold answer is one, else as text"
    """How answers are judged, in words."""

    def _parts(self) -> Iterable[Part]:
        yield bold(f"Held-out set {self.name}")
        how = {"asked": self.asked, "judged": self.judged, "answer format": self.format.name}
        yield facts({"held-out questions": len(self.holdout), **how})
        first = self.holdout[0]
        yield f"First prompt (answer {first['answer']!r}):"
        yield Table([(turn["role"], as_written(turn["content"])) for turn in first["prompt"]])


def is_known_set(source: Any) -> bool:
    """Whether this is the name of a set that people know, which neither a model nor a file has."""
    name = str(source).lower() if isinstance(source, str) else ""
    return name in ("gsm8k", *_MATH_500) or name.startswith(_GYM)


def load_holdout(
    source: Source,
    *,
    limit: int | None = None,
    shots: int | None = None,
    format: AnswerFormat | None = None,
    columns: Mapping[str, str] | None = None,
    example: tuple[str, str, str] | None = None,
    seed: int = 0,
    path: str | Path | None = None,
    split: str = "test",
    **options: Any,
) -> HeldOut:
    """Load questions to evaluate on: a set that people know, a file, rows, or a data set.

    * `"gsm8k"`: the 1,319 test questions, after 5 worked examples from the training part, answers after `####`, as the task
      `gsm8k` of lm-evaluation-harness does it with a chat template and its examples as turns.
    * `"math-500"`: the 500 problems of arXiv:2305.20050, without examples, answers in a box, compared as expressions.
    * `"reasoning-gym:<family>"`: questions of a family of the package reasoning-gym, judged by its scorer: right is full marks.
    * The path of a file, rows, a `Dataset` or a Hub id: as `load_task` reads them, all of them held out.

    Args:
        source: One of these.
        limit: How many questions, drawn by `seed`; all if not given (100 of a reasoning-gym family).
        shots: Worked examples before each question: 5 for GSM8K, 0 for MATH-500, if not given.
        format: Ask in this answer format instead, for a model that was trained on it: `format=task.format`.
        columns, example: For your own questions, as in `load_task`.
        seed: Of the choice of examples and questions, and of what reasoning-gym makes.
        path: Where GSM8K or MATH-500 is, if not on the Hub: a folder or id with the same columns.
        split: Of a Hub data set of your own.
        **options: Of the reasoning-gym family, such as `max_value`.

    Raises:
        ValueError: An unknown set or family, a family whose scorer is not safe, no rows, or a data set that cannot be reached.
        EnvironmentProblem: reasoning-gym is not installed.

    >>> load_holdout([{"question": "1 + 1?", "answer": "2"}]).holdout[0]["answer"]
    '2'
    """
    name = source.lower() if isinstance(source, str) else ""
    if isinstance(source, (str, Path)):
        require_path("task", source, "a set that is known, a file or the id of a data set")
    if options and not name.startswith(_GYM):
        raise ValueError(f"{sorted(options)} are options of a reasoning-gym family, not of {source!r:.80}.")
    if limit is not None and limit < 1:
        raise ValueError(f"limit = {limit!r} must be at least 1, or None for all.")
    if name.startswith(_GYM):
        return _reasoning_gym(name.removeprefix(_GYM), limit or 100, format, example, seed, options)
    if name == "gsm8k":
        return _gsm8k(5 if shots is None else shots, limit, format, seed, path)
    if name in _MATH_500:
        return _math_500(shots, limit, format, seed, path)
    if shots:
        raise ValueError("shots are those of GSM8K; for your own questions give example=(question, reasoning, answer).")
    read = read_rows(source, split=split)
    rows = chosen(clean(read, columns).rows, limit, seed)
    format = fitting_format(format, answers_of([row["answer"] for row in rows]))
    how = "with one example turn" if example else "with the instruction alone"
    return _held_out(read.name, format, with_prompts(rows, format, example), asked=how)


def _held_out(name: str, format: AnswerFormat, rows: Sequence[Mapping[str, Any]], **more: Any) -> HeldOut:
    from datasets import Dataset

    return HeldOut(name=name, format=format, holdout=Dataset.from_list([dict(row) for row in rows]), **more)


def chosen(rows: Sequence[dict[str, Any]], limit: int | None, seed: int) -> list[dict[str, Any]]:
    """So many of the rows, drawn by the seed, in their order; all without a limit."""
    if limit is None or limit >= len(rows):
        return list(rows)
    return [rows[i] for i in sorted(random.Random(seed).sample(range(len(rows)), limit))]


def _load(path: str, name: str | None, split: str, columns: Sequence[str]) -> list[dict[str, Any]]:
    from datasets import load_dataset

    try:
        rows = load_dataset(path, name, split=split).to_list()
    except (OSError, ConnectionError, ValueError) as error:
        raise ValueError(
            f"the data set {path!r} ({split}) cannot be loaded ({type(error).__name__}: {str(error).splitlines()[0]:.160}). "
            "It is on the Hub: check the network, or say where you have it: load_holdout(..., path='<folder>')."
        ) from error
    missing = [column for column in columns if column not in rows[0]]
    if missing:
        raise ValueError(f"the data set {path!r} has no column {missing[0]!r}; it has {list(rows[0])}.")
    return rows


# GSM8K.


def _gsm8k(shots: int, limit: int | None, format: AnswerFormat | None, seed: int, path: Any) -> HeldOut:
    where = str(path or "openai/gsm8k")
    config = None if path else "main"
    rows = chosen(_load(where, config, "test", ("question", "answer")), limit, seed)
    examples: list[dict[str, Any]] = []
    if shots:
        train = _load(where, config, "train", ("question", "answer"))
        examples = random.Random(seed).sample(train, min(shots, len(train)))
    turns: Messages = []
    for shot in examples:
        solution, _, gold = shot["answer"].rpartition("####")
        # With its calculator marks, as the harness shows it; in another format they would be no part of it.
        said = shot["answer"] if format is None else format.render(_ANNOTATION.sub("", solution).strip(), gold.strip())
        turns += [_user(shot["question"]), {"role": "assistant", "content": said}]
    # With examples the harness gives no instruction; without, nothing else would say where the answer goes.
    is_told = format is not None or not turns
    format = format or hashes()
    system = [{"role": "system", "content": format.system_prompt()}] if is_told else []
    made = [
        {
            "prompt": [*system, *turns, _user(row["question"])],
            "question": row["question"],
            "answer": row["answer"].rpartition("####")[2].strip().replace(",", ""),
            "solution": row["answer"],
        }
        for row in rows
    ]
    asked = f"{len(examples)} worked examples from the training part (seed {seed})" if examples else "no examples"
    return _held_out("gsm8k", format, made, asked=f"{asked}{', with instruction' if is_told else ', no instruction'}")


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


# MATH-500.


def _math_500(shots: int | None, limit: int | None, format: AnswerFormat | None, seed: int, path: Any) -> HeldOut:
    if shots:
        raise ValueError(
            f"shots = {shots}: MATH-500 has no training part to take examples from, and is asked without. Write shots=0."
        )
    rows = chosen(_load(str(path or "HuggingFaceH4/MATH-500"), None, "test", ("problem", "answer")), limit, seed)
    how, judged = "no examples, with instruction", "as expressions (math-verify)"
    if format is None:
        how, instruction = "no examples, the instruction after the problem", "put your final answer within \\boxed{}."
        for row in rows:
            row["prompt"] = [_user(f"{row['problem']}\nReason step by step, and {instruction}")]
    format = format or boxed()
    made = with_prompts([{"question": row.pop("problem"), **row, "answer": str(row["answer"])} for row in rows], format)
    return _held_out("math-500", format, made, asked=how, judge=same_expression, judged=judged)


def same_expression(given: Sequence[str | None], rows: Sequence[Mapping[str, Any]]) -> list[bool]:
    """Judge by the column `answer` as an expression, as `rewards.maths` does."""
    from grpo_nb.rewards.expressions import maths

    # In a box again: the reward looks for a slot.
    box = boxed()
    scores = maths(format=box)(
        completions=["" if answer is None else box.render("", answer) for answer in given],
        answer=[row["answer"] for row in rows],
    )
    return [score is not None and score >= 1 for score in scores]


# reasoning-gym.


def _reasoning_gym(
    family: str,
    count: int,
    format: AnswerFormat | None,
    example: tuple[str, str, str] | None,
    seed: int,
    options: Mapping[str, Any],
) -> HeldOut:
    for problem, families in _UNSAFE_FAMILIES.items():
        if family in families:
            raise ValueError(
                f"the family {family!r} of reasoning-gym is not taken: its scorer {problem} (docs/evidence/reward_checks.md)."
            )
    try:
        import reasoning_gym
        from reasoning_gym.factory import DATASETS
    except ImportError as error:
        raise EnvironmentProblem(
            f"reasoning-gym cannot be imported ({error}). Run `pip install reasoning-gym`, or take another held-out set."
        ) from error
    if family not in DATASETS:
        raise ValueError(f"reasoning-gym has no family {family!r}{did_you_mean(family, DATASETS)}")
    data = reasoning_gym.create_dataset(family, size=count, seed=seed, **options)
    entries = [data[i] for i in range(count)]
    format = format or think_answer()
    rows = [{"question": e["question"], "answer": str(e["answer"]), "entry": i} for i, e in enumerate(entries)]

    def full_marks(given: Sequence[str | None], rows: Sequence[Mapping[str, Any]]) -> list[bool]:
        return [
            is_same or (answer is not None and _has_full_marks(data, answer, entries[row["entry"]]))
            for is_same, answer, row in zip(same_as_gold(given, rows), given, rows, strict=True)
        ]

    judge, judged = full_marks, "by the family's own scorer (full marks), or as the gold answer"
    if family in _LENIENT_FAMILIES:
        judge, judged = same_as_gold, "as the gold answer"
    return _held_out(
        f"{_GYM}{family}", format, with_prompts(rows, format, example), judge=judge, judged=judged,
        asked=f"reasoning-gym {version('reasoning-gym')}, seed {seed}" + (", with one example turn" if example else ""),
    )  # fmt: skip


def _has_full_marks(data: Any, answer: str, entry: Mapping[str, Any]) -> bool:
    try:
        return float(data.score_answer(answer=answer, entry=entry)) >= 1.0
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError):
        # Scorers take answers apart and raise where they are not in their form, which is what a wrong answer is.
        return False
