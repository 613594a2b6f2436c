"""`luce bench` drives the real engine and reports what the clock said."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from rich.console import Console

from luce.cli import bench as bench_module
from luce.cli.bench import Figures, bench, measure, table_of
from luce.cli.main import main
from luce.cli.tools import BenchArguments
from luce.errors import ModelFileError
from luce.testing.tiny_models import tiny_llama


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("model"), context_length=768)


def arguments(*paths: Path) -> BenchArguments:
    return BenchArguments(paths, threads=1, dtype="auto", device="cpu")


def printed(figures: list[Figures]) -> str:
    console = Console(file=io.StringIO(), width=160)
    console.print(table_of(figures, "title"))
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def test_every_case_that_fits_is_measured(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bench_module, "REPEATS", 1)
    figures = measure(model, arguments(model))
    assert figures.name == model.name
    assert (figures.device, figures.dtype) == ("cpu:0", "float32")
    assert figures.prefill[512] is not None
    assert figures.prefill[2000] is None, "longer than the model's context"
    assert set(figures.decode) == {1, 4, 8, 16}
    rates = [figures.prefill[512], *figures.decode.values()]
    assert all(rate is not None and rate > 0 for rate in rates)


def test_decode_rate_counts_all_streams(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a clock that ticks once per reading, rate = tokens between two readings."""
    readings = iter(range(1000))
    monkeypatch.setattr(bench_module, "REPEATS", 1)
    monkeypatch.setattr(bench_module.time, "perf_counter", lambda: float(next(readings)))
    figures = measure(model, arguments(model))
    per_stream = bench_module.DECODE_TOKENS - 1  # the first token comes with the prompt
    assert figures.decode[1] == per_stream
    for streams, rate in figures.decode.items():
        assert rate is not None
        # Streams whose prompt was done first have made a token or two before the clock starts.
        assert streams * (per_stream - 3) <= rate <= streams * per_stream
    assert figures.prefill[512] == 512


def test_the_table_has_a_column_per_model() -> None:
    one = Figures("a.gguf", "cpu", "float32", 2**20, 1.25, {512: 10.0}, {1: 2.0, 4: None})
    text = printed([one, one])
    assert text.count("a.gguf") == 2
    rows = {line.split("│")[1].strip(): line for line in text.splitlines() if "│" in line}
    assert rows["prefill 512"].count("10.0") == 2
    assert rows["decode x4"].count(" - ") == 2
    assert "1.0 MiB" in rows["weights"]
    assert "1.2 s" in rows["load"]


def test_the_command_prints_the_table(
    model: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(bench_module, "REPEATS", 1)
    monkeypatch.setattr(bench_module, "STREAMS", (1,))
    monkeypatch.setenv("COLUMNS", "160")
    assert main(["bench", str(model), "--threads", "1"]) == 0
    output = " ".join(capsys.readouterr().out.split())
    assert model.name in output
    assert "1 CPU threads" in output


def test_a_missing_model_is_a_model_file_error(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="missing"):
        bench(arguments(tmp_path / "missing.gguf"))
