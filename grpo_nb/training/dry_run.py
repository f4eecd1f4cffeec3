"""A dry run: generate and score as training would, and update nothing.

For debugging rewards, prompts and sampling before a single step is paid for. The trainer's own path does it, with its data
order, sampler, reward calls and advantages, and is left before anything computes a loss. So it is, completion by completion,
the first step of a training with the same settings. `baseline` asks another question, whether there is a signal on prompts
drawn at random.
"""

import contextlib
import copy
import tempfile
from collections.abc import Callable, Sequence
from typing import Any

from grpo_nb.config.settings import Settings, refuse_keywords
from grpo_nb.core.argument_types import require
from grpo_nb.core.randomness import kept_random_state
from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.models.modes import kept_modes
from grpo_nb.rewards.base import reward_list
from grpo_nb.runs.groups import StepGroups
from grpo_nb.tasks.task import Task
from grpo_nb.tasks.tools import refusing
from grpo_nb.upstream.trl import last_generation

import_unsloth()

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_nb.training.callback import completions_table
from grpo_nb.training.prepare import CALL, build_trainer, prepare, reference_adapter
from grpo_nb.training.trainer import KitTrainer, stateful_holders


def dry_run(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rewards: Sequence[Callable[..., Any]],
    settings: Settings,
    **unknown: Any,
) -> StepGroups:
    """Generate and score the first step of a training, and leave everything as it was.

    No loss, no gradient, no optimizer: the model's tensors, the random state and the run folders stay as they are. Rewards see
    the `trainer_state` of the training. What they remember is put back afterwards, if it is theirs to tell (`state_dict` and
    `load_state_dict`). Arguments are those of `train`, and so is what it refuses.

    Returns:
        The groups with scores, totals and advantages, as `run.step(1)` will have them.

    >>> trial = gn.dry_run(model, tokenizer, task, rewards, settings)
    >>> bool(trial.groups[0].table["total"].notna().all())
    True
    """
    refuse_keywords(dry_run, unknown)
    require(
        CALL.format("dry_run"),
        model=model,
        tokenizer=tokenizer,
        task=task,
        rewards=rewards,
        settings=settings,
    )
    memory = stateful_holders(reward_list(rewards))
    # Copied, for a state_dict may hand out the very lists that the reward adds to; a reward itself may hold a lock or a model.
    known = {name: copy.deepcopy(reward.state_dict()) for name, reward in memory.items()}
    try:
        with (
            kept_random_state(),
            kept_modes(model),
            reference_adapter(model),
            tempfile.TemporaryDirectory() as nowhere,
        ):
            # What makes a run visible elsewhere has no place in a dry one.
            quiet = settings.replace(extra={**settings.extra, "report_to": "none"})
            prepared = prepare(model, tokenizer, task, rewards, quiet)
            trainer = build_trainer(prepared, _DryTrainer)
            trainer.beta = 0.0  # only a loss would look at the reference
            trainer.args.output_dir = nowhere
            with contextlib.suppress(_Sampled), refusing():
                trainer.train()
    finally:
        for name, reward in memory.items():
            reward.load_state_dict(known[name])
    table = completions_table(
        last_generation(trainer), 1, settings.num_generations, prepared.weights, bool(trainer.tools)
    )
    return StepGroups.of("A dry run", table, prepared.weights)


class _Sampled(Exception):
    """The first completions are there."""


class _DryTrainer(KitTrainer):
    """Trainer whose first training step ends where its loss would begin."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        model.train()
        with torch.no_grad():
            self._prepare_inputs(inputs)
        raise _Sampled
