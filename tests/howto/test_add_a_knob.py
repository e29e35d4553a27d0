"""CONTRIBUTING, "How to add: a knob", read backwards on a copy: Gemma 4's is taken out again."""

from __future__ import annotations

import pytest

from .copy_of import Copy, copy_of

TYPES, DETECTORS = "mmcalib/domain/knobs.py", "mmcalib/child/knobs/find.py"
# Where a knob of each type is sent and has to arrive.
SENT = "tests/engine/test_messages.py"
UNION = " | TokenCap"
ASKED = """    if kind is TokenCap:
        return _tokens(trial)
"""
# What a type says of itself, and a user reads.
WORDS = """    def reductions(self) -> Iterator[tuple[Value, str]]:
        for tokens in _fewer(self.steps, self.value):
            yield tokens, f"an image takes at most {tokens} tokens, not {self.value}"

"""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    return copy_of(tmp_path_factory.mktemp("knob"))


def text(copy: Copy, file: str) -> str:
    return (copy.folder / file).read_text("utf-8")


def mypy(copy: Copy) -> str:
    return copy.run("-m", "mypy", "mmcalib").stdout


@pytest.mark.slow
def test_a_knob_is_its_type_and_its_detector(copy: Copy) -> None:
    """Without both nothing in the package misses it, and the other knobs are as they were."""
    whole = {file: text(copy, file) for file in (TYPES, DETECTORS, SENT)}
    try:
        taken_out(copy)
        assert copy.changed() == {TYPES, DETECTORS}
        assert mypy(copy).startswith("Success")
        copy.passes(
            "tests/derive/test_knobs.py",
            SENT,
            "tests/test_house.py::test_what_is_pure_reads_asks_and_knows_nothing",
        )
    finally:
        for file, content in whole.items():
            copy.write(file, content)
    assert copy.changed() == set()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "left_out", "named"),
    [
        (TYPES, WORDS, 'TokenCap has abstract attributes "reductions"'),
        (TYPES, UNION, 'Incompatible types in "yield" (actual type "TokenCap"'),
        (DETECTORS, ASKED, 'Argument 1 to "assert_never" has incompatible type "type[TokenCap]"'),
    ],
    ids=["its words", "its place among the knobs", "its detector"],
)
def test_mypy_names_what_is_left_out(copy: Copy, file: str, left_out: str, named: str) -> None:
    whole = text(copy, file)
    try:
        copy.edit(file, left_out, "")
        found = mypy(copy)
    finally:
        copy.write(file, whole)
    assert named in found


def taken_out(copy: Copy) -> None:
    """All that speaks of it in the package, and its line among those that are sent."""
    types = text(copy, TYPES)
    start = types.index("@final\n@dataclass(frozen=True, slots=True, kw_only=True)\nclass TokenCap")
    end = types.index("Knob = AreaCap")
    copy.write(TYPES, types[:start] + types[end:].replace(UNION, "", 1))
    copy.edit(DETECTORS, ", TokenCap", "")
    copy.edit(DETECTORS, ASKED, "")
    detectors = text(copy, DETECTORS)
    copy.write(DETECTORS, detectors[: detectors.index("def _tokens(")].rstrip("\n") + "\n")
    copy.edit(SENT, ", TokenCap", "")
    copy.edit(
        SENT, "    st.builds(TokenCap, path=PATH, value=SIZE, bleeds=BLEEDS, steps=STEPS),\n", ""
    )
