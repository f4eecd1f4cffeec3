"""Imports of what unsloth patches, before it: on a CPU
they change nothing, and on a GPU they are named."""

from __future__ import annotations

import logging
import subprocess
import sys
from pathlib import Path

import pytest
from huggingface_hub.utils import are_progress_bars_disabled
from transformers.utils import logging as transformers_logging

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.models import unsloth_import
from grpo_nb.upstream.vllm import hiding_stdout
from tests.conftest import ROOT
from tests.support.gpus import GPUS
from tests.support.warm_kernel import run_module

_TRAINING = """
import hashlib, sys
import grpo_nb as gn
{early}
from tests.support.tiny import SMALL, load_tiny
changes = SMALL | dict(max_steps=2, max_completion_length=8, run_root=sys.argv[2])
model, tokenizer, task, settings = load_tiny(sys.argv[1], 8, 2, **changes)

def words(completions, **columns):
    texts = map(gn.rewards.completion_text, completions)
    return [min(1.0, len(text.split()) / 10) for text in texts]

rewards = [words]
run = gn.train(model, tokenizer, task, rewards, settings, name="run")
weights = (run.adapter_path / "adapter_model.safetensors").read_bytes()
print("ADAPTER", hashlib.sha256(weights).hexdigest())
"""
_EARLY = {
    "trl.rewards": "from trl.rewards import get_soft_overlong_punishment",
    "transformers": "from transformers import AutoModelForCausalLM, AutoTokenizer",
}


def adapter_after(order: str, model: Path, folder: Path) -> str:
    """Train in a new process, after early imports, and return the hash of the adapter."""
    code = _TRAINING.format(early=_EARLY[order])
    command = [sys.executable, "-c", code, str(model), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert "ADAPTER" in done.stdout, done.stderr[-2000:]
    assert "should be imported before" not in done.stderr
    return done.stdout.split("ADAPTER")[1].strip()


def adapter_with_unsloth_first(model: Path, folder: Path) -> str:
    """Train in a fork of a process that imported unsloth first; return the adapter's hash."""
    (folder / "training.py").write_text(_TRAINING.format(early=""))
    said = run_module("training", str(model), str(folder / "runs"), folder=folder)
    return "\n".join(said).split("ADAPTER")[1].split()[0]


def test_early_imports_train_the_same_adapter_on_a_cpu(tiny_folder: Path, tmp_path: Path) -> None:
    hashes = {
        order: adapter_after(order, tiny_folder, tmp_path / f"runs-{number}")
        for number, order in enumerate(_EARLY)
    }
    hashes["unsloth first"] = adapter_with_unsloth_first(tiny_folder, tmp_path)
    assert len(set(hashes.values())) == 1, hashes


@pytest.fixture
def early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel with a GPU that has trl and transformers, and no unsloth yet."""
    monkeypatch.setattr(unsloth_import, "find_gpu", lambda: GPUS["t4"])
    monkeypatch.delitem(sys.modules, "unsloth")
    monkeypatch.delitem(sys.modules, "peft")


def test_import_of_unsloth_keeps_the_bars_of_downloads(monkeypatch: pytest.MonkeyPatch) -> None:
    bars = sys.modules["huggingface_hub.utils.tqdm"]
    monkeypatch.setattr(bars, "HF_HUB_DISABLE_PROGRESS_BARS", None)
    monkeypatch.setattr(bars, "progress_bar_states", {})
    unsloth_import.import_unsloth()
    assert not are_progress_bars_disabled()
    assert not transformers_logging.is_progress_bar_enabled()


def test_vllm_log_handler_made_while_hidden_shows_later_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("vllm")
    monkeypatch.setattr(logger, "handlers", [])
    with hiding_stdout():
        # vllm/logger.py, _configure_vllm_root_logger
        logger.addHandler(logging.StreamHandler(sys.stdout))
        logger.error("while loading")
    logger.warning("not sleeping")
    logger.error("the engine died")
    output = capsys.readouterr()
    assert (output.out, output.err) == ("", "the engine died\n")


def test_early_import_on_a_gpu_names_the_packages(early: None) -> None:
    message = (
        r"trl, transformers must not be imported before .*unsloth.*below gn\..*import_unsloth\(\)"
    )
    with pytest.raises(EnvironmentProblem, match=message):
        unsloth_import.import_unsloth()
