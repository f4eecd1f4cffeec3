"""Private symbols of transformers that the kit relies on."""

from __future__ import annotations

from collections.abc import MutableMapping
from functools import partial
from typing import TYPE_CHECKING, Any

from grpo_nb.upstream.symbols import require_symbol

if TYPE_CHECKING:
    from transformers import GenerationConfig, LogitsProcessorList, PreTrainedModel


def sampling_setup(
    model: PreTrainedModel, config: GenerationConfig, prompt_width: int
) -> tuple[GenerationConfig, LogitsProcessorList]:
    """Return the complete generation config and the logits processors that `generate` would use.

    The CPU sampler samples the same tokens as `model.generate`, because it uses the same config and
    processors (transformers/generation/utils.py, `GenerationMixin.generate`). Once `generate`
    computes a common prompt once and drops finished rows, the CPU sampler can call it, and this
    function can go.

    Args:
        model: The model that samples.
        config: Generation config as the caller gives it to `generate`, with `max_new_tokens`.
        prompt_width: Number of tokens of each padded prompt.
    """
    prepare_config = require_symbol(model, "_prepare_generation_config", "transformers")
    prepare_tokens = require_symbol(model, "_prepare_special_tokens", "transformers")
    get_processors = require_symbol(model, "_get_logits_processor", "transformers")
    # A copy, in which the model's generation_config fills each parameter that has no value.
    complete_config, _ = prepare_config(config)
    # Sets `_eos_token_tensor`, which the processor of `min_new_tokens` needs. With True,
    # transformers does not warn of a missing attention mask: the sampler has a mask.
    prepare_tokens(complete_config, kwargs_has_attention_mask=True, device="cpu")
    # The processor of `forced_eos_token_id` reads this length (`_prepare_generated_length`).
    complete_config.max_length = prompt_width + complete_config.max_new_tokens
    processors = get_processors(
        generation_config=complete_config, input_ids_seq_length=prompt_width, device="cpu"
    )
    return complete_config, processors


def attention_functions() -> MutableMapping[str, Any]:
    """Return the table in which models look up their attention function by name.

    The CPU engine replaces the entry `sdpa` while it runs (transformers/modeling_utils.py,
    `ALL_ATTENTION_FUNCTIONS`). With a mask, the original copies keys and values for each query head
    (transformers/integrations/sdpa_attention.py, `use_gqa_in_sdpa`). Once it needs no copies on a
    CPU, this function and `grpo_nb.cpu.attention` can go.
    """
    from transformers import modeling_utils

    return require_symbol(modeling_utils, "ALL_ATTENTION_FUNCTIONS", "transformers")


def hide_loading_bars() -> None:
    """Hide transformers' progress bars, which a saved notebook would show at 0 % for ever.

    `disable_progress_bar` (transformers/utils/logging.py) hides the bars of downloads too. They are
    shown again, unless they were hidden before.
    """
    from huggingface_hub.utils import are_progress_bars_disabled, enable_progress_bars
    from transformers.utils import logging as transformers_logging

    downloads_were_hidden = are_progress_bars_disabled()
    transformers_logging.disable_progress_bar()
    if not downloads_were_hidden:
        enable_progress_bars()


def silence_gguf_reader() -> None:
    """Switch off the progress bar of the GGUF reader, which has no option for this.

    `load_gguf_checkpoint` (transformers/modeling_gguf_pytorch_utils.py) imports tqdm itself, so
    transformers' `disable_progress_bar` has no effect on its bar. transformers' new reader has no
    bar. Once it takes Llama models, that is, once `GGUF_ARCHS` lists them
    (transformers/integrations/gguf/gguf_conversion_mapping.py), this function can go.
    """
    from transformers import modeling_gguf_pytorch_utils as reader

    # functools flattens a partial of a partial, so repeated calls change nothing.
    bar = require_symbol(reader, "tqdm", "transformers")
    reader.tqdm = partial(bar, disable=True)


def forget_gguf_name(model: PreTrainedModel) -> None:
    """Remove the name inside the GGUF file from a model's config, if it has one.

    transformers/integrations/ggml.py maps `general.name` to this attribute. It would be saved, and
    no model can be loaded by that name.
    """
    vars(model.config).pop("_model_name_or_path", None)
