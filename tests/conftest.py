"""Hooks of the whole suite, and the fixtures that every folder may use: two small models."""

from __future__ import annotations

import gc
import itertools
import os
import re
import signal
from collections import Counter
from pathlib import Path
from types import SimpleNamespace

import pytest

# No test asks the Hub. The variable is read when huggingface_hub is imported.
os.environ.setdefault("HF_HUB_OFFLINE", "1")

from tests.support.shared import made_once

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
    from grpo_nb.models.unsloth_import import import_unsloth
    from tests.support.warm_kernel import open_nursery

    import_unsloth()
    open_nursery()
    gc.freeze()
    gc.enable()
    config.pluginmanager.import_plugin("tests.run_fixtures")


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


def pytest_collection_finish() -> None:
    """Spare the tests from every later search for garbage, as the imports above.

    The tests of the whole suite are 200,000 objects, which take a fifth of a second each time.
    """
    gc.collect()
    gc.freeze()


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
