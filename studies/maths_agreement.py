r"""Compare `maths` with the expected results in Math-Verify's own tests.

    pip download math-verify==0.9.0 --no-binary :all: --no-deps && tar xzf math_verify-0.9.0.tar.gz
    python studies/maths_agreement.py math_verify-0.9.0/tests

The tests are read and not run: every `parametrize` over gold and pred gives triples of (gold,
prediction, expected). `test_strict` and `test_boxed` are left out, because they test arguments
that the kit does not have. A prediction is a text that contains an answer, but the kit reads a
slot. So the answer is cut out first: what "final answer is" names, else the last boxes, else the
last formula, else the last number; of a chain such as `z = 3 + 3 = 2`, the end. A gold answer
that is a whole solution without a box is cut in the same way. Every disagreement is printed.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from grpo_nb.rewards.math_answers import maths

_INSIDE = r"[^{}]*"
for _ in range(6):
    _INSIDE = rf"(?:[^{{}}]|\{{{_INSIDE}\}})*"
_BOX = re.compile(rf"\\?\\boxed\s*\{{{_INSIDE}\}}")
_MATHS = re.compile(r"\$\$(.+?)\$\$|(?<!\\)\$(.+?)(?<!\\)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_LEFT_OUT = ("test_strict.py", "test_boxed.py")


def triples(folder: Path) -> Iterator[tuple[str, str, str, bool]]:
    """Yield (test, gold, prediction, expected) from the decorators of every test."""
    for path in sorted(folder.glob("test_*.py")):
        if path.name in _LEFT_OUT:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            for decorator in getattr(node, "decorator_list", []):
                match decorator:
                    case ast.Call(
                        func=ast.Attribute(attr="parametrize"),
                        args=[ast.Constant(value=str(names)), rows],
                    ):
                        yield from _rows(
                            node.name, [name.strip() for name in names.split(",")], rows
                        )


def _rows(test: str, names: list[str], rows: ast.expr) -> Iterator[tuple[str, str, str, bool]]:
    if names[:2] != ["gold", "pred"]:
        return
    for row in rows.elts:
        try:
            values = dict(zip(names, ast.literal_eval(row), strict=True))
        except ValueError:  # computed when the test runs
            continue
        yield (
            test,
            values["gold"],
            values["pred"],
            bool(values.get("expected", values.get("result"))),
        )


def end_of_chain(text: str) -> str:
    """Return the part after the last equals sign."""
    without_braces = re.sub(rf"\{{{_INSIDE}\}}", "", text)
    is_chain = without_braces.count("=") > 1 and "," not in text and "approx" not in text
    return text.rsplit("=", 1)[1].strip("$ ") if is_chain else text


def stated(text: str) -> str:
    """Return the answer that a text states."""
    text = text.replace("<|im_start|>user", "").strip().rstrip(".")
    _, is_said, said = text.rpartition("inal answer is")
    if is_said:
        text = said.strip().split(". I hope")[0].removeprefix('\\"').removesuffix('\\"')
        if len(text) < 40:
            return text
    boxes = list(_BOX.finditer(text))
    if boxes:
        run = boxes[-1:]
        for box in reversed(boxes[:-1]):
            between = text[box.end() : run[0].start()]
            if len(between) > 40 or re.search(r"[.:]\s|\n\n", between):
                break
            run.insert(0, box)
        return ", ".join(box[0] for box in run)
    formulas = [next(filter(None, match.groups())) for match in _MATHS.finditer(text)]
    if formulas and not re.search(r"\d", _MATHS.split(text)[-1] or ""):
        return end_of_chain(formulas[-1])
    if len(text) <= 30 and not re.search(r"\b(?:is|not)\b|:\s", text):
        return text
    numbers = re.findall(r"-?\$?[0-9](?:[0-9,./]*[0-9])?%?(?:[\u20ac$]|m\u00b2)?", text)
    return numbers[-1] if numbers else text


def main() -> None:
    rows = []
    for test, gold, prediction, is_right in triples(Path(sys.argv[1])):
        gold = end_of_chain(gold) if len(gold) < 200 or "\\boxed" in gold else stated(gold)
        rows.append((test, gold, stated(prediction), is_right))
    # One by one, so that no batch runs out of its time.
    scores = [
        maths()(completions=[f"<answer>{answer}</answer>"], answer=[gold])[0]
        for _, gold, answer, _ in rows
    ]
    differing = [
        (*row, score) for row, score in zip(rows, scores, strict=True) if (score == 1.0) != row[3]
    ]
    agreeing = len(rows) - len(differing)
    refused = sum(not row[3] for row in rows)
    print(f"{agreeing} of {len(rows)} agree; {refused} are expected to be refused.\n")
    for test, gold, answer, is_right, _ in differing:
        print(
            f"{'right' if is_right else 'wrong'} there ({test}): {gold[:100]!r} <- {answer[:100]!r}"
        )


if __name__ == "__main__":
    main()
