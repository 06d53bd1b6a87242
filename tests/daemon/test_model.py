"""The random model of `model.py` on the memory storage."""

from __future__ import annotations

from hypothesis import settings

from model import QueueMachine

TestMemory = QueueMachine.TestCase
TestMemory.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
