"""Write the prompt of a row, and a right and a wrong completion of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from grpo_nb.checks.probes import PLAIN_REASONING
from grpo_nb.checks.rows import make_wrong_answers
from grpo_nb.rewards.answers import golds_of_row
from grpo_nb.tasks.formats import AnswerFormat
from grpo_nb.tasks.read_rows import Row


def prompt_text(
    row: Row,
    tokenizer: Any = None,
    template_kwargs: Mapping[str, Any] = {},
) -> str:
    """Return the prompt of a row as the model sees it.

    Without a tokenizer, or if it has no chat template, return the prompt turn by turn.

    >>> prompt_text({"prompt": [{"role": "user", "content": "What is 3 + 4?"}]})
    'user: What is 3 + 4?'
    """
    prompt = row.get("prompt", row.get("question", ""))
    if isinstance(prompt, str):
        return prompt
    # A tokenizer without this attribute can still have a template.
    if tokenizer is None or getattr(tokenizer, "chat_template", "") is None:
        return "\n".join(f"{turn['role']}: {turn['content']}" for turn in prompt)
    return tokenizer.apply_chat_template(
        prompt, tokenize=False, add_generation_prompt=True, **template_kwargs
    )


def example_completions(row: Row, format: AnswerFormat) -> list[str]:
    """Return a right and a wrong completion of a row, in the same words and in the format.

    Raises:
        ValueError: The row has no gold answer.

    >>> from grpo_nb.tasks import xml
    >>> example_completions({"answer": "7"}, xml())[0].count("7")
    1
    """
    golds = golds_of_row(row, "answer")
    if not golds:
        raise ValueError(
            "the row has no gold answer in the column 'answer', so no right completion is known. "
            'If another column has it, write load_task(rows, columns={"answer": ...}).'
        )
    wrong = make_wrong_answers(golds, all_golds=golds)[0]
    # Both completions differ in the answer alone, so a difference in score comes from the answer.
    return [format.render_completion(PLAIN_REASONING, answer) for answer in (golds[0], wrong)]
