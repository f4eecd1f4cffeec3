"""Measure the memory of merging and verifying as the model grows, under a real limit.

    python benchmarks/export_memory.py [--layers 1 4 14 32] [--limit 5.5] [--work FOLDER]

The base is a Llama with random weights in bfloat16 and the shapes of Llama 3.1 8B, in files of up
to 5 GB as on the Hub; with 32 layers it has 8.03 billion weights, and needs 33 GB of disk, with
`gguf` 42. A process is limited, with all that it starts, by the memory controller of control
groups, which counts pages of files too and ends it where it cannot stay below; the system forgets
the files before each step, so that none of their pages counts as another's. What cannot be given
back is looked at ten times a second. Needs root on a Linux machine with control groups of the
first kind; without them it measures without a limit and says so. Prints Markdown.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import tempfile
import threading
import time
from pathlib import Path

import psutil
from _measure import ask, machine, print_header, print_row, tell

HIDDEN = 4096
INNER = 14336
HEADS = 32
KEYS = 8
VOCABULARY = 128256
SHARD = 5 * 10**9
GROUPS = Path("/sys/fs/cgroup/memory")


def make_model(folder: Path, layers: int) -> None:
    """Base and adapter, one file in memory at a time."""
    import torch
    from safetensors.torch import save_file
    from transformers import AutoTokenizer, LlamaConfig

    from grpo_nb.models.sources import embedded_model_folder

    base = folder / "base"
    adapter = folder / "adapter"
    base.mkdir(parents=True)
    adapter.mkdir()
    AutoTokenizer.from_pretrained(embedded_model_folder()).save_pretrained(base)
    shutil.copy(embedded_model_folder() / "generation_config.json", base)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=INNER,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        num_key_value_heads=KEYS,
        tie_word_embeddings=False,
        architectures=["LlamaForCausalLM"],
        dtype="bfloat16",
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
    )
    config.save_pretrained(base)
    generator = torch.Generator().manual_seed(0)
    index = {}
    lora = {}
    narrow = HIDDEN // HEADS * KEYS
    shapes = {
        "self_attn.q_proj": (HIDDEN, HIDDEN),
        "self_attn.k_proj": (narrow, HIDDEN),
        "self_attn.v_proj": (narrow, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN),
        "mlp.gate_proj": (INNER, HIDDEN),
        "mlp.up_proj": (INNER, HIDDEN),
        "mlp.down_proj": (HIDDEN, INNER),
    }

    def drawn(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=torch.bfloat16).uniform_(-0.035, 0.035, generator=generator)

    ones = torch.ones(HIDDEN, dtype=torch.bfloat16)
    shard = {}

    def write(tensors: dict[str, torch.Tensor], *, is_last: bool = False) -> None:
        """Into the file that is being filled; a full one goes to the disk."""
        size = sum(tensor.nbytes for tensor in (*shard.values(), *tensors.values()))
        if shard and size > SHARD:
            flush()
        shard.update(tensors)
        if is_last:
            flush()

    def flush() -> None:
        name = f"model-{len(set(index.values())) + 1}.safetensors"
        save_file(shard, base / name, metadata={"format": "pt"})
        index.update(dict.fromkeys(shard, name))
        shard.clear()

    write({"model.embed_tokens.weight": drawn(VOCABULARY, HIDDEN)})
    for layer in range(layers):
        place = f"model.layers.{layer}"
        write(
            {f"{place}.{name}.weight": drawn(*shape) for name, shape in shapes.items()}
            | {
                f"{place}.{name}.weight": ones.clone()
                for name in ("input_layernorm", "post_attention_layernorm")
            },
        )
        for name, (out, into) in shapes.items():
            start = f"base_model.model.{place}.{name}"
            lora[f"{start}.lora_A.weight"] = torch.empty(16, into).normal_(
                std=0.02, generator=generator
            )
            lora[f"{start}.lora_B.weight"] = torch.empty(out, 16).normal_(
                std=0.01, generator=generator
            )
    head = drawn(VOCABULARY, HIDDEN)
    head[49152:] = 0  # words that the tokenizer does not have
    write({"lm_head.weight": head, "model.norm.weight": ones.clone()}, is_last=True)
    (base / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": index})
    )
    save_file(lora, adapter / "adapter_model.safetensors", metadata={"format": "pt"})
    from peft import LoraConfig

    settings = {
        "r": 16,
        "lora_alpha": 32,
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
    }
    LoraConfig(
        target_modules=sorted({name.split(".")[1] for name in shapes}), **settings
    ).save_pretrained(adapter)


def one(step: str, folder: Path, limit: float) -> None:
    """Do a step in this process, limited to so many GiB with all that it starts, and tell seconds and peaks."""
    group = _limited(limit)
    _forget_files(folder)
    peak = [0]
    over = threading.Event()
    read = _bytes_read()

    def watch() -> None:
        me = psutil.Process()
        while not over.wait(0.1):
            with contextlib.suppress(psutil.NoSuchProcess):
                held = [process.memory_info() for process in (me, *me.children(recursive=True))]
                # Without pages of files and shared memory.
                peak[0] = max(peak[0], sum(memory.rss - memory.shared for memory in held))

    threading.Thread(target=watch, daemon=True).start()
    start = time.perf_counter()
    said = STEPS[step](folder)
    seconds = time.perf_counter() - start
    over.set()
    counted = int((group / "memory.max_usage_in_bytes").read_text()) if group else None
    tell(
        {
            "seconds": seconds,
            "fixed": peak[0],
            "all": counted,
            "read": _bytes_read() - read,
            "said": said,
        }
    )


def make(folder: Path) -> str:
    """The model itself."""
    make_model(folder, int(os.environ["LAYERS"]))
    return ""


def merge_it(folder: Path) -> str:
    """Merge as an export does."""
    from grpo_nb.models.unsloth_import import import_unsloth

    import_unsloth()  # as an export does first of all
    from grpo_nb.export.merged import merge

    base = folder / "base"
    merged = folder / "merged"
    merged.mkdir()
    found = merge(base, folder / "adapter", merged, dtypes=os.environ["DTYPES"].split(","))
    for file in (*base.glob("*token*"), base / "chat_template.jinja"):
        shutil.copy(file, merged)
    return f"{found['dtype']}, {found['retained_change']:.1%} kept"


def verify(folder: Path) -> str:
    """Verify as an export does, with as many prompts and tokens."""
    from grpo_nb.export.merged import MERGED_LIMITS
    from grpo_nb.export.staged_export import VERIFIED_PROMPTS, VERIFIED_TOKENS
    from grpo_nb.export.verify_child import verify_merged

    names = ("base", "adapter", "merged")
    asked: dict = {f"{name}_folder": str(folder / name) for name in names}
    asked["prompts"] = [
        [{"role": "user", "content": f"What is {n} + {n + 3}?"}] for n in range(VERIFIED_PROMPTS)
    ]
    asked |= {
        "max_new_tokens": VERIFIED_TOKENS,
        "chat_template": None,
        "chat_template_kwargs": {},
    }
    # Of this process, for its limit is not the machine's.
    free = int(float(os.environ["LIMIT"]) * 2**30) - psutil.Process().memory_info().rss
    found = verify_merged(asked | {"limits": MERGED_LIMITS, "free_memory": free})
    failed = {name: said for name, (passed, said) in found.items() if passed is False}
    assert not failed, failed
    return ", ".join(said for name, (_, said) in found.items() if name.startswith("tokens"))


def gguf(folder: Path) -> str:
    """The conversion, by llama.cpp's own script in a process of its own."""
    from grpo_nb.export.conversion import convert

    dtype = json.loads((folder / "merged" / "config.json").read_text())["dtype"]
    convert(folder / "merged", dtype, folder / "q8_0.gguf", "q8_0")
    return f"{(folder / 'q8_0.gguf').stat().st_size / 1e9:.2f} GB"


def llama_cpp(folder: Path) -> str:
    """One short answer of llama.cpp, in a process of its own: more take longer, and no more memory."""
    from grpo_nb.generation.llama_cpp import complete_with_gguf

    (found,) = complete_with_gguf(
        folder / "q8_0.gguf", [[{"role": "user", "content": "2 + 2?"}]], max_completion_length=2
    )
    return f"{found.token_count} tokens"


STEPS = {"make": make, "merge": merge_it, "verify": verify, "gguf": gguf, "llama.cpp": llama_cpp}


def _forget_files(folder: Path) -> None:
    """Have the system drop its copies of the files: pages that another process read first would count as that one's."""
    os.sync()
    for file in folder.rglob("*"):
        if file.is_file():
            with file.open("rb") as opened:
                os.posix_fadvise(opened.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _bytes_read() -> int:
    """From the disk, by this process."""
    return int(re.search(r"^read_bytes: (\d+)", Path("/proc/self/io").read_text(), re.MULTILINE)[1])


def _group() -> Path | None:
    """The control group of this process that counts memory."""
    listing = Path("/proc/self/cgroup")
    parts = (
        [line.split(":") for line in listing.read_text().splitlines()] if listing.is_file() else []
    )
    return next((GROUPS / place.lstrip("/") for _, kind, place in parts if kind == "memory"), None)


def _limited(gib: float) -> Path | None:
    """Put this process into a control group inside its own; None where that cannot be done."""
    if (own := _group()) is None:
        return None
    group = own / f"grpo_nb_{os.getpid()}"
    try:
        group.mkdir()
        (group / "memory.limit_in_bytes").write_text(str(int(gib * 2**30)))
        (group / "cgroup.procs").write_text(str(os.getpid()))
    except OSError:
        return None
    return group


def main() -> None:
    """Measure each size, and print a row as soon as it is known."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--layers", type=int, nargs="+", default=[1, 4, 14, 32])
    parser.add_argument(
        "--dtypes", default="bfloat16,float16,float32", help="the first one that fits"
    )
    parser.add_argument("--limit", type=float, default=5.5, help="GiB")
    parser.add_argument("--steps", nargs="+", choices=[*STEPS], default=[*STEPS])
    parser.add_argument("--work", type=Path, default=None)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        one(asked.one[0], Path(asked.one[1]), asked.limit)
        return
    print(f"{machine()}, limit {asked.limit:g} GiB. GB are 10^9 bytes.\n")
    print_header(
        "weights, 10^9",
        "base, GB",
        "step",
        "cannot be given back, GB",
        "with pages of files, GB",
        "read, GB",
        "seconds",
        "",
    )
    try:
        for layers in asked.layers:
            with tempfile.TemporaryDirectory(dir=asked.work) as place:
                folder = Path(place) / "model"
                for step in asked.steps:
                    env = {"LAYERS": str(layers), "DTYPES": asked.dtypes, "LIMIT": str(asked.limit)}
                    told = ask(__file__, "--one", step, folder, "--limit", asked.limit, env=env)
                    weights = (folder / "base").glob("*.safetensors")
                    size = sum(file.stat().st_size for file in weights) / 1e9
                    whole = "no limit" if told["all"] is None else f"{told['all'] / 1e9:.2f}"
                    read = round(told["read"] / 1e9)
                    print_row(
                        f"{size / 2:.2f}",
                        f"{size:.2f}",
                        step,
                        f"{told['fixed'] / 1e9:.2f}",
                        whole,
                        read,
                        f"{told['seconds']:.0f}",
                        told["said"],
                    )
    finally:
        for group in (_group() or GROUPS).glob("grpo_nb_*"):
            with contextlib.suppress(OSError):  # another's, at work
                group.rmdir()


if __name__ == "__main__":
    main()
