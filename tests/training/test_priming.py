"""Priming trains on the completion only, measures on what it never saw, and GRPO goes on from there."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import grpo_nb as gn
from grpo_nb.training import priming
from tests.conftest import brevity
from tests.support.adapters import way_back
from tests.support.tiny import SMALL, load_tiny


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    more = {
        "max_completion_length": 32,
        "max_steps": 2,
        "run_root": str(tmp_path_factory.mktemp("runs")),
    }
    return load_tiny(tiny_folder, 16, 6, **{**SMALL, "learning_rate": 5e-3}, **more)


def added(row: dict) -> str:
    """The reasoning of an example turn: the sum itself."""
    return f"{row['question'].removeprefix('What is ').removesuffix('?')} = {row['answer']}"


def test_it_teaches_turns_it_never_saw_and_a_training_goes_on_from_there(tiny) -> None:
    model, tokenizer, task, settings = tiny
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    how = {"steps": 40, "examples": 8, "learning_rate": 2e-2, "reasoning": added}
    found = gn.training.prime(model, tokenizer, task, settings, **how)
    # The logits of this model reach 1.3 at most, so its loss cannot fall far.
    assert found["loss_after"] < found["loss_before"] - 0.3
    assert all(0 <= found[name] <= 1 for name in ("format_before", "format_after"))
    trained = {n: p.detach().clone() for n, p in model.named_parameters()}
    changed = {name for name in start if not torch.equal(start[name], trained[name])}
    assert changed and all("lora_" in name for name in changed)
    restore = way_back(model)
    runs = {}
    for reference in ("start", "base"):
        restore()
        how = {"name": f"from-{reference}", "kl_reference": reference}
        runs[reference] = gn.train(model, tokenizer, task, [brevity], settings, **how)
    assert runs["start"].rows[0]["kl"] == pytest.approx(0, abs=1e-6)
    assert runs["start"].info["reference"] == "the adapter it started from"
    # Against the base model the same samples are far away already.
    assert runs["base"].rows[0]["kl"] > 0.01 and runs["base"].info["reference"] == "the base model"
    assert (
        runs["base"].completions(1)["completion"].tolist()
        == runs["start"].completions(1)["completion"].tolist()
    )


def test_turns_are_what_grpo_samples_and_labels_are_the_completion(tiny) -> None:
    _, tokenizer, task, _ = tiny
    row = task.train[0]
    prompt = tokenizer.apply_chat_template(
        row["prompt"], add_generation_prompt=True, return_dict=True
    )["input_ids"]
    opened = dataclasses.replace(
        task, format=dataclasses.replace(task.format, is_opened_by_template=True)
    )
    answer = task.format.render("3 + 4 = 7", row["answer"])
    # A tag that the template opens is not taught again.
    for asked, taught in ((task, answer), (opened, answer.split("<reasoning>\n")[1])):
        turn = priming._tokens(tokenizer, asked, row, "3 + 4 = 7")
        labels = turn["labels"][len(prompt) :]
        assert tokenizer.decode(labels) == taught + tokenizer.eos_token
        assert turn["input_ids"] == prompt + labels and set(turn["labels"][: len(prompt)]) == {-100}


def test_the_engine_sleeps_while_gradients_are_computed(tiny, monkeypatch) -> None:
    """In standby its memory is that of the gradients. A trainer of GRPO puts it to sleep; one of SFT knows nothing of it."""
    model, tokenizer, task, settings = tiny
    slept, train = [], priming.SFTTrainer.train
    # With so much of vLLM's shape that the kit answers.
    shape = SimpleNamespace(model_config=SimpleNamespace(max_model_len=1))
    inner = SimpleNamespace(is_sleeping=lambda: bool(slept), vllm_config=shape)
    monkeypatch.setattr(
        model, "vllm_engine", SimpleNamespace(sleep=slept.append, llm_engine=inner), raising=False
    )

    def watched(trainer: object, *args: object) -> object:
        assert slept == [1], "it holds its share of the memory"
        return train(trainer, *args)

    monkeypatch.setattr(priming.SFTTrainer, "train", watched)
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", "1")
    gn.training.prime(model, tokenizer, task, settings, steps=1, examples=2, reasoning=added)
    assert slept == [1]
