import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmcalib.census.census import shape_order
from mmcalib.census.prompts import (
    SIGNATURES_PER_WEIGHT,
    PromptCensus,
    PromptCount,
    PromptSignature,
    SignatureCode,
    decode_signature,
    encode_signature,
)
from mmcalib.corpus.chat import ChatRequest, Prompt
from mmcalib.domain.items import RequestText
from mmcalib.domain.shapes import AudioShape, ImageShape, Shape, VideoShape
from tests.corpus.listed import width_of

A, B = ImageShape(1, 1), ImageShape(2, 1)
CLIP = VideoShape(8, 8.0, 1.0, 64, 64)


def census(prompts: list[tuple[list[Shape], str]], file: str = "r") -> PromptCensus:
    taken = PromptCensus()
    for number, (shapes, text) in enumerate(prompts):
        taken.add(shapes, Prompt(f"{file}:{number}", (), ChatRequest.of_user(text)))
    return taken


def most_images(taken: PromptCensus, share: float = 1.0) -> int:
    return taken.items_covering(("image",), share)["image"]


def test_a_signature_is_what_decides_the_cost() -> None:
    taken = census([([B, A], "xy"), ([A, B], "zz"), ([A, B], "z"), ([A], "zz")])
    assert [(entry.signature.shapes, entry.signature.text_chars, entry.count, entry.exemplar.origin)
            for entry in taken.signatures()] == [
        ((A,), 2, 1, "r:3"),
        ((A, B), 1, 1, "r:2"),
        ((A, B), 2, 2, "r:0"),
    ]  # fmt: skip


def test_items_per_prompt() -> None:
    taken = census([([A] * n, "") for n in (1, 1, 1, 1, 1, 1, 1, 2, 2, 9)])
    assert most_images(taken) == 9
    assert most_images(taken, 0.9) == 2
    assert most_images(taken, 0.91) == 9
    assert most_images(taken, 0.7) == 1
    assert most_images(taken, 0.001) == 1
    assert taken.items_covering(("video",), 1.0) == {"video": 0}
    assert most_images(PromptCensus()) == 0
    with pytest.raises(ValueError, match="share"):
        most_images(taken, 0)


@given(st.lists(st.integers(0, 5), min_size=1), st.floats(0.01, 1))
def test_the_quantile_covers_its_share(counts: list[int], quantile: float) -> None:
    most = most_images(census([([A] * n, "") for n in counts]), quantile)
    assert sum(n <= most for n in counts) / len(counts) >= quantile - 1e-9
    assert most == 0 or sum(n < most for n in counts) / len(counts) < quantile


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=12),
    st.floats(0.01, 1),
    st.floats(0.01, 1),
)
def test_a_joint_cover_admits_its_share_and_grows_with_it(pairs, one: float, two: float) -> None:
    taken = census([([*[A] * images, *[CLIP] * videos], "") for images, videos in pairs])
    less, more = (taken.items_covering(("image", "video"), share) for share in sorted((one, two)))
    admitted = sum(e.count for e in taken.signatures() if e.signature.fits(less))
    assert admitted / len(pairs) >= min(one, two) - 1e-9
    assert all(less[modality] <= more[modality] for modality in less)
    whole = taken.items_covering(("image", "video"), 1.0)
    assert whole == {"image": max(n for n, _ in pairs), "video": max(n for _, n in pairs)}


def request(number: int, width: int, chars: int) -> tuple[list[Shape], Prompt]:
    return [ImageShape(width, 8)], Prompt(f"r:{number:05}", (), ChatRequest.of_user("x" * chars))


@given(st.permutations(range(1200)))
@settings(max_examples=10)
def test_of_many_kinds_the_heaviest_and_some_others_are_kept_whole(order) -> None:
    kinds = [request(n, 1 + n * 7919 % 1201, n * 31 % 997) for n in range(1200)]
    whole, sorted_ = PromptCensus(), PromptCensus()
    for n in order:
        whole.add(*kinds[n])
    for n in range(1200):
        sorted_.add(*kinds[n])
    assert list(whole.signatures()) == list(sorted_.signatures())
    kept = {e.signature for e in whole.signatures() if e.exemplar.request.messages}
    assert SIGNATURES_PER_WEIGHT <= len(kept) <= 4 * SIGNATURES_PER_WEIGHT
    by_width = sorted(whole.signatures(), key=lambda e: width_of(e.signature.shapes[0]))
    assert all(e.signature in kept for e in by_width[-SIGNATURES_PER_WEIGHT + 10 :])
    assert whole.prompts() == 1200
    assert all(e.exemplar.origin for e in whole.signatures())


# Requests and files of others may say any number.
WHOLE = st.one_of(st.integers(0, 300), st.integers(0, 2**70), st.just(10**700))
SIZE = st.one_of(st.integers(1, 300), st.integers(1, 2**62))
ODD = st.one_of(
    st.builds(ImageShape, SIZE, SIZE),
    st.builds(VideoShape, SIZE, st.floats(0.01, 1e9), st.floats(0.01, 1e9), SIZE, SIZE),
    st.builds(AudioShape, SIZE, SIZE),
)
SIGNATURES = st.builds(
    PromptSignature,
    st.lists(ODD, max_size=4).map(lambda shapes: tuple(sorted(shapes, key=shape_order))),
    WHOLE,
    st.builds(RequestText, WHOLE, WHOLE, WHOLE, st.none() | WHOLE, st.booleans(), WHOLE),
)


def code(signature: PromptSignature) -> SignatureCode:
    return encode_signature(signature.shapes, signature.text_chars, signature.asked)


def order(signature: PromptSignature) -> tuple[object, ...]:
    shapes = [shape_order(shape) for shape in signature.shapes]
    return shapes, signature.text_chars, signature.asked.sort_key


@given(SIGNATURES, SIGNATURES)
def test_codes_are_as_distinct_as_their_signatures_and_in_their_order(one, other) -> None:
    assert (decode_signature(code(one)), decode_signature(code(other))) == (one, other)
    assert (code(one) == code(other)) == (one == other)
    assert (code(one) < code(other)) == (order(one) < order(other))
    assert encode_signature(reversed(one.shapes), one.text_chars, one.asked) == code(one)


@given(st.lists(st.tuples(SIGNATURES, st.integers(1, 9), st.integers(0, 9)), max_size=9))
def test_signatures_are_counted_exactly(drawn) -> None:
    entries = [PromptCount(s, n, Prompt(f"r:{o}")) for s, n, o in [*drawn, *drawn[:4]]]
    found = list(PromptCensus(entries).signatures())
    assert [entry.signature for entry in found] == sorted({s for s, _, _ in drawn}, key=order)
    for entry in found:
        same = [e for e in entries if e.signature == entry.signature]
        assert entry.count == sum(e.count for e in same)
        assert entry.exemplar.origin == min(e.exemplar.origin for e in same)
