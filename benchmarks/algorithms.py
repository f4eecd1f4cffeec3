"""Which algorithm? Trains a very small model with each of them, ten seeds each, and keeps one line a training.

    python benchmarks/algorithms.py [--seeds 0 1 ...] [--names grpo dr_grpo ...]
    python benchmarks/algorithms.py --table
    python benchmarks/algorithms.py --make-model

What stands in benchmarks/results/algorithms.jsonl is not trained again. A seed gives the start of the LoRA, the order of the
prompts and the draws, so the trainings of one seed are pairs. docs/evidence/algorithms.md and notebooks/a1_algorithms read it.

The task is made so that the questions of the course can be asked in seconds. A prompt is a sum of three digits, `7+5+9`. The
model writes an attempt, writes it again as often as it likes, and ends with the answer: `21,21,21#21`. How often is free and
helps nothing. It was pretrained on answers that are wrong as often as the first digit says (`PASS_RATES`), so how hard each
prompt is was set, though it came out flatter than that (docs/evidence/algorithms.md).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import json
import random
import string
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from _measure import ROOT, machine
from seeds import SeedScores

import grpo_nb as gn

KEPT = ROOT / "benchmarks" / "results" / "algorithms.jsonl"
MODEL = ROOT / "benchmarks" / "results" / "algorithms_model"
PASS_RATES = (0.95, 0.9, 0.75, 0.5, 0.3, 0.2, 0.12, 0.08, 0.05, 0.02)
"""By the first digit of the sum: from nearly solved to nearly hopeless."""
GO_ON = 0.6
"""The chance of one more repetition: 1.5 on average, at most 8."""
BASE = {
    "max_steps": 40, "num_generations": 8, "per_device_train_batch_size": 64, "max_prompt_length": 16,
    "max_completion_length": 32, "learning_rate": 1e-3, "warmup_steps": 0, "max_grad_norm": 10.0, "beta": 0.0,
    "loss_type": "grpo", "save_steps": 1_000,
}  # fmt: skip
ON_POLICY: dict[str, dict[str, Any]] = {
    "grpo": {},
    "dr_grpo": {"loss_type": "dr_grpo", "scale_rewards": "none"},
    "dapo": {"loss_type": "dapo"},
    "grpo unscaled": {"scale_rewards": "none"},
    "grpo filtered": {"filtered": True},
    "reinforce": {"loss_type": "dr_grpo", "scale_rewards": "none", "baseline": False},
}
CLIPS: dict[str, dict[str, Any]] = {
    "grpo": {},
    "clip-higher": {"epsilon_high": 0.28},
    "gspo": {"importance_sampling_level": "sequence", "epsilon": 3e-4, "epsilon_high": 4e-4},
    "cispo": {"loss_type": "cispo", "epsilon_high": 5.0},
    "sapo": {"loss_type": "sapo"},
}
ALGORITHMS = ON_POLICY | {
    f"{name}, used {times} times": {**changes, "num_iterations": times, "max_steps": 80}
    for times in (8, 4)
    for name, changes in CLIPS.items()
}
# Is what was seen at eight uses the loss, or a learning rate that is too high for it?
ALGORITHMS |= {
    f"{name}, used 8 times, slowly": {
        **changes,
        "num_iterations": 8,
        "max_steps": 80,
        "learning_rate": 3e-4,
    }
    for name, changes in CLIPS.items()
}
ALGORITHMS |= {
    f"{name}, 120 steps": {**ON_POLICY[name], "max_steps": 120} for name in ("grpo", "dapo")
}
"""Name -> what differs from `BASE`: settings, arguments of TRL, and the two that are neither, `baseline` and `filtered`."""


# The model and its task.


def make_model(folder: Path = MODEL, steps: int = 2_400) -> None:
    """Pretrain the model from a fixed seed, first on right answers, then on its own kind, and save it as an ordinary folder."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", *string.printable[:95], *(f"<spare{i}>" for i in range(7))]
    number = {word: i for i, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(number, unk_token="<pad>"))
    core.pre_tokenizer, core.decoder = pre_tokenizers.Split(Regex("."), "isolated"), decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = "{% for turn in messages %}{% if turn['role'] == 'user' %}{{ turn['content'] }}:{% endif %}{% endfor %}"
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words), hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=4, tie_word_embeddings=True, max_position_embeddings=128, pad_token_id=0, eos_token_id=1,
        bos_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    draw = random.Random(0)
    for step in range(steps):
        texts = [_text(draw, is_wrong_at_times=step > steps // 2) for _ in range(128)]
        rows = [[number[letter] for letter in text] + [1] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        # The prompt, `7+5+9:`, is given, and padding is no answer.
        labels = ids.masked_fill(ids == 0, -100)
        labels[:, :6] = -100
        loss = model(input_ids=ids, attention_mask=(ids != 0).long(), labels=labels).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 250 == 0 or step == steps - 1:
            print(f"step {step}: loss {loss.item():.3f}", flush=True)
    model.generation_config.eos_token_id = 1
    model.to(torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _text(draw: random.Random, *, is_wrong_at_times: bool) -> str:
    digits = [draw.randrange(10) for _ in range(3)]
    value = sum(digits)
    if is_wrong_at_times and draw.random() >= PASS_RATES[digits[0]]:
        value += draw.choice([-3, -2, -1, 1, 2, 3])
    written = str(abs(value))
    again = 0
    while again < 8 and draw.random() < GO_ON:
        again += 1
    return "+".join(map(str, digits)) + ":" + ",".join([written] * (1 + again)) + "#" + written


def make_task(low: float = 0.0, high: float = 1.0) -> gn.tasks.Task:
    """The thousand sums, of which 200 are held out and the others kept within these pass rates; the same for every seed."""
    rows = [
        {"question": f"{a}+{b}+{c}", "answer": str(a + b + c), "pass_rate": PASS_RATES[a]}
        for a in range(10) for b in range(10) for c in range(10)
    ]  # fmt: skip
    form = gn.tasks.AnswerFormat(name="#", answer_open="#", instruction="Add.")
    task = gn.load_task(rows, format=form, holdout=200, seed=1)
    kept = [i for i, rate in enumerate(task.train["pass_rate"]) if low <= rate <= high]
    # The template of this model has no system role, and it was made from questions alone.
    train = _questions_alone(task.train.select(kept))
    return dataclasses.replace(task, train=train, holdout=_questions_alone(task.holdout))


def _questions_alone(rows: Any) -> Any:
    """Return rows whose prompts are the question, without a system message."""
    from datasets import Dataset

    bare = []
    for row in rows:
        question = [turn for turn in row["prompt"] if turn["role"] == "user"]
        bare.append({**row, "prompt": question})
    return Dataset.from_list(bare)


def is_right(completions: list[Any], answer: list[str], **_: Any) -> list[float]:
    """1 where the completion ends with the mark and the right answer, else 0."""
    texts = [turn if isinstance(turn, str) else turn[-1]["content"] for turn in completions]
    ends = [text.rpartition("#")[1:] for text in texts]  # without a mark: ("", text)
    return [
        float(mark == "#" and end.strip() == gold)
        for (mark, end), gold in zip(ends, answer, strict=True)
    ]


def settings_of(name: str, seed: int, folder: str | Path) -> gn.Settings:
    """The settings of a training."""
    changes = {
        key: value for key, value in ALGORITHMS[name].items() if key not in ("baseline", "filtered")
    }
    own = BASE | {key: changes.pop(key) for key in BASE if key in changes}
    return gn.preset("cpu", **own, model=str(MODEL), seed=seed, run_root=str(folder), extra=changes)


# A training.


def train(name: str, seed: int) -> dict[str, Any]:
    """Train once, and return the line that is kept."""
    filtered, baseline = (
        ALGORITHMS[name].get("filtered", False),
        ALGORITHMS[name].get("baseline", True),
    )
    whole = make_task()
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.nullcontext() if baseline else without_baseline(),
    ):
        settings = settings_of(name, seed, folder)
        model, tokenizer = gn.load_model(settings)
        before = held_out(model, tokenizer, whole, settings)
        started = time.perf_counter()
        run = gn.train(
            model,
            tokenizer,
            make_task(0.1, 0.9) if filtered else whole,
            [is_right],
            settings,
            name="run",
        )
        seconds = time.perf_counter() - started
        after = held_out(model, tokenizer, whole, settings)
        rows, versions = run.rows, run.info["versions"]
        # Of each sampling: one a step, but where a sampling is used for several.
        written = [run.completions(step) for step in run.steps]
    clipped = [row["clip_ratio/region_mean"] for row in rows if "clip_ratio/region_mean" in row]
    return {
        "name": name, "seed": seed, "before": before, "after": after,
        "rewards": [round(float(table["is_right"].mean()), 4) for table in written],
        "tokens, right": [_tokens(table[table["is_right"] > 0]) for table in written],
        "tokens, wrong": [_tokens(table[table["is_right"] == 0]) for table in written],
        "silent groups": [
            round(float((table.groupby("group")["is_right"].nunique() < 2).mean()), 3) for table in written
        ],
        "clipped": [round(share, 4) for share in clipped],
        "gradient": [float(f"{row['grad_norm']:.3g}") for row in rows],
        "changes": ALGORITHMS[name], "base": BASE, "seconds": round(seconds, 1), "machine": machine(),
        "versions": versions, "date": time.strftime("%Y-%m-%d"),
    }  # fmt: skip


def _tokens(table: Any) -> float | None:
    """The mean length of completions: a letter is a token, and one ends it."""
    return round(float(table["completion"].str.len().mean()) + 1, 2) if len(table) else None


def held_out(
    model: Any, tokenizer: Any, task: gn.tasks.Task, settings: gn.Settings
) -> dict[str, float]:
    """The share of right answers to the held-out sums, four drawn of each with one seed: all, and by their first digit."""
    asked = gn.evaluate(
        (model, tokenizer), task, settings=settings, samples=4, temperature=1.0, seed=0
    )
    found: dict[str, list[float]] = {"all": asked.shares}
    for group, share in zip(asked.groups, asked.shares, strict=True):
        rate = PASS_RATES[int(group[0]["question"][0])]
        found.setdefault("easy" if rate > 0.7 else "middle" if rate > 0.15 else "hard", []).append(
            share
        )
    return {part: round(sum(shares) / len(shares), 4) for part, shares in found.items()}


@contextlib.contextmanager
def without_baseline() -> Iterator[None]:
    """Train by REINFORCE (Williams, 1992) meanwhile: the advantage is the reward itself, with nothing taken off."""
    from grpo_nb.training import prepare

    class WithoutBaseline(prepare.KitTrainer):
        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            self._paid = super()._calculate_rewards(*args, **kwargs)
            return self._paid

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super()._generate_and_score_completions(inputs)
            batch["advantages"] = (self._paid * self.reward_weights.to(self._paid)).nansum(1)
            return batch

    build = functools.partial(prepare.build_trainer, trainer_class=WithoutBaseline)
    with mock.patch("grpo_nb.training.train.build_trainer", build):
        yield


# What was measured.


def kept(file: Path = KEPT) -> list[dict[str, Any]]:
    """The lines that are there, of the settings as they are now."""
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.is_file() else []
    return [
        line
        for line in lines
        if line["base"] == BASE and ALGORITHMS.get(line["name"]) == line["changes"]
    ]


MEASURES = {
    "held-out accuracy": lambda line: line["after"]["all"],
    "held-out accuracy, easy": lambda line: line["after"]["easy"],
    "held-out accuracy, middle": lambda line: line["after"]["middle"],
    "held-out accuracy, hard": lambda line: line["after"]["hard"],
    "letters of wrong answers": lambda line: _last(line["tokens, wrong"]),
    "letters of right answers": lambda line: _last(line["tokens, right"]),
}
"""What is measured -> how it is read from a line. Lengths are means of the last quarter of the samplings."""


def _last(values: Sequence[float | None]) -> float:
    known = [value for value in values[-(len(values) // 4) :] if value is not None]
    return sum(known) / len(known)


def scores(
    lines: Sequence[dict[str, Any]],
    names: Sequence[str],
    measure: str = "held-out accuracy",
    curves: str = "",
) -> SeedScores:
    """Some of the algorithms side by side; the others are compared with the first.

    Args:
        lines: From `kept`.
        names: Of `ALGORITHMS`.
        measure: Of `MEASURES`.
        curves: What is drawn over the steps: "rewards", "tokens, wrong" and the like; nothing if empty.
    """
    read = MEASURES[measure]
    # What all names end with is said once, in the text around.
    shared = names[0].partition(",")[2]
    is_shared = len(names) > 1 and all(name.partition(",")[2] == shared for name in names)
    labels = {name: name.partition(",")[0] if is_shared else name for name in names}
    found = {
        labels[name]: {line["seed"]: read(line) for line in lines if line["name"] == name}
        for name in names
    }
    drawn = {
        labels[name]: {
            line["seed"]: _filled(line[curves]) for line in lines if line["name"] == name
        }
        for name in names
        if curves
    }
    told = {"rewards": "reward", "tokens, wrong": "letters of wrong answers"}.get(curves, curves)
    return SeedScores(found, measure, drawn, told)


def mean_after(lines: Sequence[dict[str, Any]], name: str) -> float:
    """The mean held-out accuracy of an algorithm after training."""
    found = [line["after"]["all"] for line in lines if line["name"] == name]
    return sum(found) / len(found)


def _filled(values: Sequence[float | None]) -> list[float]:
    """Where a sampling had no such completion, the value before it."""
    found: list[float] = []
    for value in values:
        found.append(value if value is not None else found[-1] if found else float("nan"))
    return found


LESSONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "length": (("grpo", "dapo"), ("letters of wrong answers", "letters of right answers", "held-out accuracy")),
    "length, unscaled": (
        ("grpo unscaled", "dr_grpo"), ("letters of wrong answers", "letters of right answers", "held-out accuracy"),
    ),
    "length, 120 steps": (
        ("grpo, 120 steps", "dapo, 120 steps"),
        ("letters of wrong answers", "letters of right answers", "held-out accuracy"),
    ),
    "difficulty": (
        ("grpo", "grpo unscaled", "grpo filtered"),
        ("held-out accuracy", "held-out accuracy, easy", "held-out accuracy, middle", "held-out accuracy, hard"),
    ),
    "baseline": (("dr_grpo", "reinforce"), ("held-out accuracy",)),
    **{
        f"used {times} times": (tuple(f"{name}, used {times} times" for name in CLIPS), ("held-out accuracy",))
        for times in (4, 8)
    },
    "used 8 times, slowly": (tuple(f"{name}, used 8 times, slowly" for name in CLIPS), ("held-out accuracy",)),
}  # fmt: skip
"""Lesson -> the algorithms that are compared with the first of them, and by what."""


def tables(lines: Sequence[dict[str, Any]]) -> str:
    """The tables of docs/evidence/algorithms.md."""
    said = []
    for lesson, (names, measures) in LESSONS.items():
        if not all(sum(line["name"] == name for line in lines) > 1 for name in names):
            continue
        said += [f"### {lesson}", ""]
        said += [
            "| measure | algorithm | seeds | IQM, 95 % interval | paired difference | p | minimum detectable | |"
        ]
        said += ["| --- | --- | --- | --- | --- | --- | --- | --- |"]
        for measure in measures:
            found = scores(lines, names, measure)
            for name, (value, (low, high)) in found.means.items():
                cells = [
                    measure,
                    name,
                    len(found.scores[name]),
                    f"{value:.3f} ({low:.3f} to {high:.3f})",
                ]
                one = found.differences.get(name)
                cells += ["", "", "", ""] if one is None else [
                    f"{one.value:+.3f} ({one.interval[0]:+.3f} to {one.interval[1]:+.3f})", f"{one.p_value:.3f}",
                    f"{one.smallest:.3f}", one.verdict,
                ]  # fmt: skip
                said.append(f"| {' | '.join(map(str, cells))} |")
        said.append("")
    return "\n".join(said)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    parser.add_argument(
        "--names", nargs="+", default=list(ALGORITHMS), choices=list(ALGORITHMS), metavar="NAME"
    )
    parser.add_argument(
        "--make-model", action="store_true", help="pretrain the model again, and nothing else"
    )
    parser.add_argument("--table", action="store_true", help="only print what was measured")
    arguments = parser.parse_args()
    if arguments.make_model:
        make_model()
        return
    have = {(line["name"], line["seed"]) for line in kept()}
    # Whatever ends it early, what was trained with all seeds can be compared.
    wanted = [
        (name, seed)
        for name in arguments.names
        for seed in arguments.seeds
        if (name, seed) not in have
    ]
    for name, seed in () if arguments.table else wanted:
        line = train(name, seed)
        with KEPT.open("a") as file:
            file.write(json.dumps(line) + "\n")
        told = f"{line['before']['all']:.3f} to {line['after']['all']:.3f}, {line['seconds']} s"
        print(f"{name}, seed {seed}: {told}", flush=True)
    print(tables(kept()))


if __name__ == "__main__":
    main()
