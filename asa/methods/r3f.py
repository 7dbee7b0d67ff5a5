"""R3F (Aghajanyan et al., ICLR 2021, arXiv 2008.03156): task + lambda * symmetric KL(clean, noisy embeddings).

No adversary, and so the control for SMART and ALUM: the same divergence against noise that nothing optimises. As in
the release, both predictions carry gradient; there the noisy pass leaves the word embeddings out and a regression has
no divergence, here it is the squared difference.
"""

from typing import Literal

from torch import Tensor

from asa import perturb
from asa.batch import Batch
from asa.config import config
from asa.engine import Engine, Precision
from asa.errors import RequestError
from asa.methods.ball import Dropout, Size, check_sizes, dropout, room
from asa.methods.base import At, Stateless, learn
from asa.methods.smoothness import Weight, learned
from asa.signal import Perturb


@config
class R3FConfig:
    """R3F."""

    weight: Weight = 1.0
    """Factor of the divergence; the paper tries 0.1, 0.5, 1 and 5."""
    noise: Size = 1e-5
    """Bound of uniform noise, or standard deviation of normal noise, in units of the embeddings."""
    distribution: Literal["uniform", "normal"] = "uniform"
    """Noise per entry: U(-noise, noise) or N(0, noise^2)."""
    dropout: Dropout = "independent"
    """The two passes draw their own dropout masks, as released, which then are most of the divergence; or share one."""


class R3F(Stateless):
    """Two forwards, one backward."""

    def __init__(self, options: R3FConfig) -> None:
        if options.weight and not options.noise and options.dropout == "shared":
            raise RequestError(
                "with r3f.noise 0 and r3f.dropout shared both passes are one; set --r3f.noise above 0, or"
                " --r3f.dropout independent"
            )
        self.options = options

    def check_run(self, precision: Precision, zero: int) -> None:
        """Raises RequestError for noise that half precision rounds away."""
        if self.options.weight:
            check_sizes({"r3f.noise": self.options.noise}, precision)

    def backward(self, engine: Engine, batch: Batch, at: At) -> dict[str, Tensor]:
        draw = perturb.uniform if self.options.distribution == "uniform" else perturb.gaussian
        noise_RLD = draw(room(engine, batch), self.options.noise)
        with dropout(engine, self.options.dropout, taps=False):
            clean, noisy = engine.forward(batch), engine.forward(batch, Perturb(embed_BLD=noise_RLD))
        task, _, distance = learned(clean, noisy, batch)
        return learn(engine, {"task": task, "smooth": self.options.weight * distance})
