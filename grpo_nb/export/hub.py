"""To the Hub, last and only when asked: one commit of a verified export, private by default, compared by hash afterwards.

Every request is huggingface_hub's own. The token is handed to it and to nothing else: it is not written, not logged, not part
of any object that shows itself, and errors are raised anew outside of the frames that hold it. One commit means that others
see all of the files or none; what was uploaded before a failure is kept by the Hub and is not sent again.
"""

from __future__ import annotations

import hashlib
import html
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.export.hub_files import PushPlan, files_of, holds_secret, plan_push

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# Seconds between attempts after answers that pass by themselves. huggingface_hub waits too, within an upload.
_WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
_PASSING = (408, 425, 429, 500, 502, 503, 504)
# The Hub adds this one itself.
_OF_THE_HUB = {".gitattributes"}


class PushError(RuntimeError):
    """The Hub did not take it. Nothing on this machine is lost, and the same call goes on where it stopped."""


class _Secret:
    """A text that shows itself nowhere."""

    __slots__ = ("text",)

    def __init__(self, text: str | None) -> None:
        self.text = text

    def __repr__(self) -> str:
        return "token=***" if self.text else "no token"

    def __reduce__(self) -> Any:
        raise TypeError("a token is not stored.")


@dataclass(frozen=True, kw_only=True)
class Pushed:
    """An export that is on the Hub, compared with what is here."""

    repo_id: str
    url: str
    commit: str
    private: bool
    files: tuple[str, ...]
    was_there: bool
    """The repository held exactly these files before, so that nothing was sent."""

    @property
    def sentence(self) -> str:
        """The push in words."""
        what = "was there already" if self.was_there else "is there now"
        who = "private" if self.private else "public"
        count = f"{len(self.files)} files, each the same as here by hash"
        return f"{self.repo_id} ({who}) {what}, commit {self.commit[:7]}: {count}."

    def __repr__(self) -> str:
        return f"{self.sentence}\n{self.url}"

    def _repr_html_(self) -> str:
        url = html.escape(self.url, quote=True)
        return f'<p>{html.escape(self.sentence)}<br><a href="{url}">{url}</a></p>'


def push_to_hub(
    export: Any,
    repo_id: str,
    *,
    private: bool = True,
    token: str | None = None,
    overwrite: bool = False,
    unverified: bool = False,
    message: str = "Upload a verified export",
    endpoint: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Pushed:
    """Send an export to the Hub in one commit, and compare what is there then with what is here.

    Called again after a failure, it goes on: files that arrived are not sent twice. `plan_push` says beforehand what would be
    sent.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or the path of its folder.
        repo_id: `user/name`; made if it is not there.
        private: Whether only you can read it. A repository that is there keeps what it has; one that is public is refused
            as long as this is true.
        token: With the right to write. Better not written into a notebook: without it, the one of `hf auth login` or of the
            variable HF_TOKEN is used.
        overwrite: Replace what is in the repository. The commits before stay in its history.
        unverified: Send it although it was not verified.
        message: Of the commit.
        endpoint: Of another Hub; that of HF_ENDPOINT if not given.
        report: Called with one line per stage.

    Raises:
        NotPushable: Something in the folder speaks against it; nothing was sent.
        PushError: The Hub refused, or could not be reached, with what to do.
        ValueError: A name that the Hub does not take.

    >>> push_to_hub(export, "me/my-model")  # doctest: +SKIP
    """
    secret, token = _Secret(token), None  # from here on, no local of this call holds the text
    plan = plan_push(export, repo_id, private=private, unverified=unverified)
    plan.require()
    pushed, problem = None, None
    try:
        pushed = _push(plan, secret, overwrite, message, endpoint, report or (lambda line: None))
    except PushError as error:
        problem = PushError(_without(str(error), secret))
    except KeyboardInterrupt:
        problem = KeyboardInterrupt("the push was stopped; the same call goes on.")
    except Exception as error:
        problem = PushError(_without(_said(error, repo_id), secret))
    # Raised here and not above: the frames of huggingface_hub, which hold the token, are not part of it.
    if problem is not None:
        raise problem
    return pushed


def _push(
    plan: PushPlan, secret: _Secret, overwrite: bool, message: str, endpoint: str | None, report: Callable[[str], None]
) -> Pushed:
    from huggingface_hub import HfApi, get_token

    text = secret.text or get_token()
    if text is None:
        raise PushError(
            "there is no token. Make one with the right to write at https://huggingface.co/settings/tokens, then run "
            "`hf auth login` in a terminal, once. On Colab: put it into the secrets as HF_TOKEN."
        )
    secret.text = text
    files = files_of(plan.folder)
    found = holds_secret(files, text)
    if found:
        raise PushError(f"nothing was sent: {', '.join(found)} holds your token. Take it out, then push again.")
    api = HfApi(endpoint=endpoint, token=text)
    text = ""
    last: BaseException | None = None
    for attempt, wait in enumerate((*_WAITS, None), 1):
        try:
            return _push_once(api, plan, files, overwrite, message, report)
        except Exception as error:
            if wait is None or not _passes(error):
                raise
            last = error
        report(f"{_said_shortly(last)}; again in {wait:g} s (attempt {attempt + 1} of {len(_WAITS) + 1})")
        time.sleep(wait)
    raise last  # not reached: the last attempt returns or raises


def _push_once(
    api: HfApi, plan: PushPlan, files: dict[str, Path], overwrite: bool, message: str, report: Callable[[str], None]
) -> Pushed:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete
    from huggingface_hub.errors import RepositoryNotFoundError

    report(f"asking for {plan.repo_id}")
    try:
        info = api.model_info(plan.repo_id, files_metadata=True)
    except RepositoryNotFoundError:
        info = None
    if info is None:  # not above: what fails here would have the 404 in its context
        report(f"making {plan.repo_id}")
        api.create_repo(plan.repo_id, private=plan.private, exist_ok=False)
        info = api.model_info(plan.repo_id, files_metadata=True)
    if plan.private and not info.private:
        raise PushError(
            f"{plan.repo_id} is public, and a private one was asked for. Make it private on its page, choose another name, or "
            "say private=False."
        )
    there = {s.rfilename: s for s in info.siblings or () if s.rfilename not in _OF_THE_HUB}
    different = [name for name in there if name not in files or not _is_same(there[name], files[name])]
    if different and not overwrite:
        raise PushError(
            f"{plan.repo_id} holds other content ({', '.join(sorted(different)[:5])}). Choose another name, or say "
            "overwrite=True: the commits before stay in its history."
        )
    missing = [name for name in files if name not in there or name in different]
    if missing or different:
        operations: list[Any] = [
            CommitOperationAdd(path_in_repo=name, path_or_fileobj=str(files[name])) for name in missing
        ]
        operations += [CommitOperationDelete(path_in_repo=name) for name in different if name not in files]
        report(f"sending {len(missing)} files, {sum(plan.files[name] for name in missing) / 1e6:.1f} MB")
        # The parent makes the commit fail if somebody else changed the repository meanwhile.
        api.create_commit(plan.repo_id, operations, commit_message=message, parent_commit=info.sha)
        info = api.model_info(plan.repo_id, files_metadata=True)
    report("comparing what is there with what is here")
    there = {s.rfilename: s for s in info.siblings or () if s.rfilename not in _OF_THE_HUB}
    wrong = [name for name in {*files, *there} if name not in there or name not in files]
    wrong += [name for name in files if name in there and not _is_same(there[name], files[name])]
    if wrong:
        raise PushError(f"{plan.repo_id} is not what is here: {', '.join(sorted(wrong))} differ. Push again.")
    return Pushed(
        repo_id=plan.repo_id,
        url=f"{api.endpoint}/{plan.repo_id}",
        commit=info.sha or "",
        private=bool(info.private),
        files=tuple(sorted(files)),
        was_there=not missing and not different,
    )


def _is_same(sibling: Any, file: Path) -> bool:
    """Compare a file of the repository with one here: SHA-256 of large files, git's own hash of the others."""
    size = file.stat().st_size
    if sibling.size is not None and sibling.size != size:
        return False
    if sibling.lfs is not None:
        with file.open("rb") as opened:
            return hashlib.file_digest(opened, "sha256").hexdigest() == sibling.lfs.sha256
    content = file.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == sibling.blob_id


def _chain(error: BaseException) -> list[BaseException]:
    found: list[BaseException] = []
    while error is not None and error not in found:
        found.append(error)
        error = error.__cause__ or error.__context__
    return found


def _status(error: BaseException) -> int | None:
    for cause in _chain(error):
        response = getattr(cause, "response", None)
        if response is not None:
            return response.status_code
    return None


def _passes(error: BaseException) -> bool:
    """Whether it may be gone at the next attempt: a busy server, or a connection that broke."""
    import httpx

    if isinstance(error, PushError):
        return False
    status = _status(error)
    if status is not None:
        # 412: somebody's commit, perhaps our own whose answer was lost, came between.
        return status in (*_PASSING, 412)
    return any(isinstance(cause, (httpx.TransportError, ConnectionError, TimeoutError)) for cause in _chain(error))


def _said_shortly(error: BaseException | None) -> str:
    status = _status(error) if error is not None else None
    return f"the Hub answered {status}" if status else "the connection broke"


def _said(error: BaseException, repo_id: str) -> str:
    """Say what went wrong in words, by the status; whatever is not known keeps the Hub's own words."""
    from huggingface_hub.errors import OfflineModeIsEnabled

    if any(isinstance(cause, OfflineModeIsEnabled) for cause in _chain(error)):
        return "HF_HUB_OFFLINE is set, so nothing is asked of the Hub. Unset it and restart the kernel."
    owner, status = repo_id.partition("/")[0], _status(error)
    kept = "Nothing here is lost; the same call goes on where it stopped."
    words = {
        401: "the Hub does not know this token: it is wrong, expired or revoked. Make another with the right to write at "
        "https://huggingface.co/settings/tokens and run `hf auth login` again.",
        403: f"this token may not write to {repo_id}: it is for reading only, or {owner!r} is neither you nor an "
        "organization in which you may write. Make one with the right to write, or use your own name.",
        404: f"the Hub knows no {owner!r}, or this token may not see it. Write your own user name before the slash.",
        409: f"the name {repo_id} is taken by a repository that this token cannot see. Choose another name.",
        412: f"{repo_id} was changed by somebody else while this push ran. Look at it, then push again.",
        413: "the Hub says that a file is too large.",
        429: f"the Hub asks to slow down, and still did after {len(_WAITS)} attempts. Wait some minutes. {kept}",
    }
    if status in words:
        return words[status]
    if status is not None and status >= 500:
        return f"the Hub answered {status}, {len(_WAITS) + 1} times. Try again later. {kept}"
    if status is None and _passes(error):
        return f"the Hub cannot be reached ({type(error).__name__}: {_first_line(error)}). {kept}"
    return f"the Hub refused: {_first_line(error)}. {kept}"


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines)[:400]


def _without(text: str, secret: _Secret) -> str:
    return text.replace(secret.text, "***") if secret.text else text
