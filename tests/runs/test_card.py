"""The model card shows what was measured, and foreign texts stay text."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, ModelCardData

import grpo_nb as gn
from grpo_nb.export.staged_export import write_export_card
from grpo_nb.runs.card import (
    card_metadata,
    model_card,
    without_private_parts,
)
from tests.support.written_run import (
    COMPARISON,
    HOSTILE_NAME,
    HOSTILE_SOURCE,
    PRIVATE,
    compare_by_hand,
    write_private_run,
    write_run,
)


@pytest.fixture
def run(tmp_path: Path) -> gn.runs.Run:
    return write_run(tmp_path / "runs" / "first", learning_rate=3e-5)


def rendered(card: str) -> str:
    """The card as a Markdown reader shows it; the metadata is not part of it."""
    import mistune

    return mistune.create_markdown(escape=False, plugins=["table"])(card.split("\n---\n", 1)[1])


EMBEDDED = "SmolLM2-135M-Instruct"
HUB = "Qwen/Qwen3-0.6B"


@pytest.mark.parametrize(
    ("model", "base"),
    [
        # No repository has the weights that it was trained on: it must not be loaded on others.
        (EMBEDDED, None),
        (HUB, HUB),
    ],
)
def test_card_metadata_is_read_by_the_hub(
    model: str,
    base: str | None,
    tmp_path: Path,
) -> None:
    run = write_run(tmp_path / "runs" / "first", model=model)
    read = ModelCard(model_card(run)).data
    assert isinstance(read, ModelCardData)
    assert read.to_dict() == card_metadata(run).to_dict()
    assert read.base_model == base
    assert read.license == ("apache-2.0" if model == EMBEDDED else None)
    assert read.pipeline_tag == "text-generation"
    assert {"grpo", "trl", "unsloth"} <= set(read.tags)


def test_card_shows_measurements_and_sources(run: gn.runs.Run) -> None:
    assert "Not measured" in model_card(run)
    compare_by_hand(run)
    card = model_card(run)
    page = rendered(card)
    assert COMPARISON["sentence"] in page
    assert "![Training curves. The reward rose from" in card
    assert "<td>1.5</td>" in page
    assert "class correctness" in page, "weight and source of the reward"
    assert run.info["task"]["fingerprint"] in page
    assert f"seed {run.settings.seed}" in page
    assert "<td><code>learning_rate</code></td>\n  <td><code>3e-05</code></td>" in page
    assert run.info["versions"]["trl"] in page


@pytest.mark.parametrize("kind", ["run", "adapter", "merged", "gguf"])
def test_card_has_no_private_parts(kind: str, tmp_path: Path) -> None:
    run = write_private_run(tmp_path / "runs" / "first")
    compare_by_hand(run, sentence="better, as /home/somebody/notes.txt says \x1b[2J\ud800\0")
    verification = {"checks": {}, "measured": {}, "sentence": ""}
    card = model_card(run, kind, None if kind == "run" else verification)
    assert not [word for word in PRIVATE if word in card]
    assert str(tmp_path) not in card
    assert card.encode()
    assert "\x1b" not in card
    assert "\0" not in card
    for kept in ("my-model", "@host:8000/v1", "zero.json", "words.txt", "clf"):
        assert kept in card, kept
    assert ModelCard(card).data.datasets is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("openai/gsm8k", None),
        ("</answer>", None),
        ("a/b/c and /or/ not", None),
        ("re.findall('/think/x', text)", None),
        (r'"A:\n" and "\\frac{1}{2}"', None),
        ("https://example.org/home/index.html", None),
        ("about ~3/4 of it", None),
        ("/home/me/acme/model", "[removed]/acme/model"),
        ("cd /home/me", "cd [removed]"),
        ("in `/home/me`", "in `[removed]`"),
        ("os.chdir('/Users/me'), then", "os.chdir('[removed]'), then"),
        ("C:\\Users\\me", "[removed]"),
        ("x/home/me or /home alone", None),
        ("https://me:p@ss@host:8000/v1", "https://[removed]@host:8000/v1"),
        ("C:\\Users\\me\\q.csv", "[removed]\\q.csv"),
        (r"open('C:\\Users\\me\\q.csv')", r"open('[removed]\\q.csv')"),
        ("C:/Users/me/q.csv", "[removed]/q.csv"),
        ("c:\\users\\me\\q.csv", "[removed]\\q.csv"),
        ("/mnt/c/Users/me/q.csv", "[removed]/q.csv"),
        ("/media/me/d", "[removed]/d"),
        ("/run/media/me/d", "[removed]/d"),
        ("https://example.org/media/me/d", None),
        ("file:///home/me/q.csv", "file://[removed]/q.csv"),
        ("file:///C:/Users/me/q.csv", "file:///[removed]/q.csv"),
        ("r'/home/[a-z]+/data'", None),
        ("http://h/x?page=2&amp;token=abc", "http://h/x?page=2&amp;[removed]"),
        ("http://h/x?access_token=abc&b=1", "http://h/x?[removed]&b=1"),
        ("re.search(r'?key=(.*)', text)", "re.search(r'?[removed]', text)"),
        ("http://h/x?passwd=abc", "http://h/x?[removed]"),
        (r"open('C:\\Users\\Jane Doe\\q.csv')", r"open('[removed]\\q.csv')"),
        ("C:\\Users\\jane and then a/b", "[removed] and then a/b"),
        ("/mnt/c/Users/Jane Doe/q.csv", "[removed]/q.csv"),
        ("/Users/Jane Doe/q.csv", "[removed]/q.csv"),
        ("/home/jane and then", "[removed] and then"),
        ("/home/jane@corp.com/q.csv", "[removed]/q.csv"),
        ("cd /nfs/home/me/x", "cd [removed]/x"),
        ("https://example.org:80/v1/home/x", None),
        ("GET /api/v1/home/index", None),
        ("/data/home/questions.csv", None),
    ],
)
def test_private_parts_are_removed_from_text(text: str, said: str | None) -> None:
    assert without_private_parts(text) == (text if said is None else said)
    assert without_private_parts({"a": [text, 1, None]}) == {
        "a": [text if said is None else said, 1, None]
    }


@pytest.mark.parametrize(("count", "is_apart"), [(0, True), (3, False)])
def test_card_claims_no_shared_question_unless_one_was_found(
    run: gn.runs.Run, count: int, is_apart: bool
) -> None:
    found = {
        "question_count": 20,
        "trained_count": count,
        "source": "the training part of the task",
    }
    compare_by_hand(run, contamination=found)
    assert ("held-out prompts, no question in both;" in model_card(run)) == is_apart


def test_card_claims_no_disjoint_questions_without_a_check(run: gn.runs.Run) -> None:
    assert "no question in both" not in model_card(run)
    compare_by_hand(run, contamination=None)
    assert "no question in both" not in model_card(run)


@pytest.mark.parametrize("stored_hash", [{"base_weights_hash": "ab" * 16}, {}])
def test_adapter_card_promises_only_a_stored_hash(run: gn.runs.Run, stored_hash: dict) -> None:
    (run.path / "run.json").write_text(json.dumps(run.info | {"base_weights_hash": "ab" * 16}))
    card = model_card(run, "adapter", {"checks": {}, "measured": {}, "sentence": "", **stored_hash})
    assert ("has their hash" in card) == bool(stored_hash)


def test_card_shows_foreign_texts_as_text(run: gn.runs.Run) -> None:
    rewards = [
        {
            "name": HOSTILE_NAME,
            "weight": 1.0,
            "call": "f(x='a|b`c``d')",
            "source": HOSTILE_SOURCE,
            "hash": "",
        }
    ]
    info = run.info | {
        "rewards": rewards,
        "versions": {"<b>x</b>": "1|2"},
        "reference": "a <video src=x> [a](javascript:c)",
    }
    info["task"]["name"] = HOSTILE_NAME + "\n---\nlicense: mit"
    (run.path / "run.json").write_text(json.dumps(info))
    compare_by_hand(run, sentence="better <img src=x> [a](javascript:b) | c")
    card = model_card(run)
    page = rendered(card)
    tags = re.findall(r"<(\w+)", page)
    # What the card itself uses, and nothing else.
    allowed = {"h1", "h2", "p", "a", "img", "code", "pre", "details", "summary"}
    allowed |= {"table", "thead", "tbody", "tr", "th", "td"}
    assert set(tags) <= allowed
    assert tags.count("img") == 1
    assert tags.count("details") == 2
    assert tags.count("h1") == 1
    assert "javascript:b)" in page
    assert 'href="javascript' not in page
    assert "# not a heading" in page
    assert page.count("</details>") == 2
    reward_table = page.split("<h2>Rewards</h2>")[1].split("</table>")[0]
    assert reward_table.count("<tr>") == 2
    assert reward_table.count("<td>") == 3
    data = ModelCard(card).data
    assert data.license == "apache-2.0"
    assert data.datasets is None


def test_export_card_copies_its_figure(run: gn.runs.Run, tmp_path: Path) -> None:
    folder = tmp_path / "export"
    folder.mkdir()
    checks = {"tensors finite and complete": True, "text | equal": None}
    verification = {"checks": checks, "sentence": "verified"}
    write_export_card(run, folder, "merged", verification)
    text = (folder / "README.md").read_text()
    assert (folder / "figures" / "training.png").read_bytes() == (
        run.path / "figures" / "training.png"
    ).read_bytes()
    assert "- passed: tensors finite and complete" in text
    assert "- not made: text \\| equal" in text


def test_card_has_the_three_holdout_measures(run: gn.runs.Run) -> None:
    after = {**COMPARISON["after"], "in_format_interval": [0.9, 1.0], "anywhere": 0.8}
    after |= {"anywhere_interval": [0.6, 0.9], "anywhere_rule": "the last number in the text"}
    compare_by_hand(run, after=after)
    card = model_card(run)
    assert "| held-out, 95 % interval | before | after |" in card
    assert "| correct | 25.0% (10.0% to 47.0%) | 75.0% (53.0% to 89.0%) |" in card
    assert "| in the format | 50.0% | 100.0% (90.0% to 100.0%) |" in card
    assert "| correct anywhere | not measured | 80.0% (60.0% to 90.0%) |" in card
    assert "Correct anywhere in the completion: the last number in the text." in card


def test_card_says_which_measure_was_not_taken(run: gn.runs.Run) -> None:
    compare_by_hand(run)
    card = model_card(run)
    assert "| correct anywhere | not measured | not measured |" in card


def test_card_does_not_say_right_and_in_the_format_of_a_function(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first")
    compare_by_hand(run, after=COMPARISON["after"] | {"is_graded_by_slot": False})
    assert "An answer is correct if a reward function says so." in model_card(run)
    compare_by_hand(run)
    assert "An answer is correct if it is right and in the format." in model_card(run)


def test_card_of_a_run_trained_elsewhere_names_its_device(run: gn.runs.Run) -> None:
    machine = {"platform": "Linux", "gpu": None, "device": "cuda:0"}
    (run.path / "run.json").write_text(json.dumps(run.info | {"machine": machine}))
    assert "Trained on another machine (device cuda:0), seed" in model_card(run)


def test_card_says_whose_system_prompt_it_shows(run: gn.runs.Run) -> None:
    assert "Questions without a system prompt of their own get this one" in model_card(run)


@pytest.mark.parametrize(
    "name",
    [
        "hub_token",
        "HUB_TOKEN",
        "Api_Key",
        "api_keys",
        "passwd",
        "hub-token",
        "apiKey",
        "secrets",
        "clientSecret",
        "api_tokens",
        "my_hf_tokens",
        "Authorization",
    ],
)
def test_secret_names_are_left_out_in_any_case(name: str) -> None:
    assert without_private_parts({name: "hf_1234", "beta": 0.1}) == {"beta": 0.1}


def test_local_base_stays_local_in_another_folder(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", model="models/mine")
    assert card_metadata(run).base_model == "models/mine"
    (run.path / "run.json").write_text(json.dumps(run.info | {"is_base_local": True}))
    assert card_metadata(run).base_model is None
    assert "mine (local)" in model_card(run)


def test_card_of_an_adapter_without_a_verification_is_written(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", model="models/mine")
    (run.path / "run.json").write_text(json.dumps(run.info | {"is_base_local": True}))
    assert "base_weights_hash" not in model_card(run, "adapter")


def test_model_of_unknown_origin_is_not_called_local(tmp_path: Path) -> None:
    run = write_run(tmp_path / "first", model="models/mine")
    info = run.info
    del info["is_base_local"]
    (run.path / "run.json").write_text(json.dumps(info))
    card = model_card(run)
    assert "mine trained with GRPO" in card
    assert "(local)" not in card


def test_tokens_of_a_tokenizer_are_no_secret() -> None:
    public = {"max_tokens": 12, "eos_token": "<|end|>", "pad_token": "<pad>"}
    assert without_private_parts({**public, "hf_token": "hf_1"}) == public


def test_fingerprint_of_a_sent_run_stays_a_text(run: gn.runs.Run) -> None:
    info = run.info
    info["task"]["fingerprint"] = "x` <img src=x> `y"
    (run.path / "run.json").write_text(json.dumps(info))
    assert "<img src=x" not in rendered(model_card(run))


def test_base_from_the_hub_stays_there_next_to_a_folder_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_run(tmp_path / "first", model=HUB)
    assert run.info["is_base_local"] is False
    (tmp_path / HUB).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert card_metadata(run).base_model == HUB


def test_card_of_a_run_without_adapter_says_so(run: gn.runs.Run) -> None:
    assert "gn.ask(" in model_card(run)
    (run.adapter_path / "adapter_model.safetensors").unlink()
    card = model_card(run)
    assert "the run has no adapter." in card
    assert "this is the LoRA adapter" not in card
    assert "gn.ask(" not in card


def test_card_of_a_machine_without_recorded_cores_names_the_cpu(run: gn.runs.Run) -> None:
    (run.path / "run.json").write_text(json.dumps(run.info | {"machine": {"gpu": None}}))
    assert "Trained on a CPU, seed" in model_card(run)
