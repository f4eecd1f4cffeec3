"""Text from a model, whichever engine writes it: the kit's loop on a CPU, vLLM, Unsloth or llama.cpp.

Not here: loading a model (`models`), and what its text is worth (`rewards`).
"""

from grpo_nb.generation.choice import EngineChoice, choose_engine
