"""Read an export: a folder whose verification.json has its checks, and the hash of every file."""

import dataclasses
import json
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter

from grpo_nb.config.settings import EMBEDDED_MODEL
from grpo_nb.core.files import refuse_links, resolved_target, safe_path, sha256_of
from grpo_nb.core.tables import Part, ReprMixin, Table, bold
from grpo_nb.core.words import displayable, shorten
from grpo_nb.models.sources import resolve_model
from grpo_nb.runs.run_folder import FIGURE_FILE, Run, open_run
from grpo_nb.runs.run_info import AnyText, OpenDict

VERIFICATION_FILE = "verification.json"
ADAPTER_FILE = "adapter_model.safetensors"
#: Files of an export that may be edited: the card and its figure.
EDITABLE = {"README.md", FIGURE_FILE}
#: Content of `verification.json`: the checks of an export, their measurements and its files.
Verification = dict[str, Any]
#: Most changed files that an error names.
MAX_SHOWN_CHANGES = 5


class VerificationFields(OpenDict):
    """Fields of `verification.json` that every export has."""

    kind: Literal["merged", "adapter", "gguf"]
    run: AnyText
    adapter: AnyText
    """SHA-256 of the run's adapter file."""
    sentence: AnyText
    checks: dict[str, Literal[True] | None]
    measured: dict
    files: dict


class AdapterFields(OpenDict):
    """Fields of PEFT's `adapter_config.json` that `Export.usage` reads."""

    base_model_name_or_path: str
    r: int


class ExportError(RuntimeError):
    """Raised if an export is not the trained model, or is damaged."""


@dataclass(frozen=True, repr=False)
class Export(ReprMixin):
    """A verified export. Shows itself as a table of its checks.

    Attributes:
        path: The folder.
        verification: Content of `verification.json`: `checks` (True if passed, None if not made),
            `measured` (the measurement of each check in words), `files` (size and hash of each).
        run: The run that was exported; None if the export was opened without it.
    """

    path: Path
    verification: Verification
    run: Run | None = dataclasses.field(default=None, compare=False)

    @property
    def kind(self) -> str:
        """Kind of the export: "merged", "adapter" or "gguf"."""
        return self.verification["kind"]

    @property
    def file(self) -> Path:
        """Path to give to other programs: the GGUF file, or the folder."""
        if self.kind != "gguf":
            return self.path
        # The verification can come from somebody else, so this name may lead out of the folder.
        return safe_path(self.path, self.verification.get("file"))

    @property
    def sentence(self) -> str:
        """Verification in words."""
        return self.verification["sentence"]

    @property
    def usage(self) -> str:
        """Shell commands that serve the export, one per program. Python code is in its README.md.

        Raises:
            ExportError: The adapter's configuration is missing or damaged, or the name of its base
                model starts with "-" or has characters that cannot be printed.

        >>> print(exported.usage)  # doctest: +SKIP
        """
        folder = shlex.quote(str(self.path))
        # Only programs on this machine may ask the server.
        address = "--host 127.0.0.1 --port 8000"
        if self.kind == "merged":
            return f"transformers serve {folder} {address}\nvllm serve {folder} {address}"
        if self.kind == "gguf":
            file = shlex.quote(str(self.file))
            # Older servers of llama.cpp run the chat template of the file only with --jinja.
            return (
                f"llama-server -m {file} {address} --jinja\n"
                f"cd {folder} && ollama create mine -f Modelfile && ollama run mine"
            )
        # An adapter can come from somebody else, so its texts must not become commands or options.
        file = self.path / "adapter_config.json"
        try:
            config = TypeAdapter(AdapterFields).validate_json(file.read_bytes(), strict=True)
        except (OSError, ValueError) as error:
            raise ExportError(
                f"{str(file)!r} is missing, or not what PEFT writes ({_reason(error)}). Export the "
                "adapter again, or get it again from whoever sent it."
            ) from error
        base = config["base_model_name_or_path"]
        if base.startswith("-") or not base.isprintable():
            raise ExportError(
                f"{str(self.path)!r} names the base model {base!r}, which starts with '-' or has "
                "characters that cannot be printed, so no command is made of it. Ask "
                "whoever sent it for the name of the base model."
            )
        # vLLM does not know grpo_nb's name for the embedded model, but can load its folder.
        if base == EMBEDDED_MODEL:
            base = resolve_model(base)
        # vLLM takes powers of two from 8 on, and its default limit is 16 (0.31, config/lora.py).
        rank = max(8, 2 ** (config["r"] - 1).bit_length())
        lora = f"--enable-lora --max-lora-rank {rank} --lora-modules mine={folder}"
        return f"vllm serve {shlex.quote(base)} {lora} {address}"

    def _shown_parts(self) -> Iterable[Part]:
        measured = self.verification["measured"]
        rows = []
        for name, passed in self.verification["checks"].items():
            rows.append(["✓ passed" if passed else "not made", name, measured.get(name, "")])
        yield bold(self.path)
        yield Table(rows, head=("result", "check", "measured"), narrow=(0,))
        yield self.sentence
        yield ".usage has the commands that serve it elsewhere."


def open_export(path: str | Path, *, run: Run | str | Path | None = None) -> Export:
    """Open an export from its folder and check that every file is as it was verified.

    Every file is hashed, which takes a few seconds for each gigabyte. No model is loaded. The card
    and its figure may be edited, and hidden files are not part of an export.

    Args:
        path: The folder.
        run: The run that was exported, or its folder. Only `gn.export_gguf` needs it.

    Raises:
        ExportError: The folder is missing or not an export, or a file is missing, was added or has
            changed since it was verified; the message names it.
        ValueError: There is a symbolic link, or the given run has another adapter than the one that
            was exported.

    >>> gn.export.open("exports/first")  # doctest: +SKIP
    """
    folder = resolved_target(path)
    verification = read_verification(folder)
    verified = verification["files"]
    current = sizes_and_hashes(folder)
    names = sorted((verified.keys() | current.keys()) - EDITABLE)
    changed_files = [name for name in names if current.get(name) != verified.get(name)]
    # A damaged folder can have hundreds of changes. The first ones show what happened.
    if changed_files:
        shown = ", ".join(changed_files[:MAX_SHOWN_CHANGES])
        raise ExportError(
            f"the export {str(path)!r} is not what was verified: since then, these files were "
            f"changed, added or removed: {shown}. The checks in its {VERIFICATION_FILE} do not "
            "hold for it. Export it again, or get it again from whoever sent it."
        )
    if run is not None:
        run = open_run(run)
        adapter_file = run.adapter_path / ADAPTER_FILE
        # The run may have been trained on since, or replaced by another one of its name.
        if not adapter_file.is_file() or sha256_of(adapter_file) != verification["adapter"]:
            raise ValueError(
                f"the run {run.name!r} has another adapter than the one in the export "
                f"{str(path)!r}, which was made from the run {verification['run']!r}. Pass that "
                "run, or leave run= out."
            )
    return Export(folder, verification, run)


def read_verification(folder: Path) -> Verification:
    """Read the verification of an export and check its fields.

    Raises:
        ExportError: `verification.json` is missing or damaged.
        ValueError: `verification.json` is a symbolic link.
    """
    file = safe_path(folder, VERIFICATION_FILE)
    try:
        verification = json.loads(file.read_text("utf-8"))
        return TypeAdapter(VerificationFields).validate_python(verification)
    except (OSError, ValueError, RecursionError) as error:
        raise ExportError(
            f"{str(folder)!r} is not an export: its {VERIFICATION_FILE} is missing, damaged or of "
            f"another version ({_reason(error)}). gn.export_merged(run, path) makes an export."
        ) from error


def _reason(error: Exception) -> str:
    """Return on one line why a JSON file could not be read."""
    # In the lines after these, pydantic names its website and thousands of other wrong fields.
    lines = displayable(str(error)).splitlines()[:3]
    return shorten(" ".join(map(str.strip, lines)), 500)


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files of an export by name, without `verification.json` and hidden files.

    Raises:
        ValueError: The folder holds a symbolic link.
    """
    refuse_links(folder)
    files = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder).as_posix()
        # Editors and the Hub's client leave hidden files, which no program loads.
        is_hidden = "/." in f"/{name}"
        if file.is_file() and not is_hidden and name != VERIFICATION_FILE:
            files[name] = file
    return files


def sizes_and_hashes(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of each file in `files_of`, by its name."""
    entries = {}
    for name, file in files_of(folder).items():
        entries[name] = {"bytes": file.stat().st_size, "sha256": sha256_of(file)}
    return entries
