"""The hit curve against vLLM's own caches, in a process that may import vLLM."""

from __future__ import annotations

import importlib.util
import json
import os
import random
import subprocess
import sys

import pytest

from mmcalib.derive.mm_cache import GIB, choose, hit_curve
from mmcalib.engine.environment import child_environment

pytestmark = [
    pytest.mark.engine,
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="needs vLLM: make setup"),
]

# Sender and receiver are the pair of one API server and one engine; `MultiModalProcessorOnlyCache`
# is that of one of several API servers, and must hit as often. The order of calls is that of
# `_get_cache_missing_items` and `_merge_mm_kwargs` in vllm/multimodal/processing/processor.py.
SERVE = """
import json, sys
from types import SimpleNamespace
from vllm.multimodal.cache import (
    LruKeyReplicatedReceiverCache, LruKeyReplicatedSenderCache, MultiModalProcessorOnlyCache)
from vllm.multimodal.inputs import MultiModalKwargsItem


def serve(cache, receiver, requests):
    hits = 0
    for request in requests:
        cached = {key: cache.is_cached_item(key) for key, _ in request}
        for key in cached:
            cache.touch_sender_cache_item(key)
        sent = []
        for key, nbytes in request:
            hits += cached[key]
            given = None if cached[key] else (MultiModalKwargsItem.dummy(nbytes), [])
            try:
                data, _ = cache.get_and_update_item(given, key)
            except AssertionError as error:
                assert "Expected a cached item" in str(error)
                return -1
            sent.append((key, data))
        if receiver is not None:
            for key, _ in sent:
                receiver.touch_receiver_cache_item(key)
            for key, data in sent:
                receiver.get_and_update_item(data, key)
    return hits

asked = json.load(sys.stdin)
answer = []
for gib in asked["gib"]:
    config = SimpleNamespace(mm_processor_cache_gb=gib)
    model = SimpleNamespace(get_multimodal_config=lambda: config)
    sender, receiver = LruKeyReplicatedSenderCache(model), LruKeyReplicatedReceiverCache(model)
    hits = serve(sender, receiver, asked["requests"])
    assert hits == serve(MultiModalProcessorOnlyCache(model), None, asked["requests"])
    answer.append(hits)
print(json.dumps(answer))
"""

Request = list[tuple[str, int]]


def hits_in_vllm(requests: list[Request], capacities: list[int]) -> list[int]:
    """Hits of vLLM's caches of these capacities in bytes; -1 where it fails a request."""
    asked = {"requests": requests, "gib": [capacity / GIB for capacity in capacities]}
    done = subprocess.run(
        [sys.executable, "-c", SERVE],
        input=json.dumps(asked),
        env=child_environment(os.environ, offline=True),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    hits: list[int] = json.loads(done.stdout.splitlines()[-1])
    return hits


def traffic(seed: int, count: int) -> list[tuple[str, int]]:
    """Accesses of which few keys make many; sizes up to 8 KiB, in steps that tensors can have."""
    chance = random.Random(seed)
    sizes = [chance.randrange(1, 8192) for _ in range(60)]
    keys = [min(int(chance.expovariate(0.08)), 59) for _ in range(count)]
    return [(f"item-{key}", sizes[key]) for key in keys]


def test_vllm_hits_what_the_curve_says() -> None:
    accesses = traffic(seed=3, count=600)
    curve = hit_curve(accesses)
    exact = [curve.largest_bytes, *curve.capacities[:: len(curve.capacities) // 12]]
    exact = [c for c in exact if c >= curve.largest_bytes] + [curve.distinct_bytes]
    real = hits_in_vllm([[access] for access in accesses], exact)
    assert real == [curve.hits_at(capacity) for capacity in exact]
    assert len(set(real)) > 5


def test_vllm_serves_what_exceeds_the_cache_uncached_so_the_curve_is_a_lower_bound() -> None:
    accesses = [access for _ in range(5) for access in (("small", 100), ("huge", 5000))]
    curve = hit_curve(accesses)
    assert (curve.hits_at(100), curve.hits_at(5000), curve.hits_at(5100)) == (0, 0, 8)
    assert hits_in_vllm([[access] for access in accesses], [100, 5000, 5100]) == [4, 0, 8]


def test_vllm_keeps_what_a_request_repeats_when_it_stores_the_rest() -> None:
    """Taken one by one the page pushes the logo out; vLLM touches the logo first."""
    requests: list[Request] = [[("logo", 10)], [("other", 25)], [("page", 30), ("logo", 10)]]
    curve = hit_curve([access for request in requests for access in request])
    assert curve.hits_at(40) == 0
    assert hits_in_vllm(requests, [40]) == [1]


def test_vllm_fails_a_request_that_a_cache_cannot_hold_at_once() -> None:
    """Its own new item pushes out the one that it repeats: so no size is chosen below a request."""
    requests: list[Request] = [[("logo", 10)], [("page", 30), ("logo", 10)]]
    accesses = [access for request in requests for access in request]
    assert hits_in_vllm(requests, [40, 39, 30]) == [1, -1, -1]
    scaled = [(key, nbytes * GIB) for key, nbytes in accesses]
    assert choose(hit_curve(scaled), largest_request_bytes=40 * GIB).mm_processor_cache_gb == 40
