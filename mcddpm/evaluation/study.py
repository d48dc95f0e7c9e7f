"""Methods x slices -> tidy rows: `mcddpm evaluate CONFIG.toml`. Tables are made of them in `tables.py`.

    OUT/rows.csv             one row a slice and method, when all are there
    OUT/parts/               each reconstruction that is done: its mean and std, PSNR by number of samples, its row

Every method gets the same measurement of the same slice. What is done is not done again, and torchrun shares the
work. A row's numbers depend on the configuration, the weights and the kind of device alone (a GPU draws other noise
than a CPU), but for `seconds`, and for the last digits: threads sum in an order of their own. A configuration may gain
methods and cases later: what has a name in a folder keeps its meaning there.
"""

from __future__ import annotations

import csv
import hashlib
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mcddpm import metrics
from mcddpm.data.cases import Case, Cases, cases_of, family_of, fitted, quality_of, target_of
from mcddpm.evaluation import checks
from mcddpm.evaluation.methods import (
    Method,
    check,
    check_model,
    draws_samples,
    for_case,
    model_of,
    reconstructor,
    tuned,
)
from mcddpm.evaluation.rows import COLUMNS, FITTED, REGIONS
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import describe, read_card
from mcddpm.physics import masks
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.reconstruction.sample import STEPS
from mcddpm.system import files
from mcddpm.system.seeds import seed_of
from mcddpm.system.settings import differences, to_dict
from mcddpm.uncertainty import conformal, scores, selfcheck
from mcddpm.uncertainty.conformal import Conformal


@dataclass(frozen=True)
class Evaluation:
    """reference: the method whose gains tables show, by name. shown: those in Table 1 and in the figure of
    reconstructions, by name; all unless told."""

    cases: tuple[Cases, ...] = (Cases(),)
    methods: tuple[Method, ...] = ()
    reference: str = ""
    shown: tuple[str, ...] = ()
    seed: int = 0


def chosen(evaluation: Evaluation) -> list[tuple[Case, Method]]:
    """All that is to be reconstructed, and by what: methods have their names, and the model that is for the case."""
    methods = [replace(method, name=method.name or method.kind) for method in evaluation.methods]
    check(methods)
    known = [method.name for method in methods]
    for what, names in (("reference", {evaluation.reference} - {""}), ("shown", set(evaluation.shown))):
        if unknown := sorted(names - set(known)):
            raise ValueError(f"{what} names {', '.join(unknown)}; the methods are: {', '.join(known)}")
    labels = [choice.name for choice in evaluation.cases]
    if len(set(labels)) < len(labels):
        raise ValueError(f"the cases are called {', '.join(labels)}: give each a label of its own")
    found = []
    for choice in evaluation.cases:
        if unknown := sorted(set(choice.methods) - set(known)):
            raise ValueError(f"cases ask for the methods {', '.join(unknown)}; known: {', '.join(known)}")
        own = [method for method in methods if not choice.methods or method.name in choice.methods]
        for case in cases_of(choice):
            found += [(case, for_case(method, case)) for method in own]
    return found


# --- rows -----------------------------------------------------------------------------------------------------------


def evaluate(
    evaluation: Evaluation,
    out: Path,
    *,
    device: str = "cpu",
    rank: int = 0,
    world: int = 1,
    progress: Callable[[int, int], None] | None = None,
) -> Path | None:
    """Fill in what is missing; returns rows.csv if all is there."""
    wanted = chosen(evaluation)
    for method in dict.fromkeys(method for _, method in wanted):
        check_model(method)
    claim(out, evaluation, wanted, device)
    order = [method.name or method.kind for method in evaluation.methods]
    by_method = sorted(wanted, key=lambda pair: order.index(pair[1].name))  # so that ranks share every method alike
    mine = [(c, m) for c, m in by_method[rank::world] if not part_of(out, c, m).exists()]
    to_check = [(c, m) for c, m in wanted if m.self_check]
    unchecked = [(c, m) for c, m in to_check[rank::world] if not check_of(out, c, m).exists()]
    for done, (case, method) in enumerate([*mine, *unchecked]):
        if done < len(mine):
            run(case, tuned(method, case, out), evaluation.seed, out, device)
        else:
            check_case(case, method, evaluation.seed, out, device)
        if progress is not None:
            progress(done + 1, len(mine) + len(unchecked))
    if not all(part_of(out, c, m).exists() for c, m in wanted):
        return None
    if not all(check_of(out, c, m).exists() for c, m in to_check):
        return None
    return write_rows(out, wanted)


def claim(out: Path, evaluation: Evaluation, wanted: Sequence[tuple[Case, Method]], device: str = "") -> None:
    """The folder is for this evaluation, which may have more methods and cases than last time, or fewer; but a method,
    a case, a model and a file that was there must be what it was, and the kind of device, where there is one."""
    files.claim(out, rank=0)
    models = sorted({method.model for _, method in wanted if method.model})
    path = out / "evaluation.json"
    content: dict[str, Any] = {
        "seed": evaluation.seed,
        **({"device": torch.device(device).type} if device else {}),
        "cases": {c.name: _meaning(c) for c in evaluation.cases},
        "methods": {m.name or m.kind: _meaning(m) for m in evaluation.methods},
        "weights": {name: short_hash(name) for name in models},
        "data": {f"{case.label} {case.volume}": case.data[:16] for case, _ in wanted},
    }
    was = json.loads(path.read_text()) if path.exists() else {}
    for key, usual in (("cases", _meaning(Cases())), ("methods", _meaning(Method()))):  # settings that are new since
        was |= {key: {name: usual | meaning for name, meaning in was.get(key, {}).items()}}
    changed = differences(_shared(was, content), _shared(content, was))
    if changed:
        told = "; ".join(f"{key} was {before!r}, is {now!r}" for key, (before, now) in changed.items())
        raise ValueError(f"{out} holds another evaluation: {told}. Go on as it was, or choose another --out")
    merged = was | {
        key: was.get(key, {}) | value if isinstance(value, dict) else value for key, value in content.items()
    }
    with files.whole(path) as part:
        part.write_text(json.dumps(merged | {"last": to_dict(evaluation)}, indent=1) + "\n")


def short_hash(model: str) -> str:
    """Of a model's weights."""
    return str(describe(model)[0]["sha256"])[:16]


def _fitted(model: str) -> str:
    """Which calibration a model carries: that of its intervals and that of its self-check."""
    card = read_card(model)
    return conformal.fingerprint([card["calibration"], card.get("self_check")])


def _shared(these: Mapping[str, Any], those: Mapping[str, Any]) -> dict[str, Any]:
    """Of these, what those name too: a seed; methods, cases, models and files by name."""
    both = {key: (value, those[key]) for key, value in these.items() if key in those}
    return {
        key: {name: a[name] for name in a if name in b} if isinstance(a, dict) else a for key, (a, b) in both.items()
    }


def _meaning(choice: Cases | Method) -> dict[str, Any]:
    """What decides an image: not which slices are taken, nor which methods run on them."""
    return {k: v for k, v in to_dict(choice).items() if k not in ("every", "methods", "accelerations")}


def part_of(out: Path, case: Case, method: Method) -> Path:
    return out / "parts" / method.name / f"{case.name}.npz"


def run(case: Case, method: Method, seed: int, out: Path, device: str, keep: int = 0) -> None:
    """One reconstruction, written under its name when it is whole, with the first `keep` of its samples."""
    m, call = case.make(), reconstructor(method, device)
    own = seed_of_case(seed, case)
    start = time.monotonic()
    try:
        recon = call(m, own)
    except ValueError as error:
        raise ValueError(f"{method.name}, {case.name}: {error}") from error
    seconds = time.monotonic() - start
    target = target_of(m)
    shown = magnitudes(recon, target)
    row = {
        "label": case.label,
        "protocol": case.protocol,
        "volume": case.volume,
        "slice": case.slice,
        "acceleration": case.acceleration,
        "method": method.name,
        **{f"{name}_slice": value for name, value in quality_of(recon.mean, m).items()},
        **in_foreground(recon.mean, target),
        **doubts(shown, target),
        "weight": method.weight or "",
        "samples": len(recon.samples),
        "calls": recon.calls * len(recon.samples),
        "seconds": round(seconds, 3),
        "seed": own,
        "device": torch.device(device).type,
    }
    images = {"mean": fitted(recon.mean, target), "std": fitted(recon.std, target), "target": target}
    images |= {"samples": shown[:keep]}
    path = part_of(out, case, method)
    path.parent.mkdir(parents=True, exist_ok=True)
    arrays: dict[str, Any] = {name: np.asarray(image, np.float32) for name, image in images.items()}
    by_count = [float(metrics.psnr(mean, target)) for mean in running_means(shown)]
    if len(shown) > 1:
        arrays["ranks"] = scores.ranks(shown, target, scores.even_foreground(shown, target)).numpy()
    with files.whole(path) as part:
        arrays |= {"scale": m.scale, "reached": masks.acceleration(m.mask), "by_count": by_count}
        np.savez(part, **arrays, row=np.array(json.dumps(row)))


def check_of(out: Path, case: Case, method: Method) -> Path:
    known = selfcheck.of_card(read_card(method.model))
    return checks.path_of(out, method.name, case, known.how, known.operator)


def check_case(case: Case, method: Method, seed: int, out: Path, device: str) -> None:
    model = model_of(method.model, device)
    assert isinstance(model, Denoiser)
    known = selfcheck.of_card(read_card(method.model))
    checks.make(check_of(out, case, method), model, case, known.how, seed_of_case(seed, case), known.operator)


def seed_of_case(seed: int, case: Case) -> int:
    return seed_of(seed, int(hashlib.sha256(case.name.encode()).hexdigest()[:8], 16))


def in_foreground(mean: Any, target: Tensor) -> dict[str, float]:
    found = metrics.inside(fitted(mean, target), target, scores.foreground(target))
    return {f"{name}_foreground": value for name, value in found.items()}


def doubts(shown: Tensor, target: Tensor) -> dict[str, float]:
    """Of several samples (N, H, W), how right their spread is."""
    if len(shown) < 2:
        return {}
    inside = scores.even_foreground(shown, target)
    found = {region: scores.scores(shown, target, w) for region, w in zip(REGIONS, (inside, None), strict=True)}
    named = {f"{name}_{region}": value for region in found for name, value in found[region].items()}
    return named | {"pixels_foreground": int(inside.sum())}


def intervals(part: Mapping[str, np.ndarray], known: Conformal, surprise: float | None = None) -> dict[str, float]:
    """How often the intervals of a calibrated model hold the truth, and how wide those of 90 % are: after the fact,
    since mean and std are enough. On the pixels that `doubts` counts. surprise: what the self-check said."""
    mean, std, target = (torch.from_numpy(part[key]) for key in ("mean", "std", "target"))
    inside, found = even_foreground(part), {}
    kinds = FITTED if surprise is not None and known.adaptive else FITTED[:1]
    for level, kind in ((v, kind) for v in scores.LEVELS if v <= known.levels[-1] for kind in kinds):
        told = surprise if kind == "adaptive" else None
        half = stretch_of(part, known, level, told) * std
        for region, where in zip(REGIONS, (inside, None), strict=True):
            held = scores.coverage((mean - half, mean + half), target, where)
            found[f"{kind}_{round(100 * level)}_{region}"] = held
            if level == 0.9:
                found[f"{kind}_width_90_{region}"] = scores.width((-half, half), where)
    return found


def stretch_of(part: Mapping[str, np.ndarray], known: Conformal, level: float, surprise: float | None = None) -> Tensor:
    """By how much a calibrated interval is longer than std, at every pixel of a part's images."""
    mean, std = (torch.from_numpy(part[key] * part["scale"]) for key in ("mean", "std"))
    return known.stretch(mean, std, level, float(part["reached"]), surprise)


def even_foreground(part: Mapping[str, np.ndarray]) -> Tensor:
    """calibration.even_foreground of a part's samples, of which the mean is enough."""
    mean, target, n = torch.from_numpy(part["mean"]), torch.from_numpy(part["target"]), len(part["by_count"])
    return scores.foreground((n * mean + target) / (n + 1))


def magnitudes(recon: Reconstruction, target: Tensor) -> Tensor:
    """All samples as images in the target's matrix.  (N, H, W)"""
    samples = torch.as_tensor(recon.samples).cpu()
    return torch.stack([fitted(x.abs() if x.is_complex() else x, target) for x in samples])


def running_means(samples: Tensor) -> Tensor:
    """The mean of the first 1, 2, ... samples."""
    return samples.cumsum(0) / torch.arange(1, len(samples) + 1).reshape(-1, 1, 1)


def calibration_of(method: Method) -> Conformal | None:
    """What a method's model carries, if it was fitted for this model and for samples drawn in this way."""
    if not draws_samples(method):
        return None
    try:
        known = conformal.of_card(read_card(method.model))
    except ValueError:  # none, or one of other weights or of another version
        return None
    return known if known.how == conformal.how(method.samples, method.sampler, method.steps or STEPS) else None


def manifest_of(wanted: Sequence[tuple[Case, Method]]) -> str:
    """The first digits of a sha256, of what all rows were measured from: slices, their files, and how."""
    cases = {case for case, _ in wanted}
    return conformal.fingerprint(
        {c.name: [c.data, c.seed, c.protocol, c.choice.snr, family_of(c.choice)] for c in cases}
    )


def write_rows(out: Path, wanted: Sequence[tuple[Case, Method]]) -> Path:
    """All rows in the order of the configuration."""
    manifest = manifest_of(wanted)
    known = {method: calibration_of(method) for _, method in wanted}
    weights = {name: short_hash(name) if name else "" for name in {method.model for _, method in wanted}}
    rows = []
    for case, method in wanted:
        with np.load(part_of(out, case, method), allow_pickle=False) as part:
            row = json.loads(str(part["row"])) | {"weights": weights[method.model], "manifest": manifest}
            row |= {"measurement_seed": case.seed}
            own, check = known[method], checks.read(check_of(out, case, method)) if method.self_check else None
            surprise = check["overall"] if check else None
            if own is not None:
                row |= intervals(part, own, surprise) | {"calibration": _fitted(method.model)}
            if check:
                usual = selfcheck.of_card(read_card(method.model)).at(float(part["reached"]))
                row |= {"self_check_overall": surprise, "self_check_p": usual.p_value(check)}
                row |= checks.cost(check_of(out, case, method))
            rows.append(row)
    path = out / "rows.csv"
    with files.whole(path) as part, part.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        writer.writerows(rows)
    return path
