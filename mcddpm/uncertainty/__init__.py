"""Are error bars right, how are they made so, and does the model understand a scan at all?

`calibrate.calibrate(CalibrationSettings(...), out)` fits a calibration; `selfcheck.check(model, scan)` asks of a scan.
"""

from mcddpm.uncertainty.calibrate import CalibrationSettings
from mcddpm.uncertainty.calibrated_bars import error_bars
from mcddpm.uncertainty.calibration import Calibration, load_calibration
from mcddpm.uncertainty.conformal import Conformal
from mcddpm.uncertainty.scores import Scores
from mcddpm.uncertainty.selfcheck import Checked, check
from mcddpm.uncertainty.surprise import HidePlan, Surprise, Unchecked

__all__ = [
    "Calibration",
    "CalibrationSettings",
    "Checked",
    "Conformal",
    "HidePlan",
    "Scores",
    "Surprise",
    "Unchecked",
    "check",
    "error_bars",
    "load_calibration",
]
