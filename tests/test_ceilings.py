"""The kit stays small, and what stands around it: each room, the tests and the scripts hold a ceiling of code lines."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "grpo_nb"
#: Code lines at most: no blank lines, comments or docstrings. A room gets its line here once it is below it.
CEILINGS = {
    "core": 500,
    "machine": 500,
    "settings": 780,
    "tasks": 1100,
    "models": 460,
    "generation": 830,
    "sandbox": 420,
    "rewards": 1150,
    "checks": 1200,
    "lab": 390,
    "health": 480,
    "runs": 950,
    "evaluation": 790,
    "training": 1150,
    "export": 790,
    "scaleout": 500,
}
#: The tests of tools and of judges came on top of 11,500.
AROUND = {"tests": 12_360, "scripts": 600}

#: What came on top of these: tools and environments, and judges.
TOOLS = {
    "core": 4, "settings": 1, "tasks": 166, "models": 33, "generation": 104, "rewards": 18, "checks": 8, "lab": 58,
    "health": 5, "evaluation": 16, "training": 36, "export": 6, "runs": 15, "scaleout": 4,
}  # fmt: skip
JUDGES = {"rewards": 180, "checks": 120, "lab": 60}


def code_lines(source: str) -> int:
    """Count the lines of a module that are neither blank, nor comment, nor a docstring of anything, fields included."""
    documented: set[int] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            texts = node.body if isinstance(node, ast.ClassDef) else node.body[:1]
            for text in texts:
                value = getattr(text, "value", None)
                if isinstance(text, ast.Expr) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                    documented.update(range(text.lineno, text.end_lineno + 1))
    lines = enumerate(source.splitlines(), 1)
    return sum(
        bool(line.strip()) and not line.lstrip().startswith("#") and number not in documented for number, line in lines
    )


def test_what_counts_as_a_line() -> None:
    fields = '"""Words."""\n\n# A remark.\nclass A:\n    """Words."""\n\n    x: int = 1\n    """Of a\n    field."""\n'
    assert code_lines(fields) == 2
    assert code_lines('def f():\n    """Words."""\n    return """not\n    words"""\n') == 3


@pytest.mark.parametrize(("room", "ceiling"), CEILINGS.items())
def test_a_room_is_as_small_as_it_was(room: str, ceiling: int) -> None:
    ceiling += TOOLS.get(room, 0) + JUDGES.get(room, 0)
    lines = sum(code_lines(path.read_text()) for path in (PACKAGE / room).rglob("*.py"))
    assert lines <= ceiling, f"grpo_nb/{room} has {lines} code lines of at most {ceiling}: what could go?"


@pytest.mark.parametrize(("folder", "ceiling"), AROUND.items())
def test_what_stands_around_the_kit_is_small_too(folder: str, ceiling: int) -> None:
    lines = sum(code_lines(path.read_text()) for path in (ROOT / folder).rglob("*.py"))
    assert lines <= ceiling, f"{folder} has {lines} code lines of at most {ceiling}: what could go?"


def test_tools_take_no_more_than_was_said() -> None:
    assert sum(TOOLS.values()) <= 480


def test_the_door_only_opens() -> None:
    assert code_lines((PACKAGE / "__init__.py").read_text()) <= 20
