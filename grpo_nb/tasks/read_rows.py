"""Read rows from any source: files, tables in memory, data sets, the Hub. None is left out.

Files are read by pandas, pyarrow and json. For other files, read the file yourself and give a
DataFrame (docs/guide/tables.md).
"""

import difflib
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.core.words import did_you_mean, in_line

Row = Mapping[str, Any]
Source = str | Path | Sequence[Row] | Mapping[str, Sequence[Any]] | Any
FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".xlsx")
KNOWN = {"gsm8k": ("openai/gsm8k", "main"), "openai/gsm8k": ("openai/gsm8k", "main")}
"""Names that people use, each with the id on the Hub and the configuration."""
# Similarity (difflib) above which a name is a misspelling: "arithmatic" has 0.9, "math_qa" 0.5.
_MISSPELLED = 0.75
# A dict with only these values is a row, not a dict of columns.
_ONE_VALUE = (str, int, float, dict, type(None))


@dataclass(frozen=True)
class Rows:
    """The rows of a source, and what to know about the reading."""

    name: str
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    place: str = "the data"
    """The source's name in a sentence."""
    accepted_arguments: tuple[str, ...] = ()
    """The arguments `split` and `config`, if the source has a use for them."""


def read_rows(source: Source, split: str | None = None, config: str | None = None) -> Rows:
    """Read a file, a table in memory, a data set or a Hub id.

    Args:
        source: Any source of `load_task` other than `"arithmetic"`.
        split: Split of a `DatasetDict` or of a data set on the Hub.
        config: Configuration of a data set on the Hub that has several.

    Raises:
        TypeError: The source holds no rows.
        ValueError: A file or data set that cannot be read, with its name and line.
        FileNotFoundError: A path that does not exist.
    """
    if isinstance(source, (str, Path)):
        return _read_named(source, split, config)
    accepted_arguments: tuple[str, ...] = ()
    if is_dataset_dict(source):
        chosen = split or (next(iter(source)) if len(source) == 1 else None)
        if chosen not in source:
            wrong = f"no split {split!r}" if split else "several splits"
            raise ValueError(
                f"this DatasetDict has {wrong}, but {[*source]}: say which, "
                f'split="{next(iter(source))}".'
            )
        source = source[chosen]
        accepted_arguments = ("split",)
    # A Dataset, an Arrow table or a polars.DataFrame.
    for method in ("to_list", "to_pylist", "to_dicts"):
        if hasattr(source, method):
            # A pandas.Series has to_list too, but its entries may be no rows.
            dicts = _as_dicts("the data", getattr(source, method)())
            rows, notes = _with_label_names(dicts, _features_of(source))
            return Rows("dataset", rows, notes, accepted_arguments=accepted_arguments)
    # A dict of columns or a pandas.DataFrame.
    if isinstance(source, Mapping) or hasattr(source, "columns"):
        return Rows("table", _rows_of_table(source), place="the table")
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        rows, notes = _with_label_names(_as_dicts("the data", source), _features_of(source))
        return Rows("rows", rows, notes)
    raise TypeError(
        f"source = {in_line(source)}: load_task takes 'arithmetic', a file ({', '.join(FILES)}), a "
        "DataFrame, a Dataset, a list of dicts, a dict of columns or the Hub's id of one."
    )


def is_dataset_dict(source: Any) -> bool:
    """Say whether a source is a `DatasetDict`, or a dict of datasets."""
    is_mapping = isinstance(source, Mapping) and bool(source)
    return is_mapping and all(hasattr(part, "features") for part in source.values())


def _as_dicts(place: str, rows: Iterable[Any]) -> list[dict[str, Any]]:
    """Return rows as dicts with texts as keys.

    Raises:
        TypeError: A row is not a dict.
    """
    dicts = []
    for number, row in enumerate(rows):
        if not isinstance(row, Mapping):
            raise TypeError(
                f"{place}: row {number} is {in_line(row)}, not a dict such as "
                '{"question": "2 + 2?"}.'
            )
        dicts.append({str(name): value for name, value in row.items()})
    return dicts


def _rows_of_table(table: Any) -> list[dict[str, Any]]:
    """Return the rows of a dict of columns or of a `pandas.DataFrame`; an empty cell is None.

    Raises:
        ValueError: A dict that is one row, or columns of different lengths.
    """
    import pandas

    is_mapping = isinstance(table, Mapping)
    if is_mapping and all(isinstance(cell, _ONE_VALUE) for cell in table.values()):
        raise ValueError(f"{in_line(dict(table))} is one row: give a list of rows, [{{...}}, ...]")
    frame = pandas.DataFrame(table, dtype=object)
    return frame.where(frame.notna(), None).rename(columns=str).to_dict("records")


# Names of labels.


def _features_of(source: Any) -> Mapping[str, Any]:
    """Return the types of a `Dataset`'s columns, or of an Arrow table written by datasets."""
    if getattr(source, "features", None):
        return source.features
    schema = getattr(source, "schema", None)
    if b"huggingface" in (getattr(schema, "metadata", None) or {}):
        from datasets import Features

        return Features.from_arrow_schema(schema)
    return {}


def _with_label_names(
    rows: list[dict[str, Any]], features: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the rows with names in place of the numbers that a `ClassLabel` stores, and notes."""
    labels_of = {name: feature for name, feature in features.items() if _label_type(feature)}
    if not labels_of:
        return rows, ()
    named = [dict(row) for row in rows]
    for row in named:
        for name in labels_of.keys() & row.keys():
            row[name] = _label_names(row[name], _label_type(labels_of[name]))
    notes = [
        f"the column {name!r} holds labels: their names are used, not their numbers"
        for name in labels_of
    ]
    return named, tuple(notes)


def _label_type(feature: Any) -> Any:
    """Return the `ClassLabel` that a column's type is, or that a list of it holds; else None."""
    while hasattr(feature, "feature"):
        feature = feature.feature
    return feature if hasattr(feature, "int2str") else None


def _label_names(value: Any, label_type: Any) -> Any:
    """Return the names of labels; -1 stands for no label and becomes None."""
    if isinstance(value, list):
        return [_label_names(entry, label_type) for entry in value]
    return None if value is None or value < 0 else label_type.int2str(value)


# Files.


def _read_named(source: str | Path, split: str | None, config: str | None) -> Rows:
    """Read the file or the data set on the Hub that a text or path names."""
    path = Path(source)
    name = str(source)
    if path.suffix.lower() in FILES:
        return _read_file(path)
    # A folder called gsm8k is often a run or an export.
    if name in KNOWN and not path.is_file():
        return _read_hub(name, split, config)
    if path.is_dir():
        raise ValueError(
            f"{name!r} is a folder here, not a file. Name the file in it, such as "
            f"{str(path / 'train.jsonl')!r}, or give the rows of the data set on the Hub: "
            "datasets.load_dataset(...)."
        )
    # The name of a data set may end in .0, as a version does.
    if path.exists() or path.suffix[1:].isalpha():
        raise ValueError(
            f"{name!r} is no {', '.join(FILES)} file. Read it with pandas, and give the DataFrame."
        )
    # Asking the Hub for a misspelled name can take half a minute. owner/arithmetic is on the Hub.
    known = ("arithmetic", *KNOWN)
    meant = difflib.get_close_matches(name.casefold(), known, n=1, cutoff=_MISSPELLED)
    if meant and "/" not in name:
        raise ValueError(
            f"{name!r} is no file and no name that load_task knows{did_you_mean(meant[0], meant)} "
            "A data set of this name on the Hub is read with its owner: owner/name."
        )
    return _read_hub(name, split, config)


def _read_file(path: Path) -> Rows:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r} (looked in {Path.cwd()}).")
    ending = path.suffix.lower()
    try:
        if ending == ".parquet":
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path)
            rows, notes = _with_label_names(table.to_pylist(), _features_of(table))
            return Rows(path.stem, rows, notes, path.name)
        if ending == ".xlsx":
            import pandas

            # Needs openpyxl; without it, pandas says so.
            frame = pandas.read_excel(path, dtype=object)
            return Rows(path.stem, _rows_of_table(frame), place=path.name)
        text, notes = _decoded(path.read_bytes())
        rows = _read_json(path, text) if "json" in ending else _read_csv(path, text)
    except (ValueError, OSError) as error:  # errors of pandas, pyarrow, json and codecs
        raise ValueError(
            f"{path} cannot be read: {' '.join(str(error).split())}. Correct the file, or give a "
            "DataFrame."
        ) from error
    return Rows(path.stem, rows, notes, path.name)


def _decoded(data: bytes) -> tuple[str, tuple[str, ...]]:
    """Return the text of a file, and a note if its encoding had to be guessed."""
    has_utf16_mark = data[:2] in (b"\xff\xfe", b"\xfe\xff")
    try:
        return data.decode("utf-16" if has_utf16_mark else "utf-8-sig"), ()
    except UnicodeError:
        note = "not UTF-8, so read as cp1252; for others, give pandas.read_csv(file, encoding=...)"
        return data.decode("cp1252"), (note,)


def _read_csv(path: Path, text: str) -> list[dict[str, Any]]:
    """Return the rows with each cell as the text in the file.

    The separator of a .csv file is the most frequent one in the first line.
    """
    import pandas

    head = re.sub('"[^"]*"', "", text.lstrip()).partition("\n")[0]
    separator = "\t" if path.suffix.lower() == ".tsv" else max(",;\t|", key=head.count)
    frame = pandas.read_csv(
        io.StringIO(text), sep=separator, dtype=str, keep_default_na=False, skipinitialspace=True
    )
    # If rows have more cells than the first line, pandas takes the first cells for an index.
    if not isinstance(frame.index, pandas.RangeIndex):
        raise ValueError(
            f"more cells than the first line has names; a text with {separator!r} needs quotation "
            "marks"
        )
    return _rows_of_table(frame)


def _read_json(path: Path, text: str) -> list[dict[str, Any]]:
    """Return the rows of JSON lines, or of one JSON text with a list of rows or a dict of columns.

    The content decides, because JSON lines are often in a file that ends in .json.
    """
    values = []
    place = _after_space(text, 0)
    while place < len(text):
        # An error names the line of the whole file.
        value, end = json.JSONDecoder().raw_decode(text, place)
        values.append(value)
        place = _after_space(text, end)
    if len(values) != 1 or path.suffix.lower() == ".jsonl":
        return _as_dicts(path.name, values)
    (content,) = values
    if isinstance(content, Mapping):
        return _rows_of_table(content)
    return _as_dicts(path.name, content if isinstance(content, list) else values)


def _after_space(text: str, place: int) -> int:
    return re.compile(r"\s*").match(text, place).end()


def _read_hub(name: str, split: str | None, config: str | None) -> Rows:
    from datasets import load_dataset

    hub_id, usual_config = KNOWN.get(name, (name, None))
    try:
        data = load_dataset(hub_id, config or usual_config, split=split or "train")
        rows, notes = _with_label_names(data.to_list(), _features_of(data))
    except (OSError, ConnectionError, ValueError) as error:
        raise ValueError(
            f"{name!r} is no file, and the Hub has no such data set or refused it: {error!s:.300}"
        ) from error
    return Rows(name, rows, notes, place=name, accepted_arguments=("split", "config"))
