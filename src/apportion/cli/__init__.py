"""The command line: `apportion check`, `fit`, `predict`, `run` and others."""
