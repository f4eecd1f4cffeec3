"""Inputs of exports that are refused, or that once gave a wrong export."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file

import grpo_nb as gn
from grpo_nb.core.processes import ChildError
from grpo_nb.export import conversion, verify_child
from grpo_nb.export import gguf as gguf_export
from grpo_nb.export.merged import Lora, retained_share
from grpo_nb.export.saved_export import Export, ExportError
from tests.export.test_merged import rewrite

pytestmark = pytest.mark.begins(42)
GIB = 2**30


def test_gguf_of_an_adapter_export_names_the_run(tiny_run: gn.runs.Run, tmp_path: Path) -> None:
    adapter = gn.export.export_adapter(tiny_run, tmp_path / "lora")
    with pytest.raises(ValueError, match=f"adapter files.*{tiny_run.name!r} first: gn.export_m"):
        gn.export_gguf(adapter, tmp_path / "out")


def test_gguf_of_a_changed_merged_export_is_refused(merged: Export, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(merged.path, tmp_path / "copy"))
    export = gn.export.open(copy, run=merged.run.path)
    rewrite(copy / "config.json", rms_norm_eps=1.0)
    with pytest.raises(ExportError, match=r"not what was verified: .*: config\.json\."):
        gn.export_gguf(export, tmp_path / "out")


def test_gguf_does_not_replace_its_merged_model(merged: Export) -> None:
    for target in (merged.path, merged.path.parent):
        with pytest.raises(FileExistsError, match="which would be deleted too"):
            gn.export_gguf(merged, target, overwrite=True)
    assert (merged.path / "verification.json").is_file()


def test_open_with_a_run_of_another_adapter_is_refused(
    merged: Export, tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    other = gn.runs.Run(shutil.copytree(tiny_run.path, tmp_path / "other"))
    weights = other.adapter_path / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes() + b" ")
    with pytest.raises(ValueError, match="the run 'other' has another adapter"):
        gn.export.open(merged.path, run=other)


def test_converter_that_cannot_be_fetched_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_command(command: list[str], **options: object) -> None:
        raise ChildError("ended with 1", ["python: No module named pip"])

    monkeypatch.setattr(conversion, "run_command", run_command)
    monkeypatch.setattr(conversion, "cache_root", lambda: tmp_path)
    with pytest.raises(gn.machine.EnvironmentProblem, match="python -m ensurepip"):
        conversion.find_converter()


def test_retained_share_is_never_negative(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"a": torch.tensor([[1.0035]])}, file)
    lora = Lora({"a": {"A": torch.tensor([[1e-5]]), "B": torch.ones(1, 1)}}, scaling=1.0)
    assert retained_share({"a": file}, lora, "bfloat16") == 0.0


@pytest.fixture
def base_and_merged(tmp_path: Path) -> list[Path]:
    """Return a base in 16 bit with 8 MB and its merged model in float32 with 16 MB."""
    folders = []
    for name, stored in (("base", torch.bfloat16), ("merged", torch.float32)):
        folder = tmp_path / name
        folder.mkdir()
        save_file({"a": torch.zeros(2**22, dtype=stored)}, folder / "model.safetensors")
        folders.append(folder)
    return folders


def test_model_fits_if_its_float32_values_fit(base_and_merged: list[Path]) -> None:
    for folder in base_and_merged:
        assert verify_child.fits_in_memory(folder, int(1.5 * GIB))


def test_model_does_not_fit_if_only_16_bit_would(base_and_merged: list[Path]) -> None:
    # Both need 18 MB in float32; the base has 8 MB as it is stored.
    for folder in base_and_merged:
        assert not verify_child.fits_in_memory(folder, GIB + 12 * 10**6)


def test_greedy_answer_ends_at_every_end_token() -> None:
    """Generation stops at all end tokens of the model, and pads the shorter answers."""
    config = SimpleNamespace(eos_token_id=[7, 8])
    generated = torch.tensor([[1, 2, 5, 8, 0, 0], [1, 2, 5, 5, 7, 0], [1, 2, 5, 5, 5, 5]])
    model = SimpleNamespace(generation_config=config, generate=lambda **kwargs: generated)

    tokenizer = SimpleNamespace(
        eos_token_id=7, pad_token_id=0, pad=lambda *a, **k: {"input_ids": generated[:, :2]}
    )
    answers = verify_child.greedy_answers(model, tokenizer, [[1, 2]] * 3, 4)
    assert answers == [[5, 8], [5, 5, 7], [5, 5, 5, 5]]


def test_greedy_answer_keeps_its_end_token_if_it_is_the_padding() -> None:
    generated = torch.tensor([[1, 2, 7, 7, 7], [1, 2, 5, 7, 7]])
    model = SimpleNamespace(
        generation_config=SimpleNamespace(eos_token_id=7), generate=lambda **kwargs: generated
    )
    tokenizer = SimpleNamespace(pad_token_id=7, pad=lambda *a, **k: {"input_ids": generated[:, :2]})
    answers = verify_child.greedy_answers(model, tokenizer, [[1, 2]] * 2, 3)
    assert answers == [[7], [5, 7]]


def test_gguf_without_any_answer_is_refused(
    merged: Export, tiny_run: gn.runs.Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verify_child, "metadata_problems", lambda *_: [])
    prompt = [{"role": "user", "content": "2 + 2?"}]
    request = {
        "merged_folder": str(merged.path),
        "base_folder": tiny_run.settings.model,
        "prompts": [prompt],
        "chat_template_kwargs": {},
        "answers": [{"prompt_ids": [1, 2, 3], "ids": [], "log_probs": []}],
        "file": "none.gguf",
        "free_memory": 10**12,
        "limits": gguf_export.LIMITS_OF_QUANTIZATION["q8_0"],
    }
    checks = verify_child.verify_gguf(request)
    failed = [name for name, (passed, _) in checks.items() if passed is False]
    assert sum(name.startswith("tokens: ") for name in failed) == 2


@pytest.mark.parametrize("shape", [(2, 6), (12,), (1, 1)])
def test_weight_of_another_shape_is_not_base_plus_adapter(shape: tuple[int, ...]) -> None:
    assert not verify_child.is_rounded_sum(torch.ones(3, 4), [torch.ones(shape)])
