"""The same attention without copies of shared key/value heads."""

import pytest
import torch
from transformers.integrations import sdpa_attention
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from grpo_nb.cpu.attention import grouped_attention


class FakeLayer(torch.nn.Module):
    """Fields of an attention layer that the attention functions of transformers read."""

    num_key_value_groups = 3
    is_causal = True


def heads(queries: int, keys: int, *, key_heads: int = 3) -> list[torch.Tensor]:
    """Return queries, keys and values of 4 rows with 9 query heads of 16 numbers."""
    torch.manual_seed(0)
    key_shape = (4, key_heads, keys, 16)
    shapes = [(4, 9, queries, 16), key_shape, key_shape]
    return [torch.randn(shape, requires_grad=True) for shape in shapes]


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the copies of keys and values that transformers makes."""
    made: list[int] = []
    stock = sdpa_attention.repeat_kv
    monkeypatch.setattr(sdpa_attention, "repeat_kv", lambda *args: made.append(1) or stock(*args))
    return made


@pytest.mark.parametrize(("queries", "keys"), [(1, 20), (7, 20), (20, 20)])
@pytest.mark.parametrize("scaling", [None, 0.3])
def test_grouped_attention_gives_the_same_values_and_gradients(
    queries: int, keys: int, scaling: float | None, copies: list[int]
) -> None:
    inputs = heads(queries, keys)
    mask = torch.ones(4, 1, queries, keys, dtype=torch.bool).tril(keys - queries)
    mask[1, ..., :3] = False
    mask[1, :, :3] |= ~mask[1, :, :3].any(-1, keepdim=True)  # no row without anything to attend to

    def run() -> tuple[torch.Tensor, ...]:
        out, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](
            FakeLayer(), *inputs, mask, dropout=0.0, scaling=scaling
        )
        return out, *torch.autograd.grad(out.square().sum(), inputs)

    expected = run()
    assert copies == [1, 1]
    with grouped_attention():
        got = run()
    assert copies == [1, 1], "keys or values were copied"
    for mine, theirs in zip(got, expected, strict=True):
        torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-5)
    assert ALL_ATTENTION_FUNCTIONS["sdpa"] is sdpa_attention.sdpa_attention_forward


def assert_runs_as_before(
    inputs: list[torch.Tensor], mask: torch.Tensor | None, *, groups: int = 3
) -> None:
    layer = FakeLayer()
    layer.num_key_value_groups = groups
    expected, _ = sdpa_attention.sdpa_attention_forward(layer, *inputs, mask)
    with grouped_attention():
        got, _ = ALL_ATTENTION_FUNCTIONS["sdpa"](layer, *inputs, mask)
    assert torch.equal(got, expected)


CAUSAL = torch.ones(4, 1, 5, 5, dtype=torch.bool).tril()


def test_attention_without_a_mask_runs_as_before() -> None:
    assert_runs_as_before(heads(5, 5), None)


def test_attention_of_heads_that_are_not_shared_runs_as_before() -> None:
    assert_runs_as_before(heads(5, 5, key_heads=9), CAUSAL, groups=1)
