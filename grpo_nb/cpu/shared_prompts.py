"""Run a prompt once for all completions of its group, differentiably.

In a GRPO step, TRL repeats the prompt for each completion, in sampling and again in the loss. With
a prompt of 110 tokens and 8 completions of 30, more than two thirds of all computed tokens are
copies. Here the prefix that all prompts share (system prompt, example turn) runs once, and the rest
of each distinct prompt once. Then all completions run in one pass after the key/value caches of
their prompts. Several completions follow each other in one *lane*, so that little is padding. The
arithmetic is the same (Prefix Grouper, arXiv:2506.05433; sequence packing, arXiv:2107.02027). Only
its order differs, so results agree up to rounding.

A *row* is a prompt with its completion. A *lane* is a sequence of *slots*, and each slot predicts
one token of a completion or is padding. For example, the rows 0, 1 and 2 have the same prompt
`p q r` and the completions `a b c d`, `e f` and `g`. The prompt runs without its last token, so the
cache holds `p q`. The longest completion has 4 tokens, so each lane has 4 slots (`-` is padding):

                lane 0     lane 1
    input       r a b c    r e r -     the token before the label
    label       a b c d    e f g -     the token that the slot predicts
    row         0 0 0 0    1 1 2 -     where the label is in the completions (B, C)
    column      0 1 2 3    0 1 0 -
    position    2 3 4 5    2 3 2 -     of the input in its row, for the rotary embedding

Letters of shapes: B rows, D distinct prompts, P columns of left-padded prompts, C columns of
right-padded completions, K cached tokens of each prompt, L lanes of W slots.

`CpuEngine.model_obstacle` says which models cannot be run this way.
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


def deduplicate(prompt_ids: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the D distinct prompts in order of appearance, and the index of each prompt in them.

    >>> deduplicate([[5, 6], [7], [5, 6]])
    ([(5, 6), (7,)], [0, 1, 0])
    """
    hashable_prompts = [tuple(prompt) for prompt in prompt_ids]
    distinct_prompts = list(dict.fromkeys(hashable_prompts))
    prompt_indices = [distinct_prompts.index(prompt) for prompt in hashable_prompts]
    return distinct_prompts, prompt_indices


def left_padded(rows: Sequence[Sequence[int]], pad_id: int = 0) -> tuple[Tensor, Tensor]:
    """Pad B lists of token ids on the left to the length T of the longest.

    Returns:
        Token ids (B, T), and their mask (B, T): 1 for real tokens, 0 for padding.
    """
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    mask = [torch.ones_like(row) for row in ids]
    pad = partial(pad_sequence, batch_first=True, padding_side="left")
    return pad(ids, padding_value=pad_id), pad(mask)


def prefill(
    call_model: Callable[..., Any], distinct_prompts: Sequence[Sequence[int]]
) -> tuple[DynamicCache, Tensor]:
    """Run each prompt without its last token, and the prefix that all prompts share only once.

    The prefix runs as one row, whose keys and values are then copied to D rows. The suffix of a
    prompt is the rest without the last token. Suffixes are padded on the left (`-`). With D = 2,
    the cache then has these K = 7 tokens:

                  prefix    suffixes
        prompt 0  s s s s   - t u
        prompt 1  s s s s   v w x

    Args:
        call_model: Calls the model, which appends keys and values of the tokens to
            `past_key_values`.
        distinct_prompts: D lists of token ids.

    Returns:
        The key/value cache of K tokens in D rows, and its mask (D, K): 1 for real tokens, 0 for
        padding.
    """
    all_but_last = [tuple(prompt[:-1]) for prompt in distinct_prompts]
    # `commonprefix` also compares tuples item by item. Here the items are token ids.
    prefix = commonprefix(all_but_last)  # noqa: RUF071 (no paths)
    if len(distinct_prompts) == 1 or len(prefix) < MIN_PREFIX_TOKENS:
        prefix = ()
    suffixes = [tokens[len(prefix) :] for tokens in all_but_last]
    suffix_ids, suffix_mask = left_padded(suffixes)
    prefix_mask = torch.ones(len(distinct_prompts), len(prefix), dtype=torch.long)
    mask = torch.cat([prefix_mask, suffix_mask], 1)
    cache = DynamicCache()
    if prefix:
        call_model(
            input_ids=torch.tensor([prefix]),
            attention_mask=prefix_mask[:1],
            past_key_values=cache,
        )
        # Each prompt gets a copy of the one row.
        cache = select_rows(cache, torch.zeros(len(distinct_prompts), dtype=torch.long))
    if suffix_ids.shape[1]:
        # Positions do not count padding. Each suffix continues the positions of the prefix.
        positions = mask.cumsum(1) - 1
        call_model(
            input_ids=suffix_ids,
            attention_mask=mask,
            position_ids=positions[:, len(prefix) :].clamp(min=0),
            past_key_values=cache,
        )
    return cache, mask


def select_rows(cache: DynamicCache, row_indices: Tensor) -> DynamicCache:
    """Return a cache of the rows with these indices, in this order. An index may repeat."""
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
    """Return the indices of the rows of each lane; the rows of a lane have the same prompt.

    A lane has as many slots as the longest row needs. The longest rows are assigned first, each to
    the first lane with room.

    Args:
        lengths: Number of slots that each of the B rows needs.
        prompt_indices: Index of the prompt of each row.

    >>> assign_to_lanes([4, 2, 1], [0, 0, 0])
    [[0], [1, 2]]
    """
    lane_width = max(lengths)
    row_indices = range(len(lengths))
    longest_first = sorted(row_indices, key=lambda row_index: -lengths[row_index])
    lanes = []
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
    """Return row and column of the token that each slot predicts, as in the module's example.

    Args:
        is_computed: (B, C), True for the tokens of each completion that slots predict.
        prompt_indices: Index of the prompt of each row.

    Returns:
        `(slot_rows, slot_columns)`, both (L, W), and -1 in a padding slot. Indexing with -1 reads a
        value of the last row. This is harmless, because results of padding slots are dropped.
    """
    lengths = is_computed.sum(1).tolist()
    # A place is the row and the column of one token.
    places_by_row = is_computed.nonzero().split(lengths)
    places_by_lane = []
    for lane in assign_to_lanes(lengths, prompt_indices):
        places = [places_by_row[row_index] for row_index in lane]
        places_by_lane.append(torch.cat(places))
    slot_places = pad_sequence(places_by_lane, batch_first=True, padding_value=-1)
    slot_rows, slot_columns = slot_places.unbind(-1)
    return slot_rows, slot_columns


def build_lane_mask(slot_rows: Tensor, cache_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the attention mask (L, 1, W, K + W) of the lanes.

    A slot sees the cached tokens of its prompt, and in its own row the slots up to itself. Lane 1
    of the module's example has this mask (`x` is visible). What a padding slot sees is of no use:

                         cache   slots
        input  row       p q     r e r -
        r      1         x x     x . . .
        e      1         x x     x x . .
        r      2         x x     . . x .
        -      padding   x x     . . . x

    Args:
        slot_rows: (L, W), from `lay_out`.
        cache_mask: (L, K), 1 for the cached tokens of the lane's prompt, 0 for padding.
        dtype: Dtype of the model.

    Returns:
        0 where visible, and the lowest finite number elsewhere. Every attention implementation
        understands such a mask, which is added to the attention scores.
    """
    sees_cache = cache_mask.bool()[:, None].expand(-1, slot_rows.shape[1], -1)
    is_same_row = slot_rows[:, :, None] == slot_rows[:, None, :]
    sees_slots = is_same_row.tril()
    is_visible = torch.cat([sees_cache, sees_slots], -1)
    mask = torch.zeros(is_visible.shape, dtype=dtype)
    # With minus infinity, a token that sees nothing would be NaN.
    mask.masked_fill_(~is_visible, torch.finfo(dtype).min)
    return mask[:, None]


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

    # 1. Run the prompts without their last tokens. Only their keys and values are needed, so no
    # token has a label.
    def call_model(**inputs: Any) -> Any:
        labels = torch.full_like(inputs["input_ids"], NO_LABEL)
        return model(**inputs, shift_labels=labels, fused_lm_head=True)

    cache, cache_mask = prefill(call_model, distinct_prompts)

    # 2. Lay the completions out in lanes. Each name that begins with `slot_` is a tensor (L, W).
    is_computed = has_label.clone()
    # The first token of a masked completion runs too, so that no lane is empty. It has no label.
    is_computed[:, 0] = True
    slot_rows, slot_columns = lay_out(is_computed, prompt_indices)
    is_filled = slot_rows >= 0
    labels = input_ids[:, prompt_width:].masked_fill(~has_label, NO_LABEL)
    slot_labels = labels[slot_rows, slot_columns].masked_fill(~is_filled, NO_LABEL)
    # Each slot reads the token before its label. For the first label this is the last token of the
    # prompt, which `prefill` left out for this reason.
    previous_tokens = input_ids[:, prompt_width - 1 : -1]
    slot_inputs = previous_tokens[slot_rows, slot_columns]
    slot_positions = prompt_lengths[slot_rows] - 1 + slot_columns

    # 3. Run the lanes after the caches of their prompts.
    # All rows of a lane have the prompt of the lane's first row.
    lane_prompts = torch.tensor(prompt_indices)[slot_rows[:, 0]]
    output = model(
        input_ids=slot_inputs,
        attention_mask=build_lane_mask(slot_rows, cache_mask[lane_prompts], dtype),
        position_ids=slot_positions.clamp(min=0),
        past_key_values=select_rows(cache, lane_prompts),
        shift_labels=slot_labels,
        fused_lm_head=True,
    )

    # 4. Put the results (L, W) back into the rows (B, C) of the batch.
    def back_to_rows(slot_values: Tensor) -> Tensor:
        zeros = slot_values.new_zeros(has_label.shape)
        places = (slot_rows[is_filled], slot_columns[is_filled])
        return zeros.index_put(places, slot_values[is_filled])

    return back_to_rows(output.log_probs), back_to_rows(output.entropy)
