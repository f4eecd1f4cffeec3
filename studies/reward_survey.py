"""Run `check_rewards` on rewards of TRL, of public notebooks and of reasoning-gym.

Run: python studies/reward_survey.py > studies/results/reward_survey.md, with reasoning-gym
installed (0.1.25 was looked at). Rewards of notebooks are rewritten here in a few lines each, to
behave like the named source.
"""

from __future__ import annotations

import argparse
import collections
import multiprocessing
import re
import sys
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import grpo_nb as gn
from grpo_nb.checks.report import KINDS, WHOLE_SET, Finding
from grpo_nb.rewards.base import completion_text
from grpo_nb.tasks import formats

# What was looked at by hand: is what is said right? By reward and kind of finding.
VERDICTS: dict[tuple[str, str], str] = {
    **{
        (name, kind): verdict
        for name in ("accuracy_reward", "reasoning_accuracy_reward", "cosine_scaled_reward")
        for kind, verdict in {
            "several answers": "yes: an equation is read as its right side",
            "answer outside the slot": "yes: without a box any number of the text is taken",
            "hangs": "yes: the parser's own limit of 5 s, once for each such completion",
        }.items()
    },
    ("strict_format_reward_func", "another format"): "yes: a newline must end it",
    (
        "strict_format_reward_func",
        "right answer refused",
    ): "yes: no DOTALL (unslothai/notebooks 96)",
    ("soft_format_reward_func", "another format"): "yes: no DOTALL (unslothai/notebooks 96)",
    ("soft_format_reward_func", "right answer refused"): "yes: no DOTALL (unslothai/notebooks 96)",
    ("check_answer", "several answers"): "yes: the first start and the last end tag are paired",
    ("check_answer", "another format"): "yes: half is paid where line breaks stand in the slot",
    (
        "check_numbers",
        "near miss",
    ): "yes: the minus sign is not in its pattern, so -23 is 23",
    ("check_numbers", "several answers"): "yes: only the first number of the slot counts",
    ("last_number_reward", "several answers"): "yes: only the last number counts",
    (
        "last_number_reward",
        "answer outside the slot",
    ): "yes: the last number of the whole text counts",
    **{
        ("contains_reward", kind): "yes"
        for kind in (
            "every candidate",
            "several answers",
            "near miss",
            "answer outside the slot",
        )
    },
    ("reasoning_steps_reward", "ok"): "no: First, Next and Finally are paid by themselves",
}
UNJUDGED: list[str] = []
FORMAT_R1 = formats.think_answer()


def text(completion: Any) -> str:
    return completion_text(completion)


# ---- Notebooks: behaviour as in the source named in the table ----


def slot(completion: Any) -> str:
    """Between the last opening tag and the next closing tag, as most notebooks do it."""
    return text(completion).split("<answer>")[-1].split("</answer>")[0].strip()


def correctness_reward_func(prompts, completions, answer, **kwargs):
    return [2.0 if slot(c) == a else 0.0 for c, a in zip(completions, answer, strict=True)]


def int_reward_func(completions, **kwargs):
    return [0.5 if slot(c).isdigit() else 0.0 for c in completions]


def strict_format_reward_func(completions, **kwargs):
    pattern = r"^<reasoning>\n.*?\n</reasoning>\n<answer>\n.*?\n</answer>\n$"
    return [0.5 if re.match(pattern, text(c)) else 0.0 for c in completions]


def soft_format_reward_func(completions, **kwargs):
    return [
        0.5 if re.match(r"<reasoning>.*?</reasoning>\s*<answer>.*?</answer>", text(c)) else 0.0
        for c in completions
    ]


def xmlcount_reward_func(completions, **kwargs):
    """Give 0.125 for each tag that occurs once with its line break, less for text after it."""
    scores = []
    for t in map(text, completions):
        score = 0.125 * (t.count("<reasoning>\n") == 1) + 0.125 * (t.count("\n</reasoning>\n") == 1)
        if t.count("\n<answer>\n") == 1:
            score += 0.125 - 0.001 * len(t.split("\n</answer>\n")[-1])
        if t.count("\n</answer>") == 1:
            score += 0.125 - 0.001 * (len(t.split("\n</answer>")[-1]) - 1)
        scores.append(score)
    return scores


def reward_len(completions, **kwargs):
    return [-float(abs(20 - len(text(c)))) for c in completions]


def reward_unique_chars(completions, **kwargs):
    return [float(len(set(text(c)))) for c in completions]


def r1_format_reward(completions, **kwargs):
    pattern = r"^<think>\n.*?\n</think>\n<answer>\n.*?\n</answer>$"
    return [
        1.0 if re.match(pattern, text(c), re.DOTALL | re.MULTILINE) else 0.0 for c in completions
    ]


def r1_tag_count_reward(completions, **kwargs):
    tags = ("<think>\n", "\n</think>\n", "\n<answer>\n", "\n</answer>")
    return [sum(0.25 for tag in tags if text(c).count(tag) == 1) for c in completions]


def reasoning_steps_reward(completions, **kwargs):
    pattern = r"(Step \d+:|^\d+\.|\n-|\n\*|First,|Second,|Next,|Finally,)"
    return [min(1.0, len(re.findall(pattern, text(c))) / 3) for c in completions]


def last_number_reward(completions, answer, **kwargs):
    found = [re.findall(r"-?\d+(?:\.\d+)?", text(c)) for c in completions]
    return [
        1.0 if n and float(n[-1]) == float(a) else 0.0 for n, a in zip(found, answer, strict=True)
    ]


def contains_reward(completions, answer, **kwargs):
    return [1.0 if a in text(c) else 0.0 for c, a in zip(completions, answer, strict=True)]


SOLUTION = re.compile(
    r"<start_working_out>.*?<end_working_out>.*?<SOLUTION>(.+?)</SOLUTION>\s*$",
    re.DOTALL | re.MULTILINE,
)
SOLUTION_NUMBER = re.compile(r"<SOLUTION>.*?([\d\.\,]+)", re.DOTALL | re.MULTILINE)
GEMMA = formats.AnswerFormat(
    name="working out",
    reasoning_open="<start_working_out>",
    reasoning_close="<end_working_out>",
    answer_open="<SOLUTION>",
    answer_close="</SOLUTION>",
)


def match_format_exactly(completions, **kwargs):
    return [3.0 if SOLUTION.search(text(c)) else 0.0 for c in completions]


def match_format_approximately(completions, **kwargs):
    tags = ("<start_working_out>", "<end_working_out>", "<SOLUTION>", "</SOLUTION>")
    return [sum(0.5 if text(c).count(tag) == 1 else -1.0 for tag in tags) for c in completions]


def check_answer(prompts, completions, answer, **kwargs):
    """Give 3 for the same text, 1.5 up to white space, less for a close number, else below 0."""
    scores = []
    for c, gold in zip(completions, answer, strict=True):
        found = SOLUTION.search(text(c))
        guess = found.group(1) if found else None
        if guess is None:
            scores.append(0.0)
        elif guess == gold:
            scores.append(3.0)
        elif guess.strip() == gold.strip():
            scores.append(1.5)
        else:
            try:
                ratio = float(guess) / float(gold)
                if 0.9 <= ratio <= 1.1:
                    scores.append(0.5)
                elif 0.8 <= ratio <= 1.2:
                    scores.append(0.25)
                else:
                    scores.append(-1.0)
            except (ValueError, ZeroDivisionError, OverflowError):
                scores.append(-0.5)
    return scores


def check_numbers(prompts, completions, answer, **kwargs):
    """The first number after the answer tag; prints the first question and answer as it goes."""
    print("*" * 20, answer[0], text(completions[0]))
    scores = []
    for c, gold in zip(completions, answer, strict=True):
        found = SOLUTION_NUMBER.search(text(c))
        if found is None:
            scores.append(0.0)
            continue
        try:
            is_right = float(found.group(1).replace(",", "")) == float(gold)
        except ValueError:
            scores.append(0.0)
            continue
        scores.append(1.5 if is_right else -0.5)
    return scores


UNSLOTH = "Unsloth GSM8K notebooks, after W. Brown's gist"
HF = "Hugging Face course and TRL quick start"
NOTEBOOKS: list[tuple[Callable, str, formats.AnswerFormat]] = [
    (correctness_reward_func, UNSLOTH, formats.xml()),
    (int_reward_func, UNSLOTH, formats.xml()),
    (strict_format_reward_func, UNSLOTH, formats.xml()),
    (soft_format_reward_func, UNSLOTH, formats.xml()),
    (xmlcount_reward_func, UNSLOTH, formats.xml()),
    (match_format_exactly, "Unsloth Gemma and Qwen notebooks", GEMMA),
    (match_format_approximately, "Unsloth Gemma and Qwen notebooks", GEMMA),
    (check_answer, "Unsloth Gemma and Qwen notebooks", GEMMA),
    (check_numbers, "Unsloth Gemma and Qwen notebooks", GEMMA),
    (reward_len, HF, formats.xml()),
    (reward_unique_chars, HF, formats.xml()),
    (r1_format_reward, "open-r1", FORMAT_R1),
    (r1_tag_count_reward, "open-r1", FORMAT_R1),
    (reasoning_steps_reward, "open-r1", FORMAT_R1),
    (last_number_reward, "GSM8K recipes", formats.hashes()),
    (contains_reward, "first attempts", formats.xml()),
]


# ---- TRL ----

THINK_BOXED = formats.AnswerFormat(
    name="think, boxed",
    reasoning_open="<think>",
    reasoning_close="</think>",
    answer_open="\\boxed{",
    answer_close="}",
)


def trl_rewards() -> list[tuple[Callable, str, formats.AnswerFormat]]:
    from grpo_nb.models.unsloth_import import import_unsloth

    import_unsloth()
    import trl.rewards as r

    source = "trl 1.15.0"
    return [
        (r.accuracy_reward, source, formats.boxed()),
        (r.reasoning_accuracy_reward, source, THINK_BOXED),
        (r.think_format_reward, source, FORMAT_R1),
        (r.get_cosine_scaled_reward(max_len=512), source, formats.boxed()),
        (r.get_repetition_penalty_reward(ngram_size=3, max_penalty=-1.0), source, formats.xml()),
        (
            r.get_soft_overlong_punishment(max_completion_len=512, soft_punish_cache=128),
            source,
            formats.xml(),
        ),
    ]


def rows(low: int = 20) -> list[dict[str, str]]:
    """Additions with two-digit answers, with the columns that these rewards ask for."""
    pairs = [(low + 7 * i, 3 + 5 * i) for i in range(8)]
    return [
        {
            "prompt": [{"role": "user", "content": f"What is {a} + {b}?"}],
            "question": f"What is {a} + {b}?",
            "answer": str(a + b),
            "solution": str(a + b),
        }
        for a, b in pairs
    ]


# ---- reasoning-gym ----


def gym_findings(family: str, size: int = 12) -> tuple[list[Finding], str]:
    """Return the findings for the scorer of one family on its own questions.

    The scorer is called with the text of the answer slot.
    """
    import reasoning_gym

    data = reasoning_gym.create_dataset(family, size=size, seed=1)
    format = formats.xml()
    entries = {entry["question"]: entry for entry in data}

    def scorer(completions, question, **kwargs):
        scores = []
        for completion, asked in zip(completions, question, strict=True):
            given = format.extract(text(completion))
            scores.append(0.0 if given is None else data.score_answer(given, entries[asked]))
        return scores

    scorer.__name__ = family
    listed = [
        {"question": e["question"], "answer": e["answer"]} for e in data if e["answer"] is not None
    ]
    if not listed:
        return [], "no gold answers"
    report = gn.check_rewards(scorer, listed, format=format, seconds_per_call=1.0)
    # A scorer of answers, so that it must tell right from wrong by itself.
    return list(report.findings), report.roles[family]


# ---- The table ----


def cell(value: str, limit: int = 150) -> str:
    value = value if len(value) <= limit else value[:limit] + "..."
    return value.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;").replace("`", "'")


def verdict_on(name: str, kind: str) -> str:
    """Return what was found by hand; findings without it are listed at the end of the page."""
    if (name, kind) not in VERDICTS and kind != "ok":
        UNJUDGED.append(f"`{name}` ({kind})")
    return VERDICTS.get((name, kind), "")


def line(*cells: str) -> None:
    print("| " + " | ".join(cells) + " |")


def table(entries: list[tuple[Callable, str, formats.AnswerFormat]]) -> None:
    line("reward", "severity", "finding", "right?")
    line(*["---"] * 4)
    for reward, source, format in entries:
        report = gn.check_rewards(reward, rows(), format=format)
        findings = [f for f in report.findings if f.reward != WHOLE_SET]
        (name, role) = next(iter(report.roles.items()))
        if not findings:
            line(f"`{name}` ({source})", "ok", role, verdict_on(name, "ok"))
        for finding in findings:
            verdict = verdict_on(name, finding.kind)
            line(
                f"`{name}` ({source})",
                finding.severity,
                cell(f"{finding.kind}: {finding.observation}", 150),
                verdict,
            )
        print(name, "done", file=sys.stderr)


def _send_findings(family: str, connection: Any) -> None:
    try:
        connection.send(gym_findings(family)[0])
    except Exception as error:  # a family that cannot be made here is named, and the rest goes on
        connection.send(f"{type(error).__name__}: {str(error)[:60]}")


def gym_table(only: list[str], limit: float) -> None:
    import reasoning_gym.factory as factory

    families = only or sorted(factory.DATASETS)
    clean = []
    failed = []
    by_kind = collections.defaultdict(list)

    # A process for each family, which can be killed: one scorer never leaves a call of C code.
    context = multiprocessing.get_context("fork")
    for family in families:
        start = time.perf_counter()
        ours, theirs = context.Pipe()
        process = context.Process(target=_send_findings, args=(family, theirs))
        process.start()
        answer = ours.recv() if ours.poll(limit) else f"not done after {limit:g} s, killed"
        process.kill()
        process.join()
        print(family, f"{time.perf_counter() - start:.1f} s", file=sys.stderr, flush=True)
        if isinstance(answer, str):
            failed.append(f"{family} ({answer})")
            continue
        worth = {finding.kind for finding in answer}
        for kind in worth:
            by_kind[kind].append(family)
        clean += [] if worth else [family]
    print(f"\n{len(clean)} of {len(families)} families have no finding.\n")
    line("finding", "families", "which")
    line(*["---"] * 3)
    for kind in KINDS:
        if kind in by_kind:
            line(kind, str(len(by_kind[kind])), ", ".join(by_kind[kind]))
    if failed:
        print(f"\nNot made here: {cell(', '.join(failed), 2000)}.")


def main(arguments: Mapping[str, Any]) -> None:
    warnings.simplefilter("ignore")
    print("# What the checks find in rewards that people use\n")
    print(
        "After this page you know what `check_rewards` finds in rewards that people use, "
        "and in rewards with known faults.\n"
    )
    print(
        "Made by `studies/reward_survey.py`. TRL's rewards are the installed ones; those of "
        "notebooks are rewritten to behave like the named source. Each is tried alone, in the "
        "format it is meant for. The last column is what reading the source said of the finding; "
        "it is empty where nobody read it.\n"
    )
    if "trl" in arguments["parts"]:
        print("## TRL\n")
        table(trl_rewards())
    if "notebooks" in arguments["parts"]:
        print("\n## Public notebooks\n")
        table(NOTEBOOKS)
    if "gym" in arguments["parts"]:
        print("\n## reasoning-gym 0.1.25\n")
        print(
            "By kind of finding; each family's scorer is called with the text of the answer slot, "
            "on its own questions."
        )
        gym_table(arguments["families"], arguments["limit"])
    if UNJUDGED:
        print(f"\nRead by nobody: {', '.join(UNJUDGED)}.")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="*", default=["trl", "notebooks", "gym"])
    parser.add_argument("--families", nargs="*", default=[], help="only these of reasoning-gym")
    parser.add_argument("--limit", type=float, default=60.0, help="seconds for each family")
    main(vars(parser.parse_args()))
