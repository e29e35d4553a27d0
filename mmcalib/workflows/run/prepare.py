"""Open the model and drop the media that it will not serve."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from mmcalib.census.census import Census
from mmcalib.census.prompts import PromptCensus
from mmcalib.checks.check import Check
from mmcalib.checks.corpus import RefusedItems, rejected_items_check, rejected_request_check
from mmcalib.configs.opening import open_model, without_gpu_args
from mmcalib.decision.media_files import Files
from mmcalib.decision.texts import Texts
from mmcalib.domain.model import ModelInfo, Server
from mmcalib.domain.shapes import Shape, weight
from mmcalib.errors import CorpusError, ModelError, UsageError, VllmRefused
from mmcalib.gate.admission import (
    DEFAULT_AUDIO_LIMITS,
    AudioLimits,
    admitting_variables,
    count_packed_samples,
    find_request_refusal,
    find_server_refusal,
)
from mmcalib.limits.policy import Policy
from mmcalib.models.resolve import ResolvedModel
from mmcalib.prediction.rehearse import with_gpu_defaults
from mmcalib.progress import Silent
from mmcalib.releases.constants import CONTEXT_TOO_LONG, CRASHING_AUDIO_SAMPLES
from mmcalib.results.calibration import with_environment
from mmcalib.text import one_line
from mmcalib.workflows.corpus import LoadedCorpus, files_of, keep_requests
from mmcalib.workflows.run.session import Session, refuse_unusable


def drop_refused(
    corpus: LoadedCorpus, server: Server, hearing: AudioLimits = DEFAULT_AUDIO_LIMITS
) -> tuple[LoadedCorpus, list[RefusedItems]]:
    """Return the rest and what the server rejects. Raises CorpusError if nothing is left."""
    left_out = [
        RefusedItems(file, refusal, entry.count, entry.exemplars[0])
        for file, entry in corpus.census.encoded_counts()
        if (refusal := find_server_refusal(file, server, hearing))
    ]
    if not left_out:
        return corpus, []
    census = corpus.census.exclude_files(lambda file: find_server_refusal(file, server, hearing))
    first = left_out[0]
    if not census.items():
        raise CorpusError(
            f"nothing to measure: the server rejects every item, such as "
            f"{one_line(first.exemplar)}: {first.refusal.reason}",
            hint=_include_command(required_environment(left_out, server)) or first.refusal.remedy,
        )
    shapes = {entry.shape for entry in census.shapes()}
    prompts = keep_requests(corpus.prompts, lambda shape: shape in shapes)
    return replace(corpus, census=census, prompts=prompts), left_out


def count_as_loaded(corpus: LoadedCorpus, server: Server) -> LoadedCorpus:
    """Count audio in samples as vLLM's loader does. Requests don't keep how a file is encoded, so
    theirs get the most samples of any file of that shape.
    """
    most: dict[Shape, Shape] = {}
    for file, _ in corpus.census.encoded_counts():
        if (shape := count_packed_samples(file, server).shape) != file.shape:
            most[file.shape] = max(shape, most.get(file.shape, shape), key=weight)
    if not most:
        return corpus
    census = Census.of_encoded(
        (count_packed_samples(file, server), entry)
        for file, entry in corpus.census.encoded_counts()
    )
    prompts = PromptCensus(
        replace(entry, signature=replace(one, shapes=tuple(most.get(s, s) for s in one.shapes)))
        for entry in corpus.prompts.signatures()
        for one in [entry.signature]
    )
    items = tuple((most.get(shape, shape), path) for shape, path in corpus.accesses.items)
    accesses = replace(corpus.accesses, items=items)
    return replace(corpus, census=census, prompts=prompts, accesses=accesses)


def required_environment(left_out: Sequence[RefusedItems], server: Server) -> dict[str, int]:
    """Return the lowest environment variables with which the server admits these items."""
    most: dict[str, int] = {}
    # What no variable admits, such as a sound at a rate that crashes the model, asks for none.
    for one in (one for one in left_out if one.refusal.variable):
        for variable, value in admitting_variables(one.file, server).items():
            most[variable] = max(value, most.get(variable, 0))
    return most


def check_sizes(prompts: PromptCensus, server: Server) -> Iterator[Check]:
    """Yield a check for each limit of the server that a request as a whole exceeds."""
    (_, fetching, files), (nbytes, sending) = prompts.downloads, prompts.largest_body
    fetched = find_request_refusal(files, (), server)
    sent = find_request_refusal((), (), server, nbytes)
    for origin, refusal in ((fetching, fetched), (sending, sent)):
        if refusal:
            yield rejected_request_check(origin, refusal)


def check_server(
    left_out: Sequence[RefusedItems], items: int, values: Mapping[str, int]
) -> Iterator[Check]:
    """Yield a check if the server rejects some of the `items`."""
    if left_out:
        yield rejected_items_check(left_out, items, _include_command(values))


def _include_command(values: Mapping[str, int]) -> str:
    """Return the command that calibrates for such items; empty if no value admits one."""
    if not values:
        return ""
    command = with_environment(values, "mmcalib run --emit env")
    return f"{command} includes them and writes these for the server (or --emit k8s)"


@dataclass(frozen=True, slots=True)
class Prepared:
    """An open model, the corpus as `read`, and what is served; `left_out` says why not the rest."""

    resolved: ResolvedModel
    opened: ModelInfo
    read: LoadedCorpus
    corpus: LoadedCorpus
    refused: tuple[RefusedItems, ...]
    left_out: Mapping[str, str]
    files: Files
    texts: Texts


def prepare(
    session: Session, resolved: ResolvedModel, read: LoadedCorpus, opened: ModelInfo
) -> Prepared:
    """Drop media that will not be served. Raises CorpusError if nothing is left to measure."""
    job = session.job
    crashing = CRASHING_AUDIO_SAMPLES.get(opened.architecture, range(0))
    hearing = AudioLimits(opened.audio_rate_hz, crashing)
    admitted, refused = drop_refused(read, opened.server, hearing)
    admitted = count_as_loaded(admitted, opened.server)
    corpus, left_out = drop_unserved(admitted, opened, job.policy)
    texts = Texts.of(session.host, opened.modalities, corpus.texts)
    texts.find_grammar(opened.modalities)
    if resolved.source == "bundled":
        texts.uncounted = "a bundled model has a placeholder tokenizer"
    else:
        texts.find_counting(opened.modalities)
    if session.prediction is not None:
        # Waits for the rehearsal of vLLM's defaults on that GPU.
        default, flags = session.default_args, job.config.flags
        refuse_unusable(session.prediction, default, session.given, flags, resolved)
        opened = with_gpu_defaults(opened, session.prediction.attempt(default))
    return Prepared(
        resolved=resolved,
        opened=opened,
        read=read,
        corpus=corpus,
        refused=tuple(refused),
        left_out=left_out,
        files=files_of(corpus, job.probe.item_timeout_s),
        texts=texts,
    )


def open_to_calibrate(session: Session, resolved: ResolvedModel) -> ModelInfo:
    """Open the model without progress. Raises ModelError if it is text-only or vLLM rejects it."""
    try:
        return open_model(
            session.host,
            resolved,
            Silent(),
            # The device is unknown until vLLM answers, and no processor depends on GPU arguments.
            without_gpu_args(session.given, "cpu"),
            context_tokens=session.job.policy.context_tokens,
            so=": there is nothing to calibrate",
        )
    except VllmRefused as error:
        if too_long := CONTEXT_TOO_LONG.search(error.reason):
            own, context = int(too_long["own"]), session.job.policy.context_tokens
            raise UsageError(
                f"--max-model-len {context}: {resolved.id} has a context of {own:,} tokens",
                hint=f"--max-model-len {own}, or leave it out",
            ) from error
        words = f"vLLM cannot open {resolved.id}: {error.message}"
        raise ModelError(words, hint=error.hint) from error


def drop_unserved(
    corpus: LoadedCorpus, opened: ModelInfo, policy: Policy
) -> tuple[LoadedCorpus, dict[str, str]]:
    """Drop modalities that will not be served; return the rest and each reason."""
    left_out = {
        m: "the model does not take them" if m not in opened.modalities else "--count is 0"
        for m in corpus.census.modalities()
        if m not in opened.modalities or policy.count.get(m) == 0
    }
    if not left_out:
        return corpus, {}
    rest = corpus.only([m for m in corpus.census.modalities() if m not in left_out])
    if not rest.census.items():
        takes = ", ".join(opened.modalities)
        only = ", ".join(f"{m} items ({why})" for m, why in left_out.items())
        raise CorpusError(
            f"nothing to measure: the corpus holds only {only}; the model takes {takes}",
            hint="a --model that takes them, or --data with other media",
        )
    reasons = {str(m): f"{corpus.census.items(m)} {m} items: {why}" for m, why in left_out.items()}
    return rest, reasons
