"""Make an export: fill a folder next to its target, verify it, and move it to the target.

Each kind of export has its own file (`merged.py`, `adapter.py`, `gguf.py`), which fills the folder
and returns what was verified. `saved_export.py` reads an export again.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from grpo_nb.core.files import (
    check_target,
    copy_files,
    put_in_place,
    resolved_target,
    sha256_of,
    staged_folder,
    write_json,
    write_text,
)
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.core.progress import progress_bar
from grpo_nb.export.saved_export import (
    ADAPTER_FILE,
    VERIFICATION_FILE,
    Export,
    ExportError,
    Verification,
    sizes_and_hashes,
)
from grpo_nb.machine.host import free_memory_bytes
from grpo_nb.models.base_weights import weights_hash
from grpo_nb.models.sources import resolve_model
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.runs.card import model_card
from grpo_nb.runs.run_folder import FIGURE_FILE, Run

#: Number of held-out prompts that a verification answers, and the longest answer in tokens. Both
#: together give hundreds of tokens to compare. More tokens would make the check slower.
VERIFIED_PROMPTS = 8
VERIFIED_TOKENS = 64
#: Files of a base model that an adapter is merged into.
BASE_FILE_PATTERNS = ["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]


class RoundingLimits(NamedTuple):
    """Loss by rounding that an export may have (`token_checks` in verify_child.py).

    The limits separate known failures from sound exports (docs/evidence/export.md).
    """

    min_effect: float
    """Lowest allowed effect: the change of log-probabilities from base to export, relative to the
    change from base to trained model."""
    max_effect: float
    """Highest allowed effect."""
    max_nats: float
    """Largest mean distance of log-probabilities from the model that was exported."""


def make_export(
    run: Run,
    kind: str,
    path: str | Path,
    fill: Callable[[Path], Verification],
    *,
    overwrite: bool,
) -> Export:
    """Make an export next to its target, verify it, and move it there with its card.

    Args:
        run: The run that is exported.
        kind: "merged", "adapter" or "gguf".
        path: The folder to make.
        fill: Fills an empty folder and returns its verification, in which every check has passed.
        overwrite: If True, replace an existing folder once the new one is verified.

    Raises:
        FileExistsError: The folder exists and `overwrite` is False.
        FileNotFoundError: The run has no adapter.
        ExportError: The export is not the trained model. `path` is as it was.
    """
    target = resolved_target(path)
    # overwrite=True would delete these folders if the target contained one of them.
    base_folder = Path(run.settings.model).expanduser()
    protected_folders = [run.path, run.adapter_path, base_folder]
    check_target(target, overwrite, protected_folders)
    adapter_file = run.adapter_path / ADAPTER_FILE
    if not adapter_file.is_file():
        raise FileNotFoundError(
            f"the run {run.name!r} ({run.status}) has no adapter: train it to its end first."
        )
    import_unsloth()  # before transformers, which the tokenizer imports
    with staged_folder(target) as staged:
        verification = {
            "kind": kind,
            "run": run.name,
            "adapter": sha256_of(adapter_file),
            **fill(staged),
            # `fill` raises if a check fails, so an export that exists has passed.
            "passed": True,
        }
        # An adapter can still be used on the 4-bit base that it was trained on.
        if run.settings.load_in_4bit and kind != "adapter":
            verification["trained_in_4bit"] = True
            verification["sentence"] += (
                " It was compared with the 16-bit base plus adapter, but trained on a 4-bit base, "
                "so answers may differ: gn.compare(path, against=run) measures it."
            )
        write_export_card(run, staged, kind, verification)
        # Written after all other files, because it has their hashes.
        verification["files"] = sizes_and_hashes(staged)
        write_json(staged / VERIFICATION_FILE, verification)
        # Checked again, because the folder may have appeared in the minutes since.
        check_target(target, overwrite, protected_folders)
        put_in_place(staged, target)
    return Export(target, verification, run)


def write_export_card(run: Run, folder: Path, kind: str, verification: Verification) -> None:
    """Write the card of an export with its figure into the export's folder.

    Args:
        run: The run that was exported.
        folder: The folder of the export.
        kind: "adapter", "merged" or "gguf".
        verification: Content of the export's `verification.json`.
    """
    # The card names the figure by a relative path, so each export needs its own copy.
    figure = run.path / FIGURE_FILE
    if figure.is_file():
        copy_files(figure.parent, folder / figure.parent.name, figure.name)
    write_text(folder / "README.md", model_card(run, kind, verification))


def fetch_base_folder(run: Run) -> Path:
    """Return the folder of the 16-bit base model of a run. Fetch the model if it is not here.

    Raises:
        ExportError: The weights in the folder are not those that were trained on.
    """
    from huggingface_hub import snapshot_download

    # A local or embedded model is a folder by now. Any other name is fetched from the Hub.
    source = resolve_model(run.settings.model)
    if not Path(source).is_dir():
        source = snapshot_download(source, allow_patterns=BASE_FILE_PATTERNS)
    base_folder = Path(source)
    require_same_base(run, base_folder)
    return base_folder


def require_same_base(run: Run, base_folder: Path) -> None:
    """Raise unless the base on disk is the one that the run was trained on, if that was recorded.

    No other check would notice: with another base, every weight is still base plus adapter.

    Raises:
        ExportError: The weights in the folder are not those that were trained on, or are missing.
    """
    trained_on = run.info.get("base_weights_hash")
    if trained_on is not None and trained_on != weights_hash(base_folder):
        raise ExportError(
            f"the weights of the base model {run.settings.model!r} are not those that the run "
            f"{run.name!r} was trained on, or some are missing. Put the old ones back, download a "
            "model of the Hub again, or train again."
        )


def verification_request(run: Run) -> dict[str, Any]:
    """Return the parts of a request to `verify_child.py` that every verification has."""
    return {
        "prompts": [row["prompt"] for row in run.holdout[:VERIFIED_PROMPTS]],
        "chat_template_kwargs": run.chat_template_kwargs,
        "max_new_tokens": min(run.settings.max_completion_length, VERIFIED_TOKENS),
        "free_memory": free_memory_bytes(),
    }


def verify_in_new_process(request: Mapping[str, Any], label: str) -> Verification:
    """Verify an export in a process of its own and return the verification.

    Args:
        request: The arguments of `verify_child.py`.
        label: Name of the export in messages.

    Raises:
        ExportError: A check failed, or the process ended with an error, which the message quotes.
    """
    # A fresh process has none of the patches that Unsloth makes, and no model in memory.
    script = Path(__file__).with_name("verify_child.py")
    with progress_bar(desc="verifying", unit=" steps") as bar:
        try:
            verification = run_script(script, request, on_line=lambda line: bar.update(line == "."))
        except ChildError as error:
            raise ExportError(
                f"{label} could not be verified, so it was not kept. The checking process {error}"
            ) from error
    measured = verification["measured"]
    failed = []
    for name, passed in verification["checks"].items():
        # A check that was not made is None, which is not a failure.
        if passed is False:
            failed.append(f"{name} ({measured[name]})")
    if failed:
        raise ExportError(
            f"{label} does not match the trained model, so it was not kept. Failed: "
            f"{'; '.join(failed)}."
        )
    return verification
