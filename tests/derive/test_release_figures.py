"""Two releases side by side, by values alone."""

from __future__ import annotations

from dataclasses import replace

from mmcalib.derive.upgrade.figures import release_figures
from mmcalib.derive.upgrade.settings import HEEDED, UNHEEDED
from mmcalib.domain.cost import Cost
from mmcalib.domain.release_figure import ReleaseFigure
from mmcalib.domain.release_view import ComparedItem, ReleaseView, ServeArguments
from mmcalib.domain.server import REQUEST_BYTES, Server
from mmcalib.domain.shapes import ImageShape
from tests.workflows.fake_host import opened
from tests.workflows.rehearsals import BUDGET, GIB, peaks, rehearsed

VGA = ImageShape(640, 480)
OPENED = replace(
    opened({"image": None}, knobs=(), max_model_len=32_768),
    serve_defaults={},
    versions={},
    server=Server(limits={"A": 1}, decodes={"h264": True, "av1": False}),
)


def item(tokens: int = 391, nbytes: int = 1_839_288) -> ComparedItem:
    return ComparedItem(VGA, Cost(tokens, tokens, nbytes, 0.1, 0.2, (640, 480)))


SERVE = ServeArguments(
    arguments={"max-model-len": "max_model_len", "seed": "seed", "no-seed": "seed"},
    defaults={"max_model_len": None, "seed": 0, "model": "m"},
    values={"max_model_len": 32_768, "seed": 0, "model": "q"},
)
VIEW = ReleaseView(
    vllm="0.32.0",
    python="",
    serve=SERVE,
    rehearsed=rehearsed(),
    opened=OPENED,
    items=(item(),),
    heeded={"mm_processor_kwargs.max_pixels": True},
)


def figure(found: tuple[ReleaseFigure, ...], group: str, name: str) -> ReleaseFigure:
    (one,) = [f for f in found if (f.group, f.name) == (group, name)]
    return one


def test_a_release_beside_itself_differs_in_nothing() -> None:
    found = release_figures(VIEW, VIEW)
    assert [f for f in found if f.changed] == []
    assert {f.group for f in found} == {
        *("item_tokens", "item_cache_bytes", "budget", "memory", "engine", "server"),
        *("effect", "setting"),
    }


def test_items_budget_and_memory_that_moved_are_told_with_their_difference() -> None:
    less = rehearsed(
        activation_peak_bytes=GIB,
        phases=peaks(GIB, GIB // 2),
        kv_cache_tokens=300_000,
        budget=replace(BUDGET, encoder_cache_size=8_192, max_items_per_batch={"image": 2}),
    )
    found = release_figures(VIEW, replace(VIEW, rehearsed=less, items=(item(nbytes=4),)))
    changed = {(f.group, f.name): f.difference for f in found if f.changed}
    assert changed == {
        ("item_cache_bytes", "image 640×480"): 4 - 1_839_288,
        ("budget", "encoder cache"): -8_192,
        ("budget", "images in one batch"): 1,
        ("memory", "activation peak"): -GIB,
        ("memory", "peak of encoder"): -GIB,
        ("memory", "KV cache, tokens"): -5_832,
    }


def test_an_item_that_is_refused_there_has_the_words_and_no_difference() -> None:
    there = replace(VIEW, items=(ComparedItem(VGA, None, "too small"),))
    one = figure(release_figures(VIEW, there), "item_tokens", "image 640×480")
    assert (one.before, one.after, one.difference) == (391, "refused: too small", None)
    assert one.changed


def test_a_release_that_cannot_be_rehearsed_still_has_its_items() -> None:
    there = replace(VIEW, rehearsed=None, problems=("moved",))
    found = release_figures(VIEW, there)
    kv = figure(found, "memory", "KV cache, tokens")
    assert (kv.before, kv.after, kv.difference) == (305_832, None, None)
    assert figure(found, "budget", "max_num_seqs").after is None
    assert not figure(found, "item_tokens", "image 640×480").changed


def test_limits_and_codecs_of_the_server() -> None:
    server = Server(limits={"A": 1, REQUEST_BYTES: 2}, decodes={"h264": True, "av1": True})
    found = release_figures(VIEW, replace(VIEW, opened=replace(OPENED, server=server)))
    limit = figure(found, "server", REQUEST_BYTES)
    assert (limit.before, limit.after) == (None, 2)
    av1 = figure(found, "server", "video as av1")
    assert (av1.before, av1.after) == ("not decoded", "decoded")
    assert not figure(found, "server", "A").changed


def test_refused_options_effects_defaults_and_options_of_one() -> None:
    serve = ServeArguments(
        arguments={"seed": "seed", "novel": "novel", "no-novel": "novel"},
        defaults={"seed": 1, "novel": True, "model": "m"},
        values={"seed": 1, "novel": True, "model": "q"},
        refused={"max-model-len": "no such option"},
    )
    there = replace(VIEW, serve=serve, heeded={"mm_processor_kwargs.max_pixels": False})
    found = release_figures(VIEW, there)
    refused = figure(found, "setting", "max-model-len")
    assert (refused.before, refused.after) == (
        "taken, as max_model_len",
        "refused: no such option",
    )
    effect = figure(found, "effect", "mm_processor_kwargs.max_pixels")
    assert (effect.before, effect.after) == (HEEDED, UNHEEDED)
    seed = figure(found, "default", "seed")
    assert (seed.before, seed.after) == ("0", "1")
    options = [(f.name, f.before, f.after) for f in found if f.group == "option"]
    assert options == [("max-model-len", "null", None), ("novel", None, "true")]
