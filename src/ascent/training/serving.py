"""The sampling servers of a run: started for it, or standing already."""

from __future__ import annotations
