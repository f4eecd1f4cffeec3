"""A sequence classifier as reward, on a tiny one with random weights and the embedded tokenizer."""

import pickle
from pathlib import Path

import pytest
import torch

from grpo_nb.rewards.classifiers import classifier, forget_classifiers, load_classifier
from grpo_nb.rewards.compose import clipped

TEXTS = ["seven", "", "The sum of three and four is seven, " * 20, "\ud800\x00 \u4e03", "Seven."]
CHATS = [[{"role": "user", "content": "What is 3 + 4?"}]] * len(TEXTS)


def make_folder(tiny_folder: Path, folder: Path, labels: list[str], with_template: bool = True) -> str:
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(1)
    config = LlamaConfig.from_pretrained(tiny_folder)
    config.id2label = dict(enumerate(labels))
    config.label2id = {label: i for i, label in enumerate(labels)}
    LlamaForSequenceClassification(config).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    if not with_template:
        tokenizer.chat_template = None
    tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.fixture(scope="module")
def one_label(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_folder(tiny_folder, tmp_path_factory.mktemp("one"), ["score"])


@pytest.fixture(scope="module")
def two_labels(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_folder(tiny_folder, tmp_path_factory.mktemp("two"), ["bad", "good"], with_template=False)


def by_hand(folder: str, text: str, prompt: str | None) -> torch.Tensor:
    """One text at a time, without padding: what the reward must give whatever stands beside it."""
    model, tokenizer = load_classifier(folder)
    if tokenizer.chat_template:
        messages = ([{"role": "user", "content": prompt}] if prompt else []) + [{"role": "assistant", "content": text}]
        ids = tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"]
    else:
        ids = tokenizer(f"{prompt}\n{text}" if prompt else text)["input_ids"]
    with torch.no_grad():
        return model(torch.tensor([ids], device=model.device)).logits[0].float()


def test_gives_what_the_model_says(one_label: str, two_labels: str) -> None:
    plain = [t for t in TEXTS if t and t.isprintable()]
    prompts = CHATS[: len(plain)]
    question = "What is 3 + 4?"
    logits = classifier(one_label, output="logit", device="cpu")(completions=plain, prompts=prompts)
    assert logits == pytest.approx([by_hand(one_label, t, question)[0].item() for t in plain], abs=2e-2)
    assert len({round(v, 4) for v in logits}) == len(plain)
    sigmoid = classifier(one_label, device="cpu")(completions=plain, prompts=prompts)
    assert sigmoid == pytest.approx(torch.tensor(logits).sigmoid().tolist(), abs=1e-5)
    good = classifier(two_labels, label="good", output="softmax", device="cpu")(completions=plain, prompts=prompts)
    assert good == pytest.approx([by_hand(two_labels, t, question).softmax(-1)[1].item() for t in plain], abs=1e-2)
    bad = classifier(two_labels, label=0, output="softmax", device="cpu")(completions=plain, prompts=prompts)
    assert [a + b for a, b in zip(good, bad, strict=True)] == pytest.approx([1.0] * len(plain), abs=1e-5)


def test_any_text_any_order_strings_and_chat(one_label: str) -> None:
    reward = classifier(one_label, batch_size=2, device="cpu")
    found = reward(completions=TEXTS, prompts=CHATS)
    assert all(0 <= score <= 1 for score in found)
    chats = [[{"role": "assistant", "content": text}] for text in TEXTS]
    assert reward(completions=chats, prompts=CHATS) == found
    assert reward(completions=TEXTS[::-1], prompts=CHATS) == found[::-1]
    alone = [reward(completions=[text], prompts=CHATS[:1])[0] for text in TEXTS]
    assert alone == pytest.approx(found, abs=1e-2)


def test_pickles_as_a_name_and_loads_at_the_first_call(one_label: str) -> None:
    from grpo_nb.rewards import classifiers

    forget_classifiers()
    reward = classifier(one_label, device="cpu")
    assert not classifiers._loaded
    before = reward(completions=["seven"])
    packed = pickle.dumps(reward)
    assert len(packed) < 2000
    forget_classifiers()
    assert pickle.loads(packed)(completions=["seven"]) == before
    model, _ = load_classifier(one_label, "cpu")
    assert not model.training and not any(p.requires_grad for p in model.parameters())


def test_the_completion_survives_truncation(one_label: str) -> None:
    reward = classifier(one_label, max_length=32, output="logit", device="cpu")
    long = [[{"role": "user", "content": "word " * 500}]]
    assert reward(completions=["seven"], prompts=long) != reward(completions=["eight"], prompts=long)


def test_labels_and_settings_are_checked(one_label: str, two_labels: str) -> None:
    with pytest.raises(ValueError, match="say which one is good"):
        classifier(two_labels, device="cpu")(completions=["x"])
    with pytest.raises(ValueError, match="none of the classifier's labels"):
        classifier(two_labels, label="great", device="cpu")(completions=["x"])
    with pytest.raises(ValueError, match="not below"):
        classifier(two_labels, label=2, device="cpu")(completions=["x"])
    for wrong in ({"model": ""}, {"model": "x", "output": "tanh"}, {"model": "x", "batch_size": 0}):
        with pytest.raises(ValueError):
            classifier(**wrong)
    assert clipped(classifier(one_label, output="logit"), -3, 3).range == (-3.0, 3.0)
