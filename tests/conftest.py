"""Fixtures of all tests: the embedded model, a tiny one, a run of each, and executed notebooks."""

from __future__ import annotations

import gc
import itertools
import json
import os
import re
import shutil
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

# No test asks the Hub. The variable is read when huggingface_hub is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import grpo_nb as gn
from grpo_nb.export.result import Export
from grpo_nb.models.import_unsloth import import_unsloth
from tests.support.notebooks import SIZES, execute_notebook, executed_in
from tests.support.scale import letters_folder, plain_trl, trained
from tests.support.shared import made_once
from tests.support.warm_kernel import open_nursery

__all__ = ["letters_folder", "plain_trl"]  # fixtures

# A shell that starts a command in the background has it ignore Ctrl-C, and tests press it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

ROOT = Path(__file__).resolve().parent.parent


# Folders whose tests do not need unsloth, so that a run of them alone starts ten seconds earlier.
WITHOUT_UNSLOTH = ("checks", "config", "core", "health", "machine", "rewards", "scoring", "tasks")


def needs_unsloth(arguments: list[str]) -> bool:
    """Return True unless all paths given to pytest are in folders that do not need unsloth."""
    folders = [ROOT / "tests" / name for name in WITHOUT_UNSLOTH]
    for argument in arguments:
        path = Path(argument.partition("::")[0]).resolve()
        if not any(path.is_relative_to(folder) for folder in folders):
            return True
    return False


def pytest_configure(config: pytest.Config) -> None:
    """Import unsloth before a test module imports transformers, which unsloth patches."""
    # The process of pytest-xdist that hands out the tests runs none.
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    if not needs_unsloth(config.args):
        return
    # Without the freeze, each training, loading and evaluation would search the imports for
    # garbage, a third of a second each time. Objects made from here on are collected as ever.
    gc.disable()
    import_unsloth()
    open_nursery()
    gc.freeze()
    gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Sort the tests by their mark `begins(place)`, so that files that take long come first.

    pytest-xdist hands out whole files in this order. A long file at the end would leave one process
    at work alone.
    """
    last = 1_000

    def place(item: pytest.Item) -> int:
        mark = item.get_closest_marker("begins")
        return mark.args[0] if mark is not None else last

    items.sort(key=place)


def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Hand out whole files, because each process makes the fixtures of a file anew.

    The files that share an export go to one process together.
    """
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return re.sub(
                r"export/test_(merged|reopened|gguf)\.py", "export", super()._split_scope(nodeid)
            )

    return Scheduling(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_unconfigure() -> None:
    gc.unfreeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Write how long the tests of each folder took, in all processes together."""
    seconds: Counter[str] = Counter()
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            file = Path(report.nodeid.partition("::")[0])
            folder = file.parts[1].removesuffix(".py")
            seconds[folder] += report.duration
    slow = [f"{folder} {took:.0f} s" for folder, took in seconds.most_common() if took >= 1]
    terminalreporter.write_line(", ".join(slow))


@pytest.fixture(scope="session")
def embedded_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the converted embedded model in the user's cache, where the first use leaves it.

    One process converts it for all.
    """
    from grpo_nb.models.sources import embedded_model_folder

    made_once(tmp_path_factory, "embedded", lambda _: embedded_model_folder())
    return embedded_model_folder()


@pytest.fixture(scope="session")
def tiny_folder(embedded_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a tiny Llama (two narrow layers, random weights) with the embedded tokenizer.

    It takes the real code paths in a second.
    """
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    tokenizer = AutoTokenizer.from_pretrained(embedded_folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
    )
    folder = tmp_path_factory.mktemp("models") / "tiny"
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def displayed(monkeypatch: pytest.MonkeyPatch) -> list:
    """Outputs of a cell: ("display" or "update", bundle, metadata)."""
    shown: list = []

    def display(
        data: dict, *, raw: bool, display_id: bool, metadata: dict | None = None
    ) -> SimpleNamespace:
        assert raw
        assert display_id
        shown.append(("display", data, metadata))
        return SimpleNamespace(update=update)

    def update(data: dict, *, raw: bool, metadata: dict | None = None) -> None:
        assert raw
        shown.append(("update", data, metadata))

    monkeypatch.setattr("IPython.display.display", display)
    return shown


@pytest.fixture
def tiny_settings(tiny_folder: Path, tmp_path: Path) -> gn.Settings:
    """Settings for a run of seconds on the tiny model."""
    return gn.preset(
        "cpu",
        model=str(tiny_folder),
        max_steps=3,
        max_completion_length=12,
        learning_rate=5e-3,
        max_grad_norm=10.0,
        run_root=str(tmp_path / "runs"),
    )


def brevity(completions: list, **columns: object) -> list[float]:
    """A reward that a random model can earn: fewer words are better."""
    return [1 / (1 + len(c[-1]["content"].split())) for c in completions]


@pytest.fixture(scope="session")
def tiny_run(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> gn.runs.Run:
    """A finished run on the tiny model, with its model."""
    settings = gn.preset(
        "cpu",
        model=str(tiny_folder),
        max_steps=14,
        max_completion_length=12,
        learning_rate=2e-2,
        max_grad_norm=10.0,
        run_root=str(tmp_path_factory.mktemp("runs")),
    )
    model, tokenizer = gn.load_model(settings)
    task = gn.load_task("arithmetic", settings, train_size=20, holdout_size=10, tokenizer=tokenizer)
    return gn.train(model, tokenizer, task, [brevity, gn.rewards.xml_tags()], settings, name="tiny")


@pytest.fixture(scope="session")
def merged(tiny_run: gn.runs.Run, tmp_path_factory: pytest.TempPathFactory) -> Export:
    """Return the merged model of that run, in a folder whose name needs quoting.

    Tests that change the model copy it first.
    """
    from tests.support.checks import run_script_here

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("grpo_nb.export.export_folder.run_script", run_script_here)
        return gn.export_merged(tiny_run, tmp_path_factory.mktemp("it's an export") / "tiny")


@pytest.fixture
def checked_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check exports in this process, which has imported everything already.

    For tests that check several times. The notebooks 00 and 06 test the check in its own process.

    For tests of what a check says, and several times over. That it is made apart is tested by the
    exports of 00 and 05.
    """
    from tests.support.checks import run_script_here

    monkeypatch.setattr("grpo_nb.export.export_folder.run_script", run_script_here)


@pytest.fixture(scope="session", params=SIZES)
def size(request: pytest.FixtureRequest) -> str:
    """Size of the notebooks: "small" in `make test`, also "published" in `make test-all`."""
    return request.param


@pytest.fixture(scope="session")
def quickstart(
    size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, gn.runs.Run]:
    """`notebooks/00_quickstart`, executed once for all processes: (executed notebook, its run).

    As published with an empty cache, as by a first user; small, with the tiny model and one more
    reward, which it can earn.
    """

    def execute(folder: Path) -> object:
        if size == "small":
            changes = {
                "model": str(tiny_folder),
                "max_steps": 5,
                "per_device_train_batch_size": 8,
                "learning_rate": 2e-2,
                "max_grad_norm": 10.0,
            }
            last = "    gn.rewards.xml_tags(weight=0.5),\n"
            one_more = "    gn.rewards.length(60, unit='characters'),\n"
            more = {last: last + one_more}
            return execute_notebook("00_quickstart", folder, size, replaced=more, CHANGES=changes)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("GRPO_NB_CACHE", str(folder / "cache"))
            return execute_notebook("00_quickstart", folder, size)

    folder = made_once(tmp_path_factory, f"quickstart-{size}", execute)
    (run,) = (folder / "runs").glob("*/run.json")
    return executed_in(folder, "00_quickstart"), gn.open_run(run.parent)


@pytest.fixture(scope="session")
def your_data(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/03_your_data`.

    The small form trains the tiny model and ends by saying that two steps show no rise.
    """
    less = {
        "CHANGES": {"model": str(tiny_folder), "max_steps": 2, "per_device_train_batch_size": 8},
    }
    return execute_notebook(
        "03_your_data",
        tmp_path_factory.mktemp("your_data"),
        size,
        **(less if size == "small" else {}),
    )


@pytest.fixture(scope="session")
def grpo_by_hand(size: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/01_grpo_by_hand`, executed; small, with three steps at the end."""
    less = {"STEPS": 3} if size == "small" else {}
    return execute_notebook("01_grpo_by_hand", tmp_path_factory.mktemp("by_hand"), size, **less)


@pytest.fixture(scope="session")
def reward_lab(size: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/02_rewards`.

    The small form has fewer and smaller groups, and six held-out questions.
    """
    changes = {"num_generations": 4, "per_device_train_batch_size": 4}
    smaller = {"PROMPTS": 4, "STEPS": 2, "TASK": {"holdout": 6}, "CHANGES": changes}
    less = smaller if size == "small" else {}
    return execute_notebook("02_rewards", tmp_path_factory.mktemp("reward_lab"), size, **less)


@pytest.fixture(scope="session")
def train(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/04_train`.

    The small form uses the tiny model. Like the real one it writes no tag before training.
    """
    changes = {
        "model": str(tiny_folder),
        "per_device_train_batch_size": 8,
        "max_completion_length": 12,
        "save_steps": 2,
    }
    less = {"CHANGES": changes, "STEPS": 4} if size == "small" else {}
    return execute_notebook("04_train", tmp_path_factory.mktemp("train"), size, **less)


@pytest.fixture(scope="session")
def evaluate(
    size: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, gn.runs.Run]:
    """Execute `notebooks/05_evaluate`; return the executed notebook and its run.

    The small form works on a copy of the tiny model's run.
    """
    folder = tmp_path_factory.mktemp("evaluate")
    less = {}
    if size == "small":
        shutil.copytree(request.getfixturevalue("tiny_run").path, folder / "runs" / "tiny")
        less = {"RUN": "runs/tiny", "SAMPLES": 2, "QUESTIONS": 6}
    executed = execute_notebook("05_evaluate", folder, size, **less)
    (run,) = (folder / "runs").glob("*/run.json")
    return executed, gn.open_run(run.parent)


@pytest.fixture(scope="session")
def export(
    size: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Execute `notebooks/06_export`.

    The small form exports a run of the tiny model, in a tenth of the time.
    """
    folder = tmp_path_factory.mktemp("export")
    less = {}
    if size == "small":
        shutil.copytree(request.getfixturevalue("tiny_run").path, folder / "runs" / "tiny")
        less = {"RUN": "runs/tiny"}
    return execute_notebook("06_export", folder, size, **less)


@pytest.fixture(scope="session")
def code(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/09_code`, executed; small, with the tiny model, two steps and six questions."""
    changes = {"model": str(tiny_folder), "per_device_train_batch_size": 8}
    less = {"STEPS": 2, "HELD_OUT": 6, "CHANGES": changes} if size == "small" else {}
    return execute_notebook("09_code", tmp_path_factory.mktemp("code"), size, **less)


@pytest.fixture(scope="session")
def scale_out(
    size: str, plain_trl: Path, letters_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """Execute `notebooks/a2_scale_out`.

    The small form uses a run of the letters model, whose steps take no time.
    """
    folder = tmp_path_factory.mktemp("scale_out")
    less = {}
    if size == "small":
        rewards = [gn.rewards.length(10, unit="characters"), gn.rewards.xml_tags()]
        trained(letters_folder, folder / "runs", "letters", rewards=rewards, loss_type="bnpo")
        # Each start is ten seconds of imports in each process: tests/scaleout has the plan, and
        # what two of them replay.
        other = {
            f'print(start("train.py", {asked}))': "None"
            for asked in ('"--replay"', '"--plan", "--processes", "2"')
        }
        other |= {'start(*two_processes, "--replay")': 'start("train.py", "--replay")'}
        less = {"RUN": "runs/letters", "replaced": other}
    return execute_notebook("a2_scale_out", folder, size, **less)


@pytest.fixture(scope="session")
def algorithms(size: str, letters_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/a1_algorithms`.

    The small form trains the letters model once, with a reward that it can earn.
    """
    less: dict = {}
    if size == "small":
        replaced = {
            'gn.preset("cpu").model': repr(str(letters_folder)),
            '"max_completion_length": 48': '"max_completion_length": 24, "max_prompt_length": 1024',
            "rewards = [": "rewards = [gn.rewards.length(10, unit='characters')] or [",
        }
        less = {"PROMPTS": 4, "BATCH": 8, "PAIR": ["grpo"], "replaced": replaced}
    return execute_notebook("a1_algorithms", tmp_path_factory.mktemp("algorithms"), size, **less)


@pytest.fixture(scope="session")
def gsm8k(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`notebooks/a3_gsm8k_gpu`, executed on rows of the form of GSM8K: sums in words, few steps."""
    folder = tmp_path_factory.mktemp("gsm8k")
    for name, first in (("train", 2), ("test", 3)):
        rows = [(a, b) for a in range(first, 18, 2) for b in range(1, 7)]
        lines = [
            {
                "question": f"Ann has {a} pears and buys {b} more. How many pears has she?",
                "answer": f"{a} + {b} = <<{a}+{b}={a + b}>>{a + b}\n#### {a + b}",
            }
            for a, b in rows
        ]
        (folder / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))
    changes = {
        "max_steps": 3,
        "per_device_train_batch_size": 8,
        "learning_rate": 5e-4,
        "warmup_steps": 0,
    }
    changes |= {"model": str(tiny_folder)} if size == "small" else {}
    return execute_notebook(
        "a3_gsm8k_gpu",
        folder,
        size,
        CHANGES=changes,
        DATA="train.jsonl",
        TEST="test.jsonl",
        QUESTIONS=12,
        EXPORT_TO="merged",
    )


@pytest.fixture(scope="session")
def tools(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/07_tools`.

    The small form trains the tiny model for two steps, with few episodes before and after.
    """
    changes = {
        "model": str(tiny_folder),
        "max_steps": 2,
        "per_device_train_batch_size": 8,
        "holdout_every": 0,
    }
    less = {"CHANGES": changes, "HELD_OUT": 8, "LONGER": 4} if size == "small" else {}
    return execute_notebook("07_tools", tmp_path_factory.mktemp("tools"), size, **less)


@pytest.fixture(scope="session")
def judge(size: str, tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Execute `notebooks/08_judge`.

    The small form trains the tiny model for two steps; the judge's replies come from a cache.
    """
    folder = tmp_path_factory.mktemp("judge")
    changes = {"model": str(tiny_folder), "per_device_train_batch_size": 8}
    less = {
        "STEPS": 2,
        "CHANGES": changes,
        "replaced": {"list(task.holdout)": "list(task.holdout)[:4]"},
    }
    if size == "small":
        # To the forty labels and what was tried to fool it; the server is asked about the answers
        # after the training.
        shutil.copy(ROOT / "tests/data/judge_replies.jsonl", folder)
    return execute_notebook("08_judge", folder, size, **(less if size == "small" else {}))
