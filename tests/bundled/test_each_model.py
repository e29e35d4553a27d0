"""The bundled facts against vLLM's own processor, counts, dummies, budget and parser."""

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from mmcalib.checks.catalogue import CONFIG_PARSING
from mmcalib.decision.measure import find_same_cost
from mmcalib.domain.knobs import DEFAULT, Knob
from mmcalib.domain.model import Cost
from mmcalib.domain.shapes import MODALITIES, Modality, scaled
from mmcalib.engine.messages import Blank
from mmcalib.limits import frontier
from mmcalib.limits.policy import Policy
from mmcalib.media.blank import write_blank
from mmcalib.models.catalogue import Geometry, bundled_models
from mmcalib.models.resolve import cache_dir, resolve
from mmcalib.options.run import RunOptions
from mmcalib.progress import Silent
from mmcalib.results.engine_yaml import engine_yaml
from mmcalib.workflows.corpus import read_corpus
from mmcalib.workflows.run.document import build_calibration
from mmcalib.workflows.run.session import Job, Session
from mmcalib.workflows.run.stages import Review, derive, open_to_calibrate, prepare, prove_decision
from tests.bundled.known import Case, Line, counts, marks, rule
from tests.bundled.shapes import CORPUS, SHAPES
from tests.bundled.subject import Subject

pytestmark = [pytest.mark.engine, pytest.mark.slow]

# In which the largest videos, that dummies are, have some frames and not hundreds.
_SHORT_CONTEXT = 4096


def modalities(geometry: Geometry) -> Iterable[Case]:
    return ((modality,) for modality in MODALITIES if modality in geometry.modalities)


def items(geometry: Geometry) -> Iterable[Case]:
    return ((m, name) for (m,) in modalities(geometry) for name in SHAPES[m])  # type: ignore[index]


def whole(geometry: Geometry) -> Iterable[Case]:
    return [()]


def each(
    line: Line, cases: Callable[[Geometry], Iterable[Case]], *names: str
) -> pytest.MarkDecorator:
    """A test of the line for every model, and of each for all its cases."""
    params = [
        pytest.param(
            geometry.id, *case, marks=marks(geometry, line, case), id="-".join((geometry.id, *case))
        )
        for geometry in bundled_models()
        for case in cases(geometry)
    ]
    # Where some are not indirect, pytest takes a fixture for the test's own unless it is told.
    return pytest.mark.parametrize(
        ("subject", *names), params, indirect=["subject"], scope="session"
    )


@each(Line.OPENS, whole)
def test_it_opens_as_its_facts_say(subject: Subject) -> None:
    assert subject.opened.architecture == subject.geometry.architecture
    # What vLLM takes beside them, the facts cannot promise.
    assert set(subject.modalities) >= set(subject.geometry.modalities)
    assert not subject.opened.unavailable


@each(Line.TAKES, items, "modality", "item")
def test_it_takes_the_item(subject: Subject, modality: Modality, item: str) -> None:
    """Or refuses it by a rule of its own, in words that say so."""
    cost = subject.costs(modality)[item]
    if words := rule(subject.geometry, modality, item):
        assert isinstance(cost, str)
        assert words in cost
        return
    assert isinstance(cost, Cost), cost
    assert cost.tokens >= cost.embeds > 0
    assert cost.tensor_bytes > 0


@each(Line.COUNTS, items, "modality", "item")
def test_vllm_counts_what_its_processor_makes(subject: Subject, modality, item: str) -> None:
    cost, counted = subject.costs(modality)[item], subject.counted[modality]
    found = dict(zip(SHAPES[modality], counted.embeds, strict=True))[item]
    if not isinstance(cost, Cost):
        return
    if not counts(subject.geometry, modality):
        assert found is None, "it has a count now"
        return
    assert found == cost.embeds
    assert dict(zip(SHAPES[modality], counted.sampled, strict=True))[item] == cost.sampled


# Of measured models, by modality; null where tokens grow, or stop at over half of the largest.
# MMCALIB_UPDATE_GOLDENS=1 measures anew, and adds models.
TABLE = Path(__file__).parent / "saturation.json"
SATURATION = json.loads(TABLE.read_text("utf-8"))
LARGEST = {"image": "48 megapixels", "video": "10 frames of 4K", "audio": "10 minutes"}


@each(Line.COUNTS, modalities, "modality")
def test_the_size_at_which_tokens_stop_growing(subject: Subject, modality: Modality) -> None:
    """The processor makes as many of a copy that small, and fewer of the next smaller one. MM025
    tells it: by this size, unless the rule of an option tells how much is left.
    """
    largest = SHAPES[modality][LARGEST[modality]]
    found = find_same_cost(subject.lab.host, DEFAULT, largest, None)
    known, size = SATURATION.setdefault(subject.geometry.id, {}), str(found) if found else None
    if os.environ.get("MMCALIB_UPDATE_GOLDENS") == "1":
        known[modality] = size
        TABLE.write_text(json.dumps(SATURATION, indent=1, ensure_ascii=False) + "\n", "utf-8")
    assert known.get(modality, "not measured; see TABLE") == size
    if found is None:
        return
    smaller = [scaled(found, by) for by in (0.99, 1)]
    less, same, whole = (
        cost.embeds if isinstance(cost, Cost) else None
        for cost in subject.lab.costs(*map(Blank, (*smaller, largest)))
    )
    # Rounding may leave a larger item a few tokens less.
    assert (same or 0) >= (whole or 0)
    assert (less or 0) < (same or 0)
    tried = subject.tried(modality)
    place = list(tried.shapes).index(largest)
    knobs = (knob for knob in subject.opened.knobs if knob.modality == modality)
    rules = [knob.kept_pixels(tried, knob.value) for knob in knobs]
    assert all(kept is None or kept[place] < 1 for kept in rules)


@each(Line.WITHIN, items, "modality", "item")
def test_no_item_is_larger_than_the_largest(subject: Subject, modality, item: str) -> None:
    """That vLLM reserves for; of videos, that can be made of any."""
    cost, budget = subject.costs(modality)[item], subject.budget
    if not isinstance(cost, Cost):
        return
    most = budget.max_tokens_per_item[modality]
    if modality == "video" and budget.largest_clip is not None:
        most = max(most, budget.largest_clip.embeds)
    assert cost.embeds <= most


@each(Line.DUMMY, modalities, "modality")
def test_a_dummy_costs_what_the_budget_counts(subject: Subject, modality: Modality) -> None:
    others = {m: 0 for m in subject.modalities if m != modality}
    context = min(_SHORT_CONTEXT, subject.opened.max_model_len)
    budget = subject.lab.budget(limit_mm_per_prompt={modality: 1, **others}, max_model_len=context)
    assert budget.dummies[modality].embeds == budget.max_tokens_per_item[modality]


@each(Line.KNOBS, whole)
def test_each_knob_moves_items_of_its_modality_alone(subject: Subject) -> None:
    for knob in subject.opened.knobs:
        turned = frontier.setting_at(knob, _turned(knob, subject))
        moved = {m for m in subject.modalities if subject.probes(m, turned) != subject.probes(m)}
        assert moved == {knob.modality, *knob.bleeds}, knob.name


def _turned(knob: Knob, subject: Subject) -> float:
    """Its least value, or the next one where that is its default."""
    values = knob.values(subject.tried(knob.modality), Policy())
    assert values == sorted(values), knob.name
    assert knob.value in values, knob.name
    return next(value for value in values if value != knob.value)


@each(Line.ROUND_TRIP, whole)
def test_its_configuration_is_read_back(subject: Subject, tmp_path: Path) -> None:
    """Made for an item of its first modality, as YAML, and parsed as `vllm serve` would."""
    (tmp_path / "media").mkdir()
    write_blank(CORPUS[subject.modalities[0]], 0, tmp_path / "media")
    options = RunOptions(
        model=str(subject.lab.folder),
        data=[tmp_path / "media"],
        max_model_len=min(_SHORT_CONTEXT, subject.opened.max_model_len),
        validate="budget",
    )
    job = Job.of(options, gpu=None)
    session = Session(job, subject.lab.host, None, tmp_path, Silent())
    resolved = resolve(job.model, cache_dir=cache_dir())
    opened = open_to_calibrate(session, resolved)
    read = read_corpus(options.data or (), (), allowed_root=None, progress=Silent())
    served = prepare(session, resolved, read, opened)
    assert served.read.census.items() == 1
    # Rules for shapes that are not there are proven elsewhere, and take longer than all the rest.
    reviewed = Review(derive(session, served), {}, {}, ())
    made = build_calibration(session, reviewed)
    proven = prove_decision(session, reviewed.derived, engine_yaml(made, "vllm serve"))
    (read_back,) = (check for check in proven.checks if check.id == CONFIG_PARSING)
    assert read_back.status == "pass", read_back.detail
    assert set(made.engine_config["limit_mm_per_prompt"]) >= set(subject.modalities)
    assert {"max_model_len", "max_num_batched_tokens"} <= set(made.engine_config)
