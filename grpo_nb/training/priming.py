"""SFT priming: a few supervised steps on example turns before GRPO, on the same adapter.

For a model that never, or hardly ever, answers in the format, so that no group differs and GRPO has nothing to learn from. It
shows the model what an answer looks like; a few steps do. Not covered: teaching a task by supervised training, which would need
an evaluation of its own and takes away from the variety of answers that GRPO chooses from.
"""

import random
import tempfile
from collections.abc import Callable, Mapping
from typing import Any

from grpo_nb.checks.layouts import completion
from grpo_nb.config.number_types import number_type_of
from grpo_nb.config.settings import Settings
from grpo_nb.core.randomness import kept_random_state
from grpo_nb.evaluation.subjects import Decoding, answers_of_model
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.import_unsloth import import_unsloth, tell_unsloth
from grpo_nb.models.load import rest_engine
from grpo_nb.models.match import require_same_settings
from grpo_nb.models.modes import kept_modes
from grpo_nb.tasks.task import Task

import_unsloth()

from datasets import Dataset
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from trl import SFTConfig, SFTTrainer

from grpo_nb.tasks.chat_template import fit_to_template
from grpo_nb.training.prepare import kept_precision, silence

Row = Mapping[str, Any]
_HELD_OUT = 32


def prime(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    settings: Settings,
    *,
    reasoning: Callable[[Row], str],
    steps: int = 20,
    examples: int = 32,
    learning_rate: float = 2e-4,
) -> dict[str, float]:
    """Show the model some right answers in the format: supervised steps on its LoRA, before GRPO.

    TRL's `SFTTrainer` on prompts and completions as GRPO has them: the same chat template, the answer written by
    `task.format`, the end token, and the loss on the completion only. DeepSeek-R1 calls this its cold start
    (arXiv:2501.12948, section 2.3.1). A training from here measures its KL against the primed model.

    Args:
        model: From `load_model`, with a LoRA, which is trained in place.
        tokenizer: From `load_model`.
        task: Its training rows are shown, with their gold answers; its held-out rows are only measured on.
        settings: Sampling and lengths of the training to come; its `seed` chooses the rows.
        reasoning: Writes the reasoning part of the example turn of a row: the model learns what it is shown, so nothing is made
            up here. `lambda row: row["why"]` takes a column, `lambda row: ""` teaches answers without any.
        steps: Optimizer steps of eight examples. Twenty show a format (docs/evidence/runs.md has the numbers), ten did not;
            many more narrow down what GRPO can choose from.
        examples: How many training rows; fewer if there are not as many.
        learning_rate: Higher than that of GRPO: there are only a few steps, and each has a right answer.

    Returns:
        On up to 32 held-out questions, the same before and after: `loss_before` and `loss_after` of their example turns, in
        nats per token of the completion, `format_before` and `format_after`, the share that is answered in the format.

    Raises:
        ValueError: The task has no held-out questions to measure on.

    Example, which takes about two minutes on a CPU and needs the model:

        primed = gn.training.prime(model, tokenizer, task, settings, reasoning=lambda row: row["why"])
        run = gn.train(model, tokenizer, task, rewards, settings)
    """
    require_same_settings(model, tokenizer, settings)
    settings = task.rendered_by(settings)
    if task.tools is not None:
        raise ValueError(
            "priming shows answers, and no calls of tools: show an episode, load_task(..., example=...)."
        )
    if not len(task.holdout):
        raise ValueError(
            "the task has no held-out questions to measure on: gn.load_task(..., holdout=0.2)."
        )
    chosen = random.Random(settings.seed).sample(
        range(len(task.train)), min(examples, len(task.train))
    )
    shown = [task.train[i] for i in sorted(chosen)]
    asked = [task.holdout[i] for i in range(min(_HELD_OUT, len(task.holdout)))]
    turns, measured = (
        Dataset.from_list([_tokens(tokenizer, task, row, reasoning(row)) for row in rows])
        for rows in (shown, asked)
    )
    gpu = find_gpu()
    number_type = number_type_of(model, settings, gpu).name
    # Sampled as in training, with the same random numbers before and after.
    drawn = Decoding(
        max_completion_length=settings.max_completion_length, temperature=settings.temperature, sampling=settings.sampling,
        seed=settings.seed, chat_template_kwargs=task.chat_template_kwargs,
    )  # fmt: skip

    def format_share() -> float:
        answers = answers_of_model(model, tokenizer, asked, drawn)
        return sum(task.format.is_exact(answer.text) for answer in answers) / len(answers)

    found = {"format_before": format_share()}
    tell_unsloth(number_type)
    with tempfile.TemporaryDirectory() as folder, kept_random_state(), kept_modes(model):
        arguments = SFTConfig(
            output_dir=folder,
            max_steps=steps,
            per_device_train_batch_size=8,
            learning_rate=learning_rate,
            warmup_steps=min(2, steps - 1),
            optim=settings.optim,
            seed=settings.seed,
            bf16=number_type == "bfloat16",
            fp16=number_type == "float16",
            gradient_checkpointing=gpu is not None,
            max_length=None,  # a turn cut short would teach to stop in the middle
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
        )
        with kept_precision(model):
            trainer = SFTTrainer(
                model,
                arguments,
                train_dataset=turns,
                eval_dataset=measured,
                processing_class=tokenizer,
            )
        silence(trainer)
        rest_engine(model)
        found["loss_before"] = trainer.evaluate()["eval_loss"]
        trainer.train()
        found["loss_after"] = trainer.evaluate()["eval_loss"]
    return found | {"format_after": format_share()}


def _tokens(tokenizer: Any, task: Task, row: Row, reasoning: str) -> dict[str, list[int]]:
    """Prompt and completion as GRPO samples them, labels on the completion and its end token only."""
    (turns,) = fit_to_template([row["prompt"]], tokenizer, task.chat_template_kwargs)
    prompt = tokenizer.apply_chat_template(
        turns, add_generation_prompt=True, return_dict=True, **task.chat_template_kwargs
    )["input_ids"]
    text = completion(task.format, reasoning, row["answer"])
    answer = [*tokenizer(text, add_special_tokens=False)["input_ids"], tokenizer.eos_token_id]
    return {
        "input_ids": [*prompt, *answer],
        "labels": [-100] * len(prompt) + answer,
    }  # no loss counts -100
