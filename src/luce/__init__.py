"""luce: every language model you run, behind one address."""

__version__ = "0.1.0"
