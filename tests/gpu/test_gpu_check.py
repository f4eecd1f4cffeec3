"""The script that proves the GPU path ends at once without a GPU, and all that it does there runs here on a small model."""

import dataclasses
import json
import math
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from tests.conftest import ROOT

sys.path.insert(0, str(ROOT / "scripts"))
import gpu_check
import gpu_check_phases as phases

import grpo_nb as gn
from grpo_nb.core.processes import ChildError
from tests.support.signatures import text_of


def test_without_a_gpu_it_ends_at_once_and_says_so(tmp_path: Path) -> None:
    script = [sys.executable, str(ROOT / "scripts/gpu_check.py"), "--out", str(tmp_path / "out.json")]
    done = subprocess.run(script, capture_output=True, text=True, timeout=60, env={"PATH": str(tmp_path)})
    assert done.returncode == 2 and "No GPU" in done.stderr
    assert not (tmp_path / "out.json").exists()


@pytest.fixture(scope="module")
def report(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """All phases on the tiny model, in this process."""
    folder = tmp_path_factory.mktemp("gpu-check")
    found = gpu_check.check(phases.Request(str(tiny_folder), str(folder), 4, "cpu", True, False, False), None)
    return json.loads(json.dumps(found))


def test_every_path_of_the_script_runs(report) -> None:
    found = report
    assert set(found["phases"]) == {name for name, *_ in phases.plan_of(False)}
    assert {phase["request"]["use_vllm"] for phase in found["phases"].values()} == {False}
    held = {name for name, value in found["checks"].items() if value["ok"]}
    for phase, names in {
        "kit": ("KL of the first step", "KL is positive", "numbers are finite", "evaluation agrees between generation paths"),
        "hand-over": (
            "KL of the first step", "base weights after training", "base answers after training, adapter off",
            "answers after interrupts", "weights after interrupts", "memory after a second training",
            "base answers in the end, adapter off",
        ),
        "begin": ("generation", "weights as asked"),
        "resume": ("resume goes on at the next step", "resume has the trained adapter", "resume is exact"),
        "exports": ("adapter verifies",),
    }.items():  # fmt: skip
        assert held >= (wanted := {f"{phase}, without vLLM: {name}" for name in names}), wanted - held
    assert held >= {
        f"preset's own model: {name}" for name in ("generation", "KL of the first step", "numbers are finite")
    }
    # What a random model need not do in four steps, one of words that are all nearly as likely.
    names = {name.partition(": ")[2] for name in found["checks"]}
    assert {"reward rises", "merged model verifies"} <= names
    assert all(value["seconds"] >= 0 for value in found["checks"].values())
    # A random model learns nothing in four steps: the notebook ends well with that said, and it did not work for all that.
    notebook = {name: found["checks"][f"quickstart notebook: {name}"] for name in ("ends well", "it learns")}
    assert notebook["ends well"]["ok"], notebook
    assert notebook["it learns"]["ok"] is False and "cannot be told from 4 steps" in notebook["it learns"]["detail"]
    assert found["passed"] is False
    phase = found["phases"]["kit, without vLLM"]
    assert len(phase["reward"]) == 4 and phase["load_seconds"] > 0
    assert phase["step_seconds"] > 0 and phase["completion_tokens_per_second"] > 0 and phase["used_gb"] > 0


SOUND = [{"step": n, "reward": 1.0, "kl": 0.04 * n - 0.04, "loss": 0.1, "grad_norm": 0.2} for n in (1, 2, 3)]
SCALED = [{**row, "grad_norm": norm} for row, norm in zip(SOUND, (math.inf, math.nan, 0.2), strict=True)]


def agreeing(*differences: float, kl: float = 0.08) -> phases.Row:
    name = "sampling/sampling_logp_difference/mean"
    return phases.sampler_agrees([{name: one, "kl": kl} for one in differences])


def evaluated(*texts: str) -> SimpleNamespace:
    return SimpleNamespace(accuracy=0.5, rows=[{"completion": text, "is_correct": text == "b"} for text in texts])


RISING, TREMBLING = [0.1, 0.2, 0.1, 0.5, 1.0, 1.1, 1.0, 1.2, 1.1], [0.1, 0.9, 0.2, 0.8, 0.1, 0.9, 0.3, 0.9, 0.2]


@pytest.mark.parametrize(
    ("ok", "row"),
    [
        (True, phases.rises(RISING)),
        (False, phases.rises(TREMBLING)),
        (True, phases.first_kl(SOUND)),
        (False, phases.first_kl([{"kl": 0.013}])),  # completions behind no prompt
        (False, phases.first_kl([{"kl": math.nan}])),
        (True, agreeing(0.01, 0.02, 0.03)),
        (False, agreeing(0.01, 0.04, 0.2)),  # the sampler stays behind
        (False, agreeing(0.01, 0.02, math.nan)),
        (False, phases.sampler_agrees(SOUND)),  # it was not logged: the correction is off
        (None, agreeing(0.01, 0.02, 0.03, kl=0.001)),  # nothing that a sampler could have missed
        (True, phases.numbers_hold(SOUND, is_scaled=False)),
        (True, phases.numbers_hold(SCALED, is_scaled=True)),
        (False, phases.numbers_hold(SCALED, is_scaled=False)),
        (False, phases.numbers_hold(SCALED[::-1], is_scaled=True)),  # not at the beginning
        (False, phases.numbers_hold([{**SOUND[0], "kl": math.nan}], is_scaled=True)),
        (False, phases.numbers_hold(SCALED[:1] * 6, is_scaled=True)),  # the scale finds no end
        (True, phases.follows(SCALED, SCALED, is_exact=False)),
        (True, phases.follows(SOUND, SOUND, is_exact=True)),
        (False, phases.follows(SOUND, [{**row, "kl": 0.5} for row in SOUND], is_exact=True)),
        (False, phases.follows(SOUND, [{**row, "loss": math.nan} for row in SOUND], is_exact=False)),
        (True, phases.unchanged("", {"a": "1"}, {"a": "1"})),
        (False, phases.unchanged("", {"a": "1"}, {"a": "2"})),
        (False, phases.unchanged("", {}, {})),
        (True, phases.same_answers("", ["x"] * 9 + ["y"], ["x"] * 10, 0.85)),
        (False, phases.same_answers("", ["x"] * 5, ["y"] * 5, 0.85)),
        (True, phases.survives(20, ["x"], ["x"], 1.0)),
        (False, phases.survives(19, ["x"], ["x"], 1.0)),
        (False, phases.survives(20, ["x"], ["y"], 1.0)),
        (True, phases.paths_agree(evaluated("a", "b"), evaluated("a", "b"))),
        (False, phases.paths_agree(evaluated("a", "b"), evaluated("a", "c"))),
        (True, phases.memory_holds([9.0, 5.0, 5.1])),
        (False, phases.memory_holds([9.0, 5.0, 5.6])),
        (True, phases.scores_alike(0.6, 0.65, (0.55, 0.75))),
        (False, phases.scores_alike(0.5, 0.65, (0.55, 0.75))),
    ],
)
def test_a_verdict_holds_on_sound_numbers_and_fails_on_faulty_ones(ok: bool | None, row: phases.Row) -> None:
    assert (None if row.ok is None else bool(row.ok)) is ok, row


def test_the_difference_to_the_sampler_has_the_name_under_which_trl_and_unsloth_log_it() -> None:
    for file in ("trl/trainer/grpo_trainer.py", "unsloth/models/rl_replacements.py"):
        assert f'"{phases._DIFFERENCE}"' in text_of(file)


def test_an_interrupt_comes_while_it_samples_or_not_at_all() -> None:
    since = time.monotonic()
    assert phases.interrupted(lambda: time.sleep(30), 0.05) and time.monotonic() - since < 10
    assert not phases.interrupted(lambda: None, 30)
    time.sleep(0.1)  # none comes afterwards


def test_a_phase_keeps_what_it_found_before_it_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def phase(request: object):
        yield {"load_seconds": 1.0}
        yield phases.Row("a", True, "1", "2")
        raise ValueError("here")

    monkeypatch.setitem(phases.PHASES, "kit", phase)
    request, told = phases.Request("m", "w", 4, "gpu", True, True, False), []
    found = phases.run_phase("kit", request, told.append)
    assert found["checks"]["ends"]["ok"] is False and found["checks"]["ends"]["detail"] == "ValueError: here"
    assert found["load_seconds"] == 1.0 and found["checks"]["a"]["ok"] is True
    assert told[-1] == found and "a" in told[1]["checks"]


def test_what_is_not_to_be_had_is_not_checked_and_what_fails_fails(tmp_path: Path) -> None:
    request = phases.Request("nobody/nothing", str(tmp_path), 4, "gpu", False, True, False)
    ((name, check),) = phases.run_phase("preset", request)["checks"].items()
    assert name == "the model is to be had" and check["ok"] is None and "Hub" in check["detail"]
    lacking = Mock(side_effect=gn.machine.EnvironmentProblem("no converter"))
    for make, ok, said in ((lacking, None, "no converter"), (lambda: 1 / 0, False, "ZeroDivisionError")):
        ((_, found, detail, _),) = phases.exported("a", make)
        assert found is ok and said in detail


def test_the_table_has_a_row_for_each_check_and_never_takes_a_cpu_for_a_gpu(report) -> None:
    shown = gpu_check.table(report)
    rows = [line for line in shown.splitlines() if line.startswith("|")]
    for name, verdict in report["checks"].items():
        (row,) = [line for line in rows if line.startswith(f"| {name} |")]
        words = {True: "holds", False: "FAILS", None: "not checked"}[verdict["ok"]]
        assert row.split("|")[2].strip() == words
    assert "FAILS" in shown.splitlines()[0] and "torch 2." in report["machine"]["packages"]
    assert report["is_gpu_result"] is False and "no GPU result" in shown
    for file in gpu_check.RESULTS.glob("gpu_check_*.json"):
        assert json.loads(file.read_text())["is_gpu_result"] is True


def test_with_vllm_all_is_done_twice() -> None:
    plan = list(phases.plan_of(True))
    names = [name for name, *_ in plan]
    assert len(names) == len(set(names)) and {function for _, function, _ in plan} == set(phases.PHASES)
    assert {"kit, with vLLM", "kit, without vLLM", "resume, with vLLM", "hand-over, 16 bit"} <= set(names)
    assert [changes for *_, changes in phases.plan_of(False)] == [{"use_vllm": False}] * 7


def test_the_notebook_is_small_unless_the_published_one_is_asked_for(tmp_path: Path, monkeypatch) -> None:
    asked: list[list] = []

    def run_command(command: list, **named: object) -> list[str]:
        asked.append(command)
        if len(asked) == 1:
            return ["step 14/14  Did it work?", "All steps done after 180 s.", "reward 1 to 3"]
        raise ChildError("ended with 1", 1, ["ValueError: here"])

    monkeypatch.setattr("grpo_nb.core.processes.run_command", run_command)
    held_out = SimpleNamespace(before=SimpleNamespace(accuracy=0.9), verdict="no difference shown", sentence="alike")
    run = SimpleNamespace(rise=lambda: SimpleNamespace(is_clear=False, sentence="flat"), comparison=held_out)
    monkeypatch.setattr(phases.gn, "open_run", lambda path: run)
    small = phases.Request("", str(tmp_path), 30, "gpu", False, True, True)
    published = dataclasses.replace(small, is_published=True, model="m")
    checks = [phases.run_phase("quickstart notebook", one)["checks"] for one in (small, published)]
    assert checks[0]["it learns"]["ok"] is None, "a model that could do it before has nothing to learn"
    ends, fails = (one["ends well"] for one in checks)
    assert ends["ok"] and ends["detail"] == "All steps done after 180 s. reward 1 to 3"
    assert fails["ok"] is False and fails["detail"] == "ValueError: here", "what a notebook says in the end"
    given = [[part for part in command if "=" in str(part)] for command in asked]
    assert given[0][1] == "PRESET='cpu'" and "'load_in_4bit': True, 'fast_inference': True" in given[0][2]
    assert given[1] == ["RUN_NAME='quickstart'", "CHANGES={'model': 'm'}"]


def test_each_export_of_a_trained_model_holds_and_its_score_stands_beside_the_runs(
    tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    shutil.copytree(tiny_run.path, tmp_path / "runs" / "plain-16bit")
    gn.compare(gn.open_run(tmp_path / "runs" / "plain-16bit"))
    request = phases.Request(tiny_run.settings.model, str(tmp_path), 4, "cpu", True, False, False)
    found = phases.run_phase("exports", request)["checks"]
    merged = found["merged model verifies"]
    assert merged["ok"] and "every weight is base plus adapter" in merged["detail"]
    assert found["adapter verifies"]["ok"]
    score = found["merged model scores as the run"]
    assert score["ok"] and "the run's" in score["detail"]
    # None where the converter is neither here nor to be had.
    gguf = found["GGUF verifies through llama.cpp"]
    assert gguf["ok"] or (gguf["ok"] is None and "converter" in gguf["detail"]), gguf


def test_a_phase_of_its_own_process_ends_with_its_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """vLLM and CUDA are not taken down with the interpreter: what crashes or hangs there is no fault of the phase."""
    request = phases.Request("m", str(tmp_path), 4, "gpu", True, True, False)
    monkeypatch.setitem(phases.PHASES, "kit", lambda request: iter([{"load_seconds": 1.0}]))
    monkeypatch.setattr(gpu_check.os, "_exit", sys.exit)
    monkeypatch.setattr(sys, "argv", ["", "--phase", "kit", "--request", json.dumps(dataclasses.asdict(request))])
    with pytest.raises(SystemExit) as ended:
        gpu_check.main()
    assert ended.value.code == 0 and json.loads((tmp_path / "phase.json").read_text())["load_seconds"] == 1.0


@pytest.mark.parametrize(("end", "said"), [("sys.exit(139)", "ended with 139"), ("time.sleep(60)", "longer than 2 s")])
def test_a_phase_that_dies_or_hangs_is_a_failed_check_and_keeps_what_it_found(
    end: str, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    kept = '{"checks": {"a": {}}}'
    (tmp_path / "dies.py").write_text(
        f"import sys, time\nopen({str(tmp_path / 'phase.json')!r}, 'w').write('{kept}')\n{end}"
    )
    monkeypatch.setattr(gpu_check, "__file__", str(tmp_path / "dies.py"))
    monkeypatch.setattr(gpu_check, "_PHASE_SECONDS", 2 if "sleep" in end else 60)
    request = phases.Request("m", str(tmp_path), 2, "gpu", True, True, False)
    found = gpu_check._in_a_process("kit", request)
    assert found["checks"]["a"] == {} and said in found["checks"]["ends"]["detail"] and found["seconds"] > 0
