"""The census of prompts: which combinations of items come together in one request."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from mmcalib.census.signature import PromptSignature
from mmcalib.census.signature_code import decode, encode
from mmcalib.census.top_k import Foremost
from mmcalib.corpus.asking import asked_by
from mmcalib.domain.items import Prompt
from mmcalib.domain.shapes import MODALITIES, Modality, Shape
from mmcalib.domain.shares import least_covering

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
    """The exact histogram of prompts. Adding gives the same in any order.

    Some whole prompts are kept, for replay: of the heaviest signatures, and of some by chance. Of
    the others only an origin is: memory grows by some 250 bytes with the number of signatures.
    """

    def __init__(self, counts: Iterable[PromptCount] = ()) -> None:
        # By the code of a signature its place in the columns behind.
        self._places: dict[bytes, int] = {}
        self._counts = array("Q")
        self._origins: list[str] = []
        # Exemplars of which there is more than an origin.
        self._kept: dict[bytes, Prompt] = {}
        self._whole = Foremost()
        # Prompts by their items of each modality.
        self._carrying: Counter[tuple[int, ...]] = Counter()
        for entry in counts:
            one = entry.signature
            code = encode(one.shapes, one.text_chars, one.asked)
            self._take(one.shapes, code, entry.count, entry.exemplar)

    def add(self, shapes: Iterable[Shape], prompt: Prompt) -> None:
        """Count `prompt`, whose items have `shapes`."""
        listed = list(shapes)
        self._take(listed, encode(listed, len(prompt.text), asked_by(prompt)), 1, prompt)

    def prompts(self) -> int:
        """The number of prompts."""
        return self._carrying.total()

    def signatures(self) -> Iterator[PromptCount]:
        """The distinct signatures, in a fixed order."""
        for code in sorted(self._places):
            count = self._counts[self._places[code]]
            yield PromptCount(decode(code), count, self._exemplar(code))

    def items_per_prompt(self, modality: Modality, quantile: float = 1.0) -> int:
        """The least n such that a share `quantile` of the prompts has at most n items; 0 if none.

        `quantile` lies in (0, 1]; 1 is the maximum.
        """
        if not 0 < quantile <= 1:
            raise ValueError(f"quantile {quantile} is not in (0, 1]")
        per_prompt = self.histogram(modality)
        needed = least_covering(quantile, per_prompt.total())
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
        places = [MODALITIES.index(modality) for modality in modalities]
        per_prompt = sorted(
            (tuple(carried[place] for place in places), count)
            for carried, count in self._carrying.items()
        )
        needed = least_covering(share, self.prompts())
        most, covered = (0,) * len(modalities), 0
        for items, prompts in sorted(per_prompt, key=lambda entry: sum(entry[0])):
            if covered >= needed:
                break
            most = tuple(map(max, most, items))
            covered += prompts
        return dict(zip(modalities, most, strict=True))

    def histogram(self, modality: Modality) -> Counter[int]:
        """Number of items of `modality` in a prompt -> number of such prompts."""
        place = MODALITIES.index(modality)
        per_prompt: Counter[int] = Counter()
        for carried, count in self._carrying.items():
            per_prompt[carried[place]] += count
        return per_prompt

    def __eq__(self, other: object) -> bool:
        return isinstance(other, PromptCensus) and all(
            one == another for one, another in zip_longest(self.signatures(), other.signatures())
        )

    __hash__ = None  # type: ignore[assignment]

    def _take(self, shapes: Sequence[Shape], code: bytes, count: int, exemplar: Prompt) -> None:
        self._carrying[_carried(shapes)] += count
        place = self._places.get(code)
        if place is None:
            place = self._places[code] = len(self._counts)
            self._counts.append(count)
            self._origins.append(exemplar.origin)
            for gone in self._whole.offer(code):
                self._keep(gone, _origin(self._exemplar(gone)))
        else:
            self._counts[place] += count
            if exemplar.origin > self._origins[place]:
                return
            known = self._exemplar(code)
            exemplar = _first(known, exemplar if code in self._whole else _origin(exemplar))
        self._keep(code, exemplar if code in self._whole else _origin(exemplar))

    def _exemplar(self, code: bytes) -> Prompt:
        kept = self._kept.get(code)
        return kept or Prompt(self._origins[self._places[code]], (), "", _NO_MESSAGES)

    def _keep(self, code: bytes, exemplar: Prompt) -> None:
        self._origins[self._places[code]] = exemplar.origin
        if exemplar.messages or exemplar.items or exemplar.text or exemplar.fields:
            self._kept[code] = exemplar
        else:
            self._kept.pop(code, None)


def _carried(shapes: Sequence[Shape]) -> tuple[int, ...]:
    kinds = [shape.modality for shape in shapes]
    return tuple(map(kinds.count, MODALITIES))


def _origin(prompt: Prompt) -> Prompt:
    return Prompt(prompt.origin, (), "", _NO_MESSAGES) if prompt.messages else prompt


def _first(one: Prompt, other: Prompt) -> Prompt:
    by_name, by_messages = _exemplar_order, lambda prompt: repr((prompt.messages, prompt.fields))
    # Two corpora may have one name for requests that differ in nothing but, say, their roles.
    order = by_messages if by_name(one) == by_name(other) else by_name
    return min(one, other, key=order)


def _exemplar_order(prompt: Prompt) -> tuple[str, tuple[str, ...], str]:
    return prompt.origin, tuple(item.path for item in prompt.items), prompt.text
