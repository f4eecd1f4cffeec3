"""Write a run as a folder that trains it again with TRL's own trainer.

A run that cannot be the same elsewhere is refused. Before the folder appears, its rewards must give
the recorded scores in a fresh process.
"""

import json
import shutil
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo_nb.config.arguments import HUB_ARGUMENTS
from grpo_nb.config.settings import EMBEDDED_MODEL
from grpo_nb.core.files import (
    check_target,
    copy_files,
    put_in_place,
    resolved_target,
    staged_folder,
    write_json,
)
from grpo_nb.core.pages import render
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.export.hub import files_with_secrets
from grpo_nb.export.saved_export import files_of
from grpo_nb.export.staged_export import fetch_base_folder, require_same_base
from grpo_nb.rewards.base import RewardFunction, reward_name
from grpo_nb.runs.card import published_base, without_private_parts
from grpo_nb.runs.reading import reporting_damage_in
from grpo_nb.runs.rows import write_json_lines
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.scaleout.project import BNPO_NOTE, COPIED_BASE, Project, open_project
from grpo_nb.scaleout.reward_source import (
    PORTABLE_REWARD_ADVICE,
    NotPortableError,
    write_rewards_and_kit,
)
from grpo_nb.scoring.record import rebuild_reward
from grpo_nb.scoring.scores import make_batch

#: Release of TRL that train.py needs: the first that trains on a CPU without Unsloth. On a CPU,
#: TRL 1.15 needs Triton. train.py pins the other packages as installed here.
TRL_VERSION = "1.16.0"
#: Fields of run.json that are not copied into origin.json. They describe the process that trained,
#: the course and end of the training, and held-out questions, which train.py does not ask.
FIELDS_LEFT_OUT = (
    "pid",
    "host",
    "resumed",
    "adapter_step",
    "stopped_by",
    "error",
    "grader_description",
)
#: Trainer arguments that are not written to run.yaml, because train.py sets them, or because they
#: are valid on this machine only. vLLM needs packages of its own, but the folder should train
#: anywhere.
ARGUMENTS_LEFT_OUT = HUB_ARGUMENTS | {
    "generation_batch_size",
    "steps_per_generation",
    "use_vllm",
    "use_cpu",
    "dataloader_pin_memory",
    "output_dir",
}


def write_project(
    run: Run | str | Path,
    folder: str | Path,
    *,
    rewards: Sequence[RewardFunction] | None = None,
    overwrite: bool = False,
) -> Project:
    """Write a run as a folder that trains it again on any machine, with TRL's `GRPOTrainer`.

    The folder holds `train.py`, its settings (`run.yaml`), the rewards as source code, the rows,
    the adapter that the run started with, the first steps as `record.jsonl`, and a `README.md` with
    the commands. A base model that is not on the Hub is copied to `base/`. Neither Unsloth nor
    grpo_nb has to be installed to train it. docs/guide/scale_out.md shows what stays equal.

    Args:
        run: From `train` or `open_run`, or its folder.
        folder: The folder to make.
        rewards: Reward functions of the run, in their order. Needed if the run was opened from its
            folder and has rewards of your own.
        overwrite: If True, replace an existing folder.

    Raises:
        FileExistsError: The folder exists and `overwrite` is False.
        FileNotFoundError: The run did not keep the completions of its first step.
        ExportError: The weights of the base model on this machine, in a folder or in the Hub's
            cache, are not those that the run was trained on, or some are missing.
        ValueError: A reward or a setting cannot be written; the message says what to change.
        OSError: Python has no source of a reward, as in a cell that begins with %%time.

    >>> project = gn.scaleout.write_project(run, "anywhere")  # doctest: +SKIP
    """
    run = open_run(run)
    target = resolved_target(folder)
    # 1. Refuse what cannot be the same elsewhere, before anything is written.
    if run.info["task"].get("tools"):
        raise ValueError(
            f"the run {run.name!r} has tools, which cannot be written to the folder. Train it "
            "here, with gn.train(...)."
        )
    # train.py fetches a model of the Hub. Any other model is copied.
    model = published_base(run) or COPIED_BASE
    # Never overwrite the run, or a base model in a folder.
    protected_folders = [run.path]
    # For a model on the Hub or the embedded one, a folder of the same name is another one.
    if run.info.get("is_base_local", True):
        protected_folders.append(Path(run.settings.model).expanduser())
    check_target(target, overwrite, protected_folders)
    recorded_steps = _recorded_steps(run)
    if not recorded_steps:
        raise FileNotFoundError(
            f"the run {run.name!r} has not kept all completions of its first step. A run keeps "
            "them if it was trained by gn.train and by this version of grpo_nb, with "
            "logging_steps=1 and without steps_per_generation."
        )
    # `rebuild_reward` returns None for a user's own reward. The check of the names then refuses it.
    rewards = list(rewards or run.rewards or map(rebuild_reward, run.info["rewards"]))
    if [reward_name(reward) for reward in rewards] != [*run.weights]:
        raise ValueError(
            "these are not the rewards that the run was trained with. A run that was opened from "
            "its folder has only the source text of your own rewards. Pass all functions, in the "
            f"order {[*run.weights]}: gn.scaleout.write_project(run, folder, rewards=[...])."
        )
    with staged_folder(target) as staged:
        # 2. Write the rewards and test them first, because they cause most refusals, and copying
        # the base model can take minutes.
        write_rewards_and_kit(staged, rewards)
        _require_recorded_scores(staged, recorded_steps)
        # 3. Write everything else.
        copy_files(run.start_path, staged / "adapter_init", "adapter_*")
        shutil.copyfile(run.start_path / "train.jsonl", staged / "train.jsonl")
        # Not every run has these two.
        for name in ("holdout.jsonl", "chat_template.jinja"):
            copy_files(run.path, staged, name)
        if model == COPIED_BASE:
            copy_files(fetch_base_folder(run), staged / COPIED_BASE)
        write_json_lines(staged / "record.jsonl", recorded_steps)
        _write_settings(staged, run, model)
        for name in ("train.py", "replay.py", "cpu2.yaml", "README.md"):
            text = render(
                f"scaleout/templates/{name}.jinja",
                run=run,
                model=model,
                trl_version=TRL_VERSION,
                installed_version=version,
                bnpo_note=BNPO_NOTE,
            )
            (staged / name).write_text(text, "utf-8")
        # 4. Refuse secrets, because the folder is made to be sent to other machines.
        secret_files = files_with_secrets(files_of(staged))
        if secret_files:
            raise ValueError(
                f"{', '.join(secret_files)} would hold what looks like an access token or key. "
                "Remove it from the reward, the settings, the data or the base model, and revoke "
                "it: the run's folder may hold it too."
            )
        # Checked again, because the folder may have appeared in the minutes since.
        check_target(target, overwrite, protected_folders)
        put_in_place(staged, target)
    return open_project(target)


def _recorded_steps(run: Run) -> list[dict[str, Any]]:
    """Return the first recorded steps, each with its batch, scores, advantages and logs.

    The list is empty if the run has no record of its first step, or if `steps_per_generation` makes
    a generation larger or smaller than the batch of a step.
    """
    if run.settings.generation_batch_size != run.settings.completions_per_step:
        return []
    logs_by_step = {row["step"]: row for row in run.rows}
    recorded_steps = []
    # `training.new_run` describes these files.
    for file in sorted(run.start_path.glob("generation_*.json")):
        with reporting_damage_in(file):
            generation = json.loads(file.read_text("utf-8"))
            # TRL counted the steps done before the generation. A run counts its steps from 1.
            step = generation["step"] + 1
            completion_rows = generation["completion_rows"]
            completion_ids = generation["completion_ids"]
        # If the run crashed in a step, its last generation has no logs.
        if step not in logs_by_step:
            break
        table = run.completions(step)
        batch = make_batch(table["completion"], completion_rows, completion_ids=completion_ids)
        recorded_steps.append(
            {
                "step": step,
                "batch": batch,
                "rewards": {name: table[name].tolist() for name in run.weights},
                "advantages": table["advantage"].tolist(),
                "logs": logs_by_step[step],
            }
        )
    return recorded_steps


def _require_recorded_scores(staged: Path, recorded_steps: Sequence[dict[str, Any]]) -> None:
    """Require that the rewards give the recorded scores in a fresh process.

    Raises:
        NotPortableError: A reward fails there, or gives other scores.
    """
    request = {"folder": str(staged.resolve()), "recorded_steps": recorded_steps}
    try:
        differing_reward = run_script(Path(__file__).with_name("score_child.py"), request)
    except ChildError as error:
        raise NotPortableError(
            f"rewards.py fails in a process of its own: {error.last(1)}. {PORTABLE_REWARD_ADVICE}"
        ) from error
    if differing_reward is not None:
        raise NotPortableError(
            f"the reward {differing_reward!r} gives other scores in a fresh process. Either it is "
            "not the reward of the run, or it remembers something, draws random numbers or reads "
            "trainer_state. Make it depend on completions and columns only."
        )


def _trainer_arguments(run: Run) -> dict[str, Any]:
    """Return the arguments for TRL's trainer in one process."""
    # Each use of `run.info` reads run.json anew, so this changes a copy.
    arguments = run.info["effective"]["arguments"]
    if run.settings.loss_type == "bnpo":
        arguments["loss_type"] = "dapo"
    # This changes only the memory used. Reentrant checkpointing fails in several processes (DDP).
    arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    # TRL must not shuffle ordered rows, such as those of a curriculum.
    arguments.setdefault("shuffle_dataset", not run.info["task"].get("is_ordered"))
    for name in ARGUMENTS_LEFT_OUT:
        arguments.pop(name, None)
    return without_private_parts(arguments)


def _write_settings(staged: Path, run: Run, model: str) -> None:
    """Write run.yaml, which train.py reads, and origin.json, which `open_project` reads.

    origin.json has the format of run.json, except that `effective` is the content of run.yaml.
    """
    import yaml

    values = {
        "model": model,
        "revision": None if model == COPIED_BASE else _cached_revision(run, model),
        "dtype": run.info["dtype"],
        "load_in_4bit": run.settings.load_in_4bit,
        "reference": run.reference,
        "reward_weights": run.weights,
        "trainer": _trainer_arguments(run),
    }
    header = (
        "# Settings of the training. Those under trainer are arguments of TRL's GRPOConfig for\n"
        "# one process; train.py divides the batch among several.\n"
    )
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    (staged / "run.yaml").write_text(header + text, "utf-8")
    # The folder of all runs is a path of this machine.
    settings = {**run.settings.to_dict(), "run_root": "runs"}
    # grpo_nb knows the embedded model by its name on every machine, although base/ has its files.
    if run.settings.model != EMBEDDED_MODEL:
        settings["model"] = model
    # The content of run.yaml shows later what the user has changed in it.
    origin = run.info | {"settings": settings, "effective": values}
    for name in FIELDS_LEFT_OUT:
        origin.pop(name, None)
    write_json(staged / "origin.json", without_private_parts(origin))


def _cached_revision(run: Run, model: str) -> str | None:
    """Return the newest commit of a Hub model in the cache, which may be newer than the run.

    None if the cache has no commit of the model. train.py then takes the newest on the Hub.

    Raises:
        ExportError: The weights in the cache are not those that the run was trained on.
    """
    from huggingface_hub import try_to_load_from_cache

    config_file = try_to_load_from_cache(model, "config.json")
    # The cache returns an object, not a path, if it knows that the model has no such file.
    if not isinstance(config_file, str):
        return None
    # The cache names the folder of a commit after it.
    commit_folder = Path(config_file).parent
    require_same_base(run, commit_folder)
    return commit_folder.name
