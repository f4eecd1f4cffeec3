"""Merging file by file writes the tensors that peft's own merge has, rounded once, and names what it does not know."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_nb.export.children.verify import weight_problems
from grpo_nb.export.merge import BY_FILE, merge
from grpo_nb.export.result import ExportError
from tests.support.small_models import FAMILIES, SIZES

MIXTURES = {"mixtral": {"num_local_experts": 2}, "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 16}}


def base_and_adapter(
    folder: Path, kind: str = "llama", *, tied: bool = False, shards: str = "5GB", strength: float = 0.1, **lora: object
) -> tuple[Path, Path]:
    """A random bfloat16 base and an adapter with an effect, as folders."""
    torch.manual_seed(2)
    if kind in MIXTURES:
        config = AutoConfig.for_model(kind, **SIZES, **MIXTURES[kind])
    else:
        name, more = FAMILIES[kind]
        config = getattr(transformers, f"{name}Config")(**{**SIZES, **more}, tie_word_embeddings=tied)
    model = AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
    model.save_pretrained(folder / "base", max_shard_size=shards)
    settings = {"r": 4, "lora_alpha": 8, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **lora}
    model = get_peft_model(model.float(), LoraConfig(**settings))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=strength)
        elif parameter.requires_grad and "lora_" not in name:
            parameter.data += 0.1  # a bias, a magnitude or a whole module that was trained too
    model.save_pretrained(folder / "adapter")
    return folder / "base", folder / "adapter"


def merged(pair: tuple[Path, Path], target: Path, dtype: str = "auto") -> dict:
    target.mkdir()
    return merge(*pair, target, dtype=dtype, report=lambda line: None)


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    return {name: t for file in sorted(folder.glob("*.safetensors")) for name, t in load_file(file).items()}


def reference(pair: tuple[Path, Path]) -> PeftModel:
    return PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32), pair[1])


@pytest.mark.parametrize(
    ("kind", "tied", "dtype", "how"),
    [
        ("llama", True, "bfloat16", {}),
        ("llama", False, "float32", {"use_rslora": True}),
        ("qwen2", True, "float16", {"rank_pattern": {"q_proj": 2}}),
        ("qwen3", False, "auto", {"target_modules": ["v_proj", "down_proj"]}),
        ("gemma3", True, "auto", {}),
        ("mixtral", False, "bfloat16", {"target_modules": ["q_proj", "v_proj"]}),
    ],
)
@pytest.mark.parametrize("shards", ["5GB", "60KB"])
def test_it_is_the_sum_rounded_once(kind: str, tied: bool, dtype: str, how: dict, shards: str, tmp_path: Path) -> None:
    pair = base_and_adapter(tmp_path, kind, tied=tied, shards=shards, **how)
    found = merged(pair, tmp_path / "out", dtype)
    assert found["merged"] == BY_FILE and found["retained_change"] >= 0.95
    theirs = reference(pair).merge_and_unload().to(getattr(torch, found["dtype"]))
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=shards)
    mine, wanted = tensors_in(tmp_path / "out"), tensors_in(tmp_path / "theirs")
    assert mine.keys() == wanted.keys() and all(torch.equal(tensor, wanted[name]) for name, tensor in mine.items())
    assert {f.name for f in (tmp_path / "out").iterdir()} == {f.name for f in pair[0].iterdir()}
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "out", dtype="auto")
    assert str(loaded.dtype) == f"torch.{found['dtype']}"
    assert weight_problems(tmp_path / "out", pair[0], reference(pair), is_plain=True) == []


@pytest.mark.parametrize(
    ("kind", "how", "reason"),
    [
        ("qwen2", {"use_dora": True}, "lora_magnitude_vector"),
        ("qwen2", {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}, "lm_head"),
        ("qwen2", {"trainable_token_indices": [5, 6]}, "trainable_tokens"),
        ("qwen2", {"bias": "lora_only"}, "bias"),
        ("qwen2", {"alpha_pattern": {"q_proj": 32}}, "alpha_pattern"),
        ("qwen2", {"init_lora_weights": "pissa"}, "started with 'pissa'"),
        ("qwen2", {"target_modules": ["q_proj", "embed_tokens"]}, "embed_tokens"),
        ("qwen3_moe", {"target_parameters": ["mlp.experts.gate_up_proj"], "target_modules": ["q_proj"]}, "experts"),
    ],
)
def test_what_it_does_not_know_is_done_in_memory(kind: str, how: dict, reason: str, tmp_path: Path) -> None:
    pair, out = base_and_adapter(tmp_path, kind, **how), tmp_path / "out"
    found = merged(pair, out)
    assert found["merged"].startswith("in memory") and reason in found["merged"] and found["dtype"] == "float32"
    # And the verification takes it for what it is, and nothing else.
    assert weight_problems(out, pair[0], reference(pair), is_plain=False) == []
    tensors = tensors_in(out)
    spoiled = "model.layers.0.self_attn.q_proj.weight"
    tensors[spoiled] *= 1.01
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    (problem,) = weight_problems(out, pair[0], reference(pair), is_plain=False)
    assert problem.startswith(f"{spoiled} differs from base plus adapter")


def test_a_base_that_is_stored_quantized_is_refused(tmp_path: Path) -> None:
    base, adapter = base_and_adapter(tmp_path)
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(ExportError, match=r"'base' is stored quantized.*load_in_4bit=True"):
        merged((base, adapter), tmp_path / "out")


def test_a_type_that_would_lose_the_training_is_not_chosen(tmp_path: Path) -> None:
    pair = base_and_adapter(tmp_path, strength=1e-5)
    found = merged(pair, tmp_path / "out")
    assert found["dtype"] in ("float16", "float32") and found["retained_change"] >= 0.95
    with pytest.raises(ExportError, match=r"bfloat16 [0-9.]+%; 95% is asked for\). Write dtype='float32'"):
        merged(pair, tmp_path / "narrow", "bfloat16")
    with pytest.raises(ExportError, match="changes nothing"):
        merged(base_and_adapter(tmp_path / "zero", strength=0.0), tmp_path / "empty")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), 1e5])
def test_what_is_no_number_or_too_large_is_no_loss_by_rounding(value: float, tmp_path: Path) -> None:
    base, adapter = base_and_adapter(tmp_path)
    weights = load_file(base / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.weight"][0, 0] = value
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match=r"float16 0\.0%" if value == 1e5 else "has values that are not finite"):
        merged((base, adapter), tmp_path / "out", "float16")


# What a step adds to the memory of a process that the system cannot take back, beyond imports.
MEASURE = """
import json, pathlib, re, sys, threading
from grpo_nb.export.children import verify
from grpo_nb.export.merge import merge

def held():
    return int(re.search(r"RssAnon:\\s+(\\d+)", pathlib.Path("/proc/self/status").read_text())[1]) * 1024

folder = pathlib.Path(sys.argv[2])
base, adapter, merged = (folder / name for name in ("base", "adapter", "merged"))
before, most, over = held(), [0], threading.Event()
def watch():
    while not over.wait(0.01):
        most[0] = max(most[0], held())
watch = threading.Thread(target=watch)
watch.start()
if sys.argv[1] == "merge":
    merge(base, adapter, merged, dtype="bfloat16", report=lambda line: None)
else:
    reference = verify.PeftModel.from_pretrained(verify.load(base, None), adapter)
    assert not verify.weight_problems(merged, base, reference, is_plain=True)
over.set()
watch.join()
print(json.dumps(most[0] - before))
"""


def test_no_step_has_the_whole_model_in_memory(tmp_path: Path) -> None:
    """A merge needs one file of the base, here an eighth of it, and comparing all weights no more than some of its rows."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=1000, hidden_size=1024, intermediate_size=4096, num_hidden_layers=24, num_attention_heads=8,
    )  # fmt: skip
    model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.save_pretrained(tmp_path / "base", max_shard_size="100MB")
    lora = get_peft_model(model, LoraConfig(r=2, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in lora.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    lora.save_pretrained(tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    size = sum(file.stat().st_size for file in (tmp_path / "base").glob("*.safetensors"))
    for step in ("merge", "verify"):
        done = subprocess.run([sys.executable, "-c", MEASURE, step, tmp_path], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr[-2000:]
        added = json.loads(done.stdout.splitlines()[-1])
        assert added < size / 3, f"{step} took {added / 1e6:.0f} MB for a model of {size / 1e6:.0f} MB"
