"""NIfTI: the mean, and beside it std, interval and provenance."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from mcddpm.data.writers.result import Result
from mcddpm.system import files


def write_nifti(path: Path, result: Result) -> None:
    """PATH holds the mean, NAME_std the std if there is one, NAME_lower and NAME_upper an interval, NAME.json the
    provenance; axes and affine as read."""
    companions = nifti_companions(path)
    images = {companions[name]: values for name, values in result.images.items() if name != "mean"}
    for target in (companions["provenance"], *images, path):
        files.refuse(target)
    written = []
    try:
        for target, values in images.items():
            written.append(_save(target, values, result))
        written.append(files.write_json(companions["provenance"], result.provenance, fresh=True))
        _save(path, result.mean, result)  # last: where it is, the others are
    except BaseException:
        for target in written:
            target.unlink()
        raise


def _save(path: Path, values: np.ndarray, result: Result) -> Path:
    import nibabel

    affine = np.eye(4) if result.affine is None else result.affine
    image = nibabel.nifti1.Nifti1Image(values.astype(np.float32).transpose(2, 1, 0), affine)
    image.header["descrip"] = str(result.provenance.get("made_by", "mcddpm")).encode()[:79]
    image.header.set_xyzt_units("mm")
    with files.whole(path, fresh=True) as part:
        nibabel.save(image, part)
    return path


def nifti_companions(path: Path) -> dict[str, Path]:
    """NAME_std.nii.gz, NAME_lower.nii.gz, NAME_upper.nii.gz and NAME.json of NAME.nii.gz."""
    base = path.name.removesuffix(".gz").removesuffix(".nii")
    paths = {key: path.with_name(f"{base}_{key}{path.name[len(base) :]}") for key in ("std", "lower", "upper")}
    return paths | {"provenance": path.with_name(f"{base}.json")}
