"""The script that proves the GPU path ends at once without a GPU, and all that it does there runs here on a small model."""

import dataclasses
import json
import shutil
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import gpu_check
import gpu_check_phases

import grpo_nb as gn
from grpo_nb.core.processes import ChildError


def test_without_a_gpu_it_ends_at_once_and_says_so(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts/gpu_check.py"), "--out", str(tmp_path / "out.json")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, env={"PATH": str(tmp_path)})
    assert done.returncode == 2 and "No GPU" in done.stderr and "--device cpu" in done.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.fixture(scope="module")
def report(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    """All phases on the tiny model, in this process."""
    folder = tmp_path_factory.mktemp("gpu-check")
    arguments = [
        "--device", "cpu", "--tiny", "--steps", "4", "--model", str(tiny_folder), "--work", str(folder), "--16bit",
    ]  # fmt: skip
    status = gpu_check.main([*arguments, "--out", str(folder / "out.json")])
    return status, json.loads((folder / "out.json").read_text())


def test_every_path_of_the_script_runs(report) -> None:
    status, found = report
    assert set(found["phases"]) == {name for name, _, _ in gpu_check_phases.plan_of(False)}
    assert {phase["request"]["use_vllm"] for phase in found["phases"].values()} == {False}
    checks = {name.partition(": ")[2]: value for name, value in found["checks"].items()}
    for name in (
        "weights as asked", "generation", "KL is positive", "evaluation agrees between generation paths",
        "a dry run scores and changes nothing", "a dry run is a training's first step", "priming lowers the held-out loss",
        "a primed model trains", "resume goes on at the next step", "resume has the trained adapter", "resume is exact",
        "adapter verifies",
    ):  # fmt: skip
        assert checks[name]["ok"], (name, checks[name]["detail"])
    assert "KL to the primed model 0," in checks["a primed model trains"]["detail"]
    # What a random model need not do in four steps, one of words that are all nearly as likely.
    assert {"reward rises", "merged model verifies", "GGUF verifies through llama.cpp"} <= set(checks)
    assert all(value["seconds"] >= 0 for value in checks.values())
    # A model that never hits the format learns nothing, and the notebook ends at its export; one that does by chance, which
    # rounding decides, gets to the last cell, for which four steps are too few.
    notebook = checks["ends with 'It worked'"]
    ends = ("the adapter changes nothing", "cannot be told from 4 steps")
    assert notebook["ok"] is False and any(end in notebook["detail"] for end in ends)
    assert status == 1 and found["passed"] is False
    kit, hand = found["phases"]["kit, without vLLM"], found["phases"]["by hand, without vLLM"]
    for phase in (kit, hand):
        assert len(phase["reward"]) == 4
        assert phase["step_seconds"] > 0 and phase["completion_tokens_per_second"] > 0 and phase["peak_gb"] > 0


def test_the_table_that_is_pasted_is_written_beside_the_numbers(report, tiny_folder: Path) -> None:
    _, found = report
    shown = gpu_check.table(found)
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    for name, verdict in found["checks"].items():
        (row,) = [line for line in rows if line.startswith(f"| {name} |")]
        words = {True: "holds", False: "FAILS", None: "not checked"}[verdict["ok"]]
        assert row.count("|") == 5 and row.split("|")[2].strip() == words and float(row.split("|")[4]) >= 0
    assert "FAILS" in shown.splitlines()[0] and f"torch {found['versions']['torch']}" in shown
    page = Path(found["phases"]["kit, without vLLM"]["request"]["work"]) / "out.md"
    assert page.read_text() == f"{shown}\n"


def test_a_result_of_a_cpu_is_never_taken_for_one_of_a_gpu(report, tiny_folder: Path) -> None:
    _, found = report
    assert found["device"] == "cpu" and found["is_gpu_result"] is False and found["gpu"] is None
    assert "no GPU result" in gpu_check.table(found)
    assert gpu_check._default_file(found, Path("there")) == Path("there/gpu_check_cpu.json")
    into = ["--device", "cpu", "--out", str(gpu_check.RESULTS / "gpu_check_t4.json")]
    assert gpu_check.main(into) == 2 and not (gpu_check.RESULTS / "gpu_check_t4.json").exists()
    for file in gpu_check.RESULTS.glob("gpu_check_*.json"):
        assert json.loads(file.read_text())["is_gpu_result"] is True


def test_the_table_sets_the_kit_beside_the_same_by_hand() -> None:
    phase = {"step_seconds": 2.0, "completion_tokens_per_second": 100.0, "peak_gb": 3.0, "seconds": 30.0}
    shown = gpu_check.table(
        {
            "is_gpu_result": True, "gpu": {"name": "Tesla T4", "memory_gib": 14.56, "compute_capability": [7, 5]},
            "driver": "580.1", "cuda_of_torch": "13.0", "python": "3.12", "platform": "Linux", "date": "2026-11-21",
            "versions": {"torch": "2.13.0"}, "vllm": "used", "steps": 30, "model": str(Path.home() / "m"), "seconds": 10.0,
            "phases": {"kit, with vLLM": phase, "by hand, with vLLM": {**phase, "step_seconds": 4.0}},
            "checks": {
                "kit, with vLLM: KL is positive": {"ok": False, "detail": "a | b\nc", "seconds": 1.26},
                "exports: GGUF": {"ok": None, "detail": "no converter", "seconds": 0.0},
            },
        }
    )  # fmt: skip
    assert shown.startswith("**gpu-check: 1 FAILS, 1 not checked**\n")
    assert "| GPU | Tesla T4, 14.6 GiB, compute capability 7.5 |" in shown and "| 580.1, 13.0 |" in shown
    assert "| s a step, with vLLM | 2 | 4 | 0.50 |" in shown and "| ~/m, 30 |" in shown
    assert "| kit, with vLLM: KL is positive | FAILS | a / b c | 1.3 |" in shown
    assert "| exports: GGUF | not checked | no converter | 0.0 |" in shown and "| kit, with vLLM | 30 |" in shown


def test_with_vllm_all_is_done_twice() -> None:
    names = [name for name, _, _ in gpu_check_phases.plan_of(True)]
    assert "kit, with vLLM" in names and "kit, without vLLM" in names and "resume, with vLLM" in names
    assert names[-1] == "quickstart notebook" and names.count("exports") == 1
    assert [use for *_, use in gpu_check_phases.plan_of(False)] == [False] * 7
    assert {function for _, function, _ in gpu_check_phases.plan_of(True)} == set(gpu_check_phases.PHASES)


def test_what_the_quickstart_showed_is_the_verdict_of_its_notebook(quickstart: tuple[Path, gn.runs.Run]) -> None:
    holds, told = gpu_check_phases.notebook_result(quickstart[1].path)
    assert holds and told.startswith("14 steps of ") and "Held-out: better: accuracy" in told and "verified" in told


def test_a_notebook_that_fails_says_its_last_error() -> None:
    lines = [
        "step 3/14  The model",
        "    Traceback",
        "    ValueError: one",
        "    EnvironmentProblem: no Hub. Go on.",
        "end",
    ]
    assert gpu_check_phases.failure_of(lines) == "EnvironmentProblem: no Hub. Go on."
    assert gpu_check_phases.failure_of(["a", "the kernel died"]) == "a the kernel died"


def test_a_notebook_on_a_gpu_is_the_published_one_with_the_model_that_was_asked_for(
    tmp_path: Path, monkeypatch
) -> None:
    asked: list[list] = []

    def run_command(command: list, **named: object) -> None:
        asked.append(command)
        raise ChildError("ended with 1", 1, ["ValueError: here"])

    monkeypatch.setattr("grpo_nb.core.run_command", run_command)
    request = gpu_check_phases.Request("", str(tmp_path), 30, "gpu", False, True, True)
    for given in (
        request,
        dataclasses.replace(request, model="m"),
        dataclasses.replace(request, is_small_notebook=True),
    ):
        found = gpu_check_phases.quickstart_notebook(given)["checks"]["ends with 'It worked'"]
        assert found["ok"] is False and found["detail"] == "ValueError: here"
    published, other, small = ([part for part in command if "=" in str(part)] for command in asked)
    assert published == ["RUN_NAME='quickstart'", "CHANGES={}"]
    assert other == ["RUN_NAME='quickstart'", "CHANGES={'model': 'm'}"]
    assert small[1] == "PRESET='cpu'" and "'fast_inference': True" in small[2]


def test_each_export_of_a_trained_model_holds(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    shutil.copytree(tiny_run.path, tmp_path / "runs" / "plain")
    request = gpu_check_phases.Request(tiny_run.settings.model, str(tmp_path), 4, "cpu", True, False, False)
    found = gpu_check_phases.exporting(request)["checks"]
    assert (
        found["merged model verifies"]["ok"]
        and "verified on 10 held-out prompts" in found["merged model verifies"]["detail"]
    )
    assert found["adapter verifies"]["ok"]
    # None where the converter is neither here nor to be had.
    gguf = found["GGUF verifies through llama.cpp"]
    assert gguf["ok"] or (gguf["ok"] is None and "converter" in gguf["detail"]), gguf


def test_an_export_that_lacks_something_is_not_checked_and_one_that_fails_fails() -> None:
    checks = gpu_check_phases.Checks()

    def lacks() -> None:
        raise gn.machine.EnvironmentProblem("no converter")

    assert gpu_check_phases._exported(checks, "a", lacks) is None
    assert gpu_check_phases._exported(checks, "b", lambda: 1 / 0) is None
    assert checks.found["a"]["ok"] is None and checks.found["a"]["detail"] == "no converter"
    assert checks.found["b"]["ok"] is False and "ZeroDivisionError" in checks.found["b"]["detail"]


def test_the_peak_of_a_card_is_what_its_driver_saw(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    smi.write_text(
        f"""#!/bin/sh
case "$*" in
  *loop-ms*) echo "$*" > {tmp_path}/asked; for used in 100 5000 300; do echo $used; done; exec sleep 60 ;;
  --query-gpu=name*) for card in GPU-1 GPU-2; do echo "Tesla T4, 15360, 7.5, 15095, $card, 450, [N/A]"; done ;;
  --query*) ;;
  *) echo 'Driver Version: 580.82.07   CUDA Version: 13.0' ;;
esac
"""
    )
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    with gpu_check_phases.PeakMemory("gpu") as memory:
        deadline = time.monotonic() + 30
        while memory.gb < 5 and time.monotonic() < deadline:
            time.sleep(0.05)
    assert memory.gb == pytest.approx(5000 * 2**20 / 1e9)
    assert "--id=GPU-2" in (tmp_path / "asked").read_text(), "the card that CUDA uses"


@pytest.mark.parametrize(("device", "ended"), [("gpu", [0]), ("cpu", [])])
def test_a_phase_on_a_gpu_ends_with_its_result(device: str, ended: list, monkeypatch, capsys) -> None:
    """vLLM and CUDA are not taken down with the interpreter: what crashes or hangs there is no fault of the phase."""
    request = gpu_check_phases.Request("m", "w", 4, device, True, True, False)
    codes: list[int] = []
    monkeypatch.setattr(gpu_check, "run_phase", lambda function, request: {"checks": {}})
    monkeypatch.setattr(gpu_check.os, "_exit", codes.append)
    assert gpu_check.main(["--phase", "kit", "--request", json.dumps(dataclasses.asdict(request))]) == 0
    assert codes == ended and capsys.readouterr().out == 'RESULT {"checks": {}}\n'


def test_a_phase_that_dies_is_a_failed_check(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_check, "__file__", str(tmp_path / "dies.py"))
    (tmp_path / "dies.py").write_text("import sys; sys.exit(139)")
    request = gpu_check_phases.Request("m", str(tmp_path), 2, "gpu", True, True, False)
    assert "status 139" in gpu_check._in_a_process("kit", request)["error"]


def test_a_reward_that_only_trembles_does_not_rise() -> None:
    assert gpu_check_phases._rises([0.1, 0.2, 0.1, 0.5, 1.0, 1.1, 1.0, 1.2, 1.1])[0]
    assert not gpu_check_phases._rises([0.1, 0.9, 0.2, 0.8, 0.1, 0.9, 0.3, 0.9, 0.2])[0]


def test_it_installs_from_a_folder_of_wheels_and_goes_on_inside(tmp_path: Path) -> None:
    """Off-line: one wheel, an environment that still sees this one's packages, and the script run again in it."""
    assert gpu_check.main(["--device", "cpu", "--wheels", str(tmp_path)]) == 2
    metadata = "Metadata-Version: 2.1\nName: lonely\nVersion: 1.0\n"
    tag = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    with zipfile.ZipFile(tmp_path / "lonely-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("lonely.py", "def __getattr__(name): raise AttributeError(name)\n")
        for name, text in (("METADATA", metadata), ("WHEEL", tag), ("RECORD", "")):
            wheel.writestr(f"lonely-1.0.dist-info/{name}", text)
    work = tmp_path / "work"
    into_results = str(gpu_check.RESULTS / "gpu_check_t4.json")  # what the inner one refuses, after the installation
    arguments = ["--device", "cpu", "--wheels", str(tmp_path), "--work", str(work), "--out", str(tmp_path / "o.json")]
    options = gpu_check._options([*arguments, "--out", into_results])
    assert gpu_check._again_inside(options, [*arguments, "--out", into_results]) == 2
    python = work / "environment" / "bin" / "python"
    code = "import lonely, torch, sys; print(lonely.__file__); print(torch.__file__)"
    shown = subprocess.run([str(python), "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert shown[0].startswith(str(work)) and not shown[1].startswith(str(work))
