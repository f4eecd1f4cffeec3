"""An export's needs are known before it starts, and each thing in the way is named."""

import os
import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import grpo_nb as gn
from grpo_nb.export import plan as export_plan
from grpo_nb.export.tensors import TensorFolder


def test_it_names_sizes_and_writes_nothing(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    plan = gn.export.plan_export(tiny_run, ["merged", "adapter", "q8_0", "q4_k_m"], tmp_path / "all")
    assert not plan.problems and not (tmp_path / "all").exists()
    plan.require()
    sizes = {row.format: row for row in plan.rows}
    stored = sum(
        tensor.nbytes for tensor in TensorFolder(Path(tiny_run.settings.model)).tensors.values()
    )  # bfloat16, tied
    assert sizes["merged"].bytes == pytest.approx(2 * stored, rel=0.1, abs=25e6)  # float32 may be chosen
    assert stored / 2 < sizes["q8_0"].bytes < stored + 25e6
    assert sizes["adapter"].bytes < sizes["q4_k_m"].bytes + 5e6
    # A GGUF is made from a merged model, which is there meanwhile.
    assert sizes["q8_0"].disk == sizes["merged"].disk + sizes["q8_0"].bytes
    # A mixture is quantized from a file with the merged model's own number type, float32 at the widest.
    assert sizes["q4_k_m"].disk == 2 * sizes["merged"].disk + sizes["q4_k_m"].bytes
    assert all(row.memory > 0.5e9 for row in plan.rows)
    assert {row.target.name for row in plan.rows} == set(sizes)
    alone = gn.export.plan_export(tiny_run, ["merged"], tmp_path / "one", dtype="bfloat16")
    assert alone.rows[0].target == tmp_path / "one" and alone.rows[0].bytes < sizes["merged"].bytes


def test_each_thing_in_the_way_is_named(tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "<b>").mkdir()
    (tmp_path / "<b>" / "mine").touch()
    monkeypatch.setattr(export_plan, "free_disk_bytes", lambda path: 10**6)
    monkeypatch.setattr(export_plan, "free_memory_bytes", lambda: 2 * 10**6)
    plan = gn.export.plan_export(tiny_run, ["merged"], tmp_path / "<b>")
    for said in ("overwrite=True", "on the disk of", "of memory at its peak, but 0.00 GB are free"):
        assert any(said in problem for problem in plan.problems), (said, plan.problems)
    with pytest.raises(gn.machine.EnvironmentProblem, match="merged: it needs"):
        plan.require()
    assert "&lt;b&gt;" in plan._repr_html_() and "<b>" not in plan._repr_html_()
    assert "<b>" in repr(plan) and "ready" not in repr(plan)
    assert len(gn.export.plan_export(tiny_run, ["merged"], tmp_path / "<b>", overwrite=True).problems) == 2


def test_formats_and_runs_that_there_are_not(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'q9' is not one of 'merged', 'adapter', 'f32'"):
        gn.export.plan_export(tiny_run, ["q9"], tmp_path)
    bare = gn.runs.Run(tmp_path / "bare")
    bare.path.mkdir()
    (bare.path / "run.json").write_text((tiny_run.path / "run.json").read_text())
    assert "has no adapter: train it" in gn.export.plan_export(bare, ["merged"], tmp_path / "out").problems[0]
    with pytest.raises(FileNotFoundError, match="no adapter to merge"):
        gn.export_merged(bare, tmp_path / "out")


def test_a_base_that_is_not_here_is_not_fetched(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unsloth trains in 4 bit from a quantized copy; of the 16-bit base only the configuration is in the cache then."""
    (tmp_path / "snapshot").mkdir()
    asked = []

    def download(name: str, *, allow_patterns: list[str], local_files_only: bool) -> str:
        asked.append(local_files_only)
        return str(tmp_path / "snapshot")

    monkeypatch.setattr("grpo_nb.models.load.resolve_model", lambda name: "org/base")
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    headers = SimpleNamespace(parameter_count={"BF16": 10**9, "F32": 1000})
    monkeypatch.setattr("huggingface_hub.get_safetensors_metadata", lambda name: headers)
    plan = gn.export.plan_export(tiny_run, ["merged"], tmp_path / "out", dtype="bfloat16")
    assert plan.rows[0].bytes == pytest.approx(2e9, rel=0.05) and asked == [True]
    # Of several number types: the verification has it in float32.
    assert plan.rows[0].memory > 4e9
    headers.parameter_count = {"BF16": 10**9}
    plan = gn.export.plan_export(tiny_run, ["merged"], tmp_path / "out", dtype="bfloat16")
    assert 1.5e9 < plan.rows[0].memory < 2.5e9


def test_memory_follows_what_is_held(tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """16 bits a weight where base and result have that, 32 where float32 is asked for or chosen, or the base is held so."""
    stored = {str(n): torch.empty(10**4, 10**5, dtype=torch.bfloat16, device="meta") for n in range(10)}
    monkeypatch.setattr(TensorFolder, "__init__", lambda self, folder: setattr(self, "tensors", stored))

    monkeypatch.setattr("grpo_nb.export.merge.low_memory_merge", lambda base, adapter: (None, "another kind"))

    def memory(dtype: str, format: str = "merged", run: gn.runs.Run = tiny_run) -> float:
        return gn.export.plan_export(run, [format], tmp_path / "out", dtype=dtype).rows[0].memory / 1e9

    assert memory("auto") == memory("bfloat16") == memory("float16") == pytest.approx(22.9)
    assert memory("float32") == pytest.approx(44.9)
    # llama.cpp holds the file it is asked about.
    assert memory("auto", "f32") == pytest.approx(45.802) and memory("auto", "q8_0") == memory("auto")
    monkeypatch.setattr(export_plan, "free_memory_bytes", lambda: 30 * 10**9)
    export_plan.require_memory(tiny_run, "float16")
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"merged as float32: it needs 44.90 GB of memory"):
        export_plan.require_memory(tiny_run, "float32")
    # Where tensor by tensor will do, nothing grows with the model but the adapter; llama.cpp still holds its file.
    monkeypatch.setattr("grpo_nb.export.merge.low_memory_merge", lambda base, adapter: (object(), ""))
    assert memory("auto") == memory("float32") < 2.5
    assert memory("auto", "q8_0") == pytest.approx(12.8, abs=0.1)
    export_plan.require_memory(tiny_run, "float32")
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"needs 44.90 GB"):
        export_plan.require_memory(tiny_run, "float32", by_tensor=False)
    other = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "run"))
    os.truncate(other.adapter_path / "adapter_model.safetensors", 10**8)
    assert memory("auto", run=other) == pytest.approx(memory("auto") + 0.4, abs=0.01)
    # The converter has one tensor in memory, several times.
    stored["0"] = torch.empty(10**4, 3 * 10**5, dtype=torch.bfloat16, device="meta")
    assert memory("auto", "q8_0") == pytest.approx(0.9 + 16.5)
    monkeypatch.setattr("grpo_nb.export.merge.is_plain", lambda adapter: False)
    assert memory("bfloat16") == pytest.approx(0.9 + 1.1 * 4 * 12)


def test_formats_together_need_the_room_of_all(
    tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = gn.export.plan_export(tiny_run, ["merged", "adapter", "q8_0"], tmp_path / "out")
    most = max(row.disk for row in alone.rows)
    monkeypatch.setattr("grpo_nb.export.plan.free_disk_bytes", lambda path: most + 1)
    assert [bool(row.problems) for row in alone.rows] == [False] * 3
    plan = gn.export.plan_export(tiny_run, ["merged", "adapter", "q8_0"], tmp_path / "out")
    assert not plan.rows[0].problems and "are left by those before it" in plan.problems[-1]
    assert gn.export.plan_export(tiny_run, ["q8_0"], tmp_path / "out").problems == ()
    monkeypatch.setattr("grpo_nb.export.plan.free_disk_bytes", lambda path: 10**6)
    plan = gn.export.plan_export(tiny_run, ["merged", "q8_0"], tmp_path / "out")
    assert "but 0.00 GB of 0.00 GB are left" in plan.problems[-1], "less than nothing is not left"
