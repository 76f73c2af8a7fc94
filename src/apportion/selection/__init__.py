"""Model selection without labels: held-out bags judge predictions, epochs, temperatures and whole models."""
