"""A trainer that can be killed and goes on with the same numbers: what TRL and transformers leave out of a checkpoint.

transformers keeps optimizer, scheduler, random state and its counters, and is used for that. Missing there, or wrong, and
done here: the adapter (its loader takes the frozen `ref` adapter for the trained one), TRL's count of micro-batches, the order
of the data in later passes, what rewards and observers remember. One rule makes more unnecessary: a checkpoint is written right
after a row was logged, between two generations, so that nothing is half done in it; only one that ends a training within a
generation keeps the rest of that. Not covered: the random state inside vLLM, which cannot be read, and several processes.
"""

import copy
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from grpo_nb.models.load import load_adapter, save_adapter
from grpo_nb.rewards.base import reward_name
from grpo_nb.runs.checkpoints import keep_newest, sync, write_checkpoint

_KEEP = 2
# Without `save_steps`: at most this much work is lost, and at most a fiftieth of the time goes into saving.
_SECONDS_BETWEEN, _TIMES_SAVING = 180.0, 50
# The number of TRL that a step starts from: its micro-batches (trl/trainer/grpo_trainer.py, `self._step`, TRL 1.15). Without
# it a resumed run would take up the wrong generation, so saving raises if TRL has renamed it.
_STEP = "_step"
# What the adaptive entropy bonus has too, where there is one.
_ENTROPY_NUMBERS = ("entropy_coef", "_last_world_entropy")


class Resumable:
    """Mixed into a `GRPOTrainer`, in front of it. Set the attributes before `train()`."""

    memory: Mapping[str, Any] = {}
    """What remembers something from step to step, by name: rewards and observers with a `state_dict`."""
    keep: Callable[[int, int, Sequence[Mapping[str, Any]], Sequence[Sequence[int]]], None] | None = None
    """Told of the first three generations what `grpo_nb.training.beginning.keep_generation` writes."""

    _resumed_from: Path | None = None
    _saved_step = 0
    _saved_at = _saving_took = 0.0

    @property
    def is_between_generations(self) -> bool:
        """Whether the next micro-batch samples anew."""
        return self._step % (self.args.steps_per_generation * self.num_iterations) == 0

    def begin(self) -> None:
        """Called when everything is built and loaded, before the first step."""
        if self._resumed_from is None:
            self._save_checkpoint(None, None)  # a run that dies in its first steps can go on
        else:
            # After all that transformers and accelerate did since it was loaded.
            require_same_adapter(self.accelerator.unwrap_model(self.model), self._resumed_from)
        self._saved_step, self._saved_at = self.state.global_step, time.monotonic()

    def is_save_due(self, save_steps: int) -> bool:
        """Whether a checkpoint is to be written after the row that was just logged; 0 `save_steps`: by the clock."""
        patience = max(_SECONDS_BETWEEN, _TIMES_SAVING * self._saving_took)
        is_due = time.monotonic() - self._saved_at >= patience
        if save_steps:
            is_due = self.state.global_step - self._saved_step >= save_steps
        return is_due and self.is_between_generations

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        started, root = time.monotonic(), Path(self.args.output_dir)
        if (rows := root.parent / "metrics.jsonl").is_file():
            sync(rows)  # of a complete checkpoint no row is missing
        write_checkpoint(root, self.state.global_step, self._fill)
        keep_newest(root, self.args.save_total_limit or _KEEP)
        self._saved_step, self._saved_at = self.state.global_step, time.monotonic()
        self._saving_took = self._saved_at - started

    def _fill(self, folder: Path) -> None:
        save_adapter(self.accelerator.unwrap_model(self.model), folder)
        self._save_optimizer_and_scheduler(str(folder))
        self._save_scaler(str(folder))
        self._save_rng_state(str(folder))
        state = copy.copy(self.state)
        state.log_history = []  # the rows are in metrics.jsonl
        state.save_to_json(str(folder / "trainer_state.json"))
        numbers = {_STEP: _count_of_micro_batches(self)}
        numbers |= {name: vars(self)[name] for name in _ENTROPY_NUMBERS if name in vars(self)}
        remembered = {name: holder.state_dict() for name, holder in self.memory.items()}
        (folder / "loop.json").write_text(json.dumps({"numbers": numbers, "remembered": remembered}))
        if not self.is_between_generations:
            torch.save(self._buffered_inputs, folder / "generation.pt")

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        folder, model = Path(resume_from_checkpoint), self.accelerator.unwrap_model(self.model)
        load_adapter(model, folder)
        if "ref" in model.peft_config:  # there only if KL is measured to it
            load_adapter(model, Path(self.args.output_dir).parent / "reference", "ref")
        vars(self).update(json.loads((folder / "loop.json").read_text("utf-8"))["numbers"])
        if (rest := folder / "generation.pt").is_file():
            self._buffered_inputs = torch.load(rest, map_location=self.args.device, weights_only=True)
        take_up_memory(self.memory, folder)
        self._resumed_from = folder

    def _get_train_sampler(self, dataset: Any = None) -> Any:
        sampler = super()._get_train_sampler(dataset)
        if getattr(sampler, "generator", None) is not None:
            # TRL's sampler draws a new order at each pass, but a resumed one would begin with the order of the first.
            sampler.set_epoch = partial(_order_of_pass, sampler)
        return sampler

    def _calculate_rewards(self, inputs: Any, prompts: Any, completions: Any, completion_ids_list: Any) -> Any:
        first_ones = 3 * self.args.steps_per_generation * self.num_iterations
        if self.keep is not None and self.model.training and self._step < first_ones:
            self.keep(self._step, self.state.global_step, inputs, completion_ids_list)
        return super()._calculate_rewards(inputs, prompts, completions, completion_ids_list)


def _count_of_micro_batches(trainer: Any) -> int:
    """Return how many micro-batches a trainer of TRL has taken.

    Raises:
        AttributeError: TRL keeps that number under another name.
    """
    if _STEP not in vars(trainer):
        raise AttributeError(
            f"this version of TRL keeps no {_STEP!r} in its GRPO trainer, so a checkpoint would not say at which micro-batch a "
            "resumed run goes on. Install the version of TRL that requirements.txt names."
        )
    return vars(trainer)[_STEP]


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
            f"the adapter was not restored from {str(folder)!r}: {len(wrong)} of {len(saved)} tensors differ. Training on "
            "would silently start over, so it does not start. Load the model anew with gn.load_model(settings) and try again."
        )


def _is_same(held: torch.Tensor | None, saved: torch.Tensor) -> bool:
    if held is None or held.dtype != saved.dtype or held.shape != saved.shape:
        return False
    # As bytes: NaN is not equal to itself, and a run that went wrong must be resumable to be looked at.
    return torch.equal(held.detach().cpu().contiguous().view(torch.uint8), saved.contiguous().view(torch.uint8))


def remembering(holders: Iterable[Callable[..., Any]]) -> dict[str, Any]:
    """Those of these rewards or observers that remember something from step to step, by name: with a `state_dict`."""
    held = [holder for holder in holders if hasattr(holder, "state_dict")]
    return {f"{number} {reward_name(holder)}": holder for number, holder in enumerate(held)}


def take_up_memory(memory: Mapping[str, Any], checkpoint: Path) -> None:
    """Give rewards and observers what they knew at a checkpoint; one that was not there then starts anew."""
    remembered = json.loads((checkpoint / "loop.json").read_text("utf-8"))["remembered"]
    for name in memory.keys() & remembered.keys():
        memory[name].load_state_dict(remembered[name])
