"""Hypothesis strategies: what requests are made of."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from itertools import islice
from random import Random
from typing import TypeVar, get_args

from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st
from hypothesis.errors import HypothesisException

from judging.bodies import MARKS, MESSAGES, PARTS, SOME, TOOLS, each_field
from judging.pool import Pool
from judging.request import (
    EXTRAS,
    DataVia,
    FileVia,
    Item,
    Order,
    Request,
    Room,
    Script,
    Turn,
    Via,
)
from judging.subject import Subject

# Above what any subject is calibrated for.
MOST_ITEMS = 4
MANY_TURNS = 1000

T = TypeVar("T")


def drawn(strategy: st.SearchStrategy[T], count: int, seed: int) -> list[T]:
    """Draw at most `count`, the same ones for one seed: fewer where there are no more."""
    found: list[T] = []
    rules = settings(
        max_examples=count,
        phases=(Phase.generate,),
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )

    def keep(one: T) -> bool:
        found.append(one)
        return False

    # Nothing is what is looked for, so that all is drawn.
    with contextlib.suppress(HypothesisException):
        find(strategy, keep, settings=rules, random=Random(seed))
    return list(dict.fromkeys(found))[:count]


class Composition:
    """Requests over one pool for one subject; `fields` are those of vLLM's schema."""

    def __init__(self, subject: Subject, pool: Pool, fields: Sequence[str] = ()) -> None:
        self._subject, self._pool, self._names = subject, pool, fields
        self._light = {kind: pool.of(kind, heavy=False) for kind in subject.kinds}
        self._heavy = [name for kind in subject.kinds for name in pool.of(kind, heavy=True)]

    def each(self, most: int, seed: int) -> list[Request]:
        """Every medium by itself, the heavy ones last, or so many of them."""
        light = [name for names in self._light.values() for name in names]
        every = [*light, *self._heavy]
        some = set(Random(seed).sample(every, min(most, len(every))))
        return [Request((Turn(items=(Item(name),)),)) for name in every if name in some]

    def fields(self, count: int, seed: int) -> list[Request]:
        """Every field of the schema in turn, with one value after another."""
        if self._subject.transcribes:
            return []
        given = islice(each_field(self._names, seed), count)
        return [Request((Turn(),), fields=json.dumps(one)) for one in given]

    def tables(self, count: int, seed: int) -> list[Request]:
        """Parts, messages, ways to send tools and to name a medium, each by itself and in turn."""
        if self._subject.transcribes:
            return []
        first = next(iter(self._light.values()))[0]
        every = [Request((Turn(parts=(name,)),)) for name in PARTS]
        every += [Request((Turn(),), before=name) for name in MESSAGES]
        every += [Request((Turn(),), choice=name) for name in TOOLS]
        every += [Request((Turn(mark=mark),)) for mark in MARKS]
        odd = (*get_args(DataVia), *get_args(FileVia))
        every += [Request((Turn(items=(Item(first, via),)),)) for via in odd]
        return Random(seed).sample(every, min(count, len(every)))

    def requests(self) -> st.SearchStrategy[Request]:
        """One request that stands alone; most hold one medium of the whole variety."""
        if self._subject.transcribes:
            names = [*self._light["audio"], *self._heavy]
            return st.sampled_from(names).map(lambda n: Request((Turn(items=(Item(n),)),)))
        plain = st.builds(Request, self._turns())
        return _weighed(
            (10, plain),
            (2, st.builds(Request, self._turns(), answer=_ANSWERS, knob=_KNOBS)),
            (2, st.builds(Request, self._few_turns(), room=_ROOMS)),
            (2, self._talks()),
            (5, self._free_talks()),
            (1, st.builds(Request, self._turns(), extra=st.sampled_from(tuple(EXTRAS)))),
            (1, st.builds(Request, self._heavy_turns()) if self._heavy else plain),
            (3, st.builds(Request, self._turns(), fields=_FIELDS)),
            (3, st.builds(Request, self._odd_turns())),
            (3, st.builds(Request, self._turns(), before=st.sampled_from(tuple(MESSAGES)))),
            (2, st.builds(Request, self._turns(), choice=st.sampled_from(tuple(TOOLS)))),
            (1, self._marked()),
        )

    def alone(self) -> st.SearchStrategy[Order]:
        """Orders of one request."""
        return st.tuples(self.requests())

    def orders(self) -> st.SearchStrategy[Order]:
        """Requests whose items come again beside new ones: a cache must make room for them."""
        if self._subject.transcribes:
            return st.lists(self.requests(), min_size=2, max_size=3).map(tuple)
        kind = self._subject.kinds[0]
        if kind == "image":
            names = [f"image-same-{number}.jpg" for number in range(8)]
            names = ["image-224x224.png", "image-448x448.jpg", "image-1024x1024.jpg", *names]
        else:
            names = ["audio-1s.wav", "audio-30s.flac", "audio-29s.flac", "audio-5s.flac"]
            names += ["audio-2s.flac", "audio-8000.wav"]
        items = st.lists(st.sampled_from(names).map(Item), min_size=1, max_size=3)
        request = items.map(lambda found: Request((Turn(items=tuple(found)),)))
        plain = st.lists(request, min_size=2, max_size=5).map(tuple)
        # The same data under one uuid again and again: known but for the first time.
        named = st.just(Request((Turn(parts=(f"{kind}_url with uuid",)),)))
        again = st.lists(_weighed((2, named), (1, request)), min_size=3, max_size=5).map(tuple)
        return _weighed((6, plain), (1, again))

    def _turns(self) -> st.SearchStrategy[tuple[Turn, ...]]:
        """One message, with one item mostly."""
        some = _weighed(
            (6, st.lists(self._items(), min_size=1, max_size=1)),
            (2, st.lists(self._items(), min_size=2, max_size=MOST_ITEMS)),
        )
        return st.builds(_user, some, st.sampled_from((8, 0, 1, 300)), _SCRIPTS)

    def _few_turns(self) -> st.SearchStrategy[tuple[Turn, ...]]:
        """What may be filled up to the context's end: text alone, or an item or two."""
        return st.builds(_user, st.lists(self._items(), max_size=2), st.just(8), st.just("latin"))

    def _heavy_turns(self) -> st.SearchStrategy[tuple[Turn, ...]]:
        heavy = st.sampled_from(self._heavy).map(Item)
        return heavy.map(lambda item: (Turn(items=(item,)),))

    def _items(self) -> st.SearchStrategy[Item]:
        return st.sampled_from(self._subject.kinds).flatmap(self._items_of)

    def _items_of(self, kind: str) -> st.SearchStrategy[Item]:
        ways: tuple[tuple[int, Via], ...] = ((5, "file"), (4, "data"))
        if kind == "audio":
            ways = (*ways, (2, "input_audio"))
        here = _weighed(*((weight, st.just(way)) for weight, way in ways))
        # An address elsewhere is not known to `check`, and some URLs are odd: a few of each.
        odd = (*get_args(DataVia), *get_args(FileVia))
        rare = _weighed(
            (6, st.sampled_from(odd)),
            (2, st.sampled_from(("http", "http", "http", "elsewhere", "s3", "empty"))),
        )
        via = st.integers(0, 12).flatmap(lambda n: rare if n == 12 else here)
        return st.builds(Item, st.sampled_from(self._light[kind]), via)

    def _odd_turns(self) -> st.SearchStrategy[tuple[Turn, ...]]:
        """Parts of every type, some beside media."""
        names = st.lists(st.sampled_from(tuple(PARTS)), min_size=1, max_size=2).map(tuple)
        items = _weighed((3, st.just(())), (1, st.tuples(self._items())))
        return st.builds(Turn, words=st.sampled_from((8, 0)), items=items, parts=names).map(
            lambda turn: (turn,)
        )

    def _marked(self) -> st.SearchStrategy[Request]:
        """What stands for items, in a text."""
        items = st.lists(self._items(), max_size=1).map(tuple)
        marks = st.sampled_from(tuple(MARKS))
        return st.builds(Turn, items=items, mark=marks).map(lambda turn: Request((turn,)))

    def _talks(self) -> st.SearchStrategy[Request]:
        """Systems, assistants, tools and their answers; and many messages that say nothing."""
        system = st.just(Turn("system", 40))
        user = self._turns().map(lambda turns: turns[0])
        text = st.builds(Turn, words=st.integers(0, 400), script=_SCRIPTS)
        said = st.builds(Turn, st.just("assistant"), st.integers(0, 100))
        called = st.builds(Turn, st.just("assistant"), st.just(0), calls=st.integers(1, 3))
        told = st.just(Turn("tool", 60))
        tools = st.integers(0, 6)
        return _weighed(
            (2, st.builds(_request, st.tuples(system, user), tools)),
            (2, st.builds(_request, st.tuples(user, said, text), tools)),
            (1, st.builds(_request, st.tuples(user, called, told, text), st.integers(1, 6))),
            (1, st.integers(2, MANY_TURNS).map(lambda n: Request((Turn(words=0),) * n))),
            (1, st.lists(text, min_size=1, max_size=9).map(lambda found: _request(found, 0))),
        )

    def _free_talks(self) -> st.SearchStrategy[Request]:
        """Any roles in any order, each with text, media, calls or thoughts."""
        items = _weighed((3, st.just(())), (2, st.tuples(self._items())))
        turn = st.builds(
            Turn,
            _weighed(*((weight, st.just(role)) for role, weight in _ROLES)),
            st.sampled_from((8, 0, 40)),
            items,
            calls=st.sampled_from((0, 0, 0, 1)),
            mark=st.sampled_from(("", "", "", "<think>a</think>b", "</think>")),
        )
        turns = st.lists(turn, min_size=1, max_size=6)
        return st.builds(_request, turns, st.sampled_from((0, 0, 0, 2)))


# How often each role is drawn.
_ROLES = (("user", 6), ("assistant", 3), ("system", 2), ("tool", 1), ("developer", 1), ("other", 1))
_ANSWERS = st.sampled_from((2, 16, 256, 1000, 1024, 1500, 2000, 4096, 100_000, None, 0))
_KNOBS = st.sampled_from(("max_tokens", "max_completion_tokens"))
_SCRIPTS = st.sampled_from(("latin", "latin", "cyrillic", "emoji"))
# Up to twenty tokens below and above, the edge itself most often.
_OFFSETS = st.sampled_from((0, 1, -1, 2, -2)) | st.integers(-20, 20)
_ROOMS = st.builds(Room, st.sampled_from(("text", "max_tokens", "max_completion_tokens")), _OFFSETS)
_ONE_FIELD = st.sampled_from(SOME)


def _user(items: list[Item], words: int, script: Script) -> tuple[Turn, ...]:
    return (Turn("user", words, tuple(items), script=script),)


def _request(turns: list[Turn] | tuple[Turn, ...], tools: int) -> Request:
    return Request(tuple(turns), tools=tools)


def _weighed(*choices: tuple[int, st.SearchStrategy]) -> st.SearchStrategy:
    return st.one_of(*(found for weight, found in choices for _ in range(weight)))


# One field or two that have a meaning together with media.
_FIELDS = _weighed(
    (2, _ONE_FIELD), (1, st.tuples(_ONE_FIELD, _ONE_FIELD).map(lambda pair: {**pair[0], **pair[1]}))
).map(json.dumps)
