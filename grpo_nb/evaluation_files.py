"""A comparison on disk: numbers, every answer, a page to search in them, and the figure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from grpo_nb.metrics import Run, write_json

if TYPE_CHECKING:
    from grpo_nb.evaluation_result import Comparison

# More than this opens slowly in a browser; transcripts.parquet has all.
_ON_THE_PAGE = 1000


def save_comparison(comparison: Comparison, folder: Path) -> Path:
    """Write comparison.json, transcripts.parquet, transcripts.html, table.csv, comparison.png and comparison.txt, its words."""
    import pandas

    from grpo_nb.evaluation_figure import alternative_text
    from grpo_nb.evaluation_html import transcripts_page
    from grpo_nb.plots import png

    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "comparison.json", comparison.to_dict())
    sides = (comparison.before, comparison.after)
    pandas.concat([side.table.assign(model=side.label) for side in sides], ignore_index=True).to_parquet(
        folder / "transcripts.parquet", index=False
    )
    columns = ["measure", *(side.label for side in sides)]
    pandas.DataFrame(comparison.numbers(), columns=columns).to_csv(folder / "table.csv", index=False)
    page = transcripts_page(comparison.transcripts(_ON_THE_PAGE), _ON_THE_PAGE)
    (folder / "transcripts.html").write_text(
        '<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<title>Transcripts</title><body style="font-family:system-ui,sans-serif;margin:24px">{page}</body></html>\n',
        errors="replace",
    )
    words = alternative_text(comparison)
    (folder / "comparison.png").write_bytes(png(comparison.plot(), dpi=120))
    (folder / "comparison.txt").write_text(f"{words}\n")
    return folder


def folder_of(run: Run, labels: tuple[str, str], is_of_the_run: bool) -> Path:
    """Return where a comparison is kept: that of the run itself in `comparison/`, any other in a folder of it."""
    folder = run.path / "comparison"
    if is_of_the_run:
        return folder
    return folder / "-vs-".join(re.sub(r"[^A-Za-z0-9._-]+", "_", label).strip("._") or "model" for label in labels)
