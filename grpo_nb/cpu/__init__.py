"""A GRPO step on a CPU in about a quarter of TRL's time, with the same numbers up to rounding.

`grpo_nb.cpu.engine` is for other subpackages. `CpuEngine` samples completions and
computes their log-probabilities. It computes every distinct prompt once, with the LoRA folded into
the weights, and attention without copies of the key/value heads. The other files are private.
"""
