import sys
from pathlib import Path

import pytest

from mmcalib.census.executor import Executor, FunctionRef, ProbeTask
from mmcalib.census.pool import LocalPool
from mmcalib.domain.items import ProbedMedia, Skipped, decode_line
from mmcalib.domain.shapes import ImageShape
from mmcalib.errors import MmcalibError, UsageError
from mmcalib.storage.location import item_version
from tests.census.decoders import behave
from tests.census.looking import Inline, orders


def seen(pool: Executor, chunk: list[ProbeTask]) -> list[ProbedMedia]:
    answers = pool.submit(chunk)()
    return [decode_line(o.item.path, a.line) for o, a in zip(chunk, answers, strict=True)]


def reasons(found: list[ProbedMedia]) -> list[str]:
    return [one.reason if isinstance(one, Skipped) else "" for one in found]


def test_the_same_as_in_this_process(tmp_path: Path) -> None:
    chunks = [orders(tmp_path, *(f"{part}{n}" for n in range(part, 30))) for part in range(9)]
    with LocalPool(behave, workers=3) as pool:
        waits = [pool.submit(chunk) for chunk in chunks]
        answers = [wait() for wait in waits]
    inline = Inline(behave)
    assert answers == [inline.submit(chunk)() for chunk in chunks]


def test_results_may_be_asked_for_in_any_order(tmp_path: Path) -> None:
    chunks = [orders(tmp_path, *("a" * (part + 1) for _ in range(3))) for part in range(9)]
    with LocalPool(behave, workers=2) as pool:
        waits = [pool.submit(chunk) for chunk in chunks]
        for part, wait in reversed(list(enumerate(waits))):
            assert {a.line for a in wait()} == {f'["image",{part + 1},1]'}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("segfault", "the decoder was killed by SIGSEGV"),
        ("abort", "the decoder was killed by SIGABRT"),
        ("exit", "the decoder ended with exit code 7"),
        ("hang", "the decoder took more than 1 s"),
        ("compute", "the decoder took more than 1 s"),
        ("explode", "damaged: MemoryError:"),
        ("raise", "damaged: NotImplementedError: no such thing"),
    ],
)
def test_a_decoder_that_misbehaves_costs_one_item(tmp_path: Path, name: str, why: str) -> None:
    chunk = orders(tmp_path, "a", "bb", name, "dddd")
    with LocalPool(behave, workers=2, timeout_s=1) as pool:
        found = [seen(pool, chunk) for _ in range(2)]
    assert found[0] == found[1]
    assert reasons(found[0]) == ["", "", why, ""]
    assert found[0][3] == ImageShape(4, 1)


def test_a_mistake_of_ours_is_no_damage_of_the_file(tmp_path: Path) -> None:
    with LocalPool(behave, workers=2) as pool, pytest.raises(MmcalibError) as raised:
        seen(pool, orders(tmp_path, "a", "bb", "mistake", "dddd"))
    assert raised.value.message.startswith(f"unexpected TypeError at {tmp_path / 'mistake'}: ")
    assert "report this bug" in raised.value.hint


@pytest.mark.parametrize("name", ["once", "stop-once"])
def test_who_is_killed_or_stopped_by_others_is_asked_again(tmp_path: Path, name: str) -> None:
    with LocalPool(behave, workers=1, timeout_s=2) as pool:
        assert reasons(seen(pool, orders(tmp_path, "a", name, "b"))) == ["", "", ""]


def test_what_a_look_says_in_words_is_the_line(tmp_path: Path) -> None:
    with LocalPool(behave, workers=1) as pool:
        (answer,) = pool.submit(orders(tmp_path, "say"))()
    assert answer.line == "said of say"


def test_what_ends_everything_is_raised(tmp_path: Path) -> None:
    with LocalPool(behave, workers=2) as pool, pytest.raises(UsageError, match="is missing"):
        seen(pool, orders(tmp_path, "a", "missing"))


def test_a_file_that_keeps_changing_is_skipped(tmp_path: Path) -> None:
    with LocalPool(behave, workers=1) as pool:
        chunk = orders(tmp_path, "a", "grow")
        answers = pool.submit(chunk)()
    assert "changed while being read" in answers[1].line
    assert not answers[1].version
    assert answers[0].version == item_version(chunk[0].item)


def test_a_file_that_changed_once_is_read_again(tmp_path: Path) -> None:
    stale = [order._replace(version="1:1") for order in orders(tmp_path, "a")]
    with LocalPool(behave, workers=1) as pool:
        (answer,) = pool.submit(stale)()
    assert answer.version == item_version(stale[0].item)


def test_a_process_that_cannot_begin_is_named(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with LocalPool(behave, workers=1) as pool, pytest.raises(Exception, match="before its first"):
        seen(pool, orders(tmp_path, "a"))


def test_the_start_of_a_worker_is_no_time_of_its_first_item(tmp_path: Path) -> None:
    look = FunctionRef("tests.census.slow_to_import", "look")
    with LocalPool(look, workers=1, timeout_s=0.5) as pool:
        assert seen(pool, orders(tmp_path, "a")) == [ImageShape(1, 1)]


def test_chunks_are_as_long_as_items_are_quick(tmp_path: Path) -> None:
    quick, slow = orders(tmp_path, *"abcdefgh") * 32, orders(tmp_path, "slow") * 8
    with LocalPool(behave, workers=1) as pool:
        for _ in range(4):
            seen(pool, quick)
        most = pool.chunk_items
        seen(pool, slow)
        assert pool.chunk_items < 4 < 64 < most


def test_versions_are_answered_where_they_were_asked_for(tmp_path: Path) -> None:
    asked = orders(tmp_path, "a")
    with LocalPool(behave, workers=1) as pool:
        answers = pool.submit([*asked, asked[0]._replace(version=None)])()
    assert [answer.version for answer in answers] == [item_version(asked[0].item), ""]
