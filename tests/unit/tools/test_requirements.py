"""The pinned versions are those the project asks for, and nothing else decides what is used."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LEFT_TO_THE_MACHINE = {"torch", "triton"}


def canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins(file: str) -> dict[str, str]:
    lines = (ROOT / "requirements" / file).read_text("utf-8").splitlines()
    pinned = [line for line in lines if line and not line.startswith(("#", "-r "))]
    assert all(re.fullmatch(r"[a-z0-9-]+==[0-9a-z.]+", line) for line in pinned), pinned
    return dict(line.split("==") for line in pinned)


@pytest.mark.parametrize(
    ("file", "wanted"),
    [
        ("runtime.txt", [*PROJECT["dependencies"], *EXTRAS["uvloop"]]),
        ("dev.txt", EXTRAS["dev"]),
        ("bench.txt", EXTRAS["bench"]),
    ],
)
def test_every_dependency_is_pinned_within_its_range(file: str, wanted: list[str]) -> None:
    pinned = pins("runtime.txt") | pins(file)
    for requirement in map(Requirement, wanted):
        name = canonical(requirement.name)
        if name in LEFT_TO_THE_MACHINE:
            continue
        assert name in pinned
        assert requirement.specifier.contains(pinned[name]), requirement


def test_torch_is_left_to_the_machine() -> None:
    assert not LEFT_TO_THE_MACHINE & set(pins("runtime.txt") | pins("bench.txt"))
    # The kernels' tests run in Triton's interpreter, wherever they run.
    assert LEFT_TO_THE_MACHINE & set(pins("dev.txt")) == {"triton"}


def test_nothing_is_pinned_twice() -> None:
    assert not set(pins("runtime.txt")) & set(pins("dev.txt"))


def test_make_installs_the_torch_that_the_project_accepts() -> None:
    (version,) = re.findall(r"^TORCH \?= (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    (torch,) = [r for r in map(Requirement, PROJECT["dependencies"]) if r.name == "torch"]
    assert torch.specifier.contains(version)


def test_make_installs_the_demo_model_that_help_names() -> None:
    from luce.cli.demo import INSTALL_COMMAND

    (demo,) = re.findall(r"^DEMO_MODEL := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert INSTALL_COMMAND.endswith(f"--no-deps {demo}")
