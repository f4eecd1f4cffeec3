"""Public names of `gn`, at most thirty. The loader, `dir(gn)` and editors read this list."""

from . import checks as checks
from . import config as config
from . import evaluation as evaluation
from . import export as export
from . import health as health
from . import machine as machine
from . import rewards as rewards
from . import runs as runs
from . import scaleout as scaleout
from . import tasks as tasks
from . import training as training
from .checks.learning_signal import baseline as baseline
from .checks.reward_check import check_rewards as check_rewards
from .config.planning import plan as plan
from .config.presets import preset as preset
from .config.settings import Settings as Settings
from .evaluation.asking import ask as ask
from .evaluation.asking import compare as compare
from .evaluation.asking import evaluate as evaluate
from .export.gguf import export_gguf as export_gguf
from .export.merged import export_merged as export_merged
from .lab.reward_lab import RewardLab as RewardLab
from .machine.checks import check_environment as check_environment
from .models.load import load_model as load_model
from .runs.run_folder import open_run as open_run
from .runs.viewer import RunViewer as RunViewer
from .scoring.scores import score as score
from .tasks.load import load_task as load_task
from .training.dry_run import dry_run as dry_run
from .training.train import train as train

__version__: str
