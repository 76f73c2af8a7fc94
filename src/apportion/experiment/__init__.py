"""From a recipe to a folder of results: one run, its measurements, and both stages of a named recipe."""
