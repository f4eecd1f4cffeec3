"""Importing the package is light, and every public name is there."""

import subprocess
import sys

import grpo_nb as gn

HEAVY = {
    "torch",
    "transformers",
    "trl",
    "unsloth",
    "peft",
    "datasets",
    "pandas",
    "numpy",
    "matplotlib",
    "scipy",
    "IPython",
}


def modules_after(code: str) -> set[str]:
    out = subprocess.run(
        [sys.executable, "-c", f"{code}\nimport sys; print(*{{m.split('.')[0] for m in sys.modules}})"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    return set(out.stdout.split())


def test_import_loads_nothing_heavy() -> None:
    assert not modules_after("import grpo_nb") & HEAVY


def test_settings_and_preflight_stay_light() -> None:
    assert not modules_after("import grpo_nb as gn; gn.preset('cpu'); repr(gn.check_environment())") & HEAVY


def test_looking_at_a_run_loads_no_model_stack(tiny_run: gn.runs.Run) -> None:
    loaded = modules_after(f"import grpo_nb as gn; r = gn.open_run({str(tiny_run.path)!r}); r.plot(); repr(r)")
    assert not loaded & {"torch", "transformers", "trl", "unsloth", "peft"}


def test_unsloth_comes_before_what_it_patches() -> None:
    order = subprocess.run(
        [
            sys.executable, "-c",
            "import sys\n"
            "class Watch:\n"
            "    seen = []\n"
            "    def find_spec(self, name, path=None, target=None):\n"
            "        if name in ('unsloth', 'trl', 'transformers'): self.seen.append(name)\n"
            "sys.meta_path.insert(0, Watch())\n"
            "import grpo_nb; grpo_nb.train; print('ORDER', *Watch.seen)",
        ],
        capture_output=True, text=True, check=True,
    ).stdout.split("ORDER")[1].split()  # fmt: skip
    assert order[0] == "unsloth" and {"trl", "transformers"} <= set(order)


def test_every_public_name_resolves_and_is_documented() -> None:
    for name in gn.__all__:
        value = getattr(gn, name)
        assert value is not None
        if callable(value):
            assert value.__doc__, f"{name} has no docstring"
    assert set(gn.__all__) <= set(dir(gn))


def test_an_unknown_name_is_an_attribute_error() -> None:
    try:
        gn.trian  # noqa: B018
    except AttributeError as error:
        assert "trian" in str(error)
    else:
        raise AssertionError("a misspelt name went through")
