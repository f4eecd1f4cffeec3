"""What is wrong with a run, in words with evidence and advice.

Rules read rows and load nothing heavy. What an alert is and where it is kept stands in `runs`.
"""

from grpo_nb.health.monitor import HealthMonitor, HealthReport, check_health
