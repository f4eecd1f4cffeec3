"""To the Hub, last and only when asked: one commit of a verified export, private by default, compared by hash afterwards.

What would go there, and what speaks against it, is found out before anything is asked of the Hub (`plan_push`). Every request
is huggingface_hub's own, with the token that it finds itself: none is handed on, written, logged, or part of any object that
shows itself, and errors are raised anew outside of the frames that hold it. One commit means that others see all of the files
or none; what was uploaded before a failure is kept by the Hub and is not sent again.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.arguments import require_kind
from grpo_nb.core.files import shown_path
from grpo_nb.core.tables import Cell, Part, Shown, Table, bold, escaped
from grpo_nb.export.result import Export, ExportError, files_of, not_as_verified, read_json, told
from grpo_nb.machine.faults import error_chain
from grpo_nb.runs.card import published_name

if TYPE_CHECKING:
    from huggingface_hub import HfApi

# A file that unpickles runs code on the machine of whoever loads it.
_PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib")
_WEIGHTS = (".safetensors", ".gguf")
_TEXTS = (".json", ".jsonl", ".md", ".txt", ".jinja", ".py", ".yaml", ".yml", "")
# Keys in the form that the Hub and other services give them, with enough after the prefix to be no placeholder.
_SECRET = re.compile(rb"\b(hf_[A-Za-z0-9]{30,}|sk-[A-Za-z0-9_-]{32,}|ghp_[A-Za-z0-9]{30,}|AKIA[A-Z0-9]{16})\b")
_IMAGE = re.compile(r"!\[[^\]]*\]\(([^)]+)\)")
# Seconds between attempts after answers that pass by themselves. huggingface_hub waits too, within an upload.
_WAITS = (1.0, 2.0, 4.0, 8.0, 16.0)
# 412: somebody's commit, perhaps our own whose answer was lost, came between.
_PASSING = (408, 412, 425, 429, 500, 502, 503, 504)
# The Hub adds this one itself.
_OF_THE_HUB = {".gitattributes"}


class NotPushable(ValueError):
    """The export cannot go to the Hub as it is; nothing was sent."""


class PushError(RuntimeError):
    """The Hub did not take it. Nothing on this machine is lost, and the same call goes on where it stopped."""


@dataclass(frozen=True, kw_only=True, repr=False)
class PushPlan(Shown):
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

    def _parts(self) -> Iterator[Part]:
        yield self.sentence
        yield from (bold(f"PROBLEM: {problem}") for problem in self.problems)
        yield Table([(f"{size / 1e6:.1f} MB", name) for name, size in self.files.items()], right=(0,))


@dataclass(frozen=True, kw_only=True, repr=False)
class Pushed(Shown):
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

    def _parts(self) -> Iterator[Part]:
        yield self.sentence
        yield Cell(self.url, f'<a href="{escaped(self.url)}">{escaped(self.url)}</a>')


def plan_push(export: Any, repo_id: str, *, private: bool = True, unverified: bool = False) -> PushPlan:
    """Say what `push_to_hub` would send and what speaks against it, without a request.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or the path of its folder.
        repo_id: `user/name`.
        private: Who can read it.
        unverified: Do not count it as a problem that the export was not verified, or was changed since.

    Raises:
        ValueError: A name that the Hub does not take.
        FileNotFoundError: No such folder.
    """
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    require_kind("export", export, (Export, str, Path), "an export or its folder: gn.export.open('exports/<name>')")
    require_kind("repo_id", repo_id, str, "a name, as 'me/my-model'")
    require_kind("private", private, bool, "True or False")
    try:
        validate_repo_id(repo_id)
    except HFValidationError as error:
        raise ValueError(f"repo_id = {repo_id!r} is no name that the Hub takes: {error}") from None
    if repo_id.count("/") != 1:
        raise ValueError(f"repo_id = {repo_id!r} must say whose it is, as 'user/name'.")
    folder = Path(getattr(export, "path", export)).expanduser()
    if not folder.is_dir():
        raise FileNotFoundError(
            f"{str(folder)!r} is no folder of an export: make one with gn.export_merged(run, path)."
        )
    files = files_of(folder)
    problems = (*_problems(folder, files, unverified), *_card_problems(folder))
    sizes = {name: file.stat().st_size for name, file in files.items()}
    return PushPlan(folder=folder, repo_id=repo_id, private=private, files=sizes, problems=problems)


def holds_secret(files: dict[str, Path], token: str | None = None) -> list[str]:
    """Return the names of text files that hold this token, or something in the form of a key."""
    texts = {name: file.read_bytes() for name, file in files.items() if file.suffix.lower() in _TEXTS}
    return [name for name, text in texts.items() if _SECRET.search(text) or (token and token.encode() in text)]


def _problems(folder: Path, files: dict[str, Path], unverified: bool) -> Iterator[str]:
    if not any(name.endswith(_WEIGHTS) for name in files):
        yield "it holds no weights (.safetensors or .gguf)."
    held, wrong = {}, {"verification.json": "it has no verification.json."}
    for name in ("verification.json", "adapter_config.json"):
        try:
            held[name] = read_json(files[name]) if name in files else {}
        except ExportError as error:
            wrong[name] = str(error)
    verification = held.get("verification.json")
    if not unverified and not verification:
        yield f"it was not verified: {wrong['verification.json']} Export it again, or say unverified=True."
    elif not unverified and verification.get("passed") is not True:
        failed = "; ".join(name for name, ok in verification.get("checks", {}).items() if not ok)
        yield f"its verification did not pass ({failed or 'no reason given'}). Export it again."
    elif not unverified and (others := not_as_verified(folder, verification)):
        yield f"not as it was verified: {'; '.join(others)}. Export it again, or say unverified=True."
    if pickles := [name for name in files if name.lower().endswith(_PICKLES)]:
        yield f"{', '.join(pickles)}: such files can run code when they are loaded. Take them out."
    if outside := [name for name, file in files.items() if not file.resolve().is_relative_to(folder.resolve())]:
        yield f"{', '.join(outside)}: links to files outside of the export. Take them out."
    if "adapter_config.json" in wrong:
        yield wrong["adapter_config.json"]
    base = held.get("adapter_config.json", {}).get("base_model_name_or_path")
    if base is not None and published_name(base) is None:
        yield (
            f"adapter_config.json names the base model {base!r}, whose weights are in no repository. Push the merged model, or "
            "the base too, and write its name on the Hub there."
        )
    if secrets := holds_secret(files):
        yield f"{', '.join(secrets)}: holds what looks like an access token or key. Take it out, and revoke it."


def _card_problems(folder: Path) -> Iterator[str]:
    """Check the card with huggingface_hub's own parser, and that it shows no image that is not there."""
    from huggingface_hub import ModelCard

    card = folder / "README.md"
    if not card.is_file():
        yield "it has no model card (README.md)."
        return
    text = card.read_text("utf-8")
    try:
        if not ModelCard(text).data.to_dict():
            yield "its model card has no metadata: write it with grpo_nb.runs.card.write_export_card."
    except Exception as error:  # whatever YAML or the parser object to, the Hub would too
        yield f"the metadata of its model card cannot be read: {error}"
    lost = [path for path in _IMAGE.findall(text) if "://" not in path and not (folder / path).is_file()]
    if lost:
        yield f"its model card shows {', '.join(lost)}, which is not there."


def push_to_hub(
    export: Any,
    repo_id: str,
    *,
    private: bool = True,
    overwrite: bool = False,
    unverified: bool = False,
    message: str = "Upload a verified export",
    endpoint: str | None = None,
    report: Callable[[str], None] | None = None,
) -> Pushed:
    """Send an export to the Hub in one commit, and compare what is there then with what is here.

    Called again after a failure, it goes on: files that arrived are not sent twice. `plan_push` says beforehand what would be
    sent. The token is the one of `hf auth login`, or of the variable HF_TOKEN, with the right to write.

    Args:
        export: From `export_merged`, `export_adapter` or `export_gguf`, or the path of its folder.
        repo_id: `user/name`; made if it is not there.
        private: Whether only you can read it. A repository that is there keeps what it has; one that is public is refused
            as long as this is true.
        overwrite: Replace what is in the repository. The commits before stay in its history.
        unverified: Send it although it was not verified, or was changed since.
        message: Of the commit.
        endpoint: Of another Hub; that of HF_ENDPOINT if not given.
        report: Called with one line per stage.

    Raises:
        NotPushable: Something in the folder speaks against it; nothing was sent.
        PushError: The Hub refused, or could not be reached, with what to do.
        ValueError: A name that the Hub does not take.

    >>> push_to_hub(export, "me/my-model")  # doctest: +SKIP
    """
    from huggingface_hub import get_token

    plan = plan_push(export, repo_id, private=private, unverified=unverified)
    plan.require()
    if get_token() is None:
        raise PushError(
            "there is no token. Make one with the right to write at https://huggingface.co/settings/tokens, then run "
            "`hf auth login` in a terminal, once. On Colab: put it into the secrets as HF_TOKEN."
        )
    if found := holds_secret(files_of(plan.folder), get_token()):
        raise PushError(f"nothing was sent: {', '.join(found)} holds your token. Take it out, then push again.")
    try:
        return _push(plan, overwrite, message, endpoint, told(report))
    except PushError:
        raise
    except KeyboardInterrupt:
        problem: BaseException = KeyboardInterrupt("the push was stopped; the same call goes on.")
    except Exception as error:
        problem = PushError(_said(error, repo_id))
    # Raised here and not above: the frames of huggingface_hub, which hold the token, are not part of it.
    raise problem


def _push(plan: PushPlan, overwrite: bool, message: str, endpoint: str | None, report: Callable[[str], None]) -> Pushed:
    """Push, and again after answers that pass by themselves."""
    from huggingface_hub import HfApi

    api = HfApi(endpoint=endpoint)
    for attempt, wait in enumerate((*_WAITS, None), 2):
        try:
            return _push_once(api, plan, overwrite, message, report)
        except Exception as error:
            if wait is None or not _passes(error):
                raise
            status = _status(error)
            said = f"the Hub answered {status}" if status else "the connection broke"
        report(f"{said}; again in {wait:g} s (attempt {attempt} of {len(_WAITS) + 1})")
        time.sleep(wait)


def _push_once(api: HfApi, plan: PushPlan, overwrite: bool, message: str, report: Callable[[str], None]) -> Pushed:
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete

    report(f"asking for {plan.repo_id}")
    if not api.repo_exists(plan.repo_id):
        report(f"making {plan.repo_id}")
        api.create_repo(plan.repo_id, private=plan.private, exist_ok=False)
    info = api.model_info(plan.repo_id)
    if plan.private and not info.private:
        raise PushError(
            f"{plan.repo_id} is public, and a private one was asked for. Make it private on its page, choose another name, or "
            "say private=False."
        )
    missing, changed, more = _differences(api, plan, info.sha)
    if (changed or more) and not overwrite:
        raise PushError(
            f"{plan.repo_id} holds other content ({', '.join(sorted(changed | more)[:5])}). Choose another name, or say "
            "overwrite=True: the commits before stay in its history."
        )
    to_send = [name for name in plan.files if name in missing | changed]
    if to_send or more:
        operations: list[Any] = [CommitOperationAdd(name, str(plan.folder / name)) for name in to_send]
        operations += [CommitOperationDelete(path_in_repo=name) for name in more]
        report(f"sending {len(to_send)} files, {sum(plan.files[name] for name in to_send) / 1e6:.1f} MB")
        # The parent makes the commit fail if somebody else changed the repository meanwhile.
        api.create_commit(plan.repo_id, operations, commit_message=message, parent_commit=info.sha)
        info = api.model_info(plan.repo_id)
    report("comparing what is there with what is here")
    wrong = set().union(*_differences(api, plan, info.sha))
    if wrong:
        raise PushError(f"{plan.repo_id} is not what is here: {', '.join(sorted(wrong))} differ. Push again.")
    return Pushed(
        repo_id=plan.repo_id,
        url=f"{api.endpoint}/{plan.repo_id}",
        commit=info.sha or "",
        private=bool(info.private),
        files=tuple(sorted(plan.files)),
        was_there=not to_send and not more,
    )


def _differences(api: HfApi, plan: PushPlan, commit: str | None) -> tuple[set[str], set[str], set[str]]:
    """Names of files that are only here, that are not the same by hash, and that are only in the repository."""
    found = api.verify_repo_checksums(plan.repo_id, revision=commit, local_dir=plan.folder)
    changed = {file["path"] for file in found.mismatches}
    return set(found.extra_paths) & plan.files.keys(), changed, set(found.missing_paths) - _OF_THE_HUB


def _status(error: BaseException) -> int | None:
    answers = (getattr(cause, "response", None) for cause in error_chain(error))
    return next((answer.status_code for answer in answers if answer is not None), None)


def _passes(error: BaseException) -> bool:
    """Whether it may be gone at the next attempt: a busy server, or a connection that broke."""
    import httpx

    status = _status(error)
    if status is not None:
        return status in _PASSING
    broken = (httpx.TransportError, ConnectionError, TimeoutError)
    return any(isinstance(cause, broken) for cause in error_chain(error))


def _said(error: BaseException, repo_id: str) -> str:
    """Say what went wrong in words, by the status; whatever is not known keeps the Hub's own words."""
    from huggingface_hub import get_token
    from huggingface_hub.errors import OfflineModeIsEnabled

    if any(isinstance(cause, OfflineModeIsEnabled) for cause in error_chain(error)):
        return "HF_HUB_OFFLINE is set, so nothing is asked of the Hub. Unset it and restart the kernel."
    owner, status = repo_id.partition("/")[0], _status(error)
    # Some libraries quote a header that they cannot send.
    line = " ".join(str(error).split()).replace(get_token() or "\0", "***")[:400]
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
        return f"the Hub cannot be reached ({type(error).__name__}: {line}). {kept}"
    return f"the Hub refused: {line}. {kept}"
