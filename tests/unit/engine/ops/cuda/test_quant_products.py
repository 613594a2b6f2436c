"""Who multiplies, and the trial of a kernel before it may."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest
import torch

from luce.engine.ops.cuda import quant_held, quant_products, quant_split, quant_whole
from luce.engine.ops.cuda.quant_products import CHOICE, Kernel, QuantProducts, kernel_fault
from luce.engine.ops.cuda.quant_ring import RingTiling
from luce.engine.ops.cuda.quant_stage import StagedRows
from luce.engine.ops.projection import NormWeight
from luce.engine.ops.ref.quant_matmul import decode
from luce.engine.ops.triton.quant_linear import TritonQuantLinear
from luce.engine.quant_planes import QuantPlanes, repack
from luce.loaders.quant_formats import QUANT_FORMATS
from luce.testing.quant_blocks import random_blocks
from support.cuda_host import HostDevice

CPU = torch.device("cpu")
FEW = {4: Kernel.TRITON, 8: Kernel.SPLIT, 13: Kernel.WHOLE}


@pytest.fixture
def small(host: HostDevice, monkeypatch: pytest.MonkeyPatch) -> Iterator[HostDevice]:
    """The host, one small tiling for all, and nothing tried yet."""
    monkeypatch.setattr(quant_whole, "WHOLE_TILINGS", {16: RingTiling(4, 1, 2)})
    monkeypatch.setattr(quant_products, "_TRIAL_UNITS", 3)
    monkeypatch.setattr(quant_products, "kernel_refusal", lambda **_: None)
    quant_products._serves.cache_clear()
    quant_products._held_serves.cache_clear()
    yield host
    quant_products._serves.cache_clear()
    quant_products._held_serves.cache_clear()


def test_only_hopper_multiplies_by_whole_weights(
    small: HostDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not compiled elsewhere; columns are split on later processors too."""
    monkeypatch.setattr(
        quant_products, "kernel_refusal", lambda is_hopper: "of another year" if is_hopper else None
    )
    products = QuantProducts(FEW)
    with caplog.at_level(logging.INFO):
        assert not products.takes(made("Q4_K"), noise(12))
    assert caplog.messages == ["whole products are not used: of another year"]
    assert quant_whole._compiled.cache_info().currsize == 0
    assert products.takes(made("Q4_K"), noise(7))


def made(type_name: str, rows: int = 40, columns: int = 512) -> QuantPlanes:
    generator = torch.Generator().manual_seed(rows)
    return repack(type_name, random_blocks(type_name, rows, columns, generator), rows, columns)


def noise(rows: int, columns: int = 512) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(1)).bfloat16()


def test_what_was_measured_is_chosen(small: HostDevice) -> None:
    products, planes = QuantProducts(), made("Q4_K")
    assert CHOICE == {4: Kernel.TRITON, 16: Kernel.HELD, 64: Kernel.WHOLE}
    taken = [rows for rows in range(1, 18) if products.takes(planes, noise(rows))]
    assert taken == [*range(5, 18)]
    assert not products.takes(made("MXFP4"), noise(5))


def test_each_number_of_rows_has_its_kernel(
    small: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    planes = made("Q4_K")
    used: list[str] = []
    for module in (quant_split, quant_whole):
        real = module.multiply

        def noted(
            *args: object, name: str = module.__name__, real: object = real, **more: object
        ) -> None:
            used.append(name.rpartition(".")[2])
            real(*args, **more)  # type: ignore[operator]

        monkeypatch.setattr(module, "multiply", noted)
    linear = TritonQuantLinear([planes], None, mma=QuantProducts(FEW))
    for rows in (7, 12):
        x = noise(rows)
        expected = x.double() @ decode(planes).double().T
        del used[:]
        found = linear(x).double()
        assert ((found - expected).norm() / expected.norm()).item() < 2.7e-3
        assert used[-1] == {7: "quant_split", 12: "quant_whole"}[rows]
    products = QuantProducts(FEW)
    assert not products.takes(planes, noise(3))
    assert not products.takes(planes, noise(14))
    assert not products.takes(made("Q2_K"), noise(12))
    assert not products.takes(planes, noise(12, 516)[:, 1:513])


def test_a_norm_stages_x_once_for_all_matrices(
    small: HostDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged: list[int] = []
    real = quant_split.stage_normed

    def counted(x: torch.Tensor, norm: NormWeight, tiles: int) -> StagedRows:
        staged.append(tiles)
        return real(x, norm, tiles)

    monkeypatch.setattr(quant_split, "stage_normed", counted)
    parts = [made("Q4_K"), made("Q6_K", 33)]
    linear = TritonQuantLinear(parts, None, mma=QuantProducts())
    x, norm = noise(11), NormWeight(noise(1)[0], 1e-6)
    mean = x.double().square().mean(-1, keepdim=True)
    normal = x.double() / (mean + norm.eps).sqrt() * norm.weight.double()
    expected = torch.cat([normal @ decode(planes).double().T for planes in parts], 1)
    found = linear.normed(x, norm)
    assert found is not None
    assert ((found.double() - expected).norm() / expected.norm()).item() < 4e-3
    assert staged == [2]
    # Nobody takes the norm of so many rows, or of a weight in another type.
    assert linear.normed(noise(20), norm) is None
    assert linear.normed(x, NormWeight(norm.weight.float(), 1e-6)) is None


@pytest.mark.parametrize("type_name", ["Q4_K", "Q6_K", "MXFP4"])
def test_a_sound_kernel_passes_its_trial(small: HostDevice, type_name: str) -> None:
    assert kernel_fault(Kernel.WHOLE, QUANT_FORMATS[type_name], CPU) is None


def test_a_wrong_kernel_is_not_used_and_logged_once(
    small: HostDevice, caplog: pytest.LogCaptureFixture
) -> None:
    right = "multiply_together(total[tile], up[2], down[2], up[3], down[3], second, 1);"

    def wrong(text: str) -> str:
        assert text.count(right) == 1
        return text.replace(right, "")

    small.edit = wrong
    products = QuantProducts(FEW)
    with caplog.at_level(logging.WARNING):
        assert not products.takes(made("Q4_0"), noise(12))
        assert not products.takes(made("Q4_0", 50), noise(11))
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith(
        "whole products with Q4_0 are not used: 13 rows differ by "
    )


@pytest.mark.parametrize("what", ["pair > share.first_pair", "share.pairs_from(pair) >= WARPS"])
def test_the_trial_has_several_rounds_and_many_pairs(small: HostDevice, what: str) -> None:
    right = "        if (share.pairs_from(pair) >= WARPS)\n"

    def wrong(text: str) -> str:
        return text.replace(right, f"if (CLUSTER == 4 && {what}) continue;\n{right}")

    small.edit = wrong
    fault = kernel_fault(Kernel.SPLIT, QUANT_FORMATS["Q4_0"], CPU, 4)
    assert fault is not None
    assert fault.startswith("5 rows differ by ")


def test_each_size_of_clusters_has_its_trial(
    small: HostDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    tried: list[int] = []

    def fault(kernel: Kernel, form: object, device: torch.device, blocks: int) -> str | None:
        tried.append(blocks)
        return "it is wrong" if blocks == 4 else None

    monkeypatch.setattr(quant_products, "kernel_fault", fault)
    products = QuantProducts()
    assert products.takes(made("Q4_K"), noise(7))
    assert not products.takes(made("Q4_K", 4, 9472), noise(7, 9472))
    assert products.takes(made("Q4_K", 50), noise(12))
    assert tried == [2, 4]
    assert caplog.messages == ["split products with Q4_K by 4 blocks are not used: it is wrong"]


def test_x_is_held_where_that_pays_unless_its_trial_fails(
    small: HostDevice, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(quant_held, "_LEAST_ROWS", 64)
    planes, x = made("Q6_K", 64, 256), noise(7, 256)
    products, out = QuantProducts(), noise(7, 64)
    expected = x.double() @ decode(planes).double().T
    assert products._kernel(planes, 7) is Kernel.HELD
    assert products.takes(planes, x)
    products.multiply(planes, x, out, None, None)
    assert ((out.double() - expected).norm() / expected.norm()).item() < 2e-3
    for others in (made("Q6_K", 56, 256), made("Q4_K", 64, 256)):
        assert products._kernel(others, 7) is Kernel.SPLIT
    quant_products._held_serves.cache_clear()
    monkeypatch.setattr(quant_products, "_TRIAL_ERROR", 1e-4)
    assert products._kernel(planes, 7) is Kernel.SPLIT
    (message,) = caplog.messages
    assert message.startswith(
        "held products with Q6_K of 256 columns are not used: 5 rows differ by "
    )


@pytest.mark.parametrize("error", [RuntimeError("no such device"), AttributeError("no memory")])
def test_a_kernel_that_cannot_be_built_is_not_used(
    small: HostDevice, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def broken(*args: object) -> None:
        raise error

    monkeypatch.setattr(quant_whole, "compiled_kernel", broken)
    monkeypatch.setattr(quant_split, "compiled_kernel", broken)
    assert kernel_fault(Kernel.WHOLE, QUANT_FORMATS["Q8_0"], CPU) == str(error)
    products = QuantProducts()
    assert not products.takes(made("Q4_K"), noise(8))
