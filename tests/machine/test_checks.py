"""Preflight finds what breaks an installation, on the machines described in tests/data/machines and on this one."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import textwrap
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.core.processes import ChildError
from grpo_nb.machine import checks, gpu, host, packages
from tests.support.signatures import text_of

MACHINES = sorted((Path(__file__).parent.parent / "data" / "machines").glob("*.json"))
# A machine on which nothing is wrong; each file says what is different on its own.
HEALTHY = {
    "torch": "2.13.0", "transformers": "5.17.0", "trl": "1.15.0", "peft": "0.21.2", "accelerate": "1.15.0",
    "datasets": "4.8.5", "bitsandbytes": "0.50.2", "unsloth": "2026.10.9", "unsloth_zoo": "2026.10.9", "vllm": "0.31.0",
}  # fmt: skip
AN_L4 = {
    "header": "Driver Version: 580.95.05  CUDA Version: 13.0", "gpus": "NVIDIA L4, 23034, 8.9, 22500, GPU-1", "processes": "",
}  # fmt: skip
TORCH_VERSION_PY = "__version__ = '2.13.0+cu130'\ndebug = False\ncuda: 'Optional[str]' = '13.0'\ngit_version = 'ab'\n"


def answer(smi: dict[str, str]) -> Callable[[Sequence[str]], str]:
    """What the `nvidia-smi` of a described machine answers."""

    def ask(arguments: Sequence[str]) -> str:
        if "fails" in smi:
            raise ChildError("ended with 9", 9, smi["fails"].splitlines())
        if not arguments:
            return smi["header"]
        if arguments[0] == "-L" or arguments[0] == "-q":
            return smi.get("list" if arguments[0] == "-L" else "report", "")
        if "memory.reserved" in arguments[0]:
            if "more" not in smi:
                raise ChildError("ended with 2", 2, ['Field "memory.reserved" is not a valid field'])
            more = dict(line.split(", ", 1) for line in smi["more"].splitlines())
            return "\n".join(f"{line}, {more[line.rsplit(', ', 1)[1]]}" for line in smi["gpus"].splitlines())
        return smi["gpus" if arguments[0].startswith("--query-gpu") else "processes"]

    return ask


def described(data: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> checks.Machine:
    data = dict(data)
    commands = data.pop("commands", {})
    monkeypatch.setattr("grpo_nb.machine.gpu._command_of", lambda pid: commands.get(str(pid), ""))
    smi, build = data.pop("nvidia_smi", None), data.pop("torch_version_py", TORCH_VERSION_PY)
    cache = data.pop("compiled_cache", None)
    installed = {k: v for k, v in {**HEALTHY, **data.pop("installed", {})}.items() if v is not None}
    defaults: dict[str, Any] = {
        "memory_gib": 24.0,
        "cores": 8,
        "free_disk_gb": 60.0,
        "run_root": "/home/me/runs",
        "pins": HEALTHY,
    }
    return checks.Machine(
        **{
            **defaults,
            **data,
            "python": tuple(data.get("python", (3, 12, 4))),
            "modules": tuple(data.get("modules", ())),
        },
        installed=installed,
        driver=gpu.read_driver(answer(smi), data.get("visible")) if smi else None,
        torch_build=packages.parse_torch_build(build),
        compiled_cache=packages.CompiledCache(**cache) if cache else None,
    )


@pytest.mark.parametrize("path", MACHINES, ids=lambda p: p.stem)
def test_described_machines(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case = json.loads(path.read_text())
    report = checks.check_machine(described(case["machine"], monkeypatch))
    rows = {check.what: check for check in report.checks}
    for what, (status, found, fix) in case["expect"].items():
        row = rows.pop(what)
        assert row.status == status, row
        assert re.search(found, row.found) and re.search(fix, row.fix), row
    assert {row.what: row for row in rows.values() if row.status != "ok"} == {}, "rows that the file does not expect"
    is_problem = any(status == "problem" for status, _, _ in case["expect"].values())
    assert report.is_ready is not is_problem
    for check in report.checks:
        assert check.status == "ok" or check.fix, f"{check.what}: a finding without a fix"
    if is_problem:
        with pytest.raises(EnvironmentProblem):
            report.raise_problems()


def test_a_healthy_machine_is_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = described({"nvidia_smi": AN_L4, "vllm_torch": "2.13.0"}, monkeypatch)
    report = checks.check_machine(machine)
    assert report.verdict == "Ready.", repr(report)


def check(name: str, report: checks.EnvironmentReport | None = None) -> checks.Check:
    return next(c for c in (report or checks.check_environment()).checks if c.what == name)


def test_this_machine_is_ready() -> None:
    report = checks.check_environment()
    assert report.is_ready, repr(report)
    report.raise_problems()
    assert "Ready" in repr(report) and "<table>" in report._repr_html_()


def test_a_container_s_limits_are_those_of_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "nvidia_smi", lambda: None)
    monkeypatch.setattr(checks, "usable_cores", lambda: 3)
    monkeypatch.setattr(checks, "usable_memory_gib", lambda: 7.0)
    monkeypatch.setattr(checks, "_unseen_gpu", lambda build: "")
    assert check("device").found == "CPU, 3 cores, 7 GiB memory"


def test_it_imports_nothing_heavy() -> None:
    code = (
        "import sys, grpo_nb as gn; gn.check_environment()\n"
        "print(sorted({'torch', 'numpy', 'trl', 'transformers', 'unsloth', 'vllm', 'pandas'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.stdout == "[]\n", done.stderr


def test_the_table_escapes_and_says_what_is_wrong() -> None:
    rows = (("a", "problem", "<script>", "do & so"), ("b", "warning", "x", "y"), ("c", "ok", "z"))
    report = checks.EnvironmentReport([checks.Check(*row) for row in rows])
    page = report._repr_html_()
    assert "<script>" not in page and "&lt;script&gt;" in page and "do &amp; so" in page
    assert report.verdict == "Not ready: 1 problem and 1 warning. Mend the problems first."
    warned = checks.EnvironmentReport(report.checks[1:2])
    assert warned.verdict == "Ready, with 1 warning to read."
    with pytest.raises(EnvironmentProblem, match=r"^a: <script>. do & so$"):
        report.raise_problems()


@pytest.mark.parametrize(
    ("torch", "vision", "status"),
    [
        ("2.13.0+cpu", None, "ok"),
        ("2.13.0+cu130", "0.28.0+cu130", "ok"),
        ("2.13.0", "0.28.0", "ok"),
        ("2.13.0+cpu", "0.28.0+cu130", "problem"),
        ("2.13.0+cpu", "0.28.0", "problem"),
        ("2.13.0", "0.25.0", "problem"),
    ],
)
def test_a_wrong_torchvision_is_a_problem(torch: str, vision: str | None, status: str, monkeypatch) -> None:
    fake = {"torch": torch, "torchvision": vision}
    monkeypatch.setattr(packages, "installed_version", fake.get)
    assert checks.check_torchvision().status == status
    report = checks.check_machine(checks.Machine(python=(3, 12, 0), installed={k: v for k, v in fake.items() if v}))
    row = check("torchvision", report)
    assert row.status == status
    if status == "problem":
        with pytest.raises(EnvironmentProblem, match="pip uninstall -y torchvision"):
            report.raise_problems()


def test_import_order() -> None:
    assert (
        packages.import_order_problem(["os", "trl", "transformers"])
        == "trl and transformers were imported before unsloth"
    )
    assert packages.import_order_problem(["peft"]) == "peft was imported before unsloth"
    assert packages.import_order_problem(["unsloth", "trl"]) is None
    assert packages.import_order_problem(["os"]) is None


def test_too_little_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(checks, "free_disk_bytes", lambda path: 10**9)
    assert check("disk").status == "problem"
    monkeypatch.setattr(host, "free_disk_bytes", lambda path: 10**9)
    with pytest.raises(EnvironmentProblem, match=r"needs 5\.00 GB .* but 1\.00 GB are free"):
        host.require_disk(tmp_path / "new" / "folder", 5 * 10**9, "The merged model")


def test_versions_in_memory_are_read_from_the_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    stale = ModuleType("torchao")
    stale.__version__ = "0.1.0"
    monkeypatch.setitem(sys.modules, "torchao", stale)
    assert packages.loaded_versions()["torchao"] == "0.1.0"


def test_the_build_of_torch_is_read_without_importing_it() -> None:
    import torch

    build = packages.read_torch_build()
    assert build.version == torch.__version__
    assert build.cuda == (tuple(map(int, torch.version.cuda.split("."))) if torch.version.cuda else None)


def test_the_generated_trainers_name_their_versions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("UNSLOTH_COMPILE_LOCATION", raising=False)
    assert packages.read_compiled_cache(HEALTHY) is None
    folder = tmp_path / "unsloth_compiled_cache"
    folder.mkdir()
    (folder / "notes.py").write_text("# nothing of unsloth\n")
    fresh = '"""\n2026.10.9\n2026.10.9\n5.17.0\n1.15.0\n__UNSLOTH_VERSIONING__\n"""\n'
    (folder / "UnslothGRPOTrainer.py").write_text(fresh)
    assert packages.read_compiled_cache(HEALTHY) is None
    (folder / "UnslothGRPOTrainer.py").write_text(fresh.replace("1.15.0", "1.14.0"))
    assert packages.read_compiled_cache(HEALTHY).versions["trl"] == "1.14.0"
    assert not packages.read_compiled_cache(HEALTHY).is_pinned
    monkeypatch.setenv("UNSLOTH_COMPILE_OVERWRITE", "0")
    assert packages.read_compiled_cache(HEALTHY).is_pinned


def test_unsloth_still_marks_its_files_so() -> None:
    """The order of the four lines is unsloth_zoo's; read from its source, since writing one needs a model."""
    source = text_of("unsloth_zoo/compiler.py")
    marked = re.search(r'versioning = \(\n\s*\'"""\\n\' \+ (.+?)\n    \)', source, re.DOTALL)[1]
    assert re.findall(r"\{(\w+)_version\}", marked) == list(packages._CACHE_HEAD.groupindex)
    assert "__UNSLOTH_VERSIONING__" in marked and "__UNSLOTH_VERSIONING__" in packages._CACHE_HEAD.pattern


@pytest.mark.parametrize(
    ("token", "said"),
    [
        ("hf_" + "a" * 34, "in HF_TOKEN"),
        ("hf_" + "a" * 34 + "\n", "in HF_TOKEN"),
        ("my secret", "in HF_TOKEN, but it does not look like a token"),
    ],
)
def test_a_token_is_never_shown(token: str, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    report = checks.check_environment()
    row = check("Hub token", report)
    assert row.found == said
    assert token.strip() not in repr(report) + report._repr_html_()


def test_the_preflight_does_not_open_colabs_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colab asks the user before it gives one; who needs it is asked when it is needed."""
    from huggingface_hub import constants, get_token
    from huggingface_hub.utils import _auth

    asked: list[str] = []
    colab, errors = ModuleType("google.colab"), ModuleType("google.colab.errors")
    colab.userdata = SimpleNamespace(get=asked.append, NotebookAccessError=KeyError, SecretNotFoundError=KeyError)
    errors.Error = KeyError
    for name, module in {"google": ModuleType("google"), "google.colab": colab, "google.colab.errors": errors}.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(_auth, "is_google_colab", lambda: True)
    monkeypatch.setattr(_auth, "_IS_GOOGLE_COLAB_CHECKED", False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "token"))
    for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    report = checks.check_environment()
    assert asked == [] and "Hub token" not in {row.what for row in report.checks}
    (tmp_path / "token").write_text("hf_" + "a" * 34 + "\n")
    assert check("Hub token").found == "saved by a login" and asked == []
    (tmp_path / "token").unlink()
    assert get_token() is None and asked == ["HF_TOKEN"], "it is huggingface_hub that asks"


def fake_nvidia_smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = folder / "nvidia-smi"
    tool.write_text(f"#!/bin/sh\n{script}\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


A_T4 = """echo "$1" >> "$0.calls"
case "$1" in
  *memory.reserved*) echo 'Tesla T4, 15360, 7.5, 15095, GPU-1, 0, [N/A]' ;;
  --query-gpu=*) echo 'Tesla T4, 15360, 7.5, 15095, GPU-1' ;;
  --query-compute-apps=*) ;;
  *) echo '| NVIDIA-SMI 580.82.07   Driver Version: 580.82.07   CUDA Version: 13.0 |' ;;
esac"""


def test_the_gpu_is_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, A_T4, monkeypatch)
    monkeypatch.setattr(gpu, "read_torch_build", lambda: packages.parse_torch_build("__version__ = '2.13.0+cpu'"))
    assert gpu.find_gpu() is None, "torch for a CPU uses none, and neither does Unsloth with it"
    monkeypatch.setattr(gpu, "read_torch_build", lambda: packages.parse_torch_build(TORCH_VERSION_PY))
    found = gpu.find_gpu()
    assert (found.name, found.memory_gib, found.compute_capability) == ("Tesla T4", 15.0, (7, 5))
    assert "fp16 (no bf16" in check("device").found
    assert check("GPU memory").found == "14.7 of 15.0 GiB free"
    for hidden in ("", "-1"):
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
        assert gpu.find_gpu() is None


def test_the_driver_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`import grpo_nb` starts no process at all, and all that ask for the GPU later get one answer."""
    fake_nvidia_smi(tmp_path, A_T4, monkeypatch)
    calls = tmp_path / "nvidia-smi.calls"
    code = """
        import subprocess, sys, types
        from pathlib import Path
        def refuse(*a, **k):
            raise AssertionError(f"a process was started: {a}")
        real, subprocess.Popen.__init__ = subprocess.Popen.__init__, refuse
        import grpo_nb, grpo_nb.machine, grpo_nb.settings, grpo_nb.tasks
        assert not Path(sys.argv[1]).exists()
        subprocess.Popen.__init__ = real
        grpo_nb.machine.gpu.read_torch_build = lambda: None
        assert {grpo_nb.machine.find_gpu().name for _ in range(18)} == {"Tesla T4"}
        assert grpo_nb.preset("auto").fast_inference
        print(len(Path(sys.argv[1]).read_text().splitlines()))
    """
    command = [sys.executable, "-c", textwrap.dedent(code), str(calls)]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.stdout == "1\n", done.stderr


def test_a_driver_that_failed_once_is_asked_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "read_torch_build", lambda: None)
    fake_nvidia_smi(tmp_path, "echo 'Unable to determine the device handle'; exit 15", monkeypatch)
    assert gpu.find_gpu() is None
    fake_nvidia_smi(tmp_path, A_T4, monkeypatch)
    assert gpu.find_gpu().name == "Tesla T4" == gpu.find_gpu().name
    assert len((tmp_path / "nvidia-smi.calls").read_text().splitlines()) == 1, "an answer is kept"


def test_the_memory_of_a_container_is_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One number for the preflight, the plan and what a run records."""
    limits = [tmp_path / "memory.max", tmp_path / "memory.limit_in_bytes"]
    monkeypatch.setattr(host, "_MEMORY_LIMITS", limits)
    whole = host.usable_memory_gib()
    limits[0].write_text("max\n")
    limits[1].write_text(f"{2**62}\n")
    assert host.usable_memory_gib() == whole > 1.5
    limits[0].write_text(f"{3 * 2**29}\n")
    assert host.usable_memory_gib() == 1.5
    assert "2 GiB memory" in (row := check("device")).found and row.status == "warning"


@pytest.mark.parametrize(
    ("limit", "used"), [("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")]
)
def test_free_memory_of_a_container_is_what_its_limit_leaves(
    limit: str, used: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a large host a container would else be told that everything fits, and be killed by the system."""
    monkeypatch.setattr(host, "_MEMORY_LIMITS", [tmp_path / limit])
    (tmp_path / used).write_text("900000000\n")
    (tmp_path / "memory.stat").write_text(
        "file 7\ninactive_file 300000000\nactive_file 200000000\ntotal_active_file 9\n"
    )
    whole = host.free_memory_bytes()
    (tmp_path / limit).write_text("1000000000\n")
    assert host.free_memory_bytes() == 600_000_000 < whole
    (tmp_path / limit).write_text("350000000\n")
    assert host.free_memory_bytes() == 0, "a limit that was lowered since"


def test_the_drivers_tool_is_found_beside_the_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that a service started in WSL does not have /usr/lib/wsl/lib on its path."""
    fake_nvidia_smi(tmp_path, A_T4, monkeypatch)
    monkeypatch.setattr(gpu, "read_torch_build", lambda: None)
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.setattr(gpu, "_PLACES", ("/nowhere", str(tmp_path)))
    assert gpu.find_gpu().name == "Tesla T4"
    monkeypatch.setattr(gpu, "_PLACES", ("/nowhere",))
    assert gpu.find_gpu() is None


def test_the_order_of_the_slots_where_it_is_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    case = json.loads((MACHINES[0].parent / "two_gpus.json").read_text())["machine"]
    monkeypatch.setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
    row = check("device", checks.check_machine(described(case, monkeypatch)))
    assert row.status == "ok" and "NVIDIA L4" in row.found


def test_a_memory_that_is_withheld_is_not_the_computers() -> None:
    gpus = "NVIDIA A100-SXM4-40GB, [Insufficient Permissions], 8.0, [Insufficient Permissions], GPU-1"
    driver = gpu.read_driver(answer({"header": "", "gpus": gpus, "processes": "", "list": "GPU 0: A100 (UUID: GPU-1)"}))
    assert driver.gpus == () and "Insufficient Permissions" in driver.failure


def test_a_dead_driver_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvidia_smi(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9", monkeypatch)
    assert gpu.find_gpu() is None
    assert check("device").status == "warning" and "NVIDIA-SMI has failed" in check("device").found


def fake_vllm(folder: Path, body: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed vLLM 9.9.9 for torch 2.13.0 in a folder on the path."""
    package, record = folder / "vllm", folder / "vllm-9.9.9.dist-info"
    package.mkdir(parents=True)
    record.mkdir()
    (package / "__init__.py").write_text(f"class LLM: ...\nclass SamplingParams: ...\n{body}")
    metadata = "Metadata-Version: 2.1\nName: vllm\nVersion: 9.9.9\nRequires-Dist: torch==2.13.0\n"
    (record / "METADATA").write_text(metadata)
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.syspath_prepend(str(folder))
    packages._try_vllm.cache_clear()


@pytest.mark.parametrize(
    ("body", "status", "found"),
    [
        ("", "ok", "9.9.9 loads"),
        ("raise ImportError('libcudart.so.13: cannot open')", "warning", "libcudart.so.13: cannot open"),
        ("import os, signal; os.kill(os.getpid(), signal.SIGSEGV)", "warning", "ended by signal 11"),
        ("import time; time.sleep(60)", "warning", "did not end in"),
    ],
)
def test_vllm_is_tried_in_another_process(
    body: str, status: str, found: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packages, "_VLLM_SECONDS", 3)
    (tmp_path / "bin").mkdir()
    fake_vllm(tmp_path / "site", body, monkeypatch)
    fake_nvidia_smi(tmp_path / "bin", A_T4, monkeypatch)
    row = check("vLLM")
    assert row.status == status and found in row.found, row
    assert "vllm" not in sys.modules


def test_the_compiled_part_that_vllm_takes_here_is_loaded_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in vllm/platforms/cuda.py, import_kernels: a failure becomes a line of a log; parts for other machines lie beside."""
    body = """
try:
    import vllm._C_stable_libtorch
except ImportError as error:
    print("Failed to import from vllm._C_stable_libtorch", error)
"""
    fake_vllm(tmp_path / "site", body, monkeypatch)
    part = tmp_path / "site" / "vllm" / "_C_stable_libtorch.abi3.so"
    part.write_bytes(b"no library")
    assert "_C_stable_libtorch" in packages.vllm_problem()
    assert packages.torch_for_vllm() == "2.13.0", "as its metadata asks"
    part.with_name("_C_stable_libtorch.py").write_text("")
    part.rename(part.with_name("_C_AVX2.abi3.so"))
    packages._try_vllm.cache_clear()
    assert packages.vllm_problem() is None, "vLLM asks for one of them, and so does the kit"


@pytest.mark.parametrize(
    ("variable", "expected"), [("COLAB_RELEASE_TAG", "colab"), ("KAGGLE_KERNEL_RUN_TYPE", "kaggle"), ("NOTHING", None)]
)
def test_the_host_is_recognised(variable: str, expected: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("COLAB_RELEASE_TAG", "KAGGLE_KERNEL_RUN_TYPE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, "1")
    assert host.find_host() == (expected or ("jupyter" if "ipykernel" in sys.modules else "script"))


def test_own_process_is_not_called_somebody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    held = {"gpus": AN_L4["gpus"].replace("22500", "3000"), "processes": f"GPU-1, {os.getpid()}, python, 19000"}
    report = checks.check_machine(described({"nvidia_smi": AN_L4 | held}, monkeypatch))
    row = check("GPU memory", report)
    assert row.status == "ok" and "this kernel holds the rest" in row.found
