"""The shared-prompt path gives what the stock path gives: log-probabilities, gradients, greedy text and draws."""

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig, LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM
from trl.trainer.utils import add_fused_lm_head

from grpo_nb import rollout, shared_prompts

SIZES = dict(
    vocab_size=128, hidden_size=64, intermediate_size=96, num_hidden_layers=3, num_attention_heads=4,
    num_key_value_heads=2, pad_token_id=0, bos_token_id=1, eos_token_id=2,
)  # fmt: skip
COMMON = list(range(20, 45))  # what a system prompt and an example turn are in practice
PROMPTS = [[*COMMON, 50, 51, 52], [*COMMON, 53], [*COMMON, 54, 55, 56, 57, 58]]


def lora_model(kind: str = "llama", *, tied: bool = True, temperature: float = 0.9):
    """A random model with a LoRA that has an effect, patched as TRL's trainer patches it."""
    from peft import LoraConfig, get_peft_model

    torch.manual_seed(1)
    config, model_class = {"llama": (LlamaConfig, LlamaForCausalLM), "qwen3": (Qwen3Config, Qwen3ForCausalLM)}[kind]
    model = model_class(config(**SIZES, tie_word_embeddings=tied))
    model = get_peft_model(model, LoraConfig(r=4, lora_alpha=8, target_modules="all-linear", task_type="CAUSAL_LM"))
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    add_fused_lm_head(model.get_base_model(), temperature=temperature, outputs=("log_probs", "entropy"))
    return model


def batch(prompts: list[list[int]], owners: list[int], lengths: list[int]):
    """Left-padded prompts, right-padded random completions: what TRL hands to the trainer's hook."""
    generator = torch.Generator().manual_seed(3)
    width, longest = max(map(len, prompts)), max(lengths)
    ids, mask = [], []
    for owner, length in zip(owners, lengths, strict=True):
        pad = width - len(prompts[owner])
        completion = torch.randint(3, 128, (length,), generator=generator).tolist()
        ids.append([0] * pad + prompts[owner] + completion + [0] * (longest - length))
        mask.append([0] * pad + [1] * (len(prompts[owner]) + length) + [0] * (longest - length))
    return torch.tensor(ids), torch.tensor(mask), longest


def stock(model, ids, mask, length):
    labels = ids.masked_fill(mask == 0, -100)
    labels[:, :-length] = -100
    out = model(input_ids=ids, attention_mask=mask, labels=labels, fused_lm_head=True)
    # TRL's own alignment of the shifted scores with the completion.
    return out.log_probs[:, -length:], out.entropy[:, -length:]


def gradients(model, log_probs, entropies):
    model.zero_grad()
    weights = torch.linspace(-1, 1, len(log_probs))[:, None]
    (log_probs * weights + 0.1 * entropies).sum().backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.requires_grad}


CASES = {
    "one prompt": ([PROMPTS[0]], [0] * 4, [5, 9, 2, 9]),
    "three prompts of different length": (PROMPTS, [0, 0, 1, 1, 2, 2], [5, 1, 7, 7, 3, 12]),
    "shuffled rows and uneven groups": (PROMPTS, [2, 0, 1, 0, 2, 0, 0], [4, 8, 1, 30, 2, 60, 5]),
    "nothing in common": ([[5, 6, 7], [8, 9, 10, 11]], [0, 1, 0, 1], [4, 4, 6, 1]),
    "one prompt begins another": ([COMMON, [*COMMON, 60, 61]], [0, 0, 1, 1], [3, 4, 5, 6]),
    "one-token completions": (PROMPTS, [0, 0, 1, 1], [1, 1, 1, 1]),
    "a completion masked away": (PROMPTS, [0, 0, 1, 1], [4, 0, 3, 5]),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_log_probabilities_and_gradients_equal_the_stock_path(case: str, kind: str) -> None:
    model = lora_model(kind)
    ids, mask, length = batch(*CASES[case])
    got = shared_prompts.shared_prompt_logps(model, ids, mask, length, pad_id=0)
    assert got is not None
    got_gradients = gradients(model, *got)
    expected = stock(model, ids, mask, length)
    expected_gradients = gradients(model, *expected)
    torch.testing.assert_close(got[0], expected[0], atol=1e-4, rtol=0)
    torch.testing.assert_close(got[1], expected[1], atol=1e-4, rtol=0)
    for name, gradient in expected_gradients.items():
        assert (got_gradients[name] - gradient).norm() <= 1e-4 * gradient.norm() + 1e-7, name


def test_the_reference_pass_is_shared_too() -> None:
    model = lora_model(tied=False)
    ids, mask, length = batch(*CASES["three prompts of different length"])
    with torch.no_grad(), model.disable_adapter():
        got = shared_prompts.shared_prompt_logps(model, ids, mask, length, pad_id=0)
        expected = stock(model, ids, mask, length)
    torch.testing.assert_close(got[0], expected[0], atol=1e-4, rtol=0)


def test_each_distinct_prompt_runs_once() -> None:
    model = lora_model()
    ids, mask, length = batch(PROMPTS, [0] * 8 + [1] * 8, [6] * 16)
    seen = []
    embedding = model.get_base_model().model.embed_tokens
    hook = embedding.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0].numel()))
    shared_prompts.shared_prompt_logps(model, ids, mask, length, pad_id=0)
    hook.remove()
    # What both share, the rest of each (left-padded), and 16 completions with the last prompt token before each.
    assert sum(seen) == 25 + 2 * 2 + 16 * 6


def test_without_a_repeated_prompt_the_stock_path_is_asked_for() -> None:
    model = lora_model()
    ids, mask, length = batch(PROMPTS, [0, 1, 2], [3, 3, 3])
    assert shared_prompts.shared_prompt_logps(model, ids, mask, length, pad_id=0) is None
    ids, mask, length = batch(PROMPTS, [0, 0], [4, 4])
    mask[0, -3] = 0  # a hole, as masked tool output leaves it
    assert shared_prompts.shared_prompt_logps(model, ids, mask, length, pad_id=0) is None


GREEDY = dict(do_sample=False)
SAMPLING = {
    "plain": dict(temperature=1.0, top_k=0, top_p=1.0),
    "temperature": dict(temperature=0.6, top_k=0),
    "top-p": dict(top_p=0.8, top_k=0),
    "top-k and min-p": dict(top_k=80, min_p=0.002),
    "repetition penalty": dict(repetition_penalty=1.4, top_k=0),
}


def through_generate(model, prompts, config):
    return rollout._stock_sample(model, prompts, config)


def config(**kwargs: object) -> GenerationConfig:
    sampling = {"do_sample": True, **kwargs}
    return GenerationConfig(max_new_tokens=24, pad_token_id=0, eos_token_id=[2, 7], disable_compile=True, **sampling)


@pytest.mark.parametrize("name", [*SAMPLING, "greedy"])
def test_the_same_seed_gives_the_tokens_of_generate(name: str) -> None:
    model = lora_model()
    prompts = [PROMPTS[i] for i in (0, 0, 0, 0, 1, 1, 1, 1, 2, 2)]
    settings = config(**(GREEDY if name == "greedy" else SAMPLING[name]))
    torch.manual_seed(11)
    got = rollout.sample(model, prompts, settings)
    torch.manual_seed(11)
    expected = through_generate(model, prompts, settings)
    assert got == expected
    if name != "greedy":
        assert len({len(row) for row in got}) > 1, "no row ended early, so leaving the batch was not tried"


def test_draws_follow_the_distribution() -> None:
    """First tokens against their exact probabilities, by a chi-squared test over the commonest."""
    from scipy.stats import chisquare

    model = lora_model()
    count = 4000
    torch.manual_seed(5)
    firsts = [row[0] for row in rollout.sample(model, [PROMPTS[0]] * count, config(top_k=0).__class__(
        max_new_tokens=1, do_sample=True, top_k=0, temperature=0.5, pad_token_id=0, eos_token_id=2
    ))]  # fmt: skip
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([PROMPTS[0]])).logits[0, -1] / 0.5
    expected = logits.softmax(-1) * count
    often = expected > 20
    observed = torch.bincount(torch.tensor(firsts), minlength=128)
    found = [*observed[often].tolist(), observed[~often].sum().item()]
    wanted = [*expected[often].tolist(), expected[~often].sum().item()]
    assert chisquare(found, [w * sum(found) / sum(wanted) for w in wanted]).pvalue > 1e-3


def test_a_rollout_leaves_the_model_as_it_was() -> None:
    model = lora_model().train()
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    rollout.sample(model, [PROMPTS[0]] * 3, config(top_k=0))
    assert model.training
    assert all(torch.equal(before[name], p) for name, p in model.named_parameters())
    assert not any("forward" in vars(module) for module in model.modules() if hasattr(module, "lora_A"))


def test_folding_equals_the_lora_layers() -> None:
    model = lora_model().eval()
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        with rollout.folded_lora(model):
            folded = model(input_ids=ids).logits
        with model.disable_adapter(), rollout.folded_lora(model):
            without = model(input_ids=ids).logits
        with model.disable_adapter():
            plain = model(input_ids=ids).logits
    torch.testing.assert_close(folded, expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(without, plain)
    assert (folded - plain).abs().max() > 0.01


def test_a_16_bit_model_is_not_folded_because_rounding_would_lose_small_changes() -> None:
    model = lora_model().to(torch.bfloat16).eval()
    ids = torch.tensor([PROMPTS[0]])
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        with rollout.folded_lora(model):
            assert torch.equal(model(input_ids=ids).logits, expected)


def test_a_4_bit_base_is_folded(tiny_folder) -> None:
    import grpo_nb as gn

    model, tokenizer = gn.load_model(gn.preset("cpu", model=str(tiny_folder), load_in_4bit=True))
    ids = tokenizer("What is 3 + 4?", return_tensors="pt")["input_ids"]
    model.eval()
    with torch.no_grad():
        expected = model(input_ids=ids).logits
        with rollout.folded_lora(model):
            folded = model(input_ids=ids).logits
    torch.testing.assert_close(folded, expected, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"layer_types": ["full_attention", "sliding_attention", "full_attention"]}, "sliding_attention"),
        ({"sliding_window": 8}, "sliding window"),
        ({"rope_parameters": None}, "no rotary"),
    ],
)
def test_models_it_does_not_fit_are_named(change: dict, said: str) -> None:
    model = lora_model()
    assert shared_prompts.shared_prompt_obstacle(model) is None
    for name, value in change.items():
        setattr(model.config, name, value)
    assert said in shared_prompts.shared_prompt_obstacle(model)


def test_buckets_cover_every_row_and_save_padding() -> None:
    lengths = [60, 3, 4, 61, 5, 2, 58, 3]
    buckets = shared_prompts.length_buckets(lengths)
    assert sorted(row for bucket in buckets for row in bucket) == list(range(8))
    assert len(buckets) == 2, "three long and five short rows belong apart"
    assert shared_prompts.length_buckets([5, 5, 6]) == [[0, 1, 2]]


def test_generate_keeps_order_and_says_what_was_cut(embedded_folder) -> None:
    import grpo_nb as gn

    model, tokenizer = gn.load_model(gn.preset("cpu"))
    chats = [
        [{"role": "user", "content": text}] for text in ("Say yes.", "Write a long story about a whale.", "Say no.")
    ]
    done = []
    got = rollout.generate(model, tokenizer, chats, max_completion_length=20, batch_size=2, progress=done.append)
    assert done == [2, 3]
    assert got[1].is_cut and got[1].tokens == 20
    plain = AutoTokenizer.from_pretrained(embedded_folder)
    ids = plain.apply_chat_template(chats, add_generation_prompt=True, return_dict=True)["input_ids"]
    ends = [tokenizer.eos_token_id]
    greedy = GenerationConfig(
        max_new_tokens=20, do_sample=False, pad_token_id=tokenizer.pad_token_id, eos_token_id=ends
    )
    expected = rollout._stock_sample(model, ids, greedy)
    assert [c.text for c in got] == [tokenizer.decode(row, skip_special_tokens=True) for row in expected]
