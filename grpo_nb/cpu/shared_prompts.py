"""Run a prompt once for all completions of its group, differentiably.

In a GRPO step, TRL repeats the prompt for each completion, in sampling and again in the loss. With
a prompt of 110 tokens and 8 completions of 30, more than two thirds of all computed tokens are
copies. Here the prefix that all prompts share (system prompt, example turn) runs once, and the rest
of each distinct prompt once. Then all completions run in one pass after the key/value caches of
their prompts. Several completions follow each other in one *lane*, so that little is padding. The
arithmetic is the same (Prefix Grouper, arXiv:2506.05433; sequence packing, arXiv:2107.02027). Only
its order differs, so results agree up to rounding.

A *row* is a prompt with its completion. A *place* is one token of a completion: the index of its
row, and its position in the completion (its *step*). A *lane* is a sequence of *slots*, and each
slot computes one place or is padding.

Not covered: sequences longer than a sliding window, linear or hybrid attention, keys and values of
different sizes, learned position tables, images. `CpuEngine.obstacle` returns the reason, and the
caller then takes TRL's own path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from os.path import commonprefix
from typing import Any

from grpo_nb.models.unsloth_import import import_unsloth

import_unsloth()

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from grpo_nb.cpu.attention import grouped_attention

#: Label of a token whose log-probability is not computed, as in torch's cross entropy.
NO_LABEL = -100
#: Shortest shared prefix for which a separate pass saves time.
MIN_PREFIX_TOKENS = 16


def left_padded(rows: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """Return rows of token ids as one tensor (N, L), and its mask, which hides the pad tokens."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    mask = [torch.ones_like(row) for row in ids]
    pad = partial(pad_sequence, batch_first=True, padding_side="left")
    return pad(ids, padding_value=pad_id), pad(mask)


def prefill(
    call_model: Callable[..., Any], prompt_ids: Sequence[Sequence[int]]
) -> tuple[DynamicCache, Tensor]:
    """Run each prompt without its last token, and the prefix that all prompts share only once.

    Args:
        call_model: Calls the model.
        prompt_ids: P lists of token ids.

    Returns:
        The key/value cache, with P rows, and its mask (P, cached tokens).
    """
    all_but_last = [tuple(prompt[:-1]) for prompt in prompt_ids]
    # `commonprefix` also compares tuples item by item. Here the items are token ids.
    prefix = commonprefix(all_but_last)  # noqa: RUF071 (no paths)
    if len(prompt_ids) == 1 or len(prefix) < MIN_PREFIX_TOKENS:
        prefix = ()
    # The suffix of a prompt is what follows the prefix. The last token is in neither.
    suffixes = [tokens[len(prefix) :] for tokens in all_but_last]
    suffix_ids, suffix_mask = left_padded(suffixes)
    prefix_mask = torch.ones(len(prompt_ids), len(prefix), dtype=torch.long)
    mask = torch.cat([prefix_mask, suffix_mask], 1)
    cache = DynamicCache()
    if prefix:
        call_model(
            input_ids=torch.tensor([prefix]),
            attention_mask=prefix_mask[:1],
            past_key_values=cache,
        )
        # Each prompt gets a copy of the one row.
        cache = select_rows(cache, torch.zeros(len(prompt_ids), dtype=torch.long))
    if suffix_ids.shape[1]:
        # Each suffix continues the positions of the prefix.
        positions = mask.cumsum(1) - 1
        call_model(
            input_ids=suffix_ids,
            attention_mask=mask,
            position_ids=positions[:, len(prefix) :].clamp(min=0),
            past_key_values=cache,
        )
    return cache, mask


def select_rows(cache: DynamicCache, row_indices: Tensor) -> DynamicCache:
    """Return a cache that has only these rows, in this order."""
    result = DynamicCache()
    for layer in cache.layers:
        # A shallow copy keeps dtype, device, and the mark that the layer is initialized.
        selected = copy.copy(layer)
        # index_select, unlike the indexing of batch_select_indices, has a fast backward on a CPU.
        selected.keys = layer.keys.index_select(0, row_indices)
        selected.values = layer.values.index_select(0, row_indices)
        result.layers.append(selected)
    return result


def assign_to_lanes(lengths: Sequence[int], prompt_indices: Sequence[int]) -> list[list[int]]:
    """Return the row indices of each lane; the rows of a lane have the same prompt.

    A lane has as many slots as the longest row has tokens. The longest rows are assigned first,
    each to the first lane with room.

    Args:
        lengths: Number of tokens of each row that are computed in a lane.
        prompt_indices: Index of each row's prompt.
    """
    lane_width = max(lengths)
    row_indices = range(len(lengths))
    longest_first = sorted(row_indices, key=lambda row_index: -lengths[row_index])
    lanes: list[list[int]] = []
    for row_index in longest_first:
        for lane in lanes:
            used_slots = sum(lengths[index_in_lane] for index_in_lane in lane)
            has_room = used_slots + lengths[row_index] <= lane_width
            has_same_prompt = prompt_indices[lane[0]] == prompt_indices[row_index]
            if has_room and has_same_prompt:
                lane.append(row_index)
                break
        else:
            lanes.append([row_index])
    return lanes


def lay_out(is_computed: Tensor, prompt_indices: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Return row and step of the token that each slot of the lanes predicts.

    Three rows of 4, 2 and 1 tokens with the same prompt fill two lanes (row.step; `-` is a padding
    slot):

        lane 0:  0.0  0.1  0.2  0.3
        lane 1:  1.0  1.1  2.0   -

    Args:
        is_computed: (B, C), True for the tokens of each completion that are computed.
        prompt_indices: Index of each row's prompt.

    Returns:
        Two tensors (lanes, lane_width). Both are -1 in a padding slot. Indexing with -1 reads a
        value of the last row. This is harmless, because results of padding slots are dropped.
    """
    lengths = is_computed.sum(1).tolist()
    places_of_rows = is_computed.nonzero().split(lengths)
    places_of_lanes = []
    for lane in assign_to_lanes(lengths, prompt_indices):
        places_of_lane = [places_of_rows[row_index] for row_index in lane]
        places_of_lanes.append(torch.cat(places_of_lane))
    places_of_slots = pad_sequence(places_of_lanes, batch_first=True, padding_value=-1)
    row_of_slots, step_of_slots = places_of_slots.unbind(-1)
    return row_of_slots, step_of_slots


def mask_of_lanes(row_of_slots: Tensor, is_prompt: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the mask (lanes, 1, lane_width, cached tokens + lane_width) of the lanes.

    Every token of a lane sees the prompt of the lane, and the tokens up to itself in its own row.
    The mask is added to the scores, which every attention implementation understands.

    Args:
        row_of_slots: (lanes, lane_width), from `lay_out`.
        is_prompt: (lanes, cached tokens), False for padding.
        dtype: Dtype of the model.
    """
    is_same_row = row_of_slots[:, :, None] == row_of_slots[:, None, :]
    sees_completion = is_same_row.tril()
    sees_prompt = is_prompt[:, None].expand(-1, row_of_slots.shape[1], -1)
    is_visible = torch.cat([sees_prompt, sees_completion], -1)
    mask = torch.zeros(is_visible.shape, dtype=dtype)
    # The lowest finite number: with minus infinity, a token that sees nothing would be NaN.
    mask.masked_fill_(~is_visible, torch.finfo(dtype).min)
    return mask[:, None]


def deduplicate(prompt_ids: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the distinct prompts in order of appearance, and the index of each prompt in them."""
    hashable_prompts = [tuple(prompt) for prompt in prompt_ids]
    distinct_prompts = list(dict.fromkeys(hashable_prompts))
    prompt_indices = [distinct_prompts.index(prompt) for prompt in hashable_prompts]
    return distinct_prompts, prompt_indices


@grouped_attention()
def shared_prompt_log_probs(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_length: int,
) -> tuple[Tensor, Tensor]:
    """Compute per-token log-probabilities and entropies of completions, each prompt run once.

    The results equal a plain pass over `input_ids` up to the order of summation: within 1e-4 in
    float32, for values and LoRA gradients. With LoRA dropout, the completions of a group share the
    dropout mask of their prompt. For each completion the results have the same distribution as in
    a plain pass, but no seed reproduces TRL's numbers.

    Args:
        model: A model patched by TRL's `add_fused_lm_head` with the outputs `log_probs` and
            `entropy`, which also applies the temperature.
        input_ids: (B, P + C) left-padded prompts followed by right-padded completions.
        attention_mask: (B, P + C), 1 for real tokens. TRL masks a completion as a whole or not at
            all; the tokens of tools are in another mask.
        completion_length: C.

    Returns:
        `(log_probs, entropies)`, both (B, C) float32 in nats, and zero where masked.
    """
    prompt_width = input_ids.shape[1] - completion_length
    prompt_lengths = attention_mask[:, :prompt_width].sum(1)
    has_label = attention_mask[:, prompt_width:].bool()
    # The prompt of each row without its padding on the left.
    unpadded_prompts = [
        row[prompt_width - length : prompt_width]
        for row, length in zip(input_ids.tolist(), prompt_lengths.tolist(), strict=True)
    ]
    distinct_prompts, prompt_indices = deduplicate(unpadded_prompts)
    dtype = next(model.parameters()).dtype

    def call_model(**inputs: Any) -> Any:
        labels = torch.full_like(inputs["input_ids"], NO_LABEL)
        return model(**inputs, shift_labels=labels, fused_lm_head=True)

    # 1. Run the prompts without their last tokens.
    cache, cache_mask = prefill(call_model, distinct_prompts)

    # 2. Lay the completions out in lanes.
    is_computed = has_label.clone()
    # The first token of a masked completion runs too, so that no lane is empty. It has no label.
    is_computed[:, 0] = True
    row_of_slots, step_of_slots = lay_out(is_computed, prompt_indices)
    is_filled = row_of_slots >= 0
    labels = input_ids[:, prompt_width:].masked_fill(~has_label, NO_LABEL)
    labels_of_slots = labels[row_of_slots, step_of_slots].masked_fill(~is_filled, NO_LABEL)
    # Each slot reads the token before its label. For the first label this is the last token of the
    # prompt, which `prefill` left out for this reason.
    previous_tokens = input_ids[:, prompt_width - 1 : -1]
    positions = prompt_lengths[row_of_slots] - 1 + step_of_slots

    # 3. Run the lanes after the caches of their prompts.
    # All rows of a lane have the prompt of its first row.
    prompt_of_lanes = torch.tensor(prompt_indices)[row_of_slots[:, 0]]
    is_prompt = cache_mask[prompt_of_lanes].bool()
    output = model(
        input_ids=previous_tokens[row_of_slots, step_of_slots],
        attention_mask=mask_of_lanes(row_of_slots, is_prompt, dtype),
        position_ids=positions.clamp(min=0),
        past_key_values=select_rows(cache, prompt_of_lanes),
        shift_labels=labels_of_slots,
        fused_lm_head=True,
    )

    # 4. Put the results back into the rows of the batch.
    def back_to_rows(values: Tensor) -> Tensor:
        zeros = values.new_zeros(has_label.shape)
        places = (row_of_slots[is_filled], step_of_slots[is_filled])
        computed = values[is_filled]
        return zeros.index_put(places, computed)

    return back_to_rows(output.log_probs), back_to_rows(output.entropy)
