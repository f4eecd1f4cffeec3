"""A plan gives the memory that a run needs, invents no number, and names settings that fit."""

import dataclasses
import re
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import grpo_nb as gn
from grpo_nb.config import planning, presets
from grpo_nb.config.model_sizes import ModelSizes, sizes_of
from grpo_nb.config.planning import out_of_memory_advice
from grpo_nb.core import processes
from grpo_nb.core.processes import ChildError
from grpo_nb.machine.gpu import Gpu
from tests.support.gpus import GPUS, plan_on


@pytest.fixture(autouse=True)
def in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave the dtype of a CPU to the kit: in bfloat16 a run needs less memory."""
    monkeypatch.delenv("UNSLOTH_CPU_BF16", raising=False)


def gpu_of(memory_gb: float) -> Gpu:
    """Return a GPU with bfloat16."""
    return Gpu("a GPU", memory_gb * 1e9 / 2**30, (8, 0))


SIZE_NAMES = [field.name for field in dataclasses.fields(ModelSizes)]


def test_sizes_of_a_path_with_tilde_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    counted = []

    def count(script: Path, request: dict) -> dict:
        counted.append(request["model"])
        return dict.fromkeys(SIZE_NAMES, 1)

    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(processes, "run_script", count)
    assert sizes_of("~/models/own").layers == 1
    sizes_of("owner/~name")
    assert counted == [f"{tmp_path}/models/own", "owner/~name"]


def test_sizes_of_unknown_model_show_the_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(script: Path, request: dict) -> None:
        lines = [
            "    raise OSError(",
            "OSError: owner/typo is not a model",
            "If it is private, ...",
        ]
        raise ChildError("ended with 1", lines)

    monkeypatch.setattr(processes, "run_script", fail)
    with pytest.raises(
        ValueError, match=r"cannot be read:\n.*\nOSError: owner/typo is not a model\n"
    ):
        sizes_of("owner/typo")


@pytest.mark.parametrize("name", GPUS)
def test_plan_of_a_preset_fits_its_card(name: str) -> None:
    plan = plan_on(GPUS[name], gn.preset(name))
    assert plan.fits
    assert 0 < plan.peak_gb < plan.available_gb


@pytest.mark.parametrize("name", GPUS)
@pytest.mark.parametrize(
    "less", [{"max_completion_length": 24}, {"lora_rank": 4}, {"max_prompt_length": 64}], ids=str
)
def test_plan_of_less_work_needs_less(name: str, less: dict) -> None:
    settings = gn.preset(name, fast_inference=False)
    smaller = plan_on(GPUS[name], settings.replace(**less))
    assert smaller.peak_gb < plan_on(GPUS[name], settings).peak_gb


@pytest.mark.parametrize("name", GPUS)
def test_plan_peak_is_that_of_the_larger_phase(name: str) -> None:
    plan = plan_on(GPUS[name], gn.preset(name))
    sums = {"always": 0.0, "in generation": 0.0, "in training": 0.0}
    for part in plan.memory_parts:
        sums[part.phase] += part.gb
    larger = max(sums["in generation"], sums["in training"])
    assert plan.peak_gb == pytest.approx(sums["always"] + larger)


def test_plan_for_a_cpu_counts_all_prompts_of_a_generation_in_each_pass() -> None:
    settings = gn.preset("cpu", per_device_train_batch_size=8, gradient_accumulation_steps=4)
    parts = {part.name: part for part in plan_on(None, settings).memory_parts}
    # TRL shuffles the 32 completions of 4 prompts before it splits them into passes.
    tokens = 8 * settings.max_completion_length + 4 * settings.max_prompt_length
    assert parts["activations"].explanation.startswith(f"{tokens:,} tokens in 30 layers")


def test_plan_in_4_bit_counts_only_the_packed_weights_as_4_bit() -> None:
    (weights, *_) = plan_on(GPUS["t4"], gn.preset("t4")).memory_parts
    assert weights.explanation == "1,544 million in 16 bit, except 1,310 million in 4 bit"
    assert weights.gb == pytest.approx(1.310 * 0.516 + 0.234 * 2, abs=0.01)


@pytest.mark.parametrize(
    ("machine", "optim", "bytes_per_weight"),
    [
        ("t4", "adamw_8bit", 2),
        ("t4", "paged_adamw_8bit", 2),
        ("t4", "adamw_torch_fused", 8),
        ("cpu", "adamw_8bit", 8),
    ],
)
def test_plan_counts_the_states_of_the_optimizer_that_runs(
    machine: str, optim: str, bytes_per_weight: float
) -> None:
    plan = plan_on(GPUS.get(machine), gn.preset(machine, optim=optim))
    sizes = {part.name: part.bytes_needed for part in plan.memory_parts}
    lora_weights = sizes["LoRA"] / 4
    assert sizes["optimizer"] == pytest.approx(lora_weights * bytes_per_weight)


def test_plan_that_does_not_fit_a_gpu_warns() -> None:
    plan = plan_on(gpu_of(16), gn.preset("h100"))
    assert plan.fits is False
    with pytest.warns(
        UserWarning, match=r"needs about .* GB .*16.0 GB free.*These settings fit: settings"
    ):
        plan.require_fit()


def test_plan_that_does_not_fit_a_cpu_raises(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "free_memory_bytes", lambda: 3e9)
    # The libraries of a training are loaded, and in a light test they are not.
    loaded = SimpleNamespace(memory_info=lambda: SimpleNamespace(rss=1e9))
    monkeypatch.setattr("psutil.Process", lambda: loaded)
    message = r"needs about .*; this computer has 3\.7 GB free.*settings.replace\(.*The estimate"
    with pytest.raises(gn.machine.EnvironmentProblem, match=message):
        plan_on(None, gn.preset("cpu")).require_fit()


@pytest.fixture
def on_an_l4(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with an L4 of which 5 GiB are free."""
    for module in (planning, presets):
        monkeypatch.setattr(module, "find_gpu", lambda: GPUS["l4"])
    monkeypatch.setattr(planning, "read_gpu_state", lambda: SimpleNamespace(free_gib=5.0))


def test_plan_counts_only_the_free_memory_of_a_gpu(on_an_l4) -> None:
    assert gn.plan(gn.preset("l4")).available_gb == pytest.approx(5 * 2**30 / 1e9)


def test_plan_for_a_gpu_counts_only_the_model_passed(
    on_an_l4, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = SimpleNamespace(
        memory_reserved=lambda: 4e9,
        memory_allocated=lambda: 3e9,
    )
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(cuda=cuda))
    model = SimpleNamespace(get_memory_footprint=lambda: 2e9)
    free = 5 * 2**30
    assert planning._available_bytes(GPUS["l4"], None) == free
    assert planning._available_bytes(GPUS["l4"], model) == free + 1e9 + 2e9


def test_plan_without_vllm_installed_gives_it_no_share(on_an_l4) -> None:
    plan = gn.plan(gn.preset("l4"))
    assert plan.settings.fast_inference is False
    assert "vLLM" not in [part.name for part in plan.memory_parts]
    assert "requested: vLLM. vLLM is not installed" in repr(plan)


def test_plan_shows_what_is_asked_needed_and_there() -> None:
    shown = repr(plan_on(GPUS["t4"], gn.preset("t4")))
    for section in ("requested and effective", "needed (estimate)", "available"):
        assert section in shown


ONE = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}
CUDA = RuntimeError("CUDA out of memory.")
CPU = RuntimeError("DefaultCPUAllocator: can't allocate memory")


@pytest.mark.parametrize(
    ("error", "is_loading", "settings", "change"),
    [
        pytest.param(
            CUDA,
            False,
            {},
            {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2},
            id="training: smaller passes",
        ),
        pytest.param(CUDA, False, ONE, {"load_in_4bit": True}, id="training: 4 bit"),
        pytest.param(CUDA, True, {}, {"load_in_4bit": True}, id="loading: 4 bit"),
        pytest.param(
            CUDA,
            True,
            {"fast_inference": True},
            {"gpu_memory_utilization": 0.5},
            id="loading: less for vLLM",
        ),
        pytest.param(
            CUDA,
            True,
            {"fast_inference": True, "gpu_memory_utilization": 0.3, "load_in_4bit": True},
            {"fast_inference": False},
            id="loading: without vLLM",
        ),
        pytest.param(CPU, False, ONE, {"shared_prompts": False}, id="CPU: one copy of weights"),
        pytest.param(
            CPU,
            False,
            {**ONE, "max_completion_length": 128, "shared_prompts": False},
            {"max_completion_length": 64},
            id="CPU: no 4 bit",
        ),
        pytest.param(
            CPU,
            False,
            {**ONE, "max_completion_length": 128, "dtype": "bfloat16"},
            {"max_completion_length": 64},
            id="CPU: no copies in bfloat16",
        ),
    ],
)
def test_memory_advice_names_the_setting_to_lower(
    error: Exception,
    is_loading: bool,
    settings: dict,
    change: dict,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planning, "find_gpu", lambda: GPUS["l4"] if error is CUDA else None)
    advice = out_of_memory_advice(error, gn.Settings(**settings), is_loading=is_loading)
    keywords = ", ".join(f"{name}={value!r}" for name, value in change.items())
    assert f"Write settings = settings.replace({keywords}), in a fresh kernel" in advice


GROUP_PER_STEP = gn.Settings(
    per_device_train_batch_size=8, num_generations=8, extra={"steps_per_generation": 1}
)


def test_memory_advice_keeps_groups_whole() -> None:
    advice = out_of_memory_advice(CUDA, GROUP_PER_STEP)
    assert "per_device_train_batch_size" not in advice


def test_plan_that_does_not_fit_keeps_groups_whole() -> None:
    plan = plan_on(gpu_of(2), GROUP_PER_STEP.replace(max_completion_length=2048))
    assert not plan.fits
    assert "per_device_train_batch_size" not in repr(plan)


SEVEN_BILLION = ModelSizes(
    parameters=7_600_000_000,
    hidden_width=3584,
    mlp_width=18944,
    layers=28,
    key_value_width=512,
    query_width=3584,
    vocabulary=152064,
    linear_weights=6_500_000_000,
    lora_weights_per_rank=3_360_000,
)


@given(
    memory_gb=st.floats(2, 200),
    micro=st.sampled_from([8, 16, 32]),
    length=st.sampled_from([64, 512, 2048]),
    four_bit=st.booleans(),
)
@hypothesis_settings(max_examples=25, deadline=None)
def test_plan_with_its_smaller_settings_fits(
    memory_gb: float, micro: int, length: int, four_bit: bool
) -> None:
    settings = gn.preset(
        "l4",
        per_device_train_batch_size=micro,
        max_completion_length=length,
        load_in_4bit=four_bit,
    )
    shown = repr(plan_on(gpu_of(memory_gb), settings))
    assert ("The run fits" in shown) + ("These settings fit:" in shown) + (
        "take a smaller" in shown
    ) == 1
    if change := re.search(r"These settings fit: settings = (settings\.replace\(.*\))", shown):
        smaller = eval(change[1], {"settings": settings})
        assert plan_on(gpu_of(memory_gb), smaller).fits


def test_plan_of_16_bit_weights_larger_than_the_card_loads_4_bit(monkeypatch) -> None:
    monkeypatch.setattr(planning, "sizes_of", lambda model: SEVEN_BILLION)
    settings = gn.preset("a100", load_in_4bit=False, gpu_memory_utilization=0.9)
    shown = repr(plan_on(gpu_of(16), settings))
    assert re.search(
        r"These settings fit: settings = settings\.replace\(.*load_in_4bit=True", shown
    )


IN_16_BIT = {"model": "unsloth/Qwen2.5-7B-Instruct", "load_in_4bit": False}


def test_plan_of_a_share_too_small_for_the_weights_does_not_fit() -> None:
    settings = gn.preset("t4", load_in_4bit=False, gpu_memory_utilization=0.15)
    plan = plan_on(GPUS["t4"], settings)
    assert not plan.fits
    sentence = "vLLM's share of the GPU, gpu_memory_utilization=0.15, is too small for the weights."
    assert sentence in repr(plan)


@pytest.mark.parametrize(
    ("gpu", "changes", "share"),
    [
        pytest.param("h100", {"gpu_memory_utilization": 0.1}, 0.3, id="h100"),
        pytest.param("t4", {"gpu_memory_utilization": 0.05}, 0.3, id="t4"),
        pytest.param("l4", {"gpu_memory_utilization": 0.2, **IN_16_BIT}, 0.9, id="l4"),
    ],
)
def test_plan_of_a_share_too_small_only_raises_the_share(
    gpu: str, changes: dict, share: float
) -> None:
    shown = repr(plan_on(GPUS[gpu], gn.preset(gpu, **changes)))
    line = f"settings = settings.replace(gpu_memory_utilization={share})"
    assert f"These settings fit: {line}" in shown


def test_plan_without_room_for_a_larger_share_turns_vllm_off() -> None:
    settings = gn.preset("t4", load_in_4bit=True, gpu_memory_utilization=0.05)
    plan = plan_on(GPUS["t4"], settings)
    # Another process has the rest of the GPU.
    plan = dataclasses.replace(plan, available_gb=4.0)
    assert "These settings fit: settings = settings.replace(fast_inference=False)" in repr(plan)


def test_plan_for_a_cpu_gives_up_the_copies_of_the_weights(monkeypatch) -> None:
    monkeypatch.setattr(planning, "free_memory_bytes", lambda: 16e9)
    shown = repr(plan_on(None, gn.preset("cpu", model="unsloth/Qwen2.5-1.5B-Instruct")))
    assert re.search(
        r"These settings fit: settings = settings\.replace\(.*shared_prompts=False\)", shown
    )


def test_plan_that_nothing_makes_fit_names_a_smaller_model(monkeypatch) -> None:
    monkeypatch.setattr(planning, "sizes_of", lambda model: SEVEN_BILLION)
    monkeypatch.setattr(planning, "free_memory_bytes", lambda: 20e9)
    with pytest.raises(gn.machine.EnvironmentProblem) as caught:
        plan_on(None, gn.preset("cpu")).require_fit()
    assert "No smaller settings fit; take a smaller model." in str(caught.value)
    assert "settings.replace" not in str(caught.value)


def test_memory_advice_is_given_for_a_text_about_a_kv_cache() -> None:
    error = RuntimeError("CUDA out of memory while copying the KV cache")
    assert "Write settings = settings.replace(" in out_of_memory_advice(error, gn.Settings())


def test_memory_advice_in_sampling_leaves_the_passes_of_training() -> None:
    def _generate() -> None:
        raise CUDA

    with pytest.raises(RuntimeError) as caught:
        _generate()
    settings = gn.Settings(max_completion_length=256, shared_prompts=False)
    advice = out_of_memory_advice(caught.value, settings)
    assert advice.startswith("Out of memory during generation.")
    assert "settings.replace(max_completion_length=128)" in advice


def test_memory_advice_without_a_setting_names_a_smaller_model() -> None:
    advice = out_of_memory_advice(CPU, gn.Settings(), is_loading=True)
    assert "Take a smaller model, in a fresh kernel" in advice
    assert "settings.replace" not in advice


@pytest.mark.parametrize("message", ["No available memory for the cache blocks.", "no"])
def test_memory_advice_for_another_error_is_none(message: str) -> None:
    assert out_of_memory_advice(ValueError(message), gn.Settings()) is None
