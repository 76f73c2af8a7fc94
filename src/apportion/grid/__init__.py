"""The named recipes: the paper's tables and figures as Python. `apportion list` prints them."""

from apportion.grid.beyond import BEYOND
from apportion.grid.images import FIGURE_4, MNIST, TABLE_1, TABLE_2, TABLE_3
from apportion.grid.others import MUON_BOTH, TABLE_1_HELD_OUT, TABLE_1_PAPER, TABLE_2_LONG, TABLES_MUON
from apportion.grid.points import DIGITS_GRID, FIGURE_2, FIGURE_2_EARLY, SMOKE
from apportion.recipes import Recipe

RECIPES: dict[str, Recipe] = (
    FIGURE_2
    | FIGURE_2_EARLY
    | DIGITS_GRID
    | TABLE_1
    | TABLE_1_HELD_OUT
    | TABLE_1_PAPER
    | TABLE_2
    | TABLE_2_LONG
    | TABLES_MUON
    | MUON_BOTH
    | TABLE_3
    | FIGURE_4
    | MNIST
    | BEYOND
    | SMOKE
)

__all__ = ["FIGURE_2", "FIGURE_2_EARLY", "RECIPES"]
