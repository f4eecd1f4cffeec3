"""The table shows what the configuration holds that was built, on a CPU and with the class that Unsloth writes for a GPU."""

import ast
import dataclasses
import os

import pytest

import grpo_nb as gn
from grpo_nb.machine.gpu import Gpu
from grpo_nb.settings.effective import compared
from grpo_nb.settings.number_types import NumberType
from grpo_nb.settings.presets import GPUS
from grpo_nb.settings.vllm import VllmObstacle, vllm_obstacle
from tests.support.signatures import text_of


def test_on_a_cpu_it_is_what_trl_and_unsloth_make_of_the_settings() -> None:
    settings = gn.preset(
        "cpu", optim="adamw_8bit", fast_inference=True, dtype="float16", loss_type="dapo",
        extra={"scale_rewards": True, "dataloader_pin_memory": True},
    )  # fmt: skip
    table = gn.effective_settings(settings)
    assert (table["optim"].asked, table["optim"].runs) == ("adamw_8bit", "adamw_torch_fused")
    assert table["dtype"].runs == "float32" and table["fast_inference"].runs is False
    assert table["scale_rewards"].runs == "group" and table["dataloader_pin_memory"].runs is False
    assert table["adam_beta2"].runs == 0.99 and "kit's" in table["adam_beta2"].why, (
        "the kit's own changes are shown too"
    )
    with pytest.raises(KeyError, match="runs as asked"):
        table["seed"]
    assert table.arguments["seed"] == 3407 and table.arguments["mask_truncated_completions"] in (None, False)
    assert "adamw_torch_fused" in repr(table) and table._repr_html_().count("<tr>") == len(table.rows) + 1


def test_what_a_class_of_unsloth_changes_by_itself_is_shown() -> None:
    """As its class on a GPU does for DAPO; that the real one does is in tests/gpu/test_written_trainer.py."""

    @dataclasses.dataclass
    class Stock:
        loss_type: str = "dapo"
        top_k: int = 0
        epsilon_high: float | None = None

    settings = gn.preset("t4", loss_type="dapo")
    table = compared(
        settings, {"loss_type": "dapo", "top_k": 0}, Stock(epsilon_high=0.28, top_k=-1), Stock(),
        number_type=NumberType("float16", "As set."), obstacle=VllmObstacle("no <b>", "fix"), sharing=None,
    )  # fmt: skip
    assert [row.name for row in table.rows] == ["dtype", "fast_inference", "top_k", "epsilon_high"]
    assert (table["epsilon_high"].asked, table["epsilon_high"].runs) == ("not set", 0.28)
    assert table.arguments == {"loss_type": "dapo", "top_k": -1, "epsilon_high": 0.28}
    assert table.to_dict()["changed"][2] == {"name": "top_k", "asked": 0, "runs": -1, "why": table["top_k"].why}
    assert "no <b>" not in table._repr_html_() and "no &lt;b&gt;" in table._repr_html_()


def test_a_run_records_what_its_trainer_had(tiny_run: gn.runs.Run) -> None:
    effective = tiny_run.info["effective"]
    assert effective["arguments"]["learning_rate"] == 2e-2 and effective["arguments"]["optim"] == "adamw_torch_fused"
    assert {row["name"]: row["runs"] for row in effective["changed"]}["adam_beta2"] == 0.99


@pytest.mark.parametrize(
    ("changes", "gpu", "installed", "reason"),
    [
        ({"fast_inference": False}, GPUS["t4"], "0.31.0", "off"),
        ({}, None, "0.31.0", "needs a GPU"),
        (
            {},
            Gpu("Tesla P100-PCIE-16GB", 16.0, (6, 0)),
            "0.31.0",
            "compute capability 7.0, and Tesla P100-PCIE-16GB has 6.0",
        ),
        ({}, GPUS["t4"], None, "not installed"),
        ({}, GPUS["t4"], "0.31.0", "undefined symbol"),
    ],
)
def test_four_cheap_reasons_against_vllm_then_it_is_tried(changes, gpu, installed, reason, monkeypatch) -> None:
    module = "grpo_nb.settings.vllm"
    monkeypatch.setattr(f"{module}.installed_version", lambda name: installed)
    monkeypatch.setattr(f"{module}.vllm_problem", lambda: "ImportError: vllm/_C.abi3.so: undefined symbol")
    found = vllm_obstacle(gn.preset("t4", **changes), gpu)
    assert reason in found.reason and found.fix
    monkeypatch.setattr(f"{module}.vllm_problem", lambda: None)
    assert vllm_obstacle(gn.preset("t4"), GPUS["t4"]) is None or installed is None


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
