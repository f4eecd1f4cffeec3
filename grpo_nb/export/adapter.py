"""Export a run's LoRA adapter with its tokenizer, for programs that load the base themselves."""

import json
import shutil
from pathlib import Path

from grpo_nb.core.files import write_json
from grpo_nb.export.saved_export import ADAPTER_FILE, Export, ExportError, Verification
from grpo_nb.export.staged_export import make_export
from grpo_nb.models.sources import resolve_model
from grpo_nb.models.templates import load_run_tokenizer, save_templates
from grpo_nb.runs.card import published_base
from grpo_nb.runs.run_folder import Run, open_run


def export_adapter(run: Run | str | Path, path: str | Path, *, overwrite: bool = False) -> Export:
    """Copy the run's LoRA and its tokenizer, for vLLM, PEFT or another training.

    The adapter names its base model. If the training recorded the hash of the base's weights
    (`grpo_nb.models.base_weights`), `verification.json` has it as `base_weights_hash`.
    An adapter for the embedded model can only be used with grpo_nb, because the weights of that
    model are in no repository.

    Args:
        run: A run with an adapter, or its folder.
        path: The folder to make.
        overwrite: If True, replace an existing folder once the new one is verified.

    Raises:
        FileExistsError: The folder exists and `overwrite` is False.
        FileNotFoundError: The run has no adapter.
        ExportError: The adapter changes nothing, or has values that are not finite.

    >>> gn.export.export_adapter(gn.open_run("runs/first"), "exports/lora")  # doctest: +SKIP
    """
    run = open_run(run)

    def fill(staged: Path) -> Verification:
        from safetensors.torch import load_file

        copied = shutil.copy(run.adapter_path / ADAPTER_FILE, staged)
        tensors = load_file(copied)
        if not all(bool(tensor.isfinite().all()) for tensor in tensors.values()):
            raise ExportError(
                "the adapter has values that are not finite, so the model would write nothing "
                "readable. Train again, with a lower learning_rate."
            )
        # B starts as zeros. If it is still zero, the adapter is untrained and changes nothing.
        lora_b = [tensor for name, tensor in tensors.items() if ".lora_B" in name]
        if not any(bool(tensor.any()) for tensor in lora_b):
            raise ExportError(
                "the adapter changes nothing: all its B matrices are zero. Train it first."
            )
        config = json.loads((run.adapter_path / "adapter_config.json").read_text())
        model = run.settings.model
        # The name on the Hub, if there is one. Otherwise the folder, which a reader has to replace.
        published = published_base(run)
        config["base_model_name_or_path"] = published or model
        # Only the last part of a folder's path, which cannot be taken for a name on the Hub.
        base_name = published or Path(model).name
        write_json(staged / "adapter_config.json", config)
        # The base may have another chat template than the training.
        tokenizer = load_run_tokenizer(run.path, resolve_model(model))
        tokenizer.save_pretrained(staged)
        save_templates(staged, tokenizer)
        verification = {
            "checks": {"tensors finite": True, "the adapter changes the model": True},
            "measured": {"tensors finite": f"{len(tensors)} tensors"},
            "base": base_name,
            "sentence": f"The {len(tensors)} tensors for {base_name} are a copy of the run's.",
        }
        # With the hash, others can check that their base is the one of the training.
        if "base_weights_hash" in run.info:
            verification["base_weights_hash"] = run.info["base_weights_hash"]
        return verification

    return make_export(run, "adapter", path, fill, overwrite=overwrite)
