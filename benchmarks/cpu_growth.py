"""Measure how the saving on a CPU grows with group size and lengths, compared with TRL.

    python benchmarks/cpu_growth.py [--rounds 2]

Claim: never slower than the stock path. From a group of 8, a prompt of 128 and completions of 32
tokens, one size at a time is changed. A measurement is what a step computes: sampling, the
reference's log-probabilities, the policy's with gradient. Both paths run in one process, in
turns, on the same model and tokens; medians and their ratio are printed, and a figure is written
to docs/evidence/cpu_growth.png.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from _measure import ROOT

BASE = {"group": 8, "prompt": 128, "completion": 32}
SIZES = {"group": (4, 8, 16, 32), "prompt": (32, 128, 512), "completion": (32, 128, 512)}


def one_group(
    model: Any, group: int, prompt: int, completion: int
) -> dict[str, Callable[[], None]]:
    import torch
    from transformers import GenerationConfig

    from grpo_nb.cpu import sampler, shared_prompts
    from grpo_nb.cpu.folded_lora import FoldedLora

    generator = torch.Generator().manual_seed(0)
    ids = (
        torch.randint(1000, 40000, (1, prompt + completion), generator=generator)
        .expand(group, -1)
        .clone()
    )
    ids[:, prompt:] = torch.randint(1000, 40000, (group, completion), generator=generator)
    mask = torch.ones_like(ids)
    prompts = ids[:, :prompt].tolist()
    # Without an end token every completion has the full length.
    config = GenerationConfig(
        max_new_tokens=completion,
        do_sample=True,
        top_k=0,
        pad_token_id=0,
        eos_token_id=None,
        disable_compile=True,
    )
    folded_lora = FoldedLora(model)

    def shared() -> None:
        sampler.sample(model, prompts, config, folded_lora)
        with torch.no_grad(), model.disable_adapter():
            shared_prompts.shared_prompt_log_probs(model, ids, mask, completion)
        log_probs, _ = shared_prompts.shared_prompt_log_probs(model, ids, mask, completion)
        log_probs.sum().backward()

    def stock_logps() -> Any:
        labels = ids.clone()
        labels[:, :prompt] = -100
        return model(
            input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True
        ).log_probs

    def stock() -> None:
        model.eval()
        with torch.no_grad():
            model.generate(
                input_ids=ids[:, :prompt], attention_mask=mask[:, :prompt], generation_config=config
            )
        model.train()
        with torch.no_grad(), model.disable_adapter():
            stock_logps()
        stock_logps().sum().backward()

    return {"shared": shared, "stock": stock}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    rounds = parser.parse_args().rounds
    import grpo_nb as gn

    model, _ = gn.load_model(gn.preset("cpu", max_prompt_length=512, max_completion_length=512))
    from trl.trainer.utils import add_fused_lm_head

    model.generation_config.eos_token_id = None
    add_fused_lm_head(model.get_base_model(), outputs=("log_probs", "entropy"))
    one_group(model, **BASE)["shared"]()  # warms up
    rows: list[tuple[str, int, float, float]] = []
    print(
        "| size | tokens | stock, s | shared prompts, s | ratio |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    for size, values in SIZES.items():
        for value in values:
            paths = one_group(model, **{**BASE, size: value})
            times: dict[str, list[float]] = {"stock": [], "shared": []}
            for _ in range(rounds):
                for path, seconds in times.items():
                    started = time.perf_counter()
                    paths[path]()
                    seconds.append(time.perf_counter() - started)
                    model.zero_grad()
            stock = statistics.median(times["stock"])
            shared = statistics.median(times["shared"])
            rows.append((size, value, stock, shared))
            print(
                f"| {size} | {value} | {stock:.1f} | {shared:.1f} | {shared / stock:.2f} |",
                flush=True,
            )
    plot(rows, ROOT / "docs/evidence/cpu_growth.png")


def plot(rows: list[tuple[str, int, float, float]], file: Path) -> None:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    axes = figure.subplots(1, 3, sharey=True)
    labels = {
        "group": "completions in the group",
        "prompt": "prompt, tokens",
        "completion": "completion, tokens",
    }
    for ax, size in zip(axes, SIZES, strict=True):
        values = [value for name, value, _, _ in rows if name == size]
        ratios = [shared / stock for name, _, stock, shared in rows if name == size]
        ax.plot(values, ratios, marker="o", color="#1f5fa8")
        for value, ratio in zip(values, ratios, strict=True):
            ax.annotate(
                f"{ratio:.2f}",
                (value, ratio),
                textcoords="offset points",
                xytext=(0, 7),
                ha="center",
                fontsize=9,
            )
        ax.axhline(1, color="#888", linestyle="--", linewidth=1)
        ax.set_xscale("log", base=2)
        ax.set_xticks(values, [str(value) for value in values])
        ax.margins(x=0.15)
        ax.set_xlabel(labels[size])
        ax.spines[["top", "right"]].set_visible(False)
    axes[0].set_ylim(0, 1.1)
    axes[0].set_ylabel("time, share of stock")
    axes[0].annotate(
        "stock path", (values[0] / 8, 1.02), xycoords=("data", "data"), fontsize=8, color="#666"
    )
    figure.savefig(file, dpi=150)


if __name__ == "__main__":
    main()
