"""The baseline gate: sample some groups before training and say in words whether GRPO will get a signal.

GRPO learns from differences within a group alone, so the share of groups whose totals differ is what counts here. Not covered:
what the signal is worth, which only training shows, and rewards that pay for nonsense, which `check_rewards` looks for.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.baseline_result import Baseline
from grpo_nb.config import Settings, preset
from grpo_nb.data import Task
from grpo_nb.probes import PLAIN, completion
from grpo_nb.reward_calls import RewardFunction, reward_name
from grpo_nb.scoring import score

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

# Of GRPOConfig, the arguments that change what is drawn and have no field in Settings.
_SAMPLING_EXTRA = ("min_p", "repetition_penalty")


def baseline(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rewards: RewardFunction | Sequence[RewardFunction],
    settings: Settings | None = None,
    *,
    prompts: int = 8,
    num_generations: int | None = None,
    seed: int | None = None,
) -> Baseline:
    """Sample some training prompts, a group each, as training would, score them, and say whether GRPO gets a signal.

    The same seed gives the same result on the same machine. Model and random state are left as they were. The rewards are tried
    on a right answer and on an empty completion first, so that one that cannot be called fails before anything is sampled.

    Args:
        model: As training would start from: with its untrained LoRA, or with an adapter to go on from.
        tokenizer: Its tokenizer.
        task: Prompts are drawn at random from its `train`; nothing of `holdout` is looked at.
        rewards: As `train` takes them.
        settings: Those of the training to come; `preset("auto")` if not given. Temperature, `top_p`, `top_k`, length limit
            and group size are taken from it.
        prompts: How many groups; fewer if there are not as many. More make the intervals narrower.
        num_generations: Completions in a group, if not those of `settings`.
        seed: Of the choice of prompts and of the sampling; that of `settings` if not given.

    Raises:
        ValueError: Fewer than 1 prompt or 2 completions, or rewards that TRL would mix up.
        RewardError: A reward failed; the message names it and the completion.

    Example, which takes half a minute on a CPU and needs the model:

        gate = gn.baseline(model, tokenizer, task, rewards, settings)
        assert gate.verdict != "no signal", gate.sentence
    """
    settings = settings or preset("auto")
    size = settings.num_generations if num_generations is None else num_generations
    seed = settings.seed if seed is None else seed
    if prompts < 1 or size < 2:
        raise ValueError(
            f"prompts = {prompts}, num_generations = {size}: at least 1 prompt and 2 completions each are needed, for GRPO "
            "compares the completions of a prompt with each other."
        )
    rewards = [rewards] if callable(rewards) else list(rewards)
    chosen = sorted(random.Random(seed).sample(range(len(task.train)), min(prompts, len(task.train))))
    rows = [task.train[i] for i in chosen]
    golds = [completion(task.format, PLAIN, row["answer"]) for row in rows]
    right = score(rewards, golds, rows, tokenizer=tokenizer)
    empty = score(rewards, [""] * len(rows), rows, tokenizer=tokenizer)
    repeated = [row for row in rows for _ in range(size)]
    sampled = _sample(model, tokenizer, [row["prompt"] for row in repeated], settings, size, seed)
    scores = score(rewards, [c.text for c in sampled], repeated, completion_ids=[list(c.ids) for c in sampled])
    return Baseline(
        scores=scores,
        num_generations=size,
        questions=tuple(str(row["question"]) for row in rows),
        answers=tuple(str(row["answer"]) for row in rows),
        tokens=tuple(c.tokens for c in sampled),
        is_cut=tuple(c.is_cut for c in sampled),
        right=right,
        empty=empty,
        format=task.format,
        settings=settings,
        task_name=task.name,
        has_example=any(turn["role"] == "assistant" for turn in rows[0]["prompt"]),
        ranges={reward_name(r): tuple(r.range) for r in rewards if getattr(r, "range", None) is not None},
        seed=seed,
    )


def _sample(model: Any, tokenizer: Any, prompts: list[Any], settings: Settings, size: int, seed: int) -> list[Any]:
    import torch
    from tqdm.auto import tqdm

    from grpo_nb.rollout import generate

    extra = {name: settings.extra[name] for name in _SAMPLING_EXTRA if name in settings.extra}
    # One by one: train(True) on the whole would also switch on what was switched off inside, as frozen parts are.
    modes = [(module, module.training) for module in model.modules()]
    try:
        with tqdm(total=len(prompts), desc="baseline", unit="completion", leave=False) as bar, torch.random.fork_rng():
            torch.manual_seed(seed)
            return generate(
                model,
                tokenizer,
                prompts,
                max_completion_length=settings.max_completion_length,
                temperature=settings.temperature,
                sampling={"top_p": settings.top_p, "top_k": settings.top_k, **extra},
                # Whole groups, so that the prompt of each is computed once.
                batch_size=size * max(1, 64 // size),
                progress=lambda done: bar.update(done - bar.n),
            )
    finally:
        for module, mode in modes:
            module.training = mode
