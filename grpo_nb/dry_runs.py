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
import html
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.config import Settings
from grpo_nb.data import Task
from grpo_nb.loading import has_engine
from grpo_nb.metrics import tidy_row
from grpo_nb.reward_calls import displayable, shorten
from grpo_nb.rewards.base import weights_by_name
from grpo_nb.rewards.compose import adaptive_states
from grpo_nb.run_info import checked_rewards

if TYPE_CHECKING:
    import pandas
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_SHOWN_GROUPS = 6
_NOT_COMPUTED = ("loss", "grad_norm", "learning_rate", "skipped_groups")  # logged all the same, as zeros


@dataclass(frozen=True, kw_only=True)
class DryRun:
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

    def _lines(self) -> list[tuple[str, ...]]:
        """The best and the worst completion of the first groups: (step and group, question, which, scores, completion)."""
        lines = []
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
                text = shorten(displayable(row["completion"]), 300)
                lines.append((f"step {step}, group {group}", shorten(displayable(asked), 120), which, said, text))
        return lines

    def __repr__(self) -> str:
        lines = [f"{at} {asked!r}, {which}: {said}\n  {text!r}" for at, asked, which, said, text in self._lines()]
        return "\n".join([self.sentence, *lines, "All completions: .table"])

    def _repr_html_(self) -> str:
        left = "style='text-align:left;vertical-align:top;white-space:pre-wrap'"
        heads = "".join(f"<th {left}>{head}</th>" for head in ("", "question", "", "scores", "completion"))
        body = "".join(
            "<tr>" + "".join(f"<td {left}>{html.escape(cell)}</td>" for cell in line) + "</tr>"
            for line in self._lines()
        )
        return (
            f"<p><b>{html.escape(self.sentence)}</b></p><table><thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table>"
            "<p>All completions: <code>.table</code></p>"
        )


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

    No loss, no gradient, no optimizer: the model's tensors, the random state, the adaptive rewards and the run folders stay
    as they are. Rewards see the `trainer_state` of the training, so those that look at its progress do what they would do.
    What they remember is put back afterwards, if it is theirs to tell (`state_dict` and `load_state_dict`); the adaptive ones
    of the kit do.

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

    Example, which takes seconds on a CPU and needs the model:

        gn.dry_run(model, tokenizer, task, rewards, settings).table
    """
    if not 1 <= steps <= settings.max_steps:
        raise ValueError(f"steps = {steps!r} must be between 1 and max_steps = {settings.max_steps}.")
    from grpo_nb import training
    from grpo_nb.losses import check_loss

    rewards = list(rewards)
    weights_by_name(rewards)  # refuses what is no reward, before anything asks one for its state
    task = task.fit(tokenizer, settings.max_prompt_length)
    training._check_extra(settings)
    check_loss(settings)
    import torch

    tables: list[pandas.DataFrame] = []
    rows: list[Mapping[str, float]] = []
    modes = [(module, module.training) for module in model.modules()]
    with (
        tempfile.TemporaryDirectory() as folder, torch.random.fork_rng(), _python_random_state(), _kept_rewards(rewards),
    ):  # fmt: skip
        weights = checked_rewards(rewards, task, settings)
        # What makes a run visible elsewhere, or saves it, has no place in a dry one.
        quiet = {"report_to": "none", "save_strategy": "no"}
        quiet_settings = settings.replace(extra={**settings.extra, **quiet})
        arguments = training._grpo_arguments(quiet_settings, weights, Path(folder), has_vllm=has_engine(model))
        if task.is_ordered:
            arguments.setdefault("shuffle_dataset", False)
        try:
            with training._reference_adapter(model):
                trainer = _trainer(model, tokenizer, task, rewards, settings, arguments, steps, weights, tables, rows)
                trainer.train()
        finally:
            for module, mode in modes:
                module.training = mode
    import pandas

    return DryRun(
        table=pandas.concat(tables, ignore_index=True),
        rows=tuple(rows),
        weights=weights,
        num_generations=settings.num_generations,
    )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _trainer(
    model: Any, tokenizer: Any, task: Task, rewards: list[Any], settings: Settings, arguments: dict[str, Any], steps: int,
    weights: Mapping[str, float], tables: list[Any], rows: list[Any],
) -> Any:  # fmt: skip
    """The trainer that training would build, without its loss and its optimizer."""
    import torch
    from transformers import PrinterCallback, ProgressCallback, TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    from grpo_nb import training
    from grpo_nb.shared_trainer import SharedPromptGRPOTrainer

    obstacle = training._stock_reason(model, settings)
    base: Any = GRPOTrainer if obstacle else SharedPromptGRPOTrainer

    class Nothing(torch.optim.Optimizer):
        """An optimizer that changes nothing, whatever gradient it might find."""

        def __init__(self, parameters: Any) -> None:
            super().__init__(parameters, {"lr": 0.0})

        def step(self, closure: Any = None) -> None:
            return None

    class Dry(base):
        """The trainer with generation, scoring and logging, and a training step that ends there."""

        def create_optimizer(self, *args: Any, **kwargs: Any) -> Any:
            self.optimizer = Nothing([p for p in self.model.parameters() if p.requires_grad])
            return self.optimizer

        def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
            model.train()
            with torch.no_grad():
                self._prepare_inputs(inputs)
            self._step += 1
            return torch.zeros((), device=self.args.device)

    class Collect(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
            if logs is None or "reward" not in logs:
                return
            row = tidy_row(logs, state.global_step, state.max_steps, settings.beta)
            rows.append({key: value for key, value in row.items() if key not in _NOT_COMPUTED})
            tables.append(_table(trainer._logs, state.global_step, settings.num_generations, weights))

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            control.should_training_stop = control.should_training_stop or state.global_step >= steps

    with training._kept_precision(model):
        trainer = Dry(
            model=model, processing_class=tokenizer, reward_funcs=rewards, args=GRPOConfig(**arguments),
            train_dataset=task.train, callbacks=[Collect()],
        )  # fmt: skip
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    trainer.beta = 0.0  # only a loss would look at the reference
    return trainer


def _table(logs: Any, step: int, size: int, weights: Mapping[str, float]) -> Any:
    """The trainer's last generation batch as `Run.completions` has it."""
    import pandas

    count = len(logs["completion"])
    scores = {name: list(logs["rewards"][name]) for name in weights}
    return pandas.DataFrame(
        {
            "step": [step] * count,
            "group": [i // size for i in range(count)],
            "prompt": [p if isinstance(p, str) else json.dumps(p) for p in logs["prompt"]],
            "completion": [c if isinstance(c, str) else c[-1]["content"] for c in logs["completion"]],
            **scores,
            "total": [
                math.fsum(w * scores[name][i] for name, w in weights.items() if not math.isnan(scores[name][i]))
                for i in range(count)
            ],
            "advantage": list(logs["advantages"]),
        }
    )


@contextlib.contextmanager
def _kept_rewards(rewards: Sequence[Callable[..., Any]]) -> Iterator[None]:
    """Within the block rewards may learn; after it they remember what they did before, and no file of theirs has changed.

    Not copies of them: a reward may hold a lock or a model.
    """
    from grpo_nb.resumable import load_reward_states, reward_states

    # A state_dict may hand out the very lists that the reward adds to.
    remembered = copy.deepcopy(reward_states(rewards))
    files = [(state, state.path) for state, _ in adaptive_states(rewards)]
    try:
        for state, _ in files:
            state.path = ""
        yield
    finally:
        for state, path in files:
            state.path = path
        load_reward_states(rewards, remembered)


@contextlib.contextmanager
def _python_random_state() -> Iterator[None]:
    """Give Python and numpy back the random state they had: the trainer's set_seed sets theirs too."""
    import numpy

    python, arrays = random.getstate(), numpy.random.get_state()
    try:
        yield
    finally:
        random.setstate(python)
        numpy.random.set_state(arrays)
