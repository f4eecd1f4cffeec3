"""What of an export would go to the Hub, and what speaks against it; found out without asking the Hub anything."""

from __future__ import annotations

import html
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.core import shown_path
from grpo_nb.runs import published_name

# A file that unpickles runs code on the machine of whoever loads it.
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
_WEIGHTS = (".safetensors", ".gguf")
_TEXTS = (".json", ".jsonl", ".md", ".txt", ".jinja", ".py", ".yaml", ".yml", "")
# Keys in the form that the Hub and other services give them, with enough after the prefix to be no placeholder.
_SECRET = re.compile(rb"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,}|ghp_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16})\b")
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")


class NotPushable(ValueError):
    """The export cannot go to the Hub as it is; nothing was sent."""


@dataclass(frozen=True, kw_only=True)
class PushPlan:
    """The files that a push would send, and what speaks against it. Made without any request."""

    folder: Path
    repo_id: str
    private: bool
    files: dict[str, int]
    """Bytes by name in the repository."""
    problems: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """The plan in words."""
        size = sum(self.files.values()) / 1e6
        who = "private: only you and who you let in" if self.private else "PUBLIC: everybody can read it"
        return f"{len(self.files)} files, {size:.1f} MB, would go to {self.repo_id} ({who})."

    def require(self) -> None:
        """Raise what speaks against the push.

        Raises:
            NotPushable: With every problem.
        """
        if self.problems:
            raise NotPushable(
                f"{shown_path(self.folder)} is not pushed:\n" + "\n".join(f"- {p}" for p in self.problems)
            )

    def __repr__(self) -> str:
        lines = [self.sentence, *(f"  {size / 1e6:10.1f} MB  {name}" for name, size in self.files.items())]
        return "\n".join([*lines, *(f"PROBLEM: {problem}" for problem in self.problems)])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td style='text-align:left'>{html.escape(name)}</td><td>{size / 1e6:.1f} MB</td></tr>"
            for name, size in self.files.items()
        )
        problems = "".join(f"<p><b>Problem:</b> {html.escape(problem)}</p>" for problem in self.problems)
        return f"<p>{html.escape(self.sentence)}</p>{problems}<table>{rows}</table>"


def plan_push(export: Any, repo_id: str, *, private: bool = True, unverified: bool = False) -> PushPlan:
    """Say what `push_to_hub` would send and what speaks against it, without a request and without a token.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or the path of its folder.
        repo_id: `user/name`.
        private: Who can read it.
        unverified: Do not count it as a problem that the export was not verified.

    Raises:
        ValueError: A name that the Hub does not take.
        FileNotFoundError: No such folder.
    """
    check_name(repo_id)
    folder = Path(getattr(export, "path", export)).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{str(folder)!r} is no folder of an export: make one with gn.export_merged(run, path)."
        )
    files = files_of(folder)
    problems = [*_missing(folder, files, unverified), *_unwanted(folder, files), *_card_problems(folder)]
    sizes = {name: file.stat().st_size for name, file in files.items()}
    return PushPlan(folder=folder, repo_id=repo_id, private=private, files=sizes, problems=tuple(problems))


def check_name(repo_id: str) -> None:
    """Check a repository's name as huggingface_hub does, and that it says whose it is.

    Raises:
        ValueError: With what is wrong.

    >>> check_name("me/my-model")
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"repo_id = {repo_id!r} is no name that the Hub takes: {error}") from None
    if repo_id.count("/") != 1:
        raise ValueError(f"repo_id = {repo_id!r} must say whose it is, as 'user/name'.")


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files of an export by their names in the repository, largest last; hidden ones are not part of it."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in name.parts):
            found[name.as_posix()] = file
    return dict(sorted(found.items(), key=lambda item: item[1].stat().st_size))


def verification_of(folder: Path) -> dict[str, Any] | None:
    """Return what `verification.json` of an export says, or None if it was not verified."""
    file = folder / "verification.json"
    if not file.is_file():
        return None
    try:
        found = json.loads(file.read_text("utf-8"))
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


def holds_secret(files: dict[str, Path], token: str | None = None) -> list[str]:
    """Return the names of text files that hold this token, or something in the form of a key."""
    wanted = token.encode() if token else None
    found = []
    for name, file in files.items():
        if file.suffix.lower() not in _TEXTS:
            continue
        content = file.read_bytes()
        if _SECRET.search(content) or (wanted is not None and wanted in content):
            found.append(name)
    return found


def _missing(folder: Path, files: dict[str, Path], unverified: bool) -> list[str]:
    problems = []
    if not any(name.endswith(_WEIGHTS) for name in files):
        problems.append("it holds no weights (.safetensors or .gguf).")
    if not unverified:
        verification = verification_of(folder)
        if verification is None:
            problems.append(
                "it was not verified: it has no verification.json. Export it again, or say unverified=True."
            )
        elif verification.get("passed") is not True:
            failed = [name for name, ok in verification.get("checks", {}).items() if not ok]
            problems.append(
                f"its verification did not pass ({'; '.join(failed) or 'no reason given'}). Export it again."
            )
    return problems


def _unwanted(folder: Path, files: dict[str, Path]) -> list[str]:
    problems = []
    pickles = [name for name in files if name.lower().endswith(_PICKLES)]
    if pickles:
        problems.append(f"{', '.join(pickles)}: such files can run code when they are loaded. Take them out.")
    outside = [name for name, file in files.items() if not file.resolve().is_relative_to(folder.resolve())]
    if outside:
        problems.append(f"{', '.join(outside)}: links to files outside of the export. Take them out.")
    config = files.get("adapter_config.json")
    base = json.loads(config.read_text("utf-8")).get("base_model_name_or_path") if config is not None else None
    if base is not None and published_name(base) is None:
        problems.append(
            f"adapter_config.json names the base model {base!r}, which only this machine has. Write its name on the Hub "
            "there, or push the merged model."
        )
    secrets = holds_secret(files)
    if secrets:
        problems.append(
            f"{', '.join(secrets)}: holds what looks like an access token or key. Take it out, and revoke it."
        )
    return problems


def _card_problems(folder: Path) -> list[str]:
    """Check the card with huggingface_hub's own parser, and that it shows no image that is not there."""
    from huggingface_hub import ModelCard

    card = folder / "README.md"
    if not card.is_file():
        return ["it has no model card (README.md)."]
    text = card.read_text("utf-8")
    problems = []
    try:
        if not ModelCard(text).data.to_dict():
            problems.append("its model card has no metadata: write it with grpo_nb.runs.card.write_export_card.")
    except Exception as error:  # whatever YAML or the parser object to, the Hub would too
        problems.append(f"the metadata of its model card cannot be read: {error}")
    lost = [path for path in _IMAGE.findall(text) if "://" not in path and not (folder / path).is_file()]
    if lost:
        problems.append(f"its model card shows {', '.join(lost)}, which is not there.")
    return problems
