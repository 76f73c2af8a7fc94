"""Research with the library: recipes of the paper's experiments, runs that resume, grids of runs."""
