"""Read rows from any source: files, tables in memory, data sets, the Hub. Every row is kept.

Files are read by pandas, pyarrow and json. For other files, read the file yourself and give a
DataFrame (docs/guide/tables.md).
"""

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


@dataclass(frozen=True)
class Rows:
    """The rows of a source, and what to know about the reading."""

    name: str
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    place: str = "the data"
    """The source's name in a sentence."""
    has_splits: bool = False
    """True if the source is a `DatasetDict` or on the Hub, so that `split` chooses its rows."""
    is_on_hub: bool = False
    """True if the source is on the Hub, so that `config` chooses one of its configurations."""


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
    import pandas

    if isinstance(source, (str, Path)):
        if str(source).lower().endswith(FILES):
            return _read_file(Path(source))
        return _read_hub(str(source), split, config)
    if is_dataset_dict(source):
        chosen = split or (next(iter(source)) if len(source) == 1 else None)
        if chosen not in source:
            wrong = f"no split {split!r}" if split else "several splits"
            raise ValueError(
                f"this DatasetDict has {wrong}, but {[*source]}: say which, "
                f'split="{next(iter(source))}".'
            )
        rows, notes = _rows_of_dataset(source[chosen])
        return Rows("dataset", rows, notes, has_splits=True)
    if isinstance(source, (Mapping, pandas.DataFrame)):
        return Rows("table", _rows_of_table(source), place="the table")
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        rows, notes = _rows_of_dataset(source)
        return Rows("dataset" if hasattr(source, "features") else "rows", rows, notes)
    raise TypeError(
        f"source = {in_line(source)}: load_task takes 'arithmetic', a file ({', '.join(FILES)}), a "
        "DataFrame, a Dataset, a list of dicts, a dict of columns or the Hub's id of one."
    )


def is_dataset_dict(source: Any) -> bool:
    """Say whether a source is a `DatasetDict`, or a dict of datasets."""
    is_mapping = isinstance(source, Mapping) and bool(source)
    return is_mapping and all(hasattr(part, "features") for part in source.values())


def _rows_of_dataset(source: Iterable[Any]) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the rows of a `Dataset` or list with the names of `ClassLabel`s, and notes on these.

    A label of -1 stands for no label and becomes None.

    Raises:
        TypeError: A row is not a dict.
    """
    rows = _as_dicts("the data", source)
    features = getattr(source, "features", None) or {}
    notes = []
    for name, feature in features.items():
        if not hasattr(feature, "int2str"):
            continue
        notes.append(f"the column {name!r} holds labels: their names are used, not their numbers")
        for row in rows:
            number = row[name]
            is_label = number is not None and number >= 0
            row[name] = feature.int2str(number) if is_label else None
    return rows, tuple(notes)


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
    """Return the rows of a dict of columns or of a DataFrame; an empty cell is None."""
    import pandas

    frame = pandas.DataFrame(table, dtype=object)
    rows = frame.where(frame.notna(), None).rename(columns=str).to_dict("records")
    for row in rows:
        for name, value in row.items():
            # pandas.read_parquet makes numpy arrays of lists.
            row[name] = value.tolist() if hasattr(value, "tolist") else value
    return rows


# Files.


def _read_file(path: Path) -> Rows:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r} (looked in {Path.cwd()}).")
    ending = path.suffix.lower()
    notes: tuple[str, ...] = ()
    try:
        if ending == ".parquet":
            import pyarrow.parquet
            from datasets import Dataset

            rows, notes = _rows_of_dataset(Dataset(pyarrow.parquet.read_table(path)))
        elif ending == ".xlsx":
            import pandas

            # Needs openpyxl; without it, pandas says so.
            rows = _rows_of_table(pandas.read_excel(path, dtype=object))
        elif ending in (".csv", ".tsv"):
            rows, notes = _read_csv(path)
        else:
            rows = _read_json(path)
    except (ValueError, OSError) as error:  # errors of pandas, pyarrow, json and codecs
        raise ValueError(
            f"{path} cannot be read: {' '.join(str(error).split())}. Correct the file, or give a "
            "DataFrame."
        ) from error
    return Rows(path.stem, rows, notes, path.name)


def _read_csv(path: Path) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the rows with each cell as the text in the file, and a note on a guessed encoding.

    The separator of a .csv file is the most frequent one in the first line.
    """
    import pandas

    notes: tuple[str, ...] = ()
    try:
        text = path.read_text("utf-8-sig")
    except UnicodeError:
        text = path.read_text("cp1252")
        notes = (
            "not UTF-8, so read as cp1252; for others, give pandas.read_csv(file, encoding=...)",
        )
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
    return _rows_of_table(frame), notes


def _read_json(path: Path) -> list[dict[str, Any]]:
    """Return the rows of JSON lines, or of one JSON text with a list of rows.

    The content decides, because JSON lines are often in a file that ends in .json.
    """
    text = path.read_text("utf-8-sig")
    if not text.lstrip().startswith("["):
        # As one text, so that an error names the line.
        lines = [line for line in text.split("\n") if line.strip()]
        text = "[" + ",\n".join(lines) + "]"
    return _as_dicts(path.name, json.loads(text))


def _read_hub(name: str, split: str | None, config: str | None) -> Rows:
    """Read a data set on the Hub, which is named by its owner: owner/name."""
    # The Hub is not asked for other names, because that can take half a minute.
    path = Path(name)
    is_path = path.exists() or path.suffix[1:].isalpha()
    is_hub_name = re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None and not is_path
    if name not in KNOWN and not is_hub_name:
        raise ValueError(
            f"{name!r} is no {', '.join(FILES)} file and no data set on the Hub, owner/name. For "
            "other files and for folders, give the rows: a DataFrame, or "
            f"datasets.load_dataset(...){did_you_mean(name, ('arithmetic', 'gsm8k'))}"
        )
    from datasets import load_dataset

    hub_id, usual_config = KNOWN.get(name, (name, None))
    try:
        data = load_dataset(hub_id, config or usual_config, split=split or "train")
    except (OSError, ConnectionError, ValueError) as error:
        raise ValueError(
            f"{name!r} is no file, and the Hub has no such data set or refused it: {error!s:.300}"
        ) from error
    rows, notes = _rows_of_dataset(data)
    return Rows(name, rows, notes, place=name, has_splits=True, is_on_hub=True)
