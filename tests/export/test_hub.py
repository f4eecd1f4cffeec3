"""Push to a stand-in of the Hub with the real client: refusals, and bytes that arrive."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from huggingface_hub import HfApi, close_session, constants
from huggingface_hub.errors import HfHubHTTPError

import grpo_nb as gn
from grpo_nb.export.saved_export import sizes_and_hashes
from grpo_nb.export.staged_export import write_export_card
from tests.support.fake_hub import FakeHub, Repo, running
from tests.support.written_run import write_run

TOKEN = "hf_" + "W" * 34
FIRST, SECOND = (f"model-0000{n}-of-00002.safetensors" for n in (1, 2))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeHub]:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    with running() as server:
        monkeypatch.setattr(constants, "ENDPOINT", server.url)
        yield server
    close_session()


def verified(folder: Path, **more: object) -> None:
    """Write a passed verification into a folder."""
    verification = {
        "kind": "merged",
        "passed": True,
        "checks": {"equal": True},
        "measured": {},
        "sentence": "equal",
    }
    verification |= {"run": "first", "adapter": "", "files": sizes_and_hashes(folder), **more}
    (folder / "verification.json").write_text(json.dumps(verification))


@pytest.fixture
def export(tmp_path: Path) -> Path:
    """The folder of a verified export, with two files that go by LFS."""
    folder = tmp_path / "exports" / "merged"
    folder.mkdir(parents=True)
    (folder / FIRST).write_bytes(os.urandom(3_000_000))
    (folder / SECOND).write_bytes(os.urandom(200_000))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    verification = {"checks": {"equal": True}, "sentence": "It is equal."}
    write_export_card(write_run(tmp_path / "first"), folder, "merged", verification)
    verified(folder)
    return folder


def local(folder: Path) -> dict[str, bytes]:
    return {
        f.relative_to(folder).as_posix(): f.read_bytes() for f in folder.rglob("*") if f.is_file()
    }


def remote(hub: FakeHub, name: str = "me/model") -> dict[str, bytes]:
    return {
        path: content for path, content in hub.repos[name].files.items() if path != ".gitattributes"
    }


def test_push_is_one_private_commit_and_repeats_nothing(hub: FakeHub, export: Path) -> None:
    (export / "README.md").write_text(
        (export / "README.md").read_text() + "\nThe card may be edited.\n"
    )
    before = local(export)
    assert gn.export.push_problems(export) == []
    assert hub.log == []
    assert gn.export.push_to_hub(export, "me/model") == f"{hub.url}/me/model"
    assert remote(hub) == before == local(export)
    assert len(before) == 6
    repo = hub.repos["me/model"]
    sent = hub.bytes_received
    assert repo.private
    assert len(repo.commits) == 2
    assert not [
        h for method, h in hub.log if method == "PUT" and "authorization" in map(str.lower, h)
    ], "not the Hub's"
    gn.export.push_to_hub(export, "me/model", overwrite=True)
    assert hub.bytes_received - sent < 100_000
    assert len(repo.commits) == 2


def test_push_replaces_other_content_with_overwrite(hub: FakeHub, export: Path) -> None:
    gn.export.push_to_hub(export, "me/model")
    sent = hub.bytes_received
    (export / "config.json").write_text('{"model_type": "qwen3"}')
    (export / SECOND).rename(export / "other.safetensors")
    verified(export)
    with pytest.raises(gn.export.PushError, match=r"has files already \(README\.md, config"):
        gn.export.push_to_hub(export, "me/model")
    assert len(hub.repos["me/model"].commits) == 2
    gn.export.push_to_hub(export, "me/model", overwrite=True)
    assert remote(hub) == local(export), "a shard of before must not stay beside the new ones"
    assert hub.bytes_received - sent < 200_000, "what is there is not sent again"


def test_push_refuses_other_content_and_public_repos(hub: FakeHub, export: Path) -> None:
    hub.repos["me/model"] = Repo(private=True, files={"README.md": b"mine", ".gitattributes": b""})
    with pytest.raises(gn.export.PushError, match="has files already"):
        gn.export.push_to_hub(export, "me/model")
    hub.repos["me/open"] = Repo(private=False)
    with pytest.raises(gn.export.PushError, match=r"is public\. Make it private"):
        gn.export.push_to_hub(export, "me/open")
    assert remote(hub) == {"README.md": b"mine"}
    assert not hub.repos["me/open"].files
    for name in ("me/open", "me/new"):
        gn.export.push_to_hub(export, name, private=False)
        assert not hub.repos[name].private
        assert remote(hub, name) == local(export)


def test_push_to_a_name_without_owner_is_to_the_own_account(hub: FakeHub, export: Path) -> None:
    for overwrite in (False, True):
        url = gn.export.push_to_hub(export, "model", overwrite=overwrite)
        assert url == f"{hub.url}/me/model"
    assert remote(hub) == local(export)


def test_push_sends_a_file_with_brackets_in_its_name(hub: FakeHub, export: Path) -> None:
    (export / "first[v2]-q8_0.gguf").write_bytes(b"weights")
    verified(export)
    gn.export.push_to_hub(export, "me/model")
    assert remote(hub) == local(export)


def test_push_accepts_a_published_base_that_is_also_a_folder(
    export: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified(export, base="Qwen/Qwen3-0.6B")
    (tmp_path / "Qwen" / "Qwen3-0.6B").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert gn.export.push_problems(export) == []


def test_push_fails_after_a_commit_of_somebody_else(
    hub: FakeHub, export: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = HfApi.create_commit

    def after_somebody(*arguments: object, **more: object) -> object:
        hub.repos["me/model"].files["theirs.txt"] = b"theirs"
        hub.repos["me/model"].commits.append("f" * 40)
        return real(*arguments, **more)

    monkeypatch.setattr(HfApi, "create_commit", after_somebody)
    with pytest.raises(HfHubHTTPError, match="412"):
        gn.export.push_to_hub(export, "me/model")
    assert remote(hub) == {"theirs.txt": b"theirs"}


def write_same_size(file: Path) -> None:
    content = file.read_bytes()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda e: write_same_size(e / FIRST), FIRST),
        (lambda e: (e / SECOND).write_bytes(b"shorter"), SECOND),
        (lambda e: (e / SECOND).unlink(), SECOND),
        (lambda e: (e / "adapter_config.json").write_text("{}"), "adapter_config.json"),
    ],
)
def test_open_export_names_what_changed_since_verified(
    export: Path, change: Callable, name: str
) -> None:
    assert gn.export.open(export).kind == "merged"
    change(export)
    with pytest.raises(gn.export.ExportError, match=rf"is not what was verified: .*: {name}\. The"):
        gn.export.open(export)


@pytest.mark.parametrize("name", ["config.json", "figures/nested.json", "verification.json"])
def test_open_export_refuses_links(export: Path, tmp_path: Path, name: str) -> None:
    """Also one to a file with the right content."""
    outside = tmp_path / "outside"
    (export / "figures").mkdir(exist_ok=True)
    file = export / name
    outside.write_bytes(file.read_bytes() if file.is_file() else b"")
    file.unlink(missing_ok=True)
    file.symlink_to(outside)
    with pytest.raises(ValueError, match=f"'{name}' is, or goes through, a symbolic link"):
        gn.export.open(export)


VERIFICATIONS = {
    "null": "Input should be a valid dictionary .*input_value=None",
    "{}": "kind Field required",
    '{"kind": "picture"}': "kind Input should be 'merged', 'adapter' or 'gguf' .*'picture'",
    "[" * 1000 + "]" * 1000: "maximum recursion depth",
}


@pytest.mark.parametrize("content", VERIFICATIONS, ids=lambda content: content[:20])
def test_open_export_names_a_verification_of_wrong_shape(export: Path, content: str) -> None:
    (export / "verification.json").write_text(content)
    with pytest.raises(
        gn.export.ExportError,
        match=f"is not an export: its verification.json .*{VERIFICATIONS[content]}",
    ):
        gn.export.open(export)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("checks", {"equal": "yes"}),
        ("checks", []),
        ("measured", 3),
        ("files", []),
        ("sentence", None),
        ("run", 3),
    ],
)
def test_open_export_names_a_field_of_wrong_type(export: Path, field: str, value: object) -> None:
    verified(export, **{field: value})
    with pytest.raises(gn.export.ExportError, match="is not an export"):
        gn.export.open(export)


@pytest.mark.parametrize("entry", [1, {"bytes": -1, "sha256": ""}])
def test_open_export_names_a_file_that_is_only_verified(export: Path, entry: object) -> None:
    verified(export, files={**sizes_and_hashes(export), "a": entry})
    with pytest.raises(gn.export.ExportError, match=r"is not what was verified: .*: a\. The"):
        gn.export.open(export)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda e: (e / "verification.json").write_text('{"passed": tr'),
            "is not an export: .* damaged",
        ),
        (lambda e: verified(e, checks={"equal": False}), "is not an export: .*equal"),
        (lambda e: verified(e, files={}), "is not what was verified: .*: .*config.json"),
        (
            lambda e: verified(e, base="/home/somebody/model"),
            "base model '/home/somebody/model' are in no repository",
        ),
        (
            lambda e: (e / SECOND).write_bytes(os.urandom(200_000)),
            f"is not what was verified: .*: {SECOND}",
        ),
        (
            lambda e: (e / "figures" / "a.safetensors").write_bytes(b"x"),
            "is not what was verified: .*: figures/a.safetensors",
        ),
        (
            lambda e: (e / "more.json").symlink_to("/etc/hostname"),
            "'more.json' is, or goes through, a symbolic link",
        ),
        (
            lambda e: (e / "README.md").write_text(f"hf_{'s' * 34}"),
            "README.md holds what looks like an access token",
        ),
        (
            lambda e: verified(e, note=f"hf_{'s' * 34}"),
            "verification.json holds what looks like an access token",
        ),
        (
            lambda e: (e / "README.md").write_text("short-own-token"),
            "README.md holds what looks like an access token",
        ),
    ],
)
def test_push_refuses_unverified_files_and_secrets(
    hub: FakeHub,
    export: Path,
    change: Callable[[Path], object],
    said: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_TOKEN", "short-own-token")
    change(export)
    with pytest.raises(gn.export.PushError, match=f"nothing was sent:\n- .*{said}") as caught:
        gn.export.push_to_hub(export, "me/model")
    assert hub.log == []
    assert gn.export.push_problems(export)
    assert "short-own-token" not in str(caught.value)


def test_push_problems_of_a_missing_folder_name_it(tmp_path: Path) -> None:
    (problem,) = gn.export.push_problems(tmp_path / "nowhere")
    assert "nowhere' is not an export: its verification.json is missing" in problem
