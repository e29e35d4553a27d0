"""Start vLLM's worker; print how often torch's fake mode and meta kernels agree, and where not."""

import json
import sys
from collections import Counter
from collections.abc import Sequence
from typing import Any

from mmcalib.child.rehearsal.startup import install, start_worker
from mmcalib.models.gpus import find_gpu

stage = install(find_gpu("L4"))

import torch  # noqa: E402 - only after the stand-ins
from torch.utils._pytree import tree_leaves  # noqa: E402
from vllm.engine.arg_utils import EngineArgs  # noqa: E402

from mmcalib.child.rehearsal.device import ImaginaryGpu, _has_plain_meta_kernel  # noqa: E402

compared: Counter[str] = Counter()
differing: dict[str, str] = {}


def described(made: Any, given: Sequence[Any]) -> list[Any]:
    """Results as far as a rehearsal sees them; which of what was given they are, or view."""
    storages = [one.untyped_storage()._cdata for one in given if isinstance(one, torch.Tensor)]
    found: list[Any] = []
    for leaf in tree_leaves(made):
        if not isinstance(leaf, torch.Tensor):
            found.append(leaf)
            continue
        storage = leaf.untyped_storage()
        alias = storages.index(storage._cdata) if storage._cdata in storages else None
        itself = [index for index, one in enumerate(given) if one is leaf]
        # How far apart the entries of a dimension of one are says nothing.
        stride = [by for by, size in zip(leaf.stride(), leaf.shape, strict=True) if size > 1]
        layout = (tuple(leaf.shape), stride, leaf.storage_offset(), str(leaf.dtype))
        found.append((*layout, str(leaf.device), storage.nbytes(), alias, itself))
    return found


class BesideFakes(ImaginaryGpu):
    """Asks twice."""

    def _meta_result(self, func: Any, args: Any, kwargs: dict[str, Any], device: Any) -> Any:
        made = super()._meta_result(func, args, kwargs, device)
        return self._compared(func, args, kwargs, made) if _has_plain_meta_kernel(func) else made

    def _new_result(self, func: Any, args: Any, kwargs: dict[str, Any], device: Any) -> Any:
        made = super()._new_result(func, args, kwargs, device)
        return self._compared(func, args, kwargs, made)

    def _compared(self, func: Any, args: Any, kwargs: dict[str, Any], made: Any) -> Any:
        given = tree_leaves((args, kwargs))
        # What moves the sizes of what it is given would do so twice; none such is answered.
        with self.fake:
            beside = func(*args, **kwargs)
        given = tree_leaves((args, kwargs))
        said, wanted = described(made, given), described(beside, given)
        compared[str(func)] += 1
        if said != wanted:
            differing.setdefault(str(func), f"{said}, and the fake mode {wanted}")
        return made


stage.device.__class__ = BesideFakes
config = EngineArgs(model=sys.argv[1], load_format="dummy", max_model_len=4096, enforce_eager=True)
with start_worker(stage, config.create_engine_config()) as started:
    peak = max(phase.peak_bytes for phase in started.phases)
print(json.dumps({"compared": compared, "differing": differing, "peak": peak}))
