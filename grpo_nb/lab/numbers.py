"""What the reward lab shows, without the showing: the prompt, examples, a sampled group.

Plain functions over the user's own rewards and rows, each the code behind one view of `grpo_nb.lab.reward_lab.RewardLab`.
Nothing here needs torch but `sample_group`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_nb.checks.layouts import PLAIN
from grpo_nb.checks.layouts import completion as make_completion
from grpo_nb.checks.wrong_answers import make_wrong_answers
from grpo_nb.rewards.answers import gold_answers
from grpo_nb.tasks.chat_template import fit_to_template
from grpo_nb.tasks.formats import AnswerFormat


def prompt_text(
    row: Mapping[str, Any],
    tokenizer: Any = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> str:
    """Return the prompt of a row as the model sees it; without a tokenizer its turns, one after another.

    >>> prompt_text({"prompt": [{"role": "user", "content": "What is 3 + 4?"}]})
    'user: What is 3 + 4?'
    """
    prompt = row.get("prompt", row.get("question", ""))
    if isinstance(prompt, str):
        return prompt
    if tokenizer is None:
        return "\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt)
    how = {"tokenize": False, "add_generation_prompt": True, **(chat_template_kwargs or {})}
    (turns,) = fit_to_template([prompt], tokenizer, chat_template_kwargs)
    return tokenizer.apply_chat_template(turns, **how)


def gold_of(row: Mapping[str, Any], column: str = "answer") -> str:
    """Return the gold answer of a row as one line; of several accepted ones the first.

    Raises:
        ValueError: The row has no such column, or nothing in it.
    """
    golds = gold_answers(row.get(column))
    if not golds:
        raise ValueError(
            f"the row has no gold answer in {column!r}. Name its column: RewardLab(rewards, task, answer=...)."
        )
    return golds[0].split("\n", 1)[0]


def example_completions(
    row: Mapping[str, Any], format: AnswerFormat, answer: str = "answer"
) -> list[str]:
    """Return a right and a wrong completion of a row, in the same words and in the format: something to begin with.

    >>> from grpo_nb.tasks import xml
    >>> example_completions({"answer": "7"}, xml())[0].count("7")
    1
    """
    gold = gold_of(row, answer)
    return [
        make_completion(format, PLAIN, given)
        for given in (gold, make_wrong_answers(gold, [gold], 1)[0])
    ]


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
    """Sample a group of completions of one row's prompt, as a training step would.

    Args:
        model: As it is, with its adapter on or off.
        tokenizer: Its tokenizer.
        row: With chat messages in `prompt`.
        num_generations: Size of the group.
        temperature: Above 0; at 0 all completions are the same.
        max_completion_length: In tokens; what is longer is cut.
        chat_template_kwargs: What the chat template is given beside the messages: `task.chat_template_kwargs`.
    """
    from grpo_nb.generation.sampling import generate

    prompt = row.get("prompt")
    if not isinstance(prompt, (list, tuple)):
        raise ValueError(
            "the row has no chat messages in its column 'prompt'; load_task(rows) makes them."
        )
    group = generate(
        model, tokenizer, [prompt] * num_generations, temperature=temperature, max_completion_length=max_completion_length,
        chat_template_kwargs=chat_template_kwargs,
    )  # fmt: skip
    return [completion.text for completion in group]
