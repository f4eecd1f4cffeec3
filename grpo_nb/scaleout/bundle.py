"""A run as a parcel: settings, data, rewards and versions, from which it can be set up elsewhere, and what differs there.

Nothing in a bundle is run when it is opened. Rewards of the kit are made again from their recorded parameters and compared
with the recorded identity; rewards of the user's own are code, which is only run when that is asked for by name.
"""

from __future__ import annotations

import dataclasses
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core import (
    check_target,
    fence,
    plain,
    put_in_place,
    require_kind,
    require_path,
    span,
    staged_folder,
    table,
    target_of,
    write_json,
)
from grpo_nb.export import holds_secret, needed_by
from grpo_nb.runs import Run, open_run, public, published_name, shareable
from grpo_nb.scaleout.differences import Difference, machine_differences, reward_difference, version_differences
from grpo_nb.scaleout.rebuild import rebuild_reward, run_source
from grpo_nb.settings import EMBEDDED_MODEL, Settings
from grpo_nb.tasks import AnswerFormat, Task

if TYPE_CHECKING:
    from datasets import Dataset

_FORM = 1
_MOST_BYTES = 20_000_000
_LARGEST_PART = 2_000_000_000


@dataclasses.dataclass(frozen=True, kw_only=True)
class Bundle:
    """A bundle that was opened: what it gives back, and what is not as it was."""

    path: Path
    settings: Settings
    task: Task | None
    """The data, or None where the bundle holds none."""
    rewards: list[Callable[..., Any]]
    """Those that could be made again, in their order."""
    missing_rewards: Mapping[str, str]
    """Why the others could not, by name."""
    differences: tuple[Difference, ...]
    recorded: Mapping[str, Any] = dataclasses.field(repr=False)
    """All that `bundle.json` says."""

    @property
    def is_complete(self) -> bool:
        """Whether data and every reward are there."""
        return self.task is not None and not self.missing_rewards

    @property
    def sentence(self) -> str:
        """What is there and what differs, in words."""
        data = (
            "no data"
            if self.task is None
            else f"{len(self.task.train)} training and {len(self.task.holdout)} held-out rows"
        )
        count = len(self.rewards) + len(self.missing_rewards)
        text = f"{self.recorded['run']}: settings, {data}, {len(self.rewards)} of {count} rewards. "
        if self.missing_rewards:
            text += f"Not made again: {', '.join(self.missing_rewards)}. "
        telling = [d.what for d in self.differences if d.changes_results]
        if telling:
            return f"{text}Other results are to be expected from: {', '.join(telling)}."
        return f"{text}Nothing was found that would change its results."

    def _rows(self) -> list[tuple[str, str, str, str]]:
        rows = [
            (d.what, d.then, d.now, "can change results" if d.changes_results else "for information")
            for d in self.differences
        ]
        return rows + [(f"reward {name}", "used", "not made again", why) for name, why in self.missing_rewards.items()]

    def __repr__(self) -> str:
        return "\n".join([self.sentence, *(f"  {a}: was {b}, is {c} ({d})" for a, b, c, d in self._rows())])

    def _repr_html_(self) -> str:
        import html

        heads = "".join(f"<th>{name}</th>" for name in ("", "then", "here", ""))
        lines = "".join(
            "<tr>" + "".join(f"<td style='text-align:left'>{html.escape(cell)}</td>" for cell in row) + "</tr>"
            for row in self._rows()
        )
        shown = f"<table><thead><tr>{heads}</tr></thead>{lines}</table>" if lines else ""
        return f"<p>{html.escape(self.sentence)}</p>{shown}"


def write_bundle(
    run: Run | str | Path,
    path: str | Path,
    *,
    task: Task | None = None,
    rows: bool | None = None,
    overwrite: bool = False,
) -> Path:
    """Pack what a run was made of into a folder, or into one file if the path ends with `.zip`; return its path.

    In it: `settings.json`, `bundle.json` (versions, machine, seed, data fingerprint, rewards with their parameters and
    identity), `rewards.py` (their source, to be read), `requirements.txt`, `README.md`, and the rows as parquet.

    Args:
        run: From `train` or `open_run`, or its folder.
        path: Where to.
        task: The task that it was trained on: a run's own folder has only the held-out rows.
        rows: Whether the rows go with it; if not said, up to 20 MB of them. False where the data may not be passed on.
        overwrite: Replace what is there.

    Raises:
        FileExistsError: Something is there.
        ValueError: The task is not the one of the run, or a source holds what looks like an access token.
    """
    require_kind("task", task, (Task, None), "the task of the run")
    require_kind("rows", rows, (bool, None), "True, False or None")
    run, target = open_run(run), target_of(path)
    check_target(target, overwrite, needed_by(run))
    info = run.info
    if task is not None and task.fingerprint != info["task"]["fingerprint"]:
        raise ValueError(
            f"this task has the fingerprint {task.fingerprint}, the run was trained on {info['task']['fingerprint']}: "
            "give the task that it was trained on, or none."
        )
    with staged_folder(target) as staged:
        _fill(staged, run, info, task, rows)
        found = holds_secret({file.name: file for file in staged.iterdir()})
        if found:
            raise ValueError(
                f"{', '.join(found)} would hold what looks like an access token or key. Take it out of the reward's source or "
                "of the settings, and revoke it: it is in the folder of the run too."
            )
        put_in_place(_packed(staged) if target.suffix == ".zip" else staged, target, overwrite=overwrite)
    return target


def open_bundle(path: str | Path, *, trust_code: bool = False) -> Bundle:
    """Give back settings, task and rewards of a bundle, and say what is different on this machine.

    Args:
        path: From `write_bundle`.
        trust_code: Run the source of rewards that are not the kit's, with all the rights that you have. Read `rewards.py`
            first; a bundle of somebody else can hold anything.

    Raises:
        FileNotFoundError: Nothing is there.
        ValueError: It is no bundle, or one of a form that this version does not know.

    >>> bundle = open_bundle("bundle.zip")  # doctest: +SKIP
    """
    place = require_path("path", path, "the path of a bundle, as 'bundle.zip'")
    if not place.exists():
        raise FileNotFoundError(f"there is no bundle {str(place)!r}.")
    recorded = _read_record(place)
    settings = _read_settings(place)
    task = _read_task(place, recorded["task"])
    made: list[Callable[..., Any]] = []
    missing, differences = {}, [*version_differences(recorded), *machine_differences(recorded, settings)]
    for entry in recorded["rewards"]:
        reward, why = rebuild_reward(entry)
        if reward is None and trust_code:
            reward, why = run_source(entry)
        if reward is None:
            missing[entry["name"]] = why
            continue
        made.append(reward)
        differences += reward_difference(entry, reward)
    differences += _data_difference(recorded["task"], task)
    return Bundle(
        path=place, settings=settings, task=task, rewards=made, missing_rewards=missing, differences=tuple(differences),
        recorded=recorded,
    )  # fmt: skip


def _fill(staged: Path, run: Run, info: Mapping[str, Any], task: Task | None, rows: bool | None) -> None:
    from grpo_nb import __version__

    settings = _shared_settings(run.settings)
    settings.save(staged / "settings.json")
    parts = {"holdout": run.holdout} if task is None else {"train": list(task.train), "holdout": list(task.holdout)}
    held = _write_rows(staged, parts, rows) if rows is not False else []
    record = {
        "form": _FORM,
        "run": run.name,
        "grpo_nb": __version__,
        "seed": settings.seed,
        "started": info["started"],
        "task": {
            **info["task"],
            "name": shareable(info["task"]["name"]),
            "rows": held,
            "is_ordered": bool(task is not None and task.is_ordered),
        },
        # Code of the user's own goes as it is: it is read and run elsewhere.
        "rewards": [{**shareable(entry), "source": entry["source"]} for entry in info["rewards"]],
        "versions": info["versions"],
        "machine": info["machine"],
        "number_type": info["number_type"],
    }
    write_json(staged / "bundle.json", record)
    (staged / "requirements.txt").write_text(_requirements(info["versions"]), "utf-8")
    sources = [
        f"# {r['name']!r}, weight {r['weight']:g}, made by {r['call']!r}\n{r['source']}" for r in record["rewards"]
    ]
    (staged / "rewards.py").write_text("\n\n".join(sources), "utf-8")
    (staged / "README.md").write_text(_readme(run, record), "utf-8")


def _shared_settings(settings: Settings) -> Settings:
    """The settings without what is of this machine only: paths and tokens."""
    record = settings.to_dict()
    is_local = settings.model != EMBEDDED_MODEL and published_name(settings.model) is None
    model = Path(settings.model).name if is_local else settings.model
    # Without a check of names: the settings of an old run are packed as they were.
    return Settings.from_dict({**record, "extra": public(record["extra"]), "model": model, "run_root": "runs"})


def _write_rows(staged: Path, parts: Mapping[str, list[dict[str, Any]]], rows: bool | None) -> list[str]:
    import pyarrow
    import pyarrow.parquet

    for name, listed in parts.items():
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(listed), staged / f"{name}.parquet")
    files = [staged / f"{name}.parquet" for name in parts]
    if rows is None and sum(file.stat().st_size for file in files) > _MOST_BYTES:
        for file in files:
            file.unlink()
        return []
    return list(parts)


def _packed(staged: Path) -> Path:
    packed = staged / "packed"
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for file in sorted(staged.iterdir()):
            if file != packed:
                archive.write(file, file.name)
    return packed


def _part(place: Path, name: str) -> bytes | None:
    """Read one file of a bundle; nothing of an archive is unpacked to the disk."""
    if place.is_dir():
        file = place / name
        return file.read_bytes() if file.is_file() else None
    with zipfile.ZipFile(place) as archive:
        try:
            entry = archive.getinfo(name)
        except KeyError:
            return None
        if entry.file_size > _LARGEST_PART:
            raise ValueError(f"{name} in {str(place)!r} says it has {entry.file_size / 1e9:.1f} GB: that is no bundle.")
        return archive.read(entry)


def _read_record(place: Path) -> dict[str, Any]:
    try:
        content = _part(place, "bundle.json")
        record = json.loads(content) if content is not None else None
    except (zipfile.BadZipFile, ValueError) as error:
        raise ValueError(f"{str(place)!r} is no bundle, or a damaged one: {error}") from error
    needed = {"form", "task", "rewards", "versions", "machine", "number_type"}
    if not isinstance(record, dict) or needed - set(record):
        raise ValueError(f"{str(place)!r} is no bundle: write one with gn.scaleout.write_bundle(run, path).")
    if record["form"] != _FORM:
        raise ValueError(f"{str(place)!r} has the form {record['form']!r}; this version of grpo_nb reads {_FORM}.")
    return record


def _read_settings(place: Path) -> Settings:
    content = _part(place, "settings.json")
    if content is None:
        raise ValueError(f"{str(place)!r} is no bundle: it has no settings.json.")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "settings.json"
        file.write_bytes(content)
        return Settings.load(file)


def _read_task(place: Path, recorded: Mapping[str, Any]) -> Task | None:
    held = {name: content for name in ("train", "holdout") if (content := _part(place, f"{name}.parquet")) is not None}
    if len(held) < 2:
        return None
    return Task(
        recorded["name"],
        AnswerFormat(**recorded["format"]),
        _dataset(held["train"]),
        _dataset(held["holdout"]),
        recorded["dropped"],
        bool(recorded.get("is_ordered")),
    )


def _dataset(content: bytes) -> Dataset:
    import pyarrow.parquet
    from datasets import Dataset

    return Dataset.from_list(pyarrow.parquet.read_table(io.BytesIO(content)).to_pylist())


def _data_difference(recorded: Mapping[str, Any], task: Task | None) -> list[Difference]:
    then = recorded["fingerprint"]
    if task is None:
        return [Difference("data", f"{recorded['name']}, fingerprint {then}", "not in the bundle", True)]
    if task.fingerprint != then:
        return [Difference("data", f"fingerprint {then}", f"fingerprint {task.fingerprint}", True)]
    return []


def _requirements(versions: Mapping[str, str]) -> str:
    lines = ["# The versions that the run was made with. unsloth and unsloth_zoo: with --no-deps, after the others."]
    # "+cpu" and the like name a build, which a registry has no file for.
    return "\n".join([*lines, *(f"{name}=={version.partition('+')[0]}" for name, version in versions.items())]) + "\n"


def _readme(run: Run, record: Mapping[str, Any]) -> str:
    rewards = table(["reward", "weight"], [[span(r["name"]), f"{r['weight']:g}"] for r in record["rewards"]])
    data = record["task"]
    held = " and ".join(data["rows"]) or "no"
    code = (
        'import grpo_nb as gn\n\nbundle = gn.scaleout.open_bundle(".")  # this folder, or the zip file\nbundle\n'
        "model, tokenizer = gn.load_model(bundle.settings)\n"
        "run = gn.train(model, tokenizer, bundle.task, bundle.rewards, bundle.settings)"
    )
    return (
        f"# {plain(run.name)}, to be done again\n\nTrained {plain(record['started'])} with grpo_nb {record['grpo_nb']}, "
        f"seed {record['seed']}, on {span(data['name'])} (fingerprint `{data['fingerprint']}`; the {held} rows are here).\n\n"
        f"{fence(code, 'python')}\n\nOpening it runs nothing. Rewards that are not the kit's are in `rewards.py`; after "
        f"reading them, `gn.scaleout.open_bundle(path, trust_code=True)` runs them.\n\n{rewards}\n"
    )
