"""The calibrated configuration in every form that an engine is started from."""

from mmcalib.report.emit.form import FORMS, Form

__all__ = ["FORMS", "Form"]
