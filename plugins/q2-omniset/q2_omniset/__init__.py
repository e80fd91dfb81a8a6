"""Omniset in QIIME 2."""

__version__ = "0.1.0"
