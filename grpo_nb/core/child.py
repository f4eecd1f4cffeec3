"""Run a script's `answer` on a request. `run_script` starts this file as a process of its own.

    python -I child.py SCRIPT REQUEST ANSWER

SCRIPT defines `answer(request)`. REQUEST and ANSWER are JSON files. This file imports nothing of
the kit, and is never imported.
"""

import json
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    script, request_file, answer_file = sys.argv[1:]
    request = json.loads(Path(request_file).read_text("utf-8"))
    answer = runpy.run_path(script)["answer"](request)
    Path(answer_file).write_text(json.dumps(answer), "utf-8")
