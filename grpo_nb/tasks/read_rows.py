"""Read rows from any source: files, tables in memory, data sets, the Hub.

For other kinds of files, read the file yourself and give a DataFrame (docs/guide/tables.md).
"""

import io
import json
import os
import re
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.core.words import short_repr

# A row of data: its values by column.
Row = dict[str, Any]
Rows = list[Row]
Source = Any
"""A file, a table in memory, a data set or its id on the Hub: see `load_task`."""
_FILE_ENDINGS = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx")
# owner/name, but not data/rows.txt, which is a misspelled path.
_HUB_ID = r"(?i)[\w.-]+/[\w.-]+(?<!\.txt)(?<!\.xls)(?<!\.zip)(?<!\.gz)"


@dataclass(frozen=True)
class SourceRows:
    """The rows of a source, with its names."""

    task_name: str
    rows: Rows
    note: str = ""
    """Sentence on how the source was read, if the user should check it."""
    name_in_errors: str = "the data"
    """Name of the source in error messages."""
    row_name: str = "row"
    """Name of a row in the report, before its number."""


def read_rows(source: Source, split: str = "train") -> SourceRows:
    """Read a file, a table in memory, a data set or a Hub id.

    Args:
        source: Any source of `load_task` other than `"arithmetic"`.
        split: Split of a `DatasetDict` or of a data set on the Hub.

    Raises:
        TypeError: A source of another type, or a row that is not a dict.
        ValueError: A file or data set that cannot be read, with its name and line.
        FileNotFoundError: A path that does not exist.
    """
    import pandas

    if isinstance(source, (str, Path)):
        if str(source).lower().endswith(_FILE_ENDINGS):
            return _read_file(Path(os.path.expanduser(source)))
        return _read_hub(str(source), split)
    if isinstance(source, Mapping):
        if split not in source:
            raise ValueError(
                f"this DatasetDict has no split {split!r}, but {short_repr(list(source))}: give "
                "one of them. If these are columns, make a pandas.DataFrame(data)."
            )
        return read_rows(source[split])
    if isinstance(source, pandas.DataFrame):
        return SourceRows("table", _rows_of_table(source))
    if not isinstance(source, Iterable):
        raise TypeError(
            f"source = {short_repr(source)}: load_task takes 'arithmetic', a file such as "
            "rows.csv, a DataFrame, a Dataset, a list of dicts or the Hub's id of a data set."
        )
    return SourceRows("rows", _rows_of_iterable(source))


def _rows_of_iterable(source: Iterable[Any]) -> Rows:
    """Return the rows of a `Dataset` or list, with names in place of `ClassLabel` numbers.

    The number -1 stands for no label and becomes None.

    Raises:
        TypeError: A row is not a dict.
    """
    rows = []
    for row_number, row in enumerate(source):
        if not isinstance(row, Mapping):
            raise TypeError(
                f"row {row_number} (counted from 0) is {short_repr(row)}, not a dict such as "
                '{"question": "2 + 2?"}.'
            )
        rows.append(dict(row))
    features = getattr(source, "features", None) or {}
    for name, feature in features.items():
        # Only a `ClassLabel` has this method.
        if hasattr(feature, "int2str"):
            label_of = dict(enumerate(feature.names))
            for row in rows:
                row[name] = label_of.get(row[name])
    return rows


def _rows_of_table(table: Any) -> Rows:
    """Return the rows of a DataFrame; an empty cell is None."""
    import pandas

    # Only columns of objects can hold None: one of numbers would turn it into NaN again.
    frame = pandas.DataFrame(table, dtype=object)
    return _as_python(frame.where(frame.notna(), None).to_dict("records"))


def _as_python(value: Any) -> Any:
    """Return a value with lists in place of numpy arrays.

    A DataFrame from pandas.read_parquet has an array in each cell of a column of lists.
    """
    if hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, list):
        return [_as_python(item) for item in value]
    if isinstance(value, dict):
        return {name: _as_python(item) for name, item in value.items()}
    return value


# Files.


def _read_file(path: Path) -> SourceRows:
    """Read a file of the kind that its ending names.

    Raises:
        ValueError: The file cannot be read. The message names it.
        FileNotFoundError: The file does not exist.
    """
    ending = path.suffix.lower()
    note = ""
    try:
        if ending == ".parquet":
            import pyarrow.parquet
            from datasets import Dataset

            # Not with pandas: only a `Dataset` reads the names of `ClassLabel` numbers in the file.
            rows = _rows_of_iterable(Dataset(pyarrow.parquet.read_table(path)))
        elif ending == ".xlsx":
            import pandas

            # Needs openpyxl; without it, pandas says so.
            rows = _rows_of_table(pandas.read_excel(path, dtype=object))
        elif ending in (".csv", ".tsv"):
            rows, note = _read_csv(path)
        else:
            rows = _read_json(path)
    # Errors of pandas, pyarrow, json, codecs and single rows. BadZipFile: an incomplete .xlsx file.
    except (TypeError, ValueError, zipfile.BadZipFile) as error:
        raise ValueError(
            f"{path} cannot be read: {str(error).strip()}. Correct the file, or give a DataFrame."
        ) from error
    return SourceRows(path.stem, rows, note, path.name)


def _read_csv(path: Path) -> tuple[Rows, str]:
    """Return the rows with each cell as text, without spaces before it, and a note on the encoding.

    The separator is a tab if the first line has one, otherwise whichever of comma, semicolon and
    bar it has most often.
    """
    import pandas

    note = ""
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeError:
        # Excel saves "Unicode Text" in UTF-16, which begins with one of these marks.
        if path.read_bytes()[:2] in (b"\xff\xfe", b"\xfe\xff"):
            text = path.read_text("utf-16")
        else:
            text = path.read_text("cp1252")
            note = (
                "not UTF-8, so read as cp1252; for others, give pandas.read_csv(file, encoding=...)"
            )
    # Quoted texts are removed, because they may hold separators and line breaks.
    head = re.sub('"[^"]*"', "", text.lstrip()).partition("\n")[0]
    separator = "\t" if "\t" in head else max(",;|", key=head.count)
    frame = pandas.read_csv(
        io.StringIO(text), sep=separator, dtype=str, keep_default_na=False, skipinitialspace=True
    )
    # If rows have more cells than the first line, pandas takes the first cells for an index.
    if not isinstance(frame.index, pandas.RangeIndex):
        raise ValueError(
            f"more cells than the first line has names; a text with {separator!r} needs quotation "
            "marks"
        )
    return _rows_of_table(frame), note


def _read_json(path: Path) -> Rows:
    """Return the rows of JSON lines, or of one JSON text with a list of rows or a single row.

    The content decides, because JSON lines are often in a file that ends in .json.
    """
    text = path.read_text("utf-8-sig")
    try:
        rows = json.loads(text)
    except ValueError:
        if text.lstrip().startswith("["):
            raise
        # Put a comma after each line that is not empty, and read all lines as one JSON list. An
        # error then names the line.
        lines = re.sub(r"(?<=\S)(?=\s*\n)", ",", text.rstrip())
        rows = json.loads(f"[{lines}]")
    return _rows_of_iterable(rows if isinstance(rows, list) else [rows])


def _read_hub(name: str, split: str) -> SourceRows:
    """Read a data set on the Hub by its id, owner/name."""
    hub_id = "openai/gsm8k" if name == "gsm8k" else name
    # The Hub is not asked for other names, because that can take half a minute. `is_file` comes
    # last, because it fails on a text that is too long for a path.
    if not re.fullmatch(_HUB_ID, hub_id) or Path(hub_id).is_file():
        raise ValueError(
            f"{name!r} is neither a file of a known kind ({', '.join(_FILE_ENDINGS)}) nor the id "
            "of a data set on the Hub, owner/name. For other files and for folders, give the rows: "
            "a DataFrame, or datasets.load_dataset(...). Only two names have no owner: 'gsm8k' and "
            "'arithmetic'. For holdout=, write a number in place of 'arithmetic'."
        )
    from datasets import load_dataset

    config = "main" if hub_id == "openai/gsm8k" else None
    rows = _rows_of_iterable(load_dataset(hub_id, config, split=split))
    return SourceRows(name, rows, name_in_errors=name)
