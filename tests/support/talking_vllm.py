"""What vLLM 0.31 and Unsloth do with stdout while an engine starts; copied from their source, for where they are not."""

from __future__ import annotations

import logging.config
import os
import sys


def start() -> None:
    """Print, log, and mute the descriptor of stdout while C code writes to it."""
    print("Unsloth: vLLM loading with the settings given")
    handler = {"class": "logging.StreamHandler", "level": "INFO", "stream": "ext://sys.stdout"}
    loggers = {"vllm": {"handlers": ["vllm"], "level": "INFO", "propagate": False}}
    # vllm/logger.py, _configure_vllm_root_logger: when the first engine is made
    logging.config.dictConfig(
        {"version": 1, "disable_existing_loggers": False, "handlers": {"vllm": handler}, "loggers": loggers}
    )
    logging.getLogger("vllm.v1.engine.core").info("Initializing a V1 LLM engine")
    _make_process_group()
    os.write(1, b"C code is heard again\n")
    logging.getLogger("vllm.v1.worker").error("Free memory is not enough")


def _make_process_group() -> None:
    # vllm/utils/system_utils.py, suppress_stdout, in vllm/distributed/parallel_state.py, GroupCoordinator
    descriptor = sys.stdout.fileno()
    kept, nowhere = os.dup(descriptor), os.open(os.devnull, os.O_WRONLY)
    try:
        sys.stdout.flush()
        os.dup2(nowhere, descriptor)
        os.write(1, b"[Gloo] Rank 0 is connected to 0 peer ranks\n")
    finally:
        sys.stdout.flush()
        os.dup2(kept, descriptor)
        os.close(kept)
        os.close(nowhere)
