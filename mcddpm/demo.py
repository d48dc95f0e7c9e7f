"""`mcddpm demo`: a real head, under-sampled four- and eightfold, reconstructed with the shipped model; a page to see.

The scan comes with the package: three slices of the test person of `brain`, whom no model was trained on, with a
simulated phase and noise (magnitude images alone would make the problem too easy).
"""

from __future__ import annotations

import base64
import html
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from mcddpm import metrics, plots
from mcddpm.data.readers import open_volume
from mcddpm.evaluation import baselines
from mcddpm.models.denoiser import Denoiser
from mcddpm.models.store import ASSETS, load_model
from mcddpm.physics import masks
from mcddpm.physics.fourier import Fourier
from mcddpm.physics.measurement import measure
from mcddpm.reconstruction.plan import DrawPlan
from mcddpm.reconstruction.result import Reconstruction
from mcddpm.reconstruction.sample import check, reconstruct
from mcddpm.system.progress import Progress, note

SCAN = ASSETS / "demo.h5"
ACCELERATIONS = (4, 8)
BOX = (62, 104, 48, 48)
USUAL = DrawPlan()


@dataclass(frozen=True)
class Row:
    """One line of the table."""

    slice: int
    acceleration: int
    method: str
    psnr: float
    ssim: float
    nmse: float
    calls: int
    seconds: float


def run(
    out: Path, progress: Progress, device: str | torch.device = "cpu", plan: DrawPlan = USUAL
) -> tuple[Path, list[Row]]:
    """Reconstruct the bundled scan; write PNGs and report.html into `out`, and return the page and its numbers."""
    network = check(load_model("default", device), plan)
    scan, rows, pictures = open_volume(SCAN), [], []
    out.mkdir(parents=True, exist_ok=True)
    for index in range(len(scan)):
        for acceleration in ACCELERATIONS:
            progress.say(note(f"slice {index + 1} of {len(scan)}, {acceleration}x: {plan.samples} samples"))
            lines, picture = _one(network, scan[index], index, acceleration, plan, out)
            rows += lines
            pictures.append(picture)
    page = out / "report.html"
    page.write_text(_page(rows, pictures, network))
    return page, rows


def _one(
    model: Denoiser, y: torch.Tensor, index: int, acceleration: int, plan: DrawPlan, out: Path
) -> tuple[list[Row], tuple[str, Path]]:
    A = Fourier()
    mask = masks.random_columns(y.shape[-1], acceleration=acceleration, seed=index)
    m = measure(y, mask, A, A.pinv(y))
    assert m.truth is not None
    truth = m.truth.abs() / m.scale
    methods: dict[str, Callable[[], Reconstruction]] = {
        "zero-filled": lambda: baselines.zero_filled(m),
        "one call": lambda: reconstruct(model, m, sampler="mean"),
        f"mean of {plan.samples}": lambda: reconstruct(model, m, plan),
    }
    rows, recons = [], {}
    for name, method in methods.items():
        start = time.monotonic()
        recons[name] = method()
        mean, taken = recons[name].mean, time.monotonic() - start
        psnr, ssim, nmse = (float(metric(mean, truth)) for metric in (metrics.psnr, metrics.ssim, metrics.nmse))
        calls = recons[name].calls * len(recons[name].samples)
        rows.append(Row(index + 1, acceleration, name, psnr, ssim, nmse, calls, taken))
    recon = recons[f"mean of {plan.samples}"]
    shown = {"truth": truth, "zero-filled": recons["zero-filled"].mean, "mean": recon.mean}
    images = {name: image.numpy() for name, image in shown.items()}
    title = f"slice {index + 1}, {acceleration}x: {int(mask.sum())} of {len(mask)} columns measured"
    one = recons["one call"].mean.numpy()
    picture = out / f"slice{index + 1}-{acceleration}x.png"
    plots.reconstruction(picture, images, recon.std.numpy(), recon.samples.abs().numpy(), one, BOX, title)
    return rows, (title, picture)


def table(rows: list[Row]) -> str:
    """The mean over slices, a line for each acceleration and method, as text."""
    lines = [f"{'':6}{'':12}{'PSNR':>8}{'SSIM':>8}{'NMSE':>9}{'calls':>7}{'seconds':>9}"]
    for acceleration, method, part in _groups(rows):
        psnr, ssim, nmse, calls, seconds = part
        lines.append(f"{acceleration}x    {method:12}{psnr:8.2f}{ssim:8.3f}{nmse:9.4f}{calls:7.0f}{seconds:9.1f}")
    return "\n".join(lines)


def _groups(rows: list[Row]) -> list[tuple[int, str, list[float]]]:
    keys = {(row.acceleration, row.method): None for row in rows}
    return [
        (
            acceleration,
            method,
            np.mean(
                [
                    (r.psnr, r.ssim, r.nmse, r.calls, r.seconds)
                    for r in rows
                    if (r.acceleration, r.method) == (acceleration, method)
                ],
                axis=0,
            ).tolist(),
        )
        for acceleration, method in sorted(keys, key=lambda key: key[0])
    ]


# --- the page -------------------------------------------------------------------------------------------------------

_STYLE = """
body { background: #14161a; color: #e6e6e6; font: 16px/1.55 system-ui, sans-serif; margin: 2.5rem auto;
       max-width: 76rem; padding: 0 1.5rem }
h1 { font-size: 1.7rem; margin-bottom: .3rem } h2 { font-size: 1.15rem; margin: 2.4rem 0 .6rem; color: #9fc5ff }
p { max-width: 60rem } .note { color: #a9b0ba; font-size: .93rem }
table { border-collapse: collapse; margin: 1rem 0 } th, td { padding: .35rem 1.1rem; text-align: right }
th { color: #a9b0ba; font-weight: 500; border-bottom: 1px solid #3a3f47 }
td:nth-child(-n+2), th:nth-child(-n+2) { text-align: left }
tr.ours td { color: #fff; font-weight: 600 } tr.first td { border-top: 1px solid #2a2e35 }
img { width: 100%; border-radius: 6px; background: #fff }
"""

_TEXT = """
<p>Three slices of a real head that the model has never seen, measured with a quarter and an eighth of the columns of
k-space. From each, samples of what the full scan could have been were drawn. Every sample agrees exactly with
what was measured; where they differ, the data do not tell which one is right.</p>
<p class="note">PSNR (dB), SSIM and NMSE are means over these slices, each against the full scan as it was measured,
noise included, with the slice's own maximum as range. Phase and noise of the scan are simulated. The error of the mean
and the std are shown in one range: where the std is dark, the error should be. Calls are network calls for a slice.
Research software, not for diagnosis.</p>
"""


def _page(rows: list[Row], pictures: list[tuple[str, Path]], model: Denoiser) -> str:
    lines, before = [], 0
    for acceleration, method, (psnr, ssim, nmse, calls, seconds) in _groups(rows):
        kind = ("ours " if method.startswith("mean of") else "") + ("first" if acceleration != before else "")
        numbers = (f"{psnr:.2f}", f"{ssim:.3f}", f"{nmse:.4f}", f"{calls:.0f}", f"{seconds:.1f}")
        cells = "".join(f"<td>{cell}</td>" for cell in (f"{acceleration}x", method, *numbers))
        lines.append(f'<tr class="{kind}">{cells}</tr>')
        before = acceleration
    head = "".join(f"<th>{name}</th>" for name in ("", "", "PSNR", "SSIM", "NMSE", "calls", "seconds"))
    shown = "".join(
        f'<h2>{html.escape(title)}</h2><img alt="{html.escape(title)}" src="{_inline(path)}">'
        for title, path in pictures
    )
    made = html.escape(f"{model.card.made_by}, model {model.card.sha256[:12]}") if model.card else ""
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>mcddpm demo</title><style>{_STYLE}</style>'
        f"<h1>What the scan could have been</h1>{_TEXT}<table><tr>{head}</tr>{''.join(lines)}</table>{shown}"
        f'<p class="note">{made}</p></html>\n'
    )


def _inline(path: Path) -> str:
    return f"data:image/png;base64,{base64.b64encode(path.read_bytes()).decode()}"
