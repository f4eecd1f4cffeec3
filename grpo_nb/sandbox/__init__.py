"""Running written code where it can do no harm.

Not here: judging what the code answers (`rewards`); expected values never enter.
"""

from grpo_nb.sandbox.candidates import holes, run_untrusted
from grpo_nb.sandbox.jobs import Call, Candidate, Limits, Outcome
