"""Media that are no files of their own are measured as if they were."""

import zipfile
from pathlib import Path

import pytest

from mmcalib.corpus.archives import ArchiveSource
from mmcalib.domain.items import ByteSource, Item, Skipped
from mmcalib.domain.shapes import AudioShape, Shape
from mmcalib.media.audio import audio_shape
from mmcalib.media.bounded import LimitedFile
from mmcalib.media.decode import decode_check
from mmcalib.media.failure import Unreadable
from mmcalib.media.probe import probe
from tests.media import hostile as make
from tests.media.test_hostile import FILES
from tests.programs import run_python

# Larger ones are nothing but zeros, which FFmpeg searches for as long as it is let.
MOST_BYTES = 1 << 23


@pytest.fixture(scope="module")
def copies(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Item]]:
    """A folder of loose files, and the same files in an archive by their names."""
    folder = tmp_path_factory.mktemp("loose")
    path = tmp_path_factory.mktemp("zipped") / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name, write in FILES.items():
            write(folder / name)
            if (folder / name).stat().st_size <= MOST_BYTES:
                archive.write(folder / name, name)
    items = [item for item in ArchiveSource("zip", str(path)).items() if isinstance(item, Item)]
    return folder, {item.path[len("zip://") :].partition("::")[0]: item for item in items}


def outcome(item: Item) -> Shape | str:
    found = probe(item)
    return found.reason if isinstance(found, Skipped) else found


@pytest.mark.parametrize("name", FILES)
def test_a_member_has_the_shape_and_the_faults_of_the_file(copies, name: str) -> None:
    folder, members = copies
    if name not in members:
        pytest.skip("larger than 8 MiB")
    member, loose = members[name], Item(str(folder / name))
    assert outcome(member) == outcome(loose)
    shape = probe(loose)
    if not isinstance(shape, Skipped):
        assert decode_check(member, shape.modality) == decode_check(loose, shape.modality)


def test_bytes_in_hand_need_no_place(tmp_path: Path) -> None:
    make.tone(tmp_path / "a.wav")
    data = (tmp_path / "a.wav").read_bytes()
    held = ByteSource("", len(data), data=data)
    item = Item("parquet://0/sound::/nowhere.parquet", byte_source=held)
    assert probe(item) == AudioShape(48000, 16000)
    assert decode_check(item, "audio") is None


def test_no_more_is_read_than_allowed(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    make.tone(tmp_path / "a.wav")
    with (tmp_path / "a.wav").open("rb") as file:
        medium = LimitedFile(file, 96044, what="medium", most_bytes=20)
        with pytest.raises(Unreadable, match="takes more than"):
            audio_shape(medium, file)
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("name", ["no-index.mp4", "tail-cut.ogg"])
def test_damaged_members_are_told_of_once(copies, name: str) -> None:
    code = (
        "import sys; from mmcalib.domain.items import Item; from mmcalib.media.probe import probe;"
        "print(probe(Item(sys.argv[1])).reason)"
    )
    done = run_python("-c", code, copies[1][name].path, check=True)
    assert done.stdout.startswith("damaged: ")
    assert "Traceback" not in done.stderr
