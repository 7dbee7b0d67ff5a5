"""Two ranks, of which the second is lost and torchrun starts both again, the first a little later then."""

import os
import time

import torch

from asa import dist

again = dist.start_again(os.environ)
if again and os.environ["RANK"] == "0":
    time.sleep(3)
dist.init(cuda=False, launched=True, start=again)
total = dist.all_reduce_(torch.ones(1)).item()
if not again:
    os._exit(3) if dist.rank() else time.sleep(60)
print(f"{again}: {total:g}", flush=True)
dist.close()
