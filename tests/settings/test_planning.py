"""A plan says what a run needs, never invents a number, and names settings that fit where these do not."""

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import grpo_nb as gn
from grpo_nb.core.text import prompt_lengths
from grpo_nb.settings.presets import GPUS
from grpo_nb.settings.shapes import PUBLISHED, shape_of


@pytest.fixture(scope="module")
def tokenizer(tiny_folder: Path) -> PreTrainedTokenizerBase:
    return AutoTokenizer.from_pretrained(tiny_folder)


def parts(plan) -> dict[str, float]:
    return {part.name: part.gb for part in plan.parts}


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3", "gemma", "gemma2", "gemma3", "smollm3"])
@pytest.mark.parametrize("tied", [True, False])
def test_weights_are_counted_exactly_from_the_configuration(kind: str, tied: bool, tmp_path: Path) -> None:
    import torch
    import transformers

    from tests.support.small_models import FAMILIES, SIZES

    name, more = FAMILIES[kind]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more}, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    config.save_pretrained(tmp_path)
    assert shape_of(str(tmp_path)).parameters == sum(p.numel() for p in model.parameters())


def test_lora_weights_are_those_of_peft(tiny_folder: Path) -> None:
    settings = gn.preset(
        "cpu", model=str(tiny_folder), lora_rank=5, lora_target_modules=("q_proj", "k_proj", "down_proj")
    )
    model, _ = gn.load_model(settings)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert shape_of(str(tiny_folder)).lora_parameters(5, settings.lora_target_modules) == trained
    loaded = gn.plan(settings, model=model, machine="cpu")
    assert parts(loaded)["LoRA"] == pytest.approx(trained * 4 / 1e9)
    assert parts(loaded)["weights"] == pytest.approx(parts(gn.plan(settings, machine="cpu"))["weights"])


def test_the_embedded_models_sizes_are_those_of_its_folder(embedded_folder: Path) -> None:
    config = json.loads((embedded_folder / "config.json").read_text())
    assert PUBLISHED[gn.settings.EMBEDDED_MODEL].items() <= config.items()


@pytest.mark.parametrize("name", GPUS)
def test_every_preset_fits_its_own_card(name: str) -> None:
    plan = gn.plan(gn.preset(name), machine=name)
    plan.require_fit()
    assert plan.fits and 0 < plan.memory_gb < plan.available_gb


def test_the_parts_add_up_to_the_larger_phase() -> None:
    plan = gn.plan(gn.preset("t4"), machine="t4")
    phases = {p.phase: sum(q.gb for q in plan.parts if q.phase == p.phase) for p in plan.parts}
    assert plan.memory_gb == pytest.approx(phases["always"] + max(phases["generation"], phases["training"]))


@pytest.mark.parametrize("smaller", [
    {"per_device_train_batch_size": 8}, {"max_completion_length": 24}, {"lora_rank": 4}, {"max_prompt_length": 64},
])  # fmt: skip
def test_less_work_needs_less_memory(smaller: dict) -> None:
    settings = gn.preset("cpu")
    assert gn.plan(settings.replace(**smaller), machine="cpu").memory_gb < gn.plan(settings, machine="cpu").memory_gb


def test_four_bit_weights_take_about_an_eighth_of_float32() -> None:
    settings = gn.preset("h100")
    wide, packed = (gn.plan(settings.replace(load_in_4bit=b), machine="h100") for b in (False, True))
    shape = shape_of(settings.model)
    saved = parts(wide)["weights"] - parts(packed)["weights"]
    assert saved == pytest.approx(shape.linear * (2 - 4.127 / 8) / 1e9)


def test_what_cannot_fit_is_refused_with_settings_that_do() -> None:
    settings = gn.preset("h100")
    plan = gn.plan(settings, gpu_memory_gb=16)
    assert plan.fits is False and plan.nearest
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"needs about .* GB .*\n.*settings.replace\(") as error:
        plan.require_fit()
    assert "16 GB" in str(error.value)
    for change in plan.nearest:
        assert gn.plan(settings.replace(**change), gpu_memory_gb=16).fits, change
    kinds = [frozenset(change) for change in plan.nearest]
    assert len(set(kinds)) == len(kinds)


def test_the_nearest_keeps_the_training_where_it_can() -> None:
    """A smaller micro-batch with more accumulation trains the same, so it comes first where it is enough."""
    settings = gn.preset("a100", fast_inference=False, per_device_train_batch_size=32, gradient_accumulation_steps=1)
    need = gn.plan(settings, machine="a100").memory_gb
    plan = gn.plan(settings, gpu_memory_gb=need - 1)
    first = settings.replace(**plan.nearest[0])
    assert first.batch_size == settings.batch_size and first.per_device_train_batch_size < 32
    assert first.replace(per_device_train_batch_size=32, gradient_accumulation_steps=1) == settings


def test_nothing_fits_into_nothing() -> None:
    with pytest.raises(gn.machine.EnvironmentProblem, match="No smaller settings were found"):
        gn.plan(gn.preset("t4"), gpu_memory_gb=0.5).require_fit()


def test_unknown_sizes_stay_unknown(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "mamba", "hidden_size": 64}')
    for name in (str(tmp_path), "nobody/nothing", "no such/folder/at all"):
        plan = gn.plan(gn.preset("cpu", model=name), machine="cpu")
        assert plan.memory_gb is None and plan.fits is None and not plan.parts
        assert plan.disk_gb is None and "unknown" in repr(plan) and "unknown" in plan._repr_html_()
        plan.require_fit()  # what is not known is not refused


def test_time_is_not_measured_before_and_refined_after() -> None:
    plan = gn.plan(gn.preset("cpu", max_steps=10), machine="cpu")
    assert plan.seconds_per_step is None and "not measured yet" in repr(plan)
    assert plan.refine([]) == plan and plan.refine([{"step": 1}]) == plan
    first = plan.refine([{"step": 1, "step_time": 30.0}])
    assert (first.seconds_per_step, first.seconds_left) == (30.0, 270.0)
    rows = [
        {"step": i, "step_time": t, "completions/mean_length": 20.0 + i}
        for i, t in enumerate([30.0, 9.0, 11.0, 10.0], 1)
    ]  # fmt: skip
    later = plan.refine(rows)
    assert (later.seconds_per_step, later.seconds_left, later.completion_tokens) == (10.0, 60.0, 22.5)
    assert "1 min 0 s" in repr(later) and "not measured" not in repr(later)
    assert later.refine([*rows, {"step": 10, "step_time": 10.0}]).seconds_left == 0


def test_a_real_runs_rows_refine_the_plan(tiny_run: gn.runs.Run) -> None:
    plan = gn.plan(tiny_run.settings, machine="cpu").refine(tiny_run.rows)
    assert plan.seconds_left == 0 and plan.seconds_per_step > 0 and 0 < plan.completion_tokens <= 12


def test_prompts_are_measured_where_they_are_known(tokenizer) -> None:
    task = gn.load_task("arithmetic", train_size=20, holdout_size=5)
    plan = gn.plan(gn.preset("cpu"), task, tokenizer=tokenizer, machine="cpu")
    assert plan.prompt_tokens == max(prompt_lengths(task.train["prompt"], tokenizer)) < 256
    assert "measured" in plan.prompt_source and plan.tokens_per_step == (16 * plan.prompt_tokens, 16 * 48)


def test_a_plan_shows_itself_and_escapes() -> None:
    settings = gn.preset("cpu", model="<script>alert(1)</script>")
    plan = gn.plan(settings, machine="cpu")
    assert "<script>" not in plan._repr_html_() and "&lt;script&gt;" in plan._repr_html_()
    assert "warmup_steps" not in repr(plan), "the steps are enough for the full learning rate"
    for steps, most in ((1, "0%"), (3, "50%"), (4, "75%")):
        assert f"in warmup_steps=4: the learning rate rises to {most}" in repr(
            gn.plan(settings.replace(max_steps=steps))
        )
    with pytest.raises(ValueError, match="did you mean 'a100'"):
        gn.plan(gn.preset("cpu"), machine="a10")
    with pytest.raises(ValueError, match="are two machines"):
        gn.plan(gn.preset("cpu"), machine="t4", gpu_memory_gb=16)


@given(
    memory=st.floats(2, 200),
    micro=st.sampled_from([8, 16, 32]),
    length=st.sampled_from([64, 512, 2048]),
    four_bit=st.booleans(),
)
@hypothesis_settings(max_examples=25, deadline=None)
def test_whatever_is_called_nearest_fits(memory: float, micro: int, length: int, four_bit: bool) -> None:
    changes = {"per_device_train_batch_size": micro, "max_completion_length": length, "load_in_4bit": four_bit}
    settings = gn.preset("l4", **changes, optim="adamw_torch_fused")
    plan = gn.plan(settings, gpu_memory_gb=memory)
    assert (plan.obstacle is None) == (not plan.nearest) or plan.obstacle
    for change in plan.nearest:
        assert gn.plan(settings.replace(**change), gpu_memory_gb=memory).fits


def test_dropout_changes_nothing_in_the_memory_of_a_run() -> None:
    settings = gn.preset("cpu")
    assert parts(gn.plan(settings.replace(lora_dropout=0.05), machine="cpu")) == parts(gn.plan(settings, machine="cpu"))


def test_held_out_answers_take_the_copies_on_either_path_in_float32() -> None:
    settings = gn.preset("cpu", shared_prompts=False, dtype="float32")
    assert not {"folded weights", "packed weights"} & set(parts(gn.plan(settings, machine="cpu")))
    scored = gn.plan(settings.replace(holdout_every=5), machine="cpu").parts
    assert [part.phase for part in scored if part.name in ("folded weights", "packed weights")] == ["generation"] * 2


def test_a_large_model_on_a_cpu_is_offered_the_path_without_copies_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    settings = gn.preset("cpu", model="unsloth/Qwen2.5-3B-Instruct", per_device_train_batch_size=8, dtype="float32")
    need = gn.plan(settings, machine="cpu").memory_gb
    alone = gn.plan(settings.replace(shared_prompts=False), machine="cpu").memory_gb
    assert alone < need
    monkeypatch.setattr("grpo_nb.settings.planning.usable_memory_gib", lambda: (alone + 0.1) * 1e9 / 2**30)
    plan = gn.plan(settings, machine="cpu")
    assert plan.fits is False and plan.nearest[0] == {"shared_prompts": False}, plan.nearest
    assert gn.plan(settings.replace(shared_prompts=False), machine="cpu").fits
    # Where it is switched off already, or does not help, it is not offered.
    monkeypatch.setattr("grpo_nb.settings.planning.usable_memory_gib", lambda: 3.0)
    for refused in (settings.replace(shared_prompts=False), gn.preset("cpu", per_device_train_batch_size=64)):
        assert not any("shared_prompts" in change for change in gn.plan(refused, machine="cpu").nearest)
