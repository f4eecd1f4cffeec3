"""A sequence classifier as reward: a reward model, or any model that gives a text a label. Loaded at the first call.

What a classifier likes is not what is right. A policy finds the texts that it likes without reason; keep its weight below that
of a reward that can be checked, and read the completions.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from grpo_nb.rewards.base import BatchReward, at_least_one, completion_text, one_of

# Weights are kept here and not in the reward, so that it pickles as a name and two rewards share one model.
_loaded: dict[tuple[str, str, str], tuple[Any, Any]] = {}
_lock = threading.Lock()


@dataclass(frozen=True, repr=False)
class classifier(BatchReward):
    """What a sequence classifier says of the prompt and the completion: the probability of a label, or its raw logit.

    The model is loaded at the first call, runs without gradients and is shared by all rewards that name it; a pickled reward
    holds the name only. Where the tokenizer has a chat template it is applied, else prompt and completion are joined by a
    line break. Padding can change a score in its last digits, as in every batched model.

    Args:
        model: A folder or a Hub id.
        weight: Of the total reward.
        name: Under which TRL logs it.
        label: Index or name of the label that is good; needed where there is more than one.
        output: `"sigmoid"` and `"softmax"` give 0 to 1, `"logit"` is unbounded: wrap it in `clipped`.
        device: As torch names it; the GPU if there is one, when empty.
        dtype: As transformers takes it.
        batch_size: Texts at a time.
        max_length: Tokens; a longer text loses its beginning.
        with_prompt: Whether the classifier sees the prompt.

    Raises:
        ValueError: A setting that cannot work; at the first call, a label that the model does not have.

    >>> classifier("path/to/reward-model", output="logit").range
    (-inf, inf)
    """

    model: str
    _: KW_ONLY
    label: int | str | None = None
    output: str = one_of("sigmoid", "softmax", "logit")
    device: str = ""
    dtype: str = "auto"
    batch_size: int = at_least_one(8)
    max_length: int = at_least_one(1024)
    with_prompt: bool = True
    source: ClassVar[str] = "reward models as TRL takes them (AutoModelForSequenceClassification)"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.model:
            raise ValueError("classifier needs a model: a folder or a Hub id.")
        self._set(model=str(self.model))

    @property
    def range(self) -> tuple[float, float]:
        return (float("-inf"), float("inf")) if self.output == "logit" else (0.0, 1.0)

    def score_batch(self, texts: list[str], rows: list[dict[str, Any]]) -> list[float | None]:
        import torch

        model, tokenizer = load_classifier(self.model, self.device, self.dtype)
        index = _label_index(model.config, self.label, self.output)
        inputs = [self._input(text, row, tokenizer) for text, row in zip(texts, rows, strict=True)]
        # Texts of one length together need the least padding; and a batch's order must not change any score.
        order = sorted(range(len(inputs)), key=lambda i: (len(inputs[i]), inputs[i]))
        scores: list[float | None] = [None] * len(inputs)
        scaled = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid, "logit": lambda x: x}[self.output]
        with _lock, torch.inference_mode():
            for start in range(0, len(order), self.batch_size):
                chosen = order[start : start + self.batch_size]
                encoded = tokenizer(
                    [inputs[i] for i in chosen], return_tensors="pt", padding=True, truncation=True,
                    max_length=self.max_length, add_special_tokens=not tokenizer.chat_template,
                )  # fmt: skip
                logits = model(**encoded.to(model.device)).logits.float()
                for i, value in zip(chosen, scaled(logits)[:, index].tolist(), strict=True):
                    scores[i] = value if value == value else None  # NaN: the model has no opinion
        return scores

    def _input(self, text: str, row: dict[str, Any], tokenizer: Any) -> str:
        # A lone surrogate cannot be encoded, and a model may produce one.
        text = text.encode("utf-8", "replace").decode()
        prompt = row.get("prompts") if self.with_prompt else None
        if tokenizer.chat_template:
            messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt or [])
            messages.append({"role": "assistant", "content": text})
            return tokenizer.apply_chat_template(messages, tokenize=False)
        asked = completion_text(prompt) if prompt is not None else ""
        return f"{asked}\n{text}" if asked else text


def _label_index(config: Any, label: int | str | None, output: str) -> int:
    count = config.num_labels
    if label is None:
        if count != 1:
            names = list(config.id2label.values())
            raise ValueError(f"the classifier has {count} labels, {names}: say which one is good, label={names[-1]!r}.")
        return 0
    if isinstance(label, str):
        found = {str(name): int(index) for index, name in config.id2label.items()}
        if label not in found:
            raise ValueError(f"label = {label!r} is none of the classifier's labels {sorted(found)}.")
        return found[label]
    if not -count <= label < count:
        raise ValueError(f"label = {label} is not below the classifier's number of labels, {count}.")
    return label


def load_classifier(model: str, device: str = "", dtype: str = "auto") -> tuple[Any, Any]:
    """Return a classifier in eval mode and its tokenizer, from memory if they were loaded before.

    Args:
        model: A folder or a Hub id.
        device: As torch names it; the GPU if there is one, when empty.
        dtype: As transformers takes it.
    """
    if not _is_without_unsloth():
        from grpo_nb.models.unsloth import import_unsloth

        import_unsloth()  # before transformers, which it patches
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    with _lock:
        if (model, device, dtype) not in _loaded:
            tokenizer = AutoTokenizer.from_pretrained(model)
            loaded = AutoModelForSequenceClassification.from_pretrained(model, dtype=dtype).to(device).eval()
            if tokenizer.pad_token is None:
                tokenizer.pad_token = tokenizer.eos_token
            if loaded.config.pad_token_id is None:
                loaded.config.pad_token_id = tokenizer.pad_token_id
            # The end of a completion is what was written last: keep it, and cut the prompt.
            tokenizer.truncation_side = "left"
            tokenizer.padding_side = "right"
            loaded.requires_grad_(False)
            _loaded[model, device, dtype] = (loaded, tokenizer)
        return _loaded[model, device, dtype]


def _is_without_unsloth() -> bool:
    """Whether this is a training by TRL alone, in a folder of `grpo_nb.scaleout`, which has only the rewards of the kit."""
    return "unsloth" not in sys.modules and importlib.util.find_spec("grpo_nb.models") is None


def forget_classifiers() -> None:
    """Let go of all loaded classifiers and their memory; the next call of a reward loads its own again."""
    with _lock:
        _loaded.clear()
