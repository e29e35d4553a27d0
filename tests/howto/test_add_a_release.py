"""CONTRIBUTING, "How to add: a release of vLLM", done on a copy."""

from __future__ import annotations

from pathlib import Path

import pytest

from .copy_of import Copy, copy_of

RELEASES = "mmcalib/releases"
ASKED = (
    "from mmcalib.releases.environment import whole_numbers; "
    "print(whole_numbers(['VLLM_MAX_AUDIO_DECODE_DURATION_S']))"
)
HOUSE = "tests/test_house.py::"


def next_release(copy: Copy) -> None:
    """A stand-in for vLLM 0.34, in which `envs` has moved to `settings`."""
    copy.write("vllm/__init__.py", "")
    copy.write("vllm/settings.py", "VLLM_MAX_AUDIO_DECODE_DURATION_S = 900\n")
    copy.write(
        "vllm-0.34.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: vllm\nVersion: 0.34.0\n"
    )


@pytest.mark.slow
def test_a_release_is_a_matter_of_one_folder(tmp_path: Path) -> None:
    copy = copy_of(tmp_path)
    next_release(copy)
    before = copy.run("-c", ASKED)
    assert before.returncode == 1
    assert "ImportError: cannot import name 'envs' from 'vllm'" in before.stderr
    copy.edit(
        f"{RELEASES}/release.py",
        'VLLM_0_33 = Release("vllm", 0, 33)\n',
        'VLLM_0_33 = Release("vllm", 0, 33)\nVLLM_0_34 = Release("vllm", 0, 34)\n',
    )
    module = f"{RELEASES}/environment.py"
    imports = "from mmcalib.releases.release import "
    copy.edit(module, imports, f"{imports}VLLM_0_34, ")
    copy.edit(
        module,
        'chat heeds."""\n    from vllm import envs\n',
        'chat heeds."""\n'
        "    if VLLM_0_34.reached:\n"
        "        from vllm import settings as envs\n"
        "    else:\n"
        "        from vllm import envs\n",
    )
    after = copy.run("-c", ASKED)
    assert after.stdout == "{'VLLM_MAX_AUDIO_DECODE_DURATION_S': 900}\n", after.stderr
    assert {name.rpartition("/")[0] for name in copy.changed()} == {RELEASES}
    copy.passes(
        f"{HOUSE}test_only_releases_imports_vllm",
        f"{HOUSE}test_releases_are_told_apart_by_date_and_in_their_folder",
    )
