"""`CpuEngine`: sample completions and their log-probabilities, each distinct prompt once.

The trainer (grpo_nb.training.trainer) and `generation.sampling.generate` use it. Without LoRA
dropout, it computes the same numbers as TRL's own path up to rounding. If the engine cannot be
used, `model_obstacle` or `sampling_obstacle` says why, and the caller takes TRL's path.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from grpo_nb.models.unsloth_import import import_unsloth

import_unsloth()

from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import GenerationMode

from grpo_nb.cpu import shared_prompts
from grpo_nb.cpu.folded_lora import FoldedLora
from grpo_nb.cpu.sampler import sample

if TYPE_CHECKING:
    from transformers import PreTrainedModel


class CpuEngine:
    """Sampling and log-probabilities with one model on a CPU.

    Args:
        model: Causal language model, plain or wrapped by PEFT, for which `model_obstacle` returns
            None. Until `release`, the engine keeps a copy of the model's adapted weights and, after
            the first `sample`, a packed copy of all linear layers.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        # All engines of one model share one copy of its weights.
        self._folded_lora = FoldedLora.of(model)

    @staticmethod
    def model_obstacle(model: PreTrainedModel, longest_sequence: int | None = None) -> str | None:
        """Return why the engine cannot run a model, or None if it can.

        Args:
            model: Causal language model, plain or wrapped by PEFT.
            longest_sequence: Tokens of prompt and completion together. Sliding-window layers are an
                obstacle if a row may be longer than the window, or if this number is not given.
        """
        config = model.config.get_text_config()
        model_type = config.model_type
        if next(model.parameters()).device.type != "cpu":
            return "the model is on a GPU, where vLLM or Unsloth's own generation is used"
        if config is not model.config:
            return f"{model_type} is multimodal"
        # Configurations without layer types have full attention in every layer. An unused window is
        # None or 0.
        layer_types = getattr(config, "layer_types", None) or ()
        for layer_type in layer_types:
            if layer_type not in ("full_attention", "sliding_attention"):
                return f"{model_type} has {layer_type} layers"
        window = getattr(config, "sliding_window", None)
        if window and (longest_sequence is None or longest_sequence > window):
            return (
                f"{model_type} uses a sliding window of {window} tokens, "
                "which prompt and completion may exceed"
            )
        if getattr(config, "rope_parameters", None) is None:
            return f"{model_type} has no rotary positions"
        # Only models whose cached keys and values differ in size have this number, such as DeepSeek
        # and MiMo-V2. The sampler keeps both in one tensor.
        if getattr(config, "v_head_dim", None):
            return f"{model_type} has keys and values of different sizes"
        if getattr(model, "is_gradient_checkpointing", False):
            return "gradient checkpointing drops the key/value cache"
        return None

    @staticmethod
    def sampling_obstacle(config: GenerationConfig) -> str | None:
        """Return why the engine cannot sample with a config, or None if it can.

        Args:
            config: As for `sample`. TRL adds the user's `generation_kwargs` to it.
        """
        modes = (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)
        is_plain = (
            config.get_generation_mode() in modes
            and config.max_time is None
            and config.guidance_scale in (None, 1)
            and config.num_return_sequences in (None, 1)
        )
        if is_plain:
            return None
        return (
            "generation_kwargs ask for beams, max_time, guidance_scale or num_return_sequences, "
            "which the CPU engine does not know"
        )

    def sample(
        self, prompt_ids: Sequence[Sequence[int]], config: GenerationConfig
    ) -> list[list[int]]:
        """Sample one completion for each prompt, as `model.generate` would.

        Args:
            prompt_ids: B lists of token ids. Repeat a prompt for each completion of its group.
            config: Length, special tokens and sampling parameters.

        Returns:
            B completions as token ids, up to and with the end token.
        """
        return sample(self.model, prompt_ids, config, self._folded_lora)

    def log_probs(
        self,
        model: Any,
        input_ids: Tensor,
        attention_mask: Tensor,
        completion_length: int,
        *,
        autocast: AbstractContextManager[Any],
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropies of completions, differentiable.

        Args:
            model: The engine's model as the trainer passes it, with the patch that
                `shared_prompt_log_probs` needs.
            input_ids: (B, P + C) left-padded prompts followed by right-padded completions.
            attention_mask: (B, P + C), 1 for real tokens.
            completion_length: C.
            autocast: The trainer's autocast block.

        Returns:
            `(log_probs, entropies)`, both (B, C) float32 in nats, and zero where masked.
        """
        with self._folded_lora.applied(), autocast:
            return shared_prompts.shared_prompt_log_probs(
                model, input_ids, attention_mask, completion_length
            )

    def release(self) -> None:
        """Give the memory back to the system. The next use takes it again."""
        self._folded_lora.release()
