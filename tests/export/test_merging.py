"""Merging tensor by tensor writes the bytes that merging in memory writes, and names what it does not know."""

import json
from pathlib import Path

import pytest
import torch
import transformers
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file

from grpo_nb.export.children.verify import saved_names, tensor_problems, weight_problems
from grpo_nb.export.merge import choose_dtype, low_memory_merge, merge
from grpo_nb.export.result import ExportError
from grpo_nb.export.tensors import TensorFolder, write_tensors
from tests.support.small_models import FAMILIES, SIZES


def base_and_adapter(
    folder: Path, kind: str = "llama", *, tied: bool = False, shards: str = "5GB", strength: float = 0.1, **lora: object
) -> tuple[Path, Path]:
    """A random bfloat16 base and an adapter with an effect, as folders."""
    torch.manual_seed(2)
    name, more = FAMILIES[kind]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more}, tie_word_embeddings=tied)
    model = transformers.AutoModelForCausalLM.from_config(config).to(torch.bfloat16)
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


def merged(pair: tuple[Path, Path], target: Path, *, low_memory: bool | str, **how: str) -> dict:
    target.mkdir()
    lines: list[str] = []
    options = {"dtype": "auto", "shard_size": "5GB", **how}
    found = merge(*pair, target, low_memory=low_memory, report=lines.append, **options)
    assert len(lines) == 2
    return found


def files_of(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


@pytest.mark.parametrize(
    ("kind", "tied", "dtype", "how"),
    [
        ("llama", True, "bfloat16", {}),
        ("llama", False, "float32", {"use_rslora": True}),
        ("qwen2", True, "float16", {"rank_pattern": {"q_proj": 2}}),
        ("qwen3", False, "auto", {"target_modules": ["v_proj", "down_proj"]}),
        ("gemma3", True, "auto", {}),
        ("smollm3", False, "bfloat16", {}),
    ],
)
@pytest.mark.parametrize("shards", ["5GB", "60KB"])
def test_equal_bytes(kind: str, tied: bool, dtype: str, how: dict, shards: str, tmp_path: Path) -> None:
    pair = base_and_adapter(tmp_path, kind, tied=tied, shards=shards, **how)
    by_tensor = merged(pair, tmp_path / "a", low_memory=True, dtype=dtype, shard_size=shards)
    in_memory = merged(pair, tmp_path / "b", low_memory=False, dtype=dtype, shard_size=shards)
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
    assert ("model.safetensors.index.json" in files_of(tmp_path / "a")) == (shards == "60KB")
    assert by_tensor["retained_change"] == pytest.approx(in_memory["retained_change"], abs=1e-6)
    assert by_tensor["merged"] == "tensor by tensor" and in_memory["merged"].startswith("in memory")


def test_it_is_the_sum_rounded_once(tmp_path: Path) -> None:
    base, adapter = base_and_adapter(tmp_path, "qwen2")
    found = merged((base, adapter), tmp_path / "out", low_memory="auto", dtype="bfloat16")
    plain = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    wanted = PeftModel.from_pretrained(plain, adapter).merge_and_unload().state_dict()
    got = load_file(tmp_path / "out" / "model.safetensors")
    assert found["dtype"] == "bfloat16" and got.keys() == wanted.keys()
    assert all(torch.equal(tensor, wanted[name].bfloat16()) for name, tensor in got.items())


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ({"use_dora": True}, "use_dora = True"),
        ({"modules_to_save": ["lm_head"], "target_modules": ["q_proj"]}, "modules_to_save"),
        ({"modules_to_save": ["norm"], "target_modules": ["q_proj"]}, "modules_to_save"),
        ({"trainable_token_indices": [5, 6]}, "trainable_token_indices"),
        ({"bias": "lora_only"}, "bias = 'lora_only'"),
        ({"alpha_pattern": {"q_proj": 32}}, "alpha_pattern"),
        ({"init_lora_weights": "pissa"}, "started with 'pissa'"),
        ({"target_modules": ["q_proj", "embed_tokens"]}, "no A or B matrix of a linear layer"),
    ],
)
def test_what_it_does_not_know_is_done_in_memory(how: dict, reason: str, tmp_path: Path) -> None:
    pair = base_and_adapter(tmp_path, "qwen2", **how)
    found, said = low_memory_merge(*pair)
    assert found is None and reason in said
    with pytest.raises(ExportError, match="cannot be done tensor by tensor"):
        merged(pair, tmp_path / "a", low_memory=True)
    assert reason in merged(pair, tmp_path / "b", low_memory="auto", dtype="float32")["merged"]
    plain = transformers.AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32)
    wanted = PeftModel.from_pretrained(plain, pair[1]).merge_and_unload().state_dict()
    got = load_file(tmp_path / "b" / "model.safetensors")
    assert got.keys() == wanted.keys()
    for name, tensor in got.items():
        torch.testing.assert_close(tensor, wanted[name], msg=name)
    # And the verification takes it for what it is, and nothing else.
    plain = transformers.AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32)
    assert tensor_problems(tmp_path / "b", saved_names(plain)) == []
    assert weight_problems(tmp_path / "b", PeftModel.from_pretrained(plain, pair[1])) == []
    got["model.layers.0.self_attn.q_proj.weight"] *= 1.01
    save_file(got, tmp_path / "b" / "model.safetensors", metadata={"format": "pt"})
    plain = transformers.AutoModelForCausalLM.from_pretrained(pair[0], dtype=torch.float32)
    (problem,) = weight_problems(tmp_path / "b", PeftModel.from_pretrained(plain, pair[1]))
    assert problem.startswith("model.layers.0.self_attn.q_proj.weight differs from base plus adapter")


def test_bases_that_it_does_not_know(tmp_path: Path) -> None:
    base, adapter = base_and_adapter(tmp_path, tied=True)
    weights = load_file(base / "model.safetensors")
    save_file({f"other.{name}": t for name, t in weights.items()}, base / "model.safetensors", {"format": "pt"})
    assert "does not fit the base's files" in low_memory_merge(base, adapter)[1]
    (base / "model.safetensors").rename(base / "weights.safetensors")
    assert "not stored as safetensors" in low_memory_merge(base, adapter)[1]
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": {"quant_method": "bitsandbytes"}}))
    with pytest.raises(ExportError, match=r"'base' is stored quantized.*load_in_4bit=True"):
        merged((base, adapter), tmp_path / "out", low_memory="auto")


def test_a_type_that_would_lose_the_training_is_not_chosen(tmp_path: Path) -> None:
    pair = base_and_adapter(tmp_path, strength=1e-5)
    found = merged(pair, tmp_path / "out", low_memory=True)
    assert found["dtype"] in ("float16", "float32") and found["retained_change"] >= 0.95
    with pytest.raises(ExportError, match=r"bfloat16 [0-9.]+%; 95% is asked for"):
        merged(pair, tmp_path / "narrow", low_memory=True, dtype="bfloat16")
    assert choose_dtype({"bfloat16": 0.9, "float16": 0.96, "float32": 1.0}, Path()) == "float16"
    none = base_and_adapter(tmp_path / "zero", strength=0.0)
    with pytest.raises(ExportError, match="changes nothing"):
        merged(none, tmp_path / "empty", low_memory=True)


@pytest.mark.parametrize(
    ("part", "file", "name"),
    [
        ("adapter", "adapter_model", "base_model.model.model.layers.1.mlp.up_proj.lora_B.weight"),
        ("base", "model", "model.layers.1.mlp.up_proj.weight"),
    ],
)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_number_is_named_and_no_loss_by_rounding(
    part: str, file: str, name: str, value: float, tmp_path: Path
) -> None:
    pair = base_and_adapter(tmp_path)
    place = tmp_path / part / f"{file}.safetensors"
    tensors = load_file(place)
    tensors[name][0, 0] = value
    save_file(tensors, place, {"format": "pt"})
    for low_memory in (True, False):
        with pytest.raises(ExportError, match=f"^the {part} has values that are not finite.* of 96 x 64"):
            merged(pair, tmp_path / str(low_memory), low_memory=low_memory)


def test_a_number_type_that_was_tried_is_not_the_advice() -> None:
    with pytest.raises(ExportError, match=r"Write dtype='float32', or use the adapter itself"):
        choose_dtype({"bfloat16": 0.5}, Path())
    with pytest.raises(ExportError, match=r"is asked for\)\. Use the adapter itself"):
        choose_dtype({"bfloat16": 0.5, "float16": 0.6, "float32": 0.7}, Path())


def test_a_weight_too_large_for_float16_is_seen(tmp_path: Path) -> None:
    base, adapter = base_and_adapter(tmp_path)
    weights = load_file(base / "model.safetensors")
    weights["model.layers.0.self_attn.q_proj.weight"][0, 0] = 1e5
    save_file(weights, base / "model.safetensors", {"format": "pt"})
    with pytest.raises(ExportError, match=r"float16 0\.0%"):
        merged((base, adapter), tmp_path / "out", low_memory=True, dtype="float16")


def test_files_are_those_of_safetensors(tmp_path: Path) -> None:
    tensors = {
        "z": torch.randn(3, 5).bfloat16(), "a": torch.randn(7), "b.ä": torch.arange(4), "c": torch.tensor(2.0),
        "m": torch.tensor([True, False]), "e": torch.zeros(0, 4), "d": torch.arange(3, dtype=torch.uint8),
    }  # fmt: skip
    save_file(tensors, tmp_path / "theirs", {"format": "pt"})
    layout = {name: t.to("meta") for name, t in tensors.items()}
    write_tensors(tmp_path / "ours", layout, tensors.__getitem__)
    assert (tmp_path / "ours").read_bytes() == (tmp_path / "theirs").read_bytes()
    with pytest.raises(ValueError, match=r"a is torch\.float32"):
        write_tensors(tmp_path / "bad", {"a": torch.empty(7, dtype=torch.float16)}, tensors.__getitem__)
    (tmp_path / "folder").mkdir()
    (tmp_path / "ours").rename(tmp_path / "folder" / "model.safetensors")
    folder = TensorFolder(tmp_path / "folder")
    assert all(torch.equal(folder.read(name), t) for name, t in tensors.items())
    assert all(
        (folder.tensors[name].dtype, folder.tensors[name].shape) == (t.dtype, t.shape) for name, t in tensors.items()
    )


def test_only_files_of_the_index_are_read(tmp_path: Path) -> None:
    """A leftover of another save beside the shards is no part of the model."""
    base, _ = base_and_adapter(tmp_path, shards="60KB")
    names = set(json.loads((base / "model.safetensors.index.json").read_text())["weight_map"])
    save_file({"stray": torch.ones(2)}, base / "old.safetensors")
    assert set(TensorFolder(base).tensors) == names
