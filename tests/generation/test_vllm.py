"""Sampling through vLLM, with an engine that has vLLM's signatures: what it is given, and that nothing is left in it.

What a real engine writes stands in test_real_vllm.py.
"""

import collections
import inspect
import itertools
import logging
import sys
import types
from concurrent.futures import Future

import pytest
import torch
import unsloth_zoo.vllm_utils  # noqa: F401 before there is a stand-in, for which it would look
from transformers import GenerationConfig

from grpo_nb.cpu import sampler
from grpo_nb.cpu.engine import CpuEngine
from grpo_nb.generation import sampling, vllm
from grpo_nb.generation.choice import choose_engine
from grpo_nb.generation.vllm import sampling_arguments, vllm_rollout_obstacle
from grpo_nb.training import prepare
from grpo_nb.training.prepare import build_trainer
from tests.support.signatures import FACTS, parameters_of
from tests.support.small_models import PROMPTS, lora_model

GENERATE = FACTS["vllm/entrypoints/llm.py:LLM.generate"]
WRITTEN = [5, 9, 2]


class SamplingParams:
    """Takes what vLLM's takes."""

    def __init__(self, **values: object) -> None:
        unknown = set(values) - set(FACTS["vllm/sampling_params.py:SamplingParams"])
        assert not unknown, f"vLLM has no {unknown}"
        self.__dict__.update(values)


class RequestState:
    """The slots of vLLM's Model Runner V2: one for each request, of a fixed number."""

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
    """What a GPU runs, as far as it keeps requests (vllm/v1/worker/gpu/model_runner.py)."""

    def __init__(self, slots: int) -> None:
        self.execute_model_state = None
        self.req_states = RequestState(slots)

    def _remove_request(self, req_id):
        return self.req_states.remove_request(req_id) is not None


RunnerV2.__module__, RunnerV2.__qualname__ = "vllm.v1.worker.gpu.model_runner", "GPUModelRunner"


class FakeEngine:
    """`vllm.LLM` as Unsloth hands it out: it answers with the same tokens, and loses its way when it is interrupted."""

    def __init__(self) -> None:
        self.calls, self.sleeping, self.slept = [], False, []
        self.waiting: dict[str, object] = {}
        self.cut_off: set[str] = set()
        self.numbers = itertools.count()
        self.is_interrupted = False
        self.runner = types.SimpleNamespace(execute_model_state=None)  # Model Runner V1
        self.finished: list[str] = []  # `finished_req_ids`, reported once by the next step
        self.core = types.SimpleNamespace(
            batch_queue=None
        )  # of an engine that has one step under way
        self.llm_engine = types.SimpleNamespace(
            is_sleeping=lambda: self.sleeping,
            engine_core=types.SimpleNamespace(engine_core=self.core),
            output_processor=types.SimpleNamespace(request_states=self.waiting),
            abort_request=self.abort_request,
            collective_rpc=lambda method: [method(types.SimpleNamespace(model_runner=self.runner))],
            vllm_config=types.SimpleNamespace(model_config=types.SimpleNamespace(max_model_len=64)),
        )

    def abort_request(self, request_ids, internal=False):
        assert internal, "the keys of request_states are the engine's own names"
        for name in request_ids:
            del self.waiting[name]
            self.finished.append(name)

    def generate(self, prompts, sampling_params=None, **more):
        assert set(more) <= set(GENERATE), f"vLLM's generate has no {set(more) - set(GENERATE)}"
        self.sleeping = False  # Unsloth wakes it
        self.calls.append({"prompts": prompts, "sampling_params": sampling_params, **more})
        new = {f"{next(self.numbers)}-own": one for one in sampling_params[: len(prompts)]}
        self.waiting |= new
        outputs = []
        while self.waiting:  # as vLLM's _run_engine: until nothing is left, whoever asked for it
            assert not self.core.batch_queue or len(self.core.batch_queue) < 2, (
                "as step_with_batch_queue asserts"
            )
            if self.runner.execute_model_state is not None:
                raise RuntimeError("sample_tokens() must be called after execute_model()")
            finished, self.finished = self.finished, []  # as `schedule` empties finished_req_ids
            if self.is_interrupted and outputs:
                self.cut_off |= set(self.waiting)
                self.runner.execute_model_state = "computed"
                raise KeyboardInterrupt
            if isinstance(self.runner, RunnerV2):
                for name in finished:
                    self.runner._remove_request(name)
                for name in new:
                    self.runner.req_states.add_request(name, 2, [1, 2], 0, 12)
            new = {}
            name = next(iter(self.waiting))
            assert name not in self.cut_off, (
                "vLLM waits for ever for a request whose step was cut off"
            )
            told = [{token: types.SimpleNamespace(logprob=-float(token))} for token in WRITTEN]
            self.finished.append(name)
            drawn = told if getattr(self.waiting.pop(name), "logprobs", None) == 0 else None
            outputs.append(
                types.SimpleNamespace(
                    outputs=[types.SimpleNamespace(token_ids=WRITTEN, logprobs=drawn)]
                )
            )
        return outputs

    def sleep(self, *levels: int) -> None:
        assert len(levels) <= len(FACTS["vllm/entrypoints/llm.py:LLM.sleep"])
        self.slept.append(levels)
        self.sleeping = True


@pytest.fixture
def with_engine(monkeypatch: pytest.MonkeyPatch):
    """A small model as Unsloth's `patch_peft_fast_inference` leaves it."""
    monkeypatch.setitem(sys.modules, "vllm", types.SimpleNamespace(SamplingParams=SamplingParams))
    model, engine = lora_model(), FakeEngine()
    parameters = parameters_of("unsloth_zoo/vllm_utils.py", "load_lora")[1:]  # the model is bound

    def load_lora(save_directory, **more):
        assert set(more) <= set(parameters) and more == {"load_tensors": True}, (
            "the tensors that are trained"
        )
        return "the adapter"

    model.vllm_engine, model.fast_generate, model.load_lora = engine, engine.generate, load_lora
    return model


def config(**values: object) -> GenerationConfig:
    own = {"max_new_tokens": 12, "pad_token_id": 0, "eos_token_id": [2, 7], "disable_compile": True}
    return GenerationConfig(**{**own, **values})


def ask(model, prompts: int = 1, **values: object):
    return vllm.sample_with_vllm(
        model, [PROMPTS[0]] * prompts, config(**{"do_sample": False, **values})
    )


def test_the_current_adapter_goes_with_the_request_and_none_where_it_is_off(with_engine) -> None:
    assert ask(with_engine, 2).tokens == [WRITTEN] * 2
    with with_engine.disable_adapter():
        ask(with_engine)
    first, second = with_engine.vllm_engine.calls
    assert first["lora_request"] == "the adapter" and second["lora_request"] is None
    assert first["prompts"][0] == {"prompt_token_ids": PROMPTS[0]}, (
        "a text would be tokenized again"
    )
    assert "prompt_token_ids" in FACTS["vllm/inputs/llm.py:TokensPrompt"]


def test_drawing_has_a_seed_for_each_row_out_of_torchs_state_and_gives_log_probabilities(
    with_engine,
) -> None:
    for _ in range(2):
        torch.manual_seed(5)
        drawn = ask(with_engine, 4, do_sample=True, top_k=0)
    assert drawn.log_probs == [[-5.0, -9.0, -2.0]] * 4
    first, again = (
        [params.seed for params in call["sampling_params"]]
        for call in with_engine.vllm_engine.calls
    )
    assert first == again and len(set(first)) == 4, (
        "one seed for all rows makes them one completion"
    )


def test_sampling_parameters_are_those_of_training() -> None:
    """TRL's own, for the same settings (trl/generation/vllm_generation.py), so that what is shown is what is trained."""
    drawn = {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "repetition_penalty": 1.1}
    got = sampling_arguments(config(do_sample=True, top_k=0, **drawn))
    # transformers' 0 is vLLM's -1.
    assert got.items() >= (drawn | {"max_tokens": 12, "top_k": -1}).items() and got[
        "stop_token_ids"
    ] == [2, 7]
    assert sampling_arguments(config(do_sample=True, top_k=40))["top_k"] == 40
    assert (
        sampling_arguments(config(do_sample=False)).items() >= {"temperature": 0.0, "n": 1}.items()
    )
    for other in ({"typical_p": 0.5}, {"no_repeat_ngram_size": 3}):
        with pytest.raises(ValueError, match=f"vLLM does not sample with {next(iter(other))}"):
            sampling_arguments(config(do_sample=True, **other))


class FakeTokenizer:
    eos_token_id, pad_token_id = 2, 0

    def apply_chat_template(self, chats, **_: object):
        return {"input_ids": [PROMPTS[i % len(PROMPTS)] for i in range(len(chats))]}

    def decode(self, tokens, skip_special_tokens: bool) -> str:
        return " ".join(str(t) for t in tokens if not (skip_special_tokens and t == 2))


def test_generate_asks_once_and_an_engine_that_slept_sleeps_afterwards(with_engine) -> None:
    engine, tokenizer, done = with_engine.vllm_engine, FakeTokenizer(), []
    answers = sampling.generate(
        with_engine, tokenizer, [[]] * 5, max_completion_length=8, progress=done.append
    )
    assert len(engine.calls) == 1 and done == [5] and engine.slept == []
    assert answers[0] == sampling.Completion("5 9", 3, False, tuple(WRITTEN))
    engine.sleeping = True
    sampling.generate(with_engine, tokenizer, [[]], max_completion_length=4)
    assert engine.slept == [(1,)] and engine.sleeping
    with_engine.fast_generate = None
    with pytest.raises(TypeError):
        sampling.generate(with_engine, tokenizer, [[]], max_completion_length=4)
    assert engine.sleeping


def build_a_trainer(model) -> None:
    """As far as sampling goes: it would sample from the same engine."""
    with pytest.raises(AttributeError):  # there are no settings
        build_trainer(types.SimpleNamespace(model=model, engine=choose_engine(model)))


def test_training_and_sampling_on_a_cpu_watch_for_other_programs(monkeypatch) -> None:
    started: list[str] = []
    monkeypatch.setattr(prepare, "yield_cores", lambda: started.append("training"))
    monkeypatch.setattr(sampler, "yield_cores", lambda: started.append("sampling"))
    model = lora_model()
    build_a_trainer(model)
    CpuEngine(model).sample([PROMPTS[0]], config(do_sample=False))
    assert started == ["training", "sampling"]


def test_an_interrupted_sampling_leaves_nothing_for_the_next(with_engine) -> None:
    """And steps under way are waited for and dropped. With vLLM's own names; on the engine itself in test_real_vllm.py."""
    engine, waited = with_engine.vllm_engine, []

    class Step(Future):
        def result(self, timeout=None):
            waited.append(self)
            raise RuntimeError("the step failed")

    older, newer = Step(), Step()
    for queue in (
        None,
        collections.deque([(newer, "scheduled", newer), (older, "scheduled", older)], maxlen=2),
    ):
        engine.is_interrupted = True
        with pytest.raises(KeyboardInterrupt):
            ask(with_engine, 3)
        engine.is_interrupted = False
        assert len(engine.waiting) == 2, "or the test shows nothing"
        engine.core.batch_queue = queue
        assert ask(with_engine).tokens == [WRITTEN]
    assert waited == [older, newer] and not engine.core.batch_queue
    engine.waiting["left"] = ()
    build_a_trainer(with_engine)
    assert not engine.waiting


def test_stand_in_of_runner_v2_has_vllms_signatures() -> None:
    states = "vllm/v1/worker/gpu/states.py:RequestState"
    remove = FACTS["vllm/v1/worker/gpu/model_runner.py:GPUModelRunner._remove_request"]
    for function, parameters in (
        (RunnerV2._remove_request, remove),
        (RequestState.add_request, FACTS[f"{states}.add_request"]),
        (RequestState.remove_request, FACTS[f"{states}.remove_request"]),
    ):
        assert list(inspect.signature(function).parameters)[1:] == parameters
    assert list(vars(RequestState(1))) == FACTS[f"{states}.__init__ sets"]


def test_interrupts_leave_all_slots_of_runner_v2_free(with_engine) -> None:
    """A step that is cut off takes with it which requests have finished; their slots stay taken."""
    engine = with_engine.vllm_engine
    engine.runner = RunnerV2(slots=3)
    for _ in range(4):  # more often than there are slots
        engine.is_interrupted = True
        with pytest.raises(KeyboardInterrupt):
            ask(with_engine, 2)
        engine.is_interrupted = False
        assert ask(with_engine).tokens == [WRITTEN]


def test_model_runner_name_tells_v1_from_v2(with_engine) -> None:
    assert vllm.model_runner_name(with_engine) == "types.SimpleNamespace (V1)"
    with_engine.vllm_engine.runner = RunnerV2(slots=1)
    expected = "vllm.v1.worker.gpu.model_runner.GPUModelRunner (V2)"
    assert vllm.model_runner_name(with_engine) == expected


def test_models_state_that_vllm_does_not_sample_is_an_obstacle(with_engine) -> None:
    with_engine.add_adapter("other", with_engine.peft_config["default"])
    with_engine.set_adapter("other")
    assert "other" in vllm_rollout_obstacle(with_engine)
    with_engine.set_adapter("default")
    assert vllm_rollout_obstacle(with_engine) is None
    with_engine.merge_adapter()
    assert "merged" in vllm_rollout_obstacle(with_engine)
    assert "without vLLM" in vllm_rollout_obstacle(lora_model())


LONG, SHORT = PROMPTS[0] * 20, PROMPTS[0]  # the stand-in was started for 64 tokens


class OfGivenPrompts(FakeTokenizer):
    def __init__(self, *prompts: list[int]) -> None:
        self.prompts = prompts

    def apply_chat_template(self, chats, **_: object):
        return {"input_ids": list(self.prompts)}


def generated(model, *prompts: list[int], **more: object) -> list[sampling.Completion]:
    asked = {"max_completion_length": 8, **more}
    return sampling.generate(model, OfGivenPrompts(*prompts), [[]] * len(prompts), **asked)


def test_only_prompts_beyond_the_room_leave_vllm(with_engine, caplog) -> None:
    done: list[int] = []
    own = with_engine.vllm_engine
    answers = generated(with_engine, SHORT, LONG, SHORT, progress=done.append)
    assert [len(call["prompts"]) for call in own.calls] == [2]
    assert [answer.ids == tuple(WRITTEN) for answer in answers] == [True, False, True]
    assert done == [2, 3]
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert record.getMessage().startswith("1 of 3 prompts are completed without vLLM")
    assert f"{len(LONG)} tokens" in record.getMessage()


def test_long_prompt_gets_the_answer_of_the_path_without_vllm(with_engine) -> None:
    mixed = generated(with_engine, SHORT, LONG, SHORT)[1]
    with_engine.vllm_engine = None
    assert generated(with_engine, LONG) == [mixed]


def test_engine_sleeps_again_before_the_long_prompts(with_engine, monkeypatch) -> None:
    """Awake, its cache holds the memory that the other path needs."""
    engine, slept = with_engine.vllm_engine, []
    engine.sleeping = True
    own = CpuEngine.sample
    monkeypatch.setattr(
        CpuEngine, "sample", lambda *a, **k: slept.append(engine.sleeping) or own(*a, **k)
    )
    generated(with_engine, SHORT, LONG)
    assert slept == [True]


@pytest.mark.parametrize(("length", "calls"), [(64, 1), (65, 0)])
def test_prompt_that_just_fits_stays_with_vllm(with_engine, caplog, length, calls) -> None:
    """vLLM reports a completion that it truncated itself as if it had reached its own limit."""
    generated(with_engine, SHORT, max_completion_length=length - len(SHORT))
    assert len(with_engine.vllm_engine.calls) == calls
    assert len(caplog.records) == 1 - calls


def test_model_that_vllm_cannot_sample_is_reported(with_engine, caplog) -> None:
    with_engine.merge_adapter()
    generated(with_engine, SHORT, SHORT)
    assert with_engine.vllm_engine.calls == []
    assert "All 2 prompts" in caplog.text and "its adapter is merged" in caplog.text


def test_model_without_an_engine_is_not_reported(caplog) -> None:
    generated(lora_model(), SHORT, LONG)
    assert caplog.records == []


def test_unsloths_modes_are_put_back_after_its_own_generation() -> None:
    """On a GPU `generate` clears checkpointing on every module; here by Unsloth's own pair of functions, as it binds them."""
    model = lora_model().train()
    layer = model.get_base_model().model.layers[0]
    layer.gradient_checkpointing = "unsloth"

    def for_inference():
        layer.gradient_checkpointing = False
        model.eval()

    def for_training(use_gradient_checkpointing):
        layer.gradient_checkpointing = use_gradient_checkpointing
        model.train()

    model.for_inference, model.for_training = for_inference, for_training
    for is_training, checkpointing in ((True, "unsloth"), (False, False)):
        model.train(is_training)
        sampling._stock_sample(model, [PROMPTS[0]], config(do_sample=False))
        assert (model.training, layer.gradient_checkpointing) == (is_training, checkpointing)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_what_a_checkpoint_likes_to_draw_with_is_not_what_it_is_asked_with(
    temperature: float, monkeypatch
) -> None:
    """Qwen2.5's generation_config has these. Training draws without them (TRL says 1.0), and vLLM does not look there."""
    model, tokenizer, answers = lora_model(tied=False), FakeTokenizer(), []
    for own in (
        {},
        {
            "repetition_penalty": 1.3,
            "temperature": 0.7,
            "top_p": 0.5,
            "top_k": 5,
            "do_sample": True,
        },
    ):
        model.generation_config = GenerationConfig(**own)
        for is_stock in (
            False,
            True,
        ):  # the kit's own loop, and `model.generate` as on a GPU without vLLM
            why = "asked for" if is_stock else None
            monkeypatch.setattr(sampling.CpuEngine, "obstacle", lambda *_, told=why: told)
            torch.manual_seed(3)
            asked = {"max_completion_length": 16, "temperature": temperature}
            answers.append([c.ids for c in sampling.generate(model, tokenizer, [[]] * 4, **asked)])
    assert answers[0] == answers[1] == answers[2] == answers[3]
