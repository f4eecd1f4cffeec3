"""Small random models of common architectures, with a LoRA that has an effect, and batches."""

import torch
import transformers
from trl.trainer.utils import add_fused_lm_head

SIZES = dict(
    vocab_size=128,
    hidden_size=64,
    intermediate_size=96,
    num_hidden_layers=3,
    num_attention_heads=4,
    num_key_value_heads=2,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
)
# SmolLM and SmolLM2 are Llama by architecture, SmolLM3 has layers without rotary positions.
FAMILIES = {
    "llama": ("Llama", {}),
    "qwen2": ("Qwen2", {}),
    "qwen3": ("Qwen3", {"head_dim": 16}),
    "gemma": ("Gemma", {"head_dim": 16}),
    "gemma2": ("Gemma2", {"head_dim": 16, "sliding_window": 256}),
    "gemma3": ("Gemma3Text", {"head_dim": 16, "sliding_window": 256}),
    "smollm3": ("SmolLM3", {"no_rope_layer_interval": 2}),
}
COMMON = list(range(20, 45))  # what a system prompt and an example turn are in practice
PROMPTS = [[*COMMON, 50, 51, 52], [*COMMON, 53], [*COMMON, 54, 55, 56, 57, 58]]


def lora_model(
    kind: str = "llama", *, tied: bool = True, temperature: float = 0.9, dropout: float = 0.0
):
    """A random model with a LoRA that has an effect, patched as TRL's trainer patches it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    name, more = FAMILIES[kind]
    config = getattr(transformers, f"{name}Config")(**{**SIZES, **more}, tie_word_embeddings=tied)
    model = transformers.AutoModelForCausalLM.from_config(config)
    lora = LoraConfig(
        r=4, lora_alpha=8, lora_dropout=dropout, target_modules="all-linear", task_type="CAUSAL_LM"
    )
    model = get_peft_model(model, lora)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    add_fused_lm_head(
        model.get_base_model(), temperature=temperature, outputs=("log_probs", "entropy")
    )
    return model


def drawn_log_probs(
    model, prompt: list[int], tokens: list[int], config: transformers.GenerationConfig
) -> list[float]:
    """Return log-probabilities of a completion's tokens, as transformers would sample them."""
    start = len(prompt)
    ids = torch.tensor([prompt + tokens])
    processors = model._get_logits_processor(
        generation_config=model._prepare_generation_config(config)[0],
        input_ids_seq_length=start,
        device="cpu",
    )
    with torch.no_grad():
        logits = model(input_ids=ids).logits[0, start - 1 : -1].float()
    each = (
        processors(ids[:, : start + at], logits[at][None]).log_softmax(-1)[0]
        for at in range(len(tokens))
    )
    return [scores[token].item() for scores, token in zip(each, tokens, strict=True)]


def batch(prompts: list[list[int]], owners: list[int], lengths: list[int]):
    """Return left-padded prompts and right-padded completions, as TRL passes them on."""
    generator = torch.Generator().manual_seed(3)
    width = max(map(len, prompts))
    longest = max(lengths)
    ids = []
    mask = []
    for owner, length in zip(owners, lengths, strict=True):
        pad = width - len(prompts[owner])
        completion = torch.randint(3, 128, (length,), generator=generator).tolist()
        ids.append([0] * pad + prompts[owner] + completion + [0] * (longest - length))
        mask.append([0] * pad + [1] * (len(prompts[owner]) + length) + [0] * (longest - length))
    return torch.tensor(ids), torch.tensor(mask), longest


def stock(model, ids, mask, length):
    """Log-probabilities and entropies as TRL computes them."""
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-length] = -100
    out = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    # TRL's own alignment of the shifted scores with the completion.
    return out.log_probs[:, -length:], out.entropy[:, -length:]


def gradients(model, log_probs, entropies):
    """Return the gradient of every LoRA tensor, for a loss that weighs the rows differently."""
    model.zero_grad()
    weights = torch.linspace(-1, 1, len(log_probs))[:, None]
    (log_probs * weights + 0.1 * entropies).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


def assert_same_gradients(got, expected, relative: float = 1e-4) -> None:
    assert got.keys() == expected.keys()
    assert got
    for name, gradient in expected.items():
        assert (got[name] - gradient).norm() <= relative * gradient.norm() + 1e-7, name
