"""From a trained adapter to files that work elsewhere, each verified to be the trained model: merged, and the adapter alone.

GGUF files are made by `export_gguf`.
"""

from __future__ import annotations

import filecmp
import json
import re
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_nb.core.files import check_target, put_in_place, staged_folder, target_of, write_json
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.core.progress import progress_bar
from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.evaluation.ask import evaluate
from grpo_nb.evaluation.comparison import open_comparison
from grpo_nb.evaluation.heldout import read_answers
from grpo_nb.export.merge import SHARD_SIZE, WIDTHS, merge
from grpo_nb.export.result import Export as Export
from grpo_nb.export.result import ExportError as ExportError
from grpo_nb.export.result import Report, in_4bit_words, recorded_files, require_passed, require_readable, told
from grpo_nb.export.tensors import TensorFolder
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.host import free_memory_bytes
from grpo_nb.models.identity import template_of, tokenizer_for, weights_identity
from grpo_nb.models.load import resolve_model
from grpo_nb.models.unsloth import import_unsloth
from grpo_nb.runs.card import published_name, shareable, write_export_card, write_model_card
from grpo_nb.runs.checkpoints import is_disk_full
from grpo_nb.runs.run import Run, open_run
from grpo_nb.tasks.formats import AnswerFormat

# More prompts make the share of equal texts finer, and the check longer: two models answer them on the CPU.
VERIFIED_PROMPTS = 16
# Of each answer: enough for hundreds of words that are compared, and minutes instead of hours where completions are long.
VERIFIED_TOKENS = 64
# For the first model's answers. A model for which that is short is compared on fewer prompts and tokens.
VERIFIED_SECONDS = 300
_LEVEL = 0.95


def export_merged(
    run: Run | str | Path,
    path: str | Path,
    *,
    dtype: str = "auto",
    overwrite: bool = False,
    low_memory: bool | str = "auto",
    report: Report | None = None,
) -> Export:
    """Merge the run's adapter into the 16-bit base, save it as safetensors, and verify what was saved.

    A short training changes many weights by less than bfloat16 can hold next to them, and rounding then takes that part of
    the training away. `auto` measures this: bfloat16 where at least 95 % of the change survives, else float16, whose steps
    are eight times finer, else float32 at twice the size.

    Works the same for runs trained in 4 and in 16 bit: the adapter is always merged into the 16-bit weights, tensor by tensor
    from the base's files where the adapter is a plain LoRA, so that the model need not fit into memory. After a training in 4
    bit the merged model may answer otherwise than the run did: where it fits into memory it is asked the questions of the run's
    comparison, both scores are told, and it warns where the merged model's is outside of the run's interval. The folder is
    written under another name and renamed only after a separate process, which imports neither the kit nor unsloth, has
    loaded it with `transformers.pipeline` and found it equal to base plus adapter on held-out prompts.

    Args:
        run: A run with an adapter, from `train` or `open_run`, or its folder.
        path: The folder to make.
        dtype: `auto`, `bfloat16`, `float16` or `float32`.
        overwrite: Replace an existing folder, once the new one is verified.
        low_memory: `True` refuses where the merge needs the whole model in memory, `False` does it there; the files are the
            same.
        report: Called with one line per stage.

    Raises:
        FileExistsError: The folder exists and `overwrite` is false.
        EnvironmentProblem: Too little disk or memory.
        ExportError: The merged model is not the trained one. Nothing is left at `path`.

    >>> gn.export_merged(gn.open_run("runs/first"), "exports/first")  # doctest: +SKIP
    """
    if not isinstance(dtype, str) or dtype not in ("auto", *WIDTHS):
        raise ValueError(f"dtype = {dtype!r} is not one of 'auto', {', '.join(map(repr, WIDTHS))}.")
    if low_memory not in ("auto", True, False):
        raise ValueError(f"low_memory = {low_memory!r} is not one of 'auto', True, False.")
    run, tell = open_run(run), told(report)

    def make(staged: Path) -> dict[str, Any]:
        return make_merged(run, staged, dtype=dtype, low_memory=low_memory, report=tell)

    return make_export(run, "merged", path, make, overwrite=overwrite)


def make_export(
    run: Run, kind: str, path: str | Path, make: Callable[[Path], dict[str, Any]], *, overwrite: bool
) -> Export:
    """Check before what can be known before, make an export beside its place, put it there, and note it in its run.

    Args:
        run: What is exported.
        kind: `merged`, `adapter` or `gguf`.
        path: The folder to make.
        make: Fills an empty folder and returns the verification, in which everything has passed.
        overwrite: Replace an existing folder, once the new one is verified.
    """
    target = target_of(path)
    check_target(target, overwrite, needed_by(run))
    require_adapter(run)
    import_unsloth()  # before the transformers that the merge itself uses
    with staged_folder(target) as staged:
        try:
            verification = make(staged)
            verification["files"] = recorded_files(staged)
            write_json(staged / "verification.json", verification)
            said = in_4bit_words(verification)
            write_export_card(run, staged, kind, verification=verification, said=said)
        except Exception as error:
            if not is_disk_full(error, is_of_a_writer=True):
                raise
            raise EnvironmentProblem(
                f"the disk of {target} became full while the export was made, and nothing of it was kept. Free some space, or "
                f"choose a folder on another disk ({type(error).__name__})."
            ) from error
        put_in_place(staged, target, overwrite=overwrite)
    export = Export(target, verification, kind, run)
    noted = [kind.replace("gguf", "GGUF"), *(verification[k] for k in ("dtype", "quantization") if k in verification)]
    try:
        run.record_export(str(target), " ".join(noted), export.sentence)
        write_model_card(run)
    except OSError as error:  # the export is no worse for it
        warnings.warn(
            f"{target} is complete and verified, but could not be noted in the run's folder ({error}).", stacklevel=3
        )
    return export


def needed_by(run: Run) -> list[Path]:
    """Folders that an export of the run must not replace: its own, and that of its base if it is one of the user's."""
    base = Path(run.settings.model).expanduser()
    return [run.path, run.adapter_path, *([base] if base.is_dir() else [])]


def weights_folder(run: Run) -> Path:
    """Folder of the 16-bit base that the run's adapter belongs on; fetched from the Hub where only a quantized copy is here.

    Raises:
        FileNotFoundError: Its folder is gone.
    """
    try:
        base = resolve_model(run.settings.model)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"the base model of the run {run.name!r} is not at {run.settings.model!r} any more (looked in {Path.cwd()}), and "
            "an adapter is nothing without it. Put it back there, or make a link of that name to where it is."
        ) from error
    if Path(base).is_dir():
        return Path(base)
    from huggingface_hub import snapshot_download

    return Path(snapshot_download(base, allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]))


def make_merged(run: Run, staged: Path, *, dtype: str, low_memory: bool | str, report: Report) -> dict[str, Any]:
    """Write the merged model to an empty folder, verify it, and return and write the verification."""
    if not run.holdout:
        raise ExportError(
            f"the run {run.name!r} has no held-out questions, and a merged model is verified by its answers to them. Use "
            "export_adapter, or train with some held out."
        )
    base = weights_folder(run)
    known = require_same_base(run, base)
    kept = merge(
        base, run.adapter_path, staged, dtype=dtype, low_memory=low_memory, shard_size=SHARD_SIZE, report=report
    )
    tokenizer_for(run.path, base).save_pretrained(staged)
    report("verifying the merged model in a process of its own")
    verification = kept | run_check(verification_request(base, run, staged), "the merged model")
    add_score(verification, run, "adapter", "adapter")
    require_passed(verification, "the merged model")
    verification["checks"] = known | verification["checks"]
    if run.settings.load_in_4bit:
        report("asking the merged model the held-out questions of the run's comparison")
        verification["trained_in_4bit"] = score_beside_run(run, staged)
    return verification


def score_beside_run(run: Run, folder: Path) -> dict[str, Any]:
    """Ask a merged model what the run's own comparison asked; return its score and the run's in words, with the numbers.

    For a run that was trained in 4 bit: its adapter learnt beside weights that are rounded otherwise than those it is merged
    into. Never raises: the export is verified to be what it is, whatever comes of this.
    """
    if not (run.path / "comparison" / "comparison.json").is_file():
        return {"said": "not measured: the run has no comparison of its own (gn.compare(run)) to hold it against"}
    try:
        theirs = open_comparison(run.path).after
        if (needed := _room_needed(folder)) is not None:
            return {"said": f"not measured: the model does not fit into what is free, {needed}"}
        how = {name: theirs.decoding.get(name) for name in ("temperature", "max_completion_length", "seed")}
        mine = evaluate(folder, run=run, limit=theirs.questions, samples=theirs.samples, allow_contaminated=True, **how)
        same = [(e.decoding, e.judged_by, [row["question"] for row in e.rows]) for e in (mine, theirs)]
        if same[0] != same[1]:
            return {"said": "not measured: the run's comparison asked or judged otherwise than the run itself does"}
    except Exception as error:  # out of memory, a damaged comparison
        return {"said": shareable(f"not measured: {type(error).__name__}: {error}")}
    low, high = theirs.interval
    said = (
        f"{mine.accuracy:.1%} of {mine.questions} held-out questions right, the run in 4 bit {theirs.accuracy:.1%} "
        f"({low:.1%} to {high:.1%})"
    )
    if not low <= mine.accuracy <= high:
        said += ", which is OUTSIDE of that interval: what was measured of the run does not hold for the merged model"
        warnings.warn(f"The merged model of {run.name!r}: {said}.", stacklevel=2)
    return {
        "said": said, "accuracy": mine.accuracy, "interval": list(mine.interval), "accuracy_of_run": theirs.accuracy,
        "interval_of_run": [low, high], "questions": mine.questions,
    }  # fmt: skip


def _room_needed(folder: Path) -> str | None:
    """What a merged model would need to answer in this process and what there is, in words; None where it fits."""
    tensors = TensorFolder(folder).tensors.values()
    size, count = sum(tensor.nbytes for tensor in tensors), sum(tensor.numel() for tensor in tensors)
    rooms = []
    if find_gpu() is None:
        rooms.append(("memory", max(size, 4 * count) * 1.1 + 0.3e9, free_memory_bytes()))
    else:
        import torch

        torch.cuda.empty_cache()
        # It comes through the machine's own memory, and answers many questions at once.
        rooms += [
            ("memory", size * 1.1, free_memory_bytes()),
            ("of the GPU", 1.5 * size + 2e9, torch.cuda.mem_get_info()[0]),
        ]
    short = [f"{what}: {free / 1e9:.1f} of {needed / 1e9:.1f} GB" for what, needed, free in rooms if needed > free]
    return ", ".join(short) or None


def require_same_base(run: Run, base: Path) -> dict[str, bool]:
    """Return the check that the base on disk is the one that was trained on; empty if the run does not know.

    Raises:
        ExportError: It is another one.
    """
    trained_on = run.info.get("base")
    if trained_on is None:
        return {}
    if weights_identity(base) != trained_on:
        raise ExportError(
            f"the weights of the base model {run.settings.model!r} are not those that the run {run.name!r} was trained on: "
            "they were changed since, and the adapter does not belong on them. Put the old ones back, or train again."
        )
    return {"the base model's weights are those trained on": True}


def export_adapter(run: Run | str | Path, path: str | Path, *, overwrite: bool = False) -> Export:
    """Copy the run's LoRA with the tokenizer it was trained with, for those who have the base: vLLM, peft, another training.

    It names its base, and `verification.json` has the hash of the base's weights. The embedded model's are in no repository: an
    adapter that was trained on them says so, and PEFT refuses it where they are not.

    Args:
        run: A run with an adapter, or its folder.
        path: The folder to make.
        overwrite: Replace an existing folder, once the new one is verified.

    Raises:
        FileExistsError: The folder exists and `overwrite` is false.
        ExportError: What was copied is not the run's adapter, or it has values that are not finite.

    >>> gn.export.export_adapter(gn.open_run("runs/first"), "exports/first-lora")  # doctest: +SKIP
    """

    def make(staged: Path) -> dict[str, Any]:
        base = weights_folder(run)
        known = require_same_base(run, base)
        for name in ("adapter_model.safetensors", "adapter_config.json"):
            shutil.copyfile(run.adapter_path / name, staged / name)
        # As others can load it: the folder of this machine's cache means nothing elsewhere.
        config = json.loads((staged / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = published_name(run.settings.model) or run.settings.model
        (staged / "adapter_config.json").write_text(json.dumps(config, indent=2) + "\n")
        tokenizer_for(run.path, base).save_pretrained(staged)
        verification = _verify_adapter(run, staged) | {
            "base": shareable(config["base_model_name_or_path"]),
            "base_weights": weights_identity(base),
        }
        require_passed(verification, "the copied adapter")
        verification["checks"] = known | verification["checks"]
        return verification

    run = open_run(run)
    return make_export(run, "adapter", path, make, overwrite=overwrite)


def require_adapter(run: Run) -> None:
    """Raise `FileNotFoundError` if the run has no adapter, `ExportError` if its file is damaged."""
    file = run.adapter_path / "adapter_model.safetensors"
    if not file.is_file():
        raise FileNotFoundError(
            f"the run {run.name!r} ({run.status}) has no adapter to merge: train it to its end first."
        )
    require_readable(file, f"the run {run.name!r}, whose last checkpoint holds an adapter too,")


def _verify_adapter(run: Run, staged: Path) -> dict[str, Any]:
    import torch
    from safetensors.torch import load_file

    name = "adapter_model.safetensors"
    mine, is_same = load_file(staged / name), filecmp.cmp(staged / name, run.adapter_path / name, shallow=False)
    broken = [name for name, tensor in mine.items() if not torch.isfinite(tensor).all()]
    has_effect = any(bool(tensor.any()) for name, tensor in mine.items() if ".lora_B" in name)
    checks = {
        "tensors equal to the run's": is_same,
        "tensors finite": not broken,
        "the adapter changes the model": has_effect,
    }
    return {
        "passed": all(checks.values()),
        "checks": checks,
        "problems": broken,
        "tensors": len(mine),
    }


def verification_request(base: Path, run: Run, staged: Path) -> dict[str, Any]:
    """What `children/verify.py` is asked."""
    return {
        "check": "merged",
        "base": str(base),
        "tokenizer": str(base),
        "chat_template": template_of(run.path),
        "adapter": str(run.adapter_path),
        "merged": str(staged),
        **verified_texts(run),
    }


def verified_texts(run: Run) -> dict[str, Any]:
    """What is answered in a verification, at what length, and how long that may take."""
    return {
        "prompts": [row["prompt"] for row in run.holdout[:VERIFIED_PROMPTS]],
        "chat_template_kwargs": run.chat_template_kwargs,
        "max_new_tokens": min(run.settings.max_completion_length, VERIFIED_TOKENS),
        "seconds": VERIFIED_SECONDS,
    }


def run_check(request: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Have an export checked in a process of its own and return the answer.

    Raises:
        ExportError: It could not be made; its last lines say why.
    """
    with progress_bar(desc="verifying", unit=" steps") as bar:

        def hear(line: str) -> None:
            if found := re.fullmatch(r"(\d+)/(\d+)", line):
                done, bar.total = map(int, found.groups())
                bar.update(done - bar.n)

        try:
            return run_script(Path(__file__).with_name("children") / "verify.py", request, on_line=hear)
        except ChildError as error:
            raise ExportError(f"{what} could not be verified, so it was not kept: the check {error}") from error


def add_score(verification: dict[str, Any], run: Run, said: str, name: str) -> None:
    """Add how many of two models' answers to the same held-out questions are right, and whether that can be luck.

    Answers that the other model would go on with beyond what is verified say nothing, and are left aside.

    Args:
        verification: With the most `tokens` of an answer, and what each model answered, which is taken out: `texts` of the one
            that is verified, and in `reference` those of the other one, in whose interval the score must lie, with whether each
            had ended.
        run: Whose questions.
        said: The other model in words.
        name: The other model in keys.
    """
    from scipy.stats import binomtest

    from grpo_nb.generation.samples import Completion

    format = AnswerFormat(**run.info["task"]["format"])
    is_whole = verification["tokens"] == run.settings.max_completion_length
    rows = [
        (question, text, other)
        for question, text, (other, has_ended) in zip(
            run.holdout, verification.pop("texts"), verification.pop("reference"), strict=False
        )
        if is_whole or has_ended
    ]
    count = verification["scored"] = len(rows)
    if not rows:
        return

    def correct(which: int) -> int:
        completions = [Completion(row[which], 0, False) for row in rows]
        return sum(read["is_correct"] for read in read_answers([row[0] for row in rows], completions, format))

    mine, theirs = correct(1), correct(2)
    low, high = map(float, binomtest(theirs, count).proportion_ci(_LEVEL, method="wilson"))
    check = f"held-out score within the 95 % interval of the {said}'s"
    verification["checks"][check] = low <= mine / count <= high
    verification["measured"][check] = f"{mine} of {count} right, the {said}'s {theirs} ({low:.0%} to {high:.0%})"
    verification |= {"correct": mine, f"correct_of_{name}": theirs, "interval": [low, high]}
    verification["passed"] = all(verification["checks"].values())
