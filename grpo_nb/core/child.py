"""A script's `answer` to a request, in a process of its own that ends with its parent. Started by `run_script`, never imported.

    python -I child.py SCRIPT REQUEST ANSWER

SCRIPT defines `answer(request)`; REQUEST and ANSWER are files of JSON.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import threading
from pathlib import Path


def end_with_parent() -> None:
    """End this process when its parent is gone: standard input, which nobody writes to, is then at its end."""
    # Not sys.stdin, whose lock this thread would hold while the interpreter ends.
    while os.read(0, 1024):
        pass
    os._exit(1)


if __name__ == "__main__":
    script, request, answer = sys.argv[1:]
    threading.Thread(target=end_with_parent, daemon=True).start()
    answered = runpy.run_path(script)["answer"](json.loads(Path(request).read_text("utf-8")))
    Path(answer).write_text(json.dumps(answered), "utf-8")
