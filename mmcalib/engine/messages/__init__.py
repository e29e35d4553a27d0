"""What the parent asks of the child that owns vLLM, and what it answers. JSON on a pipe.

A request is answered by any number of `Said` and `Measured`, then by exactly one closing reply.
"""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from mmcalib.engine.messages.budget import (
    AskBudget,
    Budget,
    Clip,
    Dummy,
)
from mmcalib.engine.messages.closing import (
    Done,
    Failed,
    Said,
)
from mmcalib.engine.messages.devices import (
    CompareDevices,
    DevicesCompared,
    DeviceTried,
    Form,
    Processed,
    TryDevice,
)
from mmcalib.engine.messages.looking import Look, Looked
from mmcalib.engine.messages.measuring import (
    Blank,
    Cost,
    Count,
    Counted,
    File,
    Knob,
    KnobKind,
    Measure,
    Measured,
    ModelOpened,
    OpenModel,
)
from mmcalib.engine.messages.rehearsing import (
    EncoderStep,
    Imagine,
    LiveTensor,
    Outputs,
    PhasePeak,
    Rehearse,
    Rehearsed,
    StepPeak,
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
    WorkerMemory,
)
from mmcalib.engine.messages.sweeping import Encode, Encoded, EncoderRun
from mmcalib.engine.messages.texts import (
    BareRequest,
    BoundTexts,
    CountTexts,
    FindRecipe,
    RecipeFound,
    TextBound,
    TextsCounted,
)

__all__ = [
    "REPLY",
    "REQUEST",
    "Answered",
    "AskBudget",
    "BareRequest",
    "Blank",
    "BoundTexts",
    "Budget",
    "Clip",
    "CompareDevices",
    "Cost",
    "Count",
    "CountTexts",
    "Counted",
    "DeviceTried",
    "DevicesCompared",
    "Done",
    "Dummy",
    "Encode",
    "Encoded",
    "EncoderRun",
    "EncoderStep",
    "EngineStarted",
    "Failed",
    "File",
    "FindRecipe",
    "Form",
    "Imagine",
    "Knob",
    "KnobKind",
    "ListServeOptions",
    "LiveTensor",
    "Look",
    "Looked",
    "Measure",
    "Measured",
    "ModelOpened",
    "OpenModel",
    "Outputs",
    "ParseServeConfig",
    "PhasePeak",
    "Processed",
    "RecipeFound",
    "Rehearse",
    "Rehearsed",
    "Replay",
    "ReplayPrompt",
    "Replayed",
    "Said",
    "ServeConfig",
    "ServeOptions",
    "StartEngine",
    "StepPeak",
    "TextBound",
    "TextsCounted",
    "TryDevice",
    "WorkerMemory",
]

Request = Annotated[
    Look
    | OpenModel
    | Measure
    | Count
    | CountTexts
    | BoundTexts
    | FindRecipe
    | TryDevice
    | CompareDevices
    | AskBudget
    | ParseServeConfig
    | ListServeOptions
    | StartEngine
    | Replay
    | Encode
    | Imagine
    | Rehearse,
    Field(discriminator="kind"),
]
Reply = Annotated[
    Looked
    | ModelOpened
    | Measured
    | Counted
    | TextsCounted
    | TextBound
    | RecipeFound
    | DeviceTried
    | DevicesCompared
    | Budget
    | ServeConfig
    | ServeOptions
    | EngineStarted
    | Replayed
    | Encoded
    | Rehearsed
    | Said
    | Done
    | Failed,
    Field(discriminator="kind"),
]

REQUEST: TypeAdapter[Any] = TypeAdapter(Request)
REPLY: TypeAdapter[Any] = TypeAdapter(Reply)
