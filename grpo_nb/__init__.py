"""grpo_nb: teach a language model with GRPO on one GPU or a plain CPU, in a notebook, with evidence at every step.

Importing this package loads nothing heavy. Names resolve on first use, in the order that keeps Unsloth ahead of trl and
transformers, which it patches while they load.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

# Public name -> the module that defines it.
_PUBLIC = {
    "Alert": "health_alerts",
    "AnswerFormat": "formats",
    "Call": "sandbox",
    "EMBEDDED_MODEL": "config",
    "EnvironmentProblem": "environment",
    "ExportPanel": "export_panel",
    "HealthMonitor": "health",
    "RewardLab": "widgets",
    "Run": "metrics",
    "RunViewer": "viewer_widget",
    "Settings": "config",
    "Stage": "stages",
    "StagedRun": "stages",
    "Task": "data",
    "baseline": "baseline_gate",
    "boxed": "formats",
    "check_environment": "environment",
    "check_health": "health",
    "check_rewards": "checks",
    "check_sandbox": "sandbox",
    "compare": "evaluation",
    "dry_run": "dry_runs",
    "effective_settings": "effective",
    "evaluate": "evaluation",
    "open_comparison": "evaluation_files",
    "export_adapter": "export",
    "export_gguf": "gguf_export",
    "export_merged": "export",
    "group_advantages": "scoring",
    "hashes": "formats",
    "importance_sampling_levels": "losses",
    "inference_commands": "inference",
    "load_holdout": "heldout_sets",
    "load_model": "models",
    "load_task": "data",
    "loss_types": "losses",
    "models_for": "models_by_hardware",
    "open_bundle": "bundle",
    "open_run": "metrics",
    "open_stages": "stages",
    "plan": "planning",
    "plan_export": "export_plan",
    "plan_push": "hub_files",
    "preset": "config",
    "prime": "priming",
    "push_to_hub": "hub",
    "reweight": "scoring",
    "run_folder": "environment_storage",
    "run_untrusted": "sandbox",
    "sandbox_level": "sandbox",
    "score": "scoring",
    "think_answer": "formats",
    "train": "training",
    "train_stages": "stages",
    "write_bundle": "bundle",
    "write_harness_task": "evaluation_harness",
    "xml": "formats",
}
_MODULES = ("rewards",)

if TYPE_CHECKING:
    from grpo_nb import rewards as rewards
    from grpo_nb.baseline_gate import baseline as baseline
    from grpo_nb.bundle import open_bundle as open_bundle
    from grpo_nb.bundle import write_bundle as write_bundle
    from grpo_nb.checks import check_rewards as check_rewards
    from grpo_nb.config import EMBEDDED_MODEL as EMBEDDED_MODEL
    from grpo_nb.config import Settings as Settings
    from grpo_nb.config import preset as preset
    from grpo_nb.data import Task as Task
    from grpo_nb.data import load_task as load_task
    from grpo_nb.dry_runs import dry_run as dry_run
    from grpo_nb.effective import effective_settings as effective_settings
    from grpo_nb.environment import EnvironmentProblem as EnvironmentProblem
    from grpo_nb.environment import check_environment as check_environment
    from grpo_nb.environment_storage import run_folder as run_folder
    from grpo_nb.evaluation import compare as compare
    from grpo_nb.evaluation import evaluate as evaluate
    from grpo_nb.evaluation_files import open_comparison as open_comparison
    from grpo_nb.evaluation_harness import write_harness_task as write_harness_task
    from grpo_nb.export import export_adapter as export_adapter
    from grpo_nb.export import export_merged as export_merged
    from grpo_nb.export_panel import ExportPanel as ExportPanel
    from grpo_nb.export_plan import plan_export as plan_export
    from grpo_nb.formats import AnswerFormat as AnswerFormat
    from grpo_nb.formats import boxed as boxed
    from grpo_nb.formats import hashes as hashes
    from grpo_nb.formats import think_answer as think_answer
    from grpo_nb.formats import xml as xml
    from grpo_nb.gguf_export import export_gguf as export_gguf
    from grpo_nb.health import HealthMonitor as HealthMonitor
    from grpo_nb.health import check_health as check_health
    from grpo_nb.health_alerts import Alert as Alert
    from grpo_nb.heldout_sets import load_holdout as load_holdout
    from grpo_nb.hub import push_to_hub as push_to_hub
    from grpo_nb.hub_files import plan_push as plan_push
    from grpo_nb.inference import inference_commands as inference_commands
    from grpo_nb.losses import importance_sampling_levels as importance_sampling_levels
    from grpo_nb.losses import loss_types as loss_types
    from grpo_nb.metrics import Run as Run
    from grpo_nb.metrics import open_run as open_run
    from grpo_nb.models import load_model as load_model
    from grpo_nb.models_by_hardware import models_for as models_for
    from grpo_nb.planning import plan as plan
    from grpo_nb.priming import prime as prime
    from grpo_nb.sandbox import Call as Call
    from grpo_nb.sandbox import check_sandbox as check_sandbox
    from grpo_nb.sandbox import run_untrusted as run_untrusted
    from grpo_nb.sandbox import sandbox_level as sandbox_level
    from grpo_nb.scoring import group_advantages as group_advantages
    from grpo_nb.scoring import reweight as reweight
    from grpo_nb.scoring import score as score
    from grpo_nb.stages import Stage as Stage
    from grpo_nb.stages import StagedRun as StagedRun
    from grpo_nb.stages import open_stages as open_stages
    from grpo_nb.stages import train_stages as train_stages
    from grpo_nb.training import train as train
    from grpo_nb.viewer_widget import RunViewer as RunViewer
    from grpo_nb.widgets import RewardLab as RewardLab

__all__ = sorted([*_PUBLIC, *_MODULES])


def __getattr__(name: str) -> Any:
    if name in _MODULES:
        return importlib.import_module(f"grpo_nb.{name}")
    if name in _PUBLIC:
        return getattr(importlib.import_module(f"grpo_nb.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'grpo_nb' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
