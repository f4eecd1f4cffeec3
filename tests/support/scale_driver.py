"""Start the train.py of several folders in this process, one after the other.

Each runs as it would alone; the imports are made once.

scale_driver.py [--processes N] FOLDER ... ARGUMENTS
"""

import contextlib
import runpy
import sys
from pathlib import Path

folders = [word for word in sys.argv[1:] if Path(word).is_dir()]
rest = [word for word in sys.argv[1:] if word not in folders]
for folder in folders:
    for module in ("rewards", "replay"):
        sys.modules.pop(module, None)
    sys.path[0] = folder
    sys.argv = [f"{folder}/train.py", *rest]
    program = runpy.run_path(sys.argv[0], run_name="train")
    program["main"]()
program["close_process_group"]()

threads = []
for thread in Path("/proc/self/task").glob("*"):  # Linux alone has it
    with contextlib.suppress(OSError):  # another thread may end meanwhile
        threads.append((thread / "comm").read_text().strip())
connections = [name for name in threads if "gloo" in name]
assert not connections, f"these threads may abort the process at its exit: {connections}"
