"""Run generated code where it can do no harm.

`grpo_nb.rewards` compares the results of the code; expected values never enter the sandbox.
"""

from grpo_nb.sandbox.outcomes import Call, Candidate, Limits, Outcome
from grpo_nb.sandbox.runner import isolation_failures, run_untrusted, run_untrusted_batch
