"""From files to a classifier and back: tables in CSV and Parquet files, and images that they name."""
