"""Log-probabilities and gradients with shared prompts equal those of TRL's own pass."""

from typing import Any

import pytest
import torch

from grpo_nb.cpu.shared_prompts import (
    batch_obstacle,
    shared_prompt_logps,
    shared_prompt_obstacle,
)
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

THREE_PROMPTS = (PROMPTS, [0, 0, 1, 1, 2, 2], [5, 1, 7, 7, 3, 12])
GROUP_OF_32 = ([PROMPTS[1]], [0] * 32, list(range(1, 33)))


def shared(model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int) -> Any:
    assert batch_obstacle(ids, mask, length) is None
    return shared_prompt_logps(model, ids, mask, length, pad_id=0)


def assert_equals_stock(model: Any, ids: torch.Tensor, mask: torch.Tensor, length: int) -> None:
    assert shared_prompt_obstacle(model, ids.shape[1]) is None
    log_probs, entropies = shared(model, ids, mask, length)
    got_gradients = gradients(model, log_probs, entropies)
    stock_log_probs, stock_entropies = stock(model, ids, mask, length)
    assert_same_gradients(got_gradients, gradients(model, stock_log_probs, stock_entropies))
    torch.testing.assert_close(log_probs, stock_log_probs, atol=1e-4, rtol=0)
    torch.testing.assert_close(entropies, stock_entropies, atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("prompts", "owners", "lengths"),
    [
        pytest.param([PROMPTS[0]], [0] * 4, [5, 9, 2, 9], id="one prompt"),
        pytest.param(*THREE_PROMPTS, id="three prompts of different length"),
        pytest.param(
            PROMPTS, [2, 0, 1, 0, 2, 0, 0], [4, 8, 1, 30, 2, 60, 5], id="shuffled, uneven groups"
        ),
        pytest.param(
            [[5, 6, 7], [8, 9, 10, 11]], [0, 1, 0, 1], [4, 4, 6, 1], id="nothing in common"
        ),
        pytest.param(
            [COMMON, [*COMMON, 60, 61]], [0, 0, 1, 1], [3, 4, 5, 6], id="one begins another"
        ),
        pytest.param(PROMPTS, [0, 0, 1, 1], [1, 1, 1, 1], id="one-token completions"),
        pytest.param(PROMPTS, [0, 0, 1, 1], [4, 0, 3, 5], id="a completion masked away"),
        pytest.param(*GROUP_OF_32, id="a group of 32"),
    ],
)
def test_shared_prompts_equal_stock_log_probs_and_gradients(
    prompts: list[list[int]], owners: list[int], lengths: list[int]
) -> None:
    assert_equals_stock(lora_model(), *batch(prompts, owners, lengths))


@pytest.mark.parametrize("kind", sorted(FAMILIES))
def test_shared_prompts_equal_stock_in_every_family(kind: str) -> None:
    assert_equals_stock(lora_model(kind, tied=kind != "llama"), *batch(*THREE_PROMPTS))


def test_shared_prompts_in_bfloat16_err_no_more_than_stock() -> None:
    """In bfloat16 two orders of computing differ; neither may be farther from float32."""
    ids, mask, length = batch(*GROUP_OF_32)
    is_scored = mask[:, -length:].bool()
    wide = lora_model()
    exact_log_probs, exact_entropies = stock(wide, ids, mask, length)
    exact_gradients = gradients(wide, exact_log_probs, exact_entropies)
    model = lora_model().to(torch.bfloat16)
    errors = []
    gradient_errors = []
    for path in (shared, stock):
        log_probs, entropies = path(model, ids, mask, length)
        difference = (log_probs.float() - exact_log_probs)[is_scored]
        errors.append(difference.pow(2).mean().sqrt().item())
        got = gradients(model, log_probs, entropies)
        squares = [(got[name].float() - g).norm() ** 2 for name, g in exact_gradients.items()]
        gradient_errors.append((sum(squares) ** 0.5).item())
    assert 0 < errors[0] <= 1.5 * errors[1], errors
    assert 0 < gradient_errors[0] <= 1.5 * gradient_errors[1], gradient_errors


def test_shared_prompts_with_dropout_keep_the_distribution() -> None:
    """Means over many masks agree, though completions of a group share their prompt's mask."""
    model = lora_model(dropout=0.2).train()
    ids, mask, length = batch([PROMPTS[0]], [0] * 2, [3, 3])
    count = 200
    samples = {}
    with torch.no_grad():
        for path in (shared, stock):
            torch.manual_seed(4)
            log_probs = [path(model, ids, mask, length)[0] for _ in range(count)]
            samples[path] = torch.stack(log_probs)
    spread = samples[stock].std(0)
    assert (spread > 0.01).all(), "dropout has no effect"
    torch.testing.assert_close(samples[shared].std(0), spread, atol=0, rtol=0.25)
    difference = (samples[shared].mean(0) - samples[stock].mean(0)).abs()
    assert (difference / (spread * (2 / count) ** 0.5)).max() < 4.5


def test_batch_obstacle_names_a_mask_within_a_completion() -> None:
    ids, mask, length = batch(PROMPTS, [0, 0], [4, 4])
    mask[0, -3] = 0  # as masked tool output leaves it
    assert "masked in its middle" in batch_obstacle(ids, mask, length)


def test_batch_obstacle_names_prompts_that_occur_once() -> None:
    reason = batch_obstacle(*batch(PROMPTS, [0, 1, 2], [3, 3, 3]))
    assert "no prompt occurs twice" in reason


def test_batch_obstacle_names_a_prompt_of_one_token() -> None:
    assert "shorter than two tokens" in batch_obstacle(*batch([[5]], [0, 0], [4, 4]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        pytest.param(
            {"layer_types": ["full_attention", "linear_attention", "full_attention"]},
            "linear_attention",
            id="linear layers",
        ),
        pytest.param(
            {"sliding_window": 8},
            "sliding window of 8 tokens, which prompt and completion may exceed",
            id="short window",
        ),
        pytest.param({"rope_parameters": None}, "no rotary", id="no rotary positions"),
    ],
)
def test_model_obstacle_names_what_is_not_covered(change: dict[str, Any], reason: str) -> None:
    model = lora_model()
    for name, value in change.items():
        setattr(model.config, name, value)
    assert reason in shared_prompt_obstacle(model, 40)


def test_model_obstacle_is_none_if_rows_fit_the_window() -> None:
    model = lora_model()
    assert shared_prompt_obstacle(model, 40) is None
    model.config.sliding_window = 40
    assert shared_prompt_obstacle(model, 40) is None
