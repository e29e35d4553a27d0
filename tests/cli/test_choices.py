"""Names that an option takes, in words."""

from mmcalib.cli.command import either, none_of
from mmcalib.report.configurations import CONFIGURATIONS
from mmcalib.report.formats import CONFIGURATION_NAMES, REPORT_NAMES
from mmcalib.report.report import REPORTS


def test_what_may_be_chosen_is_listed() -> None:
    assert either(["html"]) == "html"
    assert either(["html", "md"]) == "html or md"
    assert either(["yaml", "args", "env"]) == "yaml, args or env"


def test_what_another_name_is_not() -> None:
    assert none_of(["html", "md"]) == "neither html nor md"
    assert none_of(["yaml", "args", "env"]) == "none of yaml, args, env"


def test_every_name_has_what_renders_it() -> None:
    assert (*REPORTS,) == REPORT_NAMES
    assert (*CONFIGURATIONS,) == CONFIGURATION_NAMES
