"""What of the corpus could be read, loaded and served."""

from __future__ import annotations

from mmcalib.checks.check import CheckId

CORPUS_READABLE = CheckId("corpus readable")
STAND_INS_AGREE = CheckId("stand-ins agree")
SERVER_TAKES_FILES = CheckId("server takes the files")
MODALITIES_SERVED = CheckId("modalities served")
MEDIA_SERVED = CheckId("media served")
ITEMS_LOAD = CheckId("items load")
MODALITY_LOADS = CheckId("{} items load")
UNSEEN = CheckId("{} measured")
