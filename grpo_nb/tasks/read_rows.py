"""Rows out of what people have: files, tables in memory, data sets, the Hub. As they are, nothing left out.

Files are read by pandas, pyarrow and json; what those cannot read is mended in pandas (docs/guide/data.md).
"""

import difflib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.core.words import did_you_mean, in_line

Source = str | Path | Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]] | Any
FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet")
# Names that people use -> (id on the Hub, configuration).
KNOWN = {"gsm8k": ("openai/gsm8k", "main"), "openai/gsm8k": ("openai/gsm8k", "main")}
_NAMES = ("arithmetic", "gsm8k")
# difflib's ratio above which a name is taken for a misspelling: "arithmatic" has 0.9, "math_qa" 0.5 and less.
_MISSPELT = 0.75


@dataclass(frozen=True)
class Rows:
    """What was read: a name, the rows, and what to know about the reading."""

    name: str
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    place: str = "the data"
    """What the source is called in a sentence."""
    takes: tuple[str, ...] = ()
    """Which of the arguments split, config and encoding say something of it."""


def read_rows(
    source: Source, split: str | None = None, config: str | None = None, encoding: str | None = None
) -> Rows:
    """Read a file, a table in memory, a data set or a Hub id.

    Args:
        source: As `load_task` takes it, but for `"arithmetic"`.
        split: Of a `DatasetDict` or a data set on the Hub.
        config: Of a data set on the Hub that has several.
        encoding: Of a text file.

    Raises:
        TypeError: Nothing that rows can be read from.
        ValueError: A file or data set that cannot be read, with its name and line.
        FileNotFoundError: A path that does not exist.
    """
    if isinstance(source, (str, Path)):
        return _read_named(source, split, config, encoding)
    if (
        isinstance(source, Mapping)
        and source
        and all(hasattr(part, "features") for part in source.values())
    ):
        chosen = split or (next(iter(source)) if len(source) == 1 else None)
        if chosen not in source:
            raise ValueError(
                f'this DatasetDict has the splits {[*source]}: say which, split="{next(iter(source))}".'
            )
        rows, notes = _with_label_names(source[chosen].to_list(), source[chosen].features)
        return Rows("dataset", rows, notes, takes=("split",))
    for method in (
        "to_list",
        "to_pylist",
        "to_dicts",
    ):  # of a Dataset, an Arrow table, a polars.DataFrame
        if hasattr(source, method):
            rows, notes = _with_label_names(getattr(source, method)(), _features_of(source))
            return Rows("dataset", rows, notes)
    if isinstance(source, Mapping) or hasattr(source, "columns"):  # columns, or a pandas.DataFrame
        return Rows("table", _rows_of_table(source), place="the table")
    if isinstance(source, Iterable) and not isinstance(source, bytes):
        rows, notes = _with_label_names(_checked("the data", source), _features_of(source))
        return Rows("rows", rows, notes)
    taken = f"a file ({', '.join(FILES)}), a DataFrame, a Dataset, a list of dicts, a dict of columns or the Hub's id of one"
    raise TypeError(f"source = {in_line(source)}: load_task takes 'arithmetic', {taken}.")


def _read_named(
    source: str | Path, split: str | None, config: str | None, encoding: str | None
) -> Rows:
    """Read what a text or path names: a file, or a data set on the Hub."""
    path = Path(source)
    if path.suffix.lower() in FILES:
        return _read_file(path, encoding)
    if str(source) in KNOWN and not path.is_file():
        return _read_hub(
            str(source), split, config
        )  # a folder of this name is often a run or an export
    if path.is_dir():
        raise ValueError(
            f"{str(source)!r} is a folder here, not a file. Name the file in it, such as {str(path / 'train.jsonl')!r}, or "
            "give the rows of the data set on the Hub: datasets.load_dataset(...)."
        )
    if (
        path.exists() or path.suffix[1:].isalpha()
    ):  # the name of a data set may end in .0, as a version does
        raise ValueError(
            f"{str(source)!r} is no {', '.join(FILES)} file: give what pandas reads, a DataFrame."
        )
    _require_no_misspelling(str(source))
    return _read_hub(str(source), split, config)


def _require_no_misspelling(name: str) -> None:
    """Refuse a name that is nearly one known here, before the Hub is asked for it, which can take half a minute.

    Raises:
        ValueError: With the name that was probably meant.
    """
    known = {one: one for one in _NAMES if "/" not in name}  # owner/arithmetic is on the Hub
    known |= {
        str(Path(name)): f"{name}{ending}" for ending in FILES if Path(f"{name}{ending}").is_file()
    }
    alike = {key.casefold(): meant for key, meant in known.items()}
    nearest = difflib.get_close_matches(name.casefold(), alike, n=1, cutoff=_MISSPELT)
    if nearest:
        meant = alike[nearest[0]]
        raise ValueError(
            f"{name!r} is no file and no name that load_task knows{did_you_mean(meant, [meant])} "
            "A data set of this name on the Hub is read with its owner: owner/name."
        )


def _features_of(source: Any) -> Mapping[str, Any]:
    """Return the types of the columns of a `Dataset`, or of an Arrow table that one has written."""
    schema = getattr(source, "schema", None)
    if getattr(source, "features", None):
        return source.features
    if b"huggingface" in (getattr(schema, "metadata", None) or {}):
        from datasets import Features

        return Features.from_arrow_schema(schema)
    return {}


def _with_label_names(
    rows: list[dict[str, Any]], features: Mapping[str, Any]
) -> tuple[list[dict[str, Any]], tuple[str, ...]]:
    """Return the rows with the names of labels that a `ClassLabel` stores as numbers, and a note for each column.

    A label of -1 stands for no label, as in the test parts of public data sets, and becomes None.
    """
    readers = {
        name: reader for name, feature in features.items() if (reader := _label_reader(feature))
    }
    if not readers:
        return rows, ()
    rows = [
        {name: readers[name](value) if name in readers else value for name, value in row.items()}
        for row in rows
    ]
    notes = tuple(
        f"the column {name!r} holds labels: their names are used, not their numbers"
        for name in readers
    )
    return rows, notes


def _label_reader(feature: Any) -> Callable[[Any], Any] | None:
    """Return what turns the numbers in a value of this type into names of labels; None if it holds no labels."""
    if hasattr(feature, "int2str"):
        return lambda value: None if value is None or value < 0 else feature.int2str(value)
    inner = (
        feature[0] if isinstance(feature, list) and feature else getattr(feature, "feature", None)
    )
    if inner is not None and not isinstance(feature, Mapping):
        reader = _label_reader(inner)
        return reader and (lambda value: value if value is None else [reader(one) for one in value])
    if not isinstance(feature, Mapping):
        return None
    readers = {name: reader for name, part in feature.items() if (reader := _label_reader(part))}
    if not readers:
        return None
    return lambda value: (
        value and {k: readers[k](v) if k in readers else v for k, v in value.items()}
    )


def _checked(place: str, rows: Iterable[Any]) -> list[dict[str, Any]]:
    checked = [*rows]
    for number, row in enumerate(checked):
        if not isinstance(row, Mapping):
            raise TypeError(
                f'{place}: row {number} is {in_line(row)}, not a dict such as {{"question": "2 + 2?"}}.'
            )
    return [{str(name): value for name, value in row.items()} for row in checked]


def _rows_of_table(table: Any) -> list[dict[str, Any]]:
    """The rows of columns or of a `pandas.DataFrame`; what pandas has for an empty cell is None."""
    import pandas

    frame = pandas.DataFrame(table, dtype=object)
    return frame.where(frame.notna(), None).rename(columns=str).to_dict("records")


def _read_file(path: Path, encoding: str | None) -> Rows:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r} (looked in {Path.cwd()}).")
    kind = path.suffix.lower()
    try:
        if kind == ".parquet":
            import pyarrow.parquet

            table = pyarrow.parquet.read_table(path)
            rows, notes = _with_label_names(table.to_pylist(), _features_of(table))
            return Rows(path.stem, rows, notes, place=path.name)
        text, notes = _decoded(path.read_bytes(), encoding)
        rows = _read_csv(text) if kind in (".csv", ".tsv") else _read_json(path.name, text)
    except (
        ValueError,
        OSError,
    ) as error:  # what pandas, pyarrow, json and codecs raise is one of these
        raise ValueError(
            f"{path} cannot be read: {' '.join(str(error).split())}. Mend it, or give a DataFrame."
        ) from error
    return Rows(path.stem, rows, notes, path.name, takes=("encoding",))


def _decoded(data: bytes, encoding: str | None) -> tuple[str, tuple[str, ...]]:
    """The text of a file, and a note where its encoding had to be guessed."""
    if encoding is not None:
        return data.decode(encoding), ()
    try:
        return data.decode("utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"), ()
    except UnicodeError:
        return data.decode("cp1252"), (
            "read as cp1252, for it is not UTF-8; encoding= chooses another",
        )


def _read_csv(text: str) -> list[dict[str, Any]]:
    """The rows, every cell as the text that it is in the file; the separator is the most frequent one in the first line."""
    import pandas

    head = re.sub('"[^"]*"', "", text.lstrip()).partition("\n")[0]
    separator = max(",;\t|", key=head.count)
    frame = pandas.read_csv(
        io.StringIO(text), sep=separator, dtype=str, keep_default_na=False, skipinitialspace=True
    )
    if not isinstance(
        frame.index, pandas.RangeIndex
    ):  # pandas takes the cells that are too many for an index
        raise ValueError(
            f"more cells than the first line has names; a text with {separator!r} needs quotation marks"
        )
    return _rows_of_table(frame)


def _read_json(place: str, text: str) -> list[dict[str, Any]]:
    """The rows of JSON lines, or of one JSON text that holds a list of rows or columns, whatever the ending says."""
    try:
        content = json.loads(text)
    except json.JSONDecodeError as error:
        if not error.msg.startswith("Extra data"):
            raise
        content = [
            _read_line(number, line)
            for number, line in enumerate(text.split("\n"), 1)
            if line.strip()
        ]
    if isinstance(content, Mapping):
        return _rows_of_table(content)
    return _checked(place, content if isinstance(content, list) else [content])


def _read_line(number: int, line: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise ValueError(f"line {number} is not JSON: {error}: {line[:80]!r}") from error


def _read_hub(name: str, split: str | None, config: str | None) -> Rows:
    from datasets import load_dataset

    known, usual = KNOWN.get(name, (name, None))
    try:
        data = load_dataset(known, config or usual, split=split or "train")
        rows, notes = _with_label_names(data.to_list(), _features_of(data))
    except (OSError, ConnectionError, ValueError) as error:
        raise ValueError(
            f"{name!r} is no file, and no data set that the Hub gives: {error!s:.300}"
        ) from error
    return Rows(name, rows, notes, place=name, takes=("split", "config"))
