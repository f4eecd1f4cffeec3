"""What merging and verifying needs of memory as the model grows, each in a process of its own under a real limit.

    python benchmarks/export_memory.py [--layers 2 4 8 16] [--limit 6] [--work FOLDER]

The base is a Llama with random weights in bfloat16 and the widths of one of eight billion weights (4096, 14336, 32 heads, 8 for
keys), written layer by layer; 32 layers and a vocabulary of 49,152 make 7.2 billion. A process is limited by the memory
controller of control groups, which counts all that it has, pages of files among it, and ends it where it cannot stay below.
What cannot be given back (`RssAnon`) is looked at ten times a second. Needs root on a Linux machine with control groups of the
first kind; without them it measures without a limit and says so. Prints Markdown.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

from _measure import ask, machine, tell

HIDDEN, INNER, HEADS, KEYS, VOCABULARY = 4096, 14336, 32, 8, 49152
GROUPS = Path("/sys/fs/cgroup/memory")


def make_model(folder: Path, layers: int) -> None:
    """Base and adapter, one layer in memory at a time."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, LlamaConfig

    from grpo_nb.models.embedded import embedded_model_folder

    base, adapter = folder / "base", folder / "adapter"
    base.mkdir(parents=True)
    adapter.mkdir()
    AutoTokenizer.from_pretrained(embedded_model_folder()).save_pretrained(base)
    shutil.copy(embedded_model_folder() / "generation_config.json", base)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=layers, num_attention_heads=HEADS,
        num_key_value_heads=KEYS, tie_word_embeddings=True, architectures=["LlamaForCausalLM"], dtype="bfloat16",
        bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    config.save_pretrained(base)
    generator, index, lora = torch.Generator().manual_seed(0), {}, {}
    narrow = HIDDEN // HEADS * KEYS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (narrow, HIDDEN), "self_attn.v_proj": (narrow, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (INNER, HIDDEN), "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }  # fmt: skip

    def drawn(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).normal_(std=0.02, generator=generator)

    def write(name: str, tensors: dict[str, torch.Tensor]) -> None:
        save_file(tensors, base / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(tensors, name))

    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    write(
        "outer.safetensors", {"model.embed_tokens.weight": drawn(VOCABULARY, HIDDEN), "model.norm.weight": ones.clone()}
    )
    for layer in range(layers):
        place = f"model.layers.{layer}"
        write(
            f"layer{layer:02}.safetensors",
            {f"{place}.{name}.weight": drawn(*shape) for name, shape in shapes.items()}
            | {f"{place}.{name}.weight": ones.clone() for name in ("input_layernorm", "post_attention_layernorm")},
        )
        for name, (out, into) in shapes.items():
            start = f"base_model.model.{place}.{name}"
            lora[f"{start}.lora_A.weight"] = torch.empty(16, into).normal_(std=0.02, generator=generator)
            lora[f"{start}.lora_B.weight"] = torch.empty(out, 16).normal_(std=0.01, generator=generator)
    (base / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    save_file(lora, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    from peft import LoraConfig

    settings = {"r": 16, "lora_alpha": 32, "task_type": "CAUSAL_LM", "base_model_name_or_path": str(base)}
    LoraConfig(target_modules=sorted({name.split(".")[1] for name in shapes}), **settings).save_pretrained(adapter)


def one(step: str, folder: Path, limit: float) -> None:
    """Merge or verify in this process, limited to so many GiB, and tell seconds and peaks."""
    group = _limited(limit)
    peak, over = [0], threading.Event()

    def watch() -> None:
        while not over.wait(0.1):
            status = Path("/proc/self/status").read_text()
            peak[0] = max(peak[0], int(re.search(r"RssAnon:\s+(\d+)", status)[1]) * 1024)

    threading.Thread(target=watch, daemon=True).start()
    base, merged = folder / "base", folder / "merged"
    start = time.perf_counter()
    if step == "make":
        make_model(folder, int(os.environ["LAYERS"]))
    elif step == "merge":
        from grpo_nb.models import import_unsloth

        import_unsloth()  # as an export does first of all
        from grpo_nb.export.merge import merge

        merged.mkdir()
        merge(
            base, folder / "adapter", merged, dtype="auto", low_memory=True, shard_size="5GB", report=lambda line: None
        )
        for file in (*base.glob("*token*"), base / "chat_template.jinja"):
            shutil.copy(file, merged)
    else:
        from grpo_nb.export.children.verify import verify_merged

        chats = [[{"role": "user", "content": f"{n} + {n + 3}?"}] for n in range(4)]
        named = {"base": base, "tokenizer": base, "adapter": folder / "adapter", "merged": merged}
        found = verify_merged({**{k: str(v) for k, v in named.items()}, "prompts": chats, "max_new_tokens": 4})
        assert found["passed"], found
    seconds = time.perf_counter() - start
    over.set()
    all_of_it = int((group / "memory.max_usage_in_bytes").read_text()) if group else None
    tell({"seconds": seconds, "fixed": peak[0], "all": all_of_it})


def _limited(gib: float) -> Path | None:
    """Put this process into a control group of its own; None where there are none."""
    group = GROUPS / f"grpo_nb_{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(int(gib * 2**30)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None
    return group


def main() -> None:
    """Measure each size, and print a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--limit", type=float, default=6.0, help="GiB")
    parser.add_argument("--work", type=Path, default=None)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(asked.one[0], Path(asked.one[1]), asked.limit)
        return
    print(f"{machine()}, limit {asked.limit:g} GiB. GB are 10^9 bytes.\n")
    print("| layers | base, GB | step | cannot be given back, GB | with pages of files, GB | seconds |")
    print("| --- | --- | --- | --- | --- | --- |", flush=True)
    for layers in asked.layers:
        with tempfile.TemporaryDirectory(dir=asked.work) as place:
            folder = Path(place) / "model"
            for step in ("make", "merge", "verify"):
                told = ask(__file__, "--one", step, folder, "--limit", asked.limit, env={"LAYERS": str(layers)})
                size = sum(file.stat().st_size for file in (folder / "base").glob("*.safetensors")) / 1e9
                whole = "no limit" if told["all"] is None else f"{told['all'] / 1e9:.2f}"
                row = (
                    f"| {layers} | {size:.2f} | {step} | {told['fixed'] / 1e9:.2f} | {whole} | {told['seconds']:.0f} |"
                )
                print(row, flush=True)
    for group in GROUPS.glob("grpo_nb_*"):
        group.rmdir()


if __name__ == "__main__":
    main()
