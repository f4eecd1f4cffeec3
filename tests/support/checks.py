"""Check exports in this process, because a process of its own imports for six seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from grpo_nb.export.verify_child import answer


def run_script_here(script: Path, request: Mapping[str, Any], **_: object) -> dict[str, Any]:
    """Stand in for `staged_export.run_script`; request and answer go through JSON as there."""
    return json.loads(json.dumps(answer(json.loads(json.dumps(request)))))
