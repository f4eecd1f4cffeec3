"""Check the names of settings before anything is loaded.

TRL refuses an unknown name only when training starts. On a GPU, Unsloth's version of TRL drops the
name and only prints a line (unsloth/models/rl_config_compat.py, `filter_config_init_kwargs`).
Importing TRL or Unsloth takes ten seconds, so the names of the pinned version are listed here, and
a test compares them with `GRPOConfig`. TRL checks the values in `extra` when the trainer is built.
"""

import tomllib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal, get_args

from grpo_nb.core.words import did_you_mean

# Losses of the pinned TRL, as a test checks. docs/reference/losses.md explains each.
LossType = Literal["bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo"]
LOSS_TYPES = get_args(LossType)

#: Arguments of `GRPOConfig` in trl 1.15.0 with transformers 5.17.0.
GRPO_CONFIG_ARGUMENTS = frozenset(
    """
    accelerator_config adam_beta1 adam_beta2 adam_epsilon auto_find_batch_size
    average_tokens_across_devices batch_eval_metrics beta bf16 bf16_full_eval
    cache_implementation cast_lm_head_to_fp32 chat_template_kwargs data_seed
    dataloader_drop_last dataloader_in_order dataloader_multiprocessing_context
    dataloader_num_workers dataloader_persistent_workers dataloader_pin_memory
    dataloader_prefetch_factor ddp_backend ddp_broadcast_buffers ddp_bucket_cap_mb
    ddp_find_unused_parameters ddp_static_graph ddp_timeout debug deepspeed delta
    disable_dropout disable_tqdm do_eval do_predict do_train ds3_gather_for_generation
    enable_jit_checkpoint entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min
    entropy_target epsilon epsilon_high eval_accumulation_steps eval_delay
    eval_do_concat_batches eval_on_start eval_steps eval_strategy eval_use_gather_object fp16
    fp16_full_eval fsdp fsdp_config full_determinism generation_batch_size generation_kwargs
    gradient_accumulation_steps gradient_checkpointing gradient_checkpointing_kwargs
    greater_is_better hub_always_push hub_model_id hub_private_repo hub_revision hub_strategy
    hub_token ignore_data_skip importance_sampling_level include_for_metrics
    include_num_input_tokens_seen label_names label_smoothing_factor learning_rate
    length_column_name liger_kernel_config load_best_model_at_end local_rank log_completions
    log_completions_hub_repo log_level log_level_replica log_multimodal log_on_each_node
    log_unique_prompts logging_first_step logging_nan_inf_filter logging_steps
    logging_strategy loss_type lr_scheduler_kwargs lr_scheduler_type
    mask_truncated_completions max_completion_length max_grad_norm max_steps
    max_tool_calling_iterations metric_for_best_model min_p model_init_kwargs
    multi_objective_aggregation neftune_noise_alpha num_completions_to_print num_generations
    num_generations_eval num_iterations num_train_epochs off_policy_mask_threshold optim
    optim_args optim_target_modules output_dir pad_to_multiple_of parallelism_config
    per_device_eval_batch_size per_device_train_batch_size prediction_loss_only project
    push_to_hub ref_model_mixup_alpha ref_model_sync_steps remove_unused_columns
    repetition_penalty report_to restore_callback_states_from_checkpoint
    resume_from_checkpoint reward_weights router_aux_loss_coef run_name sapo_temperature_neg
    sapo_temperature_pos save_on_each_node save_only_model save_steps save_strategy
    save_total_limit scale_rewards seed shuffle_dataset skip_memory_metrics
    steps_per_generation sync_ref_model temperature tf32 top_entropy_quantile top_k top_p
    torch_compile torch_compile_backend torch_compile_mode torch_empty_cache_steps
    trackio_bucket_id trackio_space_id trackio_static_space_id train_sampling_strategy
    transformers_continuous_batching_config trust_remote_code use_adaptive_entropy
    use_bias_correction_kl use_cache use_cpu use_liger_kernel
    use_transformers_continuous_batching use_transformers_paged use_vllm vespo_k_neg
    vespo_k_pos vespo_lambda_neg vespo_lambda_pos vllm_enable_sleep_mode
    vllm_gpu_memory_utilization vllm_group_port vllm_importance_sampling_cap
    vllm_importance_sampling_clip_max vllm_importance_sampling_clip_min
    vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_max_model_length
    vllm_mode vllm_model_impl vllm_server_base_url vllm_server_host vllm_server_port
    vllm_server_timeout vllm_structured_outputs_regex vllm_tensor_parallel_size warmup_steps
    weight_decay
    """.split()  # noqa: SIM905 (189 names in 189 lines are no easier to read)
)

_REFUSALS = tomllib.loads(Path(__file__).with_name("refusals.toml").read_text("utf-8"))
#: Arguments that make a trainer publish on the Hub.
HUB_ARGUMENTS = frozenset(_REFUSALS["hub"]["names"])
_OTHER_NAMES = _REFUSALS.pop("other_names_of_settings")
# Maps each refused name to its reason, which includes what to write instead.
_REASON_OF_REFUSAL = {name: f"the setting is {setting}" for name, setting in _OTHER_NAMES.items()}
for _refusal in _REFUSALS.values():
    _REASON_OF_REFUSAL |= dict.fromkeys(_refusal["names"], _refusal["reason"])

#: Arguments of GRPOConfig that a user can set: as a setting, or else in `extra`.
SETTABLE_ARGUMENTS = GRPO_CONFIG_ARGUMENTS - _REASON_OF_REFUSAL.keys()

#: Arguments in `extra` that change sampling, also in evaluations.
SAMPLING_ARGUMENTS_IN_EXTRA = ("min_p", "repetition_penalty")


def check_names(values: Mapping[str, Any], setting_names: Collection[str]) -> None:
    """Check the names of settings and of arguments in `extra`, and report all problems at once.

    Args:
        values: The settings by name, as they were written.
        setting_names: Names of all settings.

    Raises:
        ValueError: A name is unknown, cannot be set, or must move into or out of `extra`.
            The message shows for each name what is wrong, and what to write instead.

    >>> check_names({"beta": 0.1, "extra": {"epsilon": 0.1}}, {"beta", "extra"})
    """
    extra = values.get("extra")
    if not isinstance(extra, Mapping):
        # Nothing to check: pydantic refuses the value.
        extra = {}
    known = SETTABLE_ARGUMENTS.union(setting_names)
    written = {**extra, **values}
    # People paste whole configurations, so all problems are collected first.
    problems = []
    for name in written:
        if name in _REASON_OF_REFUSAL:
            problems.append(f"{name!r}: {_REASON_OF_REFUSAL[name]}")
        elif name not in known:
            problems.append(f"unknown setting {name!r}{did_you_mean(name, known)}")
        elif name in extra and name in setting_names:
            problems.append(f"{name!r} in extra: it is a setting, write {name}={extra[name]!r}")
    only_in_trl = SETTABLE_ARGUMENTS.difference(setting_names)
    if not only_in_trl.isdisjoint(values):
        # The suggested line replaces `extra`, so it includes what `extra` may keep.
        whole_extra = {name: value for name, value in written.items() if name in only_in_trl}
        problems.append(
            f"these arguments of TRL are not settings of the kit: write extra={whole_extra}"
        )
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ValueError(f"Some settings cannot be set as written:{lines}")
