"""Whether vLLM can generate for a model here, and if not, why, with what to do. Imports neither torch, unsloth nor vLLM.

Versions are compared with what the installed packages ask for in their own metadata, so that no table has to be kept up.
Whether it loads at all is tried in a process of its own (`grpo_nb.environment_vllm`).
"""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from grpo_nb.config import Settings
from grpo_nb.environment import Gpu
from grpo_nb.environment_vllm import vllm_problem

_INSTALL = "pip install -r requirements-gpu.txt, then restart the kernel"
_WITHOUT = "fast_inference=False says that you want it so"
# unsloth/models/loader.py: VLLM_UNSUPPORTED_MODEL_TYPES, VLLM_NEEDS_SM80_MODEL_TYPES; unsloth/models/vision.py:
# VLLM_SUPPORTED_VLM. Tests compare them with the installed source.
UNSUPPORTED_TYPES = ("gpt_oss",)
NEEDS_CAPABILITY_8 = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
SUPPORTED_IMAGE_TYPES = (
    "qwen2_5_vl", "gemma3", "mistral3", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "idefics3", "qwen3_5_moe", "gemma4",
    "gemma4_text", "gemma4_unified", "gemma4_unified_text", "muse_glimmer", "muse_glimmer_text",
)  # fmt: skip
# unsloth_zoo/vllm_utils.py, patch_vllm: versions whose memory allocator crashes in standby mode.
_STANDBY_CRASHES = ("0.10", "0.14")
_HOTTEST = 2.0  # vllm/sampling_params.py, _verify_args
# vLLM 0.28 moved bitsandbytes into a package of its own (unsloth_zoo/vllm_utils.py, load_vllm).
_BNB_LEFT_IN, _BNB_PLUGIN = "0.28", "vllm-bnb-plugin"


@dataclass(frozen=True)
class VllmObstacle:
    """Why vLLM is not used, and what to do about it."""

    reason: str
    fix: str

    def __str__(self) -> str:
        return f"{self.reason} ({self.fix})"


def vllm_obstacle(
    settings: Settings, gpu: Gpu | None, source: str | None = None, *, try_import: bool = True
) -> VllmObstacle | None:
    """Say why vLLM cannot generate for these settings on this GPU, or return None if nothing is known to be in the way.

    Args:
        settings: Of the run.
        gpu: That trains; without one there is no vLLM.
        source: Folder or Hub id of the model, whose config.json is read if it is here; else nothing is said about the model.
        try_import: Import it once per kernel in another process, which takes some seconds.

    >>> vllm_obstacle(Settings(), None).reason
    'fast_inference is off'
    """
    if not settings.fast_inference:
        return VllmObstacle("fast_inference is off", "settings.replace(fast_inference=True) turns it on")
    if gpu is None:
        return VllmObstacle("vLLM needs a GPU", _WITHOUT)
    if gpu.compute_capability < (7, 0):
        major, minor = gpu.compute_capability
        return VllmObstacle(f"vLLM needs compute capability 7.0, and {gpu.name} has {major}.{minor}", _WITHOUT)
    if "GB10" in gpu.name.upper():
        return VllmObstacle("Unsloth does not run vLLM on a DGX Spark", _WITHOUT)
    if settings.temperature > _HOTTEST:
        return VllmObstacle(
            f"vLLM samples at temperatures up to {_HOTTEST}, not {settings.temperature}", f"temperature={_HOTTEST}"
        )
    version = _version("vllm")
    if version is None:
        return VllmObstacle("vLLM is not installed", _INSTALL)
    return (
        _version_obstacle(version)
        or _quantization_obstacle(settings, version)
        or _model_obstacle(settings, gpu, (None if source is None else model_config(source)) or {})
        or (_import_obstacle(version) if try_import else None)
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _version_obstacle(version: str) -> VllmObstacle | None:
    from packaging.requirements import Requirement

    for text in importlib.metadata.requires("vllm") or ():
        asked = Requirement(text)
        if asked.name not in ("torch", "transformers") or (asked.marker and not asked.marker.evaluate({"extra": ""})):
            continue
        found = _version(asked.name)
        # A build's local part (+cu128) is no other version.
        if found is not None and not asked.specifier.contains(found.partition("+")[0], prereleases=True):
            return VllmObstacle(
                f"vLLM {version} was made for {asked.name} {asked.specifier}, and {found} is installed", _INSTALL
            )
    for text in importlib.metadata.requires("trl") or ():
        asked = Requirement(text)
        is_extra = asked.marker is not None and asked.marker.evaluate({"extra": "vllm"})
        if asked.name == "vllm" and is_extra and not asked.specifier.contains(version, prereleases=True):
            return VllmObstacle(
                f"trl {_version('trl')} works with vLLM {asked.specifier}, and {version} is installed", _INSTALL
            )
    if ".".join(version.split(".")[:2]) in _STANDBY_CRASHES:
        return VllmObstacle(f"vLLM {version} crashes when it gives its memory back between steps (standby)", _INSTALL)
    return None


def _quantization_obstacle(settings: Settings, version: str) -> VllmObstacle | None:
    from packaging.version import Version

    if settings.load_in_4bit and Version(version) >= Version(_BNB_LEFT_IN) and _version(_BNB_PLUGIN) is None:
        return VllmObstacle(
            f"vLLM {version} reads 4-bit weights only with the package {_BNB_PLUGIN}",
            f"pip install --no-deps {_BNB_PLUGIN}, then restart the kernel; or load_in_4bit=False",
        )
    return None


def _model_obstacle(settings: Settings, gpu: Gpu, config: Mapping[str, Any]) -> VllmObstacle | None:
    text = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    kinds = {str(part.get("model_type")) for part in (config, text)}
    if kinds & set(UNSUPPORTED_TYPES):
        return VllmObstacle(f"Unsloth does not run {kinds.intersection(UNSUPPORTED_TYPES).pop()} in vLLM", _WITHOUT)
    if kinds & set(NEEDS_CAPABILITY_8) and gpu.compute_capability < (8, 0):
        return VllmObstacle(f"vLLM runs {config.get('model_type')} from compute capability 8.0 on", _WITHOUT)
    if config.get("vision_config") and not kinds & set(SUPPORTED_IMAGE_TYPES):
        return VllmObstacle(f"Unsloth does not run {config.get('model_type')}, a model of images, in vLLM", _WITHOUT)
    if config.get("is_encoder_decoder"):
        return VllmObstacle("Unsloth runs no encoder-decoder in vLLM", _WITHOUT)
    if config.get("auto_map"):
        return VllmObstacle("the model brings code of its own, which Unsloth does not run in vLLM", _WITHOUT)
    length, most = settings.max_prompt_length + settings.max_completion_length, text.get("max_position_embeddings")
    if isinstance(most, int) and length > most:
        # unsloth/models/llama.py raises "Fast inference does not yet work with automatic RoPE Scaling".
        return VllmObstacle(
            f"prompt and completion of {length} tokens are longer than the model's {most}, and stretching its positions "
            "works only without vLLM",
            f"max_completion_length={max(most - settings.max_prompt_length, 1)} or less",
        )
    return None


def _import_obstacle(version: str) -> VllmObstacle | None:
    problem = vllm_problem()
    return problem and VllmObstacle(f"vLLM {version} does not load: {problem}", _INSTALL)


def model_config(source: str) -> Mapping[str, Any] | None:
    """The config.json of a folder, or of a model whose configuration is in the Hub's cache; None where there is none."""
    file = Path(source).expanduser() / "config.json"
    if not file.is_file():
        if source.count("/") != 1:
            return None
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError

        try:
            cached = try_to_load_from_cache(source, "config.json")
        except HFValidationError:  # a path, and none that exists
            return None
        if not isinstance(cached, str):
            return None
        file = Path(cached)
    return json.loads(file.read_text())
