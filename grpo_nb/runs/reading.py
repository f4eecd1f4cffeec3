"""Read files that a crash or another person can have damaged. Errors name the damaged file."""

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from grpo_nb.core.words import short_repr


@contextlib.contextmanager
def reporting_damage_in(place: Path | str) -> Iterator[None]:
    """Raise any error about the content of a file as a `ValueError` that names the file.

    The errors of JSON and pyarrow do not name the file. Keep the block small: a bug inside of it
    would be reported as a damaged file.

    Args:
        place: What is read in the block, as the message names it: a file, a line or a metric.
    """
    try:
        yield
    except (ImportError, MemoryError):
        raise
    # Any other error, because valid JSON can have any shape.
    except Exception as error:
        # pyarrow reports a damaged file as an OSError without an errno. An OSError with an errno
        # comes from the drive.
        if isinstance(error, OSError) and error.errno is not None:
            raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise ValueError(
            f"{place} is damaged, or was written by another version of grpo_nb ({reason}): "
            "restore the file from a copy, or delete the damaged part. If a newer version wrote "
            "it, update grpo_nb instead."
        ) from error


def read_json_lines(file: Path, *, drop_partial_line: bool = False) -> list[dict[str, Any]]:
    """Read a file of JSON lines, one mapping in each. A missing file has no rows.

    Args:
        file: The file, which need not exist.
        drop_partial_line: True leaves out a last line without a line break. A crash can truncate
            the last line of a file that is written line by line.

    Raises:
        ValueError: A line cannot be read; the message names file and line.
    """
    if not file.is_file():
        return []
    # A power cut can leave zero bytes at the end of a file.
    content = file.read_bytes().rstrip(b"\0")
    lines = content.splitlines()
    if drop_partial_line and not content.endswith(b"\n"):
        lines = lines[:-1]
    rows = []
    for number, line in enumerate(lines, 1):
        with reporting_damage_in(f"{file} (line {number})"):
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError(f"{short_repr(row)} is not a JSON object")
            rows.append(row)
    return rows
