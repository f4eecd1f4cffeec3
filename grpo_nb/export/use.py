"""How to use an export elsewhere: the cell or command for each program, with its paths, ready to be pasted.

Each line says where it was run. Those that the tests of this repository run, they run as printed here; the others are written
after the programs' own documentation and need a GPU or a program that is not there.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from grpo_nb.core import Drawn, Part, Shown, bold, escaped
from grpo_nb.export.result import Export, export_of
from grpo_nb.models import resolve_model
from grpo_nb.settings import EMBEDDED_MODEL

_RUN = "run in the kit's tests, on a CPU"
_NOT_RUN = "not run by the kit's tests"
PORTS = {"transformers serve": 8000, "vLLM": 8000, "llama.cpp": 8080}


@dataclass(frozen=True, kw_only=True)
class Way:
    """One way to use an export."""

    name: str
    language: str
    """`python` or `sh`."""
    code: str
    needs: str
    """What has to be installed."""
    checked: str
    """Where it was run."""


@dataclass(frozen=True, repr=False)
class Ways(Shown):
    """Every way to use an export; shows itself as code to copy, and gives one by its name: `ways["llama.cpp"].code`."""

    export: Path
    ways: tuple[Way, ...]

    def __getitem__(self, name: str) -> Way:
        for way in self.ways:
            if way.name == name:
                return way
        raise KeyError(f"{name!r} is none of {[way.name for way in self.ways]}")

    def __iter__(self) -> Iterator[Way]:
        return iter(self.ways)

    def _parts(self) -> Iterator[Part]:
        for way in self.ways:
            yield bold(f"# {way.name} ({way.needs}; {way.checked})")
            yield Drawn(f"<pre style='user-select:all'>{escaped(way.code)}</pre>", f"{way.code}\n")


def inference_commands(export: Export | str | Path, messages: Sequence[Mapping[str, str]] | None = None) -> Ways:
    """Return the cells and commands that load an export in other programs and ask it a question.

    A model that was trained with a system prompt has to be asked with it; without `messages` the first held-out question of
    the run is asked, as in training.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or its folder.
        messages: What is asked: a chat, as `[{"role": "user", "content": "2 + 2?"}]`.

    >>> inference_commands(exported)["transformers serve"].code  # doctest: +SKIP
    'transformers serve exports/my-model --host 127.0.0.1 --port 8000'
    """
    export = export_of(export)
    if messages is not None and (
        not isinstance(messages, (list, tuple)) or not all(isinstance(message, Mapping) for message in messages)
    ):
        raise TypeError(f'messages = {messages!r:.60} is no chat: [{{"role": "user", "content": "2 + 2?"}}].')
    limit = export.run.settings.max_completion_length if export.run is not None else 256
    if messages is None:
        messages = export.run.holdout[0]["prompt"] if export.run is not None else [{"role": "user", "content": "Hello"}]
    lines = "".join(f"    {json.dumps(message, ensure_ascii=True)},\n" for message in messages)
    asked = f"messages = [\n{lines}]"
    makers = {"merged": _of_merged, "adapter": _of_adapter, "gguf": _of_gguf}
    return Ways(export.path, tuple(makers[export.kind](export, asked, limit)))


def _client(port: int, model: str, asked: str, limit: int, needs: str, checked: str) -> Way:
    code = (
        f"from openai import OpenAI\n\n{asked}\n"
        f'client = OpenAI(base_url="http://127.0.0.1:{port}/v1", api_key="not needed")\n'
        f"answer = client.chat.completions.create(\n    model={model!r}, messages=messages, max_tokens={limit}, "
        "temperature=0,\n)\nprint(answer.choices[0].message.content)"
    )
    return Way(
        name="openai client", language="python", code=code, needs=f"pip install openai, and {needs}", checked=checked
    )


def _pipeline(imports: str, asked: str, loaded: str, model: str, limit: int) -> str:
    return (
        f'{imports}\n\n{asked}\n{loaded}chat = pipeline("text-generation", {model})\n'
        f"answer = chat(messages, max_new_tokens={limit}, do_sample=False)\n"
        'print(answer[0]["generated_text"][-1]["content"])'
    )


def _of_merged(export: Export, asked: str, limit: int) -> list[Way]:
    folder = str(export.path)
    quoted = shlex.quote(folder)
    pipeline = _pipeline("from transformers import pipeline", asked, "", f"model={folder!r}", limit)
    port = PORTS["transformers serve"]
    return [
        Way(name="transformers", language="python", code=pipeline, needs="transformers, torch", checked=_RUN),
        Way(
            name="transformers serve", language="sh", needs="pip install 'transformers[serving]'", checked=_RUN,
            code=f"transformers serve {quoted} --host 127.0.0.1 --port {port}",
        ),
        Way(
            name="vLLM", language="sh", needs="pip install vllm, a GPU", checked=_NOT_RUN,
            code=f"vllm serve {quoted} --host 127.0.0.1 --port {PORTS['vLLM']}",
        ),
        _client(port, folder, asked, limit, "one of the two servers above", f"{_RUN}, against transformers serve"),
    ]  # fmt: skip


def _of_adapter(export: Export, asked: str, limit: int) -> list[Way]:
    folder, name = str(export.path), export.path.name
    base = export.verification["base"]
    # The embedded model is a folder of this machine's cache, and goes by the kit's own name.
    base = resolve_model(base) if base == EMBEDDED_MODEL else base
    loaded = (
        f"model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base!r}), {folder!r})\n"
        f"tokenizer = AutoTokenizer.from_pretrained({folder!r})\n"
    )
    imports = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer, pipeline"
    code = _pipeline(imports, asked, loaded, "model=model, tokenizer=tokenizer", limit)
    port = PORTS["vLLM"]
    served = (
        f"vllm serve {shlex.quote(base)} --enable-lora --lora-modules {shlex.quote(f'{name}={folder}')} --port {port}"
    )
    return [
        Way(name="peft", language="python", code=code, needs="peft, transformers, torch", checked=_RUN),
        Way(name="vLLM", language="sh", code=served, needs="pip install vllm, a GPU", checked=_NOT_RUN),
        _client(port, name, asked, limit, "the server above", _NOT_RUN),
    ]  # fmt: skip


def _of_gguf(export: Export, asked: str, limit: int) -> list[Way]:
    file, name, port = str(export.file), export.path.name.lower(), PORTS["llama.cpp"]
    server = (
        "import xllamacpp\n\nparams = xllamacpp.CommonParams()\n"
        f"params.model.path = {file!r}\nparams.hostnames, params.port = ['127.0.0.1'], {port}\n"
        "params.use_jinja = True  # the chat template that the file holds\n"
        "server = xllamacpp.Server(params)  # answers as long as this object is there"
    )
    # A name that Ollama takes (types/model/name.go): up to 80 ASCII letters, digits, "_", "-", "."; the last two not first.
    model = re.sub(r"[^a-z0-9_.-]+", "-", name).lstrip("-.")[:80] or "model"
    ollama = f"cd {shlex.quote(str(export.path))} && ollama create {model} -f Modelfile\nollama run {model}"
    modelfile = export.path / "Modelfile"
    is_without = modelfile.is_file() and "# No SYSTEM" in modelfile.read_text(encoding="utf-8")
    asking = "; the system prompt has to be sent with each question, as the Modelfile says" if is_without else ""
    return [
        Way(name="llama.cpp in Python", language="python", code=server, needs="pip install xllamacpp", checked=_RUN),
        Way(
            name="llama.cpp", language="sh", needs="llama.cpp", checked=_NOT_RUN,
            code=f"llama-server -m {shlex.quote(file)} --host 127.0.0.1 --port {port} --jinja",
        ),
        _client(port, name, asked, limit, "one of the two servers above", f"{_RUN}, against llama.cpp in Python"),
        Way(name="Ollama", language="sh", code=ollama, needs=f"Ollama{asking}", checked=_NOT_RUN),
    ]  # fmt: skip
