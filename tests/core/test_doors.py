"""Doors offer what they say, load nothing heavy, and none of their names is hidden by a file."""

import importlib
import pkgutil
import subprocess
import sys

import pytest

from grpo_nb.core.doors import open_door
from tests import test_door
from tests.test_house import ROOMS

HEAVY = {*test_door.HEAVY, "peft", "IPython"}


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_every_name_of_a_door_is_there_and_no_file_hides_it(room: str) -> None:
    door = importlib.import_module(f"grpo_nb.{room}")
    assert door.__doc__ and door.__all__ == sorted(set(door.__all__)) == dir(door)
    for name in door.__all__:
        assert getattr(door, name) is not None
    files = {module.name for module in pkgutil.iter_modules(door.__path__)}
    assert not files & set(door.__all__)


@pytest.mark.parametrize("room", sorted(ROOMS))
def test_opening_a_door_loads_nothing_heavy(room: str) -> None:
    code = f"import grpo_nb.{room}, sys; print(*{{m.split('.')[0] for m in sys.modules}})"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not HEAVY & set(loaded)


def test_a_name_that_a_file_would_hide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"room: plan is the name of a file"):
        open_door({"__name__": "room"}, {"plan": ("plan",)})
