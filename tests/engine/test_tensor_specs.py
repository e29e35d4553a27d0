from __future__ import annotations

from typing import Any

import pytest

from mmcalib.domain.processed import TensorSpec

torch = pytest.importorskip("torch")


def pixels(*values: float, dtype: Any = None) -> Any:
    return torch.tensor(values, dtype=dtype or torch.bfloat16)


def test_every_tensor_of_nested_ones_has_a_name() -> None:
    from mmcalib.child.tensor_specs import fields, form

    item = {"grid": torch.zeros(3, dtype=torch.int64), "crops": [pixels(1, 2), pixels(3)]}
    found = [form(name, data) for name, data in fields([item, {"seconds": [0.5, 1.0]}])]
    assert found == [
        TensorSpec("grid", "int64", (3,)),
        TensorSpec("crops.0", "bfloat16", (2,)),
        TensorSpec("crops.1", "bfloat16", (1,)),
        TensorSpec("seconds[1]", "list", (2,)),
    ]


def test_values_that_are_no_tensor_are_known_by_their_type() -> None:
    from mmcalib.child.tensor_specs import form

    assert form("rate", 2.0) == TensorSpec("rate", "float", ())


def test_the_largest_difference_is_over_all_tensors_of_one_name_and_shape() -> None:
    from mmcalib.child.tensor_specs import largest_difference

    one = {"a": pixels(0, 3, dtype=torch.uint8), "b": pixels(1.0), "c": pixels(1.0)}
    other = {"a": pixels(255, 3, dtype=torch.uint8), "b": pixels(0.5), "c": pixels(9.0, 9.0)}
    assert largest_difference(one, other) == 255
    assert largest_difference({"b": one["b"]}, other) == 0.5


def test_a_difference_beyond_the_first_piece_is_seen() -> None:
    from mmcalib.child import tensor_specs

    one = torch.zeros(tensor_specs._PIECE + 8, dtype=torch.uint8)
    other = one.clone()
    other[-1] = 7
    assert tensor_specs.largest_difference({"a": one}, {"a": other}) == 7


def test_without_a_common_tensor_nothing_can_be_told() -> None:
    from mmcalib.child.tensor_specs import largest_difference

    assert largest_difference({"a": pixels(1), "n": 3}, {"b": pixels(1), "n": 3}) is None
