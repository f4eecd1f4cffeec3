"""Text from a model: the kit's CPU engine, vLLM, Unsloth or transformers, and llama.cpp for GGUF files.

Loading a model is in `models`; scoring its text is in `scoring`.
"""

from grpo_nb.generation.choice import EngineChoice, choose_engine
