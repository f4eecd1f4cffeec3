"""Measure how much of a CPU step each part of `CpuEngine` saves, by switching it off alone.

    python benchmarks/cpu_parts.py [--rounds 3]

A step samples 2 x 8 completions of the quickstart, computes their log-probabilities without the
adapter (the reference), and computes those of the policy with the backward pass. All steps run in
one process on the same model, tokens and seed. In each round every phase runs with everything on,
then with each part off that it uses, then with everything on again. The table shows medians over
rounds,
in seconds of the clock. Run it on a quiet machine. A part that saves less than 5 % of a step is not
worth its code.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

from _measure import machine

PHASES = ("sampling", "reference", "policy")


@dataclass
class Part:
    """A part of the engine, and how to run a phase without it."""

    name: str
    phases: str
    """First letters of the phases that use the part."""
    off: Callable[[], contextlib.AbstractContextManager[Any]]


class Step:
    """The computations of one optimizer step of the quickstart, on fixed tokens."""

    def __init__(self) -> None:
        import grpo_nb as gn

        settings = gn.preset("cpu")
        self.model, tokenizer = gn.load_model(settings)
        import torch
        from transformers import GenerationConfig
        from trl.trainer.utils import add_fused_lm_head

        from grpo_nb.cpu.engine import CpuEngine

        add_fused_lm_head(self.model.get_base_model(), outputs=("log_probs", "entropy"))
        task = gn.load_task("arithmetic", settings)
        ids = tokenizer.apply_chat_template(
            task.train["prompt"][:2], add_generation_prompt=True, return_dict=True
        )["input_ids"]
        self.prompts = [prompt for prompt in ids for _ in range(8)]
        self.config = GenerationConfig(
            max_new_tokens=settings.max_completion_length,
            do_sample=True,
            top_k=0,
            pad_token_id=tokenizer.pad_token_id,
            eos_token_id=tokenizer.eos_token_id,
            disable_compile=True,
        )
        self.engine = CpuEngine(self.model)
        torch.manual_seed(0)
        completions = self.engine.sample(self.prompts, self.config)
        lengths = [len(tokens) for tokens in completions]
        print(f"prompts of {len(ids[0])} and {len(ids[1])} tokens, completions of {lengths}")
        self.length = max(lengths)
        width = max(map(len, ids))
        self.input_ids = torch.zeros(16, width + self.length, dtype=torch.long)
        self.mask = torch.zeros_like(self.input_ids)
        for row, (prompt, tokens) in enumerate(zip(self.prompts, completions, strict=True)):
            place = slice(width - len(prompt), width + len(tokens))
            self.input_ids[row, place] = torch.tensor(prompt + tokens)
            self.mask[row, place] = 1
        self.advantages = torch.linspace(-1, 1, 16)[:, None]

    def seconds(self, phase: str) -> float:
        """Run one phase of a step; return its seconds."""
        import torch

        torch.manual_seed(0)
        started = time.perf_counter()
        if phase == "sampling":
            self.engine.sample(self.prompts, self.config)
        elif phase == "reference":
            with torch.no_grad(), self.model.disable_adapter():
                self.log_probs()
        else:
            log_probs, _ = self.log_probs()
            (log_probs * self.advantages).sum().backward()
            self.model.zero_grad()
        return time.perf_counter() - started

    def log_probs(self) -> tuple[Any, Any]:
        return self.engine.log_probs(
            self.model,
            self.input_ids,
            self.mask,
            self.length,
            autocast=contextlib.nullcontext(),
        )


def replaced(owner: Any, **changes: Any) -> Callable[[], Any]:
    """Return a function that opens a block in which attributes of an object are other ones."""
    return lambda: mock.patch.multiple(owner, **changes)


@contextlib.contextmanager
def do_nothing(*_: Any, **__: Any) -> Iterator[None]:
    yield


def sampling_parts() -> list[Part]:
    import torch
    from transformers.cache_utils import DynamicLayer

    from grpo_nb.cpu import engine, folded_lora, sampler, shared_prompts
    from grpo_nb.cpu.attention import grouped_attention

    class CopyingLayer(DynamicLayer):
        """Key/value layer that copies everything at each token, as transformers' own does."""

        def __init__(self, layer: Any, prompt_indices: Any, max_new_tokens: int) -> None:
            super().__init__()
            self.lazy_initialization(layer.keys, layer.values)
            self.keys = layer.keys.index_select(0, prompt_indices)
            self.values = layer.values.index_select(0, prompt_indices)

    @torch.no_grad()
    def stock_sample(model: Any, prompts: Any, config: Any, lora: Any) -> Any:
        ids, mask = shared_prompts.left_padded(prompts, config.pad_token_id)
        model.eval()
        with grouped_attention(), lora.applied(is_decoding=True):
            rows = model.generate(input_ids=ids, attention_mask=mask, generation_config=config)
        model.train()
        return rows

    no_packing = mock.Mock(is_available=lambda: False)
    return [
        Part(
            "- weights packed for decoding",
            "s",
            replaced(folded_lora.torch.backends, mkldnn=no_packing),
        ),
        Part("sampler", "s", replaced(engine, sample=stock_sample)),
        Part("- memory reserved in the cache", "s", replaced(sampler, _GrowingLayer=CopyingLayer)),
        Part("- rows leave the batch", "s", replaced(sampler, MAX_CONTINUING_SHARE=0.0)),
    ]


def shared_parts() -> list[Part]:
    from grpo_nb.cpu import attention, shared_prompts
    from grpo_nb.cpu.folded_lora import FoldedLora

    def stock_log_probs(
        model: Any, input_ids: Any, mask: Any, length: int, **_: Any
    ) -> tuple[Any, Any]:
        labels = input_ids.masked_fill(mask == 0, -100)
        labels[:, :-length] = -100
        with attention.grouped_attention():
            output = model(
                input_ids=input_ids, attention_mask=mask, labels=labels, fused_lm_head=True
            )
        return output.log_probs[:, -length:], output.entropy[:, -length:]

    def one_row_a_lane(lengths: Any, owner: Any) -> Any:
        return [[row] for row in range(len(lengths))]

    # The block then replaces an entry of a table that nobody reads.
    no_table = {"sdpa": None}
    return [
        Part(
            "attention without copies",
            "srp",
            replaced(attention, attention_functions=lambda: no_table),
        ),
        Part("folded LoRA", "srp", replaced(FoldedLora, applied=do_nothing)),
        Part(
            "shared prompts",
            "rp",
            replaced(shared_prompts, shared_prompt_log_probs=stock_log_probs),
        ),
        Part(
            "- prefix of all prompts once", "srp", replaced(shared_prompts, MIN_PREFIX_TOKENS=10**9)
        ),
        Part(
            "- completions in lanes", "rp", replaced(shared_prompts, assign_to_lanes=one_row_a_lane)
        ),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    rounds = parser.parse_args().rounds
    step = Step()
    parts = shared_parts() + sampling_parts()
    for phase in PHASES:
        step.seconds(phase)  # warms up
    on: dict[str, list[float]] = {phase: [] for phase in PHASES}
    extra: dict[tuple[str, str], list[float]] = {}
    for number in range(rounds):
        for phase in PHASES:
            before = step.seconds(phase)
            off: dict[str, float] = {}
            for part in parts:
                if phase[0] in part.phases:
                    with part.off():
                        off[part.name] = step.seconds(phase)
            after = step.seconds(phase)
            on[phase] += [before, after]
            for name, seconds in off.items():
                extra.setdefault((name, phase), []).append(seconds - (before + after) / 2)
        show(number + 1, parts, on, extra)


def show(
    rounds: int,
    parts: list[Part],
    on: dict[str, list[float]],
    extra: dict[tuple[str, str], list[float]],
) -> None:
    """Print the table so far."""
    seconds = {phase: statistics.median(values) for phase, values in on.items()}
    whole = sum(seconds.values())
    times = ", ".join(f"{phase} {value:.2f} s" for phase, value in seconds.items())
    print(f"\n{machine()}; rounds: {rounds}; everything on: {times}, step {whole:.2f} s\n")
    print(f"| part switched off | {' | '.join(PHASES)} | share of the step with everything on |")
    print("| --- | --- | --- | --- | --- |")
    for part in parts:
        saved = [statistics.median(extra.get((part.name, phase), [0.0])) for phase in PHASES]
        cells = [f"{value:+.2f} s" if value else "" for value in saved]
        print(f"| {part.name} | {' | '.join(cells)} | {sum(saved) / whole:+.1%} |", flush=True)


if __name__ == "__main__":
    main()
