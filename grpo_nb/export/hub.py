"""Push a verified export to the Hub, after a check of every file.

Requests, retries, checksums of what is sent, the token and error messages of the Hub come from
huggingface_hub.
"""

import glob
import re
from collections.abc import Mapping
from pathlib import Path

from grpo_nb.core.files import resolved_target
from grpo_nb.export.saved_export import (
    VERIFICATION_FILE,
    Export,
    ExportError,
    files_of,
    open_export,
)
from grpo_nb.runs.card import is_hub_name

TEXT_SUFFIXES = (".json", ".jsonl", ".md", ".txt", ".jinja", ".py", ".yaml", ".yml", "")
#: Keys of the Hub and of other services. Placeholders are shorter.
SECRET = re.compile(
    rb"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,}|gh[opsu]_[A-Za-z0-9]{30,}"
    rb"|github_pat_[A-Za-z0-9_]{30,}|AKIA[A-Z0-9]{16}|AIza[A-Za-z0-9_-]{35}"
    rb"|xox[abp]-[A-Za-z0-9-]{20,})"
)
#: Most files of a repository that an error names.
MAX_SHOWN_FILES = 5


class PushError(ValueError):
    """Raised, before any file is sent, if the export or the repository is not fit for a push."""


def push_problems(export: Export | str | Path) -> list[str]:
    """Return the reasons not to push an export; empty if there are none.

    Every file is hashed. No request is made.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or the path of its folder.
    """
    from huggingface_hub import get_token

    # A damaged export is a reason not to push it, like any other.
    try:
        opened = open_export(folder_of(export))
    except (ExportError, ValueError) as error:
        return [str(error)]
    problems = []
    base_name = opened.verification.get("base")
    # `export_adapter` writes a name with an owner only for a base on the Hub. So the form of the
    # name decides, even if a local folder has the same name.
    if base_name is not None and not is_hub_name(base_name):
        problems.append(
            f"the weights of its base model {base_name!r} are in no repository. Push the merged "
            "model."
        )
    problems += [
        f"{name} holds what looks like an access token or key. Remove it and revoke it."
        for name in files_with_secrets(sent_files(opened.path), get_token())
    ]
    return problems


def folder_of(export: Export | str | Path) -> Path:
    """Return the folder of an export or of a path, with `~` and a link at the end resolved."""
    return resolved_target(export.path if isinstance(export, Export) else export)


def sent_files(folder: Path) -> dict[str, Path]:
    """Return the files of an export that a push sends, by name: all but the hidden ones."""
    # Hidden files were not verified, so they are not sent.
    return {**files_of(folder), VERIFICATION_FILE: folder / VERIFICATION_FILE}


def files_with_secrets(files: Mapping[str, Path], token: str | None = None) -> list[str]:
    """Return the names of text files that hold the token, or text in the form of a key."""
    names = []
    for name, file in files.items():
        # Weights are gigabytes of numbers, in which only chance could form a key.
        if file.suffix.lower() not in TEXT_SUFFIXES:
            continue
        text = file.read_bytes()
        if SECRET.search(text) or (token and token.encode() in text):
            names.append(name)
    return names


def push_to_hub(
    export: Export | str | Path,
    repo_id: str,
    *,
    private: bool = True,
    overwrite: bool = False,
) -> str:
    """Push an export to the Hub, if every file is as it was verified and holds no secret.

    All files arrive in one commit. After a failure, call this function again, with `overwrite=True`
    if the repository has files by then. Files that arrived are not sent twice. The token is that of
    `hf auth login` or of the variable HF_TOKEN, and needs the right to write.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or the path of its folder.
        repo_id: `user/name`, or a name in your own account. It is created if it does not exist.
        private: Make a new repository private. An existing repository keeps its visibility, and a
            public one is refused unless this is False.
        overwrite: Replace the content of the repository. Earlier commits stay in its history.

    Returns:
        URL of the repository.

    Raises:
        PushError: The export or the repository must not be used; nothing was sent.
        huggingface_hub.errors.HfHubHTTPError: The Hub refused, in its own words.

    >>> push_to_hub(export, "me/my-model")  # doctest: +SKIP
    """
    from huggingface_hub import HfApi

    problems = push_problems(export)
    if problems:
        raise PushError("nothing was sent:\n" + "\n".join(f"- {problem}" for problem in problems))
    api = HfApi()
    folder = folder_of(export)
    # The Hub's answer has the owner, which a name in the user's own account may leave out.
    repo_id = api.create_repo(repo_id, private=private, exist_ok=True).repo_id
    info = api.model_info(repo_id)
    if private and not info.private:
        raise PushError(
            f"{repo_id} is public. Make it private on its page, choose another name, or pass "
            "private=False."
        )
    # The Hub makes .gitattributes itself.
    files_there = set(api.list_repo_files(repo_id, revision=info.sha)) - {".gitattributes"}
    if files_there and not overwrite:
        shown = ", ".join(sorted(files_there)[:MAX_SHOWN_FILES])
        raise PushError(
            f"{repo_id} has files already ({shown}). Choose another name. If they are of this "
            "export, or may be replaced, pass overwrite=True: equal files are not sent again, and "
            "earlier commits stay in the history of the repository."
        )
    api.upload_folder(
        repo_id=repo_id,
        folder_path=folder,
        # Escaped, because brackets in the name of a file would be read as a pattern.
        allow_patterns=[glob.escape(name) for name in sent_files(folder)],
        delete_patterns="*" if overwrite else None,
        commit_message="Upload a verified export",
        # With a parent, the commit fails if somebody else has committed meanwhile.
        parent_commit=info.sha,
    )
    return f"{api.endpoint}/{repo_id}"
