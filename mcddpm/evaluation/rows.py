"""One line of an evaluation."""

from __future__ import annotations

from mcddpm import metrics
from mcddpm.uncertainty import scores

REGIONS = ("foreground", "whole")
FITTED = ("conformal", "adaptive")  # intervals that were calibrated, without the self-check and with it
COLUMNS = (
    "label",
    "protocol",
    "volume",
    "slice",
    "acceleration",
    "method",
    *(f"{name}_slice" for name in metrics.METRICS),
    *("psnr_foreground", "ssim_foreground"),
    *(f"{name}_{region}" for region in REGIONS for name in scores.SCORES),
    *(f"{kind}_{round(100 * v)}_{region}" for kind in FITTED for region in REGIONS for v in scores.LEVELS),
    *(f"{kind}_width_90_{region}" for kind in FITTED for region in REGIONS),
    *("self_check_overall", "self_check_p", "self_check_calls", "self_check_seconds"),
    "pixels_foreground",
    "weight",
    "samples",
    "calls",
    "seconds",
    "seed",
    "measurement_seed",
    "device",
    "weights",
    "calibration",
    "manifest",
)
