"""CONTRIBUTING, "How to add: a knob", done on a copy: `max_soft_tokens` of Gemma 4."""

from __future__ import annotations

import pytest

from .copy_of import Copy, copy_of

TYPES, DETECTORS = "mmcalib/domain/knobs.py", "mmcalib/child/knobs/find.py"

WORDS = """    def reductions(self) -> Iterator[tuple[Value, str]]:
        for tokens in reversed(self.steps):
            yield tokens, f"an image takes at most {tokens} tokens, not {self.value}"
"""
TYPE = f'''@final
@dataclass(frozen=True, slots=True, kw_only=True)
class TokenCap(MediaOption):
    """The most tokens of an image, where they are one of few numbers.

    `steps` are those numbers, ascending.
    """

    kind: Literal["tokens"] = "tokens"
    modality: Literal["image"] = "image"
    steps: tuple[int, ...]

    def values(self, items: Sequence[Loaded], wanted: Wanted) -> list[Value]:
        return list(self.steps)

{WORDS}
    def value_for_tokens(self, tokens: int) -> Value | None:
        return max((step for step in self.steps if step <= tokens), default=None)

    def value_for_item(self, tokens: int) -> Value | None:
        return self.value_for_tokens(tokens)


'''
UNION = "Knob = AreaCap | EdgeCap | TileCap | CropCap | FrameSampling"

DETECTOR = '''

# What the processor takes, and nothing between.
_SOFT_TOKENS = (70, 140, 280, 560, 1120)


def _tokens(trial: Trial) -> Iterator[Knob]:
    """`max_soft_tokens` of Gemma 4."""
    value = getattr(trial.part("image_processor"), "max_soft_tokens", None)
    if "image" not in trial.modalities or value not in _SOFT_TOKENS:
        return
    tried = next(tokens for tokens in _SOFT_TOKENS if tokens != value)
    paths = (("images_kwargs", "max_soft_tokens"), ("max_soft_tokens",))
    found = trial.first([(path, {}) for path in paths], tried, "image")
    if found is not None:
        (path, _), bleeds = found
        yield TokenCap(path=path, value=value, steps=_SOFT_TOKENS, bleeds=bleeds)
'''
ASKED = """    if kind is TokenCap:
        return _tokens(trial)
"""
LAST = "    assert_never(kind)\n"

# What its own test says: how it is written, tried, chosen and said, and that it crosses the pipe.
TEST = """
from mmcalib.checks.dialect import line_of
from mmcalib.derive import frontier
from mmcalib.derive.choice import choose
from mmcalib.derive.policy import Policy
from mmcalib.domain.knobs import KNOBS, Knob, TokenCap
from mmcalib.domain.setting import Setting
from mmcalib.domain.shapes import ImageShape
from pydantic import TypeAdapter

from tests.derive.costed import cost, table

PHOTO = ImageShape(4000, 3000)
GEMMA4 = TokenCap(
    path=("images_kwargs", "max_soft_tokens"), value=280, steps=(70, 140, 280, 560, 1120)
)


def test_it_is_written_tried_chosen_and_said():
    assert frontier.at(GEMMA4, 140) == Setting({"images_kwargs": {"max_soft_tokens": 140}})
    default = table(cost(PHOTO, 280))
    points = [
        frontier.point(GEMMA4, value, table(cost(PHOTO, int(value))), default)
        for value in GEMMA4.values(default.of("image"), Policy())
    ]
    assert choose(points, Policy()).value == 280
    assert choose(points, Policy(max_tokens_per_item=200)).value == 140
    assert line_of(GEMMA4, 70) == "mm-processor-kwargs: {images_kwargs: {max_soft_tokens: 70}}"


def test_it_crosses_the_pipe():
    adapter = TypeAdapter(tuple[Knob, ...])
    assert adapter.validate_json(adapter.dump_json((GEMMA4,))) == (GEMMA4,)
    assert TokenCap in KNOBS
"""
# Against vLLM's own processor of a small Gemma 4.
HEEDED = """
from pathlib import Path

import pytest

from mmcalib.derive import frontier
from mmcalib.domain.cost import Cost
from mmcalib.domain.knobs import TokenCap
from mmcalib.domain.shapes import ImageShape
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import Blank
from mmcalib.models import materialise
from tests.engine import gemma4
from tests.engine.conftest import Lab

pytestmark = pytest.mark.engine


def test_gemma_s_soft_tokens(host: EngineHost, engine_cache: Path) -> None:
    opened = Lab(host, materialise(gemma4.geometry(), engine_cache / "gemma4"))
    (knob,) = (knob for knob in opened.opened.knobs if isinstance(knob, TokenCap))
    assert (knob.path, knob.value) == (("images_kwargs", "max_soft_tokens"), 280)
    photo, found = Blank(ImageShape(3072, 2048)), []
    for value in knob.steps:
        (cost,) = opened.costs(photo, setting=frontier.at(knob, value))
        assert isinstance(cost, Cost), cost
        assert value * 0.8 < cost.embeds <= value
        found.append(cost.embeds)
    assert found == sorted(set(found))
"""
SAID = """def test_soft_tokens_are_tokens() -> None:
    assert said(GEMMA4) == {
        140: "an image takes at most 140 tokens, not 280",
        70: "an image takes at most 70 tokens, not 280",
    }


def test_every_kind_is_tried("""


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Copy:
    """The two files changed, and nothing left out."""
    copy = copy_of(tmp_path_factory.mktemp("knob"))
    copy.edit(TYPES, UNION, f"{TYPE}{UNION} | TokenCap")
    copy.edit(DETECTORS, "Knob, TileCap\n", "Knob, TileCap, TokenCap\n")
    copy.edit(DETECTORS, LAST, f"{ASKED}{LAST}")
    text = (copy.folder / DETECTORS).read_text("utf-8")
    copy.write(DETECTORS, text.rstrip("\n") + "\n" + DETECTOR)
    return copy


def mypy(copy: Copy) -> str:
    return copy.run("-m", "mypy").stdout


@pytest.mark.slow
def test_a_knob_is_its_type_and_its_detector(copy: Copy) -> None:
    assert copy.changed() == {TYPES, DETECTORS}
    assert mypy(copy).startswith("Success")
    assert copy.run("-m", "ruff", "check", TYPES, DETECTORS).returncode == 0
    media_fixes = "tests/derive/test_media_fixes.py"
    copy.edit(media_fixes, "Knob, TileCap\n", "Knob, TileCap, TokenCap\n")
    copy.edit(
        media_fixes,
        "FACTS = Facts(",
        'GEMMA4 = TokenCap(path=("max_soft_tokens",), value=280, steps=(70, 140, 280, 560))\n'
        "FACTS = Facts(",
    )
    copy.edit(media_fixes, "def test_every_kind_is_tried(", SAID)
    copy.edit(media_fixes, "INTERNVL2, QWEN, FPS)}", "INTERNVL2, QWEN, FPS, GEMMA4)}")
    copy.write("tests/derive/test_token_cap.py", TEST)
    copy.passes(
        "tests/derive/test_token_cap.py",
        media_fixes,
        "tests/derive/test_knobs.py",
        "tests/engine/test_messages.py",
        "tests/test_house.py::test_every_module_says_what_it_is_and_stays_short",
        "tests/test_house.py::test_what_is_pure_reads_asks_and_knows_nothing",
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "left_out", "named"),
    [
        (TYPES, WORDS, 'TokenCap has abstract attributes "reductions"'),
        (TYPES, " | TokenCap", 'Incompatible types in "yield" (actual type "TokenCap"'),
        (DETECTORS, ASKED, 'Argument 1 to "assert_never" has incompatible type "type[TokenCap]"'),
    ],
    ids=["its words", "its place among the knobs", "its detector"],
)
def test_mypy_names_what_is_left_out(copy: Copy, file: str, left_out: str, named: str) -> None:
    whole = (copy.folder / file).read_text("utf-8")
    try:
        copy.edit(file, left_out, "")
        found = mypy(copy)
    finally:
        copy.write(file, whole)
    assert named in found


@pytest.mark.engine
@pytest.mark.slow
def test_a_real_processor_heeds_it(copy: Copy) -> None:
    copy.write("tests/engine/test_token_cap.py", HEEDED)
    copy.passes("tests/engine/test_token_cap.py")
