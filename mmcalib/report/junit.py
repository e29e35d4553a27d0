"""What does not fit as JUnit's XML, which CI systems show as tests that failed."""

from __future__ import annotations

from collections.abc import Sequence
from xml.etree import ElementTree as Xml

from mmcalib.result.check_lines import Offender, Summary
from mmcalib.wording import plain


def junit_xml(offenders: Sequence[Offender], summary: Summary, *, allow_unknown: bool) -> str:
    """One suite. Its counts are of all that was checked; cases are there for what does not fit, and
    of what is unknown and allowed to be, as skipped.
    """
    skipped = summary.unknown if allow_unknown else 0
    counts = {
        "tests": str(summary.checked),
        "failures": str(summary.no + summary.unknown - skipped),
        "errors": "0",
        "skipped": str(skipped),
    }
    root = Xml.Element("testsuites", {"name": "mmcalib check", **counts})
    suite = Xml.SubElement(root, "testsuite", {"name": "mmcalib check", **counts})
    for one in offenders:
        case = Xml.SubElement(
            suite, "testcase", {"classname": f"mmcalib.{one.kind}", "name": plain(one.origin)}
        )
        if one.answer == "unknown" and allow_unknown:
            Xml.SubElement(case, "skipped", {"message": plain(one.reason)})
            continue
        said = {"type": one.answer, "message": plain(one.reason)}
        Xml.SubElement(case, "failure", said).text = plain(one.remedy)
    more = summary.no + summary.unknown - len(offenders)
    if more:
        Xml.SubElement(suite, "system-err").text = f"{more} more do not fit and are not listed"
    Xml.indent(root)
    return Xml.tostring(root, encoding="unicode", xml_declaration=True) + "\n"
