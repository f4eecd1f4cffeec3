"""A trainer that can be killed and goes on as if nothing had happened: what TRL and transformers leave out of a checkpoint.

transformers restores optimizer, scheduler and its own counters. Missing there, or wrong, and done here:
the adapter (its loader takes the frozen `ref` adapter for the trained one), the completions of a generation that serves
several steps, TRL's count of micro-batches, the order of the data in a second and later pass, metrics not yet logged, what
rewards and observers remember. Not covered: the random state inside vLLM, which cannot be read, and several processes.
"""

from __future__ import annotations

import copy
import json
import time
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_nb.core.randomness import random_state, restore_random_state
from grpo_nb.models.load import load_adapter, save_adapter
from grpo_nb.rewards.base import reward_name
from grpo_nb.runs.checkpoints import keep_newest, newest_checkpoint, write_checkpoint
from grpo_nb.runs.run import Run
from grpo_nb.training.recorder import Recorder

_KEEP = 2
# Without `save_steps`: at most this much work is lost, and at most a fiftieth of the time goes into saving.
_SECONDS_BETWEEN, _TIMES_SAVING = 180.0, 50
# Plain numbers of transformers and TRL that a step starts from: counters, and the adaptive entropy bonus, where there is one.
_NUMBERS = (
    "_step", "_current_train_step_time", "_total_loss_scalar", "_globalstep_last_logged", "entropy_coef",
    "_last_world_entropy",
)  # fmt: skip


class ResumableTrainer:
    """Mixed into a `GRPOTrainer`, in front of it. Set the attributes before `train()`.

    At the end of each optimizer step it notes everything that the next step starts from. A checkpoint is that note with the
    weights and the optimizer, which change only inside of a step's update: so it can be saved at any moment, also when an
    interrupt or an error ended the next step half-way.
    """

    recorder: Recorder
    note: dict[str, Any] | None = None
    """Of the last complete step, once there is one: without it there is nothing to save."""
    resumed_from: Path | None = None
    """The checkpoint to go on from, of `go_on_from`."""
    reference: Path | None = None
    """Folder of the frozen adapter that KL is measured to; None if that is the base model."""
    rewards: Sequence[Callable[..., Any]] = ()
    keep: Callable[[int, int, Sequence[Mapping[str, Any]], Sequence[Sequence[int]]], None] | None = None
    """Told of each generation what `grpo_nb.training.beginning.keep_generation` writes."""

    _saved_step = -1
    _is_save_asked = False
    _saved_at = _saving_took = 0.0

    # -- going on ---------------------------------------------------------------------------------------------------

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        """Load the adapter, and the frozen one that KL is measured to, in place of transformers' loader."""
        model = self.accelerator.unwrap_model(self.model)
        load_adapter(model, resume_from_checkpoint)
        if "ref" in model.peft_config:  # there only if KL is measured to it
            load_adapter(model, self.reference, "ref")

    def go_on_from(self, checkpoint: Path) -> None:
        """Have the next `train` go on from this checkpoint, which is also to be named to it."""
        self.resumed_from = checkpoint
        self._found = torch.load(checkpoint / "loop.pt", map_location=self.args.device, weights_only=True)
        self.recorder.started -= self._found["seconds"]

    def restore_only(self) -> None:
        """Load the checkpoint of a training that has no step left."""
        self._load_from_checkpoint(str(self.resumed_from))
        self._take_up_note()

    def _take_up_note(self) -> None:
        require_same_adapter(self.accelerator.unwrap_model(self.model), self.resumed_from)
        self.note, self._found = self._found, None
        self._saved_step = self.note["step"]

    def _load_rng_state(self, checkpoint: str | None) -> None:
        # Generators live on the CPU, those of a GPU too.
        state = torch.load(self.resumed_from / "random.pt", map_location="cpu", weights_only=True)
        restore_random_state(state)

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        if getattr(sampler, "generator", None) is not None:
            # TRL's sampler draws a new order at each pass, but a resumed one would begin with the order of the first.
            sampler.set_epoch = partial(_order_of_pass, sampler)
        return sampler

    def begin(self) -> None:
        """Called when everything is built and loaded, before the first step: take up the note, or make the first one."""
        self._saved_at = time.monotonic()
        if self.resumed_from is None:
            self._take_note()
            self.save()
            return
        # The adapter is looked at after all that transformers and accelerate did since it was loaded.
        self._take_up_note()
        note = self.note
        vars(self).update(note["numbers"])
        self._metrics["train"].clear()
        for key, values in note["metrics"].items():
            self._metrics["train"][key] = list(values)
        self._tr_loss += note["loss"]
        if note["generation"] is not None:
            self._buffered_inputs = note["generation"]
        self.state.log_history = [dict(row) for row in self.recorder.rows]
        remembered = json.loads((self.resumed_from / "observers.json").read_text())
        load_states(self.recorder.named_observers, remembered["observers"])
        load_states(remembering(self.rewards), remembered["rewards"])

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        if self.keep is not None and self.model.training:
            self.keep(self._step, self.state.global_step, inputs, completion_ids_list)
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)

    # -- after each step --------------------------------------------------------------------------------------------

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        # transformers asks before the note of the step is taken.
        self._is_save_asked = True

    def _maybe_log_save_evaluate(self, *args: Any, **kwargs: Any) -> None:
        super()._maybe_log_save_evaluate(*args, **kwargs)
        if self.state.global_step == self.note["step"]:  # the call at the end of a pass through the data
            return
        self._take_note()
        try:
            self.recorder.interrupts.release()
        finally:  # an error of this step is raised out of the interrupt, so that neither is lost
            self.recorder.raise_pending()
        if self._is_save_due():
            self.save()

    def _is_save_due(self) -> bool:
        if self._is_save_asked:
            self._is_save_asked = False
            return True
        if steps := self.recorder.settings.save_steps:
            return self.state.global_step % steps == 0
        waited = time.monotonic() - self._saved_at
        return waited >= max(_SECONDS_BETWEEN, _TIMES_SAVING * self._saving_took)

    def _take_note(self) -> None:
        is_within = self._step % (self.args.steps_per_generation * self.num_iterations) != 0
        self.note = {
            "step": self.state.global_step,
            "numbers": {name: vars(self)[name] for name in _NUMBERS if name in vars(self)},
            "tokens": self.state.num_input_tokens_seen,
            "seconds": self.recorder.seconds,
            # As floats: numpy's, which rewards may log, are not read back from a file of weights only.
            "metrics": {
                key: [None if value is None else float(value) for value in values]
                for key, values in self._metrics["train"].items()
            },
            "loss": float(self._tr_loss),
            "generation": self._buffered_inputs if is_within else None,
            "random": random_state(),
            "reward_states": states_of(remembering(self.rewards)),
        }

    # -- saving -----------------------------------------------------------------------------------------------------

    def save(self) -> None:
        """Save the checkpoint of the last complete step, if it is not there yet, and delete old ones.

        Raises:
            EnvironmentProblem: The disk is full.
        """
        step, folder = self.note["step"], Path(self.args.output_dir)
        if self._saved_step == step:
            return
        start = time.monotonic()
        write_checkpoint(folder, step, self._write_files)
        self._saved_step = step
        keep_newest(folder, self.args.save_total_limit or _KEEP, self.recorder.kept_step)
        self._saved_at = time.monotonic()
        self._saving_took = self._saved_at - start

    def _write_files(self, folder: Path) -> None:
        note = dict(self.note)
        model = self.accelerator.unwrap_model(self.model)
        save_adapter(model, folder)
        self._save_optimizer_and_scheduler(str(folder))
        self._save_scaler(str(folder))
        state = copy.copy(self.state)
        # The rows are in a file of their own, which this list would repeat.
        state.log_history, state.num_input_tokens_seen = [], note["tokens"]
        state.save_to_json(str(folder / "trainer_state.json"))
        remembered = {"observers": states_of(self.recorder.named_observers), "rewards": note.pop("reward_states")}
        (folder / "observers.json").write_text(json.dumps(remembered))
        torch.save(note.pop("random"), folder / "random.pt")
        torch.save(note, folder / "loop.pt")
        self.recorder.copy_records(folder)


def _order_of_pass(sampler: Any, number: int) -> None:
    """Set a sampler of TRL to draw the order of the pass `number` at its next iteration."""
    sampler.generator.manual_seed(sampler.seed)
    for _ in range(number):
        torch.randperm(sampler.num_samples, generator=sampler.generator)


def require_same_adapter(model: Any, folder: Path) -> None:
    """Raise unless the adapter of the model is, bit by bit, the one in a folder.

    Raises:
        RuntimeError: It is not, and what would be trained is something else.
    """
    from peft import get_peft_model_state_dict
    from safetensors.torch import load_file

    saved = load_file(str(folder / "adapter_model.safetensors"))
    held = get_peft_model_state_dict(model, adapter_name="default")
    wrong = [name for name, tensor in saved.items() if not _is_same(held.get(name), tensor)]
    if wrong or held.keys() != saved.keys():
        raise RuntimeError(
            f"the adapter was not restored from {str(folder)!r}: {len(wrong)} of {len(saved)} tensors differ, for example "
            f"{(wrong or sorted(held.keys() ^ saved.keys()))[0]!r}. Training on would silently start over, so it does not "
            "start. Load the model anew with gn.load_model(settings) and try again."
        )


def _is_same(held: torch.Tensor | None, saved: torch.Tensor) -> bool:
    if held is None or held.dtype != saved.dtype or held.shape != saved.shape:
        return False
    # As bytes: NaN is not equal to itself, and a run that went wrong must be resumable to be looked at.
    return torch.equal(held.detach().cpu().contiguous().view(torch.uint8), saved.contiguous().view(torch.uint8))


def remembering(rewards: Iterable[Callable[..., Any]]) -> dict[str, Any]:
    """The rewards that remember something from step to step, by name: those with a `state_dict`."""
    return {
        reward_name(reward): reward
        for reward in rewards
        if hasattr(reward, "state_dict") and hasattr(reward, "load_state_dict")
    }


def states_of(holders: Mapping[str, Any]) -> dict[str, Any]:
    """What each of these remembers, fit for JSON."""
    return {name: holder.state_dict() for name, holder in holders.items()}


def load_states(holders: Mapping[str, Any], states: Mapping[str, Any]) -> None:
    """Hand each of these what it remembered; one that was not there before starts anew."""
    for name in holders.keys() & states.keys():
        holders[name].load_state_dict(states[name])


def take_up_memory(rewards: Iterable[Callable[..., Any]], run: Run) -> None:
    """Give the rewards of a finished run what they knew at its end, which a new process does not know."""
    remembers = remembering(rewards)
    if not remembers:
        return
    checkpoint = newest_checkpoint(run.path / "checkpoints")
    if checkpoint.path is None:
        warnings.warn(
            f"What the rewards of {run.name!r} have learnt is not known: its last checkpoint is gone or damaged. They go on "
            "with what they hold now.",
            stacklevel=4,
        )
        return
    load_states(remembers, json.loads((checkpoint.path / "observers.json").read_text())["rewards"])
