"""Running written code where it can do no harm. `zygote.py` is started as a script in a bare interpreter.

Not here: judging what the code answers (`rewards`); expected values never enter.
"""

from grpo_nb.core import open_door
from grpo_nb.sandbox.candidates import check_sandbox, run_untrusted, run_untrusted_batch, sandbox_level
from grpo_nb.sandbox.jobs import Call, Candidate, Limits, Outcome
from grpo_nb.sandbox.values import is_same_value, refuse_equal_hashes

__getattr__, __dir__, __all__ = open_door(globals())
