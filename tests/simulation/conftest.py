"""The simulation's tests share a small experiment."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
