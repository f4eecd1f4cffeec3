"""Peak memory and time of merging an adapter, against peft's merge_and_unload + save_pretrained.

    python benchmarks/merge.py [--rounds 3] [--layers 24]

The base is a Llama with random weights of 2.7 GB in bfloat16 in several files, so that what
Python and torch take does not hide the differences; that is measured too. The verification that
an export ends with is measured on what the kit wrote. Each way runs in a process of its own, the
ways take turns, and peak memory is what the system counted (`ru_maxrss`, which includes pages of
mapped files). Prints Markdown.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from _measure import ask, peak_gb, print_header, print_row, tell

SHARD = "500MB"
WAYS = {
    "imports": "Python with torch, unsloth, transformers and peft, no model",
    "peft": "`merge_and_unload` + `save_pretrained`, bfloat16",
    "file": "the kit, in files of at most 128 MB",
    "file_auto": "the same, and the number type chosen",
    "verify": "the verification of an export, a process of its own",
}


def make_model(folder: Path, layers: int) -> None:
    """A random base in several files, and an adapter with an effect."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from grpo_nb.models.sources import embedded_model_folder

    tokenizer = AutoTokenizer.from_pretrained(embedded_model_folder())
    tokenizer.save_pretrained(folder / "base")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.bfloat16)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=2048,
        intermediate_size=5632,
        num_hidden_layers=layers,
        num_attention_heads=16,
        num_key_value_heads=16,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config)
    model.save_pretrained(folder / "base", max_shard_size=SHARD)
    lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", task_type="CAUSAL_LM")
    model = get_peft_model(model, lora)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(folder / "adapter")


def merge_once(way: str, folder: Path, target: Path) -> None:
    """Merge, or verify, in this process and print seconds, peak memory in bytes, and a digest of the files."""
    from grpo_nb.models.unsloth_import import import_unsloth

    import_unsloth()  # on every side, as a merge of the kit asks for it

    import torch
    from peft import PeftModel
    from safetensors.torch import load_file
    from transformers import AutoModelForCausalLM

    from grpo_nb.export.merged import DTYPES, merge

    torch.set_num_threads(1)
    target.mkdir(exist_ok=way == "verify")
    start = time.perf_counter()
    if way == "verify":
        from grpo_nb.export.merged import MERGED_LIMITS
        from grpo_nb.export.verify_child import verify_merged

        base = str(folder / "base")
        chats = [[{"role": "user", "content": f"What is {n} + {n + 3}?"}] for n in range(8)]
        request = {
            "base_folder": base,
            "adapter_folder": str(folder / "adapter"),
            "merged_folder": str(target),
        }
        request |= {
            "prompts": chats,
            "max_new_tokens": 8,
            "chat_template": None,
            "chat_template_kwargs": {},
        }
        found = verify_merged({**request, "limits": MERGED_LIMITS, "free_memory": 10**11})
        assert all(passed for passed, _ in found.values()), found
    elif way == "peft":
        model = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(folder / "base"), folder / "adapter"
        )
        model.merge_and_unload().save_pretrained(target, max_shard_size=SHARD)
    elif way != "imports":
        dtypes = DTYPES if way == "file_auto" else ["bfloat16"]
        merge(folder / "base", folder / "adapter", target, dtypes=dtypes)
    seconds = time.perf_counter() - start
    peak = peak_gb() * 1e9
    digest = hashlib.sha256()
    tensors = {
        name: t for file in target.glob("model*.safetensors") for name, t in load_file(file).items()
    }
    for name in sorted(tensors):  # which file holds which is the base's order, or transformers' own
        digest.update(name.encode() + tensors[name].view(torch.uint8).numpy().tobytes())
    tell({"seconds": seconds, "peak": peak, "digest": digest.hexdigest()[:12]})


def main() -> None:
    """Measure all ways in turn and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--layers", type=int, default=24)
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.one:
        merge_once(asked.one[0], Path(asked.one[1]), Path(asked.one[2]))
        return
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        make = (
            f"import sys; sys.path.insert(0, {str(Path(__file__).parent)!r}); import merge as m; "
        )
        make += f"m.make_model(m.Path({work!r}), {asked.layers})"
        subprocess.run([sys.executable, "-c", make], check=True, stdout=subprocess.DEVNULL)
        size = sum(file.stat().st_size for file in (folder / "base").glob("*.safetensors"))
        files = len(list((folder / "base").glob("*.safetensors")))
        found: dict[str, list[dict]] = {way: [] for way in WAYS}
        for count in range(asked.rounds):
            for way in WAYS:
                target = folder / f"{way}{count}"
                if way == "verify":
                    # What it looks at: a merged model with its tokenizer.
                    target = folder / f"file{count}"
                    for file in (folder / "base").glob("*token*"):
                        shutil.copy(file, target)
                    shutil.copy(folder / "base" / "chat_template.jinja", target)
                found[way].append(ask(__file__, "--one", way, work, target))
                if way != "file":
                    shutil.rmtree(target)
    print(
        f"Base: {size / 1e9:.2f} GB of bfloat16 in {files} files. "
        f"Medians of {asked.rounds} rounds, one thread.\n"
    )
    share_column = "without the imports, as a share of the model"
    print_header("way", "peak memory", share_column, "against peft", "seconds", "tensors")
    peaks = {way: statistics.median([run["peak"] for run in runs]) for way, runs in found.items()}
    for way, description in WAYS.items():
        peak = peaks[way]
        shown_peak = f"{peak / 1e9:.2f} GB"
        if way == "imports":
            print_row(description, shown_peak, "", "", "", "")
            continue
        share = (peak - peaks["imports"]) / size
        ratio = peak / peaks["peft"]
        seconds = statistics.median(run["seconds"] for run in found[way])
        digests = sorted({run["digest"] for run in found[way]})
        cells = [f"{share:.2f}", f"{ratio:.2f}", f"{seconds:.1f}", ", ".join(digests)]
        print_row(description, shown_peak, *cells)


if __name__ == "__main__":
    main()
