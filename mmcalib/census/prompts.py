"""The census of prompts: which combinations of items come together in one request."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from mmcalib.census.census import shape_order
from mmcalib.census.signature import PromptSignature
from mmcalib.census.top_k import Foremost
from mmcalib.corpus.asking import asked_by
from mmcalib.domain.items import Prompt
from mmcalib.domain.shapes import Modality, Shape

# One for all prompts that keep none.
_NO_MESSAGES: list[dict[str, object]] = []


@dataclass(frozen=True, slots=True)
class PromptCount:
    """`count` prompts have `signature`; `exemplar` is the one whose origin sorts first, whole or
    only its origin.
    """

    signature: PromptSignature
    count: int
    exemplar: Prompt


class PromptCensus:
    """The exact histogram of prompts. Adding and merging give the same in any order.

    Some whole prompts are kept, for replay: of the heaviest signatures, and of some by chance. Of
    the others only an origin is: memory grows by half a kilobyte with the number of signatures.
    """

    def __init__(self, counts: Iterable[PromptCount] = ()) -> None:
        self._counts: dict[PromptSignature, PromptCount] = {}
        self._whole = Foremost()
        for entry in counts:
            self._take(entry)

    def add(self, shapes: Iterable[Shape], prompt: Prompt) -> None:
        """Count `prompt`, whose items have `shapes`."""
        ordered = tuple(sorted(shapes, key=shape_order))
        signature = PromptSignature(ordered, len(prompt.text), asked_by(prompt))
        self._take(PromptCount(signature, 1, prompt))

    def merge(self, other: PromptCensus) -> PromptCensus:
        """The census of both corpora's prompts; neither is changed."""
        return PromptCensus([*self._counts.values(), *other._counts.values()])

    def prompts(self) -> int:
        """The number of prompts."""
        return sum(entry.count for entry in self._counts.values())

    def signatures(self) -> Iterator[PromptCount]:
        """The distinct signatures, in a fixed order."""
        yield from sorted(self._counts.values(), key=_order)

    def items_per_prompt(self, modality: Modality, quantile: float = 1.0) -> int:
        """The least n such that a share `quantile` of the prompts has at most n items; 0 if none.

        `quantile` lies in (0, 1]; 1 is the maximum.
        """
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile {quantile} is not in (0, 1]")
        per_prompt = self.histogram(modality)
        # The product of a decimal share and a count may lie a rounding error above a whole number.
        needed = math.ceil(round(quantile * per_prompt.total(), 9))
        covered = 0
        for items, prompts in sorted(per_prompt.items()):
            covered += prompts
            if covered >= needed:
                return items
        return 0

    def covering(self, modalities: Sequence[Modality], share: float) -> dict[Modality, int]:
        """Items per modality that together admit at least `share` of the prompts.

        Prompts with fewest items are admitted first, so that a larger share never gives less of
        any modality.
        """
        per_prompt = sorted(
            (tuple(e.signature.items(m) for m in modalities), e.count)
            for e in self._counts.values()
        )
        needed = math.ceil(round(share * self.prompts(), 9))
        most, covered = (0,) * len(modalities), 0
        for items, prompts in sorted(per_prompt, key=lambda entry: sum(entry[0])):
            if covered >= needed:
                break
            most = tuple(map(max, most, items))
            covered += prompts
        return dict(zip(modalities, most, strict=True))

    def admitted(self, counts: Mapping[Modality, int]) -> int:
        """The number of prompts that carry no more items of any of the modalities."""
        return sum(e.count for e in self._counts.values() if e.signature.within(counts))

    def histogram(self, modality: Modality) -> Counter[int]:
        """Number of items of `modality` in a prompt -> number of such prompts."""
        per_prompt: Counter[int] = Counter()
        for entry in self._counts.values():
            per_prompt[entry.signature.items(modality)] += entry.count
        return per_prompt

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptCensus) and self._counts == other._counts

    __hash__ = None  # type: ignore[assignment]

    def _take(self, entry: PromptCount) -> None:
        signature, count, exemplar = entry.signature, entry.count, entry.exemplar
        known = self._counts.get(signature)
        if known:
            signature, count = known.signature, known.count + count
        else:
            for other in self._whole.offer(signature):
                gone = self._counts[other]
                self._counts[other] = PromptCount(other, gone.count, _origin(gone.exemplar))
        if signature not in self._whole:
            exemplar = _origin(exemplar)
        first = _first(known.exemplar, exemplar) if known else exemplar
        self._counts[signature] = PromptCount(signature, count, first)


def _origin(prompt: Prompt) -> Prompt:
    return Prompt(prompt.origin, (), "", _NO_MESSAGES) if prompt.messages else prompt


def _order(entry: PromptCount) -> tuple[list[tuple[float, ...]], int, tuple[int, ...]]:
    signature = entry.signature
    shapes = [shape_order(shape) for shape in signature.shapes]
    return shapes, signature.text_chars, signature.asked.order


def _first(one: Prompt, other: Prompt) -> Prompt:
    by_name, by_messages = _exemplar_order, lambda prompt: repr((prompt.messages, prompt.fields))
    # Two corpora may have one name for requests that differ in nothing but, say, their roles.
    order = by_messages if by_name(one) == by_name(other) else by_name
    return min(one, other, key=order)


def _exemplar_order(prompt: Prompt) -> tuple[str, tuple[str, ...], str]:
    return prompt.origin, tuple(item.path for item in prompt.items), prompt.text
