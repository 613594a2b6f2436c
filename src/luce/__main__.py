"""`python -m luce` is the `luce` command."""

from __future__ import annotations

import sys

from luce.cli.main import main

sys.exit(main())
