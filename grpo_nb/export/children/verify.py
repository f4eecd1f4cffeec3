"""Check an export against the trained model. Runs as a process of its own that imports neither the kit nor unsloth.

Run by `grpo_nb.core.run_script`. The request says what of (`check`): `merged` or `gguf`; and names `prompts` (chat messages),
`max_new_tokens` and `seconds`. One model is open at a time, a large one in the number type of its files, whose pages are read
as they are needed and given back where memory is short; everything is computed in float32 (`widen_while_computing`), on a GPU
with room for it or else on the CPU. How far it is, is printed as `done/total`.

Where a model is slow, fewer and shorter texts are compared: `seconds` is what its first answers may take, beyond which a batch
is only begun if there is none, and the rest took four times that at most (docs/evidence/real_engines.md). All tensors are
compared in any case.

`merged`, with `base`, `tokenizer`, `chat_template` (or None for the tokenizer's), `adapter` and `merged`: what a user will do
with the folder is done here, plain `transformers.pipeline`. Base, base with adapter, and the merged model answer the same
prompts greedily, and the reference's answers are scored by each of them.

`gguf`, with `merged`, `base`, `answers`, `tolerance` and `least_equal`: llama.cpp has answered before, in another process
(`llama_cpp_child.py`); its answers are in the request. Here the merged folder is loaded by plain transformers and answers the
same prompts greedily. It also says how likely llama.cpp's words are to it, and to the base, which shows a wrong file where
equal texts could be chance.
"""

from __future__ import annotations

import copy
import gc
import itertools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import MethodType, SimpleNamespace
from typing import Any

import torch
from peft import PeftModel
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, pipeline
from transformers.cache_utils import DynamicLayer
from transformers.core_model_loading import revert_weight_conversion

# Largest relative error of rounding once to the nearest value, doubled for the noise of the float32 product behind it.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10, torch.float32: 2.0**-20}
# The change of log-probability from base to merged, regressed on that from base to adapter: 1 when the adapter was applied
# once, 0 when it was lost, 2 when it was applied twice. A short training rounded to bfloat16 has shown 0.53 here.
SLOPE_RANGE = (0.85, 1.15)
# As `SLOPE_RANGE` above, over the words of llama.cpp's own answers. What rounding adds makes the slope uncertain:
# a file is refused when it is outside by more than its uncertainty, so that a training too weak to be heard through a coarse
# format is not held against it; the table then says that it could not be told.
EFFECT_RANGE = (0.5, 1.5)
_STANDARD_ERRORS = 3
MEAN_LOGP_TOLERANCE = 0.05
# Greedy texts may part where the reference's best two words lie closer than this; anywhere else is a different model.
NEAR_TIE = 0.25
LEAST_EQUAL_TEXT = 0.9
# Words that are remembered at each position of an answer: more are never within a near tie of the best.
_REMEMBERED = 20
# Of a batch of answers: tokens with those of the prompts, whose keys and values are kept; and weights times tokens, of which
# two cores of a CPU multiply some 10^11 a second.
_TOKENS, _PRODUCTS = 2048, 5 * 10**12
# What is written of each answer however slow it is: fewer tell too little of what the training did.
_LEAST_TOKENS = 8
# Values of a weight that are widened or compared at once: 4 MB of float32, which stay in the processor's cache.
_BLOCK = 2**20
# Bytes of a model's files up to which widening once is worth the memory: it answers in half of the time then.
_SMALL = 2**29
# Memory of a GPU for each byte of a model's files: what is stored in 16 bits may have to be held in 32.
_ROOM_ON_GPU = 2.5
# Adapters that leave the base as it is, and whose own matrices are all of it.
_PLAIN_STARTS = (True, False, "gaussian", "orthogonal")
_PLAIN_NAMES = (".lora_A.weight", ".lora_B.weight")
# What a folder of safetensors has no need of, and what runs code when it is loaded.
_PICKLED = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")


def held_dtype(folder: Path) -> torch.dtype:
    """The number type to hold a model in: that of all its tensors if it has 16 bits, else float32, and so if it is small."""
    kinds = {tensor.dtype for _, tensor in each_tensor(folder)}
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    return kinds.pop() if kinds in ({torch.bfloat16}, {torch.float16}) and size > _SMALL else torch.float32


def reference_dtype(base: Path, adapter: Path) -> torch.dtype:
    """The number type to hold the base in: a start that changes it, or trained modules of it, would be rounded in 16 bits."""
    settings = json.loads((adapter / "adapter_config.json").read_text())
    with safe_open(adapter / "adapter_model.safetensors", framework="pt") as tensors:
        is_plain = all(name.endswith(_PLAIN_NAMES) for name in tensors.keys())  # noqa: SIM118
    is_plain = is_plain and settings.get("init_lora_weights", True) in _PLAIN_STARTS
    return held_dtype(base) if is_plain else torch.float32


def widen_while_computing(model: Any) -> Any:
    """Have a model compute in float32 while its large weights stay in the number type they are stored in.

    Linear layers and embeddings widen some rows at a time; the weights of all other modules, which are small, are widened once.
    The results are those of the model loaded in float32, bit for bit where a product does not depend on how many rows it has,
    with half its memory.
    """
    for module in model.modules():
        if type(module) is torch.nn.Linear:
            module.forward = MethodType(_linear, module)
        elif type(module) is torch.nn.Embedding:
            module.forward = MethodType(_embedding, module)
        else:
            for parameter in module.parameters(recurse=False):
                parameter.data = parameter.data.float()
    return model


def load(folder: str, device: str, kind: torch.dtype | None = None) -> Any:
    """A model that computes in float32, held in the number type of its files or another one."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=kind or held_dtype(Path(folder)))
    return widen_while_computing(model.eval()).to(device)


def _linear(layer: torch.nn.Linear, x: torch.Tensor) -> torch.Tensor:
    if layer.weight.dtype == x.dtype:
        return torch.nn.functional.linear(x, layer.weight, layer.bias)
    out = x.new_empty(*x.shape[:-1], layer.out_features)
    step = max(1, _BLOCK // layer.in_features)
    for result, rows in zip(out.split(step, dim=-1), layer.weight.split(step), strict=True):
        result.copy_(x @ rows.to(x.dtype).T)
    return out if layer.bias is None else out.add_(layer.bias)


def _embedding(layer: torch.nn.Embedding, ids: torch.Tensor) -> torch.Tensor:
    return torch.nn.Embedding.forward(layer, ids).float()


def each_tensor(folder: Path) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and tensor, of all in a folder of safetensors."""
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as tensors:
            names = list(tensors.keys())
        for name in names:
            # Opened anew each time: the pages of an open file that were read count as this process's memory.
            with safe_open(file, framework="pt") as tensors:
                yield name, tensors.get_tensor(name)


def tensor_problems(merged: Path, expected: set[str]) -> list[str]:
    """Names of missing and unexpected tensors in a folder of safetensors, and files of another kind."""
    found = {name for name, _ in each_tensor(merged)}
    problems = [f"{name} is missing" for name in sorted(expected - found)]
    problems += [f"{name} is unexpected" for name in sorted(found - expected)]
    problems += [f"{file.name} is no safetensors file" for file in merged.iterdir() if file.suffix in _PICKLED]
    return problems


def saved_names(model: torch.nn.Module) -> set[str]:
    """Names under which save_pretrained writes a model's tensors: tied ones once, experts of a mixture one by one."""
    tied = set(getattr(model, "all_tied_weights_keys", None) or {})
    return set(revert_weight_conversion(model, {n: t for n, t in model.state_dict().items() if n not in tied}))


def expected_weights(reference: PeftModel) -> dict[str, Callable[[], tuple[torch.Tensor, ...]]]:
    """By name the terms of which base plus adapter is the sum: the base's weight, and what the adapter adds to it.

    Where more than a sum was trained (DoRA, whole modules, single tokens), it is peft's own merge in float32, which takes the
    adapter out of the reference; that the merge says what the adapter says is for the other checks.
    """
    from peft.tuners.lora import LoraLayer

    expected: dict[str, Callable[[], tuple[torch.Tensor, ...]]] = {}
    config = reference.peft_config["default"]
    if config.use_dora or config.modules_to_save or getattr(config, "trainable_token_indices", None):
        for name, tensor in reference.merge_and_unload().state_dict().items():
            expected[name] = lambda value=tensor: (value.detach(),)
        return expected
    for name, module in reference.get_base_model().named_modules():
        if isinstance(module, LoraLayer):
            # An adapter on the experts of a mixture names the parameter that it changes; those of two are nested.
            changed, name = getattr(module, "parameter_name", "weight"), name.removesuffix(".base_layer")
            expected[f"{name}.{changed}"] = lambda layer=module, changed=changed: (
                getattr(layer.get_base_layer(), changed).detach(),
                layer.get_delta_weight("default").detach(),
            )
            module = module.get_base_layer()
        elif name.endswith((".base_layer", ".default")):
            continue
        for leaf, parameter in module.named_parameters(recurse=False):
            expected.setdefault(f"{name}.{leaf}", lambda value=parameter: (value.detach(),))
    return expected


def as_saved(
    model: Any, expected: dict[str, Callable[[], tuple[torch.Tensor, ...]]], merged: Path
) -> dict[str, Callable[[], tuple[torch.Tensor, ...]]]:
    """The same under the names of the files, where these differ from the model's: experts that are joined while they load."""
    if {name for name, _ in each_tensor(merged)} <= expected.keys():
        return expected
    sums = {name: sum(term.float().cpu() for term in terms()) for name, terms in expected.items()}
    return {name: lambda value=value: (value,) for name, value in revert_weight_conversion(model, sums).items()}


def weight_problems(merged: Path, reference: PeftModel) -> list[str]:
    """Tensors that differ from base plus adapter, computed here in float32, by more than one rounding step."""
    expected = as_saved(reference.get_base_model(), expected_weights(reference), merged)
    problems = []
    for name, found in each_tensor(merged):
        PROGRESS.step()
        if name not in expected:
            problems.append(f"{name} has no counterpart in base plus adapter")
            continue
        terms = expected[name]()
        if found.shape != terms[0].shape:
            problems.append(f"{name} has shape {tuple(found.shape)}, not {tuple(terms[0].shape)}")
            continue
        far = _count_far(found, terms, ROUNDING[found.dtype])
        if far:
            problems.append(f"{name} differs from base plus adapter in {far / found.numel():.1%} of its values")
    return problems


def _count_far(found: torch.Tensor, terms: tuple[torch.Tensor, ...], step: float) -> int:
    """How many values are farther from the sum of the terms, in float32, than a rounding step of that relative size."""
    rows, far = max(1, _BLOCK // max(1, found[0].numel())), 0
    for mine, *parts in zip(*(tensor.split(rows) for tensor in (found, *terms)), strict=True):
        exact = sum(part.float().cpu() for part in parts)
        # 1e-7: float16 has no relative precision below 6e-5. Not "greater than": what is not a number is far, too.
        far += int((~((mine.float() - exact).abs() <= exact.abs() * step + 1e-7)).sum())
    return far


def differing(mine: Any, original: Any, parts: Sequence[str]) -> list[str]:
    """Of attributes of two objects, those that are not the original's."""
    values = ((part, getattr(mine, part), getattr(original, part)) for part in parts)
    return [f"the {part} is {found!r}, not {wanted!r}" for part, found, wanted in values if found != wanted]


def tokenizer_problems(
    merged: Any, original: Any, chats: list[list[dict[str, str]]], rendering: dict[str, Any] | None = None
) -> list[str]:
    """In what two tokenizers differ: words, end token, chat template, and how they read each of the prompts."""
    problems = differing(merged, original, ("eos_token", "pad_token", "bos_token"))
    if merged.get_vocab() != original.get_vocab():
        problems.append("the vocabularies differ")
    if merged.chat_template != original.chat_template:
        return [*problems, "the chat template is another" if merged.chat_template else "the chat template is missing"]
    different = sum(read(merged, chat, rendering) != read(original, chat, rendering) for chat in chats)
    return [*problems, *([f"{different} of {len(chats)} prompts are read as other tokens"] if different else [])]


def generation_problems(merged: Path, base: GenerationConfig, end_token: int) -> list[str]:
    """In what the end and padding tokens that generation goes by differ from the base's."""
    if not (merged / "generation_config.json").is_file():
        return ["generation_config.json is missing"]
    mine = GenerationConfig.from_pretrained(merged)
    problems = differing(mine, base, ("eos_token_id", "pad_token_id"))
    ends = mine.eos_token_id if isinstance(mine.eos_token_id, list) else [mine.eos_token_id]
    if end_token not in ends:
        problems.append(f"the tokenizer's end token {end_token} does not end generation, which goes by {ends}")
    return problems


def read(tokenizer: Any, chat: list[dict[str, str]], rendering: dict[str, Any] | None = None) -> list[int]:
    """The tokens of a chat with the generation prompt, and with what else the template was given in training."""
    how = {"add_generation_prompt": True, "tokenize": True, "return_dict": True, **(rendering or {})}
    return tokenizer.apply_chat_template(chat, **how)["input_ids"]


class Progress:
    """Prints how far the check is: a step for each token of all answers together, each answer scored, each tensor compared."""

    def __init__(self) -> None:
        self.done = self.total = 0

    def step(self, *_: Any, **__: Any) -> bool:
        """One more. As a stopping criterion of `generate` it stops nothing."""
        self.done += 1
        print(f"{self.done}/{max(self.done, self.total)}", flush=True)
        return False


PROGRESS = Progress()


def free_device(folder: Path) -> str:
    """`cuda` where a GPU has room for a model of these files, float32 and its answers included; else `cpu`."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    has_room = torch.cuda.is_available() and torch.cuda.mem_get_info()[0] > _ROOM_ON_GPU * size + 2**30
    return "cuda" if has_room else "cpu"


def together(model: Any, prompts: list[list[int]], limit: int) -> int:
    """How many prompts are answered at once: what a pass computes and remembers is bounded, also for a large model."""
    tokens = min(_TOKENS, _PRODUCTS // model.num_parameters())
    return max(1, tokens // (max(map(len, prompts)) + limit))


def passes(model: Any, prompts: list[list[int]], limit: int) -> int:
    """How often the model is gone through to answer prompts, at most."""
    return -(-len(prompts) // together(model, prompts, limit)) * limit


@torch.no_grad()
def greedy(
    model: Any, tokenizer: Any, prompts: list[list[int]], limit: int, seconds: float
) -> tuple[list[list[int]], int]:
    """Greedy continuations up to and with the end token, of the first prompts, and how many tokens long they could become.

    When the time is over, what is being written is dropped; or, if nothing is finished by then, it ends there, but not before
    `_LEAST_TOKENS`.
    """
    answers: list[list[int]] = []
    end, until, count = tokenizer.eos_token_id, time.monotonic() + seconds, together(model, prompts, limit)
    for start in range(0, len(prompts), count):
        padded = tokenizer.pad({"input_ids": prompts[start : start + count]}, padding_side="left", return_tensors="pt")
        width = padded["input_ids"].shape[1]

        def is_over(ids: torch.Tensor, _: Any, least: int = width + _LEAST_TOKENS) -> bool:
            return PROGRESS.step() or (time.monotonic() > until and ids.shape[1] >= least)

        out = model.generate(
            **padded.to(model.device), max_new_tokens=limit, do_sample=False, pad_token_id=tokenizer.pad_token_id,
            stopping_criteria=[is_over],
        )  # fmt: skip
        is_late = time.monotonic() > until
        if is_late and answers:
            break
        rows = out[:, width:].tolist()
        answers += [row[: row.index(end) + 1] if end in row else row for row in rows]
        if is_late:
            return answers, len(rows[0])
    return answers, limit


@torch.no_grad()
def distributions(model: Any, prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> Iterator[torch.Tensor]:
    """Log-probabilities in nats of every word at each position of each completion behind its prompt, (n, V) float32 each.

    What all prompts begin with is computed once, of a model that keeps keys and values of every token.
    """
    # Some few models compute the logits of the prompt too.
    can_skip, device = model._supports_logits_to_keep(), model.device
    first, last = min(prompts, default=[]), max(prompts, default=[])
    pairs = zip(first[:-1], last[:-1], strict=False)
    common = [one for one, _ in itertools.takewhile(lambda pair: pair[0] == pair[1], pairs)]
    begun = None
    if common:
        kept = {"logits_to_keep": 1} if can_skip else {}
        begun = model(input_ids=torch.tensor([common], device=device), use_cache=True, **kept).past_key_values
    is_plain = {type(layer) for layer in getattr(begun, "layers", ())} == {DynamicLayer}
    for ids, completion in zip(prompts, completions, strict=True):
        PROGRESS.step()
        kept = {"logits_to_keep": len(completion) + 1} if can_skip else {}
        rest = ids[len(common) if is_plain else 0 :]
        cache = {"past_key_values": copy.deepcopy(begun)} if is_plain else {"use_cache": False}
        out = model(input_ids=torch.tensor([rest + completion], device=device), **cache, **kept)
        yield out.logits[0, -len(completion) - 1 : -1].float().log_softmax(-1).cpu()


def of_words(log_probabilities: torch.Tensor, completion: list[int]) -> torch.Tensor:
    """Those of the completion's own words, (len(completion),)."""
    return log_probabilities.gather(-1, torch.tensor(completion)[:, None])[:, 0]


def logps(model: Any, prompts: Sequence[list[int]], completions: Sequence[list[int]]) -> torch.Tensor:
    """Log-probabilities in nats of all words of the completions, one behind the other, float32."""
    found = zip(distributions(model, prompts, completions), completions, strict=True)
    return torch.cat([torch.empty(0), *(of_words(words, completion) for words, completion in found)])


def agreement(
    texts: Sequence[str], best: list[dict[int, float]], answer: list[int], other: list[int], end: int
) -> tuple[bool, bool]:
    """Whether two greedy texts are equal, and whether they are, or first part where the first one's model was nearly undecided.

    Args:
        texts: Both.
        best: Log-probabilities of the likeliest words at each position of `answer`.
        answer: Tokens of the first.
        other: Tokens of the second, with or without the end token.
        end: The end token.
    """
    if texts[0].strip() == texts[1].strip():
        return True, True
    other = other if end in other else [*other, end]
    for words, mine, theirs in zip(best, answer, other, strict=False):
        if mine != theirs:
            return False, max(words.values()) - words.get(theirs, -torch.inf) < NEAR_TIE
    return False, True  # equal up to where the shorter one was cut or ended


def likeliest(log_probabilities: torch.Tensor) -> list[dict[int, float]]:
    """The likeliest words at each position with their log-probabilities."""
    top = log_probabilities.topk(min(_REMEMBERED, log_probabilities.shape[-1]))
    rows = zip(top.indices.tolist(), top.values.tolist(), strict=True)
    return [dict(zip(words, values, strict=True)) for words, values in rows]


def score_reference(request: dict[str, Any], tokenizer: Any) -> SimpleNamespace:
    """What base and base with adapter make of the prompts, and how the merged files differ from them."""
    merged_folder = Path(request["merged"])
    kind = reference_dtype(Path(request["base"]), Path(request["adapter"]))
    base = load(request["base"], request["device"], kind)
    tensors = tensor_problems(merged_folder, saved_names(base))
    reference = PeftModel.from_pretrained(base, request["adapter"]).eval()
    prompts = [read(tokenizer, chat, request.get("chat_template_kwargs")) for chat in request["prompts"]]
    count, limit = len(list(each_tensor(merged_folder))), request["max_new_tokens"]
    PROGRESS.total = count + 3 * len(prompts) + 2 * passes(base, prompts, limit)
    answers, limit = greedy(reference, tokenizer, prompts, limit, request["seconds"])
    prompts = prompts[: len(answers)]
    PROGRESS.total = PROGRESS.done + count + 3 * len(prompts) + passes(base, prompts, limit)
    best, trained = [], []
    for words, answer in zip(distributions(reference, prompts, answers), answers, strict=True):
        best.append(likeliest(words))
        trained.append(of_words(words, answer))
    with reference.disable_adapter():
        start = logps(reference, prompts, answers)
    return SimpleNamespace(
        prompts=prompts, answers=answers, limit=limit, generation=base.generation_config, best=best,
        start=start, trained=torch.cat(trained), tensors=tensors,
        weights=weight_problems(merged_folder, reference),
    )  # fmt: skip


def verify_merged(request: dict[str, Any]) -> dict[str, Any]:
    """Do all checks of a merged model and return them with a verdict."""
    original = AutoTokenizer.from_pretrained(request["tokenizer"])
    original.chat_template = request.get("chat_template") or original.chat_template
    PROGRESS.done = 0
    request = {"device": free_device(Path(request["base"])), **request}
    reference = score_reference(request, original)
    prompts, answers, limit = reference.prompts, reference.answers, reference.limit
    chats = request["prompts"][: len(prompts)]
    gc.collect()
    kind = held_dtype(Path(request["merged"]))
    user = pipeline("text-generation", model=request["merged"], dtype=kind, device=request["device"])
    tokenizer, merged = user.tokenizer, widen_while_computing(user.model.eval())
    rendering = request.get("chat_template_kwargs")
    words = tokenizer_problems(tokenizer, original, chats, rendering)
    ends = generation_problems(Path(request["merged"]), reference.generation, original.eos_token_id)
    if "the chat template is missing" in words:
        tokenizer.chat_template = original.chat_template  # so that the other checks can still be made
    how = {"max_new_tokens": limit, "do_sample": False, "stopping_criteria": [PROGRESS.step]}
    how["tokenizer_encode_kwargs"] = rendering
    shown = user(chats, **how, batch_size=together(merged, prompts, limit))
    texts = [output[0]["generated_text"][-1]["content"] for output in shown]
    expected = [original.decode(answer, skip_special_tokens=True) for answer in answers]
    agreed = [
        agreement(pair, best, answer, original(pair[1], add_special_tokens=False)["input_ids"], original.eos_token_id)
        for *pair, best, answer in zip(expected, texts, reference.best, answers, strict=True)
    ]
    x, y = reference.trained - reference.start, logps(merged, prompts, answers) - reference.start
    gap, reach = (y - x).abs().mean().item(), x.abs().mean().item()
    slope = ((x * y).sum() / (x * x).sum().clamp(min=1e-12)).item()
    low, high = SLOPE_RANGE
    near = f"log-probabilities within {MEAN_LOGP_TOLERANCE} nats of the adapter's on average"
    tensors, weights = reference.tensors, reference.weights
    checked = {
        "tensors complete, safetensors only": (not tensors, said(tensors)),
        "every weight is base plus adapter, rounded once": (not weights, said(weights)),
        "tokenizer, chat template and end token equal": (not words, said(words)),
        "generation ends where the base's does": (not ends, said(ends)),
        f"the adapter's effect is there once ({low} to {high} times)": (low <= slope <= high, f"{slope:.3f} times"),
        near: (gap <= MEAN_LOGP_TOLERANCE, f"{gap:.4f} nats"),
    }
    return verdict(request, checked, agreed, limit) | {
        "adapter_effect_in_merged": slope,
        "mean_logp_difference_to_adapter": gap,
        "mean_logp_difference_of_base_to_adapter": reach,
        "problems": (tensors + weights + words + ends)[:10],
        "device": request["device"],
        "texts": texts,
        "reference": ended(expected, answers, original.eos_token_id),
    }


def verify_gguf(request: dict[str, Any]) -> dict[str, Any]:
    """Do all checks of a GGUF file and return them with a verdict."""
    tokenizer = AutoTokenizer.from_pretrained(request["merged"])
    device = request.get("device") or free_device(Path(request["merged"]))
    model = load(request["merged"], device)
    chats, answers, end = request["prompts"], request["answers"], tokenizer.eos_token_id
    rendering = request.get("chat_template_kwargs") or {}
    prompts = [read(tokenizer, chat, rendering) for chat in chats]
    limit = request["max_new_tokens"]
    PROGRESS.done, PROGRESS.total = 0, passes(model, prompts, limit) + 3 * len(chats)
    expected, limit = greedy(model, tokenizer, prompts, limit, request["seconds"])
    count = len(expected)
    prompts, answers = prompts[:count], answers[:count]
    PROGRESS.total = PROGRESS.done + 3 * count
    other_ids = not_ended = 0
    wanted = [tokenizer.decode(words, skip_special_tokens=True) for words in expected]
    agreed = []
    scored = distributions(model, prompts, expected)
    for ids, words, said, answer, found in zip(prompts, expected, wanted, answers, scored, strict=True):
        other_ids += ids != answer["prompt_ids"]
        agreed.append(agreement((said, answer["text"]), likeliest(found), words, answer["ids"], end))
        # A text that merged ends and the file does not, word for word the same until there, has lost its end token.
        not_ended += words[-1] == end and answer["is_cut"] and answer["ids"][: len(words) - 1] == words[:-1]

    pairs = [(ids, row["ids"]) for ids, row in zip(prompts, answers, strict=True) if row["ids"]]
    theirs = [list(column) for column in zip(*pairs, strict=True)] or [[], []]
    # None where llama.cpp tells none: within a character that several tokens write.
    told = [value for row in answers for value in row["log_probs"]]
    is_told = torch.tensor([value is not None for value in told], dtype=torch.bool)
    heard = torch.tensor([value for value in told if value is not None])
    trained = logps(model, *theirs)[is_told]
    del model
    gc.collect()  # one model in memory at a time
    start = logps(load(request["base"], device), *theirs)[is_told]
    gap = (heard - trained).abs().mean().item()
    effect, doubt = strength(start, trained, heard)
    low, high = EFFECT_RANGE
    near = f"log-probabilities within {request['tolerance']} nats of the merged model's on average"
    untold = ", too uncertain to tell from none" if effect - doubt <= 0 < low <= effect + doubt else ""
    checked = {
        "prompts are rendered and read as the same tokens": (not other_ids, f"{count - other_ids} of {count} prompts"),
        "answers end where the merged model's do": (not not_ended, f"{not_ended} run on past the end"),
        near: (gap <= request["tolerance"], f"{gap:.4f} nats"),
        f"the training's effect is there once ({low} to {high} times)": (
            effect + doubt >= low and effect - doubt <= high,
            f"{effect:.2f} ± {doubt:.2f} times{untold}",
        ),
    }
    return verdict(request, checked, agreed, limit) | {
        "mean_logp_difference_to_merged": gap,
        "effect_of_training_in_file": [effect, doubt],
        "device": device,
        "texts": [answer["text"] for answer in answers],
        "reference": ended(wanted, expected, end),
    }


def ended(texts: list[str], answers: list[list[int]], end: int) -> list[tuple[str, bool]]:
    """Each text of the reference, and whether it had come to its end."""
    return [(text, answer[-1:] == [end]) for text, answer in zip(texts, answers, strict=True)]


def strength(start: torch.Tensor, trained: torch.Tensor, heard: torch.Tensor) -> tuple[float, float]:
    """How much of the training's effect on log-probabilities is in the file's, and how uncertain that is.

    The slope of a regression through the origin: 1 is all of the effect, 0 nothing, 2 twice. Few words carry most of it, and
    rounding moves those most, so the standard error is the one that allows for both (HC3, MacKinnon and White, 1985).

    >>> strength(torch.tensor([-2.0, -1.0]), torch.tensor([-1.0, -1.0]), torch.tensor([-1.5, -1.25]))
    (0.5, 0.0)
    """
    wanted, found = trained - start, heard - start
    total = (wanted * wanted).sum().clamp(min=1e-12)
    slope = (wanted * found).sum() / total
    left = (found - slope * wanted) / (1 - wanted * wanted / total).clamp(min=1e-6)
    return slope.item(), _STANDARD_ERRORS * ((wanted * left).square().sum().sqrt() / total).item()


def verdict(
    request: dict[str, Any], checked: dict[str, tuple[bool, str]], agreed: list[tuple[bool, bool]], limit: int
) -> dict[str, Any]:
    """What both verifications answer: checks with what was measured, and that of the greedy texts (`agreement`) after them."""
    count, equal, near = len(agreed), *map(sum, zip(*agreed, strict=True))
    least = request.get("least_equal", LEAST_EQUAL_TEXT)
    said = f"{near} of {count}, {equal} without setting near ties aside"
    if (count, limit) != (len(request["prompts"]), request["max_new_tokens"]):
        said += f"; the first {limit} tokens, because time was up"
    checked[f"greedy text equal, near ties aside, on {least:.0%} of the prompts"] = (near / count >= least, said)
    return {
        "passed": all(ok for ok, _ in checked.values()),
        "checks": {name: ok for name, (ok, _) in checked.items()},
        "measured": {name: text for name, (_, text) in checked.items()},
        "prompts": count,
        "tokens": limit,
        "equal_greedy_text": equal / count,
        "equal_greedy_text_near_ties_aside": near / count,
        "imported_unsloth_or_kit": sorted({"unsloth", "grpo_nb"} & set(sys.modules)),
    }


def said(problems: list[str]) -> str:
    """A few problems in words."""
    return "; ".join(problems[:3]) + (f" and {len(problems) - 3} more" if len(problems) > 3 else "")


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do the checks that are asked for."""
    verify = {"merged": verify_merged, "gguf": verify_gguf}[request["check"]]
    try:
        return verify(request)
    except torch.OutOfMemoryError:  # of the GPU, which somebody else may have begun to use meanwhile
        return verify({**request, "device": "cpu"})
