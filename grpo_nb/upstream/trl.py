"""Private symbols of TRL that the kit relies on, and what the kit undoes after TRL."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple

from grpo_nb.upstream.symbols import require_symbol

#: Methods of `GRPOTrainer` that `RunTrainer` overrides or calls. `_load_from_checkpoint`,
#: `_save_optimizer_and_scheduler`, `_save_rng_state` and `_save_scaler` come from `Trainer`
#: (transformers/trainer.py). trl/trainer/grpo_trainer.py defines the others.
TRAINER_METHODS = (
    "_calculate_rewards",
    "_generate_single_turn",
    "_get_per_token_logps_and_entropies",
    "_get_train_sampler",
    "_load_from_checkpoint",
    "_save_checkpoint",
    "_save_optimizer_and_scheduler",
    "_save_rng_state",
    "_save_scaler",
    "_tool_call_loop",
    "training_step",
)

#: Functions of `trl.chat_template_utils` that tools need.
CHAT_TEMPLATE_FUNCTIONS = (
    "add_response_schema",
    "get_training_chat_template",
    "is_chat_template_prefix_preserving",
    "parse_response",
    "supports_tool_calling",
)


def require_trainer_methods(trainer_class: type) -> None:
    """Raise unless a `GRPOTrainer` has the methods that `RunTrainer` overrides or calls.

    A method that TRL renamed would be overridden without effect: a resumed run would start over, or
    tools would run without a time limit.

    Raises:
        EnvironmentProblem: A method is missing.
    """
    for name in TRAINER_METHODS:
        require_symbol(trainer_class, name, "trl")


def silence_experimental_warnings() -> None:
    """Switch off TRL's warning that its tool interface may change: grpo_nb pins TRL's version."""
    os.environ.setdefault("TRL_EXPERIMENTAL_SILENCE", "1")


def last_generation(trainer: Any) -> Any:
    """Return the prompts, completions and scores of a trainer's last generation batch.

    TRL fills `_logs` even if it prints nothing (trl/trainer/grpo_trainer.py,
    `_generate_and_score_completions`). To callbacks it passes only metrics. Once it also passes the
    completions, this function can go.
    """
    return require_symbol(trainer, "_logs", "trl")


def micro_batch_count(trainer: Any) -> int:
    """Return the number of micro-batches that a trainer has taken.

    TRL samples when this counter is a multiple of `steps_per_generation * num_iterations`
    (trl/trainer/grpo_trainer.py, `_prepare_inputs`), and does not save it. Therefore the kit's
    checkpoints store it. A run that is resumed without it would continue with the wrong generation.
    Once TRL's checkpoints hold the counter, this function can go.
    """
    return require_symbol(trainer, "_step", "trl")


def fix_order_of_passes(sampler: Any) -> None:
    """Make TRL's sampler yield an order that depends only on its seed and on the pass.

    TRL's sampler draws a new order for each pass over the data (trl/trainer/utils.py,
    `RepeatSampler`). A resumed training has a new sampler, so its first pass would have the order
    of the first pass of all. accelerate calls `set_epoch` before each pass. Once TRL's sampler has
    this method, this function can go.
    """
    if not require_symbol(sampler, "shuffle", "trl"):
        return
    import torch

    generator = require_symbol(sampler, "generator", "trl")

    def set_epoch(pass_index: int) -> None:
        generator.manual_seed(sampler.seed)
        # Each pass draws one permutation. Draw and discard the permutations of the earlier passes.
        for _ in range(pass_index):
            torch.randperm(sampler.num_samples, generator=generator)

    sampler.set_epoch = set_epoch


def chat_template_module() -> ModuleType:
    """Return TRL's module that decides if a chat template can be trained with tools.

    The module also parses the tool calls in a completion (trl/chat_template_utils.py).
    """
    from trl import chat_template_utils

    for name in CHAT_TEMPLATE_FUNCTIONS:
        require_symbol(chat_template_utils, name, "trl")
    return chat_template_utils


def tool_loop_trainer(
    model_config: Any,
    tokenizer: Any,
    *,
    schemas: Sequence[Mapping[str, Any]],
    max_rounds: int,
    max_completion_length: int,
    chat_template: str | None,
    chat_template_kwargs: Mapping[str, Any],
) -> Any:
    """Return a `GRPOTrainer` that has only the attributes that its tool loop reads.

    With this trainer, episodes outside a training follow TRL's own rules for the tokens after the
    result of a tool, for the length limit, and for parsing calls (trl/trainer/grpo_trainer.py,
    `_tool_call_loop` and `_get_tool_suffix_ids`). Once TRL offers the loop as a function, this
    function and `run_tool_loop` can go.

    Args:
        model_config: Config of the model; the loop reads the longest sequence from it.
        tokenizer: Tokenizer with a chat template for tools.
        schemas: Schemas of the tools, in the form that a chat template takes.
        max_rounds: Largest number of rounds of tool calls in an episode.
        max_completion_length: Tokens of a whole episode, results of tools included.
        chat_template: Template to use in place of the tokenizer's own, or None.
        chat_template_kwargs: Further arguments of the chat template.
    """
    from trl import GRPOTrainer

    for name in ("_tool_call_loop", "_generate_single_turn", "_get_tool_suffix_ids"):
        require_symbol(GRPOTrainer, name, "trl")
    # `GRPOTrainer.__init__` would require rewards and a dataset, so it is not called.
    trainer = object.__new__(GRPOTrainer)
    # trl 1.16 also reads `environment_factories` (docs/reference/upstream.md).
    vars(trainer).update(
        processing_class=tokenizer,
        _tokenizer=tokenizer,
        chat_template=chat_template,
        _is_vlm=False,
        tools=schemas,
        chat_template_kwargs=dict(chat_template_kwargs),
        max_tool_calling_iterations=max_rounds,
        # Without vLLM, the loop limits a sequence to `max_position_embeddings` of `model.config`.
        use_vllm=False,
        vllm_mode=None,
        max_completion_length=max_completion_length,
        model=SimpleNamespace(config=model_config),
    )
    return trainer


class ToolLoopResult(NamedTuple):
    """Episodes as TRL's tool loop leaves them, one entry for each prompt."""

    tool_masks: list[list[int]]
    """1 for tokens that the model wrote, 0 for tokens of tool results."""
    turns: list[list[dict[str, Any]]]
    """Messages of the episode, without the prompt."""
    completion_ids: list[list[int]]


def run_tool_loop(
    trainer: Any,
    prompts: Sequence[Sequence[Mapping[str, Any]]],
    prompt_ids: Sequence[Sequence[int]],
    *,
    tools: Sequence[Sequence[Callable]],
    sample: Callable[[Sequence[Sequence[int]]], list[list[int]]],
) -> ToolLoopResult:
    """Run the episodes of a batch of prompts with TRL's own tool loop.

    Args:
        trainer: From `tool_loop_trainer`.
        prompts: Messages.
        prompt_ids: The same prompts as token ids.
        tools: The tools of each prompt.
        sample: Return one completion for each list of token ids.
    """
    parse_response = chat_template_module().parse_response
    tools_by_name = []
    for tools_of_prompt in tools:
        tools_by_name.append({tool.__name__: tool for tool in tools_of_prompt})
    # In a training, `_generate_and_score_completions` fills these two lists.
    trainer._sync_tool_dicts = tools_by_name
    trainer._async_tool_dicts = [{}] * len(tools)
    # The loop calls this method for each later turn. It returns token ids and log-probabilities.
    trainer._generate_single_turn = lambda ids, *_, **__: (sample(ids), None)
    # The first turn is sampled and parsed before the loop (`GRPOTrainer._generate`).
    completion_ids = sample(prompt_ids)
    prompt_ids = [list(ids) for ids in prompt_ids]
    first_turns = []
    for prompt, completion in zip(prompt_ids, completion_ids, strict=True):
        first_turns.append([parse_response(trainer._tokenizer, completion, prefix=prompt)])
    tool_masks, turns, completion_ids, *_ = trainer._tool_call_loop(
        # Copies, because the loop appends the turns to each prompt.
        prompts=[list(prompt) for prompt in prompts],
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        completions=first_turns,
        logprobs=None,
        images=None,
        multimodal_fields={},
    )
    return ToolLoopResult(tool_masks, turns, completion_ids)


@contextlib.contextmanager
def restoring_adapter_values(model: Any) -> Iterator[None]:
    """Restore the adapter's values and dtype after the block, which builds a trainer of TRL.

    TRL 1.15 rounds the adapter of a quantized model to bfloat16, in which small updates vanish.
    (Unsloth's trainer on a GPU does not.) TRL copies the adapter to `ref` before it rounds, so
    `ref` needs no restoring.
    """
    # Rounding replaces `data` by a new tensor, so a reference to the old one is enough.
    trained = [
        (parameter, parameter.data) for parameter in model.parameters() if parameter.requires_grad
    ]
    try:
        yield
    finally:
        for parameter, value in trained:
            parameter.data = value
