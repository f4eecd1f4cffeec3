"""Private symbols of TRL that the kit relies on."""

from __future__ import annotations

from typing import Any

from grpo_nb.core.words import EnvironmentProblem
from grpo_nb.upstream.symbols import installed_version, require_symbol

WRITTEN_FOR = "trl 1.15.0"


def fused_head_namespace() -> dict[str, Any]:
    """Return the namespace in which TRL's fused output layer looks up `_ChunkedLogProbFunction`.

    The CPU engine replaces that function by one that works in tiles (trl/trainer/utils.py,
    `add_fused_lm_head`).
    """
    from trl.trainer import utils

    require_symbol(utils, "add_fused_lm_head", written_for=WRITTEN_FOR)
    # None where Triton is missing, and then there is nothing to fall back to; the name must exist.
    if "_ChunkedLogProbFunction" not in vars(utils):
        require_symbol(utils, "_ChunkedLogProbFunction", written_for=WRITTEN_FOR)
    return vars(utils)


#: Methods of `GRPOTrainer` that `KitTrainer` overrides or calls, with the parameters it relies on.
TRAINER_METHODS: dict[str, tuple[str, ...]] = {
    "_calculate_rewards": ("inputs", "prompts", "completions", "completion_ids_list"),
    "_compute_loss": ("model", "inputs"),
    "_generate_single_turn": ("prompt_ids",),
    "_get_per_token_logps_and_entropies": (
        "model",
        "input_ids",
        "attention_mask",
        "logits_to_keep",
        "compute_aux_loss",
    ),
    "_get_train_sampler": ("dataset",),
    "_load_from_checkpoint": ("resume_from_checkpoint", "model"),
    "_prepare_inputs": ("generation_batch",),
    "_save_checkpoint": ("model", "trial"),
    "_save_optimizer_and_scheduler": ("output_dir",),
    "_save_rng_state": ("output_dir",),
    "_save_scaler": ("output_dir",),
    "_tool_call_loop": ("prompts", "prompt_ids", "completion_ids", "completions"),
    "training_step": ("model", "inputs"),
}


def require_trainer_methods(trainer_class: type) -> None:
    """Raise unless a `GRPOTrainer` has the methods that `KitTrainer` overrides.

    A method that TRL renamed would be overridden without effect: a resumed run would start over, or
    tools would run without a time limit. Unsloth's class on a GPU replaces some by functions with
    arbitrary arguments, whose parameters are then not looked at.

    Raises:
        EnvironmentProblem: A method is missing, or lost a parameter.
    """
    for name, parameters in TRAINER_METHODS.items():
        require_symbol(trainer_class, name, written_for=WRITTEN_FOR, parameters=parameters)


def last_generation(trainer: Any) -> Any:
    """Return what a trainer keeps of its last generation batch: prompts, completions, scores.

    TRL fills `_logs` whether or not it prints it (trl/trainer/grpo_trainer.py,
    `_generate_and_score_completions`).
    """
    return require_symbol(trainer, "_logs", written_for=WRITTEN_FOR)


def share_event_loop(trainer: Any, loop: Any) -> None:
    """Make the trainer run async rewards in the loop in which they were tried.

    TRL starts a loop of its own for each trainer (trl/trainer/grpo_trainer.py, `__init__`), and an
    async reward that holds a client cannot be used in two loops.
    """
    if require_flag(trainer, "_has_async_funcs"):
        trainer.async_loop = loop


def require_flag(owner: Any, name: str) -> Any:
    """Return an attribute that may be false, or raise if it is not there."""
    if not hasattr(owner, name):
        require_symbol(owner, name, written_for=WRITTEN_FOR)
    return getattr(owner, name)


def micro_batch_count(trainer: Any) -> int:
    """Return how many micro-batches a trainer has taken: the counter that its next step depends on.

    Without it a resumed run would continue with the wrong generation (trl/trainer/grpo_trainer.py,
    `self._step`).

    Raises:
        EnvironmentProblem: TRL keeps the counter under another name.
    """
    if "_step" not in vars(trainer):
        raise EnvironmentProblem(
            f"GRPOTrainer._step is missing in trl {installed_version('trl')}, so a checkpoint could "
            "not tell where a resumed run continues. Install the pinned version: "
            "pip install trl==1.15.0"
        )
    return vars(trainer)["_step"]
