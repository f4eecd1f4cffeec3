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

from grpo_nb.core.tables import Html, Part, Shown, bold, escaped
from grpo_nb.export.result import Export, base_of, export_of

_RUN = "run in the kit's tests, on a CPU"
_CHAT = [{"role": "user", "content": "2 + 2?"}]
_NOT_RUN = "not run by the kit's tests"
PORTS = {"transformers serve": 8000, "vLLM": 8000, "llama.cpp": 8080}


@dataclass(frozen=True)
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
            yield Html(f"{way.code}\n", f"<pre style='user-select:all'>{escaped(way.code)}</pre>")


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
    limit = export.run.settings.max_completion_length if export.run is not None else 256
    if messages is None:
        messages = export.run.holdout[0]["prompt"] if export.run is not None else [{"role": "user", "content": "Hello"}]
    lines = "".join(f"    {json.dumps(message, ensure_ascii=True)},\n" for message in messages)
    values = {"folder": str(export.path), "name": export.path.name, "asked": f"messages = [\n{lines}]", "limit": limit}
    values |= {"file": str(export.file), "base": "", "asking": "", "rendering": "", "body": ""}
    if export.run is not None and (chat := export.run.chat_template_kwargs):  # asked as it was trained
        values |= {"rendering": f", tokenizer_encode_kwargs={chat!r}"}
        values |= {"body": f" extra_body={ {'chat_template_kwargs': chat}!r},"}
    if export.kind == "adapter":
        values["base"] = base_of(export.path, export.verification)
    if export.kind == "gguf":
        values["name"] = export.path.name.lower()
        # A name that Ollama takes (types/model/name.go): up to 80 ASCII letters, digits, "_", "-", "."; the last two not first.
        values["model"] = re.sub(r"[^a-z0-9_.-]+", "-", values["name"]).lstrip("-.")[:80] or "model"
        modelfile = export.path / "Modelfile"
        if modelfile.is_file() and "# No SYSTEM" in modelfile.read_text(encoding="utf-8"):
            values["asking"] = "; the system prompt has to be sent with each question, as the Modelfile says"
    quoted = {f"sh_{key}": shlex.quote(str(values[key])) for key in ("folder", "file", "base")}
    values |= quoted | {"sh_module": shlex.quote(f"{values['name']}={values['folder']}")}
    return Ways(export.path, tuple(Way(*(part.format_map(values) for part in way)) for way in _WAYS[export.kind]))


def _pipeline(imports: str, loaded: str, model: str) -> str:
    return (
        f'{imports}\n\n{{asked}}\n{loaded}chat = pipeline("text-generation", {model})\n'
        "answer = chat(messages, max_new_tokens={limit}, do_sample=False{rendering})\n"
        'print(answer[0]["generated_text"][-1]["content"])'
    )


def _client(port: int, model: str, needs: str, checked: str) -> tuple[str, ...]:
    code = (
        f"from openai import OpenAI\n\n{{asked}}\n"
        f'client = OpenAI(base_url="http://127.0.0.1:{port}/v1", api_key="not needed")\n'
        f"answer = client.chat.completions.create(\n    model={{{model}!r}}, messages=messages, max_tokens={{limit}}, "
        "temperature=0,{body}\n)\nprint(answer.choices[0].message.content)"
    )
    return "openai client", "python", code, f"pip install openai, and {needs}", checked


_SERVE, _VLLM, _LLAMA = PORTS["transformers serve"], PORTS["vLLM"], PORTS["llama.cpp"]
_LOADED = (
    "model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained({base!r}), {folder!r})\n"
    "tokenizer = AutoTokenizer.from_pretrained({folder!r})\n"
)
_PEFT = "from peft import PeftModel\nfrom transformers import AutoModelForCausalLM, AutoTokenizer, pipeline"
_SERVER = (
    "import xllamacpp\n\nparams = xllamacpp.CommonParams()\n"
    f"params.model.path = {{file!r}}\nparams.hostnames, params.port = ['127.0.0.1'], {_LLAMA}\n"
    "params.use_jinja = True  # the chat template that the file holds\n"
    "server = xllamacpp.Server(params)  # answers as long as this object is there"
)
_TWO, _GPU = "one of the two servers above", "pip install vllm, a GPU"
# Of each kind of export the fields of `Way`, in which names in braces are put in.
_WAYS = {
    "merged": (
        ("transformers", "python", _pipeline("from transformers import pipeline", "", "model={folder!r}"),
         "transformers, torch", _RUN),
        ("transformers serve", "sh", f"transformers serve {{sh_folder}} --host 127.0.0.1 --port {_SERVE}",
         "pip install 'transformers[serving]'", _RUN),
        ("vLLM", "sh", f"vllm serve {{sh_folder}} --host 127.0.0.1 --port {_VLLM}", _GPU, f"{_RUN}, where vLLM is there"),
        _client(_SERVE, "folder", _TWO, f"{_RUN}, against transformers serve"),
    ),
    "adapter": (
        ("peft", "python", _pipeline(_PEFT, _LOADED, "model=model, tokenizer=tokenizer"), "peft, transformers, torch", _RUN),
        ("vLLM", "sh", "vllm serve {sh_base} --enable-lora --lora-modules {sh_module} "
         f"--host 127.0.0.1 --port {_VLLM}", _GPU, _NOT_RUN),
        _client(_VLLM, "name", "the server above", _NOT_RUN),
    ),
    "gguf": (
        ("llama.cpp in Python", "python", _SERVER, "pip install xllamacpp", _RUN),
        ("llama.cpp", "sh", f"llama-server -m {{sh_file}} --host 127.0.0.1 --port {_LLAMA} --jinja", "llama.cpp", _NOT_RUN),
        _client(_LLAMA, "name", _TWO, f"{_RUN}, against llama.cpp in Python"),
        ("Ollama", "sh", "cd {sh_folder} && ollama create {model} -f Modelfile\nollama run {model}", "Ollama{asking}",
         _NOT_RUN),
    ),
}  # fmt: skip
