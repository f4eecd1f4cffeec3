"""The script that proves the GPU path, run on a small model on the CPU.

Without a GPU the script itself stops at once.
"""

import dataclasses
import itertools
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import nbformat
import pytest

import grpo_nb as gn
from grpo_nb.evaluation import exam
from scripts import gpu_check
from scripts.gpu_check import Request, Row
from tests.conftest import ROOT
from tests.run_fixtures import brevity
from tests.support.checks import run_script_here
from tests.support.notebooks import only_small
from tests.support.small_models import lora_model


def test_without_a_gpu_it_ends_at_once_and_says_so(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts/gpu_check.py"), "--out", str(tmp_path / "out.md")]
    done = subprocess.run(
        script, capture_output=True, text=True, timeout=60, env={"PATH": str(tmp_path)}
    )
    assert done.returncode == 2
    assert "No GPU" in done.stderr
    assert not (tmp_path / "out.md").exists()


def rehearsal(model: Path | str, folder: Path, **asked: bool) -> Request:
    """Return a request that a random model on a CPU can meet in four steps."""
    changes = {
        "max_steps": 4,
        "max_completion_length": 24,
        "per_device_train_batch_size": 8,
        "learning_rate": 2e-2,
        "max_grad_norm": 10.0,
    }
    return Request(
        str(folder),
        str(model),
        **{"load_in_4bit": False, "use_vllm": False} | asked,
        questions=6,
        changes=changes,
    )


def no_converter(*_: object) -> list[str]:
    raise gn.machine.EnvironmentProblem("no converter")


@pytest.fixture(scope="module")
def report(
    tiny_folder: Path,
    quickstart: tuple[Path, gn.runs.Run],
    tmp_path_factory: pytest.TempPathFactory,
) -> dict[str, list[Row]]:
    """Run all phases in this process on the tiny model.

    The quickstart's phase reads the notebook that was executed for all tests.
    """

    def executed(command: list, **_: object) -> list[str]:
        script, notebook, *options = map(str, command[1:])
        assert Path(script).is_file()
        assert Path(notebook).stem == quickstart[0].stem
        assert [options[0], options[2]] == ["--cwd", "--set"]
        assert "RUN_NAME='quickstart'" in options
        cells = nbformat.read(notebook, as_version=4).cells
        (asked,) = [cell.source for cell in cells if "parameters" in cell.metadata.get("tags", [])]
        assert [
            value for value in options[3:] if f"\n{value.partition('=')[0]} = " not in f"\n{asked}"
        ] == []
        shutil.copytree(quickstart[1].path, Path(options[1], "runs", "quickstart"))
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_check, "rewards", lambda: [brevity])  # which a random model can earn
        patch.setattr(gpu_check, "run_command", executed)
        patch.setattr("grpo_nb.export.staged_export.run_script", run_script_here)
        patch.setattr(gpu_check, "_INTERRUPTS", 5)
        patch.setattr("grpo_nb.export.conversion.find_converter", no_converter)
        return gpu_check.check(rehearsal(tiny_folder, tmp_path_factory.mktemp("gpu-check")), None)


@only_small
def test_every_path_of_the_script_runs(report, quickstart: tuple[Path, gn.runs.Run]) -> None:
    assert list(report) == ["all", *(name for name, *_ in gpu_check.plan_of(False))]
    held = {name: {row.name for row in rows if row.ok is True} for name, rows in report.items()}
    finite = "numbers that are not finite"
    kl = "KL of the first step"
    whole = {"generation", "weights as asked"}
    assert held["kit, without vLLM"] >= whole | {
        kl,
        finite,
        "base weights after training",
        "base answers after training, adapter off",
        "evaluation agrees between generation paths",
        "interrupts that came too late",
        "answers after interrupts",
        "weights after interrupts",
        "memory after a second training",
        "base answers in the end, adapter off",
    }
    assert held["resume, without vLLM"] >= whole | {
        "resume goes on at the next step",
        "resume has the trained adapter",
    }
    exported = {row.name: row for row in report["exports, without vLLM"]}
    assert exported.keys() >= {
        "merged model verifies",
        "adapter verifies",
        "merged model scores as the run",
    }
    # notebooks/06_export makes one.
    assert exported["GGUF verifies through llama.cpp"].ok is None
    assert [(name, row.found) for name, row in exported.items() if row.ok is False] == []
    assert held["preset's own model"] >= whole | {"the model is to be had", kl, finite}
    ends, learns = report["quickstart notebook"][:2]
    run = quickstart[1]
    assert ends.ok is True
    assert learns.ok is (run.rise().is_clear and run.comparison.verdict == "better")
    assert run.comparison.sentence in learns.found
    measured = {
        row.name: float(row.found) for row in report["kit, without vLLM"] if row.ok == "measured"
    }
    assert all(
        measured[name] > 0 for name in ("median seconds of a step", "completion tokens a second")
    )


@only_small
def test_page_has_each_check_and_names_a_cpu_as_cpu(report) -> None:
    shown = gpu_check.page(report)
    for phase, rows in report.items():
        for row in rows:
            word = {True: "holds", False: "FAILS", None: "not checked"}.get(row.ok, row.ok)
            assert f"| {phase} | {row.name} | {word} |" in shown
    assert "FAILS" in shown.splitlines()[0]
    assert "torch 2." in shown
    assert "| device" not in shown
    assert "CPU, " in shown
    assert "not used: vLLM needs a GPU" not in shown.splitlines()[0]


ROWS = [
    {"step": n, "reward": 1.0, "kl": 0.04 * n - 0.04, "loss": 0.1, "grad_norm": 0.2}
    for n in range(1, 8)
]
SCALED = [{**row, "grad_norm": math.inf if row["step"] < 3 else 0.2} for row in ROWS]


def agreeing(*differences: float, kl: float = 0.08) -> Row:
    name = "sampling/sampling_logp_difference/mean"
    return gpu_check.sampler_agrees([{name: one, "kl": kl} for one in differences])


def first_kl(kl: float) -> Row:
    return next(gpu_check.trained(SimpleNamespace(rows=[{"kl": kl}]), is_scaled=False))


@pytest.mark.parametrize(
    ("ok", "row"),
    [
        (True, gpu_check.at_most("", 1, 1.0)),
        (False, gpu_check.at_most("", 1, 1.01)),
        (False, gpu_check.at_most("", 1, math.nan)),
        (True, first_kl(0.0)),
        (False, first_kl(0.013)),  # completions behind no prompt
        (False, first_kl(math.nan)),
        (True, agreeing(0.01, 0.02, 0.03)),
        (False, agreeing(0.01, 0.04, 0.2)),  # the sampler stays behind
        (False, agreeing(0.01, 0.02, math.nan)),
        (False, gpu_check.sampler_agrees(ROWS)),  # it was not logged: the correction is off
        (None, agreeing(0.01, 0.02, 0.03, kl=0.001)),  # nothing that a sampler could have missed
        (True, gpu_check.numbers_hold(ROWS, is_scaled=False)),
        (True, gpu_check.numbers_hold(SCALED, is_scaled=True)),
        (False, gpu_check.numbers_hold(SCALED, is_scaled=False)),
        (False, gpu_check.numbers_hold(SCALED[::-1], is_scaled=True)),  # not at the beginning
        (False, gpu_check.numbers_hold([{**ROWS[0], "kl": math.nan}], is_scaled=True)),
        (False, gpu_check.numbers_hold(SCALED[:1] * 6, is_scaled=True)),  # the scale finds no end
        (True, gpu_check.unchanged("", {"a": "1"}, {"a": "1"})),
        (False, gpu_check.unchanged("", {"a": "1"}, {"a": "2"})),
        (False, gpu_check.unchanged("", {"a": "1"}, {})),
        (False, gpu_check.unchanged("", {}, {})),
        (True, gpu_check.same_answers("", ["x"] * 9 + ["y"], ["x"] * 10)),
        (False, gpu_check.same_answers("", ["x"] * 5 + ["y"], ["x"] * 6)),
    ],
)
def test_verdict_holds_on_sound_and_fails_on_faulty_numbers(ok: bool | None, row: Row) -> None:
    assert row.ok is ok, row


class Runner:
    pass


Runner.__module__ = "vllm.v1.worker.gpu.model_runner"


def test_model_runner_of_an_engine_has_a_row(monkeypatch, tmp_path: Path) -> None:
    """Name the model runner of vLLM, because the other rows prove that one only."""
    worker = SimpleNamespace(model_runner=Runner())
    engine = SimpleNamespace(collective_rpc=lambda function: [function(worker)])
    model = lora_model()
    model.vllm_engine = SimpleNamespace(llm_engine=engine)
    monkeypatch.setattr(gn, "load_model", lambda settings: (model, None))
    rows = itertools.islice(gpu_check.loaded(Request(str(tmp_path)), gn.preset("cpu")), 3)
    expected = Row("model runner", "measured", "vllm.v1.worker.gpu.model_runner.Runner (V2)")
    assert list(rows)[-1] == expected


def test_an_interrupt_that_harms_the_weights_is_seen(
    tiny_folder: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    """Other base weights are left, as a folded LoRA would be."""
    stock = exam.complete_rows

    def leaving(model: object, *asked: object) -> list:
        try:
            return stock(model, *asked)
        except KeyboardInterrupt:
            # Not the words: a random model repeats its last one, whatever their order.
            next(p for name, p in model.named_parameters() if "down_proj.base" in name).data.add_(
                1.0
            )
            raise

    monkeypatch.setattr(exam, "complete_rows", leaving)
    monkeypatch.setattr(gpu_check, "_INTERRUPTS", 5)
    monkeypatch.setattr(gpu_check, "rewards", lambda: [brevity])
    asked = dataclasses.replace(rehearsal(tiny_folder, tmp_path, use_vllm=True), questions=3)
    checks = gpu_check.run_phase(gpu_check.training, asked)
    verdicts = {row.name: row.ok for row in checks}
    assert verdicts["base weights after training"]
    assert verdicts["base answers after training, adapter off"]
    harmed = (
        "answers after interrupts",
        "weights after interrupts",
        "base answers in the end, adapter off",
        "generation",
    )
    assert [name for name in harmed if verdicts[name] is not False] == []
    assert verdicts["the LoRA was folded into the weights"] is None, "only vLLM on a GPU folds"
    assert "\ngeneration: the kit's CPU engine (" in f"\n{capsys.readouterr().err}"


def test_interrupts_hit_sampling_although_the_first_calls_were_slow(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seconds = itertools.chain([0.4, 0.4], itertools.repeat(0.02))
    monkeypatch.setattr(gpu_check, "_INTERRUPTS", 5)
    monkeypatch.setattr(gpu_check, "answers", lambda here: [time.sleep(next(seconds))])
    monkeypatch.setattr(gpu_check, "digests", lambda model: {})
    rows = {row.name: row for row in gpu_check.interrupting(SimpleNamespace(model=None))}
    assert rows["interrupts that came too late"].ok is True


def test_missing_program_is_not_checked_and_failure_fails(tmp_path: Path) -> None:
    def lacks() -> None:
        raise gn.machine.EnvironmentProblem("no converter")

    assert list(gpu_check.attempt("a", lacks)) == [
        Row("a", None, "EnvironmentProblem: no converter")
    ]
    assert list(gpu_check.attempt("b", lambda: 1 / 0)) == [
        Row("b", False, "ZeroDivisionError: division by zero")
    ]
    (preset,) = gpu_check.run_phase(
        gpu_check.of_the_preset, Request(str(tmp_path), "nobody/nothing")
    )
    assert preset.name == "the model is to be had"
    assert preset.ok is None
    assert "Hub" in preset.found


def failing(request: object):
    yield Row("a", True, "1", "2")
    raise ValueError("here")


def test_a_phase_keeps_what_it_found_before_it_failed(tmp_path: Path) -> None:
    found = gpu_check.run_phase(failing, Request(str(tmp_path)))
    assert found == [Row("a", True, "1", "2"), Row("ends", False, "ValueError: here")]
    assert [Row(*row) for row in json.loads((tmp_path / "phase.json").read_text())] == found


@pytest.mark.parametrize(
    ("end", "said"), [("sys.exit(139)", "ended with 139"), ("time.sleep(60)", "longer than 2 s")]
)
def test_phase_that_dies_or_hangs_fails_and_keeps_its_rows(
    end: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = '[["a", true, "1", ""]]'
    (tmp_path / "dies.py").write_text(
        f"import sys, time\nopen({str(tmp_path / 'phase.json')!r}, 'w').write('{kept}')\n{end}"
    )
    monkeypatch.setattr(gpu_check, "__file__", str(tmp_path / "dies.py"))
    monkeypatch.setattr(gpu_check, "SECONDS", 2 if "sleep" in end else 60)
    first, last = gpu_check.in_a_process(failing, Request(str(tmp_path)))
    assert first == Row("a", True, "1")
    assert last.name == "ends"
    assert last.ok is False
    assert said in last.found
