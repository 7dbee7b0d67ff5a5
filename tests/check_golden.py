"""Compare our methods with what the released programs computed: `python -m tests.check_golden DIR`.

Prints one line per golden file: name, largest relative error, ok or FAIL. SMART's single ascents, of whose gradient
fp32 leaves two digits, are held to a bound of their own and named where one fails. Exit code 1 on any FAIL, 2 where no
file could be checked.
"""

import math
import sys
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import SafetensorError

from asa.adversary import ASAConfig
from asa.batch import Batch, Kind
from asa.engine import PlainEngine
from asa.losses import counted_units, divergence, kept_keys, task_loss
from asa.methods import At
from asa.methods.asa import ASA, Map, attack
from asa.optim import OptimConfig
from asa.signal import Perturb
from tests.golden_embed import check_freelb, check_smart
from tests.golden_files import Golden, batch_of, build, error, gradient_errors, load_weights, read

TOLERANCE = 1e-5
ASCENT = 0.1  # of what an ascent's gradient changes: two machines differ by 0.03, a wrong objective by 0.2 or more


def kind_of(meta: dict[str, str]) -> Kind:
    if meta["kind"] == "seq":
        return "regression" if int(meta["num_labels"]) == 1 else "classification"
    return "choice" if meta["kind"] == "choice" else "token"


def check_asa(golden: Golden, meta: dict[str, str]) -> dict[str, float]:
    """Keep maps, logits, losses and gradients of one asa_* file; errors by name."""
    kind = kind_of(meta)
    config = ASAConfig.released(tau=float(meta["tau"]))
    module = build(meta, kind, config)
    load_weights(module, golden)
    engine = PlainEngine(module, OptimConfig(), steps=1, device=torch.device("cpu"))
    batch = batch_of(golden, kind)
    errors = _forward_errors(engine, batch, golden, config)
    loss = ASA(config).backward(engine, batch, At(0, 0))["loss"]
    errors["loss"] = error(loss, golden["loss"])
    return errors | gradient_errors(module, golden)


def _forward_errors(engine: PlainEngine, batch: Batch, golden: Golden, config: ASAConfig) -> dict[str, float]:
    maps: dict[int, Map] = {}
    adversary = engine.module.adversary
    assert adversary is not None
    attend = attack(adversary, [None] * len(adversary), maps)
    clean, other = engine.forward(batch), engine.forward(batch, Perturb(attend=attend))
    plain = task_loss(clean, batch) + torch.stack(list(divergence(clean, other, batch, config).values())).sum()
    kept = torch.stack(
        [counted_units(kept_keys(m.keep), batch.pad_BL, config.penalty_rows) for m in maps.values()]
    ).sum()
    errors = {
        "logits": error(clean.logits.detach(), golden["logits"]),
        "adv_logits": error(other.logits.detach(), golden["adv_logits"]),
        "loss_without_penalty": error(plain.detach(), golden["loss_without_penalty"]),
        "penalty_keep_sum": error(kept.detach() / batch.total_rows, golden["penalty_keep_sum"]),
    }
    for layer, (keep, _) in maps.items():
        # Masks must agree exactly: one differing unit is an infinite error.
        same = torch.equal(keep.detach().double(), golden[f"keep.{layer}"].double())
        errors[f"keep.{layer}"] = 0.0 if same else float("inf")
    return errors


CHECKS: dict[str, Callable[[Golden, dict[str, str]], dict[str, float]]] = {
    "asa": check_asa,
    "freelb": check_freelb,
    "smart": check_smart,
}


def verdict(errors: dict[str, float]) -> tuple[bool, str, float]:
    """Whether every error is within its bound, and the worst error's name and value; NaN is the worst of all."""
    ascents = {name: value for name, value in errors.items() if name.startswith("ascent")}
    exact = {name: value for name, value in errors.items() if name not in ascents}
    for found, bound in ((ascents, ASCENT), (exact, TOLERANCE)):
        worst = max(found, key=lambda name: (math.isnan(errors[name]), errors[name]), default=None)
        if worst is not None and not errors[worst] <= bound:
            return False, worst, errors[worst]
    worst = max(exact, key=lambda name: exact[name])
    return True, worst, exact[worst]


def main(folder: Path) -> int:
    torch.set_num_threads(1)
    checked, failed = 0, 0
    for path in sorted(folder.glob("*.safetensors")):
        check = CHECKS.get(path.name.split("_")[0])
        if check is None:
            print(f"{path.stem:16s} -         skipped: no method of this version computes it")
            continue
        checked += 1
        try:
            content = read(path)
        except (OSError, SafetensorError) as damage:
            failed += 1
            print(f"{path.stem:16s} -         FAIL: unreadable ({damage})")
            continue
        good, worst, value = verdict(check(*content))
        failed += not good
        print(f"{path.stem:16s} {value:.1e}   {'ok' if good else f'FAIL at {worst}'}")
    if not checked:
        print(f"error: no golden file ({'_*, '.join(CHECKS)}_*.safetensors) to check in {folder}", file=sys.stderr)
        return 2
    return int(failed > 0)


if __name__ == "__main__":
    if sys.argv[1:] in (["-h"], ["--help"]):
        print(__doc__)
        sys.exit(0)
    if len(sys.argv) != 2:
        print("usage: python -m tests.check_golden DIR", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(Path(sys.argv[1])))
