"""Whether vLLM can generate for a model here, and if not, why, with what to do. Imports neither torch, unsloth nor vLLM.

Versions are compared with what the installed packages ask for in their own metadata, so that no table has to be kept up.
Whether it loads at all is tried in a process of its own (`grpo_nb.machine.vllm_problem`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from packaging.version import Version

from grpo_nb.machine.gpu import Gpu
from grpo_nb.machine.packages import asked_of, installed_version, vllm_problem
from grpo_nb.settings.settings import Settings
from grpo_nb.settings.shapes import read_config

_INSTALL = "pip install -r requirements.txt -r requirements-gpu.txt, then restart the kernel"
_WITHOUT = "fast_inference=False says that you want it so"
# unsloth/models/loader.py: VLLM_UNSUPPORTED_MODEL_TYPES, VLLM_NEEDS_SM80_MODEL_TYPES; unsloth/models/vision.py:
# VLLM_SUPPORTED_VLM. Tests compare them with the installed source.
UNSUPPORTED_TYPES = ("gpt_oss",)
NEEDS_CAPABILITY_8 = ("gemma4", "gemma4_text", "gemma4_unified", "gemma4_unified_text")
SUPPORTED_IMAGE_TYPES = (
    "qwen2_5_vl", "gemma3", "mistral3", "qwen3_vl", "qwen3_vl_moe", "qwen3_5", "idefics3", "qwen3_5_moe", "gemma4",
    "gemma4_text", "gemma4_unified", "gemma4_unified_text", "muse_glimmer", "muse_glimmer_text",
)  # fmt: skip
_HOTTEST = 2.0  # vllm/sampling_params.py, _verify_args
# vLLM 0.28 moved bitsandbytes into a package of its own (unsloth_zoo/vllm_utils.py, load_vllm).
_BNB_LEFT_IN, _BNB_PLUGIN = Version("0.28"), "vllm-bnb-plugin"


@dataclass(frozen=True)
class VllmObstacle:
    """Why vLLM is not used, and what to do about it."""

    reason: str
    fix: str
    said: str = field(default="", compare=False)
    """What vLLM and Unsloth said last; never twice the same, so that it does not count when two are compared."""

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
    return next(itertools.starmap(VllmObstacle, _obstacles(settings, gpu, source, try_import)), None)


def _obstacles(settings: Settings, gpu: Gpu | None, source: str | None, try_import: bool) -> Iterator[tuple[str, str]]:
    """Reasons with what to do, in the order in which they are looked for; only the first is asked for."""
    if not settings.fast_inference:
        yield "fast_inference is off", "settings.replace(fast_inference=True) turns it on"
    if gpu is None:
        yield "vLLM needs a GPU", _WITHOUT
    if gpu.compute_capability < (7, 0):
        major, minor = gpu.compute_capability
        yield f"vLLM needs compute capability 7.0, and {gpu.name} has {major}.{minor}", _WITHOUT
    if "GB10" in gpu.name.upper():
        yield "Unsloth does not run vLLM on a DGX Spark", _WITHOUT
    if settings.temperature > _HOTTEST:
        why = f"vLLM samples at temperatures up to {_HOTTEST}, not {settings.temperature}"
        yield why, f"temperature={_HOTTEST}"
    version = installed_version("vllm")
    if version is None:
        yield "vLLM is not installed", _INSTALL
    yield from _of_versions(version)
    needs_plugin = settings.load_in_4bit and Version(version) >= _BNB_LEFT_IN
    if needs_plugin and installed_version(_BNB_PLUGIN) is None:
        fix = f"pip install --no-deps {_BNB_PLUGIN}, then restart the kernel; or load_in_4bit=False"
        yield f"vLLM {version} reads 4-bit weights only with the package {_BNB_PLUGIN}", fix
    config = None if source is None else read_config(source)
    if config is not None:
        yield from _of_the_model(settings, gpu, config[0])
    words = vllm_problem() if try_import else None
    if words is not None:
        yield f"vLLM {version} does not load: {words}", _INSTALL


def _of_versions(version: str) -> Iterator[tuple[str, str]]:
    for asked in asked_of("vllm", ("torch", "transformers")):
        found = installed_version(asked.name)
        # A build (+cu128) counts only where one is asked for, as vLLM's own build for a CPU does (==2.13.0+cpu).
        if found is not None and not asked.specifier.contains(found, prereleases=True):
            yield f"vLLM {version} was made for {asked.name} {asked.specifier}, and {found} is installed", _INSTALL
    for asked in asked_of("trl", ("vllm",), extra="vllm"):
        if not asked.specifier.contains(version, prereleases=True):
            trl = installed_version("trl")
            yield f"trl {trl} works with vLLM {asked.specifier}, and {version} is installed", _INSTALL


def _of_the_model(settings: Settings, gpu: Gpu, config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    text = config.get("text_config") if isinstance(config.get("text_config"), Mapping) else config
    name = config.get("model_type")
    kinds = {str(name), str(text.get("model_type"))}
    if kinds & set(UNSUPPORTED_TYPES):
        yield f"Unsloth does not run {name} in vLLM", _WITHOUT
    if kinds & set(NEEDS_CAPABILITY_8) and gpu.compute_capability < (8, 0):
        yield f"vLLM runs {name} from compute capability 8.0 on", _WITHOUT
    if config.get("vision_config") and not kinds & set(SUPPORTED_IMAGE_TYPES):
        yield f"Unsloth does not run {name}, a model of images, in vLLM", _WITHOUT
    if config.get("is_encoder_decoder"):
        yield "Unsloth runs no encoder-decoder in vLLM", _WITHOUT
    if config.get("auto_map"):
        yield "the model brings code of its own, which Unsloth does not run in vLLM", _WITHOUT
    length, most = settings.max_prompt_length + settings.max_completion_length, text.get("max_position_embeddings")
    if isinstance(most, int) and length > most:
        # unsloth/models/llama.py raises "Fast inference does not yet work with automatic RoPE Scaling".
        why = f"prompt and completion of {length} tokens are longer than the model's {most}, and stretching its"
        fix = f"max_completion_length={max(most - settings.max_prompt_length, 1)} or less"
        yield f"{why} positions works only without vLLM", fix
