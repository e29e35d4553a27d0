"""Items of a corpus through the processors of a few models, on a GPU and on the CPU."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from gpu.lines import append, read_lines
from mmcalib.domain.processed import Processed, TensorSpec
from mmcalib.domain.setting import DEFAULT
from mmcalib.domain.shapes import MODALITIES, Modality
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import (
    CompareDevices,
    File,
    OpenModel,
    TryDevice,
)
from mmcalib.errors import EngineDied, MmcalibError
from mmcalib.models import find, materialise
from mmcalib.workflows.proof.processor_device import Pair

# One of each kind of processor; sizes of the same family share theirs.
MODELS = (
    "Qwen/Qwen2.5-VL-3B-Instruct",
    "google/gemma-3-4b-it",
    "Qwen/Qwen3-VL-2B-Instruct",
    "Qwen/Qwen2-VL-2B-Instruct",
    "Qwen/Qwen2.5-Omni-7B",
    "llava-hf/llava-onevision-qwen2-7b-ov-hf",
    "openai/whisper-large-v3",
    # Takes no device.
    "OpenGVLab/InternVL2-2B",
)
# `item` of a line that is of a whole modality, or of all of them.
WHOLE = ""
UNSERVED = "the model does not take them"


@dataclass(frozen=True, slots=True)
class Line:
    """One item through one model, by its name in the corpus; or, with no item, why none was."""

    gpu: str
    vllm: str
    device: str
    model: str
    modality: str
    item: str
    cpu: dict[str, Any] | None = None
    other: dict[str, Any] | None = None
    refusal: str = ""
    largest_difference: float | None = None
    option: str = ""
    threads: int = 0

    @property
    def of(self) -> tuple[str, str, str]:
        return self.gpu, self.vllm, self.device

    @property
    def pair(self) -> Pair | None:
        """Both results; None where one is missing."""
        if self.cpu is None or self.other is None:
            return None
        return Pair(self.item, _result(self.cpu), _result(self.other), self.largest_difference)


def _result(kept: dict[str, Any]) -> Processed:
    forms = tuple(TensorSpec(f["name"], f["dtype"], tuple(f["shape"])) for f in kept["forms"])
    return Processed(**{**kept, "forms": forms})


def read(path: Path) -> list[Line]:
    """The last line of each item, in the order in which they came."""
    known = {field.name for field in fields(Line)}
    last: dict[tuple[object, ...], Line] = {}
    for found in read_lines(path):
        line = Line(**{name: value for name, value in found.items() if name in known})
        last[(*line.of, line.model, line.modality, line.item)] = line
    return list(last.values())


def corpus(folder: Path) -> list[tuple[Modality, str]]:
    """The files below image/, video/ and audio/ of the folder, by their names in it."""
    return [
        (modality, str(path.relative_to(folder)))
        for modality in MODALITIES
        for path in sorted((folder / modality).rglob("*"))
        if path.is_file()
    ]


@dataclass(frozen=True, slots=True)
class Bench:
    """Where and until when items are processed. `deadline_s` is of `time.monotonic`."""

    gpu: str
    vllm: str
    device: str
    data: Path
    scratch: Path
    log: Path
    results: Path
    deadline_s: float

    @property
    def late(self) -> bool:
        return time.monotonic() > self.deadline_s

    def left(self, model: str, items: Sequence[tuple[Modality, str]]) -> list[tuple[Modality, str]]:
        """Those that are not done yet, of modalities that its processor takes to a device."""
        done = {
            (line.modality, line.item)
            for line in read(self.results)
            if (line.of, line.model) == ((self.gpu, self.vllm, self.device), model)
        }
        return [one for one in items if one not in done and (one[0], WHOLE) not in done]

    def run(self, model: str, items: Sequence[tuple[Modality, str]]) -> Iterator[Line]:
        """Process every item that is left; each line is on disk when it is yielded. A failure to
        open the model is a line, too, and is tried again.
        """
        left = self.left(model, items)
        if not left or self.late:
            return
        geometry = find(model)
        assert geometry is not None, model
        folder = materialise(geometry, self.scratch / model.replace("/", "--"))
        try:
            with EngineHost(log=self.log) as host:
                for line in self._process(host, model, folder, left):
                    append(self.results, asdict(line))
                    yield line
        except MmcalibError as error:
            line = self._line(model, WHOLE, WHOLE, refusal=error.message)
            append(self.results, asdict(line))
            yield line

    def _process(
        self,
        host: EngineHost,
        model: str,
        folder: Path,
        left: Collection[tuple[Modality, str]],
    ) -> Iterator[Line]:
        request = OpenModel(str(folder), tries=False)
        opened = host.ask(request, "opening the model").model
        served = tuple(m for m in opened.modalities if any(m == one for one, _ in left))
        tried = host.ask(TryDevice(served), "trying the processor")
        unserved = dict.fromkeys(dict(left).keys() - set(served), UNSERVED)
        for modality, why in {**unserved, **tried.unfit}.items():
            yield self._line(model, modality, WHOLE, refusal=why)
        warm = {m for m in served if m not in tried.unfit}
        fit = tuple(warm)
        for modality, name in left:
            if self.late:
                return
            if modality not in fit:
                continue
            compare = CompareDevices(
                DEFAULT, File(modality, str(self.data / name)), self.device, modality in warm
            )
            try:
                found = host.ask(compare, f"processing {name}")
            except EngineDied as error:
                # The next call goes on behind it.
                yield self._line(model, modality, name, refusal=error.message)
                return
            warm.discard(modality)
            yield self._line(
                model,
                modality,
                name,
                cpu=asdict(found.cpu) if found.cpu else None,
                other=asdict(found.device) if found.device else None,
                refusal=found.refusal,
                largest_difference=found.largest_difference,
                option=tried.option,
                threads=tried.threads,
            )

    def _line(self, model: str, modality: str, item: str, **more: Any) -> Line:
        return Line(self.gpu, self.vllm, self.device, model, modality, item, **more)
