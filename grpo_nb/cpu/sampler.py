"""Sample completions on a CPU: each distinct prompt once, finished rows leave the batch.

The loop runs with the LoRA folded into the weights (folded_lora.py) and attention without copies
(attention.py). The trained tensors are never written.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.machine.spinning import yield_cores
from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.models.modes import kept_modes
from grpo_nb.models.samples import Samples
from grpo_nb.upstream.transformers import sampling_setup

import_unsloth()

import torch
from torch.nn import functional
from transformers import GenerationConfig
from transformers.cache_utils import DynamicLayer

from grpo_nb.cpu.attention import grouped_attention
from grpo_nb.cpu.folded_lora import FoldedLora
from grpo_nb.cpu.shared_prompts import distinct, left_padded, prompt_cache

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Rows leave the batch once at most this share of it is still running: each time, the key/value
#: cache of the others is copied.
SHARE_STILL_RUNNING = 0.875


class _GrowingLayer(DynamicLayer):
    """Key/value layer that writes into room reserved at the start.

    transformers' `DynamicLayer` copies all keys and values at every token.
    """

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor, room: int) -> None:
        super().__init__()
        self.used = layer.keys.shape[2]
        self._keys = functional.pad(layer.keys.index_select(0, rows), (0, 0, 0, room))
        self._values = functional.pad(layer.values.index_select(0, rows), (0, 0, 0, room))
        self.dtype = layer.keys.dtype
        self.device = layer.keys.device
        self.is_initialized = True
        self._expose()

    def _expose(self) -> None:
        self.keys = self._keys[:, :, : self.used]
        self.values = self._values[:, :, : self.used]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        end = self.used + key_states.shape[2]
        self._keys[:, :, self.used : end] = key_states
        self._values[:, :, self.used : end] = value_states
        self.used = end
        self._expose()
        return self.keys, self.values

    def keep_rows(self, rows: torch.Tensor) -> None:
        self._keys = self._keys[rows]
        self._values = self._values[rows]
        self._expose()


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    config: GenerationConfig,
    folded: FoldedLora,
) -> Samples:
    """Sample one completion for each prompt; equal prompts share their computation.

    The tokens are those of `model.generate` with the same seed, as long as rounding does not turn a
    draw: the logits processors and the use of the random state are the same. LoRA dropout does not
    apply while sampling.

    Args:
        model: Causal language model, plain or wrapped by PEFT, that `CpuEngine` can run.
        prompts: N lists of at least two token ids. Repeat a prompt for each completion of its group.
        config: `max_new_tokens`, `eos_token_id`, `pad_token_id` and the sampling parameters. Greedy
            decoding if `do_sample` is false.
        folded: Folded weights of the same model.

    Returns:
        N completions of at most `max_new_tokens` tokens.
    """
    yield_cores()  # here, because every training step and every evaluation on a CPU samples
    pad_id = int(config.pad_token_id) if config.pad_token_id is not None else 0
    padded, _ = left_padded(prompts, pad_id)
    prompt_width = padded.shape[1]
    config, processors = sampling_setup(model, config, prompt_width)
    end_tokens = torch.tensor(
        [] if config.eos_token_id is None else config.eos_token_id, dtype=torch.long
    ).reshape(-1)
    total = len(prompts)
    limit = config.max_new_tokens
    # Prompts, with room for the sampled tokens.
    ids = torch.cat([padded, padded.new_full((total, limit), pad_id)], 1)
    log_probs = torch.zeros(total, limit)
    lengths = torch.full((total,), limit)
    # The rows still in the batch, and the position of the last prompt token of each.
    running = torch.arange(total)
    last_position = torch.tensor([[len(prompt) - 1] for prompt in prompts])
    each_prompt, prompt_of_row = distinct(prompts)
    with kept_modes(model), grouped_attention, folded.for_inference(is_decoding=True):
        model.eval()
        run = functools.partial(model, use_cache=True, logits_to_keep=1)
        cache, mask = prompt_cache(run, each_prompt, pad_id, model.dtype)
        rows = torch.tensor(prompt_of_row)
        cache.layers = [_GrowingLayer(layer, rows, limit) for layer in cache.layers]
        mask = torch.cat([mask[rows], torch.ones(total, limit, dtype=torch.long)], 1)
        for t in range(limit):
            end = prompt_width + t
            output = model(
                input_ids=ids[running, end - 1 : end],
                attention_mask=mask[:, : cache.get_seq_length() + 1],
                position_ids=last_position + t,
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            scores = processors(ids[running, :end], output.logits[:, -1].float())
            if config.do_sample:
                probabilities = scores.softmax(-1)
                chosen = _draw(probabilities, total, running)
                of_chosen = probabilities.gather(1, chosen[:, None])[:, 0]
                log_probs[running, t] = of_chosen.log()
            else:
                chosen = scores.argmax(-1)
            # A row that has ended may stay in the batch for a few more tokens.
            has_not_ended = lengths[running] > t
            ids[running[has_not_ended], end] = chosen[has_not_ended]
            ends_here = has_not_ended & torch.isin(chosen, end_tokens)
            lengths[running[ends_here]] = t + 1
            goes_on = lengths[running] > t + 1
            if not goes_on.any():
                break
            if goes_on.sum() <= SHARE_STILL_RUNNING * len(goes_on):
                places = goes_on.nonzero()[:, 0]
                running = running[places]
                last_position = last_position[places]
                mask = mask[places]
                for layer in cache.layers:
                    layer.keep_rows(places)
    tokens = _until_end(ids[:, prompt_width:], lengths)
    return Samples(tokens, _until_end(log_probs, lengths) if config.do_sample else None)


def _draw(probabilities: torch.Tensor, total: int, rows: torch.Tensor) -> torch.Tensor:
    """Draw one token per row as `torch.multinomial` does, with the same random state after it.

    multinomial takes the largest p / e with an exponential e for each row and token. Exponentials
    are drawn for rows that have left the batch too, so that the random state is that of `generate`.

    Args:
        probabilities: (R, V) float32, of the rows still in the batch.
        total: Number of rows at the start.
        rows: (R) indices of the rows still in the batch.
    """
    exponentials = torch.empty(total, probabilities.shape[1]).exponential_()
    if len(rows) < total:
        exponentials = exponentials[rows]
    return torch.div(probabilities, exponentials, out=exponentials).argmax(-1)


def _until_end(values: torch.Tensor, lengths: torch.Tensor) -> list[list[Any]]:
    rows = zip(values.tolist(), lengths.tolist(), strict=True)
    return [row[:length] for row, length in rows]
