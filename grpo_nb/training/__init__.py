"""Start, resume and end a run; try the first step without training.

`runs` describes the run's folder. `evaluation` and `export` work with runs afterwards.
"""

import lazy_loader

# Loaded on first use, because most of these files import trl, and unsloth before it. `train` and
# `dry_run` are not listed, because users call them as `gn.train` and `gn.dry_run`.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "prepare": ["effective_settings"],
        "recorder": ["Observer"],
    },
)
