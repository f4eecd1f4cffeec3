"""Get the prompt of a row, example completions for it, and a group sampled from a model.

Only `sample_group` needs torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_nb.checks.probes import PLAIN
from grpo_nb.checks.probes import completion as write_completion
from grpo_nb.checks.rows import make_wrong_answers
from grpo_nb.rewards.answers import gold_answers
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.prompts import fit_to_template


def prompt_text(
    row: Mapping[str, Any],
    tokenizer: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """Return the prompt of a row as the model sees it, or turn by turn without a tokenizer.

    >>> prompt_text({"prompt": [{"role": "user", "content": "What is 3 + 4?"}]})
    'user: What is 3 + 4?'
    """
    prompt = row.get("prompt", row.get("question", ""))
    if isinstance(prompt, str):
        return prompt
    if tokenizer is None:
        return "\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt)
    (turns,) = fit_to_template([prompt], tokenizer, chat_template_kwargs)
    return tokenizer.apply_chat_template(
        turns, tokenize=False, add_generation_prompt=True, **(chat_template_kwargs or {})
    )


def example_completions(
    row: Mapping[str, Any], format: AnswerFormat, answer: str = "answer"
) -> list[str]:
    """Return a right and a wrong completion of a row, in the same words and in the format.

    Raises:
        ValueError: The row has no gold answer in the column `answer`.

    >>> from grpo_nb.tasks import xml
    >>> example_completions({"answer": "7"}, xml())[0].count("7")
    1
    """
    golds = gold_answers(row.get(answer))
    if not golds:
        raise ValueError(
            f"the row has no gold answer in the column {answer!r}. Name the right column: "
            "RewardLab(rewards, task, answer=...)."
        )
    gold = golds[0]
    (wrong,) = make_wrong_answers(gold, [gold], 1)
    return [write_completion(format, PLAIN, gold), write_completion(format, PLAIN, wrong)]


def sample_group(
    model: Any,
    tokenizer: Any,
    row: Mapping[str, Any],
    *,
    num_generations: int = 8,
    temperature: float = 1.0,
    max_completion_length: int = 48,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[str]:
    """Sample completions of one row's prompt.

    Args:
        model: Used as it is, with its adapter on or off.
        tokenizer: The model's tokenizer.
        row: A row with chat messages in `prompt`.
        num_generations: Number of completions.
        temperature: With 0, all completions are the same.
        max_completion_length: Tokens after which a completion is truncated.
        chat_template_kwargs: Arguments of the chat template, such as `task.chat_template_kwargs`.

    Raises:
        ValueError: The row has no chat messages.
    """
    from grpo_nb.generation.sampling import generate

    prompt = row.get("prompt")
    if not isinstance(prompt, (list, tuple)):
        raise ValueError(
            "the row has no chat messages in its column 'prompt', so a model cannot be asked. "
            "load_task(rows) makes them."
        )
    group = generate(
        model,
        tokenizer,
        [prompt] * num_generations,
        temperature=temperature,
        max_completion_length=max_completion_length,
        chat_template_kwargs=chat_template_kwargs,
    )
    return [completion.text for completion in group]
