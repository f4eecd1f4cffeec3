"""Helpers for tests of scale-out folders: plain TRL, a small model, train.py as users start it."""

from __future__ import annotations

import os
import runpy
import string
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.scaleout.project_writing import TRL_VERSION
from tests.support.shared import made_once
from tests.support.warm_trl import run_warm

DRIVER = Path(__file__).with_name("scale_driver.py")
EXACT = Path(__file__).with_name("scale_exact.py")
# These must not be imported by train.py; the folder's own copy of the kit comes first.
_ABSENT = ("grpo_nb", "unsloth", "unsloth_zoo")


@pytest.fixture(scope="session")
def plain_trl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for PYTHONPATH with the TRL of train.py, and without kit and Unsloth."""

    def install(folder: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "-q",
            "--no-deps",
            "--target",
            str(folder),
            f"trl=={TRL_VERSION}",
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        (folder / "said.txt").write_text("" if done.returncode == 0 else done.stderr or done.stdout)
        for name in _ABSENT:
            (folder / f"{name}.py").write_text(
                f"raise ModuleNotFoundError('{name} is not installed here')\n"
            )

    folder = made_once(tmp_path_factory, "plain-trl", install)
    if said := (folder / "said.txt").read_text().strip():
        pytest.skip(
            f"trl {TRL_VERSION} cannot be had from the package registry: {said.splitlines()[-1][:200]}"
        )
    return folder


@pytest.fixture(scope="session")
def letters_folder(embedded_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama of two narrow layers that writes letters, for steps of a tenth of a second."""
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import (
        GenerationConfig,
        LlamaConfig,
        LlamaForCausalLM,
        PreTrainedTokenizerFast,
    )

    marks = ["<pad>", "<end>", "<unk>"]
    greek = map(chr, range(0x3B1, 0x3B1 + 400))  # with fewer, a tokenizer looks broken
    letters = [*string.printable[:95], "\n", *greek]
    signs = {sign: at for at, sign in enumerate([*marks, *letters])}
    made = Tokenizer(models.WordLevel(signs, unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    made.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made,
        pad_token="<pad>",
        eos_token="<end>",
        unk_token="<unk>",
        padding_side="left",
        model_max_length=2048,
    )
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }}\n{% endfor %}"
        "{% if add_generation_prompt %}a:{% endif %}"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(signs),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        eos_token_id=1,
        pad_token_id=0,
        bos_token_id=None,
        max_position_embeddings=2048,
    )
    folder = tmp_path_factory.mktemp("models") / "letters"
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # One sign in twelve ends a completion.
    GenerationConfig(eos_token_id=[1, *range(3, len(signs), 12)], pad_token_id=0).save_pretrained(
        folder
    )
    return folder


def start(
    folder: Path,
    plain_trl: Path,
    *arguments: str,
    processes: int = 1,
    script: str | Path = "train.py",
    code: int = 0,
) -> str:
    """Start train.py as its README says and return the output; check the exit status."""
    launcher = (
        ["-m", "accelerate.commands.launch", "--config_file", "cpu2.yaml"] if processes > 1 else []
    )
    many = ["--processes", str(processes)] if processes > 1 else []
    variables = {
        **os.environ,
        "PYTHONPATH": str(plain_trl),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, *launcher, str(script), *many, *arguments]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True)
    assert done.returncode == code, (done.stdout + done.stderr)[-3000:]
    return done.stdout + done.stderr


def start_warm(
    folder: Path,
    plain_trl: Path,
    *arguments: str,
    script: str | Path = "train.py",
    code: int = 0,
) -> str:
    """Start train.py in one process, as `start` does, with the libraries imported already."""
    status, output = run_warm(folder, plain_trl, script, arguments)
    assert status == code, output[-3000:]
    return output


def said_by(folder: Path, capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Return what train.py prints with these arguments, before it loads a model."""
    program = runpy.run_path(str(folder / "train.py"), run_name="train")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["train.py", *arguments])
        try:
            program["main"]()
        except SystemExit as end:
            return str(end)
    return capsys.readouterr().out


def signs(completions: list, **columns: object) -> list[float]:
    """A score with spread in every group, in sixteenths, which float32 holds exactly."""
    return [sum(map(ord, c[-1]["content"])) % 17 / 16 for c in completions]


def trained(
    folder: Path | str,
    root: Path,
    name: str,
    steps: int = 3,
    rewards: Any = None,
    task: Any = None,
    in_float64: bool = False,
    **changes: object,
) -> gn.runs.Run:
    """Train with plain SGD, whose updates are the gradients, so every difference stays visible.

    Default rewards are `signs` and the kit's tags, and the default task is sixteen sums.
    """
    defaults = dict(
        max_steps=steps,
        max_completion_length=16,
        max_prompt_length=1024,
        learning_rate=0.5,
        optim="sgd",
        warmup_steps=0,
        lr_scheduler_type="constant",
        max_grad_norm=1e9,
        run_root=str(root),
        num_generations=4,
        per_device_train_batch_size=8,
    )
    settings = gn.preset("cpu", model=str(folder), **{**defaults, **changes})
    model, tokenizer = gn.load_model(settings)
    task = task or gn.load_task(
        "arithmetic", settings, train_size=16, holdout=4, tokenizer=tokenizer
    )
    from tests.support import scale_exact  # imports transformers, and unsloth comes first

    with pytest.MonkeyPatch.context() as patch:
        if in_float64:
            patch.setattr(scale_exact.modeling_llama.LlamaRMSNorm, "forward", scale_exact.norm)
            patch.setattr("trl.trainer.utils._ChunkedLogProbFunction", scale_exact.Head)
            model.double()
        return gn.train(
            model,
            tokenizer,
            task,
            rewards or [signs, gn.rewards.partial_format()],
            settings,
            name=name,
        )
