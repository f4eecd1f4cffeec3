"""What every room needs and no user calls: text, folders that appear whole, processes, random state, deadlines,
and how objects, views and widgets show themselves.

Nothing here knows of models, data or runs; a helper that serves one room stands in that room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from grpo_nb.core.arguments import did_you_mean, in_line, require_kind, require_number, require_path, with_known_names
from grpo_nb.core.deadlines import run_in_thread, run_with_deadline
from grpo_nb.core.doors import open_door
from grpo_nb.core.errors import EnvironmentProblem
from grpo_nb.core.files import (
    check_target,
    free_path,
    made_once,
    numbered_paths,
    put_in_place,
    set_aside,
    shown_path,
    staged_file,
    staged_folder,
    target_of,
    target_problem,
    write_bytes,
    write_json,
    write_text,
)
from grpo_nb.core.markdown import fence, plain, span, table
from grpo_nb.core.pages import code_line, errors_view, heading, last_lines, page, render, style, title
from grpo_nb.core.processes import ChildError, LineProcess, run_command, run_script
from grpo_nb.core.progress import CellOutput, is_notebook, progress_bar
from grpo_nb.core.randomness import kept_modes, kept_random_state, random_state, restore_random_state
from grpo_nb.core.tables import (
    Cell,
    Drawn,
    Listing,
    Part,
    Shown,
    Table,
    as_written,
    bold,
    code,
    escaped,
    facts,
    html_of,
    text_of,
    verdict,
)
from grpo_nb.core.text import as_score, displayable, excerpt, prompt_lengths, require_tokenizer, shorten
from grpo_nb.core.writers import liveness, process_identity, writing_here

if TYPE_CHECKING:
    from grpo_nb.core.panels import Panel, WeighedPanel, above, button, in_panel, label, line, section, view


_OF_PANELS = ("Panel", "WeighedPanel", "above", "button", "in_panel", "label", "line", "section", "view")

__getattr__, __dir__, __all__ = open_door(globals(), {"panels": _OF_PANELS})
