"""What to write after an out-of-memory error: the cheapest change first, by the place where it failed."""

import pytest

from grpo_nb.settings.out_of_memory import memory_advice
from grpo_nb.settings.settings import Settings


def chained() -> Exception:
    try:
        try:
            raise MemoryError
        except MemoryError as error:
            raise ValueError("generation failed") from error
    except ValueError as error:
        return error


ONE = {"per_device_train_batch_size": 1, "gradient_accumulation_steps": 8}


@pytest.mark.parametrize(
    ("error", "settings", "change"),
    [
        (RuntimeError("CUDA out of memory. Tried to allocate"), {},
         {"per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}),
        (chained(), {"per_device_train_batch_size": 9, "num_generations": 3},
         {"per_device_train_batch_size": 3, "gradient_accumulation_steps": 3}),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), ONE, {"load_in_4bit": True}),
        (ValueError("No available memory for the cache blocks"), {"fast_inference": True}, {"gpu_memory_utilization": 0.7}),
        (RuntimeError("CUDA out of memory"), {"fast_inference": True, **ONE}, {"gpu_memory_utilization": 0.5}),
        (MemoryError(), {**ONE, "load_in_4bit": True, "max_completion_length": 128}, {"max_completion_length": 64}),
        (MemoryError(), {**ONE, "load_in_4bit": True}, {"num_generations": 4}),
    ],
)  # fmt: skip
def test_it_names_what_to_lower(
    error: Exception, settings: dict, change: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", "0")  # in standby vLLM has given its cache back by then
    before = Settings(**settings)
    advised = memory_advice(error, before)
    after = before.replace(**change)  # what it says can be written
    assert advised.change == change and all(f"{name}={value!r}" in advised.advice for name, value in change.items())
    assert after.batch_size == before.batch_size or "per_device_train_batch_size" not in change


def test_other_errors_are_not_memory() -> None:
    assert memory_advice(ValueError("num_generations"), Settings()) is None
    least = Settings(per_device_train_batch_size=1, gradient_accumulation_steps=2, num_generations=2, load_in_4bit=True)
    assert "smaller model" in memory_advice(MemoryError(), least.replace(max_completion_length=64)).advice
