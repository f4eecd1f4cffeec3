"""What `gn.` offers: at most thirty names. The loader, `dir(gn)` and editors read this list."""

from . import evaluation as evaluation
from . import export as export
from . import health as health
from . import machine as machine
from . import rewards as rewards
from . import runs as runs
from . import sandbox as sandbox
from . import scaleout as scaleout
from . import settings as settings
from . import tasks as tasks
from . import training as training
from .checks import baseline as baseline
from .checks import check_rewards as check_rewards
from .evaluation import compare as compare
from .evaluation import evaluate as evaluate
from .export import export_gguf as export_gguf
from .export import export_merged as export_merged
from .lab import RewardLab as RewardLab
from .machine import check_environment as check_environment
from .models import load_model as load_model
from .rewards import score as score
from .runs import RunViewer as RunViewer
from .runs import open_run as open_run
from .settings import Settings as Settings
from .settings import effective_settings as effective_settings
from .settings import plan as plan
from .settings import preset as preset
from .tasks import load_task as load_task
from .training import dry_run as dry_run
from .training import train as train

__version__: str
