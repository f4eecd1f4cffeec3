"""Sample completions on a CPU; run each distinct prompt once, and drop finished rows.

The loop runs with the LoRA folded into the weights (folded_lora.py) and attention without copies
(attention.py). The trained tensors are never written.

Letters of shapes: B rows, of which R are still in the batch; D distinct prompts; P columns of
left-padded prompts; C columns for the sampled tokens; K cached tokens of each prompt; V tokens in
the vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.models.restoring import restoring_modes
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.upstream.transformers import sampling_setup

import_unsloth()

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig
from transformers.cache_utils import DynamicLayer

from grpo_nb.cpu.attention import grouped_attention
from grpo_nb.cpu.folded_lora import FoldedLora
from grpo_nb.cpu.shared_prompts import deduplicate, left_padded, prefill

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: Finished rows are removed as soon as the rows that continue are at most this share of the batch.
#: Each removal copies the key/value cache of the rows that stay.
MAX_CONTINUING_SHARE = 0.875


@torch.no_grad()
def sample(
    model: PreTrainedModel,
    prompt_ids: Sequence[Sequence[int]],
    config: GenerationConfig,
    folded_lora: FoldedLora,
) -> list[list[int]]:
    """Sample one completion for each prompt; equal prompts share their computation.

    Logits processors and random numbers are those of `model.generate`, so the same seed gives the
    same tokens, unless rounding changes one. LoRA dropout does not apply while sampling.

    Args:
        model: Causal language model, plain or wrapped by PEFT, that `CpuEngine` can run.
        prompt_ids: B lists of token ids. Repeat a prompt for each of its completions.
        config: `max_new_tokens` (C), `eos_token_id`, `pad_token_id` and the sampling parameters.
            Greedy decoding if `do_sample` is false.
        folded_lora: Folded weights of the same model.

    Returns:
        B completions of at most C tokens, with the end token.
    """
    # 1. Make a matrix of tokens (B, P + C): the prompts, and room for the sampled tokens.
    pad_id = config.pad_token_id or 0
    padded_prompts, prompt_mask = left_padded(prompt_ids, pad_id)
    row_count, prompt_width = padded_prompts.shape
    config, processors = sampling_setup(model, config, prompt_width)
    max_new_tokens = config.max_new_tokens
    ids = functional.pad(padded_prompts, (0, max_new_tokens), value=pad_id)
    eos_token_id = [] if config.eos_token_id is None else config.eos_token_id
    end_ids = torch.tensor(eos_token_id, dtype=torch.long).reshape(-1)

    # 2. Begin with all rows in the batch. A row that has ended stays in it until enough rows have
    # ended (MAX_CONTINUING_SHARE).
    row_indices = torch.arange(row_count)  # (R)
    has_ended = torch.zeros(row_count, dtype=torch.bool)  # (R)
    # Number of pad tokens on the left of each row.
    pad_counts = (prompt_mask == 0).sum(1, keepdim=True)  # (R, 1)

    distinct_prompts, prompt_index_list = deduplicate(prompt_ids)
    prompt_indices = torch.tensor(prompt_index_list)
    with restoring_modes(model), grouped_attention(), folded_lora.applied(is_decoding=True):
        model.eval()
        call_model = functools.partial(model, use_cache=True, logits_to_keep=1)

        # 3. Run the D prompts without their last tokens, and copy their cache to the rows.
        cache, cache_mask = prefill(call_model, distinct_prompts)
        cache.layers = [
            _GrowingLayer(layer, prompt_indices, max_new_tokens) for layer in cache.layers
        ]
        # (R, K + C), 0 for padding. Its columns are those of the cache, not those of `ids`.
        cache_mask = functional.pad(cache_mask[prompt_indices], (0, max_new_tokens), value=1)

        # 4. Sample one column of `ids` after the other.
        for column in range(prompt_width, prompt_width + max_new_tokens):
            cached_tokens = cache.get_seq_length()
            # The input is the token before the column. It is not yet in the cache, and its position
            # does not count padding.
            output = call_model(
                input_ids=ids[row_indices, column - 1 : column],
                attention_mask=cache_mask[:, : cached_tokens + 1],
                position_ids=column - 1 - pad_counts,
                past_key_values=cache,
            )
            logits = output.logits[:, -1].float()
            scores = processors(ids[row_indices, :column], logits)
            if config.do_sample:
                probabilities = scores.softmax(-1)
                tokens = _sample_tokens(probabilities, row_count, row_indices)
            else:
                tokens = scores.argmax(-1)
            ids[row_indices, column] = tokens
            has_ended |= torch.isin(tokens, end_ids)
            if has_ended.all():
                break
            # Indices into the R rows of the batch, not into all B rows.
            continuing_indices = (~has_ended).nonzero()[:, 0]
            if len(continuing_indices) <= MAX_CONTINUING_SHARE * len(has_ended):
                row_indices = row_indices[continuing_indices]
                has_ended = has_ended[continuing_indices]
                pad_counts = pad_counts[continuing_indices]
                cache_mask = cache_mask[continuing_indices]
                cache.batch_select_indices(continuing_indices)
    # A row that stayed in the batch after its end has further tokens, which are cut off here.
    padded_completions = ids[:, prompt_width:].tolist()
    return [through_end(tokens, end_ids.tolist()) for tokens in padded_completions]


def through_end(tokens: list[int], end_ids: Sequence[int]) -> list[int]:
    """Return the tokens up to and with the first end token, or all if there is none."""
    for index, token in enumerate(tokens):
        if token in end_ids:
            return tokens[: index + 1]
    return tokens


def _sample_tokens(probabilities: Tensor, row_count: int, row_indices: Tensor) -> Tensor:
    """Sample one token per row as `torch.multinomial` does, and leave the same random state.

    If e is exponentially distributed, independently for each token, then the index of the largest
    p / e is a sample from p. Rows that have left the batch get exponentials too, so that the random
    state is that of `generate`.

    Args:
        probabilities: (R, V) float32, of the rows still in the batch. Overwritten.
        row_count: B, the number of rows at the start.
        row_indices: (R), indices of the rows still in the batch.

    Returns:
        (R), one token id per row.
    """
    exponentials = _exponentials((row_count, probabilities.shape[1]))
    return probabilities.div_(exponentials[row_indices]).argmax(-1)


def _exponentials(shape: tuple[int, int]) -> Tensor:
    """Return the numbers of `torch.empty(shape).exponential_()`, in less time where possible.

    For 16 rows of 49,152 tokens, the logarithm takes 6 ms and `exponential_` 16 ms.
    """
    if _exponential_is_logarithm(shape):
        return _exponentials_by_logarithm(shape)
    return torch.empty(shape).exponential_()


def _exponentials_by_logarithm(shape: tuple[int, int]) -> Tensor:
    """Return -log(1 - u) as float32, with u uniform in float64."""
    uniform = torch.empty(shape, dtype=torch.float64).uniform_()
    return uniform.neg_().log1p_().neg_().float()


@functools.cache
def _exponential_is_logarithm(shape: tuple[int, int]) -> bool:
    """Return True if `exponential_` gives the numbers of `_exponentials_by_logarithm`.

    On Intel processors, a torch with MKL uses MKL's own generator, and the numbers differ.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        expected = torch.empty(shape).exponential_()
        torch.default_generator.manual_seed(0)
        return torch.equal(_exponentials_by_logarithm(shape), expected)


class _GrowingLayer(DynamicLayer):
    """Keys and values of one layer, in memory that is reserved at the start for all tokens.

    transformers' `DynamicLayer` copies all keys and values at every token.

    Args:
        layer: Keys and values of the distinct prompts, (D, heads, K, head size) each.
        prompt_indices: (B), index of each row's prompt.
        max_new_tokens: Number of further tokens to reserve memory for.
    """

    def __init__(self, layer: DynamicLayer, prompt_indices: Tensor, max_new_tokens: int) -> None:
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self._token_count = layer.keys.shape[2]
        # (2, B, heads, K + C, head size): first the keys, then the values. The last C tokens are
        # reserved.
        states = torch.stack([layer.keys, layer.values]).index_select(1, prompt_indices)
        self._states = functional.pad(states, (0, 0, 0, max_new_tokens))
        self._update_views()

    def _update_views(self) -> None:
        """Set `keys` and `values` to the part of the memory that is in use."""
        self.keys, self.values = self._states[:, :, :, : self._token_count]

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Append the states of new tokens, and return all keys and values.

        Args:
            key_states: (R, heads, new tokens, head size).
            value_states: Of the same shape.
            *args: Passed by transformers, and not used. So are `kwargs`.

        Returns:
            Keys and values, (R, heads, tokens so far, head size) each.
        """
        start = self._token_count
        end = start + key_states.shape[2]
        self._states[0, :, :, start:end] = key_states
        self._states[1, :, :, start:end] = value_states
        self._token_count = end
        self._update_views()
        return self.keys, self.values

    def batch_select_indices(self, indices: Tensor) -> None:
        """Keep only the rows with these indices."""
        self._states = self._states[:, indices]
        self._update_views()
