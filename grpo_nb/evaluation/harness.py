"""The same questions in lm-evaluation-harness, for a number that does not come from this kit (`pip install lm_eval`, MIT).

The prompts are written out as the chat template renders them, so that both ask with the same tokens. The harness reads
answers with a regular expression and compares text, where the kit compares numbers: 7.0 for 7 is right here and wrong there.
Written for its version 0.4.13, and tried with it.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.core.tables import Part, Shown, code
from grpo_nb.tasks.formats import AnswerFormat

if TYPE_CHECKING:
    from grpo_nb.evaluation.heldout import HeldOut
    from grpo_nb.tasks.task import Task

# The harness's own tasks, asked as `load_holdout` asks.
_KNOWN = {"gsm8k": "--tasks gsm8k --num_fewshot 5 --apply_chat_template --fewshot_as_multiturn"}


@dataclass(frozen=True, repr=False)
class HarnessTask(Shown):
    """A folder that lm-evaluation-harness takes with `--include_path`, and the command for it."""

    name: str
    folder: Path

    def command(self, model: str | Path) -> str:
        """Return the line to type for a model folder, such as a merged export."""
        arguments = f"--tasks {shlex.quote(self.name)} --include_path {shlex.quote(str(self.folder))}"
        return f"{_start(model)} {arguments}"

    def _parts(self) -> Iterable[Part]:
        yield code(f"{self.folder / self.name}.yaml")
        yield code(self.command("<model folder>"))


def harness_command(model: str | Path, set_name: str) -> str | None:
    """Return the line to type for a set that the harness has itself; None for any other.

    >>> harness_command("exports/my-model", "gsm8k").split("--tasks ")[1]
    'gsm8k --num_fewshot 5 --apply_chat_template --fewshot_as_multiturn'
    """
    return f"{_start(model)} {_KNOWN[set_name]}" if set_name in _KNOWN else None


def _start(model: str | Path) -> str:
    return f"lm_eval --model hf --model_args pretrained={shlex.quote(str(model))} --batch_size 8"


def write_harness_task(
    task: Task | HeldOut,
    folder: str | Path,
    tokenizer: Any,
    *,
    name: str | None = None,
    max_completion_length: int = 48,
) -> HarnessTask:
    """Write the held-out questions of a task as one of lm-evaluation-harness: a YAML file and the prompts beside it.

    Args:
        task: Its `holdout` is asked, greedily, and its `format` says where answers stand.
        folder: Made if it is not there.
        tokenizer: Whose chat template renders the prompts.
        name: In the harness; that of the task if not given.
        max_completion_length: Tokens.

    Raises:
        ValueError: A name that is none.
    """
    import yaml

    name = name or re.sub(r"[^a-z0-9]+", "_", f"grpo_nb_{task.name}".lower()).strip("_")
    if not re.fullmatch(r"[A-Za-z0-9_.-]+", name):
        raise ValueError(f"name = {name!r} may hold letters, digits, '.', '_' and '-' only.")
    folder = Path(folder).expanduser().absolute()
    folder.mkdir(parents=True, exist_ok=True)
    data = folder / f"{name}.jsonl"
    chat = getattr(task, "chat_template_kwargs", {})
    with data.open("w", encoding="utf-8") as file:
        for row in task.holdout:
            prompt = tokenizer.apply_chat_template(row["prompt"], add_generation_prompt=True, tokenize=False, **chat)
            file.write(json.dumps({"prompt": prompt, "answer": str(row["answer"])}) + "\n")
    settings = {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "generate_until",
        "num_fewshot": 0,  # the examples are in the prompts
        "doc_to_text": "{{prompt}}",
        "doc_to_target": "{{answer}}",
        "target_delimiter": "",
        # Without an end of its own the harness stops at the first empty line.
        "generation_kwargs": {
            "until": [tokenizer.eos_token], "do_sample": False, "max_gen_toks": max_completion_length,
        },
        "filter_list": [
            {
                "name": "answer",
                "filter": [
                    {"function": "regex", "regex_pattern": answer_pattern(task.format)},
                    {"function": "take_first"},
                ],
            }
        ],
        "metric_list": [
            {
                "metric": "exact_match", "aggregation": "mean", "higher_is_better": True, "ignore_case": True,
                "regexes_to_ignore": [",", r"\$"],
            }
        ],
        "metadata": {"version": 1.0},
    }  # fmt: skip
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False, allow_unicode=True))
    return HarnessTask(name, folder)


def answer_pattern(format: AnswerFormat) -> str:
    r"""Return the regular expression that finds an answer of this format.

    >>> re.findall(answer_pattern(AnswerFormat(name="x", answer_open="#### ")), "6 + 1 = 7\n#### 7\n")
    ['7']
    """
    start = re.escape(format.answer_open.strip())
    if not format.answer_close:
        return rf"{start}\s*(.*\S)"
    # To the last brace of the line: a regular expression cannot count braces, and an answer may hold some.
    inner = r"(.*)" if format.answer_close == "}" else r"((?:.|\n)*?)"
    return rf"{start}\s*{inner}\s*{re.escape(format.answer_close)}"
