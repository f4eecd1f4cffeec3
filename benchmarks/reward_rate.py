"""Completions a second of every reward, and of the maths reward beside TRL's `accuracy_reward` on the same completions.

    python benchmarks/reward_rate.py [--completions 512] [--rounds 5]

Claims: on plain-number answers the maths reward is at least 5 times as fast as TRL's, with verdicts at least as good; a batch
of hostile expressions takes at most the limit of a batch. The sides alternate in one process; medians are printed, as Markdown.
"""

from __future__ import annotations

import argparse
import importlib
import random
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import _measure  # noqa: F401  # the kit of this checkout

from grpo_nb import rewards
from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.tasks import formats

Row = tuple[str, str, bool]
_expressions = importlib.import_module("grpo_nb.rewards.maths")  # the class hides the module


def plain_number_rows(count: int, seed: int = 0) -> list[Row]:
    """What stands in the box, the gold number, and whether that is right: two thirds honest, a third hedges and nonsense."""
    choose = random.Random(seed)
    rows: list[Row] = []
    while len(rows) < count:
        gold = choose.randrange(-500, 5000)
        near = gold + choose.choice([-10, -1, 1, 7])
        kinds = [
            (str(gold), True), (f"{gold}.0", True), (f"{gold:,}", True), (f"x = {gold}", True),
            (rf"\frac{{{2 * gold}}}{{2}}", True),
            (str(near), False), (f"{near}.5", False), (f"-{abs(gold) + 3}", False), (f"{gold + 1}/1", False),
            (f"{near} = {gold}", False), (rf"{gold} \text{{ is wrong}}", False), (f"{near} or {gold}", False),
            (f"{near}, {gold}", False), ("unknown", False),
        ]  # fmt: skip
        text, is_right = choose.choice(kinds)
        rows.append((text, str(gold), is_right))
    return rows


def expression_rows(count: int, seed: int = 1) -> list[Row]:
    """Expressions that need computer algebra, each different from the others."""
    choose = random.Random(seed)
    rows: list[Row] = []
    while len(rows) < count:
        a, b = choose.randrange(2, 99), choose.randrange(2, 99)
        kinds = [
            (f"{b} + {a}x", f"{a}x+{b}", True), (f"{a}x - {b}", f"{a}x+{b}", False), (rf"{a}\sqrt{{4}}y", f"{2 * a}y", True),
            (rf"\frac{{{a}x}}{{{b}}}", rf"\frac{{{2 * a}x}}{{{2 * b}}}", True), (f"(x+{a})(x-{a})", f"x^2-{a * a}", True),
            (f"(x+{a})(x-{b + 100})", f"x^2-{a * a}", False), (rf"\{{{b + 99}, {a}\}}", rf"\{{{a}, {b + 99}\}}", True),
        ]  # fmt: skip
        rows.append(choose.choice(kinds))
    return rows


def hostile_rows(count: int) -> list[Row]:
    """Expressions that keep computer algebra busy for minutes, no two alike."""
    kinds = [r"((x+1)(x-1))^{512}", r"(x+y+z+w)^{99}", r"\sin(x)^{77}\cos(x)^{77}(x+1)^{200}", "9^{9^{9^9}}x"]
    return [(f"{kinds[i % len(kinds)]}+{i}", "x+1", False) for i in range(count)]


def seconds_of(call: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = call()
    return time.perf_counter() - start, result


def compare_with_trl(rows: list[Row], rounds: int, *, forget: bool) -> str:
    """One table row for each side: rate, ratio, verdicts."""
    from trl.rewards import accuracy_reward

    chats = [[{"role": "assistant", "content": rf"So it is $\boxed{{{text}}}$."}] for text, _, _ in rows]
    # In dollars, without which TRL reads no expression from a gold answer.
    gold, truth = [f"${row[1]}$" for row in rows], [row[2] for row in rows]
    ours = rewards.maths(format=formats.boxed(), column="solution")
    times: dict[str, list[float]] = {"kit": [], "TRL": []}
    verdicts: dict[str, list[Any]] = {}
    for _ in range(rounds):
        if forget:
            _expressions._cache.clear()
        for side, call in (
            ("kit", lambda: ours(completions=chats, solution=gold)),
            ("TRL", lambda: accuracy_reward(chats, gold)),
        ):
            seconds, verdicts[side] = seconds_of(call)
            times[side].append(seconds)
    rates = {side: len(rows) / statistics.median(t) for side, t in times.items()}
    lines = []
    for side in ("kit", "TRL"):
        wrong_paid = sum(v == 1.0 and not right for v, right in zip(verdicts[side], truth, strict=True))
        right_refused = sum(v != 1.0 and right for v, right in zip(verdicts[side], truth, strict=True))
        ratio = rates[side] / rates["TRL"]
        refused, paid = f"{right_refused} of {sum(truth)}", f"{wrong_paid} of {truth.count(False)}"
        lines.append(f"| {side} | {rates[side]:,.0f} | {ratio:.1f} | {refused} | {paid} |")
    return "\n".join(lines)


def typical_texts(count: int) -> list[str]:
    """Completions as a model learning arithmetic writes them."""
    choose = random.Random(2)
    reasoning = "We add the two numbers step by step.\n1. take the tens and add them\n2. take the ones and add them\n"
    texts = []
    for _ in range(count):
        answer = choose.choice(["42", "42.0", "41", "41 or 42", "", "forty-two"])
        body = f"<reasoning>\n{reasoning * choose.randrange(1, 4)}</reasoning>\n<answer>\n{answer}\n</answer>"
        texts.append(choose.choice([body, body + " That is all.", body[: len(body) // 2], answer]))
    return texts


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--completions", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    count, rounds = arguments.completions, arguments.rounds
    import_unsloth()  # before trl
    warnings.simplefilter("ignore", RuntimeWarning)
    start_seconds, _ = seconds_of(lambda: rewards.maths()(completions=["<answer>1+x</answer>"], answer=["x+1"]))

    head = "| side | completions a second | ratio | right refused | wrong paid |\n| --- | --- | --- | --- | --- |"
    print(f"## Plain-number answers ({count} completions, median of {rounds} rounds)\n\n{head}")
    print(compare_with_trl(plain_number_rows(count), rounds, forget=True))
    unseen = expression_rows(count // 4)
    print(f"\n## Expressions, none seen before ({len(unseen)} completions)\n\n{head}")
    print(compare_with_trl(unseen, rounds, forget=True))
    print(f"\nThe process for expressions starts in {start_seconds:.2f} s, once.")

    print("\n## Hostile expressions, no two alike\n")
    print("| hostile in a batch of 64 | seconds | limit of the batch | honest ones wrong |\n| --- | --- | --- | --- |")
    for hostile in (0, 4, 16, 64):
        _expressions._cache.clear()
        rows = hostile_rows(hostile) + expression_rows(64 - hostile, seed=3 + hostile)
        texts = [f"<answer>{text}</answer>" for text, _, _ in rows]
        gold = [g for _, g, _ in rows]
        seconds, found = seconds_of(lambda texts=texts, gold=gold: rewards.maths()(completions=texts, answer=gold))
        wrong = sum(bool(v) != right for v, (_, _, right) in zip(found, rows, strict=True))
        print(f"| {hostile} | {seconds:.2f} | {_expressions.BATCH_SECONDS:.2f} | {wrong} of {64 - hostile} |")

    print(
        f"\n## Every reward ({count} completions of up to 400 characters)\n\n| reward | completions a second |\n| --- | --- |"
    )
    texts = typical_texts(count)
    columns = {
        "answer": ["42"] * count,
        "completion_ids": [list(range(len(t) // 4)) for t in texts],
        "prompts": ["What is 23 + 19?"] * count,
    }
    every = [
        rewards.correctness(), rewards.exact_text(), rewards.maths(), rewards.multiple_choice(),
        rewards.json_answer(), rewards.regex_answer(r"\d+"), rewards.xml_format(), rewards.xml_tags(),
        rewards.incremental_format(), rewards.length(10, 20),
    ]  # fmt: skip
    for reward in every:
        reward(completions=texts[:2], **{key: values[:2] for key, values in columns.items()})  # what is loaded lazily
        taken = [seconds_of(lambda r=reward: r(completions=texts, **columns))[0] for _ in range(rounds)]
        print(f"| {reward.__name__} | {count / statistics.median(taken):,.0f} |")
    typical = [rewards.correctness(), rewards.xml_format(), rewards.xml_tags()]
    taken = [seconds_of(lambda: [r(completions=texts, **columns) for r in typical])[0] for _ in range(rounds)]
    print(f"| typical set: {', '.join(r.__name__ for r in typical)} | {count / statistics.median(taken):,.0f} |")


if __name__ == "__main__":
    main()
