"""Several processes of one group, for tests."""

import os
import subprocess
import sys

ON_CPU = {"DS_ACCELERATOR": "cpu", "CUDA_VISIBLE_DEVICES": ""}


def run_ranks(world: int, module: str, *args: object, timeout: float, cuda: bool = False) -> str:
    """What `python -m MODULE ARGS` prints as so many processes of one thread, all of which must end well."""
    # Standalone, the launcher keeps the port that it was given by the system: nobody can take it in between.
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--local-addr", "127.0.0.1"]
    command += ["--nproc-per-node", str(world), "-m", module, *map(str, args)]
    settings = {"OMP_NUM_THREADS": "1"} | ({} if cuda else ON_CPU)
    done = subprocess.run(command, env=os.environ | settings, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout
