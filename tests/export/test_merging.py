"""A merge gives the tensors of PEFT's own merge, rounded once."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM

from grpo_nb.export.merged import DTYPES, merge
from grpo_nb.export.saved_export import ExportError
from grpo_nb.export.verify_child import weight_problems
from tests.support.small_models import SIZES

MORE = {
    "llama": {"tie_word_embeddings": True},
    "gemma3_text": {"head_dim": 16, "sliding_window": 256},
    "mixtral": {"num_local_experts": 2},
    "qwen3_moe": {"num_experts": 4, "moe_intermediate_size": 16},
}
SPOILED = "model.layers.0.self_attn.q_proj.weight"
Pair = tuple[Path, Path]


def base_and_adapter(
    folder: Path, kind: str = "llama", *, shards: str = "5GB", strength: float = 0.1, **lora: object
) -> Pair:
    """A random bfloat16 base and an adapter with an effect, as folders."""
    torch.manual_seed(2)
    # Tied are the embeddings of those that small models have so.
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(kind, **SIZES, **MORE.get(kind, {}))
    ).to(torch.bfloat16)
    model.save_pretrained(folder / "base", max_shard_size=shards)
    settings = {
        "r": 4,
        "lora_alpha": 8,
        "target_modules": "all-linear",
        "task_type": "CAUSAL_LM",
        **lora,
    }
    model = get_peft_model(model.float(), LoraConfig(**settings))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=strength)
        elif parameter.requires_grad and "lora_" not in name:
            parameter.data += 0.1  # a bias, a magnitude or a whole module that was trained too
    model.save_pretrained(folder / "adapter")
    return folder / "base", folder / "adapter"


def merged(pair: Pair, target: Path, *dtypes: str) -> dict:
    target.mkdir(exist_ok=True)
    return merge(*pair, target, dtypes=dtypes or DTYPES)


def tensors_in(folder: Path) -> dict[str, torch.Tensor]:
    return {
        name: t
        for file in sorted(folder.glob("*.safetensors"))
        for name, t in load_file(file).items()
    }


def changed(folder: Path, name: str, value: torch.Tensor) -> None:
    """Put another tensor into a folder's one file."""
    save_file({**tensors_in(folder), name: value}, folder / "model.safetensors", {"format": "pt"})


def reference(pair: Pair) -> PeftModel:
    return PeftModel.from_pretrained(
        AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32), pair[1]
    )


@pytest.mark.parametrize(
    ("kind", "dtypes", "how"),
    [
        ("llama", ["float32"], {}),
        ("qwen2", ["float16"], {"init_lora_weights": "gaussian"}),
        ("gemma3_text", [], {"target_modules": ["v_proj", "down_proj"]}),
        ("mixtral", ["bfloat16"], {"target_modules": ["q_proj", "v_proj"]}),
    ],
)
@pytest.mark.parametrize("shards", ["5GB", "60KB"])
def test_merge_equals_peft_rounded_once(
    kind: str,
    dtypes: list[str],
    how: dict,
    shards: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if shards == "60KB":
        monkeypatch.setattr("grpo_nb.export.merged.MAX_FILE_BYTES", 60_000)
    pair = base_and_adapter(tmp_path, kind, shards=shards, **how)
    out = tmp_path / "out"
    found = merged(pair, out, *dtypes)
    assert found["retained_change"] >= 0.95
    theirs = reference(pair).merge_and_unload().to(getattr(torch, found["dtype"]))
    theirs.save_pretrained(tmp_path / "theirs", max_shard_size=shards)
    mine = tensors_in(out)
    wanted = tensors_in(tmp_path / "theirs")
    assert mine.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name]) for name, tensor in mine.items())
    if shards == "60KB":
        index = json.loads((out / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in mine.values())
    assert (
        str(AutoModelForCausalLM.from_pretrained(out, dtype="auto").dtype)
        == f"torch.{found['dtype']}"
    )
    assert weight_problems(out, pair[0], reference(pair)) == []


@pytest.mark.parametrize(
    ("kind", "how", "reason"),
    [
        ("qwen2", {"use_dora": True}, "use_dora"),
        ("qwen2", {"use_rslora": True}, "use_rslora"),
        ("qwen2", {"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ("qwen2", {"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}, "lm_head"),
        ("qwen2", {"bias": "lora_only"}, "bias"),
        ("qwen2", {"alpha_pattern": {"q_proj": 32}}, "alpha_pattern"),
        ("qwen2", {"init_lora_weights": "pissa"}, "init_lora_weights 'pissa'"),
        (
            "qwen3_moe",
            {"target_parameters": ["mlp.experts.gate_up_proj"], "target_modules": ["q_proj"]},
            "experts",
        ),
    ],
)
def test_merge_refuses_adapters_beyond_a_plain_lora(
    kind: str, how: dict, reason: str, tmp_path: Path
) -> None:
    pair = base_and_adapter(tmp_path, kind, **how)
    with pytest.raises(ExportError, match=f"{reason}.*only a plain LoRA is merged"):
        merged(pair, tmp_path / "out")


def test_merge_chooses_a_dtype_that_keeps_the_change(tmp_path: Path) -> None:
    pair = base_and_adapter(tmp_path, strength=1e-5)
    found = merged(pair, tmp_path / "out")
    assert found["dtype"] in ("float16", "float32")
    assert found["retained_change"] >= 0.95
    with pytest.raises(ExportError, match=r"bfloat16 [0-9.]+%; at least 95% is needed\)\. Use gn"):
        merged(pair, tmp_path / "narrow", "bfloat16")


def test_merge_refuses_a_change_below_every_dtype(tmp_path: Path) -> None:
    """The change is below half a step of float32 next to most weights."""
    pair = base_and_adapter(tmp_path, strength=1e-10)
    with pytest.raises(ExportError, match=r"float32 [0-9.]+%; .* Use gn\.export\.export_adapter,"):
        merged(pair, tmp_path / "out")


def test_merge_refuses_useless_adapters_and_bases(tmp_path: Path) -> None:
    def refused(pair: Pair, said: str) -> None:
        with pytest.raises(ExportError, match=said):
            merged(pair, tmp_path, "float16")

    refused(base_and_adapter(tmp_path / "zero", strength=0.0), "changes nothing")
    base, adapter = base_and_adapter(tmp_path)
    weight = tensors_in(base)[SPOILED]
    # The last is too large for the dtype.
    for value in (float("nan"), 1e5):
        weight[0, 0] = value
        changed(base, SPOILED, weight)
        refused((base, adapter), r"float16 0\.0%")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(
        json.dumps({**config, "quantization_config": {"quant_method": "bitsandbytes"}})
    )
    refused((base, adapter), r"'base' is stored quantized.*load_in_4bit=True")


def test_merge_refuses_half_an_adapter_and_another_base(tmp_path: Path) -> None:
    base, adapter = base_and_adapter(tmp_path)
    tensors = tensors_in(adapter)
    name = next(name for name in tensors if ".q_proj.lora_B" in name)
    b = tensors.pop(name)
    for tensor, message in ((None, "only one of the two matrices"), (b[:-1], "another base model")):
        content = tensors if tensor is None else tensors | {name: tensor.contiguous()}
        save_file(content, adapter / "adapter_model.safetensors")
        with pytest.raises(ExportError, match=message):
            merged((base, adapter), tmp_path / "out", "float32")


def test_merge_refuses_an_index_that_leaves_the_base(tmp_path: Path) -> None:
    base, adapter = base_and_adapter(tmp_path)
    (base / "model.safetensors").rename(tmp_path / "secret.safetensors")
    weights = dict.fromkeys(load_file(tmp_path / "secret.safetensors"), "../secret.safetensors")
    index = {"metadata": {}, "weight_map": weights}
    (base / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ValueError, match="names a file that is not in its folder"):
        merged((base, adapter), tmp_path / "merged")


# Print the peak memory that each step adds, pages of files included.
MEASURE = """
import resource, sys
from pathlib import Path
from grpo_nb.export import verify_child as verify
from grpo_nb.export import merged as merging
from grpo_nb.export.merged import merge

merging.MAX_FILE_BYTES = 2**20

def most():
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

base, adapter, merged = (Path(sys.argv[1], name) for name in ("base", "adapter", "merged"))
before = most()
merge(base, adapter, merged, dtypes=["bfloat16"])
print(most() - before)
reference = verify.PeftModel.from_pretrained(verify.load_model(base, in_float32=False), adapter)
assert not verify.weight_problems(merged, base, reference)
print(most() - before)
"""


def test_merge_and_verify_hold_one_tensor_in_memory(tmp_path: Path) -> None:
    """The base is one file, the merged model one for each tensor. A tensor is a tenth of it."""
    large = {
        "vocab_size": 1000,
        "hidden_size": 1024,
        "intermediate_size": 4096,
        "num_hidden_layers": 12,
    }
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model("llama", **SIZES | large), dtype=torch.bfloat16
    )
    model.save_pretrained(tmp_path / "base")
    # Every matrix is the start of a LoRA that has an effect: peft's random one.
    how = LoraConfig(
        r=2, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False
    )
    get_peft_model(model, how).save_pretrained(tmp_path / "adapter")
    (tmp_path / "merged").mkdir()
    size = (tmp_path / "base" / "model.safetensors").stat().st_size
    said = subprocess.check_output([sys.executable, "-c", MEASURE, tmp_path]).split()
    for step, most in zip(
        ("merge", "verify"), [int(word) for word in said if word.isdigit()], strict=True
    ):
        assert most < size / 6, (
            f"{step} took {most / 1e6:.0f} MB for a model of {size / 1e6:.0f} MB"
        )
