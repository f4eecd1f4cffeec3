"""SFT priming: a few supervised steps on example turns before GRPO, on the same adapter.

For a model that never, or hardly ever, answers in the format, so that no group differs and GRPO has nothing to learn from. It
shows the model what an answer looks like; a few steps do. Not covered: teaching a task by supervised training, which would need
an evaluation of its own and takes away from the variety of answers that GRPO chooses from.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from grpo_nb.checks.layouts import completion
from grpo_nb.core.randomness import kept_modes, kept_random_state
from grpo_nb.core.tables import Part, Shown, Table, as_written, bold
from grpo_nb.core.words import in_line, require_number
from grpo_nb.evaluation.subjects import Decoding, answers_of_model
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.load import rest_engine
from grpo_nb.models.unsloth import import_unsloth, tell_unsloth
from grpo_nb.settings.number_types import number_type_of
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.task import Task

import_unsloth()

from datasets import Dataset
from trl import SFTConfig, SFTTrainer

from grpo_nb.training.arguments import require_parts
from grpo_nb.training.trainer import kept_precision, silence

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

Row = Mapping[str, Any]
Reasoning = str | Callable[[Row], str]
_IGNORED = -100  # the label that no loss counts


@dataclass(frozen=True, kw_only=True, repr=False)
class Priming(Shown):
    """What some supervised steps did, measured on held-out questions before and after. Made by `prime`."""

    steps: int
    examples: int
    """Different training rows that were shown."""
    batch_size: int
    learning_rate: float
    losses: tuple[float, ...]
    """Mean loss of each step, in nats per token of the completion."""
    held_out: int
    """Held-out questions everything below was measured on, the same before and after."""
    loss_before: float
    loss_after: float
    """Of their example turns, in nats per token of the completion."""
    format_before: int
    format_after: int
    """How many of them were answered in the format, one completion each, sampled as training samples."""
    sample_before: str
    sample_after: str
    """The completion of the first of them."""
    seconds: float

    @property
    def sentence(self) -> str:
        """The result in words."""
        text = (
            f"{self.steps} supervised steps on {self.examples} example turns: of {self.held_out} held-out questions "
            f"{self.format_before} were answered in the format before, {self.format_after} after; loss of their example "
            f"turns {self.loss_before:.3f} before, {self.loss_after:.3f} after."
        )
        if self.format_before >= 0.5 * self.held_out:
            text += " The model knew the format before: GRPO would have had its signal without priming."
        elif self.format_after < 0.1 * self.held_out:
            text += " It still hardly ever uses the format: more steps, or a higher learning_rate."
        return text

    @property
    def reference(self) -> str:
        """What the KL of a training from here is measured against."""
        return (
            "A training from here measures its KL against this primed model (it starts at 0), not against the base model; "
            'gn.train(..., reference="base") takes the base model. gn.compare always compares with the base model, so '
            "its difference holds what priming did too."
        )

    def _parts(self) -> Iterable[Part]:
        yield bold(self.sentence)
        yield self.reference
        yield "The first held-out question, answered:"
        yield Table(
            [("before", as_written(self.sample_before[:1000])), ("after", as_written(self.sample_after[:1000]))]
        )


def prime(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    settings: Settings,
    *,
    steps: int = 20,
    examples: int = 32,
    reasoning: Reasoning | None = None,
    batch_size: int = 8,
    learning_rate: float = 2e-4,
    held_out: int = 32,
) -> Priming:
    """Show the model some right answers in the format: supervised steps on its LoRA, before GRPO.

    TRL's `SFTTrainer` on prompts and completions as GRPO has them: the same chat template, the answer written by
    `task.format`, the end token, and the loss on the completion only. DeepSeek-R1 calls this its cold start
    (arXiv:2501.12948, section 2.3.1). What it taught is measured on held-out questions, which are never shown to it.

    Args:
        model: From `load_model`, with a LoRA, which is trained in place.
        tokenizer: From `load_model`.
        task: Its training rows are shown, with their gold answers; its held-out rows are only measured on.
        settings: Sampling and lengths of the training to come; its `seed` chooses the rows.
        steps: Optimizer steps. Twenty show a format (docs/evidence/runs.md has the numbers), ten did not; many more narrow down
            what GRPO can choose from.
        examples: How many training rows; fewer if there are not as many.
        reasoning: The reasoning part of each example turn: the name of a column, or a function of the row. If not given, the
            column `reasoning`; for the kit's `arithmetic` the sum itself. `lambda row: ""` teaches answers without any.
        batch_size: Examples per step.
        learning_rate: Higher than that of GRPO: there are only a few steps, and each has a right answer.
        held_out: How many held-out rows to measure on; fewer if there are not as many.

    Raises:
        ValueError: Nothing that the reasoning could come from, or example turns longer than the settings allow.

    Example, which takes about two minutes on a CPU and needs the model:

        primed = gn.training.prime(model, tokenizer, task, settings)
        run = gn.train(model, tokenizer, task, rewards, settings)
    """
    require_parts(model, tokenizer, task, settings)
    for name, value in {"steps": steps, "examples": examples, "batch_size": batch_size, "held_out": held_out}.items():
        require_number(name, value, 1)
    require_number("learning_rate", learning_rate, 1e-12, 1.0, is_whole=False)
    if not len(task.holdout):
        raise ValueError("the task has no held-out questions to measure on: gn.load_task(..., holdout=0.2).")
    drawn = random.Random(settings.seed)
    shown = [task.train[i] for i in sorted(drawn.sample(range(len(task.train)), min(examples, len(task.train))))]
    asked = [task.holdout[i] for i in range(min(held_out, len(task.holdout)))]
    write = _writer(task, reasoning)
    turns = [_tokens(tokenizer, task, row, write(row), settings) for row in shown]
    measured = [_tokens(tokenizer, task, row, write(row), settings) for row in asked]

    started = time.perf_counter()
    # Sampled as in training, with the same random numbers before and after.
    drawn = Decoding(
        max_completion_length=settings.max_completion_length, temperature=settings.temperature, sampling=settings.sampling,
        seed=settings.seed, chat_template_kwargs=task.chat_template_kwargs,
    )  # fmt: skip
    prompts = [row["prompt"] for row in asked]
    before = [c.text for c in answers_of_model(model, tokenizer, prompts, drawn)]
    gpu = find_gpu()
    chosen = number_type_of(model, settings, gpu).name
    tell_unsloth(chosen)
    with tempfile.TemporaryDirectory() as folder, kept_random_state(), kept_modes(model):
        arguments = SFTConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=batch_size,
            per_device_eval_batch_size=batch_size,
            learning_rate=learning_rate,
            lr_scheduler_type="linear",
            warmup_steps=min(2, steps - 1),
            max_grad_norm=1.0,
            optim=settings.optim,
            seed=settings.seed,
            bf16=chosen == "bfloat16",
            fp16=chosen == "float16",
            gradient_checkpointing=gpu is not None,
            max_length=None,  # lengths are checked by _tokens; a turn cut short would teach to stop in the middle
            logging_steps=1,
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        with kept_precision(model):
            trainer = SFTTrainer(
                model=model,
                processing_class=tokenizer,
                args=arguments,
                train_dataset=Dataset.from_list(turns),
                eval_dataset=Dataset.from_list(measured),
            )
        silence(trainer)
        rest_engine(model)
        loss_before = trainer.evaluate()["eval_loss"]
        trainer.train()
        loss_after = trainer.evaluate()["eval_loss"]
    after = [c.text for c in answers_of_model(model, tokenizer, prompts, drawn)]
    return Priming(
        steps=steps,
        examples=len(shown),
        batch_size=batch_size,
        learning_rate=learning_rate,
        losses=tuple(float(row["loss"]) for row in trainer.state.log_history if "loss" in row),
        held_out=len(asked),
        loss_before=float(loss_before),
        loss_after=float(loss_after),
        format_before=sum(map(task.format.is_exact, before)),
        format_after=sum(map(task.format.is_exact, after)),
        sample_before=before[0],
        sample_after=after[0],
        seconds=time.perf_counter() - started,
    )


def _writer(task: Task, reasoning: Reasoning | None) -> Callable[[Row], str]:
    """The function that writes the reasoning part of a row's example turn."""
    if callable(reasoning):

        def written(row: Row) -> str:
            try:
                if isinstance(text := reasoning(row), str):
                    return text
                raise TypeError(f"it returned {in_line(text)}, which is no text")
            except Exception as error:
                raise ValueError(
                    f"reasoning failed on the row of {in_line(row['question'])} ({type(error).__name__}: {error}): it must be "
                    "a function of one row, such as lambda row: row['solution']."
                ) from error

        return written
    columns = task.train.column_names
    if reasoning is None and "reasoning" not in columns and task.name == "arithmetic":
        return lambda row: f"{row['question'].removeprefix('What is ').removesuffix('?')} = {row['answer']}"
    column = reasoning or "reasoning"
    if column not in columns:
        raise ValueError(
            f"the data has no column {column!r} for the reasoning of the example turns; it has {columns}. Write "
            "reasoning='<one of them>', reasoning=lambda row: ..., or reasoning=lambda row: '' for answers without any: "
            "the model learns what it is shown, so nothing is made up here."
        )
    return lambda row: str(row[column])


def _tokens(tokenizer: Any, task: Task, row: Row, reasoning: str, settings: Settings) -> dict[str, list[int]]:
    """Prompt and completion as GRPO samples them, labels on the completion and its end token only."""
    prompt = tokenizer.apply_chat_template(
        row["prompt"], add_generation_prompt=True, return_dict=True, **task.chat_template_kwargs
    )["input_ids"]
    text = completion(task.format, reasoning, row["answer"])
    answer = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    if len(answer) > settings.max_completion_length:
        raise ValueError(
            f"the example turn of {row['question']!r:.80} has {len(answer)} tokens, more than max_completion_length = "
            f"{settings.max_completion_length}: GRPO would cut every answer of that length. Write "
            f"max_completion_length={len(answer)} or more, or a shorter reasoning."
        )
    return {"input_ids": [*prompt, *answer], "labels": [_IGNORED] * len(prompt) + answer}
