"""A template with a thinking mode renders the same prompt everywhere."""

import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

import grpo_nb as gn
from tests.run_fixtures import brevity
from tests.support.tiny import THINKING_TEMPLATE, load_tiny

pytestmark = pytest.mark.begins(60)

SIZES = {"train_size": 8, "holdout": 4}
ENDS = {True: "assistant\n<think>\n", False: "assistant\n<think>\n</think>\n\n"}


@pytest.fixture(scope="module")
def folder(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny model with this template."""
    folder = tmp_path_factory.mktemp("thinking") / "model"
    shutil.copytree(tiny_folder, folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.chat_template = THINKING_TEMPLATE
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def rendered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Prompts that the chat template rendered, in their order."""
    made: list[str] = []
    real = PreTrainedTokenizerBase.apply_chat_template

    def seen(self: Any, conversation: Any, *args: Any, **how: Any) -> Any:
        result = real(self, conversation, *args, **how)
        found = result["input_ids"] if hasattr(result, "keys") else result
        found = found.tolist() if hasattr(found, "tolist") else found
        found = found if isinstance(found, list) and not isinstance(found[0], int) else [found]
        made.extend(one if isinstance(one, str) else self.decode(one) for one in found)
        return result

    monkeypatch.setattr(PreTrainedTokenizerBase, "apply_chat_template", seen)
    return made


class Thinking(SimpleNamespace):
    """A model, what it is trained on with thinking on or off, and its finished run."""

    def prompts(self, rows: Any) -> set[str]:
        """Return the prompts as transformers renders them, without the kit."""
        how = {"add_generation_prompt": True, "tokenize": False, "enable_thinking": self.is_on}
        return {self.tokenizer.apply_chat_template(row["prompt"], **how) for row in rows}


@pytest.fixture(scope="module", params=[True, pytest.param(False, marks=pytest.mark.slow)])
def trained(
    request: pytest.FixtureRequest, folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> Thinking:
    model, tokenizer, _, settings = load_tiny(
        folder,
        8,
        4,
        max_steps=2,
        max_completion_length=32,
        holdout_every=1,
        run_root=str(tmp_path_factory.mktemp("runs")),
    )
    asked = {"enable_thinking": request.param}
    how = {**SIZES, "tokenizer": tokenizer, "format": gn.tasks.think_answer()}
    task = gn.load_task("arithmetic", settings, **how, chat_template_kwargs=asked)
    run = gn.train(model, tokenizer, task, [brevity], settings)
    return Thinking(
        model=model, tokenizer=tokenizer, task=task, settings=settings, run=run, is_on=request.param
    )


PLACES: dict[str, Callable[[Thinking, Path], Any]] = {
    "training and held-out curve": lambda t, _: gn.train(
        t.model, t.tokenizer, t.task, [brevity], t.settings
    ),
    "dry run": lambda t, _: gn.dry_run(t.model, t.tokenizer, t.task, [brevity], t.settings),
    "baseline": lambda t, _: gn.baseline(
        t.model, t.tokenizer, t.task, [brevity], t.settings, prompts=2
    ),
    "model in memory": lambda t, _: gn.evaluate(
        (t.model, t.tokenizer), t.task, max_completion_length=4
    ),
    "opened run, its own questions": lambda t, _: gn.compare(
        gn.open_run(t.run.path), max_completion_length=4
    ),
    "opened run, a set of questions": lambda t, _: gn.evaluate(
        gn.open_run(t.run.path), [{"question": "1 + 1?", "answer": "2"}], max_completion_length=4
    ),
    "lengths": lambda t, _: t.task.without_long_prompts(t.tokenizer, 256),
    "plan": lambda t, _: gn.plan(t.settings, t.task, model=t.model, tokenizer=t.tokenizer),
    "task": lambda t, _: repr(t.task),
    "lab": lambda t, _: gn.RewardLab([brevity], t.task, t.model, t.tokenizer).sample(),
    "export": lambda t, path: exported(t, path / "merged"),
}


def exported(trained: Thinking, folder: Path) -> None:
    """A verified export, and what it says to those who ask it elsewhere."""
    gn.export_merged(trained.run.path, folder)
    how = f"{{'enable_thinking': {trained.is_on}}}"
    assert f"], tokenizer_encode_kwargs={how})" in (folder / "README.md").read_text()


@pytest.mark.usefixtures("checked_here")
@pytest.mark.parametrize("place", PLACES)
def test_prompts_are_rendered_alike_everywhere(
    trained, rendered: list[str], tmp_path: Path, place: str
) -> None:
    own = trained.prompts([*trained.task.train, *trained.task.holdout])
    rendered.clear()
    PLACES[place](trained, tmp_path)
    assert rendered
    assert all(text.endswith(ENDS[trained.is_on]) for text in rendered), set(rendered)
    if "a set of questions" not in place:
        assert own & set(rendered), "and these are the prompts of the task"


def test_run_records_its_thinking_mode(trained: Thinking) -> None:
    run = gn.open_run(trained.run.path)
    task = trained.task
    assert (
        run.chat_template_kwargs
        == {"enable_thinking": trained.is_on}
        == run.settings.extra["chat_template_kwargs"]
    )
    how = {
        **SIZES,
        "format": task.format,
        "chat_template_kwargs": {"enable_thinking": not trained.is_on},
    }
    other = gn.load_task("arithmetic", trained.settings, **how)
    assert list(other.train) == list(task.train)
    assert other.fingerprint != task.fingerprint
    with pytest.raises(
        ValueError,
        match=rf"was trained with chat_template_kwargs = .*{trained.is_on}.* other prompts",
    ):
        gn.compare(run, other)
    with pytest.raises(ValueError, match="was another training"):
        more = trained.settings.replace(max_steps=4)
        gn.train(trained.model, trained.tokenizer, other, [brevity], more, resume=run.path)


def test_extra_without_the_arguments_of_the_task_is_refused(folder: Path, tmp_path: Path) -> None:
    asked = {"chat_template_kwargs": {"enable_thinking": False}}
    model, tokenizer, plain, settings = load_tiny(folder, 8, 4, max_steps=1, run_root=str(tmp_path))
    off = settings.replace(extra=asked)
    sizes = {**SIZES, "tokenizer": tokenizer}
    for other in ({"enable_thinking": True}, None):
        with pytest.raises(
            ValueError,
            match=r"write them where the task is made, gn.load_task\(..., chat_template_kwargs=",
        ):
            gn.load_task("arithmetic", off, chat_template_kwargs=other, **sizes)
    for use in (gn.train, gn.dry_run, gn.baseline):
        with pytest.raises(ValueError, match="write them where the task is made"):
            use(model, tokenizer, plain, [brevity], off)
    with pytest.raises(
        ValueError, match="'enable_thinkin', which the tokenizer's chat template does not read"
    ):
        gn.load_task(
            "arithmetic", settings, chat_template_kwargs={"enable_thinkin": False}, **sizes
        )
    assert not list(tmp_path.iterdir())
