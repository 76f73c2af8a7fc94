"""From run folders to files, and nothing else: a report can be rebuilt years later without a GPU."""
