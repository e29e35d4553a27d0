"""What every part of a document that is kept has in common."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict

# measured: read from vLLM doing it. rehearsed: from vLLM's code on imaginary memory. computed:
# follows from measured values by vLLM's own rule. assumed: nobody said otherwise. given: by the
# user. projected: a log's measured figure plus the difference of two rehearsals (`plan --log`).
Label = Literal["measured", "rehearsed", "computed", "assumed", "given", "projected"]


class DocumentPart(BaseModel):
    """Does not change, and knows every field: a file of another version is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
