"""A model with its LoRA, and which model it is. Unsloth is imported here, before all that it patches.

Not here: what the model writes (`generation`), and how it changes (`training`).
"""

from grpo_nb.models.tool_calls import give_tool_template
