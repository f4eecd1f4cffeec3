"""A model in any form gets the same questions through the same template, and answers as itself."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import grpo_nb as gn
from grpo_nb.evaluation.model_sources import default_label, locate_models
from grpo_nb.evaluation.results import Evaluation


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


def test_model_folder_is_asked_with_its_own_chat_template(
    tiny_run: gn.runs.Run, task: gn.tasks.Task, base_copy: Path, tmp_path: Path, of_base: list[str]
) -> None:
    evaluation = gn.evaluate(str(base_copy), task, run=tiny_run)
    assert texts(evaluation) != of_base
    assert "with its own tokenizer and chat template" in evaluation.description
    same = shutil.copytree(base_copy, tmp_path / "same")
    shutil.copyfile(tiny_run.path / "chat_template.jinja", same / "chat_template.jinja")
    assert texts(gn.evaluate(same, task, run=tiny_run)) == of_base


def test_run_of_a_comparison_is_that_of_its_last_model(
    tiny_run: gn.runs.Run, tmp_path: Path
) -> None:
    earlier = gn.open_run(shutil.copytree(tiny_run.path, tmp_path / "earlier"))
    _, run = locate_models([earlier, tiny_run])
    assert run.path == tiny_run.path


def test_name_of_the_current_folder_is_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert default_label(".") == tmp_path.name


Call = Callable[[gn.runs.Run, gn.tasks.Task, Path], Any]

REFUSED = [
    pytest.param(
        lambda run, task, path: gn.evaluate("base", task),
        ValueError,
        "'base' is an earlier model of a run",
        id="base without a run",
    ),
    pytest.param(
        lambda run, task, path: gn.evaluate(path, task),
        FileNotFoundError,
        "is not a model folder",
        id="empty folder",
    ),
    pytest.param(
        lambda run, task, path: gn.evaluate(run.adapter_path, task),
        FileNotFoundError,
        r"If it is a LoRA, .*gn\.load_model\(settings, adapter=",
        id="folder of an adapter",
    ),
    pytest.param(
        lambda run, task, path: gn.compare(run, against="my-modle", task=task),
        FileNotFoundError,
        "'my-modle' is not a folder here .*cannot be downloaded from the Hub",
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
        "no questions were given",
        id="no questions",
    ),
    pytest.param(
        lambda run, task, path: gn.compare(run, run),
        ValueError,
        r"name the keyword: gn\.compare\(run_or_model, task, against=other\)",
        id="another run as the task",
    ),
    pytest.param(
        lambda run, task, path: gn.evaluate((run.model, run.tokenizer), task, samples=0),
        ValueError,
        "samples = 0 must be a whole number of at least 1",
        id="no samples",
    ),
    pytest.param(
        lambda run, task, path: gn.evaluate((run.model, run.tokenizer), task, grader="maths"),
        ValueError,
        "'maths' is not a reward function",
        id="grader is a text",
    ),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED)
def test_impossible_call_is_refused_before_loading(
    tiny_run: gn.runs.Run,
    task: gn.tasks.Task,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    call: Call,
    error: type[Exception],
    message: str,
) -> None:
    monkeypatch.setattr(
        "grpo_nb.evaluation.exam.open_model",
        lambda *args, **kwargs: pytest.fail("a model was loaded"),
    )
    with pytest.raises(error, match=message):
        call(tiny_run, task, tmp_path)


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
