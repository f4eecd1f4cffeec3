"""A task with tools: notes that lead from place to place, and a model with sampled words."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import torch

import grpo_nb as gn

PLACES = [
    "barn",
    "mill",
    "well",
    "shop",
    "port",
    "farm",
    "mine",
    "hill",
    "lake",
    "bank",
    "gate",
    "yard",
]
FORM = gn.tasks.AnswerFormat(
    name="answer",
    answer_open="<answer>",
    answer_close="</answer>",
    instruction="Answer as <answer>number</answer>.",
)


class Village:
    """Each place has a note: where to go next, or the number."""

    def reset(self, chain: list[str], number: int, **row: Any) -> None:
        self.chain = chain
        self.number = number
        self.seen = 0

    def read(self, place: str) -> str:
        """Read the note at a place.

        Args:
            place: Where the note is.
        """
        if place not in self.chain:
            return "There is no note."
        at = self.chain.index(place)
        self.seen += at == self.seen
        return (
            f"Go to the {self.chain[at + 1]}."
            if at + 1 < len(self.chain)
            else f"The number is {self.number}."
        )


def progress(environments: list[Village], **columns: Any) -> list[float]:
    return [each.seen / len(each.chain) for each in environments]


def village_rows(count: int = 24, hops: tuple[int, ...] = (1, 2)) -> list[dict[str, Any]]:
    drawn = random.Random(2)
    rows = []
    for village in range(100, 100 + count):
        chain = drawn.sample(PLACES, drawn.choice(hops))
        number = drawn.randint(10, 99)
        asked = f"Village {village}: start at the {chain[0]}. What is the number?"
        rows.append({"question": asked, "answer": str(number), "chain": chain, "number": number})
    return rows


def village_task(settings: gn.Settings, tokenizer: Any = None, **changes: Any) -> gn.tasks.Task:
    options = {"format": FORM, "holdout": 8, **changes}
    return gn.load_task(village_rows(), settings, tokenizer=tokenizer, **options).with_tools(
        environment=Village
    )


def loaded_village(
    folder: Path, root: Path, **changes: Any
) -> tuple[Any, Any, gn.tasks.Task, list, gn.Settings]:
    """Return the arguments of `gn.train`, with the tiny model."""
    settings = gn.preset(
        "cpu",
        **{
            "model": str(folder),
            "max_completion_length": 72,
            "max_prompt_length": 200,
            "max_steps": 4,
            "save_steps": 1,
            "learning_rate": 5e-3,
            "num_generations": 4,
            "per_device_train_batch_size": 8,
            "holdout_every": 2,
            "holdout_questions": 4,
            "run_root": str(root),
            "beta": 0.0,
            **changes,
        },
    )
    model, tokenizer = gn.load_model(settings)
    gn.models.set_tool_template(tokenizer)
    rewards = [gn.rewards.correctness(format=FORM), progress]
    return model, tokenizer, village_task(settings, tokenizer), rewards, settings


def speak_for(monkeypatch: Any, tokenizer: Any, ways: int = 4) -> None:
    """Sample what a model says in an episode: right, wrong, or with a bad call.

    torch's random numbers decide.

    With one way it goes on until it knows.
    """

    def words(prompt: str) -> str:
        asked = prompt.rsplit("<|im_start|>user", 1)[1]
        if "The number is " in asked:
            return f"<answer>{asked.rsplit('The number is ', 1)[1][:2]}</answer>"
        place = asked.rsplit("Go to the " if "Go to the " in asked else "start at the ", 1)[
            1
        ].split(".")[0]
        call = f"<call>read(place={place})</call>"
        return [call, call, "<answer>12</answer>", "<call>fly(to=moon)</call>"][
            int(torch.randint(ways, ()))
        ]

    def sample(model: Any, prompts: Any, config: Any, folded: Any) -> list[list[int]]:
        said = [words(tokenizer.decode(prompt)) + "<|im_end|>" for prompt in prompts]
        return [tokenizer(text, add_special_tokens=False)["input_ids"] for text in said]

    monkeypatch.setattr("grpo_nb.cpu.engine.sample", sample)
