"""Running written code where it can do no harm.

Not here: judging what the code answers (`rewards`); expected values never enter.
"""

from grpo_nb.sandbox.candidates import check_sandbox, run_untrusted, sandbox_level
from grpo_nb.sandbox.jobs import Call, Candidate, Limits, Outcome
