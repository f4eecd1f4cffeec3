"""A plan says what a run needs, never invents a number, and names settings that fit where these do not."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import AutoConfig, AutoTokenizer

import grpo_nb as gn
from grpo_nb.config import counting, memory, planning, presets
from grpo_nb.config.memory import PUBLISHED, sizes_of
from grpo_nb.config.out_of_memory import memory_advice
from grpo_nb.config.presets import GPUS
from grpo_nb.core.chat import prompt_lengths
from grpo_nb.core.processes import ChildError
from tests.support.small_models import FAMILIES, SIZES

# As their repositories publish it: family, hidden and inner width, layers, heads, heads of keys, words, and the weights in
# their safetensors files, tied ones once. Written down beforehand, from memory, since no Hub can be reached here.
CONFIGS = {
    "SmolLM2-135M-Instruct": ("llama", 576, 1536, 30, 9, 3, 49152, 134_515_008),
    "unsloth/Qwen2.5-1.5B-Instruct": ("qwen2", 1536, 8960, 28, 12, 2, 151936, 1_543_714_304),
    "unsloth/Qwen2.5-3B-Instruct": ("qwen2", 2048, 11008, 36, 16, 2, 151936, 3_085_938_688),
    "unsloth/Qwen2.5-7B-Instruct": ("qwen2", 3584, 18944, 28, 28, 4, 152064, 7_615_616_512),
}


@pytest.fixture
def counted_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes are counted in this process: one of its own begins with seconds of imports."""

    def run_script(script: Path, request: dict) -> dict:
        try:
            return json.loads(json.dumps(counting.answer(request)))
        except (OSError, ValueError) as error:
            raise ChildError("ended with 1", 1, [str(error)]) from error

    monkeypatch.setattr(memory, "run_script", run_script)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_sizes_that_are_written_down_are_those_that_are_counted(
    name: str, counted_here, tmp_path: Path
) -> None:
    kind, hidden, inner, layers, heads, kv, words, weights = CONFIGS[name]
    config = AutoConfig.for_model(
        kind, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv, vocab_size=words, tie_word_embeddings="7B" not in name,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    assert sizes_of(str(tmp_path)) == sizes_of(name) and sizes_of(name).parameters == weights


def test_a_model_of_any_family_is_counted_without_its_weights(tmp_path: Path) -> None:
    config = transformers.Gemma3TextConfig(
        **SIZES, **FAMILIES["gemma3"][1], tie_word_embeddings=True
    )
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    sizes = sizes_of(str(tmp_path))
    assert sizes.parameters == sum(p.numel() for p in model.parameters())
    assert sizes.linear == sum(
        p.numel() for n, p in model.named_parameters() if n.endswith("proj.weight")
    )


def test_lora_weights_are_those_of_peft(tiny_folder: Path, counted_here) -> None:
    targets = ("q_proj", "k_proj", "down_proj")
    settings = gn.preset("cpu", model=str(tiny_folder), lora_rank=5, lora_target_modules=targets)
    model, _ = gn.load_model(settings)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert sizes_of(str(tiny_folder)).lora_parameters(5, targets) == trained
    loaded, beforehand = gn.plan(settings, model=model), gn.plan(settings)
    for here, there in zip(loaded.parts, beforehand.parts, strict=True):
        assert here.name == there.name and here.gb == pytest.approx(there.gb)


@pytest.mark.parametrize("name", GPUS)
def test_every_preset_fits_its_own_card_and_less_work_needs_less(name: str) -> None:
    plan = gn.plan(gn.preset(name), machine=name)
    slow = plan.settings.replace(fast_inference=False)
    for less in ({"max_completion_length": 24}, {"lora_rank": 4}, {"max_prompt_length": 64}):
        assert (
            gn.plan(slow.replace(**less), machine=name).memory_gb
            < gn.plan(slow, machine=name).memory_gb
        )
    assert plan.fits and 0 < plan.memory_gb < plan.available_gb
    phases = {p.phase: sum(q.gb for q in plan.parts if q.phase == p.phase) for p in plan.parts}
    assert plan.memory_gb == pytest.approx(
        phases["always"] + max(phases["generation"], phases["training"])
    )


def test_on_a_gpu_it_warns_and_on_a_cpu_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = gn.plan(gn.preset("h100"), gpu_memory_gb=16)
    assert (
        plan.fits is False and gn.plan(plan.settings.replace(**plan.nearest), gpu_memory_gb=16).fits
    )
    with pytest.warns(UserWarning, match=r"needs about .* GB .*16.0 GB free.*settings.replace\("):
        plan.require_fit()
    monkeypatch.setattr(planning, "free_memory_bytes", lambda: 3e9)
    with pytest.raises(
        gn.machine.EnvironmentProblem, match=r"needs about .*\(3\.7 GB free\).*settings.replace\("
    ):
        gn.plan(gn.preset("cpu"), machine="cpu").require_fit()


def test_what_is_free_counts_and_what_the_model_holds_already(
    tiny_run: gn.runs.Run, monkeypatch
) -> None:
    monkeypatch.setattr(planning, "free_memory_bytes", lambda: 3e9)
    alone = gn.plan(tiny_run.settings).available_gb
    own = sum(p.numel() * p.element_size() for p in tiny_run.model.parameters()) / 1e9
    assert gn.plan(tiny_run.settings, model=tiny_run.model).available_gb == pytest.approx(
        alone + own
    )
    assert 3 < alone < 3.8
    for place in (planning, presets):
        monkeypatch.setattr(place, "find_gpu", lambda: GPUS["l4"])
    monkeypatch.setattr(planning, "read_gpu", lambda: SimpleNamespace(free_gib=5.0))
    held = gn.plan(gn.preset("l4"))
    assert held.available_gb == pytest.approx(5 * 2**30 / 1e9)
    assert held.settings.fast_inference is False, "vLLM is not installed here, and takes no share"
    assert gn.plan(gn.preset("t4"), machine="t4").available_gb > 15, (
        "a card that is elsewhere is empty"
    )


@given(
    memory=st.floats(2, 200), micro=st.sampled_from([8, 16, 32]), length=st.sampled_from([64, 512, 2048]),
    four_bit=st.booleans(),
)  # fmt: skip
@hypothesis_settings(max_examples=25, deadline=None)
def test_whatever_is_called_nearest_fits(
    memory: float, micro: int, length: int, four_bit: bool
) -> None:
    changes = {
        "per_device_train_batch_size": micro,
        "max_completion_length": length,
        "load_in_4bit": four_bit,
    }
    settings = gn.preset("l4", **changes, optim="adamw_torch_fused")
    plan = gn.plan(settings, gpu_memory_gb=memory)
    assert not (plan.fits and plan.nearest)
    if plan.nearest:
        assert gn.plan(settings.replace(**plan.nearest), gpu_memory_gb=memory).fits
        for name in plan.nearest.keys() - {
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
        }:
            less = {other: value for other, value in plan.nearest.items() if other != name}
            assert not gn.plan(settings.replace(**less), gpu_memory_gb=memory).fits, (
                f"{name} was not needed"
            )


ONE = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
CUDA, CPU = (
    RuntimeError("CUDA out of memory."),
    RuntimeError("DefaultCPUAllocator: can't allocate memory"),
)


@pytest.mark.parametrize(
    ("error", "place", "settings", "change"),
    [
        (CUDA, None, {}, {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}),
        (CUDA, None, ONE, {"load_in_4bit": True}),
        (CUDA, "loading", {}, {"load_in_4bit": True}),
        (CUDA, "loading", {"fast_inference": True}, {"gpu_memory_utilization": 0.5}),
        (CUDA, "generation", {"max_completion_length": 256}, {"max_completion_length": 128}),
        (CPU, None, {**ONE, "max_completion_length": 128}, {"max_completion_length": 64}),
        (CPU, "loading", {"fast_inference": True}, {}),
        (MemoryError(), "generation", {}, {"num_generations": 4}),
    ],
)  # fmt: skip
def test_out_of_memory_names_what_to_lower(
    error: Exception, place: str | None, settings: dict, change: dict
) -> None:
    """What a CPU has not, 4 bit and vLLM, is no advice there."""
    advice = memory_advice(error, gn.Settings(**settings), place=place)
    assert advice.change == change and all(
        f"{name}={value!r}" in advice.advice for name, value in change.items()
    )
    assert change or "smaller model" in advice.advice


def test_where_it_sampled_is_seen_and_what_another_error_says_is_left_to_it() -> None:
    def _generate() -> None:
        raise CUDA

    with pytest.raises(RuntimeError) as caught:
        _generate()
    assert memory_advice(caught.value, gn.Settings()).place == "generation"
    for other in ("No available memory for the cache blocks.", "no"):
        assert memory_advice(ValueError(other), gn.Settings()) is None


def test_unknown_sizes_stay_unknown(tmp_path: Path, counted_here) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "no such family"}')
    for name in (str(tmp_path), "nobody/nothing", "<script>no such/folder/at all"):
        plan = gn.plan(gn.preset("cpu", model=name), machine="cpu")
        assert plan.memory_gb is None and plan.fits is None
        assert "unknown" in repr(plan) and "<script>" not in plan._repr_html_()
        plan.require_fit()  # what is not known is not refused


def test_time_is_not_measured_before_and_refined_after() -> None:
    plan = gn.plan(gn.preset("cpu", max_steps=10), machine="cpu")
    assert plan.seconds_per_step is None and "not measured yet" in repr(plan)
    assert plan.refine([{"step": 1}]) == plan
    later = plan.refine(
        [{"step": i, "step_time": t} for i, t in enumerate([30.0, 9.0, 11.0, 10.0], 1)]
    )
    assert later.seconds_per_step == 10.0 and "10.0 s" in repr(later)


def test_prompts_are_measured_where_they_are_known(tiny_folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(tiny_folder)
    task = gn.load_task("arithmetic", train_size=20, holdout_size=5)
    plan = gn.plan(gn.preset("cpu"), task, tokenizer=tokenizer, machine="cpu")
    assert plan.prompt_tokens == max(prompt_lengths(task.train["prompt"], tokenizer)) < 256


def test_sizes_of_a_folder_in_the_home_folder_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counted = []
    sizes = {
        "parameters": 1,
        "hidden": 1,
        "inner": 1,
        "layers": 1,
        "key_value": 1,
        "query": 1,
        "vocabulary": 1,
    }
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(
        memory, "_count", lambda name: counted.append(name) or {**sizes, "projections": {}}
    )
    assert sizes_of("~/models/own").layers == 1
    sizes_of("owner/~name")
    assert counted == [f"{tmp_path}/models/own", "owner/~name"]
