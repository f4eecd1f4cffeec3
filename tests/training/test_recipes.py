"""The code of docs/guide/train.md runs: a fading weight, a reward model, a tracker."""

import re
from pathlib import Path

import pytest
import torch

import grpo_nb as gn
from grpo_nb.config import presets as config
from tests.conftest import ROOT

pytestmark = pytest.mark.begins(160)

BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs/guide/train.md").read_text(), re.DOTALL)


def test_code_of_the_training_guide_runs(
    tiny_folder: Path, tmp_path: Path, monkeypatch, capsys
) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from transformers import AutoTokenizer, LlamaConfig, LlamaForSequenceClassification

    torch.manual_seed(1)
    taste = LlamaForSequenceClassification(LlamaConfig.from_pretrained(tiny_folder, num_labels=1))
    taste.save_pretrained(tmp_path / "my-reward-model")
    AutoTokenizer.from_pretrained(tiny_folder).save_pretrained(tmp_path / "my-reward-model")
    sizes = {
        "max_steps": 2,
        "max_completion_length": 20,
        "holdout_every": 0,
        "num_generations": 4,
        "per_device_train_batch_size": 8,
    }
    monkeypatch.setattr(config, "PRESETS", {"cpu": {"model": str(tiny_folder), **sizes}})
    monkeypatch.setattr(config, "_preset_for_this_machine", lambda: "cpu")
    monkeypatch.chdir(tmp_path)
    assert len(BLOCKS) == 9
    names: dict[str, object] = {}
    for number, block in enumerate(BLOCKS):
        exec(compile(block, f"docs/guide/train.md, block {number}", "exec"), names)
    said = capsys.readouterr().out
    for part in (
        "A dry run\nStep 1, group 0",
        "the adapter it started from",
        "vespo",
    ):
        assert part in said, part
    assert [run.status for run in names["kept"]] == ["finished", "finished"]
    assert len(names["middle"].train) < len(names["task"].train)
    assert {run.parent.name for run in (tmp_path / "runs").glob("*/run.json")} == {
        "after-priming",
        "format",
        "answer",
        "where-groups-differ",
        "fading",
        "gspo",
        "tracked",
    }
    faded, judged = (gn.open_run(f"runs/{name}").completions() for name in ("fading", "tracked"))
    tags = gn.rewards.partial_format()(completions=list(faded["completion"]))
    expected = [
        score * (1 - 0.9 * (step - 1) / 2) for score, step in zip(tags, faded["step"], strict=True)
    ]
    assert faded["fading_tags"].tolist() == pytest.approx(expected)
    assert judged["taste"].between(0, 1).all()
    assert judged["taste"].nunique() > 4
    run = gn.open_run("runs/tracked")
    (events,) = run.path.rglob("events.out.tfevents.*")
    written = EventAccumulator(str(events.parent))
    written.Reload()
    for key in ("reward", "kl", "rewards/taste/mean"):
        found = {event.step: event.value for event in written.Scalars(f"train/{key}")}
        assert found == pytest.approx({row["step"]: row[key] for row in run.rows}, abs=1e-6)
