"""Rewards are written as source with everything they use, or refused with the reason."""

from __future__ import annotations

import dataclasses
import functools
import importlib.machinery
import importlib.metadata
import importlib.util
import pickle
import re
import subprocess
import sys
import types
from collections import Counter
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.scaleout.reward_source import NotPortableError, RewardSource, write_rewards_and_kit
from grpo_nb.scoring.record import record_of
from tests.support import shared

WORDS = re.compile(r"\w+", re.IGNORECASE)
LIMIT = 12
FACTOR = 2
NAMES = {"a": (1, 2.5), "b": None}
SLOT = gn.tasks.boxed()


def words_of(text: str) -> list[str]:
    return WORDS.findall(text)


def varied(completions, weight=FACTOR, **columns):
    """Uses constants, a pattern, a function, an import, the kit and a local `pickle`."""
    pickle = [gn.rewards.completion_text(c) for c in completions]
    return [
        len(Counter(words_of(t))) / LIMIT * weight * len(NAMES) + (SLOT.extract(t) is not None)
        for t in pickle
    ]


@functools.lru_cache
def known(text: str) -> int:
    return len(text)


def found_later(completions, **columns):
    import numpy

    from grpo_nb.rewards.base import completion_text

    return [float(numpy.float64(known(completion_text(c)))) for c in completions]


def loaded(folder: Path, rewards: list) -> list:
    """The rewards of rewards.py, imported by itself."""
    write_rewards_and_kit(folder, rewards)
    spec = importlib.util.spec_from_file_location("rewards_there", folder / "rewards.py")
    module = sys.modules["rewards_there"] = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path])
        spec.loader.exec_module(module)
    return module.REWARDS


TEXTS = ["one two two", r"\boxed{7} three", ""]


def test_function_is_written_with_what_it_uses(tmp_path: Path) -> None:
    there = loaded(tmp_path, [varied, found_later])
    assert there[0] is not varied
    assert there[0](completions=TEXTS) == varied(completions=TEXTS)
    assert pickle.loads(pickle.dumps(there[0]))(completions=TEXTS) == varied(completions=TEXTS)
    assert there[1](completions=TEXTS) == found_later(completions=TEXTS)
    text = (tmp_path / "rewards.py").read_text()
    assert "Uses constants" in text
    assert "test_code" not in text


OF_THE_KIT = [
    gn.rewards.correctness(weight=2.0, format=gn.tasks.hashes()),
    gn.rewards.maths(column="solution", format=gn.tasks.boxed()),
    gn.rewards.partial_format(name="tags"),
    gn.rewards.exact_text(name='a "b"'),
]


def test_rewards_of_the_kit_have_equal_records(tmp_path: Path) -> None:
    there = loaded(tmp_path, OF_THE_KIT)
    assert [record_of(reward) for reward in there] == [record_of(reward) for reward in OF_THE_KIT]


@pytest.mark.parametrize(
    "rewards",
    [OF_THE_KIT, [gn.rewards.maths(), gn.rewards.code_tests()], [found_later]],
    ids=["kit", "kit with a sandbox", "own function"],
)
def test_rewards_run_where_the_kit_is_not_installed(tmp_path: Path, rewards: list) -> None:
    write_rewards_and_kit(tmp_path, rewards)
    code = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r}); import rewards; "
        "print(len(rewards.REWARDS))"
    )
    (tmp_path / "blocked").mkdir()
    (tmp_path / "blocked" / "grpo_nb.py").write_text("raise ModuleNotFoundError('not here')")
    environment = {"PYTHONPATH": str(tmp_path / "blocked")}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=tmp_path
    )
    assert done.stdout.strip() == str(len(rewards)), done.stderr[-500:]


def test_copied_kit_imports_only_pinned_packages(tmp_path: Path) -> None:
    write_rewards_and_kit(tmp_path, [*OF_THE_KIT, gn.rewards.code_tests()])
    code = "import rewards, sys; print(*sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path
    )
    loaded = {name.partition(".")[0] for name in done.stdout.split()}
    installed = importlib.metadata.packages_distributions()
    template = Path(gn.__file__).parent / "scaleout" / "templates" / "train.py.jinja"
    head = template.read_text().partition("# ]\n")[0].partition("copy of grpo_nb in kit/")[2]
    allowed = set(re.findall(r'"([\w-]+)==', head))
    assert allowed == {"lazy_loader", "math-verify", "pydantic"}
    for package in ("pydantic", "lazy_loader"):
        for requirement in importlib.metadata.requires(package):
            allowed.add(re.match(r"[\w-]+", requirement)[0].replace("-", "_"))
    assert done.returncode == 0, done.stderr
    assert loaded & installed.keys() - {"_distutils_hack", "grpo_nb"} <= allowed


slider = type("IntSlider", (), {"value": 3})()


def reads_a_widget(completions, **columns):
    return [slider.value for _ in completions]


stripped = lambda text: text.strip()  # noqa: E731


def uses_a_file(completions, **columns):
    return [float(callable(shared.made_once)) for _ in completions]


def uses_a_namespace_package(completions, **columns):
    return [float(google is not None) for _ in completions]


google = types.ModuleType("google")


def test_namespace_package_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    google.__spec__ = importlib.machinery.ModuleSpec("google", None, is_package=True)
    google.__spec__.submodule_search_locations.append(str(tmp_path / "site-packages" / "google"))
    monkeypatch.setitem(sys.modules, "google", google)
    write_rewards_and_kit(tmp_path, [uses_a_namespace_package])
    assert "import google  # noqa" in (tmp_path / "rewards.py").read_text()


def uses_a_lambda(completions, **columns):
    return [len(stripped(text)) for text in completions]


limit = 99


class Scorer:
    """Its method is used as a reward."""

    def score(self, completions, **columns):
        return [1.0 for _ in completions]


class Scale:
    """Used by a reward."""

    top = LIMIT


def uses_a_class(completions, **columns):
    return [len(text) / Scale.top for text in completions]


def limited(limit: int):
    """Return a reward with a variable of this function, whose name is also that of a global."""

    def below(completions, **columns):
        return [float(len(c) < limit) for c in completions]

    return below


def doubled(reward):
    @functools.wraps(reward)
    def twice(completions, **columns):
        return [2 * score for score in reward(completions, **columns)]

    return twice


@doubled
def decorated(completions, **columns):
    return [1.0 for _ in completions]


def renamed(completions, **columns):
    return [1.0 for _ in completions]


renamed.__name__ = "strict"


@dataclasses.dataclass(frozen=True, kw_only=True)
class Short(gn.rewards.Reward):
    """A reward of a user's own class."""

    most: int = 5

    def score_text(self, text: str, row: dict) -> float:
        return float(len(text) < self.most)


def test_decorated_reward_is_written_with_its_decorator(tmp_path: Path) -> None:
    assert loaded(tmp_path, [decorated])[0](completions=TEXTS) == [2.0, 2.0, 2.0]


def test_name_with_two_meanings_is_refused(tmp_path: Path) -> None:
    another = types.ModuleType("another_file")
    another.LIMIT = LIMIT + 1
    file = tmp_path / "another_file.py"
    file.write_text("def longer(completions, **c):\n    return [LIMIT for _ in completions]\n")
    exec(compile(file.read_text(), file, "exec"), vars(another))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, another.__name__, another)
        with pytest.raises(NotPortableError, match="two different things named LIMIT"):
            write_rewards_and_kit(tmp_path, [varied, another.longer])


def test_function_of_a_cell_that_was_run_again_is_the_same(tmp_path: Path) -> None:
    file = tmp_path / "cell.py"
    file.write_text(
        "def single(completions, **c):\n    return [float(len(t)) for t in completions]\n\n"
        "def double(completions, **c):\n    return [2 * s for s in single(completions)]\n"
    )
    cell = types.ModuleType("cell")
    exec(compile(file.read_text(), file, "exec"), vars(cell))
    rewards_of_the_run = [cell.single, cell.double]
    exec(compile(file.read_text(), file, "exec"), vars(cell))
    assert cell.single is not rewards_of_the_run[0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, cell.__name__, cell)
        there = loaded(tmp_path, rewards_of_the_run)
    assert there[1](completions=TEXTS) == cell.double(completions=TEXTS)
    assert (tmp_path / "rewards.py").read_text().count("def single") == 1


REWARDS = {"polite": 0.2}


def uses_rewards(completions, **columns):
    return [REWARDS["polite"] for _ in completions]


def test_constant_with_the_name_of_the_list_of_rewards_is_refused() -> None:
    with pytest.raises(NotPortableError, match="two different things named REWARDS"):
        RewardSource().add_reward(uses_rewards)


def test_import_with_the_name_of_a_definition_is_refused(tmp_path: Path) -> None:
    """rewards.py would hold both, and the definition would replace the import."""
    another = types.ModuleType("another_file")
    file = tmp_path / "another_file.py"
    file.write_text(
        "from statistics import mean as words_of\n"
        "def average(completions, **c):\n    return [words_of([1, 2]) for _ in completions]\n"
    )
    exec(compile(file.read_text(), file, "exec"), vars(another))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, another.__name__, another)
        for rewards in ([another.average, varied], [varied, another.average]):
            with pytest.raises(NotPortableError, match="two different things named words_of"):
                write_rewards_and_kit(tmp_path, rewards)


@pytest.mark.parametrize(
    ("reward", "told"),
    [
        (lambda completions, **columns: [0.0], r"<lambda> is not defined by def .*Define the"),
        (functools.partial(varied, weight=3), r"varied is functools\.partial.* of type partial"),
        (reads_a_widget, "slider is .*IntSlider, which lives in this process only.*Define the"),
        (uses_a_lambda, r"stripped is not defined by def stripped\("),
        (limited(5), "below is not .*uses variables of the function around it.*top of a cell"),
        (renamed, r"strict is not defined by def strict\("),
        (uses_a_file, r"shared is <module .* of type module, which lives.*from helpers import"),
        (uses_a_class, r"Scale is not defined by def Scale\("),
        (Scorer().score, r"score is not defined by def score\(.*a method"),
        (
            gn.rewards.judge(stripped, "Is it clear?"),
            r"ask is <function .*Train with a judge where",
        ),
        (Short(most=3), r"Short\(most=3\) of type Short, which lives in this process only"),
    ],
)
def test_reward_without_source_or_data_is_refused(reward: object, told: str) -> None:
    with pytest.raises(NotPortableError, match=told) as caught:
        RewardSource().add_reward(reward)
    assert "\n" not in str(caught.value)


def annotated(completions: list[Short], **columns: slider) -> list[float]:
    return [1.0 for _ in completions]


def test_name_in_an_annotation_is_not_needed(tmp_path: Path) -> None:
    assert loaded(tmp_path, [annotated])[0](completions=TEXTS) == [1.0] * 3


def test_reward_whose_source_is_gone_is_refused() -> None:
    namespace = {"__name__": "typed_at_a_prompt"}
    exec("def typed(completions, **columns):\n    return [1.0 for _ in completions]\n", namespace)
    with pytest.raises(OSError, match="source"):
        RewardSource().add_reward(namespace["typed"])
