"""Answer chats with a GGUF file through llama.cpp. Runs as a process of its own that imports neither the kit nor unsloth.

Run by `grpo_nb.core.run_script`. The request names `gguf`, `package_folder` (where xllamacpp was found), `prompts` (chat
messages), `chat_template_kwargs`, `limit`, `sampling` and `threads`. A line with the number of answers so far goes to standard
output after each.
The engine is llama.cpp's own server on this machine's loopback address, behind a key that only this process knows.
"""

from __future__ import annotations

import secrets
import sys
from collections.abc import Callable
from typing import Any

import httpx

# Tokens that a template may add to the messages: a date, a default system prompt, the role tags.
_TEMPLATE_TOKENS = 1024
_TIMEOUT = 3600.0


def start(request: dict[str, Any]) -> Callable[[str, dict[str, Any]], dict[str, Any]]:
    """Load the file; return a function that asks one of the server's addresses, and that keeps the server."""
    # The package that the kit found, which need not be the first on this process's own path.
    sys.path.insert(0, request["package_folder"])
    import xllamacpp

    key = secrets.token_hex(16)
    params = xllamacpp.CommonParams()
    params.model.path = request["gguf"]
    # A token is a byte at least, so that this many hold every prompt without asking the tokenizer first.
    longest = max(
        sum(len(str(part).encode()) for m in chat for part in m.values())
        for chat in request["prompts"]
    )
    params.n_ctx = -(-(longest + _TEMPLATE_TOKENS + request["limit"]) // 256) * 256
    params.n_parallel = 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = request["threads"]
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [key]
    params.use_jinja, params.warmup, params.offline, params.ui = True, False, True, False
    params.verbosity = 1  # errors alone
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        raise SystemExit(str(error)) from error
    # Not what the environment says: its proxy would be asked for the loopback address too.
    client = httpx.Client(
        headers={"Authorization": f"Bearer {key}"}, timeout=_TIMEOUT, trust_env=False
    )

    def post(path: str, body: dict[str, Any]) -> dict[str, Any]:
        answer = client.post(server.listening_address + path, json=body)
        if answer.is_error:
            raise SystemExit(f"{path}: {answer.status_code} {answer.text}")
        return answer.json()

    return post


def complete(
    post: Callable[..., dict[str, Any]], request: dict[str, Any], number: int
) -> dict[str, Any]:
    """Render, read and complete one chat of the request."""
    asked = {
        "messages": request["prompts"][number],
        "chat_template_kwargs": request["chat_template_kwargs"],
    }
    prompt = post("/apply-template", asked)["prompt"]
    # As the server's chat address does: it adds what the vocabulary wants in front, and reads special tokens as such.
    ids = post("/tokenize", {"content": prompt, "add_special": True, "parse_special": True})[
        "tokens"
    ]
    how = {
        "cache_prompt": False,
        "return_tokens": True,
        "n_probs": 1,
        "n_predict": request["limit"],
    }
    how |= request["sampling"]
    # A seed of its own for each: with one for all, questions would share their draws, and be right or wrong together.
    if "seed" in how:
        how["seed"] += number
    done = post("/completion", {"prompt": prompt, **how})
    return {
        "prompt_ids": ids, "text": done["content"], "ids": done["tokens"], "is_cut": done["stop_type"] == "limit",
        "log_probs": log_probs_of(done["tokens"], done.get("completion_probabilities", [])),
    }  # fmt: skip


def log_probs_of(ids: list[int], steps: list[dict[str, Any]]) -> list[float | None]:
    """For each token its log-probability as llama.cpp tells it, or None.

    Of the tokens that write one character together, as an emoji, it tells the last one's alone (llama.cpp, process_token of its
    server: nothing is told while the text ends within a character). So they are matched from the end.
    """
    left, found = list(steps), []
    for token in reversed(ids):
        found.append(left.pop()["logprob"] if left and left[-1]["id"] == token else None)
    return found[::-1]


def answer(request: dict[str, Any]) -> list[dict[str, Any]]:
    """Answer every chat."""
    post, answers = start(request), []
    for number in range(len(request["prompts"])):
        answers.append(complete(post, request, number))
        print(len(answers), flush=True)
    return answers
