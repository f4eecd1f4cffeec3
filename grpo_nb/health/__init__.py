"""Find problems of a run in its log: alerts in words, with numbers and advice.

- `history` keeps the rows that rules look back at.
- `trend` measures whether the rewards rise.
- `rules` has one function for each kind of problem.
- `monitor` turns what the rules find into alerts, and replays a log.

Nothing here loads torch.
"""

from grpo_nb.health.monitor import HealthMonitor, HealthReport, check_health
