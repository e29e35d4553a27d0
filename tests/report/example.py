"""One calibration made by hand: every output is rendered from it and kept under tests/goldens."""

from typing import Any, Literal

from mmcalib.admission.calibration import Calibration
from mmcalib.checks import catalogue as ids
from mmcalib.checks.catalogue import CheckId
from mmcalib.checks.check import Check, Status
from mmcalib.domain.items import TextBound
from mmcalib.domain.knobs import Label
from mmcalib.domain.model import Server
from mmcalib.domain.shapes import ImageShape, VideoShape
from mmcalib.gate.bounds import Area
from mmcalib.results import memory
from mmcalib.results.calibration import (
    ChatItems,
    Conversation,
    Corpus,
    Evidence,
    FrontierPoint,
    ModalityItems,
    Model,
    Preprocessing,
    ProcessorCache,
)
from mmcalib.results.costs import Costs, KnownCost, ModalityCosts
from mmcalib.results.part import CheckResult
from tests.report.serving import figures

AREA = "images_kwargs.size.longest_edge"
CAPPED = "without it: largest image 1,269 → 16,384 tokens; encoder budget 2,538 → 16,384 tokens"
SERVE = "vllm serve --config out/engine.yaml"


def calibration() -> Calibration:
    """A corpus of pages and clips on Qwen2.5-VL, started on a CPU; all checks but one pass."""
    return Calibration(
        created_at="2026-11-21T02:56:23+00:00",
        tool={
            "mmcalib": "0.1.0",
            "vllm": "0.32.0",
            "transformers": "5.19.0",
            "torch": "2.13.0",
            "python": "3.11.7",
        },
        model=Model(
            id="Qwen/Qwen2.5-VL-3B-Instruct",
            source="bundled",
            architecture="Qwen2_5_VLForConditionalGeneration",
            doubts=["bundled geometry: weights are dummy: no answer of the model means anything"],
        ),
        corpus=_corpus(),
        counted_by="Qwen2_5_VLProcessor of transformers",
        evidence=_evidence(),
        engine_config=_engine_config(),
        budget=_budgets(),
        memory=_memories(),
        frontier=[
            _point(200704, 247, 234, 0.775, 0.206897, 3584, 2, mean=0.784107, computed=True),
            _point(602112, 768, 300, 0.0004, 0.679045, 5376, 1, mean=0.999872, computed=True),
            _point(1003520, 1269, 300, 0.0, 1.0, 8883, 1, choice="chosen"),
            _point(12845056, 1269, 300, 0.0, 1.0, 114688, 1, choice="beaten"),
        ],
        startup=_startup(),
        checks=_checks(),
        verdict="pass",
        costs=_costs(),
        cache=_cache(),
        preprocessing=Preprocessing(cpu_s_per_item=0.047663, measured_files=18),
        server=_server(),
        traffic=memory.ServedTraffic(
            gpu="L4",
            calibrated=figures(),
            default=figures(peak_bytes=3 << 29),
            assumptions=["answers of 1,024 tokens to 2 requests"],
        ),
        conversations={
            "image": _chat("630×480", "1316×756", ((300, 4, 91), (1269, 4, 54))),
            "video": _chat(
                "640×300, 240 frames, 8.0 s",
                "640×360, 240 frames, 8.0 s",
                ((850, 1, 65), (1020, 1, 60)),
            ),
        },
    )


def _chat(typical: str, largest: str, figures: tuple[tuple[int, int, int], ...]) -> Conversation:
    """Turns of 1,116 tokens of text in a context of 128,000."""
    paths = ("/data/clip/gate.mp4", "/data/clip/door.mp4")
    if "frames" not in largest:
        paths = ("/data/scan/page-2.png", "/data/scan/page-7.png")
    items = [
        ChatItems(
            shape=shape,
            exemplar=path,
            tokens=tokens,
            items=count,
            limit="limit_mm_per_prompt",
            most_items=most,
        )
        for shape, path, (tokens, count, most) in zip(
            (typical, largest), paths, figures, strict=True
        )
    ]
    return Conversation(
        label="assumed",
        first_tokens=90,
        turn_tokens=1116,
        request="requests.jsonl:18",
        typical=items[0],
        largest=items[1],
    )


def _server() -> Server:
    """A server of a release whose decoder lacks AV1."""
    return Server(
        limits={"VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": 25, "VLLM_MAX_AUDIO_DECODE_DURATION_S": 600},
        decodes={"h264": True, "av1": False},
        lone_frames=False,
    )


def _cache() -> ProcessorCache:
    return ProcessorCache(
        requests=600,
        accesses=1247,
        complete=True,
        mm_processor_cache_gb=0.42,
        hit_rate=0.314354,
        default_hit_rate=0.319968,
        wanted=None,
        curve=((5_969_112, 0.120289), (448_221_184, 0.314354), (803_219_456, 0.319968)),
    )


def _costs() -> Costs:
    """Two pages and a sliver; a rule for other pictures, none for other clips."""
    page, stamp = ImageShape(1316, 756), ImageShape(56, 56)
    clip = VideoShape(240, 30.0, 8.0, 640, 360)
    door: Any = {"items": 47, "exemplar": "/data/clip/door.mp4"}
    return Costs(
        text_reserve_tokens=1024,
        modalities={
            "image": ModalityCosts(
                known=[
                    KnownCost(
                        shape=page,
                        tokens=1269,
                        embeds=1269,
                        basis="real",
                        items=1190,
                        exemplar="/data/scan/page-7.png",
                    ),
                    KnownCost(shape=stamp, tokens=4, embeds=4, basis="blank", items=10),
                ],
                refused=[(ImageShape(2, 900), "aspect ratio must be below 200")],
                rule=Area(factor_px=28, min_px=3136, max_px=1003520, max_aspect=200.0),
                compared=41,
            ),
            "video": ModalityCosts(
                known=[KnownCost(shape=clip, tokens=1020, embeds=1020, basis="real", **door)]
            ),
        },
        text=TextBound(
            base_tokens=15,
            message_tokens=3,
            item_tokens={"image": 0, "video": 0},
            tools_tokens=0,
            compared=57,
        ),
    )


def _corpus() -> Corpus:
    return Corpus(
        prompts=600,
        skipped=2,
        modalities={
            "image": ModalityItems(
                items=1200,
                unique_shapes=87,
                tokens={"min": 4, "p50": 300, "p90": 1131, "p99": 1269, "max": 1269},
                heaviest="1316×756",
                exemplar="/data/scan/page-7.png",
            ),
            "video": ModalityItems(
                items=47,
                unique_shapes=6,
                tokens={"min": 120, "p50": 850, "p90": 1020, "p99": 1020, "max": 1020},
                heaviest="640×360, 240 frames, 8.0 s",
                exemplar="/data/clip/door.mp4",
            ),
        },
    )


def _engine_config() -> dict[str, Any]:
    return {
        "model": "Qwen/Qwen2.5-VL-3B-Instruct",
        "limit_mm_per_prompt": {
            "image": {"count": 4, "width": 1316, "height": 756},
            "video": 1,
            "audio": 0,
        },
        "mm_processor_kwargs": {
            "images_kwargs": {"size": {"longest_edge": 1003520, "shortest_edge": 3136}}
        },
        "max_model_len": 128000,
        "max_num_batched_tokens": 2538,
        "enable_prefix_caching": False,
        "mm_processor_cache_gb": 0.42,
    }


def _evidence() -> list[Evidence]:
    page = "/data/scan/page-7.png"
    hint = "names the costliest image, 1316×756: 1269 tokens, which is what vLLM's dummy costs too"
    return [
        _why(
            "limit_mm_per_prompt.image.count",
            4,
            "computed",
            "most of any request, of 600",
            exemplar="requests.jsonl:17",
        ),
        _why(
            "limit_mm_per_prompt.image.width",
            1316,
            "measured",
            hint,
            exemplar=page,
            effect="without it: profiled image 1,269 → 1,280 tokens",
        ),
        _why(
            "limit_mm_per_prompt.image.height",
            756,
            "measured",
            hint,
            exemplar=page,
            effect="without it: profiled image 1,269 → 1,080 tokens",
        ),
        _why(
            "limit_mm_per_prompt.video",
            1,
            "computed",
            "most of any request, of 600",
            exemplar="requests.jsonl:30",
        ),
        _why("limit_mm_per_prompt.audio", 0, "computed", "no audio in the corpus"),
        _why(
            f"mm_processor_kwargs.{AREA}",
            1003520,
            "measured",
            "smallest that downscales nothing; default 12845056",
            exemplar=page,
            effect=CAPPED,
        ),
        _why(
            "max_model_len",
            128000,
            "computed",
            "the model's own context",
            effect="vLLM has the same without it here",
        ),
        _why(
            "max_num_batched_tokens",
            2538,
            "computed",
            "vLLM's default here, 2048, rounded up to whole items of 1269 tokens",
        ),
        _why(
            "mm_processor_cache_gb",
            0.42,
            "computed",
            "expected hit rate 31.4%; 1,247 items in 600 requests, an unlimited cache hits 32.0%, "
            "vLLM's 4 GiB 32.0%",
            exemplar="/data/scan/letterhead.png",
        ),
    ]


def _why(setting: str, value: float, label: Label, reason: str, **more: str) -> Evidence:
    return Evidence(setting=setting, value=value, label=label, reason=reason, **more)


def _budgets() -> memory.Budgets:
    return memory.Budgets(
        default=memory.EncoderBudget(
            encoder_budget_tokens=114688,
            max_tokens_per_item={"image": 16384, "video": 114688},
            profiled_modality="video",
            profiled_items=1,
            profiled_tokens=None,
            worst_step_tokens=None,
            max_num_batched_tokens=2048,
            resident_items={"image": 90, "video": 112},
        ),
        calibrated=memory.EncoderBudget(
            encoder_budget_tokens=2538,
            max_tokens_per_item={"image": 1269, "video": 1020},
            profiled_modality="image",
            profiled_items=2,
            profiled_tokens=2538,
            worst_step_tokens=2538,
            max_num_batched_tokens=2538,
            resident_items={"image": 2, "video": 2},
        ),
    )


def _memories() -> memory.Memories:
    scaled: dict[str, Label] = {"weights_bytes": "computed", "kv_bytes_per_token": "computed"}
    return memory.Memories(
        default=memory.Memory(
            weights_bytes=7509245952, kv_bytes_per_token=36864, label="computed", labels=scaled
        ),
        calibrated=memory.Memory(
            weights_bytes=7509245952,
            kv_bytes_per_token=36864,
            activation_peak_bytes=970827468,
            label="measured",
            labels={**scaled, "activation_peak_bytes": "measured"},
            note="weights and KV bytes scaled from the cut depth; activation peak of cpu kernels",
        ),
    )


def _point(
    value: int,
    most: int,
    p50: int,
    downscaled: float,
    retention: float,
    budget: int,
    batch: int,
    *,
    mean: float = 1.0,
    choice: Literal["chosen", "beaten", "open"] = "open",
    computed: bool = False,
) -> FrontierPoint:
    return FrontierPoint(
        knob=AREA,
        modality="image",
        value=value,
        max_tokens=most,
        p50_tokens=p50,
        share_downscaled=downscaled,
        worst_retention=retention,
        encoder_budget_tokens=budget,
        profiled_items=batch,
        choice=choice,
        mean_retention=mean,
        p99_tokens=min(most, 770),
        process_s=round(p50 * 0.00004, 6),
        adequacy=round(min(batch * most / budget, 1.0), 4),
        resident_items=budget // most,
        label="computed" if computed else "measured",
    )


def _startup() -> memory.Startup:
    return memory.Startup(
        device="cpu",
        depth=(2, 2),
        true_depth=(36, 32),
        seconds=14.93,
        figures={"weights_bytes": 622854144, "profile_s": 12.4, "profile_estimate_s": None},
        replay=memory.ReplayResult(
            admitted=8,
            prompts=3,
            rejected=0,
            oom=0,
            token_mismatches=0,
            encoder_tokens=3558,
            largest_encoder_step_tokens=2538,
            seconds=21.5,
        ),
    )


def _checks() -> list[CheckResult]:
    return [
        _check(
            ids.READABLE_FILES,
            "warn",
            "2 skipped, for example /data/scan/broken.jpg: truncated (3 bytes missing)",
            "skipped.jsonl lists them with reasons",
            "/data/scan/broken.jpg",
        ),
        _check(ids.BLANK_ITEMS, "pass", "18 real items cost what blanks of their shape cost"),
        _check(
            ids.ADMITTED,
            "pass",
            "largest item 1269 tokens, encoder cache 2538: /data/scan/page-7.png",
        ),
        _check(
            ids.PROMPT_LENGTH,
            "pass",
            "requests.jsonl:17: 5076 tokens of media + 1024 for text (assumed), of 128000 tokens",
        ),
        _check(
            ids.SIZE_HINT.of("image"),
            "pass",
            "width 1316, height 756: vLLM's dummy costs 1269 tokens, as the largest item does",
        ),
        _check(
            ids.SIZE_HINT.of("video"),
            "pass",
            "left out on purpose: with the corpus' size vLLM would profile 1020 tokens where one "
            "item may take 1092",
        ),
        _check(
            ids.MEMORY_RESERVE,
            "pass",
            "profiled 2538 of the 2538 tokens that one step may encode: 1.00",
        ),
        _check(ids.CONFIG_PARSING, "pass", "vLLM's own parser reads all 6 settings back"),
        _check(ids.ENGINE_START, "pass", "started on cpu in 15 s; encoder budget 2538 tokens"),
    ]


def _check(
    check: CheckId, status: Status, detail: str, remedy: str = "", *names: str
) -> CheckResult:
    return CheckResult.from_value(Check(check, status, detail, remedy, names))
