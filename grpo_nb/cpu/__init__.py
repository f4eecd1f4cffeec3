"""A GRPO step on a CPU at about a quarter of its cost, with the same numbers up to rounding.

`grpo_nb.cpu.engine.CpuEngine` is the only public name. It samples completions and computes their
log-probabilities with every distinct prompt computed once, the LoRA folded into the weights,
attention without copies of the key/value heads, and the output layer in tiles. These parts are
private to this subpackage. docs/evidence/cpu_step.md shows what each of them saves.
"""
