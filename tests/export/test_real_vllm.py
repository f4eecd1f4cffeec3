"""A merged folder served by a real vLLM, with the command that the kit prints, asked by the real client."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import grpo_nb as gn
from grpo_nb.export.result import Export
from grpo_nb.export.use import PORTS
from tests.export.test_use import ENVIRONMENT, free_port, run_cell, served
from tests.support.real_vllm import needs_vllm

pytestmark = [needs_vllm]


def test_vllm_serves_the_merged_folder(embedded_folder: Path, tmp_path: Path, monkeypatch) -> None:
    """The embedded model stands for a merged one: heads as narrow as those of the tests' own are not for vLLM on a CPU."""
    for name, value in (("VLLM_CPU_KVCACHE_SPACE", "1"), ("VLLM_NO_USAGE_STATS", "1")):
        monkeypatch.setitem(ENVIRONMENT, name, value)
    asked = [{"role": "user", "content": "What is the capital of France? Answer with its name."}]
    export = Export(embedded_folder, {"checks": {}}, "merged")
    ways, port = gn.export.inference_commands(export, asked), free_port()
    command = shlex.split(ways["vLLM"].code.replace(str(PORTS["vLLM"]), str(port)))
    assert command[:3] == ["vllm", "serve", str(embedded_folder)] and "127.0.0.1" in command
    command[0] = str(Path(sys.executable).with_name("vllm"))
    with served(command, f"http://127.0.0.1:{port}/health", tmp_path / "vllm.log"):
        printed = run_cell(ways["openai client"].code.replace(":8000/", f":{port}/"))
    assert "Paris" in printed
