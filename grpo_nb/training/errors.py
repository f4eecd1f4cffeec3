"""Explain the errors that end a training: a reward failed, or the machine lacks something."""

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from grpo_nb.config.planning import out_of_memory_advice
from grpo_nb.config.settings import Settings
from grpo_nb.core.problems import EnvironmentProblem, error_summary
from grpo_nb.machine.gpu_errors import is_out_of_memory, raise_if_known
from grpo_nb.rewards.base import (
    Completion,
    RewardFunction,
    completion_text,
    reward_name,
)
from grpo_nb.scoring.scores import (
    RewardError,
    checked_scores,
    raise_reward_error,
    with_final_model_message,
)


def with_checks(reward: RewardFunction) -> RewardFunction:
    """Return the reward with errors that name the reward, the row and the completion.

    Scores that TRL could not use (too few, infinite, not numbers) raise an error here too, because
    an error of TRL would not name the reward.
    """

    def checked_reward(completions: Sequence[Completion], **columns: Any) -> list[Any]:
        # Many rewards read `completion[-1]["content"]`.
        keywords = {"completions": [with_final_model_message(c) for c in completions], **columns}
        try:
            scores = list(reward(**keywords))
            # Called for its checks only. An infinite score would set all advantages of the group to
            # 0, or ruin the adapter if scale_rewards is "none".
            checked_scores(scores, len(completions))
        except (RewardError, EnvironmentProblem):
            raise
        except Exception as error:
            # `is_out_of_memory` reads the message. An error of another type may quote a completion
            # that is about memory, so only these two types count.
            if isinstance(error, (RuntimeError, MemoryError)) and is_out_of_memory(error):
                raise
            # Pass on the data columns only, of which one row is scored again. They are lists, and
            # TRL's other arguments, such as `trainer_state`, are not.
            data_columns = {
                key: value for key, value in keywords.items() if isinstance(value, list)
            }
            # To find the row, `raise_reward_error` scores rows again. A paid judge charges for them
            # twice.
            raise_reward_error(
                reward,
                data_columns,
                error,
                texts=list(map(completion_text, completions)),
                trainer_state=columns.get("trainer_state"),
            )
        return scores

    # TRL 1.15 logs a reward under the `__name__` of its function, and ignores a `__name__` that was
    # set on a `functools.partial`.
    checked_reward.__name__ = reward_name(reward)
    return checked_reward


@contextlib.contextmanager
def explaining_machine_faults(settings: Settings, run_folder: Path | None = None) -> Iterator[None]:
    """Turn an error of the block that the machine caused into an `EnvironmentProblem` with advice.

    Args:
        settings: Settings of the engine that runs (`PreparedTraining.settings_as_run`).
        run_folder: Folder of the run; None for a dry run.

    Raises:
        EnvironmentProblem: The memory is full, or the GPU failed.
    """
    try:
        yield
    except (EnvironmentProblem, RewardError):
        raise
    except Exception as error:
        # An out-of-memory error gets its own advice, because lower settings help.
        advice = out_of_memory_advice(error, settings)
        if advice is not None:
            if run_folder is not None:
                adapter = str(run_folder / "adapter")
                advice += (
                    " Then resume this run. If gn.train refuses to resume it with the changed "
                    "setting, start a new run from its adapter: "
                    f"gn.load_model(settings, adapter={adapter!r})."
                )
            raise EnvironmentProblem(f"{advice}\n({error_summary(error)})") from error
        raise_if_known(error)
        raise
