"""Replace computations that always use float32, for a comparison in float64.

As a program it starts the train.py of a folder so: scale_exact.py FOLDER ARGUMENTS
"""

import runpy
import sys

import torch
from transformers.models.llama import modeling_llama


def norm(self, states):
    """Root mean square normalisation, in place of `LlamaRMSNorm.forward`."""
    return (
        self.weight
        * states
        * torch.rsqrt(states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    )


class Head:
    """Return log-probabilities and entropies (N) of `log_softmax(hidden Wᵀ / temperature)`.

    It takes the place of TRL's output layer.
    """

    @staticmethod
    def apply(hidden, weight, bias, targets, temperature, *rest):
        words = (hidden @ weight.t() / temperature).log_softmax(-1)
        return (
            words.gather(1, targets[:, None])[:, 0],
            -(words.exp() * words).sum(-1),
            None,
            None,
            None,
        )


if __name__ == "__main__":
    from trl.trainer import utils

    modeling_llama.LlamaRMSNorm.forward = norm
    utils._ChunkedLogProbFunction = Head
    folder = sys.argv[1]
    sys.path[0] = folder
    sys.argv = [f"{folder}/train.py", *sys.argv[2:]]
    runpy.run_path(sys.argv[0], run_name="__main__")
