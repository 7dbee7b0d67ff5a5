"""One fine-tuning run: a task, a model, a method, a seed -> metrics.jsonl, predictions."""

import gc
import math
import time
from collections.abc import Callable, Generator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor

from asa import dist, record, resident
from asa.ahead import Ahead
from asa.batch import Batch
from asa.dist import seed_all
from asa.engine import Engine, StepStats, broken_weight
from asa.errors import Apart, RequestError, WorkError
from asa.methods import METHODS, At, Method
from asa.methods.base import add
from asa.places import clear
from asa.record import Record
from finetune import state
from finetune.config import FinetuneConfig
from finetune.meter import Meter
from finetune.metrics import score
from finetune.model import DROPOUT, build, device_of, engine_of, micro, save_model
from finetune.predictions import FOLDER, Predictions, predict, save_predictions, stored
from finetune.run import Cell
from finetune.state import Best, Progress, Saver
from finetune.tasks.batches import Encoded, steps_per_epoch, training_rows, window
from finetune.tasks.task import Task, scored
from finetune.together import told_to_all, with_waiting

T = TypeVar("T")


@dataclass
class Session:
    """What the steps of a run work on."""

    cell: Cell
    task: Task
    data: dict[str, Encoded]
    engine: Engine
    method: Method
    steps: int
    device: torch.device
    record: Record
    saver: Saver
    progress: Progress
    meter: Meter
    windows: Ahead[list[Batch]]  # a process's micro-batches of a step
    began: float  # as if earlier parts of the run had gone before without a pause
    peak: int = 0  # bytes in the steps of this process, evaluations apart: of tensors on a GPU, else resident


def train(cell: Cell, task: Task, data: dict[str, Encoded], facts: dict[str, Any], going_on: bool = False) -> dict:
    """Train, select by the task's first metric on dev, score once on what is scored; what the end line holds.

    Every rank calls it. Args: facts are the start line; going_on tells that an unfinished run of these very facts lies
    in the run's folder, which is continued from its newest saved state; else whatever lies there is removed first.
    predictions/SPLIT.npz hold the logits of the selected weights.
    Raises: on every rank WorkError when a loss, gradient or prediction is not finite, memory ends or the disk is full;
        RequestError where the method refuses this model, or an exported adversary does not fit it; Alone where the
        other ranks do not know of it. The record holds the error.
    """
    began = time.perf_counter()
    run, config, folder = cell.run, cell.config, cell.folder
    device = device_of(config)
    _forget(device)
    steps, method = steps_of(config, len(data["train"])), METHODS[run.method](config)
    with ExitStack() as held:
        try:
            module, new = told_to_all(lambda: build(run, config, task))
            engine = _guard(config)(lambda: engine_of(config, module, steps * method.replays))
            held.enter_context(_closed(engine))
            progress = with_waiting(lambda: state.resume(folder, engine, method) if going_on else None) or Progress()
        except (RequestError, WorkError) as error:
            _refused(cell, facts, error)
            raise
        if not progress.step:
            state.clear(folder)
            dist.on_main(lambda: clear(folder, record.NAME))
        lines = held.enter_context(closing(record.shared(folder, {**facts, "new_weights": new}, progress.step or None)))
        saver = Saver(folder, config.save_every, config.models[run.model])
        began -= progress.seconds
        windows = Ahead(partial(_window, data["train"], config, run.seed))
        held.callback(windows.close)
        session = Session(
            cell=cell,
            task=task,
            data=data,
            engine=engine,
            method=method,
            steps=steps,
            device=device,
            record=lines,
            saver=saver,
            progress=progress,
            meter=Meter(config.precision == "fp16"),
            windows=windows,
            began=began,
        )
        try:
            end = with_waiting(lambda: _finish(session, _fit(session)))
        except (RequestError, WorkError) as error:
            lines.log("failed", progress.step + 1, _told(error))
            raise
        dist.on_main(lambda: lines.end(end))
    state.clear(folder)
    return end


def _forget(device: torch.device) -> None:
    """Free the run before, an attached model's reference cycles included, and begin to count memory."""
    gc.collect()
    _forget_peak(device)


@contextmanager
def _closed(engine: Engine) -> Generator[None]:
    """Close the engine where the process goes on to other runs. Where it ends, the device may never answer again."""
    try:
        yield
    except (RequestError, WorkError) as error:
        if not isinstance(error, Apart):
            engine.close()
        raise
    engine.close()


def _refused(cell: Cell, facts: dict[str, Any], error: RequestError | WorkError) -> None:
    """Record a run that could not begin. A finished one, or a saved state, that lies in its folder stays."""
    folder = cell.folder
    if dist.is_main() and not record.finished(folder / record.NAME) and not state.saved(folder):
        with suppress(WorkError):  # the record below says so, too, and the first error matters more
            clear(folder, record.NAME)
        with closing(Record(folder, facts)) as lines:
            lines.log("failed", 0, _told(error))


def _told(error: RequestError | WorkError) -> dict[str, Any]:
    """The error as a record has it; request: it was a wrong request."""
    return {"error": str(error), **({"request": True} if isinstance(error, RequestError) else {})}


def _fit(session: Session) -> Best:
    """All steps that are left, with evaluations on dev on the way and after the last."""
    config, progress, meter = session.cell.config, session.progress, session.meter
    per_epoch = steps_per_epoch(len(session.data["train"]), config.batch)
    over = False
    while progress.step < session.steps and not over:
        began = time.perf_counter()
        _step(session)
        progress.step += 1
        last = progress.step == session.steps
        logging = progress.step % config.log_every == 0 or last
        if logging:
            _log(session, "train", meter.drain())
        progress.training += time.perf_counter() - began
        if _due(progress.step, config.evals_per_epoch, per_epoch) or last:
            session.peak = max(session.peak, _peak(session.device))
            _evaluate(session, progress.step / per_epoch)
            _forget_peak(session.device)
            over = config.patience is not None and progress.stale >= config.patience
        if logging and not (last or over) and session.saver.due():
            progress.seconds = time.perf_counter() - session.began
            dist.on_main(session.record.sync)
            session.saver.save(session.engine, session.method, progress)
    if not meter.empty:
        _log(session, "train", meter.drain())
    assert progress.best is not None
    return progress.best


def _log(session: Session, event: str, values: dict[str, Any]) -> None:
    """A line of the record; all ranks must call it."""
    dist.on_main(lambda: session.record.log(event, session.progress.step, values))


def _guard(config: FinetuneConfig) -> Callable[[Callable[[], T]], T]:
    """What is to run the engine's work: under DeepSpeed ranks wait for each other inside it."""
    return told_to_all if config.engine == "plain" else with_waiting


def _window(train: Encoded, config: FinetuneConfig, seed: int, step: int) -> list[Batch]:
    rows = training_rows(train, config.batch, seed, step, config.buckets)
    return window(train, rows, micro(config), dist.rank(), dist.world())


def _step(session: Session) -> None:
    """One batch: an optimizer step, or several where the method replays it."""
    config, engine, method, step = session.cell.config, session.engine, session.method, session.progress.step
    seed = session.cell.run.seed
    batches = [batch.to(session.device) for batch in session.windows(step)]
    engine.module.train()
    for replay in range(method.replays):
        seed_all(seed, DROPOUT, step * method.replays + replay, dist.rank())
        terms = _guard(config)(partial(_gradients, session, batches, replay))
        stats = engine.step()
        if _applied(stats, session):
            method.after_step(engine)
            session.meter.add(terms, stats)
        else:
            session.meter.skip(stats)


def _gradients(session: Session, batches: list[Batch], replay: int) -> dict[str, Tensor]:
    """Of a window of micro-batches; its terms."""
    terms: dict[str, Tensor] = {}
    for slot, batch in enumerate(batches):
        add(terms, session.method.backward(session.engine, batch, At(slot, replay)))
    return terms


def _applied(stats: StepStats, session: Session) -> bool:
    """False where FP16 gradients overflow, which lowers the loss scale. Raises WorkError for other failed updates."""
    if not (stats.applied or stats.overflow):
        raise _diverged(session, f"loss or gradient of step {session.progress.step + 1}")
    return stats.applied


def _diverged(session: Session, what: str) -> WorkError:
    """The error that `what` is not finite. All ranks call it."""
    broken = broken_weight(session.engine)
    mend = "lower --optim.lr" if broken is None else f"weight {broken} is not: lower --optim.lr or change the model"
    return WorkError(f"{session.cell.run.name}: {what} is not finite; {mend}")


def _due(done: int, evaluations: int, per_epoch: int) -> bool:
    """Whether step number `done` completes another of the `evaluations` equal parts of an epoch."""
    return done * evaluations // per_epoch > (done - 1) * evaluations // per_epoch


def _evaluate(session: Session, epoch: float) -> None:
    """Score dev and keep the better of the best so far and now. All ranks go by what rank 0 finds."""
    dev, progress, engine, task = session.data["dev"], session.progress, session.engine, session.task
    assert dev.gold is not None
    found = _predicted(session, dev)
    scores = dist.all_gather(score(found, dev.gold, task))[0]
    _log(session, "eval", {"split": "dev", "epoch": round(epoch, 6), **scores})
    main = task.metrics[0]
    if progress.best is not None and scores[main] <= progress.best.dev[main]:
        progress.stale += 1
        return
    progress.best = Best(progress.step, round(epoch, 6), scores, engine.full_state())
    progress.stale = 0


def _predicted(session: Session, data: Encoded) -> Predictions:
    """Raises WorkError where a prediction is not finite."""
    config, engine = session.cell.config, session.engine
    found = _guard(config)(lambda: predict(engine.module, data, config.eval_batch, session.device))
    if not all(dist.all_gather(found.finite)):
        raise _diverged(session, "a prediction")
    return found


def _finish(session: Session, best: Best) -> dict[str, Any]:
    """Predict, score and keep what the selected weights give; the end line."""
    config, folder, engine = session.cell.config, session.cell.folder, session.engine
    peak = "peak_memory_bytes" if session.device.type == "cuda" else "peak_resident_bytes"
    engine.restore("weights", best.weights.items())
    scores = _final(session, folder / FOLDER)
    if config.save_model:
        start = record.read(session.record.path)[0] if dist.is_main() else {}
        save_model(engine, config.models[session.cell.run.model], folder / "model", start)
    return {
        **{f"dev_{name}": value for name, value in best.dev.items()},
        **scores,
        "best_step": best.step,
        "best_epoch": best.epoch,
        "steps": session.progress.step,
        "updates": session.progress.step * session.method.replays,
        "train_seconds": round(session.progress.training, 3),
        "seconds": round(time.perf_counter() - session.began, 3),
        **({peak: session.peak} if session.peak else {}),
    }


def _final(session: Session, folder: Path) -> dict[str, float]:
    """Predict every split but those of training and choice, keep the logits, score those with labels."""
    scores: dict[str, float] = {}
    for name in scored(session.data):
        data = session.data[name]
        found = _predicted(session, data)
        dist.on_main(partial(save_predictions, folder / f"{name}.npz", stored(found, session.task, name)))
        if data.gold is not None:
            scores |= {f"{name}_{metric}": value for metric, value in score(found, data.gold, session.task).items()}
    return scores


def _peak(device: torch.device) -> int:
    """Most bytes since the last _forget_peak: of tensors on a GPU, else of the process; 0 where nobody counts them."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else resident.peak()


def _forget_peak(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.init()  # else of a device that nobody has used it raises
        torch.cuda.reset_peak_memory_stats(device)
    else:
        resident.forget()


def steps_of(config: FinetuneConfig, rows: int) -> int:
    """Batches of a run, each of them an optimizer step or, where the method replays it, several."""
    wanted = max(1, math.ceil(round(config.epochs * steps_per_epoch(rows, config.batch), 6)))  # 1.1 * 50 > 55
    return min(wanted, config.max_steps or wanted)
