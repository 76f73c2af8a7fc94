"""Print the lower bounds of pyproject.toml as pins for pip, without torch.

Only torch 2.13.0 has a CPU build in the index that our machines use, so requirements/constraints.txt pins it.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
pins = [each.replace(">=", "==") for each in project["dependencies"] if not each.startswith("torch")]
sys.stdout.write("\n".join(pins) + "\n")
