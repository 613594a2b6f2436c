"""Start-up and memory: time to the first /health, to ready, and resident memory.

python -m bench.serving.startup [--model PATH]
"""

from __future__ import annotations

import argparse
import asyncio
import sys
import time
from pathlib import Path

from rich.console import Console
from rich.table import Table

from bench.serving.load import sample, unique_prompt
from bench.serving.machine import descendants, peak_resident_bytes, resident_bytes
from bench.serving.servers import demo_model, health, start_luce, wait_ready

MB = 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, default=None)
    args = parser.parse_args()
    start = time.monotonic()
    luce = start_luce(args.model or demo_model(), wait=False)
    try:
        while health(luce.port) == 0:
            time.sleep(0.005)
        first_health = time.monotonic() - start
        wait_ready(luce)
        ready = time.monotonic() - start
        body = {"messages": unique_prompt(1500, 1), "max_tokens": 64, "temperature": 0}
        asyncio.run(sample(luce.port, [body] * 4))
        (worker,) = descendants(luce.pid) - {luce.pid}
        maps = Path(f"/proc/{luce.pid}/maps").read_text()
        table = Table(title="start-up and memory")
        for column in ("figure", "measured", "limit"):
            table.add_column(column, justify="left" if column == "figure" else "right")
        table.add_row("first answer of /health", f"{first_health:.2f} s", "1 s")
        table.add_row("demo model ready", f"{ready:.2f} s", "8 s")
        table.add_row("listener resident", f"{resident_bytes(luce.pid) / MB:.0f} MB", "90 MB")
        table.add_row("torch in the listener", "yes" if "libtorch" in maps else "no", "no")
        table.add_row("worker, peak", f"{peak_resident_bytes(worker) / MB:.0f} MB", "1600 MB")
        Console(file=sys.stdout, width=100).print(table)
    finally:
        luce.stop()


if __name__ == "__main__":
    main()
