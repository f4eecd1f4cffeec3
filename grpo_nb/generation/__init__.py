"""Text from a model, by the CPU engine, vLLM, Unsloth, transformers or llama.cpp.

Loading a model is in `models`; scoring its text is in `scoring`.
"""

from grpo_nb.generation.choice import EngineChoice, choose_engine
