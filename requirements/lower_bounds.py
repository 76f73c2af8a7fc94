"""Print the lower bounds of pyproject.toml as pins for pip: of the library, of [cli], and of pandas.

Not of torch: only torch 2.13.0 has a CPU build where this runs, so requirements/constraints.txt pins it.
"""

import sys
import tomllib
from pathlib import Path

project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
extras = project["optional-dependencies"]
wanted = [*project["dependencies"], *extras["cli"]]
wanted += [each for each in extras["dev"] if each.startswith("pandas")]
pins = [each.replace(">=", "==") for each in wanted if not each.startswith("torch")]
sys.stdout.write("\n".join(pins) + "\n")
