"""Make prompts from questions, and check that a tokenizer's chat template can render them."""

import dataclasses
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from grpo_nb.core.words import short_repr
from grpo_nb.tasks.answers import AnswerSummary
from grpo_nb.tasks.formats import AnswerFormat, xml
from grpo_nb.tasks.read_rows import Rows

# Messages with `role` and `content`, as in transformers.
Chat = Sequence[Mapping[str, Any]]
Example = tuple[str, str, str] | Chat
"""Question, reasoning and answer; or chat messages."""
# Roles of messages that instruct the model. OpenAI's newer models call the role "developer".
_SYSTEM_ROLES = ("system", "developer")


def format_for_answers(
    format: AnswerFormat | None, answers: AnswerSummary, system: str | None = None
) -> AnswerFormat:
    """Return the format with the given system prompt, or with a hint that fits the answers."""
    # `gn.tasks.boxed` without () is the function that makes the format.
    if not isinstance(format, AnswerFormat | None):
        raise TypeError(
            f"format = {short_repr(format)} is not an answer format: write format=gn.tasks.boxed() "
            "or call another function of gn.tasks."
        )
    format = format or xml()
    return dataclasses.replace(
        format,
        instruction=system or format.instruction,
        answer_hint=format.answer_hint or answers.hint,
    )


def with_prompts(rows: Rows, format: AnswerFormat, example_messages: Chat = ()) -> Rows:
    """Return the rows with the chat messages that ask their question.

    If a row has messages of its own, the example goes between the system messages at its beginning
    and the others. An `instruction` of the format replaces those system messages.
    """
    format_system = [{"role": "system", "content": format.system_prompt()}]
    prompted = []
    for row in rows:
        chat = row.get("prompt", [{"role": "user", "content": row["question"]}])
        system, other_messages = split_system(chat)
        # A chat without a system message stays so: not every template has a system role.
        if format.instruction or "prompt" not in row:
            system = format_system
        prompted.append({**row, "prompt": [*system, *example_messages, *other_messages]})
    return prompted


def split_system(chat: Chat) -> tuple[Chat, Chat]:
    """Return the messages at the beginning that instruct the model, and the others."""
    others = list(itertools.dropwhile(lambda message: message["role"] in _SYSTEM_ROLES, chat))
    return chat[: len(chat) - len(others)], others


def messages_of_example(example: Example | None, format: AnswerFormat) -> Chat:
    """Return the chat messages of an example.

    Raises:
        ValueError: The example is neither three texts nor a list of messages, or calls a tool
            outside `content`.
    """
    if not example:
        return []
    is_chat = all(isinstance(message, Mapping) for message in example)
    if is_chat:
        if any(message.get("tool_calls") for message in example):
            # A Dataset would add the argument names of all calls to each call, with the value null.
            raise ValueError(
                "example= has tool_calls. Write each call in content, as the model's template "
                "writes it: gn.lab.ManualEpisode(task).example(tokenizer)."
            )
        if all(
            "role" in message and isinstance(message.get("content"), str) for message in example
        ):
            return example
    # A text of three characters and a dict of three keys can be unpacked too.
    if is_chat or isinstance(example, (str, Mapping)) or len(example) != 3:
        raise ValueError(
            f"example = {short_repr(example)}: write (question, reasoning, answer), or chat "
            'messages [{"role": "user", "content": "..."}, ...].'
        )
    question, reasoning, answer = map(str, example)
    reply = format.render(reasoning, answer)
    return [{"role": "user", "content": question}, {"role": "assistant", "content": reply}]


# Chat templates.


def require_chat_template(tokenizer: Any, argument_names: Iterable[str] = ()) -> None:
    """Check that a tokenizer has a chat template, and that the template reads the arguments.

    Raises:
        ValueError: There is no chat template, or it does not read one of the arguments. The
            template would ignore such an argument without a message.
    """
    if tokenizer.chat_template is None:
        raise ValueError(
            "the tokenizer has no chat template, so nothing says how questions are put to this "
            "model: take its instruct version, or set tokenizer.chat_template to the template of "
            "a model of its family."
        )
    for name in argument_names:
        # Whole words, because a template that reads `enable_thinking` does not read `thinking`.
        # `str`, because a tokenizer with several templates has a dict of them.
        if not re.search(rf"\b{re.escape(name)}\b", str(tokenizer.chat_template)):
            raise ValueError(
                f"chat_template_kwargs has {name!r}, which the tokenizer's chat template does not "
                "read: remove it from chat_template_kwargs."
            )


def render_prompt(prompt: Chat, tokenizer: Any, template_kwargs: Mapping[str, Any]) -> str:
    """Render a prompt with the chat template, and check that its system messages are in the text.

    Most templates without a system role refuse such a message. Others leave it out silently.

    Raises:
        ValueError: The template leaves out a system message.
        TemplateError: The template refuses the prompt.
    """
    rendered = tokenizer.apply_chat_template(
        prompt, tokenize=False, add_generation_prompt=True, **template_kwargs
    )
    for message in prompt:
        if message["role"] in _SYSTEM_ROLES and message["content"].strip() not in rendered:
            raise ValueError(
                "the model's chat template leaves out the system prompt. Put the text of "
                "format.system_prompt() before each question, in a column prompt: "
                '[{"role": "user", "content": "..."}].'
            )
    return rendered
