"""The GRPO trainer that a GPU would run, which Unsloth writes as source text: every hook of the kit is there, with its meaning.

By its syntax, and by running it on a CPU in another process. What the kit relies on, and where: `grpo_nb.training.recorder`
and `dry_run` (`_logs`), `checkpointing` (`_buffered_inputs`, `_step`), `grpo_nb.rewards.calls` (how
rewards are called), `grpo_nb.generation.vllm` (which adapter is sampled with), `grpo_nb.runs.rows` (KL).
"""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import grpo_nb as gn
from grpo_nb.settings.effective import SHARED_SCORING, requested_arguments
from grpo_nb.settings.presets import GPUS
from grpo_nb.training import trainer_state
from tests.support import first_losses
from tests.support.shared import made_once
from tests.support.signatures import text_of
from tests.support.written_trainer import trained_elsewhere

# Importing what patches trl on a GPU writes the trainers, wherever it runs; where to is said by the environment.
_WRITE = "import unsloth, unsloth.models.rl"
NAME = "UnslothGRPOTrainer"
KIT = Path(gn.__file__).parent / "training"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> ast.Module:
    """What Unsloth writes."""

    def write(folder: Path) -> None:
        environment = os.environ | {"UNSLOTH_COMPILE_LOCATION": str(folder / "written"), "HF_HUB_OFFLINE": "1"}
        subprocess.run([sys.executable, "-c", _WRITE], check=True, cwd=folder, env=environment, capture_output=True)

    folder = made_once(tmp_path_factory, "written", write)
    return ast.parse((folder / "written" / f"{NAME}.py").read_text())


@pytest.fixture(scope="module")
def trainer(written) -> ast.ClassDef:
    """The class that it made of TRL's; another, which inherits from it, completes the arguments."""
    return class_of(written, f"_{NAME}")


def class_of(tree: ast.AST, name: str) -> ast.ClassDef:
    return next(node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name)


def method(trainer: ast.ClassDef, name: str) -> ast.FunctionDef:
    return next(node for node in trainer.body if isinstance(node, ast.FunctionDef) and node.name == name)


def function(tree: ast.AST, name: str) -> ast.FunctionDef:
    return next(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef) and node.name == name)


def calls(tree: ast.AST, function: str) -> Iterator[ast.Call]:
    """The calls of a function in the order of the text, by how it is written."""
    found = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and ast.unparse(node.func) == function]
    yield from sorted(found, key=lambda call: call.lineno)


def assigned(tree: ast.AST, target: str) -> list[str]:
    """What is assigned to a target."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Assign)]
    return [ast.unparse(node.value) for node in nodes for one in node.targets if ast.unparse(one) == target]


def test_the_log_of_a_generation_batch_is_filled_as_the_record_reads_it(trainer) -> None:
    """One column a reward by its name, unweighted scores, and advantages of all processes, all in the order of the prompts."""
    (made,) = assigned(method(trainer, "__init__"), "self._logs")
    kept = ast.parse(made, mode="eval").body
    columns = dict(zip((key.value for key in kept.keys), kept.values, strict=True))
    for name in ("prompt", "completion", "advantages"):
        assert ast.unparse(columns[name]) == "deque(maxlen=args.generation_batch_size)", (
            "the last generation batch alone"
        )
    scored = method(trainer, "_generate_and_score_completions")
    for target, value in {
        "self._logs['prompt'].extend": "gather_object(prompts)",
        "self._logs['completion'].extend": "gather_object(completions)",
        "self._logs['rewards'][name].extend": "rewards_per_func[:, i].tolist()",
        "self._logs['advantages'].extend": "all_process_advantages.tolist()",
    }.items():
        assert [ast.unparse(call.args[0]) for call in calls(scored, target)] == [value]
    # Weights come in afterwards, for the total.
    rewards = assigned(scored, "rewards")
    assert any("rewards_per_func * self.reward_weights" in value and "nansum(dim=1)" in value for value in rewards)
    assert "self.reward_func_names" in ast.unparse(scored)


def test_completions_are_buffered_and_counted_as_a_checkpoint_keeps_them(trainer) -> None:
    prepared = method(trainer, "_prepare_inputs")
    assert assigned(prepared, "generate_every") == ["self.args.steps_per_generation * self.num_iterations"]
    when = "self._step % generate_every == 0 or self._buffered_inputs is None"
    assert when in [ast.unparse(node.test) for node in ast.walk(prepared) if isinstance(node, ast.If)]
    assert "self._buffered_inputs[self._step % self.args.steps_per_generation]" in assigned(prepared, "inputs")
    assert len(assigned(prepared, "self._buffered_inputs")) == 1, (
        "a list of batches, which a checkpoint within one keeps"
    )
    assert assigned(method(trainer, "__init__"), "self._step") == ["0"]
    step = method(trainer, "training_step")
    (added,) = [
        node for node in ast.walk(step) if isinstance(node, ast.AugAssign) and ast.unparse(node.target) == "self._step"
    ]
    assert ast.unparse(added.value) == "1", "a checkpoint keeps the number"
    # The numbers of its loop that the checkpoint keeps are attributes of this trainer or of those under it.
    below = text_of("transformers/trainer.py")
    written = ast.unparse(trainer)
    for name in trainer_state._NUMBERS:
        assert f"self.{name}" in written + below, name


def test_what_the_kit_replaces_or_calls_of_trls_trainer_is_in_the_written_one(trainer) -> None:
    """It does not inherit from TRL's: what it left out would be missing."""
    methods = {node.name for node in trainer.body if isinstance(node, ast.FunctionDef)}
    of_trl = class_of(ast.parse(text_of("trl/trainer/grpo_trainer.py")), "GRPOTrainer")
    trls = {node.name for node in of_trl.body if isinstance(node, ast.FunctionDef)}
    used: set[str] = set()
    for file in KIT.glob("*.py"):
        tree = ast.parse(file.read_text())
        used |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        used |= {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    used &= trls
    assert {"_prepare_inputs", "training_step", "_save_checkpoint"} <= used
    assert used <= methods, used - methods


def test_rewards_are_called_as_the_kit_calls_them(trainer) -> None:
    scored = method(trainer, "_calculate_rewards")
    called = [one for one in calls(scored, "reward_func") if any(k.arg == "completions" for k in one.keywords)]
    assert len(called) == 1 and called[0].args == []
    assert {k.arg: ast.unparse(k.value) for k in called[0].keywords} == {
        "prompts": "prompts", "completions": "completions", "completion_ids": "completion_ids_list", None: "reward_kwargs",
    }  # fmt: skip
    for name in ("trainer_state", "log_extra", "log_metric"):
        assert len(assigned(scored, f"reward_kwargs['{name}']")) == 1
    none_is_nan = "[reward if reward is not None else torch.nan for reward in output_reward_func]"
    assert none_is_nan in assigned(scored, "output_reward_func"), "what was not judged is not 0"


def test_sampling_goes_to_the_models_engine_with_the_adapter_as_it_is(trainer) -> None:
    """It asks TRL's VLLMGeneration, whose engine and adapter Unsloth replaces by those of the model."""
    turn = method(trainer, "_generate_single_turn")
    (asked,) = calls(turn, "self.vllm_generation.generate")
    assert {k.arg for k in asked.keywords} >= {"prompts", "num_generations"}
    shared = "not getattr(getattr(self.vllm_generation, 'llm', None), 'shared_weights', False)"
    guards = [node for node in ast.walk(turn) if isinstance(node, ast.If) and ast.unparse(node.test) == shared]
    assert len(guards) == 1 and list(calls(guards[0], "self.vllm_generation.sync_weights"))
    assert len(list(calls(turn, "self.vllm_generation.sync_weights"))) == 1, "weights that are shared are never sent"
    patch = text_of("unsloth/models/rl_replacements.py")
    for line in (
        "self.llm = model.vllm_engine",
        "self._unsloth_load_lora = model.load_lora",
        'kwargs["lora_request"] = load_lora(lora_name, load_tensors = True)',
    ):
        assert line in patch


def test_kl_is_measured_to_the_base_model_and_only_with_beta(trainer) -> None:
    scored = method(trainer, "_generate_and_score_completions")
    with_beta = [
        node for node in ast.walk(scored) if isinstance(node, ast.If) and ast.unparse(node.test) == "self.beta != 0.0"
    ]
    assert len(with_beta) == 1 and ast.unparse(with_beta[0].orelse[0]) == "ref_per_token_logps = None"
    (used,) = calls(with_beta[0], "use_adapter")
    assert ast.unparse(used.keywords[0].value) == "'ref' if 'ref' in model.peft_config else None"
    assert "add_adapter('ref'" not in ast.unparse(trainer), (
        "Unsloth takes TRL's copy away, so it is the base model always"
    )
    assert list(calls(method(trainer, "compute_loss"), "self._metrics[mode]['kl'].append")), "with beta 0 too: zeros"


def test_scoring_behind_one_prompt_is_switched_by_the_variable_that_the_kit_sets(written) -> None:
    """For the reference and the old policy in the trainer's own lines, for the policy in those of unsloth_zoo beside them."""
    (read,) = assigned(written, "UNSLOTH_GRPO_PREFIX_GROUPER_ON")[:1]
    assert read.startswith(f"_unsloth_os.environ.get('{SHARED_SCORING}', '1')")
    (gate,) = assigned(function(written, "_get_per_token_logps_and_entropies"), "_pg_engage")[:1]
    assert gate.startswith("UNSLOTH_GRPO_PREFIX_GROUPER_ON and")
    loss = function(written, "grpo_accumulated_loss")
    asked = f"os.environ.get('{SHARED_SCORING}', '1').lower() not in ('0', 'false', 'no', 'off')"
    assert asked in [ast.unparse(node.test) for node in ast.walk(loss) if isinstance(node, ast.If)]
    assert "bool(_pg_funcs)" in assigned(loss, "_pg_engage")[0]


@pytest.mark.parametrize("name", ["t4", "h100"])
@pytest.mark.parametrize("dtype", ["auto", "bfloat16", "float16", "float32"])
def test_the_number_type_is_that_of_the_loader(name: str, dtype: str, written, monkeypatch) -> None:
    """Unsloth's own lines, run: what they make of `bf16` and `fp16` for a model that its loader made with that type."""
    gpu = GPUS[name]
    is_native = gpu.compute_capability >= (8, 0)
    if dtype == "bfloat16" and not is_native:
        return  # the loader takes float16 there
    settings = gn.preset(name, dtype=dtype)
    loads = {"auto": "bfloat16" if is_native else "float16"}.get(dtype, dtype)
    body = method(class_of(written, NAME), "__init__").body
    begin = next(i for i, line in enumerate(body) if ast.unparse(line).startswith("use_bf16 ="))
    end = next(i for i, line in enumerate(body) if "eval_dataset" in ast.unparse(line))
    monkeypatch.setattr("unsloth_zoo.device_type.device_is_bf16_supported", lambda *_: is_native)
    monkeypatch.setattr("unsloth_zoo.device_type.DEVICE_TYPE", "cuda")
    for variable in ("ACCELERATE_MIXED_PRECISION", "UNSLOTH_MIXED_PRECISION", "UNSLOTH_FORCE_FLOAT32"):
        monkeypatch.setenv(variable, "float32" if variable == "UNSLOTH_MIXED_PRECISION" else "0")
    model = SimpleNamespace(
        config=SimpleNamespace(dtype=getattr(torch, loads)), _unsloth_full_finetuning=False,
        _unsloth_forced_float32=False, _unsloth_user_float32=dtype == "float32",
    )  # fmt: skip
    asked = requested_arguments(settings, gpu=gpu, number_type=loads, has_vllm=True)
    args = SimpleNamespace(bf16=asked["bf16"], fp16=asked["fp16"], mixed_precision=None)
    lines = ast.Module(body[begin:end], type_ignores=[])
    exec(compile(lines, NAME, "exec"), {"args": args, "model": model, "os": os, "torch": torch})
    autocast = (is_native, False)  # over float32 weights
    assert (args.bf16, args.fp16) == (autocast if dtype == "float32" else (asked["bf16"], asked["fp16"]))


def check_run(seen: dict) -> None:
    """What any run of three steps must show, whoever sampled."""
    assert seen["trainer"] == NAME and seen["dry"] == 4
    assert [row["step"] for row in seen["rows"]] == [1, 2, 3] and seen["moved"] > 0
    assert all(row["grad_norm"] > 0 for row in seen["rows"])
    first, *later = [row["kl"] for row in seen["rows"]]
    assert abs(first) < 1e-5 < min(later), "before the first update the model is its own reference"
    assert seen["rewards"] == pytest.approx(seen["again"], abs=1e-6), "what is recorded beside a completion is its own"
    mean = sum(seen["rewards"]) / len(seen["rewards"])
    assert all((a > 0) == (r > mean) for a, r in zip(seen["advantages"], seen["rewards"], strict=True))
    assert seen["rows"][0]["reward"] == pytest.approx(mean, abs=1e-6)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("trained")


@pytest.fixture(scope="module")
def trained(embedded_folder: Path, place: Path) -> dict:
    return trained_elsewhere(place, embedded_folder)


def test_it_trains_on_a_cpu_with_all_that_the_kit_adds(trained) -> None:
    """Its loss, its KL, its generation: what is left for a GPU is its kernels, number types and engine."""
    check_run(trained)
    assert trained["calls"] == 0 and trained["changed"] == []
    for side in ("policy", "reference"):
        rows = [row for loss in trained[side] for row in loss]
        assert len(rows) == 12 and max(rows) < 1e-5, f"the {side} scores each row as the model scores it alone"
    first, *others = trained["shared"]
    assert first < 1e-5 and min(others) > 0.1, (
        "if Unsloth keeps the prompt now, the kit need not switch its scoring off"
    )


@pytest.fixture(scope="module")
def stock(trained, place: Path) -> tuple:
    """The model that was trained elsewhere, in a process where the trainer is TRL's own."""
    return gn.load_model(gn.preset("cpu", model=str(place / "model"), lora_dropout=0.0))


@pytest.mark.parametrize("case", first_losses.CASES)
def test_its_updates_are_those_of_trls_trainer_with_the_arguments_that_the_table_tells(
    case: str, trained, stock, place: Path, tmp_path: Path
) -> None:
    """On the same completions, what Unsloth makes of what was asked for is what TRL makes of what "will run"."""
    wanted, found = first_losses.updates(*stock, trained["told"][case], tmp_path), trained["updates"][case]
    for name in ("advantages", "loss", "grad_norm", "gradient"):
        # A norm of float32 gradients depends on the order of its sums: by 1.03e-5 after two passes on an AMD with bfloat16.
        near = 3e-5 if name in ("grad_norm", "gradient") else 1e-5
        assert found[name] == pytest.approx(wanted[name], rel=near, abs=1e-5), name
    # Logged as the mean of the completions' means there, by TRL as the mean over tokens; in the loss it is the same.
    assert found["kl"] == pytest.approx(wanted["kl"], rel=0.5)
    assert max(wanted["grad_norm"]) > 0.1
