from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mmcalib.corpus.shard import Shard, ShardPart
from mmcalib.errors import UsageError

PATHS = st.lists(st.sampled_from(["a", "b", "sub", "c.png"]), min_size=1, max_size=4).map("/".join)
SIZES = st.integers(1, 9)


def parts(of: int, *roots: str) -> list[ShardPart]:
    return [ShardPart(Shard(of, index), roots) for index in range(1, of + 1)]


@given(st.binary(max_size=9), SIZES)
def test_every_key_is_in_exactly_one_shard(key: bytes, of: int) -> None:
    assert sum(Shard(of, index).has(key) for index in range(1, of + 1)) == 1


@given(PATHS, SIZES)
def test_every_file_is_in_one_part_even_where_roots_overlap(path: str, of: int) -> None:
    split = parts(of, "/data", "/data/sub", "/data/sub/a", "/")
    assert sum(part.owns(f"/data/{path}") for part in split) == 1
    assert sum(part.owns(f"/elsewhere/{path}") for part in split) == 1


@given(PATHS, SIZES)
def test_it_does_not_matter_where_a_folder_is_mounted(path: str, of: int) -> None:
    pairs = zip(parts(of, "/data"), parts(of, "/mnt/deep/er/"), strict=True)
    for here, there in pairs:
        assert here.owns(f"/data/{path}") == there.owns(f"/mnt/deep/er/{path}")


@given(PATHS, SIZES)
def test_members_of_archives_are_spread_too(path: str, of: int) -> None:
    pairs = list(zip(parts(of, "/data"), parts(of, "/mnt/deep/er/"), strict=True))
    for here, there in pairs:
        member = f"tar://{path}::"
        assert here.owns(f"{member}/data/x/1.tar") == there.owns(f"{member}/mnt/deep/er/x/1.tar")
    assert sum(here.owns(f"tar://{path}::/data/1.tar") for here, _ in pairs) == 1


def test_members_of_one_archive_are_in_all_parts() -> None:
    split = parts(4, "/data/1.tar")
    owners = Counter(
        next(i for i, part in enumerate(split) if part.owns(f"tar://{n}.png::/data/1.tar"))
        for n in range(4000)
    )
    assert all(900 < size < 1100 for size in owners.values()), owners


def test_urls_go_by_what_is_below_theirs() -> None:
    for one, other in zip(parts(5, "s3://b/x"), parts(5, "gs://c/y/z/"), strict=True):
        assert one.owns("s3://b/x/sub/1.png") == other.owns("gs://c/y/z/sub/1.png")


@given(st.integers(1, 10**6), SIZES)
def test_every_request_is_in_one_part_by_its_line(line: int, of: int) -> None:
    named, by_path = (
        [part.owns_prompt(f"{label}:{line}") for part in parts(of)]
        for label in ("requests.jsonl", "/logs/a:b/requests.jsonl")
    )
    assert named == by_path
    assert sum(named) == 1


def test_a_file_that_is_a_source_goes_by_its_name() -> None:
    for one, other in zip(parts(5, "/a/x.png"), parts(5, "/a"), strict=True):
        assert one.owns("/a/x.png") == other.owns("/a/x.png")


def test_parts_are_about_equal() -> None:
    split = parts(4, "/data")
    sizes = Counter(
        next(i for i, part in enumerate(split) if part.owns(f"/data/{n}.jpg")) for n in range(4000)
    )
    assert all(900 < size < 1100 for size in sizes.values()), sizes


def test_the_split_is_the_same_in_every_version() -> None:
    """Shards of machines with different versions would overlap otherwise."""
    owned = [n for n in range(20) if ShardPart(Shard(3, 1), ["/data"]).owns(f"/data/{n}.jpg")]
    assert owned == [0, 6, 10, 13, 17, 18]


@pytest.mark.parametrize("words", ["", "1", "1/", "a/b", "-1/2", "1/2/3", "1 /2", "1.0/2"])
def test_what_is_no_shard(words: str) -> None:
    with pytest.raises(UsageError, match="not a shard"):
        Shard.parse(words)


@pytest.mark.parametrize("words", ["0/2", "3/2", "0/0", "1/0"])
def test_a_shard_that_there_is_not(words: str) -> None:
    with pytest.raises(UsageError, match="no such shard"):
        Shard.parse(words)


def test_a_shard_in_words() -> None:
    assert Shard.parse("2/8") == Shard(of=8, index=2)
    assert str(Shard.parse("02/8")) == "2/8"
