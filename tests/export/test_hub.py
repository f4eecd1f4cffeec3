"""Pushing to a Hub: the real client against a stand-in, bytes compared at the end, and what can go wrong on the way."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

import grpo_nb as gn
from grpo_nb.export import hub as hub_module
from grpo_nb.export.result import recorded_files
from grpo_nb.runs.card import write_export_card
from tests.support.fake_hub import FakeHub, Repo, running
from tests.support.written_run import write_run

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_" + "W" * 34
READER = "hf_" + "R" * 34


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    from huggingface_hub import close_session

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(hub_module, "_WAITS", (0.01, 0.01, 0.01))
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda seconds: None)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with running() as server:
        server.tokens = {TOKEN: "write", READER: "read"}
        yield server
    close_session()


def verified(folder: Path) -> None:
    """As a verification that has passed leaves it."""
    verification = {"passed": True, "checks": {"equal": True}, "files": recorded_files(folder)}
    (folder / "verification.json").write_text(json.dumps(verification))


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """The folder of a verified export, with two files that go by LFS."""
    folder = tmp_path / "exports" / "merged"
    folder.mkdir(parents=True)
    (folder / "model-00001-of-00002.safetensors").write_bytes(os.urandom(3_000_000))
    (folder / "model-00002-of-00002.safetensors").write_bytes(os.urandom(200_000))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    verified(folder)
    run = write_run(tmp_path / "runs" / "first")
    write_export_card(run, folder, "merged", verification={"checks": {"equal": True}})
    return folder


def push(hub: FakeHub, export: Path, name: str = "me/model", **options: object) -> hub_module.Pushed:
    return gn.export.push_to_hub(export, name, **{"endpoint": hub.url, **options})


def local(folder: Path) -> dict[str, bytes]:
    return {f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()}


def remote(hub: FakeHub, name: str = "me/model") -> dict[str, bytes]:
    return {path: content for path, content in hub.repos[name].files.items() if path != ".gitattributes"}


def test_every_byte_arrives_in_one_private_commit(hub: FakeHub, export: Path) -> None:
    before = local(export)
    lines: list[str] = []
    pushed = push(hub, export, report=lines.append)
    assert remote(hub) == before == local(export) and len(before) == 6
    repo = hub.repos["me/model"]
    assert repo.private and len(repo.commits) == 2 and pushed.private and not pushed.was_there
    assert pushed.url == f"{hub.url}/me/model" and pushed.commit == repo.commits[-1]
    assert "each the same as here by hash" in repr(pushed) and pushed.url in pushed._repr_html_()
    assert lines[0] == "asking for me/model" and any(line.startswith("sending 6 files, 3.2 MB") for line in lines)
    assert all("authorization" not in {k.lower() for k in h} for m, _, h, _ in hub.log if m == "PUT"), (
        "not the Hub's own"
    )


def test_again_sends_nothing_and_a_change_is_asked_for(hub: FakeHub, export: Path) -> None:
    push(hub, export)
    sent = hub.bytes_received
    assert push(hub, export).was_there and hub.bytes_received == sent and len(hub.repos["me/model"].commits) == 2
    (export / "config.json").write_text('{"model_type": "qwen3"}')
    (export / "model-00002-of-00002.safetensors").rename(export / "other.safetensors")
    verified(export)
    with pytest.raises(
        hub_module.PushError,
        match=r"holds other content \(config.json, model-00002-of-00002.safetensors, verification.json\)",
    ):
        push(hub, export)
    assert len(hub.repos["me/model"].commits) == 2
    push(hub, export, overwrite=True)
    assert remote(hub) == local(export), "a shard of before must not stay beside the new ones"
    assert hub.bytes_received - sent < 200_000, "what is there is not sent again"


def test_a_repository_of_somebody_elses_content_or_eyes(hub: FakeHub, export: Path) -> None:
    hub.repos["me/model"] = Repo(private=True, files={"README.md": b"mine", ".gitattributes": b""})
    with pytest.raises(hub_module.PushError, match="holds other content"):
        push(hub, export)
    assert hub.repos["me/model"].files["README.md"] == b"mine"
    hub.repos["me/open"] = Repo(private=False)
    with pytest.raises(hub_module.PushError, match="is public, and a private one was asked for"):
        push(hub, export, "me/open")
    assert not hub.repos["me/open"].files
    push(hub, export, "me/open", private=False)
    assert push(hub, export, "me/new", private=False).private is False


@pytest.mark.parametrize(
    ("method", "path", "what"),
    [
        ("GET", "/api/models/", 503),
        ("POST", "/api/repos/create", 503),
        ("POST", "/api/repos/create", "lost"),
        ("POST", "/api/validate-yaml", "reset"),
        ("POST", "/preupload/", 429),
        ("POST", "/objects/batch", 500),
        ("PUT", "/lfs/", 503),
        ("PUT", "/lfs/", "reset"),
        ("POST", "/commit/", 502),
        ("POST", "/commit/", "reset"),
        ("POST", "/commit/", "lost"),
    ],
)
def test_what_passes_by_itself_is_tried_again(
    hub: FakeHub, export: Path, method: str, path: str, what: int | str
) -> None:
    hub.fail(method, path, what)
    push(hub, export)
    assert hub.faults[0].times == 0, "the fault did not happen"
    assert remote(hub) == local(export) and len(hub.repos["me/model"].commits) == 2


@pytest.mark.parametrize(
    ("token", "name", "words"),
    [
        ("hf_" + "X" * 34, "me/model", "does not know this token"),
        (READER, "me/model", "may not write to me/model: it is for reading only"),
        (TOKEN, "you/model", "'you' is neither you nor an organization"),
        (TOKEN, "me/taken", "is taken by a repository that this token cannot see"),
    ],
)
def test_a_refusal_is_said_in_words_and_not_repeated(
    hub: FakeHub, export: Path, token: str, name: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    hub.repos["me/taken"] = Repo(private=True)
    hub.hidden.add("me/taken")
    before = local(export)
    with pytest.raises(hub_module.PushError, match=words):
        push(hub, export, name)
    assert len(hub.log) <= 3, "refusals are not tried again"
    assert local(export) == before and "me/model" not in hub.repos and not hub.repos["me/taken"].files


def test_a_lost_connection_loses_nothing_and_the_next_call_goes_on(hub: FakeHub, export: Path) -> None:
    before = local(export)
    hub.fail("POST", "/commit/", 503, times=100)
    with pytest.raises(hub_module.PushError, match="answered 503, 4 times") as caught:
        push(hub, export)
    assert "the same call goes on" in str(caught.value) and local(export) == before
    assert remote(hub) == {}, "others see nothing of it"
    hub.faults.clear()
    uploads, sent = hub.calls("PUT", "/lfs/"), hub.bytes_received
    push(hub, export)
    assert remote(hub) == before and hub.calls("PUT", "/lfs/") == uploads and hub.bytes_received - sent < 100_000


def test_no_server_at_all(export: Path, hub: FakeHub) -> None:
    with pytest.raises(hub_module.PushError, match="cannot be reached"):
        push(hub, export, endpoint="http://127.0.0.1:9")


@pytest.fixture
def commit(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[..., object]], None]:
    """Puts something else in the place of the commit; it is given the real one."""
    from huggingface_hub import HfApi

    real = HfApi.create_commit
    return lambda instead: monkeypatch.setattr(HfApi, "create_commit", lambda *a, **more: instead(real, *a, **more))


def test_stopped_by_hand(hub: FakeHub, export: Path, commit: Callable) -> None:
    def stops(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    commit(stops)
    with pytest.raises(KeyboardInterrupt, match="the same call goes on") as caught:
        push(hub, export)
    assert caught.value.__context__ is None
    commit(lambda real, *arguments, **more: real(*arguments, **more))
    push(hub, export)
    assert remote(hub) == local(export)


def test_somebody_else_commits_meanwhile(hub: FakeHub, export: Path, commit: Callable) -> None:
    def after_somebody(real: Callable, *arguments: object, **more: object) -> object:
        repo = hub.repos["me/model"]
        if "theirs.txt" not in repo.files:
            repo.files["theirs.txt"] = b"theirs"
            repo.commits.append("f" * 40)
        return real(*arguments, **more)

    commit(after_somebody)
    with pytest.raises(hub_module.PushError, match=r"holds other content \(theirs.txt\)"):
        push(hub, export)
    assert hub.repos["me/model"].files["theirs.txt"] == b"theirs" and len(remote(hub)) == 1


@pytest.mark.parametrize("name", ["config.json", "model-00001-of-00002.safetensors"])
def test_what_arrived_otherwise_is_noticed(hub: FakeHub, export: Path, commit: Callable, name: str) -> None:
    def spoils(real: Callable, *arguments: object, **more: object) -> object:
        done, files = real(*arguments, **more), hub.repos["me/model"].files
        files[name] = files[name][:-1] + b"?"
        return done

    commit(spoils)
    with pytest.raises(hub_module.PushError, match=f"is not what is here: {name} differ"):
        push(hub, export)


@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("verification.json", None, "was not verified"),
        (
            "verification.json",
            '{"passed": false, "checks": {"every weight equal": false}}',
            "did not pass .every weight",
        ),
        ("verification.json", '{"passed": tr', "was not verified"),
        ("training_args.bin", "", "training_args.bin: such files can run code"),
        ("*.safetensors", None, "holds no weights"),
        ("README.md", None, "no model card"),
        ("README.md", "---\nlicense: [\n---\n", "metadata of its model card cannot be read"),
        ("figures/training.png", None, "figures/training.png, which is not there"),
        ("notes.md", f"KEY = 'hf_{'s' * 34}'\n", "notes.md: holds what looks like an access token"),
        (
            "adapter_config.json",
            '{"base_model_name_or_path": "/home/somebody/model"}',
            "names the base model '/home/somebody/model', whose weights are in no repository",
        ),
        ("more.json", Path("/etc/hostname"), "more.json: links to files outside"),
    ],
)
def test_what_must_not_go_out_does_not(
    hub: FakeHub, export: Path, file: str, content: str | Path | None, words: str
) -> None:
    if content is None:
        for found in export.glob(file):
            found.unlink()
    elif isinstance(content, Path):
        (export / file).symlink_to(content)
    else:
        (export / file).write_text(content)
    with pytest.raises(hub_module.NotPushable, match=words):
        push(hub, export)
    assert hub.log == []
    assert words.split(".")[0] in repr(gn.export.plan_push(export, "me/model"))
    if file == "verification.json":
        push(hub, export, unverified=True)
        assert remote(hub) == local(export)


WEIGHTS = "model-00002-of-00002.safetensors"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda e: (e / WEIGHTS).write_bytes(os.urandom(200_000)), f"{WEIGHTS} was changed"),
        (lambda e: (e / WEIGHTS).write_bytes(b"anything at all"), f"{WEIGHTS} was changed"),
        (lambda e: (e / "config.json").write_text('{"model_type": "opera"}'), "config.json was changed"),
        (lambda e: (e / WEIGHTS).unlink(), f"{WEIGHTS} is missing"),
        (lambda e: (e / "figures" / "a.safetensors").write_bytes(b"x"), "figures/a.safetensors was added"),
        (lambda e: (e / "notes.txt").write_text("x"), "notes.txt was added"),
        (
            lambda e: (e / "verification.json").write_text('{"passed": true, "checks": {}}'),
            "verification.json has no hashes of the files",
        ),
    ],
)
def test_only_the_bytes_that_were_verified_go_out(
    hub: FakeHub, export: Path, change: Callable[[Path], object], said: str
) -> None:
    change(export)
    with pytest.raises(hub_module.NotPushable, match=f"not as it was verified: {said}. Export it again"):
        push(hub, export)
    assert hub.log == []
    push(hub, export, unverified=True)
    assert remote(hub) == local(export)


def test_the_card_may_be_edited(hub: FakeHub, export: Path) -> None:
    (export / "README.md").write_text((export / "README.md").read_text() + "\nOf my own.\n")
    (export / "figures" / "training.png").write_bytes(b"drawn again")
    push(hub, export)
    assert remote(hub) == local(export)


def test_a_plan_asks_nobody(hub: FakeHub, export: Path) -> None:
    plan = gn.export.plan_push(export, "me/model", private=False)
    assert hub.log == [] and plan.problems == () and sum(plan.files.values()) == sum(map(len, local(export).values()))
    assert "PUBLIC" in plan.sentence and "PUBLIC" in plan._repr_html_() and "config.json" in repr(plan)
    for name in ("model", "me/my model", "a/b/c", "me/-x"):
        with pytest.raises(ValueError, match="repo_id = "):
            gn.export.plan_push(export, name)
    with pytest.raises(FileNotFoundError, match="is no folder of an export"):
        gn.export.plan_push(export / "nothing", "me/model")


def test_the_token_is_nowhere(
    hub: FakeHub, export: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from IPython.core.ultratb import VerboseTB

    monkeypatch.setattr(constants, "HF_DEBUG", True)
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    logging.getLogger().addHandler(handler)
    logging.getLogger("huggingface_hub").setLevel(logging.DEBUG)
    lines: list[str] = []
    try:
        hub.fail("POST", "/commit/", 503)
        shown = [repr(push(hub, export, report=lines.append))]
        hub.fail("POST", "/commit/", 400)
        (export / "config.json").write_text("{}")
        verified(export)
        try:
            push(hub, export, overwrite=True)
        except hub_module.PushError as error:
            assert error.__context__ is None and error.__cause__ is None
            frames = error.__traceback__.tb_next.tb_next  # without those of this test
            shown += ["".join(VerboseTB(color_scheme="NoColor").text(type(error), error, frames)), str(error)]
            while frames is not None:
                shown.append(repr(frames.tb_frame.f_locals))
                frames = frames.tb_next
    finally:
        logging.getLogger().removeHandler(handler)
        logging.getLogger("huggingface_hub").setLevel(logging.WARNING)
    out, err = capfd.readouterr()
    files = [f.read_bytes().decode("latin1") for f in tmp_path.rglob("*") if f.is_file()]
    sent = [
        f"{path} {k}={v}" for _, path, headers, _ in hub.log for k, v in headers.items() if k.lower() != "authorization"
    ]
    everything = "\n".join([*shown, *lines, out, err, written.getvalue(), *files, *sent])
    assert TOKEN not in everything and TOKEN[3:20] not in everything
    assert "commit" in written.getvalue(), "the client's own log was not listened to"


def test_a_token_inside_of_a_file_stops_the_push(hub: FakeHub, export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "short-own-token")
    (export / "config.json").write_text('{"note": "short-own-token"}')
    verified(export)
    with pytest.raises(hub_module.PushError, match=r"config\.json holds your token") as caught:
        push(hub, export)
    assert hub.log == [] and "short-own-token" not in str(caught.value)


def test_without_a_token_and_offline(hub: FakeHub, export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(hub_module.PushError, match="HF_HUB_OFFLINE is set"):
        push(hub, export)
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(hub_module.PushError, match="there is no token"):
        push(hub, export)
    assert hub.log == []


def test_from_a_fresh_process_with_the_token_of_the_environment(hub: FakeHub, export: Path, tmp_path: Path) -> None:
    code = f"import grpo_nb as gn; print(gn.export.push_to_hub({str(export)!r}, 'me/model'))"
    own = {"HF_ENDPOINT": hub.url, "HF_TOKEN": TOKEN, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(tmp_path / "hf")}
    offline = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE")
    environment = {k: v for k, v in os.environ.items() if k not in offline} | own
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT, timeout=120
    )
    assert done.returncode == 0, done.stderr
    assert "me/model (private) is there now" in done.stdout and remote(hub) == local(export)
    stored = "".join(f.read_bytes().decode("latin1") for f in tmp_path.rglob("*") if f.is_file())
    assert TOKEN not in done.stdout + done.stderr + stored
