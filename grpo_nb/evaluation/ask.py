"""Held-out evaluation: one model, or two on the same questions, with intervals, whatever form the model is in; and `ask`.

The verdict never says more than the data shows: "better" and "worse" need an exact test below 0.05 and ten questions.
Everything else is "no difference shown", with what would have been.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.config.settings import Settings, refuse_keywords
from grpo_nb.core.argument_types import require
from grpo_nb.core.progress import progress_bar
from grpo_nb.core.tables import Part, Shown, Table, as_written
from grpo_nb.core.user_warnings import warn_user
from grpo_nb.evaluation.heldout import HeldOut, chosen, load_holdout, read_answers
from grpo_nb.evaluation.results import REWARD, Comparison, Evaluation, frequent_answer
from grpo_nb.evaluation.subjects import (
    Base,
    Decoding,
    Located,
    Start,
    located,
    model_id_of,
    name_of,
    open_subject,
    started_from_trained_adapter,
    tokenizer_of_run,
)
from grpo_nb.generation.samples import Completion, as_scored
from grpo_nb.rewards.answers import SlotReward, correctness
from grpo_nb.rewards.base import RewardFunction, reward_list, reward_name, weights_by_name
from grpo_nb.runs.card import write_model_card
from grpo_nb.runs.rows import read_rows
from grpo_nb.runs.run_folder import Run, open_run, trained_questions
from grpo_nb.scoring.record import rebuilt
from grpo_nb.scoring.right_by import (
    FunctionJudge,
    Judge,
    anywhere_in_words,
    choose_judge,
    function_judge,
    judge_in_words,
    judge_remarks,
    main_function,
    right_by,
)
from grpo_nb.scoring.scores import score
from grpo_nb.tasks.contamination import find_contamination
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.load import with_prompts
from grpo_nb.tasks.read_rows import Source
from grpo_nb.tasks.task import Task

Questions = Task | HeldOut | Source
# What stands second in `compare` is a model if it is a text, but for the name of a file of questions.
_DATA_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")


def evaluate(
    subject: Any,
    task: Questions | None = None,
    *,
    run: Run | None = None,
    rewards: RewardFunction | Sequence[RewardFunction] = (),
    limit: int | None = None,
    samples: int = 1,
    temperature: float | None = None,
    max_completion_length: int | None = None,
    settings: Settings | None = None,
    seed: int | None = None,
    label: str | None = None,
    allow_contaminated: bool = False,
    correct: RewardFunction | None = None,
    **unknown: Any,
) -> Evaluation:
    """Have a model answer held-out questions and score the answers.

    Args:
        subject: A run or its folder (its adapter), `"base"` or `"start"` (with `run`: its base model, and the model that it
            started from), a model folder such as a merged export, a .gguf file, the name of a model, or `(model, tokenizer)`
            as they are.
        task: Its `holdout` is asked and its `format` read: a task, or a set from `load_holdout`. What that takes, such as rows
            or a file of yours, is asked in the format of the run. The questions stored with the run if not given.
        run: The run it belongs to: for `"base"`, and for the tokenizer, settings and training questions of a model folder.
        rewards: Their means are reported too; one for the answer among them says what is right. Otherwise the run's own
            rewards decide: the kit's reward for the answer among them or, where they have none, your own function with the
            highest weight; and without a run such a function among these. Otherwise `correctness()`. The result shows which.
        limit: How many of the questions, always the same; all if not given.
        samples: Answers to each question. One is the likeliest (greedy); several are drawn, for pass@k.
        temperature: Of drawing; that of the settings if there are several samples, else 0.
        max_completion_length: Tokens; that of the settings if not given.
        settings: For length and sampling; those of the run if not given, and the kit's defaults without any.
        seed: Of drawing; that of the settings if not given.
        label: Shown in the result.
        allow_contaminated: Go on when held-out questions were trained on. The result says how many.
        correct: A reward function that decides which answers are correct, in place of all of these: those that it gives its
            full score. That is the upper end of its attribute `range`; without one, its best score for a gold answer in the
            format (`grpo_nb.scoring.right_by.function_judge`). The result shows the score.

    Raises:
        ValueError: A held-out question was trained on, there are no questions, or numbers that cannot work.
        FileNotFoundError: No such folder, file or run.
        EnvironmentProblem: A GGUF file and no llama.cpp.

    >>> answered = gn.evaluate((model, tokenizer), task, max_completion_length=8)
    >>> 0.0 <= answered.accuracy <= 1.0
    True
    """
    refuse_keywords(evaluate, unknown)
    roles = {"task": "questions"}
    given = {"subject": subject, "task": task, "run": run, "rewards": rewards, "settings": settings}
    require(
        "gn.evaluate(subject, task)", optional=("task", "run", "settings"), roles=roles, **given
    )
    (found,), run = located([subject], run)
    how = (
        rewards,
        limit,
        samples,
        temperature,
        max_completion_length,
        settings,
        seed,
        allow_contaminated,
        correct,
    )
    (result,) = _Asked(task, run, *how, _tokenizer_in_memory([found])).of_each(
        [found], [label or name_of(found)]
    )
    return result


def compare(
    before: Any,
    after: Any = None,
    task: Questions | None = None,
    *,
    run: Run | None = None,
    rewards: RewardFunction | Sequence[RewardFunction] = (),
    limit: int | None = None,
    samples: int = 1,
    temperature: float | None = None,
    max_completion_length: int | None = None,
    settings: Settings | None = None,
    seed: int | None = None,
    allow_contaminated: bool = False,
    correct: RewardFunction | None = None,
    **unknown: Any,
) -> Comparison:
    """Compare two models on the same held-out questions: `compare(run, task)`, or `compare(before, after, task)`.

    The same prompts, chat template and way of decoding for both. A run alone is compared with the model it started from. If
    that model had a trained adapter already (after priming or an earlier stage), the base model is shown as a third column,
    and the verdict is about this run alone. The comparison on all of the run's own questions, the likeliest answer to each,
    is kept in its folder, for its summary and model card. Any other comparison is kept where you say, with `.save(folder)`.

    Args:
        before: What `evaluate` takes as subject; alone, a run.
        after: The other one. The task may stand here for a run alone.
        task: As in `evaluate`; the questions stored with the run if not given.
        run: The run they belong to, if neither is one: for `"base"`, and tokenizer, settings and training questions.
        rewards, limit, samples, temperature, max_completion_length, settings, seed, allow_contaminated, correct: As in
            `evaluate`.

    Raises:
        ValueError: A held-out question was trained on, one model alone that is no run, or numbers that cannot work.
        FileNotFoundError: No such folder, file or run.
        EnvironmentProblem: A GGUF file and no llama.cpp.

    >>> comparison = gn.compare(run, max_completion_length=8)
    >>> comparison.verdict in ("better", "worse", "no difference shown")
    True
    """
    refuse_keywords(compare, unknown)
    if task is None and _is_questions(after):
        task, after = after, None
    roles = {"before": "subject", "after": "subject", "task": "questions"}
    given = {
        "before": before,
        "after": after,
        "task": task,
        "run": run,
        "rewards": rewards,
        "settings": settings,
    }
    require(
        "gn.compare(before, after, task)",
        optional=("after", "task", "run", "settings"),
        roles=roles,
        **given,
    )
    is_of_the_run = after is None
    found, run = located([before] if is_of_the_run else [before, after], run)
    if is_of_the_run:
        if not isinstance(run := found[0], Run):
            raise ValueError(
                f"{before!r:.80} alone is no run. Name the other one: gn.compare(before, after, task)."
            )
        found = [Base(run), run]
    names = ["before", "after"]
    labels = [name_of(subject) for subject in found]
    if is_of_the_run or labels[0] == labels[1]:
        labels = ["before", "after"]
    if is_of_the_run and started_from_trained_adapter(run):
        found = [Base(run), Start(run), run]
        names = ["base", "before", "after"]
        labels = ["base", "start of the run", "after"]
    how = (
        rewards,
        limit,
        samples,
        temperature,
        max_completion_length,
        settings,
        seed,
        allow_contaminated,
        correct,
    )
    asked = _Asked(task, run, *how, _tokenizer_in_memory(found))
    comparison = Comparison(**dict(zip(names, asked.of_each(found, labels), strict=True)))
    if is_of_the_run and asked.is_all_of_the_run:
        comparison = comparison.save(run.path / "comparison")
        write_model_card(run)
    return comparison


@dataclass(frozen=True, repr=False)
class Answers(Shown):
    """Questions of one's own, with the likeliest answer of the model that a run started from and of the trained one."""

    questions: tuple[str, ...]
    before: tuple[Completion, ...]
    after: tuple[Completion, ...]
    base: tuple[Completion, ...] | None = None
    """Answers of the base model, where the run started from a trained adapter."""

    def _parts(self) -> Iterator[Part]:
        columns = {"before": self.before, "after": self.after}
        if self.base is not None:
            columns = {"base": self.base, "start of the run": self.before, "after": self.after}
        rows = []
        for question, *answers in zip(self.questions, *columns.values(), strict=True):
            cells = [as_written(question)]
            for answer in answers:
                cells.append(as_written(answer.text + (" [cut here]" if answer.is_cut else "")))
            rows.append(cells)
        head = ("question", *columns)
        yield Table(rows, head=head, wide=range(len(head)))


def ask(
    run: Run | str | Path,
    questions: str | Sequence[str],
    *,
    max_completion_length: int | None = None,
) -> Answers:
    """Ask a run questions of your own, and see the answers from before and after its training side by side.

    They are asked as in training: the same system prompt and examples before them, the same chat template.

    Args:
        run: A run or its folder.
        questions: One, or several at once.
        max_completion_length: Tokens of an answer; that of the run's settings if not given.

    Raises:
        FileNotFoundError: There is no such run, or it has no adapter yet.

    >>> gn.ask(run, ["What is 17 + 25?", "What is 6 + 7?"]).questions
    ('What is 17 + 25?', 'What is 6 + 7?')
    """
    require("gn.ask(run, questions)", run=run)
    run, questions = open_run(run), (questions,) if isinstance(questions, str) else tuple(questions)
    _require_no_tools(run)
    rows = run.holdout or with_prompts([{"question": ""}], _format_of(run), None)
    # What all prompts of the run have before their question: the system prompt, an example.
    turns = zip(*(row["prompt"][:-1] for row in rows), strict=False)
    told = [same[0] for same in turns if all(turn == same[0] for turn in same)]
    asked = [{"prompt": [*told, {"role": "user", "content": question}]} for question in questions]
    length = max_completion_length or run.settings.max_completion_length
    greedy = Decoding(max_completion_length=length, chat_template_kwargs=run.chat_template_kwargs)
    models: dict[str, Located] = {"before": Base(run), "after": run}
    if started_from_trained_adapter(run):
        models = {"base": Base(run), "before": Start(run), "after": run}
    answers = {}
    for name, what in models.items():
        with open_subject(what) as subject:
            answers[name] = tuple(subject.ask(asked, greedy, lambda done: None))
    return Answers(questions, **answers)


class _Asked:
    """What is asked and how: the rows, where their answers stand, how answers are drawn, who says what is right."""

    def __init__(
        self, task: Questions | None, run: Run | None, rewards: Any, limit: int | None, samples: int,
        temperature: float | None, length: int | None, settings: Settings | None, seed: int | None, is_memory_fine: bool,
        correct: RewardFunction | None, tokenizer: Any = None,
    ) -> None:  # fmt: skip
        if task is None and run is None:
            raise ValueError(
                "which questions? Give a task, gn.evaluation.load_holdout(...), or a run with its own."
            )
        own, tools = _format_of(run) if run is not None else None, getattr(task, "tools", None)
        if run is not None and tools is None:
            _require_no_tools(run)
        if task is not None and not isinstance(task, (Task, HeldOut)):
            task = load_holdout(task, format=own)
        self.run, self.task, self.is_memory_fine = run, task, is_memory_fine
        self.rewards = reward_list(rewards, least=0)
        weights_by_name(self.rewards)  # which refuses two of one name
        self.rows = chosen(
            _stored_holdout(run) if task is None else list(task.holdout), limit, seed=0
        )
        if not self.rows:
            raise ValueError("there are no held-out questions to ask.")
        self.format = own if task is None else task.format
        settings = settings or (run.settings if run else Settings())
        given = {"max_completion_length": length, "seed": seed}
        settings = settings.replace(
            **{name: value for name, value in given.items() if value is not None}
        )
        if temperature is None:
            temperature = 0.0 if samples == 1 else settings.temperature
        if samples < 1 or (samples > 1 and temperature == 0):
            raise ValueError(
                f"samples = {samples!r} must be 1, or several at a temperature above 0: else all are alike."
            )
        self.decoding = Decoding(
            max_completion_length=settings.max_completion_length,
            samples=samples,
            temperature=temperature,
            sampling=settings.sampling if temperature else {},
            seed=settings.seed,
            chat_template_kwargs=getattr(task, "chat_template_kwargs", {})
            or (run.chat_template_kwargs if run else {}),
            tools=tools,
        )
        self.tokenizer = tokenizer
        self.judge = self._choose_judge(correct)

    def _choose_judge(self, correct: RewardFunction | None) -> Judge:
        """Return what decides which answers are correct; the docstring of `evaluate` gives the order."""
        if correct is not None:
            given = reward_list(correct)
            if len(given) > 1:
                raise ValueError(
                    f"correct = {given!r:.80} is {len(given)} functions: "
                    "one of them decides what is correct."
                )
            correct = given[0]
            if isinstance(correct, SlotReward):
                return correct
            return function_judge(correct, self.rows, self.format, **self._trial_arguments())
        if any(isinstance(reward, SlotReward) for reward in self.rewards):
            return choose_judge(self.rewards, self.rows, self.format) or correctness()
        paid = self.rewards if self.run is None else self._rewards_of_the_run()
        how = {} if main_function(paid) is None else self._trial_arguments()
        return choose_judge(paid, self.rows, self.format, **how) or correctness()

    def _trial_arguments(self) -> dict[str, Any]:
        """Return what `function_judge` tries a function with, besides the rows."""
        tokenizer = self.tokenizer
        if tokenizer is None and self.run is not None:
            tokenizer = tokenizer_of_run(self.run)
        begun = self.task.begun if isinstance(self.task, Task) else dict
        return {"tokenizer": tokenizer, "begun": begun}

    def _rewards_of_the_run(self) -> list[RewardFunction]:
        """Return the run's rewards: those of the kit from its record, functions from memory or from those given.

        None of them if a function is missing that would decide what is correct; a warning names it. The folder of a run has
        only the source of such a function.
        """
        given = {reward_name(reward): reward for reward in (*self.run.rewards, *self.rewards)}
        rewards, missing = [], []
        for record in self.run.info["rewards"]:
            reward = rebuilt(record) or given.get(record["name"])
            if reward is None:
                missing.append(record)
            else:
                rewards.append(reward)
        has_answer_reward = any(isinstance(reward, SlotReward) for reward in rewards)
        highest = max(self.run.weights.values(), default=0.0)
        main = [record["name"] for record in missing if record["weight"] == highest]
        if len(main) == 1 and not has_answer_reward:
            warn_user(
                f"The main reward of the run {self.run.name!r} is your function {main[0]}(), and the folder "
                "of the run has only its source. correctness() decides which answers are correct, unless "
                f"you write correct={main[0]}."
            )
            return []
        return rewards

    @property
    def is_all_of_the_run(self) -> bool:
        """Whether this is what its run's summary and card are to show: all of its questions, whole answers, the likeliest."""
        asked, own = ([row["question"] for row in rows] for rows in (self.rows, self.run.holdout))
        is_whole = self.decoding.max_completion_length >= self.run.settings.max_completion_length
        return asked == own and is_whole and self.decoding.temperature == 0

    def of_each(self, subjects: Sequence[Located], labels: Sequence[str]) -> list[Evaluation]:
        """Ask one subject after the other."""
        runs = {
            what.path.absolute(): what for what in (self.run, *subjects) if isinstance(what, Run)
        }
        trained = trained_questions(getattr(self.task, "train", None), runs.values())
        found = trained and find_contamination([row["question"] for row in self.rows], trained)
        if found and not self.is_memory_fine:
            found.require_none()
        for run in runs.values():
            if (own := run.chat_template_kwargs) != self.decoding.chat_template_kwargs:
                other = f"and this task makes other prompts: gn.load_task(..., chat_template_kwargs={own})."
                raise ValueError(
                    f"the run {run.name!r} was trained with chat_template_kwargs = {own}, {other}"
                )
        results, tokenizer = [], None
        repeated = [row for row in self.rows for _ in range(self.decoding.samples)]
        judged_by = judge_in_words(self.judge, self.rows)
        majority_share = self._majority_share()
        for what, label in zip(subjects, labels, strict=True):
            with open_subject(what, run=self.run, tokenizer=tokenizer) as subject:
                with progress_bar(len(repeated), desc=f"held-out, {label}", unit="answer") as bar:
                    completions = subject.ask(
                        repeated, self.decoding, lambda done, bar=bar: bar.update(done - bar.n)
                    )
                tokenizer, about, format = (
                    tokenizer or subject.tokenizer,
                    subject.about,
                    self.format,
                )
                # A task was made for a tokenizer, a set of `load_holdout` never is.
                if isinstance(self.task, HeldOut) and subject.tokenizer is not None:
                    format = format.for_template(
                        subject.tokenizer, self.decoding.chat_template_kwargs
                    )
                del subject  # or its model would stay in memory while the next one is loaded
            rows = read_answers(repeated, completions, format, self.judge)
            if self.rewards:
                values = score(self.rewards, **as_scored(completions, repeated)).values
                for place, row in enumerate(rows):
                    row |= {f"{REWARD}{name}": scores[place] for name, scores in values.items()}
            results.append(
                Evaluation(
                    label=label,
                    rows=rows,
                    samples=self.decoding.samples,
                    decoding=self.decoding.to_dict(),
                    subject=about,
                    judged_by=judged_by,
                    contamination=found,
                    anywhere_note=anywhere_in_words(self.judge, self.rows, self.format),
                    compares_gold=not isinstance(self.judge, FunctionJudge),
                    model_id=model_id_of(what),
                    remarks=judge_remarks(
                        self.judge, [row.get("judge_score") for row in rows], repeated
                    ),
                    unproven_judge=self.judge.name if self._is_unproven else "",
                    majority_share=majority_share,
                )
            )
        return results

    @property
    def _is_unproven(self) -> bool:
        return isinstance(self.judge, FunctionJudge) and not self.judge.tells_answers

    def _majority_share(self) -> float | None:
        """Return the share of questions on which the most frequent gold answer is correct."""
        frequent = frequent_answer([str(row["answer"]) for row in self.rows])
        if frequent is None or self._is_unproven:
            return None
        texts = [self.format.render("reasoning", frequent)] * len(self.rows)
        scored = None
        if isinstance(self.judge, FunctionJudge):
            how = self._trial_arguments()
            asked = [how["begun"](row) for row in self.rows]
            scored = {"completions": texts, "rows": asked, "tokenizer": how["tokenizer"]}
        is_right = right_by(self.judge, texts, self.rows, self.format, scored=scored)
        return sum(is_right) / len(is_right)


def _tokenizer_in_memory(subjects: Sequence[Located]) -> Any:
    """Return the tokenizer of the first model in memory; None if there is none."""
    return next((what[1] for what in subjects if isinstance(what, tuple)), None)


def _stored_holdout(run: Run) -> list[dict[str, Any]]:
    """Return the held-out rows of a run with all their columns, which rewards may read, if the run kept them."""
    rows = run.holdout
    whole = read_rows(run.start_path / "holdout.jsonl")
    is_same = [row.get("question") for row in whole] == [row["question"] for row in rows]
    return whole if is_same else rows


def _require_no_tools(run: Run) -> None:
    if run.info["task"].get("tools"):
        raise ValueError(
            f"the run {run.name!r} was trained with tools, which no file of it has: gn.compare(run, task)."
        )


def _format_of(run: Run) -> AnswerFormat:
    return AnswerFormat(**run.info["task"]["format"])


def _is_questions(what: Any) -> bool:
    """Whether this is a task, or what one can be made of, and not a model."""
    if isinstance(what, (str, Path)):
        return Path(what).suffix.lower() in _DATA_FILES or what == "gsm8k"
    return isinstance(what, (Task, HeldOut, list)) or hasattr(what, "column_names")
