"""Loading on a GPU without one: arguments against the signatures of the installed source, and every reason not to use vLLM."""

import ast
import importlib.metadata
import importlib.util
import io
import json
import logging
import os
import re
import subprocess
import sys
import types
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from unsloth_zoo import vllm_utils

import grpo_nb as gn
from grpo_nb.machine.gpu import Gpu
from grpo_nb.models import import_unsloth as unsloth_first
from grpo_nb.models import load as models
from grpo_nb.models.load import generation_of, has_engine, loader_arguments, lora_arguments
from grpo_nb.settings import vllm
from grpo_nb.settings.effective import SHARED_SCORING
from grpo_nb.settings.number_types import number_type
from grpo_nb.settings.presets import GPUS
from grpo_nb.settings.vllm import VllmObstacle
from grpo_nb.training import info
from tests.support.signatures import parameters_of, text_of
from tests.support.small_models import lora_model
from tests.support.talking_vllm import start

LOADER = "unsloth/models/loader.py"
LLAMA = "unsloth/models/llama.py"
P100 = Gpu("Tesla P100-PCIE-16GB", 16.0, (6, 0))


@pytest.mark.parametrize("name", ["t4", "h100"])
@pytest.mark.parametrize("use_vllm", [True, False])
def test_all_arguments_are_parameters_of_the_installed_unsloth(name: str, use_vllm: bool) -> None:
    passed = set(loader_arguments(gn.preset(name), "folder", GPUS[name], use_vllm=use_vllm))
    assert passed <= set(parameters_of(LOADER, "FastLanguageModel.from_pretrained"))
    # Other families go on to FastModel, with the same names.
    assert passed <= set(parameters_of(LOADER, "FastModel.from_pretrained"))
    # What the loader of each family takes; 16 bit and checkpointing end in the function above it.
    above = {"load_in_16bit", "use_gradient_checkpointing"}
    assert passed - above <= set(parameters_of(LLAMA, "FastLlamaModel.from_pretrained"))
    assert set(lora_arguments(gn.preset(name), GPUS[name])) <= set(
        parameters_of(LLAMA, "FastLlamaModel.get_peft_model")
    )


def test_the_engine_gets_what_the_settings_say() -> None:
    settings = gn.preset("t4", lora_rank=24, gpu_memory_utilization=0.4)
    arguments = loader_arguments(settings, "folder", GPUS["t4"], use_vllm=True)
    assert arguments["fast_inference"] is True and arguments["max_lora_rank"] == 24
    assert arguments["gpu_memory_utilization"] == 0.4
    assert (arguments["load_in_4bit"], arguments["load_in_16bit"]) == (True, False)
    assert arguments["max_seq_length"] == settings.max_prompt_length + settings.max_completion_length
    assert arguments["use_gradient_checkpointing"] == "unsloth"
    assert "fast_inference" not in loader_arguments(settings, "folder", GPUS["t4"], use_vllm=False)
    assert loader_arguments(settings, "folder", None, use_vllm=False)["use_gradient_checkpointing"] is False


def test_precision_is_left_to_the_function_that_the_trainer_asks() -> None:
    """dtype=None: Unsloth then loads by `is_bfloat16_supported`, which is what `bf16` and `fp16` of the trainer come from."""
    assert "dtype" not in loader_arguments(gn.preset("t4"), "folder", GPUS["t4"], use_vllm=True)
    source = text_of(LLAMA)
    assert "SUPPORTS_BFLOAT16 = is_bfloat16_supported()" in source
    assert "dtype = torch.float16 if not SUPPORTS_BFLOAT16 else torch.bfloat16" in source
    for name, gpu in GPUS.items():
        chosen = "bfloat16" if gpu.compute_capability >= (8, 0) else "float16"
        assert number_type(gn.preset(name), gpu).name == chosen
        wanted = gn.preset(name, dtype="float32")
        assert str(loader_arguments(wanted, "folder", gpu, use_vllm=False)["dtype"]) == "torch.float32"


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch):
    """Sets which vLLM is installed; it loads."""

    def installed(**changes: str | None) -> None:
        found = {"vllm": "0.31.0", **changes}
        real = importlib.metadata.version

        def version(package: str) -> str:
            if package not in found:
                return real(package)
            if found[package] is None:
                raise importlib.metadata.PackageNotFoundError(package)
            return found[package]

        monkeypatch.setattr(importlib.metadata, "version", version)
        monkeypatch.setattr(vllm, "vllm_problem", lambda: None)

    installed()
    return installed


# --- load_model itself, with Unsloth's loader replaced ---


class FakeVllm:
    """As much of an engine as loading looks at."""


@dataclass
class FakeLoader:
    """Records calls; its parameters are those of the installed source, so a renamed argument is an error here."""

    engine: FakeVllm | None = None
    error: Exception | None = None
    talks: bool = False
    always: bool = False

    def __post_init__(self) -> None:
        self.calls: list[dict] = []

    def from_pretrained(self, **arguments):
        if arguments.get("fast_inference") and self.talks:
            start()
        assert set(arguments) <= set(parameters_of(LOADER, "FastLanguageModel.from_pretrained"))
        self.calls.append(arguments)
        if self.error is not None and (arguments.get("fast_inference") or self.always):
            raise self.error
        # As Unsloth builds it with vLLM: from config.json, and so with its end tokens alone.
        model = types.SimpleNamespace(generation_config=types.SimpleNamespace(eos_token_id=5))
        if arguments.get("fast_inference") and self.engine is not None:
            model.vllm_engine = self.engine
        return model, types.SimpleNamespace()

    def get_peft_model(self, model, **arguments):
        assert set(arguments) <= set(parameters_of(LLAMA, "FastLlamaModel.get_peft_model"))
        return model


@pytest.fixture
def on_a_gpu(machine, monkeypatch, tmp_path):
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "tokenizer.json").touch()
    monkeypatch.setattr(models, "find_gpu", lambda: GPUS["t4"])
    monkeypatch.setattr(vllm_utils, "_build_lora_request", lambda *_: None)
    models._say_once.cache_clear()

    def load(loader: FakeLoader, **changes):
        import unsloth

        monkeypatch.setattr(unsloth, "FastLanguageModel", loader)
        return gn.load_model(gn.preset("t4", model=str(tmp_path), **changes))

    return load


def test_with_vllm_the_model_says_so(on_a_gpu) -> None:
    loader = FakeLoader(engine=FakeVllm())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, tokenizer = on_a_gpu(loader)
    assert loader.calls[0]["fast_inference"] is True
    assert has_engine(model) and generation_of(model) == "vLLM"
    assert vllm_utils._build_lora_request.hands_copies, "vLLM scales what it gets in place"
    assert tokenizer.padding_side == "left"


@pytest.fixture
def vllms_log():
    """The logger that vLLM's start configures, afterwards as it was."""
    log = logging.getLogger("vllm")
    kept = log.handlers, log.level, log.propagate
    yield log
    log.handlers, log.level, log.propagate = kept


def test_an_engine_may_ask_for_the_descriptor_and_is_heard_again_afterwards(on_a_gpu, vllms_log, capfd) -> None:
    """vLLM asks while it makes its process group, and its log handler is bound to stdout as it is then."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, _ = on_a_gpu(FakeLoader(engine=FakeVllm(), talks=True))
    assert has_engine(model)
    assert capfd.readouterr() == ("C code is heard again\n", ""), "what Python prints and vLLM logs is kept"
    for tell, words in ((vllms_log.info, "asleep"), (vllms_log.warning, unsloth_first._NOT_SLEEPING)):
        tell(words)
    assert capfd.readouterr() == ("", "")
    vllms_log.warning("the cache is full")
    assert capfd.readouterr() == ("", "the cache is full\n")


def test_what_vllm_said_stands_in_the_warning_that_it_did_not_start(on_a_gpu, vllms_log) -> None:
    said = "Unsloth: vLLM loading.*\nInitializing a V1 LLM engine\nFree memory is not enough"
    with pytest.warns(UserWarning, match=f"vLLM did not start .RuntimeError: no.*What was said last:\n{said}$") as seen:
        model, _ = on_a_gpu(FakeLoader(error=RuntimeError("no"), talks=True))
    assert len(seen) == 1 and "said last" not in generation_of(model)


def test_what_is_said_while_unsloth_is_imported_does_not_end_in_a_dead_stream(tmp_path) -> None:
    (tmp_path / "unsloth.py").write_text("from tests.support.talking_vllm import start\n\nstart()\n")
    code = (
        "import logging; from grpo_nb.models.import_unsloth import import_unsloth, said_last; import_unsloth();"
        " logging.getLogger('vllm').info('asleep'); logging.getLogger('vllm').warning('the cache is full');"
        " assert 'Initializing a V1 LLM engine' in said_last()"
    )
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{Path(__file__).resolve().parents[2]}"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "C code is heard again\n"), done.stderr
    assert done.stderr == "the cache is full\n"


def test_a_notebook_whose_stdout_has_no_descriptor_gets_one(machine, monkeypatch) -> None:
    """For who loads by hand with Unsloth in Colab: its own cure, at its import, met the kit's stream."""
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setattr("IPython.get_ipython", lambda: shell)
    monkeypatch.setattr(unsloth_first, "find_gpu", lambda: GPUS["t4"])
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: n == "vllm" or real(n))
    monkeypatch.setattr(sys, "stdout", io.StringIO())
    unsloth_first.import_unsloth()
    assert sys.stdout.fileno() == 1


@pytest.mark.parametrize(("published", "ends"), [([2, 5], [2, 5]), (2, [2, 5]), (None, 5)])
def test_with_vllm_it_ends_where_it_ends_without(on_a_gpu, tmp_path, published, ends) -> None:
    if published is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": published}))
    assert on_a_gpu(FakeLoader(engine=FakeVllm()))[0].generation_config.eos_token_id == ends
    copied = text_of("unsloth_zoo/empty_model.py")
    assert "def copy_attributes" in copied and "generation_config" not in copied, "Unsloth does it by now"


@pytest.mark.parametrize(("card", "own", "expected"), [("t4", None, "1"), ("l4", None, None), ("t4", "0", "0")])
def test_flashinfer_is_off_where_vllm_refuses_it(card: str, own, expected, monkeypatch) -> None:
    monkeypatch.setenv("UNSLOTH_VLLM_NO_FLASHINFER", own or "")  # so that what the import sets is taken back afterwards
    if own is None:
        monkeypatch.delenv("UNSLOTH_VLLM_NO_FLASHINFER")
    monkeypatch.setattr(unsloth_first, "find_gpu", lambda: GPUS[card])
    unsloth_first.import_unsloth()
    assert os.environ.get("UNSLOTH_VLLM_NO_FLASHINFER") == expected
    assert 'os.environ.get("UNSLOTH_VLLM_NO_FLASHINFER", "0") != "0"' in text_of("unsloth_zoo/vllm_utils.py")


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (
            "FlashInfer top-p/top-k sampling unavailable: unsupported compute capability 7.5.",
            "UNSLOTH_VLLM_NO_FLASHINFER",
        ),
        ("vllm/_C.abi3.so: undefined symbol: _ZN5torch3jit17parseSchemaOrNameERKSsb", "pip install -r requirements"),
        ("CuMem allocator can only be used for one instance per process.", "restart the kernel; or load this model"),
        ("Engine core initialization failed. See root cause above.", "fast_inference=False"),
    ],
)
def test_an_engine_that_does_not_start_is_not_the_end_and_the_way_out_is_said(on_a_gpu, words, told) -> None:
    loader = FakeLoader(error=RuntimeError(words))
    with pytest.warns(UserWarning, match=f"(?s)vLLM did not start .RuntimeError: {re.escape(words[:30])}.*{told}"):
        model, _ = on_a_gpu(loader)
    assert [call.get("fast_inference", False) for call in loader.calls] == [True, False]
    assert generation_of(model).startswith("Unsloth's own generation; not vLLM: vLLM did not start")


def test_unsloth_imported_by_others_is_refused_where_it_read_no_switches(monkeypatch) -> None:
    import unsloth

    monkeypatch.setattr(unsloth_first, "find_gpu", lambda: GPUS["t4"])
    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: n == "vllm" or real(n))
    monkeypatch.delattr(unsloth, unsloth_first._BY_THE_KIT)  # as `import unsloth` in a notebook leaves it
    both = ("UNSLOTH_VLLM_STANDBY", SHARED_SCORING)
    for missing in both:
        for name in both:
            monkeypatch.setenv(name, "1")
        monkeypatch.delenv(missing)
        with pytest.raises(gn.machine.EnvironmentProblem, match=f"before grpo_nb, without {missing}, .*import grpo_nb"):
            unsloth_first.import_unsloth()
        assert missing not in os.environ, "a second try would pass"
    monkeypatch.setenv(missing, "1")
    unsloth_first.import_unsloth()
    assert "EXPANDABLE_SEGMENTS_UNSUPPORTED:\n        if IS_TORCH" in text_of("unsloth_zoo/__init__.py")


def test_a_gpu_that_only_torch_sees_is_refused(on_a_gpu, monkeypatch) -> None:
    monkeypatch.setattr(models, "find_gpu", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    loader = FakeLoader()
    with pytest.raises(gn.machine.EnvironmentProblem, match="of which no NVIDIA driver tells"):
        on_a_gpu(loader)
    assert loader.calls == []


def test_without_vllm_it_falls_back_and_says_so_once(on_a_gpu, machine) -> None:
    machine(vllm=None)
    loader = FakeLoader()
    with pytest.warns(
        UserWarning, match="vLLM is not installed. What to do: pip install -r requirements.txt -r requirements-gpu.txt"
    ):
        model, _ = on_a_gpu(loader)
    assert "fast_inference" not in loader.calls[0] and not has_engine(model)
    assert generation_of(model).startswith("Unsloth's own generation; not vLLM: vLLM is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        on_a_gpu(loader)


def test_a_driver_that_is_too_old_is_explained_where_no_load_works(on_a_gpu) -> None:
    loader = FakeLoader(
        error=RuntimeError("The NVIDIA driver on your system is too old (found version 12020)."), always=True
    )
    with pytest.raises(gn.machine.EnvironmentProblem, match="Update the NVIDIA driver"):
        on_a_gpu(loader, fast_inference=False)


def test_an_engine_that_unsloth_leaves_out_is_noticed(on_a_gpu) -> None:
    with pytest.warns(UserWarning, match="Unsloth does not run this model in vLLM"):
        model, _ = on_a_gpu(FakeLoader(engine=None))
    assert generation_of(model).startswith("Unsloth's own generation; not vLLM: ")


def test_out_of_memory_while_loading_names_the_setting(on_a_gpu) -> None:
    error = RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 14.56 GiB")
    loader = FakeLoader(error=error)
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"while loading.*gpu_memory_utilization=0.66"):
        on_a_gpu(loader)
    assert len(loader.calls) == 1, "a second try would meet the memory that the first one holds"
    with pytest.raises(gn.machine.EnvironmentProblem, match=r"while loading.*load_in_4bit=True"):
        on_a_gpu(FakeLoader(error=error, always=True), load_in_4bit=False, fast_inference=False)


def test_not_asked_for_it_is_not_missed(on_a_gpu) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model, _ = on_a_gpu(FakeLoader(), fast_inference=False)
    assert generation_of(model) == "Unsloth's own generation"


@pytest.mark.parametrize("is_installed", [True, False])
def test_standby_is_asked_for_before_the_import_and_only_with_vllm(is_installed: bool, monkeypatch) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(unsloth_first, "find_gpu", lambda: GPUS["t4"])
    monkeypatch.setattr(importlib.util, "find_spec", lambda n: is_installed or None if n == "vllm" else real(n))
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", "")  # so that what the import sets is taken back afterwards
    monkeypatch.delenv("UNSLOTH_VLLM_STANDBY")
    unsloth_first.import_unsloth()
    assert os.environ.get("UNSLOTH_VLLM_STANDBY") == ("1" if is_installed else None)
    assert os.environ["UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE"] == "1", "the share is that of the settings"
    # Unsloth reads it in these two places, the first while it is imported.
    assert "UNSLOTH_VLLM_STANDBY" in text_of("unsloth_zoo/__init__.py")
    assert 'os.getenv("UNSLOTH_VLLM_STANDBY", "0")' in text_of("unsloth_zoo/vllm_utils.py")


@pytest.mark.parametrize("own", [None, "1"])
def test_completions_are_scored_with_their_prompt_unless_the_user_says_otherwise(own: str | None, monkeypatch) -> None:
    monkeypatch.setenv(SHARED_SCORING, own or "")  # so that what the import sets is taken back afterwards
    if own is None:
        monkeypatch.delenv(SHARED_SCORING)
    unsloth_first.import_unsloth()
    assert os.environ[SHARED_SCORING] == (own or "0")


def test_the_trainer_uses_an_engine_only_if_the_model_has_one(tmp_path) -> None:
    from grpo_nb.training import prepare

    settings, gpu = gn.preset("t4"), GPUS["t4"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prepare, "find_gpu", lambda: gpu)
        patch.setattr("grpo_nb.models.import_unsloth.find_gpu", lambda: gpu)
        for has_one in (True, False):
            model = types.SimpleNamespace(vllm_engine=object() if has_one else None)
            arguments = prepare.grpo_arguments(settings, {"r": 1.0}, tmp_path, model)
            assert arguments.get("use_vllm", False) is has_one


def test_unsloth_takes_the_frozen_adapter_out_of_trls_trainer() -> None:
    """Its own pattern on TRL's own source; what the kit says of the KL on a GPU rests on it."""
    nodes = ast.walk(ast.parse(text_of("unsloth/models/rl.py")))
    texts = {node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str)}
    (pattern,) = (text for text in texts if r"elif is_peft_model\(model\)" in text)
    trl = text_of("trl/trainer/grpo_trainer.py")
    assert 'model.add_adapter("ref"' in trl
    assert 'model.add_adapter("ref"' not in re.sub(pattern, "", trl, flags=re.DOTALL)


def test_on_a_gpu_the_record_says_what_kl_is_measured_to(monkeypatch) -> None:
    model, settings = lora_model(), gn.preset("cpu")  # small_models gives its adapter numbers: it is a trained one
    assert info.reference_of(model, settings, "start") == info.START_ADAPTER
    monkeypatch.setattr(info, "find_gpu", lambda: GPUS["t4"])
    with pytest.warns(UserWarning, match="held to the base model"):
        assert info.reference_of(model, settings, "start") == info.BASE_MODEL
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert info.reference_of(model, settings, "base") == info.BASE_MODEL
        assert info.reference_of(model, settings.replace(beta=0.0), "start") == info.BASE_MODEL


def test_a_run_says_what_generated(tiny_run: gn.runs.Run) -> None:
    assert gn.open_run(tiny_run.path).info["generation"] == "the kit's rollout on a CPU"
    assert str(VllmObstacle("a reason", "a fix")) == "a reason (a fix)"
