from torch import nn

FWD_MODULE_STACK: list[nn.Module]
