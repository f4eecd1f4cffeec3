"""What the table predicts is what the trainer's arguments are: built here for a CPU, by Unsloth's own lines for a GPU."""

import ast
import enum
import os
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.machine.gpu import Gpu
from grpo_nb.settings import effective
from grpo_nb.settings.presets import GPUS
from grpo_nb.training.trainer import GRPOConfig, GRPOTrainer, grpo_arguments
from tests.conftest import brevity
from tests.support.signatures import text_of


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path):
    settings = gn.preset("cpu", model=str(tiny_folder))
    model, tokenizer = gn.load_model(settings)
    return model, tokenizer, gn.load_task("arithmetic", settings, train_size=40, holdout_size=6)


def plain(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else value


CPU_CASES = {
    "preset": {},
    "a GPU's preset": {"load_in_4bit": True, "fast_inference": True, "optim": "adamw_8bit"},
    "plain AdamW": {"optim": "adamw_torch"},
    "paged": {"optim": "paged_adamw_32bit"},
    "another optimizer": {"optim": "adafactor"},
    "dapo": {"loss_type": "dapo"},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "cispo": {"loss_type": "cispo"},
    "cispo as in the paper": {"loss_type": "cispo", "extra": {"epsilon_high": 5.0}},
    "unscaled": {"extra": {"scale_rewards": False}},
    "scaled": {"extra": {"scale_rewards": True}},
    "more steps per generation": {"per_device_train_batch_size": 8, "extra": {"steps_per_generation": 4}},
    "generation batch": {"gradient_accumulation_steps": 2, "extra": {"generation_batch_size": 16, "num_iterations": 2}},
    "checkpointing": {"shared_prompts": False, "extra": {"gradient_checkpointing": True}},
    "hardware": {"extra": {"tf32": True, "dataloader_pin_memory": True}},
    "epochs": {"extra": {"num_train_epochs": 3}},
    "sequence level": {"extra": {"importance_sampling_level": "sequence"}},
}


@pytest.mark.parametrize("case", CPU_CASES)
def test_the_trainer_on_a_cpu_has_what_was_predicted(case, tiny, tmp_path) -> None:
    """The real configuration and trainer are built; every argument that was named, asked or filled in is compared."""
    model, tokenizer, task = tiny
    changes = dict(CPU_CASES[case])
    settings = gn.preset("cpu", **changes)
    table = gn.effective_settings(settings, "cpu")
    args = GRPOConfig(**grpo_arguments(settings, {"brevity": 1.0}, tmp_path, model))
    parts = {"model": model, "processing_class": tokenizer, "reward_funcs": [brevity], "train_dataset": task.train}
    trainer = GRPOTrainer(**parts, args=args)
    if "ref" in model.peft_config:
        model.delete_adapter("ref")
    for name, predicted in table.arguments.items():
        assert plain(getattr(trainer.args, name)) == plain(predicted), name
    # Nothing that was asked for differs from what runs without a row that says so.
    asked = effective.requested_arguments(settings, gpu=None, number_type=table["dtype"].runs, has_vllm=False)
    differ = {name for name, value in asked.items() if plain(getattr(trainer.args, name)) != plain(value)}
    told = {row.name for row in table.rows}
    same_meaning = {"scale_rewards"}  # True is TRL's older word for "group"
    assert differ - same_meaning <= told, differ - told
    if settings.loss_type == "cispo":
        assert trainer.epsilon_high == (table["epsilon_high"].runs if "epsilon_high" in table else 5.0)
    assert (trainer.args.max_steps, trainer.args.steps_per_generation * trainer.args.per_device_train_batch_size) == (
        settings.max_steps, settings.generation_batch_size,
    )  # fmt: skip


def test_what_is_loaded_on_a_cpu_is_what_was_predicted(tiny) -> None:
    import torch

    model, _, _ = tiny
    table = gn.effective_settings(gn.preset("cpu"), "cpu")
    dtype = str(next(p for p in model.parameters() if not p.requires_grad).dtype)
    assert dtype == str(getattr(torch, table["dtype"].runs))


def unsloth_rules(*marks: str, file: str = "models/rl.py") -> str:
    """Unsloth's lines for its configuration on a GPU: the strings it executes, found by what is in them."""
    tree = ast.parse(text_of(f"unsloth/{file}"))
    strings = {n.value for n in ast.walk(tree) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    rules, found = [text for text in strings if text.lstrip().startswith("if ")], []
    for mark in marks:
        code = [text for text in rules if mark in text]
        assert len(code) == 1, f"{mark!r} is in {len(code)} rules of this Unsloth: look at its source again"
        found.append(code[0])
    return "\n".join(found)


GPU_CASES = {
    "preset": {},
    "dapo": {"loss_type": "dapo"},
    "dapo, kept": {"loss_type": "dapo", "extra": {"mask_truncated_completions": False, "epsilon_high": 0.2}},
    "dapo without KL": {"loss_type": "dapo", "beta": 0.0},
    "dr_grpo": {"loss_type": "dr_grpo"},
    "dr_grpo, scaled": {"loss_type": "dr_grpo", "extra": {"scale_rewards": None}},
    "dr_grpo, by batch": {"loss_type": "dr_grpo", "extra": {"scale_rewards": "batch"}},
    "cispo": {"loss_type": "cispo"},
    "cispo, set": {"loss_type": "cispo", "extra": {"epsilon_high": 4.0}},
    "grpo": {"loss_type": "grpo"},
    "top_k": {"top_k": 20},
    "no vLLM": {"fast_inference": False},
}


@pytest.mark.parametrize("case", GPU_CASES)
def test_unsloths_own_lines_for_a_gpu_give_what_was_predicted(case) -> None:
    settings = gn.preset("l4", **GPU_CASES[case])
    table = gn.effective_settings(settings, "l4")
    # The defaults of Unsloth's configuration, as its source states them.
    names = {
        "scale_rewards": "group", "mask_truncated_completions": None, "epsilon_high": None, "use_vllm": False,
        "steps_per_generation": None, "generation_batch_size": None,
    }  # fmt: skip
    names |= effective.requested_arguments(settings, gpu=GPUS["l4"], number_type="bfloat16", has_vllm=True)
    code = unsloth_rules("scale_rewards = False", "steps_per_generation is None and generation_batch_size")
    code += "\n" + unsloth_rules("top_k = -1", file="models/rl_replacements.py")
    exec(code, {"_unsloth_default_loss_type": False, "os": os, "print": lambda *_: None}, names)
    if isinstance(names["scale_rewards"], bool):
        names["scale_rewards"] = "group" if names["scale_rewards"] else "none"
    for name in (
        "loss_type", "scale_rewards", "mask_truncated_completions", "epsilon_high", "top_k", "beta",
        "per_device_train_batch_size",
    ):  # fmt: skip
        default = {"scale_rewards": "group", "epsilon_high": None}.get(name)
        assert table.arguments.get(name, default) == names[name], name


def test_with_the_kits_switch_unsloth_keeps_the_share_of_the_settings() -> None:
    """Its own lines are run: in standby it would take another share, but for the switch, which is set before the import."""
    tree = ast.parse(text_of("unsloth_zoo/vllm_utils.py"))
    load = next(n for n in tree.body if isinstance(n, ast.FunctionDef) and n.name == "load_vllm")
    (read,) = [
        n for n in load.body
        if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == "standby_util_override"
    ]  # fmt: skip
    (rule,) = [n for n in load.body if isinstance(n, ast.If) and "standby_util_override" in ast.unparse(n.test)]
    for switch, share in (("0", 0.76), (os.environ["UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE"], 0.4)):
        names = {"unsloth_vllm_standby": True, "standby_target_gpu_util": 0.76, "gpu_memory_utilization": 0.4}
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE", switch)
            exec(f"{ast.unparse(read)}\n{ast.unparse(rule)}", {"os": os, "print": lambda *_: None}, names)
        assert names["gpu_memory_utilization"] == share


@pytest.mark.parametrize("name", GPUS)
def test_the_presets_take_unsloths_share_of_their_card(name: str) -> None:
    """The table of shares is run from the installed source."""
    tree = ast.parse(text_of("unsloth_zoo/vllm_utils.py"))
    (chain,) = [
        node for node in ast.walk(tree)
        if isinstance(node, ast.If) and "Version(vllm_version) < Version('0.11.0')" in ast.unparse(node.test)
        and "standby_target_gpu_util" in ast.unparse(node)
    ]  # fmt: skip
    names = {"ten_percent": GPUS[name].memory_gib * 0.1, "UNSLOTH_ENABLE_LOGGING": False}
    exec("\n".join(ast.unparse(node) for node in chain.orelse), {}, names)
    assert gn.preset(name).gpu_memory_utilization == pytest.approx(names["standby_target_gpu_util"], abs=1e-3)


def test_the_constants_are_those_of_the_installed_unsloth() -> None:
    source = text_of("unsloth/models/rl.py")
    assert '"vllm_importance_sampling_correction": False' in source
    cpu = text_of("unsloth_zoo/cpu/trainer.py")
    assert all(f'"{tag}"' in cpu for tag in ("8bit", "paged", "bnb", "npu", "xla", "adamw_apex_fused"))


@pytest.mark.parametrize("machine", ["cpu", *GPUS])
def test_a_preset_on_its_own_machine_shows_itself(machine: str) -> None:
    table = gn.effective_settings(gn.preset(machine), machine)
    assert repr(table) and table._repr_html_().count("<tr>") == (len(table.rows) + 1 if table.rows else 0)


def test_rows_say_asked_run_and_why() -> None:
    settings = gn.preset("t4", loss_type="dapo")
    table = gn.effective_settings(settings, "t4")
    row = table["mask_truncated_completions"]
    assert (row.asked, row.runs) == ("not set", True)
    assert "2503.14476" in row.why and row.source.startswith("unsloth/models/rl.py")
    assert table["dtype"].runs == "float16" and "epsilon_high" in repr(table)
    with pytest.raises(KeyError, match="runs as asked"):
        table["seed"]
    on_cpu = gn.effective_settings(settings, "cpu")
    assert on_cpu["fast_inference"].runs is False and on_cpu["optim"].runs == "adamw_torch_fused"
    assert "train differently" in on_cpu["loss_type"].why


def test_without_vllm_completions_are_scored_with_their_prompt_and_the_table_says_how_to_share_it(monkeypatch) -> None:
    name = effective.SHARED_SCORING
    monkeypatch.delenv(name, raising=False)
    row = gn.effective_settings(gn.preset("t4", fast_inference=False), "t4")[name]
    assert row.runs == "0" and f'os.environ["{name}"] = "1"' in row.why
    assert name not in gn.effective_settings(gn.preset("t4"), "t4"), "with vLLM Unsloth never shares it"
    assert name not in gn.effective_settings(gn.preset("cpu"), "cpu")
    monkeypatch.setenv(name, "1")
    assert name not in gn.effective_settings(gn.preset("t4", fast_inference=False), "t4")


def test_unknown_machines_and_html(monkeypatch) -> None:
    with pytest.raises(ValueError, match="did you mean 'a100'"):
        gn.effective_settings(gn.preset("cpu"), "a10")
    table = gn.effective_settings(gn.preset("t4"), Gpu("<b>card</b>", 15.0, (7, 5)))
    assert "<b>card</b>" not in table._repr_html_() and "&lt;b&gt;card" in table._repr_html_()
