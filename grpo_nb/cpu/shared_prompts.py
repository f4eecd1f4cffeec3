"""Compute once, differentiably, the prompt that all completions of a group share.

A GRPO step as TRL runs it repeats the prompt for each completion, in sampling and again in the
loss. With a prompt of 110 tokens and 8 completions of 30, three quarters of all computed tokens are
copies. Here the prefix that all prompts share (system prompt, example turn) runs once, and the rest
of each distinct prompt once. Then all completions run in one pass after the key/value caches of
their prompts. Several completions are packed into one row, so that little is padding. The
arithmetic is the same (Prefix Grouper, arXiv:2506.05433; packing as in arXiv:2107.02027). Only its
order differs, so results agree up to rounding.

Not covered: models without a plain key/value cache (sliding-window, linear or hybrid attention),
learned position tables, images. `shared_prompt_obstacle` gives the reason, and the caller then
takes TRL's own path.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_nb.models.import_unsloth import import_unsloth

import_unsloth()

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache

from grpo_nb.cpu.attention import grouped_attention

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: A lane is a row of the batch that holds several completions of one prompt. In a lane of this many
#: tokens, attention costs about as much as everything else. Used to price wide lanes.
ATTENTION_EQUALS_REST_AT = 2000
#: If the prefix and the rests of all prompts together have at most this many tokens, they run as
#: one row, and the mask keeps the prompts apart.
MAX_TOKENS_IN_ONE_ROW = 384
#: Label of a token whose log-probability is not computed, as in torch's cross entropy.
NO_LABEL = -100
#: A pass of its own for a shared prefix shorter than this costs more than it saves.
MIN_PREFIX_TOKENS = 16


def shared_prompt_obstacle(model: PreTrainedModel, longest: int | None = None) -> str | None:
    """Return why the shared-prompt path cannot run this model, or None if it can.

    Args:
        model: Causal language model, plain or wrapped by PEFT.
        longest: Tokens of prompt and completion together. Sliding-window layers are no obstacle if
            every row fits into the window. Without this number they are one.
    """
    config = model.config.get_text_config()
    name = config.model_type
    if next(model.parameters()).device.type != "cpu":
        return "the model is on an accelerator, where vLLM or Unsloth's own generation is used"
    if config is not model.config:
        return f"{name} is multimodal"
    # Configurations without the field have full attention in every layer.
    layer_types = getattr(config, "layer_types", None) or ["full_attention"]
    other_types = set(layer_types) - {"full_attention", "sliding_attention"}
    if other_types:
        listed = ", ".join(sorted(other_types))
        return f"{name} has {listed} layers"
    window = getattr(config, "sliding_window", None)
    uses_window = window and getattr(config, "use_sliding_window", True)
    slides = "sliding_attention" in layer_types or uses_window
    are_known = window is not None and longest is not None
    fits_window = are_known and longest <= window
    if slides and not fits_window:
        return (
            f"{name} uses a sliding window of {window} tokens, "
            "which prompt and completion may exceed"
        )
    if getattr(config, "rope_parameters", None) is None:
        return f"{name} has no rotary positions"
    if getattr(model, "is_gradient_checkpointing", False):
        return "gradient checkpointing drops the key/value cache"
    return None


def batch_obstacle(input_ids: Tensor, attention_mask: Tensor, completion_length: int) -> str | None:
    """Return why a batch has to take TRL's own path, or None if its prompts can be shared.

    Args:
        input_ids: (B, P + C), as for `shared_prompt_logps`.
        attention_mask: (B, P + C).
        completion_length: C.
    """
    completion_mask = attention_mask[:, -completion_length:]
    lengths = completion_mask.sum(1, keepdim=True)
    # A completion of n tokens has its tokens in the first n places.
    right_padded = torch.arange(completion_length) < lengths
    if not torch.equal(completion_mask.bool(), right_padded):
        return "a completion is masked in its middle"
    prompts = _unpadded_prompts(input_ids, attention_mask, completion_length)
    shortest = min(map(len, prompts))
    if shortest < 2:
        return "a prompt is shorter than two tokens"
    if len(set(prompts)) == len(prompts):
        return "no prompt occurs twice in a micro-batch (raise per_device_train_batch_size)"
    return None


def _unpadded_prompts(ids: Tensor, mask: Tensor, completion_length: int) -> list[tuple[int, ...]]:
    """Return the prompt of each row without its padding on the left."""
    prompt_ids = ids[:, :-completion_length]
    is_prompt = mask[:, :-completion_length].bool()
    prompts = []
    for row, is_token in zip(prompt_ids, is_prompt, strict=True):
        prompt = row[is_token].tolist()
        prompts.append(tuple(prompt))
    return prompts


def left_padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return rows of token ids as one tensor (N, L), and its mask."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    mask = [torch.ones_like(row) for row in ids]
    pad = partial(pad_sequence, batch_first=True, padding_side="left")
    return pad(ids, padding_value=pad_id), pad(mask)


def prompt_cache(
    run: Callable[..., Any],
    prompts: Sequence[Sequence[int]],
    pad_id: int,
    dtype: torch.dtype,
) -> tuple[DynamicCache, Tensor]:
    """Run all but the last token of each prompt, and their shared prefix once.

    Args:
        run: The model.
        prompts: P lists of token ids.
        pad_id: Any token id.
        dtype: Dtype of the model.

    Returns:
        The cache, with P rows, and its mask (P, L).
    """
    all_but_last = [tuple(prompt[:-1]) for prompt in prompts]
    prefix = _shared_prefix(all_but_last)
    saves_time = len(prompts) > 1 and len(prefix) >= MIN_PREFIX_TOKENS
    if not saves_time:
        prefix = ()
    common = len(prefix)
    # The tail of a prompt is what follows the prefix. The last token is in neither.
    tail_rows = [tokens[common:] for tokens in all_but_last]
    tails, tail_mask = left_padded(tail_rows, pad_id)
    prefix_mask = torch.ones(len(prompts), common, dtype=torch.long)
    mask = torch.cat([prefix_mask, tail_mask], 1)
    # In 16 bits a changed order of summation gives visibly different numbers, so prompts stay in
    # rows of their own.
    is_exact = dtype in (torch.float32, torch.float64)
    tokens = common + int(tail_mask.sum())
    fits_one_row = tokens <= MAX_TOKENS_IN_ONE_ROW
    if common and is_exact and fits_one_row:
        cache = _cache_of_one_row(run, prefix, tails, tail_mask.bool(), dtype)
        return cache, mask
    cache = DynamicCache()
    if common:
        run(
            input_ids=torch.tensor([prefix]),
            attention_mask=prefix_mask[:1],
            past_key_values=cache,
        )
        only_row = torch.tensor([0])
        cache = copy_of_rows(cache, only_row.expand(len(prompts)))
    if tails.shape[1]:
        positions = mask.cumsum(1) - 1
        tail_positions = positions[:, common:].clamp(min=0)
        run(
            input_ids=tails,
            attention_mask=mask,
            position_ids=tail_positions,
            past_key_values=cache,
        )
    return cache, mask


def _shared_prefix(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    # All rows share the prefix that the first and the last row in sorted order share.
    first = min(rows)
    last = max(rows)
    for place, (a, b) in enumerate(zip(first, last, strict=False)):
        if a != b:
            return first[:place]
    return first


def _cache_of_one_row(
    run: Callable[..., Any],
    prefix: Sequence[int],
    tails: Tensor,
    is_tail: Tensor,
    dtype: torch.dtype,
) -> DynamicCache:
    """Run a prefix and all tails as one row, and return a cache with one row for each tail.

    Args:
        run: The model.
        prefix: Token ids that all prompts begin with.
        tails: (P, T) left-padded token ids after the prefix.
        is_tail: (P, T), False for padding.
        dtype: Dtype of the model.
    """
    common = len(prefix)
    prefix_places = torch.arange(common)
    tail_ids = tails[is_tail]
    ids = torch.cat([torch.tensor(prefix), tail_ids])
    # Every token sees the prefix. A token of a tail also sees that tail, and no other.
    prompt_of_tail_token = is_tail.nonzero()[:, 0]
    no_prompt = torch.full((common,), -1)
    prompt_of_token = torch.cat([no_prompt, prompt_of_tail_token])
    is_of_prefix = prompt_of_token == -1
    is_same_prompt = prompt_of_token[:, None] == prompt_of_token
    sees = (is_of_prefix | is_same_prompt).tril()
    # Each tail continues the positions of the prefix.
    place_in_tail = is_tail.cumsum(1) - 1
    tail_positions = common + place_in_tail[is_tail]
    positions = torch.cat([prefix_places, tail_positions])

    cache = DynamicCache()
    run(
        input_ids=ids[None],
        attention_mask=_added_to_scores(sees[None], dtype),
        position_ids=positions[None],
        past_key_values=cache,
    )

    # Padding takes the first token of the row, which the mask hides.
    tail_places = torch.zeros_like(tails)
    tail_places[is_tail] = torch.arange(common, len(ids))
    prefix_of_each = prefix_places.expand(len(tails), -1)
    places = torch.cat([prefix_of_each, tail_places], 1)
    return _take_places(cache, places)


def _added_to_scores(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Return which token (B, Q) sees which (B, Q, K), as numbers that are added to the scores.

    Every attention implementation takes a mask in this form.
    """
    # The lowest finite number: a row that sees nothing would be NaN with minus infinity.
    hidden = torch.finfo(dtype).min
    added = torch.zeros(sees.shape, dtype=dtype)
    added.masked_fill_(~sees, hidden)
    # One mask for all heads.
    return added[:, None]


def copy_of_rows(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """Return a cache whose rows are these rows of another one."""
    # index_select, unlike the indexing of batch_select_indices, has a fast backward on a CPU.
    return _mapped(cache, lambda states: states.index_select(0, rows))


def _take_places(cache: DynamicCache, places: Tensor) -> DynamicCache:
    """Return a cache (P, L) made of these places of a cache with one row."""

    def take(states: Tensor) -> Tensor:
        taken = states[0].index_select(1, places.flatten())
        # (heads, P, L, numbers of a head), as index_select copied one head after the other.
        by_prompt = taken.unflatten(1, places.shape)
        return by_prompt.transpose(0, 1)

    return _mapped(cache, take)


def _mapped(cache: DynamicCache, change: Callable[[Tensor], Tensor]) -> DynamicCache:
    """Return a cache with changed keys and values; the given cache stays as it is."""
    result = DynamicCache()
    for layer in cache.layers:
        # A shallow copy keeps dtype, device, and that the layer is initialized.
        changed = copy.copy(layer)
        changed.keys = change(layer.keys)
        changed.values = change(layer.values)
        result.layers.append(changed)
    return result


def pack_into_lanes(lengths: Sequence[int], prompt_of_row: Sequence[int]) -> list[list[int]]:
    """Put rows of one prompt one after the other into lanes of equal width.

    Widths from 1 to 4 times the longest row are tried, and the cheapest is taken. The longest rows
    are placed first, each into the first lane with room.

    Args:
        lengths: Tokens of each row.
        prompt_of_row: The prompt of each row. A lane holds rows of one prompt.

    Returns:
        For each lane the indices of its rows.
    """
    rows = range(len(lengths))
    longest_first = sorted(rows, key=lambda row: -lengths[row])

    def fill(width: int) -> list[list[int]]:
        lanes: list[list[int]] = []
        for row in longest_first:
            length = lengths[row]
            prompt = prompt_of_row[row]
            for lane in lanes:
                used = sum(lengths[other] for other in lane)
                has_room = used + length <= width
                has_same_prompt = prompt_of_row[lane[0]] == prompt
                if has_room and has_same_prompt:
                    lane.append(row)
                    break
            else:
                lanes.append([row])
        return lanes

    longest = max(max(lengths), 1)
    best: list[list[int]] = []
    best_cost = float("inf")
    for quarters in range(4, 17):
        width = longest * quarters // 4
        lanes = fill(width)
        # Attention grows with the square of the width, all other work with the width alone.
        cost_per_token = 1 + width / ATTENTION_EQUALS_REST_AT
        cost = len(lanes) * width * cost_per_token
        if cost < best_cost:
            best = lanes
            best_cost = cost
    return best


def distinct(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the distinct prompts in order of first appearance, and the index of each row's own."""
    numbers: dict[tuple[int, ...], int] = {}
    prompt_of_row = []
    for prompt in prompts:
        number = numbers.setdefault(tuple(prompt), len(numbers))
        prompt_of_row.append(number)
    return list(numbers), prompt_of_row


@grouped_attention()
def shared_prompt_logps(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_length: int,
    *,
    pad_id: int,
) -> tuple[Tensor, Tensor | None]:
    """Compute per-token log-probabilities and entropies of completions, each prompt run once.

    They equal a plain pass over `input_ids` up to the order of summation: within 1e-4 in float32,
    for values and LoRA gradients. With LoRA dropout, the completions of a group share the dropout
    mask of their prompt. Each has the same distribution as in a plain pass, but no seed reproduces
    TRL's numbers.

    Args:
        model: A model patched by TRL's `add_fused_lm_head`, which also applies the temperature.
        input_ids: (B, P + C) left-padded prompts followed by right-padded completions, for which
            `batch_obstacle` returns None.
        attention_mask: (B, P + C), 1 for real tokens.
        completion_length: C.
        pad_id: Any token id. It fills prompts to one length, where the mask hides it.

    Returns:
        `(log_probs, entropies)`, both (B, C) float32 in nats, and zero where masked. Entropies are
        None where the model was patched without them.
    """
    width = input_ids.shape[1] - completion_length
    completion_mask = attention_mask[:, width:]
    lengths = completion_mask.sum(1).tolist()
    prompt_per_row = _unpadded_prompts(input_ids, attention_mask, completion_length)
    prompts, prompt_of_row = distinct(prompt_per_row)
    dtype = next(model.parameters()).dtype

    def run(**inputs: Any) -> Any:
        labels = torch.full_like(inputs["input_ids"], NO_LABEL)
        return model(**inputs, shift_labels=labels, fused_lm_head=True)

    # 1. Run the prompts without their last tokens.
    cache, prompt_mask = prompt_cache(run, prompts, pad_id, dtype)

    # 2. Lay the completions out in lanes.
    lanes = pack_into_lanes(lengths, prompt_of_row)
    lane_widths = [sum(lengths[row] for row in lane) for lane in lanes]
    lane_width = max(*lane_widths, 1)
    shape = (len(lanes), lane_width)
    ids = torch.zeros(shape, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, NO_LABEL)
    # Row of the batch that a token belongs to; -1 is padding.
    row_of_token = torch.full(shape, -1)
    # Places of the same tokens in the result (B, C), counted row by row.
    batch_places = []
    for lane_number, lane in enumerate(lanes):
        start = 0
        for row in lane:
            prompt = prompts[prompt_of_row[row]]
            length = lengths[row]
            end = start + length
            steps = torch.arange(length)
            completion = input_ids[row, width : width + length]
            # The last prompt token runs with each completion, so that one pass gives every
            # log-probability.
            last_prompt_token = torch.tensor(prompt[-1:])
            shifted = torch.cat([last_prompt_token, completion])
            first_position = len(prompt) - 1
            first_place = row * completion_length
            ids[lane_number, start:end] = shifted[:length]
            positions[lane_number, start:end] = first_position + steps
            labels[lane_number, start:end] = completion
            row_of_token[lane_number, start:end] = row
            batch_places.append(first_place + steps)
            start = end

    # 3. Run the lanes after the caches of their prompts.
    # All rows of a lane have the prompt of its first row.
    first_rows = torch.tensor([lane[0] for lane in lanes])
    prompt_of_lane = torch.tensor(prompt_of_row)[first_rows]
    row_of_query = row_of_token[:, :, None]
    row_of_key = row_of_token[:, None, :]
    is_same_row = row_of_query == row_of_key
    sees_completion = is_same_row.tril()
    # Every token of a lane sees the whole prompt.
    is_prompt = prompt_mask[prompt_of_lane].bool()
    for_each_token = is_prompt[:, None]
    sees_prompt = for_each_token.expand(-1, lane_width, -1)
    sees = torch.cat([sees_prompt, sees_completion], -1)
    output = model(
        input_ids=ids,
        attention_mask=_added_to_scores(sees, dtype),
        position_ids=positions,
        past_key_values=copy_of_rows(cache, prompt_of_lane),
        shift_labels=labels,
        fused_lm_head=True,
    )

    # 4. Put the results back into the rows of the batch. Tokens of the lanes are read in the order
    # in which the loop above wrote them.
    is_written = row_of_token >= 0
    places = torch.cat(batch_places)

    def by_row(values: Tensor) -> Tensor:
        empty = values.new_zeros(len(input_ids), completion_length)
        written = values[is_written]
        filled = empty.flatten().index_copy(0, places, written)
        return filled.view_as(empty)

    log_probs = by_row(output.log_probs)
    entropies = None
    if output.entropy is not None:
        entropies = by_row(output.entropy)
    return log_probs, entropies
