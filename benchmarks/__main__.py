"""python -m benchmarks flops | step-time: what a training step costs."""

import cli
from benchmarks.flops import flops
from benchmarks.step_time import step_time

if __name__ == "__main__":
    cli.main({"flops": flops, "step-time": step_time}, "benchmarks")
