"""The imaginary device by itself: what an operation books, and which values it remembers."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from mmcalib.models.cut import cut_checkpoint
from mmcalib.models.gpus import find_gpu
from mmcalib.text import MIB
from tests.engine.conftest import folder_of
from tests.programs import answer_of

if TYPE_CHECKING:
    from torch import Tensor

torch = pytest.importorskip("torch", reason="needs torch, which comes with vLLM: make setup")

from mmcalib.child.rehearsal.device import LARGE_HOST_BYTES, ImaginaryGpu, NoFakeImplementation  # noqa: E402
from mmcalib.child.rehearsal.ledger import Ledger, Workspaces  # noqa: E402
from mmcalib.child.rehearsal.patches.flashinfer import cutlass_fused_moe, trtllm_moe  # noqa: E402
from mmcalib.child.rehearsal.patches.kernels import key_splits, pack_first_expert  # noqa: E402

pytestmark = pytest.mark.engine
CUDA = "cuda:0"


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[ImaginaryGpu]:
    """An empty imaginary GPU, entered."""
    # A build without CUDA refuses its name before anything is dispatched.
    monkeypatch.setattr(torch.cuda, "_lazy_init", lambda: None)
    with torch.inference_mode(), ImaginaryGpu(Ledger(find_gpu("H100-80G"))) as gpu:
        yield gpu


def held(gpu: ImaginaryGpu) -> int:
    """Bytes of all live tensors, as asked for."""
    return sum(one.nbytes for one in gpu.ledger.live.values())


def cuda(*values: int) -> Tensor:
    return torch.tensor(values, device=CUDA)


def activation(*shape: int) -> Tensor:
    """Too large for its values to be kept, as activations are."""
    return torch.empty(*shape, dtype=torch.bfloat16, device=CUDA)


def peak_of(gpu: ImaginaryGpu, run: Callable[[], object]) -> int:
    """Bytes that running it held at most, above what was there."""
    with gpu.ledger.phase("run") as phase:
        kept = run()
    del kept
    return phase.peak_bytes - phase.start_bytes


def test_a_tensor_is_booked_while_it_lives(gpu: ImaginaryGpu) -> None:
    x = activation(1000, 1000)
    assert (x.device, x.shape) == (torch.device(CUDA), (1000, 1000))
    assert held(gpu) == 2_000_000
    assert gpu.ledger.allocator.allocated_bytes == 2_000_384
    del x
    assert held(gpu) == gpu.ledger.allocator.allocated_bytes == 0
    x = activation(512, 1024)
    row = x[:1]
    del x
    assert held(gpu) == MIB, "a view keeps the whole storage alive"
    del row
    assert held(gpu) == 0


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[3:],
        lambda x: x.view(-1)[::2],
        lambda x: x.expand(8, *x.shape),
        lambda x: x.chunk(4)[1],
        lambda x: x.view(torch.int16),
        lambda x: x.contiguous(),
        lambda x: x.to(torch.bfloat16),
        lambda x: x.mul_(2).add_(x),
        lambda x: x[:4].copy_(x[4:8]),
    ],
)
def test_a_view_or_an_operation_in_place_books_nothing(gpu: ImaginaryGpu, view) -> None:
    x = activation(512, 1024)
    assert peak_of(gpu, lambda: view(x)) == 0


def test_moving_to_the_same_dtype_is_an_alias_and_to_another_a_copy(gpu: ImaginaryGpu) -> None:
    x = activation(512, 1024)
    assert x.to(torch.bfloat16) is x
    assert peak_of(gpu, lambda: x.to(torch.float32)) == 2 * MIB
    assert peak_of(gpu, lambda: x.to(torch.bfloat16, copy=True)) == MIB


def test_a_convolution_holds_cudnn_s_copies(gpu: ImaginaryGpu) -> None:
    """cuDNN 9.19's for an A100, RTX 4090, RTX 5090 and B200; blocks keep up to 1 MiB unsplit."""
    x, filters = activation(500, 480, 64, 50), activation(480, 480, 3, 3)
    output_bytes = x.nbytes // 4

    def nbytes(x: Tensor, filters: Tensor = filters, **about: Any) -> int:
        return peak_of(gpu, lambda: torch.convolution(x, filters, None, **options, **about))

    options: dict[str, Any] = {"stride": (2, 2), "padding": (1, 1), "dilation": (1, 1)}
    options |= {"transposed": False, "output_padding": (0, 0)}
    assert abs(output_bytes + 1_924_147_216 - nbytes(x, groups=1)) <= MIB
    last = activation(500, 64, 50, 480).permute(0, 3, 1, 2)
    assert nbytes(last, groups=1) == output_bytes, "channels are last already"
    # torch has its own kernel for one filter a channel.
    assert nbytes(x, activation(480, 1, 3, 3), groups=480) == output_bytes
    sound, filters = activation(1, 1280, 3000), activation(1280, 1280, 3)
    options |= {"stride": (2,), "padding": (1,), "dilation": (1,), "output_padding": (0,)}
    expected = sound.nbytes // 2 + 21_350_416
    assert abs(expected - nbytes(sound, filters, groups=1)) <= MIB
    narrow = activation(1, 3000, 1280).transpose(1, 2)
    assert abs(expected + narrow.nbytes - nbytes(narrow, filters, groups=1)) <= MIB, "is copied"


@pytest.mark.parametrize(
    ("version", "multiprocessors", "sequences", "tokens", "expected"),
    [
        # An H100 with 16 heads of 64: its encoder peaks were measured (reports/gpu).
        (3, 132, 26, 1025, 4),
        (3, 132, 1, 784, 3),
        # Seven tiles of 192 queries by 16 heads keep 132 multiprocessors busy.
        (3, 132, 1, 1153, 1),
        # Windows, and too many sequences.
        (3, 132, 256, 64, 1),
        (3, 132, 993, 1025, 1),
        # A B200's 148 multiprocessors do two sequences in one wave.
        (4, 148, 1, 1024, 2),
        (4, 148, 2, 1024, 1),
        (4, 148, 1, 512, 1),
        (2, 128, 1, 1024, 1),
    ],
)
def test_flash_attention_splits_keys_where_tiles_leave_multiprocessors_idle(
    version: int, multiprocessors: int, sequences: int, tokens: int, expected: int
) -> None:
    assert key_splits(version, multiprocessors, sequences, 16, tokens, 64) == expected


def test_flashinfer_s_experts_hold_what_its_launchers_allocate(gpu: ImaginaryGpu) -> None:
    """64 tokens of 1,024 numbers, two of four experts each, 512 numbers wide inside."""
    chosen = torch.zeros(64, 2, dtype=torch.int32, device=CUDA)
    up, down = activation(4, 1024, 1024), activation(4, 1024, 512)
    output = activation(64, 1024)
    # By cutlass_fused_moe_kernels.cuh: 128 rows as input and result of a product, and as its
    # widened result, of two bytes; then indices of rows, and of tokens by expert.
    expected = 128 * 1024 * 2 + 128 * 1024 * 2 + 4 * (4 * 128 + 4 * 64)
    inputs = (activation(64, 1024), chosen, chosen, up, down, torch.bfloat16)
    assert peak_of(gpu, lambda: cutlass_fused_moe(*inputs, output=output)) == expected
    # By trtllm_fused_moe_kernel_launcher.cu: tiles of 16 rows, half a mean expert's 32. Each
    # expert may begin one, and the other 124 rows fill seven; next to them, the output.
    sizes: dict[str, Any] = {
        "num_experts": 4,
        "local_num_experts": 4,
        "top_k": 2,
        "intermediate_size": 512,
    }
    rows, output_bytes = 16 * (4 + 7), 64 * 1024 * 2
    x = activation(64, 1024)
    peak = peak_of(gpu, lambda: trtllm_moe(hidden_states=x, **sizes))
    assert peak == rows * (2 * 512 + 2 * 1024) + output_bytes
    # Four bits, and a byte of scales for 16.
    x = torch.empty(64, 512, dtype=torch.uint8, device=CUDA)
    peak = peak_of(gpu, lambda: trtllm_moe(hidden_states=x, **sizes))
    assert peak == rows * (512 // 2 + 512 // 16 + 2 * 1024) + output_bytes


def test_a_batched_linear_layer_with_a_bias_is_one_product(gpu: ImaginaryGpu) -> None:
    """Torch's C++ flattens it to addmm: no broadcast bias, no product beside the result."""
    x, weight, bias = activation(4, 256, 512), activation(2048, 512), activation(2048)
    out = 4 * 256 * 2048 * 2
    assert peak_of(gpu, lambda: torch.nn.functional.linear(x, weight, bias)) == out
    strided = activation(256, 4, 512).transpose(0, 1)
    copied = peak_of(gpu, lambda: torch.nn.functional.linear(strided, weight, bias))
    assert copied > out


def test_a_product_over_broadcast_batches_holds_the_batches_written_out(gpu: ImaginaryGpu) -> None:
    """Attention with grouped keys has it: `expand` is free until a product needs it dense."""
    queries, keys = activation(2, 16, 128, 64), activation(2, 2, 64, 512)
    spread = keys[:, :, None].expand(2, 2, 8, 64, 512)
    grouped = queries.view(2, 2, 8, 128, 64)
    out, written_out = 2 * 16 * 128 * 512 * 2, 2 * 16 * 64 * 512 * 2
    assert peak_of(gpu, lambda: grouped @ spread) == out + written_out


def test_a_chain_of_elementwise_operations_holds_two_results_at_once(gpu: ImaginaryGpu) -> None:
    x = activation(1024, 1024)
    assert peak_of(gpu, lambda: ((x + 1) * 2).exp().neg()) == 2 * x.nbytes


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda t: t[2:], [30, 40]),
        (lambda t: torch.cat([t[:1], t[3:]]), [10, 40]),
        (lambda t: t.view(2, 2).t().flatten(), [10, 30, 20, 40]),
        (lambda t: t.cumsum(0), [10, 30, 60, 100]),
        (lambda t: t[t > 15], [20, 30, 40]),
        (lambda t: (t > 15).nonzero().squeeze(1), [1, 2, 3]),
        (lambda t: torch.masked_select(t, t < 25), [10, 20]),
        (lambda t: torch.repeat_interleave(t, t // 20), [20, 30, 40, 40]),
        (lambda t: torch.unique(t // 20), [0, 1, 2]),
        (lambda t: torch.arange(4, device=CUDA) + t, [10, 21, 32, 43]),
        (lambda t: t[torch.tensor([3, 0], device=CUDA)], [40, 10]),
        (lambda t: t.index_fill(0, torch.tensor([1], device=CUDA), 5), [10, 5, 30, 40]),
    ],
)
def test_small_whole_numbers_keep_their_values(gpu: ImaginaryGpu, run, expected: object) -> None:
    result = run(cuda(10, 20, 30, 40))
    assert result.device == torch.device(CUDA)
    assert result.cpu().tolist() == result.tolist() == expected
    assert not gpu.guesses


def test_a_write_is_seen_by_every_alias(gpu: ImaginaryGpu) -> None:
    t = cuda(1, 2, 3, 4)
    square, tail = t.view(2, 2), t[2:]
    t[0] = 9
    tail.mul_(10)
    square[0].add_(cuda(0, 5))
    t[t == 40] = 0
    assert t.tolist() == [9, 7, 30, 0]
    assert square.tolist() == [[9, 7], [30, 0]]
    assert tail.tolist() == [30, 0]


def test_packed_weights_lose_the_zeros_of_fresh_memory(gpu: ImaginaryGpu) -> None:
    zero_points, scale = (torch.empty(n, dtype=torch.int32, device=CUDA) for n in (1 << 15, 8))
    for weight in (zero_points, scale):
        assert gpu.values.get(weight) is not None
        gpu.values.drop_large(weight)
    assert gpu.values.get(zero_points >> 4) is None  # 128 KiB
    assert (scale >> 4).tolist() == [0] * 8


def test_values_travel_to_the_device_and_back(gpu: ImaginaryGpu) -> None:
    host = torch.tensor([5, 6, 7])
    there = host.to(CUDA, non_blocking=True)
    host[0] = 0
    assert there.tolist() == [5, 6, 7]
    back = torch.zeros(3, dtype=torch.long)
    back.copy_(there)
    there.fill_(1)
    assert back.tolist() == [5, 6, 7]
    assert there.cpu().numpy().tolist() == [1, 1, 1]
    there.copy_(torch.tensor([2, 3, 4]))
    assert [int(one) for one in there] == [2, 3, 4]
    assert not gpu.guesses


def test_host_and_device_do_not_mix_as_they_do_not_on_a_gpu(gpu: ImaginaryGpu) -> None:
    with pytest.raises(RuntimeError, match="same device"):
        cuda(1, 2) + torch.tensor([1, 2])
    assert (cuda(1, 2) + torch.tensor(1)).tolist() == [2, 3]


def test_items_of_every_kind_are_read(gpu: ImaginaryGpu) -> None:
    t = torch.tensor([0, 3], device=CUDA)
    half = torch.tensor([0.5], device=CUDA)
    assert (t[1].item(), int(t.sum()), bool(t[0]), float(half)) == (3, 3, False, 0.5)
    assert torch.equal(t, t.clone())
    assert not gpu.guesses


def test_a_value_that_nobody_knows_is_zero_and_counted(gpu: ImaginaryGpu) -> None:
    tokens = torch.randint(1, 100, (5_000_000,), device=CUDA)
    assert tokens[0].item() == 0
    assert gpu.guesses == {"item": 1}
    assert tokens[:3].cpu().tolist() == [0, 0, 0]
    torch.ones(3, dtype=torch.long).copy_(tokens[:3])
    assert gpu.guesses == {"item": 1, "to host": 1, "copy to host": 1}
    t = cuda(1, 2, 3)
    alias = t[1:]
    t.copy_(tokens[:3])
    assert alias.tolist() == [0, 0], "what an unknown is written to is unknown"
    assert gpu.guesses["item"] == 3


def test_clearing_forgets_guesses_and_values(gpu: ImaginaryGpu) -> None:
    t = cuda(1, 2)
    gpu.clear(on_aten=lambda name: None)
    assert (t[0].item(), gpu.guesses) == (0, {"item": 1})


def test_only_what_is_made_of_a_large_host_tensor_is_fake_and_takes_nothing(gpu) -> None:
    small = torch.arange(5) * 2
    assert type(small) is torch.Tensor
    assert small.numpy().tolist() == [0, 2, 4, 6, 8]
    frames = torch.zeros(LARGE_HOST_BYTES + 1, dtype=torch.uint8)
    assert type(frames) is torch.Tensor
    scaled = frames.float() / 255
    assert type(scaled) is not torch.Tensor
    assert (scaled.device.type, scaled.nbytes) == ("cpu", 4 * frames.nbytes)
    assert held(gpu) == 0
    there = scaled.to(CUDA, torch.bfloat16)
    assert held(gpu) == there.nbytes == 2 * frames.nbytes


def test_a_host_buffer_larger_than_any_machine_takes_only_what_is_written(gpu) -> None:
    """Llama 4's prompts of 10,485,760 tokens, 1,024 of them, are 40 GiB that nothing fills."""
    buffer = torch.zeros(1024, 1 << 28, dtype=torch.int32)
    buffer[1023, -1] = 3
    assert (buffer.nbytes, int(buffer[1023, -1]), int(buffer[7, 7])) == (1 << 40, 3, 0)


def test_pinned_and_generated_tensors_need_no_driver(gpu: ImaginaryGpu) -> None:
    pinned = torch.zeros(4, pin_memory=True).pin_memory()
    assert pinned.to(CUDA).shape == (4,)
    drawn = torch.empty(1024, 1024, device=CUDA).exponential_(generator=torch.Generator())
    assert held(gpu) == drawn.nbytes


def test_a_kernel_s_scratch_raises_the_peak_and_is_gone(gpu: ImaginaryGpu) -> None:
    logits = torch.empty(64, 151_936, device=CUDA)
    with gpu.ledger.phase("sampler") as phase:
        kept = logits.sort(dim=-1)
    results = sum(one.nbytes for one in kept)
    assert phase.scratch_operation == "aten.sort.default"
    assert phase.scratch_bytes > results
    above = phase.peak_bytes - phase.start_bytes
    assert above == pytest.approx(results + phase.scratch_bytes, abs=2 * MIB)
    assert held(gpu) == logits.nbytes + results


def test_the_first_product_brings_a_workspace_that_stays(gpu: ImaginaryGpu) -> None:
    allocator = gpu.ledger.allocator
    gpu.clear(on_aten=Workspaces(allocator, (9, 0), (2, 13), {}).use)
    x = activation(512, 512)
    before = allocator.allocated_bytes
    x.add(1)
    assert allocator.allocated_bytes == before
    x.mm(x)
    assert allocator.allocated_bytes == before + 32 * MIB
    torch.bmm(x[None], x[None])
    del x
    assert allocator.allocated_bytes == 32 * MIB


def test_memory_outside_torch_is_not_free() -> None:
    books = Ledger(find_gpu("H100-80G"))
    books.other_bytes, books.local_bytes = 3 * MIB, 5 * MIB
    assert books.memory_info() == (books.gpu.total_bytes - 8 * MIB, books.gpu.total_bytes)
    assert books.free_bytes == books.gpu.free_at_start - 8 * MIB


def test_a_phase_has_its_start_its_peak_and_its_end(gpu: ImaginaryGpu) -> None:
    before = activation(MIB)
    with gpu.ledger.phase("work") as phase:
        first = activation(2 * MIB)
        gpu.ledger.module = "visual.blocks.0"
        second = activation(4 * MIB)
        gpu.ledger.module = ""
        del first
        third = activation(MIB)
    assert phase.start_bytes == before.nbytes
    assert phase.peak_bytes == before.nbytes + 12 * MIB
    assert phase.end_bytes == before.nbytes + 10 * MIB
    assert [one.nbytes for one in phase.largest] == [8 * MIB, 4 * MIB]
    assert {one.shape for one in phase.largest} == {(4 * MIB,), (2 * MIB,)}
    assert {one.dtype for one in phase.largest} == {"bfloat16"}
    assert [one.module for one in phase.largest] == ["visual.blocks.0", ""]
    assert {one.operation for one in phase.largest} == {"aten.empty.memory_format"}
    del second, third


def test_only_so_many_tensors_are_listed_and_no_small_ones(gpu: ImaginaryGpu) -> None:
    with gpu.ledger.phase("work", largest=2) as phase:
        kept = [activation(size) for size in (MIB, 3 * MIB, 2 * MIB, 100)]
    assert [one.nbytes for one in phase.largest] == [6 * MIB, 4 * MIB]
    with gpu.ledger.phase("idle") as idle:
        small = activation(100)
    assert idle.largest == ()
    del kept, small


def test_what_lies_where_something_lay_before_the_phase_is_new(gpu: ImaginaryGpu) -> None:
    """A storage may be given the address of one that died: its peak lost tensors by that."""
    old = [activation(1 << 20) for _ in range(50)]
    where = {one.untyped_storage()._cdata for one in old}
    with gpu.ledger.phase("work", largest=100) as phase:
        del old
        new = [activation(1 << 20) for _ in range(60)]
        made = gpu.ledger.new_bytes_since(phase)
    assert where & {one.untyped_storage()._cdata for one in new}, "no address was given twice"
    assert len(phase.largest) == 60
    assert made == 60 * 2 * MIB


def test_a_phase_in_a_phase_counts_since_the_outer_one(gpu: ImaginaryGpu) -> None:
    before = activation(MIB)
    with gpu.ledger.phase("profile") as profile:
        outputs = activation(4 * MIB)
        with gpu.ledger.phase("inner", since=profile) as inner:
            work = activation(2 * MIB)
            del work
        with gpu.ledger.phase("alone") as alone:
            work = activation(MIB)
            del work
    assert inner.start_bytes == profile.start_bytes == before.nbytes
    assert inner.peak_bytes == profile.peak_bytes == before.nbytes + 12 * MIB
    assert [one.nbytes for one in inner.largest] == [8 * MIB, 4 * MIB]
    assert (alone.start_bytes, alone.peak_bytes) == (before.nbytes + 8 * MIB, 11 * MIB + MIB)
    assert [one.nbytes for one in alone.largest] == [2 * MIB]
    del outputs


def test_everything_freed_is_nothing_held(gpu: ImaginaryGpu) -> None:
    layer = torch.nn.Sequential(torch.nn.Linear(512, 512), torch.nn.GELU()).to(CUDA)
    out = layer(torch.randn(1024, 512, device=CUDA))
    parts = (*out.chunk(4), out.sort(), out.topk(5), out > 0)
    assert held(gpu) > 0
    del layer, out, parts
    gc.collect()
    assert held(gpu) == gpu.ledger.allocator.allocated_bytes == 0
    gpu.ledger.allocator.empty_cache()
    assert gpu.ledger.allocator.reserved_bytes == 0


def test_a_storage_that_grows_is_booked_at_its_new_size(gpu: ImaginaryGpu) -> None:
    x = activation(0)
    assert gpu.ledger.allocator.allocated_bytes == 0
    torch.add(activation(MIB), 1, out=x.resize_(MIB))
    assert held(gpu) == 2 * MIB


def test_what_dies_after_a_clear_frees_nothing_of_the_new_era(gpu: ImaginaryGpu) -> None:
    old = activation(4 * MIB)
    gpu.ledger.clear()
    assert held(gpu) == gpu.ledger.allocator.allocated_bytes == 0
    new = activation(MIB)
    del old
    assert held(gpu) == gpu.ledger.allocator.allocated_bytes == new.nbytes


def test_lent_host_memory_takes_nothing(gpu: ImaginaryGpu) -> None:
    view = activation(MIB)
    gpu.ledger.exempt(view)
    assert gpu.ledger.allocator.allocated_bytes == 0
    same = view[1:]
    del view, same
    assert gpu.ledger.allocator.allocated_bytes == 0


def test_an_operation_that_nobody_described_is_named_with_its_module(gpu: ImaginaryGpu) -> None:
    library = torch.library.Library("mmcalib_tests", "FRAGMENT")
    library.define("undescribed(Tensor x) -> Tensor")
    gpu.ledger.module = "visual.blocks.3"
    with pytest.raises(NoFakeImplementation) as caught:
        torch.ops.mmcalib_tests.undescribed(activation(MIB))
    assert str(caught.value).startswith("mmcalib_tests.undescribed.default has no fake")
    assert "(in visual.blocks.3)" in str(caught.value)


def test_a_shape_that_hangs_on_an_unknown_value_is_refused_and_not_guessed(gpu) -> None:
    scores = torch.empty(4096, 4096, device=CUDA)
    for run in (torch.nonzero, torch.unique, lambda x: x[x > 0]):
        with pytest.raises(NoFakeImplementation):
            run(scores)


def test_outside_of_the_mode_torch_is_as_it_was(gpu: ImaginaryGpu) -> None:
    with ImaginaryGpu(gpu.ledger):
        pass
    assert torch._C._only_lift_cpu_tensors()
    gpu.__exit__(None, None, None)
    try:
        assert not torch._C._only_lift_cpu_tensors()
        assert torch.tensor([1]).device.type == "cpu"
    finally:
        gpu.__enter__()


def test_a_mask_that_a_number_fills_makes_no_positions(gpu: ImaginaryGpu) -> None:
    """torch fills in place there; for what a tensor fills it looks for the positions first."""
    mask = torch.ones(1, 1, 512, 512, dtype=torch.bool, device=CUDA)
    scores, many = activation(1, 1, 512, 512), activation(512 * 512)

    def fill() -> None:
        scores[mask] = float("-inf")

    def put() -> None:
        scores[mask] = many

    assert peak_of(gpu, fill) == 0
    assert peak_of(gpu, put) >= 4 * 512 * 512 * 8


def test_an_unknown_mask_of_rows_lets_all_through(gpu: ImaginaryGpu) -> None:
    """Gemma 4 strips padding by a mask that its tower computes."""
    scores = activation(4096, 64)
    unknown = (activation(4096, 64) > 0).any(dim=-1)
    assert scores[unknown].shape == (4096, 64)
    assert gpu.whole_masks == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    "model_id",
    [
        "Qwen/Qwen2.5-VL-3B-Instruct",
        "Qwen/Qwen3.5-4B",
        "google/gemma-4-E4B-it",
        "zai-org/GLM-4.6V-Flash",
        "Qwen/Qwen2.5-Omni-7B",
    ],
)
def test_the_same_for_each_operation_of_startup(
    model_id, with_vllm, engine_cache, tmp_path
) -> None:
    """torch's meta kernels say what its fake mode would say."""
    cut = cut_checkpoint(folder_of(model_id, engine_cache), tmp_path / "cut", 4)
    found = answer_of(Path(__file__).with_name("meta_kernels_beside_fakes.py"), cut)
    assert found["differing"] == {}
    assert found["peak"] > 0
    assert len(found["compared"]) > 15
    assert sum(found["compared"].values()) > 300


def pack(weights: Tensor, num_experts: int) -> tuple[Tensor | None, ...]:
    """Pack each expert's weights, then join them, as vLLM's `prepare_*_for_marlin` do."""
    return torch.stack([weights[at].T.contiguous() for at in range(num_experts)]), None


@pytest.mark.parametrize("is_first_only", [False, True])
def test_one_packed_expert_leaves_what_all_would(gpu: ImaginaryGpu, is_first_only: bool) -> None:
    """Also the blocks of the parts: three of 6 MiB in each segment of 20 MiB."""
    ways = pack, pack_first_expert(pack, gpu.ledger.join)
    weights = activation(8, 1024, 3072)
    packed, nothing = ways[is_first_only](weights, num_experts=8)
    assert packed is not None
    assert (packed.shape, nothing) == ((8, 3072, 1024), None)
    allocator = gpu.ledger.allocator
    assert (allocator.allocated_bytes, allocator.reserved_bytes) == (96 * MIB, 156 * MIB)
