"""Model selection without labels: held-out bags score predictions, epochs, temperatures and whole models."""
