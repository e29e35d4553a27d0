"""How a figure, or the value of a setting, is known."""

from __future__ import annotations

from typing import Literal

# measured: read from vLLM doing it. rehearsed: from vLLM's code on imaginary memory. computed:
# follows from measured values by vLLM's own rule. assumed: nobody said otherwise. given: by the
# user.
Label = Literal["measured", "rehearsed", "computed", "assumed", "given"]
