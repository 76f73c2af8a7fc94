"""From tables to a model, and from a model to scored tables."""
