"""Members of archives as files, for an engine that loads nothing else."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from mmcalib.corpus.archives import archive_source
from mmcalib.corpus.chat import ChatRequest, Prompt, url_part
from mmcalib.decision.media_files import prepare_files, prepare_requests
from mmcalib.domain.items import Skipped
from mmcalib.storage.location import url_of
from tests.builders import expect, some
from tests.corpus.listed import prompts_of
from tests.corpus.tars import png, tar
from tests.programs import run_python
from tests.security.bombs import slow_jpeg

NO_ROOM = """
import resource, sys
from mmcalib.errors import OutputError
from mmcalib.decision.media_files import prepare_files
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
try:
    prepare_files([("image", sys.argv[1])])
except OutputError as error:
    print(error.message, error.hint, sep="\\n")
"""


def files_of(prompt: Prompt) -> list[bytes]:
    """Return the files that the engine would read for the media of a prompt."""
    (request,) = prepare_requests([prompt.request])
    urls = [urlsplit(url) for _, url in expect(ChatRequest, request).media()]
    assert {url.scheme for url in urls} == {"file"}
    return [Path(url.path).read_bytes() for url in urls]


def only_prompt(path: Path) -> Prompt:
    (prompt,) = prompts_of(some(archive_source(str(path))))
    return prompt


def test_members_of_a_shard_become_files(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", ("x.a.png", png(9)), ("x.b.png", png(7)), ("x.txt", b"words"))
    assert files_of(only_prompt(shard)) == [png(9), png(7)]


def test_cells_of_a_table_become_files(tmp_path: Path) -> None:
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    cells = [{"bytes": png(width), "path": None} for width in (9, 7)]
    table = arrow.table({"prompt": ["words"], "images": [cells]})
    parquet.write_table(table, tmp_path / "a.parquet")
    assert files_of(only_prompt(tmp_path / "a.parquet")) == [png(9), png(7)]


def test_what_went_away_is_no_file(tmp_path: Path) -> None:
    gone = f"tar://a.png::{tmp_path}/none.tar"
    assert prepare_files([("image", gone)]) == [Skipped(gone, "no such file")]


def test_what_cannot_be_decoded_is_not_handed_over_until_it_is_mended(tmp_path: Path) -> None:
    cut, good = tmp_path / "cut.png", tmp_path / "good.png"
    good.write_bytes(png(99))
    cut.write_bytes(png(99)[:-40])
    refused, path = prepare_files([("image", str(cut)), ("image", str(good))])
    assert isinstance(refused, Skipped)
    assert path == str(good)
    parts = [url_part("image_url", url_of(str(one))) for one in (good, cut)]
    whole, torn = (ChatRequest.of_user([part]) for part in parts)
    both = ChatRequest.of_user(parts)
    assert prepare_requests([whole, torn, both]) == [whole, refused, refused]
    cut.write_bytes(png(99))
    assert prepare_files([("image", str(cut))]) == [str(cut)]


def test_what_was_decoded_before_is_not_decoded_again(tmp_path: Path) -> None:
    cut = tmp_path / "cut.png"
    cut.write_bytes(png(99)[:-40])
    shard = tar(tmp_path / "a.tar", ("a.png", cut.read_bytes()))
    member = f"tar://a.png::{shard}"
    path, copy = prepare_files([("image", str(cut)), ("image", member)], decoded=True)
    assert path == str(cut)
    assert Path(expect(str, copy)).read_bytes() == cut.read_bytes()


def test_what_takes_too_long_is_not_handed_over(tmp_path: Path) -> None:
    slow_jpeg(tmp_path / "slow.jpg", 6000, 8000)
    (refused,) = prepare_files([("image", str(tmp_path / "slow.jpg"))], timeout_s=3)
    assert refused == Skipped(str(tmp_path / "slow.jpg"), "the decoder took more than 3 s")


def test_no_room_for_copies_says_where_they_lie(tmp_path: Path) -> None:
    shard = tar(tmp_path / "a.tar", ("a.png", png(99)))
    done = run_python("-c", NO_ROOM, f"tar://a.png::{shard}", check=True)
    message, hint = done.stdout.splitlines()
    assert message.startswith("cannot write a copy of media: ")
    assert message.endswith("File too large")
    assert hint == "TMPDIR=DIR"
