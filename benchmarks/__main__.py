"""python -m benchmarks COMMAND: what steps, runs and their data cost, peers in the same run (docs/benchmarks.md)."""

if __name__ == "__main__":
    # Here, because worker processes import this file again and need none of it.
    import cli
    from benchmarks.data_prep import data_prep
    from benchmarks.finetune_throughput import finetune_throughput
    from benchmarks.flops import flops
    from benchmarks.memory import memory
    from benchmarks.reader import reader
    from benchmarks.scaling import scaling
    from benchmarks.startup import startup
    from benchmarks.step_time import step_time
    from benchmarks.tokenize import tokenize
    from benchmarks.upkeep import upkeep

    steps = {"flops": flops, "step-time": step_time, "memory": memory, "finetune-throughput": finetune_throughput}
    runs = {"scaling": scaling, "startup": startup, "upkeep": upkeep}
    cli.main({**steps, **runs, "data-prep": data_prep, "tokenize": tokenize, "reader": reader}, "benchmarks")
