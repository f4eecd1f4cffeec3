"""Check everything that a training needs before anything slow starts, and build the trainer.

A training and a dry run use the same functions. `effective_settings` shows how the built
configuration differs from the settings.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from grpo_nb.config.arguments import SAMPLING_ARGUMENTS_IN_EXTRA
from grpo_nb.config.effective_table import (
    ChangedSetting,
    EffectiveSettings,
    compare_configurations,
    passed_arguments,
)
from grpo_nb.config.hardware import DTYPE_RULE, choose_dtype, has_vllm_engine
from grpo_nb.config.settings import Settings
from grpo_nb.core.problems import warn_user
from grpo_nb.generation.choice import EngineChoice, choose_engine
from grpo_nb.generation.episodes import prepare_tokenizer_for_tools
from grpo_nb.generation.vllm import drop_leftover_requests
from grpo_nb.machine.gpu import find_gpu
from grpo_nb.models.load_record import require_same_settings
from grpo_nb.models.unsloth_import import import_unsloth
from grpo_nb.rewards.base import RewardFunction, reward_list, weights_by_name
from grpo_nb.rewards.code import code_tests
from grpo_nb.runs.groups import RESERVED_COLUMNS
from grpo_nb.scoring.scores import score
from grpo_nb.tasks.task import Task
from grpo_nb.training.errors import with_checks
from grpo_nb.upstream.trl import restoring_adapter_values, silence_experimental_warnings
from grpo_nb.upstream.unsloth import give_vllm_lora_copies, set_cpu_dtype, trl_config_class
from grpo_nb.upstream.vllm import hiding_stdout

import_unsloth()

from transformers import GenerationConfig, PrinterCallback, TrainerState
from trl import GRPOConfig

from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.training.trainer import RunTrainer

#: Arguments of `GRPOConfig` for the records of a run. The settings' `extra` takes precedence.
RECORDING_ARGUMENTS = {
    "logging_steps": 1,
    # A NaN in the loss is shown, not replaced by the last good value.
    "logging_nan_inf_filter": False,
    # The recorder decides when to save, and shows a bar of its own.
    "save_strategy": "no",
    "disable_tqdm": True,
    # Trackers are used only if `extra` names them.
    "report_to": "none",
}


@dataclass(frozen=True, kw_only=True)
class PreparedTraining:
    """The checked parts of a training."""

    model: Any
    tokenizer: Any
    task: Task
    """The task without the prompts that are too long."""
    rewards: list[RewardFunction]
    settings: Settings
    """The settings, with the task's arguments for the chat template, so that the trainer renders
    the same prompts."""
    weights: dict[str, float]
    """The weight of each reward by name."""
    engine_choice: EngineChoice
    dtype: str
    """Dtype that the model computes in, from `choose_dtype`."""

    @property
    def settings_as_run(self) -> Settings:
        """The settings with `shared_prompts` and `fast_inference` as they really run.

        Memory plan, memory advice and held-out scores use these settings, because the requested
        engine may not be the one that the model has.
        """
        return self.settings.replace(
            shared_prompts=self.engine_choice.can_use_cpu_engine,
            fast_inference=has_vllm_engine(self.model),
        )


def check_training(
    model: Any, tokenizer: Any, task: Task, rewards: Sequence[RewardFunction], settings: Settings
) -> PreparedTraining:
    """Check the arguments of a training and return its parts. Nothing is written.

    Call `try_rewards` afterwards.

    Raises:
        TypeError: The model has no LoRA.
        ValueError: Rewards, data or settings cannot work.
    """
    rewards = reward_list(rewards)
    require_same_settings(model, tokenizer, settings)
    settings = task.settings_for_template(settings)
    if task.tools is not None:
        # This raises an error if the chat template cannot be trained with tools.
        prepare_tokenizer_for_tools(tokenizer)
    trainable_task = task.without_long_prompts(tokenizer, settings.max_prompt_length)
    if trainable_task is not task:
        warn_user(f"Some prompts are left out: {trainable_task.report.reasons_in_words}.")
    weights = weights_by_name(rewards)
    # In the record of completions, each reward has a column of its name.
    reserved = weights.keys() & RESERVED_COLUMNS
    if reserved:
        raise ValueError(
            f"no reward can be called {reserved.pop()!r}, because the record of completions has a "
            "column of that name. Give the reward another name."
        )
    engine_choice = choose_engine(model, settings)
    _check_generation_kwargs(settings, engine_choice.vllm_obstacle)
    return PreparedTraining(
        model=model,
        tokenizer=tokenizer,
        task=trainable_task,
        rewards=rewards,
        settings=settings,
        weights=weights,
        engine_choice=engine_choice,
        dtype=choose_dtype(settings, find_gpu(), model),
    )


def _check_generation_kwargs(settings: Settings, vllm_obstacle: str | None) -> None:
    """Refuse `generation_kwargs` that have no effect, or that evaluations would not use.

    Raises:
        ValueError: A name has no effect, or belongs in `Settings` or `extra`, where evaluations
            read it too.
    """
    names = set(settings.extra.get("generation_kwargs") or ())
    misplaced = names & {
        *vars(settings),
        *SAMPLING_ARGUMENTS_IN_EXTRA,
        # Other names for `max_completion_length`, which the memory plan reads.
        "max_new_tokens",
        "max_length",
    }
    if misplaced:
        raise ValueError(
            f"generation_kwargs has {sorted(misplaced)}, which evaluations would not use. Set a "
            "field of Settings with settings.replace(top_p=0.9). Set min_p and repetition_penalty "
            "with settings.replace(extra={'min_p': 0.1}). Set a length with max_completion_length."
        )
    # vLLM itself refuses names that it does not know.
    if vllm_obstacle is None:
        return
    # `GenerationConfig` keeps names that it does not know, and `generate` never reads them.
    # It reads `stop_strings` only with a tokenizer, which TRL does not pass (trl 1.15,
    # trainer/grpo_trainer.py, `_generate_single_turn`).
    effective = vars(GenerationConfig()).keys() - {"stop_strings"}
    ineffective = names - effective
    if ineffective:
        raise ValueError(
            f"generation_kwargs has {sorted(ineffective)}, which would have no effect without "
            "vLLM. Leave them out. To end a completion at a text, {'stop': [...]} needs vLLM. Why "
            f"vLLM does not generate here: {vllm_obstacle}"
        )


def try_rewards(prepared: PreparedTraining) -> None:
    """Check hidden tests, and call each reward on the first row as TRL does.

    The state of each reward is restored. The call finds a missing column or a wrong return value
    before the training. Call this after all other checks, because a reward may ask a paid judge.

    Raises:
        RewardError: A reward fails, or returns values that TRL could not use.
        ValueError: The column of hidden tests is missing, or a test cannot be read.
    """
    task = prepared.task
    for reward in prepared.rewards:
        if isinstance(reward, code_tests):
            reward.check(task.train)
    # Score a right answer. With a wrong one a reward may return early, before its faulty line runs.
    row = task.train[0]
    content = task.format.render_completion("reasoning", row["answer"])
    answer = [{"role": "assistant", "content": content}]
    score(
        prepared.rewards,
        [answer],
        rows=task.start_episode(row),  # with the environment, if the task has tools
        completion_ids=[[0]],  # any ids, because the answer is not tokenized
        trainer_state=TrainerState(max_steps=prepared.settings.max_steps),
    )


def build_trainer(
    prepared: PreparedTraining, trainer_class: type[RunTrainer] = RunTrainer
) -> RunTrainer:
    """Return the trainer. It writes nothing until `args.output_dir` is set to the folder of a run.

    Args:
        prepared: The parts of the training.
        trainer_class: `RunTrainer` or a subclass.
    """
    model = prepared.model
    if has_vllm_engine(model):
        give_vllm_lora_copies()  # also for a model that grpo_nb did not load
    match_unsloth_dtype(prepared.dtype)
    drop_leftover_requests(model)  # requests of a sampling that was interrupted
    engine = CpuEngine(model) if prepared.engine_choice.can_use_cpu_engine else None
    # The trainer creates its output folder at once, so a temporary folder stands in for it.
    with (
        restoring_adapter_values(model),
        tempfile.TemporaryDirectory() as folder,
    ):
        arguments = {
            **RECORDING_ARGUMENTS,
            **arguments_on_this_machine(prepared.settings, prepared.engine_choice, prepared.dtype),
            "output_dir": folder,
            "reward_weights": list(prepared.weights.values()),
        }
        # The order of these rows matters, for example easy questions first.
        if prepared.task.is_ordered:
            arguments.setdefault("shuffle_dataset", False)
        tools = prepared.task.tools
        tool_arguments = {}
        if tools is not None:
            silence_experimental_warnings()
            arguments["max_tool_calling_iterations"] = tools.rounds
            tool_arguments = {
                "task_tools": tools,
                "tools": list(tools.functions),
                "environment_factory": tools.environment_factory,
            }
        trainer = trainer_class(
            model=model,
            processing_class=prepared.tokenizer,
            reward_funcs=[with_checks(reward) for reward in prepared.rewards],
            args=GRPOConfig(**arguments),
            train_dataset=prepared.task.train,
            engine=engine,
            **tool_arguments,
        )
    # The figure and the bar replace the dicts that transformers prints for each step.
    trainer.remove_callback(PrinterCallback)
    return trainer


def match_unsloth_dtype(dtype: str) -> None:
    """Set Unsloth's dtype on a CPU to the one that the model computes in.

    On a CPU, Unsloth has one dtype for the whole process, and loading another model may have
    changed it. Call this function before a `GRPOConfig` is built.
    """
    if find_gpu() is None:
        set_cpu_dtype(use_bfloat16=dtype == "bfloat16")


def arguments_on_this_machine(
    settings: Settings, engine_choice: EngineChoice, dtype: str
) -> dict[str, Any]:
    """Return the arguments for `GRPOConfig` on this machine."""
    # It is not enough that vLLM is installed: for a model that was loaded without vLLM, TRL would
    # start an engine of its own.
    return passed_arguments(
        settings, gpu=find_gpu(), dtype=dtype, can_use_vllm=engine_choice.vllm_obstacle is None
    )


def effective_settings(settings: Settings, model: Any = None) -> EffectiveSettings:
    """Return a table of the settings that run otherwise than written, with the reasons.

    The dtype always has a row. The configuration is built as for a training and compared with the
    settings.

    Args:
        settings: The settings of the run.
        model: The loaded model; None stands for the model that `load_model` would load now. It
            decides the dtype, whether vLLM generates, and whether the completions of a group share
            their prompt.

    Raises:
        ValueError: TRL refuses the settings.

    >>> effective_settings(Settings(optim="adamw_8bit")).changed["optim"].effective  # on a CPU
    'adamw_torch_fused'
    """
    dtype = choose_dtype(settings, find_gpu(), model)
    engine_choice = choose_engine(model, settings)
    # The returned table replaces what Unsloth prints about its changes.
    with hiding_stdout():
        match_unsloth_dtype(dtype)
        passed = arguments_on_this_machine(settings, engine_choice, dtype)
        # A configuration does not write to its output folder; only a trainer does.
        arguments = {**RECORDING_ARGUMENTS, **passed, "output_dir": "unused"}
        # TRL refuses some values of `optim` that Unsloth accepts, so TRL's configuration is built
        # without `optim`. Its own value there is never read, because `compare_configurations`
        # compares the passed `optim` with the settings.
        optim = arguments.pop("optim")
        trl_config = trl_config_class()(**arguments)
        built_config = GRPOConfig(**arguments, optim=optim)
    result = compare_configurations(settings, passed, built_config, trl_config)
    changed = {"dtype": ChangedSetting(settings.dtype, dtype, DTYPE_RULE)}
    obstacles = {
        "fast_inference": engine_choice.vllm_obstacle,
        "shared_prompts": engine_choice.cpu_engine_obstacle,
    }
    for name, obstacle in obstacles.items():
        if getattr(settings, name) and obstacle is not None:
            changed[name] = ChangedSetting(True, False, obstacle)
    return EffectiveSettings({**changed, **result.changed}, result.arguments)
