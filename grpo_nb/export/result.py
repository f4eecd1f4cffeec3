"""What an export is: a folder whose verification.json has its kind, the checks it passed, and size and hash of every file."""

from __future__ import annotations

import dataclasses
import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config.settings import EMBEDDED_MODEL, Settings
from grpo_nb.core.files import inside, refuse_links, sha256_of, target_of
from grpo_nb.core.tables import Part, Shown, Table, bold, code, verdict
from grpo_nb.models.sources import resolve_model
from grpo_nb.runs.rows import parse_json
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.runs.run_info import Field, check_fields

if TYPE_CHECKING:
    import pandas

Report = Callable[[str], None]
RECORD, ADAPTER = "verification.json", "adapter_model.safetensors"
EDITABLE = {"README.md", "figures/training.png"}
"""Files of an export that one may change: the card and its figure."""


KINDS = ("merged", "adapter", "gguf")
_SHOWN_NAMES = 5


class ExportError(RuntimeError):
    """An export that is not the trained model, or is damaged. One that was being made is not kept."""


@dataclass(frozen=True, repr=False)
class Export(Shown):
    """A verified export. Shows itself as a table of its checks."""

    path: Path
    """The folder."""
    verification: Mapping[str, Any]
    """`checks`: each check and whether it passed, None where it was not made; `measured`: what was found, in words; `files`."""
    run: Run | None = dataclasses.field(default=None, compare=False)
    """The run that it is of."""

    @property
    def kind(self) -> str:
        """`merged`, `adapter` or `gguf`."""
        return self.verification["kind"]

    @property
    def file(self) -> Path:
        """What other programs are given: the GGUF file, or the folder."""
        return inside(self.path, self.verification["file"]) if self.kind == "gguf" else self.path

    @property
    def sentence(self) -> str:
        """The verification in words."""
        return self.verification["sentence"]

    @property
    def table(self) -> pandas.DataFrame:
        """The checks: name, whether it passed (None: it was not made), what was measured."""
        import pandas

        measured = self.verification["measured"]
        rows = [
            (name, passed, measured.get(name, ""))
            for name, passed in self.verification["checks"].items()
        ]
        return pandas.DataFrame(rows, columns=["check", "passed", "measured"], dtype=object)

    @property
    def usage(self) -> str:
        """The cell that asks the export as it was asked in training, and behind it, as comments, the lines for a shell.

        A model that was trained with a system prompt has to be asked with it; without its run it is asked "Hello".

        >>> print(exported.usage)  # doctest: +SKIP
        """
        run, folder, base, at = self.run, str(self.path), str(self.path), "--host 127.0.0.1 --port"
        if self.kind == "adapter":
            base = json.loads((self.path / "adapter_config.json").read_text())[
                "base_model_name_or_path"
            ]
            base = resolve_model(base) if base == EMBEDDED_MODEL else base
        messages = (
            run.holdout[0]["prompt"] if run is not None else [{"role": "user", "content": "Hello"}]
        )
        limit = run.settings.max_completion_length if run is not None else 256
        chat = run.chat_template_kwargs if run is not None else {}
        how = f"max_new_tokens={limit}, do_sample=False" + (
            f", tokenizer_encode_kwargs={chat!r}" if chat else ""
        )
        cell = [
            "from transformers import pipeline",
            "",
            "messages = [",
            *(f"    {m!r}," for m in messages),
            "]",
        ]
        cell.append(f'chat = pipeline("text-generation", model={base!r}, tokenizer={folder!r})')
        cell.append(f'print(chat(messages, {how})[0]["generated_text"][-1]["content"])')
        file, quoted = shlex.quote(str(self.file)), shlex.quote(folder)
        if self.kind == "adapter":
            cell.insert(-1, f"chat.model.load_adapter({folder!r})")
            # vLLM takes powers of two from 8 on, and refuses what is above its default of 16 (0.31, config/lora.py).
            rank = max(8, 2 ** (self.verification["rank"] - 1).bit_length())
            lora = f"--enable-lora --max-lora-rank {rank} --lora-modules mine={quoted}"
            shell = [f"vllm serve {shlex.quote(base)} {lora} {at} 8000"]
        elif self.kind == "merged":
            shell = [f"transformers serve {quoted} {at} 8000", f"vllm serve {quoted} {at} 8000"]
        else:
            cell = [
                "import xllamacpp",
                "",
                "params = xllamacpp.CommonParams()",
                "params.use_jinja = True",
            ]
            cell += [
                f"params.model.path = {str(self.file)!r}",
                "params.hostnames, params.port = ['127.0.0.1'], 8080",
            ]
            cell += ["server = xllamacpp.Server(params)  # answers as long as this object is there"]
            shell = [f"llama-server -m {file} {at} 8080 --jinja"]
            shell += [f"cd {quoted} && ollama create mine -f Modelfile && ollama run mine"]
        return "\n".join(
            [
                *cell,
                "",
                "# As a program of its own, from a shell:",
                *(f"# {line}" for line in shell),
            ]
        )

    def _parts(self) -> Iterable[Part]:
        words = {True: "✓ passed", False: "✗ FAILED", None: "not made"}
        rows = [
            (verdict(ok is not False, words[ok]), name, said)
            for name, ok, said in self.table.to_numpy()
        ]
        table = Table(rows, head=("result", "check", "measured"), wide=(2,))
        return (
            bold(self.path),
            table,
            self.sentence,
            code("print(exported.usage)  # how to use it elsewhere"),
        )


def open_export(path: str | Path, *, run: Run | str | Path | None = None) -> Export:
    """Open an export again from its folder: what it is, what was verified, and the run that it is of. Loads no model.

    Args:
        path: The folder.
        run: Its run, or the run's folder. If not given, that of its name in `runs/`, where it still has the same adapter.

    Raises:
        FileNotFoundError: No such folder.
        ExportError: It is no export, or a file of it is missing, was added, or changed since it was verified; says which.
        ValueError: It names a file outside of its folder, or holds a symbolic link.

    Every file is hashed, which takes a few seconds for each gigabyte.

    >>> gn.export.open("exports/first")  # doctest: +SKIP
    """
    folder = export_folder(path)
    verification = read_verification(folder)
    if changes := changes_since_verified(folder, verification):
        shown = "; ".join(changes[:_SHOWN_NAMES])
        more = f"; and {len(changes) - _SHOWN_NAMES} more" if len(changes) > _SHOWN_NAMES else ""
        raise ExportError(
            f"the export {str(path)!r} is not what was verified: {shown}{more}. What its record says of checks that passed "
            "does not hold for it. Export it again, or get it again from whoever sent it."
        )
    return Export(folder, verification, _run_of(verification) if run is None else open_run(run))


def export_folder(export: Export | str | Path) -> Path:
    """Return the folder of an export.

    Raises:
        FileNotFoundError: There is no such folder.
    """
    path = export.path if isinstance(export, Export) else export
    folder = target_of(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path)!r} (looked in {Path.cwd()}).")
    return folder


def read_verification(folder: Path) -> dict[str, Any]:
    """Read the record of an export and check its fields.

    Raises:
        ExportError: It is missing or damaged.
        ValueError: It is a symbolic link.
    """
    record = inside(folder, RECORD)
    try:
        verification = parse_json(record.read_text("utf-8"))
        check_fields(RECORD, verification, _FIELDS)
        if verification["kind"] == "gguf":
            check_fields(RECORD, verification, {"file": _TEXT})
        if verification["kind"] == "adapter":
            check_fields(RECORD, verification, {"rank": _SIZE})
        for name, entry in verification["files"].items():
            check_fields(f"the entry of {name!r}", entry, {"bytes": _SIZE, "sha256": _TEXT})
    except (OSError, ValueError) as error:
        raise ExportError(
            f"{str(folder)!r} is no export: its {RECORD} is missing, damaged or of another version ({error}). Make one with "
            "gn.export_merged(run, path)."
        ) from error
    return verification


def changes_since_verified(folder: Path, verification: Mapping[str, Any]) -> list[str]:
    """Compare size and SHA-256 of every file of an export with its record, and return in words what is not the same.

    The card and its figure may be edited, and hidden files are not part of an export.

    Raises:
        ValueError: The folder holds a symbolic link, or the record names a file outside of it.
    """
    recorded = verification["files"]
    recorded_paths = {name: inside(folder, name) for name in recorded}
    refuse_links(folder)
    changes = []
    for name, entry in recorded.items():
        file = recorded_paths[name]
        if name in EDITABLE:
            continue
        if not file.is_file():
            changes.append(f"{name} is missing")
        # The size first: most damage shows there, without reading gigabytes.
        elif file.stat().st_size != entry["bytes"] or sha256_of(file) != entry["sha256"]:
            changes.append(f"{name} has changed since it was verified")
    known = {*recorded, *EDITABLE}
    changes += [
        f"{name} was added since it was verified" for name in files_of(folder) if name not in known
    ]
    return changes


_TEXT = Field(lambda value: isinstance(value, str), "a text")
_SIZE = Field(
    lambda value: isinstance(value, int) and not isinstance(value, bool) and value >= 0,
    "a whole number",
)
_OBJECT = Field(lambda value: isinstance(value, dict), "an object")
_CHECKS = Field(
    lambda value: (
        isinstance(value, dict) and all(passed in (True, False, None) for passed in value.values())
    ),
    "an object of true, false and null",
)
_FIELDS = {
    "kind": Field(lambda value: value in KINDS, f"one of {', '.join(KINDS)}"),
    "run": _TEXT,
    "adapter": _TEXT,
    "sentence": _TEXT,
    "checks": _CHECKS,
    "measured": _OBJECT,
    "files": _OBJECT,
}


def _run_of(verification: Mapping[str, Any]) -> Run | None:
    """The run of that name in `runs/`, if its adapter is the one that was exported."""
    folder = inside(Path(Settings().run_root), verification["run"])
    file = folder / "adapter" / ADAPTER
    is_its = (
        (folder / "run.json").is_file()
        and file.is_file()
        and sha256_of(file) == verification["adapter"]
    )
    return open_run(folder) if is_its else None


def export_of(export: Export | str | Path) -> Export:
    """Return the export that is meant, opened if it is a folder."""
    return export if isinstance(export, Export) else open_export(export)


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files of an export by their names in the repository; hidden ones are not part of it.

    Raises:
        ValueError: One is a link to a place outside.
    """
    names = sorted(file.relative_to(folder) for file in folder.rglob("*") if file.is_file())
    shown = [
        name
        for name in names
        if not any(part.startswith(".") or part == "__pycache__" for part in name.parts)
    ]
    return {
        name.as_posix(): inside(folder, name.as_posix())
        for name in shown
        if name.as_posix() != RECORD
    }


def recorded_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of every file of an export by its name, but of the record itself."""
    return {
        name: {"bytes": f.stat().st_size, "sha256": sha256_of(f)}
        for name, f in files_of(folder).items()
    }


def require_passed(verification: Mapping[str, Any], what: str) -> None:
    """Raise `ExportError` that names each failed check with what was measured, if there is one."""
    measured = verification["measured"]
    failed = [
        f"{name} ({measured.get(name, '')})"
        for name, ok in verification["checks"].items()
        if ok is False
    ]
    if failed:
        raise ExportError(
            f"{what} is not the trained one, so it was not kept. Failed: {'; '.join(failed)}."
        )
