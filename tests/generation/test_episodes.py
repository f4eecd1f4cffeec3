"""Episodes outside of a training follow TRL's loop; templates with tools are read as written."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer
from trl import GRPOTrainer
from trl import chat_template_utils as templates
from trl.chat_template_utils import parse_response

import grpo_nb as gn
from grpo_nb.generation import episodes
from grpo_nb.generation.completions import GeneratedCompletion
from grpo_nb.generation.episodes import prepare_tokenizer_for_tools
from grpo_nb.generation.sampling import generate
from grpo_nb.training.prepare import build_trainer, check_training
from grpo_nb.training.trainer import RunTrainer
from grpo_nb.upstream.trl import ToolLoopResult, tool_loop_trainer
from tests.support.village import FORM, Village, loaded_village, progress, speak_for, village_task

#: Attributes of TRL's path for images, which the kit's tools never return.
OF_IMAGES = {"async_loop", "_tokenize_prompts", "vllm_generation", "_prepare_inputs"}


@pytest.fixture(scope="module")
def tokenizer(embedded_folder: Path) -> Any:
    return gn.models.set_tool_template(AutoTokenizer.from_pretrained(embedded_folder))


def attributes_read_by(*methods: str) -> set[str]:
    """Return the attributes and methods of the trainer that these methods of it use."""
    names = set()
    for method in methods:
        source = textwrap.dedent(inspect.getsource(getattr(GRPOTrainer, method)))
        for node in ast.walk(ast.parse(source)):
            is_attribute = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
            if is_attribute and node.value.id == "self":
                names.add(node.attr)
    return names


def test_tool_loop_trainer_has_what_trls_loop_reads(tokenizer: Any) -> None:
    """If trl 1.15's loop read one more name, `tool_loop_trainer` would have to set it."""
    read = attributes_read_by("_tool_call_loop", "_get_tool_suffix_ids") - OF_IMAGES
    tools = village_task(gn.preset("cpu")).tools
    trainer = tool_loop_trainer(
        None,
        tokenizer,
        schemas=tools.schemas,
        max_rounds=tools.rounds,
        max_completion_length=72,
        chat_template=None,
        chat_template_kwargs={},
    )
    set_by_the_loop = {"_sync_tool_dicts", "_async_tool_dicts", "_generate_single_turn"}
    assert read - {"_get_tool_suffix_ids"} == vars(trainer).keys() | set_by_the_loop


def test_trls_tool_loop_has_the_parameters_that_are_given() -> None:
    assert list(inspect.signature(GRPOTrainer._tool_call_loop).parameters) == [
        "self",
        "prompts",
        "prompt_ids",
        "completion_ids",
        "completions",
        "logprobs",
        "images",
        "multimodal_fields",
    ]


class VillageWithHint(Village):
    """The village, whose environment adds a text to the prompt."""

    def reset(self, **row: Any) -> str:
        super().reset(**row)
        return " Read the notes."


def test_generate_runs_episodes_token_by_token_as_training(
    tiny_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, tokenizer, task, rewards, settings = loaded_village(tiny_folder, tmp_path)
    rewarded: dict[str, Any] = {}

    def remember(completions: list, **columns: Any) -> list[float]:
        rewarded.update(columns)
        return [0.0] * len(completions)

    rewards.append(remember)
    task = task.with_tools(environment=VillageWithHint, rounds=2)
    speak_for(monkeypatch, tokenizer, ways=1)
    trainer = build_trainer(check_training(model, tokenizer, task, rewards, settings), RunTrainer)
    assert trainer.engine is not None
    rows = [task.train[index] for index in range(8)]
    batch = trainer._generate_and_score_completions(rows)
    completions = generate(
        model,
        tokenizer,
        rows,
        max_completion_length=settings.max_completion_length,
        temperature=1.0,
        tools=task.tools,
    )
    written = (batch["completion_mask"] * batch["tool_mask"]).bool()
    for number, completion in enumerate(completions):
        trained_ids = batch["completion_ids"][number]
        own_ids = trained_ids[written[number]].tolist()
        assert list(completion.ids) == own_ids
        assert list(rewarded["completion_ids"][number]) == own_ids
        assert list(completion.turns) == trainer._logs["completion"][number]
        assert completion.token_count == len(own_ids)
        assert completion.token_count < len(trained_ids), "tokens of tools count as the model's"
        assert not completion.is_truncated
        assert completion.text.startswith("<answer>")
        environment = completion.row["environments"]
        assert environment.seen == len(environment.chain)
    random_state = torch.random.get_rng_state()
    result = gn.evaluate((model, tokenizer), task, settings=settings)
    assert torch.equal(random_state, torch.random.get_rng_state())
    assert result.accuracy == 1.0


@pytest.mark.parametrize(
    ("text", "calls", "content"),
    [
        pytest.param("<call>read(place=mill)</call>", [("read", {"place": "mill"})], "", id="text"),
        pytest.param(
            "<call>add(a=3, b=4.5)</call>", [("add", {"a": 3, "b": 4.5})], "", id="number"
        ),
        pytest.param("<call>look()</call>", [("look", {})], "", id="no argument"),
        pytest.param(
            "I think <call>read(place=old mill)</call>",
            [("read", {"place": "old mill"})],
            "I think",
            id="text before the call",
        ),
        pytest.param(
            "<call>a(x=1)</call><call>b(y=true)</call>",
            [("a", {"x": 1}), ("b", {"y": True})],
            "",
            id="two calls",
        ),
        pytest.param("<answer>7</answer>", [], "<answer>7</answer>", id="answer"),
        pytest.param("<call>read mill</call>", [], "<call>read mill</call>", id="not a call"),
    ],
)
def test_calls_of_the_kits_template_are_read_as_written(
    text: str, calls: list, content: str, tokenizer: Any
) -> None:
    question = [{"role": "user", "content": "?"}]
    prompt = tokenizer.apply_chat_template(question, add_generation_prompt=True)["input_ids"]
    ids = tokenizer(text + "<|im_end|>", add_special_tokens=False)["input_ids"]
    message = parse_response(tokenizer, ids, prefix=prompt)
    found = []
    for call in message.get("tool_calls") or ():
        found.append((call["function"]["name"], call["function"]["arguments"]))
    assert found == calls
    assert (message["content"] or "").strip() == content


@pytest.mark.parametrize(
    "family",
    [
        "qwen2_5",
        "qwen3",
        "qwen3_instruct_2507",
        "qwen3_5_think",
        "qwen3_6",
        "qwen3_8",
        "glm4moe",
        "llama3_1",
        "llama3_2",
        "lfm2_2_5",
        "lfm2_v2",
        "gptoss",
        "gemma4",
        "nemotron_3_nano",
    ],
)
def test_tool_template_serves_every_family_it_names(family: str, embedded_folder: Path) -> None:
    """Some get TRL's training template, which keeps earlier turns as they were."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    tokenizer.chat_template = getattr(templates, f"{family}_chat_template")
    # Each is one token in the family's own tokenizer.
    special_tokens = sorted(set(re.findall(r"<\|[a-z_]+\|>", tokenizer.chat_template)))
    tokenizer.add_special_tokens({"additional_special_tokens": special_tokens})
    prepare_tokenizer_for_tools(tokenizer)
    assert tokenizer.response_template is not None


def test_tool_template_refuses_a_template_without_tools(embedded_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    message = r"cannot be trained with tools .* gn.models.set_tool_template\(tokenizer\)"
    with pytest.raises(ValueError, match=message):
        prepare_tokenizer_for_tools(tokenizer)


def test_tool_template_refuses_a_tokenizer_without_padding(embedded_folder: Path) -> None:
    """TRL would pad with the token that ends a turn."""
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    tokenizer.pad_token = None
    with pytest.raises(ValueError, match=r"tokenizer\.pad_token = "):
        prepare_tokenizer_for_tools(gn.models.set_tool_template(tokenizer))


def test_tool_template_keeps_the_kits_own_template(embedded_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    assert prepare_tokenizer_for_tools(gn.models.set_tool_template(tokenizer)) is None


def test_kits_template_is_refused_for_other_end_tokens(embedded_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    tokenizer.eos_token = "<|endoftext|>"
    with pytest.raises(ValueError, match=r"needs the end token <\|im_end\|>.*Use a ChatML model"):
        gn.models.set_tool_template(tokenizer)


def completion_of(monkeypatch: pytest.MonkeyPatch, *turns: dict) -> GeneratedCompletion:
    """Return an episode with these messages, whose last token is an end token."""
    loop = ToolLoopResult(tool_masks=[[1]], turns=[list(turns)], completion_ids=[[1]])
    monkeypatch.setattr(episodes, "run_tool_loop", lambda *arguments, **options: loop)
    tools = SimpleNamespace(for_episode=lambda environment: [])
    started = episodes.Episodes(tools, trainer=None, rows=[{"prompt": []}])
    (completion,) = started.run([0], [[]], sample=lambda prompts: [], end_ids={1})
    return completion


def call_with(arguments: object) -> dict:
    calls = [{"function": {"name": "read", "arguments": arguments}}]
    return {"role": "assistant", "content": "", "tool_calls": calls}


def test_episode_that_ends_with_a_call_is_truncated(monkeypatch: pytest.MonkeyPatch) -> None:
    assert completion_of(monkeypatch, call_with({})).is_truncated


TOOL_RESULT = {"role": "tool", "name": "read", "content": "<answer>7</answer>"}


def test_episode_that_ends_with_a_tool_result_has_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    completion = completion_of(monkeypatch, call_with({}), TOOL_RESULT)
    assert completion.is_truncated
    assert completion.text == ""
    assert completion.full_text == "read()\n→ <answer>7</answer>"


def test_tool_result_is_no_answer_for_correctness() -> None:
    reward = gn.rewards.correctness(format=FORM)
    scores = gn.score(reward, [[call_with({}), TOOL_RESULT]], {"prompt": [], "answer": "7"})
    assert scores.totals == (0.0,)


def test_tool_result_is_no_answer_for_a_function() -> None:
    def naive(completions: list, **columns: Any) -> list[float]:
        return [float("7" in completion[-1]["content"]) for completion in completions]

    assert gn.score(naive, [[call_with({}), TOOL_RESULT]], {"prompt": []}).totals == (0.0,)


def test_progress_of_the_village_is_the_share_that_was_read() -> None:
    assert progress([SimpleNamespace(seen=1, chain="ab")]) == [0.5]


def test_episode_with_arguments_that_are_no_dict_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL lets such a call through, and the tool fails."""
    assert completion_of(monkeypatch, call_with("mill")).full_text == "read(mill)"
