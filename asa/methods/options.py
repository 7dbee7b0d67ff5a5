"""The settings of every method in one config, which a stage's config extends; a run reads those of its method."""

from dataclasses import field

from asa.adversary import ASAConfig
from asa.config import config
from asa.methods.asa_sparse import ASASparseConfig
from asa.methods.creat import CreATConfig
from asa.methods.fgm import FGMConfig
from asa.methods.freeat import FreeATConfig
from asa.methods.freelb import FreeLBConfig
from asa.methods.pgd import PGDConfig
from asa.methods.r3f import R3FConfig
from asa.methods.r_drop import RDropConfig
from asa.methods.random_mask import RandomMaskConfig
from asa.methods.smart import SMARTConfig
from asa.methods.smart_released import SMARTReleasedConfig
from asa.methods.smoothness import SmoothConfig
from asa.methods.vat import VATConfig
from asa.methods.yopo import YOPOConfig


@config
class MethodsConfig:
    """Settings of the training methods."""

    asa: ASAConfig = ASAConfig()
    """Settings of methods asa (Adversarial Self-Attention), asa_sparse and asa_freelb."""
    asa_sparse: ASASparseConfig = ASASparseConfig()
    """Settings of method asa_sparse, beside those of asa."""
    random_mask: RandomMaskConfig = RandomMaskConfig()
    """Settings of method random_mask."""
    pgd: PGDConfig = PGDConfig()
    """Settings of method pgd."""
    freeat: FreeATConfig = FreeATConfig()
    """Settings of method freeat."""
    yopo: YOPOConfig = YOPOConfig()
    """Settings of method yopo."""
    freelb: FreeLBConfig = FreeLBConfig()
    """Settings of methods freelb and asa_freelb."""
    fgm: FGMConfig = FGMConfig()
    """Settings of method fgm."""
    smart: SMARTConfig = SMARTConfig()
    """Settings of method smart."""
    smart_released: SMARTReleasedConfig = SMARTReleasedConfig()
    """Settings of method smart_released."""
    alum: SmoothConfig = SmoothConfig()
    """Settings of method alum."""
    vat: VATConfig = VATConfig()
    """Settings of method vat."""
    r3f: R3FConfig = R3FConfig()
    """Settings of method r3f."""
    r_drop: RDropConfig = RDropConfig()
    """Settings of method r_drop."""
    creat: CreATConfig = CreATConfig()
    """Settings of method creat."""
    outside: dict[str, bool | int | float | str] = field(default_factory=dict[str, bool | int | float | str])
    """Settings of methods from outside the package, which read them by name."""
