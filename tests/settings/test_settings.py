"""Settings that cannot work are refused at once, with what to write instead."""

import copy
import dataclasses
import inspect
import json
import math
import os
import pickle
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

import grpo_nb as gn
from grpo_nb.machine.gpu import Gpu
from grpo_nb.settings import arguments
from grpo_nb.settings.presets import PRESETS
from grpo_nb.settings.shapes import shape_of
from tests.support.signatures import text_of


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_valid_and_round_trip(name: str) -> None:
    settings = gn.preset(name, extra={"top_entropy_quantile": 0.2})
    assert gn.Settings.from_dict(json.loads(json.dumps(settings.to_dict()))) == settings
    assert settings.batch_size % settings.num_generations == 0
    assert settings.beta > 0, "without a KL term there is no KL curve"


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"learning_rat": 1e-5}, "did you mean 'learning_rate'"),
        ({"num_generations": 6}, "per_device_train_batch_size=18"),
        ({"num_generations": 1}, "at least 2"),
        ({"max_steps": 0}, "at least 1"),
        ({"max_steps": 2.5}, "takes int"),
        ({"max_steps": True}, "takes int"),
        ({"load_in_4bit": "yes"}, "takes bool"),
        ({"learning_rate": -1e-5}, "above 0"),
        ({"learning_rate": float("nan")}, "above 0"),
        ({"temperature": 0}, "at least 0.01"),
        ({"learning_rate": math.inf}, "learning_rate = inf must be above 0"),
        ({"save_steps": 10**400, "beta": math.inf}, "beta = inf"),
        ({"seed": 2**32}, "at most 4294967295"),
        ({"model": " "}, "not empty"),
        ({"run_root": "a\0b"}, "on one line"),
        ({"warmup_steps": 25}, "longer than the run (max_steps = 14)"),
        ({"lora_target_modules": "q_proj"}, 'lora_target_modules="all-linear"'),
        ({"lora_target_modules": ()}, "at least one"),
        ({"lora_target_modules": [1, 2]}, "names of layers"),
        ({"extra": None}, "must be a dict"),
        ({"extra": {1: 2}}, "must be a dict"),
        ({"extra": {"epsilon": "x"}}, "extra['epsilon'] = 'x' is of type str"),
        ({"extra": {"epsilon": -1}}, "extra['epsilon'] = -1 must be at least 0"),
        ({"extra": {"num_iterations": 0}}, "at least 1"),
        ({"extra": {"num_iterations": 1.5}}, "takes int"),
        ({"extra": {"scale_rewards": "nope"}}, "did you mean 'none'"),
        ({"extra": {"min_p": 5}}, "at most 1"),
        ({"extra": {"repetition_penalty": math.nan}}, "above 0"),
        ({"extra": {"logging_steps": 0}}, "at least 1"),
        ({"extra": {"generation_kwargs": 5}}, "takes dict"),
        ({"extra": {"bf16": True, "fp16": True}}, "the setting is dtype"),
        ({"extra": {"save_strategy": "nope"}}, "the setting is save_steps"),
        ({"extra": {"eval_strategy": "steps"}}, "the setting is holdout_every"),
        ({"extra": {"sync_ref_model": True}}, "no second model"),
        ({"extra": {"fsdp": "full_shard"}}, "trained in one process"),
        ({"extra": {"hub_strategy": 0}}, "takes str; or leave it out"),
        ({"extra": {"accelerator_config": "nope.json"}}, "takes dict | None; or leave it out"),
        ({"lr_scheduler_type": "reduce_lr_on_plateau"}, "not known here"),
        ({"per_device_train_batch_size": 10**9 + 7}, "at most 65536"),
        ({"top_p": 1.5}, "at most 1"),
        ({"beta": -0.1}, "at least 0"),
        ({"model": None}, "takes str"),
        ({"dtype": "bfloat"}, "did you mean 'bfloat16'"),
        ({"loss_type": "drgrpo"}, "did you mean 'dr_grpo'"),
        ({"optim": "adamw_8bits"}, "did you mean 'adamw_8bit'"),
        ({"lr_scheduler_type": "cosin"}, "did you mean 'cosine'"),
        ({"num_iterations": 2}, "write extra={'num_iterations': ...}"),
        ({"warmup_ratio": 0.1}, "set warmup_steps"),
        ({"extra": {"epsilonn": 0.1}}, "did you mean 'epsilon'"),
        ({"extra": {"unsloth_num_chunk": 4}}, "did you mean 'unsloth_num_chunks'"),
        ({"extra": {"beta": 0.1}}, "write beta=0.1"),
        ({"extra": {"output_dir": "x"}}, "set run_root"),
        ({"extra": {"reward_weights": [1.0]}}, "belongs to its reward"),
        ({"extra": {"use_vllm": True}}, "fast_inference"),
        ({"extra": {"vllm_gpu_memory_utilization": 0.5}}, "gpu_memory_utilization"),
        ({"extra": {"warmup_ratio": 0.1}}, "set warmup_steps"),
        ({"extra": {"wandb_log_unique_prompts": True}}, "log_unique_prompts"),
        ({"extra": {"group_by_length": True}}, "train_sampling_strategy"),
        ({"extra": {"steps_per_generation": 2, "generation_batch_size": 32}}, "leave one out"),
        ({"extra": {"steps_per_generation": 0}}, "at least 1"),
        ({"extra": {"generation_batch_size": 24}}, '"generation_batch_size": 32'),
        ({"extra": {"unsloth_grpo_mini_batch": 17}}, "more than the 16 completions"),
        ({"per_device_train_batch_size": 2, "extra": {"steps_per_generation": 3}}, '"steps_per_generation": 4'),
    ],
)
def test_bad_settings_say_what_to_write(changes: dict, told: str) -> None:
    with pytest.raises(ValueError, match=re.escape(told)):
        gn.preset("cpu", **changes)
    with pytest.raises(ValueError):
        gn.preset("cpu").replace(**changes)


@pytest.mark.parametrize("name", ["a10", 5, None, ["t4"]])
def test_an_unknown_preset_names_the_known_ones(name: object) -> None:
    with pytest.raises(ValueError, match=re.escape(f"preset = {name!r} is not known here; ")):
        gn.preset(name)


def handed_over(settings: gn.Settings, machine: str = "t4") -> int:
    return gn.effective_settings(settings, machine).arguments["warmup_steps"]


def test_a_warm_up_that_nobody_chose_is_a_tenth_of_the_run() -> None:
    for steps in (5, 24, 25, 50, 500):
        settings = gn.preset("t4", max_steps=steps)
        assert handed_over(settings) == handed_over(gn.preset("t4").replace(max_steps=steps)) == steps // 10
        assert gn.Settings.from_dict(settings.to_dict()) == settings
    page = gn.preset("t4", max_steps=50)._repr_html_()
    assert re.search(r">warmup_steps</td><td[^>]*>5</td>", page), "the table has the number"
    assert handed_over(gn.preset("t4", max_steps=50, warmup_steps=7).replace(max_steps=30)) == 7, (
        "what was chosen stays"
    )
    with pytest.raises(ValueError, match=r"longer than the run \(max_steps = 5\).*write warmup_steps=0"):
        gn.preset("t4", warmup_steps=7).replace(max_steps=5)
    for steps in (2, 14, 200):
        assert handed_over(gn.preset("cpu", max_steps=steps), "cpu") == 4, "a trial is the beginning of the run"
    old = {**gn.preset("t4", warmup_steps=25).to_dict(), "max_steps": 10}
    assert handed_over(gn.Settings.from_dict(old)) == 25, "the record of an old run is what it was"


def test_a_run_by_the_preset_of_a_t4_ends_within_an_hour_without_vllm() -> None:
    """The sum of docs/reference/settings.md, with its assumptions."""
    t4, before = gn.preset("t4", fast_inference=False), {"max_steps": 250, "learning_rate": 5e-6}
    assert t4.generation_batch_size == t4.batch_size == 16, "all completions of a step are sampled at once"
    seconds_a_token, operations_a_second = 0.1, 16e12
    tokens = t4.batch_size * (t4.max_prompt_length + t4.max_completion_length)
    training = 8 * shape_of(t4.model).parameters * tokens / operations_a_second
    docs = Path(__file__).resolve().parents[2] / "docs"
    minutes = t4.max_steps * (t4.max_completion_length * seconds_a_token + training) / 60
    assert minutes <= 60
    for page in ("reference/settings.md", "install.md", "gpu.md"):
        assert f"at most {minutes:.0f} minutes" in (docs / page).read_text(), page
    moved = t4.max_steps * t4.learning_rate
    assert moved >= 0.75 * before["max_steps"] * before["learning_rate"], (
        "fewer steps must not mean that nothing is learnt"
    )


def test_all_linear_is_one_word_for_every_layer() -> None:
    settings = gn.preset("cpu", lora_target_modules="all-linear")
    assert (
        settings.lora_target_modules == ("all-linear",) == gn.Settings.from_dict(settings.to_dict()).lora_target_modules
    )
    every, shape = gn.Settings().lora_target_modules, shape_of(gn.settings.EMBEDDED_MODEL)
    assert shape.lora_parameters(8, settings.lora_target_modules) == shape.lora_parameters(8, every) > 0


@pytest.mark.parametrize(
    ("gpu", "model"),
    [
        (None, gn.settings.EMBEDDED_MODEL),
        (Gpu("Tesla T4", 15.0, (7, 5)), PRESETS["t4"]["model"]),
        (Gpu("NVIDIA L4", 22.5, (8, 9)), PRESETS["l4"]["model"]),
        (Gpu("NVIDIA A100-SXM4-40GB", 40.0, (8, 0)), PRESETS["a100"]["model"]),
        (Gpu("NVIDIA H100 80GB HBM3", 79.6, (9, 0)), PRESETS["h100"]["model"]),
    ],
)
def test_auto_takes_the_preset_of_the_gpu(gpu: Gpu | None, model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_nb.settings.presets.find_gpu", lambda: gpu)
    settings = gn.preset("auto")
    assert settings.model == model
    assert settings.fast_inference == (gpu is not None)
    assert gn.preset("auto", max_steps=7).max_steps == 7


def test_the_names_read_from_the_source_are_those_of_the_class() -> None:
    from trl import GRPOConfig

    assert arguments.installed_arguments().keys() == set(inspect.signature(GRPOConfig).parameters)
    assert arguments.installed_arguments().keys() > arguments._BOUNDS_OF_EXTRA.keys() | arguments._KIND_OF_EXTRA.keys()
    defaults = {f.name: f.default for f in dataclasses.fields(GRPOConfig)}
    extra = {n: v for n, v in defaults.items() if n not in vars(gn.Settings()) and v is not dataclasses.MISSING}
    for name in extra.keys() - arguments._OWNED.keys():
        arguments.check_extra({name: extra[name]}, (), defaults, has_gpu=False)


def test_the_choices_read_from_the_source_are_those_of_the_packages() -> None:
    from transformers.trainer_utils import SchedulerType
    from transformers.training_args import OptimizerNames

    choices = arguments.installed_choices()
    assert choices["optim"] == {str(o.value) for o in OptimizerNames} | {"adamw_flash"}
    assert choices["lr_scheduler_type"] == {s.value for s in SchedulerType} - {"reduce_lr_on_plateau", "greedy"}
    assert choices["scale_rewards"] == {"group", "batch", "none"}
    assert choices["vllm_importance_sampling_mode"] > {"token_truncate", "sequence_mask"}
    assert {"grpo", "dr_grpo", "dapo", "bnpo", "cispo", "sapo"} <= choices["loss_type"]


def test_unsloths_arguments_are_in_its_source() -> None:
    source = text_of("unsloth/models/rl.py")
    for name in arguments.UNSLOTH_ARGUMENTS:
        assert re.search(rf"^ +\"*{name} ?: Optional|\"\"\"{name} : Optional", source, re.MULTILINE), name


def test_names_that_were_replaced_are_gone_and_their_successors_exist() -> None:
    known = arguments.installed_arguments().keys() | {f.name for f in dataclasses.fields(gn.Settings)}
    for name, instead in arguments.REPLACED.items():
        assert name not in known, name
        if instead.startswith("renamed"):
            assert instead.rpartition(": ")[2] in known, instead


def test_unsloths_arguments_need_a_gpu() -> None:
    extra = {"unsloth_num_chunks": 4}
    assert gn.preset("t4", extra=extra).extra == extra, "settings for a GPU can be made anywhere"
    arguments.check_extra(extra, vars(gn.Settings()), {"epsilon"}, has_gpu=True)
    with pytest.raises(ValueError, match="only Unsloth's trainer on a GPU"):
        arguments.check_extra(extra, vars(gn.Settings()), {"epsilon"}, has_gpu=False)


def test_checking_settings_loads_nothing_heavy() -> None:
    code = (
        "import sys, grpo_nb as gn\n"
        "gn.preset('t4', extra={'epsilon': 0.1})\n"
        "gn.effective_settings(gn.preset('t4'), 't4')\n"
        "print([m for m in ('torch', 'transformers', 'trl', 'unsloth', 'pandas') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=True)
    assert done.stdout.strip() == "[]"


def test_without_trl_the_check_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("grpo_nb.settings.arguments.installed_arguments", lambda: None)
    assert gn.preset("cpu", extra={"anything": 1}).extra == {"anything": 1}
    with pytest.raises(ValueError, match="set run_root"):
        gn.preset("cpu", extra={"output_dir": "x"})


BATCHES = {
    "per_device_train_batch_size": st.integers(1, 24), "gradient_accumulation_steps": st.integers(1, 12),
    "num_generations": st.integers(2, 16),
    "extra": st.sampled_from([{}, {"steps_per_generation": 3}, {"generation_batch_size": 48}]),
}  # fmt: skip


@given(st.fixed_dictionaries(BATCHES))
@hypothesis_settings(max_examples=150, deadline=None)
def test_every_line_of_the_batch_error_works_when_pasted(written: dict) -> None:
    try:
        made = gn.preset("cpu", **written)
    except ValueError as error:
        lines = [line.split("  (")[0].strip() for line in str(error).splitlines()[1:]]
        pasted = lines or re.findall(r"extra=\{.*\}", str(error))
        assert pasted
        for line in pasted:
            gn.preset("cpu", **{**written, **eval(f"dict({line})")})
    else:
        assert made.generation_batch_size % made.num_generations == 0


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=12) | st.just("__tuple__"), inner, max_size=3)
        | st.dictionaries(st.integers() | st.tuples(st.integers()), inner, max_size=3)
    ),
    max_leaves=8,
)


WORDS = st.text(min_size=1, max_size=9).filter(lambda text: text.strip() and text.isprintable())


def same_types(a: object, b: object) -> bool:
    """Equal, and no tuple became a list, no int a float, no True a 1."""
    if type(a) is not type(b):
        return False
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_types, a, b))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_types(a[key], b[key]) for key in a)
    return a == b and (not isinstance(a, float) or math.copysign(1, a) == math.copysign(1, b))


@given(
    values=st.dictionaries(
        st.sampled_from(["lr_scheduler_kwargs", "generation_kwargs"]), st.dictionaries(st.text(max_size=4), PLAIN, max_size=2)
    ),
    rate=st.floats(1e-9, 1.0), targets=st.lists(WORDS, min_size=1, max_size=3), folder=WORDS, steps=st.integers(1, 10**9),
    shared=st.booleans(),
)  # fmt: skip
@hypothesis_settings(max_examples=100, deadline=None)
def test_settings_go_through_a_file_unchanged(tmp_path_factory, values, rate, targets, folder, steps, shared) -> None:
    settings = gn.preset(
        "cpu", extra=values, learning_rate=rate, lora_target_modules=tuple(targets), run_root=folder, max_steps=steps,
        shared_prompts=shared,
    )  # fmt: skip
    path = tmp_path_factory.getbasetemp() / "settings.json"
    loaded = gn.Settings.load(settings.save(path))
    assert loaded == settings and same_types(dict(loaded.extra), dict(settings.extra))
    plain = [name for name in vars(settings) if name != "extra"]
    assert all(same_types(getattr(loaded, name), getattr(settings, name)) for name in plain)
    assert json.loads(path.read_text())["grpo_nb"] == gn.__version__


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda file: file["settings"].update(learning_rat=1.0), "did you mean 'learning_rate'"),
        (lambda file: file["settings"]["extra"].update(epsilonn=1.0), "did you mean 'epsilon'"),
        (lambda file: file["settings"].update(max_steps="7"), "takes int"),
        (lambda file: file.pop("settings"), "holds no settings of this kit"),
    ],
)
def test_a_bad_file_of_settings_says_what_is_wrong(change, told: str, tmp_path: Path) -> None:
    path = gn.preset("cpu").save(tmp_path / "settings.json")
    file = json.loads(path.read_text())
    change(file)
    path.write_text(json.dumps(file))
    with pytest.raises(ValueError, match=told):
        gn.Settings.load(path)
    for damaged in (b"no json", bytes(range(256)), b"[" * 5000, b'{"settings": {"beta": {"__float__": "x"}}}'):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="is not JSON"):
            gn.Settings.load(path)
    with pytest.raises(FileNotFoundError, match="no file of settings"):
        gn.Settings.load(tmp_path)
    with pytest.raises(ValueError, match="must be a file in a folder that is there"):
        gn.preset("cpu").save(tmp_path / "none" / "settings.json")


def test_what_has_no_form_in_a_file_is_named(tmp_path: Path) -> None:
    settings = gn.preset("cpu", extra={"generation_kwargs": {"stop": object()}})
    with pytest.raises(ValueError, match=r"extra\['generation_kwargs'\]\['stop'\] holds a object"):
        settings.save(tmp_path / "settings.json")
    assert not os.listdir(tmp_path)


def test_the_record_of_an_old_run_stays_readable() -> None:
    """An argument that a newer TRL dropped is no reason to lose the run that used it."""
    values = {**gn.preset("cpu").to_dict(), "extra": {"an_argument_of_last_year": 1}, "optim": "forgotten"}
    read = gn.Settings.from_dict(values)
    assert read.extra == {"an_argument_of_last_year": 1} and read.to_dict() == values
    # Whole only together with its extra.
    settings = gn.preset("cpu", per_device_train_batch_size=2, extra={"steps_per_generation": 4})
    assert gn.Settings.from_dict(settings.to_dict()) == settings
    with pytest.raises(ValueError, match="cannot be divided"):
        gn.Settings.from_dict({**settings.to_dict(), "extra": {}})


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, copy.copy, lambda s: pickle.loads(pickle.dumps(s)), dataclasses.replace]
)
def test_settings_are_copied_and_pickled(copied) -> None:
    settings = gn.preset("cpu", extra={"generation_kwargs": {"a": (1, 2)}})
    assert copied(settings) == settings and dataclasses.asdict(copied(settings)) == dataclasses.asdict(settings)
    with pytest.raises(TypeError, match=r"settings.replace\(extra="):
        copied(settings).extra["epsilon"] = 0.2


def test_a_typo_is_answered_wherever_it_is_made() -> None:
    settings = gn.preset("cpu")
    with pytest.raises(AttributeError, match=r"settings = settings.replace\(max_steps=5\)"):
        settings.max_steps = 5
    with pytest.raises(AttributeError, match="did you mean 'max_steps'"):
        settings.max_step = 5
    with pytest.raises(AttributeError, match="did you mean 'max_steps'"):
        settings.max_step  # noqa: B018
    with pytest.raises(AttributeError, match="seed"):
        del settings.seed
    with pytest.raises(ValueError, match="did you mean 'max_steps'"):
        gn.Settings(max_step=5)
    assert "max_steps" in inspect.signature(gn.Settings).parameters
    assert "<td" in settings._repr_html_() and repr(settings).startswith("Settings(model=")
