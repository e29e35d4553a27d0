"""Checkpoints that write as real ones do: tokens of whole words, and a template that has tools."""

import json
import shutil
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer

from tests.conftest import ROOT
from tests.schemas import DATA

MERGES = 3000

# Loops, macros, JSON of tools, refusals, thoughts that are left out of earlier turns.
TEMPLATE = (DATA / "templates" / "tools.jinja").read_text("utf-8")


def speaking(folder: Path, to: Path, template: str | None = TEMPLATE) -> Path:
    """Copy the checkpoint with a vocabulary learned from the docs; template None keeps its own."""
    shutil.copytree(folder, to)
    path = to / "tokenizer.json"
    document = json.loads(path.read_text())
    _teach(document)
    path.write_text(json.dumps(document, ensure_ascii=False))
    if template is not None:
        config = to / "tokenizer_config.json"
        config.write_text(json.dumps(json.loads(config.read_text()) | {"chat_template": template}))
    return to


def _teach(document: dict[str, Any]) -> None:
    """Ids that no text was encoded to take the words learned."""
    learner = Tokenizer(BPE())
    learner.pre_tokenizer = ByteLevel(add_prefix_space=False)
    alphabet = ByteLevel.alphabet()
    trainer = BpeTrainer(
        vocab_size=len(alphabet) + MERGES, initial_alphabet=alphabet, show_progress=False
    )
    learner.train([str(page) for page in sorted((ROOT / "docs").glob("*.md"))], trainer)
    model = json.loads(learner.to_str())["model"]
    vocab = document["model"]["vocab"]
    words = sorted((word for word in model["vocab"] if word not in vocab), key=model["vocab"].get)
    fillers = sorted((token for token in vocab if token.startswith("~")), key=vocab.get)
    for filler, word in zip(fillers, words, strict=False):
        vocab[word] = vocab.pop(filler)
    merges = [pair if isinstance(pair, list) else pair.split(" ") for pair in model["merges"]]
    document["model"]["merges"] = [pair for pair in merges if "".join(pair) in vocab]
