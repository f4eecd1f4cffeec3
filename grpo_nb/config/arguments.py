"""Check the names of settings before anything is loaded.

TRL refuses an unknown name only when training starts. On a GPU, Unsloth's version of TRL drops the
name and only prints a line (unsloth/models/rl_config_compat.py, `filter_config_init_kwargs`).
Importing TRL or Unsloth takes ten seconds, so the names of the pinned version are listed here, and
a test compares them with `GRPOConfig`. TRL checks the values in `extra` when the trainer is built.
"""

from collections.abc import Collection, Mapping
from typing import Any, Literal, get_args

from grpo_nb.core.words import did_you_mean

# Losses of the pinned TRL, as a test checks. docs/reference/losses.md explains each.
LossType = Literal["bnpo", "cispo", "dapo", "dr_grpo", "grpo", "luspo", "sapo", "vespo"]
LOSS_TYPES = get_args(LossType)

#: Fields of `GRPOConfig` in trl 1.15.0 with transformers 5.17.0.
GRPO_CONFIG_FIELDS = frozenset(
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
_SET_HOLDOUT_INSTEAD = (
    "the kit does not run TRL's evaluation, so this argument has no effect. For a held-out curve, "
    "set holdout_every=5; after training, call gn.compare(run)"
)
_SET_DTYPE_INSTEAD = (
    'the setting is dtype, for both the model and the trainer. Its default dtype="auto" chooses '
    'bfloat16 where the GPU has it; dtype="bfloat16" or dtype="float16" overrides the choice'
)
_LOADED_BEFORE = (
    "the model is loaded before the trainer is built, so this argument has no effect. Load the "
    "model with Unsloth yourself (docs/guide/train.md), and pass it to gn.train"
)
_ONLY_SCRIPTS = "only the example scripts of transformers read it, so it has no effect here"
_SET_MAX_STEPS_INSTEAD = (
    "the length of a run is set by max_steps. For two passes over the questions, write "
    "max_steps=2 * len(task.train) * settings.num_generations // settings.completions_per_step "
    "(times num_iterations, if you set it)"
)

# Names that cannot be set (one or more, separated by spaces) -> the reason, and what to write
# instead.
_REFUSAL_REASONS = {
    # Arguments of GRPOConfig that the kit sets or does not use, and its old setting keep_adapter.
    "output_dir": "checkpoints are in the run's folder: set run_root, and name the run in "
    "gn.train(..., name=...)",
    "reward_weights": "each reward has its own weight: gn.rewards.correctness(weight=2.0)",
    "use_vllm": "the setting is fast_inference, which also loads the model with vLLM",
    "vllm_gpu_memory_utilization": "the setting is gpu_memory_utilization; Unsloth starts vLLM "
    "when the model is loaded",
    "model_init_kwargs trust_remote_code": _LOADED_BEFORE,
    "num_train_epochs": _SET_MAX_STEPS_INSTEAD,
    "generation_batch_size": "the setting is extra={'steps_per_generation': ...}, the passes whose "
    "completions are generated together",
    "resume_from_checkpoint": f'{_ONLY_SCRIPTS}. Write gn.train(..., resume="auto")',
    "do_train do_eval do_predict": _ONLY_SCRIPTS,
    "bf16 fp16": _SET_DTYPE_INSTEAD,
    "eval_strategy eval_steps eval_on_start eval_delay per_device_eval_batch_size "
    "eval_accumulation_steps bf16_full_eval fp16_full_eval num_generations_eval "
    "prediction_loss_only batch_eval_metrics": _SET_HOLDOUT_INSTEAD,
    "load_best_model_at_end metric_for_best_model greater_is_better keep_adapter": "an observer "
    "saves the best adapter by the held-out scores of holdout_every=5 (docs/guide/runs.md)",
    "save_strategy": "the setting is save_steps; 0 saves every few minutes",
    "save_total_limit save_only_model save_on_each_node": "the kit saves and keeps checkpoints "
    "itself, so this argument has no effect. The setting is save_steps",
    "logging_strategy": "the kit logs by steps: set logging_steps in extra",
    "use_adaptive_entropy entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target": "a "
    "checkpoint does not store its state, so a resumed run would differ. Set entropy_coef, which "
    "is constant",
    "max_tool_calling_iterations": "tools belong to the task: task.with_tools(..., rounds=8)",
    "fsdp deepspeed": "a run trains in one process; for several processes, use gn.scaleout",
    # Names that people know from elsewhere, which GRPOConfig does not have.
    "torch_dtype": _SET_DTYPE_INSTEAD,
    "evaluation_strategy": _SET_HOLDOUT_INSTEAD,
    "warmup_ratio": "removed in transformers 5: set warmup_steps, which is a number of steps or, "
    "below 1, a share of the run",
    "max_length max_seq_length": "it is the sum of max_prompt_length and "
    "max_completion_length: set these two",
    "max_new_tokens": "the setting is max_completion_length",
    "batch_size": "the setting is per_device_train_batch_size",
    "group_size": "the setting is num_generations",
    "epochs num_epochs": _SET_MAX_STEPS_INSTEAD,
    "kl_coef": "the setting is beta",
    "lr": "the setting is learning_rate",
    "r max_lora_rank": "the setting is lora_rank",
    "target_modules": "the setting is lora_target_modules",
    "random_state": "the setting is seed",
    "model_name model_name_or_path": "the setting is model",
    "use_gradient_checkpointing": "on a GPU, the kit sets it when it loads the model; for "
    "training, write extra={'gradient_checkpointing': ...}",
    "load_in_8bit load_in_fp8 attn_implementation": _LOADED_BEFORE,
    "full_finetuning": "the kit trains only a LoRA, never all weights; a higher lora_rank makes "
    "the LoRA larger",
    "logging_dir": "removed in transformers 5; a run writes its logs into its own folder",
    "vllm_sampling_params": "set temperature, top_p, top_k (0 means no limit) and "
    "extra={'min_p': ...}, which vLLM uses too. Stop texts go into "
    "extra={'generation_kwargs': {'stop': [...]}}, which only vLLM uses",
    # Unsloth adds these to GRPOConfig on a GPU (unsloth 2026.10.9, unsloth/models/rl.py, the class
    # template).
    "unsloth_num_chunks unsloth_logit_chunk_multiplier unsloth_grpo_mini_batch": "Unsloth chooses "
    "this value by the free memory",
    "tools environment_factory rollout_func": "tools and their loop belong to the task, which also "
    "runs held-out episodes: task.with_tools(...)",
}

#: Arguments that make a trainer create a repository or a Space on the Hub and upload files that
#: nobody has verified (trl 1.15, grpo_trainer.py, `create_repo`; transformers 5.17,
#: `Trainer.init_hf_repo` and the callback of trackio).
HUB_ARGUMENTS = frozenset(
    """
    push_to_hub push_to_hub_model_id push_to_hub_organization push_to_hub_token hub_model_id
    hub_strategy hub_token hub_private_repo hub_always_push hub_revision log_completions_hub_repo
    trackio_space_id trackio_static_space_id trackio_bucket_id
    """.split()  # noqa: SIM905 (as above)
)
_NO_PUBLISHING = (
    "it would publish the model during training, before anything is verified. Push a "
    "verified export: "
    'gn.export.push_to_hub(gn.export_merged(run, "exports/name"), "user/name")'
)

# The reason for each single name, also for the arguments of the Hub.
_REFUSAL_REASON_OF_NAME = dict.fromkeys(HUB_ARGUMENTS, _NO_PUBLISHING)
for _names, _reason in _REFUSAL_REASONS.items():
    _REFUSAL_REASON_OF_NAME |= dict.fromkeys(_names.split(), _reason)

#: Arguments of GRPOConfig that a user can set: as a setting, or else in `extra`.
SETTABLE_ARGUMENTS = GRPO_CONFIG_FIELDS - _REFUSAL_REASON_OF_NAME.keys()

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
    extra = values["extra"] if isinstance(values.get("extra"), Mapping) else {}
    known = SETTABLE_ARGUMENTS.union(setting_names)
    # People paste whole configurations, so all problems are collected first.
    problems = []
    for name in (*values, *extra):
        if name in _REFUSAL_REASON_OF_NAME:
            problems.append(f"{name!r}: {_REFUSAL_REASON_OF_NAME[name]}")
        elif name not in known:
            problems.append(f"unknown setting {name!r}{did_you_mean(name, known)}")
    for name, value in extra.items():
        if name in setting_names:
            problems.append(f"{name!r} in extra: it is a setting, write {name}={value!r}")
    only_in_trl = SETTABLE_ARGUMENTS.difference(setting_names)
    if not only_in_trl.isdisjoint(values):
        # The suggested line replaces `extra`, so the line includes what `extra` holds already.
        both = {**extra, **values}
        whole_extra = {name: value for name, value in both.items() if name in only_in_trl}
        problems.append(f"arguments of TRL without a setting: write extra={whole_extra}")
    if problems:
        lines = "".join(f"\n- {problem}" for problem in problems)
        raise ValueError(f"Some settings cannot be set as written:{lines}")
