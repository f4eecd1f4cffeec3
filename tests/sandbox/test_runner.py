"""Generated code can neither harm the machine nor choose its reward.

This holds for root, for a user, and on another Python. An attack is judged from outside: the
expected value, the secret and the sockets are here, in the parent process.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import os
import pprint
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy
import pytest

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.rewards.code import code_tests, extract_code
from grpo_nb.sandbox import outcomes as outcome_types
from grpo_nb.sandbox import runner
from grpo_nb.sandbox.modules import modules_to_import
from grpo_nb.sandbox.outcomes import Call, Candidate, Limits, Outcome, parse_report
from grpo_nb.sandbox.runner import isolation_failures, run_untrusted, run_untrusted_batch
from grpo_nb.tasks.formats import bare, xml
from tests.sandbox.attacks import ATTACKS, HONEST, ON_LIMITS

# They wait more than they compute, and need no model while the quickstart converts it.
pytestmark = pytest.mark.begins(20)

ROOT = Path(__file__).resolve().parents[2]
# The value that an attack on the score would have to answer. It exists in this process only.
EXPECTED = 91827364
SHORT = Limits(cpu_seconds=0.25, wall_seconds=20.0, memory_mib=384, output_kib=64)
SLEEPY = Limits(wall_seconds=1.0, memory_mib=384)
WAYS = ("as it is", "as a user", "on the system's Python")
USER = 61000
_HUGE_PAGES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
HAS_HUGE_PAGES = _HUGE_PAGES.exists() and "[never]" not in _HUGE_PAGES.read_text()


def alone(candidates: Sequence[Candidate], limits: Limits | None = None) -> list[Outcome]:
    """Return the outcomes of candidates that share nothing, all run at once."""
    return run_untrusted_batch(candidates, limits=limits)


@contextmanager
def started(way: str) -> Iterator[None]:
    """Start candidates as an ordinary user, or on the Python that Debian and Ubuntu ship."""
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        if way != "as it is":
            if not Path(f"/usr/lib/python3.{sys.version_info.minor}").is_dir():
                pytest.skip("there is no other Python of this version")
            patch.setattr(sys, "_base_executable", "/usr/bin/python3")
        if way == "as a user":
            if os.geteuid() != 0:
                pytest.skip("these tests already run as an ordinary user")
            shutil.copytree(runner._CHILD.parent, f"{folder}/sandbox")
            os.chmod(folder, 0o755)
            popen = functools.partial(subprocess.Popen, user=USER, group=USER, extra_groups=[])
            patch.setattr(runner, "_CHILD", Path(folder, "sandbox", "child.py"))
            patch.setattr(runner, "subprocess", SimpleNamespace(Popen=popen))
        yield


class World:
    """Targets of a break-out: a file with a secret, and listening sockets."""

    def __init__(self, stack: ExitStack) -> None:
        self.folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="grpo_nb-test-")))
        self.folder.chmod(0o777)
        self.secret = secrets.token_hex(8)
        canary = self.folder / "canary"
        canary.write_text(self.secret)
        canary.chmod(0o666)
        abstract = "grpo_nb-" + secrets.token_hex(6)
        kinds = (socket.SOCK_STREAM, socket.SOCK_DGRAM)
        tcp, udp = (stack.enter_context(socket.socket(socket.AF_INET, kind)) for kind in kinds)
        local = [stack.enter_context(socket.socket(socket.AF_UNIX, kind)) for kind in kinds * 2]
        stream = str(self.folder / "stream")
        datagram = str(self.folder / "datagram")
        names = ("\0" + abstract, "\0" + abstract, stream, datagram)
        for end, name in zip([tcp, udp, *local], [("127.0.0.1", 0)] * 2 + [*names], strict=True):
            end.bind(name)
            if end.type == socket.SOCK_STREAM:
                end.listen()
        for name in ("stream", "datagram"):
            (self.folder / name).chmod(0o777)
        self.sockets = [tcp, udp, *local]
        self.names = {
            "CANARY": str(canary),
            "TCP": tcp.getsockname()[1],
            "UDP": udp.getsockname()[1],
            "UNIX": stream,
            "DATAGRAM": datagram,
            "ABSTRACT": abstract,
            "PARENT": os.getpid(),
        }

    def damage(self) -> list[str]:
        """Return a description of everything that reached the outside."""
        damage = []
        for folder in ("/tmp", "/dev/shm"):
            damage += map(str, Path(folder).glob("grpo_nb-left-behind"))
        files = sorted(path.name for path in self.folder.iterdir())
        is_same_secret = (self.folder / "canary").read_text() == self.secret
        if not is_same_secret or files != ["canary", "datagram", "stream"]:
            damage.append("the files have changed")
        for end in select.select(self.sockets, [], [], 0)[0]:
            damage.append(f"something arrived at {end}")
        return damage


@functools.cache
def attacked(way: str) -> tuple[dict[str, Outcome], str, list[str]]:
    """Return the outcome of every attack, the secret that none may show, and the damage."""
    with ExitStack() as stack:
        world = World(stack)
        stack.enter_context(started(way))
        assert isolation_failures.__wrapped__() == ()
        names = "".join(f"{name} = {value!r}\n" for name, value in world.names.items())

        def run(codes: dict[str, str], limits: Limits) -> dict[str, Outcome]:
            attacks = [Candidate(code=names + code, calls=[Call("f")]) for code in codes.values()]
            return dict(zip(codes, alone(attacks, limits), strict=True))

        outcomes = run(ATTACKS, SHORT) | run(ON_LIMITS | {"sleep": ""}, SHORT)
        outcomes |= run({"sleep": ON_LIMITS["sleep"]}, SLEEPY)
        return outcomes, world.secret, world.damage()


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", [*ATTACKS, *ON_LIMITS])
def test_attack_gains_no_point(name: str, way: str) -> None:
    outcomes, secret, _ = attacked(way)
    outcome = outcomes[name]
    (answer,) = outcome.results
    if answer.is_value:
        assert answer.value != EXPECTED
    assert "GAINED" not in repr(outcome)
    assert secret not in repr(outcome)
    allowed = {"ok", "error", "exit"} if name in ATTACKS else {"ok", "error", "exit", "limit"}
    assert outcome.status in allowed, outcome


@pytest.mark.parametrize("way", WAYS)
def test_attacks_together_do_no_damage(way: str) -> None:
    outcomes, _, damage = attacked(way)
    assert damage == []
    assert len(outcomes) > 80


@pytest.mark.parametrize("way", WAYS)
def test_endless_attacks_end_at_a_limit(way: str) -> None:
    outcomes, _, _ = attacked(way)
    endless = {"loop", "loop_in_c", "slow_pattern", "ignores_signals", "sleep", "output_flood"}
    assert {outcomes[name].status for name in endless} == {"limit"}


# The rule against each attack in child.py, and the same place without the rule.
RULES = {
    "clone_without_thread": (
        '("clone", (0, _THREAD_FLAGS | _NAMESPACES, _THREAD_FLAGS))',
        '("clone",)',
    ),
    "datagram_pair": ('("socketpair", (0, _ALL_BITS, 1), (1, 0xF, 1))', '("socketpair",)'),
    "limits_of_others": ('("prlimit64", (2, 0xFFFFFFFFFFFFFFFF, 0))', '("prlimit64",)'),
    "interfaces": ('*[("ioctl", (1, _ALL_BITS, number)) for', '*[("ioctl",) for'),
    "signal_by_pipe": ('*[("fcntl", (1, _ALL_BITS, number)) for', '*[("fcntl",) for'),
    "be_root": ("        os.setresuid(user, user, user)\n", ""),
    "own_environment": ("    os.environ.clear()\n", ""),
    "shared_memory": ('("mmap", (3, _MAP_TYPE, _MAP_PRIVATE))', '("mmap",)'),
    "own_descriptors": ("_THREAD_FLAGS = 0x00010500", "_THREAD_FLAGS = 0x00010100"),
    "sockets_filled": (" resource.RLIMIT_NOFILE: _MAX_DESCRIPTORS,", ""),
    "pipes_filled": (" resource.RLIMIT_NOFILE: _MAX_DESCRIPTORS,", ""),
    "huge_pages": ("    libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)\n", ""),
}
if not HAS_HUGE_PAGES:
    del RULES["huge_pages"]


@pytest.mark.parametrize("name", RULES)
def test_attack_succeeds_without_the_rule_against_it(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner, "isolation_failures", lambda: ())
    with ExitStack() as stack:
        world = World(stack)
        names = "".join(f"{name} = {value!r}\n" for name, value in world.names.items())
        edited_child(tmp_path / name, monkeypatch, RULES[name])
        code = names + ATTACKS[name]
        if name in ("limits_of_others", "signal_by_pipe"):
            # At a target that the kernel allows.
            code = code.replace("PARENT,", "os.getpid(),")
            code = code.replace("os.getppid()", "os.getpid()")
        outcome = run_untrusted(code, [Call("f")], limits=SHORT)
        is_ended = name == "signal_by_pipe" and outcome.status == "lost"
        assert "GAINED" in repr(outcome) or is_ended or world.damage(), outcome


def edited_child(folder: Path, monkeypatch: pytest.MonkeyPatch, *edits: tuple[str, str]) -> None:
    """Make candidates start from a copy of the child with some lines changed."""
    if not folder.exists():
        shutil.copytree(runner._CHILD.parent, folder)
    source = (ROOT / "grpo_nb" / "sandbox" / "child.py").read_text()
    for old, new in edits:
        assert old in source, old
        source = source.replace(old, new)
    (folder / "child.py").write_text(source)
    monkeypatch.setattr(runner, "_CHILD", folder / "child.py")


def nested(depth: int) -> list:
    value: list = []
    for _ in range(depth):
        value = [value]
    return value


CYCLE = nested(1)
CYCLE.append(CYCLE)


@pytest.mark.parametrize(
    "value",
    [
        pytest.param(numpy.int64(2), id="number of numpy"),
        pytest.param([numpy.ones(2)], id="array"),
        pytest.param({"a": bytearray(b"x")}, id="bytearray"),
        pytest.param(CYCLE, id="cycle"),
        pytest.param(nested(700), id="700 nested lists"),
        pytest.param(nested(3000), id="3000 nested lists"),
    ],
)
def test_argument_that_is_no_plain_data_is_refused(value: Any) -> None:
    with pytest.raises(ValueError, match="is not plain data, so the sandbox cannot pass it on"):
        run_untrusted("def f(x): return 1", [Call("f", (value,))])


def test_text_in_place_of_arguments_is_refused() -> None:
    with pytest.raises(TypeError, match=r"has the arguments 'abc': write a tuple"):
        Call("reverse", ("abc"))


def test_iterator_in_place_of_arguments_is_refused() -> None:
    with pytest.raises(TypeError, match=r"write a tuple"):
        Call("reverse", iter(["abc"]))


def test_keyword_that_is_no_text_is_refused() -> None:
    with pytest.raises(TypeError, match="keywords must be strings"):
        Call("add", (), {1: 2})


def test_code_in_a_text_of_numpy_is_run() -> None:
    outcome = run_untrusted(numpy.str_("def f(): return 1"), [Call("f")])
    assert outcome.results[0].value == 1


def test_function_name_in_a_text_of_numpy_is_called() -> None:
    outcome = run_untrusted("def f(): return 1", [Call(numpy.str_("f"))])
    assert outcome.results[0].value == 1


@pytest.mark.parametrize(
    "limits",
    [
        pytest.param(Limits(cpu_seconds=numpy.float64(2)), id="processor time"),
        pytest.param(Limits(cpu_seconds=Fraction(1, 2)), id="fraction"),
        pytest.param(Limits(memory_mib=numpy.int64(512)), id="memory"),
    ],
)
def test_limit_that_is_a_number_of_another_type_holds(limits: Limits) -> None:
    # The size of the page tables is checked after 50 milliseconds.
    code = "import time\ndef f():\n    time.sleep(0.2)\n    return 1"
    outcome = run_untrusted(code, [Call("f")], limits=limits)
    assert outcome.results[0].value == 1


def test_calls_with_the_same_list_get_a_list_each() -> None:
    data = [3, 1, 2]
    code = "def smallest(x):\n    x.sort()\n    return x[0]\ndef first(x): return x[0]"
    outcome = run_untrusted(code, [Call("smallest", (data,)), Call("first", (data,))])
    assert [result.value for result in outcome.results] == [1, 3]


def test_clock_limit_follows_changed_processor_time() -> None:
    limits = dataclasses.replace(Limits(cpu_seconds=1), cpu_seconds=9)
    assert limits == Limits(cpu_seconds=9)


def test_memory_too_small_for_all_imports_is_refused() -> None:
    with pytest.raises(ValueError, match="memory_mib = 64"):
        Limits(memory_mib=64)


def test_limit_reached_before_the_isolation_is_not_lost() -> None:
    candidate = Candidate(code="", calls=[Call("f")])
    outcome = parse_report(candidate, b"", "time on the clock", -signal.SIGKILL)
    assert outcome.status == "limit"
    assert not outcome.results[0].is_value


@pytest.mark.parametrize(
    ("old", "new", "hole"),
    [
        ("    if lib.seccomp_load(context):", "    if False:", "reading a file"),
        ("getrandom\n", "getrandom stat newfstatat\n", "looking at a file"),
        ("getrandom\n", "getrandom socket\n", "a socket"),
        ("getrandom\n", "getrandom execve\n", "another program"),
        ("_NAMESPACES, _THREAD_FLAGS))", "_NAMESPACES, 0))", "another process"),
        ("os.environ.clear()", "os.environ['TOKEN'] = 'x'", "the environment"),
        ('resource.RLIMIT_AS: job["memory_mib"] << 20,', "", "more memory than its limit"),
        (
            '("mmap", (3, _MAP_TYPE, _MAP_PRIVATE))',
            '("mmap",)',
            "memory that its limit does not count",
        ),
        (" resource.RLIMIT_NOFILE: _MAX_DESCRIPTORS,", "", "more descriptors than its limit"),
        (
            "marshal.load(sys.stdin.buffer)",
            "{**marshal.load(sys.stdin.buffer), 'calls': []}",
            "honest code fails",
        ),
    ],
)
def test_self_test_finds_a_missing_protection(
    old: str, new: str, hole: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited_child(tmp_path / "copy", monkeypatch, (old, new))
    assert hole in "; ".join(isolation_failures.__wrapped__())


def test_self_test_finds_a_signal_that_is_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    allowed = ("getrandom\n", "getrandom kill\n")
    with_rights = ("        os.setresuid(user, user, user)\n", "")
    edited_child(tmp_path / "copy", monkeypatch, allowed, with_rights)
    assert "a signal to the notebook is possible" in isolation_failures.__wrapped__()


KILLED_EARLY = "def f(): os.kill(os.getpid(), 9)"
KILLED_LATE = (
    "import time\ndef f():\n    while time.process_time() < 0.6: pass\n    os.kill(os.getpid(), 9)"
)


@pytest.mark.parametrize(
    ("code", "status"), [(KILLED_EARLY, "lost"), (KILLED_LATE, "limit")], ids=["early", "late"]
)
def test_kill_counts_for_the_code_after_its_limit_only(
    code: str, status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system kills as these candidates do, which may send signals and have no timer."""
    monkeypatch.setattr(runner, "isolation_failures", lambda: ())
    allowed = ("getrandom\n", "getrandom kill\n")
    no_timer = ('    setitimer(ITIMER_PROF, job["cpu_seconds"])\n', "")
    edited_child(tmp_path / "copy", monkeypatch, allowed, no_timer)
    limits = Limits(cpu_seconds=0.5)
    assert run_untrusted("import os\n" + code, [Call("f")], limits=limits).status == status


def test_code_that_closes_its_pipes_is_not_lost() -> None:
    code = "import os, time\ndef f():\n    os.closerange(0, 9)\n    time.sleep(99)"
    outcome = run_untrusted(code, [Call("f")], limits=Limits(wall_seconds=1.0))
    assert outcome.status == "exit"


def test_code_does_not_run_without_libseccomp(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    edited_child(tmp_path / "copy", monkeypatch, ("libseccomp.so.2", "libseccomp.so.99"))
    monkeypatch.setattr(
        runner, "isolation_failures", functools.cache(isolation_failures.__wrapped__)
    )
    with pytest.raises(EnvironmentProblem, match=r"libseccomp.*apt-get install -y libseccomp2"):
        run_untrusted("x = 1")


def test_code_does_not_run_on_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        runner, "isolation_failures", functools.cache(isolation_failures.__wrapped__)
    )
    monkeypatch.setattr(sys, "platform", "win32")
    with pytest.raises(EnvironmentProblem, match="isolated here: needs Linux, this is win32"):
        code_tests()(completions=["<answer>1</answer>"], tests=[["assert f(1) == 2"]])


def test_failure_of_the_isolation_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    results = iter([("no process can be started",), ()])
    monkeypatch.setattr(runner, "isolation_failures", functools.cache(lambda: next(results)))
    with pytest.raises(EnvironmentProblem, match="no process can be started"):
        run_untrusted("x = 1")
    assert run_untrusted("x = 1").status == "ok"


def test_no_code_can_blame_its_end_on_the_machine() -> None:
    endings = [Candidate(code=f"import os; os._exit({n})", calls=[Call("f")]) for n in (0, 1, 97)]
    claims = Candidate(code=ATTACKS["claims_a_lost_machine"])
    assert [outcome.status for outcome in alone([*endings, claims])] == ["exit"] * 4


def test_failed_isolation_is_no_verdict_on_the_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isolation_failures() == ()
    failing = ("    _allow_only_listed_system_calls()\n", "    raise OSError('no')\n")
    edited_child(tmp_path / "copy", monkeypatch, failing)
    outcome = run_untrusted("def f(): return 1", [Call("f")])
    assert outcome.status == "lost"
    assert not outcome.results[0].is_value
    assert "no" in outcome.reason
    assert code_tests()(completions=["<answer>1</answer>"], tests=[["assert f(1) == 2"]]) == [None]


@pytest.mark.parametrize("option", ["_PR_SET_PDEATHSIG", "_PR_SET_DUMPABLE"])
def test_refused_option_of_the_kernel_is_a_failed_isolation(
    option: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isolation_failures() == ()
    # No option has this number.
    edited_child(tmp_path / "copy", monkeypatch, (f"prctl({option},", "prctl(9999,"))
    assert run_untrusted("").status == "lost"


def test_process_that_does_not_start_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert isolation_failures() == ()
    monkeypatch.setattr(runner, "_CHILD", tmp_path / "missing.py")
    outcome = run_untrusted("")
    assert outcome.status == "lost"
    assert "missing.py" in outcome.reason


NUMBERS = [0, -1, 10**4000, 1.5, math.inf, math.nan, -0.0, 1j]
TEXTS = ["", "\ud800 \0 é 🎈", "x" * 1000, b"\0\xff"]
CONTAINERS = [[], [1, [2, (3,)]], (), {1, "a"}, frozenset({(1, 2)}), {"a": 1, 2: [None], (1,): {}}]
PLAIN = [None, True, *NUMBERS, *TEXTS, *CONTAINERS]


def test_values_come_back_with_their_types() -> None:
    outcome = run_untrusted("def f(x): return x", [Call("f", (v,)) for v in PLAIN])
    assert outcome.status == "ok"
    for answer, value in zip(outcome.results, PLAIN, strict=True):
        # Shown with sorted sets, and with NaN equal to itself.
        assert pprint.pformat(answer.value) == pprint.pformat(value)


def test_bytes_with_a_method_of_their_own_come_back_as_stored() -> None:
    code = "class Bytes(bytes):\n    def __bytes__(self): return b'y'\ndef f(): return Bytes(b'x')"
    assert run_untrusted(code, [Call("f")]).results[0].value == b"x"


def test_dict_of_ranges_is_compared() -> None:
    outcome = run_untrusted('def f(): return {"a": range(2), 1: {}.keys()}', [Call("f")])
    (answer,) = outcome.results
    assert answer.is_value
    assert answer.value != {"a": [0, 1], 1: []}


@pytest.mark.parametrize("value", ["set(grid)", "dict.fromkeys(grid)"])
def test_grid_of_negative_points_comes_back(value: str) -> None:
    code = f"""
grid = [(x, y, z) for x in range(-5, 5) for y in range(-5, 5) for z in range(-5, 5)]
def f(): return {value}
"""
    outcome = run_untrusted(code, [Call("f")])
    assert outcome.status == "ok"
    assert len(outcome.results[0].value) == 1000


def test_nested_dicts_name_their_levels_if_refused() -> None:
    code = "def f(): return eval('{1:' * 40 + '1' + '}' * 40)"
    outcome = run_untrusted(code, [Call("f")])
    assert "a dict is three levels" in outcome.results[0].error


@pytest.mark.parametrize(
    "value",
    [
        pytest.param("{range(3)}", id="range in a set"),
        pytest.param("{(1, range(3)): 1}", id="range in a key"),
        pytest.param("frozenset([List()])", id="list with a hash"),
        pytest.param("-(10**5000)", id="too many digits"),
    ],
)
def test_answer_that_cannot_be_read_costs_no_other(value: str) -> None:
    code = f"""
import sys
sys.set_int_max_str_digits(0)
class List(list):
    def __hash__(self): return 1
def f(): return {value}
def g(): return {{(1, frozenset({{b"a", None}})): {{"a", 1}}}}
"""
    outcome = run_untrusted(code, [Call("f"), Call("g")])
    assert outcome.status == "ok"
    assert str(outcome.results[0].error).startswith("NotPlainData: a")
    assert outcome.results[1].value == {(1, frozenset({b"a", None})): {"a", 1}}


def test_printed_text_is_lost_and_input_is_empty() -> None:
    code = "import sys\ndef f():\n    print('x')\n    return sys.stdin.read()\nprint('y')"
    outcome = run_untrusted(code, [Call("f")])
    assert (outcome.status, outcome.results[0].value) == ("ok", "")


def test_code_that_prints_without_end_is_ended() -> None:
    assert run_untrusted("while 1: print('x' * 999)", limits=SHORT).status == "limit"


def test_code_that_floods_its_report_is_ended() -> None:
    code = "import os\nwhile 1: os.write(3, b'x' * 999)"
    assert run_untrusted(code, limits=SHORT).reason == "ended by its limit of output"


def test_what_honest_code_needs_works() -> None:
    names = ("run", "deep", "late", "dynamic", "missing", "run.x()")
    outcome = run_untrusted(HONEST, [*map(Call, names), Call("Solution().add", (1,), {"b": 2})])
    late = [[("a", 2)], "03.02.", "int", [0, 1, 4], "•", 1]
    assert [a.value for a in outcome.results] == [7, [50_000], late, 2, None, None, 3], outcome


@pytest.mark.parametrize(
    ("code", "value"),
    [
        pytest.param(
            "import codecs\ndef f(): return codecs.encode('abc', 'rot13')", "nop", id="rot13"
        ),
        pytest.param(
            "import concurrent.futures\n"
            "def f():\n"
            "    with concurrent.futures.ThreadPoolExecutor(1) as pool:\n"
            "        return pool.submit(abs, -1).result()",
            1,
            id="threads",
        ),
        pytest.param(
            "from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor\n"
            "def f(): return ThreadPoolExecutor(1).submit(abs, -1).result()",
            1,
            id="process pool",
        ),
        pytest.param(
            "import unittest\ndef f(): return unittest.IsolatedAsyncioTestCase.__name__",
            "IsolatedAsyncioTestCase",
            id="asynchronous tests",
        ),
        pytest.param(
            "import asyncio\ndef f(): return asyncio.run(asyncio.to_thread(abs, -1))",
            1,
            id="asyncio",
        ),
        pytest.param(
            "from xml.etree import (  # parser\n"
            "    ElementTree,\n"
            ")\n"
            "def f(): return ElementTree.fromstring('<a/>').tag",
            "a",
            id="comment in brackets",
        ),
        pytest.param(
            "from xml.etree import \\\r\n    ElementTree\r\n"
            "def f(): return ElementTree.fromstring('<a/>').tag",
            "a",
            id="Windows line ends",
        ),
    ],
)
def test_module_that_is_needed_late_is_there(code: str, value: object) -> None:
    outcome = run_untrusted(code, [Call("f")])
    assert outcome.results[0].value == value, outcome


LINES = (ROOT / "tests" / "data" / "solutions.jsonl").read_text().splitlines()
SOLUTIONS = [json.loads(line) for line in LINES]


def scores_of_code(codes: list[str], rows: list[dict]) -> list[float | None]:
    texts = [f"```python\n{code}\n```" for code in codes]
    reward = code_tests(format=bare(), limits=Limits(wall_seconds=100.0))
    return reward(completions=texts, tests=[row["tests"] for row in rows])


def test_solutions_of_150_exercises_pass_their_tests() -> None:
    assert len(SOLUTIONS) == 150
    assert {len(row["tests"]) for row in SOLUTIONS} == {3}
    scores = scores_of_code([row["code"] for row in SOLUTIONS], SOLUTIONS)
    assert scores == [1.0] * 150


def test_broken_solutions_pass_no_test() -> None:
    rows = SOLUTIONS[::15]
    broken = [row["code"].replace("return ", "return 7 and None and ") for row in rows]
    assert scores_of_code(broken, rows) == [0.0] * 10


def test_page_tables_beyond_their_share_end_the_code() -> None:
    limits = Limits(cpu_seconds=8.0, wall_seconds=60.0, memory_mib=384)
    outcome = run_untrusted(ON_LIMITS["page_tables"], [Call("f")], limits=limits)
    assert outcome.reason == "ended by its limit of memory, in page tables"


def test_code_that_fills_its_memory_honestly_may_go_on() -> None:
    code = (
        "import time\n"
        "data = bytearray(b'x') * (300 << 20)\n"
        "time.sleep(0.3)\n"
        "def f(): return len(data) >> 20"
    )
    assert run_untrusted(code, [Call("f")]).results[0].value == 300


@contextmanager
def ready_pipe() -> Iterator[Any]:
    """A pipe with something to read."""
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as pipe, os.fdopen(writer, "wb"):
        os.write(writer, b"x")
        yield pipe


def test_code_that_goes_on_writing_ends_by_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runner, "os", SimpleNamespace(read=lambda descriptor, size: b"x"))
    limits = Limits(wall_seconds=0.2, output_kib=1024)
    with ready_pipe() as pipe:
        _, limit = runner._read_until_end(pipe, limits, os.getpid())
    assert limit == "time on the clock"


def test_output_in_single_bytes_is_not_copied_for_each(monkeypatch: pytest.MonkeyPatch) -> None:
    copied = []

    class Byte(bytes):
        """Notes how much is copied where it is added to what was read before."""

        def __radd__(self, before: bytes) -> bytes:
            copied.append(len(before))
            return bytes(before) + bytes(self)

    chunks = iter([Byte(b"x")] * 200 + [b""])
    monkeypatch.setattr(runner, "os", SimpleNamespace(read=lambda descriptor, size: next(chunks)))
    with ready_pipe() as pipe:
        content, limit = runner._read_until_end(pipe, Limits(), os.getpid())
    assert (content, limit) == (b"x" * 200, "")
    assert sum(copied) <= 200


def test_sleepers_end_by_the_clock_without_processor_time() -> None:
    code = (
        "import threading, time\n"
        "threads = [threading.Thread(target=time.sleep, args=(99,)) for _ in range(4)]\n"
        "for thread in threads: thread.start()\n"
        "for thread in threads: thread.join()"
    )
    outcome = run_untrusted(code, limits=Limits(cpu_seconds=9.0, wall_seconds=1.0))
    assert outcome.reason == "ended by its limit of time on the clock"


def _seconds_of_cpu(work: Any) -> float:
    """Processor time of the fastest of three."""
    taken = []
    for _ in range(3):
        begun = time.process_time()
        work()
        taken.append(time.process_time() - begun)
    return min(taken)


# One and a half million characters at the larger size: a quadratic pattern would take minutes.
REPEATED = ["__import__", "__import__(", "import ", "import(", "importlib.import_module", "from "]
REPEATED += ["from os ", "from os import (", "from os import a,", "os.", "import os.a,", " ", "("]
REPEATED += ["\t", "```", "```\n", "```python\n", "\n ```", "<answer>", "{"]


@pytest.mark.parametrize("part", REPEATED)
@pytest.mark.parametrize(
    "work", [modules_to_import, lambda text: extract_code(text, xml())], ids=["modules", "code"]
)
def test_reading_code_takes_linear_time(work: Any, part: str) -> None:
    sizes = (150_000, 1_200_000)
    short, long = (
        _seconds_of_cpu(lambda size=size: work(part * (size // len(part)))) for size in sizes
    )
    # 8 times the text: 8 times the time where it is linear, 64 times where it is quadratic.
    assert long < 32 * max(short, 0.002)


def test_names_to_import_are_limited_in_number_and_length() -> None:
    many = "\n".join(f"from json import a{number}" for number in range(5000))
    assert len(modules_to_import(many)) == 102
    assert modules_to_import(f"import os{'.a' * 5000}") == modules_to_import("")


def test_modules_of_every_code_are_kept_next_to_many_names() -> None:
    many = "\n".join(f"from json import a{number}" for number in range(5000))
    assert set(modules_to_import("")) <= set(modules_to_import(many))


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("from concurrent import (\n    futures,\n    thread,\n)", id="in brackets"),
        pytest.param("from concurrent import \\\n    futures, thread", id="after a backslash"),
    ],
)
def test_import_over_several_lines_is_read_whole(code: str) -> None:
    assert modules_to_import(code) == modules_to_import("from concurrent import futures, thread")


@pytest.mark.parametrize("line", [b"\n", b'["value",1]\n', b'["value",null]\n'])
def test_reading_a_report_takes_time_for_its_calls_only(
    line: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads = []
    read = outcome_types._read_line
    monkeypatch.setattr(outcome_types, "_read_line", lambda line: reads.append(1) or read(line))
    report = b'["isolated",null]\n["loaded",null]\n' + line * 50_000
    outcome = parse_report(Candidate(code="", calls=[Call("f")]), report, "", 0)
    assert (outcome.status, len(reads)) == ("exit", 4)


def test_type_that_was_not_imported_is_an_error() -> None:
    outcome = run_untrusted("def f(x: List) -> int: return 1", [Call("f", ([],))])
    assert outcome.status == "error"
    assert "List" in outcome.reason


def test_a_late_failure_keeps_earlier_answers() -> None:
    code = "def f(x):\n    while x == 2: pass\n    return x"
    outcome = run_untrusted(code, [Call("f", (n,)) for n in range(4)], limits=SHORT)
    assert outcome.status == "limit"
    assert "processor time" in outcome.reason
    assert [a.value for a in outcome.results] == [0, 1, None, None]
    assert [a.is_value for a in outcome.results] == [True, True, False, False]


def test_candidates_sleep_side_by_side() -> None:
    sleeper = Candidate(code="import time\ntime.sleep(999)")
    start = time.monotonic()
    outcomes = alone([*[sleeper] * 4, Candidate(code="")], Limits(wall_seconds=1.5))
    assert time.monotonic() - start < 5
    assert [outcome.status for outcome in outcomes] == ["limit"] * 4 + ["ok"]


def test_each_candidate_has_its_full_time() -> None:
    code = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass"
    busy = Candidate(code=code)
    outcomes = alone([busy] * 4, Limits(cpu_seconds=0.5, wall_seconds=60))
    assert [outcome.status for outcome in outcomes] == ["ok"] * 4


def test_candidates_share_nothing_and_repeat_themselves() -> None:
    dirty = """
import builtins, json, random, sys, os
builtins.mark = json.mark = sys.mark = 1
random.seed(5); os.environ["MARK"] = "1"
def f(): return 1"""
    clean = """
import builtins, json, random, sys, os
def f(): return [hasattr(m, "mark") for m in (builtins, json, sys)] + ["MARK" in os.environ]
def g(): return [random.random(), list({"a", "b", "c", "d"}), hash("x")]"""
    asked = [Candidate(code=code, calls=[Call("f"), Call("g")]) for code in (clean, dirty, clean)]
    first, _, last = alone(asked)
    assert first.results[0].value == [False] * 4
    assert first.results == last.results  # a reward must give the same score again


def wait_until(is_done: Any, seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while not is_done() and time.monotonic() < deadline:
        time.sleep(0.02)
    return is_done()


def children(pid: int) -> set[int]:
    """Processes of this parent that run a candidate."""
    done = subprocess.run(
        ["ps", "-ww", "-o", "pid=,args=", "--ppid", str(pid)], capture_output=True, text=True
    )
    return {int(line.split()[0]) for line in done.stdout.splitlines() if "child.py" in line}


def test_an_interrupted_batch_leaves_no_candidate() -> None:
    # The first run includes the self-test.
    run_untrusted("x = 1")
    before = children(os.getpid())
    threading.Timer(0.5, signal.pthread_kill, (threading.get_ident(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        alone([Candidate(code="while True: pass")] * 50, Limits(cpu_seconds=0.75))
    assert wait_until(lambda: not children(os.getpid()) - before, 30)
    assert run_untrusted("def f(): return 42", [Call("f")]).results[0].value == 42


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(1)"])
def test_the_end_of_the_notebook_ends_everything(end: str) -> None:
    code = f"""
import os, sys, threading
from grpo_nb.sandbox.runner import *
print(isolation_failures(), flush=True)
sleepers = [Candidate(code="import time\\nwhile True: time.sleep(9)")] * 2
threading.Thread(target=run_untrusted_batch, args=(sleepers,), daemon=True).start()
sys.stdin.readline()
{end}
"""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code], cwd=ROOT, **pipes, text=True) as parent:
        # After the self-test, which has children of its own.
        assert parent.stdout.readline() == "()\n"
        assert wait_until(lambda: len(children(parent.pid)) == 2, 30)
        # Time for both to isolate themselves.
        time.sleep(0.5)
        inside = children(parent.pid)
        parent.communicate("\n", timeout=30)
    assert wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in inside), 10)


@pytest.mark.parametrize(
    "line",
    [
        '"x"',
        '"eval","1"',
        '["list"]',
        '["float","x"]',
        '["int",5]',
        f'["int","{"9" * 5000}"]',
        '["set",[["list",[]]]]',
        '["dict",[[1]]]',
        '["complex",1]',
        '["bytes","zz"]',
        "{}",
        "1.5",
        "NaN",
        "9" * 5000,
        "[" * 99_999,
        "\xff",
        "",
        json.dumps(["set", [["int", str(n * (2**61 - 1))] for n in range(1000)]]),
    ],
    ids=lambda line: repr(line[:20]),
)
def test_report_with_a_forged_value_is_refused(line: str) -> None:
    report = f'["isolated",null]\n["loaded",null]\n["value",{line}]\n'.encode("latin-1")
    outcome = parse_report(Candidate(code="", calls=[Call("f")]), report, "", 0)
    # The first line is the only honest one.
    is_value = line == '"x"'
    assert outcome.status == ("ok" if is_value else "exit")
    assert outcome.results[0].is_value == is_value


def test_report_with_an_error_without_text_is_refused() -> None:
    report = b'["isolated",null]\n["loaded",null]\n["error",null]\n'
    outcome = parse_report(Candidate(code="", calls=[Call("f")]), report, "", 0)
    assert outcome.status == "exit"
    assert not outcome.results[0].is_value


def forged_report(line: str) -> str:
    """Return code that writes this line of the protocol and ends."""
    return f"import os\nos.write(3, {line!r}.encode() + b'\\n'); os._exit(0)"


LONG = "x" * 120_000


@pytest.mark.parametrize(
    "code",
    [
        pytest.param("", id="empty"),
        pytest.param("import os; os._exit(3)", id="ended early"),
        pytest.param("raise SystemExit", id="exit"),
        pytest.param("1/0", id="error"),
        pytest.param("def f(: x", id="no python"),
        pytest.param(forged_report(f'["loaded","{LONG}"]'), id="forged end"),
        pytest.param(forged_report(f'["loaded",null]\n["error","{LONG}"]'), id="forged error"),
    ],
)
def test_failed_outcome_is_short_and_has_all_answers(code: str) -> None:
    outcome = run_untrusted(code, [Call("f"), Call("g")])
    assert [answer.is_value for answer in outcome.results] == [False, False]
    assert len(repr(outcome)) < 1000
