"""Second stage: the model opened in vLLM, and what of the corpus it will serve."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mmcalib.derive.policy import Policy
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.vllm_config import here, open_model, takes_no_media
from mmcalib.errors import CorpusError, ModelError, UsageError, VllmRefused
from mmcalib.models import ResolvedModel
from mmcalib.progress import Silent
from mmcalib.releases.constants import TOO_LONG
from mmcalib.workflows.calibration.given import refuse_unusable
from mmcalib.workflows.calibration.session import Session
from mmcalib.workflows.calibration.sources import Sources
from mmcalib.workflows.calibration.taken_in import LeftOut, taken_in
from mmcalib.workflows.decision.texts import Texts
from mmcalib.workflows.media_files import Files
from mmcalib.workflows.memory.explored import as_served
from mmcalib.workflows.read import ReadCorpus, files_of


@dataclass(frozen=True, slots=True)
class Served:
    """`corpus` is what is left of `items` without those that are `refused` and modalities that are
    `left_out`, each with its reason; `files` hands its media to vLLM, `texts` counts its words.
    """

    resolved: ResolvedModel
    opened: ModelInfo
    corpus: ReadCorpus
    items: int
    refused: tuple[LeftOut, ...]
    left_out: Mapping[str, str]
    files: Files
    texts: Texts


def serve(session: Session, sources: Sources, opened: ModelInfo) -> Served:
    """Raises CorpusError where nothing is left to measure."""
    job, resolved = session.job, sources.resolved
    taken, refused = taken_in(sources.corpus, opened.server)
    corpus, left_out = served_modalities(taken, opened, job.policy)
    texts = _texts(session, opened, resolved, corpus)
    return Served(
        resolved=resolved,
        opened=_on_the_gpu(session, opened, resolved),
        corpus=corpus,
        items=sources.corpus.census.items(),
        refused=tuple(refused),
        left_out=left_out,
        files=files_of(corpus, job.probe.item_timeout_s),
        texts=texts,
    )


def open_to_calibrate(session: Session, resolved: ResolvedModel) -> ModelInfo:
    """Says nothing meanwhile. Raises ModelError where vLLM refuses it, or it is text-only."""
    try:
        return open_model(
            session.host,
            resolved,
            Silent(),
            context_tokens=session.job.policy.context_tokens,
            # Which device this is nobody knows yet, and no processor depends on what a GPU has.
            engine_args=here(session.given, "cpu"),
            text_only=takes_no_media(resolved, ": there is nothing to calibrate"),
        )
    except VllmRefused as error:
        if too_long := TOO_LONG.search(error.reason):
            own, asked = int(too_long["own"]), session.job.policy.context_tokens
            raise UsageError(
                f"--max-model-len {asked}: {resolved.id} has a context of {own:,} tokens",
                hint=f"--max-model-len {own}, or leave it out",
            ) from error
        raise ModelError(f"vLLM cannot open {resolved.id}: {error.message}") from error


def _texts(
    session: Session, opened: ModelInfo, resolved: ResolvedModel, corpus: ReadCorpus
) -> Texts:
    texts = Texts.of(session.host, opened.modalities, corpus.texts)
    if resolved.source == "bundled":
        texts.uncounted = "a bundled geometry has a tokenizer that was made up"
    else:
        texts.find_counting(opened.modalities)
    return texts


def _on_the_gpu(session: Session, opened: ModelInfo, resolved: ResolvedModel) -> ModelInfo:
    """As it will be served there. Waits for the rehearsal of vLLM's defaults."""
    if session.prediction is None:
        return opened
    refuse_unusable(
        session.prediction, session.default_args, session.given, session.job.config.flags, resolved
    )
    return as_served(opened, session.default_args, session.prediction)


def served_modalities(
    corpus: ReadCorpus, opened: ModelInfo, policy: Policy
) -> tuple[ReadCorpus, dict[str, str]]:
    """The corpus without modalities that will not be served, and why each of those is left out."""
    left_out = {
        m: "the model does not take them" if m not in opened.modalities else "--count says 0"
        for m in corpus.census.modalities()
        if m not in opened.modalities or policy.count.get(m) == 0
    }
    if not left_out:
        return corpus, {}
    kept = corpus.only([m for m in corpus.census.modalities() if m not in left_out])
    if not kept.census.items():
        takes = ", ".join(opened.modalities)
        only = ", ".join(f"{m} items ({why})" for m, why in left_out.items())
        raise CorpusError(
            f"nothing to measure: the corpus holds only {only}; the model takes {takes}",
            hint="--model one that takes them, or --data with other media",
        )
    reasons = {str(m): f"{corpus.census.items(m)} {m} items: {why}" for m, why in left_out.items()}
    return kept, reasons
