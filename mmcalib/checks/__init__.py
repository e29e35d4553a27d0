"""Checks: `check_*` judge `CheckFacts`, `*_check` judge values of one stage."""
