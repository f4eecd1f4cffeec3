"""To the Hub, last and only when asked: a verified export, private by default, compared by hash afterwards.

The requests, their retries and their errors are huggingface_hub's, with the token that it finds itself.
"""

import re
from collections.abc import Mapping
from pathlib import Path

from grpo_nb.export.result import (
    RECORD,
    Export,
    ExportError,
    changes_since_verified,
    export_folder,
    files_of,
    read_verification,
)  # fmt: skip
from grpo_nb.runs.card import published_name

_TEXTS = (".json", ".jsonl", ".md", ".txt", ".jinja", ".py", ".yaml", ".yml", "")
# Keys in the form that the Hub and other services give them, with enough after the prefix to be no placeholder.
_SECRET = re.compile(
    rb"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,}|gh[opsu]_[A-Za-z0-9]{30,}|github_pat_[A-Za-z0-9_]{30,}|AKIA[A-Z0-9]{16}"
    rb"|AIza[A-Za-z0-9_-]{35}|xox[abp]-[A-Za-z0-9-]{20,})"
)


class NotPushable(ValueError):
    """The export, or the repository, is not what may be pushed or pushed to; nothing was sent."""


def push_problems(export: Export | str | Path) -> list[str]:
    """Say what speaks against a push of an export: empty if nothing does. Every file is hashed; the Hub is not asked.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or the path of its folder.

    Raises:
        FileNotFoundError: No such folder.
    """
    from huggingface_hub import get_token

    folder = export_folder(export)
    try:
        verification, files = read_verification(folder), files_of(folder)
        changes = changes_since_verified(folder, verification)
    except (ExportError, ValueError) as error:
        return [str(error)]
    problems = (
        []
        if verification.get("passed") is True
        else ["its verification did not pass. Export it again."]
    )
    problems += [f"{change}. Export it again, or take it out." for change in changes]
    base = verification.get("base")
    if base is not None and published_name(base) is None:
        problems.append(
            f"the weights of its base model {base!r} are in no repository. Push the merged model."
        )
    secrets = holds_secret(files, get_token())
    problems += [
        f"{name} holds what looks like an access token or key. Take it out and revoke it."
        for name in secrets
    ]
    return problems


def holds_secret(files: Mapping[str, Path], token: str | None = None) -> list[str]:
    """Return the names of text files that hold this token, or something in the form of a key."""
    texts = {
        name: file.read_bytes() for name, file in files.items() if file.suffix.lower() in _TEXTS
    }
    return [
        name
        for name, text in texts.items()
        if _SECRET.search(text) or (token and token.encode() in text)
    ]


def push_to_hub(
    export: Export | str | Path,
    repo_id: str,
    *,
    private: bool = True,
    overwrite: bool = False,
    message: str = "Upload a verified export",
) -> str:
    """Send an export to the Hub, and compare what is there then with what is here.

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
        huggingface_hub.errors.HfHubHTTPError: The Hub refused, in its own words.

    >>> push_to_hub(export, "me/my-model")  # doctest: +SKIP
    """
    from huggingface_hub import HfApi

    if problems := push_problems(export):
        raise NotPushable("nothing was sent:\n" + "\n".join(f"- {problem}" for problem in problems))
    api, folder = HfApi(), export_folder(export)
    names = {*files_of(folder), RECORD}
    api.create_repo(repo_id, private=private, exist_ok=True)
    info = api.model_info(repo_id)
    if private and not info.private:
        raise NotPushable(
            f"{repo_id} is public: make it private on its page, take another name or say private=False."
        )

    def different(commit: str | None) -> tuple[set[str], set[str]]:
        """Names of files that are there and not the same here, and of those that are not there."""
        there = api.verify_repo_checksums(repo_id, revision=commit, local_dir=folder)
        others = {file["path"] for file in there.mismatches} | set(there.missing_paths) - {
            ".gitattributes"
        }
        return others, names & set(there.extra_paths)

    others, _ = different(info.sha)
    if others and not overwrite:
        raise NotPushable(
            f"{repo_id} holds other content ({', '.join(sorted(others)[:5])}). Choose another name, or say "
            "overwrite=True: the commits before stay in its history."
        )
    # The parent makes it fail if somebody else's commit came meanwhile.
    done = api.upload_folder(
        repo_id=repo_id, folder_path=folder, allow_patterns=sorted(names), delete_patterns="*" if overwrite else None,
        commit_message=message, parent_commit=info.sha,
    )  # fmt: skip
    if wrong := set().union(*different(done.oid)):
        raise ExportError(
            f"{repo_id} is not what is here: {', '.join(sorted(wrong))} differ. Push again."
        )
    return f"{api.endpoint}/{repo_id}"
