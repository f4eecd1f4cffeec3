"""Check a merged model against base and adapter. Runs as a process of its own that imports neither the kit nor unsloth.

    python -I verify_merged.py request.json

The request names `base`, `adapter`, `merged`, `prompts` (chat messages), `max_new_tokens` and `result`, the file to write.
What a user will do with the folder is done here: plain `transformers.pipeline`. Three models answer the same prompts
greedily, and the reference's answers are scored by each of them.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline

# Largest relative error of rounding once to the nearest value, doubled for the noise of the float32 product behind it.
ROUNDING = {"BF16": 2.0**-8, "F16": 2.0**-10, "F32": 2.0**-20}
# The change of log-probability from base to merged, regressed on that from base to adapter: 1 when the adapter was applied
# once, 0 when it was lost, 2 when it was applied twice. A short training rounded to bfloat16 has shown 0.53 here.
SLOPE_RANGE = (0.85, 1.15)
MEAN_LOGP_TOLERANCE = 0.05
# Greedy texts may part where the reference's best two words lie closer than this; anywhere else is a different model.
NEAR_TIE = 0.25
LEAST_EQUAL_TEXT = 0.9


def tensor_problems(merged: Path, expected: set[str]) -> list[str]:
    """Names of missing, unexpected or non-finite tensors in a folder of safetensors."""
    problems, found = [], set()
    for file in sorted(merged.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118, safe_open is no mapping
                found.add(name)
                if not torch.isfinite(tensors.get_tensor(name)).all():
                    problems.append(f"{name} has values that are not finite")
    problems += [f"{name} is missing" for name in sorted(expected - found)]
    problems += [f"{name} is unexpected" for name in sorted(found - expected)]
    return problems


def saved_names(model: torch.nn.Module) -> set[str]:
    """Names under which save_pretrained writes a model's tensors: tied ones once."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    return {name for name in model.state_dict() if name not in tied}


def weight_problems(merged: Path, reference: PeftModel) -> list[str]:
    """Tensors that differ from base plus adapter, computed here in float32, by more than one rounding step."""
    from peft.tuners.lora import LoraLayer

    expected = {}
    for name, module in reference.get_base_model().named_modules():
        if isinstance(module, LoraLayer):
            base = module.get_base_layer()
            expected[f"{name}.weight"] = base.weight.detach() + module.get_delta_weight("default").detach()
        elif not name.endswith((".base_layer", ".default")):
            for leaf, parameter in module.named_parameters(recurse=False):
                expected.setdefault(f"{name}.{leaf}", parameter.detach())
    problems = []
    for file in sorted(merged.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118, safe_open is no mapping
                if name not in expected:
                    problems.append(f"{name} has no counterpart in base plus adapter")
                    continue
                step = ROUNDING[tensors.get_slice(name).get_dtype()]
                found, exact = tensors.get_tensor(name).float(), expected[name].float()
                # 1e-7: float16 has no relative precision below 6e-5.
                far = (found - exact).abs() > exact.abs() * step + 1e-7
                if far.any():
                    problems.append(f"{name} differs from base plus adapter in {far.float().mean():.1%} of its values")
    return problems


@torch.no_grad()
def greedy(model: Any, tokenizer: Any, prompts: list[list[int]], limit: int) -> list[list[int]]:
    """Greedy continuations up to and with the end token."""
    widest = max(map(len, prompts))
    ids = torch.tensor([[tokenizer.pad_token_id] * (widest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (widest - len(p)) + [1] * len(p) for p in prompts])
    out = model.generate(
        input_ids=ids, attention_mask=mask, max_new_tokens=limit, do_sample=False, pad_token_id=tokenizer.pad_token_id
    )
    return [up_to_end(row, tokenizer) for row in out[:, widest:].tolist()]


def up_to_end(tokens: list[int], tokenizer: Any) -> list[int]:
    """The tokens up to and with the first end token."""
    end = tokenizer.eos_token_id
    return tokens[: tokens.index(end) + 1] if end in tokens else tokens


@torch.no_grad()
def logps(model: Any, ids: list[int], completion: list[int]) -> torch.Tensor:
    """Log-probabilities in nats of a completion behind a prompt, (len(completion),) float32."""
    logits = model(input_ids=torch.tensor([ids + completion])).logits[0, len(ids) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]


@torch.no_grad()
def parts_at_a_near_tie(reference: Any, ids: list[int], answer: list[int], other: list[int]) -> bool:
    """Whether two greedy continuations are equal, or first part where the reference was nearly undecided."""
    same = next((i for i, pair in enumerate(zip(answer, other, strict=False)) if pair[0] != pair[1]), None)
    if same is None:
        same = min(len(answer), len(other))
        if same == len(answer):
            return True  # the answer was cut at the limit, or only the end token is missing from the text
        other = [*other, answer[same]]
    logits = reference(input_ids=torch.tensor([ids + answer[:same]])).logits[0, -1].float().log_softmax(-1)
    best = logits.topk(2).values
    return bool(best[0] - best[1] < NEAR_TIE) and bool(best[0] - logits[other[same]] < NEAR_TIE)


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Do all checks and return them with a verdict."""
    merged_folder, limit = Path(request["merged"]), request["max_new_tokens"]
    base = AutoModelForCausalLM.from_pretrained(request["base"], dtype=torch.float32)
    tensors = tensor_problems(merged_folder, saved_names(base))
    reference = PeftModel.from_pretrained(base, request["adapter"]).eval()
    weights = weight_problems(merged_folder, reference)
    user = pipeline("text-generation", model=str(merged_folder), dtype=torch.float32, device="cpu")
    tokenizer, merged = user.tokenizer, user.model.eval()
    original = AutoTokenizer.from_pretrained(request["tokenizer"])

    chats, equal, near, moved, expected_move = request["prompts"], 0, 0, [], []
    prompts = [
        tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        for chat in chats
    ]
    answers = greedy(reference, tokenizer, prompts, limit)
    shown = user(chats, max_new_tokens=limit, do_sample=False, batch_size=len(chats))
    for ids, answer, output in zip(prompts, answers, shown, strict=True):
        text = output[0]["generated_text"][-1]["content"]
        if text.strip() == tokenizer.decode(answer, skip_special_tokens=True).strip():
            equal, near = equal + 1, near + 1
        else:
            other = tokenizer(text, add_special_tokens=False)["input_ids"]
            near += parts_at_a_near_tie(reference, ids, answer, other)
        with reference.disable_adapter():
            start = logps(reference, ids, answer)
        expected_move.append(logps(reference, ids, answer) - start)
        moved.append(logps(merged, ids, answer) - start)
    x, y, count = torch.cat(expected_move), torch.cat(moved), len(chats)
    gap, reach = (y - x).abs().mean().item(), x.abs().mean().item()
    slope = ((x * y).sum() / (x * x).sum().clamp(min=1e-12)).item()
    low, high = SLOPE_RANGE
    checks = {
        "tensors finite and complete": not tensors,
        "every weight is base plus adapter, rounded once": not weights,
        "tokenizer, chat template and end token equal": tokenizer.get_vocab() == original.get_vocab()
        and tokenizer.chat_template == original.chat_template
        and tokenizer.eos_token == original.eos_token,
        f"the adapter's effect is there once ({low} to {high} times)": low <= slope <= high,
        f"log-probabilities within {MEAN_LOGP_TOLERANCE} nats of the adapter's on average": gap <= MEAN_LOGP_TOLERANCE,
        f"greedy text equal, near ties aside, on {LEAST_EQUAL_TEXT:.0%} of the prompts": near / count
        >= LEAST_EQUAL_TEXT,
    }
    return {
        "passed": all(checks.values()),
        "checks": checks,
        "prompts": count,
        "equal_greedy_text": equal / count,
        "equal_greedy_text_near_ties_aside": near / count,
        "adapter_effect_in_merged": slope,
        "mean_logp_difference_to_adapter": gap,
        "mean_logp_difference_of_base_to_adapter": reach,
        "problems": (tensors + weights)[:10],
        "imported_unsloth_or_kit": sorted({"unsloth", "grpo_nb"} & set(sys.modules)),
    }


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(asked["result"]).write_text(json.dumps(verify(asked), indent=2) + "\n")
