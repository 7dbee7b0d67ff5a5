"""Runs -> pandas frames: one row per finished run, and mean, standard deviation, n per group."""

from typing import Any

import numpy as np
import pandas as pd

from finetune.report.collect import Run, finished, lettered, model_label

SCORES = ("test_accuracy", "test_macro_f1", "dev_accuracy", "gain", "seconds")
PRETRAIN = (
    "heldout_loss_before",
    "heldout_loss_after",
    "heldout_accuracy_before",
    "heldout_accuracy_after",
    "tokens_per_s",
    "seconds",
)
GROUP = ["task", "model", "method", "settings"]


def finetune_frame(runs: list[Run]) -> pd.DataFrame:
    """One row per finished fine-tuning run. gain: test accuracy minus that of the vanilla run with the same seed."""
    done = finished(runs, "finetune")
    letters = lettered(done)
    rows = [_finetune_row(run, done, letters) for run in done]
    columns = ["run", *GROUP, "seed", "test_accuracy", "test_macro_f1", "dev_accuracy", "best_epoch", "steps"]
    frame = pd.DataFrame(rows, columns=[*columns, "seconds"])
    key = ["task", "model", "settings", "seed"]
    vanilla = frame[frame.method == "vanilla"].set_index(key)["test_accuracy"]
    partner = pd.Series([vanilla.get(tuple(row), np.nan) for row in frame[key].to_numpy()], index=frame.index)
    frame["gain"] = (frame["test_accuracy"] - partner.astype(float)).where(frame.method != "vanilla")
    return _ordered(frame)


def _finetune_row(run: Run, done: list[Run], letters: dict[str, str]) -> dict[str, Any]:
    assert run.end is not None
    return {
        **dict.fromkeys(("test_accuracy", "test_macro_f1", "dev_accuracy", "best_epoch", "steps", "seconds"), np.nan),
        **run.end,
        "run": run.name,
        "task": str(run.facts.get("task", "n/a")),
        "model": model_label(run, done),
        "method": run.method,
        "settings": letters[run.settings],
        "seed": run.facts.get("seed", -1),
    }


def pretrain_frame(runs: list[Run]) -> pd.DataFrame:
    """One row per finished pre-training run. before: at step 0; tokens_per_s: median of the log lines."""
    done = finished(runs, "pretrain")
    letters = lettered(done)
    rows = [_pretrain_row(run, letters) for run in done]
    columns = ["run", "model", "method", "settings", "seed", "steps", *PRETRAIN]
    return _ordered(pd.DataFrame(rows, columns=columns))


def _pretrain_row(run: Run, letters: dict[str, str]) -> dict[str, Any]:
    assert run.end is not None
    rates = run.series("tokens_per_s")[1]
    return {
        "run": run.name,
        "model": str(run.facts.get("model", "n/a")),
        "method": run.method,
        "settings": letters[run.settings],
        "seed": run.facts.get("seed", -1),
        "steps": run.last_step,
        **before_after(run, "heldout_loss"),
        **before_after(run, "heldout_accuracy"),
        "tokens_per_s": float(np.median(rates)) if rates else np.nan,
        "seconds": run.end.get("seconds", np.nan),
    }


def before_after(run: Run, key: str) -> dict[str, float]:
    """A held-out metric at step 0 (nan where it was not taken) and at the last evaluation."""
    steps, values = run.series(key, "evals")
    before = values[0] if steps and steps[0] == 0 else np.nan
    return {f"{key}_before": before, f"{key}_after": values[-1] if values else np.nan}


def summarise(frame: pd.DataFrame, group: list[str], metrics: tuple[str, ...]) -> pd.DataFrame:
    """Long form: group columns, metric, n, mean, sd (sample standard deviation; nan for n = 1)."""
    rows = []
    for key, part in frame.groupby(group, sort=False):
        names = key if isinstance(key, tuple) else (key,)
        for metric in metrics:
            values = part[metric].astype(float).dropna()
            statistics = {"n": len(values), "mean": values.mean(), "sd": values.std(ddof=1)}
            rows.append({**dict(zip(group, names, strict=True)), "metric": metric, **statistics})
    return pd.DataFrame(rows, columns=[*group, "metric", "n", "mean", "sd"])


def table_csv(runs: list[Run]) -> str:
    """The whole of report.csv: stage, task, model, method, settings, metric, n, mean, sd."""
    tuned = summarise(finetune_frame(runs), GROUP, SCORES)
    trained = summarise(pretrain_frame(runs), GROUP[1:], PRETRAIN)
    tuned.insert(0, "stage", "finetune")
    trained.insert(0, "stage", "pretrain")
    trained.insert(1, "task", "mlm")
    parts = [part for part in (tuned, trained) if len(part)]
    both = pd.concat(parts) if parts else tuned
    return both[both.n > 0].to_csv(index=False, na_rep="n/a", lineterminator="\n")


def _ordered(frame: pd.DataFrame) -> pd.DataFrame:
    """Sorted by group and seed, vanilla before the other methods."""
    rank = frame["method"].map(method_key)
    keys = [name for name in ("task", "settings", "model") if name in frame]
    return frame.assign(_rank=rank).sort_values([*keys, "_rank", "seed"], kind="stable", ignore_index=True)


def method_key(method: str) -> str:
    """Sorts vanilla before all others."""
    return "" if method == "vanilla" else method
