"""Inner parts of a vLLM engine that the kit reads or cleans up, and a stdout that vLLM can mute.

An *engine* is the `vllm.LLM` that Unsloth gives a model as `vllm_engine`. It runs in this process.
"""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Iterator
from typing import Any

from grpo_nb.upstream.symbols import require_symbol


class _HiddenStdout(io.StringIO):
    """Replacement of stdout while unsloth is imported or a model is loaded.

    Only Python's stdout is replaced. C code and child processes still write to descriptor 1.
    Redirecting descriptor 1 would silence every thread, and hide the last message before a crash.
    """

    def fileno(self) -> int:
        """Return the descriptor of stdout, which vLLM mutes while it makes its process group.

        See vllm/utils/system_utils.py, suppress_stdout.
        """
        return 1


@contextlib.contextmanager
def hiding_stdout() -> Iterator[None]:
    """Hide printed output within the block.

    vLLM's log handler keeps the stdout that it finds when the first engine is made
    (vllm/logger.py, _configure_vllm_root_logger). If the block makes that engine, the handler
    afterwards shows only errors, on stderr.
    """
    try:
        with contextlib.redirect_stdout(_HiddenStdout()):
            yield
    finally:
        for handler in logging.getLogger("vllm").handlers:
            if isinstance(getattr(handler, "stream", None), _HiddenStdout):
                handler.setStream(sys.stderr)
                handler.setLevel(logging.ERROR)


def sequence_limit_of(engine: Any) -> int:
    """Return an engine's limit on the number of tokens of a prompt plus its completion.

    The engine truncates longer completions without a warning (vllm/v1/core/sched/utils.py,
    `check_stop`).
    """
    return _require_path(engine, "llm_engine", "vllm_config", "model_config", "max_model_len")


def is_sleeping(engine: Any) -> bool:
    """Return True if an engine sleeps, so that its cache holds no memory.

    See vllm/v1/engine/llm_engine.py, `LLMEngine.is_sleeping`.
    """
    return _require_path(engine, "llm_engine", "is_sleeping")()


def put_to_sleep(engine: Any) -> None:
    """Put an engine to sleep, at the level that Unsloth itself uses.

    Unsloth wakes the engine at the next sampling (unsloth_zoo/vllm_utils.py,
    `patch_vllm_enable_sleep_mode`).
    """
    require_symbol(engine, "sleep", "vllm")(1)


def drop_requests(engine: Any) -> None:
    """Remove the requests that an interrupted sampling left in an engine.

    An interrupt ends `LLM.generate`, but the engine still has the requests
    (vllm/entrypoints/offline_utils.py, `_run_engine`). This has three consequences:

    - The next call would wait for ever. vLLM counts the interrupted step as computed, but its token
      never arrives, so the request is neither scheduled again nor finished
      (v1/core/sched/scheduler.py, `_update_after_schedule`).
    - If the interrupt came after a step was computed, the step still awaits its sampling, and the
      next step is refused (v1/worker/gpu_model_runner.py, `execute_model`).
    - On a GPU, a queue holds two steps at a time. If it is full, every call ends in an assertion
      (v1/engine/core.py, `step_with_batch_queue`).

    Once an interrupted `LLM.generate` removes its requests itself, this function can go.
    """
    llm_engine = require_symbol(engine, "llm_engine", "vllm")
    request_ids = list(_require_path(llm_engine, "output_processor", "request_states"))
    if not request_ids:
        return
    engine_core = _require_path(llm_engine, "engine_core", "engine_core")
    # The queue is None if the engine computes one step at a time.
    steps_under_way = require_symbol(engine_core, "batch_queue", "vllm")
    while steps_under_way:
        # The step must end first, because the GPU writes into memory that the next requests will
        # use. An error of the step belongs to the call that was interrupted.
        with contextlib.suppress(Exception):
            steps_under_way.pop()[0].result()
    abort = require_symbol(llm_engine, "abort_request", "vllm")
    abort(request_ids, internal=True)
    require_symbol(llm_engine, "collective_rpc", "vllm")(_clear_worker)


def _clear_worker(worker: Any) -> None:
    """Clear a worker after an interrupted step, as vLLM does after a fault.

    The source is vLLM 0.31, v1/worker/sentinel/gpu_worker_sentinel.py, `_clean_worker_state`.

    Model Runner V2 (on a GPU) keeps a slot for each request until a step reports that the request
    has finished. If the interrupt removes that step, the slot is never freed. Without free slots
    every call ends in "No free indices" (v1/worker/gpu/states.py).

    Model Runner V1 has no `req_states`. It drops requests by itself when they are no longer
    scheduled (v1/worker/gpu_model_runner.py, `_update_states`).
    """
    runner = require_symbol(worker, "model_runner", "vllm")
    require_symbol(runner, "execute_model_state", "vllm")
    # State of a computed step that awaits its sampling.
    runner.execute_model_state = None
    if not hasattr(runner, "req_states"):
        return
    request_ids = list(_require_path(runner, "req_states", "req_id_to_index"))
    remove_request = require_symbol(runner, "_remove_request", "vllm")
    for request_id in request_ids:
        remove_request(request_id)


def _require_path(owner: Any, *names: str) -> Any:
    """Return an inner part of an engine, or raise if a name on the path to it is missing."""
    for name in names:
        owner = require_symbol(owner, name, "vllm")
    return owner
