"""A dry run: generate and score as training would, and update nothing.

For debugging rewards, prompts and sampling before a single step is paid for. The trainer's own path does it, with its loop,
data order, sampler, reward calls and advantages; only what would compute a loss is taken out. So the first step is, completion
by completion, that of a training with the same settings. Later ones have the prompts of that training, answered by a model that
has not learnt from the steps before.

`baseline` asks another question, whether there is a signal on prompts drawn at random; this one shows what the trainer will do.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.randomness import kept_modes, kept_random_state
from grpo_nb.core.tables import Part, Shown, Table, bold
from grpo_nb.core.words import require_number, shorten
from grpo_nb.models.unsloth import import_unsloth
from grpo_nb.rewards.base import reward_list, weights_by_name
from grpo_nb.runs.rows import tidy_row
from grpo_nb.settings.settings import Settings
from grpo_nb.tasks.task import Task

import_unsloth()

import torch
from transformers import TrainerCallback

from grpo_nb.training.arguments import require_parts
from grpo_nb.training.recorder import completions_table
from grpo_nb.training.resumable import load_states, remembering, states_of
from grpo_nb.training.trainer import Prepared, build_trainer, lead_to, reference_adapter

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SHOWN_GROUPS = 6
_NOT_COMPUTED = ("loss", "grad_norm", "learning_rate", "skipped_groups")  # logged all the same, as zeros


@dataclass(frozen=True, kw_only=True, repr=False)
class DryRun(Shown):
    """What the trainer generated and how it was scored. Made by `dry_run`."""

    table: pandas.DataFrame
    """One row per completion, with the columns of `Run.completions`: step, group, prompt, each reward, total, advantage."""
    rows: tuple[Mapping[str, float], ...]
    """One per step, with the names of `Run.rows`; what comes with a loss, such as `kl`, was not computed and has no key."""
    weights: Mapping[str, float]
    num_generations: int

    @property
    def flat_groups(self) -> int:
        """How many groups had no spread in the total, so that training would learn nothing from them."""
        totals = self.table.groupby(["step", "group"])["total"]
        return int((totals.max() - totals.min() <= 1e-6).sum())

    @property
    def sentence(self) -> str:
        """The result in words."""
        groups = len(self.table) // self.num_generations
        clipped = [row["completions/clipped_ratio"] for row in self.rows if "completions/clipped_ratio" in row]
        text = (
            f"{_counted(len(self.rows), 'step')} generated and scored, nothing updated: {_counted(groups, 'group')} of "
            f"{self.num_generations}, mean total {self.table['total'].mean():.2f}; {self.flat_groups} of "
            f"{_counted(groups, 'group')} without spread"
        )
        return text + (f"; {sum(clipped) / len(clipped):.0%} cut at the length limit." if clipped else ".")

    def _lines(self) -> Iterator[tuple[str, ...]]:
        """The best and the worst completion of the first groups: (step and group, question, which, scores, completion)."""
        for (step, group), rows in list(self.table.groupby(["step", "group"]))[:_SHOWN_GROUPS]:
            prompt = rows["prompt"].iloc[0]
            asked = json.loads(prompt)[-1]["content"] if prompt.startswith("[") else prompt
            by_total = rows.sort_values("total", ascending=False, kind="stable")
            chosen = [("best", by_total.iloc[0]), ("worst", by_total.iloc[-1])]
            if by_total["total"].iloc[0] - by_total["total"].iloc[-1] <= 1e-6:
                chosen = [("all alike", by_total.iloc[0])]
            for which, row in chosen:
                scores = ", ".join(f"{name} {row[name]:.3g}" for name in self.weights)
                said = f"total {row['total']:.3g}, advantage {row['advantage']:+.2f} ({scores})"
                at = f"step {step}, group {group}"
                yield at, shorten(asked, 120), which, said, shorten(row["completion"], 300)

    def __repr__(self) -> str:
        lines = [f"{at} {asked!r}, {which}: {said}\n  {text!r}" for at, asked, which, said, text in self._lines()]
        return "\n".join([self.sentence, *lines, "All completions: .table"])

    def _parts(self) -> Iterable[Part]:
        yield bold(self.sentence)
        yield Table(list(self._lines()), head=("", "question", "", "scores", "completion"), wide=(4,))
        yield "All completions: .table"


def dry_run(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    task: Task,
    rewards: Sequence[Callable[..., Any]],
    settings: Settings,
    *,
    steps: int = 2,
) -> DryRun:
    """Generate and score the first steps of a training, and leave everything as it was.

    No loss, no gradient, no optimizer: the model's tensors, the random state and the run folders stay as they are. Rewards see
    the `trainer_state` of the training, so those that look at its progress do what they would do. What they remember is put
    back afterwards, if it is theirs to tell (`state_dict` and `load_state_dict`).

    Args:
        model: As training would start from, or as it is now.
        tokenizer: Its tokenizer.
        task: As `train` takes it.
        rewards: As `train` takes them.
        settings: Those of the training to come.
        steps: Optimizer steps' worth of completions. Where samples are used several times (`num_iterations`), the steps that
            would go on with old ones show nothing new.

    Raises:
        ValueError: What `train` would refuse, or `steps` outside 1 to `settings.max_steps`.

    >>> trial = gn.dry_run(model, tokenizer, task, rewards, settings, steps=1)
    >>> bool(trial.table["total"].notna().all())
    True
    """
    require_parts(model, tokenizer, task, settings)
    require_number("steps", steps, 1, settings.max_steps, why=", the max_steps of the settings")
    rewards = reward_list(rewards)
    weights_by_name(rewards)  # refuses two of one name, before anything asks one for its state
    with kept_random_state(), contextlib.ExitStack() as afterwards, kept_modes(model), reference_adapter(model):
        # Put back, and not worked on in copies: a reward may hold a lock or a model. Its state is copied, for a state_dict
        # may hand out the very lists that the reward adds to.
        remembers = remembering(rewards)
        afterwards.callback(load_states, remembers, copy.deepcopy(states_of(remembers)))
        prepared = Prepared.checked(model, tokenizer, task, rewards, settings)
        # What makes a run visible elsewhere, or saves it, has no place in a dry one.
        quiet = settings.replace(extra={**prepared.settings.extra, "report_to": "none"})
        collected = _Collected(prepared, steps)
        trainer = build_trainer(dataclasses.replace(prepared, settings=quiet), _Dry)
        trainer.beta = 0.0  # only a loss would look at the reference
        collected.trainer = trainer
        lead_to(trainer, Path(afterwards.enter_context(tempfile.TemporaryDirectory())), collected)
        trainer.train()
    import pandas

    return DryRun(
        table=pandas.concat(collected.tables, ignore_index=True),
        rows=tuple(collected.rows),
        weights=prepared.weights,
        num_generations=settings.num_generations,
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


class _Dry:
    """Goes in front of a trainer: generation, scoring and logging as they are, and a training step that ends there."""

    def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
        # Of a tensor that is not the model's, so that nothing changes whatever gradient there might be.
        self.optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.0)
        if self.accelerator.scaler is not None:  # of float16: there is no loss that it could have scaled
            self.accelerator.scaler = torch.amp.GradScaler(enabled=False)
        return self.optimizer

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
        model.train()
        with torch.no_grad():
            self._prepare_inputs(inputs)
        self._step += 1
        return torch.zeros((), device=self.args.device)


class _Collected(TrainerCallback):
    """Keeps what the first steps of a trainer logged, and stops it after them."""

    def __init__(self, prepared: Prepared, steps: int) -> None:
        self.prepared, self.steps, self.trainer = prepared, steps, None
        self.tables: list[pandas.DataFrame] = []
        self.rows: list[Mapping[str, float]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if logs is None or "completions/mean_length" not in logs:  # no new completions
            return
        settings = self.prepared.settings
        row = tidy_row(logs, state.global_step, state.max_steps, settings.beta)
        self.rows.append({key: value for key, value in row.items() if key not in _NOT_COMPUTED})
        logged, weights = self.trainer._logs, self.prepared.weights
        self.tables.append(completions_table(logged, state.global_step, settings.num_generations, weights))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        control.should_training_stop = control.should_training_stop or state.global_step >= self.steps
