"""Weights are shown and moved by the names of the rewards."""

import pytest

from grpo_nb.lab.controls import WeighedPanel


def test_weights_are_shown_moved_and_refused_by_name() -> None:
    moved = []

    class Weighed(WeighedPanel):
        def _reweigh(self, change: dict) -> None:
            moved.append(change["new"])

    panel = Weighed()
    panel._weights.show({"a": 1.0, "b": 2.0})
    panel.weights = {"b": 0.5}
    assert panel.weights == {"a": 1.0, "b": 0.5} and moved == [0.5] and len(panel._weights.children) == 2
    with pytest.raises(ValueError, match=r"weights names 'c', but the rewards are \['a', 'b'\]"):
        panel.weights = {"c": 1.0}
