"""The code, name and explanation of every check. `mmcalib list checks` prints this table."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, Protocol, TypeVar

from mmcalib.errors import UsageError

# A heading, then a line for each check. `…` stands for its subject, such as a modality. A code
# never moves to another check.
TABLE: Final = """
Data
MM001 | readable files | Every file and request can be read. skipped.jsonl lists the others with reasons.
MM002 | media loading | vLLM's loader opens the items. Remove or convert those that it rejects.
MM003 | … loading | vLLM's loader opens most sampled items. If not, a decoder is often missing.
MM004 | … processing | vLLM's processor takes the items. Remove or convert those that it rejects.
MM005 | modalities served | The configuration admits every modality of the data.
MM006 | … samples | The data holds items of every modality that --count admits. Add some with --data.
MM007 | blank items cost the same | Blank items of a size take as many tokens as real ones. Where they differ, the real one counts.
MM008 | real items measured | The sampled items can be loaded. Otherwise blank ones of their size are measured.
MM009 | audio length | librosa and vLLM decode a sound to one length. Convert files that differ to WAV or FLAC.
MM010 | server media limits | vLLM's server loads items of this size. Raise the environment variables that the check names.
MM011 | media input | language_model_only is off. With it the server rejects all media.
MM012 | tool calls | Requests with tools need --enable-auto-tool-choice and --tool-call-parser.
Items and prompts
MM021 | items admitted | The encoder cache holds every item whole. Otherwise vLLM answers HTTP 400.
MM022 | newly rejected items | The tuned settings reject nothing that vLLM accepts by default.
MM023 | detail kept | No item loses tokens against vLLM's defaults, unless memory or context forces it.
MM024 | smallest token cap | The processor can make items as small as --max-tokens-per-item demands.
MM025 | model's image size limit | The model downscales larger images with any settings. Cut them up if detail matters.
MM026 | requests admitted | No request carries more items than limit_mm_per_prompt admits.
MM027 | prompt length | The longest prompt fits max_model_len, with its media, text and answer.
Settings
MM031 | … size hint | A size hint lowers what vLLM reserves. It must not reserve less than items take.
MM032 | … size hint maximum | The size hint is within vLLM's own largest item. vLLM ignores a larger one.
MM033 | effect of each setting | mmcalib leaves out each setting once and compares tokens and memory.
MM034 | effect of … | This setting changes something. Remove one that changes nothing.
MM035 | … token cap | The model's processor has an option that --max-tokens-per-item can use for this modality.
MM036 | config parsing | vLLM's own parser reads the file as it was written.
MM037 | processor cache size | mm_processor_cache_gb is large enough for the repeats in your requests.
MM038 | configuration accepted | vLLM builds its engine configuration from these arguments.
MM039 | default configuration | vLLM starts with its defaults, for comparison.
Memory
MM041 | memory reserve | vLLM reserves what the costliest step takes. Otherwise the server may run out of memory under load.
MM042 | encoder memory reserve | The startup profile runs the encoder, so that its memory is reserved.
MM043 | … input memory | No step encodes more padded or tiled input than vLLM profiles. --gpu rehearses the bytes.
MM044 | large items at once | Two of the largest items fit in the encoder cache. Otherwise they wait for each other.
MM045 | memory on … | vLLM starts on this GPU, and how much KV cache is left.
MM046 | concurrency | As many full-length requests fit at once as --concurrency demands.
MM047 | memory under load on … | mmcalib simulates serving your requests. No step takes more than vLLM reserved.
MM048 | encoder peak estimate | The rehearsed encoder peak is near that of a simple formula.
MM049 | prediction accuracy | Rehearsed memory agrees with what the started engine measured.
MM050 | encoder cache retention | A cached item can keep its whole batch in memory. The startup profile reserves that much.
MM051 | fixed KV cache size | --pin-kv-cache leaves room for the costliest step.
Engine start
MM061 | engine start | The real engine starts with these settings and has the computed encoder budget.
MM062 | memory profile | The activation peak that the started engine measured.
MM063 | request replay | The engine answers your heaviest requests and counts as many tokens as were measured.
MM064 | processor on the GPU | The processor counts the same tokens with --device as on the CPU.
MM065 | not started with … | These flags need a GPU, so the engine was started without them.
MM066 | run completion | The run reached its end. Start it again with --force.
MM067 | vLLM release | This release has everything that mmcalib reads. See mmcalib doctor.
Comparison with vLLM's defaults
MM071 | comparison with vLLM's defaults | The tuned settings leave at least as much KV cache and concurrency as vLLM's defaults.
MM072 | keep vLLM's defaults | No tried setting is better. engine.yaml adds only limits and context length.
Files and flags of validate
MM080 | unknown key … | vllm serve has an option of this name.
MM081 | empty key … | The key has a value. vLLM reads an empty one as the word None.
MM082 | value of … | vLLM takes the value of the key.
MM083 | false value of … | vllm serve drops `key: false` from a file. Write `no-key: true`.
MM084 | repeated key … | The file has the key once. vLLM takes the last.
MM085 | flag over … | A flag on the command line replaces the key in the file.
MM086 | limit of … | limit_mm_per_prompt names modalities of this model.
MM087 | unlimited modalities | Every modality has a limit. vLLM otherwise admits 999 items in a prompt.
MM088 | scope of … | A processor option written for all modalities changes only one.
MM089 | processor cache for one request | The processor cache holds one request. Otherwise vLLM may answer HTTP 500.
MM090 | batch size for one item | max_num_batched_tokens holds one item where vLLM does not split it.
MM091 | per-request processor options | trust_request_mm_kwargs lets clients exceed every cap of the file.
MM092 | memory for video pruning | vLLM encodes video tokens that it prunes later, and its profile does not.
MM093 | largest item on one rank | mm_encoder_tp_mode data puts a whole item on one GPU.
MM094 | memory for prompt_logprobs | Requests with prompt_logprobs take memory that no profile includes.
MM095 | memory for encoder CUDA graphs | CUDA graphs of the encoder take memory from the KV cache.
MM096 | embeddings from clients | enable_mm_embeds lets clients send embeddings that no profile includes.
MM097 | memory of the API server | mm_ipc_gpu_memory_gb takes memory from the KV cache.
Assumptions
MM101 | assumed … count | You gave no requests, so mmcalib assumed the items per prompt. Pass --requests or --count.
MM102 | assumed answer length | The longest request sets no max_tokens. Set it, or pass --text-reserve-tokens.
MM103 | assumed answers under load | Some requests set no max_tokens, so simulated answers had a default length. No setting depends on it.
MM104 | assumed batch size | Without --gpu, engine.yaml has this machine's default batch. Pass --gpu.
Installation, mmcalib doctor
MM111 | vLLM | vLLM is installed in a release that mmcalib was tested with.
MM112 | engine | vLLM's engine can start on this machine.
MM113 | serving | vllm serve starts here. mmcalib serve works with the CPU build too.
MM114 | torch libraries | torchvision, torchaudio and torchcodec match torch.
MM115 | media libraries | Pillow, PyAV and soundfile read an image, a video and a sound.
MM116 | GPU | The GPU and how much of it is free.
MM117 | model hub | The Hugging Face hub answers. Local folders and bundled models work without it.
MM118 | host memory | The machine has the memory that an engine start on the CPU takes.
MM119 | shared memory | /dev/shm is large enough for vLLM's workers.
MM120 | open files | A process may open enough files.
MM121 | … folder | mmcalib can write to the folder, and it has space.
"""  # noqa: E501


class NamedCheck(Protocol):
    """A check of a document, where it only has a name."""

    @property
    def name(self) -> str: ...


N = TypeVar("N", bound=NamedCheck)


@dataclass(frozen=True, slots=True)
class CheckId:
    """A check. `about` replaces the `…` in its name."""

    code: str
    pattern: str
    explanation: str
    about: str = ""

    @property
    def name(self) -> str:
        return self.pattern.replace("…", self.about or "…")

    def of(self, about: str) -> CheckId:
        return replace(self, about=about)

    def covers(self, other: CheckId) -> bool:
        """Compare the checks, not what they are about."""
        return self.code == other.code

    def among(self, checks: Iterable[N]) -> Iterator[N]:
        return (check for check in checks if check.name == self.name)


def _read_table() -> dict[str, dict[str, CheckId]]:
    groups: dict[str, dict[str, CheckId]] = {}
    for line in TABLE.strip().splitlines():
        if "|" not in line:
            group = groups[line] = {}
            continue
        code, pattern, explanation = line.split(" | ")
        group[code] = CheckId(code, pattern, explanation)
    return groups


GROUPS: Final = _read_table()
CHECKS: Final = {code: check for group in GROUPS.values() for code, check in group.items()}


def check_of_code(code: str) -> CheckId:
    """The check of a code. Raises UsageError for an unknown one."""
    found = CHECKS.get(code.upper())
    if found is None:
        near = difflib.get_close_matches(code.upper(), CHECKS, n=1)
        hint = " ".join(["mmcalib list checks", *near])
        raise UsageError(f"no check has the code {code}", hint=hint)
    return found


READABLE_FILES: Final = CHECKS["MM001"]
MEDIA_LOADING: Final = CHECKS["MM002"]
MODALITY_LOADING: Final = CHECKS["MM003"]
PROCESSING: Final = CHECKS["MM004"]
MODALITIES_SERVED: Final = CHECKS["MM005"]
SAMPLES: Final = CHECKS["MM006"]
BLANK_ITEMS: Final = CHECKS["MM007"]
REAL_ITEMS: Final = CHECKS["MM008"]
AUDIO_LENGTH: Final = CHECKS["MM009"]
SERVER_LIMITS: Final = CHECKS["MM010"]
MEDIA_INPUT: Final = CHECKS["MM011"]
TOOL_CALLS: Final = CHECKS["MM012"]
ADMITTED: Final = CHECKS["MM021"]
NEWLY_REJECTED: Final = CHECKS["MM022"]
DETAIL_KEPT: Final = CHECKS["MM023"]
SMALLEST_CAP: Final = CHECKS["MM024"]
MODEL_SIZE_LIMIT: Final = CHECKS["MM025"]
REQUESTS_ADMITTED: Final = CHECKS["MM026"]
PROMPT_LENGTH: Final = CHECKS["MM027"]
SIZE_HINT: Final = CHECKS["MM031"]
HINT_MAXIMUM: Final = CHECKS["MM032"]
SETTINGS_EFFECT: Final = CHECKS["MM033"]
EFFECT_OF: Final = CHECKS["MM034"]
TOKEN_CAP: Final = CHECKS["MM035"]
CONFIG_PARSING: Final = CHECKS["MM036"]
PROCESSOR_CACHE: Final = CHECKS["MM037"]
CONFIGURATION_ACCEPTED: Final = CHECKS["MM038"]
DEFAULT_CONFIGURATION: Final = CHECKS["MM039"]
MEMORY_RESERVE: Final = CHECKS["MM041"]
ENCODER_RESERVE: Final = CHECKS["MM042"]
INPUT_MEMORY: Final = CHECKS["MM043"]
LARGE_ITEMS: Final = CHECKS["MM044"]
MEMORY_ON: Final = CHECKS["MM045"]
CONCURRENCY: Final = CHECKS["MM046"]
LOAD_ON: Final = CHECKS["MM047"]
ENCODER_ESTIMATE: Final = CHECKS["MM048"]
PREDICTION: Final = CHECKS["MM049"]
CACHE_RETENTION: Final = CHECKS["MM050"]
FIXED_KV_CACHE: Final = CHECKS["MM051"]
ENGINE_START: Final = CHECKS["MM061"]
MEMORY_PROFILE: Final = CHECKS["MM062"]
REPLAY: Final = CHECKS["MM063"]
PROCESSOR_ON_GPU: Final = CHECKS["MM064"]
NOT_STARTED_WITH: Final = CHECKS["MM065"]
RUN_COMPLETION: Final = CHECKS["MM066"]
VLLM_RELEASE: Final = CHECKS["MM067"]
BETTER: Final = CHECKS["MM071"]
KEEP_DEFAULTS: Final = CHECKS["MM072"]
UNKNOWN_KEY: Final = CHECKS["MM080"]
EMPTY_KEY: Final = CHECKS["MM081"]
VALUE_OF: Final = CHECKS["MM082"]
FALSE_KEY: Final = CHECKS["MM083"]
REPEATED_KEY: Final = CHECKS["MM084"]
FLAG_OVER: Final = CHECKS["MM085"]
LIMIT_OF: Final = CHECKS["MM086"]
UNLIMITED: Final = CHECKS["MM087"]
SCOPE: Final = CHECKS["MM088"]
REQUEST_CACHE: Final = CHECKS["MM089"]
ITEM_BATCH: Final = CHECKS["MM090"]
REQUEST_OPTIONS: Final = CHECKS["MM091"]
PRUNING_MEMORY: Final = CHECKS["MM092"]
RANK_ITEM: Final = CHECKS["MM093"]
LOGPROBS_MEMORY: Final = CHECKS["MM094"]
GRAPHS_MEMORY: Final = CHECKS["MM095"]
EMBEDDINGS: Final = CHECKS["MM096"]
API_SERVER_MEMORY: Final = CHECKS["MM097"]
ASSUMED_COUNT: Final = CHECKS["MM101"]
ASSUMED_ANSWER: Final = CHECKS["MM102"]
ASSUMED_LOAD: Final = CHECKS["MM103"]
ASSUMED_BATCH: Final = CHECKS["MM104"]
VLLM: Final = CHECKS["MM111"]
ENGINE: Final = CHECKS["MM112"]
SERVING: Final = CHECKS["MM113"]
TORCH: Final = CHECKS["MM114"]
MEDIA_LIBRARIES: Final = CHECKS["MM115"]
GPU: Final = CHECKS["MM116"]
MODEL_HUB: Final = CHECKS["MM117"]
HOST_MEMORY: Final = CHECKS["MM118"]
SHARED_MEMORY: Final = CHECKS["MM119"]
OPEN_FILES: Final = CHECKS["MM120"]
FOLDER: Final = CHECKS["MM121"]

# Assumptions that a setting depends on: a verdict names them.
MOVING_ASSUMPTIONS: Final = (ASSUMED_COUNT, ASSUMED_ANSWER, ASSUMED_BATCH)
