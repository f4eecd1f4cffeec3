"""Debug rewards, prompts and sampling on the first step of a training.

A dry run uses the trainer's own order of data, sampler, reward calls and advantages, and stops
before a loss is computed. So its completions are those of the first step of a training with the
same settings. (`gn.baseline` answers another question: whether randomly chosen prompts give a
learning signal.)
"""

import contextlib
from collections.abc import Sequence
from typing import Any

from grpo_nb.config.settings import Settings
from grpo_nb.models.restoring import restoring_modes, restoring_random_state
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.runs.groups import StepGroups, completions_table
from grpo_nb.scoring.scores import restoring_reward_states
from grpo_nb.tasks.task import Task
from grpo_nb.upstream.trl import last_generation

import_unsloth()

import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from grpo_nb.training.errors import explaining_machine_faults
from grpo_nb.training.kl_reference import deleting_reference_adapter
from grpo_nb.training.prepare import build_trainer, check_training, try_rewards
from grpo_nb.training.trainer import RunTrainer


def dry_run(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rewards: Sequence[RewardFunction],
    settings: Settings,
) -> StepGroups:
    """Generate and score the first step of a training, and leave everything as it was.

    There is no loss, no gradient and no optimizer step. The model's tensors, the random state and
    the folders of runs do not change. Rewards get the `trainer_state` of the training. If a reward
    has `state_dict` and `load_state_dict`, its state is restored afterwards. The arguments are
    those of `train`.

    Returns:
        The groups with scores, totals and advantages, as `run.step(1)` of a training with the same
        arguments has them.

    Raises:
        ValueError: Rewards, data or settings cannot work.
        RewardError: A reward failed.
        EnvironmentProblem: The memory is full, or the GPU failed.

    >>> trial = gn.dry_run(model, tokenizer, task, rewards, settings)
    >>> bool(trial.groups[0].table["total"].notna().all())
    True
    """
    # A reward or an environment may draw random numbers when it is tried, so the checks are within
    # this block too.
    with restoring_random_state():
        prepared = check_training(model, tokenizer, task, rewards, settings)
        try_rewards(prepared)
        with (
            restoring_modes(model),
            restoring_reward_states(prepared.rewards),
            deleting_reference_adapter(model),
            explaining_machine_faults(prepared.settings_as_run),
        ):
            trainer = build_trainer(prepared, _DryRunTrainer)
            # No experiment tracker records a dry run.
            trainer.callback_handler.callbacks.clear()
            # Only a loss would need the log-probabilities of the reference model, so skip them.
            trainer.beta = 0.0
            with contextlib.suppress(_FirstStepScored):
                trainer.train()
    table = completions_table(
        last_generation(trainer),
        step=1,
        group_size=prepared.settings.num_generations,
        weights=prepared.weights,
        has_tools=bool(trainer.tools),
    )
    return StepGroups.from_table("A dry run", table, prepared.weights)


class _FirstStepScored(Exception):
    """Raised when the completions of the first step are sampled and scored."""


class _DryRunTrainer(RunTrainer):
    """Trainer whose first training step ends where the loss would be computed."""

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        # transformers' own training step begins with this too.
        model.train()
        # `_prepare_inputs` samples and scores. Without gradients it takes less memory.
        with torch.no_grad():
            self._prepare_inputs(inputs)
        raise _FirstStepScored
