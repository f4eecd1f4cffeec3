"""Rows out of whatever people have: files, tables in memory, data sets, the Hub. As they are, nothing left out."""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import itertools
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.core.arguments import did_you_mean
from grpo_nb.core.text import shorten
from grpo_nb.settings.arguments import check_choice

Source = str | Path | Sequence[Mapping[str, Any]] | Mapping[str, Sequence[Any]] | Any
_FILES = (".csv", ".tsv", ".json", ".jsonl", ".ndjson", ".parquet")
_OTHER_FILES = (".txt", ".xlsx", ".xls", ".ods", ".gz", ".zip", ".xml", ".html", ".feather", ".pkl")
_SEPARATORS = ",;\t|"
# A word with signs that are none of its letters, and what no word has: marks between letters, capitals behind small ones.
_LONGEST_HEAD = 100_000  # characters of the line with the names
# Names that people use -> (id on the Hub, configuration).
_KNOWN = {"gsm8k": ("openai/gsm8k", "main")}


@dataclass(frozen=True)
class Rows:
    """What was read: a name, the rows, and what to know about the reading."""

    name: str
    rows: list[dict[str, Any]]
    notes: tuple[str, ...] = ()
    is_text: bool = False
    """Every value is text as in the file, also the numbers."""
    takes: tuple[str, ...] = ()
    """Which of `split`, `config`, `encoding` and `damaged` mean something for such a source."""
    lost: Mapping[int, str] = dataclasses.field(default_factory=dict)
    """Line number -> the line, of those that cannot be read and were to be left out."""
    unnamed: str = ""
    """The code that reads a file with separators whose first line holds no names."""


def read_rows(
    source: Source,
    split: str | None = None,
    config: str | None = None,
    encoding: str | None = None,
    damaged: str | None = None,
) -> Rows:
    """Read a file, a table in memory, a data set or a Hub id.

    Args:
        source: As `load_task` takes it, but for `"arithmetic"`.
        split: Of a `DatasetDict` or a Hub data set.
        config: Of a Hub data set that has several.
        encoding: Of a text file.
        damaged: `drop` leaves out the lines of a .jsonl file that are not JSON, and those of a CSV with too many cells.

    Raises:
        TypeError: Nothing that rows can be read from.
        ValueError: Rows of different forms, a damaged file (with its line), a split or configuration that has to be named.
        FileNotFoundError: A path that does not exist.
    """
    check_choice("damaged", damaged, (None, "drop"))
    if isinstance(source, (str, Path)):
        path = Path(source)
        if len(path.name.encode("utf-8", "replace")) > 255 or "\0" in str(source):  # no file system has such a name
            raise ValueError(f"source = {str(source)!r:.60}... is neither a path nor the id of a data set.")
        if path.suffix.lower() in _FILES or _is_text_table(path):
            return _read_file(path, encoding, damaged)
        if path.is_dir() or not str(source).strip():
            raise ValueError(f"{str(source)!r} is a folder or nothing; load_task reads files: {', '.join(_FILES)}.")
        if path.is_file() or path.suffix.lower() in _OTHER_FILES:
            raise ValueError(
                f"{str(source)!r}: the ending {path.suffix!r} is not read, only {', '.join(_FILES)}. Make a table of "
                "it, with pandas where that reads it (read_excel, read_html), and give the DataFrame: gn.load_task(frame)."
            )
        if path.suffix and (meant := _meant(path)):
            raise FileNotFoundError(f"there is no file {str(path)!r}.{meant}")
        return _read_hub(str(source), split, config)
    if hasattr(source, "to_pandas") and hasattr(source, "features"):  # datasets.Dataset
        return Rows(source.info.dataset_name or "dataset", source.to_list())
    if hasattr(source, "to_dict") and hasattr(source, "columns"):  # pandas.DataFrame
        if any(source.index.names) and not {*source.index.names} & {*source.columns}:  # as set_index makes it
            source = source.reset_index()
        names = list(map(str, source.columns))
        if len(set(names)) < len(names):
            raise ValueError(f"the DataFrame has columns of the same name: {names}. Rename one.")
        return Rows("table", source.set_axis(names, axis="columns").to_dict("records"))
    if isinstance(source, Mapping):
        return _of_mapping(source, split)
    if isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray)) and getattr(source, "ndim", 1):
        rows = list(source)
        for number, row in enumerate(rows):
            if not isinstance(row, Mapping):
                raise TypeError(
                    f"row {number} is {_article(row)}, not a dict: {row!r:.60}. "
                    'Write rows as [{"question": "2 + 2?", "answer": "4"}, ...].'
                )
        return Rows("rows", list(map(_with_names, rows)))
    raise TypeError(
        f"source = {source!r:.60} is {_article(source)}: load_task takes 'arithmetic', a file ({', '.join(_FILES)}), a "
        "DataFrame, a Dataset, a list of dicts, a dict of columns, or the id of a data set on the Hub."
    )


def _is_text_table(path: Path) -> bool:
    """Whether this is a .txt with tabs in its first line, as Excel's "Unicode text" has them."""
    if path.suffix.lower() != ".txt" or not path.is_file():
        return False
    with path.open("rb") as file:
        return b"\t" in file.readline(_LONGEST_HEAD)


def _meant(path: Path) -> str:
    """Which file beside a missing one may be meant, as a sentence."""
    there = [file.name for file in path.parent.glob("*") if file.is_file()]
    near = difflib.get_close_matches(path.name, there, n=1, cutoff=0.75)
    return f" Did you mean {str(path.parent / near[0])!r}?" if near else ""


def _article(value: Any) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def _of_mapping(source: Mapping[str, Any], split: str | None) -> Rows:
    if source and all(hasattr(part, "features") for part in source.values()):  # datasets.DatasetDict
        if split is None and len(source) > 1:
            sizes = ", ".join(f"{name} ({len(part)} rows)" for name, part in source.items())
            raise ValueError(f'this DatasetDict has the splits {sizes}. Say which: split="{next(iter(source))}".')
        chosen = split or next(iter(source))
        if chosen not in source:
            raise ValueError(f"this DatasetDict has no split {chosen!r}{did_you_mean(chosen, source)}")
        return Rows(chosen, source[chosen].to_list(), takes=("split",))
    if source and all(isinstance(row, Mapping) for row in source.values()):  # rows by their keys
        rows = [{"key": key, **_with_names(row)} for key, row in source.items()]
        return Rows("rows", rows, ("the keys of the rows are the column key",))
    columns = {str(name): list(values) for name, values in source.items() if _is_column(values)}
    lengths = {name: len(values) for name, values in columns.items()}
    if len(columns) < len(source) or len(set(lengths.values())) > 1:
        raise ValueError(
            f"a dict is read as columns, lists of one length; this one has {lengths or list(source)[:8]}. "
            "A single row is written as a list of one dict; a task needs at least two."
        )
    return Rows("columns", [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)])


def _with_names(row: Mapping[Any, Any]) -> dict[str, Any]:
    return {str(name): value for name, value in row.items()}


def _is_column(values: Any) -> bool:
    return isinstance(values, Iterable) and not isinstance(values, (str, bytes, Mapping))


def _read_file(path: Path, encoding: str | None, damaged: str | None) -> Rows:
    if not path.is_file():
        raise FileNotFoundError(f"there is no file {str(path)!r} (looked in {Path.cwd()}).{_meant(path)}")
    if path.stat().st_size == 0:
        raise ValueError(f"{path} is empty: a task needs at least two rows.")
    if path.suffix.lower() == ".parquet":
        import pyarrow.parquet

        try:
            return Rows(path.stem, pyarrow.parquet.read_table(path).to_pylist())
        except (pyarrow.ArrowException, OSError) as error:
            raise ValueError(f"{path} cannot be read as parquet: {str(error).splitlines()[0]:.160}") from error
    text, read_as, notes = _decoded(path, encoding)
    if path.suffix.lower() in (".csv", ".tsv", ".txt"):
        rows, separated, lost, unnamed = _read_csv(path, text, read_as, damaged)
        notes, takes = (*notes, *separated), ("encoding", "damaged")
        return Rows(path.stem, rows, notes, is_text=True, takes=takes, lost=lost, unnamed=unnamed)
    rows, lost = _read_json(path, text, damaged)
    return Rows(path.stem, rows, notes, takes=("encoding", "damaged"), lost=lost)


def _decoded(path: Path, encoding: str | None) -> tuple[str, str, tuple[str, ...]]:
    """The text of a file, what it was read as, and a note where that had to be guessed."""
    data = path.read_bytes()
    if encoding:
        try:
            return data.decode(encoding), encoding, ()
        except (UnicodeError, LookupError) as error:
            raise ValueError(f"{path} is not {encoding}: {error}. Leave encoding= out, or write another.") from error
    marked = "utf-16" if data[:2] in (b"\xff\xfe", b"\xfe\xff") else "utf-8-sig"
    with contextlib.suppress(UnicodeError):
        return data.decode(marked), marked, ()
    try:
        text = data.decode("cp1252")
    except UnicodeError as error:
        raise ValueError(
            f"{path} is neither UTF-8 nor cp1252: write what it is, encoding='cp1250' or another."
        ) from error
    return text, "cp1252", ("read as cp1252, for it is not UTF-8; encoding= chooses another",)


def _read_csv(
    path: Path, text: str, encoding: str, damaged: str | None
) -> tuple[list[dict[str, Any]], tuple[str, ...], dict[int, str], str]:
    import csv
    import io

    above = text.count("\n")
    text = text.lstrip("\r\n")
    if text.startswith("sep="):  # a line that Excel reads, and other programs should not
        text = text.split("\n", 1)[-1]
    lines = text.split("\n")
    remarks = _remarks(lines)
    above += remarks - text.count("\n")
    lines = lines[remarks:]
    if is_closed := _is_closed(lines):
        lines = [line.rstrip()[:-1] for line in lines]
    text = "\n".join(lines)
    head = re.sub(r'"[^"]*"', "", text[:_LONGEST_HEAD]).split("\n", 1)[
        0
    ]  # a name in quotes may have them, and line breaks
    separator = max(_SEPARATORS, key=head.count)
    csv.field_size_limit(2**31 - 1)  # else a text of 131,072 characters is an error
    begun = _first_unquoted(lines, separator)
    reader = csv.DictReader(
        io.StringIO(text, newline=""), delimiter=separator, restval="", strict=True, skipinitialspace=True,
        quoting=csv.QUOTE_NONE if begun is not None else csv.QUOTE_MINIMAL,
    )  # fmt: skip
    rows: list[dict[str, Any]] = []
    lost: dict[int, str] = {}
    try:
        names = [name.strip() for name in reader.fieldnames or ()]
        # A mark at the end of each line, which a cell with a line break in it hides, or several.
        is_closed, names = is_closed or names[-1:] == [""], _without_ends(names)
        is_index = names[:1] == [""]  # as pandas writes it
        if not all(names[is_index:]):
            mark = max(_SEPARATORS, key=text.count)
            raise ValueError(
                f"{path}: columns in its first line have no names: {names}. If the names stand further down, take the lines "
                f"above them away, or read it with pandas.read_csv(path, sep={mark!r}, encoding={encoding!r}, "
                f"skiprows={_above_names(lines, mark, above)})."
            )
        if twice := [name for name in names if names.count(name) > 1]:
            same = [twice[0], *(f"{twice[0]}.{number}" for number in range(1, names.count(twice[0])))]
            raise ValueError(
                f"{path}: its first line names {len(same)} columns {twice[0]!r}. pandas makes {same} of them, and "
                f"gn.load_task(frame) takes those: import pandas; frame = pandas.read_csv({str(path)!r}, sep={separator!r}, "
                f"encoding={encoding!r}). To make one of them: frame[{twice[0]!r}] = frame[{same}].apply(lambda cells: "
                "';'.join(cells.dropna().astype(str)), axis=1)."
            )
        reader.fieldnames = names
        for row in reader:
            more = row.pop(None, ())
            if any(cell.strip() for cell in more):
                lost[above + reader.line_num] = separator.join([*row.values(), *more])
                continue
            rows.append({name: row[name] for name in names[is_index:]})
    except csv.Error as error:
        raise ValueError(
            f"{path} line {above + reader.reader.line_num} cannot be read as CSV: {error}. A quotation mark inside a quoted "
            'text is written twice: "He said ""no"".". Where no text is quoted: pandas.read_csv('
            f"{str(path)!r}, sep={separator!r}, encoding={encoding!r}, quoting=3)."
        ) from error
    if lost and (damaged is None or not rows):
        number, line = next(iter(lost.items()))
        raise ValueError(
            f"{path} line {number} has more cells than the {len(names)} of the first line: a text that holds {separator!r} "
            f"needs quotation marks around it: {shorten(line, 80)!r}{_without_lost(lost, rows)}"
        )
    notes = ("its first column has no name (an index) and was left out",) * is_index
    if begun is not None:
        notes += (
            f"line {above + begun} begins a text with a quotation mark and does not end it: all marks were read as text",
        )
    notes += ("the mark at the end of each line was taken away",) * is_closed
    notes += (f"{remarks} line{'s' * (remarks > 1)} above the names were left out as a remark (#)",) * (remarks > 0)
    parts = iter(("question", "answer"))
    given = [
        str(n) if len(names) > 2 and re.fullmatch(r"[\d.,]*", name) else next(parts, str(n))
        for n, name in enumerate(names)
    ]
    more = f", skiprows={above}" * (above > 0) + ", index_col=False" * is_closed + ", quoting=3" * (begun is not None)
    unnamed = (
        f"import pandas; gn.load_task(pandas.read_csv({str(path)!r}, sep={separator!r}, encoding={encoding!r}, header=None, "
        f"names={given}, dtype=str{more}))"
    )
    return rows, notes if separator == "," else (*notes, f"separated by {separator!r}"), lost, unnamed


def _above_names(lines: Sequence[str], separator: str, above: int) -> str:
    """How many lines of a file stand above its names: the first with a name for each column that has values; `...` if none."""
    import csv

    read = csv.reader(map("{}\n".format, lines[:50]), delimiter=separator)
    rows = [(read.line_num, _without_ends(["", *(cell.strip() for cell in row)])[1:]) for row in read if any(row)]
    widest = max(len(row) for _, row in rows)
    places = [last for last, row in rows if len(row) == widest > 1 and all(row) and len({*row}) == widest]
    return str(above + places[0] - 1) if places else "..."


def _without_lost(lost: Mapping[int, str], rows: Sequence[Any]) -> str:
    """What to write to do without the lines that cannot be read, if any is left."""
    return f'; damaged="drop" leaves out all such lines ({len(lost)}) and loads {len(rows)}' if rows else ""


def _first_unquoted(lines: Sequence[str], separator: str) -> int | None:
    """The number of the first line with a mark that no mark ends, in a file whose texts are not quoted; None in any other.

    Nothing is quoted where the file cannot be read with quotation marks, each line has as many separators as the first, and no
    cell is between two marks.
    """
    import csv

    with contextlib.suppress(csv.Error):
        for _ in csv.reader(map("{}\n".format, lines), delimiter=separator, strict=True, skipinitialspace=True):
            pass
        return None
    rows = [[cell.strip() for cell in line.split(separator)] for line in lines]
    begun = [number for number, row in enumerate(rows, 1) if any(cell.startswith('"') for cell in row)]
    is_quoted = any(len(cell) > 1 and cell[0] == cell[-1] == '"' for row in rows for cell in row)
    is_even = len({len(row) for row in rows if any(row)}) == 1
    return begun[0] if begun and is_even and not is_quoted else None


def _without_ends(names: Sequence[str]) -> list[str]:
    """Column names without those that are empty at the end; as they are where one alone would be left, as in a title."""
    kept = list(names)
    while kept and not kept[-1]:
        kept.pop()
    return kept if len(kept) > 1 else list(names)


def _remarks(lines: Sequence[str]) -> int:
    """How many lines on top begin with # and are no names of columns: those have the separators of the line below them."""
    for count, (line, below) in enumerate(itertools.pairwise(lines)):
        separator = max(_SEPARATORS, key=below.count)
        if not line.startswith("#") or 0 < below.count(separator) <= line.count(separator):
            return count
    return 0


def _is_closed(lines: Sequence[str]) -> bool:
    """Whether each line ends with the same mark, as some programs write a separator or a semicolon behind the last cell."""
    ends = {line.rstrip()[-1:] for line in lines} - {""}
    return len(ends) == 1 and ends <= set(",;|")


def _read_json(path: Path, text: str, damaged: str | None) -> tuple[list[dict[str, Any]], dict[int, str]]:
    """The rows of a file, and the lines that are not JSON, by number, where they are to be left out."""
    lost: dict[int, str] = {}
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):  # then it has one JSON a line
        content, first = [], None
        for number, line in enumerate(re.split(r"\r\n?|\n", text), 1):  # others may stand inside of a text
            try:
                content += [json.loads(line)] if line.strip() else []
            except (ValueError, RecursionError) as error:
                first, lost[number] = first or error, line.strip()
        if lost and (damaged is None or not content):
            number, line = next(iter(lost.items()))
            without = _without_lost(lost, content)
            raise ValueError(f"{path} line {number} is not JSON: {first}: {line[:80]!r}{without}") from first
    if isinstance(content, Mapping):
        # Rows under a key such as "data"; else a table by columns, or one row alone.
        inner = [v for v in content.values() if isinstance(v, list) and v and isinstance(v[0], dict)]
        content = inner[0] if len(inner) == 1 and len(content) <= 3 else content
    if not isinstance(content, (list, Mapping)):
        raise ValueError(f"{path} holds {_article(content)}, not rows.")
    return read_rows(content).rows, lost


def _read_hub(name: str, split: str | None, config: str | None) -> Rows:
    from datasets import load_dataset

    known, known_config = _KNOWN.get(name, (name, None))
    try:
        rows = load_dataset(known, config or known_config, split=split or "train").to_list()
        return Rows(name, rows, takes=("split", "config"))
    except (OSError, ConnectionError) as error:
        raise ValueError(
            f"{name!r} is neither 'arithmetic', a {'/'.join(_FILES)} file, nor a data set that can be "
            f"reached ({type(error).__name__}: {str(error).splitlines()[0]:.200}). Check the name and the network."
        ) from error
    except ValueError as error:
        # The library's own words name the configurations or splits there are.
        raise ValueError(f"{name!r}: {' '.join(str(error).split())[:400]} (there are config= and split=)") from error
