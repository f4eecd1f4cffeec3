"""Subclass of TRL's `GRPOTrainer`, written for TRL 1.15.

On a GPU `GRPOTrainer` is the class that Unsloth made of TRL's. Without a `CpuEngine`, the
methods for sampling and log-probabilities call TRL's.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Callable, Iterable, Mapping
from itertools import compress
from pathlib import Path
from typing import Any

from grpo_nb.core.problems import warn_user
from grpo_nb.models.adapter import load_adapter, save_adapter
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.rewards.base import reward_name
from grpo_nb.runs.checkpoints import keep_newest, write_checkpoint
from grpo_nb.scoring.scores import state_owner
from grpo_nb.tasks.tools import Tools
from grpo_nb.upstream.trl import (
    fix_order_of_passes,
    micro_batch_count,
    require_trainer_methods,
)

import_unsloth()

import torch
from pydantic import TypeAdapter, ValidationError
from torch.nn.utils import get_total_norm
from trl import GRPOTrainer
from typing_extensions import TypeAliasType

from grpo_nb.cpu.engine import CpuEngine

#: Number of checkpoints that are kept while a run is trained.
KEPT_CHECKPOINTS = 2
#: Time between two saves without `save_steps`.
SECONDS_BETWEEN_SAVES = 180.0
#: Number of first generations that are recorded, so that a run can be replayed elsewhere.
RECORDED_GENERATIONS = 3
#: State of a reward or observer: values that JSON can hold. Keys must be texts, because JSON would
#: turn others into texts.
State = TypeAliasType(
    "State", "dict[str, State] | list[State] | tuple[State, ...] | str | bool | int | float | None"
)
STATE_SCHEMA = TypeAdapter(State)


class RunTrainer(GRPOTrainer):
    """TRL's trainer with resumable checkpoints, the CPU engine and tools with time limits.

    As in transformers, a checkpoint has optimizer, scheduler, random state and counters. This
    trainer also saves and loads:

    - the adapter, because transformers' loader mistakes the frozen `ref` for the trained adapter;
    - TRL's count of micro-batches, and the state of rewards and observers;
    - the completions that are sampled but not yet trained on. Only the checkpoint at an early end
      has any, because regular ones wait until all completions are used (`is_save_due`).

    A resumed run also draws the same order of the data in later passes. Two things are not covered:
    the random state inside vLLM, which cannot be read, and several processes.

    Args:
        *args, **kwargs: Those of `GRPOTrainer`.
        engine: Samples and computes log-probabilities on a CPU; None leaves both to TRL and
            Unsloth. `choose_engine` decides if the engine can sample with these settings.
        task_tools: The tools of the task, or None.

    Attributes:
        state_owners: Objects that keep the state of rewards and observers from step to step, with
            the keys of `state_owners_by_key`. Set it before `train()`.
        record_generation: Called with each of the first generations, to write it
            (`new_run.write_generation`). By default, nothing is written.
    """

    def __init__(
        self,
        *args: Any,
        engine: CpuEngine | None = None,
        task_tools: Tools | None = None,
        **kwargs: Any,
    ) -> None:
        require_trainer_methods(GRPOTrainer)
        super().__init__(*args, **kwargs)
        self.engine = engine
        self.task_tools = task_tools
        self.state_owners = {}
        self.record_generation = lambda *generation: None
        self._checkpoint_to_load = None
        # Step and time of the last attempt to save, or of the resumption.
        self._saved_step = 0
        self._saved_at = 0.0
        # For each completion of the last tool loop, which of its tokens the model wrote.
        self._tool_masks = []

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Train as TRL does, and release the engine's memory afterwards."""
        try:
            return super().train(*args, **kwargs)
        finally:
            if self.engine is not None:
                self.engine.release()

    # 1. Checkpoints

    @property
    def is_between_generations(self) -> bool:
        """True if the next micro-batch samples new completions."""
        return micro_batch_count(self) % self._micro_batches_per_generation == 0

    @property
    def _micro_batches_per_generation(self) -> int:
        # TRL's `steps_per_generation` counts micro-batches.
        return self.args.steps_per_generation * self.num_iterations

    def write_or_load_first_checkpoint(self) -> None:
        """Write the first checkpoint, or load the adapter of the checkpoint that is resumed from.

        Call this before the first step, when everything else is built and loaded, so that nothing
        changes the adapter afterwards.
        """
        if self._checkpoint_to_load is None:
            # A run that dies in its first steps can be resumed.
            self._save_checkpoint(model=None, trial=None)
            return
        load_adapter(self.model, self._checkpoint_to_load)
        self._saved_step = self.state.global_step
        self._saved_at = time.monotonic()

    def is_save_due(self, save_steps: int) -> bool:
        """Return True if a checkpoint should follow the step that was just logged.

        Args:
            save_steps: Steps between two checkpoints; 0 saves by the clock.
        """
        if save_steps:
            is_due = self.state.global_step - self._saved_step >= save_steps
        else:
            is_due = time.monotonic() - self._saved_at >= SECONDS_BETWEEN_SAVES
        return is_due and self.is_between_generations

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step = self.state.global_step
        # Set these even if the save is refused below, so that the next attempt is due one interval
        # later.
        self._saved_step = step
        self._saved_at = time.monotonic()
        trained = [parameter for parameter in self.model.parameters() if parameter.requires_grad]
        # The norm of all tensors is NaN or infinite if one value is.
        if not get_total_norm(trained).isfinite():
            # No training recovers from such values. An earlier checkpoint stays the newest, so the
            # run can be resumed from it.
            warn_user(
                f"The LoRA has values that are not finite at step {step}, so this step is not "
                "saved. Earlier checkpoints are kept."
            )
            return
        root = Path(self.args.output_dir)
        write_checkpoint(root, step, self._fill_checkpoint)
        keep_newest(root, KEPT_CHECKPOINTS)

    def _fill_checkpoint(self, folder: Path) -> None:
        save_adapter(self.model, folder)
        self._save_optimizer_and_scheduler(str(folder))
        self._save_scaler(str(folder))
        self._save_rng_state(str(folder))
        # The rows are in metrics.jsonl.
        state = dataclasses.replace(self.state, log_history=[])
        state.save_to_json(str(folder / "trainer_state.json"))
        (folder / "micro_batches.txt").write_text(str(micro_batch_count(self)))
        (folder / "states.json").write_text(json.dumps(self.states()))
        if not self.is_between_generations:
            torch.save(self._buffered_inputs, folder / "generation.pt")

    def states(self) -> dict[str, Any]:
        """Return the state of each of the `state_owners`.

        Raises:
            TypeError: A state cannot be saved as JSON.
        """
        states = {}
        for key, owner in self.state_owners.items():
            try:
                states[key] = STATE_SCHEMA.validate_python(owner.state_dict(), strict=True)
            except ValidationError as error:
                refused = error.errors()[0]["input"]
                raise TypeError(
                    f"the state_dict() of {reward_name(owner)!r} cannot be saved as JSON, because "
                    f"it holds {refused!r:.80}. Return numbers, texts, lists, and dicts whose keys "
                    "are texts."
                ) from error
        return states

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder = Path(resume_from_checkpoint)
        self._step = int((folder / "micro_batches.txt").read_text())
        rest_of_generation = folder / "generation.pt"
        if rest_of_generation.is_file():
            self._buffered_inputs = torch.load(
                rest_of_generation, map_location=self.args.device, weights_only=True
            )
        lost_states = restore_states(self.state_owners, folder)
        if lost_states:
            warn_user(
                f"The saved state of {lost_states} is lost, because no reward or observer has this "
                "position and name. Resume with the same rewards and observers, in the same order."
            )
        self._checkpoint_to_load = folder

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        fix_order_of_passes(sampler)
        return sampler

    # 2. The CPU engine samples and computes log-probabilities. Rewards, advantages, losses and
    # metrics are TRL's.

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> Any:
        if self.engine is None:
            return super()._generate_single_turn(prompt_ids, *args, **kwargs)
        # The second value would be log-probabilities of the sampler, which only vLLM reports.
        return self.engine.sample(prompt_ids, self.generation_config), None

    def _get_per_token_logps_and_entropies(
        self,
        model: Any,
        input_ids: Any,
        attention_mask: Any,
        logits_to_keep: Any,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        batch = (model, input_ids, attention_mask, logits_to_keep)
        if self.engine is None:
            return super()._get_per_token_logps_and_entropies(*batch, *args, **kwargs)
        autocast = self.accelerator.autocast()
        log_probs, entropies = self.engine.log_probs(*batch, autocast=autocast)
        return log_probs, entropies, None  # no auxiliary loss, which only a mixture of experts has

    # 3. Tools and rewards. Calls of tools are limited in time, and rewards get the tokens that the
    # model wrote itself.

    def _tool_call_loop(self, *args: Any) -> Any:
        if self.task_tools is not None:
            # trl 1.15 makes these tables anew for each batch (_generate_and_score_completions).
            for table in self._sync_tool_dicts:
                for name, tool in table.items():
                    table[name] = self.task_tools.as_called_by_model(tool)
        result = super()._tool_call_loop(*args)
        self._tool_masks = result[0]
        return result

    def _calculate_rewards(
        self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any
    ) -> Any:
        # Recorded here, because this is the first method of TRL that has both the data rows and the
        # token ids of a generation.
        generations_done = micro_batch_count(self) // self._micro_batches_per_generation
        if generations_done < RECORDED_GENERATIONS:
            self.record_generation(self.state.global_step, inputs, completion_ids_list)
        if self.task_tools is not None:
            # The mask is 0 for the tokens of tools.
            masks = zip(completion_ids_list, self._tool_masks, strict=True)
            completion_ids_list = [list(compress(ids, mask)) for ids, mask in masks]
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)


def state_owners_by_key(functions: Iterable[Callable]) -> dict[str, Any]:
    """Return the objects behind rewards or observers that have `state_dict` and `load_state_dict`.

    Keys are `<position> <name>`, because two functions can share a name. The position counts only
    the returned objects.
    """
    owners = {}
    for function in functions:
        owner = state_owner(function)
        has_state = hasattr(owner, "state_dict") and hasattr(owner, "load_state_dict")
        # A network, such as a reward model, is frozen. Its weights are no state of the training.
        if has_state and not isinstance(owner, torch.nn.Module):
            owners[f"{len(owners)} {reward_name(function)}"] = owner
    return owners


def restore_states(owners: Mapping[str, Any], checkpoint: Path) -> list[str]:
    """Load saved states into `owners`, and return the keys that have no owner.

    Args:
        owners: The result of `state_owners_by_key`.
        checkpoint: Folder of the checkpoint.
    """
    states = json.loads((checkpoint / "states.json").read_text("utf-8"))
    for key in owners.keys() & states.keys():
        owners[key].load_state_dict(states[key])
    return sorted(states.keys() - owners.keys())
