"""What may be handed to vLLM: a file that was decoded here, to its end, before vLLM does."""

from __future__ import annotations

from pathlib import Path

from mmcalib.domain.items import Item, Skipped
from mmcalib.domain.seen import encode
from mmcalib.locations.opening import local_copy
from mmcalib.media.decode import decode_check
from mmcalib.media.failure import failures, reason


def handed(item: Item, folder: str, known: str) -> str:
    """The path of a file with the bytes of the item, which declares its modality: itself, or a copy
    in `folder`; else an encoded `Skipped`. For a process that has a bound. Where it is `known` to
    decode, it is not decoded again.

    Raises OutputError when there is no room for a copy.
    """
    try:
        path = local_copy(item.path, Path(folder))
    except failures() as error:
        return encode(Skipped(item.path, reason(error)))
    if known:
        return path
    why = decode_check(Item(path, item.declared), item.declared or "image")
    return path if why is None else encode(Skipped(item.path, why))
