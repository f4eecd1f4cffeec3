"""One run, begun, gone on with and ended: training, resuming, dry runs and priming.

Not here: what a run's folder holds (`runs`), and what is made of it afterwards (`evaluation`, `export`).
"""

import lazy_loader

# Found when asked for: most of them import trl, and unsloth before it. `gn.train` and `gn.dry_run` are those of the files.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "effective": ["effective_settings"],
        "priming": ["prime"],
        "callback": ["Observer"],
    },
)
