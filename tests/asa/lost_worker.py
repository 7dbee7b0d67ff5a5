"""Two ranks, of which the second is gone before its part of a sum; the first prints what it is told."""

import os

import torch

from asa import dist

dist.init(cuda=False, launched=True)
if dist.rank():
    os._exit(0)
try:
    with dist.loss_told():
        dist.all_reduce_(torch.ones(1))
except dist.RankLost as error:
    print(error, flush=True)
os._exit(0)  # the group has nobody left to take leave of
