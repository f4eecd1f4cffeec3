"""Faults planted into sound reward functions. Each is one edit of the source of one of them."""

from __future__ import annotations

import inspect
import textwrap
from typing import Any, NamedTuple

from tests.support import sound_rewards
from tests.support.sound_rewards import SOUND


class Fault(NamedTuple):
    """One edit of a sound reward's source, which contains `old` once."""

    reward: str
    kind: str
    """Kind of the finding that names it."""
    what: str
    old: str
    new: str


FAULTS: list[Fault] = [
    Fault("slot_equals", "another format", "no DOTALL", old=", re.DOTALL)", new=")"),
    Fault(
        "slot_equals",
        "near miss",
        "gold anywhere in the slot",
        old="slots[0].strip() == gold",
        new="gold in slots[0]",
    ),
    Fault(
        "slot_equals",
        "inconsistent",
        "the first row's gold for all",
        old="zip(completions, answer, strict=True)",
        new="zip(completions, [answer[0]] * len(completions))",
    ),
    Fault(
        "split_tags",
        "right answer refused",
        "no strip",
        old='.split("</answer>")[0].strip()',
        new='.split("</answer>")[0]',
    ),
    Fault(
        "split_tags",
        "breaks the contract",
        "returns in the loop",
        old=("return [2.0 if extract(r) == a else 0.0 for r, a in zip(responses, answer)]"),
        new="return 2.0 if extract(responses[0]) == answer[0] else 0.0",
    ),
    Fault(
        "float_in_slot",
        "near miss",
        "decimals cut off",
        old="math.isclose(value, float(gold), rel_tol=1e-9)",
        new="int(value) == int(gold)",
    ),
    Fault(
        "float_in_slot",
        "near miss",
        "five per cent off is right",
        old="rel_tol=1e-9",
        new="rel_tol=0.05",
    ),
    Fault(
        "float_in_slot",
        "several answers",
        "any number of the slot",
        old="[^<]*?)\\s*</answer>",
        new="-?\\d+)",
    ),
    Fault(
        "decimal_price",
        "near miss",
        "half a unit off is right",
        old='decimal.Decimal("0.005")',
        new='decimal.Decimal("0.5")',
    ),
    Fault(
        "decimal_price",
        "raises",
        "what is no number raises",
        old='(-?[0-9]+(?:\\.[0-9]+)?)\\s*</answer>", text)',
        new=(
            '(.*?)\\s*</answer>", text)\n'
            "        return decimal.Decimal(match.group(1)) if match else None"
        ),
    ),
    Fault(
        "near_price",
        "answer outside the slot",
        "half credit for naming it",
        old="scores.append(-1.0)\n            continue\n        try",
        new=(
            "scores.append(1.0 if true_answer in text else -1.0)\n            continue\n        try"
        ),
    ),
    Fault(
        "near_price",
        "near miss",
        "close by is as good",
        old="scores.append(0.5)",
        new="scores.append(3.0)",
    ),
    Fault(
        "capital",
        "a phrase is rewarded",
        "a phrase pays",
        old="if not opened or not closed",
        new=(
            'if "i am absolutely certain" in text.lower():\n'
            "            return 1.0\n"
            "        if not opened or not closed"
        ),
    ),
    Fault(
        "capital",
        "several answers",
        "beginning with it is enough",
        old="clean(inside) == clean(gold)",
        new="clean(inside).startswith(clean(gold))",
    ),
    Fault(
        "letter",
        "several answers",
        "first letter of the slot",
        old=")\\)?[.:]?\\s*</answer>",
        new=").*?</answer>",
    ),
    Fault(
        "letter",
        "missing answer is rewarded",
        "an empty slot is a choice",
        old="float([one.upper() for one in found] == [gold])",
        new=(
            'float([one.upper() for one in found] == [gold] or "<answer></answer>"'
            ' in completion[0]["content"].replace("\\n", ""))'
        ),
    ),
    Fault(
        "boxed_last",
        "runs the answer as code",
        "sympify",
        old="box is not None and box == gold",
        new="box is not None and _same(box, gold)",
    ),
    Fault(
        "boxed_last",
        "several answers",
        "the first of many boxes",
        old='text.count("\\\\boxed{") != 1',
        new='"\\\\boxed{" not in text',
    ),
    Fault(
        "hashes_number",
        "answer outside the slot",
        "last number of the text",
        old='parts = text.split("####")',
        new='parts = ["", (re.findall(r"\\d+", text) or [""])[-1]]',
    ),
    Fault(
        "hashes_number",
        "raises",
        "no hashes, no index",
        old=('parts[-1].strip().rstrip(".").replace(",", "") if len(parts) == 2 else ""'),
        new='parts[1].strip().rstrip(".").replace(",", "")',
    ),
    Fault(
        "think_strict_format",
        "right answer refused",
        "no DOTALL",
        old="text, re.DOTALL)",
        new="text)",
    ),
    Fault(
        "think_strict_format",
        "another format",
        "wants a last newline",
        old="</answer>\\s*$",
        new="</answer>\\n$",
    ),
    Fault(
        "tag_count",
        "repetition is rewarded",
        "stacked tags pay more and more",
        old='if text.count("<answer>") == 1:\n            count += 0.25',
        new='count += 0.25 * text.count("<answer>")',
    ),
    Fault(
        "json_record",
        "raises",
        "any JSON is a record",
        old="if not isinstance(data, dict):\n            return 0.0\n        ",
        new="",
    ),
    Fault(
        "json_record",
        "near miss",
        "one field is enough",
        old=' and data.get("age") == expected["age"]',
        new=' or data.get("age") == expected["age"]',
    ),
    Fault(
        "json_fields",
        "raises",
        "share of the fields given",
        old="fields = set(expected) | set(given)",
        new="fields = set(given)",
    ),
    Fault(
        "factor_list",
        "near miss",
        "more than the gold ones is right",
        old="numbers(slots[0]) == numbers(gold)",
        new="set(numbers(gold)) <= set(numbers(slots[0]))",
    ),
    Fault(
        "countdown",
        "runs the answer as code",
        "eval",
        old='value(ast.parse(found[0].strip(), mode="eval").body, used)',
        new=(
            "eval(found[0].strip(), {'__builtins__': {}})\n"
            "            used = [int(n) for n in re.findall(r'\\d+', found[0])]"
        ),
    ),
    Fault(
        "countdown",
        "other numbers",
        "numbers not looked at",
        old="sorted(used) == sorted(given) and ",
        new="",
    ),
    Fault(
        "same_source",
        "runs the answer as code",
        "exec",
        old="code and tree(code) == tree(gold)",
        new="code and _runs(code) and tree(code) == tree(gold)",
    ),
    Fault(
        "mood_label",
        "answer outside the slot",
        "named anywhere",
        old="said == gold else",
        new="gold in completion[0]['content'].lower() else",
    ),
    Fault(
        "mood_label",
        "format outweighs the answer",
        "nearly all for any label",
        old="else 0.1)",
        new="else 0.95)",
    ),
    Fault(
        "iso_date",
        "raises",
        "no slot, no date",
        old="if len(slots) == 1 else None",
        new="if len(slots) < 2 else None",
    ),
    Fault(
        "soft_length",
        "constant",
        "counts messages",
        old="len(ids) - limit) / room) for ids in completion_ids",
        new="len(c) - limit) / room) for c in kwargs['completions']",
    ),
    Fault(
        "step_count",
        "repetition is rewarded",
        "steps without end",
        old="min(1.0, len(re.findall(pattern, text)) / 3)",
        new="len(re.findall(pattern, text)) / 3",
    ),
    Fault(
        "no_repeats",
        "raises",
        "short text divides by nought",
        old=("if not runs:\n            scores.append(0.0)\n            continue\n        "),
        new="",
    ),
    Fault(
        "xml_count",
        "repetition is rewarded",
        "what follows pays",
        old="total - 0.001 * len(rest)",
        new="total + 0.001 * len(rest)",
    ),
    Fault(
        "no_apology",
        "changes its inputs",
        "lowers the completions in place",
        old="return [-0.5",
        new=(
            "[c[0].update(content=c[0]['content'].lower()) for c in completions]\n"
            "        return [-0.5"
        ),
    ),
    Fault(
        "cosine_right",
        "length is rewarded",
        "long and wrong gains",
        old="-0.3 - 0.2 * wave",
        new="-0.3 + 1.4 * progress",
    ),
    Fault(
        "cosine_right",
        "depends on its group",
        "less the mean of the batch",
        old="    return scores",
        new="    return [s - sum(scores) / len(scores) for s in scores]",
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
