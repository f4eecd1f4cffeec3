"""Run a prompt once for all completions of its group, differentiably.

In a GRPO step, TRL repeats the prompt for each completion, in sampling and again in the loss. With
a prompt of 110 tokens and 8 completions of 30, three quarters of all computed tokens are copies.
Here the prefix that all prompts share (system prompt, example turn) runs once, and the rest of each
distinct prompt once. Then all completions run in one pass after the key/value caches of their
prompts. Several completions are packed into one row, a *lane*, so that little is padding. The
arithmetic is the same (Prefix Grouper, arXiv:2506.05433; packing as in arXiv:2107.02027). Only its
order differs, so results agree up to rounding.

Not covered: models without a plain key/value cache (sliding-window, linear or hybrid attention, or
keys and values of different sizes), learned position tables, images. `CpuEngine.obstacle` returns
the reason, and the caller then takes TRL's own path.
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
    run: Callable[..., Any], prompts: Sequence[Sequence[int]]
) -> tuple[DynamicCache, Tensor]:
    """Run each prompt without its last token, and the prefix that all prompts share only once.

    Args:
        run: The model.
        prompts: P lists of token ids.

    Returns:
        The key/value cache, with P rows, and its mask (P, cached tokens).
    """
    all_but_last = [tuple(prompt[:-1]) for prompt in prompts]
    # `commonprefix` also compares tuples item by item. Here the items are token ids.
    prefix = commonprefix(all_but_last)  # noqa: RUF071 (no paths)
    if len(prompts) == 1 or len(prefix) < MIN_PREFIX_TOKENS:
        prefix = ()
    # The suffix of a prompt is what follows the prefix. The last token is in neither.
    suffix_rows = [tokens[len(prefix) :] for tokens in all_but_last]
    suffixes, suffix_mask = left_padded(suffix_rows)
    prefix_mask = torch.ones(len(prompts), len(prefix), dtype=torch.long)
    mask = torch.cat([prefix_mask, suffix_mask], 1)
    cache = DynamicCache()
    if prefix:
        run(
            input_ids=torch.tensor([prefix]),
            attention_mask=prefix_mask[:1],
            past_key_values=cache,
        )
        cache = select_rows(cache, torch.zeros(len(prompts), dtype=torch.long))
    if suffixes.shape[1]:
        # Each suffix continues the positions of the prefix.
        positions = mask.cumsum(1) - 1
        run(
            input_ids=suffixes,
            attention_mask=mask,
            position_ids=positions[:, len(prefix) :].clamp(min=0),
            past_key_values=cache,
        )
    return cache, mask


def select_rows(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """Return a cache that has only these rows, in this order."""
    result = DynamicCache()
    for layer in cache.layers:
        # A shallow copy keeps dtype, device, and the mark that the layer is initialized.
        selected = copy.copy(layer)
        # index_select, unlike the indexing of batch_select_indices, has a fast backward on a CPU.
        selected.keys = layer.keys.index_select(0, rows)
        selected.values = layer.values.index_select(0, rows)
        result.layers.append(selected)
    return result


def pack_into_lanes(lengths: Sequence[int], prompt_of_row: Sequence[int]) -> list[list[int]]:
    """Return the indices of the rows in each lane; the rows of a lane have the same prompt.

    A lane has as many tokens as the longest row. The longest rows are placed first, each into the
    first lane with room.

    Args:
        lengths: Tokens of each row.
        prompt_of_row: Index of the prompt of each row.
    """
    lane_width = max(lengths)
    rows = range(len(lengths))
    longest_first = sorted(rows, key=lambda row: -lengths[row])
    lanes: list[list[int]] = []
    for row in longest_first:
        for lane in lanes:
            used = sum(lengths[other] for other in lane)
            has_room = used + lengths[row] <= lane_width
            has_same_prompt = prompt_of_row[lane[0]] == prompt_of_row[row]
            if has_room and has_same_prompt:
                lane.append(row)
                break
        else:
            lanes.append([row])
    return lanes


def deduplicate(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the distinct prompts in order of appearance, and each row's index among them."""
    all_prompts = [tuple(prompt) for prompt in prompts]
    distinct = list(dict.fromkeys(all_prompts))
    return distinct, [distinct.index(prompt) for prompt in all_prompts]


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
    is_completion = attention_mask[:, prompt_width:].bool()
    # The prompt of each row without its padding on the left.
    unpadded_prompts = [
        row[prompt_width - length : prompt_width]
        for row, length in zip(input_ids.tolist(), prompt_lengths.tolist(), strict=True)
    ]
    prompts, prompt_of_row = deduplicate(unpadded_prompts)
    dtype = next(model.parameters()).dtype

    def run(**inputs: Any) -> Any:
        labels = torch.full_like(inputs["input_ids"], NO_LABEL)
        return model(**inputs, shift_labels=labels, fused_lm_head=True)

    # 1. Run the prompts without their last tokens.
    cache, prompt_mask = prefill(run, prompts)

    # 2. Lay the completions out in lanes. For each slot, `row_of_slot` and `step_of_slot` (lanes,
    # lane_width) give the row and the completion step of its label. Both are -1 in padding, which
    # therefore indexes the last row; 4. drops its results.
    is_computed = is_completion.clone()
    # The first token of a masked completion runs too, so that no lane is empty. It has no label.
    is_computed[:, 0] = True
    lengths = is_computed.sum(1).tolist()
    places_of_row = is_computed.nonzero().split(lengths)
    lanes = []
    for rows_of_lane in pack_into_lanes(lengths, prompt_of_row):
        places_of_lane = [places_of_row[row] for row in rows_of_lane]
        lanes.append(torch.cat(places_of_lane))
    slots = pad_sequence(lanes, batch_first=True, padding_value=-1)
    row_of_slot, step_of_slot = slots.unbind(-1)
    is_filled = row_of_slot >= 0
    # The last prompt token is the input that predicts the first completion token, so it runs in the
    # lane: the inputs are the tokens one step before the labels.
    previous_tokens = input_ids[:, prompt_width - 1 : -1]
    labels = input_ids[:, prompt_width:].masked_fill(~is_completion, NO_LABEL)
    labels_of_lanes = labels[row_of_slot, step_of_slot]
    positions = prompt_lengths[row_of_slot] - 1 + step_of_slot

    # 3. Run the lanes after the caches of their prompts.
    # All rows of a lane have the prompt of its first row.
    first_rows = row_of_slot[:, 0]
    prompt_of_lane = torch.tensor(prompt_of_row)[first_rows]
    is_same_row = row_of_slot[:, :, None] == row_of_slot[:, None, :]
    sees_completion = is_same_row.tril()
    # Every token of a lane sees the whole prompt.
    is_prompt = prompt_mask[prompt_of_lane].bool()
    lane_width = row_of_slot.shape[1]
    sees_prompt = is_prompt[:, None].expand(-1, lane_width, -1)
    is_visible = torch.cat([sees_prompt, sees_completion], -1)
    # The mask (lanes, 1, lane_width, cached tokens + lane_width) is added to the scores, which
    # every attention implementation understands. Hidden places get the lowest finite number: with
    # minus infinity, a token that sees nothing would be NaN.
    hidden = torch.finfo(dtype).min
    mask = torch.zeros(is_visible.shape, dtype=dtype)
    mask.masked_fill_(~is_visible, hidden)
    output = model(
        input_ids=previous_tokens[row_of_slot, step_of_slot],
        attention_mask=mask[:, None],
        position_ids=positions.clamp(min=0),
        past_key_values=select_rows(cache, prompt_of_lane),
        shift_labels=labels_of_lanes.masked_fill(~is_filled, NO_LABEL),
        fused_lm_head=True,
    )

    # 4. Put the results back into the rows of the batch.
    def back_to_rows(values: Tensor) -> Tensor:
        empty = values.new_zeros(is_completion.shape)
        place = (row_of_slot[is_filled], step_of_slot[is_filled])
        computed = values[is_filled]
        return empty.index_put(place, computed)

    return back_to_rows(output.log_probs), back_to_rows(output.entropy)
