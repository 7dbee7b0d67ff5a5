from collections.abc import Iterable
from contextlib import AbstractContextManager

from torch import nn

def GatheredParameters(params: Iterable[nn.Parameter], enabled: bool) -> AbstractContextManager[None]: ...
