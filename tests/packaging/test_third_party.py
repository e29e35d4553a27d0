"""What comes from elsewhere is said, file by file."""

from __future__ import annotations

import importlib.metadata
from fnmatch import fnmatch

from mmcalib.models.catalogue import bundled_models

from .third_party import BROUGHT, DATA, FACTS, PAGE, data_files, dependencies, page


def test_the_page_is_written_anew() -> None:
    assert PAGE.read_text("utf-8") == page(), "python -m tests.packaging.third_party"


def test_every_file_that_is_no_code_is_on_it_and_no_other() -> None:
    there = data_files()
    assert {name for name in there if not any(fnmatch(name, p) for p in DATA)} == set()
    assert {pattern for pattern in DATA if not any(fnmatch(n, pattern) for n in there)} == set()


def test_every_geometry_is_named() -> None:
    text = PAGE.read_text("utf-8")
    assert [g.id for g in bundled_models() if f"`{g.id}`" not in text] == []
    assert len(bundled_models()) == sum(fnmatch(name, FACTS) for name in data_files())


def test_every_dependency_has_the_licence_of_its_metadata() -> None:
    assert set(BROUGHT) == set(dependencies())
    for name, licence in BROUGHT.items():
        metadata = importlib.metadata.metadata(name)
        keys = ("License-Expression", "License", "Classifier")
        stated = " ".join(said for key in keys for said in metadata.get_all(key, []))
        family = licence.partition(";")[0].removesuffix("-3-Clause").removesuffix("-CMU")
        assert family in stated, (name, stated[:200])
