"""Stages train one adapter one after the other, say what they are held to, and are not trained twice."""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import grpo_nb as gn
from grpo_nb.training.stages import _find_stages
from tests.conftest import ROOT, brevity
from tests.support import killed_stages
from tests.support.adapters import way_back
from tests.support.own_rewards import Fading, hashed
from tests.support.run_folders import untimed
from tests.support.tiny import load_tiny

pytestmark = pytest.mark.begins(140)


@pytest.fixture(scope="module")
def tiny(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    loaded = load_tiny(
        tiny_folder, 12, 4, max_completion_length=8, max_steps=3, warmup_steps=0, learning_rate=2e-2,
        max_grad_norm=10.0, num_generations=4, per_device_train_batch_size=8, run_root=str(tmp_path_factory.mktemp("runs")),
    )  # fmt: skip
    return *loaded, way_back(loaded[0])


def stages(steps: int = 3) -> list[gn.training.Stage]:
    return [
        gn.training.Stage(name="short", rewards=[brevity], steps=steps),
        gn.training.Stage(name="tags", rewards=[hashed, gn.rewards.xml_tags()], steps=2),
    ]


@pytest.fixture(scope="module")
def staged(tiny) -> gn.training.StagedRun:
    model, tokenizer, task, settings, again = tiny
    again()
    return gn.training.train_stages(model, tokenizer, task, stages(), settings, name="two")


def test_the_curves_are_one_line_with_the_boundary_marked(staged: gn.training.StagedRun) -> None:
    assert staged.status == "finished" and [run.status for run in staged.runs] == ["finished"] * 2
    rows = staged.rows
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5] and {row["max_steps"] for row in rows} == {5}
    assert [row["stage"] for row in rows] == ["short"] * 3 + ["tags"] * 2
    assert [row["stage_step"] for row in rows] == [1, 2, 3, 1, 2]
    assert rows[3]["reward"] == staged.runs[1].rows[0]["reward"]
    assert "rewards/brevity/mean" in rows[0] and "rewards/brevity/mean" not in rows[3]
    assert len(staged.metrics) == 5
    assert staged.plot().axes and (staged.path / "figures" / "training.png").read_bytes().startswith(b"\x89PNG")
    said = repr(staged)
    assert (
        "1. short (brevity; 3 steps): finished." in said and "KL of each stage: to the adapter it started from" in said
    )


def test_data_and_draws_go_on_where_the_stage_before_stopped(staged: gn.training.StagedRun) -> None:
    """12 questions, 2 of them in each step: the second stage begins with those that the first has not sampled."""
    first, second = (run.completions() for run in staged.runs)
    assert first["prompt"].nunique() == 6 and second["prompt"].nunique() == 4
    assert not set(first["prompt"]) & set(second["prompt"])
    assert staged.runs[1].settings.seed == staged.runs[0].settings.seed + 1


def test_it_is_one_adapter_and_only_the_last_run_holds_the_model(staged: gn.training.StagedRun, tiny) -> None:
    model = tiny[0]
    first, last = staged.runs
    assert first.model is None and last.model is model and staged.last.name == "02-tags"
    tensors = [
        load_file(run_path / "adapter_model.safetensors")
        for run_path in (staged.path / "start", first.adapter_path, last.adapter_path)
    ]
    for before, after in itertools.pairwise(tensors):
        assert any(not torch.equal(before[name], after[name]) for name in before)


def test_each_stage_is_held_to_where_it_began_or_all_to_the_base_model(staged: gn.training.StagedRun, tiny) -> None:
    model, tokenizer, task, settings, again = tiny
    assert [run.info["reference"] for run in staged.runs] == ["the base model", "the adapter it started from"]
    assert [run.rows[0]["kl"] for run in staged.runs] == pytest.approx([0, 0], abs=1e-6)
    assert staged.runs[0].rows[-1]["kl"] > 1e-4
    again()
    held = gn.training.train_stages(model, tokenizer, task, stages(), settings, name="base", reference="base")
    assert [run.info["reference"] for run in held.runs] == ["the base model"] * 2
    assert held.runs[1].rows[0]["kl"] > 1e-4 and "to the base model" in repr(held)
    assert held.runs[1].completions(1)["completion"].tolist() == staged.runs[1].completions(1)["completion"].tolist()


def test_a_stage_begins_with_the_adapter_that_the_one_before_has_left(tiny) -> None:
    """No answer is ever right, so the first score is the best one."""
    model, tokenizer, task, settings, again = tiny
    again()
    best = settings.replace(keep="best", holdout_every=1)
    first, second = gn.training.train_stages(model, tokenizer, task, stages(), best, name="best").runs
    assert first.info["adapter_step"] == 1 and (first.path / "adapter-last").is_dir()
    left, begun = (load_file(f / "adapter_model.safetensors") for f in (first.adapter_path, second.path / "reference"))
    assert left.keys() == begun.keys() and all(torch.equal(left[name], begun[name]) for name in left)


def test_finished_stages_are_not_trained_again(staged: gn.training.StagedRun, tiny, monkeypatch) -> None:
    model, tokenizer, task, settings, again = tiny
    expected = staged.last.adapter_path
    again()
    monkeypatch.setattr(
        "grpo_nb.training.session.train", lambda *a, **k: pytest.fail("a finished stage was trained again")
    )
    saved_more_often = settings.replace(save_steps=1, stop_on_alert="critical")
    for how in ({"name": "two", "resume": "auto"}, {"resume": "two"}, {"resume": staged.path}):
        same = gn.training.train_stages(model, tokenizer, task, stages(), saved_more_often, **how)
        assert same.status == "finished" and same.rows == staged.rows
    assert_adapter(model, expected)


def assert_adapter(model, folder: Path) -> None:
    from peft import get_peft_model_state_dict

    saved, now = load_file(folder / "adapter_model.safetensors"), get_peft_model_state_dict(model)
    assert saved.keys() == now.keys() and all(torch.equal(saved[name], now[name]) for name in saved)


def test_a_stage_that_was_interrupted_goes_on_and_ends_the_same(staged: gn.training.StagedRun, tiny) -> None:
    model, tokenizer, task, settings, again = tiny
    calls = []

    def xml_tags(completions: list, **columns: object) -> list[float]:
        calls.append(1)
        if len(calls) == 4:  # tried before the stages, tried before its own, one step, and the next
            raise KeyboardInterrupt
        return gn.rewards.xml_tags()(completions=completions)

    plan = stages()
    stopping = [plan[0], gn.training.Stage(name="tags", rewards=[plan[1].rewards[0], xml_tags], steps=2)]
    again()
    stopped = gn.training.train_stages(model, tokenizer, task, stopping, settings, name="stopped")
    assert stopped.status == "interrupted" and [run.status for run in stopped.runs] == ["finished", "interrupted"]
    assert len(stopped.rows) == 4 and "gn.training.train_stages(..., name='stopped', resume='auto')" in repr(stopped)
    kept = stopped.path.with_name("kept")
    shutil.copytree(stopped.path, kept)
    again()  # another process, with a model just loaded
    with pytest.warns(UserWarning, match="closure calls was list .* nothing is wrong"):
        whole = gn.training.train_stages(model, tokenizer, task, stopping, settings, name="stopped", resume="auto")
    assert whole.runs[1].info["resumed"][0]["step"] == 1
    assert_same(whole, staged)
    assert_adapter(model, staged.last.adapter_path)
    # Without a checkpoint to go on from, the stage begins again, and what it left is kept.
    for manifest in (kept / "02-tags").glob("checkpoints/*/manifest.json"):
        manifest.unlink()
    again()
    with pytest.warns(UserWarning, match=r"no complete checkpoint \(checkpoint-1: it has no manifest.* begins again"):
        whole = gn.training.train_stages(model, tokenizer, task, stopping, settings, name="kept", resume="auto")
    assert (kept / "02-tags.unfinished-1" / "metrics.jsonl").is_file() and "resumed" not in whole.runs[1].info
    assert_same(whole, staged)


def assert_same(whole: gn.training.StagedRun, staged: gn.training.StagedRun) -> None:
    assert whole.status == staged.status == "finished" and "To go on" not in repr(whole)
    assert untimed(whole.rows) == untimed(staged.rows)


def test_stages_killed_at_any_place_end_as_if_nothing_had_happened(tiny_folder: Path, tmp_path: Path) -> None:
    root = str(tmp_path / "runs")
    command = [sys.executable, "-m", "tests.support.killed_stages", str(tiny_folder), root]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    killed = gn.training.open_stages(tmp_path / "runs" / "killed")
    assert [run.status for run in killed.runs] == ["finished", "crashed"]
    # The end is done by this process, which has nothing of the others but their files.
    threads = torch.get_num_threads()
    try:
        killed_stages.train(*killed_stages.loaded(str(tiny_folder), root), "killed")
    finally:
        torch.set_num_threads(threads)
    whole = gn.training.open_stages(tmp_path / "runs" / "whole")
    assert [run.info["resumed"][0]["step"] for run in killed.runs] == [0, 2] and "resumed" not in whole.last.info
    assert_same(killed, whole)
    factors = [row["brevity/factor"] for row in whole.rows]
    assert all(after < before for before, after in itertools.pairwise(factors)), (
        "the second stage knows what the first learnt"
    )
    ours, theirs = (load_file(run.last.adapter_path / "adapter_model.safetensors") for run in (killed, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)


def test_a_start_without_a_plan_is_begun_anew(tiny) -> None:
    model, tokenizer, task, settings, again = tiny
    again()
    folder = Path(settings.run_root) / "early"
    (folder / "start").mkdir(parents=True)  # killed before the plan was written
    (folder / "start" / "adapter_model.safetensors").write_bytes(b"primed")
    run = gn.training.train_stages(model, tokenizer, task, [gn.training.Stage(name="a", rewards=[brevity], steps=1)], settings,
                          name="early", resume="auto")  # fmt: skip
    assert run.status == "finished"
    aside = folder.with_name("early.unfinished-1") / "start" / "adapter_model.safetensors"
    assert aside.read_bytes() == b"primed", "an adapter is never removed"
    (folder / "stages.json").unlink()
    with pytest.raises(FileExistsError, match="never overwritten"):
        gn.training.train_stages(model, tokenizer, task, stages(), settings, name="early", resume="auto")
    assert (folder / "01-a" / "metrics.jsonl").is_file(), "what was trained is never removed"


def test_alerts_stand_at_their_step_in_the_curves_of_all_stages(
    staged: gn.training.StagedRun, tmp_path: Path, monkeypatch
) -> None:
    copy = tmp_path / "alerted"
    shutil.copytree(staged.path, copy)
    for folder, step in (("01-short", 2), ("02-tags", 1)):
        alert = gn.runs.Alert(
            rule="kl_spike", severity="info", step=step, message="KL 3.", why="Odd text.", advice="Look."
        )
        (copy / folder / "alerts.jsonl").write_text(json.dumps(alert.to_dict()) + "\n")
    opened = gn.training.open_stages(copy)
    assert [(alert.step, alert.message) for alert in opened.alerts] == [(2, "short: KL 3."), (4, "tags: KL 3.")]
    text = " ".join(text.get_text() for text in opened.plot().texts)
    assert "step 4: tags: KL 3." in text and "step 2: short: KL 3." in text


other_tags = gn.rewards.xml_tags(format=gn.tasks.think_answer())


def test_only_the_same_stages_go_on(staged: gn.training.StagedRun, tiny) -> None:
    model, tokenizer, task, settings, _ = tiny
    for changed, told in (
        (stages(steps=4), "'short' of 'two' was planned with other max_steps"),
        (stages()[:1], r"another plan: stages was \['short', 'tags'\], is \['short'\]"),
        ([stages()[0], gn.training.Stage(name="tags", rewards=[gn.rewards.xml_tags()], steps=2)], "other rewards"),
        (
            [stages()[0], gn.training.Stage(name="tags", rewards=[stages()[1].rewards[0], other_tags], steps=2)],
            "other parameters of the reward 'xml_tags': format.name was 'xml', is 'think'",
        ),
    ):
        with pytest.raises(ValueError, match=told):
            gn.training.train_stages(model, tokenizer, task, changed, settings, name="two", resume="auto")
    with pytest.raises(ValueError, match="another plan: reference was 'start', is 'base'"):
        gn.training.train_stages(
            model, tokenizer, task, stages(), settings, name="two", resume="auto", reference="base"
        )
    with pytest.raises(FileExistsError, match="never overwritten"):
        gn.training.train_stages(model, tokenizer, task, stages(), settings, name="two")
    with pytest.raises(FileNotFoundError, match=r"'.*three' is no staged run"):
        gn.training.train_stages(model, tokenizer, task, stages(), settings, resume="three")
    with pytest.raises(ValueError, match="names one run and name = 'three' another"):
        gn.training.train_stages(model, tokenizer, task, stages(), settings, name="three", resume="two")


def test_auto_without_a_name_goes_on_with_the_newest_that_is_not_finished(
    staged: gn.training.StagedRun, tmp_path: Path
) -> None:
    plan = staged.plan
    assert _find_stages(staged.path.parent, "two", "auto", plan) == staged.path, "finished, and named"
    finished = shutil.copytree(staged.path, tmp_path / "finished")
    assert _find_stages(tmp_path, None, "auto", plan) == finished, "the same stages are given back"
    assert _find_stages(tmp_path, None, "auto", {**plan, "task": "another"}) is None
    assert _find_stages(tmp_path, "other", "auto", plan) is None
    for name, time in (("early", 1), ("late", 2)):
        (tmp_path / name).mkdir()
        shutil.copy(staged.path / "stages.json", tmp_path / name)
        os.utime(tmp_path / name / "stages.json", (time, time))
    os.utime(finished / "stages.json", (0, 0))
    assert _find_stages(tmp_path, None, "auto", {**plan, "task": "another"}) == tmp_path / "late", "not finished"


def broken(completions: list, **columns: object) -> list[float]:
    return []


@pytest.mark.parametrize(
    ("wrong", "told"),
    [
        ([], "stages is empty"),
        ([("a", [brevity], {}), ("a", [brevity], {})], "two stages are named 'a'"),
        ([("a/b", [brevity], {})], "may hold up to 90 letters"),
        ([("a", [], {})], "rewards is empty"),
        ([("a", [brevity], {}), ("b", [broken], {})], "it returned 0 scores for 1 completions"),
        ([("a", [brevity], {}), ("b", [brevity], {"extra": {"save_strategy": "nope"}})], "save_strategy"),
    ],
)
def test_a_mistake_in_any_stage_is_found_before_the_first(tiny, tmp_path: Path, wrong, told: str) -> None:
    model, tokenizer, task, settings, _ = tiny
    settings = settings.replace(run_root=str(tmp_path / "none"))
    with pytest.raises(ValueError, match=told):
        plan = [gn.training.Stage(name=n, rewards=r, settings=settings.replace(**changes)) for n, r, changes in wrong]
        gn.training.train_stages(model, tokenizer, task, plan, settings)
    assert not (tmp_path / "none").exists()


def test_stages_share_one_model_and_need_settings(tiny, tmp_path: Path) -> None:
    model, tokenizer, task, settings, _ = tiny
    other = gn.training.Stage(name="b", rewards=[brevity], settings=settings.replace(lora_rank=4))
    with pytest.raises(ValueError, match="lora_rank is 4 and the model has 16"):
        gn.training.train_stages(model, tokenizer, task, [stages()[0], other], settings)
    with pytest.raises(ValueError, match="'short' has no settings"):
        gn.training.train_stages(model, tokenizer, task, stages())


def test_a_stage_can_take_its_questions_from_the_one_before(tiny, tmp_path: Path) -> None:
    model, tokenizer, task, settings, again = tiny
    again()
    asked = []

    def solved_left_out(task: gn.tasks.Task, run: gn.training.StagedRun) -> gn.tasks.Task:
        rates = task.with_pass_rates(run, reward="brevity_too", threshold=0.0).curriculum(0, 1, unmeasured="drop")
        asked.extend(rates.train["question"])
        return rates

    fading = Fading(brevity)
    run = gn.training.train_stages(
        model, tokenizer, task,
        [gn.training.Stage(name="one", rewards=[fading, brevity_too], steps=2),
         gn.training.Stage(name="two", rewards=[fading, brevity_too], steps=1, task=solved_left_out)],
        settings.replace(run_root=str(tmp_path)), name="chosen",
    )  # fmt: skip
    seen = {json.loads(p)[-1]["content"] for p in run.runs[0].completions()["prompt"]}
    assert set(asked) == seen and len(seen) == 4
    assert {json.loads(p)[-1]["content"] for p in run.runs[1].completions()["prompt"]} <= seen
    # A reward that remembers goes on in the second stage with what the first has taught it.
    ratios = [row["rewards/brevity/mean"] / row["rewards/brevity_too/mean"] for row in run.rows]
    assert ratios[2] < ratios[0]


def brevity_too(completions: list, **columns: object) -> list[float]:
    return brevity(completions)


def test_opening_loads_no_model(staged: gn.training.StagedRun) -> None:
    opened = gn.training.open_stages(staged.path)
    assert opened.rows == staged.rows and opened.last.model is None
    with pytest.raises(FileNotFoundError, match="no staged run"):
        gn.training.open_stages(staged.path / "01-short")
