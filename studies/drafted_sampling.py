"""Would drafts make sampling on a CPU faster? Counted on a run's own completions, priced with measured passes.

    python studies/drafted_sampling.py runs/...

A draft (speculative decoding, arXiv:2211.17192) is a guess at the next words of a row: here the words that most often
followed the same two before, in what all rows have written up to then. A pass computes the drafts of all rows at once, and
each row keeps them up to the first that differs from the word it draws. The words drawn do not change by it, so the passes
that a run would have taken can be counted from what it wrote. What a pass costs is measured on the embedded model.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import grpo_nb as gn
from grpo_nb.generation.attention import grouped_attention
from grpo_nb.generation.folded_lora import FoldedLora
from grpo_nb.generation.sampling import _GrowingLayer
from grpo_nb.generation.shared_prompts import prompt_cache

MEMORY = 2  # words before the one that is guessed
WORDS = (1, 2, 3, 4, 5, 7)  # of a row and a pass; 1 is no draft
CONFIDENCE = (0.3, 0.5, 0.7)


def passes(rows: list[list[int]], words: int, confidence: float) -> Iterator[tuple[int, int, int]]:
    """Yield for each pass: rows that run, the widest of them in words, all their words."""
    seen: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    at = [0] * len(rows)
    while running := [i for i, row in enumerate(rows) if at[i] < len(row)]:
        widths = []
        for i in running:
            row, guess, sure = rows[i], [], 1.0
            before = tuple(row[max(0, at[i] - MEMORY) : at[i]])
            while len(guess) < words - 1 and (known := seen.get(before)):
                word, times = known.most_common(1)[0]
                sure *= times / (known.total() + 0.5)
                if sure < confidence:
                    break
                guess.append(word)
                before = (*before, word)[-MEMORY:]
            widths.append(1 + len(guess))
            kept = next((n for n, word in enumerate(guess) if row[at[i] + n : at[i] + n + 1] != [word]), len(guess))
            end = min(len(row), at[i] + kept + 1)
            for n in range(at[i], end):
                seen[tuple(row[max(0, n - MEMORY) : n])][row[n]] += 1
            at[i] = end
        yield len(running), max(widths), sum(widths)


def measured_passes(model: object, prompt: int = 110, count: int = 12) -> dict[tuple[int, int], float]:
    """Milliseconds of a pass by rows and words in each, output layer included; the draw is not."""
    import torch

    found = {}
    prompts = [list(range(start, start + prompt)) for start in (100, 300)]
    with torch.no_grad(), grouped_attention, FoldedLora.of(model).for_inference(is_decoding=True):
        model.eval()
        for rows in (1, 4, 8, 16):
            for words in (1, 2, 4, 8):
                cache, mask = prompt_cache(
                    lambda **i: model(**i, use_cache=True, logits_to_keep=1), prompts, 0, model.dtype
                )
                owner, room = torch.arange(rows) % 2, count * words
                cache.layers = [_GrowingLayer(layer, owner, room) for layer in cache.layers]
                mask = torch.cat([mask[owner], torch.ones(rows, room, dtype=torch.long)], 1)
                spent = []
                for _ in range(count):
                    used = cache.get_seq_length()
                    ids = torch.randint(100, 2000, (rows, words))
                    positions = torch.arange(used, used + words).expand(rows, -1)
                    started = time.perf_counter()
                    model(
                        input_ids=ids, attention_mask=mask[:, : used + words], position_ids=positions,
                        past_key_values=cache, use_cache=True,
                    )  # fmt: skip
                    spent.append(1e3 * (time.perf_counter() - started))
                found[rows, words] = statistics.median(spent)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path)
    run = gn.open_run(parser.parse_args().run)
    model, tokenizer = gn.load_model(run.settings)
    cost = measured_passes(model)
    # Straight lines in the number of words: what a pass takes anyhow, and what each further word does.
    slope, fixed = statistics.linear_regression([r * w for r, w in cost], list(cost.values()))
    print("| rows | " + " | ".join(f"{w} words, ms" for w in (1, 2, 4, 8)) + " |\n" + "| --- " * 5 + "|")
    for rows in (1, 4, 8, 16):
        print(f"| {rows} | " + " | ".join(f"{cost[rows, w]:.0f}" for w in (1, 2, 4, 8)) + " |")
    print(f"\nA pass takes {fixed:.0f} ms, and {slope:.2f} ms for each word in it.\n")
    steps = []
    for step in range(1, len(run.rows) + 1):
        texts = run.completions(step)["completion"]
        steps.append([[*tokenizer(text, add_special_tokens=False).input_ids, tokenizer.eos_token_id] for text in texts])
    print(
        "| words a pass | sure to | passes | time, rows padded | time, rows packed |\n| --- | --- | --- | --- | --- |"
    )
    plain = None
    for words in WORDS:
        for confidence in CONFIDENCE if words > 1 else (0.0,):
            done = [one for rows in steps for one in passes(rows, words, confidence)]
            padded = sum(fixed + slope * n * widest for n, widest, _ in done)
            packed = sum(fixed + slope * total for *_, total in done)
            plain = plain or (len(done), packed)
            shares = (len(done) / plain[0], padded / plain[1], packed / plain[1])
            print(f"| {words} | {confidence:.1f} | " + " | ".join(f"{share:.2f}" for share in shares) + " |")


if __name__ == "__main__":
    main()
