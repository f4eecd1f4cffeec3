"""Report how dense the code is and how its docstrings begin, one row per folder.

    python scripts/readability.py                  # one row per subpackage, then tests and scripts
    python scripts/readability.py --files checks   # one row per file of a subpackage
    python scripts/readability.py --check          # fail on docstrings with a hard start

The table is a thermometer and never fails. Its columns:

    nodes     syntax-tree nodes without docstrings: the size of the program, however it is laid out
    lines     lines that hold code
    n/line    nodes per line; nanochat has 6.2, inspect_ai 4.0
    >100      lines of more than 100 columns
    tuple=    assignments such as `a, b = x, y` of unrelated values
    nested    comprehensions in comprehensions, conditional expressions in conditional expressions
    dense     one-line statements with 25 or more nodes
    skip      `# fmt: skip` and `# fmt: off`
    hard      docstrings that begin with What, Whether, Of and the like
    comments  comment lines per 100 lines of code

`--check` does fail: a docstring in the package must not begin with one of `HARD_STARTS`. Files that
are not yet rewritten are listed in `readability_exceptions.txt`, and that list may only shrink.
"""

import argparse
import ast
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "grpo_nb"
EXCEPTIONS = Path(__file__).with_name("readability_exceptions.txt")

#: First words after which a reader has to reach the end of the sentence to learn its topic.
HARD_STARTS = frozenset(
    [
        "What",
        "Whether",
        "Which",
        "Where",
        "Who",
        "Whose",
        "How",
        "Of",
        "Those",
        "They",
        "It",
        "Its",
        "Such",
        "That",
        "As",
    ]
)
#: A statement of one line with this many nodes has to be read twice.
DENSE_NODES = 25
MAX_COLUMNS = 100
COLUMNS = (
    "files",
    "nodes",
    "lines",
    "n/line",
    ">100",
    "tuple=",
    "nested",
    "dense",
    "skip",
    "hard",
    "comments",
)

DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
COMPREHENSIONS = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)


def string_statements(tree: ast.AST) -> list[ast.Expr]:
    """Return the docstrings of a module and the strings that document its fields."""
    statements = []
    for node in ast.walk(tree):
        if not isinstance(node, DOCUMENTED):
            continue
        for statement in node.body:
            value = getattr(statement, "value", None)
            is_string = isinstance(value, ast.Constant) and isinstance(value.value, str)
            if isinstance(statement, ast.Expr) and is_string:
                statements.append(statement)
    return statements


def hard_starts(source: str) -> list[tuple[int, str]]:
    """Return line number and first line of each docstring that begins with a hard word."""
    places = []
    for statement in string_statements(ast.parse(source)):
        text = statement.value.value.strip()
        words = text.split(maxsplit=1)
        if words and words[0].rstrip(",.:;") in HARD_STARTS:
            places.append((statement.lineno, text.splitlines()[0]))
    return places


def count_nodes(tree: ast.AST, skipped: set[ast.Expr] = frozenset()) -> int:
    """Count the nodes of a syntax tree, without the given statements."""
    if tree in skipped or isinstance(tree, ast.expr_context):
        return 0
    children = ast.iter_child_nodes(tree)
    return 1 + sum(count_nodes(child, skipped) for child in children)


def is_nested(node: ast.AST) -> bool:
    """Return True for a comprehension or conditional expression that contains another one."""
    if isinstance(node, COMPREHENSIONS):
        same_kind = COMPREHENSIONS
    elif isinstance(node, ast.IfExp):
        same_kind = ast.IfExp
    else:
        return False
    return any(isinstance(inner, same_kind) for inner in ast.walk(node) if inner is not node)


def is_unrelated_tuple(node: ast.AST) -> bool:
    """Return True for `a, b = x, y`, which assigns two values at once."""
    is_tuple = isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple)
    return is_tuple and any(isinstance(target, ast.Tuple) for target in node.targets)


def is_dense(node: ast.AST) -> bool:
    """Return True for a statement of one line that holds too much to be read once."""
    if not isinstance(node, ast.stmt) or isinstance(node, (ast.Import, ast.ImportFrom)):
        return False
    return node.lineno == node.end_lineno and count_nodes(node) >= DENSE_NODES


def measure(path: Path) -> Counter:
    """Return the counts of one file, by column."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    strings = set(string_statements(tree))
    string_lines: set[int] = set()
    for statement in strings:
        string_lines.update(range(statement.lineno, statement.end_lineno + 1))
    counts = Counter(files=1, nodes=count_nodes(tree, strings), hard=len(hard_starts(source)))
    for number, line in enumerate(source.splitlines(), 1):
        counts[">100"] += len(line) > MAX_COLUMNS
        counts["skip"] += "# fmt: skip" in line or "# fmt: off" in line
        if line.lstrip().startswith("#"):
            counts["comment lines"] += 1
        elif line.strip() and number not in string_lines:
            counts["lines"] += 1
    for node in ast.walk(tree):
        counts["tuple="] += is_unrelated_tuple(node)
        counts["nested"] += is_nested(node)
        counts["dense"] += node not in strings and is_dense(node)
    return counts


def row(name: str, counts: Counter) -> str:
    """Return one line of the table."""
    code_lines = max(1, counts["lines"])
    values = dict(counts)
    values["n/line"] = f"{counts['nodes'] / code_lines:.2f}"
    values["comments"] = f"{100 * counts['comment lines'] / code_lines:.0f}"
    cells = [f"{values.get(column, 0):>9}" for column in COLUMNS]
    return f"{name:22}" + "".join(cells)


def folders() -> Iterator[tuple[str, list[Path]]]:
    """Yield the name and the files of each subpackage, then of each folder around the package."""
    for folder in sorted(path.parent for path in PACKAGE.glob("*/__init__.py")):
        yield folder.name, sorted(folder.rglob("*.py"))
    yield "grpo_nb", sorted(PACKAGE.rglob("*.py"))
    for name in ("tests", "scripts", "benchmarks", "studies", "notebooks/src"):
        yield name, sorted((ROOT / name).rglob("*.py"))


def check() -> list[str]:
    """Return what is wrong: hard starts outside the exceptions, and exceptions no longer needed."""
    exceptions = (
        set(EXCEPTIONS.read_text(encoding="utf-8").split()) if EXCEPTIONS.exists() else set()
    )
    problems = []
    for path in sorted(PACKAGE.rglob("*.py")):
        name = str(path.relative_to(ROOT))
        places = hard_starts(path.read_text(encoding="utf-8"))
        if name in exceptions:
            exceptions.remove(name)
            if not places:
                problems.append(f"{name}: rewritten; take it out of {EXCEPTIONS.name}")
        else:
            problems += [f'{name}:{line}: hard start: "{text}"' for line, text in places]
    problems += [f"{name}: is not there; take it out of {EXCEPTIONS.name}" for name in exceptions]
    return problems


def main() -> None:
    """Print the table, or the problems that `--check` finds."""
    parser = argparse.ArgumentParser(description="Report how readable the code is.")
    parser.add_argument("--files", metavar="SUBPACKAGE", help="one row per file of a subpackage")
    parser.add_argument("--check", action="store_true", help="fail on docstrings with a hard start")
    arguments = parser.parse_args()
    if arguments.check:
        problems = check()
        print("\n".join(problems) or "No docstring begins with a hard word outside the exceptions.")
        sys.exit(bool(problems))
    print(" " * 22 + "".join(f"{column:>9}" for column in COLUMNS))
    if arguments.files:
        for path in sorted((PACKAGE / arguments.files).rglob("*.py")):
            print(row(path.name, measure(path)))
        return
    for name, paths in folders():
        print(row(name, sum((measure(path) for path in paths), Counter())))


if __name__ == "__main__":
    main()
