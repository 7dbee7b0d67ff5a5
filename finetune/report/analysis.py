"""What the adversaries do, from the records: masked share over steps, by layer and task, and against tau."""

from typing import Any, NamedTuple

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from finetune.report.collect import Run
from finetune.report.labels import grouped
from finetune.report.plots import WIDTH, Plot, colour, height, legend, line, panels, point
from finetune.report.rows import Row, Spread, masked_shares, spread
from finetune.report.svg import DASHES, PALETTE, draw
from finetune.report.tables import Table, among, counted, number, percent

KEY = "masked_share"
TAU = "asa.tau"


class Masked(NamedTuple):
    """A run that masks. shares: of the last log line, bottom layer first; tau: None where its method has none."""

    row: Row
    shares: np.ndarray
    tau: float | None

    @property
    def overall(self) -> float:
        """Mean over the layers."""
        return float(self.shares.mean())


def masked_share(runs: list[Run], panel_of: dict[str, str], name: str) -> Plot | None:
    """Share of token pairs masked, per layer over steps; None where none is known. panel_of: run name -> panel."""
    attacked = [run for run in runs if run.series(KEY)[0]]
    if not attacked:
        return None
    titles = list(dict.fromkeys(panel_of[run.name] for run in attacked))
    layers = max(len(run.series(KEY)[1][-1]) for run in attacked)

    def paint(figure: Figure) -> None:
        axes = dict(zip(titles, panels(figure, len(titles)), strict=True))
        for run in attacked:
            steps, shares = run.series(KEY)
            for layer, values in enumerate(100 * np.asarray(shares, dtype=float).T):
                style = {"color": layer_colour(layer, layers), "alpha": 0.85, **point(steps)}
                axes[panel_of[run.name]].plot(steps, values, DASHES[layer % 4], **style)
        for title, ax in axes.items():
            ax.set_title(title)
            ax.set_xlabel("optimizer step")
            ax.set_ylim(bottom=0)
        figure.axes[0].set_ylabel("masked share, %")
        lines = [
            Line2D([], [], color=layer_colour(layer, layers), linestyle=DASHES[layer % 4]) for layer in range(layers)
        ]
        figure.legend(lines, [f"layer {layer}" for layer in range(layers)], loc="outside upper center", ncols=6)

    ends = [f"{run.name} {_percents(run.series(KEY)[1])}" for run in attacked]
    alt = f"Masked share per layer over steps. First and last values, bottom layer first: {'; '.join(ends)}."
    caption = "Share of real token pairs the adversary masks; one line per layer and run, layer 0 at the bottom."
    return Plot("Masked share per layer", draw(name, WIDTH, height(len(titles)), paint), alt, caption)


class Sweep(NamedTuple):
    """Runs of one task, settings, model and method that differ in tau (and the seed) alone. method: with the settings
    that tell it from another sweep of that method."""

    method: str
    runs: list[Masked]

    @property
    def names(self) -> tuple[str, ...]:
        return (*_group(self.runs[0])[:3], self.method)


def masking(rows: list[Row]) -> list[Masked]:
    """The rows whose runs mask, in their order."""
    shares = [(row, masked_shares(row.run)) for row in rows]
    return [Masked(row, np.asarray(found), row.run.own.get(TAU)) for row, found in shares if found]


def shares_by_layer(masked: list[Masked]) -> Table:
    """One row per task, settings, model and method: masked share of every layer and their mean, means over seeds."""
    layers = max(len(one.shares) for one in masked)
    cells = []
    for (_, _, model, method, _), same in grouped(masked, _group).items():
        each = [among(number(100 * found.mean, 1), found.n, len(same)) for found in _by_layer(same)]
        shares = each + ["-"] * (layers - len(each))
        overall = counted([one.overall for one in same], len(same), 1)
        cells.append([same[0].row.lettered, model, method, str(len(same)), *shares, overall])
    figures = ["n", *[f"Layer {layer}, %" for layer in range(layers)], "All layers, %"]
    return Table("Masked share, last log line", ["Task", "Model", "Method", *figures], cells, 3)


def _by_layer(same: list[Masked]) -> list[Spread]:
    """Over the runs that know a layer's share."""
    return [spread(shares) for shares in zip(*(one.shares for one in same), strict=True)]


def layers_and_tasks(masked: list[Masked], name: str) -> Plot:
    """ASA's Figure 5: masked share of the last log line by layer, and its mean over the layers."""
    groups = grouped(masked, _group)
    means = [np.array([share.mean for share in _by_layer(same)]) for same in groups.values()]
    overall = [spread(one.overall for one in same).mean for same in groups.values()]
    shares = dict(zip(_labels(list(groups)), means, strict=True))

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for index, values in enumerate(shares.values()):
            left.plot(range(len(values)), 100 * values, marker="o", **line(index))
            right.barh(index, 100 * overall[index], color=colour(index))
        left.set_xticks(range(max(map(len, shares.values()))))
        left.set(xlabel="layer, 0 at the bottom", ylabel="masked share, %")
        left.set_ylim(bottom=0)
        right.set_yticks(range(len(shares)), list(shares))
        right.invert_yaxis()
        right.set_xlabel("masked share, mean over layers, %")

    seen = "; ".join(f"{line} {' / '.join(percent(share, 1) for share in values)}" for line, values in shares.items())
    alt = f"Masked share of the last log line, bottom layer first: {seen}."
    caption = "Left: by layer. Right: mean over the layers, same colours. Last log line of each run, a mean over its"
    caption += " steps (--log_every); mean over seeds."
    picture = draw(name, WIDTH, max(3.2, 1 + 0.25 * len(shares)), paint)
    return Plot("Masked share by layer and task", picture, alt, caption)


def swept(masked: list[Masked]) -> list[Sweep]:
    """What was run with several values of tau, other settings being equal."""
    known = [one for one in masked if one.tau is not None]
    found: list[Sweep] = []
    for alike in grouped(known, lambda one: (*_group(one)[:3], one.row.run.method)).values():
        apart = _apart(alike)
        names = grouped(alike, lambda one, apart=apart: _named(one, apart))
        found += [Sweep(name, same) for name, same in names.items() if len({one.tau for one in same}) > 1]
    return found


def _apart(masked: list[Masked]) -> list[str]:
    """The settings of their method, tau left out, that they do not all have alike."""
    owns = [one.row.run.own for one in masked]
    keys = dict.fromkeys(key for own in owns for key in own if key != TAU)
    return [key for key in keys if len({repr(own.get(key)) for own in owns}) > 1]


def _named(one: Masked, apart: list[str]) -> str:
    """The method with those settings."""
    method, own = one.row.run.method, one.row.run.own
    return " ".join([method, *[f"{key.removeprefix(f'{method}.')}={own.get(key, 'n/a')}" for key in apart]])


def tau_table(sweeps: list[Sweep]) -> Table:
    cells = []
    for sweep in sweeps:
        for tau, same in _by_tau(sweep).items():
            names = [same[0].row.lettered, same[0].row.model, sweep.method, f"{tau:g}", str(len(same))]
            share = counted([one.overall for one in same], len(same), 1)
            cells.append([*names, counted([one.row.score for one in same], len(same), 2), share])
    figures = ["n", "Test, %", "Masked share, %"]
    uneven = dict.fromkeys(_shown(sweep) for sweep in sweeps if len(set(map(_seeds, _by_tau(sweep).values()))) > 1)
    note = f"Of these not every tau has the same seeds: {'; '.join(uneven)}." if uneven else ""
    return Table("Score and masked share by tau", ["Task", "Model", "Method", "tau", *figures], cells, 4, note)


def _shown(sweep: Sweep) -> str:
    row = sweep.runs[0].row
    return f"{row.lettered}, {row.model}, {sweep.method}"


def _seeds(same: list[Masked]) -> tuple[int, ...]:
    return tuple(sorted(one.row.run.seed for one in same))


def tau_sweep(sweeps: list[Sweep], name: str) -> Plot:
    """ASA's Figure 4b: test score and masked share against tau, a line per task, model and method."""
    labels = _labels([sweep.names for sweep in sweeps])
    means = [_means(sweep) for sweep in sweeps]

    def paint(figure: Figure) -> None:
        left, right = figure.subplots(1, 2)
        for index, (sweep, by_tau) in enumerate(zip(sweeps, means, strict=True)):
            middle = spread(score for score, _ in by_tau.values()).mean
            for one in sweep.runs:
                style = {"color": colour(index), "alpha": 0.5, "markersize": 4}
                left.plot(one.tau, 100 * (one.row.score - middle), "o", **style)
                right.plot(one.tau, 100 * one.overall, "o", **style)
            left.plot(list(by_tau), [100 * (score - middle) for score, _ in by_tau.values()], **line(index))
            right.plot(list(by_tau), [100 * share for _, share in by_tau.values()], **line(index))
        left.set(xlabel="tau", ylabel="test score less its line's mean, points")
        right.set(xlabel="tau", ylabel="masked share, mean over layers, %")
        right.set_ylim(bottom=0)
        legend(figure, labels)

    told = [
        ", ".join(f"tau {tau:g} {percent(mean)} ({percent(share, 1)} masked)" for tau, (mean, share) in by_tau.items())
        for by_tau in means
    ]
    seen = "; ".join(f"{label}: {text}" for label, text in zip(labels, told, strict=True))
    alt = f"Test score and masked share by tau. {seen}."
    caption = "Points: one seed each; lines: means. Lower tau: stronger attack. Each line's scores are less their mean."
    return Plot("Score and masked share against tau", draw(name, WIDTH, 3.6, paint), alt, caption)


def _by_tau(sweep: Sweep) -> dict[float, list[Masked]]:
    return dict(sorted(grouped(sweep.runs, lambda one: one.tau or 0.0).items()))


def _means(sweep: Sweep) -> dict[float, tuple[float, float]]:
    """tau -> mean score and mean masked share."""
    return {
        tau: (spread(one.row.score for one in same).mean, spread(one.overall for one in same).mean)
        for tau, same in _by_tau(sweep).items()
    }


def _group(one: Masked) -> tuple[str, ...]:
    """Runs whose shares have a mean: task, settings, model, method and depth."""
    return one.row.task, one.row.settings, one.row.model, one.row.method, f"{len(one.shares)} layers"


def _labels(groups: list[tuple[str, ...]]) -> list[str]:
    """What tells groups apart: the task, and settings, model, method and depth where they vary."""
    varies = [True, *[len(set(part)) > 1 for part in list(zip(*groups, strict=True))[1:]]]
    return [", ".join(name for name, shown in zip(group, varies, strict=True) if shown and name) for group in groups]


def layer_colour(layer: int, layers: int) -> Any:
    """Separate hues for few layers, one scale for many."""
    if layers <= len(PALETTE):
        return colour(layer + 2)  # the first two colours stand for methods in the neighbouring figures
    return matplotlib.colormaps["viridis"](0.2 + 0.6 * layer / (layers - 1))


def _percents(shares: list[list[float]]) -> str:
    ends = zip(*np.asarray([shares[0], shares[-1]], dtype=float), strict=True)
    return " / ".join(f"{percent(first, 1)} to {percent(last, 1)}" for first, last in ends)
