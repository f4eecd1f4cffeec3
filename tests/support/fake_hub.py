"""A stand-in for the Hub on this machine: the calls that huggingface_hub 1.x makes to create a repository and commit to it.

It keeps bytes, checks hashes as the Hub does, and asks for a token. What it is not: xet storage.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

REPO = r"[\w.-]+/[\w.-]+"


@dataclass
class Repo:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    lfs: set[str] = field(default_factory=set)
    commits: list[str] = field(default_factory=lambda: ["0" * 40])
    messages: list[str] = field(default_factory=list)


class FakeHub:
    """The server's state. Tokens by their rights: `write` or `read`; every one belongs to `me`."""

    def __init__(self) -> None:
        self.tokens: dict[str, str] = {}
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.log: list[tuple[str, str, dict[str, str], int]] = []
        self.bytes_received = 0
        self.lock = threading.Lock()
        self.url = ""


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: Any) -> None:
        pass

    def dispatch(self) -> None:
        hub, method = self.hub, self.command
        length = int(self.headers.get("content-length") or 0)
        body = self.read_body(length)
        with hub.lock:
            hub.log.append((method, self.path, dict(self.headers), length))
            status, value, headers = self.route(method, self.path.partition("?")[0], body)
        return self.answer(status, value, headers)

    do_GET = do_POST = do_PUT = dispatch

    def read_body(self, length: int) -> bytes:
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            parts = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            body = b"".join(parts)
        else:
            body = self.rfile.read(length)
        self.hub.bytes_received += len(body)
        return body

    def answer(self, status: int, value: Any, headers: dict[str, str] | None = None) -> None:
        content = json.dumps(value).encode()
        self.send_response(status)
        own = {"Content-Type": "application/json", "Content-Length": str(len(content))}
        for name, text in (own | (headers or {})).items():
            self.send_header(name, text)
        self.end_headers()
        with contextlib.suppress(OSError):
            self.wfile.write(content)

    def route(self, method: str, path: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        if method == "PUT":
            return self.store(path.rpartition("/")[2], body)
        role = self.hub.tokens.get(self.headers.get("authorization", "").removeprefix("Bearer "))
        if role is None:
            message = {"X-Error-Message": "Invalid credentials in Authorization header"}
            return 401, {"error": "Invalid credentials in Authorization header"}, message
        routes: list[tuple[str, str, Callable[..., tuple[int, Any, dict[str, str]]], bool]] = [
            ("GET", rf"/api/models/({REPO})(?:/revision/main)?", self.info, False),
            ("GET", rf"/api/models/({REPO})/tree/(?:main|[0-9a-f]{{40}})", self.tree, False),
            ("POST", r"/api/repos/create", self.create, True),
            ("POST", r"/api/validate-yaml", self.validate, False),
            ("POST", rf"/api/models/({REPO})/preupload/main", self.preupload, True),
            ("POST", rf"/({REPO})\.git/info/lfs/objects/batch", self.batch, True),
            ("POST", rf"/api/models/({REPO})/commit/main", self.commit, True),
        ]
        for wanted, pattern, handle, needs_write in routes:
            match = re.fullmatch(pattern, path)
            if wanted == method and match:
                if needs_write and role != "write":
                    return refused("you need to provide a token with write access")
                return handle(body, *match.groups())
        return 404, {"error": f"no such path {path}"}, {}

    def info(self, body: bytes, name: str) -> tuple[int, Any, dict[str, str]]:
        repo = self.hub.repos.get(name)
        if repo is None:
            return 404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"}
        return 200, {"_id": "1", "id": name, "private": repo.private, "sha": repo.commits[-1]}, {}

    def tree(self, body: bytes, name: str) -> tuple[int, Any, dict[str, str]]:
        repo, entries = self.hub.repos[name], []
        for path, content in sorted(repo.files.items()):
            entry: dict[str, Any] = {"type": "file", "path": path, "size": len(content), "oid": git_hash(content)}
            if path in repo.lfs:
                entry["lfs"] = {"oid": hashlib.sha256(content).hexdigest(), "size": len(content), "pointerSize": 135}
            entries.append(entry)
        return 200, entries, {}

    def create(self, body: bytes) -> tuple[int, Any, dict[str, str]]:
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        if asked["organization"] != "me":
            return refused("You don't have the rights to create under this namespace")
        if name in self.hub.repos:
            return 409, {"error": "You already created this model repo", "url": f"{self.hub.url}/{name}"}, {}
        self.hub.repos[name] = Repo(asked.get("visibility") == "private", {".gitattributes": b"* text\n"})
        return 200, {"url": f"{self.hub.url}/{name}", "name": name}, {}

    def validate(self, body: bytes) -> tuple[int, Any, dict[str, str]]:
        import yaml

        text = json.loads(body)["content"]
        found = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
        try:
            values = yaml.safe_load(found[1]) if found else {}
        except yaml.YAMLError as error:
            return 400, {"errors": [{"message": str(error)}]}, {}
        return 200, {"errors": [], "warnings": [] if values else [{"message": "empty metadata"}]}, {}

    def preupload(self, body: bytes, name: str) -> tuple[int, Any, dict[str, str]]:
        repo = self.hub.repos[name]
        files = []
        for asked in json.loads(body)["files"]:
            path = asked["path"]
            is_lfs = path.endswith((".safetensors", ".gguf", ".png")) or asked["size"] > 10_000_000
            there = repo.files.get(path)
            oid = None
            if there is not None:
                oid = hashlib.sha256(there).hexdigest() if path in repo.lfs else git_hash(there)
            mode = "lfs" if is_lfs else "regular"
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return 200, {"files": files}, {}

    def batch(self, body: bytes, name: str) -> tuple[int, Any, dict[str, str]]:
        objects = []
        for asked in json.loads(body)["objects"]:
            entry = {"oid": asked["oid"], "size": asked["size"]}
            if asked["oid"] not in self.hub.blobs:
                entry["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{asked['oid']}", "header": {}}}
            objects.append(entry)
        return 200, {"transfer": "basic", "objects": objects}, {}

    def store(self, oid: str, body: bytes) -> tuple[int, Any, dict[str, str]]:
        if hashlib.sha256(body).hexdigest() != oid:
            return 400, {"error": "the hash is another one"}, {}
        self.hub.blobs[oid] = body
        return 200, {}, {}

    def commit(self, body: bytes, name: str) -> tuple[int, Any, dict[str, str]]:
        repo = self.hub.repos[name]
        lines = [json.loads(line) for line in body.decode().splitlines()]
        header = next(line["value"] for line in lines if line["key"] == "header")
        if header.get("parentCommit") not in (None, repo.commits[-1]):
            return 412, {"error": "A commit has happened since. Please refresh and try again."}, {}
        files, lfs = dict(repo.files), set(repo.lfs)
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
                lfs.discard(value["path"])
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.blobs:
                    return 400, {"error": f"{value['path']} was never uploaded"}, {}
                files[value["path"]] = self.hub.blobs[value["oid"]]
                lfs.add(value["path"])
            elif line["key"] == "deletedFile":
                files.pop(value["path"])
        repo.files, repo.lfs = files, lfs
        repo.commits.append(hashlib.sha1(body).hexdigest())
        repo.messages.append(header["summary"])
        return 200, {"commitUrl": f"{self.hub.url}/{name}/commit/{repo.commits[-1]}", "commitOid": repo.commits[-1]}, {}


def refused(why: str) -> tuple[int, Any, dict[str, str]]:
    return 403, {"error": "Forbidden"}, {"X-Error-Message": why}


def git_hash(content: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


@contextlib.contextmanager
def running() -> Iterator[FakeHub]:
    """A hub on a free port, until the end of the block."""
    hub = FakeHub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("HandlerOfThis", (Handler,), {"hub": hub}))
    server.daemon_threads = True
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
