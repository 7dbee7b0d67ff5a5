"""The pre-training loop: batches -> objective -> method -> engine, with log lines, evaluations and checkpoints."""

import math
import os
import time
from collections.abc import Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import NoReturn

import torch
from torch import Tensor
from tqdm import tqdm

from asa import checkpoint, dist, manifest
from asa.config import save_yaml
from asa.engine import StepStats, broken_weight
from asa.errors import NotWritten, RequestError, WorkError
from asa.methods import At
from asa.methods.base import add
from asa.places import atomic_write
from asa.record import Record, Value, shared
from pretrain.config import PretrainConfig
from pretrain.faults import Fault
from pretrain.figures import Meter, figures
from pretrain.objective import Terms, evaluate
from pretrain.progress import postfix, progress_bar
from pretrain.resume import complete, inputs, newest, only_run, setting_of
from pretrain.run import Run, build, facts_of, save, say
from pretrain.stop import Stop
from pretrain.watchdog import Watchdog, shared_store


@dataclass
class Session:
    """One process's part of a run, from its start or checkpoint to its end or a stop."""

    run: Run
    record: Record
    bar: tqdm
    stop: Stop
    watchdog: Watchdog
    meter: Meter
    began: float


def train(config: PretrainConfig, device: torch.device) -> int:
    """Run or continue pre-training in `config.out`; every rank calls it. Returns the signal that has stopped it, where
    this rank has got one, else 0.

    A SIGTERM or SIGINT to any rank ends it in order, with a complete checkpoint, after the step at hand.
    Raises: RequestError where `config.out` belongs to another request, WorkError for damaged input or a diverged run.
    """
    with ExitStack() as stack:
        stop = stack.enter_context(Stop().caught())
        watchdog = stack.enter_context(Watchdog(config.hang_timeout, shared_store()).watching())
        _check_inputs(config)
        stack.enter_context(only_run(config.out))
        watchdog.beat()
        found = dist.on_main(lambda: newest(config, dist.world(), print))
        if dist.on_main(lambda: complete(config, found)):
            say(f"{config.out} is complete: all {config.steps} steps are made")
            return 0
        run = build(config, device, found)
        watchdog.beat()
        facts = dist.on_main(lambda: facts_of(run))
        record = stack.enter_context(closing(shared(config.out, facts, run.step or None, config.wandb)))
        # After the record, by which the folder is known as a run's.
        dist.on_main(lambda: _write_request(config))
        bar = stack.enter_context(progress_bar(config.method, run.step, config.steps))
        session = Session(run, record, bar, stop, watchdog, Meter(run), time.perf_counter() - run.seconds)
        if 0 < run.step < config.steps:
            _record(session, "resume", run.step, {"processes": dist.world()})
        if _steps(session):
            seconds = time.perf_counter() - session.began
            last = {"seconds": seconds, "tokens": run.step * run.tokens_per_step, "steps": run.step}
            dist.on_main(lambda: record.end(last))
        else:
            bar.close()
            say(f"stopped at step {run.step} of {config.steps}; the same command continues it")
            return stop.signal
    return 0


def _check_inputs(config: PretrainConfig) -> None:
    """Verify every byte of the shards. Raises RequestError where another machine has other shards or another model."""
    _verify(config)
    found = dist.all_gather(inputs(config))
    for rank, theirs in enumerate(found):
        if wrong := [name for name in theirs if theirs[name] != found[0][name]]:
            flag = setting_of(wrong[0])
            raise RequestError(f"rank {rank} finds another {flag} than rank 0 there; copy it, or set --{flag}")


def _verify(config: PretrainConfig) -> None:
    """Hash the shards and the model on every machine. Raises WorkError, on every rank, where one's are damaged."""

    def verify() -> None:
        try:
            manifest.verify(config.data, "shards", "--data")
            inputs(config)  # which looks at the model's weights
        except OSError as error:
            raise WorkError(f"{error.filename or config.data} cannot be read: {error.strerror or error}") from None

    each = os.environ.get("LOCAL_RANK", "0") == "0"  # each machine may have a copy of its own
    dist.agreed(verify if each else lambda: None)


def _write_request(config: PretrainConfig) -> None:
    with atomic_write(config.out / "config.yaml") as partial:
        save_yaml(config, partial)


def _steps(session: Session) -> bool:
    """The optimizer steps that are left, with their log lines, evaluations and checkpoints; False for a stop."""
    run, config = session.run, session.run.config
    with session.meter.paused():
        # A run that was stopped inside an evaluation has it before its next step.
        stopping = not _evaluated(session) and not _evaluate_and_log(session)
    while run.step < config.steps and not stopping:
        log = (run.step + 1) % config.log_every == 0 or run.step + 1 == config.steps
        with session.meter.counted():
            terms, stats = update(session, log)
        run.step += 1
        last = run.step == config.steps
        session.meter.steps += 1
        if log:
            _log(session, terms, stats)
        session.bar.update()
        stopping = session.stop.agreed()
        with session.meter.paused():
            if not stopping and (run.step % config.eval_every == 0 or last):
                stopping = not _evaluate_and_log(session)
            if run.step % config.save_every == 0 or last or stopping:
                _save(session, must=last or stopping)
    return not stopping


def update(session: Session, log: bool) -> tuple[Terms, StepStats]:
    """One optimizer step (or `replays` of them); this rank's share of the terms, still on the device."""
    run, config = session.run, session.run.config
    dist.seed_all(config.seed, run.step, dist.rank())
    slots = config.slots(dist.world())
    masked = [batch.to(run.device) for batch in run.batches.step(run.step, slots)]
    session.watchdog.beat()
    window, before = run.objective.prepare(run.engine, masked, session.watchdog.beat)
    terms: Terms = {}
    stats = StepStats(False, 0.0, 0.0)
    for replay in range(run.method.replays):
        terms, losses = dict(before), []
        for slot, batch in enumerate(window):
            found = run.method.backward(run.engine, batch, At(slot, replay))
            losses.append(found["loss"])
            add(terms, found)
            session.watchdog.beat()
        stats = run.engine.step(norms=log)
        session.watchdog.beat()
        if stats.applied:
            run.faults.applied()
            run.method.after_step(run.engine)
        else:
            mine = losses + ([before["loss"]] if "loss" in before else [])
            _not_applied(session, stats.overflow, mine, slots)
    return terms, stats


def _not_applied(session: Session, overflow: bool, losses: list[Tensor], slots: int) -> None:
    """Say which rows an update failed on, unless it was an overflow of the loss scale. Raises as the policy says."""
    run = session.run
    step = run.step + 1

    def tell(fault: Fault) -> None:
        _record(session, "fault", step, fault._asdict())
        if dist.is_main() and run.config.on_nonfinite == "skip":
            session.bar.write(f"warning: {fault}; the step is skipped")

    run.faults.not_applied(run.engine, step, overflow, losses, run.batches.rows(run.step, slots), tell)


def _log(session: Session, terms: Terms, stats: StepStats) -> None:
    """Log line of a step."""
    values = figures(session.run, terms, stats, session.meter)
    _record(session, "train", session.run.step, values)
    session.bar.set_postfix_str(postfix(values), refresh=False)


def _evaluated(session: Session) -> bool:
    """Whether the position that the run starts from needs no evaluation, or has it in the record."""
    run = session.run
    due = run.step % run.config.eval_every == 0 or run.step == run.config.steps
    return not due or dist.on_main(lambda: run.step in session.record.steps("eval"))


def _evaluate_and_log(session: Session) -> bool:
    """Score the held-out rows; False where a stop came first. Raises WorkError for a figure that is not finite."""
    run = session.run
    batches = run.batches.heldout_batches(run.config.eval_rows, run.config.micro(dist.world()))

    def interrupted() -> bool:
        session.watchdog.beat()
        return session.stop.agreed()

    scores = evaluate(run.objective, run.engine, (batch.to(run.device) for batch in batches), interrupted)
    if scores is None:
        return False
    _record(session, "eval", run.step, scores)
    if dist.is_main():
        shown = (f"{name.removeprefix('heldout_').replace('_', ' ')} {value:.3f}" for name, value in scores.items())
        session.bar.write(f"step {run.step}: held-out {', '.join(shown)}")
    for name, value in scores.items():
        if not math.isfinite(value):
            _refuse_score(run, f"the {name} at step {run.step} is {value}")
    return True


def _refuse_score(run: Run, told: str) -> NoReturn:
    """All ranks call it. Raises WorkError, of a held-out figure that is not finite."""
    broken = broken_weight(run.engine)
    if broken is not None and not run.step:
        config, flag = run.config, "--model"
        folder = config.model
        if broken.startswith("generator.") and config.rtd.generator is not None:
            folder, flag = config.rtd.generator, "--rtd.generator"
        raise WorkError(f"{told}: the weight {broken} of {folder} is not finite; give another {flag}")
    if broken is not None:
        why = "go on from an older checkpoint with a lower --optim.lr"
        raise WorkError(f"{told}: the weight {broken} is not finite; {why}")
    raise WorkError(f"{told}; lower --optim.lr or look at that step's data")


def _save(session: Session, must: bool) -> None:
    """A checkpoint; where the disk refuses, the configuration says whether the run goes on without."""
    session.watchdog.beat()
    try:
        dist.on_main(session.record.sync)
        save(session.run, time.perf_counter() - session.began)
    except (checkpoint.SaveFailed, NotWritten) as error:
        if must or session.run.config.on_save_error == "stop":
            raise
        _record(session, "fault", session.run.step, {"what": "save", "error": str(error)})
        if dist.is_main():
            session.bar.write(f"warning: {error}; the run goes on, its older checkpoints are whole")
    session.watchdog.beat()


def _record(session: Session, event: str, step: int, values: Mapping[str, Value]) -> None:
    """A line of the record, all ranks call it; where the disk refuses, as with a checkpoint, the run may go on
    without."""
    try:
        dist.on_main(lambda: session.record.log(event, step, values))
    except NotWritten as error:
        if session.run.config.on_save_error == "stop":
            raise
        if dist.is_main():
            session.bar.write(f"warning: {error}; the run goes on without what it would hold")
