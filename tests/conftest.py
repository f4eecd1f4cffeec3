"""Shared by the tests: the real embedded model, a tiny one of the same architecture, and a run made with each."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # read when huggingface_hub is imported; no test asks the Hub

import grpo_nb as gn
from grpo_nb.models import import_unsloth

import_unsloth()  # before any test module imports transformers

# A shell that starts a command in the background has it ignore Ctrl-C, and tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def embedded_folder() -> Path:
    """The converted embedded model in the user's cache, as every first use leaves it."""
    from grpo_nb.models import embedded_model_folder

    return embedded_model_folder()


@pytest.fixture(scope="session")
def tiny_folder(embedded_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two narrow layers with random weights and the embedded tokenizer: real code paths in a second."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=True, eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id, bos_token_id=tokenizer.bos_token_id,
    )  # fmt: skip
    folder = tmp_path_factory.mktemp("models") / "tiny"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def tiny_settings(tiny_folder: Path, tmp_path: Path) -> gn.Settings:
    """Settings for a run of seconds on the tiny model."""
    return gn.preset(
        "cpu", model=str(tiny_folder), max_steps=3, max_completion_length=12, learning_rate=5e-3, max_grad_norm=10.0,
        run_root=str(tmp_path / "runs"),
    )  # fmt: skip


def brevity(completions: list, **columns: object) -> list[float]:
    """A reward that a random model can earn: fewer words are better."""
    return [1 / (1 + len(c[-1]["content"].split())) for c in completions]


@pytest.fixture(scope="session")
def tiny_run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> gn.Run:
    """A finished run on the tiny model, with its model."""
    settings = gn.preset(
        "cpu", model=str(tiny_folder), max_steps=14, max_completion_length=12, learning_rate=2e-2, max_grad_norm=10.0,
        run_root=str(tmp_path_factory.mktemp("runs")),
    )  # fmt: skip
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=20, holdout_size=10, tokenizer=tokenizer)
    return gn.train(model, tokenizer, task, [brevity, gn.rewards.xml_tags()], settings, name="tiny")


def execute_notebook(name: str, folder: Path, **parameters: object) -> Path:
    """Execute a notebook as `make run` does it, with the real model; return the executed one. terminal.txt is beside runs/.

    Parameters replace lines of its settings cell.
    """
    notebook = ROOT / f"notebooks/{name}.ipynb"
    if parameters:
        notebook = with_parameters(notebook, folder / f"{name}.ipynb", parameters)
    command = [sys.executable, str(ROOT / "scripts/run_notebook.py"), str(notebook), "--cwd", str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    (folder / "terminal.txt").write_text(done.stdout + done.stderr)
    assert done.returncode == 0, (done.stdout + done.stderr)[-5000:]
    return folder / "runs" / "notebooks" / f"{name}.ipynb"


def with_parameters(notebook: Path, copy: Path, parameters: dict[str, object]) -> Path:
    """Write a copy of a notebook whose settings cell has other values."""

    content = nbformat.read(notebook, as_version=4)
    (cell,) = [c for c in content.cells if "parameters" in c.metadata.get("tags", [])]
    for parameter, value in parameters.items():
        lines = cell.source.splitlines()
        (at,) = [i for i, line in enumerate(lines) if line.startswith(f"{parameter} = ")]
        lines[at] = f"{parameter} = {value!r}"
        cell.source = "\n".join(lines)
    nbformat.write(content, copy)
    return copy


@pytest.fixture(scope="session")
def quickstart(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, gn.Run]:
    """`notebooks/00_quickstart`: (executed notebook, its run)."""
    folder = tmp_path_factory.mktemp("quickstart")
    executed = execute_notebook("00_quickstart", folder)
    (run,) = (folder / "runs").glob("*/run.json")
    return executed, gn.open_run(run.parent)


@pytest.fixture(scope="session")
def reward_lab(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/01_reward_lab`, executed."""
    return execute_notebook("01_reward_lab", tmp_path_factory.mktemp("reward_lab"))


@pytest.fixture(scope="session")
def train(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/02_train`, executed."""
    return execute_notebook("02_train", tmp_path_factory.mktemp("train"))


@pytest.fixture(scope="session")
def evaluate(quickstart: tuple[Path, gn.Run], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, gn.Run]:
    """`notebooks/03_evaluate`, executed on a copy of the quickstart's run, with few samples: (executed notebook, its run)."""
    folder = tmp_path_factory.mktemp("evaluate")
    shutil.copytree(quickstart[1].path, folder / "runs" / "quickstart")
    executed = execute_notebook("03_evaluate", folder, RUN="runs/quickstart", SAMPLES=2, QUESTIONS=12)
    return executed, gn.open_run(folder / "runs" / "quickstart")


@pytest.fixture(scope="session")
def export(tiny_run: gn.Run, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/04_export`, executed on a run of the tiny model: what it does is the same, and takes a tenth of the time."""
    folder = tmp_path_factory.mktemp("export")
    shutil.copytree(tiny_run.path, folder / "runs" / "tiny")
    return execute_notebook("04_export", folder, RUN="runs/tiny")
