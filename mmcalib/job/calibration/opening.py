"""The model opened in vLLM, and the corpus as far as that model will serve it."""

from __future__ import annotations

from mmcalib.derive.policy import Policy
from mmcalib.domain.model import ModelInfo
from mmcalib.engine.host import EngineHost
from mmcalib.engine.messages import OpenModel
from mmcalib.errors import CorpusError, EngineDied, EngineError, ModelError, NotMultimodal
from mmcalib.geometry import ResolvedModel
from mmcalib.job.read import Corpus
from mmcalib.progress import Progress


def open_model(
    host: EngineHost, resolved: ResolvedModel, policy: Policy, progress: Progress
) -> ModelInfo:
    """Open the model in the child; a text-only one ends here."""
    request = OpenModel(resolved.path, policy.context_tokens)
    with progress.step("opening the model in vLLM"):
        try:
            return host.ask(request, "opening the model").model
        except EngineDied:
            raise
        except NotMultimodal:
            raise ModelError(
                f"{resolved.id} takes no images, video or audio: there is nothing to calibrate",
                hint="mmcalib models (lists multimodal ones), or --model another",
            ) from None
        except EngineError as error:
            raise ModelError(f"vLLM cannot open {resolved.id}: {error.message}") from error


def served(corpus: Corpus, opened: ModelInfo, policy: Policy) -> tuple[Corpus, dict[str, str]]:
    """The corpus without modalities that will not be served, and why each of those is left out."""
    left_out = {
        str(m): "the model does not take them" if m not in opened.modalities else "--count says 0"
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
    reasons = {m: f"{corpus.census.items(m)} {m} items: {why}" for m, why in left_out.items()}  # type: ignore[arg-type]
    return kept, reasons
