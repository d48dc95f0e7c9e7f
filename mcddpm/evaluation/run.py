"""Methods x slices -> rows.csv: `mcddpm evaluate CONFIG.toml`. Tables are made of it in `tables.py`."""

from __future__ import annotations

from pathlib import Path

from mcddpm.evaluation import calibrated
from mcddpm.evaluation.methods import check_model
from mcddpm.evaluation.rows import write_csv
from mcddpm.evaluation.study import Evaluation, Study, chosen
from mcddpm.system.processes import Share
from mcddpm.system.progress import Progress, Quiet
from mcddpm.system.workspace import Workspace


def evaluate(
    evaluation: Evaluation,
    out: Path,
    *,
    device: str = "cpu",
    share: Share | None = None,
    progress: Progress | None = None,
) -> Path | None:
    """Fill in what is missing; returns rows.csv if all is there."""
    wanted = chosen(evaluation)
    for method in dict.fromkeys(method for _, method in wanted):
        check_model(method)
    study = Study(Workspace(out, "evaluation", share or Share()), evaluation.seed, device, progress or Quiet())
    study.claim(evaluation, wanted)
    order = [method.name or method.kind for method in evaluation.methods]
    by_method = sorted(wanted, key=lambda pair: order.index(pair[1].name))  # so that ranks share every method alike
    if not study.work(by_method):
        return None
    return write_csv(out / "rows.csv", calibrated.rows(study, wanted))
