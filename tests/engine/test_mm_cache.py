"""The hit curve against vLLM's own caches, in a process that may import vLLM."""

import random
import shutil
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from mmcalib.census.census import choose_sample
from mmcalib.decision.cache import size_cache
from mmcalib.decision.measure import measure
from mmcalib.domain.knobs import DEFAULT
from mmcalib.domain.shapes import ImageShape
from mmcalib.limits.policy import Policy
from mmcalib.limits.processor_cache import CacheFloor, SizedCache, choose_cache_size, hit_curve
from mmcalib.limits.values import Count, resident_items
from mmcalib.progress import Silent
from mmcalib.releases.constants import PROCESSOR_CACHE_GIB
from mmcalib.releases.release import VLLM_0_29, VLLM_0_31
from mmcalib.text import GIB
from mmcalib.workflows.corpus import read_corpus
from tests.builders import budget
from tests.e2e.media import clip, photo
from tests.e2e.media import requests as requests_file
from tests.engine.conftest import Lab
from tests.limits.costed import cost, table
from tests.programs import answer_of
from tests.upstream import before

pytestmark = pytest.mark.engine
Request = list[tuple[str, int]]

_TOO_LARGE = "an item that is larger than the whole cache is an error, and served uncached by 0.29"
_BEFORE_0_31 = {
    "LruKeyReplicatedSenderCache": "MultiModalProcessorSenderCache",
    "LruKeyReplicatedReceiverCache": "MultiModalReceiverCache",
}
# Requests through vLLM's processor, sender cache and receiver cache, which serve one API server, or
# through `MultiModalProcessorOnlyCache`, which serves several; on the meta device, where gigabytes
# take no memory.
CACHES = """
import json, sys
from types import SimpleNamespace
import torch
from vllm.multimodal.cache import (
    LruKeyReplicatedReceiverCache, LruKeyReplicatedSenderCache, MultiModalProcessorOnlyCache)
from vllm.multimodal.inputs import MultiModalKwargsItem, MultiModalKwargsItems
from vllm.multimodal.processing.processor import BaseMultiModalProcessor as Processor

asked = json.load(sys.stdin)
torch.set_default_device("meta")


def serve(kind, gib, requests):
    # Hits of a cache of this kind and size, or -1 where it fails a request.
    config = SimpleNamespace(mm_processor_cache_gb=gib)
    model = SimpleNamespace(get_multimodal_config=lambda: config)
    processor = SimpleNamespace(_recompute_cached_prompt_update=None)
    one, receiver, hits = kind(model), LruKeyReplicatedReceiverCache(model), 0
    for request in requests:
        hashes = {m: [key for key, _ in items] for m, items in request.items()}
        cached = {m: one.is_cached(keys) for m, keys in hashes.items()}
        hits += sum(sum(dict(zip(keys, cached[m])).values()) for m, keys in hashes.items())
        new = {m: [MultiModalKwargsItem.dummy(n) for (_, n), c in zip(items, cached[m]) if not c]
               for m, items in request.items()}
        new = {m: items for m, items in new.items() if items}
        try:
            merged, _ = Processor._merge_mm_kwargs(
                processor, one, mm_hashes=hashes, mm_is_cached=cached,
                mm_missing_kwargs=MultiModalKwargsItems(new),
                mm_missing_prompt_updates={m: [[]] * len(items) for m, items in new.items()})
        except AssertionError as error:
            assert "Expected a cached item" in str(error), error
            return -1
        if kind is LruKeyReplicatedSenderCache:
            sent = [SimpleNamespace(mm_hash=key, identifier=key, data=data)
                    for m, keys in hashes.items() for key, data in zip(keys, merged.get(m, []))]
            receiver.get_and_update_features(sent)
    return hits


def by_either(gib, requests):
    kinds = LruKeyReplicatedSenderCache, MultiModalProcessorOnlyCache
    return [serve(kind, gib, requests) for kind in kinds]
"""
SERVE = """
requests = [{"image": request} for request in asked["requests"]]
found = [by_either(gib, requests) for gib in asked["gib"]]
assert all(first == second for first, second in found)
print(json.dumps([first for first, _ in found]))
"""


def hits_in_vllm(requests: list[Request], capacities: list[int]) -> list[int]:
    """Hits of vLLM's caches of these capacities in bytes; -1 where it fails a request."""
    asked = {"requests": requests, "gib": [capacity / GIB for capacity in capacities]}
    return list(in_vllm(CACHES + SERVE, asked))


def in_vllm(script: str, asked: Any) -> Any:
    if not VLLM_0_31.is_reached:
        for name, before in _BEFORE_0_31.items():
            script = script.replace(name, before)
    return answer_of("-c", script, asked=asked)


def traffic(seed: int, count: int) -> Request:
    """Accesses of which few keys make many; sizes up to 8 KiB, in steps that tensors can have."""
    chance = random.Random(seed)
    sizes = [chance.randrange(1, 8192) for _ in range(60)]
    keys = [min(int(chance.expovariate(0.08)), 59) for _ in range(count)]
    return [(f"item-{key}", sizes[key]) for key in keys]


def test_vllm_hits_what_the_curve_says() -> None:
    accesses = iter(traffic(seed=3, count=600))
    chance = random.Random(4)
    requests = [list(islice(accesses, chance.randrange(1, 4))) for _ in range(280)]
    curve = hit_curve(requests)
    exact = [c for c in curve.capacities if c >= curve.largest_request_bytes]
    distinct_bytes = sum({key: size for request in requests for key, size in request}.values())
    exact = [curve.largest_request_bytes, *exact[:: len(exact) // 12], distinct_bytes]
    real = hits_in_vllm(requests, exact)
    assert real == [curve.hits_at(capacity) for capacity in exact]
    assert len(set(real)) > 5


@before(VLLM_0_29, _TOO_LARGE)
def test_below_the_largest_item_vllm_serves_it_uncached_and_the_curve_is_no_promise() -> None:
    requests = [[access] for _ in range(5) for access in (("small", 100), ("huge", 5000))]
    curve = hit_curve(requests)
    assert (curve.hits_at(100), curve.hits_at(5000), curve.hits_at(5100)) == (0, 0, 8)
    assert hits_in_vllm(requests, [100, 5000, 5100]) == [4, 0, 8]


def test_vllm_keeps_what_a_request_repeats_when_it_stores_the_rest() -> None:
    """Taken one by one the page would push the logo out; vLLM touches the logo first."""
    requests: list[Request] = [[("logo", 10)], [("other", 25)], [("page", 30), ("logo", 10)]]
    assert hit_curve(requests).hits_at(40) == 1
    assert hits_in_vllm(requests, [40]) == [1]


def test_vllm_fails_a_request_that_a_cache_cannot_hold_at_once() -> None:
    """Its own new item pushes out the one that it repeats: so no size is chosen below a request."""
    requests: list[Request] = [[("logo", 10)], [("page", 30), ("logo", 10)]]
    assert hits_in_vllm(requests, [40, 39, 30]) == [1, -1, -1]
    scaled = [[(key, nbytes * GIB) for key, nbytes in request] for request in requests]
    roomy = choose_cache_size(hit_curve(scaled), ram_budget_bytes=80 * GIB)
    assert roomy.mm_processor_cache_gb == 40


# Random admissible traffic: first what the caches are `sized` from, then any.
ADMISSIBLE = """
from hypothesis import configuration, find, given, settings, strategies as st
from mmcalib.limits.processor_cache import choose_cache_size, hit_curve

configuration.set_hypothesis_home_dir(asked["home"])
LIMITS = asked["limits"]
FLOOR = sum(count * nbytes for count, nbytes in LIMITS.values())


def item(modality):
    # Content and bytes: few contents, so that they come again; one is the largest.
    most = LIMITS[modality][1]
    return st.integers(0, 7).map(lambda n: (f"{modality}-{n}", most // (n + 1)))


REQUEST = st.fixed_dictionaries({
    modality: st.lists(item(modality), max_size=count) for modality, (count, _) in LIMITS.items()})
TRAFFIC = st.lists(REQUEST, min_size=1, max_size=30)


def fails(gib, requests):
    return -1 in by_either(gib, requests)


def flat(requests):
    return [[item for items in request.values() for item in items] for request in requests]


ran = []

@settings(max_examples=asked["examples"], deadline=None, database=None, derandomize=True)
@given(TRAFFIC, TRAFFIC)
def safe(corpus, later):
    size = choose_cache_size(hit_curve(flat(corpus)), FLOOR)
    ran.append(size.mm_processor_cache_gb)
    # 0: vLLM has no cache at all.
    assert not ran[-1] or not fails(ran[-1], [*corpus, *later])

safe()
before = st.tuples(TRAFFIC, TRAFFIC)

def old(both):
    # What the floor was: the largest request of the corpus.
    size = choose_cache_size(hit_curve(flat(both[0])), 0)
    return size.mm_processor_cache_gb > 0 and fails(size.mm_processor_cache_gb, sum(both, []))

options = settings(max_examples=2000, deadline=None, database=None, derandomize=True)
corpus, later = find(before, old, settings=options)
print(json.dumps({"sizes": ran, "corpus": flat(corpus), "later": flat(later)}))
"""


@before(VLLM_0_29, _TOO_LARGE)
def test_no_admissible_traffic_fails_with_the_derived_size(tmp_path: Path) -> None:
    """Below the largest admissible request, vLLM fails an assertion."""
    limits = {"image": (3, 90 << 20), "video": (1, 400 << 20)}
    found = in_vllm(CACHES + ADMISSIBLE, {"limits": limits, "examples": 150, "home": str(tmp_path)})
    floor = sum(count * nbytes for count, nbytes in limits.values())
    on = [gib for gib in found["sizes"] if gib]
    assert len(on) > 50
    assert floor / GIB <= min(on) <= max(on) <= PROCESSOR_CACHE_GIB
    corpus, later = found["corpus"], found["later"]
    small = choose_cache_size(hit_curve(corpus))
    assert sum(nbytes for _, nbytes in later[-1]) > small.mm_processor_cache_gb * GIB


# What a server does with each request, without its engine: vLLM's connector, hashes and processor.
PROCESS = """
import json, sys
from types import SimpleNamespace
from vllm.multimodal.cache import LruKeyReplicatedSenderCache
from vllm.multimodal.processing.context import TimingContext
from vllm.multimodal.processing.inputs import ProcessorInputs
from mmcalib.child.processor import load
from mmcalib.child.model import OpenedModel
from mmcalib.engine.messages import File, OpenModel
from mmcalib.domain.knobs import DEFAULT

asked = json.load(sys.stdin)
under = OpenedModel(OpenModel(asked["model"])).with_setting(DEFAULT)
media = {}
answer = []
for gib in asked["gib"]:
    config = SimpleNamespace(mm_processor_cache_gb=gib)
    cache = LruKeyReplicatedSenderCache(SimpleNamespace(get_multimodal_config=lambda: config))
    looked_up = []

    def is_cached(hashes, cache=cache, looked_up=looked_up):
        found = [cache.is_cached_item(key) for key in hashes]
        looked_up.extend({key: hit for key, hit in zip(hashes, found)}.values())
        return found

    cache.is_cached = is_cached
    for request in asked["requests"]:
        data, counts = {}, {}
        for modality, path in request:
            if path not in media:
                media[path] = load(File(modality, path), under)[0]
            data.setdefault(modality, []).append(media[path])
        data = {name: data[name] for name in ("image", "audio", "video") if name in data}
        counts = {name: len(items) for name, items in data.items()}
        text = under.processor.dummy_inputs.get_dummy_text(counts)
        inputs = ProcessorInputs(
            prompt=under.info.get_tokenizer().encode(text),
            mm_data_items=under.info.parse_mm_data(data),
            cache=cache,
        )
        under.processor.apply(inputs, TimingContext(enabled=False))
    answer.append([sum(looked_up), len(looked_up), cache._cache.currsize])
print(json.dumps(answer))
"""


@before(VLLM_0_31, "a processor is given its cache otherwise")
def test_the_emitted_size_keeps_its_promise_with_vllms_own_processor(qwen: Lab, tmp_path) -> None:
    """Real files, some of them copies; hashes, sizes and hits are vLLM's."""
    names = [f"media/{number}.jpg" for number in range(12)]
    for number, name in enumerate(names):
        photo(tmp_path / name, 560, 280 + 56 * number, seed=number)
    for number in range(3):
        shutil.copy(tmp_path / names[number], tmp_path / f"media/copy-{number}.jpg")
    clip(tmp_path / "media/clip.mp4", 320, 240, 20)
    names += [f"media/copy-{number}.jpg" for number in range(3)]
    chance = random.Random(11)
    prompts = [
        [("image", names[min(int(chance.expovariate(0.3)), 14)]) for _ in range(1 + turn % 2)]
        for turn in range(50)
    ]
    for turn in (5, 20, 35):
        prompts[turn] = [("video", "media/clip.mp4"), *prompts[turn]]
    prompts[7] = [prompts[7][0], prompts[7][0]]
    asked = requests_file(tmp_path / "requests.jsonl", *prompts)
    scratch = tmp_path / "scratch"
    corpus = read_corpus([], [asked], allowed_root=None, cache=scratch, progress=Silent())
    sample = choose_sample(corpus.census, 12)
    costs, unreadable = measure(qwen.host, corpus.census, DEFAULT, sample, Silent())
    assert unreadable == []
    counts = {m: Count(3, "", "given") for m in qwen.opened.modalities}
    # The least floor: what is proven here is the curve.
    cache = size_cache(corpus.accesses, costs, counts, CacheFloor({}), qwen.opened, Policy())
    assert isinstance(cache, SizedCache)
    curve, gib = cache.curve, cache.mm_processor_cache_gb
    half = max(curve.largest_request_bytes / GIB, gib / 2)

    served = [[(m, str(tmp_path / path)) for m, path in prompt] for prompt in prompts]
    sent = {"model": str(qwen.folder), "requests": served, "gib": [gib, half, 4]}
    emitted, small, all_of_it = in_vllm(PROCESS, sent)
    assert emitted[:2] == [round(cache.size.hit_rate * curve.accesses), curve.accesses]
    assert small[0] == curve.hits_at(half * GIB) < emitted[0]
    distinct_bytes = sum(costs.costs[shape].tensor_bytes for shape, _ in corpus.accesses.items)
    assert all_of_it == [curve.most_hits, curve.accesses, distinct_bytes]


# Requests of one item each, for the manager of vLLM's scheduler; equal names share an entry.
REQUESTS = """
import json, sys
from types import SimpleNamespace
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.v1.core.encoder_cache_manager import EncoderCacheManager

asked = json.load(sys.stdin)


def request_of(number, name, embeds):
    feature = MultiModalFeatureSpec(
        data=None, modality="image", identifier=name,
        mm_position=PlaceholderRange(offset=0, length=embeds))
    return SimpleNamespace(
        request_id=str(number), mm_features=[feature], get_num_encoder_embeds=lambda _: embeds)
"""
HOLD = """
manager = EncoderCacheManager(cache_size=asked["size"])
held = []
for number, (name, embeds) in enumerate(asked["items"]):
    request = request_of(number, name, embeds)
    fits = manager.check_and_update_cache(request, 0)
    if not fits and manager.can_allocate(request, 0, asked["size"], 0):
        manager.allocate(request, 0)
        fits = True
    held.append(fits)
print(json.dumps(held))
"""


def test_vllms_encoder_cache_holds_as_many_as_is_said() -> None:
    page = ImageShape(280, 280)
    costs = table(cost(page, 402, count=9, embeds=400))
    (found,) = resident_items(costs, budget(1000, max_num_seqs=8))
    items = [("a", 400), ("b", 400), ("c", 400), ("a", 400)]
    held = in_vllm(REQUESTS + HOLD, {"size": 1000, "items": items})
    assert held == [True, True, False, True]
    assert len({name for (name, _), there in zip(items, held, strict=True) if there}) == found.items
