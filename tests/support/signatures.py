"""Signatures read from source files by their syntax, so that no GPU code is imported."""

from __future__ import annotations

import ast
import importlib.util
import json
from pathlib import Path

FACTS = json.loads((Path(__file__).parent.parent / "data" / "vllm_facts.json").read_text())


def text_of(file: str) -> str:
    """The source of a file of an installed package, as `unsloth/models/loader.py`."""
    package, _, rest = file.partition("/")
    return (Path(importlib.util.find_spec(package).origin).parent / rest).read_text()


def parameters_of(file: str, dotted: str) -> list[str]:
    """The named parameters of a function or method."""
    node: ast.AST = ast.parse(text_of(file))
    for name in dotted.split("."):
        kinds = (ast.ClassDef, ast.FunctionDef)
        node = next(n for n in ast.walk(node) if isinstance(n, kinds) and n.name == name)
    return [
        a.arg
        for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)
        if a.arg != "self"
    ]
