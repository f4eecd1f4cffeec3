"""What is wrong with a run, in words with evidence and advice.

Rules read rows and load nothing heavy. What an alert is and where it is kept stands in `runs`.
"""

from grpo_nb.core import open_door
from grpo_nb.health.monitor import HealthMonitor, append_alert, check_health, explain_out_of_memory
from grpo_nb.health.report import HealthReport

__getattr__, __dir__, __all__ = open_door(globals())
