"""Start, resume and end a run; try the first step without training.

The run's folder is described in `runs`, and what is made of a run afterwards in `evaluation` and
`export`.
"""

import lazy_loader

# Loaded on first use, because most of these files import trl, and unsloth before it. `train` and
# `dry_run` are `gn.train` and `gn.dry_run`.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "prepare": ["effective_settings"],
        "recorder": ["Observer"],
    },
)
