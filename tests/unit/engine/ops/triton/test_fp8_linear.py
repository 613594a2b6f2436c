"""FP8 kernels against float64 over the values that numbers and scales stand for."""

from __future__ import annotations

import pytest
import torch

from luce.engine.device import Device
from luce.engine.fp8_scales import Fp8Scales
from luce.engine.fp8_weights import Fp8Matrix, StoredPart, empty_fp8
from luce.engine.ops.moe import Routing
from luce.engine.ops.ref import fp8_matmul as ref
from luce.engine.ops.triton.fp8_linear import (
    Fp8Tilings,
    TileTiling,
    TritonFp8Linear,
    VectorTiling,
)
from luce.engine.ops.triton.gated_mlp import silu_and_mul
from luce.engine.ops.triton.moe import FEW_TOKENS
from luce.engine.ops.triton.moe_fp8 import Fp8Experts, Fp8MoeTiling, Fp8MoeTilings
from luce.engine.parked_weights import ParkedWeights

# Small cuts: vector up to 2 rows, tiles up to 20, decoding to scratch, 64 rows of it, above.
SMALL = Fp8Tilings(
    vector={1: VectorTiling(64, 2, 1, 4), 2: VectorTiling(64, 4, 2, 4)},
    tile={20: TileTiling(64, 4, 3, 1)},
    scratch_elements=1,
)
SHARED = Fp8Tilings(vector={1: VectorTiling(64, 2, 0, 4)}, tile={20: TileTiling(64, 4, 3, 12)})
NAN_CODES = (0x7F, 0xFF)


def noise(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def scales_of(form: str, rows: int, columns: int, seed: int = 0) -> Fp8Scales:
    shape = {"one": (1, 1), "row": (rows, 1), "block": (-(-rows // 128), -(-columns // 128))}[form]
    values = 0.001 + 0.05 * noise(*shape, seed=seed + 1).abs()
    return Fp8Scales(values, rows, form == "block")


def random_codes(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    """Bytes of finite numbers, subnormal ones and both zeros among them."""
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(0, 256, (rows, columns), generator=generator, dtype=torch.uint8)
    return torch.where(codes & 0x7F == 0x7F, 0x81, codes).to(torch.uint8)


def made(
    form: str, rows: int, columns: int, device: torch.device, seed: int = 0
) -> tuple[Fp8Matrix, torch.Tensor]:
    """A matrix and its values in float64."""
    scales, codes = scales_of(form, rows, columns, seed), random_codes(rows, columns, seed)
    matrix = empty_fp8([scales], columns, device)
    matrix.codes.copy_(codes)
    values = torch.empty(rows, columns)
    scales.apply(0, values, codes.view(torch.float8_e4m3fn))
    return matrix, values.double()


def error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.cpu().double() - expected).norm() / expected.norm())


@pytest.fixture
def poisoned_outputs(monkeypatch: pytest.MonkeyPatch) -> None:
    """What kernels do not write stays NaN."""
    empty = torch.empty

    def poisoned(*size: int, **options: object) -> torch.Tensor:
        values: torch.Tensor = empty(*size, **options)  # type: ignore[call-overload]
        return values.fill_(float("nan")) if values.is_floating_point() else values

    monkeypatch.setattr(torch, "empty", poisoned)


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize("tokens", [1, 2, 5, 21])
@pytest.mark.parametrize("form", ["one", "row", "block"])
@pytest.mark.parametrize("shape", [(200, 328), (128, 256), (3, 130)])
def test_products(device: torch.device, form: str, tokens: int, shape: tuple[int, int]) -> None:
    matrix, values = made(form, *shape, device)
    bias, residual, x = noise(shape[0], seed=1), noise(tokens, shape[0], seed=2), noise(tokens, shape[1])  # fmt: skip  # noqa: E501
    linear = TritonFp8Linear([matrix], bias.to(device), SMALL)
    # Around x, and behind the last row, lies what must not be read.
    poisoned = torch.full((tokens + 1, shape[1] + 9), float("nan"))
    poisoned[:tokens, : shape[1]] = x
    inner = poisoned.to(device)[:tokens, : shape[1]]
    expected = x.double() @ values.T + bias
    assert error(linear(inner), expected) < 2e-6
    kept = residual.to(device).clone()
    assert linear.add_to(kept, inner) is kept
    assert error(kept, expected + residual) < 2e-6
    assert linear.nbytes == matrix.nbytes + bias.nbytes
    assert not linear.holds(kept)


@pytest.mark.parametrize("tokens", [1, 7, 30])
def test_parts_of_every_kind_side_by_side(device: torch.device, tokens: int) -> None:
    plain = noise(6, 300, seed=8)
    made_parts = [made(form, rows, 300, device, seed=rows) for form, rows in (("block", 100), ("row", 33))]  # fmt: skip  # noqa: E501
    parts: list[StoredPart] = [made_parts[0][0], plain.to(device), made_parts[1][0]]
    values = torch.cat([made_parts[0][1], plain.double(), made_parts[1][1]])
    x, bias, residual = noise(tokens, 300), noise(139, seed=3), noise(tokens, 139, seed=4)
    linear = TritonFp8Linear(parts, bias.to(device), SMALL)
    expected = x.double() @ values.T + bias
    assert error(linear(x.to(device)), expected) < 2e-6
    found = linear.add_to(residual.to(device).clone(), x.to(device))
    assert error(found, expected + residual) < 2e-6
    reference = ref.linear(parts, bias.to(device))
    assert error(reference(x.to(device)), expected) < 2e-6
    assert error(reference.add_to(residual.to(device), x.to(device)), expected + residual) < 2e-6
    assert reference.nbytes == linear.nbytes


@pytest.mark.usefixtures("poisoned_outputs")
@pytest.mark.parametrize("form", ["row", "block"])
def test_columns_shared_out(device: torch.device, form: str) -> None:
    """Five blocks of columns in shares of two and one."""
    matrix, values = made(form, 70, 600, device)
    x, bias, residual = noise(9, 600), noise(70, seed=1), noise(9, 70, seed=2)
    linear = TritonFp8Linear([matrix], bias.to(device), SHARED)
    expected = x.double() @ values.T + bias
    assert error(linear(x.to(device)), expected) < 2e-6
    found = linear.add_to(residual.to(device).clone(), x.to(device))
    assert error(found, expected + residual) < 2e-6


@pytest.mark.parametrize("tokens", [1, 6, 30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_every_code_is_exact(device: torch.device, dtype: torch.dtype, tokens: int) -> None:
    """The product with unit vectors reads numbers off: all 256, NaN where the reference has it."""
    codes = torch.arange(256, dtype=torch.uint8).repeat(2, 1).T.contiguous()
    matrix = empty_fp8([Fp8Scales(torch.ones(1, 1), 256, is_block=False)], 2, device)
    matrix.codes.copy_(codes)
    x = torch.zeros(tokens, 2, dtype=dtype)
    x[0, 1] = 1.0
    found = TritonFp8Linear([matrix], None, SMALL)(x.to(device))[0].cpu().float()
    expected = codes[:, 1].view(torch.float8_e4m3fn).float()
    torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert [int(code) for code in found.isnan().nonzero()] == list(NAN_CODES)
    assert expected[1] == 2.0**-9


@pytest.mark.parametrize("tokens", [2, 6])
def test_a_row_does_not_depend_on_the_others(device: torch.device, tokens: int) -> None:
    matrix, _ = made("block", 40, 520, device)
    linear = TritonFp8Linear([matrix], None, SMALL)
    x = noise(tokens, 520).to(device)
    others = torch.cat([x[:1], 100 * noise(tokens - 1, 520, seed=9).to(device)])
    assert torch.equal(linear(x)[0], linear(others)[0])


def test_lookup(device: torch.device) -> None:
    for form in ("row", "block"):
        table, values = made(form, 300, 130, device)
        ids = torch.tensor([299, 0, 128, 127, 128], dtype=torch.int32)
        for dtype in (torch.float32, torch.bfloat16):
            found = ref.lookup(table, ids.to(device), dtype).cpu()
            assert torch.equal(found, values[ids.long()].to(torch.float32).to(dtype))


NUM_EXPERTS, SIZE, HIDDEN, CHOSEN = 5, 72, 200, 2
MOE_TILINGS = Fp8MoeTilings(
    VectorTiling(64, 2, 0, 4), Fp8MoeTiling(16, 64, 4, 3), Fp8MoeTiling(16, 64, 4, 3)
)


def experts_of(form: str, device: torch.device) -> tuple[list[Fp8Matrix], list[torch.Tensor]]:
    """Gate | up and down of all experts, and their values [E, rows, columns]."""
    matrices, values = [], []
    for rows, columns, count in ((SIZE, HIDDEN, 2 * NUM_EXPERTS), (HIDDEN, SIZE, NUM_EXPERTS)):
        each = [made(form, rows, columns, device, seed=index) for index in range(count)]
        scales = [scales_of(form, rows, columns, index) for index in range(count)]
        whole = empty_fp8(scales, columns, device, band=rows)
        whole.codes.copy_(torch.cat([matrix.codes for matrix, _ in each]))
        matrices.append(whole)
        values.append(torch.stack([value for _, value in each]).view(NUM_EXPERTS, -1, columns))
    return matrices, values


def routing_of(tokens: int, device: torch.device) -> Routing:
    """Nobody goes to expert 2, most go to expert 4."""
    first = torch.arange(tokens) % 2
    second = torch.where(torch.arange(tokens) % 3 == 0, 3, 4)
    weights = noise(tokens, CHOSEN, seed=4).abs()
    return Routing(torch.stack([first, second], 1).to(device), weights.to(device))


@pytest.mark.parametrize("form", ["one", "block"])
@pytest.mark.parametrize("tokens", [3, FEW_TOKENS + 5])
def test_experts(device: torch.device, form: str, tokens: int) -> None:
    (gate_up, down), (gate_up_values, down_values) = experts_of(form, device)
    routing = routing_of(tokens, device)
    x = noise(tokens, HIDDEN, seed=3)
    x /= (gate_up_values.float() @ x.T).std()
    expected = torch.zeros(tokens, HIDDEN, dtype=torch.float64)
    for token in range(tokens):
        chosen = zip(routing.experts[token].tolist(), routing.weights[token].tolist(), strict=True)
        for expert, weight in chosen:
            gate, up = (gate_up_values[expert] @ x[token].double()).chunk(2)
            expected[token] += weight * (down_values[expert] @ (gate * gate.sigmoid() * up))
    experts = Fp8Experts(gate_up, down, NUM_EXPERTS, silu_and_mul, MOE_TILINGS)
    assert error(experts(x.to(device), routing), expected) < 1e-5
    assert experts.nbytes == gate_up.nbytes + down.nbytes
    looped = ref.pack_experts(gate_up, down, NUM_EXPERTS, silu_and_mul)
    assert error(looped(x.to(device), routing), expected) < 1e-5
    assert looped.nbytes == experts.nbytes


def test_weights_can_be_parked(device: torch.device) -> None:
    """What an evicted model keeps is all of it, once; products are the same when it is back."""
    matrix, _ = made("block", 40, 200, device)
    (gate_up, down), _ = experts_of("row", device)
    linear = TritonFp8Linear([matrix, noise(8, 200).to(device)], None, SMALL)
    experts = Fp8Experts(gate_up, down, NUM_EXPERTS, silu_and_mul, MOE_TILINGS)
    x = noise(2, 200).to(device)
    expected = linear(x)
    parked = ParkedWeights([linear, experts], Device(str(device), device))
    assert parked.nbytes == linear.nbytes + experts.nbytes
    parked.leave_device()
    assert matrix.codes.untyped_storage().nbytes() == 0
    parked.return_()
    assert torch.equal(linear(x), expected)
