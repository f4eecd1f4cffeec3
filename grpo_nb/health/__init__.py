"""Find problems of a run in its log: alerts in words, with numbers and advice.

- `logs` reads rows from files, tables and printed text.
- `history` keeps the rows that rules look back at.
- `trend` measures whether the rewards rise.
- `rules` has one function for each kind of problem.
- `monitor` turns what the rules find into alerts.

Nothing here loads torch.
"""

from grpo_nb.health.monitor import HealthMonitor, HealthReport, check_health
