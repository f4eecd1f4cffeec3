"""Log-probabilities and gradients with shared prompts are those of TRL's own pass."""

import pytest
import torch

from grpo_nb.cpu import shared_prompts
from grpo_nb.cpu.engine import CpuEngine
from tests.support.small_models import (
    COMMON,
    FAMILIES,
    PROMPTS,
    assert_same_gradients,
    batch,
    gradients,
    lora_model,
    stock,
)

CASES = {
    "one prompt": ([PROMPTS[0]], [0] * 4, [5, 9, 2, 9]),
    "three prompts of different length": (PROMPTS, [0, 0, 1, 1, 2, 2], [5, 1, 7, 7, 3, 12]),
    "shuffled rows and uneven groups": (PROMPTS, [2, 0, 1, 0, 2, 0, 0], [4, 8, 1, 30, 2, 60, 5]),
    "nothing in common": ([[5, 6, 7], [8, 9, 10, 11]], [0, 1, 0, 1], [4, 4, 6, 1]),
    "one prompt begins another": ([COMMON, [*COMMON, 60, 61]], [0, 0, 1, 1], [3, 4, 5, 6]),
    "one-token completions": (PROMPTS, [0, 0, 1, 1], [1, 1, 1, 1]),
    "a completion masked away": (PROMPTS, [0, 0, 1, 1], [4, 0, 3, 5]),
    "prompts that occur once": (PROMPTS, [0, 1, 2], [3, 3, 3]),
    "one row": (PROMPTS, [1], [3]),
    "a group of 32": ([PROMPTS[1]], [0] * 32, list(range(1, 33))),
}


def shared(model, ids, mask, length):
    return shared_prompts.shared_prompt_log_probs(model, ids, mask, length)


@pytest.mark.parametrize("case", CASES)
def test_log_probabilities_and_gradients_equal_the_stock_path(case: str) -> None:
    compare_with_stock(lora_model(), *batch(*CASES[case]))


@pytest.mark.parametrize(("kind", "tied"), [(kind, kind != "llama") for kind in sorted(FAMILIES)])
def test_every_family_equals_the_stock_path(kind: str, tied: bool) -> None:
    compare_with_stock(
        lora_model(kind, tied=tied), *batch(*CASES["three prompts of different length"])
    )


def compare_with_stock(model, ids, mask, length) -> None:
    assert CpuEngine.model_obstacle(model, ids.shape[1]) is None
    got = shared(model, ids, mask, length)
    got_gradients = gradients(model, *got)
    expected = stock(model, ids, mask, length)
    assert_same_gradients(got_gradients, gradients(model, *expected))
    torch.testing.assert_close(got[0], expected[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(got[1], expected[1], atol=1e-4, rtol=0)


def test_bfloat16_is_as_near_to_float32_as_the_stock_path() -> None:
    """In bfloat16 no two orders of computing agree; neither may be farther from float32."""
    ids, mask, length = batch(*CASES["a group of 32"])
    scored = mask[:, -length:].bool()
    wide = lora_model()
    exact = stock(wide, ids, mask, length)
    exact_gradients = gradients(wide, *exact)
    model = lora_model().to(torch.bfloat16)
    errors = []
    gradient_errors = []
    for path in (shared, stock):
        log_probs, entropies = path(model, ids, mask, length)
        errors.append((log_probs.float() - exact[0])[scored].pow(2).mean().sqrt().item())
        got = gradients(model, log_probs, entropies)
        different = sum((got[name].float() - g).norm() ** 2 for name, g in exact_gradients.items())
        gradient_errors.append((different**0.5).item())
    assert 0 < errors[0] <= 1.5 * errors[1], errors
    assert 0 < gradient_errors[0] <= 1.5 * gradient_errors[1], gradient_errors


def test_batch_with_all_completions_masked_gives_zeros() -> None:
    model = lora_model()
    ids, mask, length = batch(PROMPTS, [0, 0, 1, 1], [4, 2, 3, 5])
    mask[:, -length:] = 0  # as `mask_truncated_completions` leaves it
    log_probs, entropies = shared(model, ids, mask, length)
    assert log_probs.shape == (4, length)
    assert not log_probs.any()
    assert not any(gradient.any() for gradient in gradients(model, log_probs, entropies).values())


def test_dropout_leaves_each_completion_its_distribution() -> None:
    """Means over many masks agree; in one draw, a group shares the mask of its prompt."""
    model = lora_model(dropout=0.2).train()
    ids, mask, length = batch([PROMPTS[0]], [0] * 2, [3, 3])
    count = 200
    draws = {}
    with torch.no_grad():
        for path in (shared, stock):
            torch.manual_seed(4)
            draws[path] = torch.stack([path(model, ids, mask, length)[0] for _ in range(count)])
    spread = draws[stock].std(0)
    assert (spread > 0.01).all(), "dropout has no effect"
    torch.testing.assert_close(draws[shared].std(0), spread, atol=0, rtol=0.25)
    error = (draws[shared].mean(0) - draws[stock].mean(0)).abs() / (spread * (2 / count) ** 0.5)
    assert error.max() < 4.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
            "linear_attention",
        ),
        (
            {"sliding_window": 8},
            "sliding window of 8 tokens, which prompt and completion may exceed",
        ),
        ({"sliding_window": 40}, None),
        ({"rope_parameters": None}, "no rotary"),
        # As in DeepSeek, which caches less than keys and values, and in MiMo-V2.
        ({"v_head_dim": 12}, "keys and values of different sizes"),
    ],
)
def test_cpu_engine_obstacle_names_the_part_of_a_model(change: dict, said: str | None) -> None:
    model = lora_model()
    assert CpuEngine.model_obstacle(model, 40) is None
    for name, value in change.items():
        setattr(model.config, name, value)
    found = CpuEngine.model_obstacle(model, 40)
    assert found is None if said is None else said in found


def test_assign_to_lanes_fills_lanes_of_the_longest_row() -> None:
    assert shared_prompts.assign_to_lanes([40, 30, 10], [0, 0, 0]) == [[0], [1, 2]]


def test_assign_to_lanes_keeps_prompts_apart() -> None:
    assert shared_prompts.assign_to_lanes([40, 40], [0, 1]) == [[0], [1]]
