"""The compiled modules, for setuptools. Everything else about the package is in pyproject.toml."""

import sys
from pathlib import Path

from setuptools import setup

sys.path.insert(0, str(Path(__file__).parent / "packaging"))
import compiling

setup(**compiling.arguments())
