"""A script's `answer` to a request, in a process of its own. Started by `run_script`, never imported.

    python -I child.py SCRIPT REQUEST ANSWER

SCRIPT defines `answer(request)`; REQUEST and ANSWER are files of JSON.
"""

import json
import runpy
import sys
from pathlib import Path

if __name__ == "__main__":
    script, request, answer = sys.argv[1:]
    answered = runpy.run_path(script)["answer"](json.loads(Path(request).read_text("utf-8")))
    Path(answer).write_text(json.dumps(answered), "utf-8")
