"""Models: load them with a LoRA, save adapters and templates, and record how each was loaded.

`import_unsloth` imports Unsloth before the packages that it patches. `generation` samples from a
model, and `training` trains it.
"""

from grpo_nb.models.templates import set_tool_template
