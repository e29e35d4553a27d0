"""What the parent asks of the child that owns vLLM, and what it answers, on a pipe.

A request is answered by any number of `Interim`s, then by its `Reply` or by `Failed`. A new one is
a class here, and a case in `mmcalib.child.service`.
"""

from mmcalib.engine.messages.budget import AskBudget, BudgetFound
from mmcalib.engine.messages.closing import Done, Failed, Said
from mmcalib.engine.messages.devices import CompareDevices, DevicesCompared, DeviceTried, TryDevice
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
from mmcalib.engine.messages.sweeping import BatchEncoded, Encode
from mmcalib.engine.messages.texts import (
    BareRequest,
    BoundTexts,
    CountTexts,
    FindRecipe,
    RecipeFound,
    TextsBound,
    TextsCounted,
)

__all__ = [
    "Answered",
    "AskBudget",
    "BareRequest",
    "BatchEncoded",
    "Blank",
    "BoundTexts",
    "BudgetFound",
    "CompareDevices",
    "CountEmbeds",
    "CountTexts",
    "Counted",
    "DeviceTried",
    "DevicesCompared",
    "Done",
    "Encode",
    "EngineStarted",
    "Failed",
    "File",
    "FindRecipe",
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
    "RecipeFound",
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
    "TryDevice",
    "decode",
    "encode",
]
