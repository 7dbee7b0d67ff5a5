"""ALUM (Liu et al. 2020, arXiv 2004.08994), Algorithm 1: task + alpha * divergence(clean, worst perturbation).

SMART without its teacher, made for pre-training too: the paper's alpha is 10 there and 1 in fine-tuning, eps and sigma
1e-5, the step 1e-3, one ascent. What differs: the gradient is brought to a largest entry of 1 before the step.
"""

from torch import Tensor

from asa.batch import Batch
from asa.engine import Engine, Precision
from asa.methods.ball import check_sizes, dropout
from asa.methods.base import At, Stateless, learn
from asa.methods.smoothness import SmoothConfig, noise, smooth


class ALUM(Stateless):
    """The virtual adversarial objective."""

    def __init__(self, options: SmoothConfig) -> None:
        self.options = options

    def check_run(self, precision: Precision, zero: int) -> None:
        """Raises RequestError for a perturbation that half precision rounds away."""
        options = self.options
        if options.weight:
            check_sizes({"alum.radius": options.radius, "alum.noise": options.noise}, precision)

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        options = self.options
        start_RLD = noise(engine, batch, options) if options.weight else None
        with dropout(engine, options.dropout, taps=False):
            terms = smooth(engine, batch, engine.forward(batch), start_RLD, options)
        return learn(engine, terms)
