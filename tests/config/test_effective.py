"""The table shows what the configuration holds that was built; of the class that Unsloth writes, in tests/gpu."""

import pytest

import grpo_nb as gn
from grpo_nb.config.presets import GPUS
from grpo_nb.config.vllm_obstacle import vllm_obstacle
from grpo_nb.machine.gpu import Gpu


def test_on_a_cpu_it_is_what_trl_and_unsloth_make_of_the_settings() -> None:
    settings = gn.preset(
        "cpu", optim="adamw_8bit", fast_inference=True, dtype="float16", loss_type="dapo",
        extra={"scale_rewards": True, "dataloader_pin_memory": True},
    )  # fmt: skip
    table = gn.training.effective_settings(settings)
    runs = {name: effect.runs for name, effect in table.changed.items()}
    expected = {
        "optim": "adamw_torch_fused",
        "dtype": "float32",
        "fast_inference": False,
        "scale_rewards": "group",
    }
    assert runs.items() >= (expected | {"dataloader_pin_memory": False, "adam_beta2": 0.99}).items()
    assert table.changed["optim"].asked == "adamw_8bit"
    assert "kit's" in table.changed["adam_beta2"].why, "the kit's own changes are shown too"
    assert "seed" not in runs and table.arguments["seed"] == 3407, "what runs as asked has no row"
    assert (
        "adamw_torch_fused" in repr(table)
        and table._repr_html_().count("<tr>") == len(table.changed) + 1
    )


def test_a_run_records_what_its_trainer_had(tiny_run: gn.runs.Run) -> None:
    effective, settings = tiny_run.info["effective"], tiny_run.settings
    assert effective["arguments"]["learning_rate"] == settings.learning_rate
    assert effective["changed"]["adam_beta2"]["runs"] == 0.99 and tiny_run.info["loader"] == {}


@pytest.mark.parametrize(
    ("gpu", "installed", "said", "reason"),
    [
        (None, "0.31.0", None, "needs a GPU"),
        (
            Gpu("Tesla P100-PCIE-16GB", 16.0, (6, 0)),
            "0.31.0",
            None,
            "compute capability 7.0, which Tesla P100",
        ),
        (GPUS["t4"], None, None, "not installed"),
        (
            GPUS["t4"],
            "0.31.0",
            "ImportError: vllm/_C.abi3.so: undefined symbol",
            "undefined symbol",
        ),
        (GPUS["t4"], "0.31.0", None, None),
    ],
)
def test_four_cheap_reasons_against_vllm_then_it_is_tried(
    gpu, installed, said, reason, monkeypatch
) -> None:
    monkeypatch.setattr("grpo_nb.config.vllm_obstacle.installed_version", lambda name: installed)
    monkeypatch.setattr("grpo_nb.config.vllm_obstacle.vllm_problem", lambda: said)
    assert (
        vllm_obstacle(gn.preset("t4", fast_inference=False), gpu).reason == "fast_inference is off"
    )
    found = vllm_obstacle(gn.preset("t4"), gpu)
    assert found is None if reason is None else reason in found.reason and found.fix
