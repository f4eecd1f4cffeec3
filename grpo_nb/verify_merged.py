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

# Rounding merged weights to bfloat16 moves a log-probability by about 0.01 nats (measured: docs/merge_tolerance.md).
MEAN_LOGP_TOLERANCE = 0.05
# The merged model must be much nearer to base + adapter than the base is: a lost merge has a ratio of 1.
RATIO_TOLERANCE = 0.2
# Rounding may turn a near tie; a wrong merge turns most answers.
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


@torch.no_grad()
def greedy(model: Any, tokenizer: Any, ids: list[int], limit: int) -> list[int]:
    """Greedy continuation of one prompt."""
    inputs = torch.tensor([ids])
    out = model.generate(
        input_ids=inputs,
        attention_mask=torch.ones_like(inputs),
        max_new_tokens=limit,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
    )
    return out[0, len(ids) :].tolist()


@torch.no_grad()
def logps(model: Any, ids: list[int], completion: list[int]) -> torch.Tensor:
    """Log-probabilities in nats of a completion behind a prompt, (len(completion),) float32."""
    logits = model(input_ids=torch.tensor([ids + completion])).logits[0, len(ids) - 1 : -1].float()
    return logits.log_softmax(-1).gather(-1, torch.tensor(completion)[:, None])[:, 0]


def verify(request: dict[str, Any]) -> dict[str, Any]:
    """Do all checks and return them with a verdict."""
    merged_folder = Path(request["merged"])
    load = {"dtype": torch.float32}
    base = AutoModelForCausalLM.from_pretrained(request["base"], **load)
    tensors = tensor_problems(merged_folder, saved_names(base))
    reference = PeftModel.from_pretrained(base, request["adapter"]).eval()
    user = pipeline("text-generation", model=str(merged_folder), dtype=torch.float32, device="cpu")
    tokenizer, merged = user.tokenizer, user.model.eval()
    original = AutoTokenizer.from_pretrained(request["tokenizer"])

    same_text, merged_gap, base_gap = 0, [], []
    for messages in request["prompts"]:
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)["input_ids"]
        answer = greedy(reference, tokenizer, ids, request["max_new_tokens"])
        text = tokenizer.decode(answer, skip_special_tokens=True)
        shown = user(messages, max_new_tokens=request["max_new_tokens"], do_sample=False)[0]["generated_text"]
        same_text += shown[-1]["content"].strip() == text.strip()
        expected = logps(reference, ids, answer)
        merged_gap.append((logps(merged, ids, answer) - expected).abs())
        with reference.disable_adapter():
            base_gap.append((logps(reference, ids, answer) - expected).abs())
    gap, reach = torch.cat(merged_gap).mean().item(), torch.cat(base_gap).mean().item()
    equal = same_text / len(request["prompts"])
    checks = {
        "tensors finite and complete": not tensors,
        "tokenizer and chat template equal": tokenizer.get_vocab() == original.get_vocab()
        and tokenizer.chat_template == original.chat_template
        and tokenizer.eos_token == original.eos_token,
        f"log-probabilities within {MEAN_LOGP_TOLERANCE} nats of the adapter on average": gap <= MEAN_LOGP_TOLERANCE,
        f"at most {RATIO_TOLERANCE:.0%} of the base model's distance from the adapter": gap <= RATIO_TOLERANCE * reach,
        f"greedy text equal on at least {LEAST_EQUAL_TEXT:.0%} of the prompts": equal >= LEAST_EQUAL_TEXT,
    }
    return {
        "passed": all(checks.values()),
        "checks": checks,
        "prompts": len(request["prompts"]),
        "mean_logp_difference_to_adapter": gap,
        "mean_logp_difference_of_base_to_adapter": reach,
        "equal_greedy_text": equal,
        "tensor_problems": tensors[:10],
        "imported_unsloth_or_kit": sorted({"unsloth", "grpo_nb"} & set(sys.modules)),
    }


if __name__ == "__main__":
    asked = json.loads(Path(sys.argv[1]).read_text())
    Path(asked["result"]).write_text(json.dumps(verify(asked), indent=2) + "\n")
