import pytest

from mmcalib.models.cut import scale_to_depth


def test_without_blocks_the_sum_is_the_sum() -> None:
    assert scale_to_depth({"lm_head.weight": 7, "embed.weight": 5}, 36, 32) == 12


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


@pytest.mark.parametrize(
    "stack", ["visual.blocks", "vision_tower.vision_model.encoder.layers", "audio_tower.layers"]
)
def test_encoder_stacks_are_known_by_name(stack: str) -> None:
    assert scale_to_depth({f"{stack}.0.weight": 5}, text_layers=1, encoder_layers=4) == 20


@pytest.mark.parametrize("stack", ["model.layers", "language_model.model.layers", "transformer.h"])
def test_other_stacks_are_the_language_model(stack: str) -> None:
    assert scale_to_depth({f"{stack}.0.weight": 5}, text_layers=4, encoder_layers=1) == 20


def test_experts_within_a_block_are_part_of_the_block() -> None:
    cut = {f"model.layers.{n}.mlp.experts.{e}.weight": 1 for n in range(2) for e in range(8)}
    assert scale_to_depth(cut, 10, 1) == 80


def test_blocks_are_averaged_where_they_differ() -> None:
    cut = {"model.layers.0.weight": 10, "model.layers.1.weight": 20}
    assert scale_to_depth(cut, 10, 1) == 150
