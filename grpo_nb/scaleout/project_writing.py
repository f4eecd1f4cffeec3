"""Write a run as a folder that trains it again with TRL's own trainer.

A run that cannot be the same elsewhere is refused. Before the folder appears, its rewards must give
the recorded scores in a fresh process.
"""

import importlib.metadata
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from grpo_nb import __version__
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
from grpo_nb.export.staged_export import require_same_base
from grpo_nb.models.base_weights import weights_hash
from grpo_nb.models.sources import resolve_model
from grpo_nb.rewards.base import RewardFunction, reward_name
from grpo_nb.runs.card import published_base, without_private_parts
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.scaleout.project import (
    BNPO_NOTE,
    COPIED_BASE,
    Project,
    open_project,
)
from grpo_nb.scaleout.reward_source import NotPortableError, write_rewards
from grpo_nb.scoring.record import rebuild_reward
from grpo_nb.scoring.scores import make_batch
from grpo_nb.training.run_start import BASE_REFERENCE, GENERATION_SCHEMA, START_REFERENCE

#: Release of TRL that train.py needs. It is the first whose trainer, without Unsloth, trains on a
#: CPU. TRL 1.15 asks for Triton there.
TRL_VERSION = "1.16.0"
#: Packages that the copy of grpo_nb imports.
GRPO_NB_PACKAGES = ("lazy_loader", "math-verify", "pydantic")
#: Packages that a training imports, besides TRL.
TRAINING_PACKAGES = (
    "torch",
    "transformers",
    "peft",
    "accelerate",
    "datasets",
    "PyYAML",
    # For weights in 4 bit and optimizers in 8 bit.
    "bitsandbytes",
    *GRPO_NB_PACKAGES,
)
#: Fields of run.json that are copied unchanged into origin.json.
COPIED_FIELDS = (
    "format_version",
    "status",
    "started",
    "machine",
    "versions",
    "dtype",
    "engine",
    "base_weights_hash",
    "is_base_local",
    "reference",
)
#: Arguments that train.py sets itself, or that are valid on this machine only. `use_vllm` is left
#: out because vLLM needs packages of its own, and the folder should train anywhere.
NOT_IN_RUN_YAML = {
    "generation_batch_size",
    "use_vllm",
    "use_cpu",
    "dataloader_pin_memory",
    "output_dir",
    "logging_dir",
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
        FileNotFoundError: The run did not keep its rows, or the completions of its first step.
        ExportError: The base model here is not the one that the run was trained on.
        ValueError: A reward or a setting cannot be written; the message says what to change.

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
    protected_folders = [run.path]
    if model == COPIED_BASE:
        base_folder = Path(resolve_model(run.settings.model))
        require_same_base(run, base_folder)
        protected_folders.append(base_folder)
    check_target(target, overwrite, protected_folders)
    recorded_steps = _recorded_steps(run)
    if not recorded_steps or not (run.start_path / "train.jsonl").is_file():
        raise FileNotFoundError(
            f"the run {run.name!r} has not kept what it started with: its rows, and a first step "
            "with all completions. A run keeps them if it was trained by gn.train and by this "
            "version of grpo_nb, with logging_steps=1 and without steps_per_generation."
        )
    reward_functions = _reward_functions_of(run, rewards)
    trainer_arguments = _trainer_arguments(run)
    revision = None if model == COPIED_BASE else _cached_revision(run, model)
    with staged_folder(target) as staged:
        # 2. Write the rewards and test them first, because they cause most refusals, and copying
        # the base model can take minutes.
        write_rewards(staged, reward_functions)
        _require_recorded_scores(staged, run, recorded_steps)
        # 3. Write everything else.
        copy_files(run.start_path, staged / "adapter_init", "adapter_*")
        copy_files(run.start_path, staged, "train.jsonl")
        copy_files(run.path, staged, "holdout.jsonl")
        copy_files(run.path, staged, "chat_template.jinja")
        if model == COPIED_BASE:
            copy_files(base_folder, staged / COPIED_BASE)
        lines = "".join(json.dumps(step) + "\n" for step in recorded_steps)
        (staged / "record.jsonl").write_text(lines, "utf-8")
        _write_settings(staged, run, trainer_arguments, model=model, revision=revision)
        _write_origin(staged, run, trainer_arguments, model=model)
        for name in ("train.py", "replay.py", "cpu2.yaml", "README.md"):
            text = render(
                f"scaleout/templates/{name}.jinja",
                run_name=run.name,
                settings=run.settings,
                version=__version__,
                requirements=_requirements(),
                model=model,
                model_name=Path(run.settings.model).name,
                bnpo_note=BNPO_NOTE,
                base_reference=BASE_REFERENCE,
                start_reference=START_REFERENCE,
            )
            (staged / name).write_text(text, "utf-8")
        # 4. Refuse secrets, because the folder is made to be sent to other machines.
        files = {file.name: file for file in staged.iterdir() if file.is_file()}
        names = files_with_secrets(files)
        if names:
            raise ValueError(
                f"{', '.join(names)} would hold what looks like an access token or key. Remove it "
                "from the reward, the settings or the data, and revoke it: the run's folder holds "
                "it too."
            )
        # Checked again, because the folder may have appeared in the minutes since.
        check_target(target, overwrite, protected_folders)
        put_in_place(staged, target)
    return open_project(target)


# The run


def _cached_revision(run: Run, model: str) -> str | None:
    """Return the commit of a Hub model in the cache; None if the model is not there.

    Raises:
        ExportError: The cache has other weights than those that the run was trained on.
    """
    from huggingface_hub import try_to_load_from_cache

    config_file = try_to_load_from_cache(model, "config.json")
    if not isinstance(config_file, str):
        return None
    folder = Path(config_file).parent
    # The weights can be missing, if Unsloth loaded a copy in 4 bit.
    if weights_hash(folder) is not None:
        require_same_base(run, folder)
    # The folder of a snapshot in the cache has the name of its commit.
    return folder.name


def _reward_functions_of(
    run: Run, given_rewards: Sequence[RewardFunction] | None
) -> list[RewardFunction]:
    """Return the given reward functions, those in memory, or those made from the run's record."""
    rewards = list(given_rewards or run.rewards or map(rebuild_reward, run.info["rewards"]))
    # `rebuild_reward` returns None for a user's own reward.
    if None in rewards or [reward_name(reward) for reward in rewards] != [*run.weights]:
        raise NotPortableError(
            "these are not the rewards that the run was trained with. A run that was opened from "
            "its folder has only the source text of your own rewards. Pass all functions, in the "
            f"order {[*run.weights]}: gn.scaleout.write_project(run, folder, rewards=[...])."
        )
    return rewards


def _trainer_arguments(run: Run) -> dict[str, Any]:
    """Return the arguments for TRL's trainer in one process."""
    settings = run.settings
    arguments = dict(run.info["effective"]["arguments"])
    if settings.loss_type == "bnpo":
        arguments["loss_type"] = "dapo"
    # This changes only the memory used. Reentrant checkpointing fails in several processes (DDP).
    arguments["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    # TRL must not shuffle ordered rows, such as those of a curriculum.
    is_ordered = run.info["task"].get("is_ordered", False)
    arguments.setdefault("shuffle_dataset", not is_ordered)
    # train.py divides the sizes of one process among several. It reads the size of a generation
    # from `steps_per_generation`, not from `generation_batch_size`.
    arguments["steps_per_generation"] = settings.gradient_accumulation_steps
    public_arguments = without_private_parts(arguments)
    left_out_names = NOT_IN_RUN_YAML | HUB_ARGUMENTS
    return {name: value for name, value in public_arguments.items() if name not in left_out_names}


def _recorded_steps(run: Run) -> list[dict[str, Any]]:
    """Return rows, completions, scores and losses of the first steps that the run kept.

    The list is empty if the run did not log its first step, or if a generation is larger or smaller
    than the batch of a step.
    """
    settings = run.settings
    if settings.generation_batch_size != settings.completions_per_step:
        return []
    # bnpo becomes dapo, which gives the same loss only if a step is one forward pass.
    has_equal_losses = settings.loss_type != "bnpo" or settings.gradient_accumulation_steps == 1
    metrics_by_step = {row["step"]: row for row in run.rows}
    recorded_steps = []
    for file in sorted(run.start_path.glob("generation_*.json")):
        generation = json.loads(file.read_text("utf-8"))
        GENERATION_SCHEMA.validate_python(generation)
        # TRL counted the steps done before the generation. A run counts its steps from 1.
        step = generation["step"] + 1
        if step not in run.steps or step not in metrics_by_step:
            break
        table = run.completions(step)
        entry = {
            "step": step,
            "rows": generation["completion_rows"],
            "completion": list(table["completion"]),
            "completion_ids": generation["completion_ids"],
            "rewards": {name: table[name].tolist() for name in run.weights},
            "advantages": table["advantage"].tolist(),
        }
        if has_equal_losses:
            metrics = metrics_by_step[step]
            entry |= {name: metrics[name] for name in ("loss", "grad_norm") if name in metrics}
        recorded_steps.append(entry)
    return recorded_steps


# The folder


def _require_recorded_scores(
    staged: Path, run: Run, recorded_steps: Sequence[dict[str, Any]]
) -> None:
    """Require that the rewards give the recorded scores in a fresh process.

    Raises:
        NotPortableError: A reward fails there, or gives other scores.
    """
    import numpy

    batches = [
        make_batch(step["completion"], step["rows"], completion_ids=step["completion_ids"])
        for step in recorded_steps
    ]
    script = Path(__file__).with_name("score_child.py")
    try:
        scores = run_script(script, {"folder": str(staged), "batches": batches})
    except ChildError as error:
        raise NotPortableError(
            f"rewards.py fails in a process of its own: {error.last(1)}. A reward may use what is "
            "defined at the top of its notebook or file, but no file next to it, except functions "
            "imported by name, as in: from helpers import score. Change the reward, and train "
            "again."
        ) from error
    for step, step_scores in zip(recorded_steps, scores, strict=True):
        for name, reward_scores in zip(run.weights, step_scores, strict=True):
            recorded = step["rewards"][name]
            # Scores are recorded in float32, and a reward model may have run in another batch.
            if not numpy.allclose(recorded, reward_scores, rtol=1e-4, atol=1e-4, equal_nan=True):
                raise NotPortableError(
                    f"the reward {name!r} gives other scores in a fresh process (step "
                    f"{step['step']}), so it is not the reward of the run, remembers something "
                    "or draws random numbers. Make it depend on completions and columns only."
                )


def _write_settings(
    staged: Path, run: Run, trainer_arguments: dict[str, Any], *, model: str, revision: str | None
) -> None:
    """Write run.yaml. The revision is the commit of a Hub model, if it is known."""
    import yaml

    values = {
        "model": model,
        "revision": revision,
        "dtype": run.info["dtype"],
        "load_in_4bit": run.settings.load_in_4bit,
        "reference": "base" if run.reference == BASE_REFERENCE else "start",
        "reward_weights": run.weights,
        "trainer": trainer_arguments,
    }
    header = (
        "# Settings of the training. Those under trainer are arguments of TRL's GRPOConfig for\n"
        "# one process; train.py divides the batch among several.\n"
    )
    text = yaml.safe_dump(values, sort_keys=False, allow_unicode=True)
    (staged / "run.yaml").write_text(header + text, "utf-8")


def _write_origin(staged: Path, run: Run, trainer_arguments: dict[str, Any], *, model: str) -> None:
    """Write origin.json for `open_project`: the run.json of the run, without private parts."""
    settings = {**run.settings.to_dict(), "run_root": "runs"}
    settings["extra"] = without_private_parts(run.settings.extra)
    # grpo_nb knows the embedded model by its name on every machine, although base/ has its files.
    if run.settings.model != EMBEDDED_MODEL:
        settings["model"] = model
    origin = {name: run.info.get(name) for name in COPIED_FIELDS}
    origin |= {
        "settings": settings,
        "task": without_private_parts(run.info["task"]),
        "rewards": without_private_parts(run.info["rewards"]),
        "effective": {"arguments": trainer_arguments},
    }
    write_json(staged / "origin.json", origin)


def _requirements() -> list[str]:
    """Return the packages that train.py needs: TRL_VERSION, and the others as installed here."""
    requirements = [f"trl=={TRL_VERSION}"]
    for name in TRAINING_PACKAGES:
        # A local version such as 2.9.1+cpu is not on the package index.
        version = importlib.metadata.version(name).partition("+")[0]
        requirements.append(f"{name}=={version}")
    return requirements
