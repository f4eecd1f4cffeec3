"""Sampling through vLLM, with a stand-in engine that has vLLM's signatures.

The tests look at what the engine is given, and that nothing is left in it. The text of a real
engine is tested in test_real_vllm.py.
"""

import collections
import inspect
import itertools
import logging
import sys
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import unsloth_zoo.vllm_utils  # noqa: F401  before there is a stand-in, for which it would look
from transformers import GenerationConfig

from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.generation import sampling, vllm
from grpo_nb.generation.completions import GeneratedCompletion
from grpo_nb.generation.sampling import generate, sample_with_transformers
from grpo_nb.generation.vllm import vllm_engine_obstacle, vllm_sampling_arguments
from grpo_nb.training.prepare import build_trainer
from scripts.gpu_check import model_runner_class
from tests.support.signatures import FACTS, parameters_of
from tests.support.small_models import PROMPTS, lora_model

GENERATE_PARAMETERS = FACTS["vllm/entrypoints/llm.py:LLM.generate"]
WRITTEN = [5, 9, 2]
SHORT = PROMPTS[0]
#: Tokens of prompt and completion that the stand-in was started for.
LONGEST_ROW = 64
LONG = PROMPTS[0] * 20


class SamplingParams:
    """Takes the parameters of vLLM's class."""

    def __init__(self, **values: object) -> None:
        unknown = set(values) - set(FACTS["vllm/sampling_params.py:SamplingParams"])
        assert not unknown, f"vLLM has no {unknown}"
        self.__dict__.update(values)


class RequestState:
    """Slots of vLLM's Model Runner V2: one for each request, of a fixed number."""

    def __init__(self, slots: int) -> None:
        self.req_id_to_index: dict[str, int] = {}
        self.free_indices = list(range(slots))

    def add_request(self, req_id, prompt_len, all_token_ids, num_computed_tokens, max_tokens):
        assert len(self.free_indices) > 0, "No free indices"
        self.req_id_to_index[req_id] = self.free_indices.pop()

    def remove_request(self, req_id):
        index = self.req_id_to_index.pop(req_id, None)
        if index is not None:
            self.free_indices.append(index)
        return index


class RunnerV2:
    """Model runner of a GPU, as far as it keeps requests (vllm/v1/worker/gpu/model_runner.py)."""

    def __init__(self, slots: int) -> None:
        self.execute_model_state = None
        self.req_states = RequestState(slots)

    def _remove_request(self, req_id):
        return self.req_states.remove_request(req_id) is not None


RunnerV2.__module__ = "vllm.v1.worker.gpu.model_runner"
RunnerV2.__qualname__ = "GPUModelRunner"


class FakeEngine:
    """`vllm.LLM` as Unsloth hands it out: every answer is `WRITTEN`.

    If it is interrupted, it keeps requests that can never end, as vLLM does.
    """

    def __init__(self) -> None:
        self.calls: list[dict[str, Any]] = []
        self.is_interrupted = False
        self.is_asleep = False
        self.sleep_levels: list[tuple[int, ...]] = []
        # Requests that are not answered yet, and those whose step was interrupted.
        self.waiting: dict[str, Any] = {}
        self.cut_off: set[str] = set()
        self.numbers = itertools.count()
        self.runner: Any = SimpleNamespace(execute_model_state=None)  # Model Runner V1
        self.finished: list[str] = []  # `finished_req_ids`, reported once by the next step
        self.core = SimpleNamespace(batch_queue=None)  # for one step at a time
        model_config = SimpleNamespace(max_model_len=LONGEST_ROW)
        self.llm_engine = SimpleNamespace(
            is_sleeping=lambda: self.is_asleep,
            engine_core=SimpleNamespace(engine_core=self.core),
            output_processor=SimpleNamespace(request_states=self.waiting),
            abort_request=self.abort_request,
            collective_rpc=self.call_in_worker,
            vllm_config=SimpleNamespace(model_config=model_config),
        )

    def call_in_worker(self, method: Callable[..., Any]) -> list[Any]:
        return [method(SimpleNamespace(model_runner=self.runner))]

    def abort_request(self, request_ids, internal=False):
        assert internal, "the keys of request_states are the engine's own names"
        for name in request_ids:
            del self.waiting[name]
            self.finished.append(name)

    def generate(self, prompts, sampling_params=None, **more):
        unknown = set(more) - set(GENERATE_PARAMETERS)
        assert not unknown, f"vLLM's generate has no {unknown}"
        self.is_asleep = False  # Unsloth wakes it
        self.calls.append({"prompts": prompts, "sampling_params": sampling_params, **more})
        new = {f"{next(self.numbers)}-own": params for params in sampling_params}
        self.waiting |= new
        outputs = []
        # As vLLM's `_run_engine`: until nothing is left, whoever asked for it.
        while self.waiting:
            self.start_step(new, is_first=not outputs)
            new = {}
            name = next(iter(self.waiting))
            assert name not in self.cut_off, "vLLM waits for ever for an interrupted request"
            del self.waiting[name]
            self.finished.append(name)
            outputs.append(SimpleNamespace(outputs=[SimpleNamespace(token_ids=WRITTEN)]))
        return outputs

    def start_step(self, new: dict[str, Any], *, is_first: bool) -> None:
        # As `step_with_batch_queue` asserts.
        assert not self.core.batch_queue or len(self.core.batch_queue) < 2
        if self.runner.execute_model_state is not None:
            raise RuntimeError("sample_tokens() must be called after execute_model()")
        finished = self.finished
        self.finished = []  # as `schedule` empties finished_req_ids
        if self.is_interrupted and not is_first:
            self.cut_off |= set(self.waiting)
            self.runner.execute_model_state = "computed"
            raise KeyboardInterrupt
        if isinstance(self.runner, RunnerV2):
            for name in finished:
                self.runner._remove_request(name)
            for name in new:
                self.runner.req_states.add_request(name, 2, [1, 2], 0, 12)

    def sleep(self, *levels: int) -> None:
        assert len(levels) <= len(FACTS["vllm/entrypoints/llm.py:LLM.sleep"])
        self.sleep_levels.append(levels)
        self.is_asleep = True


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A small model with an engine, as Unsloth's `patch_peft_fast_inference` leaves it."""
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SamplingParams))
    model = lora_model()
    engine = FakeEngine()
    # The first parameter is the model, which is bound.
    parameters = parameters_of("unsloth_zoo/vllm_utils.py", "load_lora")[1:]

    def load_lora(save_directory, **more):
        assert set(more) <= set(parameters)
        assert more == {"load_tensors": True}, "vLLM gets the tensors that are trained"
        return "the adapter"

    model.vllm_engine = engine
    model.fast_generate = engine.generate
    model.load_lora = load_lora
    return model


def generation_config(**changes: object) -> GenerationConfig:
    arguments = {
        "max_new_tokens": 12,
        "pad_token_id": 0,
        "eos_token_id": [2, 7],
        "disable_compile": True,
        "do_sample": False,
        **changes,
    }
    return GenerationConfig(**arguments)


def ask(model: Any, prompts: int = 1, **changes: object) -> list[list[int]]:
    return vllm.sample_with_vllm(model, [SHORT] * prompts, generation_config(**changes))


def interrupt(model: Any, prompts: int) -> None:
    """Start a sampling that ends in a Ctrl-C after its first answer."""
    model.vllm_engine.is_interrupted = True
    with pytest.raises(KeyboardInterrupt):
        ask(model, prompts)
    model.vllm_engine.is_interrupted = False


class FakeTokenizer:
    """Renders each chat as a given prompt."""

    eos_token_id = 2
    pad_token_id = 0

    def __init__(self, *prompts: list[int]) -> None:
        self.prompts = prompts

    def apply_chat_template(self, chats, tokenize: bool = True, **_: object):
        return {"input_ids": list(self.prompts)} if tokenize else str(chats)

    def decode(self, tokens, skip_special_tokens: bool) -> str:
        shown = [token for token in tokens if not (skip_special_tokens and token == 2)]
        return " ".join(map(str, shown))


def complete(model: Any, *prompts: list[int], **changes: Any) -> list[GeneratedCompletion]:
    arguments = {"max_completion_length": 8, **changes}
    return generate(model, FakeTokenizer(*prompts), [{"prompt": []}] * len(prompts), **arguments)


def records_of_the_kit(caplog: Any) -> list[logging.LogRecord]:
    """Return what the kit logged. Beside a real vLLM, torch logs its compilations too."""
    return [record for record in caplog.records if record.name.startswith("grpo_nb.")]


# What the engine is given


def test_engine_gets_token_ids_and_the_current_adapter(model: Any) -> None:
    assert ask(model, 2) == [WRITTEN, WRITTEN]
    (call,) = model.vllm_engine.calls
    assert call["lora_request"] == "the adapter"
    # A text would be tokenized again.
    assert call["prompts"][0] == {"prompt_token_ids": SHORT}
    assert "prompt_token_ids" in FACTS["vllm/inputs/llm.py:TokensPrompt"]


def test_engine_gets_no_adapter_if_it_is_off(model: Any) -> None:
    with model.disable_adapter():
        ask(model)
    assert model.vllm_engine.calls[0]["lora_request"] is None


def test_sampled_rows_have_their_own_seeds_from_torchs_state(model: Any) -> None:
    seeds = []
    for _ in range(2):
        torch.manual_seed(5)
        ask(model, 4, do_sample=True, top_k=0)
        seeds.append([params.seed for params in model.vllm_engine.calls[-1]["sampling_params"]])
    assert seeds[0] == seeds[1]
    assert len(set(seeds[0])) == 4, "rows with one seed would be one completion"


def test_sampling_arguments_are_those_of_training() -> None:
    """For the same settings TRL uses these (trl/generation/vllm_generation.py)."""
    sampled = {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1}
    arguments = vllm_sampling_arguments(generation_config(do_sample=True, top_k=0, **sampled))
    # transformers' top_k=0 is vLLM's -1.
    expected = {**sampled, "max_tokens": 12, "top_k": -1, "stop_token_ids": [2, 7]}
    assert arguments.items() >= expected.items()


def test_sampling_arguments_keep_top_k() -> None:
    assert vllm_sampling_arguments(generation_config(do_sample=True, top_k=40))["top_k"] == 40


def test_sampling_arguments_decode_greedily_at_temperature_0() -> None:
    arguments = vllm_sampling_arguments(generation_config())
    assert arguments["temperature"] == 0.0
    assert arguments["n"] == 1


# `generate` with an engine


def test_generate_asks_the_engine_once(model: Any) -> None:
    done: list[int] = []
    answers = complete(model, *[SHORT] * 5, progress=done.append)
    assert len(model.vllm_engine.calls) == 1
    assert done == [5]
    assert answers[0] == GeneratedCompletion("5 9", False, tuple(WRITTEN))


def test_generate_leaves_an_engine_awake_that_was_awake(model: Any) -> None:
    complete(model, SHORT)
    assert model.vllm_engine.sleep_levels == []


def test_generate_puts_an_engine_back_to_sleep(model: Any) -> None:
    model.vllm_engine.is_asleep = True
    complete(model, SHORT)
    assert model.vllm_engine.sleep_levels == [(1,)]
    assert model.vllm_engine.is_asleep


def test_generate_puts_an_engine_back_to_sleep_after_an_error(model: Any) -> None:
    model.vllm_engine.is_asleep = True
    model.fast_generate = None
    with pytest.raises(TypeError):
        complete(model, SHORT)
    assert model.vllm_engine.is_asleep


def test_prompts_that_do_not_fit_are_completed_without_vllm(model: Any, caplog: Any) -> None:
    done: list[int] = []
    answers = complete(model, SHORT, LONG, SHORT, progress=done.append)
    assert model.vllm_engine.calls == []
    assert [answer.ids == tuple(WRITTEN) for answer in answers] == [False] * 3
    assert done == [3]
    (record,) = records_of_the_kit(caplog)
    assert record.levelno == logging.WARNING
    assert f"a completion have {len(LONG) + 8} tokens" in record.getMessage()
    assert f"max_completion_length of at least {len(LONG) + 8}" in record.getMessage()


def test_long_prompt_gets_the_answer_of_the_path_without_vllm(model: Any) -> None:
    mixed = complete(model, SHORT, LONG, SHORT)
    model.vllm_engine = None
    assert complete(model, SHORT, LONG, SHORT) == mixed


def test_engine_stays_asleep_while_the_other_path_runs(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Awake, its cache holds the memory that the other path needs."""
    engine = model.vllm_engine
    engine.is_asleep = True
    was_asleep = []
    original = CpuEngine.sample

    def sample(*args: Any, **kwargs: Any) -> list[list[int]]:
        was_asleep.append(engine.is_asleep)
        return original(*args, **kwargs)

    monkeypatch.setattr(CpuEngine, "sample", sample)
    complete(model, SHORT, LONG)
    assert was_asleep == [True]


@pytest.mark.parametrize(
    ("tokens", "calls"),
    [pytest.param(LONGEST_ROW, 1, id="fits"), pytest.param(LONGEST_ROW + 1, 0, id="too long")],
)
def test_prompt_that_just_fits_stays_with_vllm(
    model: Any, caplog: Any, tokens: int, calls: int
) -> None:
    """vLLM reports a completion that it truncated itself as if it had reached its own limit."""
    complete(model, SHORT, max_completion_length=tokens - len(SHORT))
    assert len(model.vllm_engine.calls) == calls
    assert len(records_of_the_kit(caplog)) == 1 - calls


def test_model_that_vllm_cannot_sample_is_warned_of(model: Any, caplog: Any) -> None:
    model.merge_adapter()
    complete(model, SHORT, SHORT)
    assert model.vllm_engine.calls == []
    assert "Completions are generated without vLLM" in caplog.text
    assert "its adapter is merged" in caplog.text


def test_model_without_an_engine_is_not_warned_of(caplog: Any) -> None:
    complete(lora_model(), SHORT, LONG)
    assert records_of_the_kit(caplog) == []


def test_rollout_obstacle_names_another_active_adapter(model: Any) -> None:
    model.add_adapter("other", model.peft_config["default"])
    model.set_adapter("other")
    assert "other" in vllm_engine_obstacle(model)
    model.set_adapter("default")
    assert vllm_engine_obstacle(model) is None


def test_rollout_obstacle_names_a_model_without_its_wrapper(model: Any) -> None:
    """Inside of PEFT's wrapper, `active_adapters` is a method of transformers."""
    inner = model.get_base_model()
    inner.vllm_engine = model.vllm_engine
    assert "the model that gn.load_model returned" in vllm_engine_obstacle(inner)


def test_rollout_obstacle_names_a_merged_adapter(model: Any) -> None:
    model.merge_adapter()
    assert "merged" in vllm_engine_obstacle(model)


# Interrupts. On a real engine: test_real_vllm.py


class FailedStep(Future):
    """A step of the engine that was under way at an interrupt."""

    def __init__(self, waited: list[Future]) -> None:
        super().__init__()
        self.waited = waited

    def result(self, timeout=None):
        self.waited.append(self)
        raise RuntimeError("the step failed")


def test_sampling_after_an_interrupt_drops_its_requests(model: Any) -> None:
    interrupt(model, 3)
    assert len(model.vllm_engine.waiting) == 2, "nothing was left, so nothing was tried"
    assert ask(model) == [WRITTEN]


def test_sampling_after_an_interrupt_waits_for_steps_under_way(model: Any) -> None:
    waited: list[Future] = []
    older = FailedStep(waited)
    newer = FailedStep(waited)
    steps = [(newer, "scheduled", newer), (older, "scheduled", older)]
    interrupt(model, 3)
    model.vllm_engine.core.batch_queue = collections.deque(steps, maxlen=2)
    assert ask(model) == [WRITTEN]
    assert waited == [older, newer]
    assert not model.vllm_engine.core.batch_queue


def start_training(model: Any) -> None:
    """Build a trainer as far as it concerns sampling."""
    choice = SimpleNamespace(can_use_cpu_engine=False)
    with pytest.raises(AttributeError, match="settings"):  # there are none
        build_trainer(SimpleNamespace(model=model, dtype="float32", engine_choice=choice))


def test_training_after_an_interrupt_drops_its_requests(model: Any) -> None:
    model.vllm_engine.waiting["left"] = ()
    start_training(model)
    assert not model.vllm_engine.waiting


def test_interrupts_leave_all_slots_of_runner_v2_free(model: Any) -> None:
    """The interrupted step would have reported the finished requests; their slots stay taken."""
    model.vllm_engine.runner = RunnerV2(slots=3)
    for _ in range(4):  # more often than there are slots
        interrupt(model, 2)
        assert ask(model) == [WRITTEN]


RUNNER_FACTS = "vllm/v1/worker/gpu/model_runner.py:GPUModelRunner"
STATE_FACTS = "vllm/v1/worker/gpu/states.py:RequestState"


@pytest.mark.parametrize(
    ("function", "facts"),
    [
        pytest.param(
            RunnerV2._remove_request, f"{RUNNER_FACTS}._remove_request", id="_remove_request"
        ),
        pytest.param(RequestState.add_request, f"{STATE_FACTS}.add_request", id="add_request"),
        pytest.param(
            RequestState.remove_request, f"{STATE_FACTS}.remove_request", id="remove_request"
        ),
    ],
)
def test_stand_in_of_runner_v2_has_vllms_signatures(function: Any, facts: str) -> None:
    assert list(inspect.signature(function).parameters)[1:] == FACTS[facts]


def test_stand_in_of_runner_v2_has_vllms_attributes() -> None:
    assert list(vars(RequestState(1))) == FACTS[f"{STATE_FACTS}.__init__ sets"]


def test_model_runner_class_shows_v1_and_v2(model: Any) -> None:
    assert model_runner_class(model.vllm_engine) == "types.SimpleNamespace (V1)"
    model.vllm_engine.runner = RunnerV2(slots=1)
    expected = "vllm.v1.worker.gpu.model_runner.GPUModelRunner (V2)"
    assert model_runner_class(model.vllm_engine) == expected


# Without an engine


@pytest.mark.parametrize(
    "is_training", [pytest.param(True, id="training"), pytest.param(False, id="evaluation")]
)
def test_stock_sampling_puts_unsloths_modes_back(is_training: bool) -> None:
    """On a GPU `generate` clears checkpointing on every module; Unsloth's functions restore it."""
    model = lora_model()
    layer = model.get_base_model().model.layers[0]

    def for_inference() -> None:
        layer.gradient_checkpointing = False
        model._flag_for_generation = True
        model.eval()

    def for_training(use_gradient_checkpointing: Any) -> None:
        layer.gradient_checkpointing = use_gradient_checkpointing
        del model._flag_for_generation
        model.train()

    model.for_inference = for_inference
    model.for_training = for_training
    model.train(is_training)
    layer.gradient_checkpointing = "unsloth"
    sample_with_transformers(model, [SHORT], generation_config())
    assert model.training == is_training
    assert layer.gradient_checkpointing == "unsloth"
    assert not hasattr(model, "_flag_for_generation")


def test_stock_sampling_stays_in_unsloths_inference_mode() -> None:
    """The user called Unsloth's `for_inference` before."""
    model = lora_model().eval()
    model._flag_for_generation = True
    model.for_inference = model.eval
    model.for_training = None
    sample_with_transformers(model, [SHORT], generation_config())
    assert model._flag_for_generation


def test_stock_sampling_keeps_frozen_parts_in_their_mode() -> None:
    model = lora_model().train()
    frozen = model.get_base_model().model.layers[0].eval()
    sample_with_transformers(model, [SHORT], generation_config())
    assert model.training
    assert not frozen.training


def test_stock_sampling_keeps_frozen_parts_with_unsloths_modes() -> None:
    """Unsloth's `for_training` switches every module to training."""
    model = lora_model().train()
    frozen = model.get_base_model().model.layers[0].eval()
    model.for_inference = model.eval
    model.for_training = lambda use_gradient_checkpointing: model.train()
    sample_with_transformers(model, [SHORT], generation_config())
    assert model.training
    assert not frozen.training


#: As Qwen2.5's generation_config has them. Training samples without them (TRL sets 1.0), and vLLM
#: does not read them.
CHECKPOINT_CONFIG = {
    "repetition_penalty": 1.3,
    "temperature": 0.7,
    "top_p": 0.5,
    "top_k": 5,
    "do_sample": True,
}


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_generate_ignores_the_checkpoints_sampling_config(
    temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = lora_model(tied=False)
    answers = []
    for own_config in ({}, CHECKPOINT_CONFIG):
        model.generation_config = GenerationConfig(**own_config)
        # The kit's own engine, and `model.generate` as on a GPU without vLLM.
        for obstacle in (None, "asked for"):
            monkeypatch.setattr(
                sampling.CpuEngine, "model_obstacle", lambda *_, reason=obstacle: reason
            )
            torch.manual_seed(3)
            prompts = [PROMPTS[index] for index in (0, 1, 2, 0)]
            made = complete(model, *prompts, max_completion_length=16, temperature=temperature)
            answers.append([completion.ids for completion in made])
    assert answers == [answers[0]] * 4
