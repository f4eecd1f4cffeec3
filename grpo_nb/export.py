"""From a trained adapter to a folder that plain transformers loads, verified to be the trained model."""

from __future__ import annotations

import gc
import html
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from grpo_nb.environment import require_disk
from grpo_nb.metrics import Run, write_json
from grpo_nb.model_card import model_card as model_card
from grpo_nb.model_card import write_model_card as write_model_card
from grpo_nb.models import import_unsloth, resolve_model

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_VERIFIED_PROMPTS = 12
# Share of the adapter's change that must survive the rounding of the merged weights.
_LEAST_RETAINED = 0.95
_WIDTH = {"bfloat16": 2, "float16": 2, "float32": 4}


class ExportError(RuntimeError):
    """An export that was made but is not the trained model, or could not be verified. Nothing was left behind."""


@dataclass(frozen=True)
class Export:
    """A verified export."""

    path: Path
    verification: dict[str, Any]

    @property
    def sentence(self) -> str:
        """The verification in words."""
        v = self.verification
        return (
            f"{v['dtype']}, holds {v['retained_change']:.1%} of the training's change; verified on {v['prompts']} "
            f"held-out prompts: greedy text equal to the adapter's on "
            f"{v['equal_greedy_text']:.0%}, {v['equal_greedy_text_near_ties_aside']:.0%} with near ties set aside; "
            f"log-probabilities {v['mean_logp_difference_to_adapter']:.3f} nats from the adapter's, "
            f"where the starting model's are {v['mean_logp_difference_of_base_to_adapter']:.3f} away"
        )

    def __repr__(self) -> str:
        checks = "\n".join(f"  {'ok' if ok else 'FAILED'}  {name}" for name, ok in self.verification["checks"].items())
        return f"{self.path}\n{checks}\n{self.sentence}"

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><td>{'&#10003;' if ok else '&#10007;'}</td><td style='text-align:left'>{html.escape(name)}</td></tr>"
            for name, ok in self.verification["checks"].items()
        )
        return f"<p><b>{html.escape(str(self.path))}</b></p><table>{rows}</table><p>{html.escape(self.sentence)}</p>"


def export_merged(run: Run, path: str | Path, *, dtype: str = "auto", overwrite: bool = False) -> Export:
    """Merge the run's adapter into the 16-bit base, save it as safetensors, and verify what was saved.

    A short training changes many weights by less than bfloat16 can hold next to them, and rounding then takes that part of
    the training away. `auto` measures this: bfloat16 where at least 95 % of the change survives, else float16, whose steps
    are eight times finer, else float32 at twice the size.

    Works the same for runs trained in 4 and in 16 bit: the adapter is always merged into the 16-bit weights. The folder is
    written under another name and renamed only after a separate process, which imports neither the kit nor unsloth, has
    loaded it with `transformers.pipeline` and found it equal to base plus adapter on held-out prompts.

    Args:
        run: A run with an adapter, from `train` or `open_run`.
        path: The folder to make.
        dtype: `auto`, `bfloat16`, `float16` or `float32`.
        overwrite: Replace an existing folder, once the new one is verified.

    Raises:
        FileExistsError: The folder exists and `overwrite` is false.
        EnvironmentProblem: Too little disk.
        ExportError: The merged model is not the trained one. Nothing is left at `path`.
    """
    if dtype not in ("auto", *_WIDTH):
        raise ValueError(f"dtype = {dtype!r} is not one of 'auto', {', '.join(map(repr, _WIDTH))}.")
    target = Path(path)
    if target.exists() and not overwrite and (not target.is_dir() or any(target.iterdir())):
        raise FileExistsError(f"{str(target)!r} exists. Choose another folder, or say overwrite=True.")
    if not (run.adapter_path / "adapter_model.safetensors").is_file():
        raise FileNotFoundError(
            f"the run {run.name!r} ({run.status}) has no adapter to merge: train it to its end first."
        )
    import_unsloth()  # before the transformers that the merge itself uses
    base = resolve_model(run.settings.model)
    require_disk(target, _merged_bytes(base, dtype), "The merged model")
    target.parent.mkdir(parents=True, exist_ok=True)
    staged = Path(tempfile.mkdtemp(prefix=f".{target.name}.partial-", dir=target.parent))
    try:
        kept = _merge(base, run, staged, dtype)
        verification = kept | _verify(base, run, staged)
        write_json(staged / "verification.json", verification)
        (staged / "README.md").write_text(model_card(run))
        if target.exists():
            shutil.rmtree(target)
        staged.rename(target)
    finally:
        shutil.rmtree(staged, ignore_errors=True)
    export = Export(target, verification)
    run.record_export({"path": str(target), "kind": f"merged {verification['dtype']}", "sentence": export.sentence})
    write_model_card(run)
    return export


def _merged_bytes(base: str, dtype: str) -> int:
    """Size of the merged weights, from the base's files."""
    from transformers import AutoConfig

    folder = Path(base)
    if not folder.is_dir():
        from huggingface_hub import snapshot_download

        folder = Path(snapshot_download(base, allow_patterns=["*.safetensors", "*.json"]))
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    width = _WIDTH.get(str(AutoConfig.from_pretrained(base).dtype).removeprefix("torch."), 2)
    return int(stored * _WIDTH.get(dtype, max(_WIDTH.values())) / width * 1.02) + 20_000_000


def _merge(base: str, run: Run, staged: Path, dtype: str) -> dict[str, Any]:
    """Save the merged model to `staged`; return the number type used and the share of the change that it holds."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    model = PeftModel.from_pretrained(model, str(run.adapter_path))
    candidates = list(_WIDTH) if dtype == "auto" else [dtype]
    retained = {name: _retained_change(model, getattr(torch, name)) for name in candidates}
    chosen = next((name for name in candidates if retained[name] >= _LEAST_RETAINED), None)
    if chosen is None:
        measured = ", ".join(f"{name} {share:.1%}" for name, share in retained.items())
        raise ExportError(
            f"rounding the merged weights would lose a part of the training (share kept: {measured}; "
            f"{_LEAST_RETAINED:.0%} is asked for). Write dtype='float32', or use the adapter itself: {run.adapter_path}."
        )
    # The sum is formed in float32 and rounded once, on saving.
    merged = model.merge_and_unload().to(getattr(torch, chosen))
    merged.save_pretrained(staged)
    AutoTokenizer.from_pretrained(base).save_pretrained(staged)
    del model, merged
    gc.collect()
    return {"dtype": chosen, "retained_change": retained[chosen]}


def _retained_change(model: PreTrainedModel, dtype: Any) -> float:
    """How much of the adapter's change is left after rounding: the projection of the rounded change on the exact one."""
    import torch
    from peft.tuners.lora import LoraLayer

    left = whole = 0.0
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, LoraLayer):
                weight, change = layer.get_base_layer().weight, layer.get_delta_weight("default")
                rounded = (weight + change).to(dtype).float()
                if not torch.isfinite(rounded).all():
                    return 0.0
                left += ((rounded - weight) * change).sum().item()
                whole += (change * change).sum().item()
    if whole == 0:
        raise ExportError("the adapter changes nothing: all its B matrices are zero. Train it first.")
    return 1 - abs(1 - left / whole)


def _verification_request(base: str, run: Run, staged: Path) -> dict[str, Any]:
    return {
        "base": base,
        "tokenizer": base,
        "adapter": str(run.adapter_path),
        "merged": str(staged),
        "prompts": [row["prompt"] for row in run.holdout()[:_VERIFIED_PROMPTS]],
        "max_new_tokens": run.settings.max_completion_length,
    }


def _verify(base: str, run: Run, staged: Path) -> dict[str, Any]:
    request = _verification_request(base, run, staged)
    with tempfile.TemporaryDirectory() as folder:
        asked, answered = Path(folder) / "request.json", Path(folder) / "result.json"
        asked.write_text(json.dumps({**request, "result": str(answered)}))
        script = Path(__file__).with_name("verify_merged.py")
        # -I: neither this folder nor the working directory is on the path of a process that must not see the kit.
        done = subprocess.run([sys.executable, "-I", str(script), str(asked)], capture_output=True, text=True)
        if done.returncode != 0 or not answered.is_file():
            last = "\n".join(done.stderr.strip().splitlines()[-15:])
            raise ExportError(f"the merged model could not be verified, so it was not kept:\n{last}")
        verification = json.loads(answered.read_text())
    if not verification["passed"]:
        failed = [name for name, ok in verification["checks"].items() if not ok]
        raise ExportError(
            f"the merged model is not the trained one, so it was not kept. Failed: {'; '.join(failed)}. "
            f"Measured: {json.dumps({k: v for k, v in verification.items() if k != 'checks'})}"
        )
    return verification
