"""Filling tensors by several threads."""

from __future__ import annotations

import threading

import pytest
import torch

from luce.engine.staged_upload import Piece, StagedUpload


def test_every_piece_arrives_in_its_type(device: torch.device) -> None:
    source = torch.randn(40, 1000)
    target = torch.full((40, 1000), float("nan"), dtype=torch.bfloat16, device=device)
    upload = StagedUpload(device, threads=4)
    pieces: list[Piece] = [
        (lambda row=row: source[row : row + 1 + row % 3], target[row : row + 1 + row % 3])
        for row in range(0, 38)
    ]
    upload.run([*pieces, (lambda: source[38:], target[38:])])
    upload.close()
    assert torch.equal(target.cpu(), source.bfloat16())


def test_the_first_failure_is_raised_and_threads_go_on(device: torch.device) -> None:
    upload = StagedUpload(device, threads=2)
    target = torch.zeros(4, device=device)

    def broken() -> torch.Tensor:
        raise ValueError("damaged")

    with pytest.raises(ValueError, match="damaged"):
        upload.run([(broken, target[:1])])
    upload.run([(lambda: torch.ones(4), target)])
    upload.close()
    assert target.tolist() == [1.0] * 4


def test_close_ends_the_threads(device: torch.device) -> None:
    before = threading.active_count()
    upload = StagedUpload(device, threads=3)
    upload.run([(lambda: torch.ones(1), torch.zeros(1, device=device))])
    upload.close()
    assert threading.active_count() == before
