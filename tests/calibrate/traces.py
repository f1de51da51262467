"""Rank traces of tiny models, quick to make."""

from __future__ import annotations
