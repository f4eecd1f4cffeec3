"""What an export is, once it is verified: a folder, and the checks it passed, as a table."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, Any

from grpo_nb.core.files import inside, sha256_of, target_of
from grpo_nb.core.tables import Part, Shown, Table, bold, verdict
from grpo_nb.models.identity import require_trained_on, weight_files, weights_here
from grpo_nb.models.load import resolve_model
from grpo_nb.runs.run import Run, open_run
from grpo_nb.settings.settings import EMBEDDED_MODEL, Settings

if TYPE_CHECKING:
    import pandas

Report = Callable[[str], None]
_GREEDY = (
    "{equal_greedy_text:.0%}, {equal_greedy_text_near_ties_aside:.0%} with near ties set aside; log-probabilities "
)
# The verification of each kind in words. What they are made of tells the kinds apart.
_SENTENCES = {
    "adapter": "adapter of {tensors} tensors for {base}, every byte equal to the run's",
    "merged": "{dtype}, holds {retained_change:.1%} of the training's change; verified on {prompts} held-out prompts: greedy "
    "text equal to the adapter's on " + _GREEDY + "{mean_logp_difference_to_adapter:.3f} nats from the adapter's, where the "
    "starting model's are {mean_logp_difference_of_base_to_adapter:.3f} away; ",
    "gguf": "{quantization}, {megabytes:.0f} MB; verified through llama.cpp on {prompts} held-out prompts: greedy text equal "
    "to the merged model's on " + _GREEDY + "{mean_logp_difference_to_merged:.3f} nats from the merged model's; ",
}  # fmt: skip
# The file of each kind without which it is none, beside its weights.
_FILES = {"adapter": ("adapter_config.json", "adapter_model.safetensors"), "merged": ("config.json",), "gguf": ()}


# Written when the others were verified: the record itself, and the card with its figure, which one may edit.
_NOT_VERIFIED = {"verification.json", "README.md", "figures/training.png"}


class ExportError(RuntimeError):
    """An export that is not the trained model, or is damaged. One that was being made is not kept."""


@dataclass(frozen=True, repr=False)
class Export(Shown):
    """A verified export. Shows itself as a table of its checks."""

    path: Path
    """The folder."""
    verification: Mapping[str, Any]
    """`checks`: each check and whether it passed; `measured`: what was found, in words; and the numbers behind them."""
    kind: str = "merged"
    """`merged`, `adapter` or `gguf`."""
    run: Run | None = dataclasses.field(default=None, compare=False)
    """The run that it is of."""

    @property
    def file(self) -> Path:
        """What other programs are given: the GGUF file, or the folder."""
        return inside(self.path, self.verification["file"]) if self.kind == "gguf" else self.path

    @property
    def sentence(self) -> str:
        """The verification in words."""
        v = self.verification
        said, name = ("adapter", "adapter") if self.kind == "merged" else ("merged model", "merged")
        if self.kind == "adapter":
            score = ""
        elif scored := v.get("scored", v["prompts"]):
            score = f"{v['correct']} of {scored} answers right, the {said}'s {v[f'correct_of_{name}']}"
        else:
            score = f"no answer of the {said} ended within what was verified, so that the scores were not compared"
        text = _SENTENCES[self.kind].format_map({**v, "megabytes": v.get("bytes", 0) / 1e6}) + score
        return "; ".join(filter(None, (text, in_4bit_words(v))))

    @property
    def table(self) -> pandas.DataFrame:
        """The checks: name, whether it passed, what was measured."""
        import pandas

        return pandas.DataFrame(self._rows(), columns=["check", "passed", "measured"])

    def _rows(self) -> list[tuple[str, bool, str]]:
        measured = self.verification.get("measured", {})
        return [(name, ok, measured.get(name, "")) for name, ok in self.verification["checks"].items()]

    @property
    def checks(self) -> Table:
        """The checks as they are shown, the results in words."""
        rows = [(verdict(ok, "✓ passed" if ok else "✗ FAILED"), name, text) for name, ok, text in self._rows()]
        return Table(rows, head=("result", "check", "measured"), wide=(2,))

    def _parts(self) -> Iterable[Part]:
        return bold(self.path), self.checks, self.sentence


def in_4bit_words(verification: Mapping[str, Any]) -> str:
    """What was compared of a run trained in 4 bit, and the merged model's score beside the run's; empty for other runs."""
    if "trained_in_4bit" not in verification:
        return ""
    return (
        "compared with the base in 16 bit plus adapter, but trained in 4 bit, so that answers may differ from the run's; "
        f"merged model, held-out: {verification['trained_in_4bit']['said']}"
    )


def open_export(path: str | Path, *, run: Run | str | Path | None = None) -> Export:
    """Open an export again from its folder: what it is, what was verified, and the run that it is of. Loads no model.

    Args:
        path: The folder.
        run: Its run, or the run's folder. If not given, that one in `runs/` which noted the export; `export_gguf` and
            `inference_commands` then ask what the run was asked.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: It is no export, or that of an adapter whose base model's weights are others here.
        ExportError: A file of it is missing or damaged; says which.

    >>> gn.export.open("exports/first")  # doctest: +SKIP
    """
    folder = target_of(path)
    if not folder.is_dir():
        raise FileNotFoundError(f"there is no folder {str(path)!r} (looked in {Path.cwd()}).")
    if not (folder / "verification.json").is_file():
        raise ValueError(
            f"{str(path)!r} is no export: it has no verification.json. Make one with gn.export_merged(run, path)."
        )
    verification = _whole(folder)["verification.json"]
    kind = next((kind for kind, said in _SENTENCES.items() if _is_said(said, verification)), None)
    if kind is None:
        raise ExportError(
            f"{folder / 'verification.json'} does not say what was verified: it is damaged, or of another version."
        )
    names = [*_FILES[kind], verification["file"]] if kind == "gguf" else _FILES[kind]
    weights = weight_files(folder, "model") if kind == "merged" else [inside(folder, names[-1])]
    missing = [file.name for file in (*(folder / name for name in names), *weights) if not file.is_file()]
    if missing or not weights:
        raise ExportError(
            f"the export {str(path)!r} is not whole: {[*missing, 'model.safetensors'][0]} is missing. Export it again."
        )
    if kind == "gguf" and weights[0].stat().st_size != verification["bytes"]:
        raise ExportError(
            f"{weights[0]} is damaged: it has {weights[0].stat().st_size} bytes of {verification['bytes']}."
        )
    if kind == "adapter":
        require_trained_on(folder, verification["base"], weights_here(base_of(folder, verification)))
    return Export(folder, verification, kind, _run_of(folder) if run is None else open_run(run))


def files_of(folder: Path) -> dict[str, Path]:
    """Return the files of an export by their names in the repository, largest last; hidden ones are not part of it."""
    found = {}
    for file in sorted(folder.rglob("*")):
        name = file.relative_to(folder)
        if file.is_file() and not any(part.startswith(".") or part == "__pycache__" for part in name.parts):
            found[name.as_posix()] = file
    return dict(sorted(found.items(), key=lambda item: item[1].stat().st_size))


def recorded_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return size and SHA-256 of each file that a verification is of, by its name in the export."""
    files = {name: file for name, file in files_of(folder).items() if name not in _NOT_VERIFIED}
    return {name: {"bytes": file.stat().st_size, "sha256": sha256_of(file)} for name, file in files.items()}


def not_as_verified(folder: Path, verification: Mapping[str, Any]) -> list[str]:
    """Say which files of an export were changed, added or taken away since it was verified."""
    recorded = verification.get("files")
    if not isinstance(recorded, dict) or not recorded:
        return ["verification.json has no hashes of the files"]
    found = recorded_files(folder)
    words = ((name, "was added" if name not in recorded else "is missing" if name not in found else "was changed")
             for name in sorted(recorded.keys() | found.keys()) if recorded.get(name) != found.get(name))  # fmt: skip
    return [f"{name} {what}" for name, what in words]


def base_of(folder: Path, verification: Mapping[str, Any]) -> str:
    """Return where the base of an exported adapter is: a folder, the embedded model's in the cache, or a name on the Hub."""
    config = folder / "adapter_config.json"
    base = read_json(config)["base_model_name_or_path"] if config.is_file() else verification["base"]
    return resolve_model(base) if base == EMBEDDED_MODEL else base


def _is_said(sentence: str, verification: Mapping[str, Any]) -> bool:
    needed = {name for _, name, *_ in Formatter().parse(sentence) if name and name != "megabytes"} | {"checks"}
    return needed <= verification.keys()


def export_of(export: Export | str | Path) -> Export:
    """Return the export that is meant, opened if it is a folder."""
    return export if isinstance(export, Export) else open_export(export)


def told(report: Report | None) -> Report:
    """Return what is told of each stage."""
    return report or (lambda line: None)


def require_readable(file: Path, whose: str) -> None:
    """Raise `ExportError` if a file of safetensors is cut or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="pt"):
            pass
    except SafetensorError as error:
        raise ExportError(f"{file} of {whose} is damaged ({error}). If it was copied, copy it again.") from error


def _whole(folder: Path) -> dict[str, Any]:
    """Read what can be read without loading a model; return the JSON files by name. Raises `ExportError` that names a file."""
    found = {}
    for file in sorted(folder.iterdir()):
        if file.suffix == ".safetensors":
            require_readable(file, "the export")
        elif file.suffix == ".json":
            found[file.name] = read_json(file, dict if file.name == "verification.json" else object)
    return found


def read_json(file: Path, kind: type = dict) -> Any:
    """Return what a JSON file of an export holds. Raises `ExportError` that names it if it is damaged, or of another kind."""
    try:
        found = json.loads(file.read_text("utf-8"))
        if not isinstance(found, kind):
            raise ValueError("it holds no names with values")
    except ValueError as error:
        raise ExportError(f"{file} of the export is damaged ({error}). If it was copied, copy it again.") from error
    return found


def _run_of(folder: Path) -> Run | None:
    """The run in `runs/` that says it was exported to this folder, if there is one."""
    root = Path(Settings().run_root)
    for file in root.glob("*/exports.json"):
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):  # a damaged one is not asked
            if any(Path(noted["path"]).resolve() == folder.resolve() for noted in json.loads(file.read_text("utf-8"))):
                return open_run(file.parent)
    return None


def require_passed(verification: Mapping[str, Any], what: str) -> None:
    """Raise `ExportError` that names each failed check with what was measured, if there is one."""
    failed = [name for name, ok in verification["checks"].items() if not ok]
    if not failed:
        return
    measured = verification.get("measured", {})
    said = "; ".join(f"{name} ({measured[name]})" if measured.get(name) else name for name in failed)
    problems = verification.get("problems") or ()
    first = f" First of what differs: {'; '.join(problems[:5])}." if problems else ""
    raise ExportError(f"{what} is not the trained one, so it was not kept. Failed: {said}.{first}")
