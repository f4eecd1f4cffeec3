"""A comparison on disk: numbers, every answer, a page to search in them, and the figure."""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.metrics import Run, write_json

if TYPE_CHECKING:
    from grpo_nb.evaluation_result import Comparison, Evaluation

# More than this opens slowly in a browser; transcripts.parquet has all.
_ON_THE_PAGE = 1000
_REWARD = "reward/"  # before the name of a reward, in the columns of transcripts.parquet


def save_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write comparison.json, transcripts.parquet, transcripts.html, table.csv, comparison.png and comparison.txt, its words.

    All are written beside their places before the first is put there, so that a full disk leaves those of an earlier
    comparison as they were.
    """
    import pandas

    from grpo_nb.evaluation_figure import alternative_text
    from grpo_nb.evaluation_html import transcripts_page
    from grpo_nb.export_staging import staged_folder
    from grpo_nb.plots import png

    folder = Path(folder).expanduser()
    folder.mkdir(parents=True, exist_ok=True)
    with staged_folder(folder / "files") as staged:
        sides = (comparison.before, comparison.after)
        pandas.concat([side.table.assign(model=side.label) for side in sides], ignore_index=True).to_parquet(
            staged / "transcripts.parquet", index=False
        )
        columns = ["measure", *(side.label for side in sides)]
        pandas.DataFrame(comparison.numbers(), columns=columns).to_csv(staged / "table.csv", index=False)
        page = transcripts_page(comparison.transcripts(_ON_THE_PAGE), _ON_THE_PAGE)
        (staged / "transcripts.html").write_text(
            '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
            f'<title>Transcripts</title><body style="font-family:system-ui,sans-serif;margin:24px">{page}</body></html>\n',
            "utf-8",
            errors="replace",
        )
        words = alternative_text(comparison)
        (staged / "comparison.png").write_bytes(png(comparison.plot(), dpi=120))
        (staged / "comparison.txt").write_text(f"{words}\n", "utf-8")
        # Last, for it is what says that there is a comparison.
        write_json(staged / "comparison.json", comparison.to_dict())
        for file in sorted(staged.iterdir(), key=lambda file: file.name == "comparison.json"):
            file.replace(folder / file.name)
    return folder


def open_comparison(folder: str | Path) -> Comparison:
    """Read a saved comparison, with every answer: a run's own is in its `comparison/`.

    Args:
        folder: From `Comparison.save` or `Comparison.path`, or of a run.

    Raises:
        FileNotFoundError: There is none.

    >>> open_comparison("runs/first").transcripts(5)  # doctest: +SKIP
    """
    import pandas

    from grpo_nb.evaluation_result import Comparison

    folder = Path(folder).expanduser()
    folder = folder / "comparison" if (folder / "run.json").is_file() else folder
    if not (folder / "comparison.json").is_file():
        raise FileNotFoundError(
            f"{str(folder)!r} holds no comparison (comparison.json): gn.compare(run, task) makes one."
        )
    saved = json.loads((folder / "comparison.json").read_text("utf-8"))
    answers = pandas.read_parquet(folder / "transcripts.parquet").astype(object)
    rows = answers.where(answers.notna(), None).to_dict("records")
    half = len(rows) // 2  # as many of each, the first one's first
    return Comparison(
        _evaluation(saved["before"], rows[:half]), _evaluation(saved["after"], rows[half:]),
        difference=saved["difference"], interval=tuple(saved["interval"]), p_value=saved["p_value"], test=saved["test"],
        smallest=saved["smallest_difference"], task_name=saved["task"], other_set=saved.get("other_set", ""),
        notes=tuple(saved["notes"]), path=folder,
    )  # fmt: skip


def _evaluation(saved: dict[str, Any], rows: list[dict[str, Any]]) -> Evaluation:
    from grpo_nb.contamination import Contamination
    from grpo_nb.evaluation_result import Evaluation

    found = saved["contamination"]
    return Evaluation(
        **{name: saved[name] for name in ("label", "accuracy", "format_share", "mean_length", "cut_share", "samples")},
        interval=tuple(saved["interval"]), rows=[_answer(row) for row in rows], decoding=saved["decoding"],
        subject=saved["subject"], folder=saved.get("folder", ""), tokens_per_second=saved["tokens_per_second"],
        contamination=Contamination(**found) if found else None,
        reward_ranges={name: tuple(ends) for name, ends in saved.get("reward_ranges", {}).items()},
    )  # fmt: skip


def _answer(row: dict[str, Any]) -> dict[str, Any]:
    scores = {
        name.removeprefix(_REWARD): math.nan if score is None else score
        for name, score in row.items()
        if name.startswith(_REWARD)
    }
    plain = {name: value for name, value in row.items() if name != "model" and not name.startswith(_REWARD)}
    return plain | ({"rewards": scores} if scores else {})


def folder_of(run: Run, labels: tuple[str, str], is_of_the_run: bool) -> Path:
    """Return where a comparison is kept: that of the run itself in `comparison/`, any other in a folder of it."""
    folder = run.path / "comparison"
    if is_of_the_run:
        return folder
    return folder / "-vs-".join(re.sub(r"[^A-Za-z0-9._-]+", "_", label).strip("._") or "model" for label in labels)
