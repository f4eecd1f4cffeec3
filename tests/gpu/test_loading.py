"""Loading as on a GPU, without one: arguments are checked against the installed signatures.

Each reason not to use vLLM has a test.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import os
import sys
import types
import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import torch
from unsloth_zoo import vllm_utils

import grpo_nb as gn
from grpo_nb.config import hardware, planning
from grpo_nb.config.hardware import has_vllm_engine
from grpo_nb.generation import choice
from grpo_nb.generation.choice import choose_engine
from grpo_nb.machine.gpu import Gpu
from grpo_nb.models import load as models
from grpo_nb.models import unsloth_import
from grpo_nb.models.load import loader_arguments
from grpo_nb.models.load_record import LOAD_RECORDS
from grpo_nb.training import kl_reference, prepare
from grpo_nb.upstream.unsloth import SHARED_SCORING_ENV
from tests.support.gpus import GPUS
from tests.support.signatures import parameters_of
from tests.support.small_models import lora_model

LOADER = parameters_of("unsloth/models/loader.py", "FastLanguageModel.from_pretrained")
LORA = parameters_of("unsloth/models/llama.py", "FastLlamaModel.get_peft_model")
STANDBY_ENV = "UNSLOTH_VLLM_STANDBY"
NO_FLASHINFER = "UNSLOTH_VLLM_NO_FLASHINFER"
HERE = "Unsloth's own generation"
LOG = logging.getLogger("vllm")


@pytest.mark.parametrize("name", ["t4", "h100"])
@pytest.mark.parametrize("use_vllm", [True, False])
def test_arguments_are_parameters_of_the_installed_unsloth(name: str, use_vllm: bool) -> None:
    settings = gn.preset(name, lora_rank=24, gpu_memory_utilization=0.4, fast_inference=use_vllm)
    passed = loader_arguments(settings, "folder", GPUS[name])
    # Other families go on to FastModel, with the same names; 16 bit and checkpointing end in the
    # function above a family's own.
    assert passed.keys() <= set(LOADER) & set(
        parameters_of("unsloth/models/loader.py", "FastModel.from_pretrained")
    )
    family = {
        *parameters_of("unsloth/models/llama.py", "FastLlamaModel.from_pretrained"),
        "load_in_16bit",
    }
    assert passed.keys() <= family | {"use_gradient_checkpointing"}
    assert passed["max_seq_length"] == settings.max_prompt_length + settings.max_completion_length
    assert passed["load_in_4bit"] is settings.load_in_4bit
    assert passed["load_in_16bit"] is not settings.load_in_4bit
    engine = {"fast_inference": True, "max_lora_rank": 24, "gpu_memory_utilization": 0.4}
    assert {key: passed[key] for key in engine if key in passed} == (engine if use_vllm else {})
    # No dtype: Unsloth then loads by `is_bfloat16_supported`, which is what `bf16` and `fp16` of
    # the trainer come from.
    wanted = loader_arguments(settings.replace(dtype="float32"), "folder", GPUS[name])
    assert "dtype" not in passed
    assert wanted["dtype"] == torch.float32


# --- load_model itself, with Unsloth's loader replaced ---


def start_of_vllm() -> None:
    """Use stdout like vLLM 0.31 and Unsloth while an engine starts."""
    print("Unsloth: vLLM loading")
    # vllm/logger.py, _configure_vllm_root_logger
    LOG.handlers = [logging.StreamHandler(sys.stdout)]
    LOG.propagate = False
    LOG.setLevel("INFO")
    LOG.info("Initializing a V1 LLM engine")
    # For the process group it mutes the descriptor (vllm/utils/system_utils.py, suppress_stdout).
    kept = os.dup(sys.stdout.fileno())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stdout.fileno())
    os.write(1, b"[Gloo] Rank 0 is connected to 0 peer ranks\n")
    os.dup2(kept, sys.stdout.fileno())
    os.close(kept)
    os.close(nowhere)
    os.write(1, b"C code is heard again\n")


class Model:
    """Stand-in for the loaded model."""

    def __init__(self) -> None:
        self.generation_config = types.SimpleNamespace(eos_token_id=5)
        text_config = types.SimpleNamespace(model_type="qwen2")
        self.config = types.SimpleNamespace(get_text_config=lambda: text_config)

    def parameters(self) -> Iterator[torch.Tensor]:
        return iter([torch.empty(1, device="meta")])

    def modules(self) -> list[Any]:
        return []


def engine_of(model: Model) -> str:
    return choose_engine(model).name


class Loader:
    """Record calls with the installed signature, so that a renamed argument is an error here.

    Args:
        engine: Of the model that it returns, with `fast_inference`.
        error: Raised with `fast_inference`, and without it too where `always` is set.
    """

    def __init__(self, engine: object = None, error: str | Exception = "", always: bool = False):
        self.engine = engine
        self.error = error
        self.always = always
        self.calls: list[dict] = []

    def from_pretrained(self, **arguments: Any) -> tuple[Any, Any]:
        assert arguments.keys() <= set(LOADER)
        self.calls.append(arguments)
        is_fast = arguments.get("fast_inference", False)
        if is_fast:
            start_of_vllm()
        if self.error and (is_fast or self.always):
            cause = self.error if isinstance(self.error, Exception) else None
            raise RuntimeError(str(self.error)) from cause
        # As Unsloth builds it with vLLM: from config.json, and so with its end tokens alone.
        model = Model()
        if is_fast and self.engine is not None:
            model.vllm_engine = self.engine
        return model, types.SimpleNamespace()

    def get_peft_model(self, model: Any, **arguments: Any) -> Any:
        assert arguments.keys() <= set(LORA)
        return model


@pytest.fixture
def on_a_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path):
    """Load as on a T4 with vLLM installed; return model and tokenizer.

    Every warning but the expected one is an error.
    """
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    (tmp_path / "tokenizer.json").touch()
    for module in (models, choice, planning):
        monkeypatch.setattr(module, "find_gpu", lambda: GPUS["t4"])
    monkeypatch.setattr(hardware, "installed_version", lambda name: "0.31.0")
    monkeypatch.setattr(vllm_utils, "_build_lora_request", lambda *_: None)
    for name in ("handlers", "level", "propagate"):  # which vLLM's start configures
        monkeypatch.setattr(LOG, name, getattr(LOG, name))

    def load(loader: Loader, warned: str = "", **changes: Any) -> tuple[Any, Any]:
        monkeypatch.setattr("unsloth.FastLanguageModel", loader)
        settings = gn.preset("t4", model=str(tmp_path), **changes)
        if warned:
            with pytest.warns(UserWarning, match=warned):
                return gn.load_model(settings)
        with warnings.catch_warnings(action="error"):
            return gn.load_model(settings)

    return load


@pytest.mark.parametrize(("published", "ends"), [([2, 5], [2, 5]), (2, [2, 5]), (None, 5)])
def test_model_with_vllm_is_named_and_stops_like_without(
    on_a_gpu, tmp_path, published, ends
) -> None:
    if published is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": published}))
    model, tokenizer = on_a_gpu(Loader(engine=object()))
    assert has_vllm_engine(model)
    assert engine_of(model) == "vLLM"
    assert tokenizer.padding_side == "left"
    assert vllm_utils._build_lora_request.gives_lora_copies, "vLLM scales what it gets in place"
    assert model.generation_config.eos_token_id == ends


def test_engine_may_ask_for_the_descriptor_of_stdout(on_a_gpu, capfd) -> None:
    """vLLM's log handler keeps the stdout that was in place when vLLM made its process group."""
    assert has_vllm_engine(on_a_gpu(Loader(engine=object()))[0])
    assert capfd.readouterr() == ("C code is heard again\n", ""), (
        "what Python prints and vLLM logs is kept out"
    )
    LOG.warning("Executor is not sleeping.")
    assert capfd.readouterr() == ("", "")


def test_engine_that_does_not_start_leaves_a_model_and_advice(on_a_gpu) -> None:
    loader = Loader(error="CuMem allocator can only be used for one instance per process.")
    model, _ = on_a_gpu(
        loader,
        warned=r"(?s)vLLM did not start .RuntimeError: CuMem"
        r".*Restart the kernel, or load this model",
    )
    assert [call.get("fast_inference", False) for call in loader.calls] == [True, False]
    assert engine_of(model) == HERE
    assert choose_engine(model).vllm_obstacle.startswith("vLLM did not start")
    on_a_gpu(Loader(error="Engine core initialization failed."), warned="fast_inference=False")


def test_model_that_unsloth_runs_without_vllm_is_loaded_once(on_a_gpu) -> None:
    """Unsloth prints its reason and loads such a model itself, as without `fast_inference`."""
    loader = Loader()
    model, _ = on_a_gpu(loader, warned="Unsloth does not run this model in vLLM")
    assert len(loader.calls) == 1
    assert "Unsloth does not run this model" in LOAD_RECORDS[model].vllm_obstacle


def test_without_vllm_it_falls_back_and_says_so(on_a_gpu, monkeypatch) -> None:
    left_out, _ = on_a_gpu(Loader(), warned="Unsloth does not run this model in vLLM")
    assert engine_of(left_out) == HERE
    assert choose_engine(left_out).vllm_obstacle.startswith("Unsloth does not run this model")
    assert engine_of(on_a_gpu(Loader(), fast_inference=False)[0]) == HERE, (
        "not asked for it is not missed"
    )
    monkeypatch.setattr(hardware, "installed_version", lambda name: None)
    loader = Loader()
    model, _ = on_a_gpu(
        loader,
        warned="vLLM is not installed .pip install -r requirements.txt -r requirements-gpu",
    )
    assert "fast_inference" not in loader.calls[0]
    assert not has_vllm_engine(model)
    assert engine_of(model) == HERE
    assert choose_engine(model).vllm_obstacle.startswith("vLLM is not installed")


def test_vllm_that_unsloth_disabled_is_left_out_with_its_error(on_a_gpu) -> None:
    """Unsloth imports vLLM when it is imported, and its loader gives the error of that import."""
    words = (
        "Unsloth: Detected broken vLLM binary extension; disabling vLLM imports and continuing "
        "import.\n`fast_inference = True` needs a working vLLM."
    )
    loader = Loader(error=words)
    model, _ = on_a_gpu(
        loader, warned=r"Detected broken vLLM binary extension.*pip install -r requirements.txt -r"
    )
    assert "fast_inference" not in loader.calls[1]
    assert "broken vLLM" in LOAD_RECORDS[model].vllm_obstacle


@pytest.mark.parametrize(
    ("words", "changes", "told"),
    [
        (
            "The NVIDIA driver on your system is too old.",
            {"fast_inference": False},
            "Update the NVIDIA driver",
        ),
        ("CUDA out of memory.", {}, r"during loading.*gpu_memory_utilization=0.66"),
    ],
)
def test_error_that_a_second_load_would_repeat_is_explained(on_a_gpu, words, changes, told) -> None:
    """Explain an error such as the memory that the first load holds."""
    loader = Loader(error=words, always=True)
    with pytest.raises(gn.machine.EnvironmentProblem, match=told):
        on_a_gpu(loader, **changes)
    assert len(loader.calls) == 1


def test_missing_optional_file_does_not_stop_the_load_without_vllm(on_a_gpu) -> None:
    request = httpx.Request("GET", "https://hub")
    response = httpx.Response(404, request=request)
    loader = Loader(error=httpx.HTTPStatusError("404", request=request, response=response))
    on_a_gpu(loader, warned="vLLM did not start")
    assert len(loader.calls) == 2


def test_memory_advice_while_loading_without_vllm_spares_vllm(on_a_gpu, monkeypatch) -> None:
    monkeypatch.setattr(hardware, "installed_version", lambda name: None)
    with pytest.raises(gn.machine.EnvironmentProblem, match="during loading") as caught:
        on_a_gpu(Loader(error="CUDA out of memory.", always=True), warned="is not installed")
    assert "gpu_memory_utilization" not in str(caught.value)


# --- What Unsloth reads when it is imported ---


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch):
    """Import unsloth on a machine with this card, with or without vLLM, and these variables."""
    real = importlib.util.find_spec

    def switches(card: str = "t4", has_vllm: bool = True, **own: str) -> dict[str, str]:
        monkeypatch.setattr(unsloth_import, "find_gpu", lambda: GPUS[card])
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda n: has_vllm or None if n == "vllm" else real(n)
        )
        for name in (STANDBY_ENV, SHARED_SCORING_ENV, NO_FLASHINFER):
            monkeypatch.setenv(
                name, own.get(name, "")
            )  # so that what the import sets is taken back afterwards
            if name not in own:
                monkeypatch.delenv(name)
        unsloth_import.import_unsloth()
        return dict(os.environ)

    return switches


def test_switches_are_set_before_import_unless_user_set_them(imported) -> None:
    set_by_kit = imported("t4")
    assert (
        set_by_kit.items()
        >= {STANDBY_ENV: "1", SHARED_SCORING_ENV: "0", NO_FLASHINFER: "1"}.items()
    )
    assert set_by_kit["UNSLOTH_VLLM_STANDBY_UTIL_OVERRIDE"] == "1", (
        "the share is that of the settings"
    )
    assert STANDBY_ENV not in imported(has_vllm=False)
    own = {SHARED_SCORING_ENV: "1", NO_FLASHINFER: "0"}
    assert imported("t4", **own).items() >= own.items()


@pytest.mark.parametrize(
    ("capability", "expected"), [((8, 9), "1"), ((9, 0), "1"), ((10, 0), None), ((12, 0), None)]
)
def test_flashinfer_is_off_below_capability_10(imported, monkeypatch, capability, expected) -> None:
    """Nothing of the kit uses it there, and where vLLM refuses it, the engine does not start."""
    card = Gpu("a card", 40.0, capability)
    monkeypatch.setitem(GPUS, "a card", card)
    assert imported("a card").get(NO_FLASHINFER) == expected


def test_unsloth_imported_before_the_switches_is_refused(imported, monkeypatch) -> None:
    import unsloth

    # As `import unsloth` in a notebook leaves it.
    monkeypatch.delattr(unsloth, unsloth_import._KIT_IMPORT_MARK)
    with pytest.raises(
        gn.machine.EnvironmentProblem, match=r"^unsloth, trl.* must not be imported before grpo_nb"
    ):
        imported()
    assert STANDBY_ENV not in os.environ, "a second try would pass"


# --- What the trainer makes of it ---


def engine_for(longest_sequence: int) -> types.SimpleNamespace:
    model_config = types.SimpleNamespace(max_model_len=longest_sequence)
    vllm_config = types.SimpleNamespace(model_config=model_config)
    return types.SimpleNamespace(llm_engine=types.SimpleNamespace(vllm_config=vllm_config))


@pytest.mark.parametrize("engine", [engine_for(gn.preset("t4").longest_sequence), None])
def test_trainer_uses_an_engine_only_if_the_model_has_one(engine: object, monkeypatch) -> None:
    for place in (prepare, unsloth_import, choice):
        monkeypatch.setattr(place, "find_gpu", lambda: GPUS["t4"])
    monkeypatch.setattr(hardware, "installed_version", lambda name: None)
    model = Model()
    model.vllm_engine = engine
    settings = gn.preset("t4")
    engine_choice = choose_engine(model, settings)
    arguments = prepare.arguments_on_this_machine(settings, engine_choice, "float16")
    assert arguments.get("use_vllm", False) is (engine is not None)


def test_record_on_a_gpu_names_the_kl_reference() -> None:
    """Unsloth takes the frozen adapter out of TRL's trainer (unsloth/models/rl.py)."""
    # The adapter of small_models has numbers, so it counts as trained.
    model = lora_model()
    assert kl_reference.choose_kl_reference(model, None) == kl_reference.BASE_REFERENCE


def test_resumed_run_of_a_gpu_keeps_the_base_as_kl_reference() -> None:
    model = lora_model()
    model.add_adapter("ref", model.peft_config["default"])  # as TRL does on a CPU
    reference = kl_reference.choose_kl_reference(model, kl_reference.BASE_REFERENCE)
    assert reference == kl_reference.BASE_REFERENCE
    assert "ref" not in model.peft_config


def test_trained_adapter_is_the_kl_reference_on_a_cpu() -> None:
    model = lora_model()
    model.add_adapter("ref", model.peft_config["default"])  # as TRL does
    assert kl_reference.choose_kl_reference(model, None) == kl_reference.START_REFERENCE
