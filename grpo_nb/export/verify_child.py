"""Compare an export with base and adapter, in a process that imports neither grpo_nb nor unsloth.

`grpo_nb.core.processes.run_script` calls `answer` with a request. After each step the script prints
a line with a dot, which the parent counts for its progress bar.

The weights of a merged export and the tokenizer are always compared. Answers are compared if a
model fits into memory in float32. The greedy answers of base plus adapter are scored token by
token by base, base plus adapter, and export. For GGUF, the answers of llama.cpp are scored by base,
merged model and llama.cpp.

`request["check"]` is "merged" or "gguf". Both have `base_folder`, `merged_folder`, `prompts`
(chat messages), `chat_template_kwargs`, `max_new_tokens`, `limits` and `free_memory`. "merged" also
has `adapter_folder` and `chat_template` (None for the tokenizer's). "gguf" also has `file`, and
`answers`, which llama.cpp gave earlier in another process.
"""

import gc
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy
import torch
from gguf import GGUFReader
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from torch.nn.functional import cross_entropy
from transformers import AutoModelForCausalLM, AutoTokenizer

#: Check name -> (passed, or None if the check was not made; measurement in words).
Checks = dict[str, tuple[bool | None, str]]
#: The check to make, with its folders and prompts (`staged_export.verification_request`).
Request = dict[str, Any]
#: Largest relative error that a weight may have. bfloat16 has 7 bits after the leading one, so
#: rounding to the nearest value errs by at most 2^-8. For float16 the limit is twice the largest
#: rounding error and for float32 16 times, because B @ A may be summed in another order.
MAX_ROUNDING_ERROR = {
    torch.bfloat16: 2.0**-8,
    torch.float16: 2.0**-10,
    torch.float32: 2.0**-20,
}
#: float16 has no relative precision below 6e-5, only steps of 6e-8.
SMALLEST_STEP = 1e-7
#: Values that are compared at once: 4 MB of float32 stay in the processor's cache.
VALUES_AT_ONCE = 2**20
#: Memory of a loaded model, as a multiple of its weights in float32.
MEMORY_FACTOR = 1.1
#: Bytes that the activations of a model take besides its weights.
ACTIVATION_BYTES = 2**30
#: The check of tokens if no model fits into memory.
NOT_COMPARED: Checks = {
    "tokens": (None, "not measured, because the model in float32 does not fit into memory")
}


def answer(request: Request) -> dict[str, Any]:
    """Make the requested checks, and return the verdict and the measurement of each by its name."""
    verify = {"merged": verify_merged, "gguf": verify_gguf}[request["check"]]
    checks = verify(request)
    measured = {name: text for name, (_, text) in checks.items()}
    # The names of the checks in `token_checks` and `NOT_COMPARED` start with "tokens".
    tokens = [text for name, text in measured.items() if name.startswith("tokens")]
    return {
        "checks": {name: passed for name, (passed, _) in checks.items()},
        "measured": measured,
        "tokens": ", ".join(tokens),
    }


def verify_merged(request: Request) -> Checks:
    """Check a merged model against base and adapter."""
    merged_folder = Path(request["merged_folder"])
    base_folder = Path(request["base_folder"])
    tokenizer = AutoTokenizer.from_pretrained(base_folder)
    # The base has the tokenizer of the training, except for a template that the training set.
    tokenizer.chat_template = request["chat_template"] or tokenizer.chat_template
    fits = fits_in_memory(merged_folder, request["free_memory"])
    # The base has no variable, which would keep it in memory after `del trained_model`.
    trained_model = PeftModel.from_pretrained(
        load_model(base_folder, in_float32=fits), request["adapter_folder"]
    )
    trained_model.eval()
    weight_differences = weight_problems(merged_folder, base_folder, trained_model)
    tokenizer_differences = tokenizer_problems(merged_folder, base_folder, tokenizer, request)
    checks = {
        "every weight is base plus adapter, rounded once": verdict_on(weight_differences),
        "tokenizer, chat template and end tokens are the training's": verdict_on(
            tokenizer_differences
        ),
    }
    if not fits:
        return checks | NOT_COMPARED
    # With a difference, the export has failed already and may not even load.
    if weight_differences or tokenizer_differences:
        return checks
    prompts = prompt_tokens(tokenizer, request)
    answers = greedy_answers(trained_model, tokenizer, prompts, request["max_new_tokens"])
    trained_logprobs = token_logprobs(trained_model, prompts, answers)
    # Base and trained model share their weights, which halves the memory.
    with trained_model.disable_adapter():
        base_logprobs = token_logprobs(trained_model, prompts, answers)
    del trained_model
    gc.collect()  # Only one model is in memory at a time.
    return checks | token_checks(
        request["limits"],
        base_logprobs=base_logprobs,
        reference_logprobs=trained_logprobs,
        export_logprobs=token_logprobs(load_model(merged_folder), prompts, answers),
    )


def verify_gguf(request: Request) -> Checks:
    """Check the answers of llama.cpp in the request against the merged model and the base."""
    merged_folder = Path(request["merged_folder"])
    base_folder = Path(request["base_folder"])
    tokenizer = AutoTokenizer.from_pretrained(merged_folder)
    prompts = [row["prompt_ids"] for row in request["answers"]]
    answers = [row["ids"] for row in request["answers"]]
    expected = prompt_tokens(tokenizer, request)
    equal_count = sum(ids == wanted for ids, wanted in zip(prompts, expected, strict=True))
    checks: Checks = {
        "prompts are read as the same tokens": (
            equal_count == len(expected),
            f"{equal_count} of {len(expected)}",
        ),
        "the file holds chat template and end token": verdict_on(
            metadata_problems(request["file"], tokenizer)
        ),
    }
    if not fits_in_memory(merged_folder, request["free_memory"]):
        return checks | NOT_COMPARED
    # Each model scores the answers of llama.cpp, after the tokens that llama.cpp read. llama.cpp
    # gives None, here NaN, for tokens inside a character that is made of several tokens.
    values = numpy.concatenate([row["log_probs"] for row in request["answers"]])
    gguf_logprobs = torch.from_numpy(values.astype("float32"))
    is_known = gguf_logprobs.isfinite()
    merged_logprobs = token_logprobs(load_model(merged_folder), prompts, answers)
    gc.collect()
    base_logprobs = token_logprobs(load_model(base_folder), prompts, answers)
    return checks | token_checks(
        request["limits"],
        base_logprobs=base_logprobs[is_known],
        reference_logprobs=merged_logprobs[is_known],
        export_logprobs=gguf_logprobs[is_known],
    )


def verdict_on(problems: Sequence[str]) -> tuple[bool, str]:
    """Return a check that passes without problems, and the first three problems in words."""
    return not problems, "; ".join(problems[:3])


def token_checks(
    limits: Sequence[float],
    *,
    base_logprobs: torch.Tensor,
    reference_logprobs: torch.Tensor,
    export_logprobs: torch.Tensor,
) -> Checks:
    """Return the checks of an export's log-probabilities for the tokens of the same answers.

    The measured effect compares the change from base to export with the change from base to trained
    model. It is the slope of a regression through the origin: 0 if the adapter was lost, 2 if it
    was applied twice.

    Args:
        limits: The values of `staged_export.RoundingLimits`.
        base_logprobs: Log-probabilities in nats under the base.
        reference_logprobs: Those under base and adapter; for a GGUF file, under the merged model.
        export_logprobs: Those under the export.
    """
    min_effect, max_effect, max_nats = limits
    distance = (export_logprobs - reference_logprobs).abs().mean().item()
    # A projection, because single tokens change in both directions.
    trained_change = reference_logprobs - base_logprobs
    export_change = export_logprobs - base_logprobs
    squared_change = trained_change.dot(trained_change).clamp(min=1e-12)
    effect = (trained_change.dot(export_change) / squared_change).item()
    return {
        f"tokens: {min_effect} to {max_effect} times the training's effect": (
            min_effect <= effect <= max_effect,
            f"{effect:.3f} times the effect",
        ),
        f"tokens: log-probabilities at most {max_nats} nats apart": (
            distance <= max_nats,
            f"{distance:.4f} nats apart",
        ),
    }


def weight_problems(merged_folder: Path, base_folder: Path, reference: PeftModel) -> list[str]:
    """Report tensors that are missing, unexpected, or not base plus adapter rounded once.

    The change is PEFT's `get_delta_weight`, so that the formula of the merge is not compared with
    itself.
    """
    layers = {
        f"{name}.weight": module
        for name, module in reference.get_base_model().named_modules()
        if isinstance(module, LoraLayer)
    }
    base_files = tensor_files(base_folder)
    files = tensor_files(merged_folder)
    problems = []
    for name in sorted(base_files.keys() | layers.keys() | files.keys()):
        report_step()
        if name not in files:
            problems.append(f"{name} is missing")
        elif name not in base_files:
            problems.append(f"{name} is unexpected")
        else:
            terms = [read_tensor(base_files[name], name)]
            if name in layers:
                terms.append(layers[name].get_delta_weight("default").detach())
            if not is_rounded_sum(read_tensor(files[name], name), terms):
                problems.append(f"{name} differs from base plus adapter")
    return problems


def is_rounded_sum(tensor: torch.Tensor, terms: Sequence[torch.Tensor]) -> bool:
    """Return True if each value is the sum of the terms' values, rounded once."""
    # PyTorch would broadcast different shapes to fit each other.
    if any(term.shape != tensor.shape for term in terms):
        return False
    rounding = MAX_ROUNDING_ERROR.get(tensor.dtype, 0.0)
    # In blocks, because whole tensors in float32 would need several times the memory.
    blocks = [part.reshape(-1).split(VALUES_AT_ONCE) for part in (tensor, *terms)]
    for values, *parts in zip(*blocks, strict=True):
        exact = sum(part.float() for part in parts)
        is_close = (values.float() - exact).abs() <= exact.abs() * rounding + SMALLEST_STEP
        # NaN is not close.
        if not is_close.all():
            return False
    return True


def tensor_files(folder: Path) -> dict[str, Path]:
    """Return the file of each tensor in a folder: from the index, or the only file."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = json.loads(index.read_text())["weight_map"]
        return {name: folder / file for name, file in names.items()}
    single = folder / "model.safetensors"
    with safe_open(single, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), single)


def read_tensor(file: Path, name: str) -> torch.Tensor:
    """Return a tensor, mapped from its file.

    The file is opened for each tensor, because the pages of an open file count as memory of this
    process.
    """
    with safe_open(file, framework="pt") as opened:
        return opened.get_tensor(name)


def tokenizer_problems(
    merged_folder: Path, base_folder: Path, original: Any, request: Request
) -> list[str]:
    """Return a sentence for each difference in how prompts are read and answers end."""
    tokenizer = AutoTokenizer.from_pretrained(merged_folder)
    problems = []
    for part in ("eos_token", "pad_token", "bos_token", "chat_template"):
        if getattr(tokenizer, part) != getattr(original, part):
            problems.append(f"{part} differs from the training's")
    # With another template, prompts differ anyway, and the template is the reason to name.
    if not problems:
        prompts = prompt_tokens(tokenizer, request)
        if prompts != prompt_tokens(original, request):
            problems.append("prompts become other tokens")
    # A model can have more end tokens than its tokenizer names. They are in this file.
    config = base_folder / "generation_config.json"
    merged_config = merged_folder / config.name
    if config.is_file() and config.read_bytes() != merged_config.read_bytes():
        problems.append("generation_config.json, which ends answers, is not the base's")
    return problems


def metadata_problems(file: str, tokenizer: Any) -> list[str]:
    """Return a sentence for chat template and end token, if a GGUF file does not hold them.

    llama.cpp has defaults for both; other programs do not.
    """
    fields = GGUFReader(file).fields
    expected = {
        "chat_template": tokenizer.get_chat_template(),
        "ggml.eos_token_id": tokenizer.eos_token_id,
    }
    problems = []
    for name, value in expected.items():
        field = fields.get(f"tokenizer.{name}")
        content = None if field is None else field.contents()
        if content != value:
            problems.append(f"{name} is {content!r:.80}, not the tokenizer's")
    return problems


def fits_in_memory(folder: Path, free_memory: int) -> bool:
    """Return True if a model fits into memory in float32.

    Args:
        folder: Folder of the merged model. The base has as many values, and is loaded before or
            after it.
        free_memory: Bytes of free memory.
    """
    values = sum(read_tensor(file, name).numel() for name, file in tensor_files(folder).items())
    return MEMORY_FACTOR * 4 * values + ACTIVATION_BYTES < free_memory


def load_model(folder: Path, *, in_float32: bool = True) -> Any:
    """Load a model on the CPU, in float32 or with weights that stay mapped from the files.

    The dtype is converted after loading. If transformers converted it while loading, the mapped
    pages of the files would stay in memory too, which takes 50 % more.
    """
    model = AutoModelForCausalLM.from_pretrained(folder, dtype="auto").eval()
    return model.float() if in_float32 else model


def prompt_tokens(tokenizer: Any, request: Request) -> list[list[int]]:
    """Return the tokens of each prompt as in training, with the generation prompt."""
    encoded = tokenizer.apply_chat_template(
        request["prompts"],
        add_generation_prompt=True,
        tokenize=True,
        return_dict=True,
        **request["chat_template_kwargs"],
    )
    return encoded["input_ids"]


@torch.no_grad()
def greedy_answers(
    model: Any, tokenizer: Any, prompts: list[list[int]], max_tokens: int
) -> list[list[int]]:
    """Return greedy answers, up to and including the end token."""
    padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt")
    output = model.generate(
        **padded,
        max_new_tokens=max_tokens,
        do_sample=False,
        pad_token_id=tokenizer.pad_token_id,
    )
    answers = output[:, padded["input_ids"].shape[1] :].numpy()
    # A model can have several end tokens. Everything after the first one is padding.
    is_end = numpy.isin(answers, model.generation_config.eos_token_id)
    is_padding = is_end.cumsum(axis=1) > is_end
    return [row[~padding].tolist() for row, padding in zip(answers, is_padding, strict=True)]


@torch.no_grad()
def token_logprobs(
    model: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]]
) -> torch.Tensor:
    """Return the log-probability of each token of all answers, in nats and float32."""
    logprobs = []
    for prompt, tokens in zip(prompts, answers, strict=True):
        report_step()
        # One answer at a time, because padding would change the sums in float32.
        targets = torch.tensor(tokens, dtype=torch.long)  # an answer can be empty
        input_ids = torch.tensor([prompt + tokens])
        output = model(input_ids=input_ids, use_cache=False)
        # The logits of a position predict the next token, so they start one before the answer.
        start = len(prompt) - 1
        logits = output.logits[0, start:-1]
        logprobs.append(-cross_entropy(logits, targets, reduction="none"))
    return torch.cat(logprobs)


def report_step() -> None:
    """Report one more step to the parent process."""
    print(".", flush=True)
