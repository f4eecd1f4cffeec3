"""Check a GGUF file's answers against the merged model's. A process of its own that imports neither the kit nor unsloth.

    python -I verify_gguf.py request.json

llama.cpp has answered before, in another process (`llama_cpp_child.py`); its answers are in the request. Here the merged folder
is loaded by plain transformers and answers the same prompts greedily. It also says how likely llama.cpp's words are to it, and
to the base, which shows a wrong file where equal texts could be chance. The request names `merged`, `base`, `prompts` (chat
messages), `answers`, `max_new_tokens`, `tolerance`, `least_equal` and `result`, the file to write.
"""

from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

# As `SLOPE_RANGE` of verify_merged.py, over the words of llama.cpp's own answers. What rounding adds makes the slope uncertain:
# a file is refused when it is outside by more than its uncertainty, so that a training too weak to be heard through a coarse
# format is not held against it; the table then says that it could not be told.
EFFECT_RANGE = (0.5, 1.5)
_STANDARD_ERRORS = 3


def sibling(name: str) -> Any:
    """Load the script beside this one, whose folder is not on the path and must not be: its other modules are the kit's."""
    spec = importlib.util.spec_from_file_location(name, Path(__file__).with_name(f"{name}.py"))
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Do all checks and return them with a verdict."""
    ours = sibling("verify_merged")
    tokenizer = AutoTokenizer.from_pretrained(request["merged"])

    def load(folder: str) -> Any:
        kind = ours.stored_dtype(Path(folder))
        return ours.widen_while_computing(AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval())

    model = load(request["merged"])
    chats, answers, end = request["prompts"], request["answers"], tokenizer.eos_token_id
    rendered = [tokenizer.apply_chat_template(c, add_generation_prompt=True, tokenize=False) for c in chats]
    prompts = [ours.read(tokenizer, chat) for chat in chats]
    expected = ours.greedy(model, tokenizer, prompts, request["max_new_tokens"])
    other_text = other_ids = not_ended = 0
    wanted = [tokenizer.decode(words, skip_special_tokens=True) for words in expected]
    agreed, bos = [], tokenizer.bos_token or ""
    for text, ids, words, said, answer in zip(rendered, prompts, expected, wanted, answers, strict=True):
        # llama.cpp leaves the beginning token, which it adds while it reads, out of the text.
        other_text += text.removeprefix(bos) != answer["prompt"].removeprefix(bos)
        other_ids += ids != answer["prompt_ids"]
        best = ours.likeliest(ours.distribution(model, ids, words))
        agreed.append(ours.agreement((said, answer["text"]), best, words, answer["ids"], end))
        # A text that merged ends and the file does not, word for word the same until there, has lost its end token.
        not_ended += words[-1] == end and answer["is_cut"] and answer["ids"][: len(words) - 1] == words[:-1]

    def of_the_words(model: Any) -> torch.Tensor:
        said = [ours.logps(model, ids, row["ids"]) for ids, row in zip(prompts, answers, strict=True) if row["ids"]]
        return torch.cat([torch.empty(0), *said])

    heard = torch.tensor([value for row in answers for value in row["log_probs"]])
    trained = of_the_words(model)
    del model
    gc.collect()  # one model in memory at a time
    start = of_the_words(load(request["base"]))
    count = len(chats)
    gap = (heard - trained).abs().mean().item()
    effect, doubt = strength(start, trained, heard)
    low, high = EFFECT_RANGE
    untold = ", too uncertain to tell from none" if effect - doubt <= 0 < low <= effect + doubt else ""
    checked = {
        "chat template renders the same text": (not other_text, f"{count - other_text} of {count} prompts"),
        "prompts are read as the same tokens": (not other_ids, f"{count - other_ids} of {count} prompts"),
        "answers end where the merged model's do": (not not_ended, f"{not_ended} run on past the end"),
        f"log-probabilities within {request['tolerance']} nats of the merged model's on average": (
            gap <= request["tolerance"],
            f"{gap:.4f} nats",
        ),
        f"the training's effect is there once ({low} to {high} times)": (
            effect + doubt >= low and effect - doubt <= high,
            f"{effect:.2f} ± {doubt:.2f} times{untold}",
        ),
    }
    return ours.verdict(checked, agreed, request["least_equal"]) | {
        "mean_logp_difference_to_merged": gap,
        "effect_of_training_in_file": [effect, doubt],
        "texts_of_merged": wanted,
    }


def strength(start: torch.Tensor, trained: torch.Tensor, heard: torch.Tensor) -> tuple[float, float]:
    """How much of the training's effect on log-probabilities is in the file's, and how uncertain that is.

    The slope of a regression through the origin: 1 is all of the effect, 0 nothing, 2 twice. Few words carry most of it, and
    rounding moves those most, so the standard error is the one that allows for both (HC3, MacKinnon and White, 1985).

    >>> strength(torch.tensor([-2.0, -1.0]), torch.tensor([-1.0, -1.0]), torch.tensor([-1.5, -1.25]))
    (0.5, 0.0)
    """
    wanted, found = trained - start, heard - start
    total = (wanted * wanted).sum().clamp(min=1e-12)
    slope = (wanted * found).sum() / total
    left = (found - slope * wanted) / (1 - wanted * wanted / total).clamp(min=1e-6)
    return slope.item(), _STANDARD_ERRORS * ((wanted * left).square().sum().sqrt() / total).item()


if __name__ == "__main__":
    sibling("verify_merged").main(verify)
