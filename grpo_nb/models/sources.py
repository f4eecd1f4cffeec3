"""Find a model: the embedded one, a folder, or an id on the Hub."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

from grpo_nb.config.settings import EMBEDDED_MODEL
from grpo_nb.machine.faults import summary
from grpo_nb.models.embedded import embedded_model_folder


def resolve_model(name: str, report: Callable[[str], None] | None = None) -> str:
    """Return the folder or Hub id of a model name, which `from_pretrained` takes.

    Args:
        name: The embedded model, a folder, or a Hub id.
        report: Called with a line before the embedded model is converted.

    Raises:
        FileNotFoundError: The folder holds no model, or the Hub does not have the name or cannot be
            asked.
        EntryNotFoundError, GatedRepoError: The Hub's own errors for an id that is no model, or that
            needs a permission.
    """
    from huggingface_hub import hf_hub_download

    if name == EMBEDDED_MODEL:
        return str(embedded_model_folder(report))
    path = Path(name).expanduser()
    if not path.exists():
        with hub_errors_in_one_line(name, "model"):
            hf_hub_download(name, "config.json")
        return name
    if not (path / "config.json").is_file():
        raise FileNotFoundError(
            f"{name!r} is no model folder: it has no config.json. If it is a LoRA, name its base "
            "model in the settings, and write "
            f"model, tokenizer = gn.load_model(settings, adapter={name!r})."
        )
    return str(path)


@contextlib.contextmanager
def hub_errors_in_one_line(name: str, kind: str) -> Iterator[None]:
    """Shorten the Hub's error for a name that it does not have, which is a page of requests.

    Args:
        name: Name that was asked for.
        kind: Kind of thing that was asked for, such as `model`.

    Raises:
        FileNotFoundError: Says that there is no such folder, with the first line of the Hub's
            error.
    """
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
    )

    try:
        yield
    except GatedRepoError:
        raise
    except (HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError) as error:
        on_hub = f"and no {kind} that the Hub gives: {summary(error)}"
        if isinstance(error, HFValidationError):
            on_hub = "and cannot be a name on the Hub, which has the form user/name"
        raise FileNotFoundError(
            f"{name!r} is no folder here (looked in {Path.cwd()}) {on_hub}. Correct the path or "
            "the name. For a run, take its path from gn.runs.list()."
        ) from None
