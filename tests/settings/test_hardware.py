"""Models by hardware: sizes are exact, the numbers are those of `plan`, and the context named is the last that fits."""

import json
from pathlib import Path

import pytest

import grpo_nb as gn
from grpo_nb.machine.gpu import Gpu
from grpo_nb.settings import shapes
from grpo_nb.settings.memory import _FOUR_BIT, vllm_cache_gb
from grpo_nb.settings.planning import SUGGESTED, models_for
from grpo_nb.settings.shapes import PUBLISHED, shape_of

# The published counts: the tensors of each repository's safetensors files, tied ones once. Written down beforehand, from
# memory, since no Hub can be reached here; that all of them follow exactly from the sizes speaks for both.
WEIGHTS = {
    "SmolLM2-135M-Instruct": 134_515_008,
    "HuggingFaceTB/SmolLM2-360M-Instruct": 361_821_120,
    "HuggingFaceTB/SmolLM2-1.7B-Instruct": 1_711_376_384,
    "unsloth/Qwen2.5-0.5B-Instruct": 494_032_768,
    "unsloth/Qwen2.5-1.5B-Instruct": 1_543_714_304,
    "unsloth/Qwen2.5-3B-Instruct": 3_085_938_688,
    "unsloth/Qwen2.5-7B-Instruct": 7_615_616_512,
    "unsloth/Qwen2.5-14B-Instruct": 14_770_033_664,
    "unsloth/Qwen3-0.6B": 596_049_920,
    "unsloth/Qwen3-1.7B": 1_720_574_976,
    "unsloth/Qwen3-4B": 4_022_468_096,
    "unsloth/Qwen3-8B": 8_190_735_360,
    "unsloth/Llama-3.2-1B-Instruct": 1_235_814_400,
    "unsloth/Llama-3.2-3B-Instruct": 3_212_749_824,
    "unsloth/Llama-3.1-8B-Instruct": 8_030_261_248,
    "unsloth/mistral-7b-instruct-v0.3": 7_248_023_552,
    "unsloth/gemma-2-2b-it": 2_614_341_888,
    "unsloth/gemma-3-1b-it": 999_885_952,
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_known_models_have_their_published_number_of_weights(name: str) -> None:
    assert shape_of(name).parameters == WEIGHTS[name]


@pytest.mark.parametrize(
    "name", ["unsloth/Qwen2.5-0.5B-Instruct", "unsloth/Qwen3-0.6B", "unsloth/Llama-3.2-1B-Instruct", "unsloth/gemma-3-1b-it"]
)  # fmt: skip
def test_the_sizes_are_those_of_the_model_that_transformers_builds(name: str) -> None:
    import torch
    import transformers

    sizes = dict(PUBLISHED[name])
    config = transformers.AutoConfig.for_model(sizes.pop("model_type"), **sizes)
    with torch.device("meta"):
        model = transformers.AutoModelForCausalLM.from_config(config)
    assert shape_of(name).parameters == sum(p.numel() for p in model.parameters())
    layers = sum(m.weight.numel() for n, m in model.named_modules() if n.startswith("model.layers") and "proj" in n)
    assert shape_of(name).linear == layers


def test_a_4_bit_weight_takes_the_bytes_that_bitsandbytes_gives_it() -> None:
    """nf4 with double quantization, as Unsloth loads: packed halves, one byte of scale for 64, one float for 256 of those."""
    import torch
    from bitsandbytes.functional import quantize_4bit

    weights = torch.randn(1536, 8960)
    packed, state = quantize_4bit(weights, quant_type="nf4", compress_statistics=True)
    inner = state.state2
    size = sum(t.numel() * t.element_size() for t in (packed, state.absmax, inner.absmax))
    assert size / weights.numel() == pytest.approx(_FOUR_BIT, rel=1e-4)


@pytest.mark.parametrize("machine", SUGGESTED)
def test_two_or_three_models_fit_each_machine(machine: str) -> None:
    table = models_for(machine)
    assert 2 <= len(table.rows) <= 3
    assert machine == "cpu" or table.rows[0].settings.model == gn.preset(machine).model
    for row in table.rows:
        longest, limit = row.longest_completion
        assert row.parts == gn.plan(row.settings, machine=machine).parts, "not the numbers of plan"
        assert row.fits or machine == "cpu"
        if limit == "memory" and longest:
            at = row.settings.replace(max_completion_length=longest)
            beyond = at.replace(max_completion_length=longest + 64)
            assert gn.plan(at, machine=machine).fits and not gn.plan(beyond, machine=machine).fits
        assert row.settings.max_prompt_length + longest <= PUBLISHED[row.settings.model]["max_position_embeddings"]


def test_a_model_too_large_says_so_and_a_longer_prompt_leaves_less() -> None:
    (row,) = models_for("t4", ["unsloth/Qwen2.5-14B-Instruct"], load_in_4bit=False).rows
    assert row.longest_completion[0] == 0 and not row.fits
    short, long = (models_for("l4", max_prompt_length=n).rows[0] for n in (256, 4096))
    assert long.longest_completion[0] < short.longest_completion[0]


def test_the_table_shows_its_parts_and_says_where_they_are_from() -> None:
    table = models_for("t4")
    for text in (repr(table), table._repr_html_()):
        assert "Qwen2.5-1.5B" in text and "weights, GB" in text and "context" in text
        assert "Not measured on a GPU yet" in text and "computed" in text
    assert "<b>t4</b>" in table._repr_html_()
    assert "unknown" in repr(models_for("t4", ["/no/such<b>folder"]))
    assert "<b>folder" not in models_for("t4", ["/no/such<b>folder"])._repr_html_()
    with pytest.raises(ValueError, match="machine = 't5' is not known here; did you mean 't4'"):
        models_for("t5")


def test_any_hub_model_is_planned_from_its_config_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def download(name: str, file: str, **_: object) -> str:
        asked.append((name, file))
        if name == "nobody/nothing":
            raise OSError("offline")
        (tmp_path / file).write_text(json.dumps(dict(PUBLISHED["unsloth/Qwen3-4B"])))
        return str(tmp_path / file)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    shapes._fetched_config.cache_clear()
    settings = gn.preset("l4", model="someone/a-model")
    found = gn.plan(settings, machine="l4")
    assert asked == [("someone/a-model", "config.json")], "more than the configuration was asked for, or more than once"
    assert found.memory_gb == gn.plan(settings.replace(model="unsloth/Qwen3-4B"), machine="l4").memory_gb
    assert gn.plan(settings.replace(model="nobody/nothing"), machine="l4").memory_gb is None
    shapes._fetched_config.cache_clear()


def test_vllm_needs_room_beside_the_weights_and_one_sequence(monkeypatch) -> None:
    """Its graphs, its own activations and the LoRA come out of the same share; without them the plan would say it fits."""
    monkeypatch.setenv("UNSLOTH_VLLM_STANDBY", "0")
    settings = gn.preset("t4", model="unsloth/Qwen2.5-7B-Instruct", gpu_memory_utilization=0.6)
    shape = shape_of(settings.model)
    weights = (shape.linear * (4 + 0.127) / 8 + (shape.parameters - shape.linear) * 2) / 1e9
    _, one = vllm_cache_gb(settings, shape, Gpu("a card", 100.0, (7, 5)), settings.max_prompt_length)
    bare = (weights + one) * 1e9 / 0.6 / 2**30
    for more, fits in ((0.1, False), (1.5, True)):
        found = gn.plan(settings, machine=Gpu("a card", bare + more, (7, 5)))
        assert found.fits is fits, found.obstacle
        assert fits or "for keys and values" in found.obstacle
