"""Start the train.py of several folders in this process, one after the other.

Each runs as it would alone; the imports are made once.

scale_driver.py [--processes N] FOLDER ... ARGUMENTS
"""

import runpy
import sys
from pathlib import Path

from accelerate import PartialState

folders = [word for word in sys.argv[1:] if Path(word).is_dir()]
rest = [word for word in sys.argv[1:] if word not in folders]
for folder in folders:
    for module in ("rewards", "replay"):
        sys.modules.pop(module, None)
    sys.path[0] = folder
    sys.argv = [f"{folder}/train.py", *rest]
    runpy.run_path(sys.argv[0], run_name="train")["main"]()
PartialState().destroy_process_group()
