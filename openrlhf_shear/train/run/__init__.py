"""The loop of a run: trainer, books, saving, tracking, benchmarks during training, dumps."""
