"""Filling tensors by several threads."""

from __future__ import annotations

import threading

import pytest
import torch

from luce.engine.staged_upload import Piece, StagedUpload


def piece(values: torch.Tensor, target: torch.Tensor, nbytes: int = 1) -> Piece:
    def place(sent: torch.Tensor) -> None:
        target.copy_(sent)

    return Piece(lambda: values, place, nbytes)


def test_every_piece_arrives_in_its_type(device: torch.device) -> None:
    source = torch.randn(40, 1000)
    target = torch.full((40, 1000), float("nan"), dtype=torch.bfloat16, device=device)
    upload = StagedUpload(device, threads=4)
    for row in range(0, 40, 3):
        upload.add(piece(source[row : row + 3], target[row : row + 3], row))
    heard: list[int] = []
    upload.finish(heard.append)
    upload.close()
    assert torch.equal(target.cpu(), source.bfloat16())
    assert heard == list(range(0, 40, 3))


def test_what_arrives_may_be_worked_on_there(device: torch.device) -> None:
    found: list[torch.Tensor] = []
    upload = StagedUpload(device, threads=1)
    upload.add(Piece(lambda: torch.arange(6).view(2, 3), lambda sent: found.append(sent + 1), 48))
    upload.finish(lambda _: None)
    upload.close()
    assert found[0].device.type == device.type
    assert found[0].tolist() == [[1, 2, 3], [4, 5, 6]]


def test_the_first_failure_is_raised_and_threads_go_on(device: torch.device) -> None:
    upload = StagedUpload(device, threads=2)
    target = torch.zeros(4, device=device)

    def broken() -> torch.Tensor:
        raise ValueError("damaged")

    upload.add(Piece(broken, lambda _: None, 1))
    with pytest.raises(ValueError, match="damaged"):
        upload.finish(lambda _: None)
    upload.add(piece(torch.ones(4), target))
    upload.finish(lambda _: None)
    upload.close()
    assert target.tolist() == [1.0] * 4


def test_close_ends_the_threads_and_drops_what_waits(device: torch.device) -> None:
    before = threading.active_count()
    upload = StagedUpload(device, threads=1)
    started, go = threading.Event(), threading.Event()
    done: list[int] = []

    def held() -> torch.Tensor:
        started.set()
        assert go.wait(60)
        return torch.ones(1)

    upload.add(Piece(held, lambda _: done.append(0), 1))
    for index in (1, 2):
        upload.add(Piece(lambda: torch.ones(1), lambda _, i=index: done.append(i), 1))
    assert started.wait(60)
    threading.Timer(0.1, go.set).start()
    upload.close()
    assert done == [0]
    assert threading.active_count() <= before + 1
