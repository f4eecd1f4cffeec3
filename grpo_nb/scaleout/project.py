"""A run written as a folder for TRL's own trainer.

What cannot be the same there is changed with a sentence (`Project.changes`, README.md) or refused; nothing is changed silently.
The rewards are tried in a process of their own before the folder is there: same scores on the recorded completions, or none.
"""

from __future__ import annotations

import json
import math
import shutil
import textwrap
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo_nb import __version__
from grpo_nb.core.files import check_target, put_in_place, staged_folder, target_of, write_json
from grpo_nb.core.pages import render
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.core.words import require_number
from grpo_nb.export.hub import holds_secret
from grpo_nb.export.merged import needed_by
from grpo_nb.machine.host import require_disk
from grpo_nb.models.load import resolve_model
from grpo_nb.rewards.base import RewardFunction, reward_list, reward_name
from grpo_nb.rewards.calls import make_batch
from grpo_nb.rewards.record import rebuilt, record_of
from grpo_nb.runs.card import public, published_name, shareable
from grpo_nb.runs.run import Run, open_run
from grpo_nb.scaleout.code import CannotLeave, RewardsCode
from grpo_nb.scaleout.opened import FORM, Project, link, open_project
from grpo_nb.settings.settings import EMBEDDED_MODEL, Settings
from grpo_nb.tasks.task import Task
from grpo_nb.training.beginning import write_task

TRL = "1.16.0"
"""The release that train.py is for: the first whose plain trainer takes a step on a CPU (1.15 asks for Triton there)."""
_PINNED = ("torch", "transformers", "peft", "accelerate", "datasets")
_ROOMS = ("core", "machine", "settings", "tasks", "sandbox", "rewards")
"""What the kit's rewards import, and all that is packed of the kit."""
_KIT = "grpo_nb"
_COUNTS = (8, 4, 2, 1)
# Set by train.py, or of this machine alone.
_DECIDED_THERE = {
    "per_device_train_batch_size", "gradient_accumulation_steps", "generation_batch_size", "steps_per_generation",
    "use_cpu", "dataloader_pin_memory", "output_dir", "reward_weights", "logging_dir", "max_seq_length",
}  # fmt: skip
_KEPT = ("started", "versions", "machine", "number_type", "reference", "base", "generation")
_ONLY_MEMORY = ("unsloth_num_chunks", "unsloth_logit_chunk_multiplier", "unsloth_grpo_mini_batch")
_OF_UNSLOTH = ("vllm_sampling_params", "context_parallel_size", "context_parallel_backend")


@dataclass
class _Plan:
    """What is written, gathered before anything is."""

    run: Run
    settings: Settings
    rewards: list[RewardFunction]
    code: RewardsCode
    calls: list[str]
    record: list[dict[str, Any]]
    trainer: dict[str, Any] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)
    looks_at: str = "completion"

    def divided(self, processes: int) -> tuple[int, int] | str:
        """Completions of a pass and passes of a step in each process, as train.py divides them; or why that cannot be."""
        total, made = self.settings.batch_size, self.settings.generation_batch_size
        if total % processes or made % processes:
            return f"{total} completions a step, {made} a generation, do not divide by it"
        if self.looks_at == "batch" and processes > 1:
            return "a reward looks at its whole batch"
        if self.looks_at == "group" and made // processes % self.settings.num_generations:
            return "a reward looks at its whole group, which would be split"
        share = total // processes
        most = min(self.settings.per_device_train_batch_size, share)
        size = next(n for n in range(most, 0, -1) if share % n == 0 and made // processes % n == 0)
        return size, share // size


def write(
    run: Run | str | Path,
    folder: str | Path,
    *,
    processes: int | None = None,
    rewards: Sequence[RewardFunction] | None = None,
    task: Task | None = None,
    overwrite: bool = False,
) -> Project:
    """Write a run as a folder that trains it again on any machine, with TRL's `GRPOTrainer` under `accelerate launch`.

    Neither the kit nor Unsloth is needed to train it. In it: `train.py`, `run.yaml`, `rewards.py`, the rows, the adapter that
    the run began with, its first steps as `record.jsonl`, configurations for accelerate, and a `README.md`
    with the command for each. A base model that is not on the Hub lies in `base/`. It appears whole or not
    at all. docs/guide/scale_out.md says what stays equal.

    Args:
        run: From `train` or `open_run`, or its folder.
        folder: Where to.
        processes: For which `ddp.yaml` and `fsdp2.yaml` are written; by default 8, or the most below that divide the batch.
        rewards: Those of the run, where some are the user's own and it was opened from its folder.
        task: Its task, where it has too many rows to have kept them.
        overwrite: Replace what is there.

    Returns:
        The folder, opened.

    Raises:
        FileExistsError: Something is there.
        FileNotFoundError: The run did not keep what it began with.
        EnvironmentProblem: There is no room.
        ValueError: Rewards, settings or a number of processes that cannot leave, each with what to write instead.

    >>> project = gn.scaleout.write(run, "anywhere")  # doctest: +SKIP
    """
    run, target = open_run(run), target_of(folder)
    if processes is not None:
        require_number("processes", processes, 1)
    check_target(target, overwrite, needed_by(run))
    _require_beginning(run)
    plan = _planned(run, _rewards_of(run, rewards))
    base = None if published_name(run.settings.model) else Path(resolve_model(run.settings.model))
    # Files of one disk are linked, and take no room.
    require_disk(target, _size(base) + 2 * _size(run.start_path), "The folder")
    with staged_folder(target) as staged:
        _write_data(staged, run, task)
        _write_rewards(staged, plan)
        _try_rewards(staged, plan)
        count = _processes(plan, processes)
        if base is not None:
            link(base, staged / "base")
        _write_settings(staged, plan, base)
        _write_programs(staged, plan, count, base)
        found = holds_secret({file.name: file for file in staged.iterdir() if file.is_file()})
        if found:
            raise ValueError(
                f"{', '.join(found)} would hold what looks like an access token or key. Take it out of the reward's source or "
                "of the settings, and revoke it: it is in the folder of the run too."
            )
        put_in_place(staged, target, overwrite=overwrite)
    return open_project(target)


def _require_beginning(run: Run) -> None:
    if not (run.start_path / "adapter_model.safetensors").is_file():
        raise FileNotFoundError(
            f"the run {run.name!r} has not kept the adapter that it began with ({run.start_path.name}/), so it cannot be begun "
            "again elsewhere. Train it with this version of the kit: gn.train(...)."
        )


# -- what the run was -----------------------------------------------------------------------------------------------


def _rewards_of(run: Run, given: Sequence[RewardFunction] | None) -> list[RewardFunction]:
    """The reward functions of a run: as given or held, or made again from what was recorded of the kit's."""
    recorded = run.info["rewards"]
    held = reward_list(given) if given is not None else run.rewards
    if not held:
        made = [rebuilt(entry) for entry in recorded]
        lost = [entry["name"] for entry, reward in zip(recorded, made, strict=True) if reward is None]
        if lost:
            raise CannotLeave(
                f"the run {run.name!r} was opened from its folder, which has of {', '.join(lost)} the text alone. Give the "
                "functions, in their order: gn.scaleout.write(run, folder, rewards=[...])."
            )
        return made
    names = [entry["name"] for entry in recorded]
    if [reward_name(reward) for reward in held] != names:
        raise ValueError(
            f"rewards are {[reward_name(r) for r in held]}, the run has {names}: give those, in this order."
        )
    for entry, reward in zip(recorded, held, strict=True):
        if given is not None and record_of(reward)["hash"] != entry["hash"]:
            raise ValueError(
                f"the reward {entry['name']!r} is not as it was in the run: give it as it was trained with."
            )
    return list(held)


def _planned(run: Run, rewards: list[RewardFunction]) -> _Plan:
    """Rewards as code, settings as TRL takes them, and the record."""
    settings, code = run.settings, RewardsCode()
    plan = _Plan(run, settings, rewards, code, [code.add(reward) for reward in rewards], _record(run))
    plan.trainer = dict(run.info["effective"]["arguments"])
    if refused := [name for name in _OF_UNSLOTH if settings.extra.get(name) is not None]:
        raise ValueError(
            f"{', '.join(refused)} in extra is Unsloth's alone, and the run would be another without it: "
            "train without it, settings.replace(extra={...}), and write that run."
        )
    for name in [name for name in _ONLY_MEMORY if settings.extra.get(name) is not None]:
        plan.changes.append(f"{name} is left out: Unsloth alone has it, and it changes memory, not numbers.")
    if plan.trainer.get("optim") == "adamw_flash":
        plan.trainer["optim"] = "adamw_torch_fused"
        plan.changes.append("adamw_flash, of Unsloth alone, becomes adamw_torch_fused: the same optimizer.")
    if plan.trainer["loss_type"] == "bnpo":
        plan.trainer["loss_type"] = "dapo"
        plan.changes.append(
            "The loss bnpo becomes dapo: bnpo divides by the tokens of one process, so that every number of processes would "
            "learn something else. In one process with one pass a step they are the same."
        )
    # Memory alone as well; and with several processes the reentrant kind ends in an error (DDP, find_unused_parameters).
    plan.trainer["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    plan.trainer["shuffle_dataset"] = plan.trainer.get("shuffle_dataset", not run.info["task"].get("is_ordered", False))
    return plan


def _record(run: Run) -> list[dict[str, Any]]:
    """What was generated in the first steps and what came of it; empty where the run kept nothing that could be replayed."""
    file, settings = run.start_path / "generations.json", run.settings
    if not file.is_file() or settings.generation_batch_size % settings.batch_size:
        return []
    rows, record, size = {row["step"]: row for row in run.rows}, [], settings.num_generations
    # Of a generation for several steps TRL draws which completions each step gets. bnpo divides by the tokens of one pass, dapo
    # by those of a generation: only where that is one pass are they the same.
    of_generation = settings.generation_batch_size
    is_same_loss = of_generation == settings.batch_size and (
        settings.loss_type != "bnpo" or of_generation == settings.per_device_train_batch_size
    )
    for made in json.loads(file.read_text("utf-8")):
        step = made["step"] + 1
        if step not in run.steps or step not in rows:
            break
        table = run.completions(step)
        record.append({
            "step": step,
            "rows": made["rows"],
            "prompt": [row["prompt"] for row in made["rows"] for _ in range(size)],
            "completion": list(table["completion"]),
            "completion_ids": made["completion_ids"],
            "rewards": {name: list(map(float, table[name])) for name in run.weights},
            "advantages": list(map(float, table["advantage"])),
            **({name: rows[step][name] for name in ("loss", "grad_norm") if name in rows[step]} if is_same_loss else {}),
        })  # fmt: skip
    return record


# -- what is written ------------------------------------------------------------------------------------------------


def _write_data(staged: Path, run: Run, task: Task | None) -> None:
    link(run.start_path, staged / "adapter_init", "adapter_*")
    if (run.path / "chat_template.jinja").is_file():
        shutil.copyfile(run.path / "chat_template.jinja", staged / "chat_template.jinja")
    if task is not None and task.fingerprint != run.info["task"]["fingerprint"]:
        raise ValueError(
            f"this task has the fingerprint {task.fingerprint}, the run was trained on {run.info['task']['fingerprint']}: "
            "give the task that it was trained on, or none."
        )
    if task is not None:
        write_task(staged, task)
    elif (run.start_path / "train.jsonl").is_file():
        for name in ("train.jsonl", "holdout.jsonl"):
            shutil.copyfile(run.start_path / name, staged / name)
    else:
        raise FileNotFoundError(
            f"the run {run.name!r} had too many rows to keep them: give its task, gn.scaleout.write(run, folder, task=task)."
        )


def _write_rewards(staged: Path, plan: _Plan) -> None:
    code = plan.code
    lines = sorted(code.imports.values())
    of_kit = [f"{line}  # noqa: E402" for line in lines if _KIT in line]
    _write_from_template(
        staged / "rewards.py", run=plan.run.name, version=__version__, needs_kit=code.needs_kit,
        imports=[line for line in lines if _KIT not in line], kit_imports=of_kit,
        parts=code.parts.values(), rewards=plan.calls,
    )  # fmt: skip
    if code.needs_kit:
        package = Path(__file__).resolve().parents[1]
        with zipfile.ZipFile(staged / "kit_rewards.zip", "w", zipfile.ZIP_DEFLATED) as archive:
            for path in (package, *(package / room for room in _ROOMS)):
                for file in sorted(path.glob("*.py*") if path == package else path.rglob("*")):
                    if file.is_file() and "__pycache__" not in file.parts:
                        archive.write(file, Path(package.name, file.relative_to(package)))


def _try_rewards(staged: Path, plan: _Plan) -> None:
    """Score the recorded completions in a fresh process; learn from it how much of a batch each reward looks at.

    Raises:
        CannotLeave: A reward fails there, or gives other scores.
    """
    settings, batches = plan.settings, []
    for entry in plan.record:
        rows = [row for row in entry["rows"] for _ in range(settings.num_generations)]
        batch = make_batch(entry["completion"], rows, completion_ids=entry["completion_ids"])
        given = {"prompts": batch.prompts, "completions": batch.completions, "completion_ids": batch.completion_ids}
        batches.append({
            "after": entry["step"] - 1, "max_steps": settings.max_steps, "size": settings.num_generations,
            "given": {**given, **batch.columns},
        })  # fmt: skip
    script = Path(__file__).with_name("children") / "score.py"
    try:
        found = run_script(script, {"folder": str(staged), "batches": batches})
    except ChildError as error:
        raise CannotLeave(
            f"rewards.py fails in a process of its own: {error.last(1)}. Mend the reward, and train again."
        ) from error
    for entry, scores in zip(plan.record, found["scores"], strict=True):
        for name, now in zip(plan.run.weights, scores, strict=True):
            then = entry["rewards"][name]
            off = [i for i, (a, b) in enumerate(zip(then, now, strict=True)) if not _is_close(a, b)]
            if off:
                raise CannotLeave(
                    f"the reward {name!r} gives other scores in a fresh process: {now[off[0]]:g} in place of {then[off[0]]:g} "
                    f"for completion {off[0]} of step {entry['step']}. It remembers something, or draws numbers: make it "
                    "depend on its arguments alone."
                )
    plan.looks_at = max(found["looks_at"], key=("completion", "group", "batch").index, default="completion")


def _is_close(then: float, now: float) -> bool:
    # Recorded from float32, and by a reward model in another batch.
    return math.isclose(then, now, rel_tol=1e-4, abs_tol=1e-4) or (math.isnan(then) and math.isnan(now))


def _processes(plan: _Plan, asked: int | None) -> int:
    fitting = [count for count in range(1, plan.settings.batch_size + 1) if not isinstance(plan.divided(count), str)]
    if asked is not None and asked not in fitting:
        raise ValueError(
            f"processes = {asked} cannot be: {plan.divided(asked)}. Take one of {', '.join(map(str, fitting))}, or train with "
            "another batch."
        )
    return asked or next(count for count in _COUNTS if count in fitting)


def _write_settings(staged: Path, plan: _Plan, base: Path | None) -> None:
    import yaml

    run, settings, info = plan.run, plan.settings, plan.run.info
    kept = {name: value for name, value in public(plan.trainer).items() if name not in _DECIDED_THERE}
    plan.trainer = json.loads(json.dumps(kept, default=str))
    values = {
        "model": "base" if base else settings.model,
        "revision": None if base else _revision(settings.model),
        "dtype": info["number_type"],
        "load_in_4bit": settings.load_in_4bit,
        "reference": "base" if _is_held_to_base(run) else "start",
        "processes": 1,
        "completions_per_step": settings.batch_size,
        "most_per_pass": settings.per_device_train_batch_size,
        "completions_per_generation": settings.generation_batch_size,
        "rewards_look_at": plan.looks_at,
        "reward_weights": run.weights,
        "trainer": plan.trainer,
    }
    head = (
        "# All settings of the run; those under trainer are TRL's own. train.py refuses a name that it does not know.\n"
    )
    (staged / "run.yaml").write_text(head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True), "utf-8")
    (staged / "record.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in plan.record), "utf-8")
    record = settings.to_dict()
    model = EMBEDDED_MODEL if settings.model == EMBEDDED_MODEL else "base" if base else settings.model
    origin = {
        "form": FORM,
        "run": run.name,
        "grpo_nb": __version__,
        "changes": plan.changes,
        "trainer": plan.trainer,
        "remembered": json.loads((run.start_path / "rewards.json").read_text("utf-8")),
        "settings": {**record, "extra": public(record["extra"]), "model": model, "run_root": "runs"},
        "task": {**info["task"], "name": shareable(info["task"]["name"])},
        # Code of the user's own goes as it is: it is read and run elsewhere.
        "rewards": [{**shareable(entry), "source": entry["source"]} for entry in info["rewards"]],
        **{name: info.get(name) for name in _KEPT},
    }
    write_json(staged / "origin.json", origin)


def _is_held_to_base(run: Run) -> bool:
    """Whether KL is measured to the model without adapter although the run began with one that had learnt something."""
    from safetensors.torch import load_file

    begun = load_file(str(run.start_path / "adapter_model.safetensors"))
    has_learnt = any(bool(tensor.any()) for name, tensor in begun.items() if ".lora_B" in name)
    return has_learnt and not (run.path / "reference").is_dir()


def _revision(name: str) -> str | None:
    """The commit of a model of the Hub that is here, which the run was trained on."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        return Path(snapshot_download(name, local_files_only=True)).name
    except LocalEntryNotFoundError:
        return None


def _write_programs(staged: Path, plan: _Plan, processes: int, base: Path | None) -> None:
    run, settings, versions = plan.run, plan.settings, plan.run.info["versions"]
    needs_bnb = settings.load_in_4bit or any(word in plan.trainer["optim"] for word in ("8bit", "paged", "bnb"))
    has_vllm = bool(plan.trainer.get("use_vllm"))
    pinned = (*_PINNED, "bitsandbytes") if needs_bnb else _PINNED
    pins = [f"{name}=={versions[name].partition('+')[0]}" for name in pinned]
    pins += [f"trl{'[vllm]' * has_vllm}=={TRL}", f"pyyaml=={version('pyyaml')}"]
    pins += [pin for pin in plan.code.requirements() if pin.partition("==")[0] not in (*_PINNED, "trl")]
    quoted = textwrap.fill(", ".join(f'"{pin}"' for pin in pins), 135, break_on_hyphens=False)
    _write_from_template(staged / "train.py", pins=textwrap.indent(quoted, "#     "))
    _write_from_template(staged / "steps.py")
    for name in ("ddp.yaml", "fsdp2.yaml"):
        _write_from_template(staged / name, processes=processes, use_cpu="false")
    _write_from_template(staged / "cpu2.yaml", "ddp.yaml", processes=2, use_cpu="true")
    rows = [(count, *_row(plan, count)) for count in sorted({1, 2, 4, 8, processes})]
    _write_from_template(
        staged / "README.md", run=run.name, settings=settings, version=__version__, changes=plan.changes,
        model=settings.model if base is None else f"base (of {Path(settings.model).name})", processes=processes,
        batches=rows, steps=len(plan.record), needs_kit=plan.code.needs_kit, served="base" if base else settings.model,
        has_vllm=has_vllm,
    )  # fmt: skip


def _write_from_template(file: Path, template: str = "", **values: Any) -> None:
    """Write a file from the template of its own name, or of another."""
    file.write_text(render(f"scaleout/templates/{template or file.name}.jinja", **values), "utf-8")


def _row(plan: _Plan, processes: int) -> tuple[str, str, str]:
    found = plan.divided(processes)
    if isinstance(found, str):
        return "cannot be", found, ""
    size, passes = found
    return str(size), str(passes), f"{processes} x {size} x {passes} = {plan.settings.batch_size}"


def _size(folder: Path | None) -> int:
    return sum(file.stat().st_size for file in folder.glob("*") if file.is_file()) if folder else 0
