"""From a trained adapter to folders that work elsewhere, made beside their place, verified, and put there.

GGUF files are made by `export_gguf`.
"""

import functools
import json
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from grpo_nb.core.argument_types import require
from grpo_nb.core.files import (
    check_target,
    put_in_place,
    sha256_of,
    staged_folder,
    target_of,
    write_json,
)
from grpo_nb.core.processes import ChildError, run_script
from grpo_nb.core.progress import progress_bar
from grpo_nb.evaluation.asking import evaluate
from grpo_nb.export.merge import BY_FILE, WIDTHS, merge, require_memory
from grpo_nb.export.result import (
    ADAPTER,
    RECORD,
    Export,
    ExportError,
    Report,
    recorded_files,
    require_passed,
)
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.machine.host import free_memory_bytes
from grpo_nb.models.identity import keep_template, template_of, tokenizer_for, weights_identity
from grpo_nb.models.import_unsloth import import_unsloth
from grpo_nb.models.load import resolve_model
from grpo_nb.runs.card import published_name, shareable, write_export_card, write_model_card
from grpo_nb.runs.run_folder import Run, open_run

# More prompts make the measured shares finer, and the check longer; of all answers together these are hundreds of words.
VERIFIED_PROMPTS, VERIFIED_TOKENS = 8, 64
# What rounding may cost (children/verify.py, words_checks), in bfloat16 where no other number type fits into memory.
LIMITS = (0.85, 1.15, 0.05, 0.97)


def export_merged(
    run: Run | str | Path,
    path: str | Path,
    *,
    dtype: str = "auto",
    overwrite: bool = False,
    report: Report | None = None,
) -> Export:
    """Merge the run's adapter into the 16-bit base, save it as safetensors, and verify what was saved.

    A short training changes many weights by less than bfloat16 can hold next to them, and rounding then takes that part of
    the training away. `auto` measures this: bfloat16 where at least 95 % of the change survives, else float16, whose steps
    are eight times finer, else float32 at twice the size.

    The adapter is added to the base's files one after the other, so that the model need not fit into memory; an adapter that
    is more than a plain LoRA is merged in memory, in float32. The folder is written under another name and renamed only after
    a separate process, which imports neither the kit nor unsloth, has compared every weight with base plus adapter, and, where
    the model fits into memory, what it says. After a training in 4 bit, whose base was rounded otherwise, the merged model is
    asked the questions of the run's comparison too; it warns where its score is outside of the run's interval.

    Args:
        run: A run with an adapter, from `train` or `open_run`, or its folder.
        path: The folder to make.
        dtype: `auto`, `bfloat16`, `float16` or `float32`.
        overwrite: Replace an existing folder, once the new one is verified.
        report: Called with one line per stage.

    Raises:
        FileExistsError: The folder exists and `overwrite` is false.
        EnvironmentProblem: Too little disk or memory.
        ExportError: The merged model is not the trained one. Nothing is left at `path`.

    >>> gn.export_merged(gn.open_run("runs/first"), "exports/first")  # doctest: +SKIP
    """
    if dtype not in ("auto", *WIDTHS):
        raise ValueError(f"dtype = {dtype!r} is not one of 'auto', {', '.join(map(repr, WIDTHS))}.")
    require('gn.export_merged(run, "exports/name")', run=run)
    run, report = open_run(run), report or (lambda line: None)
    make = functools.partial(make_merged, run, dtype=dtype, report=report)
    return make_export(run, "merged", path, make, overwrite=overwrite)


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
    require('gn.export.export_adapter(run, "exports/name")', run=run)
    run = open_run(run)

    def make(staged: Path) -> dict[str, Any]:
        from safetensors.torch import load_file

        base = weights_folder(run)
        tensors = load_file(shutil.copy(run.adapter_path / ADAPTER, staged))
        # As others can load it: the folder of this machine's cache means nothing elsewhere.
        config = json.loads((run.adapter_path / "adapter_config.json").read_text())
        config["base_model_name_or_path"] = published_name(run.settings.model) or run.settings.model
        write_json(staged / "adapter_config.json", config)
        tokenizer = tokenizer_for(run.path, base)
        tokenizer.save_pretrained(staged)
        keep_template(staged, tokenizer)
        checks = same_base(run, base) | {
            "every byte is the run's": sha256_of(staged / ADAPTER)
            == sha256_of(run.adapter_path / ADAPTER),
            "tensors finite": all(bool(tensor.isfinite().all()) for tensor in tensors.values()),
            "the adapter changes the model": any(
                bool(t.any()) for name, t in tensors.items() if ".lora_B" in name
            ),
        }
        named = shareable(config["base_model_name_or_path"])
        verification = {
            "passed": True, "checks": checks, "measured": {}, "base": named, "base_weights": weights_identity(base),
            "rank": max(config["r"], *config.get("rank_pattern", {}).values(), 0),
            "sentence": f"{len(tensors)} tensors for {named}, every byte equal to the run's",
        }  # fmt: skip
        require_passed(verification, "the copied adapter")
        return verification

    return make_export(run, "adapter", path, make, overwrite=overwrite)


def make_export(
    run: Run,
    kind: str,
    path: str | Path,
    make: Callable[[Path], dict[str, Any]],
    *,
    overwrite: bool,
) -> Export:
    """Make an export beside its place, put it there, and note it in its run.

    Args:
        run: What is exported.
        kind: `merged`, `adapter` or `gguf`.
        path: The folder to make.
        make: Fills an empty folder and returns the verification, in which everything has passed.
        overwrite: Replace an existing folder, once the new one is verified.
    """
    target, base = target_of(path), Path(run.settings.model).expanduser()
    check_target(
        target, overwrite, [run.path, run.adapter_path, *([base] if base.is_dir() else [])]
    )
    if not (run.adapter_path / ADAPTER).is_file():
        raise FileNotFoundError(
            f"the run {run.name!r} ({run.status}) has no adapter: train it to its end first."
        )
    import_unsloth()  # before the transformers that comes with the tokenizer
    with staged_folder(target) as staged:
        verification = {
            "kind": kind,
            "run": run.name,
            "adapter": sha256_of(run.adapter_path / ADAPTER),
        } | make(staged)
        if "trained_in_4bit" in verification:
            verification["sentence"] += (
                "; compared with the base in 16 bit plus adapter, but trained in 4 bit, so that answers may differ from the "
                f"run's; merged model, held-out: {verification['trained_in_4bit']['said']}"
            )
        write_export_card(
            run, staged, kind, verification=verification, said=verification["sentence"]
        )
        verification["files"] = recorded_files(staged)
        write_json(staged / RECORD, verification)
        put_in_place(staged, target, overwrite=overwrite)
    export = Export(target, verification, run)
    run.record_export(str(target), kind, export.sentence)
    write_model_card(run)
    return export


def weights_folder(run: Run) -> Path:
    """Folder of the 16-bit base that the run's adapter belongs on; fetched from the Hub where only a quantized copy is here."""
    base = resolve_model(run.settings.model)
    if Path(base).is_dir():
        return Path(base)
    from huggingface_hub import snapshot_download

    return Path(
        snapshot_download(
            base, allow_patterns=["*.safetensors", "*.json", "*.jinja", "*.model", "*.txt"]
        )
    )


def same_base(run: Run, base: Path) -> dict[str, bool]:
    """Return the check that the base on disk is the one that was trained on; empty if the run does not know.

    Raises:
        ExportError: It is another one. Merged with it, it would still be base plus adapter.
    """
    trained_on = run.info.get("base")
    if trained_on not in (None, weights_identity(base)):
        raise ExportError(
            f"the weights of the base model {run.settings.model!r} are not those that the run {run.name!r} was trained on. "
            "Put the old ones back, or train again."
        )
    return {} if trained_on is None else {"the base model's weights are those trained on": True}


def make_merged(run: Run, staged: Path, *, report: Report, dtype: str = "auto") -> dict[str, Any]:
    """Write the merged model to an empty folder, verify it, and return the verification."""
    if not run.holdout:
        raise ExportError(
            f"the run {run.name!r} has no held-out questions to verify by: use gn.export.export_adapter."
        )
    base = weights_folder(run)
    known = same_base(run, base)
    kept = merge(base, run.adapter_path, staged, dtype=dtype, report=report)
    tokenizer_for(run.path, base).save_pretrained(staged)
    report("verifying the merged model in a process of its own")
    request = {
        "check": "merged", "base": str(base), "chat_template": template_of(run.path), "adapter": str(run.adapter_path),
        "merged": str(staged), "is_plain": kept["merged"] == BY_FILE, "limits": LIMITS, **verified_texts(run),
    }  # fmt: skip
    verification = kept | run_check(request, "the merged model")
    verification["checks"] = known | verification["checks"]
    share = (
        ""
        if kept["retained_change"] is None
        else f", holds {kept['retained_change']:.1%} of the training's change"
    )
    verification["sentence"] = (
        f"{kept['dtype']}{share}; every weight is base plus adapter; {verification['words']}"
    )
    if run.settings.load_in_4bit:
        report("asking the merged model the held-out questions of the run's comparison")
        verification["trained_in_4bit"] = score_beside_run(run, staged)
    return verification


def verified_texts(run: Run) -> dict[str, Any]:
    """What is answered in a verification, at what length, and in how much memory."""
    return {
        "prompts": [row["prompt"] for row in run.holdout[:VERIFIED_PROMPTS]],
        "chat_template_kwargs": run.chat_template_kwargs,
        "max_new_tokens": min(run.settings.max_completion_length, VERIFIED_TOKENS),
        "free_memory": free_memory_bytes(),
    }


def run_check(request: Mapping[str, Any], what: str) -> dict[str, Any]:
    """Have an export checked in a process of its own and return the answer.

    Raises:
        ExportError: It failed, or could not be made; its last lines say why.
    """
    script = Path(__file__).with_name("children") / "verify.py"
    with progress_bar(desc="verifying", unit=" steps") as bar:
        try:
            verification = run_script(script, request, on_line=lambda line: bar.update(line == "."))
        except ChildError as error:
            raise ExportError(
                f"{what} could not be verified, so it was not kept: the check {error}"
            ) from error
    require_passed(verification, what)
    return verification


def score_beside_run(run: Run, folder: Path) -> dict[str, Any]:
    """Ask a merged model what the run's own comparison asked; return its score and the run's in words, with the numbers.

    For a run that was trained in 4 bit: its adapter learnt beside weights that are rounded otherwise than those it is merged
    into. Never raises: the export is verified to be what it is, whatever comes of this.
    """
    if not (run.path / "comparison" / "comparison.json").is_file():
        return {
            "said": "not measured: the run has no comparison of its own (gn.compare(run)) to hold it against"
        }
    try:
        theirs = run.comparison.after
        # On a GPU it comes through the machine's own memory, in the number type of its files.
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        require_memory(weights * (2 - bool(find_gpu())), "asking it")
        mine = evaluate(folder, run=run, allow_contaminated=True)
        if any(
            getattr(mine, part) != getattr(theirs, part)
            for part in ("decoding", "judged_by", "questions")
        ):
            return {
                "said": "not measured: the run's comparison asked or judged otherwise than the run itself does"
            }
    except Exception as error:  # out of memory, a damaged comparison
        return {"said": shareable(f"not measured: {type(error).__name__}: {error}")}
    low, high = theirs.interval
    in_4_bit = f"the run in 4 bit {theirs.accuracy:.1%} ({low:.1%} to {high:.1%})"
    said = f"{mine.accuracy:.1%} of {mine.questions} held-out questions right, {in_4_bit}"
    if not low <= mine.accuracy <= high:
        said += ", which is OUTSIDE of that interval: what was measured of the run does not hold for the merged model"
        warnings.warn(f"The merged model of {run.name!r}: {said}.", stacklevel=2)
    return {"said": said, "accuracy": mine.accuracy, "interval": list(mine.interval)}
