"""Both legs of one person with the phase that the scanner measured, inside a package of the public index: `legs`.

An echo is a folder of magnitudes and a folder of phases; -4096 to 4096 is one turn. There is one person only, so the
parts are places along the legs, lower ones to train on and upper ones for tests, 20 mm apart: not a test of new people.
"""

from __future__ import annotations

from mcddpm.data.archive import Archive, Scan

PARTS = {"train": range(100), "test": range(110, 150)}  # slices of 2 mm, from the ankles up
HALF_TURN = 4096.0

_MYOQMRI = Archive(
    "myoqmri", "myoqmri-2.0.2.tar.gz", "dc3b012790b20f1d3ba207ca78b22deafd5375e8b3b1543782830c1c516b0cd1"
)


def _folder(name: str, sha256: str, what: str) -> Scan:
    what = f"{what}, both legs, 2 mm; slices 0 to 99 are train, 110 to 149 test"
    member = f"example_data/Dixon_enhanced/{name}/"
    return Scan("legs", "train", _MYOQMRI, member, sha256, what, "GPL-3.0-only (package)")


SCANS = [  # magnitude, phase; magnitude, phase
    _folder(
        "012_dixon_2echo_RR_opp",
        "49302ceda0a3bab0f2df2d87beba44a1445fcd31bd700efdd1084cfaa481a8b6",
        "magnitude with fat and water opposed",
    ),
    _folder(
        "013_dixon_2echo_RR_opp",
        "f9dab3e9c091c63a7286ae980837a087c56abe281938aee5e16d764d4931ca05",
        "phase with fat and water opposed",
    ),
    _folder(
        "014_dixon_2echo_RR_in",
        "2b5d8252f26be145f3a1225fbf4741cd450d8159827b5435a26032c636214369",
        "magnitude with fat and water in phase",
    ),
    _folder(
        "015_dixon_2echo_RR_in",
        "5d58d92c5fe3e462f7df1c280adc3468ae9c5c8ce2986b689d66b81936acdf4c",
        "phase with fat and water in phase",
    ),
]

CITATIONS = {"myoqmri": "the package myoqmri"}
