"""Rows as a `datasets.Dataset` whose dicts are unchanged: each keeps its own keys and numbers.

Arrow gives each dict of a column the keys of all dicts, and turns 3 into 3.0 next to 2.5. Where it
would change dicts, the column is stored with the type `Json` of datasets. In columns without dicts
3 does become 3.0, as in pandas.
"""

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from grpo_nb.core.words import displayable

if TYPE_CHECKING:
    from datasets import Dataset


def as_dataset(
    rows: Sequence[Mapping[str, Any]], json_columns: Sequence[str] | None = None
) -> "Dataset":
    """Return rows as a `Dataset` whose dicts are unchanged.

    Args:
        rows: All with the same columns.
        json_columns: From `columns_as_json` of more rows than these, so that two parts get the
            same types.
    """
    from datasets import Dataset, Json

    if json_columns is None:
        json_columns = columns_as_json(rows)
    # Cells are encoded here, because the encoder of Json rounds to ten decimals and reads the text
    # "2" as a number.
    encoded = [dict(row) for row in rows]
    for row in encoded:
        for name in json_columns:
            if row[name] is not None:
                row[name] = json.dumps(row[name], ensure_ascii=False)
    dataset = Dataset.from_list(encoded)
    if not json_columns:
        return dataset
    features = dataset.features.copy()
    for name in json_columns:
        features[name] = Json()
    return Dataset.from_list(encoded, features=features)


def columns_as_json(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that a `Dataset` has to store as JSON."""
    names = dict.fromkeys(name for row in rows for name in row)
    # Chat messages are dicts with the same keys, which Arrow does not change.
    names.pop("prompt", None)
    return [name for name in names if _is_changed_by_arrow([row.get(name) for row in rows])]


def can_store(values: list[Any]) -> bool:
    """Say whether a `Dataset` holds a column unchanged, as Arrow values or as JSON."""
    if any(map(_has_nested_none, values)):
        return False
    return not _is_changed_by_arrow(values) or _is_unchanged_by_json(values)


def _is_changed_by_arrow(values: list[Any]) -> bool:
    import pyarrow

    try:
        array = pyarrow.array(values)
    except (ValueError, TypeError, OverflowError):  # pyarrow's own errors are of these kinds
        return True
    has_dicts = "struct" in str(array.type)
    return has_dicts and repr(array.to_pylist()) != repr(values)


def _is_unchanged_by_json(values: list[Any]) -> bool:
    """Say whether the type `Json` holds a column unchanged."""
    from datasets import Json

    try:
        encoded = [json.dumps(value, allow_nan=False, ensure_ascii=False) for value in values]
        # The decoder reads 1/3 as 0.33333333333333304.
        decoded = [Json().decode_example(text) for text in encoded]
    except (ValueError, TypeError, RecursionError):
        return False
    is_displayable = all(displayable(text) == text for text in encoded)
    return is_displayable and repr(decoded) == repr(values)


def _has_nested_none(cell: Any) -> bool:
    """Say whether a list of dicts, such as hidden tests, has None in a dict further inside.

    Arrow may have filled it in, so `code_tests` refuses it unless the cell is text.
    """
    entries = cell if isinstance(cell, list) else []
    fields = [field for entry in entries if isinstance(entry, Mapping) for field in entry.values()]
    return any(map(holds_none, fields))


def holds_none(value: Any) -> bool:
    """Say whether a dict at any depth of a value holds None."""
    if isinstance(value, Mapping):
        return any(item is None or holds_none(item) for item in value.values())
    return isinstance(value, (list, tuple)) and any(map(holds_none, value))
