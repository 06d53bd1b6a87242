"""Tests mirror the modules of `querator`. `tests.daemons` starts daemons, `tests.scripted` pretends to be one."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
