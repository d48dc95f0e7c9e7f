"""Heads of more sites and contrasts, inside packages of the public Python index: the data set `heads`.

Where nothing beside a file says whence it comes, the package's licence is all there is ("package"). OASIS asks to be
acknowledged. IXI's licence passes itself on, so its people are for tests only; nondefaced-detector's `example1` is
IXI002 of `brain-contrasts` and is left out.
"""

from __future__ import annotations

from mcddpm.data.archive import Archive, Scan

_FRACTAL = Archive(
    "fractal-workspace",
    "fractal_workspace-0.1.20-py3-none-any.whl",
    "bbfa594ffb47ec6c3b2cab9e6b941f6cf73c9ab5e2debf247e0de6b2454d8c86",
)
_NONDEFACED = Archive(
    "nondefaced-detector",
    "nondefaced-detector-0.1.1.dev0.tar.gz",
    "195d64c6aea7924ee0525b9f511d003630f3e4e59810f39888d948f67b2b9940",
)


def _oasis(number: str, split: str, sha256: str, who: str) -> Scan:
    member = f"images/OAS1_{number}_MR1/PROCESSED/MPRAGE/SUBJ_111/"
    what = f"T1 head, 1 mm, four scans averaged, defaced; {who}"
    return Scan(f"OAS1_{number}", split, _FRACTAL, member, sha256, what, "MIT (package); OASIS-1: acknowledge")


def _ixi(number: int, sha256: str) -> Scan:
    member = f"examples/sample_vols/faced/example{number}.nii.gz"
    what, licence = "T1 head, 0.9 x 0.9 x 1.2 mm", "CC BY-SA 3.0 (IXI); test only"
    return Scan(f"nondefaced{number}", "test", _NONDEFACED, member, sha256, what, licence)


SCANS = [
    Scan(
        "visualqc",
        "train",
        Archive(
            "visualqc", "visualqc-0.6.1.tar.gz", "cc90cb6814fcc1b8d9b41d64043aeecd979e24d4c8144a2e2218b741e134afc5"
        ),
        "example_datasets/id_001/mri/orig.mgz",
        "e05f5a438fb8ea91114c947c057abc57ed19d820128b6f0431dc541f2621cfef",
        "T1 head, 1 mm, 8 bit",
        "Apache-2.0 (package)",
    ),
    _oasis("0001", "validation", "c8c64d0d3df3e2c3556d71d508bc65a60d7a582aa7666846a2eae7e0adfc5710", "74 years"),
    _oasis("0029", "calibration", "eff49722ec304d58f72d7b66155f7ba226cbe054fe11f9b84c8899d42dee26da", "21 years"),
    _oasis(
        "0031", "calibration", "fc41c7ea131756fc3c59300faf2b82465c4cc4248696c25811518f7cefe98be2", "88 years, dementia"
    ),
    _ixi(2, "073461dcd7bdec3324c5624bade7f31e75d580c67d22cb24f2de4f1389800c0e"),
    _ixi(3, "670a2e8b66a6190245a7ac46d10a717f686dd54ad91189b41f26465160af68f7"),
    Scan(
        "monai",
        "test",
        Archive(
            "pydra-compose-monai",
            "pydra_compose_monai-0.2.0.tar.gz",
            "66bc2a7349ed686c5a72123094e82bacdba513567631c8b49366d5cee119a3d2",
        ),
        "test-data/nifti/anat/T2w.nii.gz",
        "73d8290157d07bcdef513a69c2779996556638528efc748b19bbdbc5d2c80532",
        "T2 head with dark fluid (FLAIR), 1 mm, without skull",
        "Apache-2.0 (package)",
    ),
]

CITATIONS = {
    "visualqc": "VisualQC: Raamana, Zenodo",
    "fractal-workspace": "OASIS-1: Marcus et al., Journal of Cognitive Neuroscience 2007",
    "nondefaced-detector": "IXI data set, brain-development.org",
    "pydra-compose-monai": "the package pydra-compose-monai",
}
