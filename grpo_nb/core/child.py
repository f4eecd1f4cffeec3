"""A script's `answer` to a request, in a process of its own that ends with its parent. Started by `run_script`, never imported.

    python -I child.py PARENT SCRIPT REQUEST ANSWER

PARENT is a process number; SCRIPT defines `answer(request)`; REQUEST and ANSWER are files of JSON.
"""

import json
import os
import runpy
import sys
import threading
import time
from pathlib import Path


def end_with_parent(parent: int) -> None:
    """End this process when its parent is gone."""
    while os.getppid() == parent:
        time.sleep(1)
    os._exit(1)


if __name__ == "__main__":
    parent, script, request, answer = sys.argv[1:]
    threading.Thread(target=end_with_parent, args=[int(parent)], daemon=True).start()
    answered = runpy.run_path(script)["answer"](json.loads(Path(request).read_text("utf-8")))
    Path(answer).write_text(json.dumps(answered), "utf-8")
