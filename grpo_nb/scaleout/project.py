"""A run written as a folder for TRL's own trainer.

What cannot be the same there is changed with a sentence (`Project.changes`, README.md) or refused; nothing is changed silently.
The rewards are tried in a process of their own before the folder is there: same scores on the recorded completions, or none.
"""

import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from grpo_nb import __version__
from grpo_nb.config.arguments import is_publishing
from grpo_nb.config.settings import EMBEDDED_MODEL, Settings
from grpo_nb.core.files import check_target, put_in_place, staged_folder, target_of, write_json
from grpo_nb.core.pages import render
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.export.hub import holds_secret
from grpo_nb.models.sources import resolve_model
from grpo_nb.rewards.base import RewardFunction, reward_name
from grpo_nb.runs.card import public_settings, published_name, without_private_parts
from grpo_nb.runs.run_folder import Run, open_run
from grpo_nb.scaleout.back import FORM, Project, link, open_project
from grpo_nb.scaleout.code import KIT, ROOT, CannotLeave, KitFiles, RewardsCode
from grpo_nb.scoring.calls import make_batch
from grpo_nb.scoring.record import rebuilt, record_of

TRL = "1.16.0"
"""The release that train.py is for: the first whose plain trainer takes a step on a CPU (1.15 asks for Triton there)."""
_ROWS = ("train.jsonl", "holdout.jsonl")
_PINNED = ("torch", "transformers", "peft", "accelerate", "datasets")
# Set by train.py, or of this machine alone.
_DECIDED_THERE = {
    "generation_batch_size", "use_cpu", "dataloader_pin_memory", "output_dir", "reward_weights", "logging_dir",
    "max_seq_length",
}  # fmt: skip
_KEPT = ("started", "versions", "machine", "number_type", "reference", "base", "generation")
_ONLY_MEMORY = ("unsloth_num_chunks", "unsloth_logit_chunk_multiplier", "unsloth_grpo_mini_batch")
_OF_UNSLOTH = ("vllm_sampling_params", "context_parallel_size", "context_parallel_backend")


@dataclass
class _Plan:
    """What is written, gathered before anything is."""

    run: Run
    settings: Settings
    code: RewardsCode
    calls: list[str]
    record: list[dict[str, Any]] = field(default_factory=list)
    trainer: dict[str, Any] = field(default_factory=dict)
    changes: list[str] = field(default_factory=list)

    def divided(self, processes: int) -> tuple[int, int] | None:
        """Completions of a pass and passes of a step in each process, as train.py divides them; None if that cannot be."""
        total, made = self.settings.batch_size, self.settings.generation_batch_size
        if total % processes or made % (processes * self.settings.num_generations):
            return None
        share, most = total // processes, self.settings.per_device_train_batch_size
        size = next(
            n
            for n in range(min(most, share), 0, -1)
            if share % n == 0 and made // processes % n == 0
        )
        return size, share // size


def write(
    run: Run | str | Path,
    folder: str | Path,
    *,
    processes: int | None = None,
    rewards: Sequence[RewardFunction] | None = None,
    overwrite: bool = False,
) -> Project:
    """Write a run as a folder that trains it again on any machine, with TRL's `GRPOTrainer` under `accelerate launch`.

    Unsloth is not needed to train it, and of the kit only the files that its rewards compute with, which go along. In it:
    `train.py`, `run.yaml`, `rewards.py`, the rows, the adapter that the run began with, its first steps as `record.jsonl`,
    configurations for accelerate, and a `README.md` with the command for each. A base model that is not on the Hub lies in
    `base/`. It appears whole or not at all. docs/guide/scale_out.md says what stays equal.

    Args:
        run: From `train` or `open_run`, or its folder.
        folder: Where to.
        processes: For which `ddp.yaml` and `fsdp2.yaml` are written; by default the most of up to 8 that get whole groups each.
        rewards: Those of the run, where some are the user's own and it was opened from its folder.
        overwrite: Replace what is there.

    Returns:
        The folder, opened.

    Raises:
        FileExistsError: Something is there.
        FileNotFoundError: The run did not keep what it began with.
        ValueError: Rewards, settings or a number of processes that cannot leave, each with what to write instead.

    >>> project = gn.scaleout.write(run, "anywhere")  # doctest: +SKIP
    """
    run, target = open_run(run), target_of(folder)
    if run.info["task"].get("tools"):
        raise ValueError(
            f"the run {run.name!r} has tools, which would not go along: train it where they are, gn.train(...)."
        )
    base = None if published_name(run.settings.model) else Path(resolve_model(run.settings.model))
    check_target(target, overwrite, [run.path, *([base] if base else [])])
    if lost := [
        name
        for name in ("adapter_model.safetensors", *_ROWS)
        if not (run.start_path / name).is_file()
    ]:
        raise FileNotFoundError(
            f"the run {run.name!r} has not kept what it began with: {lost}. Rows are, up to 100 MB."
        )
    plan = _planned(run, _rewards_of(run, rewards))
    count = _processes(plan, processes)
    with staged_folder(target) as staged:
        link(run.start_path, staged / "adapter_init", "adapter_*")
        for file in (*(run.start_path / name for name in _ROWS), run.path / "chat_template.jinja"):
            if file.is_file():
                shutil.copyfile(file, staged / file.name)
        of_kit = _write_rewards(staged, plan)
        _try_rewards(staged, plan)
        if base is not None:
            link(base, staged / "base")
        _write_settings(staged, plan, base)
        _write_programs(staged, plan, of_kit, count, base)
        if found := holds_secret({file.name: file for file in staged.iterdir() if file.is_file()}):
            leak = "would hold what looks like an access token or key: take it out of reward or settings, and revoke it"
            raise ValueError(f"{', '.join(found)} {leak}. It is in the folder of the run too.")
        put_in_place(staged, target, overwrite=overwrite)
    return open_project(target)


# -- what the run was -----------------------------------------------------------------------------------------------


def _rewards_of(run: Run, given: Sequence[RewardFunction] | None) -> list[RewardFunction]:
    """The reward functions of a run: as given or held, or made again from what was recorded of the kit's."""
    recorded = run.info["rewards"]
    rewards = list(given or run.rewards or map(rebuilt, recorded))
    if lost := [
        entry["name"] for entry, reward in zip(recorded, rewards, strict=False) if reward is None
    ]:
        raise CannotLeave(
            f"the run {run.name!r} was opened from its folder, which has of {', '.join(lost)} the text alone. Give the "
            "functions, in their order: gn.scaleout.write(run, folder, rewards=[...])."
        )
    trained_with = [(entry["name"], entry["hash"]) for entry in recorded]
    if [(reward_name(reward), record_of(reward)["hash"]) for reward in rewards] != trained_with:
        raise ValueError(
            f"give the rewards of the run as it was trained with them, in its order: {[*run.weights]}."
        )
    return rewards


def _planned(run: Run, rewards: list[RewardFunction]) -> _Plan:
    """Rewards as code, settings as TRL takes them, and the record."""
    settings, code = run.settings, RewardsCode()
    plan = _Plan(run, settings, code, [code.add(reward) for reward in rewards], _record(run))
    if refused := [name for name in _OF_UNSLOTH if settings.extra.get(name) is not None]:
        why = "is Unsloth's alone, and the run would be another without it"
        raise ValueError(
            f"{', '.join(refused)} in extra {why}: train without it, settings.replace(extra={{...}})."
        )
    for name in [name for name in _ONLY_MEMORY if settings.extra.get(name) is not None]:
        plan.changes.append(
            f"{name} is left out: Unsloth alone has it, and it changes memory, not numbers."
        )
    made = dict(run.info["effective"]["arguments"])
    if publishing := sorted(name for name in made if is_publishing(name)):
        raise ValueError(
            f"the run {run.name!r} has {', '.join(publishing)} in its run.json, which would publish while the folder trains. "
            "Take it out of that file. What was verified is pushed by gn.export.push_to_hub(export, 'user/name')."
        )
    if made.get("optim") == "adamw_flash":
        made["optim"] = "adamw_torch_fused"
        plan.changes.append(
            "adamw_flash, of Unsloth alone, becomes adamw_torch_fused: the same optimizer."
        )
    if made["loss_type"] == "bnpo":
        made["loss_type"] = "dapo"
        why = "bnpo divides by the tokens of one process, so that each number of them would learn something else"
        plan.changes.append(
            f"The loss bnpo becomes dapo: {why}. In one process with one pass a step they are the same."
        )
    # Memory alone as well; and with several processes the reentrant kind ends in an error (DDP, find_unused_parameters).
    made["gradient_checkpointing_kwargs"] = {"use_reentrant": False}
    made["shuffle_dataset"] = made.get(
        "shuffle_dataset", not run.info["task"].get("is_ordered", False)
    )
    made["per_device_train_batch_size"] = settings.per_device_train_batch_size
    made["gradient_accumulation_steps"] = settings.gradient_accumulation_steps
    made["steps_per_generation"] = (
        settings.generation_batch_size // settings.per_device_train_batch_size
    )
    kept = {
        name: value for name, value in public_settings(made).items() if name not in _DECIDED_THERE
    }
    plan.trainer = json.loads(json.dumps(kept, default=str))
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


def _processes(plan: _Plan, asked: int | None) -> int:
    fitting = [count for count in range(1, plan.settings.batch_size + 1) if plan.divided(count)]
    if asked is not None and asked not in fitting:
        why = f"each gets whole groups of {plan.settings.num_generations}, as many as the others"
        raise ValueError(
            f"processes = {asked} cannot be: {why}. Take one of {fitting}, or train with another batch."
        )
    return asked or max(count for count in fitting if count <= 8)


# -- what is written ------------------------------------------------------------------------------------------------


def _write_rewards(staged: Path, plan: _Plan) -> KitFiles:
    """Write rewards.py, and of the kit the files that it needs; return these."""
    code, program = plan.code, staged / "rewards.py"
    imports = sorted({*code.imports.values()})
    needs_kit = any(KIT in text for text in (*imports, *code.parts.values()))
    values = {
        "imports": imports,
        "parts": code.parts.values(),
        "rewards": plan.calls,
        "needs_kit": needs_kit,
    }
    _write_from_template(program, run=plan.run.name, version=__version__, **values)
    needed = KitFiles(program)
    for file in needed.files:
        target = staged / "kit" / file.relative_to(ROOT)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    if needs_kit:
        (staged / "kit" / KIT / "__init__.py").write_text(
            f'"""Of grpo_nb {__version__} what these rewards need."""\n'
        )
    return needed


def _try_rewards(staged: Path, plan: _Plan) -> None:
    """Score the recorded completions in a fresh process.

    Raises:
        CannotLeave: A reward fails there, or gives other scores.
    """
    import numpy

    settings, batches = plan.settings, []
    for entry in plan.record:
        rows = [row for row in entry["rows"] for _ in range(settings.num_generations)]
        batch = make_batch(entry["completion"], rows, completion_ids=entry["completion_ids"])
        given = {
            "prompts": batch.prompts,
            "completions": batch.completions,
            "completion_ids": batch.completion_ids,
        }
        batches.append(
            {
                "after": entry["step"] - 1,
                "max_steps": settings.max_steps,
                "given": {**given, **batch.columns},
            }
        )
    script = Path(__file__).with_name("children") / "score.py"
    try:
        found = run_script(script, {"folder": str(staged), "batches": batches})
    except ChildError as error:
        raise CannotLeave(
            f"rewards.py fails in a process of its own: {error.last(1)}. A reward may use what stands at the top of its "
            "notebook or file, and nothing of the function around it or of a file beside it: mend it, and train again."
        ) from error
    for entry, scores in zip(plan.record, found, strict=True):
        for name, now in zip(plan.run.weights, scores, strict=True):
            # Recorded from float32, and by a reward model in another batch.
            if not numpy.allclose(
                entry["rewards"][name], now, rtol=1e-4, atol=1e-4, equal_nan=True
            ):
                why = "It remembers something, or draws numbers: make it depend on its arguments alone."
                raise CannotLeave(
                    f"the reward {name!r} gives other scores in a fresh process, step {entry['step']}. {why}"
                )


def _write_settings(staged: Path, plan: _Plan, base: Path | None) -> None:
    import yaml
    from huggingface_hub import try_to_load_from_cache

    run, settings, info = plan.run, plan.settings, plan.run.info
    # The commit of a model of the Hub that is here, which the run was trained on.
    found = None if base else try_to_load_from_cache(settings.model, "config.json")
    values = {
        "model": "base" if base else settings.model,
        "revision": Path(found).parent.name if isinstance(found, str) else None,
        "dtype": info["number_type"],
        "load_in_4bit": settings.load_in_4bit,
        "reference": "base" if _is_held_to_base(run) else "start",
        "processes": 1,
        "reward_weights": run.weights,
        "trainer": plan.trainer,
    }
    head = "# All settings of the run; those under trainer are TRL's own, as for one process: train.py divides them.\n"
    (staged / "run.yaml").write_text(
        head + yaml.safe_dump(values, sort_keys=False, allow_unicode=True), "utf-8"
    )
    (staged / "record.jsonl").write_text(
        "".join(json.dumps(entry) + "\n" for entry in plan.record), "utf-8"
    )
    written = {name: plan.trainer[name] for name in ("loss_type", "optim") if name in plan.trainer}
    model = EMBEDDED_MODEL if settings.model == EMBEDDED_MODEL else values["model"]
    origin = {
        "form": FORM,
        "run": run.name,
        "changes": plan.changes,
        "trainer": plan.trainer,
        "settings": {
            **settings.to_dict(),
            **written,
            "extra": public_settings(settings.extra),
            "model": model,
            "run_root": "runs",
        },
        "task": {**info["task"], "name": without_private_parts(info["task"]["name"])},
        # Code of the user's own goes as it is: it is read and run elsewhere.
        "rewards": [
            {**without_private_parts(entry), "source": entry["source"]} for entry in info["rewards"]
        ],
        **{name: info.get(name) for name in _KEPT},
    }
    write_json(staged / "origin.json", origin)


def _is_held_to_base(run: Run) -> bool:
    """Whether KL is measured to the model without adapter although the run began with one that had learnt something."""
    from safetensors.torch import load_file

    begun = load_file(str(run.start_path / "adapter_model.safetensors"))
    return not (run.path / "reference").is_dir() and any(
        bool(begun[name].any()) for name in begun if ".lora_B" in name
    )


def _write_programs(
    staged: Path, plan: _Plan, of_kit: KitFiles, processes: int, base: Path | None
) -> None:
    run, settings, versions = plan.run, plan.settings, plan.run.info["versions"]
    needs_bnb = settings.load_in_4bit or any(
        word in plan.trainer["optim"] for word in ("8bit", "paged", "bnb")
    )
    has_vllm = bool(plan.trainer.get("use_vllm"))
    pins = [
        f"{name}=={versions[name].partition('+')[0]}"
        for name in (*_PINNED, *["bitsandbytes"] * needs_bnb)
    ]
    pins += [f"trl{'[vllm]' * has_vllm}=={TRL}", f"pyyaml=={version('pyyaml')}"]
    pins += [
        pin for pin in of_kit.requirements() if pin.partition("==")[0] not in (*_PINNED, "trl")
    ]
    _write_from_template(staged / "train.py", pins=pins)
    _write_from_template(staged / "steps.py")
    for name in ("ddp.yaml", "fsdp2.yaml"):
        _write_from_template(staged / name, processes=processes, use_cpu="false")
    _write_from_template(staged / "cpu2.yaml", "ddp.yaml", processes=2, use_cpu="true")
    rows = [
        (count, *plan.divided(count))
        for count in range(1, settings.batch_size + 1)
        if plan.divided(count)
    ]
    _write_from_template(
        staged / "README.md", run=run.name, settings=settings, version=__version__, changes=plan.changes,
        model=settings.model if base is None else f"base (of {Path(settings.model).name})", processes=processes,
        batches=rows, steps=len(plan.record), kit_files=len(of_kit.files), has_vllm=has_vllm,
    )  # fmt: skip


def _write_from_template(file: Path, template: str = "", **values: Any) -> None:
    """Write a file from the template of its own name, or of another."""
    file.write_text(render(f"scaleout/templates/{template or file.name}.jinja", **values), "utf-8")
