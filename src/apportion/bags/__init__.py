"""Bags: groups of instances with known class proportions, and how they are built from users' data."""
