"""Train a very small model with each algorithm and ten seeds, and store one line per training.

    python benchmarks/algorithms.py [--seeds 0 1 ...] [--names grpo dr_grpo ...]
    python benchmarks/algorithms.py --table
    python benchmarks/algorithms.py --make-model

Trainings that are already in benchmarks/results/algorithms.jsonl are not repeated. A seed sets the
initial LoRA, the order of the prompts and the samples, so trainings with the same seed are paired.
docs/evidence/algorithms.md and notebooks/a1_algorithms read the stored lines.

The task answers the questions of that notebook in seconds. A prompt is a sum of three digits,
`7+5+9`. The model writes an attempt, repeats it as often as it likes, and ends with the answer:
`21,21,21#21`. Repeating earns nothing. The model was pretrained so that the first digit of the sum
sets how often the answer is right (`PASS_RATES`). The result is flatter than that
(docs/evidence/algorithms.md).
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import functools
import itertools
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
"""Share of right answers in the pretraining data, by the first digit of the sum."""
REPEAT_PROBABILITY = 0.6
"""Probability of one more repetition: 1.5 on average, at most 8."""
BASE = {
    "max_steps": 40,
    "num_generations": 8,
    "per_device_train_batch_size": 64,
    "max_prompt_length": 16,
    "max_completion_length": 32,
    "learning_rate": 1e-3,
    "warmup_steps": 0,
    "max_grad_norm": 10.0,
    "beta": 0.0,
    "loss_type": "grpo",
    "save_steps": 1_000,
}
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
# These show whether a result at eight uses comes from the loss, or from a learning rate that is too high.
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
"""Differences of each algorithm from `BASE`: settings and arguments of TRL.

Two keys are neither: `baseline=False` trains with REINFORCE, `filtered=True` selects prompts by pass rate.
"""


# The model and its task.


def make_model(folder: Path = MODEL, steps: int = 2_400) -> None:
    """Pretrain the model on right answers, then on answers with errors, and save it as an ordinary folder."""
    import torch
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    words = ["<pad>", "<eos>", *string.printable[:95], *(f"<spare{i}>" for i in range(7))]
    number = {word: i for i, word in enumerate(words)}
    core = Tokenizer(models.WordLevel(number, unk_token="<pad>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    core.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<pad>", eos_token="<eos>")
    tokenizer.chat_template = (
        "{% for turn in messages %}"
        "{% if turn['role'] == 'user' %}{{ turn['content'] }}:{% endif %}"
        "{% endfor %}"
    )
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(words),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        tie_word_embeddings=True,
        max_position_embeddings=128,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=None,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 3e-3, steps, pct_start=0.1)
    generator = random.Random(0)
    for step in range(steps):
        has_errors = step > steps // 2
        texts = [_text(generator, has_errors=has_errors) for _ in range(128)]
        rows = [[number[letter] for letter in text] + [1] for text in texts]
        longest = max(map(len, rows))
        ids = torch.tensor([row + [0] * (longest - len(row)) for row in rows])
        # Neither the prompt, `7+5+9:`, nor the padding is part of the answer.
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


def _text(generator: random.Random, *, has_errors: bool) -> str:
    """Return a sum with its attempts and its answer."""
    digits = [generator.randrange(10) for _ in range(3)]
    value = sum(digits)
    if has_errors and generator.random() >= PASS_RATES[digits[0]]:
        value += generator.choice([-3, -2, -1, 1, 2, 3])
    attempt = str(abs(value))
    repetitions = 0
    while repetitions < 8 and generator.random() < REPEAT_PROBABILITY:
        repetitions += 1
    attempts = ",".join([attempt] * (1 + repetitions))
    return "+".join(map(str, digits)) + ":" + attempts + "#" + attempt


def make_task(low: float = 0.0, high: float = 1.0) -> gn.tasks.Task:
    """Return the thousand sums, the same for every seed: 200 held out, the others filtered by pass rate."""
    rows = [
        {"question": f"{a}+{b}+{c}", "answer": str(a + b + c), "pass_rate": PASS_RATES[a]}
        for a in range(10)
        for b in range(10)
        for c in range(10)
    ]
    answer_format = gn.tasks.AnswerFormat(name="#", answer_open="#", instruction="Add.")
    task = gn.load_task(rows, format=answer_format, holdout=200, seed=1)
    selected = [i for i, rate in enumerate(task.train["pass_rate"]) if low <= rate <= high]
    # The template of this model has no system role, and the model was pretrained on questions alone.
    train = _questions_alone(task.train.select(selected))
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
    """Return 1 for each completion that ends with the mark and the right answer."""
    scores = []
    for completion, gold in zip(completions, answer, strict=True):
        text = completion if isinstance(completion, str) else completion[-1]["content"]
        _, mark, end = text.rpartition("#")
        scores.append(float(mark == "#" and end.strip() == gold))
    return scores


def settings_of(name: str, seed: int, folder: str | Path) -> gn.Settings:
    """Return the settings of a training."""
    changes = {
        key: value for key, value in ALGORITHMS[name].items() if key not in ("baseline", "filtered")
    }
    own = BASE | {key: changes.pop(key) for key in BASE if key in changes}
    return gn.preset("cpu", **own, model=str(MODEL), seed=seed, run_root=str(folder), extra=changes)


# A training.


def train(name: str, seed: int) -> dict[str, Any]:
    """Train once, and return the line to store."""
    is_filtered = ALGORITHMS[name].get("filtered", False)
    has_baseline = ALGORITHMS[name].get("baseline", True)
    whole = make_task()
    task = make_task(0.1, 0.9) if is_filtered else whole
    with (
        tempfile.TemporaryDirectory() as folder,
        contextlib.nullcontext() if has_baseline else without_baseline(),
    ):
        settings = settings_of(name, seed, folder)
        model, tokenizer = gn.load_model(settings)
        before = held_out(model, tokenizer, whole, settings)
        started = time.perf_counter()
        run = gn.train(model, tokenizer, task, [is_right], settings, name="run")
        seconds = time.perf_counter() - started
        after = held_out(model, tokenizer, whole, settings)
        rows = run.rows
        versions = run.info["versions"]
        # One table per sampling, which is one step unless a sampling is used several times.
        tables = [run.completions(step) for step in run.steps]
    clipped = [row["clip_ratio/region_mean"] for row in rows if "clip_ratio/region_mean" in row]
    return {
        "name": name,
        "seed": seed,
        "before": before,
        "after": after,
        "rewards": [round(float(table["is_right"].mean()), 4) for table in tables],
        "tokens, right": [_tokens(table[table["is_right"] > 0]) for table in tables],
        "tokens, wrong": [_tokens(table[table["is_right"] == 0]) for table in tables],
        "silent groups": [_share_without_signal(table) for table in tables],
        "clipped": [round(share, 4) for share in clipped],
        "gradient": [float(f"{row['grad_norm']:.3g}") for row in rows],
        "changes": ALGORITHMS[name],
        "base": BASE,
        "seconds": round(seconds, 1),
        "machine": machine(),
        "versions": versions,
        "date": time.strftime("%Y-%m-%d"),
    }


def _share_without_signal(table: Any) -> float:
    """Return the share of groups whose completions all have the same score."""
    scores_per_group = table.groupby("group")["is_right"].nunique()
    return round(float((scores_per_group < 2).mean()), 3)


def _tokens(table: Any) -> float | None:
    """Return the mean length of completions in tokens: one per letter, and the end token."""
    if len(table) == 0:
        return None
    return round(float(table["completion"].str.len().mean()) + 1, 2)


def held_out(
    model: Any, tokenizer: Any, task: gn.tasks.Task, settings: gn.Settings
) -> dict[str, float]:
    """Return the share of right answers to the held-out sums, four samples each: all, and by difficulty."""
    sampling = settings.replace(temperature=1.0, seed=0)
    evaluation = gn.evaluate((model, tokenizer), task, settings=sampling, samples=4)
    shares_of_questions = evaluation.shares_of("accuracy")
    shares: dict[str, list[float]] = {"all": shares_of_questions}
    for row, share in zip(evaluation.rows[::4], shares_of_questions, strict=True):
        rate = PASS_RATES[int(row["question"][0])]
        difficulty = "hard"
        if rate > 0.7:
            difficulty = "easy"
        elif rate > 0.15:
            difficulty = "middle"
        shares.setdefault(difficulty, []).append(share)
    return {part: round(sum(values) / len(values), 4) for part, values in shares.items()}


@contextlib.contextmanager
def without_baseline() -> Iterator[None]:
    """Train with REINFORCE (Williams, 1992) inside of `with`: the advantage is the reward itself."""
    from grpo_nb.training import prepare

    class WithoutBaseline(prepare.RunTrainer):
        def _calculate_rewards(self, *args: Any, **kwargs: Any) -> Any:
            self._rewards = super()._calculate_rewards(*args, **kwargs)
            return self._rewards

        def _generate_and_score_completions(self, inputs: list[dict[str, Any]]) -> dict[str, Any]:
            batch = super()._generate_and_score_completions(inputs)
            weights = self.reward_weights.to(self._rewards)
            batch["advantages"] = (self._rewards * weights).nansum(1)
            return batch

    build = functools.partial(prepare.build_trainer, trainer_class=WithoutBaseline)
    with mock.patch("grpo_nb.training.train.build_trainer", build):
        yield


# Results.


def kept(file: Path = KEPT) -> list[dict[str, Any]]:
    """Return the stored lines whose settings are those of this file."""
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
"""Functions that read each measure from a line. Lengths are means of the last quarter of the samplings."""


def _last(values: Sequence[float | None]) -> float:
    """Return the mean of the last quarter, without samplings that have no such completion."""
    known = [value for value in values[-(len(values) // 4) :] if value is not None]
    return sum(known) / len(known)


CURVE_TITLES = {
    "rewards": "reward",
    "tokens, wrong": "letters of wrong answers",
    "silent groups": "share of groups without a learning signal",
}
"""Titles of the curves by field of a line."""


def scores(
    lines: Sequence[dict[str, Any]],
    names: Sequence[str],
    measure: str = "held-out accuracy",
    curves: str = "",
) -> SeedScores:
    """Compare some of the algorithms with the first of them.

    Args:
        lines: Result of `kept`.
        names: Keys of `ALGORITHMS`.
        measure: Key of `MEASURES`.
        curves: Field of a line to draw over the samplings, such as "rewards"; empty for no curves.
    """
    read = MEASURES[measure]
    # An ending that all names share, such as "used 8 times", is left out of the labels.
    ending = names[0].partition(",")[2]
    is_shared = len(names) > 1 and all(name.partition(",")[2] == ending for name in names)
    values: dict[str, dict[int, float]] = {}
    drawn: dict[str, dict[int, list[float]]] = {}
    for name in names:
        label = name.partition(",")[0] if is_shared else name
        own_lines = [line for line in lines if line["name"] == name]
        values[label] = {line["seed"]: read(line) for line in own_lines}
        if curves:
            drawn[label] = {line["seed"]: _filled(line[curves]) for line in own_lines}
    return SeedScores(values, measure, drawn, CURVE_TITLES.get(curves, curves))


def mean_after(lines: Sequence[dict[str, Any]], name: str) -> float:
    """Return the mean held-out accuracy of an algorithm after training."""
    accuracies = [line["after"]["all"] for line in lines if line["name"] == name]
    return sum(accuracies) / len(accuracies)


def _filled(values: Sequence[float | None]) -> list[float]:
    """Replace each missing value, of a sampling without such a completion, by the value before it."""
    filled: list[float] = []
    previous = float("nan")
    for value in values:
        previous = previous if value is None else value
        filled.append(previous)
    return filled


TABLE_HEAD = (
    "| measure | algorithm | seeds | IQM, 95 % interval | minus the first, paired | p "
    "| minimum detectable | verdict |"
)
LESSONS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "length": (
        ("grpo", "dapo"),
        ("letters of wrong answers", "letters of right answers", "held-out accuracy"),
    ),
    "length, unscaled": (
        ("grpo unscaled", "dr_grpo"),
        ("letters of wrong answers", "letters of right answers", "held-out accuracy"),
    ),
    "length, 120 steps": (
        ("grpo, 120 steps", "dapo, 120 steps"),
        ("letters of wrong answers", "letters of right answers", "held-out accuracy"),
    ),
    "difficulty": (
        ("grpo", "grpo unscaled", "grpo filtered"),
        (
            "held-out accuracy",
            "held-out accuracy, easy",
            "held-out accuracy, middle",
            "held-out accuracy, hard",
        ),
    ),
    "baseline": (("dr_grpo", "reinforce"), ("held-out accuracy",)),
    **{
        f"used {times} times": (
            tuple(f"{name}, used {times} times" for name in CLIPS),
            ("held-out accuracy",),
        )
        for times in (4, 8)
    },
    "used 8 times, slowly": (
        tuple(f"{name}, used 8 times, slowly" for name in CLIPS),
        ("held-out accuracy",),
    ),
}
"""For each lesson, the algorithms that are compared with the first one, and the measures."""


def tables(lines: Sequence[dict[str, Any]]) -> str:
    """Return the tables of benchmarks/results/algorithms.md."""
    text = []
    for lesson, (names, measures) in LESSONS.items():
        counts = [sum(line["name"] == name for line in lines) for name in names]
        if min(counts) < 2:
            continue
        text += [
            f"### {lesson}",
            "",
            TABLE_HEAD,
            "| --- | --- | --- | --- | --- | --- | --- | --- |",
        ]
        for measure in measures:
            text += _table_rows(measure, scores(lines, names, measure))
        text.append("")
    return "\n".join(text)


def _table_rows(measure: str, compared: SeedScores) -> list[str]:
    rows = []
    for name, (value, (low, high)) in compared.means.items():
        seeds = len(compared.scores[name])
        cells = [measure, name, str(seeds), f"{value:.3f} ({low:.3f} to {high:.3f})"]
        difference = compared.differences.get(name)
        if difference is None:
            cells += ["", "", "", ""]
        else:
            start, end = difference.interval
            cells += [
                f"{difference.value:+.3f} ({start:+.3f} to {end:+.3f})",
                f"{difference.p_value:.3f}",
                f"{difference.smallest:.3f}",
                difference.verdict,
            ]
        rows.append(f"| {' | '.join(cells)} |")
    return rows


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
    parser.add_argument(
        "--table", action="store_true", help="print the stored results and train nothing"
    )
    arguments = parser.parse_args()
    if arguments.make_model:
        make_model()
        return
    if not arguments.table:
        train_missing(arguments.names, arguments.seeds)
    print(tables(kept()))


def train_missing(names: Sequence[str], seeds: Sequence[int]) -> None:
    """Train what is not stored yet, all seeds of one algorithm before the next."""
    stored = {(line["name"], line["seed"]) for line in kept()}
    for name, seed in itertools.product(names, seeds):
        if (name, seed) in stored:
            continue
        line = train(name, seed)
        with KEPT.open("a") as file:
            file.write(json.dumps(line) + "\n")
        before = line["before"]["all"]
        after = line["after"]["all"]
        print(f"{name}, seed {seed}: {before:.3f} to {after:.3f}, {line['seconds']} s", flush=True)


if __name__ == "__main__":
    main()
