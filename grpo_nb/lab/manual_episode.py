"""Run an episode by hand, with the tools, the environment and the rewards that the model gets."""

from collections.abc import Iterable, Sequence
from typing import Any

from grpo_nb.core.tables import Part, ReprMixin, bold, verbatim
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.scoring.scores import Scores, score
from grpo_nb.tasks.prompts import Chat
from grpo_nb.tasks.read_rows import Row
from grpo_nb.tasks.task import Task
from grpo_nb.tasks.tools import transcript


class ManualEpisode(ReprMixin):
    """An episode of a training row that you run by hand with the tools of its task.

    `do` calls a tool, `say` writes an answer, and `scores` scores the episode so far. The number of
    calls is not limited. You see the result of a call as the model does, errors included.

    Args:
        task: A task with tools.
        row_number: Number of the training row, from 0.

    Raises:
        ValueError: The task has no tools.
    """

    def __init__(self, task: Task, row_number: int = 0) -> None:
        if task.tools is None:
            raise ValueError(
                "the task has no tools, so there is no episode to run. Add them: "
                "task = task.with_tools(...), or task.with_tools(environment=...)."
            )
        self.row: Row = task.start_episode(task.train[row_number])
        """Row of the episode, with its first prompt and its environment."""
        self.prompt: Chat = self.row["prompt"]
        """First messages of the episode."""
        self.turns: list[dict[str, Any]] = []
        """All messages after the prompt."""
        functions = task.tools.for_episode(self.row.get("environments"))
        self._tools = {function.__name__: function for function in functions}
        self._chat_template_kwargs = task.chat_template_kwargs

    def do(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool as the model does, and return its result or its error as a text."""
        try:
            if tool not in self._tools:
                raise ValueError(f"Tool {tool} not found.")
            result = self._tools[tool](**arguments)
        except Exception as error:  # the model gets the error of a tool as a text
            result = str({"error": str(error)})
        call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
        self.turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
        self.turns.append({"role": "tool", "name": tool, "content": result})
        return result

    def say(self, text: str) -> "ManualEpisode":
        """Write an answer, normally the last turn."""
        self.turns.append({"role": "assistant", "content": text})
        return self

    def scores(self, rewards: RewardFunction | Sequence[RewardFunction]) -> Scores:
        """Return the scores of the episode so far."""
        # Without a turn there is no message to score, so the completion is the empty text.
        return score(rewards, [self.turns or ""], self.row)

    def example(self, tokenizer: Any) -> list[dict[str, str]]:
        """Return the episode as messages for `load_task(..., example=...)`.

        Each call is text in `content`, as the model's template writes it. The first message of the
        environment is part of the question. Messages of several episodes can be joined.

        Raises:
            ValueError: Plain messages cannot reproduce the tool calls of this template.
        """

        def render(messages: Sequence[Any], **options: Any) -> str:
            return tokenizer.apply_chat_template(
                messages, tokenize=False, **self._chat_template_kwargs, **options
            )

        # Without the system prompt, because `load_task` writes one into each prompt itself.
        question = self.prompt[-1:]
        opening = render(question, add_generation_prompt=True)
        messages = []
        for turn in [*question, *self.turns]:
            content = turn["content"]
            if "tool_calls" in turn:
                # Cut at the end token, after which a template may write a line break.
                call_text = render([*question, turn]).removeprefix(opening)
                content = call_text.partition(tokenizer.eos_token)[0]
            messages.append({"role": turn["role"], "content": content})
        # The example teaches the format of a call, so it must be exactly that of the template.
        if render(messages) != render([*question, *self.turns]):
            raise ValueError(
                "this model's template has a format of its own for calls, which plain messages "
                "cannot show. The model knows that format, so leave the example out."
            )
        return messages

    def _shown_parts(self) -> Iterable[Part]:
        yield bold(self.prompt[-1]["content"])
        yield verbatim(transcript(self.turns))
