"""The corpus as far as the server takes its files: what it refuses sets neither limits nor caps."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.check import Check
from mmcalib.checks.corpus import SERVER_TAKES_FILES
from mmcalib.derive.admission import ServerRefusal, needed, server_refuses
from mmcalib.domain.encoding import Encoded
from mmcalib.domain.server import Server
from mmcalib.errors import CorpusError
from mmcalib.results.calibration import with_variables
from mmcalib.wording import one_line
from mmcalib.workflows.read import ReadCorpus

_SHOWN = 3


@dataclass(frozen=True, slots=True)
class LeftOut:
    """`count` items that the server refuses for one reason; `exemplar` is the path of one."""

    file: Encoded
    refusal: ServerRefusal
    count: int
    exemplar: str


def taken_in(corpus: ReadCorpus, server: Server) -> tuple[ReadCorpus, list[LeftOut]]:
    """The corpus without items that the server refuses whatever the limits, and those. Requests
    go with an item none of whose equals is left.

    Raises CorpusError where nothing is left.
    """
    left_out = [
        LeftOut(file, refusal, found.count, found.exemplars[0])
        for file, found in corpus.census.encoded()
        if (refusal := server_refuses(file, server))
    ]
    if not left_out:
        return corpus, []
    census = corpus.census.without(lambda file: server_refuses(file, server))
    first = left_out[0]
    if not census.items():
        raise CorpusError(
            f"nothing to measure: the server refuses every item, such as "
            f"{one_line(first.exemplar)}: {first.refusal.reason}",
            hint=_counting_in(environment(left_out, server)) or first.refusal.remedy,
        )
    shapes = {entry.shape for entry in census.shapes()}
    prompts = PromptCensus(
        entry
        for entry in corpus.prompts.signatures()
        if all(shape in shapes for shape in entry.signature.shapes)
    )
    return replace(corpus, census=census, prompts=prompts), left_out


def environment(left_out: Sequence[LeftOut], server: Server) -> dict[str, int]:
    """The least values of the server's environment that admit all of these that can be."""
    most: dict[str, int] = {}
    for one in left_out:
        for variable, value in needed(one.file, server).items():
            most[variable] = max(value, most.get(variable, 0))
    return most


def server_checks(
    left_out: Sequence[LeftOut], items: int, values: Mapping[str, int]
) -> Iterator[Check]:
    """Of so many `items`; none where all are let in."""
    if not left_out:
        return
    reasons: dict[str, LeftOut] = {}
    for one in left_out:
        reasons.setdefault(one.refusal.variable or one.refusal.remedy, one)
    first = list(reasons.values())[:_SHOWN]
    shown = "; ".join(f"{one_line(one.exemplar)}: {one.refusal.reason}" for one in first)
    remedies = [one.refusal.remedy for one in reasons.values() if not one.refusal.variable]
    if values:
        remedies.insert(0, _counting_in(values))
    yield Check(
        SERVER_TAKES_FILES,
        "warn",
        f"it refuses {sum(one.count for one in left_out)} of {items} items whatever the limits, "
        f"which were left out: {shown}",
        "; ".join(remedies),
        tuple(one.exemplar for one in first),
    )


def _counting_in(values: Mapping[str, int]) -> str:
    """The command with which such items are calibrated for; empty where no value admits one."""
    if not values:
        return ""
    command = with_variables(values, "mmcalib run --emit env")
    return f"{command} counts them in, and writes these for the server (or --emit k8s)"
