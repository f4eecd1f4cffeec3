"""TRL's `GRPOTrainer` (1.15) with each distinct prompt computed once, for sampling and for log-probabilities, on a CPU.

Everything else is TRL's: rewards, advantages, losses, metrics. Four of its methods are wrapped, none is rewritten. Where a
batch does not fit, TRL's own path computes it, and `stock_reason` says why.

What differs from TRL, on purpose: with several micro-batches the rows of an optimizer step are regrouped by prompt, so metrics
that TRL averages over micro-batches (kl, entropy, clip ratios, the logged loss) are averages over other micro-batches; the
gradient of the step is the same. With `beta = 0`, completions without advantage are not computed, and the entropy is that of
the others.
"""

import math
import warnings
from typing import Any

from grpo_nb.models.import_unsloth import import_unsloth

import_unsloth()

import torch
from peft.tuners.tuners_utils import BaseTunerLayer
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel
from trl import GRPOTrainer

from grpo_nb.generation.folded_lora import FoldedLora
from grpo_nb.generation.sampling import sample
from grpo_nb.generation.shared_prompts import batch_obstacle, shared_prompt_logps

Batch = dict[str, Any]


class SharedPromptGRPOTrainer(GRPOTrainer):
    """For models whose `shared_prompt_obstacle` is None. Arguments are those of `GRPOTrainer`.

    Attributes:
        stock_reason: Why some batch took TRL's own path, or None if none did.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stock_reason: str | None = None
        self._folded = FoldedLora.of(self.accelerator.unwrap_model(self.model))
        self._loss_inputs: Batch | None = None
        self._scored: Tensor | None = None
        self._reference: dict[tuple[int, ...], DynamicCache] = {}

    def train(self, *args: Any, **kwargs: Any) -> Any:
        try:
            return super().train(*args, **kwargs)
        finally:
            self._folded.release()
            self._reference.clear()

    def _generate_single_turn(self, prompt_ids: list[list[int]], *args: Any, **kwargs: Any) -> tuple[list, None]:
        model = self.accelerator.unwrap_model(self.model)
        return sample(model, prompt_ids, self.generation_config, self._folded).tokens, None

    def _prepare_inputs(self, generation_batch: Any) -> Batch:
        steps = self.args.steps_per_generation
        is_first = self._step % (steps * self.num_iterations) == 0 or self._buffered_inputs is None
        batch = super()._prepare_inputs(generation_batch)
        # Entropy bonus and entropy quantile are taken over a micro-batch: there the rows stay where TRL put them.
        if self.model.training and is_first and not self._entropy_bonus_enabled and self.top_entropy_quantile == 1.0:
            # As many micro-batches as certainly belong to the same optimizer step.
            size = math.gcd(steps, self.args.gradient_accumulation_steps)
            buffered = self._buffered_inputs
            self._buffered_inputs = [
                batch for i in range(0, steps, size) for batch in _regroup(buffered[i : i + size], self.loss_type)
            ]
            batch = self._buffered_inputs[self._step % steps]
        return batch

    def _compute_loss(self, model: PreTrainedModel, inputs: Batch) -> Tensor:
        self._loss_inputs, self._scored = inputs, None
        try:
            loss = super()._compute_loss(model, inputs)
        finally:
            self._loss_inputs = None
        if self._scored is not None and not self._scored.all():
            # TRL's mean counted the skipped rows as zeros; what is left to say is the entropy of the rows that ran.
            metrics = self._metrics["train" if self.model.training else "eval"]
            # Of the tokens that the model wrote: neither padding nor what a tool said.
            lengths = (inputs["completion_mask"] * inputs.get("tool_mask", 1)).sum(1)
            tokens = lengths[self._scored].sum()
            entropy = metrics["entropy"].pop()
            if tokens:
                metrics["entropy"].append(entropy * float(lengths.sum() / tokens))
        return loss

    def _get_per_token_logps_and_entropies(
        self, model: Any, input_ids: Tensor, attention_mask: Tensor, logits_to_keep: int, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        inputs = self._loss_inputs
        reason = batch_obstacle(input_ids, attention_mask, logits_to_keep)
        if kwargs.get("compute_aux_loss"):
            reason = "the mixture-of-experts loss needs whole rows"
        if reason is not None:
            if self.stock_reason is None:
                self.stock_reason = reason
                warnings.warn(f"TRL's own, slower path is taken for some batches: {reason}.", stacklevel=2)
            log_probs, entropies, aux_loss = super()._get_per_token_logps_and_entropies(
                model, input_ids, attention_mask, logits_to_keep, *args, **kwargs
            )
        else:
            scored = torch.ones(len(input_ids), dtype=torch.bool)
            if inputs is not None:
                scored = self._scored = inputs["advantages"] != 0 if self._may_skip else scored
            log_probs, entropies = self._shared(model, input_ids, attention_mask, logits_to_keep, scored)
            aux_loss = None
        if inputs is not None and "gradient_scale" in inputs:
            fixed = log_probs.detach()
            log_probs = fixed + inputs["gradient_scale"][:, None] * (log_probs - fixed)
        return log_probs, entropies, aux_loss

    def _shared(
        self, model: Any, ids: Tensor, mask: Tensor, length: int, scored: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Log-probabilities and entropies (B, C); rows that are not scored get values whose ratio to the old ones is 1."""
        pad_id = self._tokenizer.pad_token_id
        if scored.all():
            folded = self._folded.for_training if torch.is_grad_enabled() else self._folded.for_inference
            # What prompts have in common is the same to the reference at each step: the base, with its adapter off.
            is_off = {part.disable_adapters for part in model.modules() if isinstance(part, BaseTunerLayer)} == {True}
            kept = self._reference if is_off and not torch.is_grad_enabled() else None
            with folded(), self.accelerator.autocast():
                return shared_prompt_logps(model, ids, mask, length, pad_id=pad_id, kept=kept)
        old = self._loss_inputs.get("old_per_token_logps")
        log_probs = torch.zeros(len(ids), length) if old is None else old.float().clone()
        entropies = torch.zeros(len(ids), length)
        rows = scored.nonzero()[:, 0]
        if not len(rows):
            # A zero gradient for every tensor and not none at all: the optimizer's momentum moves on, as it does in TRL.
            nothing = sum(p.sum() for p in model.parameters() if p.requires_grad) * 0.0
            return log_probs + nothing, entropies
        with self._folded.for_training(), self.accelerator.autocast():
            some, some_entropies = shared_prompt_logps(model, ids[rows], mask[rows], length, pad_id=pad_id)
        log_probs, entropies = log_probs.to(some.dtype), entropies.to(some.dtype)
        return log_probs.index_copy(0, rows, some), entropies.index_copy(0, rows, some_entropies)

    @property
    def _may_skip(self) -> bool:
        """Rows without advantage add exactly nothing to the gradient: no KL term, no entropy bonus, no quantile over all."""
        return self.beta == 0.0 and not self._entropy_bonus_enabled and self.top_entropy_quantile == 1.0


def _regroup(micro_batches: list[Batch], loss_type: str) -> list[Batch]:
    """Sort the rows of micro-batches of one optimizer step by prompt, so that groups stay together.

    All losses of TRL are sums over rows with weights that do not depend on the micro-batch, but for `bnpo`, which divides by
    the tokens of the micro-batch: `gradient_scale` keeps the weight that a row had before.
    """
    if len(micro_batches) == 1:
        return micro_batches
    rows = {
        key: torch.cat([batch[key] for batch in micro_batches])
        for key, value in micro_batches[0].items()
        if isinstance(value, Tensor) and value.ndim
    }
    prompts = [tuple(ids) for ids in torch.where(rows["prompt_mask"].bool(), rows["prompt_ids"], -1).tolist()]
    first = {prompt: i for i, prompt in reversed(list(enumerate(prompts)))}
    order = torch.tensor(sorted(range(len(prompts)), key=lambda i: first[prompts[i]]))
    size = len(prompts) // len(micro_batches)
    rows = {key: value[order] for key, value in rows.items()}
    if loss_type == "bnpo":
        loss_mask = rows["completion_mask"] * rows.get("tool_mask", 1)
        tokens = loss_mask.sum(1).float()
        before = torch.empty_like(tokens)
        before[order] = tokens
        before = before.view(-1, size).sum(1).clamp(min=1.0).repeat_interleave(size)[order]
        after = tokens.view(-1, size).sum(1).clamp(min=1.0).repeat_interleave(size)
        rows["gradient_scale"] = after / before
    return [
        {**batch, **{key: value[i * size : (i + 1) * size] for key, value in rows.items()}}
        for i, batch in enumerate(micro_batches)
    ]
