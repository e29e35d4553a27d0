"""What the parent asks of the child that owns vLLM, and what it answers, on a pipe.

A request is answered by any number of `Interim`s, then by its `Reply` or by `Failed`. A new one is
a class here, and a case in `mmcalib.child.service`.
"""

from mmcalib.engine.messages.budget import AskBudget, BudgetFound
from mmcalib.engine.messages.closing import Done, Failed, Said
from mmcalib.engine.messages.devices import CompareDevices, DevicesCompared
from mmcalib.engine.messages.looking import Look, Looked
from mmcalib.engine.messages.measuring import (
    Blank,
    Counted,
    CountEmbeds,
    File,
    Measure,
    Measured,
    ModelOpened,
    OpenModel,
)
from mmcalib.engine.messages.message import Interim, Message, Reply, Request, decode, encode
from mmcalib.engine.messages.rehearsing import (
    Imagine,
    RehearsalFound,
    Rehearse,
    ServeTraffic,
    TrafficServed,
)
from mmcalib.engine.messages.serving import (
    Answered,
    EngineStarted,
    ListServeOptions,
    ParseServeConfig,
    Replay,
    Replayed,
    ReplayPrompt,
    ServeConfig,
    ServeOptions,
    StartEngine,
)
from mmcalib.engine.messages.texts import (
    BareRequest,
    BoundTexts,
    CountingFound,
    CountTexts,
    FindCounting,
    TextsBound,
    TextsCounted,
)

__all__ = [
    "Answered",
    "AskBudget",
    "BareRequest",
    "Blank",
    "BoundTexts",
    "BudgetFound",
    "CompareDevices",
    "CountEmbeds",
    "CountTexts",
    "Counted",
    "CountingFound",
    "DevicesCompared",
    "Done",
    "EngineStarted",
    "Failed",
    "File",
    "FindCounting",
    "Imagine",
    "Interim",
    "ListServeOptions",
    "Look",
    "Looked",
    "Measure",
    "Measured",
    "Message",
    "ModelOpened",
    "OpenModel",
    "ParseServeConfig",
    "RehearsalFound",
    "Rehearse",
    "Replay",
    "ReplayPrompt",
    "Replayed",
    "Reply",
    "Request",
    "Said",
    "ServeConfig",
    "ServeOptions",
    "ServeTraffic",
    "StartEngine",
    "TextsBound",
    "TextsCounted",
    "TrafficServed",
    "decode",
    "encode",
]
