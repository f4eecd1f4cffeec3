"""Compare an export with base and adapter. A process of its own that imports neither the kit nor unsloth.

Run by `grpo_nb.core.run_script`. The request says what of (`check`): `merged` or `gguf`; and names `base`, `merged`, `prompts`
(chat messages), `chat_template_kwargs`, `max_new_tokens`, `limits` and `free_memory`. Each step is told as a line with a dot.

Weights and tokenizer are compared always; what the models say, where they fit into memory, in float32 where that fits: the
adapter's greedy answers are scored by base, adapter and merged model, in one pass each.

`merged`, with `adapter`, `chat_template` (or None for the tokenizer's) and `is_plain`: what a user will do with the folder is
done here, plain `transformers.pipeline`. `gguf`, with `file` and `answers`: llama.cpp has answered before, in another process;
its answers are scored by the merged model and the base.
"""

import gc
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from gguf import GGUFReader
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import safe_open
from transformers import AutoModelForCausalLM, AutoTokenizer, pipeline
from transformers.core_model_loading import revert_weight_conversion

# Of each check: name -> (passed, what was measured). Not made is None.
Checks = dict[str, tuple[bool | None, str]]
# Largest relative error of rounding once to the nearest value, doubled for the noise of the float32 product behind it.
ROUNDING = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-10, torch.float32: 2.0**-20}
# Values of a weight that are compared at once: 4 MB of float32, which stay in the processor's cache.
_BLOCK = 2**20


def step() -> None:
    """Tell that one more step is done."""
    print(".", flush=True)


def place(folder: Path, free_memory: int) -> tuple[str, torch.dtype | None] | None:
    """Where a model is asked, and in which number type: float32 where that fits, else None, as its files; None if nowhere."""
    size = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    rooms = [("cuda", torch.cuda.mem_get_info()[0])] if torch.cuda.is_available() else []
    for device, free in (*rooms, ("cpu", free_memory)):
        for kind, factor in ((torch.float32, 2.2), (None, 1.2)):  # for each byte of files in 16 bit
            if free > factor * size + 2**30:
                return device, kind
    return None


def load(folder: Path, where: tuple[str, torch.dtype | None] | None) -> Any:
    """A model at its place; where it has none, mapped from its files, so that its weights can be read.

    It is widened when it is there: while transformers does it, pages of all files stay beside it, half as much again.
    """
    device, kind = where or ("cpu", None)
    return (
        AutoModelForCausalLM.from_pretrained(folder, dtype="auto")
        .eval()
        .to(device=device, dtype=kind)
    )


def files_of(folder: Path) -> dict[str, Path]:
    """The file of each tensor in a folder: those of the index, else the one."""
    single, index = folder / "model.safetensors", folder / "model.safetensors.index.json"
    if index.is_file():
        return {
            name: folder / file
            for name, file in json.loads(index.read_text())["weight_map"].items()
        }
    with safe_open(single, framework="pt") as opened:
        return dict.fromkeys(opened.keys(), single)


def tensor_of(files: Mapping[str, Path], name: str) -> torch.Tensor:
    """A tensor, mapped from its file, which is opened anew: pages of an open file count as this process's memory."""
    with safe_open(files[name], framework="pt") as opened:
        return opened.get_tensor(name)


def weight_problems(merged: Path, base: Path, reference: PeftModel, *, is_plain: bool) -> list[str]:
    """Tensors that are missing or unexpected, or differ from base plus adapter by more than one rounding.

    What the adapter adds is peft's own answer, layer by layer, and not the formula that merged. Where more was trained than A
    and B matrices, it is peft's merge of the model in float32, which takes the adapter out of the reference.
    """
    layers = {
        f"{n}.weight": m
        for n, m in reference.get_base_model().named_modules()
        if isinstance(m, LoraLayer)
    }
    mine, starts, sums = files_of(merged), files_of(base) if is_plain else {}, {}
    if not is_plain:
        model, layers = reference.merge_and_unload(), {}
        tied = getattr(model, "all_tied_weights_keys", None) or {}
        kept = {name: tensor for name, tensor in model.state_dict().items() if name not in tied}
        # Experts are joined while they load and taken apart again when they are saved.
        starts = sums = revert_weight_conversion(model, kept)
    problems = [
        f"{name} is missing" for name in sorted((starts.keys() | layers.keys()) - mine.keys())
    ]
    problems += [f"{name} is unexpected" for name in sorted(mine.keys() - starts.keys())]
    for name in sorted(mine.keys() & starts.keys()):
        step()
        found, start = tensor_of(mine, name), sums[name] if sums else tensor_of(starts, name)
        more = layers[name].get_delta_weight("default").detach() if name in layers else None
        if found.shape != start.shape:
            problems.append(f"{name} has shape {tuple(found.shape)}, not {tuple(start.shape)}")
        elif far := count_far(found, start, more):
            problems.append(
                f"{name} differs from base plus adapter in {far / found.numel():.1%} of its values"
            )
    return problems


def count_far(found: torch.Tensor, start: torch.Tensor, more: torch.Tensor | None) -> int:
    """How many values are farther from the sum, in float32, than one rounding to their number type."""
    parts = [
        tensor.reshape(-1).split(_BLOCK) for tensor in (found, start, more) if tensor is not None
    ]
    far, rounding = 0, ROUNDING.get(found.dtype, 0.0)
    for values, *terms in zip(*parts, strict=True):
        exact = sum(term.float().cpu() for term in terms)
        # 1e-7: float16 has no relative precision below 6e-5. Not "greater than": what is not a number is far, too.
        far += int((~((values.float() - exact).abs() <= exact.abs() * rounding + 1e-7)).sum())
    return far


def read(tokenizer: Any, chat: list[dict[str, str]], how: Mapping[str, Any]) -> list[int]:
    """The tokens of a chat with the generation prompt, and with what else the template was given in training."""
    found = tokenizer.apply_chat_template(
        chat, add_generation_prompt=True, tokenize=True, return_dict=True, **how
    )
    return found["input_ids"]


def tokenizer_problems(
    folder: Path, base: Path, original: Any, chats: Sequence[Any], how: dict[str, Any]
) -> list[str]:
    """In what tokenizer, template and the tokens that end an answer differ from those of the training."""
    mine = AutoTokenizer.from_pretrained(folder)
    parts = ("eos_token", "pad_token", "bos_token", "chat_template")
    problems = [
        f"the {part} is another" for part in parts if getattr(mine, part) != getattr(original, part)
    ]
    if not problems and any(read(mine, chat, how) != read(original, chat, how) for chat in chats):
        problems.append("prompts are read as other tokens")
    theirs, ours = (place / "generation_config.json" for place in (base, folder))
    if theirs.is_file() and (not ours.is_file() or ours.read_bytes() != theirs.read_bytes()):
        problems.append("generation_config.json, which ends answers, is not the base's")
    return problems


@torch.no_grad()
def greedy(model: Any, tokenizer: Any, prompts: list[list[int]], limit: int) -> list[list[int]]:
    """Greedy continuations up to and with the end token."""
    padded = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(
        model.device
    )
    how = {"do_sample": False, "pad_token_id": tokenizer.pad_token_id}
    out = model.generate(
        **padded, max_new_tokens=limit, stopping_criteria=[lambda *_, **__: bool(step())], **how
    )
    rows, end = out[:, padded["input_ids"].shape[1] :].tolist(), tokenizer.eos_token_id
    return [row[: row.index(end) + 1] if end in row else row for row in rows]


@torch.no_grad()
def scored(
    model: Any, prompts: Sequence[list[int]], answers: Sequence[list[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Of each word of all answers its log-probability in nats, and whether it is the model's likeliest; float32 and bool."""
    found, likeliest = [torch.empty(0)], [torch.empty(0, dtype=torch.bool)]
    for prompt, answer in zip(prompts, answers, strict=True):
        step()
        words = torch.tensor(answer)
        out = model(input_ids=torch.tensor([prompt + answer], device=model.device), use_cache=False)
        logits = out.logits[0, len(prompt) - 1 : -1].float().cpu()
        found.append(logits.log_softmax(-1).gather(-1, words[:, None])[:, 0])
        likeliest.append(logits.argmax(-1) == words)
    return torch.cat(found), torch.cat(likeliest)


def words_checks(
    limits: Sequence[float],
    start: torch.Tensor,
    trained: torch.Tensor,
    found: torch.Tensor,
    same: torch.Tensor,
) -> Checks:
    """The checks of what an export says, by the log-probabilities of the same words.

    The effect is the slope of a regression through the origin, of the change from base to export on that of the training: 0
    where the adapter was lost, 2 where it was applied twice.

    Args:
        limits: The least and the most of the effect, the nats that the export may be off on average, and the least share of
            places at which its likeliest word is the same. Set between classic failures and sound exports
            (docs/evidence/export.md).
        start: To the base.
        trained: To the adapter, or of a GGUF file to the merged model.
        found: To the export.
        same: Whether the likeliest word is the same.
    """
    low, high, nats, least = limits
    share, gap, wanted = (
        same.float().mean().item(),
        (found - trained).abs().mean().item(),
        trained - start,
    )
    slope = ((wanted * (found - start)).sum() / (wanted * wanted).sum().clamp(min=1e-12)).item()
    return {
        f"words: {low} to {high} times the training's effect": (
            low <= slope <= high,
            f"{slope:.3f} times the effect",
        ),
        f"words: log-probabilities at most {nats} nats apart": (
            gap <= nats,
            f"{gap:.4f} nats apart",
        ),
        f"words: at {least:.0%} of the places alike": (
            share >= least,
            f"{share:.1%} of {len(same)} places alike",
        ),
    }


NOT_COMPARED: Checks = {"words": (None, "not compared: no memory is free for the model here")}


def verify_merged(request: dict[str, Any]) -> Checks:
    """A merged model against base and adapter."""
    folder, base, chats = Path(request["merged"]), Path(request["base"]), request["prompts"]
    how, is_plain = request["chat_template_kwargs"], request["is_plain"]
    tokenizer = AutoTokenizer.from_pretrained(base)
    tokenizer.chat_template = request["chat_template"] or tokenizer.chat_template
    # What else was trained than matrices would be rounded in 16 bits.
    where = place(base, request["free_memory"]) if is_plain else ("cpu", torch.float32)
    reference = PeftModel.from_pretrained(load(base, where), request["adapter"]).eval()
    prompts = [read(tokenizer, chat, how) for chat in chats]
    if where is not None:
        answers = greedy(reference, tokenizer, prompts, request["max_new_tokens"])
        trained, _ = scored(reference, prompts, answers)
        with reference.disable_adapter():
            start, _ = scored(reference, prompts, answers)
    weights = weight_problems(folder, base, reference, is_plain=is_plain)
    del reference
    gc.collect()  # one model in memory at a time
    texts = tokenizer_problems(folder, base, tokenizer, chats, how)
    checks: Checks = {
        "every weight is base plus adapter, rounded once": (not weights, "; ".join(weights[:3])),
        "tokenizer, chat template and end tokens are the training's": (
            not texts,
            "; ".join(texts[:3]),
        ),
    }
    if weights or texts or where is None:
        return checks | (NOT_COMPARED if where is None else {})
    user = pipeline(
        "text-generation", model=load(folder, where), tokenizer=str(folder), device=where[0]
    )
    found, same = scored(user.model.eval(), prompts, answers)
    shown = user(chats[0], max_new_tokens=8, do_sample=False, tokenizer_encode_kwargs=dict(how))
    checks["a pipeline answers"] = (shown[0]["generated_text"][-1]["role"] == "assistant", "")
    # In 16 bits both sides are rounded, by more than a short training may have changed.
    limits = request["limits"] if where[1] == torch.float32 else (0.5, 1.5, *request["limits"][2:])
    return checks | words_checks(limits, start, trained, found, same)


def metadata_problems(file: str, tokenizer: Any) -> list[str]:
    """Which of chat template and end token the file lacks: llama.cpp has both in reserve, other programs have not."""
    fields = GGUFReader(file).fields
    wanted = {
        "chat_template": tokenizer.get_chat_template(),
        "ggml.eos_token_id": tokenizer.eos_token_id,
    }
    held = {
        name: field.contents() if (field := fields.get(f"tokenizer.{name}")) else None
        for name in wanted
    }
    return [
        f"{name} is {held[name]!r:.80}, not the tokenizer's"
        for name in wanted
        if held[name] != wanted[name]
    ]


def verify_gguf(request: dict[str, Any]) -> Checks:
    """llama.cpp's answers, which are in the request, against the merged model and the base."""
    chats, rows, how = request["prompts"], request["answers"], request["chat_template_kwargs"]
    tokenizer = AutoTokenizer.from_pretrained(request["merged"])
    same_ids = sum(
        read(tokenizer, chat, how) == row["prompt_ids"]
        for chat, row in zip(chats, rows, strict=True)
    )
    lost = metadata_problems(request["file"], tokenizer)
    checks: Checks = {
        "prompts are read as the same tokens": (
            same_ids == len(rows),
            f"{same_ids} of {len(rows)}",
        ),
        "the file holds chat template and end token": (not lost, "; ".join(lost)),
    }
    where = place(Path(request["merged"]), request["free_memory"])
    if where is None:
        return checks | NOT_COMPARED
    answered = [row for row in rows if row["ids"]]
    asked = [row["prompt_ids"] for row in answered], [row["ids"] for row in answered]
    # None where llama.cpp tells none: within a character that several tokens write.
    heard = torch.tensor(
        [float("nan") if value is None else value for row in answered for value in row["log_probs"]]
    )
    known = heard.isfinite()
    trained, same = scored(load(Path(request["merged"]), where), *asked)
    gc.collect()
    start, _ = scored(load(Path(request["base"]), where), *asked)
    return checks | words_checks(
        request["limits"], start[known], trained[known], heard[known], same
    )


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Do the checks that are asked for; name, verdict and what was measured of each."""
    found = {"merged": verify_merged, "gguf": verify_gguf}[request["check"]](request)
    return {
        "passed": all(ok is not False for ok, _ in found.values()),
        "checks": {name: ok for name, (ok, _) in found.items()},
        "measured": {name: text for name, (_, text) in found.items()},
        "words": ", ".join(text for name, (_, text) in found.items() if name.startswith("words")),
        "imported_unsloth_or_kit": sorted({"unsloth", "grpo_nb"} & set(sys.modules)),
    }
