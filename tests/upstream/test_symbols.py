"""Every private symbol that the kit relies on is in the installed versions.

Moving a pin shows here at once what breaks.
"""

import inspect
import os
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace

import pytest
import trl as trl_package
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM
from trl import GRPOTrainer
from trl.trainer.utils import RepeatSampler

from grpo_nb.core.problems import EnvironmentProblem
from grpo_nb.upstream import symbols, transformers, trl, unsloth, vllm
from tests.support.signatures import FACTS


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    config = LlamaConfig(
        vocab_size=16,
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config)


def test_require_symbol_missing_names_symbol_and_versions() -> None:
    message = r"trl\._gone is missing in trl .* written for trl 1\.15\.0"
    with pytest.raises(EnvironmentProblem, match=message):
        symbols.require_symbol(trl_package, "_gone", "trl")


def test_require_symbol_returns_the_symbol() -> None:
    assert symbols.require_symbol(trl_package, "GRPOTrainer", "trl") is GRPOTrainer


@pytest.mark.parametrize("package", sorted(symbols.PINNED_VERSIONS.keys() - {"vllm"}))
def test_pinned_version_is_the_installed_one(package: str) -> None:
    assert symbols.installed_version(package) == symbols.PINNED_VERSIONS[package]


def test_trainer_methods_are_in_installed_trl() -> None:
    trl.require_trainer_methods(GRPOTrainer)


@pytest.mark.parametrize("name", sorted(trl.TRAINER_METHODS))
def test_trainer_without_a_method_is_refused(name: str) -> None:
    others = {other: None for other in trl.TRAINER_METHODS if other != name}
    changed = type("Changed", (), others)
    with pytest.raises(EnvironmentProblem, match=rf"Changed\.{name} is missing in trl"):
        trl.require_trainer_methods(changed)


def test_micro_batch_count_is_the_counter_of_trl() -> None:
    assert trl.micro_batch_count(SimpleNamespace(_step=3)) == 3


def test_micro_batch_count_without_counter_is_refused() -> None:
    with pytest.raises(EnvironmentProblem, match="_step is missing in trl"):
        trl.micro_batch_count(SimpleNamespace(step=3))


def test_order_of_a_later_pass_is_that_of_one_sampler() -> None:
    rows = list(range(20))
    whole = RepeatSampler(rows, mini_repeat_count=2, seed=3)
    orders = [list(whole) for _ in range(3)]
    resumed = RepeatSampler(rows, mini_repeat_count=2, seed=3)
    trl.fix_order_of_passes(resumed)
    resumed.set_epoch(2)
    assert list(resumed) == orders[2] != orders[0]


def test_order_of_rows_that_are_not_shuffled_is_kept() -> None:
    ordered = RepeatSampler([7, 8], mini_repeat_count=1, shuffle=False)
    trl.fix_order_of_passes(ordered)
    assert list(ordered) == [0, 1]
    assert not hasattr(ordered, "set_epoch")


def test_sampler_without_a_generator_is_refused() -> None:
    with pytest.raises(EnvironmentProblem, match="generator is missing in trl"):
        trl.fix_order_of_passes(SimpleNamespace(shuffle=True))


def test_attention_table_of_transformers_has_sdpa() -> None:
    assert callable(transformers.attention_functions()["sdpa"])


def test_sampling_setup_gives_processors_of_generate(model: LlamaForCausalLM) -> None:
    asked = GenerationConfig(max_new_tokens=2, do_sample=True, temperature=0.5, eos_token_id=3)
    config, processors = transformers.sampling_setup(model, asked, prompt_width=4)
    assert type(processors[0]).__name__ == "TemperatureLogitsWarper"
    assert config.max_new_tokens == 2


def test_gguf_reader_has_a_bar_to_silence() -> None:
    transformers.silence_gguf_reader()


def test_gguf_reader_that_is_silenced_twice_has_one_partial() -> None:
    from transformers import modeling_gguf_pytorch_utils as reader

    transformers.silence_gguf_reader()
    transformers.silence_gguf_reader()
    assert not isinstance(reader.tqdm.func, partial)


def test_forget_gguf_name_removes_the_name(model: LlamaForCausalLM) -> None:
    model.config._model_name_or_path = "name in the file"
    transformers.forget_gguf_name(model)
    assert not hasattr(model.config, "_model_name_or_path")


def test_lora_request_builder_is_in_installed_unsloth(monkeypatch: pytest.MonkeyPatch) -> None:
    from unsloth_zoo import vllm_utils

    original = vllm_utils._build_lora_request
    monkeypatch.setattr(vllm_utils, "_build_lora_request", original)
    unsloth.give_vllm_lora_copies()
    assert vllm_utils._build_lora_request.gives_lora_copies


def test_lora_request_without_its_tensors_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    from unsloth_zoo import vllm_utils

    monkeypatch.setattr(vllm_utils, "_build_lora_request", SimpleNamespace)
    unsloth.give_vllm_lora_copies()
    with pytest.raises(EnvironmentProblem, match="lora_tensors is missing in unsloth_zoo"):
        vllm_utils._build_lora_request()


def test_cpu_dtype_probe_follows_the_kit(monkeypatch: pytest.MonkeyPatch) -> None:
    from unsloth_zoo.cpu import runtime

    monkeypatch.setenv("UNSLOTH_CPU_BF16", "0")
    unsloth.set_cpu_dtype(use_bfloat16=True)
    is_bfloat16 = runtime.cpu_bf16_supported()
    unsloth.set_cpu_dtype(use_bfloat16=False)
    assert is_bfloat16
    assert not runtime.cpu_bf16_supported()


@pytest.mark.parametrize("value", [None, "1"])
def test_cpu_dtype_variable_is_as_before(value: str | None, monkeypatch) -> None:
    # Set first, so that the variable is restored at the end of the test.
    monkeypatch.setenv("UNSLOTH_CPU_BF16", "1")
    if value is None:
        monkeypatch.delenv("UNSLOTH_CPU_BF16")
    unsloth.set_cpu_dtype(use_bfloat16=False)
    assert os.environ.get("UNSLOTH_CPU_BF16") == value


def test_cpu_dtype_variable_is_as_before_after_error(monkeypatch) -> None:
    from unsloth_zoo.cpu import runtime

    def fail() -> None:
        raise ZeroDivisionError

    fail.cache_clear = lambda: None
    monkeypatch.setenv("UNSLOTH_CPU_BF16", "1")
    monkeypatch.setattr(runtime, "cpu_bf16_supported", fail)
    with pytest.raises(ZeroDivisionError):
        unsloth.set_cpu_dtype(use_bfloat16=False)
    assert os.environ["UNSLOTH_CPU_BF16"] == "1"


def test_notebook_patch_is_in_installed_unsloth() -> None:
    unsloth.patch_vllm_for_notebooks()


@pytest.mark.parametrize("name", sorted(trl.CHAT_TEMPLATE_FUNCTIONS))
def test_chat_template_function_that_is_missing_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = trl.chat_template_module()
    monkeypatch.delattr(module, name)
    with pytest.raises(EnvironmentProblem, match=rf"chat_template_utils\.{name} is missing in trl"):
        trl.chat_template_module()


def small_tool_loop_trainer() -> GRPOTrainer:
    return trl.tool_loop_trainer(
        None,
        None,
        schemas=[],
        max_rounds=1,
        max_completion_length=8,
        chat_template=None,
        chat_template_kwargs={},
    )


def test_tool_loop_trainer_has_the_methods_of_the_loop() -> None:
    trainer = small_tool_loop_trainer()
    assert isinstance(trainer, GRPOTrainer)
    assert trainer.max_tool_calling_iterations == 1


def test_tool_loop_trainer_without_its_loop_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trl.GRPOTrainer", type("Changed", (), {}))
    with pytest.raises(EnvironmentProblem, match=r"Changed\._tool_call_loop is missing in trl"):
        small_tool_loop_trainer()


class Engine:
    """Inner parts of `vllm.LLM` 0.31 that the kit uses, with the signatures of its source."""

    def __init__(self) -> None:
        self.calls: list[object] = []
        self.requests: dict[str, object] = {}
        self.execute_model_state = "computed"  # of the model runner, which is this stand-in too
        core = SimpleNamespace(batch_queue=None)
        self.llm_engine = SimpleNamespace(
            vllm_config=SimpleNamespace(model_config=SimpleNamespace(max_model_len=64)),
            is_sleeping=lambda: "sleep" in self.calls,
            output_processor=SimpleNamespace(request_states=self.requests),
            engine_core=SimpleNamespace(engine_core=core),
            abort_request=self.abort_request,
            collective_rpc=self.collective_rpc,
        )

    def sleep(self, level: int = 1, mode: str = "abort") -> None:
        self.calls.append("sleep")

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:
        self.calls.append((request_ids, internal))

    def collective_rpc(
        self,
        method: object,
        timeout: float | None = None,
        args: tuple = (),
        kwargs: dict | None = None,
    ) -> list[object]:
        return [method(SimpleNamespace(model_runner=self))]


def test_stand_in_of_vllm_has_its_signatures() -> None:
    inner = "vllm/v1/engine/llm_engine.py:LLMEngine"
    pairs = {
        f"{inner}.abort_request": Engine.abort_request,
        f"{inner}.collective_rpc": Engine.collective_rpc,
        "vllm/entrypoints/llm.py:LLM.sleep": Engine.sleep,
    }
    for name, method in pairs.items():
        assert list(inspect.signature(method).parameters)[1:] == FACTS[name], name


def test_vllm_engine_reports_length_and_sleep() -> None:
    engine = Engine()
    assert vllm.sequence_limit_of(engine) == 64
    assert not vllm.is_sleeping(engine)
    vllm.put_to_sleep(engine)
    assert vllm.is_sleeping(engine)


def test_drop_requests_aborts_by_the_engines_own_names() -> None:
    engine = Engine()
    vllm.drop_requests(engine)
    assert engine.calls == []
    engine.requests["7-own"] = object()
    vllm.drop_requests(engine)
    assert engine.calls == [(["7-own"], True)]
    assert engine.execute_model_state is None


def test_drop_requests_frees_every_slot_of_runner_v2() -> None:
    engine = Engine()
    engine.requests["7-own"] = object()
    # The output processor no longer knows request 6, and the runner still holds its slot.
    slots = {"6-own": 0, "7-own": 1}
    engine.req_states = SimpleNamespace(req_id_to_index=slots)
    engine._remove_request = lambda req_id: slots.pop(req_id)
    vllm.drop_requests(engine)
    assert slots == {}


def test_drop_requests_refuses_runner_without_state() -> None:
    engine = Engine()
    engine.requests["7-own"] = object()
    del engine.execute_model_state
    with pytest.raises(EnvironmentProblem, match="execute_model_state is missing in vllm"):
        vllm.drop_requests(engine)


def test_drop_requests_refuses_runner_v2_without_removal() -> None:
    engine = Engine()
    engine.requests["7-own"] = object()
    engine.req_states = SimpleNamespace(req_id_to_index={"7-own": 1})
    with pytest.raises(EnvironmentProblem, match="_remove_request is missing in vllm"):
        vllm.drop_requests(engine)


@pytest.mark.parametrize(
    ("part", "call"),
    [
        ("vllm_config", vllm.sequence_limit_of),
        ("is_sleeping", vllm.is_sleeping),
        ("collective_rpc", vllm.drop_requests),
        ("output_processor", vllm.drop_requests),
        ("engine_core", vllm.drop_requests),
        ("abort_request", vllm.drop_requests),
    ],
)
def test_vllm_engine_without_a_part_is_refused(part: str, call: Callable[[Engine], object]) -> None:
    engine = Engine()
    engine.requests["7-own"] = object()
    delattr(engine.llm_engine, part)
    with pytest.raises(EnvironmentProblem, match=rf"{part} is missing in vllm .*vllm 0\.31\.0"):
        call(engine)
