"""Ask models held-out questions: `evaluate` one, `compare` two, or `ask` questions of your own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.core.argument_types import require_types
from grpo_nb.core.tables import Part, ReprMixin, Table, verbatim
from grpo_nb.evaluation.comparison import Comparison
from grpo_nb.evaluation.exam import (
    Exam,
    QuestionSource,
    require_no_tools,
    shared_messages,
)
from grpo_nb.evaluation.model_sources import (
    Decoding,
    RunModel,
    RunOrFolder,
    complete_rows,
    default_label,
    locate_models,
    open_model,
    version_before_training,
)
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.generation.completions import GeneratedCompletion
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.runs.card import write_model_card
from grpo_nb.runs.run_folder import open_run


def evaluate(
    run_or_model: Any,
    task: QuestionSource | None = None,
    *,
    run: RunOrFolder | None = None,
    limit: int | None = None,
    samples: int = 1,
    max_completion_length: int | None = None,
    settings: Settings | None = None,
    label: str | None = None,
    allow_contaminated: bool = False,
    grader: RewardFunction | None = None,
) -> Evaluation:
    """Ask a model held-out questions and grade the answers.

    The first of these decides which answers are correct, and the result names it:

    1. `grader`, if you pass it.
    2. The reward of the run that compares the answer, such as `maths()`.
    3. If the run has no such reward: your own function or `code_tests()`, if its weight is positive
       and no reward has a higher one.
    4. `correctness()`, also if two rewards qualify for step 2, or two for step 3.

    An answer to which your function gives None is not correct.

    Args:
        run_or_model: Model to ask: a run or its folder (the trained adapter), `"base"` or `"start"`
            (the base model of `run`, or the model that it started from), the folder of a model such
            as a merged export, the name of a model, or `(model, tokenizer)`.
        task: Questions: a task, or a set from `load_holdout`. Rows or a file are asked in the
            format of the run. By default the questions that are stored with the run.
        run: Run that the model belongs to, or its folder. `"base"` and `"start"` need it. Other
            models get its settings, and are checked against its training questions.
        limit: Number of questions, by default all. The same limit always selects the same ones.
        samples: Answers per question. One answer is greedy. Several are sampled for pass@k, with
            the temperature and the seed of the settings.
        max_completion_length: Limit of tokens per answer, by default as in the settings.
        settings: Settings for length and sampling, by default those of the run or of the kit.
        label: Name of the model in the result.
        allow_contaminated: If True, evaluate even if held-out questions were trained on. The result
            reports their number.
        grader: Reward function that decides which answers are correct. An answer is correct if its
            score is at least the pass score: the upper end of the function's attribute `range`.
            Without `range`, the function scores some gold, wrong and empty answers, and the pass
            score is the lowest gold score above all the others, or 1.0 if there is none.

    Raises:
        ValueError: A held-out question was trained on, there are no questions, or an argument has
            an impossible value.
        FileNotFoundError: There is no such folder, file or run.

    >>> answered = gn.evaluate((model, tokenizer), task, max_completion_length=8)
    >>> 0.0 <= answered.accuracy <= 1.0
    True
    """
    require_types("gn.evaluate(run_or_model, task)", run_or_model=run_or_model)
    # A wrong name or path raises here, before a model is loaded.
    sources, run = locate_models([run_or_model], run)
    exam = Exam(
        model_sources=sources,
        run=run,
        task=task,
        limit=limit,
        samples=samples,
        max_completion_length=max_completion_length,
        settings=settings,
        allow_contaminated=allow_contaminated,
        grader_argument=grader,
    )
    return exam.evaluate_all([label or default_label(sources[0])])[0]


def compare(
    run_or_model: Any,
    task: QuestionSource | None = None,
    against: Any = None,
    *,
    run: RunOrFolder | None = None,
    limit: int | None = None,
    samples: int = 1,
    max_completion_length: int | None = None,
    settings: Settings | None = None,
    allow_contaminated: bool = False,
    grader: RewardFunction | None = None,
) -> Comparison:
    """Compare a model with another one on the same held-out questions.

    `compare(run, task)` compares a run with the model that it started from. That is the base model,
    or after priming or an earlier stage the model with the earlier adapter.
    `compare(run_or_model, against=other, task=task)` compares any two models. `other` is `before`
    in the result. Both models get the same prompts and the same decoding.

    The result of `compare(run)` is kept in the folder of the run, for its summary and model card.
    This needs greedy answers to all held-out prompts of the run, with its length limit and its own
    grader. Keep any other comparison with `.save(folder)`.

    Args:
        run_or_model: Model to ask, as in `evaluate`. A run if there is no `against`.
        task: Questions, as in `evaluate`.
        against: Model to compare with, for example `"base"`.
        run: Run that the models belong to, or its folder. Default: `run_or_model` if it is a run,
            else `against`.
        limit, samples, max_completion_length, settings, allow_contaminated, grader: As in
            `evaluate`.

    Raises:
        ValueError: A held-out question was trained on, `against` is missing, there are no
            questions, or an argument has an impossible value.
        FileNotFoundError: There is no such folder, file or run.

    >>> comparison = gn.compare(run, max_completion_length=8)
    >>> comparison.verdict in ("better", "worse", "no difference shown")
    True
    """
    require_types(
        "gn.compare(run_or_model, against=other, task=task)",
        optional=("against",),
        run_or_model=run_or_model,
        against=against,
    )
    is_against_start = against is None
    # The model under evaluation is the last one, so that its run takes precedence.
    models = [run_or_model] if is_against_start else [against, run_or_model]
    sources, run = locate_models(models, run)
    after = sources[-1]
    if is_against_start:
        # "base" and "start" belong to a run too, but are themselves its earlier models.
        if not isinstance(after, RunModel) or after.version != "trained":
            raise ValueError(
                "run_or_model is not a run, so there is no earlier model to compare it with. Name "
                "the other model: gn.compare(run_or_model, against=other, task=task)."
            )
        # `run` may be another run, with other questions and settings. The earlier model is always
        # that of the run under evaluation.
        sources = [RunModel(after.run, version_before_training(after.run)), after]
    exam = Exam(
        model_sources=sources,
        run=run,
        task=task,
        limit=limit,
        samples=samples,
        max_completion_length=max_completion_length,
        settings=settings,
        allow_contaminated=allow_contaminated,
        grader_argument=grader,
    )
    # Only the full comparison of a run with the model that it started from is a result of the run.
    # No other comparison may replace it in the summary and the model card. Decide this before
    # grading: a function that changes its state while grading would no longer match the record of
    # the run.
    is_saved_with_run = is_against_start and after.run.path == run.path and exam.is_result_of_run
    comparison = Comparison(*exam.evaluate_all(["before", "after"]))
    if is_saved_with_run:
        comparison.save(run.path / "comparison")
        write_model_card(run)
    return comparison


@dataclass(frozen=True, repr=False)
class Answers(ReprMixin):
    """Greedy answers to questions of your own, from before and after a training."""

    questions: tuple[str, ...]
    before: Sequence[GeneratedCompletion]
    """Answers of the model that the run started from."""
    after: Sequence[GeneratedCompletion]

    def _shown_parts(self) -> list[Part]:
        rows = []
        for question, before, after in zip(self.questions, self.before, self.after, strict=True):
            cells = [verbatim(question)]
            for completion in (before, after):
                mark = " [truncated here]" if completion.is_truncated else ""
                cells.append(verbatim(completion.text + mark))
            rows.append(cells)
        return [Table(rows, head=("question", "before", "after"), wide=range(3))]


def ask(
    run: RunOrFolder,
    questions: str | Sequence[str],
) -> Answers:
    """Ask a run questions of your own, and show the answers before and after its training.

    The questions get the system prompt, the examples and the chat template of the training.

    Args:
        run: A run or its folder.
        questions: One question, or several.

    Raises:
        FileNotFoundError: There is no such run, or it has no adapter yet.
        ValueError: There are no questions, the run was trained with tools, its model has been
            trained since, or its chat template leaves out the system prompt.

    >>> gn.ask(run, ["What is 17 + 25?", "What is 6 + 7?"]).questions
    ('What is 17 + 25?', 'What is 6 + 7?')
    """
    run = open_run(run)
    questions = (questions,) if isinstance(questions, str) else tuple(questions)
    require_no_tools(run, "gn.ask cannot ask such a run, but gn.compare(run, task) can.")
    if not questions:
        raise ValueError("questions is empty. Write one question, or a list of questions.")
    # Without the messages of the training, the model would answer another kind of prompt.
    first_messages = shared_messages(run)
    rows = [
        {"prompt": [*first_messages, {"role": "user", "content": question}]}
        for question in questions
    ]
    # Without sampling, the two answers differ only because of the training.
    greedy = Decoding(
        settings=run.settings,
        chat_template_kwargs=run.chat_template_kwargs,
    )
    answers = []
    for version in (version_before_training(run), "trained"):
        with open_model(RunModel(run, version)) as (model, tokenizer):
            answers.append(complete_rows(model, tokenizer, rows, greedy, f"asking, {version}"))
    return Answers(questions, *answers)
