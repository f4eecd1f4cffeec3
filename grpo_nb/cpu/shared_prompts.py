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

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_nb.models.import_unsloth import import_unsloth

import_unsloth()

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

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
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    other_types = layer_types - {"full_attention", "sliding_attention"}
    if other_types:
        return f"{name} has {', '.join(sorted(other_types))} layers"
    window = getattr(config, "sliding_window", None)
    uses_window = window and getattr(config, "use_sliding_window", True)
    slides = "sliding_attention" in layer_types or uses_window
    if slides and (window is None or longest is None or longest > window):
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
    if not torch.equal(completion_mask.bool(), torch.arange(completion_length) < lengths):
        return "a completion is masked in its middle"
    prompts = _unpadded_prompts(input_ids, attention_mask, completion_length)
    if min(map(len, prompts)) < 2:
        return "a prompt is shorter than two tokens"
    if len(set(prompts)) == len(prompts):
        return "no prompt occurs twice in a micro-batch (raise per_device_train_batch_size)"
    return None


def _unpadded_prompts(ids: Tensor, mask: Tensor, completion_length: int) -> list[tuple[int, ...]]:
    width = ids.shape[1] - completion_length
    lengths = mask[:, :width].sum(1).tolist()
    rows = zip(ids[:, :width].tolist(), lengths, strict=True)
    return [tuple(row[width - length :]) for row, length in rows]


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
    if len(prompts) == 1 or len(prefix) < MIN_PREFIX_TOKENS:
        prefix = ()
    common = len(prefix)
    ids, tail_mask = left_padded([tokens[common:] for tokens in all_but_last], pad_id)
    mask = torch.cat([torch.ones(len(prompts), common, dtype=torch.long), tail_mask], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    is_tail = tail_mask.bool()
    tail_ids = ids[is_tail]
    # In 16 bits a changed order of summation gives visibly different numbers, so prompts stay in
    # rows of their own.
    is_exact = dtype in (torch.float32, torch.float64)
    fits_one_row = common + len(tail_ids) <= MAX_TOKENS_IN_ONE_ROW
    if common and is_exact and fits_one_row:
        cache = DynamicCache()
        # -1 is the prefix, which every tail sees; a tail sees itself and no other.
        segment = torch.cat([torch.full((common,), -1), is_tail.nonzero()[:, 0]])
        sees = ((segment == -1) | (segment[:, None] == segment)).tril()
        run(
            input_ids=torch.cat([torch.tensor(prefix), tail_ids])[None],
            attention_mask=_added_to_scores(sees[None], dtype),
            position_ids=torch.cat([torch.arange(common), positions[:, common:][is_tail]])[None],
            past_key_values=cache,
        )
        tail_places = torch.zeros_like(ids)
        tail_places[is_tail] = common + torch.arange(len(tail_ids))
        prefix_places = torch.arange(common).expand(len(prompts), -1)
        return _take_places(cache, torch.cat([prefix_places, tail_places], 1)), mask
    cache = DynamicCache()
    if common:
        run(
            input_ids=torch.tensor([prefix]),
            attention_mask=mask[:1, :common],
            past_key_values=cache,
        )
        cache = copy_of_rows(cache, torch.zeros(len(prompts), dtype=torch.long))
    if ids.shape[1]:
        run(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions[:, common:],
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


def _added_to_scores(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Return which token (B, Q) sees which (B, Q, K), as numbers that are added to the scores.

    Every attention implementation takes a mask in this form.
    """
    hidden = torch.finfo(dtype).min
    return torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, hidden)[:, None]


def copy_of_rows(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """Return a cache whose rows are these rows of another one."""
    # index_select, unlike the indexing of batch_select_indices, has a fast backward on a CPU.
    return _mapped(cache, lambda states: states.index_select(0, rows))


def _take_places(cache: DynamicCache, places: Tensor) -> DynamicCache:
    """Return a cache (P, L) made of these places of a cache with one row."""

    def take(states: Tensor) -> Tensor:
        taken = states[0].index_select(1, places.flatten())
        return taken.view(len(taken), *places.shape, -1).transpose(0, 1)

    return _mapped(cache, take)


def _mapped(cache: DynamicCache, change: Callable[[Tensor], Tensor]) -> DynamicCache:
    copy = DynamicCache()
    copy.layers = [DynamicLayer() for _ in cache.layers]
    for new, layer in zip(copy.layers, cache.layers, strict=True):
        new.keys = change(layer.keys)
        new.values = change(layer.values)
        new.dtype = layer.keys.dtype
        new.device = layer.keys.device
        new.is_initialized = True
    return copy


def pack_into_lanes(lengths: Sequence[int], owner: Sequence[int]) -> list[list[int]]:
    """Put rows of one prompt one after the other into lanes of equal width.

    Widths from 1 to 4 times the longest row are tried, and the cheapest is taken. The longest rows
    are placed first, each into the first lane with room.

    Args:
        lengths: Tokens of each row.
        owner: The prompt of each row. A lane holds rows of one prompt.

    Returns:
        For each lane the indices of its rows.
    """

    def fill(width: int) -> list[list[int]]:
        lanes: list[list[int]] = []
        for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
            for lane in lanes:
                used = sum(lengths[other] for other in lane)
                if owner[lane[0]] == owner[row] and used + lengths[row] <= width:
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
        cost = len(lanes) * width * (1 + width / ATTENTION_EQUALS_REST_AT)
        if cost < best_cost:
            best = lanes
            best_cost = cost
    return best


def distinct(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the distinct prompts in order of first appearance, and the index of each row's own."""
    index: dict[tuple[int, ...], int] = {}
    prompt_of_row = [index.setdefault(tuple(prompt), len(index)) for prompt in prompts]
    return list(index), prompt_of_row


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
    lengths = attention_mask[:, width:].sum(1).tolist()
    prompts, prompt_of_row = distinct(
        _unpadded_prompts(input_ids, attention_mask, completion_length)
    )
    dtype = next(model.parameters()).dtype
    no_label = torch.full((1, 1), NO_LABEL)

    def run(**inputs: Any) -> Any:
        labels = no_label.expand_as(inputs["input_ids"])
        return model(**inputs, shift_labels=labels, fused_lm_head=True)

    cache, mask = prompt_cache(run, prompts, pad_id, dtype)
    lanes = pack_into_lanes(lengths, prompt_of_row)
    span = max(max(sum(lengths[row] for row in lane) for lane in lanes), 1)
    ids = torch.zeros(len(lanes), span, dtype=torch.long)
    positions = torch.zeros(len(lanes), span, dtype=torch.long)
    labels = torch.full((len(lanes), span), NO_LABEL)
    segment = torch.full((len(lanes), span), -1)
    # Where each token of a completion is computed, and where its result belongs.
    source_indices = []
    target_indices = []
    for number, lane in enumerate(lanes):
        start = 0
        for row in lane:
            prompt = prompts[prompt_of_row[row]]
            length = lengths[row]
            completion = input_ids[row, width : width + length]
            place = slice(start, start + length)
            # The last prompt token runs with each completion, so that one pass gives every
            # log-probability.
            last_prompt_token = torch.tensor(prompt[-1:])
            ids[number, place] = torch.cat([last_prompt_token, completion[:-1]])[:length]
            positions[number, place] = len(prompt) - 1 + torch.arange(length)
            labels[number, place] = completion
            segment[number, place] = row
            source_indices.append(torch.arange(place.start, place.stop) + number * span)
            target_indices.append(torch.arange(length) + row * completion_length)
            start = place.stop
    owner = torch.tensor([prompt_of_row[lane[0]] for lane in lanes])
    sees_completion = (segment[:, :, None] == segment[:, None, :]).tril()
    sees_prompt = mask[owner].bool()[:, None].expand(-1, span, -1)
    output = model(
        input_ids=ids,
        attention_mask=_added_to_scores(torch.cat([sees_prompt, sees_completion], -1), dtype),
        position_ids=positions,
        past_key_values=copy_of_rows(cache, owner),
        shift_labels=labels,
        fused_lm_head=True,
    )

    def by_row(values: Tensor) -> Tensor:
        empty = values.new_zeros(len(input_ids) * completion_length)
        taken = values.flatten()[torch.cat(source_indices)]
        filled = empty.index_copy(0, torch.cat(target_indices), taken)
        return filled.view(len(input_ids), completion_length)

    entropies = None if output.entropy is None else by_row(output.entropy)
    return by_row(output.log_probs), entropies
