"""Exporting a model takes memory for a part of it, whatever its size."""

import json
import subprocess
import sys
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

from grpo_nb.models.embedded import embedded_model_folder

# What a step adds to the memory of a process that the system cannot take back, beyond imports.
MEASURE = """
import json, pathlib, re, sys, threading
step, folder = sys.argv[1], pathlib.Path(sys.argv[2])
if step == "merge":
    from grpo_nb.models.unsloth import import_unsloth
    import_unsloth()
from grpo_nb.export.children.verify import verify_merged
from grpo_nb.export.merge import merge

def held():
    return int(re.search(r"RssAnon:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024

before, most, over = held(), [0], threading.Event()
def watch():
    while not over.wait(0.01):
        most[0] = max(most[0], held())
watch = threading.Thread(target=watch)
watch.start()
base, adapter, merged = (folder / name for name in ("base", "adapter", "merged"))
if step == "merge":
    how = dict(dtype="bfloat16", low_memory=True, shard_size="100MB")
    merge(base, adapter, merged, report=lambda line: None, **how)
else:
    chats = [[{"role": "user", "content": f"{n}?"}] for n in range(2)]
    named = {"base": base, "tokenizer": base, "adapter": adapter, "merged": merged}
    request = {name: str(place) for name, place in named.items()}
    found = verify_merged(request | {"prompts": chats, "max_new_tokens": 2, "seconds": 60})
    assert found["checks"]["every weight is base plus adapter, rounded once"], found
over.set()
watch.join()
print(json.dumps(most[0] - before))
"""


def test_no_step_has_the_whole_model_in_memory(tmp_path: Path) -> None:
    torch.manual_seed(0)
    base, adapter, merged = (tmp_path / name for name in ("base", "adapter", "merged"))
    tokenizer = AutoTokenizer.from_pretrained(embedded_model_folder())
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=512, intermediate_size=2048, num_hidden_layers=64, num_attention_heads=8,
        tie_word_embeddings=True, dtype="bfloat16",
    )  # fmt: skip
    torch.set_default_dtype(torch.bfloat16)
    try:
        model = LlamaForCausalLM(config)
    finally:
        torch.set_default_dtype(torch.float32)
    model.save_pretrained(base, max_shard_size="100MB")
    lora = get_peft_model(model, LoraConfig(r=2, target_modules=["q_proj", "down_proj"], task_type="CAUSAL_LM"))
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    lora.save_pretrained(adapter)
    merged.mkdir()
    size = sum(file.stat().st_size for file in base.glob("*.safetensors"))
    tokenizer.save_pretrained(base)
    for step in ("merge", "verify"):
        done = subprocess.run([sys.executable, "-c", MEASURE, step, tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        tokenizer.save_pretrained(merged)
        added = json.loads(done.stdout.splitlines()[-1])
        assert added < size / 3, f"{step} took {added / 1e6:.0f} MB for a model of {size / 1e6:.0f} MB"
