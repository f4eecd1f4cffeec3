"""Sampling completions: on a CPU the kit's own loop, on a GPU vLLM (grpo_nb.generation.vllm) or Unsloth's `generate`.

The loop computes each distinct prompt once (grpo_nb.generation.shared_prompts), lets rows leave the batch when they
end, and runs with the LoRA folded into the weights (grpo_nb.generation.folded_lora). The trained tensors are never touched.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.core.randomness import kept_modes
from grpo_nb.machine.spinning import yield_cores
from grpo_nb.models.import_unsloth import import_unsloth

import_unsloth()

import torch
from torch.nn import functional
from transformers import GenerationConfig
from transformers.cache_utils import DynamicLayer

from grpo_nb.generation.attention import grouped_attention
from grpo_nb.generation.episodes import play_on, playing_trainer
from grpo_nb.generation.folded_lora import FoldedLora
from grpo_nb.generation.samples import Completion, Samples
from grpo_nb.generation.shared_prompts import distinct, left_padded, prompt_cache, shared_prompt_obstacle
from grpo_nb.generation.vllm import (
    engine_as_before,
    longest_prompt,
    sample_with_vllm,
    vllm_rollout_obstacle,
)
from grpo_nb.models.load import has_engine

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from grpo_nb.tasks.tools import Play

_LOG = logging.getLogger(__name__)


class _GrowingLayer(DynamicLayer):
    """A key/value layer that writes into room reserved beforehand; `DynamicLayer` copies everything at each token."""

    def __init__(self, layer: DynamicLayer, rows: torch.Tensor, room: int) -> None:
        super().__init__()
        self.used = layer.keys.shape[2]
        grown = (functional.pad(t.index_select(0, rows), (0, 0, 0, room)) for t in (layer.keys, layer.values))
        self._keys, self._values = grown
        self.dtype, self.device, self.is_initialized = layer.keys.dtype, layer.keys.device, True
        self._expose()

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


@torch.no_grad()
def sample(
    model: PreTrainedModel, prompts: Sequence[Sequence[int]], config: GenerationConfig, folded: FoldedLora | None = None
) -> Samples:
    """Sample one completion for each row of `prompts`; rows with the same prompt share its computation.

    Draws what `model.generate` draws: the same logits processors (transformers' own) and the same use of the random
    state, so the same seed gives the same tokens as long as rounding does not turn a draw. Greedy when
    `config.do_sample` is false. LoRA dropout does not apply while sampling.

    Args:
        model: A causal language model, plain or wrapped by PEFT, for which `shared_prompt_obstacle` is None.
        prompts: N lists of token ids, at least two tokens each; repeat a prompt for each completion of its group.
        config: `max_new_tokens`, `eos_token_id`, `pad_token_id` and the sampling parameters.
        folded: Of the same model, if there is one already, so that its memory is used again.

    Returns:
        N completions, up to and with the end token, at most `max_new_tokens` long.
    """
    yield_cores()  # here, because every training step and every evaluation on a CPU samples
    each, owner = distinct(prompts)
    config, _ = model._prepare_generation_config(config)
    model._prepare_special_tokens(config, kwargs_has_attention_mask=True, device="cpu")
    limit, total = config.max_new_tokens, len(prompts)
    pad_id = int(config.pad_token_id) if config.pad_token_id is not None else 0
    eos = torch.tensor([] if config.eos_token_id is None else config.eos_token_id, dtype=torch.long).reshape(-1)
    padded, _ = left_padded(prompts, pad_id)
    widest = padded.shape[1]
    processors = model._get_logits_processor(generation_config=config, input_ids_seq_length=widest, device="cpu")
    ids = torch.cat([padded, padded.new_full((total, limit), pad_id)], 1)  # with room for what is sampled
    start = torch.tensor([[len(prompt) - 1] for prompt in prompts])
    running, lengths = torch.arange(total), torch.full((total,), limit)
    log_probs = torch.zeros(total, limit)
    folded = folded or FoldedLora.of(model)
    with kept_modes(model), grouped_attention, folded.for_inference(is_decoding=True):
        model.eval()
        run = functools.partial(model, use_cache=True, logits_to_keep=1)
        cache, mask = prompt_cache(run, each, pad_id, model.dtype)
        rows = torch.tensor(owner)
        cache.layers = [_GrowingLayer(layer, rows, limit) for layer in cache.layers]
        mask = torch.cat([mask[rows], torch.ones(total, limit, dtype=torch.long)], 1)
        for t in range(limit):
            end = widest + t
            logits = model(
                input_ids=ids[running, end - 1 : end], attention_mask=mask[:, : cache.get_seq_length() + 1],
                position_ids=start + t, past_key_values=cache, use_cache=True, logits_to_keep=1,
            ).logits[:, -1]  # fmt: skip
            scores = processors(ids[running, :end], logits.float())
            if config.do_sample:
                probabilities = scores.softmax(-1)
                chosen = _draw(probabilities, total, running)
                log_probs[running, t] = probabilities.gather(1, chosen[:, None])[:, 0].log()
            else:
                chosen = scores.argmax(-1)
            still = lengths[running] > t  # an ended row may be in the batch for a while yet
            ids[running[still], end] = chosen[still]
            lengths[running[still & torch.isin(chosen, eos)]] = t + 1
            going = lengths[running] > t + 1
            if not going.any():
                break
            # Rows that ended leave the batch, a few at a time: each departure copies the cache of the others.
            if going.sum() <= 0.875 * len(going):
                at = going.nonzero()[:, 0]
                running, start, mask = running[at], start[at], mask[at]
                for layer in cache.layers:
                    layer.keep_rows(at)

    def until_end(written: torch.Tensor) -> list[list[Any]]:
        return [row[:n] for row, n in zip(written.tolist(), lengths.tolist(), strict=True)]

    return Samples(until_end(ids[:, widest:]), until_end(log_probs) if config.do_sample else None)


def _draw(probabilities: torch.Tensor, total: int, rows: torch.Tensor) -> torch.Tensor:
    """Draw one word per row, the ones `torch.multinomial` draws inside `generate`, with the same random state after it.

    In half of its time, which is 9 ms of each decoded token of 16 rows (studies/results/cpu_kernels.md).
    multinomial takes the largest p / e with an exponential e for each row and word, ended rows too. e is -log1p(-u) >= u
    for a uniform u, so only words whose p / u reaches the p / e of some word can be the largest: a few per row, and the
    other logarithms are not taken.

    Args:
        probabilities: (R, V) float32, of the rows still running.
        total: Rows at the start, R at most.
        rows: (R) their indices.
    """
    width = probabilities.shape[1]
    if not _draws_by_logarithm(total * width):
        return (probabilities / torch.empty(total, width).exponential_()[rows]).argmax(-1)
    uniforms = torch.empty(total, width, dtype=torch.float64).uniform_()
    if len(rows) < total:
        uniforms = uniforms[rows]
    bound = probabilities / uniforms.float()
    likely = bound.argmax(-1, keepdim=True)
    reached = _race(probabilities.gather(1, likely), uniforms.gather(1, likely))
    # A little less, for the rounding of u and of the logarithm.
    row, word = (bound >= reached * (1 - 1e-6)).nonzero(as_tuple=True)
    finished = torch.full_like(bound, -1.0)
    finished[row, word] = _race(probabilities[row, word], uniforms[row, word])
    return finished.argmax(-1)


def _race(probabilities: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    return probabilities / uniforms.neg().log1p_().neg_().float()


@functools.cache
def _draws_by_logarithm(count: int) -> bool:
    """Say whether `exponential_` is -log1p(-u) of a float64 uniform, bit by bit; with MKL on Intel processors it is not."""
    drawn, uniform = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    expected = torch.empty(count).exponential_(generator=drawn)
    got = torch.empty(count, dtype=torch.float64).uniform_(generator=uniform).neg_().log1p_().neg_().float()
    return torch.equal(got, expected) and torch.equal(drawn.get_state(), uniform.get_state())


def generate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    prompts: Sequence[list[dict[str, str]]],
    *,
    max_completion_length: int,
    temperature: float = 0.0,
    sampling: Mapping[str, Any] | None = None,
    batch_size: int = 48,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    progress: Callable[[int], None] | None = None,
    play: Play | None = None,
    rows: Sequence[Mapping[str, Any]] = (),
) -> list[Completion]:
    """Complete chat prompts, greedily at temperature 0, in the order given.

    Args:
        model: As it is: with its adapter on or off.
        tokenizer: Its tokenizer.
        prompts: Chat messages; the chat template and the generation prompt are applied here.
        max_completion_length: Tokens; of a whole episode, what tools say included, where there are tools.
        temperature: Above 0, tokens are drawn from the whole vocabulary.
        sampling: With a temperature above 0, further parameters of `GenerationConfig`, such as `top_p`.
        batch_size: Prompts at a time.
        chat_template_kwargs: What the chat template is given beside the messages.
        progress: Called with the number of prompts done after each batch.
        play: The tools of the task: an episode is played for each prompt.
        rows: With tools, the row of each prompt, with which its environment is reset.
    """
    how, columns, trainer = dict(chat_template_kwargs or {}), [], None
    if play is not None:
        prompts, columns = zip(*map(play.begin, rows), strict=True)
        trainer = playing_trainer(model, tokenizer, play, max_completion_length, how)
        how |= {"tools": play.schemas, "chat_template": trainer.chat_template}
    encoded = tokenizer.apply_chat_template(
        list(prompts), add_generation_prompt=True, tokenize=True, return_dict=True, **how
    )
    ids = encoded["input_ids"]
    end_tokens = model.generation_config.eos_token_id
    end_tokens = {tokenizer.eos_token_id, *(end_tokens if isinstance(end_tokens, list) else [end_tokens])} - {None}
    drawn = {"do_sample": True, "temperature": temperature, "top_k": 0, "top_p": 1.0, **(sampling or {})}
    config = GenerationConfig(
        # Said, as a trainer says it: what is left out, transformers takes from the model's own generation_config (a penalty of
        # 1.1 on repeated tokens in Qwen2.5), while vLLM does not look there.
        max_new_tokens=max_completion_length,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=sorted(end_tokens),
        disable_compile=True,
        **{"repetition_penalty": 1.0, **(drawn if temperature > 0 else {"do_sample": False})},
    )

    def complete(rows: Sequence[int], run: Callable[..., Samples], size: int) -> None:
        """Complete these rows, `size` at a time, with one way of sampling."""

        def write(asked: Sequence[Sequence[int]]) -> list[list[int]]:
            return run(model, asked, config).tokens

        for start in range(0, len(rows), size):
            batch = rows[start : start + size]
            asked = [ids[row] for row in batch]
            if play is None:
                made = [_completion(tokenizer, tokens, end_tokens) for tokens in write(asked)]
            else:
                begun = ([prompts[row] for row in batch], asked, [columns[row] for row in batch])
                made = play_on(trainer, *begun, write, end_tokens)
            completions.update(zip(batch, made, strict=True))
            if progress is not None:
                progress(len(completions))

    completions: dict[int, Completion] = {}
    # Prompts of similar length together, so that little is padding.
    order = sorted(range(len(ids)), key=lambda row: len(ids[row]))
    fitting = _rows_for_vllm(model, order, ids, max_completion_length)
    others = order[len(fitting) :]
    if fitting:
        with engine_as_before(model):
            # vLLM makes its own batches. These are only how often progress is reported.
            complete(fitting, sample_with_vllm, max(batch_size, 256))
    if others:
        run = _stock_sample
        longest = len(ids[others[-1]]) + max_completion_length
        if shared_prompt_obstacle(model, longest) is None:
            run = functools.partial(sample, folded=FoldedLora.of(model))
        complete(others, run, batch_size)
    return [completions[row] for row in range(len(ids))]


def _rows_for_vllm(
    model: PreTrainedModel,
    order: Sequence[int],
    ids: Sequence[Sequence[int]],
    max_completion_length: int,
) -> Sequence[int]:
    """Return the first rows of `order` that the model's engine completes; log how many it does not.

    Args:
        model: With an engine or without; without one no row is returned and nothing is logged.
        order: Indices of all rows, shortest prompt first.
        ids: The prompt of each row, as token ids.
        max_completion_length: Tokens.
    """
    if not has_engine(model):
        return []
    obstacle = vllm_rollout_obstacle(model)
    if obstacle is not None:
        _LOG.warning("All %d prompts are completed without vLLM, which is slower: %s.", len(order), obstacle)
        return []
    room = longest_prompt(model, max_completion_length)
    fitting = [row for row in order if len(ids[row]) <= room]
    if len(fitting) < len(order):
        longest = len(ids[order[-1]])
        _LOG.warning(
            "%d of %d prompts are completed without vLLM, which is slower: they have up to %d "
            "tokens, and next to completions of %d vLLM was started for %d. To use vLLM for all, "
            "load the model with a max_prompt_length and max_completion_length of %d together.",
            len(order) - len(fitting),
            len(order),
            longest,
            max_completion_length,
            max(room, 0),
            longest + max_completion_length,
        )
    return fitting


def _completion(tokenizer: PreTrainedTokenizerBase, tokens: list[int], end_tokens: set[int]) -> Completion:
    is_cut = not tokens or tokens[-1] not in end_tokens
    return Completion(tokenizer.decode(tokens, skip_special_tokens=True), len(tokens), is_cut, tuple(tokens))


@torch.no_grad()
def _stock_sample(model: PreTrainedModel, prompts: Sequence[Sequence[int]], config: GenerationConfig) -> Samples:
    """What `sample` does, through `model.generate`, without log-probabilities.

    Modes are put back: training, and on a GPU what Unsloth switches for generation. Unsloth's `generate` clears gradient
    checkpointing on every module and puts it back only if the model was in training mode when it was called
    (unsloth/models/llama.py, unsloth_fast_generate), so it is switched by Unsloth's own functions.
    """
    ids, mask = (part.to(model.device) for part in left_padded(prompts, config.pad_token_id))
    training, is_unsloths = model.training, hasattr(model, "for_training")  # as Unsloth patches models for a GPU
    values = (getattr(module, "gradient_checkpointing", False) for module in model.modules())
    checkpointing = next((value for value in values if value), False)
    model.for_inference() if is_unsloths else model.eval()
    try:
        rows = model.generate(input_ids=ids, attention_mask=mask, generation_config=config, use_cache=True)
    finally:
        if not is_unsloths:
            model.train(training)
        elif training:
            model.for_training(use_gradient_checkpointing=checkpointing)
    ends = set(config.eos_token_id)
    completions = rows[:, ids.shape[1] :].tolist()
    lengths = [next((i + 1 for i, token in enumerate(row) if token in ends), len(row)) for row in completions]
    return Samples([row[:length] for row, length in zip(completions, lengths, strict=True)], None)
