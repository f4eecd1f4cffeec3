"""An episode played by a person: with the tools, the environment and the rewards that the model gets."""

from collections.abc import Iterable, Sequence
from typing import Any

from grpo_nb.core.tables import Part, Shown, as_written, bold
from grpo_nb.rewards.base import RewardFunction
from grpo_nb.scoring.scores import Scores, score
from grpo_nb.tasks.task import Task
from grpo_nb.tasks.tools import refusing, transcript


class ByHand(Shown):
    """Play a training row of a task with tools: `do` calls one, `say` ends the episode, `scores` pays what was played so far.

    Nothing limits how often you call. A call is shown to you as it is told to the model, errors too.

    Args:
        task: With tools.
        row: Which of its training rows.

    Raises:
        ValueError: The task has no tools.
    """

    def __init__(self, task: Task, row: int = 0) -> None:
        if task.tools is None:
            raise ValueError(
                "the task has no tools: task = task.with_tools(...), or task.with_tools(environment=...)."
            )
        self.row: dict[str, Any] = task.train[row]
        self.prompt, self.columns = task.tools.begin(self.row)
        """The messages that the episode begins with, and its environment, as the column that rewards get."""
        self.turns: list[dict[str, Any]] = []
        """Every message so far."""
        self._tools = {
            tool.__name__: tool for tool in task.tools.of(self.columns.get("environments"))
        }
        self._chat_template_kwargs = dict(task.chat_template_kwargs)

    def do(self, tool: str, /, **arguments: Any) -> str:
        """Call a tool as the model does, and return what it is told; what the tool raises is told to it, too."""
        with refusing():
            try:
                if tool not in self._tools:
                    raise ValueError(f"Tool {tool} not found.")
                result = self._tools[tool](**arguments)
            except Exception as error:
                result = str({"error": str(error)})
        call = {"type": "function", "function": {"name": tool, "arguments": arguments}}
        self.turns.append({"role": "assistant", "content": "", "tool_calls": [call]})
        self.turns.append({"role": "tool", "name": tool, "content": result})
        return result

    def say(self, text: str) -> "ByHand":
        """Say the last word."""
        self.turns.append({"role": "assistant", "content": text})
        return self

    def scores(self, rewards: RewardFunction | Sequence[RewardFunction]) -> Scores:
        """What the rewards give for the episode as it stands."""
        return score(rewards, [self.turns or ""], {**self.row, **self.columns})

    def example(self, tokenizer: Any) -> list[dict[str, str]]:
        """Return the episode as messages to show the model, `load_task(..., example=...)`, calls as its template writes them.

        Those of several episodes can be joined. What the environment said at first is part of the question.

        Raises:
            ValueError: Written as plain messages the template shows it otherwise than the model would meet it.
        """
        asked, how = self.prompt[-1:], {"tokenize": False, **self._chat_template_kwargs}
        begun = tokenizer.apply_chat_template(asked, add_generation_prompt=True, **how)
        messages = [
            {"role": turn["role"], "content": turn["content"]} for turn in [*asked, *self.turns]
        ]
        for message, turn in zip(messages[1:], self.turns, strict=True):
            if "tool_calls" in turn:
                whole = tokenizer.apply_chat_template([*asked, turn], **how)
                message["content"] = whole.removeprefix(begun).partition(tokenizer.eos_token)[0]
        shown, met = (
            tokenizer.apply_chat_template(each, **how) for each in (messages, [*asked, *self.turns])
        )
        if shown != met:
            raise ValueError(
                "this template has its own form for calls, which its model knows: leave the example out."
            )
        return messages

    def _parts(self) -> Iterable[Part]:
        yield bold(self.prompt[-1]["content"])
        yield as_written(transcript(self.turns))
