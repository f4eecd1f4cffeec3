"""To the Hub, last and only when asked: one commit of a verified export, private by default, compared by hash afterwards.

The requests, their retries and their errors are huggingface_hub's, with the token that it finds itself.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_nb.core.files import shown_path
from grpo_nb.export.result import Export, ExportError, files_of, not_as_verified, read_json
from grpo_nb.runs.card import published_name

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# A file that unpickles runs code on the machine of whoever loads it.
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
_TEXTS = (".json", ".jsonl", ".md", ".txt", ".jinja", ".py", ".yaml", ".yml", "")
# Keys in the form that the Hub and other services give them, with enough after the prefix to be no placeholder.
_SECRET = re.compile(
    rb"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,}|gh[opsu]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|AKIA[A-Z0-9]{16}"
    rb"|AIza[A-Za-z0-9_-]{35}|xox[abp]-[A-Za-z0-9-]{20,})"
)
# The Hub adds this one itself.
_OF_THE_HUB = {".gitattributes"}


class NotPushable(ValueError):
    """The export, or the repository, is not what may be pushed or pushed to; nothing was sent."""


def push_problems(export: Export | str | Path) -> list[str]:
    """Say what speaks against a push of an export: empty if nothing does. Asks nobody.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or the path of its folder.

    Raises:
        FileNotFoundError: No such folder.
    """
    folder = _folder(export)
    return list(_problems(folder, files_of(folder)))


def _folder(export: Export | str | Path) -> Path:
    folder = Path(getattr(export, "path", export)).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{str(folder)!r} is no folder of an export: make one with gn.export_merged(run, path)."
        )
    return folder


def holds_secret(files: dict[str, Path], token: str | None = None) -> list[str]:
    """Return the names of text files that hold this token, or something in the form of a key."""
    texts = {name: file.read_bytes() for name, file in files.items() if file.suffix.lower() in _TEXTS}
    return [name for name, text in texts.items() if _SECRET.search(text) or (token and token.encode() in text)]


def _problems(folder: Path, files: dict[str, Path]) -> Iterator[str]:
    held = {}
    for name in ("verification.json", "adapter_config.json"):
        try:
            held[name] = read_json(files[name]) if name in files else {}
        except ExportError as error:
            yield str(error)
    verification = held.get("verification.json", {})
    if verification.get("passed") is not True:
        failed = "; ".join(name for name, ok in verification.get("checks", {}).items() if not ok)
        yield f"its verification.json does not say that it was verified ({failed or 'nothing'}). Export it again."
    elif others := not_as_verified(folder, verification):
        yield f"not as it was verified: {'; '.join(others)}. Export it again."
    if pickles := [name for name in files if name.lower().endswith(_PICKLES)]:
        yield f"{', '.join(pickles)}: such files can run code when they are loaded. Take them out."
    if outside := [name for name, file in files.items() if not file.resolve().is_relative_to(folder.resolve())]:
        yield f"{', '.join(outside)}: links to files outside of the export. Take them out."
    base = held.get("adapter_config.json", {}).get("base_model_name_or_path")
    if base is not None and published_name(base) is None:
        yield (
            f"adapter_config.json names the base model {base!r}, whose weights are in no repository. Push the merged model, or "
            "the base too, and write its name on the Hub there."
        )
    if secrets := holds_secret(files):
        yield f"{', '.join(secrets)}: holds what looks like an access token or key. Take it out, and revoke it."


def push_to_hub(
    export: Export | str | Path,
    repo_id: str,
    *,
    private: bool = True,
    overwrite: bool = False,
    message: str = "Upload a verified export",
) -> str:
    """Send an export to the Hub in one commit, and compare what is there then with what is here.

    Called again after a failure, it goes on: files that arrived are not sent twice. The token is the one of `hf auth login`, or
    of the variable HF_TOKEN, with the right to write.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or the path of its folder.
        repo_id: `user/name`; made if it is not there.
        private: Whether only you can read it. A repository that is there keeps what it has; one that is public is refused
            as long as this is true.
        overwrite: Replace what is in the repository. The commits before stay in its history.
        message: Of the commit.

    Returns:
        Where it is.

    Raises:
        NotPushable: Something in the folder or the repository speaks against it; nothing was sent.
        ExportError: What arrived is not what is here.

    >>> push_to_hub(export, "me/my-model")  # doctest: +SKIP
    """
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi, get_token

    if problems := push_problems(export):
        raise NotPushable(f"{shown_path(_folder(export))} is not pushed:\n" + "\n".join(f"- {p}" for p in problems))
    folder = _folder(export)
    files = files_of(folder)
    if found := holds_secret(files, get_token()):
        raise NotPushable(f"nothing was sent: {', '.join(found)} holds your token. Take it out, then push again.")
    if not isinstance(private, bool):  # who writes "yes" or 0 may mean either
        raise TypeError(f"private = {private!r} must be True or False.")
    api = HfApi()
    # Asked first: who may only read gets another answer from the Hub than that it is there.
    if not api.repo_exists(repo_id):
        api.create_repo(repo_id, private=private)
    info = api.model_info(repo_id)
    if private and not info.private:
        raise NotPushable(
            f"{repo_id} is public, and a private one was asked for. Make it private on its page, choose another name, or say "
            "private=False."
        )
    missing, changed, more = _differences(api, repo_id, info.sha, folder, files)
    if (changed or more) and not overwrite:
        raise NotPushable(
            f"{repo_id} holds other content ({', '.join(sorted(changed | more)[:5])}). Choose another name, or say "
            "overwrite=True: the commits before stay in its history."
        )
    if missing or changed or more:
        operations = [CommitOperationAdd(name, str(files[name])) for name in sorted(missing | changed)]
        operations += [CommitOperationDelete(path_in_repo=name) for name in sorted(more)]
        # One commit, which `upload_folder` does not promise; the parent makes it fail if somebody else's came meanwhile.
        done = api.create_commit(repo_id, operations, commit_message=message, parent_commit=info.sha)
        if wrong := set().union(*_differences(api, repo_id, done.oid, folder, files)):
            raise ExportError(f"{repo_id} is not what is here: {', '.join(sorted(wrong))} differ. Push again.")
    return f"{api.endpoint}/{repo_id}"


def _differences(
    api: HfApi, repo_id: str, commit: str | None, folder: Path, files: dict[str, Path]
) -> tuple[set[str], set[str], set[str]]:
    """Names of files that are only here, that are not the same by hash, and that are only in the repository."""
    found = api.verify_repo_checksums(repo_id, revision=commit, local_dir=folder)
    changed = {file["path"] for file in found.mismatches}
    return set(found.extra_paths) & files.keys(), changed, set(found.missing_paths) - _OF_THE_HUB
