"""python -m benchmarks flops | step-time: what a training step costs."""

from asa import config
from benchmarks.flops import flops
from benchmarks.step_time import step_time

if __name__ == "__main__":
    config.main({"flops": flops, "step-time": step_time}, "benchmarks")
