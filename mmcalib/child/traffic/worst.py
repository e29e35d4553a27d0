"""The order in which a corpus' items take most: found by vLLM's scheduler alone, then served."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mmcalib.child.traffic.books import StepBooks
from mmcalib.child.traffic.prompts import Prompts
from mmcalib.child.traffic.serve import Say, engine_up, serve_with
from mmcalib.domain.traffic import (
    Arrivals,
    TrafficItem,
    TrafficRequest,
    TrafficStep,
    WorstOrder,
)
from mmcalib.engine.messages import FindWorstOrder
from mmcalib.releases.engine_core import SteppedCore

# Shapes of a modality that are tried, from its lightest to its heaviest.
_SHAPES: Final = 6
_MOST_REQUESTS: Final = 240
# Words around an item; what decides is the encoder.
_TEXT_TOKENS: Final = 8

# Requests that come together; the next come when all of these have answers.
Group = tuple[TrafficRequest, ...]


def find_worst(request: FindWorstOrder, books: StepBooks, say: Say) -> WorstOrder:
    """Search, then serve what was found. The same seed finds the same.

    Raises whatever vLLM raises for arguments that it refuses, ValueError where no item is taken.
    """
    with engine_up(request.engine_args, books) as (core, prompts):
        kinds = _kinds(core, books, prompts, request)
        if not kinds:
            raise ValueError("none of the items is taken under this configuration")
        search = _Search(core, prompts, kinds, request)
        search.run(
            request.trials, lambda tried: say(f"worst order: {tried} of {request.trials} tried")
        )
        groups = tuple(search.best)
        asked = tuple(
            replace(one, group=number) for number, group in enumerate(groups) for one in group
        )
        served = serve_with(core, books, prompts, asked, Arrivals(grouped=True), say)
        return WorstOrder(asked, len(groups), search.tried, request.seed, served)


@dataclass(frozen=True, slots=True)
class _Kind:
    """One shape of item: its embeds, what a step that encodes one takes, how much more with each
    further one, and what its outputs hold.
    """

    item: TrafficItem
    embeds: int
    peak_bytes: int
    more_bytes: int
    held_bytes: int


def _kinds(
    core: SteppedCore, books: StepBooks, prompts: Prompts, request: FindWorstOrder
) -> list[_Kind]:
    """Of each modality some shapes from the lightest to the heaviest: each encoded alone, and two
    at once.
    """
    found: list[_Kind] = []
    by_modality: dict[str, dict[int, TrafficItem]] = {}
    for item in request.items:
        if not request.counts.get(item.shape.modality):
            continue
        embeds = prompts.embeds(item.shape)
        if embeds is not None and 0 < embeds <= core.cache_size:
            by_modality.setdefault(item.shape.modality, {}).setdefault(embeds, item)
    for items in by_modality.values():
        sizes = sorted(items)
        places = {round(n * (len(sizes) - 1) / (_SHAPES - 1)) for n in range(_SHAPES)}
        for place in sorted(places):
            item = items[sizes[place]]
            alone = _encoding(core, books, prompts, item, 1)
            both = _encoding(core, books, prompts, item, 2)
            peak = alone.peak_bytes or 0
            # Where no step takes two, each is counted whole.
            more = max(0, (both.peak_bytes or 0) - peak) if both.encoded == 2 else peak
            found.append(_Kind(item, sizes[place], peak, more, alone.alive_bytes))
    return found


def _encoding(
    core: SteppedCore, books: StepBooks, prompts: Prompts, item: TrafficItem, times: int
) -> TrafficStep:
    """The step that encodes most of so many items like this, each asked for at once."""
    asked = tuple(
        _request((replace(item, content=f"{item.content}~{times}.{n}"),)) for n in range(times)
    )
    served = serve_with(core, books, prompts, asked, Arrivals(), lambda text: None)
    core.forget()
    return max(served.steps, key=lambda step: step.encoded)


@dataclass(slots=True)
class _Shadow:
    """The encoder cache as it lies in memory, by what the scheduler decides alone: an entry keeps
    the storage of all that was encoded in its step.
    """

    bytes_per_embed: int
    batch_of: dict[str, int] = field(default_factory=dict)
    batch_bytes: dict[int, int] = field(default_factory=dict)

    @property
    def alive_bytes(self) -> int:
        return sum(self.batch_bytes[batch] for batch in set(self.batch_of.values()))

    def take(self, freed: Sequence[str], encoded: dict[str, int]) -> int:
        """One step; returns what is alive while it encodes."""
        for content in freed:
            self.batch_of.pop(content, None)
        before = self.alive_bytes
        if encoded:
            batch = len(self.batch_bytes)
            self.batch_bytes[batch] = sum(encoded.values()) * self.bytes_per_embed
            self.batch_of |= dict.fromkeys(encoded, batch)
        return before


class _Search:
    """First sequences by plan: in each round a batch that fills a step, of one kind or with few of
    another, and then the lightest item of every batch so far, once more and alone. The worst of
    them is then changed by chance, as long as that makes some step take more, or the sequence
    shorter.
    """

    def __init__(
        self,
        core: SteppedCore,
        prompts: Prompts,
        kinds: list[_Kind],
        request: FindWorstOrder,
    ) -> None:
        self.best: list[Group] = []
        self.tried = 0
        self._core, self._prompts = core, prompts
        self._kinds, self._counts = kinds, request.counts
        self._drawn = random.Random(request.seed)  # noqa: S311 - to be found again
        self._kind_of = {kind.item.shape: kind for kind in kinds}
        self._fresh = 0
        # One seen alone: its storage is its own.
        self._width = max(kind.held_bytes // kind.embeds for kind in kinds)
        self._most_bytes = 0

    def run(self, trials: int, say: Callable[[int], None]) -> None:
        """At most so many sequences are judged."""
        for sequence in itertools.islice(self._planned(), trials):
            self._try(sequence)
            say(self.tried)
        while self.tried < trials:
            self._try(self._changed())
            say(self.tried)

    def _planned(self) -> Iterator[list[Group]]:
        # Of one kind alone first: the largest item may fill a step by itself.
        for kind in reversed(self._kinds):
            yield self._rounds(kind, kind, 0)
        for few, (first, rest) in itertools.product(
            (1, 2), itertools.product(self._kinds, reversed(self._kinds))
        ):
            if first.item.shape.modality == rest.item.shape.modality:
                yield self._rounds(first, rest, few)

    def _rounds(self, first: _Kind, rest: _Kind, few: int) -> list[Group]:
        groups: list[Group] = []
        lightest: list[TrafficItem] = []
        asked = 0
        while True:
            batch = self._batch(first, rest, few)
            asked += len(batch) + len(lightest)
            if not batch or asked > _MOST_REQUESTS:
                return groups
            groups += [*((_request((item,)),) for item in lightest), batch]
            items = [item for one in batch for item in one.items]
            lightest.append(min(items, key=self._embeds))

    def _changed(self) -> list[Group]:
        """The worst so far, with a group left out, moved, or put in."""
        groups = list(self.best)
        place = self._drawn.randrange(len(groups))
        match self._drawn.choice(("drop", "move", "batch", "again")):
            case "drop":
                del groups[place]
            case "move":
                groups.insert(self._drawn.randrange(len(groups)), groups.pop(place))
            case "batch":
                first, rest = self._drawn.choices(self._kinds, k=2)
                groups.insert(place, self._batch(first, rest, self._drawn.randint(0, 2)))
            case "again":
                every = [item for group in groups for one in group for item in one.items]
                groups.insert(place, (_request((self._drawn.choice(every),)),))
        return [group for group in groups if group]

    def _try(self, groups: list[Group]) -> None:
        self.tried += 1
        if sum(map(len, groups)) > _MOST_REQUESTS:
            return
        highest, last = self._judged(groups)
        shorter = last + 1 < len(self.best)
        if highest > self._most_bytes or (highest == self._most_bytes and shorter):
            # What comes after the highest step takes nothing more.
            self.best, self._most_bytes = groups[: last + 1], highest

    def _batch(self, first: _Kind, rest: _Kind, few: int) -> Group:
        """As many items as one step encodes."""
        room = min(self._core.encoder_budget, self._core.cache_size)
        items: list[TrafficItem] = []
        for kind, most in ((first, few), (rest, _MOST_REQUESTS)):
            for _ in range(most):
                if kind.embeds > room or len(items) >= self._at_once(kind):
                    break
                room -= kind.embeds
                self._fresh += 1
                items.append(replace(kind.item, content=f"{kind.item.content}~{self._fresh}"))
        return self._asked(items)

    def _at_once(self, kind: _Kind) -> int:
        return self._core.max_num_seqs * self._counts[kind.item.shape.modality]

    def _asked(self, items: list[TrafficItem]) -> Group:
        """Each item in a request of its own, as far as there are sequences; then several in one."""
        requests: list[list[TrafficItem]] = []
        for item in items:
            if len(requests) < self._core.max_num_seqs:
                requests.append([item])
                continue
            modality = item.shape.modality
            for one in requests:
                if sum(other.shape.modality == modality for other in one) < self._counts[modality]:
                    one.append(item)
                    break
        return tuple(_request(tuple(one)) for one in requests)

    def _embeds(self, item: TrafficItem) -> int:
        return self._prompts.embeds(item.shape) or 0

    def _judged(self, groups: list[Group]) -> tuple[int, int]:
        """The most that a step of these takes, bytes, and the number of its group."""
        core, highest, last = self._core, 0, 0
        shadow = _Shadow(self._width)
        item_of: dict[str, TrafficItem] = {}
        core.dry = True
        try:
            for number, group in enumerate(groups):
                for one in group:
                    prompt = self._prompts.of(one)
                    core.ask(prompt.ids, prompt.items, one.answer_tokens)
                    item_of |= {item.content: item for item in one.items}
                while core.busy:
                    core.step()
                    encoded = core.encoded_contents()
                    held = shadow.take(core.freed_contents(), encoded)
                    kinds = [self._kind_of[item_of[name].shape] for name in encoded]
                    taken = held + _taken(kinds)
                    if taken > highest:
                        highest, last = taken, number
        finally:
            core.forget()
        return highest, last


def _taken(kinds: Sequence[_Kind]) -> int:
    """What a step takes that encodes these: what one takes whatever its size, and each its own."""
    once = max((kind.peak_bytes - kind.more_bytes for kind in kinds), default=0)
    return max(0, once) + sum(kind.more_bytes for kind in kinds)


def _request(items: tuple[TrafficItem, ...]) -> TrafficRequest:
    origin = ", ".join(item.content for item in items)
    return TrafficRequest(origin, _TEXT_TOKENS, 1, items)
