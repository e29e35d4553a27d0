"""Names that an option takes, in words."""

from mmcalib.cli.choices import either, none_of
from mmcalib.report.registry import CONFIGURATIONS, REPORTS


def test_what_may_be_chosen_is_listed() -> None:
    assert either(["html"]) == "html"
    assert either(["html", "md"]) == "html or md"
    assert either(["yaml", "args", "env"]) == "yaml, args or env"


def test_what_another_name_is_not() -> None:
    assert none_of(["html", "md"]) == "neither html nor md"
    assert none_of(["yaml", "args", "env"]) == "none of yaml, args, env"


def test_the_default_comes_first_and_another_name_is_none() -> None:
    assert REPORTS.names[0] == "html"
    assert CONFIGURATIONS.names[:2] == ("yaml", "args")
    assert "registry" not in REPORTS
