"""vLLM's multimodal processor under one setting."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from mmcalib.domain.knobs import Setting
from mmcalib.domain.shapes import Modality

# Items are loaded through vLLM's own connector, which asks for a root; which files may be read was
# decided by the parent before it named them.
MEDIA_ROOT = "/"


@dataclass(frozen=True, slots=True)
class Processor:
    """vLLM's processor under one setting, with the model config that made it."""

    config: Any
    processor: Any
    setting: Setting

    @property
    def info(self) -> Any:
        return self.processor.info

    def placeholder_ids(self, modality: Modality) -> list[int]:
        """Token ids of a prompt with one item, as vLLM's own profile writes it."""
        text = self.processor.dummy_inputs.get_dummy_text({modality: 1})
        ids: list[int] = self.info.get_tokenizer().encode(text)
        return ids
