"""python -m benchmarks data-prep | flops | reader | step-time | tokenize | upkeep: what steps and their data cost."""

if __name__ == "__main__":
    # Here, because worker processes import this file again and need none of it.
    import cli
    from benchmarks.data_prep import data_prep
    from benchmarks.flops import flops
    from benchmarks.reader import reader
    from benchmarks.step_time import step_time
    from benchmarks.tokenize import tokenize
    from benchmarks.upkeep import upkeep

    commands = {"data-prep": data_prep, "flops": flops, "reader": reader, "step-time": step_time}
    cli.main({**commands, "tokenize": tokenize, "upkeep": upkeep}, "benchmarks")
