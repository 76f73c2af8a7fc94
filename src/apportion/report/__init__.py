"""Reports from run folders: Markdown tables, figures, and one HTML page. No GPU and no training is needed."""
