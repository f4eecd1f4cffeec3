"""Tokens a second of `gn.evaluate` beside a plain `generate` loop, one prompt at a time and in left-padded batches.

    python benchmarks/evaluation_rate.py [--questions 48] [--rounds 3]

Question: how many times as fast on a CPU is the evaluation as the loop with one prompt at a time
that notebooks show, and as the same loop in batches? The embedded model with the quickstart's
prompts and length limit, greedy. The sides alternate in one process; medians of the rounds are
printed, as Markdown, with the share of equal texts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

# _measure puts this checkout first on the path, so it is imported before the kit.
from _measure import print_header, print_row

import grpo_nb as gn
from grpo_nb.models.sources import embedded_model_folder
from grpo_nb.models.unsloth_import import import_unsloth

LIMIT = 48


def plain_loop(
    model: Any, tokenizer: Any, prompts: Sequence[Any], batch_size: int
) -> tuple[list[str], int]:
    """Answer as a plain notebook would; return the texts and the number of answer tokens."""
    texts = []
    tokens = 0
    for start in range(0, len(prompts), batch_size):
        batch = prompts[start : start + batch_size]
        inputs = tokenizer.apply_chat_template(
            batch, add_generation_prompt=True, return_tensors="pt", return_dict=True, padding=True
        )
        rows = model.generate(
            **inputs, max_new_tokens=LIMIT, do_sample=False, pad_token_id=tokenizer.pad_token_id
        )
        for row in rows[:, inputs["input_ids"].shape[1] :].tolist():
            end = (
                row.index(tokenizer.eos_token_id) + 1 if tokenizer.eos_token_id in row else len(row)
            )
            texts.append(tokenizer.decode(row[:end], skip_special_tokens=True))
            tokens += end
    return texts, tokens


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--questions", type=int, default=48)
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    import_unsloth()
    from transformers import AutoModelForCausalLM, AutoTokenizer

    folder = embedded_model_folder()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.clean_up_tokenization_spaces = False
    tokenizer.padding_side = (
        "left"  # as an argument of apply_chat_template it is ignored, and answers follow padding
    )
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()  # for both sides
    task = gn.load_task("arithmetic", train_size=8, holdout=arguments.questions)
    prompts = list(task.holdout["prompt"])

    def kit() -> tuple[list[str], int]:
        found = gn.evaluate((model, tokenizer), task, max_completion_length=LIMIT)
        return [row["completion"] for row in found.rows], sum(row["tokens"] for row in found.rows)

    sides: dict[str, Callable[[], tuple[list[str], int]]] = {
        "gn.evaluate": kit,
        "generate, batches of 48": lambda: plain_loop(model, tokenizer, prompts, 48),
        "generate, one at a time": lambda: plain_loop(model, tokenizer, prompts, 1),
    }
    rates: dict[str, list[float]] = {name: [] for name in sides}
    texts: dict[str, list[str]] = {}
    kit()  # the first use maps memory
    for _ in range(arguments.rounds):
        for name, answer in sides.items():
            started = time.perf_counter()
            texts[name], tokens = answer()
            rates[name].append(tokens / (time.perf_counter() - started))
    medians = {name: statistics.median(found) for name, found in rates.items()}
    print(
        f"{arguments.questions} questions, {arguments.rounds} rounds, "
        f"at most {LIMIT} tokens each, SmolLM2-135M-Instruct.\n"
    )
    print_header("side", "tokens a second", "gn.evaluate is faster by", "equal texts")
    for name, median in medians.items():
        pairs = zip(texts[name], texts["gn.evaluate"], strict=True)
        equal = sum(a == b for a, b in pairs) / len(prompts)
        ratio = medians["gn.evaluate"] / median
        print_row(name, f"{median:.0f}", f"{ratio:.2f}", f"{equal:.0%}")


if __name__ == "__main__":
    main()
