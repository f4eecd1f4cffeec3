"""Attention without copies of shared key/value heads: the same values and gradients."""

from typing import Any

import pytest
import torch
from transformers.integrations import sdpa_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grpo_nb.cpu.attention import grouped_attention


class FakeLayer(torch.nn.Module):
    """The parts of an attention layer that transformers' attention functions read."""

    num_key_value_groups = 3
    is_causal = True


def random_heads(queries: int, keys: int, *, is_grouped: bool = True) -> list[torch.Tensor]:
    torch.manual_seed(0)
    key_heads = 3 if is_grouped else 9
    query = torch.randn(4, 9, queries, 16, requires_grad=True)
    key = torch.randn(4, key_heads, keys, 16, requires_grad=True)
    value = torch.randn(4, key_heads, keys, 16, requires_grad=True)
    return [query, key, value]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """One entry for each copy of keys or values that transformers makes."""
    made: list[str] = []
    original = sdpa_attention.repeat_kv

    def repeat_kv(*args: Any) -> torch.Tensor:
        made.append("copy")
        return original(*args)

    monkeypatch.setattr(sdpa_attention, "repeat_kv", repeat_kv)
    return made


@pytest.mark.parametrize(
    ("queries", "keys"),
    [
        pytest.param(1, 20, id="decoding"),
        pytest.param(7, 20, id="after a cache"),
        pytest.param(20, 20, id="whole prompt"),
    ],
)
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_attention_has_stock_values_and_gradients(
    queries: int, keys: int, scaling: float | None, copies: list[str]
) -> None:
    inputs = random_heads(queries, keys)
    mask = torch.ones(4, 1, queries, keys, dtype=torch.bool).tril(keys - queries)
    mask[1, ..., :3] = False
    # Every query sees at least one key.
    mask[1, :, :3] |= ~mask[1, :, :3].any(-1, keepdim=True)

    def run() -> tuple[torch.Tensor, ...]:
        attention = ALL_ATTENTION_FUNCTIONS["sdpa"]
        out, _ = attention(FakeLayer(), *inputs, mask, dropout=0.0, scaling=scaling)
        return out, *torch.autograd.grad(out.square().sum(), inputs)

    expected = run()
    assert copies == ["copy", "copy"]
    with grouped_attention():
        got = run()
    assert copies == ["copy", "copy"], "keys or values were copied"
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)


def test_attention_function_is_put_back_after_the_block() -> None:
    with grouped_attention():
        assert ALL_ATTENTION_FUNCTIONS["sdpa"] is not sdpa_attention.sdpa_attention_forward
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention.sdpa_attention_forward


@pytest.mark.parametrize("case", ["no mask", "heads not shared", "position bias"])
def test_attention_leaves_other_calls_to_transformers(case: str) -> None:
    is_grouped = case != "heads not shared"
    inputs = random_heads(5, 5, is_grouped=is_grouped)
    layer = FakeLayer()
    layer.num_key_value_groups = 3 if is_grouped else 1
    mask = None if case == "no mask" else torch.ones(4, 1, 5, 5, dtype=torch.bool).tril()
    more = {"position_bias": torch.randn(1, 9, 5, 5)} if case == "position bias" else {}
    expected, _ = sdpa_attention.sdpa_attention_forward(layer, *inputs, mask, **more)
    with grouped_attention():
        got, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](layer, *inputs, mask, **more)
    assert torch.equal(got, expected)
