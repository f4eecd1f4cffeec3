"""A fake Hub on this machine, for creating a repository and committing to it.

It answers the calls that huggingface_hub 1.x makes.

It keeps bytes and checks hashes as the Hub does. What it is not: xet storage, and rights.
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

Answer = tuple[int, Any]


@dataclass
class Repo:
    private: bool
    files: dict[str, bytes] = field(default_factory=dict)
    lfs: set[str] = field(default_factory=set)
    commits: list[str] = field(default_factory=lambda: ["0" * 40])

    def hash_of(self, path: str) -> str:
        """Return the hash that the Hub reports: git's, or SHA-256 of the bytes in LFS."""
        content = self.files[path]
        return (
            sha256(content)
            if path in self.lfs
            else hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
        )


@dataclass
class FakeHub:
    """The server's state."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    log: list[tuple[str, dict[str, str]]] = field(default_factory=list)
    bytes_received: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def info(self, body: bytes, name: str) -> Answer:
        if (repo := self.repos.get(name)) is None:
            return 404, {"error": "Repository not found"}
        return 200, {"_id": "1", "id": name, "private": repo.private, "sha": repo.commits[-1]}

    def tree(self, body: bytes, name: str) -> Answer:
        repo = self.repos[name]
        entries = []
        for path, content in repo.files.items():
            entry = {"type": "file", "path": path, "size": len(content), "oid": repo.hash_of(path)}
            if path in repo.lfs:
                entry["lfs"] = {"oid": sha256(content), "size": len(content), "pointerSize": 135}
            entries.append(entry)
        return 200, entries

    def create(self, body: bytes) -> Answer:
        asked = json.loads(body)
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        is_new = name not in self.repos
        if is_new:
            self.repos[name] = Repo(
                asked.get("visibility") == "private", {".gitattributes": b"* text\n"}
            )
        return 200 if is_new else 409, {"url": f"{self.url}/{name}", "name": name}

    def preupload(self, body: bytes, name: str) -> Answer:
        repo = self.repos[name]
        files = []
        for path in (asked["path"] for asked in json.loads(body)["files"]):
            mode = "lfs" if path.endswith((".safetensors", ".gguf", ".png")) else "regular"
            oid = repo.hash_of(path) if path in repo.files else None
            files.append({"path": path, "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        return 200, {"files": files}

    def batch(self, body: bytes, name: str) -> Answer:
        objects = [
            {"oid": asked["oid"], "size": asked["size"]} for asked in json.loads(body)["objects"]
        ]
        for entry in objects:
            if entry["oid"] not in self.blobs:
                entry["actions"] = {
                    "upload": {"href": f"{self.url}/lfs/{entry['oid']}", "header": {}}
                }
        return 200, {"transfer": "basic", "objects": objects}

    def store(self, body: bytes, oid: str) -> Answer:
        if sha256(body) != oid:
            return 400, {"error": "the hash is another one"}
        self.blobs[oid] = body
        return 200, {}

    def commit(self, body: bytes, name: str) -> Answer:
        repo = self.repos[name]
        (header, *changes) = map(json.loads, body.splitlines())
        if header["value"].get("parentCommit") not in (None, repo.commits[-1]):
            return 412, {"error": "A commit has happened since. Please refresh and try again."}
        for change in changes:
            kind = change["key"]
            value = change["value"]
            path = value["path"]
            repo.lfs.discard(path)
            if kind == "deletedFile":
                del repo.files[path]
            elif kind == "lfsFile":
                repo.files[path] = self.blobs[value["oid"]]
                repo.lfs.add(path)
            else:
                repo.files[path] = base64.b64decode(value["content"])
        repo.commits.append(hashlib.sha1(body).hexdigest())
        return 200, {
            "commitUrl": f"{self.url}/{name}/commit/{repo.commits[-1]}",
            "commitOid": repo.commits[-1],
        }


ROUTES: dict[str, Callable[..., Answer]] = {
    r"GET /api/models/([^/]+/[^/]+)(?:/revision/main)?": FakeHub.info,
    r"GET /api/models/([^/]+/[^/]+)/tree/\w+": FakeHub.tree,
    r"POST /api/repos/create": FakeHub.create,
    r"POST /api/validate-yaml": lambda *_: (200, {"errors": [], "warnings": []}),
    r"POST /api/models/([^/]+/[^/]+)/preupload/main": FakeHub.preupload,
    r"POST /([^/]+/[^/]+)\.git/info/lfs/objects/batch": FakeHub.batch,
    r"PUT /lfs/(\w+)": FakeHub.store,
    r"POST /api/models/([^/]+/[^/]+)/commit/main": FakeHub.commit,
}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub

    def log_message(self, *_: Any) -> None:
        pass

    def dispatch(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        with self.hub.lock:
            self.hub.log.append((self.command, dict(self.headers)))
            self.hub.bytes_received += len(body)
            status, value = self.route(body)
        content = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = dispatch

    def route(self, body: bytes) -> Answer:
        asked = f"{self.command} {self.path.partition('?')[0]}"
        for route, answer in ROUTES.items():
            if match := re.fullmatch(route, asked):
                return answer(self.hub, body, *match.groups())
        return 404, {"error": f"no such path {asked}"}


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@contextlib.contextmanager
def running() -> Iterator[FakeHub]:
    """A hub on a free port, until the end of the block."""
    hub = FakeHub()
    with ThreadingHTTPServer(
        ("127.0.0.1", 0), type("HandlerOfThis", (Handler,), {"hub": hub})
    ) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(
            target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        yield hub
        server.shutdown()
