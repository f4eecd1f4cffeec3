"""Sampling a group and its log-probabilities on a CPU, with every distinct prompt computed once.

As it comes, a GRPO step repeats the prompt for each completion of its group, in sampling and again in the loss: with a
110-token prompt and 8 completions of 30 tokens, three quarters of all computed tokens are copies. Here the part that all
prompts share (system prompt, example turn) runs once, the rest of each distinct prompt once, and the completions run
behind the repeated key/value cache. Completions of similar length run together, so that little of it is padding. The
arithmetic is the same as before (Prefix Grouper, arXiv:2506.05433), only its order differs, so results agree to rounding.

Sampling also folds the LoRA into a copy of each weight for the time of a rollout: one matrix product per layer in place
of three, and a 4-bit base is unpacked once in place of once per token. The trained tensors are never touched.

Not covered: models without a plain key/value cache (sliding-window, linear or hybrid attention), learned position tables,
images, tensor or data parallelism. `shared_prompt_obstacle` says which of these is in the way, and the caller then takes
the stock path of TRL. On a GPU this module is not used: vLLM or Unsloth's own generation is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from grpo_nb.models import import_unsloth

import_unsloth()

import torch
from torch.nn import functional
from transformers import DynamicCache, GenerationConfig
from transformers.cache_utils import DynamicLayer

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# A further pass over the layers costs about as much as this many padding tokens (measured: benchmarks/step_time.py).
_PASS_OVERHEAD_TOKENS = 48
# Below this many tokens a pass of its own for what all prompts have in common costs more than it saves.
_SHORTEST_COMMON_PREFIX = 16


def shared_prompt_obstacle(model: PreTrainedModel) -> str | None:
    """Say why the shared-prompt path cannot run this model, or return None if it can.

    Args:
        model: A causal language model, plain or wrapped by PEFT.
    """
    config = model.config.get_text_config()
    name = config.model_type
    if next(model.parameters()).device.type != "cpu":
        return "the model is on an accelerator, where vLLM or Unsloth's own generation is used"
    if config is not model.config:
        return f"{name} is multimodal"
    layer_types = set(getattr(config, "layer_types", None) or ["full_attention"])
    if layer_types != {"full_attention"}:
        return f"{name} has {', '.join(sorted(layer_types - {'full_attention'}))} layers"
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        return f"{name} uses a sliding window"
    if getattr(config, "rope_parameters", None) is None:
        return f"{name} has no rotary positions"
    if getattr(model, "is_gradient_checkpointing", False):
        return "gradient checkpointing drops the key/value cache"
    return None


class _GrowingLayer(DynamicLayer):
    """A key/value layer that writes into room reserved beforehand; `DynamicLayer` copies everything at each token."""

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor, room: int) -> None:
        super().__init__()
        self.used = layer.keys.shape[2]
        self._keys, self._values = (self._reserve(t, rows, room) for t in (layer.keys, layer.values))
        self.dtype, self.device, self.is_initialized = layer.keys.dtype, layer.keys.device, True
        self._expose()

    @staticmethod
    def _reserve(states: torch.Tensor, rows: torch.Tensor, room: int) -> torch.Tensor:
        _, heads, used, width = states.shape
        reserved = states.new_empty(len(rows), heads, used + room, width)
        torch.index_select(states, 0, rows, out=reserved[:, :, :used])
        return reserved

    def _expose(self) -> None:
        self.keys, self.values = self._keys[:, :, : self.used], self._values[:, :, : self.used]

    def update(self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        end = self.used + key_states.shape[2]
        self._keys[:, :, self.used : end], self._values[:, :, self.used : end] = key_states, value_states
        self.used = end
        self._expose()
        return self.keys, self.values

    def keep_rows(self, rows: torch.Tensor) -> None:
        self._keys, self._values = self._keys[rows], self._values[rows]
        self._expose()


def _common_prefix_length(prompts: Sequence[Sequence[int]]) -> int:
    first, last = min(prompts), max(prompts)
    return next((i for i, pair in enumerate(zip(first, last, strict=False)) if pair[0] != pair[1]), len(first))


def _prompt_cache(
    run: Callable[..., Any], prompts: Sequence[Sequence[int]], pad_id: int
) -> tuple[DynamicCache, torch.Tensor]:
    """Run all but the last token of each prompt, what they have in common once; return cache (P, ...) and mask (P, L)."""
    heads = [prompt[:-1] for prompt in prompts]
    common = _common_prefix_length(heads) if len(heads) > 1 else 0
    if common < _SHORTEST_COMMON_PREFIX:
        common = 0
    cache = DynamicCache()
    mask = torch.ones(len(heads), common, dtype=torch.long)
    if common:
        run(input_ids=torch.tensor([heads[0][:common]]), attention_mask=mask[:1], past_key_values=cache)
        _select_rows(cache, torch.zeros(len(heads), dtype=torch.long))
    tails = [head[common:] for head in heads]
    width = max(map(len, tails))
    if width:
        ids = torch.tensor([[pad_id] * (width - len(tail)) + list(tail) for tail in tails])
        tail_mask = torch.tensor([[0] * (width - len(tail)) + [1] * len(tail) for tail in tails])
        mask = torch.cat([mask, tail_mask], 1)
        positions = (common + tail_mask.cumsum(1) - 1).clamp(min=0)
        run(input_ids=ids, attention_mask=mask, position_ids=positions, past_key_values=cache)
    return cache, mask


def _select_rows(cache: DynamicCache, rows: torch.Tensor) -> None:
    for layer in cache.layers:
        # index_select, unlike the indexing of batch_select_indices, has a fast backward (index_add) on the CPU.
        layer.keys, layer.values = layer.keys.index_select(0, rows), layer.values.index_select(0, rows)


def _copy_of_rows(cache: DynamicCache, rows: torch.Tensor) -> DynamicCache:
    copy = DynamicCache()
    copy.layers = [DynamicLayer() for _ in cache.layers]
    for new, layer in zip(copy.layers, cache.layers, strict=True):
        new.keys, new.values = layer.keys.index_select(0, rows), layer.values.index_select(0, rows)
        new.dtype, new.device, new.is_initialized = layer.keys.dtype, layer.keys.device, True
    return copy


def _length_buckets(lengths: Sequence[int]) -> list[list[int]]:
    """Split rows into passes of similar length: the split with the least padding plus overhead (dynamic programming)."""
    order = sorted(range(len(lengths)), key=lambda row: lengths[row])
    best: list[tuple[float, int]] = [(0.0, 0)]
    for end in range(1, len(order) + 1):
        width = max(lengths[order[end - 1]], 1)
        best.append(min((best[i][0] + (end - i) * width + _PASS_OVERHEAD_TOKENS, i) for i in range(end)))
    buckets, end = [], len(order)
    while end:
        start = best[end][1]
        buckets.append(order[start:end])
        end = start
    return buckets[::-1]


def _distinct(prompts: Sequence[Sequence[int]]) -> tuple[list[tuple[int, ...]], list[int]]:
    """The distinct prompts in order of first appearance, and for each row the index of its own."""
    index: dict[tuple[int, ...], int] = {}
    rows = [index.setdefault(tuple(prompt), len(index)) for prompt in prompts]
    return list(index), rows


def shared_prompt_logps(
    model: Callable[..., Any],
    input_ids: torch.Tensor,
    attention_mask: torch.Tensor,
    completion_length: int,
    *,
    pad_id: int,
) -> tuple[torch.Tensor, torch.Tensor | None] | None:
    """Per-token log-probabilities and entropies of completions, each distinct prompt run once, differentiable.

    Equal to a plain pass over `input_ids` up to the order of summation: 1e-4 in float32 for values and LoRA gradients.

    Args:
        model: A model patched by TRL's `add_fused_lm_head`, which also applies the sampling temperature.
        input_ids: (B, P + C) left-padded prompts followed by right-padded completions.
        attention_mask: (B, P + C), 1 for real tokens.
        completion_length: C.
        pad_id: Any token id; masked positions are filled with it.

    Returns:
        `(log_probs, entropies)`, both (B, C) float32 and zero where masked, in nats; entropies are None where the model
        was patched without them. None if no prompt occurs twice or a mask is not contiguous: take the stock path then.
    """
    width = input_ids.shape[1] - completion_length
    prompt_lengths = attention_mask[:, :width].sum(1).tolist()
    lengths = attention_mask[:, width:].sum(1).tolist()
    rows = input_ids.tolist()
    prompts, prompt_of_row = _distinct([row[width - n : width] for row, n in zip(rows, prompt_lengths, strict=True)])
    columns = torch.arange(completion_length)
    contiguous = torch.equal(attention_mask[:, width:].bool(), columns < torch.tensor(lengths)[:, None])
    if len(prompts) == len(rows) or min(map(len, prompts)) < 2 or not contiguous:
        return None

    unscored = torch.full((1, 1), -100)
    cache, mask = _prompt_cache(
        lambda **inputs: model(**inputs, shift_labels=unscored.expand_as(inputs["input_ids"]), fused_lm_head=True),
        prompts,
        pad_id,
    )
    log_probs, entropies = [], []
    buckets = _length_buckets(lengths)
    for bucket in buckets:
        span = max(max(lengths[row] for row in bucket), 1)
        at = torch.tensor(bucket)
        owner = torch.tensor([prompt_of_row[row] for row in bucket])
        targets = input_ids[at, width : width + span]
        target_mask = attention_mask[at, width : width + span]
        last = torch.tensor([[prompts[i][-1]] for i in owner.tolist()])
        start = torch.tensor([[len(prompts[i]) - 1] for i in owner.tolist()])
        output = model(
            # The last prompt token runs with each completion, so that one pass yields every log-probability.
            input_ids=torch.cat([last, targets[:, :-1]], 1),
            attention_mask=torch.cat([mask[owner], torch.ones_like(last), target_mask[:, :-1]], 1),
            position_ids=start + torch.arange(span),
            past_key_values=_copy_of_rows(cache, owner),
            shift_labels=targets.masked_fill(target_mask == 0, -100),
            fused_lm_head=True,
        )
        padding = (0, completion_length - span)
        log_probs.append(functional.pad(output.log_probs, padding))
        if output.entropy is not None:
            entropies.append(functional.pad(output.entropy, padding))
    back = torch.empty(len(rows), dtype=torch.long)
    back[torch.tensor([row for bucket in buckets for row in bucket])] = torch.arange(len(rows))
    return torch.cat(log_probs)[back], torch.cat(entropies)[back] if entropies else None


@contextmanager
def folded_lora(model: torch.nn.Module) -> Iterator[None]:
    """Within the block, each LoRA layer computes one matrix product with a folded copy of its weight.

    Layers that are not plain LoRA on a linear layer (DoRA, several active adapters, a LoRA bias) keep their own forward.
    The trained tensors and the base are read, never written. Needs memory for one more copy of the adapted weights.
    """
    from peft.tuners.lora import LoraLayer

    folded = []
    try:
        for layer in model.modules():
            if not isinstance(layer, LoraLayer) or layer.disable_adapters or layer.merged:
                continue
            adapters = [name for name in layer.active_adapters if name in layer.lora_A]
            if len(adapters) != 1 or layer.lora_variant or layer.lora_bias.get(adapters[0]):
                continue
            base = layer.get_base_layer()
            if not isinstance(base, torch.nn.Linear):
                continue
            with torch.no_grad():
                weight = _plain_weight(base)
                weight = weight + layer.get_delta_weight(adapters[0]).to(weight.dtype)
            layer.forward = lambda x, *_, w=weight, b=base.bias, **__: functional.linear(x.to(w.dtype), w, b)
            folded.append(layer)
        yield
    finally:
        for layer in folded:
            del layer.forward


def _plain_weight(linear: torch.nn.Linear) -> torch.Tensor:
    state = getattr(linear.weight, "quant_state", None)
    if state is None:
        return linear.weight
    from bitsandbytes.functional import dequantize_4bit

    return dequantize_4bit(linear.weight.data, state)


@torch.no_grad()
def sample(model: PreTrainedModel, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> list[list[int]]:
    """Sample one completion for each row of `prompts`; rows with the same prompt share its computation.

    Draws what `model.generate` draws: the same logits processors (transformers' own) and the same use of the random
    state, so the same seed gives the same tokens as long as rounding does not turn a draw. Greedy when
    `config.do_sample` is false. LoRA dropout does not apply while sampling.

    Args:
        model: A causal language model, plain or wrapped by PEFT, for which `shared_prompt_obstacle` is None.
        prompts: N lists of token ids, at least two tokens each; repeat a prompt for each completion of its group.
        config: `max_new_tokens`, `eos_token_id`, `pad_token_id` and the sampling parameters.

    Returns:
        N lists of token ids, up to and with the end token, at most `max_new_tokens` long.
    """
    distinct, owner = _distinct(prompts)
    config, _ = model._prepare_generation_config(config)
    model._prepare_special_tokens(config, kwargs_has_attention_mask=True, device="cpu")
    limit = config.max_new_tokens
    eos = None if config.eos_token_id is None else torch.tensor(config.eos_token_id).reshape(-1)
    pad_id = int(config.pad_token_id) if config.pad_token_id is not None else 0
    widest = max(map(len, prompts))
    padded = torch.tensor([[pad_id] * (widest - len(prompt)) + list(prompt) for prompt in prompts])
    processors = model._get_logits_processor(generation_config=config, input_ids_seq_length=widest, device="cpu")

    training = model.training
    model.eval()
    try:
        with folded_lora(model):
            cache, prompt_mask = _prompt_cache(
                lambda **inputs: model(**inputs, use_cache=True, logits_to_keep=1), distinct, pad_id
            )
            rows = torch.tensor(owner)
            cache.layers = [_GrowingLayer(layer, rows, limit) for layer in cache.layers]
            mask = torch.cat([prompt_mask[rows], torch.ones(len(rows), limit, dtype=torch.long)], 1)
            state = _Decoding(
                ids=torch.cat([padded, padded.new_full((len(padded), limit), pad_id)], 1),
                start=torch.tensor([[len(prompt) - 1] for prompt in prompts]),
                mask=mask,
                cache=cache,
            )
            lengths = _decode(model, state, processors, bool(config.do_sample), eos, limit, widest)
    finally:
        model.train(training)
    return [row[widest : widest + n] for row, n in zip(state.ids.tolist(), lengths, strict=True)]


class _Decoding:
    """What a rollout in progress knows: all rows' tokens, and cache, mask and position of the rows still running."""

    def __init__(self, ids: torch.Tensor, start: torch.Tensor, mask: torch.Tensor, cache: DynamicCache) -> None:
        self.ids, self.start, self.mask, self.cache = ids, start, mask, cache
        self.rows = torch.arange(len(ids))

    def keep(self, going: torch.Tensor) -> None:
        at = going.nonzero()[:, 0]
        self.rows, self.start, self.mask = self.rows[at], self.start[at], self.mask[at]
        for layer in self.cache.layers:
            layer.keep_rows(at)


def _decode(
    model: PreTrainedModel,
    state: _Decoding,
    processors: Any,
    is_sampled: bool,
    eos: torch.Tensor | None,
    limit: int,
    widest: int,
) -> list[int]:
    total = len(state.ids)
    lengths = torch.full((total,), limit)
    is_done = torch.zeros(total, dtype=torch.bool)
    draws = None
    for t in range(limit):
        end = widest + t
        seen = state.cache.get_seq_length() + 1
        logits = model(
            input_ids=state.ids[state.rows, end - 1 : end],
            attention_mask=state.mask[:, :seen],
            position_ids=state.start + t,
            past_key_values=state.cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]
        scores = processors(state.ids[state.rows, :end], logits.float())
        if is_sampled:
            # One exponential for each row and word, ended rows too, as multinomial draws them inside generate.
            draws = torch.empty(total, scores.shape[1]) if draws is None else draws
            draws.exponential_()
            chosen = (scores.softmax(-1) / draws[state.rows]).argmax(-1)
        else:
            chosen = scores.argmax(-1)
        still = ~is_done[state.rows]
        state.ids[state.rows[still], end] = chosen[still]
        if eos is not None:
            ended = still & torch.isin(chosen, eos)
            lengths[state.rows[ended]] = t + 1
            is_done[state.rows[ended]] = True
        going = ~is_done[state.rows]
        if not going.any():
            break
        # Rows that ended leave the batch, a few at a time: each departure copies the cache of the others.
        if going.sum() <= 0.875 * len(going):
            state.keep(going)
    return lengths.tolist()


@dataclasses.dataclass(frozen=True)
class Completion:
    """One generated completion."""

    text: str
    tokens: int
    is_cut: bool
    """It reached the length limit without an end token."""


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[dict[str, str]]],
    *,
    max_completion_length: int,
    temperature: float = 0.0,
    batch_size: int = 48,
    progress: Callable[[int], None] | None = None,
) -> list[Completion]:
    """Complete chat prompts, greedily at temperature 0, in the order given.

    Args:
        model: As it is: with its adapter on or off.
        tokenizer: Its tokenizer.
        prompts: Chat messages; the chat template and the generation prompt are applied here.
        max_completion_length: Tokens.
        temperature: Above 0, tokens are drawn from the whole vocabulary.
        batch_size: Prompts at a time.
        progress: Called with the number of prompts done after each batch.
    """
    encoded = tokenizer.apply_chat_template(list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True)
    ids = encoded["input_ids"]
    end_tokens = model.generation_config.eos_token_id
    end_tokens = {tokenizer.eos_token_id, *(end_tokens if isinstance(end_tokens, list) else [end_tokens])} - {None}
    sampling = {"do_sample": True, "temperature": temperature, "top_k": 0} if temperature > 0 else {"do_sample": False}
    config = GenerationConfig(
        max_new_tokens=max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(end_tokens),
        disable_compile=True,
        **sampling,
    )
    run = sample if shared_prompt_obstacle(model) is None else _stock_sample
    completions: dict[int, Completion] = {}
    # Prompts of similar length together, so that little is padding.
    order = sorted(range(len(ids)), key=lambda i: len(ids[i]))
    for start in range(0, len(order), batch_size):
        batch = order[start : start + batch_size]
        for row, tokens in zip(batch, run(model, [ids[row] for row in batch], config), strict=True):
            text = tokenizer.decode(tokens, skip_special_tokens=True)
            completions[row] = Completion(text, len(tokens), not tokens or tokens[-1] not in end_tokens)
        if progress is not None:
            progress(len(completions))
    return [completions[row] for row in range(len(ids))]


@torch.no_grad()
def _stock_sample(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], config: GenerationConfig
) -> list[list[int]]:
    """What `sample` does, through `model.generate`."""
    widest = max(map(len, prompts))
    ids = torch.tensor([[config.pad_token_id] * (widest - len(p)) + list(p) for p in prompts], device=model.device)
    mask = torch.tensor([[0] * (widest - len(p)) + [1] * len(p) for p in prompts], device=model.device)
    training = model.training
    model.eval()
    try:
        rows = model.generate(input_ids=ids, attention_mask=mask, generation_config=config, use_cache=True)
    finally:
        model.train(training)
    ends = set(config.eos_token_id)
    completions = []
    for row in rows[:, widest:].tolist():
        length = next((i + 1 for i, token in enumerate(row) if token in ends), len(row))
        completions.append(row[:length])
    return completions
