"""Time ideas that could make a CPU step cheaper, each in turns with what it replaces.

    python studies/cpu_kernels.py

The model is the embedded one. Medians in milliseconds; docs/evidence/cpu_step.md says what was
taken and why.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))


def in_turns(ways: dict[str, Callable[[], Any]], repeats: int = 7) -> dict[str, float]:
    """Return the median milliseconds of each way, measured in turns after a first call of each."""
    for way in ways.values():
        way()
    seen: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(repeats):
        for name, way in ways.items():
            started = time.perf_counter()
            way()
            seen[name].append(1000 * (time.perf_counter() - started))
    return {name: statistics.median(times) for name, times in seen.items()}


def show(title: str, found: dict[str, float]) -> None:
    """Print one row: each way with its milliseconds and its ratio to the first way."""
    first = next(iter(found.values()))
    cells = []
    for name, milliseconds in found.items():
        ratio = milliseconds / first
        cells.append(f"{name} {milliseconds:.1f} ({ratio:.2f})")
    print(f"| {title} | {', '.join(cells)} |", flush=True)


def main() -> None:
    import grpo_nb as gn

    model, _ = gn.load_model(gn.preset("cpu"))
    import torch
    from peft.tuners.lora import LoraLayer
    from torch.nn import functional
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
    from trl.trainer.utils import add_fused_lm_head

    from grpo_nb.cpu import shared_prompts
    from grpo_nb.cpu.attention import grouped_attention
    from grpo_nb.cpu.folded_lora import FoldedLora

    print("| what | ms, and as a share of the first |\n| --- | --- |")
    layers = [m for m in model.modules() if isinstance(m, LoraLayer)]
    weights = [layer.get_base_layer().weight.detach() for layer in layers]
    with torch.no_grad():
        reorder = torch.ops.mkldnn._reorder_linear_weight
        packing: list[float] = []
        packed = [None] * len(weights)
        for _ in range(6):
            started = time.perf_counter()
            for i, weight in enumerate(weights):
                packed[i] = reorder(weight, 16)
            packing.append(1000 * (time.perf_counter() - started))
        for rows in (1, 4, 8, 12, 16, 32, 64, 128, 256, 480):
            widths = {weight.shape[1] for weight in weights}
            x = {width: torch.randn(rows, width) for width in widths}
            ways = {
                "linear": lambda x=x: [functional.linear(x[w.shape[1]], w) for w in weights],
                "weight on the left": lambda x=x: [
                    (w @ x[w.shape[1]].t()).t().contiguous() for w in weights
                ],
                "oneDNN, packed weights": lambda x=x: [
                    torch.ops.mkldnn._linear_pointwise(x[w.shape[1]], p, None, "none", [], "")
                    for w, p in zip(weights, packed, strict=True)
                ],
            }
            show(f"all {len(weights)} projections, {rows} rows", in_turns(ways))
        found = {
            "into fresh memory": packing[0],
            "layer by layer into what the last packing left": packing[-1],
        }
        show("packing the weights for oneDNN, once for each rollout", found)
        packed.clear()
        head = model.get_output_embeddings().weight
        x = torch.randn(16, head.shape[1])
        packed_head = reorder(head.detach(), 16)
        ways = {
            "linear": lambda: functional.linear(x, head),
            "weight on the left": lambda: (head @ x.t()).t().contiguous(),
            "oneDNN, packed": lambda: torch.ops.mkldnn._linear_pointwise(
                x, packed_head, None, "none", [], ""
            ),
        }
        show("language-model head, 16 rows", in_turns(ways))

        query = torch.randn(16, 1, 9, 64).transpose(1, 2)
        key, value = (torch.randn(16, 3, 150, 64)[:, :, :120] for _ in range(2))
        visible = torch.ones(16, 1, 1, 120, dtype=torch.bool)
        attention = ALL_ATTENTION_FUNCTIONS["sdpa"]
        layer = model.get_base_model().model.layers[0].self_attn
        with grouped_attention():
            grouped = ALL_ATTENTION_FUNCTIONS["sdpa"]

        def of_30_layers(attend: Callable) -> None:
            for _ in range(30):
                attend(layer, query, key, value, visible)

        ways = {
            "keys and values copied for each head": lambda: of_30_layers(attention),
            "read in place": lambda: of_30_layers(grouped),
        }
        show("attention of one token, 16 rows, 120 tokens, 30 layers", in_turns(ways))

        folded = FoldedLora(model)

        def fold() -> None:
            with folded.applied():
                pass

        ways = {
            "PEFT's delta, added": lambda: [
                layer.get_base_layer().weight + layer.get_delta_weight("default")
                for layer in layers
            ],
            "addmm into kept memory": fold,
        }
        show("folding the LoRA", in_turns(ways))

    add_fused_lm_head(model.get_base_model(), outputs=("log_probs", "entropy"))
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 40000, (16, 97 + 40), generator=generator)
    ids[:, :80] = ids[0, :80]
    ids[:8, :97] = ids[0, :97].clone()
    ids[8:, :97] = ids[8, :97].clone()
    lengths = torch.linspace(8, 40, 16).long()
    mask = torch.ones_like(ids)
    mask[:, 97:] = torch.arange(40) < lengths[:, None]

    def loss_pass(fold: bool) -> None:
        if fold:
            with folded.applied():
                log_probs, _ = shared_prompts.shared_prompt_log_probs(model, ids, mask, 40)
        else:
            log_probs, _ = shared_prompts.shared_prompt_log_probs(model, ids, mask, 40)
        log_probs.sum().backward()
        model.zero_grad()

    ways = {"PEFT's layers": lambda: loss_pass(False), "folded": lambda: loss_pass(True)}
    show("log-probabilities and backward, 2 x 8 completions of 8 to 40 tokens", in_turns(ways, 5))


if __name__ == "__main__":
    main()
