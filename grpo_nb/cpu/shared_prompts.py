"""The part of a GRPO step that is the same for every completion of a group, computed once: exact and differentiable.

As it comes, a step repeats the prompt for each completion, in sampling and again in the loss: with a 110-token prompt and
8 completions of 30 tokens, three quarters of all computed tokens are copies. Here the part that all prompts share (system
prompt, example turn) runs once, the rest of each distinct prompt once, and the completions run in one pass behind its key/value
cache, several to a row, so that next to nothing of it is padding. The arithmetic is the same as before (Prefix Grouper,
arXiv:2506.05433; packing as in arXiv:2107.02027), only its order differs, so results agree to rounding.

Not covered: models without a plain key/value cache (sliding-window, linear or hybrid attention), learned position tables,
images. `shared_prompt_obstacle` says which of these is in the way, and the caller then takes the stock path of TRL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.models.import_unsloth import import_unsloth

import_unsloth()

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from grpo_nb.cpu.attention import grouped_attention
from grpo_nb.cpu.head import tiled_head

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# What prompts had in common, and its keys and values.
Kept = dict[tuple[int, ...], DynamicCache]
# In a lane of this many tokens attention costs about as much as all else: lanes are not made longer without need.
_ATTENTION_TOKENS = 2000
# Up to this many tokens, prompts run in one row: behind what they have in common, none of them seeing another.
_ONE_ROW = 384
# Below this many tokens a pass of its own for what all prompts have in common costs more than it saves.
_SHORTEST_COMMON_PREFIX = 16


def shared_prompt_obstacle(model: PreTrainedModel, longest: int | None = None) -> str | None:
    """Say why the shared-prompt path cannot run this model, or return None if it can.

    Args:
        model: A causal language model, plain or wrapped by PEFT.
        longest: Prompt and completion together, in tokens. Sliding-window layers are no obstacle as long as everything fits
            into the window; not given, they are.
    """
    config = model.config.get_text_config()
    name = config.model_type
    if next(model.parameters()).device.type != "cpu":
        return "the model is on an accelerator, where vLLM or Unsloth's own generation is used"
    if config is not model.config:
        return f"{name} is multimodal"
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if others := layer_types - {"full_attention", "sliding_attention"}:
        return f"{name} has {', '.join(sorted(others))} layers"
    window = getattr(config, "sliding_window", None)
    slides = "sliding_attention" in layer_types or (window and getattr(config, "use_sliding_window", True))
    if slides and (window is None or longest is None or longest > window):
        return f"{name} uses a sliding window of {window} tokens, which prompt and completion may exceed"
    if getattr(config, "rope_parameters", None) is None:
        return f"{name} has no rotary positions"
    if getattr(model, "is_gradient_checkpointing", False):
        return "gradient checkpointing drops the key/value cache"
    return None


def batch_obstacle(input_ids: Tensor, attention_mask: Tensor, completion_length: int) -> str | None:
    """Say why a batch has to take the stock path, or return None if its prompts can be shared.

    Args:
        input_ids, attention_mask: (B, P + C), as for `shared_prompt_logps`.
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
    return [tuple(row[width - n :]) for row, n in zip(ids[:, :width].tolist(), lengths, strict=True)]


def left_padded(rows: Sequence[Sequence[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """Rows of token ids as one tensor (N, L), with its mask."""
    width = max(map(len, rows))
    ids = torch.tensor([[pad_id] * (width - len(row)) + list(row) for row in rows])
    return ids, torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])


def prompt_cache(
    run: Callable[..., Any], prompts: Sequence[Sequence[int]], pad_id: int, dtype: torch.dtype, kept: Kept | None = None
) -> tuple[DynamicCache, Tensor]:
    """Run all but the last token of each prompt, what they have in common once; return cache (P, ...) and mask (P, L).

    Args:
        run: The model.
        prompts: P lists of token ids.
        pad_id: Any token id.
        dtype: The number type of the model.
        kept: What prompts had in common the last time; only where the weights are the same and no gradient is taken.
    """
    heads = [tuple(prompt[:-1]) for prompt in prompts]
    first, last = min(heads), max(heads)
    common = next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))
    if len(heads) == 1 or common < _SHORTEST_COMMON_PREFIX:
        common = 0
    ids, tail_mask = left_padded([head[common:] for head in heads], pad_id)
    mask = torch.cat([torch.ones(len(heads), common, dtype=torch.long), tail_mask], 1)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    cache, shared, tails = DynamicCache(), torch.tensor([first[:common]]), tail_mask.bool()
    # In 16 bits the order of computing turns more than rounding should: there prompts stay in rows of their own.
    is_exact = dtype in (torch.float32, torch.float64)
    if common and kept is None and is_exact and common + len(ids[tails]) <= _ONE_ROW:
        segment = torch.cat([torch.full((common,), -1), tails.nonzero()[:, 0]])
        sees = ((segment == -1) | (segment[:, None] == segment)).tril()
        run(
            input_ids=torch.cat([shared[0], ids[tails]])[None],
            attention_mask=_added(sees[None], dtype),
            position_ids=torch.cat([torch.arange(common), positions[:, common:][tails]])[None],
            past_key_values=cache,
        )
        places = torch.zeros_like(ids)
        places[tails] = common + torch.arange(len(ids[tails]))
        cache = _places(cache, torch.cat([torch.arange(common).expand(len(heads), -1), places], 1))
    else:
        if common:
            # Kept or not, the same pass made it: else a run that was resumed would differ in rounding from one that was not.
            kept = {} if kept is None else kept
            if first[:common] not in kept:
                run(input_ids=shared, attention_mask=mask[:1, :common], past_key_values=cache)
                kept.clear()
            known = kept.setdefault(first[:common], cache)
            cache = copy_of_rows(known, torch.zeros(len(heads), dtype=torch.long))
        if ids.shape[1]:
            run(input_ids=ids, attention_mask=mask, position_ids=positions[:, common:], past_key_values=cache)
    return cache, mask


def _added(sees: Tensor, dtype: torch.dtype) -> Tensor:
    """Which token (B, Q) sees which (B, Q, K), as what is added to the scores: that every attention implementation takes."""
    return torch.zeros(sees.shape, dtype=dtype).masked_fill(~sees, torch.finfo(dtype).min)[:, None]


def copy_of_rows(cache: DynamicCache, rows: Tensor) -> DynamicCache:
    """A cache whose rows are these of another one."""
    # index_select, unlike the indexing of batch_select_indices, has a fast backward (index_add) on the CPU.
    return _mapped(cache, lambda states: states.index_select(0, rows))


def _places(cache: DynamicCache, places: Tensor) -> DynamicCache:
    """A cache (P, L) made of these places of a cache of one row."""

    def take(states: Tensor) -> Tensor:
        taken = states[0].index_select(1, places.flatten())
        return taken.view(len(taken), *places.shape, -1).transpose(0, 1)

    return _mapped(cache, take)


def _mapped(cache: DynamicCache, change: Callable[[Tensor], Tensor]) -> DynamicCache:
    copy = DynamicCache()
    copy.layers = [DynamicLayer() for _ in cache.layers]
    for new, layer in zip(copy.layers, cache.layers, strict=True):
        new.keys, new.values = change(layer.keys), change(layer.values)
        new.dtype, new.device, new.is_initialized = layer.keys.dtype, layer.keys.device, True
    return copy


def lanes(lengths: Sequence[int], owner: Sequence[int]) -> list[list[int]]:
    """Put rows one behind the other into lanes of one width, rows of one prompt each, with little room left over.

    Of some widths the one that costs least; the longest rows are placed first, each into the first lane with room.
    """

    def fill(width: int) -> list[list[int]]:
        rows_of: list[list[int]] = []
        for row in sorted(range(len(lengths)), key=lambda row: -lengths[row]):
            own = (lane for lane in rows_of if owner[lane[0]] == owner[row])
            lane = next((lane for lane in own if sum(lengths[i] for i in lane) + lengths[row] <= width), None)
            rows_of.append([row]) if lane is None else lane.append(row)
        return rows_of

    longest = max(max(lengths), 1)
    tried = {width: fill(width) for width in (longest + longest * i // 4 for i in range(13))}
    return tried[min(tried, key=lambda width: len(tried[width]) * width * (1 + width / _ATTENTION_TOKENS))]


def distinct(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """The distinct prompts in order of first appearance, and for each row the index of its own."""
    index: dict[tuple[int, ...], int] = {}
    rows = [index.setdefault(tuple(prompt), len(index)) for prompt in prompts]
    return list(index), rows


@grouped_attention
@tiled_head
def shared_prompt_logps(
    model: Any,
    input_ids: Tensor,
    attention_mask: Tensor,
    completion_length: int,
    *,
    pad_id: int,
    kept: Kept | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Per-token log-probabilities and entropies of completions, each distinct prompt run once, differentiable.

    Equal to a plain pass over `input_ids` up to the order of summation: 1e-4 in float32 for values and LoRA gradients.
    With LoRA dropout the mask of a prompt is drawn once and not for each of its completions: each completion has the same
    distribution as in a plain pass, but those of a group share the noise of their prompt, and no seed gives equal numbers.

    Args:
        model: A model patched by TRL's `add_fused_lm_head`, which also applies the sampling temperature.
        input_ids: (B, P + C) left-padded prompts followed by right-padded completions, `batch_obstacle` of them None.
        attention_mask: (B, P + C), 1 for real tokens.
        completion_length: C.
        pad_id: Any token id; masked positions are filled with it.
        kept: As in `prompt_cache`.

    Returns:
        `(log_probs, entropies)`, both (B, C) float32 and zero where masked, in nats; entropies are None where the model
        was patched without them.
    """
    width = input_ids.shape[1] - completion_length
    lengths = attention_mask[:, width:].sum(1).tolist()
    prompts, prompt_of_row = distinct(_unpadded_prompts(input_ids, attention_mask, completion_length))

    dtype = next(model.parameters()).dtype
    unscored = torch.full((1, 1), -100)

    def run(**inputs: Any) -> Any:
        return model(**inputs, shift_labels=unscored.expand_as(inputs["input_ids"]), fused_lm_head=True)

    cache, mask = prompt_cache(run, prompts, pad_id, dtype, kept)
    packed = lanes(lengths, prompt_of_row)
    span = max(max(sum(lengths[row] for row in lane) for lane in packed), 1)
    ids, positions = (torch.zeros(len(packed), span, dtype=torch.long) for _ in range(2))
    labels, segment = (torch.full((len(packed), span), fill) for fill in (-100, -1))
    source, target = [], []
    for i, lane in enumerate(packed):
        start = 0
        for row in lane:
            prompt, completion = prompts[prompt_of_row[row]], input_ids[row, width : width + lengths[row]]
            at = slice(start, start + lengths[row])
            # The last prompt token runs with each completion, so that one pass yields every log-probability.
            ids[i, at] = torch.cat([torch.tensor(prompt[-1:]), completion[:-1]])[: lengths[row]]
            positions[i, at] = len(prompt) - 1 + torch.arange(lengths[row])
            labels[i, at], segment[i, at] = completion, row
            source.append(torch.arange(at.start, at.stop) + i * span)
            target.append(torch.arange(lengths[row]) + row * completion_length)
            start = at.stop
    owner = torch.tensor([prompt_of_row[lane[0]] for lane in packed])
    same = (segment[:, :, None] == segment[:, None, :]).tril()
    sees = torch.cat([mask[owner].bool()[:, None].expand(-1, span, -1), same], -1)
    output = model(
        input_ids=ids, attention_mask=_added(sees, dtype), position_ids=positions,
        past_key_values=copy_of_rows(cache, owner), shift_labels=labels, fused_lm_head=True,
    )  # fmt: skip

    def by_row(values: Tensor) -> Tensor:
        empty = values.new_zeros(len(input_ids) * completion_length)
        filled = empty.index_copy(0, torch.cat(target), values.flatten()[torch.cat(source)])
        return filled.view(len(input_ids), completion_length)

    return by_row(output.log_probs), None if output.entropy is None else by_row(output.entropy)
