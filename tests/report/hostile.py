"""Names that files may really have, and a calibration that is full of them."""

import os

from mmcalib.admission.calibration import Calibration
from mmcalib.results.part import CheckResult
from tests.report.example import calibration

NAMES = {
    "newline": "a\nallowed-local-media-path: /",
    "carriage return": "a\rtrust-remote-code: true",
    "line separator": "a\u2028trust-remote-code: true",
    "next line": "a\x85trust-remote-code: true",
    "fence": "a\n```\n# gone",
    "comment": "a # b: c",
    "quotes": 'it\'s "quoted".png',
    "bidi": "a\u202egnp.exe",
    "escape": "a\x1b[31mred",
    "nul": "a\x00b",
    "not utf-8": os.fsdecode(b"latin-\xe9.jpg"),
    "pipe": "a|b|c.png",
    "markup": "<script>alert(1)</script>[bold]x[/bold].png",
    "backtick": "a`b``c```.png",
    "markdown": "**b** _i_ [l](http://x) ~~s~~ $m$ &lt;",
    "backslash": "a\\|b",
    "long": "/data/" + "x" * 240 + ".png",
    "spaces": "a" + " " * 60 + "b",
}


def named(name: str) -> Calibration:
    """The example, with this name wherever an item, request or reason is named."""
    found = calibration()
    modalities = {
        modality: items.model_copy(update={"exemplar": name})
        for modality, items in found.corpus.modalities.items()
    }
    return calibration(
        model=found.model.model_copy(update={"id": name, "doubts": [name]}),
        evidence=[
            entry.model_copy(update={"exemplar": name, "reason": f"because of {name}"})
            for entry in found.evidence
        ],
        corpus=found.corpus.model_copy(update={"modalities": modalities}),
        checks=[
            CheckResult(name=f"{name} x", status=status, detail=name, remedy=name)
            for status in ("pass", "warn", "fail", "skip")
        ],
    )
