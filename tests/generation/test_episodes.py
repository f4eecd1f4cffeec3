"""Episodes outside of a training are those of TRL's loop, and templates with tools are read as they are written."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer
from trl import GRPOTrainer
from trl import chat_template_utils as templates
from trl.chat_template_utils import parse_response

import grpo_nb as gn
from grpo_nb.generation.episodes import episode_trainer, tool_template
from grpo_nb.generation.sampling import generate
from grpo_nb.training.prepare import build_trainer, prepare
from grpo_nb.training.trainer import KitTrainer
from tests.support.village import Village, loaded_village, speak_for, village_task

# Of the path for images, which tools of the kit give none of.
_OF_IMAGES = {"async_loop", "_tokenize_prompts", "vllm_generation", "_prepare_inputs"}


@pytest.fixture(scope="module")
def tokenizer(embedded_folder: Path) -> Any:
    return gn.models.give_tool_template(AutoTokenizer.from_pretrained(embedded_folder))


def read_of(*methods: str) -> set[str]:
    """The attributes of the trainer that these methods read, and those of the trainer's methods among them that they call."""
    source = "".join(
        textwrap.dedent(inspect.getsource(getattr(GRPOTrainer, method))) for method in methods
    )
    nodes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Attribute)]
    return {
        node.attr for node in nodes if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def test_what_trls_loop_reads_of_its_trainer_is_what_it_is_given(tokenizer: Any) -> None:
    """The contract with trl 1.15. One more name here, and `tool_loop_trainer` needs it too."""
    wanted = read_of("_tool_call_loop", "_get_tool_suffix_ids") - _OF_IMAGES
    tools = village_task(gn.preset("cpu")).tools
    model = type("M", (), {"config": None})
    trainer = episode_trainer(
        model, tokenizer, tools, max_completion_length=72, chat_template_kwargs={}
    )
    set_by_the_loop = {"_sync_tool_dicts", "_async_tool_dicts", "_generate_single_turn"}
    assert wanted - {"_get_tool_suffix_ids"} == vars(trainer).keys() | set_by_the_loop
    assert [*inspect.signature(GRPOTrainer._tool_call_loop).parameters] == [
        "self", "prompts", "prompt_ids", "completion_ids", "completions", "logprobs", "images", "multimodal_fields",
    ]  # fmt: skip


def test_held_out_episodes_are_played_token_by_token_as_in_training(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told(Village):
        def reset(self, **row: Any) -> str:
            super().reset(**row)
            return " Read the notes."

    model, tokenizer, task, rewards, settings = loaded_village(tiny_folder, tmp_path)
    rewarded: dict[str, Any] = {}

    def brief(completions: list, **columns: Any) -> list[float]:
        rewarded.update(columns)
        return [0.0] * len(completions)

    rewards.append(brief)
    task = task.with_tools(environment=Told, rounds=2)
    speak_for(monkeypatch, tokenizer, ways=1)
    trainer = build_trainer(prepare(model, tokenizer, task, rewards, settings), KitTrainer)
    assert trainer.engine is not None
    rows = [task.train[i] for i in range(8)]
    batch = trainer._generate_and_score_completions(rows)
    asked = {"max_completion_length": settings.max_completion_length, "temperature": 1.0}
    played = generate(
        model, tokenizer, [row["prompt"] for row in rows], tools=task.tools, rows=rows, **asked
    )
    written = batch["completion_mask"] * batch["tool_mask"]
    for one, ids, mask, turns, paid in zip(
        played,
        batch["completion_ids"],
        written,
        trainer._logs["completion"],
        rewarded["completion_ids"],
        strict=True,
    ):
        assert list(one.ids) == ids[mask.bool()].tolist() == list(paid) and list(one.turns) == turns
        assert one.tokens == int(mask.sum()) < len(ids), (
            "what a tool said is not what the model wrote"
        )
        assert not one.is_cut and one.text.startswith("<answer>")
        assert one.columns["environments"].seen == len(one.columns["environments"].chain)
    generator = torch.random.get_rng_state()
    held = gn.evaluate((model, tokenizer), task, settings=settings)
    assert torch.equal(generator, torch.random.get_rng_state()) and held.accuracy == 1.0


@pytest.mark.parametrize(
    ("said", "calls", "content"),
    [
        ("<call>read(place=mill)</call>", [("read", {"place": "mill"})], ""),
        ("<call>add(a=3, b=4.5)</call>", [("add", {"a": 3, "b": 4.5})], ""),
        ("<call>look()</call>", [("look", {})], ""),
        ("I think <call>read(place=old mill)</call>", [("read", {"place": "old mill"})], "I think"),
        ("<call>a(x=1)</call><call>b(y=true)</call>", [("a", {"x": 1}), ("b", {"y": True})], ""),
        ("<answer>7</answer>", [], "<answer>7</answer>"),
        ("<call>read mill</call>", [], "<call>read mill</call>"),
    ],
)
def test_calls_of_our_template_are_read_as_they_are_written(
    said: str, calls: list, content: str, tokenizer: Any
) -> None:
    asked = tokenizer.apply_chat_template(
        [{"role": "user", "content": "?"}], add_generation_prompt=True
    )["input_ids"]
    ids = tokenizer(said + "<|im_end|>", add_special_tokens=False)["input_ids"]
    read = parse_response(tokenizer, ids, prefix=asked)
    found = [
        (call["function"]["name"], call["function"]["arguments"])
        for call in read.get("tool_calls") or ()
    ]
    assert found == calls and (read["content"] or "").strip() == content


FAMILIES = (
    "qwen2_5 qwen3 qwen3_instruct_2507 qwen3_5_think qwen3_6 qwen3_8 glm4moe llama3_1 llama3_2 lfm2_2_5 lfm2_v2 gptoss gemma4 "
    "nemotron_3_nano"
)


@pytest.mark.parametrize("family", FAMILIES.split())
def test_the_families_that_are_named_have_a_template_that_serves(
    family: str, embedded_folder: Path
) -> None:
    """By the texts that TRL knows; some are given its training template, which keeps earlier turns as they were."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    tokenizer.chat_template = getattr(templates, f"{family}_chat_template")
    own = sorted(
        set(re.findall(r"<\|[a-z_]+\|>", tokenizer.chat_template))
    )  # which are one token in its own tokenizer
    tokenizer.add_special_tokens({"additional_special_tokens": own})
    tool_template(tokenizer)
    assert tokenizer.response_template is not None


def test_a_template_without_tools_is_refused_and_ours_is_for_chatml(embedded_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    with pytest.raises(
        ValueError,
        match=r"cannot be trained with tools .* gn.models.give_tool_template\(tokenizer\)",
    ):
        tool_template(tokenizer)
    assert tool_template(gn.models.give_tool_template(tokenizer)) is None, (
        "earlier turns stay as they were"
    )
    tokenizer.eos_token = "<|endoftext|>"
    with pytest.raises(ValueError, match="for models whose turns end with"):
        gn.models.give_tool_template(tokenizer)
