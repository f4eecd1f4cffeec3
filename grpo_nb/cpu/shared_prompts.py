"""Compute once what all completions of a group share: exact and differentiable.

A GRPO step as TRL runs it repeats the prompt for each completion, in sampling and again in the
loss. With a prompt of 110 tokens and 8 completions of 30, three quarters of all computed tokens
are copies. Here the prefix that all prompts share (system prompt, example turn) runs once, and
the rest of each distinct prompt once. The completions run in one pass after its key/value cache,
several in one row, so that little is padding. The arithmetic is the same (Prefix Grouper,
arXiv:2506.05433; packing as in arXiv:2107.02027). Only its order differs, so results agree up to
rounding.

Not covered: models without a plain key/value cache (sliding-window, linear or hybrid attention),
learned position tables, images. `shared_prompt_obstacle` gives the reason, and the caller then
takes TRL's own path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.models.import_unsloth import import_unsloth

import_unsloth()

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_nb.cpu.attention import grouped_attention
from grpo_nb.cpu.head import tiled_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

#: A pass of its own for a shared prefix shorter than this costs more than it saves.
MIN_PREFIX_TOKENS = 16
#: Label of tokens that are not scored, as everywhere in PyTorch.
UNSCORED = -100


def shared_prompt_obstacle(model: PreTrainedModel, longest: int | None = None) -> str | None:
    """Return why the shared-prompt path cannot run this model, or None if it can.

    Args:
        model: Causal language model, plain or wrapped by PEFT.
        longest: Tokens of prompt and completion together. Sliding-window layers are no obstacle as
            long as everything fits into the window; if None, they are.
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


@grouped_attention()
@tiled_head()
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
    for values and LoRA gradients. With LoRA dropout, the mask of a prompt is drawn once and not for
    each of its completions: each completion has the same distribution as in a plain pass, but those
    of a group share the noise of their prompt, and no seed gives equal numbers.

    Args:
        model: A model patched by TRL's `add_fused_lm_head`, which also applies the temperature.
        input_ids: (B, P + C) left-padded prompts followed by right-padded completions, for which
            `batch_obstacle` returns None.
        attention_mask: (B, P + C), 1 for real tokens.
        completion_length: C.
        pad_id: Any token id. Masked positions are filled with it.

    Returns:
        `(log_probs, entropies)`, both (B, C) float32 in nats, and zero where masked. Entropies are
        None where the model was patched without them.
    """
    width = input_ids.shape[1] - completion_length
    lengths = attention_mask[:, width:].sum(1).tolist()
    prompts, prompt_of_row = distinct(
        _unpadded_prompts(input_ids, attention_mask, completion_length)
    )

    def run(**inputs: Any) -> Any:
        labels = torch.full_like(inputs["input_ids"], UNSCORED)
        return model(**inputs, shift_labels=labels, fused_lm_head=True)

    cache, prompt_mask = prompt_cache(run, prompts, pad_id)
    lanes = pack_into_lanes(lengths, prompt_of_row)
    span = max(max(sum(lengths[row] for row in lane) for lane in lanes), 1)
    shape = (len(lanes), span)
    ids = torch.zeros(shape, dtype=torch.long)
    positions = torch.zeros(shape, dtype=torch.long)
    labels = torch.full(shape, UNSCORED)
    # Row of the batch that each token of a lane belongs to, and its place in the flattened (B, C).
    row_of_token = torch.full(shape, -1)
    place_of_token = torch.full(shape, -1)
    for number, lane in enumerate(lanes):
        start = 0
        for row in lane:
            prompt = prompts[prompt_of_row[row]]
            length = lengths[row]
            completion = input_ids[row, width : width + length]
            place = slice(start, start + length)
            # The last prompt token runs with each completion, so that one pass gives every
            # log-probability.
            tokens = torch.cat([torch.tensor(prompt[-1:]), completion])
            ids[number, place] = tokens[:length]
            positions[number, place] = len(prompt) - 1 + torch.arange(length)
            labels[number, place] = completion
            row_of_token[number, place] = row
            place_of_token[number, place] = row * completion_length + torch.arange(length)
            start = place.stop
    owner = torch.tensor([prompt_of_row[lane[0]] for lane in lanes])
    sees_prompt = prompt_mask[owner].bool()[:, None].expand(-1, span, -1)
    sees_completion = (row_of_token[:, :, None] == row_of_token[:, None, :]).tril()
    dtype = next(model.parameters()).dtype
    output = model(
        input_ids=ids,
        attention_mask=_added_to_scores(torch.cat([sees_prompt, sees_completion], -1), dtype),
        position_ids=positions,
        past_key_values=_rows_of(cache, owner),
        shift_labels=labels,
        fused_lm_head=True,
    )
    is_scored = place_of_token >= 0

    def by_row(values: Tensor) -> Tensor:
        empty = values.new_zeros(len(input_ids) * completion_length)
        filled = empty.index_copy(0, place_of_token[is_scored], values[is_scored])
        return filled.view(len(input_ids), completion_length)

    entropies = None if output.entropy is None else by_row(output.entropy)
    return by_row(output.log_probs), entropies


def distinct(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """Return the distinct prompts in order of first appearance, and the index of each row's own."""
    index: dict[tuple[int, ...], int] = {}
    prompt_of_row = [index.setdefault(tuple(prompt), len(index)) for prompt in prompts]
    return list(index), prompt_of_row


def left_padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Return rows of token ids as one tensor (N, L), and its mask."""
    ids = [torch.tensor(row, dtype=torch.long) for row in rows]
    ones = [torch.ones_like(row) for row in ids]
    padded = pad_sequence(ids, batch_first=True, padding_value=pad_id, padding_side="left")
    return padded, pad_sequence(ones, batch_first=True, padding_side="left")


def prompt_cache(
    run: Callable[..., Any], prompts: Sequence[Sequence[int]], pad_id: int
) -> tuple[DynamicCache, Tensor]:
    """Run all but the last token of each prompt, and their shared prefix once.

    Args:
        run: The model.
        prompts: P lists of token ids.
        pad_id: Any token id.

    Returns:
        The cache, with P rows, and its mask (P, L).
    """
    heads = [tuple(prompt[:-1]) for prompt in prompts]
    prefix = _shared_prefix(heads)
    if len(heads) == 1 or len(prefix) < MIN_PREFIX_TOKENS:
        prefix = ()
    common = len(prefix)
    tails, tail_mask = left_padded([head[common:] for head in heads], pad_id)
    mask = torch.cat([torch.ones(len(heads), common, dtype=torch.long), tail_mask], 1)
    cache = DynamicCache()
    if prefix:
        run(
            input_ids=torch.tensor([prefix]),
            attention_mask=mask[:1, :common],
            past_key_values=cache,
        )
        cache = _rows_of(cache, torch.zeros(len(heads), dtype=torch.long))
    if tails.shape[1]:
        positions = (mask.cumsum(1) - 1).clamp(min=0)
        run(
            input_ids=tails,
            attention_mask=mask,
            position_ids=positions[:, common:],
            past_key_values=cache,
        )
    return cache, mask


def _shared_prefix(rows: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    # Rows between the first and the last in sorted order share what these two share.
    first = min(rows)
    last = max(rows)
    for place, (one, other) in enumerate(zip(first, last, strict=False)):
        if one != other:
            return first[:place]
    return first


def _unpadded_prompts(ids: Tensor, mask: Tensor, completion_length: int) -> list[tuple[int, ...]]:
    width = ids.shape[1] - completion_length
    lengths = mask[:, :width].sum(1).tolist()
    rows = zip(ids[:, :width].tolist(), lengths, strict=True)
    return [tuple(row[width - length :]) for row, length in rows]


def _added_to_scores(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Return which token (B, Q) sees which (B, Q, K), as numbers that are added to the scores.

    Every attention implementation takes a mask in this form.
    """
    hidden = torch.finfo(dtype).min
    return torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, hidden)[:, None]


def _rows_of(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """Return a cache whose rows are these rows of another one."""
    copy = DynamicCache()
    copy.layers = [DynamicLayer() for _ in cache.layers]
    for new, layer in zip(copy.layers, cache.layers, strict=True):
        # index_select, unlike the indexing of batch_select_indices, has a fast backward on a CPU.
        new.keys = layer.keys.index_select(0, rows)
        new.values = layer.values.index_select(0, rows)
        new.dtype = layer.keys.dtype
        new.device = layer.keys.device
        new.is_initialized = True
    return copy


def pack_into_lanes(lengths: Sequence[int], owner: Sequence[int]) -> list[list[int]]:
    """Put rows of one prompt one after the other into lanes as wide as the longest row.

    The longest rows are placed first, each into the first lane of its prompt with room.

    Args:
        lengths: Tokens of each row.
        owner: The prompt of each row. A lane holds rows of one prompt.

    Returns:
        For each lane the indices of its rows.
    """
    width = max(lengths)
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
