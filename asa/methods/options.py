"""The settings of every method in one config, which a stage's config extends; a run reads those of its method."""

from asa.adversary import ASAConfig
from asa.config import config
from asa.methods.random_mask import RandomMaskConfig


@config
class MethodsConfig:
    """Settings of the training methods."""

    asa: ASAConfig = ASAConfig()
    """Settings of method asa, Adversarial Self-Attention."""
    random_mask: RandomMaskConfig = RandomMaskConfig()
    """Settings of method random_mask."""
