import pytest

from mmcalib.models.cut import scale_to_depth


def test_each_stack_grows_to_its_own_depth() -> None:
    cut = {
        "language_model.embed_tokens.weight": 1000,
        "language_model.layers.0.mlp.weight": 10,
        "language_model.layers.0.attn.weight": 3,
        "language_model.layers.1.mlp.weight": 10,
        "language_model.layers.1.attn.weight": 3,
        "visual.patch_embed.weight": 100,
        "visual.blocks.0.mlp.weight": 7,
        "visual.blocks.1.mlp.weight": 7,
    }
    assert scale_to_depth(cut, 36, 32) == 1000 + 100 + 36 * 13 + 32 * 7
    assert scale_to_depth(cut, 2, 2) == sum(cut.values())


ENCODERS = "visual.blocks", "vision_tower.vision_model.encoder.layers", "audio_tower.layers"
LANGUAGE = "model.layers", "language_model.model.layers", "transformer.h"
EXPERTS = {f"model.layers.{n}.mlp.experts.{e}.weight": 1 for n in range(2) for e in range(8)}


@pytest.mark.parametrize(
    ("cut", "text_layers", "encoder_layers", "weights"),
    [
        *(({f"{stack}.0.weight": 5}, 1, 4, 20) for stack in ENCODERS),
        *(({f"{stack}.0.weight": 5}, 4, 1, 20) for stack in LANGUAGE),
        ({"lm_head.weight": 7, "embed.weight": 5}, 36, 32, 12),
        (EXPERTS, 10, 1, 80),
        ({"model.layers.0.weight": 10, "model.layers.1.weight": 20}, 10, 1, 150),
    ],
    ids=[*ENCODERS, *LANGUAGE, "no blocks", "experts are of their block", "blocks that differ"],
)
def test_stacks_are_known_by_name(cut, text_layers: int, encoder_layers: int, weights: int) -> None:
    assert scale_to_depth(cut, text_layers, encoder_layers) == weights
