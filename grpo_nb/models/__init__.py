"""Load a model with its LoRA, and know it again.

`import_unsloth` imports Unsloth before what it patches. `generation` samples from the model, and
`training` changes it.
"""

from grpo_nb.models.templates import give_tool_template
