"""Answer chats with a GGUF file through llama.cpp, in a process without the kit and unsloth.

`grpo_nb.core.processes.run_script` runs this file. The request has `gguf`, `prompts` (chat
messages), `chat_template_kwargs`, `max_completion_length` and `threads`. The engine is llama.cpp's
own server on this machine's loopback address, behind a key that only this process knows.
"""

from __future__ import annotations

import json
import secrets
from collections import deque
from collections.abc import Sequence
from typing import Any

import httpx
import xllamacpp

#: Object of a request or a reply, as `json` reads it.
JsonObject = dict[str, Any]
#: Tokens that a template may add to the messages: a date, a default system prompt, the role tags.
MAX_TEMPLATE_TOKENS = 1024
#: A long answer on a slow CPU takes minutes. After an hour the server counts as stuck.
TIMEOUT_SECONDS = 3600.0


def answer(request: JsonObject) -> list[JsonObject]:
    """Complete every chat of a request; return the fields of each `llama_cpp.GgufCompletion`."""
    key = secrets.token_hex(16)
    server = start_server(request, key)
    # With trust_env=True, httpx would send these requests to a proxy named in the environment.
    client = httpx.Client(
        base_url=server.listening_address,
        headers={"Authorization": f"Bearer {key}"},
        timeout=TIMEOUT_SECONDS,
        trust_env=False,
    )
    return [complete(client, request, prompt) for prompt in request["prompts"]]


def start_server(request: JsonObject, key: str) -> xllamacpp.Server:
    """Load the file, and return a running server that answers requests with the key only.

    The server stops when the returned object is deleted.
    """
    params = xllamacpp.CommonParams()
    params.model.path = request["gguf"]
    # JSON has at least one character per byte of text, and a token has at least one byte, so the
    # length of the JSON bounds the tokens of a chat.
    max_chat_tokens = max(len(json.dumps(chat)) for chat in request["prompts"])
    params.n_ctx = max_chat_tokens + MAX_TEMPLATE_TOKENS + request["max_completion_length"]
    params.n_parallel = 1
    params.cpuparams.n_threads = request["threads"]
    params.cpuparams_batch.n_threads = request["threads"]
    params.hostnames = ["127.0.0.1"]
    params.port = 0  # any free port
    params.api_keys = [key]
    params.use_jinja = True
    params.warmup = False
    params.offline = True
    params.ui = False
    params.verbosity = 1  # errors only
    try:
        return xllamacpp.Server(params)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error


def post(client: httpx.Client, path: str, body: JsonObject) -> JsonObject:
    """Return the server's reply, or end this process with its error."""
    response = client.post(path, json=body)
    if response.is_error:
        raise SystemExit(f"{path}: {response.status_code} {response.text}")
    return response.json()


def complete(
    client: httpx.Client, request: JsonObject, messages: list[dict[str, str]]
) -> JsonObject:
    """Render, tokenize and complete one chat of the request."""
    template_body = {
        "messages": messages,
        "chat_template_kwargs": request["chat_template_kwargs"],
    }
    prompt = post(client, "/apply-template", template_body)["prompt"]
    # The flags are those of the server's own chat endpoint. It adds the tokens that the vocabulary
    # requires at the start, and recognises special tokens in the text.
    tokenize_body = {"content": prompt, "add_special": True, "parse_special": True}
    prompt_ids = post(client, "/tokenize", tokenize_body)["tokens"]
    completion_body = {
        "prompt": prompt,
        "cache_prompt": False,
        "return_tokens": True,
        "n_probs": 1,
        "n_predict": request["max_completion_length"],
        "temperature": 0.0,
    }
    completion = post(client, "/completion", completion_body)
    ids = completion["tokens"]
    return {
        "text": completion["content"],
        "ids": ids,
        "prompt_ids": prompt_ids,
        "is_truncated": completion["stop_type"] == "limit",
        "log_probs": log_probs_of(ids, completion.get("completion_probabilities", [])),
    }


def log_probs_of(ids: Sequence[int], reported_tokens: Sequence[JsonObject]) -> list[float | None]:
    """Return the log-probability of each token, or None where it is not known.

    If several tokens write one character together, such as an emoji, the server reports only the
    last (llama.cpp, `process_token` of its server: nothing is reported while the text ends within a
    character). The report has no positions, so the reported tokens are matched to `ids` from the
    start and from the end. A match is certain if both agree on it.

    Args:
        ids: Token ids of the completion.
        reported_tokens: The reported tokens in their order, each with `id` and `logprob`.
    """
    from_start = match_in_order(ids, reported_tokens)
    from_end = match_in_order(ids[::-1], reported_tokens[::-1])[::-1]
    pairs = zip(from_start, from_end, strict=True)
    return [token["logprob"] if token and token is other else None for token, other in pairs]


def match_in_order(
    ids: Sequence[int], reported_tokens: Sequence[JsonObject]
) -> list[JsonObject | None]:
    """Return the reported token of each id, matched as early as possible; None for the others."""
    unmatched = deque(reported_tokens)
    matches = []
    for token_id in ids:
        is_reported = bool(unmatched) and unmatched[0]["id"] == token_id
        matches.append(unmatched.popleft() if is_reported else None)
    return matches
