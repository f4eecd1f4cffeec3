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
import os.path
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


def batch_obstacle(
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_length: int,
) -> str | None:
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
    if min(map(len, prompts)) < 2:
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


def prefill(
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
        The key/value cache, with P rows, and its mask (P, L).
    """
    all_but_last = [tuple(prompt[:-1]) for prompt in prompts]
    # This function compares the items of any tuples, here token ids.
    prefix = os.path.commonprefix(all_but_last)  # noqa: RUF071 (no paths)
    saves_time = len(prompts) > 1 and len(prefix) >= MIN_PREFIX_TOKENS
    if not saves_time:
        prefix = ()
    # The suffix of a prompt is what follows the prefix. The last token is in neither.
    suffix_rows = [tokens[len(prefix) :] for tokens in all_but_last]
    suffixes, suffix_mask = left_padded(suffix_rows, pad_id)
    prefix_mask = torch.ones(len(prompts), len(prefix), dtype=torch.long)
    mask = torch.cat([prefix_mask, suffix_mask], 1)
    # Each suffix continues the positions of the prefix.
    positions = mask.cumsum(1) - 1
    suffix_positions = positions[:, len(prefix) :].clamp(min=0)
    # In 16 bits a changed order of summation gives visibly different numbers, so prompts stay in
    # rows of their own.
    is_exact = dtype in (torch.float32, torch.float64)
    tokens = len(prefix) + int(suffix_mask.sum())
    if prefix and is_exact and tokens <= MAX_TOKENS_IN_ONE_ROW:
        cache = _prefill_one_row(
            run,
            prefix,
            suffixes,
            is_suffix=suffix_mask.bool(),
            positions=suffix_positions,
            dtype=dtype,
        )
        return cache, mask
    cache = DynamicCache()
    if prefix:
        run(
            input_ids=torch.tensor([prefix]),
            attention_mask=prefix_mask[:1],
            past_key_values=cache,
        )
        only_row = torch.tensor([0])
        cache = select_rows(cache, only_row.expand(len(prompts)))
    if suffixes.shape[1]:
        run(
            input_ids=suffixes,
            attention_mask=mask,
            position_ids=suffix_positions,
            past_key_values=cache,
        )
    return cache, mask


def _prefill_one_row(
    run: Callable[..., Any],
    prefix: Sequence[int],
    suffixes: Tensor,
    *,
    is_suffix: Tensor,
    positions: Tensor,
    dtype: torch.dtype,
) -> DynamicCache:
    """Run a prefix and all suffixes as one row, and return a cache with one row for each suffix.

    Args:
        run: The model.
        prefix: Token ids that all prompts begin with.
        suffixes: (P, S) left-padded token ids after the prefix.
        is_suffix: (P, S), False for padding.
        positions: (P, S) positions of these tokens in their prompts.
        dtype: Dtype of the model.
    """
    prefix_indices = torch.arange(len(prefix))
    suffix_ids = suffixes[is_suffix]
    ids = torch.cat([torch.tensor(prefix), suffix_ids])
    # Every token sees the prefix. A token of a suffix also sees that suffix, and no other.
    no_prompt = torch.full((len(prefix),), -1)
    prompt_of_suffix_token = is_suffix.nonzero()[:, 0]
    prompt_of_token = torch.cat([no_prompt, prompt_of_suffix_token])
    is_in_prefix = prompt_of_token == -1
    is_same_prompt = prompt_of_token[:, None] == prompt_of_token
    is_visible = (is_in_prefix | is_same_prompt).tril()
    all_positions = torch.cat([prefix_indices, positions[is_suffix]])

    cache = DynamicCache()
    run(
        input_ids=ids[None],
        attention_mask=_additive_mask(is_visible[None], dtype),
        position_ids=all_positions[None],
        past_key_values=cache,
    )

    # Padding takes the first token of the row, which the mask hides.
    suffix_indices = torch.zeros_like(suffixes)
    suffix_indices[is_suffix] = torch.arange(len(prefix), len(ids))
    prefix_of_each = prefix_indices.expand(len(suffixes), -1)
    indices = torch.cat([prefix_of_each, suffix_indices], 1)

    def split(states: Tensor) -> Tensor:
        selected = states[0].index_select(1, indices.flatten())
        # (heads, P, L, numbers of a head), as index_select copied one head after the other.
        by_prompt = selected.unflatten(1, indices.shape)
        return by_prompt.transpose(0, 1)

    return _with_states(cache, split)


def _additive_mask(is_visible: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the attention mask (B, 1, Q, K) that is added to the scores, for all heads.

    Every attention implementation takes a mask in this form.

    Args:
        is_visible: (B, Q, K), True where a query may attend to a key.
        dtype: Dtype of the model.
    """
    # The lowest finite number: a query that sees nothing would be NaN with minus infinity.
    hidden = torch.finfo(dtype).min
    added = torch.zeros(is_visible.shape, dtype=dtype)
    added.masked_fill_(~is_visible, hidden)
    return added[:, None]


def select_rows(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """Return a cache whose rows are these rows of another one."""
    # index_select, unlike the indexing of batch_select_indices, has a fast backward on a CPU.
    return _with_states(cache, lambda states: states.index_select(0, rows))


def _with_states(cache: DynamicCache, change: Callable[[Tensor], Tensor]) -> DynamicCache:
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
            for lane in lanes:
                used = sum(lengths[other] for other in lane)
                has_room = used + lengths[row] <= width
                has_same_prompt = prompt_of_row[lane[0]] == prompt_of_row[row]
                if has_room and has_same_prompt:
                    lane.append(row)
                    break
            else:
                lanes.append([row])
        return lanes

    def cost(width: int) -> float:
        # Attention grows with the square of the width, all other work with the width alone.
        cost_per_token = 1 + width / ATTENTION_EQUALS_REST_AT
        tokens = len(fill(width)) * width
        return tokens * cost_per_token

    longest = max(*lengths, 1)
    widths = [longest * quarters // 4 for quarters in range(4, 17)]
    cheapest = min(widths, key=cost)
    return fill(cheapest)


def deduplicate(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
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
    prompt_width = input_ids.shape[1] - completion_length
    prompt_lengths = attention_mask[:, :prompt_width].sum(1)
    completion_mask = attention_mask[:, prompt_width:]
    lengths = completion_mask.sum(1).tolist()
    prompt_per_row = _unpadded_prompts(input_ids, attention_mask, completion_length)
    prompts, prompt_of_row = deduplicate(prompt_per_row)
    dtype = next(model.parameters()).dtype

    def run(**inputs: Any) -> Any:
        labels = torch.full_like(inputs["input_ids"], NO_LABEL)
        return model(**inputs, shift_labels=labels, fused_lm_head=True)

    # 1. Run the prompts without their last tokens.
    cache, prompt_mask = prefill(run, prompts, pad_id, dtype)

    # 2. Lay the completions out in lanes. `places` has the place of each token of a lane in the
    # result (B, C), counted row by row. Padding is -1.
    lanes = pack_into_lanes(lengths, prompt_of_row)
    lane_widths = [sum(lengths[row] for row in lane) for lane in lanes]
    lane_width = max(*lane_widths, 1)
    places = torch.full((len(lanes), lane_width), -1)
    for lane, lane_places in zip(lanes, places, strict=True):
        start = 0
        for row in lane:
            end = start + lengths[row]
            first_place = row * completion_length
            lane_places[start:end] = first_place + torch.arange(lengths[row])
            start = end
    is_padding = places < 0
    valid_places = places.clamp(min=0)
    rows = valid_places // completion_length
    steps = valid_places % completion_length
    # The last prompt token runs with each completion, so that one pass gives every log-probability.
    shifted = input_ids[:, prompt_width - 1 : -1]
    completions = input_ids[:, prompt_width:]
    ids = shifted[rows, steps].masked_fill(is_padding, 0)
    labels = completions[rows, steps].masked_fill(is_padding, NO_LABEL)
    positions = prompt_lengths[rows] - 1 + steps

    # 3. Run the lanes after the caches of their prompts.
    # All rows of a lane have the prompt of its first row.
    prompt_of_lane = torch.tensor([prompt_of_row[lane[0]] for lane in lanes])
    row_of_token = rows.masked_fill(is_padding, -1)
    row_of_query = row_of_token[:, :, None]
    row_of_key = row_of_token[:, None, :]
    is_same_row = row_of_query == row_of_key
    sees_completion = is_same_row.tril()
    # Every token of a lane sees the whole prompt.
    is_prompt = prompt_mask[prompt_of_lane].bool()
    for_each_token = is_prompt[:, None]
    sees_prompt = for_each_token.expand(-1, lane_width, -1)
    is_visible = torch.cat([sees_prompt, sees_completion], -1)
    output = model(
        input_ids=ids,
        attention_mask=_additive_mask(is_visible, dtype),
        position_ids=positions.masked_fill(is_padding, 0),
        past_key_values=select_rows(cache, prompt_of_lane),
        shift_labels=labels,
        fused_lm_head=True,
    )

    # 4. Put the results back into the rows of the batch.
    def by_row(values: Tensor) -> Tensor:
        empty = values.new_zeros(len(input_ids), completion_length)
        computed = values[~is_padding]
        own_places = places[~is_padding]
        filled = empty.flatten().index_copy(0, own_places, computed)
        return filled.view_as(empty)

    log_probs = by_row(output.log_probs)
    entropies = None
    if output.entropy is not None:
        entropies = by_row(output.entropy)
    return log_probs, entropies
