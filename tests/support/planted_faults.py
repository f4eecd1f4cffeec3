"""Faults that are planted into sound reward functions: each is one edit of the source of one of them."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any, NamedTuple

from tests.support import sound_rewards
from tests.support.sound_rewards import SOUND


class Fault(NamedTuple):
    """One edit of a sound reward's source, which holds `old` once."""

    reward: str
    kind: str
    """Of the finding that names it, noted when all had been measured; empty where there is none yet."""
    what: str
    old: str
    new: str


FAULTS: list[Fault] = [
    Fault("slot_equals", "another format", "no DOTALL", ", re.DOTALL)", ")"),
    Fault(
        "slot_equals",
        "near miss",
        "gold anywhere in the slot",
        "slots[0].strip() == gold",
        "gold in slots[0]",
    ),
    Fault(
        "slot_equals",
        "unsteady",
        "the first row's gold for all",
        "zip(completions, answer, strict=True)",
        "zip(completions, [answer[0]] * len(completions))",
    ),
    Fault(
        "split_tags",
        "right answer refused",
        "no strip",
        '.split("</answer>")[0].strip()',
        '.split("</answer>")[0]',
    ),
    Fault(
        "split_tags",
        "breaks the contract",
        "returns in the loop",
        "return [2.0 if extract(r) == a else 0.0 for r, a in zip(responses, answer)]",
        "return 2.0 if extract(responses[0]) == answer[0] else 0.0",
    ),
    Fault(
        "float_in_slot",
        "near miss",
        "decimals cut off",
        "math.isclose(value, float(gold), rel_tol=1e-9)",
        "int(value) == int(gold)",
    ),
    Fault(
        "float_in_slot", "near miss", "five per cent off is right", "rel_tol=1e-9", "rel_tol=0.05"
    ),
    Fault(
        "float_in_slot",
        "several answers",
        "any number of the slot",
        "[^<]*?)\\s*</answer>",
        "-?\\d+)",
    ),
    Fault(
        "decimal_price",
        "near miss",
        "half a unit off is right",
        'decimal.Decimal("0.005")',
        'decimal.Decimal("0.5")',
    ),
    Fault(
        "decimal_price",
        "raises",
        "what is no number raises",
        '(-?[0-9]+(?:\\.[0-9]+)?)\\s*</answer>", text)',
        '(.*?)\\s*</answer>", text)\n        return decimal.Decimal(match.group(1)) if match else None',
    ),
    Fault(
        "near_price",
        "part credit",
        "half credit for naming it",
        "scores.append(-1.0)\n            continue\n        try",
        "scores.append(1.0 if true_answer in text else -1.0)\n            continue\n        try",
    ),
    Fault(
        "near_price", "near miss", "close by is as good", "scores.append(0.5)", "scores.append(3.0)"
    ),
    Fault(
        "capital",
        "a phrase is rewarded",
        "a phrase pays",
        "if not opened or not closed",
        'if "i am absolutely certain" in text.lower():\n            return 1.0\n        if not opened or not closed',
    ),
    Fault(
        "capital",
        "several answers",
        "beginning with it is enough",
        "clean(inside) == clean(gold)",
        "clean(inside).startswith(clean(gold))",
    ),
    Fault(
        "letter",
        "several answers",
        "first letter of the slot",
        ")\\)?[.:]?\\s*</answer>",
        ").*?</answer>",
    ),
    Fault(
        "letter",
        "missing answer is rewarded",
        "an empty slot is a choice",
        "float([one.upper() for one in found] == [gold])",
        'float([one.upper() for one in found] == [gold] or "<answer></answer>" in completion[0]["content"].replace("\\n", ""))',
    ),
    Fault(
        "boxed_last",
        "runs the answer as code",
        "sympify",
        "box is not None and box == gold",
        "box is not None and _same(box, gold)",
    ),
    Fault(
        "boxed_last",
        "several answers",
        "the first of many boxes",
        'text.count("\\\\boxed{") != 1',
        '"\\\\boxed{" not in text',
    ),
    Fault(
        "hashes_number",
        "answer outside the slot",
        "last number of the text",
        'parts = text.split("####")',
        'parts = ["", (re.findall(r"\\d+", text) or [""])[-1]]',
    ),
    Fault(
        "hashes_number",
        "raises",
        "no hashes, no index",
        'parts[-1].strip().rstrip(".").replace(",", "") if len(parts) == 2 else ""',
        'parts[1].strip().rstrip(".").replace(",", "")',
    ),
    Fault("think_strict_format", "right answer refused", "no DOTALL", "text, re.DOTALL)", "text)"),
    Fault(
        "think_strict_format",
        "another format",
        "wants a last newline",
        "</answer>\\s*$",
        "</answer>\\n$",
    ),
    Fault(
        "tag_count",
        "repetition is rewarded",
        "stacked tags pay more and more",
        'if text.count("<answer>") == 1:\n            count += 0.25',
        'count += 0.25 * text.count("<answer>")',
    ),
    Fault(
        "json_record",
        "raises",
        "any JSON is a record",
        "if not isinstance(data, dict):\n            return 0.0\n        ",
        "",
    ),
    Fault(
        "json_record",
        "near miss",
        "one field is enough",
        ' and data.get("age") == expected["age"]',
        ' or data.get("age") == expected["age"]',
    ),
    Fault(
        "json_fields",
        "raises",
        "share of the fields given",
        "fields = set(expected) | set(given)",
        "fields = set(given)",
    ),
    Fault(
        "factor_list",
        "near miss",
        "more than the gold ones is right",
        "numbers(slots[0]) == numbers(gold)",
        "set(numbers(gold)) <= set(numbers(slots[0]))",
    ),
    Fault(
        "countdown",
        "runs the answer as code",
        "eval",
        'value(ast.parse(found[0].strip(), mode="eval").body, used)',
        "eval(found[0].strip(), {'__builtins__': {}})\n            used = [int(n) for n in re.findall(r'\\d+', found[0])]",
    ),
    Fault(
        "countdown",
        "other numbers",
        "numbers not looked at",
        "sorted(used) == sorted(given) and ",
        "",
    ),
    Fault(
        "same_source",
        "runs the answer as code",
        "exec",
        "code and tree(code) == tree(gold)",
        "code and _runs(code) and tree(code) == tree(gold)",
    ),
    Fault(
        "mood_label",
        "answer outside the slot",
        "named anywhere",
        "said == gold else",
        "gold in completion[0]['content'].lower() else",
    ),
    Fault(
        "mood_label",
        "format outweighs the answer",
        "nearly all for any label",
        "else 0.1)",
        "else 0.95)",
    ),
    Fault(
        "iso_date",
        "raises",
        "no slot, no date",
        "if len(slots) == 1 else None",
        "if len(slots) < 2 else None",
    ),
    Fault(
        "soft_length",
        "constant",
        "counts messages",
        "len(ids) - limit) / room) for ids in completion_ids",
        "len(c) - limit) / room) for c in kwargs['completions']",
    ),
    Fault(
        "step_count",
        "repetition is rewarded",
        "steps without end",
        "min(1.0, len(re.findall(pattern, text)) / 3)",
        "len(re.findall(pattern, text)) / 3",
    ),
    Fault(
        "no_repeats",
        "raises",
        "short text divides by nought",
        "if not runs:\n            scores.append(0.0)\n            continue\n        ",
        "",
    ),
    Fault(
        "xml_count",
        "repetition is rewarded",
        "what follows pays",
        "total - 0.001 * len(rest)",
        "total + 0.001 * len(rest)",
    ),
    Fault(
        "no_apology",
        "changes its inputs",
        "lowers the completions in place",
        "return [-0.5",
        "[c[0].update(content=c[0]['content'].lower()) for c in completions]\n        return [-0.5",
    ),
    Fault(
        "cosine_right",
        "length is rewarded",
        "long and wrong gains",
        "-0.3 - 0.2 * wave",
        "-0.3 + 1.4 * progress",
    ),
    Fault(
        "cosine_right",
        "depends on its group",
        "less the mean of the batch",
        "    return scores",
        "    return [s - sum(scores) / len(scores) for s in scores]",
    ),
]


def _same(box: str, gold: str) -> bool:
    import sympy

    try:
        return bool(sympy.sympify(box) == sympy.sympify(gold))
    except Exception:  # as the code that is imitated
        return False


def _runs(code: str) -> bool:
    try:
        exec(code, {})
    except Exception:  # as the code that is imitated
        return False
    return True


def faulty(fault: Fault) -> Any:
    """Return the reward with the fault in it."""
    source = textwrap.dedent(inspect.getsource(SOUND[fault.reward].source))
    if source.count(fault.old) != 1:
        raise ValueError(
            f"{fault.old!r} is {source.count(fault.old)} times in the source of {fault.reward}."
        )
    edited = source.replace(fault.old, fault.new)
    names = {**vars(sound_rewards), "_same": _same, "_runs": _runs}
    exec(compile(edited, f"<{fault.reward}: {fault.what}>", "exec"), names)
    return SOUND[fault.reward].make(names[SOUND[fault.reward].source.__name__])
